#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# kvferry vllm: plans of vLLM's workers, exact; and workers against each other, every byte compared.
load common
kvferry=${KVFERRY:?the command under test}
examples=$(realpath "$BATS_TEST_DIRNAME/../../examples/vllm")

teardown() {
    for process in ${background:-}; do
        { kill -KILL "$process" && wait "$process"; } 2>/dev/null || true
    done
}

# Writes what ranks registered: FILE TP ORDER, then what differs as Python on `rank` (a dict) with `r` its number.
# ORDER: page (LBHNC), row (a slice of a packed row), opaque, heads (a region per head), latent (MLA).
ranks() {
    /usr/bin/python3 - "$@" <<'PY'
import json, sys
path, tp, order = sys.argv[1], int(sys.argv[2]), sys.argv[3]
change = sys.argv[4] if len(sys.argv) > 4 else ""
heads, layers, blocks, head = 4, 2, 32, 4096
out = []
for r in range(tp):
    mine = max(heads // tp, 1) if order != "latent" else 1
    page, base, rows = mine * head, (r + 1) << 32, []
    names = ["model.layers.%d.%s" % (i, "mla_attn" if order == "latent" else "self_attn") for i in range(layers)]
    for i, name in enumerate(names):
        if order == "page":
            rows.append((base + i * page * blocks, page, page, name, i, 0, [0], -1))
        elif order in ("row", "latent"):
            rows.append((base + i * page, layers * page, page, name, i, 0, [0], i * page))
        elif order == "heads":
            rows += [(base + (i * mine + h) * head * blocks, head, head, name, i, 0, [0], -1) for h in range(mine)]
        elif i == 0:
            rows.append((base, layers * page, layers * page, name, i, 0, [0], 0))
    columns = ["base_addr", "block_len", "kv_block_len", "layer_name", "layer_index", "group_index", "shared_groups",
               "row_offset"]
    kind = "mla" if order == "latent" else "attention"
    rank = {"tp_rank": r, "tp_size": tp, "pp_size": 1, "is_mla": order == "latent", "total_kv_heads": heads,
            "group_kinds": ["attention"], "layer_groups": {name: 0 for name in names},
            "layer_specs": {name: {"kind": kind, "page_bytes": page, "unpadded_page_bytes": page} for name in names},
            "has_opaque_row": order == "opaque",
            "regions": {column: list(values) for column, values in zip(columns, zip(*rows))}}
    exec(change)
    out.append(rank)
json.dump(out, open(path, "w"))
PY
}

# FROM TO CHANGE: a JSON file with a change, as Python on `value`.
edit() {
    /usr/bin/python3 -c 'import json, sys
names = {"json": json, "value": json.load(open(sys.argv[1]))}
exec(sys.argv[3], names)
json.dump(names["value"], open(sys.argv[2], "w"))' "$@"
}

# ---- plan -------------------------------------------------------------------------------------------------------

@test "help" {
    matches vllm-help vllm --help
    matches vllm-plan-help vllm plan --help
    matches vllm-worker-help vllm worker --help
    matches vllm-info-help vllm info --help
}
@test "no command, a mistyped one, an option" {
    matches vllm-nothing vllm
    matches vllm-mistyped vllm plam a b
    matches vllm-option vllm --json
    matches vllm-plan-nothing vllm plan
    matches vllm-plan-three vllm plan a b c
}
@test "plan: as the examples say" {
    cp "$examples"/*.json .
    matches vllm-plan-examples vllm plan producer.json consumer.json
    matches vllm-plan-swapped vllm plan consumer.json producer.json
}
@test "plan: two ranks to one, one to two, in ASCII" {
    ranks P.json 2 page
    ranks D.json 1 page
    LC_ALL=C matches vllm-plan-2-1 vllm plan P.json D.json
    matches vllm-plan-1-2 vllm plan D.json P.json
}
@test "plan: packed rows merge and fold" {
    ranks P.json 1 row
    matches vllm-plan-row vllm plan P.json P.json
}
@test "plan: a latent cache, which one of two sends" {
    ranks P.json 2 latent
    ranks D.json 1 latent
    matches vllm-plan-latent vllm plan P.json D.json --blocks 8
}
@test "plan: a region per head" {
    ranks P.json 1 heads
    ranks D.json 2 heads
    matches vllm-plan-heads-one vllm plan P.json P.json
    matches vllm-plan-heads vllm plan P.json D.json
}
@test "plan: more ranks than heads" {
    ranks P.json 8 page
    ranks D.json 1 page
    matches vllm-plan-copies vllm plan P.json D.json
}
@test "plan: layers of a row that vLLM would mix up" {
    ranks P.json 8 row
    ranks D.json 2 row
    "$kvferry" vllm plan P.json D.json --json >plan.json
    /usr/bin/python3 -c 'import json
told = [pair.get("warning", "") for pair in json.load(open("plan.json"))["pairs"]]
assert len(told) == 8 and all("wrong, without an error" in one for one in told), told'
    edit P.json P0.json 'value = value[0]'
    edit D.json D0.json 'value = value[0]'
    matches vllm-plan-misplaces vllm plan P0.json D0.json
    ranks D.json 4 row # one head in each: its place is that of all
    "$kvferry" vllm plan P.json D.json >one
    ranks P.json 8 page
    ranks D.json 2 page
    "$kvferry" vllm plan P.json D.json >apart
    ! grep -q warning one apart || false
}
@test "plan: blocks of a latent cache that are longer at the consumer" {
    ranks P.json 1 latent
    ranks D.json 1 latent '
for column in "base_addr", "block_len", "kv_block_len", "row_offset":
    rank["regions"][column] = [2 * one for one in rank["regions"][column]]'
    matches vllm-plan-short vllm plan P.json D.json
    "$kvferry" vllm plan P.json P.json >same
    ! grep -q warning same || false
}
@test "plan: pipeline stages" {
    ranks P.json 2 page 'rank["tp_rank"], rank["tp_size"], rank["pp_rank"], rank["pp_size"] = 0, 1, r, 2
for values in rank["regions"].values(): del values[1 - r]'
    ranks D.json 1 page 'for column in ("block_len", "kv_block_len"): rank["regions"][column] = [8192, 8192]'
    matches vllm-plan-stages vllm plan P.json D.json
}
@test "plan: an opaque row across pipeline stages is refused" {
    ranks P.json 1 opaque 'rank["pp_size"] = 2'
    ranks D.json 1 opaque
    matches vllm-plan-opaque vllm plan P.json D.json
}
@test "plan: sizes that do not divide, ranks that are not paired" {
    ranks P.json 4 page
    ranks D.json 3 page
    matches vllm-plan-indivisible vllm plan P.json D.json
    edit P.json P3.json 'value = value[3]'
    ranks D.json 2 page
    edit D.json D0.json 'value = value[0]'
    matches vllm-plan-unpaired vllm plan P3.json D0.json
    edit P.json P2.json 'value = value[:2]'
    edit D.json D1.json 'value = value[1:]'
    matches vllm-plan-none vllm plan P2.json D1.json
}
@test "plan: another block size" {
    ranks P.json 1 page
    ranks D.json 1 page 'for column in ("block_len", "kv_block_len"): rank["regions"][column] = [8192, 8192]'
    matches vllm-plan-length vllm plan P.json D.json
}
@test "plan: requests of a stored case, one of which is refused" {
    ranks P.json 1 page 'rank["ready"] = [{"transfer_id": "x0", "p_req_id": "p0", "block_ids": [[3, 4, 9]]},
                 {"transfer_id": "x1", "p_req_id": "p1", "block_ids": [[5]]}]'
    ranks D.json 1 page 'rank["requests"] = [{"d_req_id": "d0", "transfer_id": "x0", "block_ids": [[4, 9]]},
                    {"d_req_id": "d1", "transfer_id": "x1", "block_ids": [[5, 6]]},
                    {"d_req_id": "d2", "transfer_id": "x2", "block_ids": [[5, 6]]}]'
    edit P.json case.json 'value = {"id": "1:0", "family": "plan", "expect": {},
         "input": {"producer": value[0], "pull": json.load(open("D.json"))[0]}}'
    matches vllm-plan-case vllm plan case.json
}
@test "plan: JSON, a folder, standard input" {
    ranks P.json 2 page
    ranks D.json 1 page
    mkdir P
    for r in 0 1; do edit P.json "P/$r.json" "value = value[$r]"; done
    matches vllm-plan-json vllm plan P D.json --json
    "$kvferry" vllm plan P.json - <D.json >a
    "$kvferry" vllm plan P.json D.json >b
    sed 's/^consumer   -/consumer   D.json/' a | cmp - b
}
@test "plan: files that cannot be used" {
    ranks P.json 1 page
    matches vllm-plan-no-file vllm plan P.json none.json
    echo '{"tp_rank": 0' >cut.json
    matches vllm-plan-cut vllm plan cut.json P.json
    edit P.json member.json 'value = value[0]; value["regions"]["block_length"] = [1]'
    matches vllm-plan-member vllm plan member.json P.json
    edit P.json kind.json 'value = value[0]; value["layer_specs"]["model.layers.1.self_attn"]["kind"] = "full"'
    matches vllm-plan-kind vllm plan kind.json P.json
    edit P.json none.json 'value = value[0]; del value["regions"]'
    matches vllm-plan-no-regions vllm plan none.json P.json
    edit P.json address.json 'value = value[0]; value["regions"]["base_addr"][1] = "abc"'
    matches vllm-plan-address vllm plan address.json P.json
    edit P.json twice.json 'value = value * 2'
    matches vllm-plan-twice vllm plan twice.json P.json
    edit P.json rank.json 'value = value[0]; value["tp_rank"] = 1'
    matches vllm-plan-rank vllm plan rank.json P.json
    edit P.json kinds.json 'value = value[0]; del value["group_kinds"]'
    matches vllm-plan-kinds vllm plan kinds.json P.json
    "$kvferry" vllm plan P.json kinds.json >out # a consumer may leave it out
    edit P.json no-heads.json 'value = value[0]; del value["total_kv_heads"]'
    matches vllm-plan-no-heads vllm plan no-heads.json P.json
    edit P.json group.json 'value[0]["regions"]["group_index"][1] = 7'
    matches vllm-plan-group vllm plan group.json group.json
}

# ---- info -------------------------------------------------------------------------------------------------------

# Starts `kvferry directory --vllm` and sets url.
start_registry() {
    mkfifo registry.fifo
    "$kvferry" directory --listen 127.0.0.1:0 --vllm >registry.fifo 2>registry.err 3>&- &
    background="${background:-} $!"
    exec 5<registry.fifo
    read -r -t 20 -u 5 first
    url=${first#listening on }
}

# Registers DP TP PP ADDRESS of the engine "eng-$1".
register() {
    /usr/bin/python3 -c 'import json, sys, urllib.request
url, dp, tp, pp, addr = sys.argv[1:]
body = {"engine_id": "eng-" + dp, "dp_rank": int(dp), "tp_rank": int(tp), "pp_rank": int(pp), "addr": addr}
urllib.request.urlopen(urllib.request.Request(url + "/register", json.dumps(body).encode(),
                                              {"Content-Type": "application/json"})).read()' "$url" "$@"
}

@test "info: nobody, several engines, JSON, no registry" {
    start_registry
    matches vllm-info-empty vllm info "$url"
    register 0 0 0 tcp://10.0.0.1:5001
    register 0 1 0 tcp://10.0.0.1:5002
    register 1 0 0 tcp://10.0.0.2:5003
    matches vllm-info vllm info "$url"
    matches vllm-info-json vllm info "$url" --json
    matches vllm-info-bad vllm info 127.0.0.1:8998
    matches vllm-info-none vllm info
    run "$kvferry" vllm info http://127.0.0.1:1
    [ "$status" -eq 4 ]
    [[ $output == *"127.0.0.1:1 does not answer: Connection refused"* ]]
    run "$kvferry" vllm info http://no.such.host.invalid:8998
    [ "$status" -eq 4 ]
    [[ $output == *"no.such.host.invalid:8998 does not answer: "* && $output != *"assign"* ]]
    run "$kvferry" vllm info http://127.0.0.1:65536
    [ "$status" -eq 2 ]
}

# ---- worker -----------------------------------------------------------------------------------------------------

# A port that was free a moment ago.
free_port() {
    /usr/bin/python3 -c 'import socket
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
print(listener.getsockname()[1])'
}

# NAME ROLE ARGUMENT...: a worker in the background, what it says in NAME.out; NAME is added to `started`.
start() {
    local name=$1 role=$2
    shift 2
    "$kvferry" vllm worker --role "$role" "$@" <&0 >"$name.out" 2>"$name.err" 3>&- 6>&- 7>&- &
    background="${background:-} $!"
}

# Waits until a file has a line with WORDS.
wait_for() {
    local deadline=$((SECONDS + 20))
    until grep -q -- "$2" "$1"; do
        [ "$SECONDS" -lt "$deadline" ]
        read -r -t 0.05 <> <(:) || true
    done
}

# FILE WORDS: how many lines have them.
count() {
    grep -c -- "$2" "$1" || true
}

# A pair of SPECs P.json and D.json of the ranks' files, TP to TP; the consumer checks every byte.
pair() {
    ranks all_p.json "$1" page
    ranks all_d.json "$2" page
    /usr/bin/python3 - <<'PY'
import json
p, d = json.load(open("all_p.json")), json.load(open("all_d.json"))
for rank in p:
    rank["ready"] = [{"transfer_id": "x0", "p_req_id": "p0", "block_ids": [[4, 5, 6, 20]]}]
for rank in d:
    rank["requests"] = [{"d_req_id": "d0", "transfer_id": "x0", "block_ids": [[9, 1, 2]]}]
pulls = [{key: rank[key] for key in ("tp_rank", "tp_size", "pp_size", "regions", "requests")} for rank in d]
json.dump({"producer": p, "fill": {"pattern": 3},
           "endpoint": {"engine_id": "eng", "serve_bootstrap": True, "abort_timeout_s": 30}}, open("P.json", "w"))
json.dump({"pull": pulls, "check": {"pattern": 3, "producer": "P.json"}, "dump": "d%r.bin",
           "endpoint": {"wait_s": 20, "abort_timeout_s": 30}}, open("D.json", "w"))
PY
}

# Gives both SPECs a registry's address.
meet_at() {
    edit P.json P.json "value['endpoint']['bootstrap'] = '$1'"
    edit D.json D.json "value['endpoint']['remote_bootstrap_addr'] = '$1'"
}

@test "worker: the example, as its page says" {
    port=$(free_port)
    sed "s/8998/$port/" "$examples/producer.json" >producer.json
    sed "s/8998/$port/" "$examples/consumer.json" >consumer.json
    for r in 0 1; do "$kvferry" vllm worker --role producer producer.json --rank $r >p$r.out 3>&- & done
    "$kvferry" vllm worker --role consumer consumer.json >d.out
    wait
    [ "$(count d.out '"event":"received"')" = 2 ]
    [ "$(count d.out '"event":"checked","bytes":524288,"wrong":0')" = 1 ]
    for r in 0 1; do [ "$(count p$r.out '"event":"released"')" = 2 ]; done
    [[ $(tail -n 1 d.out) == *'"unfinished":0,"exit":0}' ]]
}
@test "worker: one to one, two to one, one to two, eight to one, every byte" {
    for shape in "1 1" "2 1" "1 2" "8 1"; do
        read -r p d <<<"$shape"
        pair "$p" "$d"
        meet_at "http://127.0.0.1:$(free_port)"
        processes=""
        for ((r = 0; r < p; r++)); do
            start "p$r" producer P.json --rank "$r"
            processes="$processes $!"
        done
        for ((r = 0; r < d; r++)); do
            start "d$r" consumer D.json --rank "$r"
            processes="$processes $!"
        done
        for process in $processes; do wait "$process"; done
        for ((r = 0; r < d; r++)); do
            [ "$(count "d$r.out" '"event":"checked".*"wrong":0}')" = 1 ]
            [ "$(count "d$r.out" '"event":"received"')" = 1 ]
        done
        for ((r = 0; r < p; r++)); do [ "$(count "p$r.out" '"event":"released"')" = 1 ]; done
    done
}
@test "worker: the pattern is what its page says" {
    pair 1 1
    edit P.json P.json 'value["dump"] = "p.bin"; value["producer"][0]["ready"] = []; value["blocks"] = 8'
    start p producer P.json
    producer=$!
    wait_for p.out '"event":"ready"'
    kill -TERM "$producer"
    wait "$producer"
    /usr/bin/python3 - "$BATS_TEST_DIRNAME/../../docs/vllm.md" <<'PY'
import json, re, sys
page = open(sys.argv[1]).read()
code = re.search(r"((?:    .*\n)*    def pattern\(.*\n(?:        .*\n|\n)+)", page).group(1)
exec("\n".join(line[4:] for line in code.splitlines()))
regions = json.load(open("P.json"))["producer"][0]["regions"]
dump, size, at = open("p.bin", "rb").read(), 16384, 0
assert len(dump) == 2 * 8 * size, len(dump)
for name in regions["layer_name"]:
    for block in range(8):
        for offset in (0, 1, 2, 3, 4, 4097, size - 1):
            assert dump[at + block * size + offset] == pattern(3, 0, name, 0, block, offset), (name, block, offset)
    at += 8 * size
PY
}
@test "worker: requests from standard input, known before they are ready, dropped, and quit" {
    pair 1 1
    edit P.json P.json 'value["producer"][0]["ready"] = []; value["blocks"] = 32; value["requests"] = "-"'
    edit D.json D.json 'value["pull"][0]["requests"] = []; value["blocks"] = 32; value["requests"] = "-"
del value["check"]'
    meet_at "http://127.0.0.1:$(free_port)"
    mkfifo to_p to_d
    exec 6<>to_p 7<>to_d # both ways, so that opening does not wait
    start p producer P.json <to_p
    producer=$!
    echo '{"p_req_id": "p1", "transfer_id": "x1"}' >&6
    start d consumer D.json <to_d
    consumer=$!
    echo '{"d_req_id": "d1", "transfer_id": "x1", "block_ids": [[3]]}' >&7
    echo '{"d_req_id": "d2", "transfer_id": "x2", "block_ids": [[4]]}' >&7
    wait_for p.out '"event":"pull"'
    echo '{"p_req_id": "p1", "transfer_id": "x1", "block_ids": [[8]]}' >&6
    wait_for d.out '"event":"received".*"req_id":"d1"'
    echo '{"not_processed": "x2"}' >&6
    wait_for d.out '"event":"settled".*"req_id":"d2"'
    echo '{"block_ids": [[1]]}' >&7
    wait_for d.out '"event":"rejected"'
    [[ $(grep rejected d.out) == *'line 3: d_req_id: expected the request'* ]]
    echo '{"quit": true}' >&7
    run wait "$consumer"
    exec 7>&- 6>&-
    wait "$producer"
    [[ $(tail -n 1 d.out) == *'"exit":1}' ]]
    [[ $(tail -n 1 p.out) == *'"exit":0}' ]]
}
@test "worker: a request that nobody fetches expires" {
    pair 1 1
    edit P.json P.json 'value["endpoint"]["abort_timeout_s"] = 1; del value["endpoint"]["serve_bootstrap"]'
    run "$kvferry" vllm worker --role producer P.json
    [ "$status" -eq 1 ]
    [[ $output == *'"event":"expired",'*'"req_id":"p0"'*'"finished_sending":["p0"]'* ]]
}
@test "worker: a registry that is not there, an engine that it does not know" {
    pair 1 1
    meet_at http://127.0.0.1:1
    edit P.json P.json 'value["endpoint"].update(serve_bootstrap=False, register_attempts=1)'
    run "$kvferry" vllm worker --role producer P.json
    [ "$status" -eq 4 ]
    [[ $output == *"Failed to register "*" with the Mooncake bootstrap server at http://127.0.0.1:1"* ]]
    [[ $output == *" after 1 attempts."* ]]
    edit D.json D.json 'value["endpoint"]["wait_s"] = 0.2'
    run "$kvferry" vllm worker --role consumer D.json
    [ "$status" -eq 4 ]
    [[ $output == *"http://127.0.0.1:1 does not answer"* ]]
    start_registry
    meet_at "$url"
    run "$kvferry" vllm worker --role consumer D.json
    [ "$status" -eq 4 ]
    [[ $output == *"$url answers, but no engine has registered"* ]]
    meet_at "$url"
    edit D.json D.json 'del value["endpoint"]["wait_s"]; value["endpoint"]["remote_engine_id"] = "nobody"'
    run "$kvferry" vllm worker --role consumer D.json
    [ "$status" -eq 1 ]
    [[ $output == *"remote engine_id nobody not found from bootstrap server $url"* ]]
}
@test "worker: a command line that is wrong" {
    matches vllm-worker-nothing vllm worker
    matches vllm-worker-no-role vllm worker SPEC.json
    matches vllm-worker-bad-role vllm worker --role prefill SPEC.json
    matches vllm-worker-input vllm worker --role producer -
    matches vllm-worker-no-file vllm worker --role producer SPEC.json
}
@test "worker: SPECs that cannot be used" {
    pair 2 1
    matches vllm-worker-which vllm worker --role producer P.json
    matches vllm-worker-rank vllm worker --role producer P.json --rank 2
    matches vllm-worker-other vllm worker --role consumer P.json
    edit D.json member.json 'value["endpoint"]["remote_bootstrap_adr"] = "x"'
    matches vllm-worker-member vllm worker --role consumer member.json
    edit D.json check.json 'value["check"] = {"pattern": 3}'
    matches vllm-worker-check vllm worker --role consumer check.json
    edit D.json request.json 'value["pull"][0]["requests"][0]["block_ids"] = [[-1]]'
    matches vllm-worker-request vllm worker --role consumer request.json
    edit D.json memory.json 'value["memory"] = [[4096, 4096]]'
    matches vllm-worker-memory vllm worker --role consumer memory.json
    edit D.json input.json 'value["requests"] = "-"'
    matches vllm-worker-reads vllm worker --role consumer input.json
    edit D.json blocks.json 'value["blocks"] = 33'
    matches vllm-worker-blocks vllm worker --role consumer blocks.json
    edit D.json fill.json 'value["fill"] = {"pattern": 3, "file": "x"}'
    matches vllm-worker-fill vllm worker --role consumer fill.json
    edit D.json lengths.json 'value["pull"][0]["regions"]["block_len"].pop()'
    matches vllm-worker-lengths vllm worker --role consumer lengths.json
    edit D.json dump.json 'value["dump"] = "no/such/folder/d.bin"'
    matches vllm-worker-dump vllm worker --role consumer dump.json
    edit D.json from.json 'value["endpoint"]["remote_bootstrap_addr"] = "127.0.0.1:8998"'
    matches vllm-worker-from vllm worker --role consumer from.json
    edit P.json kinds.json 'del value["producer"][1]["group_kinds"]'
    matches vllm-worker-kinds vllm worker --role producer kinds.json --rank 1
    edit P.json at.json 'value["endpoint"]["bootstrap"] = "127.0.0.1:8998"'
    matches vllm-worker-at vllm worker --role producer at.json --rank 1
    edit P.json extra.json 'value["endpoint"]["extra_config"] = {"num_workers": 0}'
    matches vllm-worker-extra vllm worker --role producer extra.json --rank 0
    VLLM_MOONCAKE_BOOTSTRAP_PORT=x matches vllm-worker-environment vllm worker --role producer P.json --rank 0
}
