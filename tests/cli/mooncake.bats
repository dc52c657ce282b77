#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# kvferry mooncake: what it says, exactly; and an engine served, probed, written and read, every byte compared.
load common
kvferry=${KVFERRY:?the command under test}

teardown() {
    if [ -n "${server:-}" ]; then
        kill -KILL "$server" 2>/dev/null || true
    fi
}

# Starts `kvferry mooncake serve ARGUMENT...` and waits for its line; sets server, segment, address, length.
start_server() {
    mkfifo said.fifo
    "$kvferry" mooncake serve "$@" >said.fifo 2>server.err 3>&- &
    server=$!
    exec 4<said.fifo
    read -r -t 20 -u 4 first
    segment=$(field "$first" 'line["segment"]')
    address=$(field "$first" 'line["buffers"][0]["addr"]')
    length=$(field "$first" 'line["buffers"][0]["length"]')
}

stop_server() {
    kill -TERM "$server"
    wait "$server"
    server=""
}

# A value of a line of JSON.
field() {
    /usr/bin/python3 -c 'import json, sys; line = json.loads(sys.argv[1]); print(eval(sys.argv[2]))' "$1" "$2"
}

# SIZE SEED: bytes that look random and are the same in every run.
noise() {
    /usr/bin/python3 -c 'import random, sys
sys.stdout.buffer.write(random.Random(int(sys.argv[2])).randbytes(int(sys.argv[1])))' "$1" "$2"
}

