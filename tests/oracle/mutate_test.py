#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Cases that upstream never answered: its own ones changed at random, answered by the program and by the arithmetic in
arithmetic.py, and compared as compare.py does.

    mutate_test.py PROGRAM CASES.jsonl.xz [--seed N] [--count N]

Before that the arithmetic itself must answer all unchanged cases as upstream does. A second half of the cases is
changed without sense (any value anywhere): those need an answer each, and nothing else.

kvferry refuses a few plans that upstream would carry out in spite of what they do to memory (`SAFER`): copies past the
end of a region, regions that overlap, rings of unlike slots. There only the decisions before it are compared.
"""
import argparse
import collections
import copy
import json
import random
import subprocess
import sys

import arithmetic
import compare

KINDS = ["overlap", "expected_transfers", "verdict", "warnings", "mapping", "views", "state_paired", "elect_aux",
         "fragments"]
SAFER = ["passes the end", "pass the end", " overlaps ", " share one place ", "Ring slot size mismatch",
         "Ring region size", "slot_bytes differs"]
NONSENSE = [0, 1, -1, 2, 3, 7, 16, 1 << 20, (1 << 31) - 1, 1 << 32, 1 << 62, (1 << 63) - 1, -(1 << 63), None, True, "x",
            [], {}, 0.5, "key", "indexed", "nhd", "replicated", "sectioned", "paged", "state"]


def change_grid(case, rank, choice):
    kind = choice(["tp", "cp", "pp", "dp", "heads", "tokens", "same tokens", "swap"])
    attention = rank["attention"]
    if kind == "tp":
        size = choice([1, 2, 3, 4, 6, 8, 12, 16])
        rank["tp"] = [size, choice(range(size))]
        rank["dp"] = list(rank["tp"]) if attention["attention_dp"] else [1, 0]
    elif kind == "cp":
        size = choice([1, 2, 3, 4])
        rank["cp"] = [size, choice(range(size))]
    elif kind == "pp":
        rank["layers_per_stage"].insert(choice(range(len(rank["layers_per_stage"]) + 1)), choice([0, 1, 2]))
        rank["pp"] = [rank["pp"][0] + 1, choice(range(rank["pp"][0] + 1))]
    elif kind == "dp":
        attention["attention_dp"] = not attention["attention_dp"]
        rank["dp"] = list(rank["tp"]) if attention["attention_dp"] else [1, 0]
    elif kind == "heads":
        attention["kv_heads"] = choice([0, 1, 2, 3, 4, 8])
    elif kind == "tokens":
        attention["tokens_per_block"] = choice([1, 2, 3, 4, 8, 16])
    elif kind == "same tokens":
        tokens = choice([1, 2, 3, 4, 8, 16])
        for side in ("src", "dst"):
            case[side]["attention"]["tokens_per_block"] = tokens
    else:
        request = case["request"]
        case["src"], case["dst"] = case["dst"], case["src"]
        request["src_blocks"], request["dst_blocks"] = request["dst_blocks"], request["src_blocks"]
        request["aux_slots"].reverse()


def change_group(case, rank, choice):
    groups = rank["table"]["groups"]
    number = choice(range(len(groups)))
    group = groups[number]
    kind = choice(["layers", "next layers", "order", "split", "twice", "gone"])
    view = choice(group["views"])
    locals_ = sorted({entry[0] for entry in view["entries"]})
    if kind == "layers":
        names = [layer for _local, layer in group["layers"]]
        names = names[1:] + names[:1]
        group["layers"] = [[local, name] for (local, _layer), name in zip(group["layers"], names)]
    elif kind == "next layers":
        group["layers"] = [[local, layer + 1] for local, layer in group["layers"]]
    elif kind == "order":
        group["views"].reverse()
    elif kind == "split" and len(locals_) > 1:
        middle = choice(locals_[1:])
        second = copy.deepcopy(view)
        second["entries"] = [entry for entry in view["entries"] if entry[0] >= middle]
        view["entries"] = [entry for entry in view["entries"] if entry[0] < middle]
        group["views"].append(second)
    elif kind == "twice":
        group["views"].append(copy.deepcopy(view))
    elif kind == "gone" and len(groups) > 1:
        groups.pop(number)
        case["request"]["src_blocks" if rank is case["src"] else "dst_blocks"].pop(number)


def change_view(_case, rank, choice):
    group = choice(rank["table"]["groups"])
    view = choice(group["views"])
    kind = choice(["roles", "kind", "declared", "entry gone", "entry", "entries", "heads", "ring", "state"])
    if kind == "roles":
        view["roles"] = choice([["key"], ["key", "value"], [], ["index_key"], ["key", "zz"]])
    elif kind == "kind":
        view["kind"] = choice(["indexed", "replicated", "nhd" if group["cache"] == "paged" else "sectioned"])
    elif kind == "declared":
        view["layer_bytes"] = choice([None, 16, view["entries"][0][2]])
    elif kind == "entry gone":
        view["entries"].pop(choice(range(len(view["entries"]))))
    elif kind == "entry":
        choice(view["entries"])[choice([1, 2])] = choice([2, 4, 8, 16, 32, 64])
    elif kind == "entries":
        view["entries"] = view["entries"][1:] + view["entries"][:1]
    elif kind == "heads" and view.get("heads") is not None:
        view["heads"] = choice([None, 0, 1, 2, 3, 4, 8])
    elif kind == "ring" and group["cache"] == "paged":
        view["ring_slot_bytes"] = choice([None, 2, 4, 8, 16])
    elif kind == "state" and view.get("sections"):
        view["sections"][choice(range(len(view["sections"])))] *= 2
    elif kind == "state" and view.get("head_bytes"):
        view["head_bytes"] = choice([2, 4, 8, 16, 32])


def changed(case, number, choice):
    case = copy.deepcopy(case)
    del case["expect"]
    case.update(id=number, basis="upstream", fault="changed")
    for _ in range(choice([1, 1, 2, 2, 3])):
        change = choice([change_grid, change_group, change_view])
        rank = case[choice(["src", "dst"])]
        try:
            change(case, rank, choice)
        except IndexError:  # nothing is left to change there
            pass
    return case


def places(value, at=()):
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], at + (key,))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from places(one, at + (index,))
    yield at


def without_sense(case, number, choice):
    case = copy.deepcopy(case)
    case.pop("expect")
    case["id"] = number
    for _ in range(choice([1, 1, 2, 6])):
        at = choice([place for place in places(case) if place and place != ("id",)])
        inner = case
        for key in at[:-1]:
            inner = inner[key]
        inner[at[-1]] = choice(NONSENSE)
    return case


def ask(program, cases):
    given = "".join(json.dumps(case) + "\n" for case in cases)
    run = subprocess.run([program], input=given, stdout=subprocess.PIPE, text=True, timeout=500, check=False)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    wanted = [case["id"] for case in cases if "src" in case]
    if run.returncode != 0 or [answer["id"] for answer in answers] != wanted:
        sys.exit(f"{program}: exit status {run.returncode}, {len(answers)} answers to {len(wanted)} cases")
    return [answer["answer"] for answer in answers]


def is_safer(answer):
    said = json.dumps([answer.get("error"), answer.get("views"), answer.get("fragments")])
    return any(text in said for text in SAFER)


def main():
    parser = argparse.ArgumentParser(description="compare answers to changed cases with the documented arithmetic")
    parser.add_argument("program")
    parser.add_argument("cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2000)
    options = parser.parse_args()
    choice = random.Random(options.seed).choice
    given = compare.read_cases(options.cases)
    pairs = [case for case in given if not case.get("instance")]
    compare.LOOSE_FROM.append(r".* per-layer region sizes are not uniform")
    comparison = compare.Comparison(3, KINDS)
    for case in pairs:
        comparison.compare(case, arithmetic.answer(case))
    cases = [changed(choice(pairs), number, choice) for number in range(options.count)]
    seen = collections.Counter()
    for case, answer in zip(cases, ask(options.program, cases)):
        if "verdict" not in answer:
            seen["refused as a rank"] += 1
            continue
        case["expect"] = arithmetic.answer(case)
        if is_safer(answer):
            seen["refused, safer than upstream"] += 1
            for part in ("views", "fragments"):
                answer.pop(part, None)
                case["expect"].pop(part, None)
        seen["compared"] += 1
        comparison.compare(case, answer)
    comparison.report()
    ask(options.program, [without_sense(choice(given), number, choice) for number in range(options.count)])
    print(f"seed {options.seed}: {dict(seen)}")
    return 1 if sum(comparison.unequal.values()) or seen["compared"] < options.count // 2 else 0


if __name__ == "__main__":
    sys.exit(main())
