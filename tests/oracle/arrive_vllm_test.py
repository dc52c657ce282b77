#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What upstream's producers write, held against what a consumer of ours grants, and against what it waits for.

    arrive_vllm_test.py PROGRAM CASES.jsonl.xz [--changed N] [--seed N] [--show N]

For each stored pull whose answer has descriptors, and for N that are changed as mutate_vllm_test.py does it:
- all of them must lie in what is granted for their request;
- nothing that is granted may belong to a block which the request does not name (but in changed ones, whose blocks may
  overlap);
- where the other ranks that this consumer would ask can be made up (the same shape, another TP rank; answered by
  PROGRAM, which answers as upstream does), all bytes are counted as they would be counted on arrival. Where upstream
  writes all payloads of all blocks, the count must be full. Where it does not, the count must be short, unless bytes
  were written twice.
Prints why upstream leaves bytes unwritten, by kind. Exit status: 0 all as it must be, 1 something is not.
"""
import argparse
import bisect
import collections
import copy
import random
import sys

from arithmetic_vllm_plan import partners
from compare_vllm import ask, read_cases
from mutate_vllm_test import changed


class Spans:
    """A union of ranges of addresses."""

    def __init__(self, ranges):
        self.spans = []
        for first, end in sorted(ranges):
            if self.spans and first <= self.spans[-1][1]:
                self.spans[-1][1] = max(self.spans[-1][1], end)
            else:
                self.spans.append([first, end])
        self.firsts = [first for first, _end in self.spans]

    def cover(self, first, end):
        """Whether all of a range is in it."""
        at = bisect.bisect_right(self.firsts, first) - 1
        return at >= 0 and end <= self.spans[at][1]

    def common(self, first, end):
        """How many bytes of a range are in it."""
        at, total = max(bisect.bisect_right(self.firsts, first) - 1, 0), 0
        while at < len(self.spans) and self.spans[at][0] < end:
            total += max(0, min(end, self.spans[at][1]) - max(first, self.spans[at][0]))
            at += 1
        return total


def regions_of(case):
    """The consumer's regions as dictionaries."""
    arrays = case["input"]["pull"]["regions"]
    groups = case["input"]["producer"]["layer_groups"]
    count = len(arrays["layer_name"])
    shared = arrays["shared_groups"] if len(arrays["shared_groups"]) == count else [[] for _ in range(count)]
    rows = arrays["row_offset"] if len(arrays["row_offset"]) == count else [-1] * count
    ids = arrays["group_index"] or [groups.get(name, 0) for name in arrays["layer_name"]]
    return [{"base": base, "stride": stride, "bytes": payload, "layer": layer, "group": group, "shared": own,
             "row": row}
            for base, stride, payload, layer, group, own, row in zip(
                arrays["base_addr"], arrays["block_len"], arrays["kv_block_len"], arrays["layer_name"], ids, shared,
                rows)]


def roomy(case):
    """The case with all columns, and room for every block: ids of the cases go past the next array of blocks. Regions
    of one row stay beside each other."""
    case = copy.deepcopy(case)
    arrays = case["input"]["pull"]["regions"]
    found = regions_of(case)
    arrays["group_index"] = [region["group"] for region in found]
    arrays["shared_groups"] = [region["shared"] for region in found]
    arrays["row_offset"] = [region["row"] for region in found]
    rows = []
    for number in sorted(range(len(found)), key=lambda at: (found[at]["stride"], found[at]["base"])):
        region = found[number]
        if not rows or rows[-1][0]["stride"] != region["stride"] or (
                region["base"] >= rows[-1][0]["base"] + region["stride"]):
            rows.append((region, len(rows)))
        arrays["base_addr"][number] = (rows[-1][1] + 1 << 36) + region["base"] - rows[-1][0]["base"] + (1 << 20)
    return case


def cramped(case):
    """Whether some block of a request lies in the next array of blocks, as in no engine."""
    found = regions_of(case)
    most = [max((one for request in case["input"]["pull"]["requests"]
                 for one in blocks_of(case, region, request["block_ids"])), default=0) for region in found]
    return any(one["stride"] == other["stride"] and one["group"] == other["group"] and
               one["base"] + one["stride"] <= other["base"] < one["base"] + number * one["stride"] + one["bytes"]
               for one, number in zip(found, most) for other in found)


