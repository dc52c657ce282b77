#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures vLLM's dialect in one run: deciding, messages, registry, pulls that wait, and a request from end to end,
# beside upstream's own functions and server where they are installed; lines of JSON:
#     scripts/bench-vllm.sh BUILD_FOLDER [--rounds N] [--only plan|messages|growth|registry|waiting|pair]
# `make test-upstream` installs vLLM; without it kvferry is measured alone.
set -eu
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/bench-vllm.sh BUILD_FOLDER [--rounds N] [--only PART]}
shift
python=build-upstream/vllm-${KVF_VLLM_VERSION:-0.32.0}/bin/python
if [ -x "$python" ]; then
    set -- --upstream "$python" "$@"
else
    echo "bench-vllm: no vLLM in build-upstream/ ('make test-upstream' installs it): kvferry alone" >&2
fi
exec /usr/bin/python3 bench/vllm/drive.py "$build/bench" "$@"
