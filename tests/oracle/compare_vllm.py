#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares a program's answers to cases of vLLM's MooncakeConnector with upstream's.

    compare_vllm.py PROGRAM CASES.jsonl.xz [--show N] [--only FAMILY,...] [--answers FILE]

Feeds all cases to PROGRAM in one run, compares each answer with the case's `expect` and prints one line per family.
Exit status: 0 all equal, 1 something is not, 2 the program failed.

Everything is compared exactly, error texts and the order of descriptors included, but for two things that upstream
leaves open. Of several requests in one pull that fail for different reasons, one is told: `err_msg` must be one of
them. An assertion without a text says that something is refused and no more.
"""
import argparse
import collections
import json
import lzma
import subprocess
import sys

FAMILIES = ["register", "align", "coalesce", "plan", "sender_plan", "validate", "ranks", "runs"]


def same_plan(expected, said):
    """A pull's answer: the reply may name any of the batch's failures."""
    if not isinstance(said, dict) or not isinstance(said.get("reply"), dict):
        return False
    failures = {request["error"] for request in expected.get("requests", {}).values() if "error" in request}
    if len(failures) > 1 and said["reply"].get("err_msg") in failures:
        said = dict(said, reply=dict(said["reply"], err_msg=expected["reply"]["err_msg"]))
    return said == expected


def same_register(expected, said):
    """Regions, or why there are none."""
    if expected.get("type") == "AssertionError" and not expected["error"]:
        return isinstance(said, dict) and said.get("type") == "AssertionError" and "memory" not in said
    return said == expected


def same(case, said):
    """Whether an answer is what the case expects."""
    judge = {"plan": same_plan, "register": same_register}.get(case["family"], lambda expected, told: told == expected)
    return judge(case["expect"], said)


def read_cases(path):
    """The cases of a file, packed or not."""
    opened = lzma.open(path, "rt", encoding="utf-8") if path.endswith(".xz") else open(path, encoding="utf-8")
    with opened as lines:
        return [case for case in map(json.loads, lines) if "family" in case]


def ask(program, cases, keep=None):
    """The answers of a program to cases, in order; ends when it does not answer each."""
    given = "".join(json.dumps(case) + "\n" for case in cases)
    run = subprocess.run([program], input=given, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
    if keep:
        with open(keep, "w", encoding="utf-8") as kept:
            kept.write(run.stdout)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    if run.returncode != 0 or [answer["id"] for answer in answers] != [case["id"] for case in cases]:
        print(f"{program}: exit status {run.returncode}, {len(answers)} answers to {len(cases)} cases")
        sys.exit(2)
    return [answer["answer"] for answer in answers]


class Comparison:
    """Counts what is equal, and shows the first that are not."""

    def __init__(self, show):
        self.show = show
        self.equal, self.unequal = collections.Counter(), collections.Counter()

    def compare(self, case, said):
        """Takes one answer into account."""
        family = case["family"]
        if same(case, said):
            self.equal[family] += 1
            return
        self.unequal[family] += 1
        if self.unequal[family] <= self.show:
            print(f"{family} {case['id']}\n  input    {json.dumps(case['input'])[:2000]}\n"
                  f"  expected {json.dumps(case['expect'])[:2000]}\n  answered {json.dumps(said)[:2000]}")

    def report(self):
        """One line per family. Returns the exit status."""
        for family in FAMILIES:
            if self.equal[family] or self.unequal[family]:
                print(f"{family}: {self.equal[family]} equal, {self.unequal[family]} not")
        return 1 if sum(self.unequal.values()) else 0


def main():
    """The command."""
    parser = argparse.ArgumentParser(description="compare a program's answers with upstream's")
    parser.add_argument("program")
    parser.add_argument("cases")
    parser.add_argument("--show", type=int, default=3, help="how many unequal ones of each family to print")
    parser.add_argument("--only", default=",".join(FAMILIES), help="families to compare")
    parser.add_argument("--answers", help="keep the answers in this file")
    options = parser.parse_args()
    cases = [case for case in read_cases(options.cases) if case["family"] in options.only.split(",")]
    comparison = Comparison(options.show)
    for case, said in zip(cases, ask(options.program, cases, options.answers)):
        comparison.compare(case, said)
    if sum((comparison.equal + comparison.unequal).values()) == 0:
        print("no cases")
        return 2
    return comparison.report()


if __name__ == "__main__":
    sys.exit(main())
