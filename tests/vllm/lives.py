#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Lives of requests, for any pair of sides: a class with `pairs` and scene.Case takes these tests."""
import wire
from model import Instance, Model


class Lives:
    def each(self, body, model=None, src=None, dst=None, impatient=False):
        """The body once per pair. `impatient`: producers that wait a second for readiness."""
        for pair in self.pairs:
            with self.subTest(pair.name):
                names = model or Model()
                options = pair.producers.soon if impatient else {}
                senders = pair.producers(self, Instance(names, "p", **(src or {})), **options)
                takers = pair.consumers(self, Instance(names, "d", **(dst or {})))
                body(senders, takers)
                self.again()

    def test_pulls_that_wait_for_readiness(self):
        """Before the producer knows of the request, and before it has blocks for it."""
        def body(producers, consumers):
            moves = [self.plan(producers, consumers) for _ in range(3)]
            for move in moves:
                consumers.request(producers, move)
            producers.asked(moves[0])
            for move in reversed(moves):
                producers.offer(move)
            for move in moves:
                consumers.success(move)
                producers.released(move)
            self.right(consumers, moves)
            producers.end()
            consumers.end()
        self.each(body, src={"tp": 2})

    def test_hundreds_at_once(self):
        count = 300

        def body(producers, consumers):
            moves = [self.plan(producers, consumers, 2) for _ in range(count)]
            for move in moves:
                producers.paint(move)
            for number, move in enumerate(moves):
                steps = [lambda: self.ready(producers, move), lambda: consumers.request(producers, move)]
                for step in steps if number % 2 else reversed(steps):
                    step()
            for move in moves:
                consumers.success(move)
                producers.released(move)
            self.right(consumers, moves)
            producers.end()
            consumers.end()
        size = {"blocks": 2 * count + 8}
        self.each(body, model=Model(layers=2), src={"tp": 2, **size}, dst={**size})

    @staticmethod
    def ready(producers, move):
        if producers.kvferry:
            producers.say(move)
        else:
            for rank in producers.ranks:
                rank.offer(move.transfer, move.p_req, move.src)

    def test_batches(self):
        """Several requests in one pull, ready at different times: CONTINUE, then FINISH."""
        def body(producers, consumers):
            moves = [self.plan(producers, consumers) for _ in range(4)]
            for move in moves[:2]:
                producers.offer(move)
            consumers.request(producers, *moves)
            for move in moves[:2]:
                consumers.success(move)
            for move in moves[2:]:
                producers.offer(move)
                consumers.success(move)
            self.right(consumers, moves)
        self.each(body)

    def test_readiness_times_out(self):
        def body(producers, consumers):
            move = self.plan(producers, consumers)
            consumers.request(producers, move)
            for text in consumers.failure(move):
                self.assertIn("Timeout waiting for P side ready.", text)
            self.right(consumers, [self.move(producers, consumers)])
        self.each(body, impatient=True)

    def test_too_many_blocks(self):
        def body(producers, consumers):
            move = self.plan(producers, consumers, 2, wants=3)
            producers.offer(move)
            consumers.request(producers, move)
            for text in consumers.failure(move):
                self.assertIn("P num blocks less than D", text)
            self.right(consumers, [self.move(producers, consumers)])
        self.each(body)

    def test_other_groups(self):
        def body(producers, consumers):
            move = self.plan(producers, consumers)
            producers.offer(move)
            bad = move._replace(dst=[move.dst[0][:1], move.dst[0][1:]])
            consumers.request(producers, bad)
            for text in consumers.failure(bad):
                self.assertIn("KV group count mismatch", text)
            self.right(consumers, [self.move(producers, consumers)])
        self.each(body)

    def test_release_only(self):
        """Nothing is wanted: the producer is free, no byte moves, and nothing is told of a request that is over."""
        def body(producers, consumers):
            for wants in (0, []):
                move = self.plan(producers, consumers)
                move = move._replace(dst=[[]] if wants == 0 else [])
                producers.offer(move)
                consumers.request(producers, move)
                producers.released(move)
            self.right(consumers, [self.move(producers, consumers)])
        self.each(body)

    def test_two_pulls_over_one_layout(self):
        """The arrays travel once; a producer that has forgotten them is sent them again."""
        def body(producers, consumers):
            moves = [self.move(producers, consumers) for _ in range(3)]
            self.right(consumers, moves)
            if not producers.kvferry:
                rank = producers.ranks[0]
                sizes = [len(wire.read_request(data)["kv_caches_base_addr"]) for data in rank.asked]
                self.assertEqual([bool(size) for size in sizes], [True, False, False])
                rank.ask(rank.layouts.clear)
                moves.append(self.move(producers, consumers))
                sizes = [len(wire.read_request(data)["kv_caches_base_addr"]) for data in rank.asked[3:]]
                self.assertEqual([bool(size) for size in sizes], [False, True])
            elif not consumers.kvferry:
                replies = [wire.read_reply(data, True)["layout_id"] for data in consumers.ranks[0].replies]
                self.assertEqual(replies, [consumers.ranks[0].layout] * 3)
            self.right(consumers, moves)
        self.each(body)
