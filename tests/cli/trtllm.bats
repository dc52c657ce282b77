#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# kvferry trtllm: plans of TensorRT-LLM ranks, exact; and workers against each other, every byte compared.
load common
kvferry=${KVFERRY:?the command under test}
examples=$(realpath "$BATS_TEST_DIRNAME/../../examples/trtllm")

# What a process in the background writes, from its first line on; its file may be about to be made.
follow() { tail -F -n +1 "$1" 2>/dev/null; }

# Writes a file of ranks: NAME TP ORDER FILE, then what differs as Python on `rank` (a dict) with `r` its number.
ranks() {
    /usr/bin/python3 - "$@" <<'PY'
import json, sys
name, tp, order, path = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
change = sys.argv[5] if len(sys.argv) > 5 else ""
heads, layers, dims, tokens = 4, 2, 8, 16
out = []
for r in range(tp):
    local = heads // tp
    size = local * dims * tokens * 2
    entries = [[layer, (2 * layer + part) * size, size] for layer in range(layers) for part in range(2)]
    view = {"pool": 0, "roles": ["key", "value"], "kind": order, "heads": local, "entries": entries}
    rank = {"name": name, "rank": r, "tp": [tp, r], "pp": [1, 0], "dp": [1, 0], "cp": [1, 0],
            "layers_per_stage": [layers],
            "attention": {"kv_heads": local, "tokens_per_block": tokens, "head_dim": dims, "element_bytes": 2,
                          "attention_dp": False, "key_only": False},
            "aux": {"address": [4096, 0, 8192], "size": [64, 0, 64], "item": [16, 0, 8]},
            "table": {"tokens_per_block": tokens,
                      "groups": [{"cache": "paged", "pool_group": 0, "layers": [[i, i] for i in range(layers)],
                                  "kv_heads": local, "views": [view]}],
                      "pools": [[{"base": 1 << 32, "slot": 4 * size, "stride": 4 * size + 64, "slots": 20}]]}}
    exec(change)
    out.append(rank)
json.dump(out, open(path, "w"))
PY
}

# ---- plan -------------------------------------------------------------------------------------------------------

