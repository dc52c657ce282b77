#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The peer's arithmetic against upstream's own answers.

    arithmetic_test.py CASES.jsonl.xz
"""
import json
import lzma
import sys
import unittest

import numpy

import arithmetic
import rank

CASES = sys.argv.pop(1)


def moves(rows):
    """Copies as a set of byte moves: sorted, neighbours joined."""
    out = []
    for src, dst, size in sorted(map(tuple, numpy.asarray(rows).reshape(-1, 3).tolist())):
        if out and out[-1][0] + out[-1][2] == src and out[-1][1] + out[-1][2] == dst:
            out[-1][2] += size
        else:
            out.append([src, dst, size])
    return out


class Arithmetic(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with lzma.open(CASES, "rt") as lines:
            cases = [json.loads(line) for line in lines]
        cls.pairs = [case for case in cases if not case.get("instance") and "expect" in case]
        cls.instances = [case for case in cases if case.get("instance")]

    def test_pairs(self):
        accepted = 0
        for case in self.pairs:
            expect, request = case["expect"], case["request"]
            own, peer = rank.rank_info(case["src"]), rank.rank_info(case["dst"])
            with self.subTest(case=case["id"]):
                self.assertEqual(arithmetic.overlap(own, peer, peer["dp_rank"]), expect["overlap"]["ranks"])
                if not expect["verdict"]["ok"]:
                    continue
                accepted += 1
                self.views(own, peer, expect)
                self.assertEqual(arithmetic.state_paired(own, peer), expect["state_paired"])
                self.assertEqual(arithmetic.sends_aux(own, peer), expect["elect_aux"])
                self.fragments(own, peer, request, expect)
                self.rings(own, peer, request, expect)
                if isinstance(expect.get("aux"), list) and request["aux_slots"]:
                    found = arithmetic.aux_copies(own, peer, *request["aux_slots"]).tolist()
                    self.assertEqual(found, expect["aux"])
        self.assertGreater(accepted, 1000)

    def views(self, own, peer, expect):
        pairs = arithmetic.mapping(own, peer)
        self.assertEqual([[list(key), list(peer_key)] for key, peer_key in pairs], expect["mapping"])
        for (key, peer_key), view in zip(pairs, expect["views"]):
            self.assertEqual(arithmetic.sends_view(own, peer, key, peer_key), view["elect"])
            if "mapper" in view:
                self.assertEqual(arithmetic.mapper_name(own, key, peer, peer_key), view["mapper"])

    def fragments(self, own, peer, request, expect):
        arguments = own, peer, request["src_blocks"], request["dst_blocks"], request["dst_start_token"]
        if "error" in expect["fragments"]:
            self.assertRaises(arithmetic.Refused, arithmetic.fragments, *arguments)
            return
        found = arithmetic.fragments(*arguments)
        self.assertEqual(found[:, 2].sum(), expect["fragments"]["bytes"])
        if "list" in expect["fragments"]:
            self.assertEqual(moves(found), moves(expect["fragments"]["list"]))

    def rings(self, own, peer, request, expect):
        for ring in expect.get("ring", []):
            key, peer_key = map(tuple, ring["view"])
            if ring["moves"]:
                rows = numpy.array(arithmetic.ring_moves(own, key, peer, peer_key, 0, request["prompt"]), numpy.int64)
                rows[:, 0] += arithmetic.bases(own, key, [request["src_blocks"][key[0]][-1]])
                rows[:, 1] += arithmetic.bases(peer, peer_key, [request["dst_blocks"][peer_key[0]][-1]])
                self.assertEqual(moves(rows), moves(ring["moves"]))

    def test_instances(self):
        for case in self.instances:
            sources = [rank.rank_info(plain) for plain in case["src"]]
            for plain, expect in zip(case["dst"], case["expect"]):
                if expect["error"]:
                    continue
                peer = rank.rank_info(plain)
                with self.subTest(case=case["id"], rank=plain["rank"]):
                    self.assertEqual(arithmetic.overlap(peer, sources[0], case["src_dp"]), expect["writers"])
                    for number, count, size, expected, aux in expect["sends"]:
                        own = sources[number]
                        found = arithmetic.fragments(own, peer, case["blocks"]["ctx%d" % number],
                                                     case["blocks"]["gen%d" % plain["rank"]])
                        self.assertEqual((len(found), found[:, 2].sum()), (count, size))
                        self.assertEqual(len(arithmetic.overlap(own, peer, peer["dp_rank"])), expected)
                        self.assertEqual(arithmetic.sends_aux(own, peer), aux)


if __name__ == "__main__":
    unittest.main()