@test "help" {
    matches mooncake-help mooncake --help
    matches mooncake-probe-help mooncake probe --help
    matches mooncake-serve-help mooncake serve --help
    matches mooncake-write-help mooncake write --help
    matches mooncake-read-help mooncake read --help
}
@test "no command, a mistyped one, an option" {
    matches mooncake-nothing mooncake
    matches mooncake-mistyped mooncake prbe
    matches mooncake-option mooncake --json
}
@test "probe: no name" { matches mooncake-probe-nothing mooncake probe; }
@test "probe: no such name" { matches mooncake-probe-bad mooncake probe 127.0.0.1:99999; }
@test "serve: an operand" { matches mooncake-serve-operand mooncake serve 127.0.0.1:1; }
@test "serve: a file that is not there" { matches mooncake-serve-no-file mooncake serve --file none; }
@test "serve: more buffers than bytes" { matches mooncake-serve-buffers mooncake serve --bytes 3 --buffers 4; }
@test "write: no file" { matches mooncake-write-no-file mooncake write 127.0.0.1:1; }
@test "write: ranges and an address" {
    matches mooncake-write-both mooncake write 127.0.0.1:1 --file f --ranges r --address 5
}
@test "write: a bad address" { matches mooncake-write-bad-address mooncake write 127.0.0.1:1 --file f --address 0xz; }
@test "write: ranges that are none" {
    echo '{"a": 1}' >object.json
    matches mooncake-write-object mooncake write 127.0.0.1:1 --file f --ranges object.json
    echo '[[0, 1, 2], [0, "x", 2]]' >text.json
    matches mooncake-write-text mooncake write 127.0.0.1:1 --file f --ranges text.json
    echo '[[0, 1, -2]]' >negative.json
    matches mooncake-write-negative mooncake write 127.0.0.1:1 --file f --ranges negative.json
    echo '[[0, 1,' >cut.json
    matches mooncake-write-cut mooncake write 127.0.0.1:1 --file f --ranges cut.json
}
@test "nobody there" {
    port=$(/usr/bin/python3 -c 'import socket
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
print(listener.getsockname()[1])')
    noise 100 1 >f
    for command in probe "write --file f" "read --file g"; do
        # shellcheck disable=SC2086 # words
        run "$kvferry" mooncake $command "127.0.0.1:$port" --timeout 2
        [ "$status" -eq 4 ]
        [[ $output == *"127.0.0.1:$port"* ]]
    done
    [ ! -e g ]
}

@test "serve, probe, write, read: the same bytes everywhere" {
    noise 100000 1 >cache.bin
    start_server --bytes 200000 --out after.bin
    [ "$length" -eq 200000 ]
    run "$kvferry" mooncake probe "$segment"
    [ "$status" -eq 0 ]
    [[ $output == *"probe     answers"*"200000 bytes"*"one byte was read"* ]]
    run "$kvferry" mooncake write "$segment" --file cache.bin --notify done-7
    [ "$status" -eq 0 ]
    [[ $output == "wrote 1 range, 97.7 KiB, in "* ]]
    read -r -t 20 -u 4 told
    [ "$(field "$told" 'line["notify"]["text"]')" = done-7 ]
    "$kvferry" mooncake read "$segment" --file back.bin
    head -c 100000 back.bin | cmp - cache.bin
    [ "$(stat -c %s back.bin)" -eq 200000 ]
    stop_server
    cmp after.bin back.bin
}
@test "ranges from a file, in either direction" {
    noise 50000 2 >memory.bin
    noise 5000 3 >cache.bin
    cp cache.bin untouched.bin
    start_server --file memory.bin --out after.bin --buffers 2
    /usr/bin/python3 - "$address" <<'PY'
import json, sys
base = int(sys.argv[1])
memory, cache = bytearray(open("memory.bin", "rb").read()), open("cache.bin", "rb").read()
ranges = [[at * 500, hex(base + at * 700 + 1) if at % 2 else base + at * 700 + 1, 499] for at in range(10)]
for local, remote, size in ranges:
    remote = int(str(remote), 0) - base
    memory[remote:remote + size] = cache[local:local + size]
json.dump(ranges, open("ranges.json", "w"))
open("wanted.bin", "wb").write(memory)
PY
    run "$kvferry" mooncake write "$segment" --file cache.bin --ranges ranges.json --json
    [ "$status" -eq 0 ]
    [ "$(field "$output" 'line["done"], line["failed"], line["in_doubt"], line["bytes"]')" = "(10, 0, 0, 4990)" ]
    "$kvferry" mooncake read "$segment" --file cache.bin --ranges - --data-version 1 <ranges.json
    cmp cache.bin untouched.bin
    stop_server
    cmp after.bin wanted.bin
}
@test "a range that is refused: numbers, exit 1, and the file stays" {
    noise 3000 4 >got.bin
    cp got.bin before.bin
    start_server --bytes 4096
    echo "[[0, $address, 100], [100, $((address + 4000)), 97]]" >ranges.json
    run "$kvferry" mooncake read "$segment" --file got.bin --ranges ranges.json
    [ "$status" -eq 1 ]
    [[ $output == "kvferry mooncake read: "*"$segment"* ]]
    cmp got.bin before.bin
    run bash -c '"$1" mooncake read "$2" --file got.bin --ranges ranges.json --json 2>/dev/null' - "$kvferry" "$segment"
    [ "$status" -eq 1 ]
    [ "$(field "$output" 'line["status"], line["done"], line["failed"]')" = "('KVF_ERR_REFUSED', 1, 1)" ]
    stop_server
}
@test "probe: JSON, hidden buffers, and a port that leads nowhere" {
    start_server --bytes 4096 --hide-buffers
    run "$kvferry" mooncake probe "$segment" --json
    [ "$status" -eq 0 ]
    [ "$(field "$output" 'line["buffer_count"], line["data_ok"], line["version"], line["protocol"]')" = \
        "(0, True, 2, 'tcp')" ]
    run "$kvferry" mooncake probe "$segment" --json --no-data
    [ "$(field "$output" '"data_ok" in line')" = False ]
    run "$kvferry" mooncake read "$segment" --file f
    [ "$status" -eq 4 ]
    [[ $output == *"publishes no buffer"* ]]
    stop_server
}
