#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every rank of upstream's cases: accepted as JSON, written in the bytes that another packer gives, read back the same.

Arguments: the program that converts, the file of cases, the folder of the other packer.
"""
import json
import lzma
import subprocess
import sys


def ranks(path):
    with lzma.open(path, "rt") as lines:
        for line in lines:
            case = json.loads(line)
            for side in ("src", "dst"):
                if side in case:
                    yield from case[side] if case.get("instance") else [case[side]]


def expected_bytes(packer, plain):
    packed = packer.rank_info(plain)
    for group, given in zip(packed["page_table"]["layer_groups"], plain["table"]["groups"]):
        if given["cache"] == "state":
            group["slot_major_layout"] = given.get("slot_major")
    return packer.pack(packed)


def with_defaults(plain):
    plain = dict(plain)
    for name, usual in (("protocol_delta", 0), ("replay", False), ("draft_layers", 0), ("draft_dtype", None)):
        if plain.get(name) == usual:
            plain.pop(name, None)
    return plain


def problem(packer, plain, line):
    encoded, status, rest = line.split("\t")
    if encoded != expected_bytes(packer, plain).hex():
        return f"other bytes, or refused: {status} {rest}"
    if plain.get("protocol_delta"):
        return None if status == "KVF_ERR_VERSION" and "protocol version" in rest else f"expected a refusal: {status}"
    if status != "KVF_OK":
        return f"not read back: {status} {rest}"
    if json.loads(rest) != with_defaults(plain):
        return "read back as something else"
    return None


def main():
    program, cases, folder = sys.argv[1:]
    sys.path.insert(0, folder)
    import rank as packer

    given = list(ranks(cases))
    text = "".join(json.dumps(plain) + "\n" for plain in given)
    lines = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    if len(lines) != len(given):
        sys.exit(f"{len(given)} ranks given, {len(lines)} lines came back")
    problems = 0
    for plain, line in zip(given, lines):
        found = problem(packer, plain, line)
        if found:
            print(f"{plain['name']} {plain['rank']}: {found}")
            problems += 1
    print(f"{len(given)} ranks, {problems} problems")
    sys.exit(problems > 0 or len(given) < 1000)


main()
