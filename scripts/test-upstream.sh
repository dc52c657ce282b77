#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs kvferry's Mooncake engine beside the published one, both as initiator and as target:
#     scripts/test-upstream.sh BUILD_FOLDER [unittest arguments]
# The wheel is installed once, into build-upstream/; that needs a network. KVF_UPSTREAM_VERSION is another release.
set -eu
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/test-upstream.sh BUILD_FOLDER [unittest arguments]}
shift
version=${KVF_UPSTREAM_VERSION:-0.3.13.post1}
wheel=mooncake-transfer-engine-non-cuda
venv=build-upstream/$version
log="build-upstream/install.log"

fail() {
    echo "test-upstream: $1" >&2
    exit 1
}

works() {
    "$venv/bin/python" -c 'import mooncake.engine' >>"$log" 2>&1
}

mkdir -p build-upstream
: >"$log"
if ! works; then
    echo "test-upstream: installing $wheel $version into $venv/"
    /usr/bin/python3 -m venv "$venv" >>"$log" 2>&1 || fail "cannot make $venv/; is python3-venv installed? See $log"
    "$venv/bin/pip" --disable-pip-version-check install --no-deps "$wheel==$version" >>"$log" 2>&1 ||
        fail "pip cannot install $wheel $version; is there a network? Nothing was tested. See $log"
    works || fail "$wheel $version is installed and does not load; is libibverbs1 there? See $log"
fi
KVF_UPSTREAM_PYTHON=$PWD/$venv/bin/python
KVF_MOONCAKE_HOST=$(realpath "$build/tests/mooncake/mooncake_host")
KVFERRY=$(realpath "$build/src/cli/kvferry")
export KVF_UPSTREAM_PYTHON KVF_MOONCAKE_HOST KVFERRY
echo "test-upstream: $wheel $version"
/usr/bin/python3 tests/mooncake/upstream_test.py "$@"
