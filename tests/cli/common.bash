# SPDX-License-Identifier: Apache-2.0
# Shared by the bats files of this folder. KVFERRY is the command under test; KVF_RECORD=1 writes the expected outputs
# anew instead of comparing.
#
#     matches NAME ARGUMENT...
#
# runs kvferry and compares standard output, standard error and the exit code with expected/NAME.txt. Files are given
# by relative names in a scratch folder, so that no output holds a path of this machine.

setup() {
    expected=$BATS_TEST_DIRNAME/expected
    kvferry=$(realpath "$kvferry") # a full name, since tests run in folders of their own
    export LC_ALL=C.UTF-8
    cd "$BATS_TEST_TMPDIR" || return 1
}

# Writes what a command says, in parts, to a file.
transcript() {
    local file=$1 status=0
    shift
    "$@" >stdout.part 2>stderr.part || status=$?
    {
        cat stdout.part
        echo "--- standard error"
        cat stderr.part
        echo "--- exit code $status"
    } >"$file"
}

matches() {
    local name=$1
    shift
    transcript transcript.txt "$kvferry" "$@"
    if [ "${KVF_RECORD:-0}" = 1 ]; then
        mkdir -p "$expected"
        cp transcript.txt "$expected/$name.txt"
    fi
    diff -u "$expected/$name.txt" transcript.txt
}

# The two layouts that most tests plan between.
make_layouts() {
    "$kvferry" layout --layers 4 --kv-heads 4 --head-dim 8 --tp 2 --pp 2 --order hnd --kv-pools separate --blocks 64 \
        --value-blocks 80 --model tiny -o P.json
    "$kvferry" layout --layers 4 --kv-heads 4 --head-dim 8 --block-tokens 64 --blocks 32 --padding 256 --model tiny -o D.json
}
