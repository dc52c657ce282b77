#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds one variant in a folder of its own and runs its tests on all cores.
#     scripts/run-tests.sh VARIANT [meson test arguments]
# VARIANT: gcc (all tests), clang (unit tests), asan, ubsan, tsan (all tests, longer timeouts, fewer property cases).
set -eu
cd "$(dirname "$0")/.."
root=$PWD

variant=${1:?usage: scripts/run-tests.sh VARIANT [meson test arguments]}
shift
jobs=$(nproc)
prefix=""
factor=1
builddir=build-$variant
setup=""
case $variant in
    gcc) builddir=build ;;
    clang) set -- --suite unit "$@" ;;
    asan) setup="-Db_sanitize=address" factor=6 ;;
    ubsan) setup="-Db_sanitize=undefined" factor=4 ;;
    tsan)
        setup="-Db_sanitize=thread" factor=10
        # ThreadSanitizer cannot start where the kernel spreads mappings widely: run without that where allowed.
        if setarch -R true 2>/dev/null; then
            prefix="setarch -R"
        fi
        ;;
    *)
        echo "run-tests: no such variant: $variant (gcc, clang, asan, ubsan, tsan)" >&2
        exit 2
        ;;
esac
compiler=gcc
if [ "$variant" = clang ]; then
    compiler=clang
fi
log=$builddir/meson-logs/testlog.json
summary() {
    /usr/bin/python3 scripts/test-summary.py ${label:+--label "$label"} "$log" ${KVF_SUMMARY_ALSO:+"$KVF_SUMMARY_ALSO"}
}
label=$variant
if [ "$variant" = gcc ]; then
    label=""
fi

rm -f "$log"
if [ -f "$builddir/build.ninja" ]; then
    # Where only `make build` or `make demo` was here before, or an older checkout.
    meson configure "$builddir" -Dtests=true >/dev/null 2>&1 ||
        meson setup --reconfigure "$builddir" -Dtests=true >/dev/null
fi
# shellcheck disable=SC2086 # one word per option
if ! scripts/build.sh "$builddir" --cc=$compiler $setup; then
    summary || true
    exit 1
fi

suppressions=$root/$builddir/suppressions
/usr/bin/python3 scripts/split-suppressions.py scripts/sanitizer-suppressions.txt "$suppressions"
common="halt_on_error=1:abort_on_error=1:allocator_may_return_null=1"
export ASAN_OPTIONS="$common:detect_leaks=1:detect_stack_use_after_return=1"
export LSAN_OPTIONS="suppressions=$suppressions.leak:print_suppressions=0"
export UBSAN_OPTIONS="$common:print_stacktrace=1:suppressions=$suppressions.undefined"
export TSAN_OPTIONS="$common:second_deadlock_stack=1:suppressions=$suppressions.thread"
if [ "$factor" -gt 1 ]; then
    export KVF_PROPERTY_CASES="${KVF_PROPERTY_CASES:-5000}"
    export KVF_SANITIZER="$variant"
fi
status=0
$prefix meson test -C "$builddir" --no-rebuild --num-processes "$jobs" --timeout-multiplier "$factor" \
    --print-errorlogs "$@" </dev/null || status=$?
summary || status=1
exit "$status"
