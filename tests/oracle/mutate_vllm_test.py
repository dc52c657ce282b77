#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Cases that upstream never answered: its own ones changed at random, answered by the program and by the rules in
arithmetic_vllm.py and arithmetic_vllm_plan.py, and compared as compare_vllm.py does.

    mutate_vllm_test.py PROGRAM CASES.jsonl.xz [--seed N] [--count N] [--only FAMILY,...]

Before that the rules themselves must answer all unchanged cases as upstream does. A second half of the cases is changed
without sense (any value anywhere): those need an answer each, and nothing else.
"""
import argparse
import collections
import copy
import random
import sys

import arithmetic_vllm
import arithmetic_vllm_plan
import changes_vllm
import changes_vllm_plan
import compare_vllm

ANSWERS = arithmetic_vllm.ANSWERS | arithmetic_vllm_plan.ANSWERS
CHANGES = changes_vllm.CHANGES | changes_vllm_plan.CHANGES

NONSENSE = [0, 1, -1, 2, 3, 7, 16, 1 << 20, (1 << 31) - 1, 1 << 32, 1 << 62, (1 << 63) - 1, -(1 << 63), 1 << 70, None,
            True, "x", "", [], {}, 0.5, "mla", "circular", "model.layers.1.2.attn", [[]], [{}], [0]]


def changed(case, number, choice):
    """A case with a few changes that leave it one of its family; None when the rules do not answer it."""
    family = case["family"]
    given = copy.deepcopy(case["input"])
    for _ in range(choice([1, 1, 2, 2, 3, 5])):
        change = choice(CHANGES[family])
        try:
            change(given, choice)
        except (IndexError, KeyError):  # nothing is left to change there
            pass
    return {"id": number, "family": family, "input": given, "expect": ANSWERS[family](copy.deepcopy(given))}


def is_refused(expected):
    """Whether an answer is a refusal of the whole case."""
    return bool(expected.get("error")) or expected.get("reply", {}).get("status") == 2


def places(value, at=()):
    """Every place in a value."""
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], at + (key,))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from places(one, at + (index,))
    yield at


def without_sense(case, number, choice):
    """A case with any value at any place, or without it."""
    case = {"id": number, "family": case["family"], "input": copy.deepcopy(case["input"])}
    for _ in range(choice([1, 1, 2, 6])):
        left = [place for place in places(case) if place and place != ("id",)]
        if not left:
            break
        at = choice(left)
        inner = case
        for key in at[:-1]:
            inner = inner[key]
        if choice([False, False, False, True]):
            del inner[at[-1]]
        else:
            inner[at[-1]] = copy.deepcopy(choice(NONSENSE))
    return case


def main():
    """The command."""
    parser = argparse.ArgumentParser(description="compare answers to changed cases with the documented rules")
    parser.add_argument("program")
    parser.add_argument("cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--only", default=",".join(ANSWERS), help="families to change")
    options = parser.parse_args()
    choice = random.Random(options.seed).choice
    given = compare_vllm.read_cases(options.cases)
    known = [case for case in given if case["family"] in options.only.split(",")]
    comparison = compare_vllm.Comparison(3)
    for case in known:
        comparison.compare(case, ANSWERS[case["family"]](copy.deepcopy(case["input"])))
    by_family = collections.defaultdict(list)
    for case in known:
        by_family[case["family"]].append(case)
    cases = [changed(choice(by_family[choice(sorted(by_family))]), number, choice) for number in range(options.count)]
    refused = sum(1 for case in cases if is_refused(case["expect"]))
    for case, said in zip(cases, compare_vllm.ask(options.program, cases)):
        comparison.compare(case, said)
    wild = [without_sense(choice(given), number, choice) for number in range(options.count)]
    compare_vllm.ask(options.program, wild)
    print(f"seed {options.seed}: {len(cases)} changed cases, {refused} of them refused; {len(wild)} without sense")
    status = comparison.report()
    return 1 if refused > 3 * len(cases) // 4 else status


if __name__ == "__main__":
    sys.exit(main())
