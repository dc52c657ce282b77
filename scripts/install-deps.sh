#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that a task needs, and nothing when all are there.
#     scripts/install-deps.sh [build] [test] [clang] [fuzz] [bench] [tokens] [upstream]
# KVF_DEPS=no skips it; KVF_LOCK_TIMEOUT is how many seconds to wait for another package manager (default 900).
set -eu

build="gcc libc6-dev meson ninja-build pkg-config python3 libzmq3-dev libmsgpack-dev libjansson-dev \
libmicrohttpd-dev libcurl4-openssl-dev libssl-dev libxxhash-dev libcmocka-dev"
test="g++ binutils procps bats shellcheck valgrind python3-zmq python3-msgpack python3-numpy python3-jsonschema"
lock_seconds=${KVF_LOCK_TIMEOUT:-900}

fail() {
    echo "install-deps: $1" >&2
    exit 1
}

packages_of() {
    case $1 in
        build) echo "$build" ;;
        test) echo "$build $test" ;;
        clang) echo "$build clang" ;;
        fuzz) echo "$build clang libclang-rt-14-dev" ;;
        bench) echo "$build python3-numpy" ;;
        tokens) echo "$build python3-venv ca-certificates" ;;
        upstream) echo "$build $test python3-venv ca-certificates libibverbs1 libnuma1 libcurl4" ;;
        *) fail "no such set of packages: $1 (build, test, clang, fuzz, bench, tokens, upstream)" ;;
    esac
}

is_installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# The packages on standard input that are not installed, each once.
missing_of() {
    tr -s ' ' '\n' | sort -u | while read -r package; do
        if [ -n "$package" ] && ! is_installed "$package"; then
            printf '%s ' "$package"
        fi
    done
}

# Runs apt-get as root. It waits for dpkg's lock by itself, but not for the lock of the package lists: so try again.
apt() {
    deadline=$(($(date +%s) + lock_seconds))
    while :; do
        status=0
        $as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -q \
            -o DPkg::Lock::Timeout="$lock_seconds" "$@" </dev/null >"$log" 2>&1 || status=$?
        if [ "$status" -eq 0 ]; then
            return 0
        fi
        if ! grep -Eq 'Could not get lock|is another process using it|Unable to (acquire|lock)' "$log"; then
            return "$status"
        fi
        if [ "$(date +%s)" -ge "$deadline" ]; then
            fail "another package manager held its lock for $lock_seconds seconds; try again when it is done"
        fi
        echo "install-deps: waiting for another package manager to finish"
        sleep 3
    done
}

if [ "${KVF_DEPS:-yes}" = no ]; then
    exit 0
fi
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    fail "this is not a Debian system, so nothing can be installed here; install what \
scripts/install-deps.sh lists by your own means and run again with KVF_DEPS=no"
fi

wanted=""
for set in "${@:-build}"; do
    wanted="$wanted $(packages_of "$set")"
done
missing=$(echo "$wanted" | missing_of)
if [ -z "$missing" ]; then
    exit 0
fi

echo "install-deps: will install these Debian packages: $missing"
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
        fail "needs root to install them and there is no sudo; run as root once: apt-get install $missing"
    as_root="sudo"
    if [ ! -t 0 ]; then
        as_root="sudo -n"
    elif ! sudo -v; then
        fail "needs root to install them and sudo was refused; run as root once: apt-get install $missing"
    fi
    $as_root true 2>/dev/null ||
        fail "needs root to install them and sudo asks for a password; run as root once: apt-get install $missing"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt update || {
    tail -n 5 "$log" >&2
    echo "install-deps: the package lists could not be renewed; going on with the present ones" >&2
}
# shellcheck disable=SC2086 # one word per package
apt install -y --no-install-recommends $missing || {
    tail -n 15 "$log" >&2
    fail "these packages could not be installed (is this Debian 12 with a network?): $missing"
}
missing=$(echo "$wanted" | missing_of)
if [ -n "$missing" ]; then
    fail "apt-get ended well, but these packages are still missing: $missing"
fi
echo "install-deps: done"
