#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# kvferry plan: the table, the picture, fragments, JSON, and why two layouts cannot be joined.
load common
kvferry=${KVFERRY:?the command under test}

@test "table" {
    make_layouts
    matches plan-table plan P.json D.json --tokens 90
}
@test "picture" {
    make_layouts
    matches plan-draw plan P.json D.json --tokens 90 --draw
}
@test "picture in ASCII" {
    make_layouts
    LC_ALL=C matches plan-draw-ascii plan P.json D.json --tokens 90 --draw
}
@test "picture, turned" {
    make_layouts
    matches plan-draw-turned plan D.json P.json --tokens 90 --draw --rank 1,0,1
}
@test "picture of context parallel ranks" {
    "$kvferry" layout --layers 2 --kv-heads 2 --head-dim 8 --cp 2 --cp-stripe 8 -o C.json
    "$kvferry" layout --layers 2 --kv-heads 2 --head-dim 8 --tp 2 -o T.json
    matches plan-draw-cp plan C.json T.json --tokens 64 --draw
}
@test "picture of many ranks and of MLA" {
    "$kvferry" layout --layers 6 --latent 24 --tp 4 --pp 3 -o A.json
    "$kvferry" layout --layers 6 --latent 24 --tp 2 -o B.json
    matches plan-draw-mla plan A.json B.json --draw
}
@test "one rank only" {
    make_layouts
    matches plan-rank plan D.json P.json --rank 1,0,0
}
@test "a rank that is not there" {
    make_layouts
    matches plan-no-rank plan D.json P.json --rank 2,0,0
}
@test "rank that does not parse" { matches plan-bad-rank plan a b --rank 1,2; }
@test "fragments" {
    "$kvferry" layout --layers 1 --kv-heads 2 --head-dim 8 --block-tokens 2 --order hnd --blocks 8 -o A.json
    "$kvferry" layout --layers 1 --kv-heads 2 --head-dim 8 --block-tokens 4 --order nhd --blocks 8 -o B.json
    matches plan-fragments plan A.json B.json --tokens 5 --fragments
}
@test "fragments are as many, and as many bytes, as the table says" {
    make_layouts
    "$kvferry" plan P.json D.json --tokens 90 --fragments | grep -v '^#' >fragments
    "$kvferry" plan P.json D.json --tokens 90 --json >plan.json
    /usr/bin/python3 - <<'PY'
import json
plan = json.load(open("plan.json"))
rows = [list(map(int, line.split())) for line in open("fragments")]
assert len(rows) == plan["runs"] == sum(pair["runs"] for pair in plan["pairs"])
assert sum(row[4] for row in rows) == plan["bytes"] == sum(pair["bytes"] for pair in plan["pairs"])
# 90 tokens are 96 in grains of 16: 4 layers, K and V, 4 heads, rows of 16 bytes
assert plan["bytes"] == 96 * 4 * 2 * 4 * 16
spans = sorted((row[2], row[3], row[3] + row[4]) for row in rows)
assert all(a[0] != b[0] or a[2] <= b[1] for a, b in zip(spans, spans[1:])), "a byte is written twice"
PY
}
@test "JSON" {
    "$kvferry" layout --layers 2 --kv-heads 2 --head-dim 8 --block-tokens 4 --order hnd --tp 2 --blocks 8 -o A.json
    "$kvferry" layout --layers 2 --kv-heads 2 --head-dim 8 --block-tokens 4 --order nhd --blocks 8 -o B.json
    matches plan-json plan A.json B.json --tokens 8 --json
}
@test "JSON that Python reads, with every box" {
    make_layouts
    "$kvferry" plan P.json D.json --json | /usr/bin/python3 -c '
import json, sys
plan = json.load(sys.stdin)
assert plan["pieces"] == 4 == len(plan["pairs"])
for pair in plan["pairs"]:
    boxes = [b for t in pair["tracks"] for s in t["shapes"] for b in s["boxes"]]
    assert len(boxes) == pair["boxes"], (len(boxes), pair["boxes"])
    assert min(b["run_bytes"] for b in boxes) == pair["shortest_run_bytes"]
    assert len(pair["fingerprint"]) == 32'
}
@test "the same fingerprints from either side's files" {
    make_layouts
    "$kvferry" plan P.json D.json --json --tokens 16 | grep fingerprint >a
    "$kvferry" plan P.json D.json --json --tokens 96 | grep fingerprint >b
    cmp a b
}
@test "faces exclude each other" { matches plan-faces plan a b --json --draw; }
@test "both files from standard input" { matches plan-two-stdin plan - -; }
@test "no such file" { matches plan-no-file plan none.json none.json; }
@test "a file that is not a layout" {
    echo '[1, 2]' >bad.json
    matches plan-bad-file plan bad.json bad.json
}
@test "garbage" {
    head -c 100000 /dev/urandom >bad.json
    run "$kvferry" plan bad.json bad.json
    [ "$status" -eq 3 ]
    [[ $output == "kvferry plan: bad.json: "* ]]
}
@test "a depth bomb" {
    printf '[%.0s' $(seq 1000000) >bad.json
    run "$kvferry" plan bad.json bad.json
    [ "$status" -eq 3 ]
}
@test "a file too long to be a layout" {
    truncate -s 100M bad.json
    matches plan-too-long plan bad.json bad.json
}
@test "more tokens than a ring retains: its last ones move" {
    "$kvferry" layout --layers 1 --kv-heads 2 --head-dim 8 --block-tokens 4 --order hnd --blocks 8 -o A.json
    sed 's/"tokens_per_block": 4/"tokens_per_block": 4, "ring_tokens": 8/' A.json >R.json
    "$kvferry" plan R.json R.json --tokens 22 | grep "1 piece, .* 512 bytes"
    "$kvferry" plan R.json R.json | grep "^request *1024 tokens"
}
@test "more tokens than there is room for" {
    make_layouts
    matches plan-no-room plan P.json D.json --tokens 100000
}

# Two layouts that cannot be joined: NAME, then the options in which the second differs.
refused() {
    local name=$1
    shift
    "$kvferry" layout --layers 4 --kv-heads 4 --head-dim 16 --dtype f16 --model a --fingerprint one -o A.json
    "$kvferry" layout --model a --fingerprint one "$@" -o B.json
    matches "$name" plan A.json B.json
}
@test "refused: dtype" { refused plan-refused-dtype --layers 4 --kv-heads 4 --head-dim 16 --dtype bf16; }
@test "refused: head size" { refused plan-refused-head-dim --layers 4 --kv-heads 4 --head-dim 32; }
@test "refused: heads" { refused plan-refused-heads --layers 4 --kv-heads 8 --head-dim 16; }
@test "refused: missing layers" { refused plan-refused-layers --layers 6 --kv-heads 4 --head-dim 16; }
@test "refused: other kind of cache" { refused plan-refused-latent --layers 4 --latent 64; }
@test "refused: other model" { refused plan-refused-model --layers 4 --kv-heads 4 --head-dim 16 --fingerprint two; }
@test "refused: latent width" {
    "$kvferry" layout --layers 2 --latent 576 -o A.json
    "$kvferry" layout --layers 2 --latent 512 -o B.json
    matches plan-refused-width plan A.json B.json
}
@test "fewer layers at the destination are fine" {
    "$kvferry" layout --layers 4 --kv-heads 4 --head-dim 16 -o A.json
    "$kvferry" layout --layers 2 --kv-heads 4 --head-dim 16 -o B.json
    "$kvferry" plan A.json B.json
}
