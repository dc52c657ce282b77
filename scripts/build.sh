#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Configures (the first time only, so later -D are ignored) and builds in the given folder:
#     scripts/build.sh FOLDER [--cc=COMPILER] [-Dname=value ...] [ninja targets]
# Quiet when it goes well; what the tools said is in FOLDER/setup.log and FOLDER/build.log.
set -eu
cd "$(dirname "$0")/.."
folder=${1:?usage: scripts/build.sh FOLDER [--cc=COMPILER] [-Dname=value ...] [ninja targets]}
shift
compiler=gcc
options=""
targets=""
for argument in "$@"; do
    case $argument in
        --cc=*) compiler=${argument#--cc=} ;;
        -D*) options="$options $argument" ;;
        *) targets="$targets $argument" ;;
    esac
done

if [ ! -f "$folder/build.ninja" ]; then
    mkdir -p "$folder"
    # shellcheck disable=SC2086 # one word per option
    if ! CC=$compiler meson setup "$folder" $options >"$folder/setup.log" 2>&1; then
        tail -n 20 "$folder/setup.log" >&2
        echo "build: cannot configure; all of it: $folder/setup.log" >&2
        exit 1
    fi
fi
echo "building with $compiler in $folder/"
# shellcheck disable=SC2086 # one word per target
if ! ninja -C "$folder" $targets >"$folder/build.log" 2>&1; then
    grep -A30 -m3 -E '^FAILED|error:' "$folder/build.log" >&2 || tail -n 30 "$folder/build.log" >&2
    echo "build: failed; all of it: $folder/build.log" >&2
    exit 1
fi
