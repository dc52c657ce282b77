#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The Python peer against itself, so that a failure elsewhere is the other side's; wrong bytes are seen."""
import unittest

import wire
from lives import Lives
from model import Instance, Model
from scene import Case, PYTHON, PythonConsumers, PythonProducers
from shapes import Shapes


class PeerShapes(Shapes, Case):
    pairs = [PYTHON]


class PeerLives(Lives, Case):
    pairs = [PYTHON]


class Seen(Case):
    """What the tests look at would show."""

    def sides(self):
        model = Model()
        return PythonProducers(self, Instance(model, "p", tp=2)), PythonConsumers(self, Instance(model, "d"))

    def test_a_head_at_a_wrong_place_and_a_byte_beside_a_block(self):
        for change in (lambda move: [move[0], move[1] + 32, move[2] - 32], lambda move: [move[0], move[1] + 1, move[2]],
                       lambda move: [move[0] + 32, move[1], move[2] - 32], lambda move: move[:2] + [move[2] - 1],
                       lambda move: move[:2] + [move[2] + 1]):
            producers, consumers = self.sides()
            rank = producers.ranks[1]
            rank.write = lambda session, moves: rank._write(session, [change(moves[0])] + moves[1:])
            move = self.move(producers, consumers)
            self.assertTrue(self.problems(consumers, [move]))
            self.again()

    def test_a_layer_that_did_not_come(self):
        producers, consumers = self.sides()
        rank = producers.ranks[0]
        rank.write = lambda session, moves: rank._write(session, moves[1:])
        self.assertTrue(self.problems(consumers, [self.move(producers, consumers)]))

    def test_generations_together(self):
        """32 and 33 in every mixture; ids go only where they are understood."""
        for old, new in ((32, 32), (32, 33), (33, 32), (33, 33)):
            model = Model()
            producers = PythonProducers(self, Instance(model, "p"), generation=old)
            consumers = PythonConsumers(self, Instance(model, "d"), generation=new)
            moves = [self.move(producers, consumers) for _ in range(3)]
            self.right(consumers, moves)
            short = [wire.read_request(data)["kv_caches_base_addr"] == [] for data in producers.ranks[0].asked]
            self.assertEqual(short, [False, old == new == 33, old == new == 33])


if __name__ == "__main__":
    unittest.main()
