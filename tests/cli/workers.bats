#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# kvferry prefill, decode and demo: what they say before anything is sent. Transfers are in ../e2e/.
load common
kvferry=${KVFERRY:?the command under test}

@test "help of prefill" { matches help-prefill prefill --help; }
@test "help of decode" { matches help-decode decode --help; }
@test "help of demo" { matches help-demo demo --help; }
@test "prefill: no layout" { matches prefill-no-layout prefill --instance p --transfer t --cache c; }
@test "prefill: no instance" { matches prefill-no-instance prefill P.json --transfer t --cache c; }
@test "prefill: no transfer" { matches prefill-no-transfer prefill P.json --instance p --cache c; }
@test "prefill: no cache" { matches prefill-no-cache prefill P.json --instance p --transfer t; }
@test "prefill: a name too long" {
    matches prefill-long-name prefill P.json --instance "$(printf 'n%.0s' $(seq 128))" --transfer t --cache c
}
@test "prefill: mistyped option" { matches prefill-mistyped prefill P.json --instanec p; }
@test "prefill: bad timeout" { matches prefill-bad-timeout prefill P.json --timeout soon; }
@test "decode: no source" { matches decode-no-from decode D.json --instance d --transfer t; }
@test "decode: no tokens" { matches decode-no-tokens decode D.json --instance d --transfer t --from p; }
@test "decode: no directory" {
    matches decode-no-directory decode D.json --instance d --transfer t --from p --tokens 3
}
@test "decode: bad block ids" { matches decode-bad-ids decode D.json --block-ids 1,x,2; }
@test "decode: too few block ids" {
    "$kvferry" layout --layers 2 --kv-heads 2 --head-dim 4 -o D.json
    matches decode-few-ids decode D.json -i d -t t -f p --tokens 40 --block-ids 1,2 -d http://127.0.0.1:1
}
@test "decode: more tokens than there is room for" {
    "$kvferry" layout --layers 2 --kv-heads 2 --head-dim 4 --blocks 4 -o D.json
    matches decode-no-room decode D.json --instance d --transfer t --from p --tokens 65 -d http://127.0.0.1:1
}
@test "decode: a rank that is not there" {
    "$kvferry" layout --layers 2 --kv-heads 2 --head-dim 4 --tp 2 -o D.json
    matches decode-no-rank decode D.json -i d -t t -f p --tokens 6 --rank 0,0,2 -d http://127.0.0.1:1
}
@test "decode: no memory for a pool" {
    "$kvferry" layout --layers 2 --kv-heads 2 --head-dim 4096 --block-tokens 65536 --blocks 2000000 -o D.json
    run "$kvferry" decode D.json --instance d --transfer t --from p --tokens 6 -d http://127.0.0.1:1
    [ "$status" -eq 1 ]
    [[ $output == "kvferry decode: "*"8589934592000000"* ]]
}
@test "decode: a folder that is not there" {
    "$kvferry" layout --layers 2 --kv-heads 2 --head-dim 4 -o D.json
    matches decode-no-folder decode D.json -i d -t t -f p --tokens 6 --out none/o -d http://127.0.0.1:1
}
@test "demo: no data" { matches demo-no-data demo --data none; }
@test "demo: bad case" { matches demo-bad-case demo --case sideways; }
@test "demo: too much for this machine" {
    run "$kvferry" demo --scale 100000 --data "$BATS_TEST_DIRNAME/../../examples/data"
    [ "$status" -eq 1 ]
    [[ $output == *"take a smaller --scale" ]]
}
@test "demo: a cache that is not the one of the hashes" {
    data=$BATS_TEST_DIRNAME/../../examples/data
    mkdir data
    cp "$data/kv.safetensors" "$data/expected.json" data/
    printf 'x' | dd of=data/kv.safetensors bs=1 seek=5000000 conv=notrunc status=none
    matches demo-wrong-data demo --data data
}
@test "demo-worker is not for users" {
    run "$kvferry" demo-worker
    [ "$status" -eq 2 ]
}

