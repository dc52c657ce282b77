#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the benchmarks of a build folder one after the other; each prints lines of JSON:  scripts/bench.sh FOLDER
set -eu
cd "$(dirname "$0")/.."
folder=${1:-build}
echo "{\"bench\": \"machine\", \"cpu\": \"$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)\"," \
    "\"cpus\": $(nproc), \"avx512\": $(grep -qw avx512f /proc/cpuinfo && echo true || echo false)," \
    "\"kernel\": \"$(uname -r)\"}"
for program in "$folder"/bench/bench-*; do
    if [ -f "$program" ] && [ -x "$program" ]; then
        "$program" || echo "{\"bench\": \"${program##*/bench-}\", \"failed\": true}"
    fi
done
scripts/bench-mooncake.sh "$folder" || echo '{"bench": "mooncake", "failed": true}'
scripts/bench-vllm.sh "$folder" || echo '{"bench": "vllm", "failed": true}'
