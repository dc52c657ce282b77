#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The directory as a process, and as the registry of vLLM's connector.
load common
kvferry=${KVFERRY:?the command under test}

teardown() {
    [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true
}

# Starts a directory with these options; its URL goes to $url.
start() {
    "$kvferry" directory --listen 127.0.0.1:0 "$@" >url.txt 3>&- &
    server=$!
    while ! grep -q "^listening on " url.txt; do
        kill -0 "$server"
        sleep 0.02
    done
    url=$(sed 's/^listening on //' url.txt)
}

# What a path answers; with a second argument to a POST of it.
ask() {
    /usr/bin/python3 - "$url$1" "${2:-}" <<'END'
import sys, urllib.error, urllib.request
url, body = sys.argv[1:]
request = urllib.request.Request(url, body.encode() or None, {"content-type": "application/json"})
try:
    answer = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20)
except urllib.error.HTTPError as error:
    answer = error
print(answer.read().decode(), end="")
END
}

register() {
    ask /register "{\"engine_id\":\"$1\",\"dp_rank\":0,\"tp_rank\":0,\"pp_rank\":0,\"addr\":\"$2\"}"
}

@test "directory: an operand that is not wanted" { matches directory-operand directory 8700; }
@test "directory: without --vllm there is no bootstrap server" {
    start
    [ "$(ask "/query")" = '{"error":"there is no \"/query\" here"}' ]
}
@test "directory --vllm: registers, tells, refuses" {
    start --vllm
    [ "$(ask "/query")" = "{}" ]
    [ "$(register eng-1 tcp://1.1.1.1:1111)" = '{"status":"ok"}' ]
    [ "$(register eng-1 tcp://1.1.1.1:1111)" = '{"status":"ok"}' ]
    [ "$(register eng-2 tcp://2.2.2.2:2222)" = \
        '{"detail":"Engine ID mismatch for dp_rank=0: expected eng-1, got eng-2"}' ]
    [ "$(ask "/query")" = '{"0":{"engine_id":"eng-1","worker_addr":{"0":{"0":"tcp://1.1.1.1:1111"}}}}' ]
    [ "$(ask "/v1/list")" = '{"instances":[]}' ]
}
@test "directory --vllm-replace: a restarted engine takes over" {
    start --vllm-replace
    [ "$(register eng-1 tcp://1.1.1.1:1111)" = '{"status":"ok"}' ]
    [ "$(register eng-2 tcp://2.2.2.2:2222)" = '{"status":"ok"}' ]
    [ "$(ask "/query")" = '{"0":{"engine_id":"eng-2","worker_addr":{"0":{"0":"tcp://2.2.2.2:2222"}}}}' ]
}
@test "directory --vllm: it ends with SIGTERM and gives its port back" {
    start --vllm
    kill -TERM "$server"
    wait "$server"
    server=
    [[ $url =~ :([0-9]+)$ ]]
    start --vllm --listen "127.0.0.1:${BASH_REMATCH[1]}"
    [ "$(ask "/query")" = "{}" ]
}
