#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# kvferry layout: from flags and from config.json.
load common
kvferry=${KVFERRY:?the command under test}

llama='{"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "hidden_size": 4096, "torch_dtype": "bfloat16"}'

@test "from flags, defaults" { matches layout-flags layout --layers 2 --kv-heads 4 --head-dim 16; }
@test "everything given" {
    matches layout-all layout --layers 8 --kv-heads 4 --head-dim 16 --dtype bf16 --model m --fingerprint abc \
        --tp 2 --pp 2 --cp 2 --cp-stripe 32 --block-tokens 32 --blocks 100 --value-blocks 120 --order hnd \
        --kv-pools separate --padding 1KiB
}
@test "a pool for each layer" {
    matches layout-per-layer layout --layers 3 --kv-heads 2 --head-dim 8 --kv-pools per-layer
}
@test "latent" { matches layout-latent layout --layers 3 --latent 576 --dtype bf16 --block-tokens 64; }
@test "config: heads and head size" {
    echo "$llama" >config.json
    matches layout-config layout --config config.json --tp 4
}
@test "config: every field that has a default" {
    echo '{"num_hidden_layers": 2, "num_attention_heads": 12, "hidden_size": 768}' >config.json
    matches layout-config-defaults layout --config config.json
}
@test "config: head_dim wins over hidden_size" {
    echo '{"num_hidden_layers": 2, "num_attention_heads": 16, "hidden_size": 3072, "head_dim": 256,
           "torch_dtype": "float32"}' >config.json
    run "$kvferry" layout --config config.json
    [ "$status" -eq 0 ]
    [[ $output == *'"row_bytes": 1024'* ]]
}
@test "config: MLA" {
    echo '{"model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
           "kv_lora_rank": 512, "qk_rope_head_dim": 64, "hidden_size": 7168, "torch_dtype": "bfloat16"}' >config.json
    matches layout-config-mla layout --config config.json --block-tokens 64
}
@test "config: the language model of several towers" {
    echo "{\"vision_config\": {}, \"text_config\": $llama}" >config.json
    run "$kvferry" layout --config config.json
    [ "$status" -eq 0 ]
    [[ $output == *'"total": 8'* ]]
}
@test "config: a flag wins" {
    echo "$llama" >config.json
    run "$kvferry" layout --config config.json --layers 4 --dtype f16
    [ "$status" -eq 0 ]
    [[ $output == *'"tag": "f16"'* && $output == *'"total": 4'* ]]
}
@test "config: not there" { matches layout-no-config layout --config none.json; }
@test "config: not JSON" {
    echo '{"num_hidden_layers": ' >config.json
    matches layout-bad-json layout --config config.json
}
@test "config: wrong type" {
    echo '{"num_hidden_layers": "32"}' >config.json
    matches layout-wrong-type layout --config config.json
}
@test "config: negative" {
    echo '{"num_hidden_layers": -1}' >config.json
    matches layout-negative layout --config config.json
}
@test "config: a field missing" {
    echo '{"num_hidden_layers": 2}' >config.json
    matches layout-missing-field layout --config config.json
}
@test "config: heads that do not divide the hidden size" {
    echo '{"num_hidden_layers": 2, "num_attention_heads": 7, "hidden_size": 768}' >config.json
    matches layout-indivisible layout --config config.json
}
@test "config: unknown type of numbers" {
    echo '{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "torch_dtype": "int3"}' >config.json
    matches layout-unknown-dtype layout --config config.json
}
@test "config: a depth bomb" {
    printf '[%.0s' $(seq 100000) >config.json
    run "$kvferry" layout --config config.json
    [ "$status" -eq 3 ]
}
@test "nothing given" { matches layout-nothing layout; }
@test "no head size" { matches layout-no-head-dim layout --layers 2 --kv-heads 2; }
@test "bad number" { matches layout-bad-number layout --layers ten --kv-heads 2 --head-dim 8; }
@test "number out of bounds" { matches layout-bounds layout --layers 0 --kv-heads 2 --head-dim 8; }
@test "bad word" { matches layout-bad-order layout --order nhwc --layers 1 --kv-heads 1 --head-dim 8; }
@test "bad dtype" { matches layout-bad-dtype layout --dtype f12 --layers 1 --kv-heads 1 --head-dim 8; }
@test "bad size" { matches layout-bad-size layout --padding 3lbs --layers 1 --kv-heads 1 --head-dim 8; }
@test "more ranks than layers" { matches layout-too-many-pp layout --layers 2 --kv-heads 2 --head-dim 8 --pp 3; }
@test "to a file, and what it makes is read back" {
    "$kvferry" layout --layers 2 --kv-heads 2 --head-dim 8 -o A.json
    "$kvferry" layout --layers 2 --kv-heads 2 --head-dim 8 >B.json
    cmp A.json B.json
    "$kvferry" plan A.json - <B.json
}
@test "to a folder that is not there" {
    matches layout-no-folder layout --layers 1 --kv-heads 1 --head-dim 8 -o none/A.json
}
