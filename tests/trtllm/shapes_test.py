#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Caches of every shape, from kvferry's workers to the Python peer and the other way round, byte for byte."""
import unittest

from model import Instance, Model
from scene import Case, KvferryReceivers, KvferrySenders, PythonReceivers, PythonSenders

HYBRID = {"attention": [0, 2, 5, 6], "recurrent": [1, 3, 4, 7]}
# name, members of the model, of the context instance, of the generation instance, of each request
SHAPES = [
    ("head-major", {}, {"tp": 4, "pp": 2}, {"tp": 2}, {}),
    ("token-major", {"order": "nhd"}, {"tp": 4, "pp": 2, "padding": 48}, {"tp": 2}, {}),
    ("the other way", {"order": "nhd", "index": 12}, {"tp": 2}, {"tp": 4, "pp": 2}, {}),
    ("index key", {"index": 12}, {"tp": 4, "pp": 2}, {"tp": 2, "padding": 16}, {}),
    ("index key beside keys and values", {"index": 12, "shared": True, "order": "nhd"}, {"tp": 4}, {"tp": 2}, {}),
    ("recurrent state", {**HYBRID, "side": 24, "index": 8}, {"tp": 4, "pp": 2}, {"tp": 2}, {}),
    ("recurrent state to more ranks", {**HYBRID, "side": 24}, {"tp": 2}, {"tp": 4, "pp": 2}, {}),
    ("copies of heads", {"heads": 2, "order": "nhd"}, {"tp": 8}, {"tp": 2}, {}),
    ("copies of heads to copies of heads", {"heads": 2}, {"tp": 4}, {"tp": 8}, {}),
    ("latents", {"key_only": True, "index": 8}, {"tp": 4, "pp": 2}, {"tp": 2}, {}),
    ("the same shape", {"windowed": [1, 3], "index": 8}, {"tp": 2}, {"tp": 2}, {}),
    ("stages cut unlike, layers in reverse", {"attention": list(range(7))}, {"pp": 3, "reverse": True},
     {"pp": 2, "tp": 2}, {}),
    ("stripes of blocks", {"heads": 2}, {"tp": 2}, {"tp": 2, "cp": 2}, {}),
    ("holes on both sides", {"windowed": [1, 3]}, {"tp": 2, "pp": 2}, {"tp": 4},
     {"held": lambda ordinal: ordinal not in (0, 3), "wants": lambda ordinal: ordinal > 1}),
    ("rings of unlike lengths", {"key_only": True, "ring": 12}, {"tp": 2, "ring": 16}, {"ring": 21}, {}),
    ("rings of unlike lengths, heads", {"ring": 12, "order": "nhd"}, {"pp": 2, "ring": 21}, {"tp": 2, "ring": 16}, {}),
    ("a bound below", {}, {"tp": 2}, {}, {"start_token": 24, "held": lambda ordinal: ordinal > 2}),
]


class Shapes(Case):
    def shape(self, senders, receivers, row, prompts=(45, 8, 64)):
        """Requests that come before and after the offer; all bytes."""
        _, model, src, dst, request = row
        model = Model(**model)
        options = {key: value for key, value in request.items() if key != "held" or "start_token" not in request}
        sources = senders(self, Instance(model, "ctx", **src))
        targets = receivers(self, Instance(model, "gen", **dst))
        moves = []
        for number, prompt in enumerate(prompts):
            move = self.move(sources, targets, prompt, first=["offer", "request"][number % 2], **options)
            moves.append(move._replace(wanted=request.get("held")))
        self.right(targets, moves)
        sources.end()
        targets.end()

    def rows(self, senders, receivers, rows=SHAPES):
        for row in rows:
            with self.subTest(row[0]):
                self.shape(senders, receivers, row)
                self.doCleanups()
                self.setUp()

    def test_kvferry_sends(self):
        self.rows(KvferrySenders, PythonReceivers)

    def test_kvferry_receives(self):
        self.rows(PythonSenders, KvferryReceivers)

    def test_kvferry_on_both_sides(self):
        self.rows(KvferrySenders, KvferryReceivers, [row for row in SHAPES if row[0] in (
            "token-major", "recurrent state", "copies of heads")])

    def test_the_peer_on_both_sides(self):
        self.rows(PythonSenders, PythonReceivers)


if __name__ == "__main__":
    unittest.main()
