#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares a program's answers with upstream's.

    compare.py PROGRAM CASES.jsonl.xz [--show N] [--only KIND,...] [--answers FILE]

Feeds all cases to PROGRAM in one run, compares each answer with the case's `expect` and prints one line per kind.
Exit status: 0 all equal, 1 something is not, 2 the program failed.

Numbers, mappings, elections and mapper names are compared exactly. Fragments, rings and auxiliary copies are compared
as sets of byte moves; how many are equal in order and cut as well is told. Texts: what upstream's released code said
must be equal up to where its wording is not fixed any more (`LOOSE_FROM`); of a text that took part in a rule that only
tests fix (basis "seed"), the pieces that those tests quote (`QUOTED`).
"""
import argparse
import collections
import json
import lzma
import re
import subprocess
import sys

KINDS = ["overlap", "expected_transfers", "verdict", "warnings", "mapping", "views", "state_paired", "elect_aux",
         "fragments", "ring", "aux", "instance"]

# A text is fixed up to the end of the first of these that matches at its start; else whole.
LOOSE_FROM = [
    r"unified draft KV layer count differs",
    r"draft KV dtype differs",
    r"MambaPolicy\.validate_peer_compatible: global \(TP-aggregated\) .* differs: local -?\d+ bytes/rank x "
    r"mamba_tp=\d+ vs peer -?\d+ bytes/rank x mamba_tp=\d+\. ",
    r"\w+\.validate_peer_compatible: replicated role\(s\) ",
    r"(source|destination) auxiliary transfer: pointer/size count mismatch: ",
    r"(source|destination) auxiliary transfer: negative sizes at indices ",
    r"(source|destination) auxiliary transfer: null pointers with non-zero sizes at indices ",
    r"Source and destination auxiliary layouts do not match: ",
    r"Destination auxiliary buffers are empty for non-empty source indices ",
    r"\w+ layer offsets must be non-empty and equal-length: ",
    r"Section count mismatch: ",
    r"TP sizes must be divisible: ",
]
# What tests quote: where the expected text has one, so must the answer, with the same values.
QUOTED = [
    r"protocol version",
    r"bounded_replay_on_generation.*local=(?:True|False), peer=(?:True|False)",
    r"draft KV layer count differs",
    r"draft KV dtype differs",
    r"local=\w+, peer=\w+(?=\)?$)",
    r"same attention TP size",
    r"\w+Policy",
    r"differ on overlapping layers",
    r"has no peer view with the same roles",
    r"must publish a positive num_kv_heads",
    r"not evenly distributed",
    r"is incompatible with local rank",
    r"incompatible mapper kinds",
    r"sub-byte head slicing is not byte-aligned",
    r"tokens_per_block mismatch for NHD/replicated pools",
    r"tokens_per_block not divisible",
    r"\w+ mismatch; field='\w+'",
    r"MLA requires kv_heads_per_rank == 1 for both ranks",
    r"cp_size must be 1",
    r"helix block-interleaved transfer requires equal tokens_per_block",
    r"differs: local -?\d+ bytes/rank x mamba_tp=\d+ vs peer -?\d+ bytes/rank x mamba_tp=\d+\.",
    r"\w+ section count differs",
    r"ssm_bytes_per_head differs",
    r"declares bytes_per_layer=-?\d+ but buffer entries sum to -?\d+ per layer",
    r"cache region size mismatch",
    r"HND bytes per head mismatch",
    r"NHD bytes per token/head mismatch",
    r"positional block tables differ in length: src=\d+ dst=\d+; both sides must span the same prompt",
    r"-?\d+ NIXL descriptors per transferred token per peer",
    r"local_kv_heads=-?\d+, peer_kv_heads=-?\d+",
    r"Source and destination auxiliary layouts do not match",
    r"null pointers with non-zero sizes",
    r"too small at indices \[.*\]",
    r"are empty for non-empty source indices",
]


def texts_equal(expected, answer, basis):
    """Whether a text says what is fixed of the expected one."""
    if expected == answer:
        return True
    if not isinstance(expected, str) or not isinstance(answer, str):
        return False
    if basis == "seed":
        quoted = [match.group(0) for match in (re.search(piece, expected) for piece in QUOTED) if match]
        if quoted:
            return all(piece in answer for piece in quoted)
    for loose in LOOSE_FROM:
        match = re.match(loose, expected)
        if match:
            return answer.startswith(match.group(0))
    return False


def byte_moves(moves):
    """A list of [src, dst, bytes] as sorted disjoint runs of equal distance."""
    runs = []
    for distance, src, count in sorted((dst - src, src, count) for src, dst, count in moves if count > 0):
        if runs and runs[-1][0] == distance and src <= runs[-1][2]:
            runs[-1][2] = max(runs[-1][2], src + count)
        else:
            runs.append([distance, src, src + count])
    return runs


class Comparison:
    """Counts what was equal, by kind, and keeps the first few that were not."""

    def __init__(self, show, only):
        self.show = show
        self.only = only
        self.equal = collections.Counter()
        self.unequal = collections.Counter()
        self.exact = collections.Counter()
        self.shown = collections.Counter()

    def note(self, kind, case, same, expected, answer):
        if kind not in self.only:
            return
        if same:
            self.equal[kind] += 1
            return
        self.unequal[kind] += 1
        if self.shown[kind] < self.show:
            self.shown[kind] += 1
            print(f"{kind}: case {case.get('id')} (fault {case.get('fault')}, basis {case.get('basis')})\n"
                  f"  expected {json.dumps(expected)[:1500]}\n  answered {json.dumps(answer)[:1500]}")

    def values(self, kind, case, answer):
        """Kinds of which both sides have the same JSON or neither has any."""
        expected = case["expect"]
        if kind in expected or kind in answer:
            self.note(kind, case, kind in expected and kind in answer and expected[kind] == answer[kind],
                      expected.get(kind), answer.get(kind))

    def verdict(self, case, answer):
        expected, said = case["expect"]["verdict"], answer.get("verdict")
        same = isinstance(said, dict) and said.get("ok") == expected["ok"]
        if same and not expected["ok"]:
            same = (said.get("style") == expected["style"]
                    and all(texts_equal(expected[key], said.get(key), case["basis"]) for key in ("text", "reason")))
            self.exact["verdict"] += same and said == expected
        elif same:
            self.exact["verdict"] += 1
        self.note("verdict", case, same, expected, said)
        if expected["ok"]:
            warnings = said.get("warnings") if isinstance(said, dict) else None
            same = isinstance(warnings, list) and len(warnings) == len(expected["warnings"]) and all(
                texts_equal(one, other, case["basis"]) for one, other in zip(expected["warnings"], warnings))
            self.exact["warnings"] += warnings == expected["warnings"]
            self.note("warnings", case, same, expected["warnings"], warnings)

    def views(self, case, answer):
        expected, said = case["expect"].get("views"), answer.get("views")
        if expected is None and said is None:
            return
        same = isinstance(expected, list) and isinstance(said, list) and len(expected) == len(said)
        for one, other in zip(expected or [], said or []):
            same = same and all(one.get(key) == other.get(key) for key in ("elect", "dup", "mapper"))
            same = same and texts_equal(one.get("error"), other.get("error"), case["basis"])
        self.exact["views"] += same and expected == said
        self.note("views", case, same, expected, said)

    def fragments(self, case, answer):
        expected, said = case["expect"].get("fragments"), answer.get("fragments")
        if expected is None and said is None:
            return
        if not isinstance(expected, dict) or not isinstance(said, dict):
            same = False
        elif "error" in expected or "error" in said:
            same = texts_equal(expected.get("error"), said.get("error"), case["basis"])
            self.exact["fragments"] += same and expected == said
        else:
            exact = all(expected[key] == said.get(key) for key in ("count", "bytes", "sha256"))
            self.exact["fragments"] += exact
            whole = len(expected["list"]) == expected["count"] and len(said.get("list", [])) == said.get("count")
            same = exact or whole and byte_moves(expected["list"]) == byte_moves(said["list"])
        self.note("fragments", case, same, expected, said)

    def ring(self, case, answer):
        expected, said = case["expect"].get("ring"), answer.get("ring")
        if expected is None and said is None:
            return
        same = isinstance(expected, list) and isinstance(said, list) and len(expected) == len(said)
        for one, other in zip(expected or [], said or []):
            same = same and all(one[key] == other.get(key) for key in ("view", "slots", "retained", "range"))
            same = same and byte_moves(one["moves"]) == byte_moves(other.get("moves", []))
        self.exact["ring"] += same and expected == said
        self.note("ring", case, same, expected, said)

    def aux(self, case, answer):
        expected, said = case["expect"].get("aux"), answer.get("aux")
        if expected is None and said is None:
            return
        if isinstance(expected, dict) and isinstance(said, dict):
            same = texts_equal(expected.get("error"), said.get("error"), case["basis"])
        else:
            same = expected == said
        self.exact["aux"] += expected == said
        self.note("aux", case, same, expected, said)

    def instance(self, case, answer):
        """Ranks that upstream refuses need not be answered as upstream does, but wholly and once."""
        said = answer
        if not isinstance(said, list) or len(said) != len(case["expect"]):
            self.note("instance", case, False, case["expect"], answer)
            return
        for expected, other in zip(case["expect"], said):
            keys = ["rank", "writers", "wanted"]
            if expected["error"] is None:
                keys += ["sends", "bytes", "doubles", "error"]
            same = isinstance(other, dict) and all(expected[key] == other.get(key) for key in keys)
            if same and expected["error"] is not None:
                same = other["bytes"] == other["wanted"] and other["doubles"] == 0 and other["error"] is None
            self.exact["instance"] += same and expected == other
            self.note("instance", case, same, expected, other)

    def compare(self, case, answer):
        if case.get("instance"):
            self.instance(case, answer)
            return
        if not isinstance(answer, dict):
            answer = {}
        for kind in ("overlap", "expected_transfers", "mapping", "state_paired", "elect_aux"):
            self.values(kind, case, answer)
        self.verdict(case, answer)
        for part in (self.views, self.fragments, self.ring, self.aux):
            part(case, answer)

    def report(self):
        for kind in KINDS:
            if self.equal[kind] or self.unequal[kind]:
                exact = f", {self.exact[kind]} to the letter" if kind in self.exact else ""
                print(f"{kind}: {self.equal[kind]} equal{exact}, {self.unequal[kind]} not")


def read_cases(path):
    opened = lzma.open(path, "rt", encoding="utf-8") if path.endswith(".xz") else open(path, encoding="utf-8")
    with opened as lines:
        return [case for case in map(json.loads, lines) if "src" in case]


def main():
    parser = argparse.ArgumentParser(description="compare a program's answers with upstream's")
    parser.add_argument("program")
    parser.add_argument("cases")
    parser.add_argument("--show", type=int, default=3, help="how many unequal ones of each kind to print")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds to compare")
    parser.add_argument("--answers", help="keep the answers in this file")
    options = parser.parse_args()
    cases = read_cases(options.cases)
    given = "".join(json.dumps(case) + "\n" for case in cases)
    run = subprocess.run([options.program], input=given, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
    if options.answers:
        with open(options.answers, "w", encoding="utf-8") as kept:
            kept.write(run.stdout)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    if run.returncode != 0 or len(answers) != len(cases):
        print(f"{options.program}: exit status {run.returncode}, {len(answers)} answers to {len(cases)} cases")
        return 2
    comparison = Comparison(options.show, options.only.split(","))
    for case, answer in zip(cases, answers):
        if answer.get("id") != case["id"]:
            print(f"answer {answer.get('id')} to case {case['id']}")
            return 2
        comparison.compare(case, answer.get("answer"))
    comparison.report()
    return 1 if sum(comparison.unequal.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
