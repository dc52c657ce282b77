#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target for some seconds under libFuzzer, ASan and UBSan:  scripts/fuzz-smoke.sh SECONDS
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-10}
folder=build-fuzz
targets=""
for source in fuzz/fuzz_*.c; do
    targets="$targets ${source%.c}"
done
# shellcheck disable=SC2086 # one word per target
scripts/build.sh "$folder" --cc=clang -Dtests=false -Dfuzzer=true -Db_sanitize=address,undefined \
    -Db_lundef=false $targets
export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1"
count=0
failed=0
for target in "$folder"/fuzz/fuzz_*; do
    if [ ! -f "$target" ] || [ ! -x "$target" ]; then
        continue
    fi
    name=${target##*/}
    work=$folder/corpus-$name
    mkdir -p "$work" "$folder/crashes"
    echo "fuzz-smoke: $name for $seconds s"
    count=$((count + 1))
    if ! "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=0 -verbosity=0 \
        -artifact_prefix="$folder/crashes/$name-" "$work" "fuzz/corpus/$name" >"$folder/$name.log" 2>&1; then
        tail -n 40 "$folder/$name.log"
        echo "fuzz-smoke: $name FAILED; its input is in $folder/crashes/"
        failed=$((failed + 1))
    fi
done
echo "fuzz-smoke: $((count - failed)) targets passed, $failed failed"
[ "$count" -gt 0 ] && [ "$failed" -eq 0 ]
