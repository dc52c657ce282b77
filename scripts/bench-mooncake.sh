#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures Mooncake's data protocol in one run: the published wheel and kvferry as initiator and target, beside a bare
# TCP connection; lines of JSON:
#     scripts/bench-mooncake.sh BUILD_FOLDER [--rounds N] [--ms N] [--bytes N]
# The wheel is the one that `make test-upstream` installs; without it kvferry to kvferry is measured alone.
set -eu
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/bench-mooncake.sh BUILD_FOLDER [--rounds N] [--ms N] [--bytes N]}
shift
python=build-upstream/${KVF_UPSTREAM_VERSION:-0.3.13.post1}/bin/python
if [ -x "$python" ]; then
    set -- --wheel "$python" "$@"
else
    echo "bench-mooncake: no wheel in build-upstream/ ('make test-upstream' installs it): kvferry alone" >&2
fi
exec /usr/bin/python3 bench/mooncake/drive.py "$build/bench/mooncake-side" "$@"
