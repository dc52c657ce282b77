#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Whole instances of TensorRT-LLM's shape as `kvferry trtllm worker` processes: the instance cases of tests/oracle,
with their page tables and block tables, one request each, every byte of every destination rank compared by the workers.

    trtllm_instances.py KVFERRY_COMMAND CASES.jsonl.xz [--from N] [--count N] [--ranks MOST]
"""
import argparse
import json
import lzma
from pathlib import Path
import subprocess
import sys
import tempfile

RID = 77


def group_size(rank):
    """TP ranks of one attention-DP group."""
    attention = rank["attention"]
    return rank["tp"][0] // rank["dp"][0] if attention and attention["attention_dp"] else rank["tp"][0]


def views(rank):
    return [view for group in rank["table"]["groups"] for view in group["views"]]


def model_heads(rank, others):
    """Heads of the model for each view: the smaller of what the two sides count, since ranks may hold copies."""
    def of(view):
        if not view.get("heads") or rank["attention"]["key_only"]:
            return None
        return min([view["heads"] * group_size(rank)] +
                   [other["heads"] * group_size(peer) for peer in others for other in views(peer)
                    if other.get("heads") and sorted(other["roles"]) == sorted(view["roles"])])
    return [[of(view) for view in group["views"]] for group in rank["table"]["groups"]]


def spec(case, role, rank):
    """A SPEC: the ranks of the DP group that has the cache send, those of group 0 receive, the others stand by."""
    key, others = ("src", "dst") if role == "context" else ("dst", "src")
    out = {key: rank, "kv_heads": model_heads(rank, case[others]), "check": role == "generation", "requests": []}
    if rank["tp"][1] // group_size(rank) == (case["src_dp"] if role == "context" else 0):
        blocks = case["blocks"]["%s%d" % (rank["name"], rank["rank"])]
        request = {"rid": RID, "prompt": case["prompt"], "blocks": blocks}
        if role == "generation":
            request.update({"from": case["src"][0]["name"], "ctx_dp_rank": case["src_dp"]})
        out["requests"].append(request)
    if role == "context":
        del out["check"]
    return out


def run(command, case, folder):
    """Lines about what went wrong."""
    (folder / "meet").mkdir()
    workers, wrong = [], []
    for role, ranks in (("context", case["src"]), ("generation", case["dst"])):
        for rank in ranks:
            path = folder / ("%s%d.json" % (role, rank["rank"]))
            path.write_text(json.dumps(spec(case, role, rank)))
            line = [command, "trtllm", "worker", "--role", role, str(path), "--meet", str(folder / "meet")]
            workers.append((path.stem, subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                                        text=True)))
    for name, worker in workers:
        try:
            said = worker.communicate(timeout=100)[0]
        except subprocess.TimeoutExpired:
            worker.kill()
            said = worker.communicate()[0] + "did not end"
        if worker.returncode != 0 or (name.startswith("generation") and '"checked","wrong":0' not in said):
            wrong.append("%s ended with %d:\n%s" % (name, worker.returncode, said))
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("cases")
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--ranks", type=int, default=10)
    options = parser.parse_args()
    tried, failed = 0, 0
    with lzma.open(options.cases, "rt", encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            if not case.get("instance") or case["id"] < options.first or tried == options.count:
                continue
            # What upstream refuses, a kvferry rank refuses to its peers too.
            if len(case["src"]) + len(case["dst"]) > options.ranks or any(row["error"] for row in case["expect"]):
                continue
            tried += 1
            with tempfile.TemporaryDirectory() as folder:
                wrong = run(options.command, case, Path(folder))
            failed += bool(wrong)
            for text in wrong:
                print("instance %d: %s" % (case["id"], text))
    print("%d instances, %d failed" % (tried, failed))
    return 1 if failed or tried == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
