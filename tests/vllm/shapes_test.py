#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Caches of every shape between kvferry's workers and the Python peer, both ways."""
import random
import unittest

from model import Instance, Model
from scene import BOTH, CONSUMES, Case, PRODUCES
from shapes import Shapes


class BothWays(Shapes, Case):
    pairs = [PRODUCES, CONSUMES]

    def test_random(self):
        rand = random.Random(20)
        for number in range(6):
            heads = rand.choice([1, 2, 4])
            tps = [1, 2, 4]
            model = {"layers": rand.randint(1, 5), "heads": heads, "content": rand.choice([16, 24, 64]),
                     "tokens": rand.choice([4, 8]), "mla": rand.random() < .3}
            order = rand.choice(["LBHNC", "BLHNC"])
            src, dst = [{"tp": rand.choice(tps), "pp": rand.choice([1, 1, min(2, model["layers"])]), "order": order,
                         "seed": number} for _ in range(2)]
            # A latent that fills its rows looks like an opaque one: no stages there.
            if model["mla"] and (order == "LBHNC" or model["layers"] < 3):
                src["pp"] = dst["pp"] = 1
            count = rand.randint(1, 6)
            self.shape(model, src, dst, ((count, rand.randint(1, count)), (3, None)), rows=rand.random() < .5)


class Together(Shapes, Case):
    """kvferry on both sides: some of the shapes."""
    pairs = [BOTH]
    test_eight_to_one_with_copied_heads = test_one_to_eight_with_copied_heads = None
    test_stages_that_are_cut_elsewhere = test_rows_of_unlike_stages = test_a_region_for_each_head = None
    test_padded_pages = test_heads_first = test_one_to_one = None


class OldGeneration(Case):
    """0.32.0's messages, on either side or both."""

    def test_generations(self):
        model = Model()
        for old_producer, old_consumer in ((True, True), (True, False), (False, True)):
            for pair in (PRODUCES, CONSUMES, BOTH):
                with self.subTest(pair=pair.name, producer=old_producer, consumer=old_consumer):
                    old = {True: {"layout_ids": 0}, False: {"generation": 32}}
                    producers = pair.producers(self, Instance(model, "p", tp=2), **(
                        old[pair.producers.kvferry] if old_producer else {}))
                    consumers = pair.consumers(self, Instance(model, "d"), **(
                        old[pair.consumers.kvferry] if old_consumer else {}))
                    self.right(consumers, [self.move(producers, consumers) for _ in range(3)])
                    self.again()


if __name__ == "__main__":
    unittest.main()