def longer_latents(case):
    """The case with blocks at the consumer that are twice as long: a latent cache's lengths are not compared."""
    case = copy.deepcopy(case)
    arrays = case["input"]["pull"]["regions"]
    for column in ("block_len", "kv_block_len", "row_offset"):
        arrays[column] = [2 * one if one > 0 else one for one in arrays[column]]
    arrays["base_addr"] = [one + max(row, 0) // 2 for one, row in zip(arrays["base_addr"], arrays["row_offset"])]
    case["id"] += " longer"
    return roomy(case)


def blocks_of(case, region, groups):
    """A request's blocks in a region, as its memory has them."""
    producer, out = case["input"]["producer"], []
    numbers = range(len(groups)) if region["group"] == -1 and not region["shared"] else (
        region["shared"] if region["group"] == -1 else [region["group"]])
    for number in numbers:
        if not 0 <= number < len(groups):
            continue
        mamba = producer["group_kinds"][number] == "mamba"
        times = 1 if mamba else producer["kernel_blocks_per_block"]
        out += [one * times + step for one in groups[number] if one or not mamba for step in range(times)]
    return out


def memory_of(case):
    """So much memory that all blocks of all requests are there, in every region."""
    most = max((one for region in regions_of(case) for request in case["input"]["pull"]["requests"]
                for one in blocks_of(case, region, request["block_ids"])), default=0)
    spans = Spans([(region["base"] - max(region["row"], 0),
                    region["base"] + most * region["stride"] + max(region["stride"], region["bytes"]))
                   for region in regions_of(case)])
    return [[first, end - first] for first, end in spans.spans]


def granted(answer, lists):
    """All that may be written for a request."""
    return Spans([(first + block * stride, first + block * stride + size)
                  for one, blocks in zip(answer["sets"], lists) for sheet in one["sheets"]
                  for first, stride, size in sheet for block in blocks])


def foreign(case, groups, may):
    """Bytes that may be written, though they are of neighbours that the request does not name."""
    named = [(region, set(blocks_of(case, region, groups))) for region in regions_of(case)]
    everything = set().union(*(ids for _region, ids in named)) if named else set()
    found = 0
    for region, ids in named:
        for block in {near for one in ids for near in (one - 1, one + 1)} - everything:
            first = region["base"] + block * region["stride"]
            found += may.common(first, first + region["bytes"])
    return found


def counted(answer, lists, moves):
    """The first set and block that are short, with the bytes that came; None when all are there."""
    for one, blocks in zip(answer["sets"], lists):
        if not one["sheets"]:
            continue
        for block in sorted(set(blocks)):
            spans = Spans([(first + block * stride, first + block * stride + size)
                           for first, stride, size in one["sheets"][one["counting"]]])
            came = sum(spans.common(first, first + size) for _src, first, size in moves)
            if came < one["payload_bytes"]:
                return one["group"], block, came, one["payload_bytes"]
    return None


def unwritten(case, groups, moves):
    """What of the request's payloads nobody wrote: [(layer, block, bytes)]."""
    written = Spans([(first, first + size) for _src, first, size in moves])
    out = []
    for region in regions_of(case):
        for block in sorted(set(blocks_of(case, region, groups))):
            first = region["base"] + block * region["stride"]
            left = region["bytes"] - written.common(first, first + region["bytes"])
            if left:
                out.append((region["layer"], block, left))
    return out


def others(case):
    """The ranks that the consumer asks besides this one, as cases; None when they cannot be made up."""
    producer, pull = case["input"]["producer"], case["input"]["pull"]
    if producer["pp_size"] != pull["pp_size"] and producer["pp_size"] > 1:
        return None
    out = []
    for rank in partners(pull["tp_rank"], pull["tp_size"], producer["tp_size"]):
        if rank != producer["tp_rank"]:
            one = copy.deepcopy(case)
            one["input"]["producer"]["tp_rank"] = rank
            out.append(one)
    return out


def kind_of(case, missing):
    """Why upstream left bytes unwritten."""
    producer = case["input"]["producer"]
    mine = {}
    for name, length in zip(producer["regions"]["layer_name"], producer["regions"]["kv_block_len"]):
        mine.setdefault(name, []).append(length)
    whole = {region["layer"]: region["bytes"] for region in regions_of(case)}
    if all(layer not in mine for layer, _block, _left in missing):
        return "layers that the producer does not have"
    if producer["is_mla"] and any(layer in mine and max(mine[layer]) < whole[layer]
                                  for layer, _block, _left in missing):
        return "a latent cache whose blocks are longer at the consumer"
    if "mamba" in producer["group_kinds"] and producer["tp_size"] > producer["total_kv_heads"]:
        return "recurrent layers, and a producer of more ranks than KV heads"
    return "otherwise"


class Judge:
    """Looks at cases, and counts."""

    def __init__(self, show):
        self.show, self.numbers, self.kinds, self.wrong = show, collections.Counter(), collections.Counter(), 0

    def tell(self, case, what):
        self.wrong += 1
        if self.wrong <= self.show:
            print("%s %s: %s" % (case["id"], case.get("note"), what))

    def adopt(self, case, said):
        """Takes the answer for the moved regions in place of upstream's, once it is seen to be the same."""
        told = case["expect"]["requests"]
        for name, one in said["requests"].items():
            if [move[::2] for move in one.get("descriptors", [])] != [move[::2] for move in
                                                                      told[name].get("descriptors", [])]:
                self.tell(case, "%s: moves otherwise in regions that lie elsewhere" % name)
        case["expect"] = said

    def grants(self, case, answer):
        for request in case["input"]["pull"]["requests"]:
            found = case["expect"]["requests"].get(request["d_req_id"], {}).get("descriptors") or []
            may = granted(answer, answer["requests"][request["d_req_id"]])
            self.numbers["requests"] += 1
            for _src, first, size in found:
                self.numbers["descriptors"] += 1
                if not may.cover(first, first + size):
                    self.tell(case, "%s: [0x%x, + %d) is not granted" % (request["d_req_id"], first, size))
                    break
            bytes_of_others = foreign(case, request["block_ids"], may)
            if bytes_of_others and not case.get("changed"):
                self.tell(case, "%s: %d bytes of other blocks are granted" % (request["d_req_id"], bytes_of_others))

    def arrivals(self, case, answer, rest):
        for request in case["input"]["pull"]["requests"]:
            name = request["d_req_id"]
            said = [one["requests"].get(name, {}).get("descriptors") for one in rest]
            if None in said or not any(request["block_ids"]):
                continue
            moves = [move for one in said for move in one]
            missing = unwritten(case, request["block_ids"], moves)
            short = counted(answer, answer["requests"][name], moves)
            if not missing:
                self.numbers["whole"] += 1
                if short:
                    self.tell(case, "%s: all is written, counted is %s" % (name, short))
            else:
                self.kinds[kind_of(case, missing)] += 1
                self.numbers["left unwritten"] += 1
                self.numbers["left unwritten, seen"] += short is not None
                if not short and sum(size for _src, _first, size in moves) == len(
                        {at for _src, first, size in moves for at in range(first, first + size)}):
                    self.tell(case, "%s: %s is not written, and not missed" % (name, missing[0]))


def judge_all(judge, program, cases):
    """Asks for all of them at once."""
    answers = ask(program, [{"id": case["id"], "family": "extent", "input": {**case["input"],
                                                                             "memory": memory_of(case)}}
                            for case in cases])
    asked = [(number, other) for number, case in enumerate(cases) for other in others(case) or ()]
    rest = collections.defaultdict(list)
    for (number, _other), said in zip(asked, ask(program, [other for _number, other in asked])):
        rest[number].append(said if "requests" in said else {"requests": {}})
    for number, (case, answer) in enumerate(zip(cases, answers)):
        if "error" in answer:
            if not (case.get("changed") and "overlap" in answer["error"]):
                judge.tell(case, answer["error"])
            continue
        judge.grants(case, answer)
        if others(case) is not None:
            judge.arrivals(case, answer, [case["expect"]] + rest[number])


def has_descriptors(case):
    """Whether something of it is written."""
    return any("descriptors" in one for one in case["expect"].get("requests", {}).values())


def changed_cases(stored, options):
    """Cases that upstream did not answer; the rules do, and so does the program."""
    choice, out = random.Random(options.seed).choice, []
    for number in range(options.changed):
        case = changed(choice(stored), number, choice)
        if has_descriptors(case):
            out.append(dict(roomy(case), changed=True))
    return out


def main():
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("cases")
    parser.add_argument("--changed", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5)
    options = parser.parse_args()
    stored = [case for case in read_cases(options.cases) if case["family"] == "plan" and has_descriptors(case)]
    judge, cases = Judge(options.show), [roomy(case) for case in stored]
    for case, said in zip(cases, ask(options.program, cases)):
        judge.adopt(case, said)
    others_of = [longer_latents(case) for case in stored if case["input"]["producer"]["is_mla"]]
    others_of += changed_cases(stored, options)
    for case, said in zip(others_of, ask(options.program, others_of)):
        if "requests" in said:
            cases.append(dict(case, expect=said))
    judge_all(judge, options.program, cases)
    print(", ".join("%s: %d" % item for item in judge.numbers.items()))
    for kind, number in sorted(judge.kinds.items()):
        print("left unwritten: %s: %d" % (kind, number))
    return 1 if judge.wrong or not judge.numbers["whole"] else 0


if __name__ == "__main__":
    sys.exit(main())
