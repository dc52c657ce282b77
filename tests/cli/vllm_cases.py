#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM's own answers to whole pulls, the `plan` cases of tests/oracle, against the command.

    vllm_cases.py plan KVFERRY_COMMAND CASES.jsonl.xz [--from N] [--count N]
        `kvferry vllm plan --json`: verdict, text, merged regions, bytes and descriptors of every request.
    vllm_cases.py run KVFERRY_COMMAND CASES.jsonl.xz [--from N] [--count N]
        `kvferry vllm worker`, a producer and a consumer of the case as it is: what is answered, and every byte. A
        request of which upstream leaves bytes unwritten fails at the consumer.
"""
import argparse
import json
import lzma
from pathlib import Path
import subprocess
import sys
import tempfile

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))
from arrive_vllm_test import cramped, unwritten  # noqa: E402


def plan(command, case, folder):
    """Lines about what is not as upstream has it."""
    path = folder / "case.json"
    path.write_text(json.dumps(case))
    done = subprocess.run([command, "vllm", "plan", str(path), "--json"], capture_output=True, text=True, timeout=60)
    answer, expect = json.loads(done.stdout)["pairs"][0], case["expect"]
    requests = answer.get("requests", {})
    if expect["reply"]["status"] != 0:
        texts = [answer.get("error")] + [request.get("error") for request in requests.values()]
        advice = [answer.get("advice")] + [request.get("advice") for request in requests.values()]
        wrong = [] if expect["reply"]["err_msg"] in texts and any(advice) else [str(texts)]
        return wrong + ([] if done.returncode == 3 else ["exit code %d" % done.returncode])
    if not answer["accepted"]:
        return ["refused: " + answer["error"]]
    wrong = []
    for side in ("local", "remote"):
        if [region[side] for region in answer["regions"]] != expect["prepared"][side]:
            wrong.append("%s regions" % side)
    for name, want in expect["requests"].items():
        said = requests[name]
        if "error" in want:
            same = said.get("error") == want["error"]
        else:
            same = said.get("descriptors") == len(want["descriptors"])
            same = same and said["bytes"] == sum(entry[2] for entry in want["descriptors"])
        if not same:
            wrong.append("%s: %s" % (name, said))
    return wrong


def overlaps(descriptors):
    """Whether one byte is written twice, so that the order of writes would decide what is there."""
    end = -1
    for _, address, size in sorted(descriptors, key=lambda entry: entry[1]):
        if address < end:
            return True
        end = address + size
    return False


def memory_bytes(side, requests, ratio):
    """About as much as a rank of the case needs."""
    last = max([block for request in requests for group in request["block_ids"] for block in group], default=0)
    return (last + 1) * ratio * sum(side["regions"]["block_len"])


def can_run(case):
    """One producer rank and one consumer rank are the whole of both engines, small, and no byte comes twice."""
    producer, pull, expect = case["input"]["producer"], case["input"]["pull"], case["expect"]
    sizes = [side[size] for side in (producer, pull) for size in ("tp_size", "pp_size")]
    if sizes != [1, 1, 1, 1] or expect["reply"]["status"] != 0 or not producer["regions"]["base_addr"]:
        return False
    ratio = producer["kernel_blocks_per_block"]
    if max(memory_bytes(producer, producer["ready"], ratio), memory_bytes(pull, pull["requests"], ratio)) > 1 << 28:
        return False
    every = [entry for request in expect["requests"].values() for entry in request.get("descriptors", [])]
    return not overlaps(every) and sum(entry[2] for entry in every) < 1 << 26


def lines_of(process):
    said, errors = process.communicate(timeout=100)
    return [json.loads(line) for line in said.splitlines()], errors


def run(command, case, folder):
    """Lines about what went wrong."""
    pattern, source = {"pattern": 5}, dict(case["input"])
    refused = {name for name, want in case["expect"]["requests"].items() if "error" in want}
    guarded = not cramped(case)
    short = {request["d_req_id"] for request in source["pull"]["requests"] if guarded and unwritten(
        case, request["block_ids"], case["expect"]["requests"][request["d_req_id"]].get("descriptors", []))} - refused
    ends = {"engine_id": "eng", "serve_bootstrap": True, "abort_timeout_s": 3}
    (folder / "P.json").write_text(json.dumps({"input": source, "fill": pattern, "endpoint": ends}))
    producer = subprocess.Popen([command, "vllm", "worker", "--role", "producer", str(folder / "P.json")],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = json.loads(producer.stdout.readline())
    ends = {"remote_bootstrap_addr": first["bootstrap"], "remote_engine_id": "eng", "abort_timeout_s": 3,
            "check_grants": guarded, "arrival_timeout_s": 0.1 if short else 5}
    (folder / "D.json").write_text(json.dumps({"input": source, "check": pattern, "endpoint": ends}))
    consumer = subprocess.Popen([command, "vllm", "worker", "--role", "consumer", str(folder / "D.json")],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said, errors = lines_of(consumer)
    if refused:
        producer.terminate()
    told, complaints = lines_of(producer)
    got = {line["req_id"] for line in said if line["event"] == "received"}
    failed = {line["req_id"] for line in said if line["event"] == "failed"}
    checked = [line["wrong"] for line in said if line["event"] == "checked"]
    sent = sum(line.get("descriptors", 0) for line in told if line["event"] == "sent")
    want = sum(len(request.get("descriptors", [])) for request in case["expect"]["requests"].values())
    everything = {request["d_req_id"] for request in source["pull"]["requests"]}
    wrong = []
    if (got, failed, checked) != (everything - refused - short, refused | short, [0]) or sent != want:
        wrong.append("received %s, failed %s, wrong bytes %s, %d descriptors" % (got, failed, checked, sent))
    if consumer.returncode != (1 if refused or short else 0) or (producer.returncode != 0 and not refused):
        wrong.append("exit codes %d and %d" % (consumer.returncode, producer.returncode))
    return wrong + ([errors, complaints, json.dumps(said), json.dumps(told)] if wrong else [])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("plan", "run"))
    parser.add_argument("command")
    parser.add_argument("cases")
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--count", type=int, default=2000)
    options = parser.parse_args()
    tried, failed, number = 0, 0, -1
    with lzma.open(options.cases, "rt", encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            if case.get("family") != "plan" or (options.what == "run" and not can_run(case)):
                continue
            number += 1
            if number < options.first or tried == options.count:
                continue
            tried += 1
            with tempfile.TemporaryDirectory() as folder:
                wrong = (plan if options.what == "plan" else run)(options.command, case, Path(folder))
            failed += bool(wrong)
            for text in wrong:
                print("case %s: %s" % (case["id"], text))
    print("%d cases, %d failed" % (tried, failed))
    return 1 if failed or tried == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