# Cache files that cannot be used: NAME, then Python that makes the file's bytes as `file` from a good header `header`.
bad_cache() {
    "$kvferry" layout --layers 2 --kv-heads 2 --head-dim 4 -o P.json
    /usr/bin/python3 - "$2" <<'PY'
import json, struct, sys
rows = {}
for layer in range(2):
    for part in "kv":
        at = len(rows) * 48
        rows[f"layers.{layer}.{part}"] = {"dtype": "F16", "shape": [3, 2, 4], "data_offsets": [at, at + 48]}
header, file = rows, None
def pack(rows):
    text = json.dumps(rows).encode()
    return struct.pack("<Q", len(text)) + text + bytes(max(row["data_offsets"][1] for row in rows.values()))
exec(sys.argv[1])
open("bad.safetensors", "wb").write(file if file is not None else pack(header))
PY
    matches "$1" prefill P.json --instance p --transfer t --cache bad.safetensors -d http://127.0.0.1:1
}
@test "cache: not there" {
    "$kvferry" layout --layers 2 --kv-heads 2 --head-dim 4 -o P.json
    matches cache-not-there prefill P.json --instance p --transfer t --cache none -d http://127.0.0.1:1
}
@test "cache: empty" { bad_cache cache-empty 'file = b""'; }
@test "cache: shorter than its length" { bad_cache cache-short 'file = b"abc"'; }
@test "cache: header cut off" { bad_cache cache-cut 'file = pack(header)[:100]'; }
@test "cache: header longer than the file" { bad_cache cache-long 'file = struct.pack("<Q", 2**63) + b"{}"'; }
@test "cache: header is not JSON" { bad_cache cache-no-json 'file = struct.pack("<Q", 4) + b"][[]"'; }
@test "cache: wrong dtype" { bad_cache cache-dtype 'header["layers.1.v"]["dtype"] = "BF16"'; }
@test "cache: dtype of another size" { bad_cache cache-size 'header["layers.1.v"]["dtype"] = "F32"'; }
@test "cache: wrong shape" { bad_cache cache-shape 'header["layers.1.k"]["shape"] = [3, 4, 2]'; }
@test "cache: missing V" { bad_cache cache-no-v 'del header["layers.1.v"]'; }
@test "cache: missing layer" { bad_cache cache-no-layer 'del header["layers.1.v"]; del header["layers.1.k"]'; }
@test "cache: data cut off" { bad_cache cache-data-cut 'file = pack(header)[:-10]'; }
@test "cache: tensors that overlap" { bad_cache cache-overlap 'header["layers.1.v"]["data_offsets"] = [40, 88]'; }
@test "cache: other heads than the layout" {
    "$kvferry" layout --layers 30 --kv-heads 4 --head-dim 64 -o P.json
    data=$BATS_TEST_DIRNAME/../../examples/data
    ln -s "$data/kv.safetensors" kv.safetensors
    matches cache-other-heads prefill P.json --instance p --transfer t --cache kv.safetensors -d http://127.0.0.1:1
}
@test "cache: fewer layers than the layout" {
    "$kvferry" layout --layers 32 --kv-heads 3 --head-dim 64 -o P.json
    data=$BATS_TEST_DIRNAME/../../examples/data
    ln -s "$data/kv.safetensors" kv.safetensors
    matches cache-fewer-layers prefill P.json --instance p --transfer t --cache kv.safetensors -d http://127.0.0.1:1
}
@test "cache: fewer tokens than asked for" {
    "$kvferry" layout --layers 30 --kv-heads 3 --head-dim 64 -o P.json
    data=$BATS_TEST_DIRNAME/../../examples/data
    ln -s "$data/kv.safetensors" kv.safetensors
    matches cache-fewer-tokens prefill P.json -i p -t t -c kv.safetensors --tokens 354 -d http://127.0.0.1:1
}
