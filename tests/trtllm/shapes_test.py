#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Caches of every shape, from kvferry's workers to the Python peer and the other way round, byte for byte."""
import os
import random
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


def random_shape(rand):
    """A row like those above."""
    heads = rand.choice([1, 2, 4, 8])
    layers = list(range(rand.randint(3, 9)))
    rand.shuffle(layers)
    recurrent = layers[:rand.choice([0, 0, 1, 2])]
    attention = sorted(set(layers) - set(recurrent))
    model = {"heads": heads, "head_dim": rand.choice([4, 8]), "element": rand.choice([1, 2]),
             "tokens": rand.choice([4, 8, 16]), "order": rand.choice(["indexed", "nhd"]), "attention": attention,
             "index": rand.choice([0, 4, 12]), "shared": rand.random() < 0.5, "recurrent": sorted(recurrent),
             "side": rand.choice([0, 16]), "key_only": rand.random() < 0.2,
             "windowed": [] if len(attention) < 3 else sorted(rand.sample(attention, rand.choice([0, 1])))}
    src = {"tp": rand.choice([1, 2, 4, 8]), "pp": rand.choice([1, 1, 2, 3]), "padding": rand.choice([0, 16])}
    dst = {"tp": rand.choice([1, 2, 4]), "pp": rand.choice([1, 1, 2, 3]), "padding": rand.choice([0, 48])}
    if src["pp"] * dst["pp"] == 1 and rand.random() < 0.3 and not recurrent:
        dst["cp"] = 2
    if recurrent and model["key_only"]:  # a stage of recurrent layers only would have no head, which upstream refuses
        model["key_only"] = False
    limit = rand.randint(0, 2)
    return ("random %s %s %s" % (model, src, dst), model, {**src, "slots": 64}, {**dst, "slots": 64},
            {"wants": lambda ordinal: ordinal >= limit})


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

    def test_random_shapes(self):
        """Whatever comes out of a seed, either way round."""
        seed = int(os.environ.get("KVF_TEST_SEED", "20241130"))
        for number in range(int(os.environ.get("KVF_TRTLLM_SHAPES", "6"))):
            row = random_shape(random.Random(seed + number))
            self.rows(KvferrySenders, PythonReceivers, [row])
            self.rows(PythonSenders, KvferryReceivers, [row])

    def test_the_worker_checks_alike(self):
        """Its own look at its memory says what the look from outside says."""
        model = Model(order="nhd", index=8, recurrent=[1, 3], attention=[0, 2])
        for bent in (False, True):
            senders = PythonSenders(self, Instance(model, "ctx", tp=4, pp=2))
            receivers = KvferryReceivers(self, Instance(model, "gen", tp=2), check=True)
            if bent:
                senders.ranks[1].bend = self.one_head_further
            move = self.move(senders, receivers, 45)
            problems = self.problems(receivers, [move])
            self.assertEqual(bool(problems), bent, problems)
            for rank in receivers.ranks:
                rank.hurry()
            checked = [rank.event("checked") for rank in receivers.ranks]
            self.assertEqual([event["wrong"] > 0 for event in checked], [bent, False], checked)
            if bent:
                self.assertTrue(any("head 1 token 0" in line for line in problems), problems)
            for rank, event in zip(receivers.ranks, checked):
                rank.end(1 if event["wrong"] else 0)

    @staticmethod
    def one_head_further(rows, _):
        """The first copy, which is of one head of one token, goes where the next head belongs."""
        rows = rows.copy()
        rows[0, 1] += rows[0, 2]
        return rows

    def test_the_peer_on_both_sides(self):
        self.rows(PythonSenders, PythonReceivers)


if __name__ == "__main__":
    unittest.main()