@test "help" {
    matches trtllm-help trtllm --help
    matches trtllm-plan-help trtllm plan --help
    matches trtllm-worker-help trtllm worker --help
    matches trtllm-info-help trtllm info --help
}
@test "no command, a mistyped one, an option" {
    matches trtllm-nothing trtllm
    matches trtllm-mistyped trtllm plam a b
    matches trtllm-unknown trtllm moon
    matches trtllm-option trtllm --json
}
@test "plan: head-major, two ranks to one" {
    ranks ctx 2 indexed ctx.json
    ranks gen 1 indexed gen.json
    matches trtllm-plan-hnd trtllm plan ctx.json gen.json --tokens 90
}
@test "plan: in ASCII, turned, token-major" {
    ranks ctx 1 nhd ctx.json
    ranks gen 2 nhd gen.json
    LC_ALL=C matches trtllm-plan-nhd trtllm plan ctx.json gen.json --tokens 32
}
@test "plan: as the examples say" {
    matches trtllm-plan-examples trtllm plan "$examples/context.json" "$examples/generation.json"
    cp "$examples"/*.json .
    matches trtllm-plan-swapped trtllm plan generation.json context.json
}
@test "plan: copies of heads, only one of which sends" {
    ranks ctx 4 indexed ctx.json
    ranks gen 1 indexed gen.json 'rank["attention"]["kv_heads"] = rank["table"]["groups"][0]["views"][0]["heads"] = 2
for e in rank["table"]["groups"][0]["views"][0]["entries"]: e[1] //= 2; e[2] //= 2
rank["table"]["pools"][0][0]["slot"] //= 2'
    matches trtllm-plan-copies trtllm plan ctx.json gen.json --tokens 16
}
@test "plan: refused, softly" {
    ranks ctx 2 indexed ctx.json
    ranks gen 1 indexed gen.json 'rank["attention"]["head_dim"] = 16'
    matches trtllm-plan-soft trtllm plan ctx.json gen.json
}
@test "plan: refused, HND against NHD" {
    ranks ctx 2 indexed ctx.json
    ranks gen 1 nhd gen.json
    matches trtllm-plan-kinds trtllm plan ctx.json gen.json
}
@test "plan: HND against NHD, natively" {
    ranks ctx 2 indexed ctx.json
    ranks gen 1 nhd gen.json
    matches trtllm-plan-native trtllm plan ctx.json gen.json --native --tokens 16
}
@test "plan: context parallelism of two sizes, natively: all that hold a layer are asked" {
    ranks ctx 4 indexed ctx.json 'rank["tp"], rank["cp"] = [1, 0], [4, r]'
    ranks gen 4 indexed all.json 'rank["tp"], rank["cp"] = [1, 0], [2, r]'
    /usr/bin/python3 -c 'import json; print(json.dumps(json.load(open("all.json"))[:2]))' >gen.json
    matches trtllm-plan-stripes trtllm plan ctx.json gen.json --native --tokens 128
}
@test "plan: JSON" {
    ranks ctx 1 indexed ctx.json
    ranks gen 1 indexed gen.json
    matches trtllm-plan-json trtllm plan ctx.json gen.json --tokens 16 --json
}
@test "plan: blocks of a request" {
    ranks ctx 1 indexed ctx.json
    ranks gen 1 indexed gen.json
    echo '{"prompt": 40, "src_blocks": [[3, 4, 7]], "dst_blocks": [[0, -1, 2]]}' >request.json
    matches trtllm-plan-blocks trtllm plan ctx.json gen.json --blocks request.json
    echo '{"prompt": 40, "src_blocks": [[3, 4, 70]], "dst_blocks": [[0, 1, 2]]}' >request.json
    matches trtllm-plan-bad-blocks trtllm plan ctx.json gen.json --blocks request.json
    echo '{"src_blocks": []}' >request.json
    matches trtllm-plan-no-prompt trtllm plan ctx.json gen.json --blocks request.json
    echo '{"prompt": 40, "blocks": {"ctx": [[3, 4, 7]], "gen0": [[0, -1, 2]]}}' >request.json
    matches trtllm-plan-no-blocks trtllm plan ctx.json gen.json --blocks request.json
    matches trtllm-plan-dp trtllm plan ctx.json gen.json --dp 1
}
@test "plan: MessagePack, in a folder" {
    # The bytes that an 18-key sender writes for a rank without a page table (docs/trtllm.md tells how to get them).
    mkdir ranks
    /usr/bin/python3 - <<'PY'
import msgpack
rank = dict(instance_name="ctx", instance_rank=0, tp_size=1, tp_rank=0, pp_size=1, pp_rank=0, layer_num_per_pp=[1],
            sender_endpoints=["tcp://127.0.0.1:1"], self_endpoint="tcp://127.0.0.1:2", transfer_engine_info=b"",
            dp_size=1, dp_rank=0, cp_size=1, cp_rank=0, device_id=0,
            attention=dict(kv_heads_per_rank=1, tokens_per_block=4, dims_per_head=2, element_bytes=2,
                           enable_attention_dp=False, is_mla=False),
            aux_meta=None,
            page_table=dict(tokens_per_block=4,
                            layer_groups=[dict(kind=0, pool_group_idx=0,
                                               local_layers=[dict(local_layer_id=0, global_layer_id=0)],
                                               pool_views=[dict(pool_idx=0, buffer_entries=[[0, 0, 16], [0, 16, 16]],
                                                                pool_role=["key", "value"], mapper_kind=0,
                                                                bytes_per_layer=32, section_bytes=None,
                                                                bytes_per_head=None, num_kv_heads=1,
                                                                ring_slot_bytes=None)],
                                               kv_head_num_per_rank=1, sliding_window_size=None)],
                            pool_groups=[dict(pools=[dict(base_address=4096, slot_bytes=32, num_slots=8,
                                                          slot_stride_bytes=32, layer_stride_bytes=None)])]))
open("ranks/0.msgpack", "wb").write(msgpack.packb(rank))
PY
    matches trtllm-plan-msgpack trtllm plan ranks ranks
}
@test "plan: files that cannot be used" {
    ranks gen 1 indexed gen.json
    echo '{"name": "ctx", "rank": 0}' >bad.json
    matches trtllm-plan-missing trtllm plan bad.json gen.json
    ranks ctx 2 indexed bad.json 'rank["table"]["groups"][0]["views"][0]["kind"] = "upside"'
    matches trtllm-plan-kind trtllm plan bad.json gen.json
    ranks ctx 2 indexed bad.json 'rank["rank"] = 0'
    matches trtllm-plan-twice trtllm plan bad.json gen.json
    ranks ctx 2 indexed bad.json 'rank["name"] += str(r)'
    matches trtllm-plan-two-names trtllm plan bad.json gen.json
    echo '[]' >bad.json
    matches trtllm-plan-none trtllm plan bad.json gen.json
    echo '[{' >bad.json
    matches trtllm-plan-broken trtllm plan bad.json gen.json
    printf '\xde\x00' >bad.json
    matches trtllm-plan-short trtllm plan bad.json gen.json
    matches trtllm-plan-no-file trtllm plan none.json gen.json
    matches trtllm-plan-one trtllm plan gen.json
    matches trtllm-plan-stdin trtllm plan - -
}
@test "plan: no room, no table" {
    ranks ctx 1 indexed ctx.json
    ranks gen 1 indexed gen.json
    matches trtllm-plan-room trtllm plan ctx.json gen.json --tokens 321
    ranks ctx 1 indexed ctx.json 'rank["table"] = None'
    matches trtllm-plan-no-table trtllm plan ctx.json gen.json
}
@test "plan: garbage, a depth bomb" {
    ranks gen 1 indexed gen.json
    head -c 100000 /dev/urandom >bad
    run "$kvferry" trtllm plan bad gen.json
    [ "$status" -eq 3 ]
    printf '[%.0s' $(seq 1000000) >bad
    run "$kvferry" trtllm plan bad gen.json
    [ "$status" -eq 3 ]
}

# ---- info -------------------------------------------------------------------------------------------------------

@test "info: what is no endpoint" {
    matches trtllm-info-none trtllm info
    matches trtllm-info-word trtllm info 127.0.0.1:5000
    matches trtllm-info-port trtllm info tcp://127.0.0.1:99999
}
@test "info: nobody there" {
    run "$kvferry" trtllm info tcp://127.0.0.1:1 --timeout 0.1
    [ "$status" -eq 4 ]
    [[ $output == "kvferry trtllm info: tcp://127.0.0.1:1: no answer within 0.1 s: is this the info endpoint of "* ]]
}

# ---- workers ----------------------------------------------------------------------------------------------------

# Adds members to a SPEC: FILE JSON.
member() {
    /usr/bin/python3 -c 'import json, sys
spec = json.load(open(sys.argv[1]))
spec = spec if isinstance(spec, dict) else {sys.argv[2]: spec}
spec.update(json.loads(sys.argv[3]))
json.dump(spec, open(sys.argv[1], "w"))' "$@"
}

# Two context ranks send to one generation rank: ORDER (or ORDER:ORDER), then what the context and the generation say
# more, then an option. $shape is what differs of the generation's rank.
move() {
    ranks ctx 2 "${1%:*}" ctx.json
    ranks gen 1 "${1#*:}" gen.json "${shape:-}"
    member ctx.json src "$2"
    member gen.json dst "$3"
    mkdir -p meet
    status=0
    for r in 0 1; do
        "$kvferry" trtllm worker --role context ctx.json --rank $r --meet meet "${@:4}" >ctx$r.out 2>ctx$r.err &
        pids[r]=$!
    done
    "$kvferry" trtllm worker --role generation gen.json --meet meet "${@:4}" >gen.out || status=$?
    cat gen.out
    for r in 0 1; do
        wait "${pids[r]}" || {
            cat ctx$r.out ctx$r.err
            return 1
        }
    done
    return $status
}
sends='{"requests": [{"rid": 7, "prompt": 90, "blocks": [[5, 9, 2, 19, 11, 0]]}]}'
receives='{"check": true, "dump": "dump", "requests": [{"rid": 7, "from": "ctx", "prompt": 90,
           "blocks": [[1, 0, 17, 4, 13, 8]]}]}'

# An independent look at the dump: the pattern of docs/trtllm.md at every place of one block list.
look() {
    /usr/bin/python3 - "$@" <<'PY'
import sys
order, rid, blocks = sys.argv[1], int(sys.argv[2]), list(map(int, sys.argv[3].split(",")))
word, prime = (1 << 64) - 1, 0x100000001b3
def value(*coordinates):
    x = 0xcbf29ce484222325
    for n in list(b"key+value") + list(coordinates):
        x = (x ^ n) * prime & word
    x ^= x >> 32
    return (x * 0x9e3779b97f4a7c15 & word) >> 56
pool = open("dump", "rb").read()
size = 4 * 8 * 16 * 2   # heads, dims, tokens, bytes of an element
want = bytearray(b"\xa5" * 20 * (4 * size + 64))
for ordinal, block in enumerate(blocks):
    for entry in range(4):
        for head in range(4):
            for token in range(16):
                at = head * 256 + token * 16 if order == "indexed" else token * 64 + head * 16
                for byte in range(16):
                    want[block * (4 * size + 64) + entry * size + at + byte] = value(
                        rid, entry // 2, entry % 2, head, ordinal * 16 + token, byte)
wrong = sum(a != b for a, b in zip(pool, want))
assert wrong == 0, f"{wrong} bytes are wrong"
assert len(pool) == len(want) + 128, "auxiliary buffers are missing"
PY
}

@test "worker: head-major, two ranks to one" {
    move indexed "$sends" "$receives"
    grep '"event":"checked","wrong":0' gen.out
    look indexed 7 1,0,17,4,13,8
}
@test "worker: token-major, two ranks to one" {
    move nhd "$sends" "$receives"
    grep '"event":"checked","wrong":0' gen.out
    look nhd 7 1,0,17,4,13,8
}
@test "worker: head-major to token-major, natively" {
    move indexed:nhd "$sends" "$receives" --native
    grep '"event":"checked","wrong":0' gen.out
    look nhd 7 1,0,17,4,13,8
}
@test "worker: head-major to token-major is refused to stock peers, and the cause said" {
    ranks ctx 1 indexed ctx.json
    ranks gen 1 nhd gen.json
    member ctx.json src '{}'
    member gen.json dst "$receives"
    mkdir meet
    mkfifo to_ctx
    "$kvferry" trtllm worker --role context ctx.json --meet meet >ctx.out <to_ctx &
    local ctx=$!
    exec 7>to_ctx
    run "$kvferry" trtllm worker --role generation gen.json --meet meet
    [ "$status" -eq 1 ]
    [[ $output == *"context peer at 'tcp://"*"' is incompatible: "*"incompatible mapper kinds"* ]]
    exec 7>&-
    wait $ctx
}
@test "worker: a check that can fail" {
    run move indexed "{\"fill\": \"none\", ${sends#\{}" "$receives"
    [ "$status" -eq 1 ]
    grep '"event":"checked","where":"pool \[0\]\[0\] +0","expected":[0-9]*,"found":90,"wrong":24[0-9]*' gen.out
    grep '"exit":1' gen.out
}
@test "worker: pieces, auxiliary data, generation first" {
    move indexed '{"requests": [{"rid": 8, "schedule": "generation-first", "prompt": 90,
                                 "pieces": [[0, 40], [40, 90], [90, 90]],
                                 "blocks": [[5, 9, 2, 19, 11, 0]], "aux_slot": 2}]}' \
        '{"check": true, "requests": [{"rid": 8, "schedule": "generation-first", "from": "ctx", "prompt": 90,
           "ctx_dp_rank": 0, "blocks": [[1, 0, 17, 4, 13, 8]], "aux_slot": 3}]}'
    grep '"event":"checked","wrong":0' gen.out
    [ "$(grep -c '"event":"piece"' ctx0.out)" -eq 3 ]
}
@test "worker: pieces to blocks of another size, natively" {
    shape='rank["attention"]["tokens_per_block"] = rank["table"]["tokens_per_block"] = 24
for e in rank["table"]["groups"][0]["views"][0]["entries"]: e[1], e[2] = e[1] * 3 // 2, e[2] * 3 // 2
for key in "slot", "stride": rank["table"]["pools"][0][0][key] *= 2'
    for pieces in '[[0, 90], [90, 90]]' '[[0, 20], [20, 64], [64, 90]]'; do
        move indexed:nhd '{"requests": [{"rid": 8, "prompt": 90, "pieces": '"$pieces"',
                                         "blocks": [[5, 9, 2, 19, 11, 0]]}]}' \
            '{"check": true, "requests": [{"rid": 8, "from": "ctx", "prompt": 90, "blocks": [[1, 0, 17, 4]]}]}' --native
        grep '"event":"checked","wrong":0' gen.out
    done
}
@test "worker: requests from standard input, info, cancel" {
    ranks ctx 1 indexed ctx.json
    ranks gen 1 indexed gen.json
    member ctx.json src '{}'
    member gen.json dst '{}'
    mkfifo to_ctx to_gen
    "$kvferry" trtllm worker --role context ctx.json --rank 0 >ctx.out <to_ctx &
    local ctx=$!
    exec 7>to_ctx
    "$kvferry" trtllm worker --role generation gen.json --rank 0 >gen.out <to_gen &
    local gen=$!
    exec 8>to_gen
    info=$(follow ctx.out | grep -m1 -o '"info":"[^"]*' | cut -d'"' -f4)
    "$kvferry" trtllm info "$info" -o rank.json
    "$kvferry" trtllm plan rank.json gen.json --tokens 16 | grep 'intact, 1 x 4 KiB'
    "$kvferry" trtllm info "$info" --raw -o rank.msgpack
    "$kvferry" trtllm plan rank.msgpack gen.json --tokens 16 | grep 'intact, 1 x 4 KiB'
    echo '{"rid": 1, "prompt": 20, "blocks": [[3, 4]], "info": "'"$info"'"}' >&8
    echo '{"rid": 2, "prompt": 20, "blocks": [[5, 6]], "info": "'"$info"'"}' >&8
    echo '{"cancel": 2}' >&8
    echo '{"rid": 1, "prompt": 20, "blocks": [[1, 2]]}' >&7
    follow gen.out | grep -m1 '"event":"settled","rid":1'
    echo '{"dump": "now"}' >&8
    exec 8>&-
    wait $gen
    grep '"ended","rid":1,"state":"transferred"' gen.out
    grep '"ended","rid":2,"state":"cancelled","by_peer":false' gen.out
    [ -s now ]
    exec 7>&-
    wait $ctx
}
@test "worker: asked before it is complete" {
    ranks ctx 2 indexed ctx.json
    ranks gen 1 indexed gen.json
    member ctx.json src '{}'
    member gen.json dst '{"check": true}'
    mkfifo to0 to1 to_gen
    for r in 0 1; do
        "$kvferry" trtllm worker --role context ctx.json --rank $r >ctx$r.out <to$r &
        pids[r]=$!
    done
    exec 5>to0 6>to1
    for r in 0 1; do sender[r]=$(follow ctx$r.out | grep -m1 -o '"sender":"[^"]*' | cut -d'"' -f4); done
    info=$(grep -o '"info":"[^"]*' ctx0.out | cut -d'"' -f4)
    complete='{"complete": {"sender_endpoints": ["'"${sender[0]}"'", "'"${sender[1]}"'"]}}'
    echo "$complete" >&5
    echo '{"rid": 3, "prompt": 20, "blocks": [[1, 2]]}' >&5
    echo '{"rid": 3, "prompt": 20, "blocks": [[1, 2]]}' >&6
    "$kvferry" trtllm worker --role generation gen.json >gen.out <to_gen &
    local gen=$!
    exec 8>to_gen
    echo '{"rid": 3, "prompt": 20, "blocks": [[1, 2]], "info": "'"$info"'"}' >&8
    follow ctx0.out | grep -m1 '"event":"settled","rid":3'
    echo "$complete" >&6
    exec 5>&- 6>&- 8>&-
    wait $gen
    wait "${pids[0]}"
    wait "${pids[1]}"
}
@test "worker: lines that cannot be used" {
    ranks gen 1 indexed gen.json
    member gen.json dst '{}'
    cat >lines <<'LINES'
{"rid": 1
{"rid": 1, "prompt": 20, "block": [[1]], "info": "tcp://127.0.0.1:1"}
{"rid": 1, "prompt": 20, "blocks": [[1, "x"]], "info": "tcp://127.0.0.1:1"}
{"rid": 1, "prompt": 0, "blocks": [[1, 2]], "info": "tcp://127.0.0.1:1"}
{"rid": -1, "prompt": 20, "blocks": [[1, 2]], "info": "tcp://127.0.0.1:1"}
{"rid": 1, "prompt": 20, "blocks": [[1, 2]]}
{"rid": 1, "prompt": 20, "blocks": [[1, 99]], "info": "tcp://127.0.0.1:1"}
{"prompt": 20}
[]
{"cancel": 5}
{"send": 5}
{"complete": {"senders": []}}
LINES
    run "$kvferry" trtllm worker --role generation gen.json --rank 0 <lines
    [ "$status" -eq 3 ]
    echo "$output" >gen.out
    grep -v '"ready"\|"end"' gen.out >lines.out
    local record=$BATS_TEST_DIRNAME/expected/trtllm-lines.txt
    if [ "${KVF_RECORD:-0}" = 1 ]; then cp lines.out "$record"; fi
    diff -u "$record" lines.out
    grep '"exit":3' gen.out
}
@test "worker: SPECs that cannot be used" {
    ranks gen 2 indexed gen.json
    member gen.json dst '{}'
    matches trtllm-spec-no-rank trtllm worker --role generation gen.json
    matches trtllm-spec-other-rank trtllm worker --role generation gen.json --rank 5
    matches trtllm-spec-no-src trtllm worker --role context gen.json
    echo '[]' >list.json
    matches trtllm-spec-list trtllm worker --role generation list.json
    matches trtllm-spec-no-role trtllm worker gen.json
    matches trtllm-spec-role trtllm worker --role both gen.json
    member gen.json dst '{"dumb": "x"}'
    matches trtllm-spec-member trtllm worker --role generation gen.json --rank 0
    ranks gen 1 indexed gen.json 'rank["table"]["pools"][0][0]["slots"] = "many"'
    member gen.json dst '{}'
    matches trtllm-spec-slots trtllm worker --role generation gen.json
    ranks gen 1 indexed gen.json
    member gen.json dst '{"requests": [{"rid": 3, "prompt": 20, "blocks": [[1, 2]], "form": "ctx"}]}'
    matches trtllm-spec-request trtllm worker --role generation gen.json
    ranks gen 1 indexed gen.json
    member gen.json dst '{"endpoint": "127.0.0.1:port"}'
    matches trtllm-spec-endpoint trtllm worker --role generation gen.json
    member gen.json dst '{"endpoint": "tcp://127.0.0.1:5"}'
    matches trtllm-spec-scheme trtllm worker --role generation gen.json
    for address in 127.0.0.1:0 ::1 '[::1]:0'; do
        member gen.json dst '{"endpoint": "'"$address"'"}'
        "$kvferry" trtllm worker --role generation gen.json </dev/null || [ $? -eq 1 ] # a host may have no IPv6
    done
    member gen.json dst '{"endpoint": "127.0.0.1", "dump": "none/%r"}'
    matches trtllm-spec-dump trtllm worker --role generation gen.json
    ranks gen 1 indexed gen.json 'rank["table"]["pools"][0][0]["slots"] = 1 << 60'
    member gen.json dst '{}'
    matches trtllm-spec-huge trtllm worker --role generation gen.json
    ranks ctx 2 indexed ctx.json
    member ctx.json src '{"requests": []}'
    matches trtllm-spec-alone trtllm worker --role context ctx.json --rank 0
}
@test "worker: a piece that cannot be sent is a line that cannot be used" {
    ranks ctx 1 indexed ctx.json
    member ctx.json src '{"dump": "dump.%r", "requests": [{"rid": 7, "prompt": 20, "blocks": [[1, 99]]}]}'
    run "$kvferry" trtllm worker --role context ctx.json
    [ "$status" -eq 3 ]
    [[ $output == *'"event":"refused","status":"KVF_ERR_IDS","text":"group 0: block id 1 is 99'* ]]
    [ -s dump.0 ]
}
@test "worker: a context rank dies before it sends" {
    ranks ctx 2 indexed ctx.json
    ranks gen 1 indexed gen.json
    member ctx.json src '{"requests": [{"rid": 7, "prompt": 90, "hold": true, "blocks": [[5, 9, 2, 19, 11, 0]]}]}'
    member gen.json dst "$receives"
    mkdir meet
    for r in 0 1; do
        "$kvferry" trtllm worker --role context ctx.json --rank $r --meet meet >ctx$r.out &
        pids[r]=$!
    done
    "$kvferry" trtllm worker --role generation gen.json --meet meet --timeout 2 >gen.out &
    local gen=$!
    follow ctx1.out | grep -m1 '"event":"asked"'
    kill -9 "${pids[1]}"
    status=0
    wait $gen || status=$?
    wait "${pids[0]}" || true
    [ "$status" -eq 1 ]
    grep '"state":"error".*"text":"KV transfer timed out for request 7 after 2000 ms: context rank' gen.out
    grep '"event":"overdue","rid":7,"text":"nobody has said within 2 s that the writes' gen.out
}
@test "worker: nobody asks" {
    ranks ctx 1 indexed ctx.json
    member ctx.json src '{"requests": [{"rid": 7, "prompt": 20, "blocks": [[1, 2]]}]}'
    run "$kvferry" trtllm worker --role context ctx.json --timeout 0.2
    [ "$status" -eq 4 ]
    [[ $output == *'"event":"timeout","rid":7,"text":"'*'"event":"ended","rid":7,"state":"cancelled"'* ]]
}
@test "worker: a context that is not there" {
    ranks gen 1 indexed gen.json
    member gen.json dst '{"requests": [{"rid": 7, "prompt": 20, "blocks": [[1, 2]], "info": "tcp://127.0.0.1:1"}]}'
    run "$kvferry" trtllm worker --role generation gen.json --timeout 0.2
    [ "$status" -eq 4 ]
}
@test "worker: nobody comes" {
    ranks ctx 2 indexed ctx.json
    member ctx.json src '{"requests": []}'
    mkdir meet
    run "$kvferry" trtllm worker --role context ctx.json --rank 0 --meet meet --timeout 0.2
    [ "$status" -eq 4 ]
    [[ $output == *'not all 2 ranks of "ctx" have come to meet'* ]]
    [ -z "$(ls meet)" ]
    echo '{"instance": "ctx", "rank": 0, "pid": '$$', "start": '"$(cut -d' ' -f22 /proc/$$/stat)"'}' >meet/ctx.0.json
    run "$kvferry" trtllm worker --role context ctx.json --rank 0 --meet meet --timeout 0.2
    [ "$status" -eq 3 ]
    [[ $output == *'rank 0 of "ctx" is in meet already, as process '$$': end that one, or take another folder'* ]]
}
@test "worker: filled from a file, ended by a signal" {
    ranks ctx 1 indexed ctx.json
    head -c 83328 /dev/urandom >memory
    member ctx.json src '{"fill": "memory", "dump": "dump"}'
    "$kvferry" trtllm worker --role context ctx.json <(:) 2>/dev/null >none.out && return 1
    mkfifo to_ctx
    "$kvferry" trtllm worker --role context ctx.json >ctx.out <to_ctx &
    local ctx=$!
    exec 7>to_ctx
    follow ctx.out | grep -m1 '"complete"'
    kill $ctx
    wait $ctx
    exec 7>&-
    cmp memory dump
}
@test "the examples, as docs/trtllm.md says" {
    cp "$examples"/*.json .
    PATH=$(dirname "$kvferry"):$PATH
    /usr/bin/python3 - "$BATS_TEST_DIRNAME/../../docs/trtllm.md" >recipe.sh <<'PY'
import re, sys
section = open(sys.argv[1]).read().partition("## Try it in five minutes")[2].partition("\n## ")[0]
print("".join(line[4:] + "\n" for line in re.findall(r"^    .*$", section, re.MULTILINE)))
PY
    grep -c kvferry recipe.sh | grep 3
    bash -e recipe.sh >out
    grep '"state":"transferred".*"peers":2' out
    grep '"event":"checked","wrong":0' out
    grep -c '"exit":0' out | grep 3
}
