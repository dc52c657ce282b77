#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What producers may write of a kvferry consumer's memory, and what it makes of their word."""
import subprocess
import threading
import unittest

from model import Instance, Model
from registry import PATIENCE
from scene import KVFERRY, Case, KvferryConsumers, PythonProducers

LATE = {"abort_timeout_s": 0.5, "slack_s": 0.1, "settle_timeout_s": 0.2}
AT_ONCE = {"arrival_timeout_s": 0.2}


class Arrivals(Case):
    def sides(self, src=None, dst=None, model=None, theirs=None, generation=33, **endpoint):
        """One model on both sides, or `theirs` at the consumer."""
        producers = PythonProducers(self, Instance(Model(**(model or {})), "p", **(src or {})), generation=generation)
        consumers = KvferryConsumers(self, Instance(Model(**(theirs or model or {})), "d", **(dst or {})), **endpoint)
        return producers, consumers

    def begin(self, producers, consumers, count=3, **names):
        move = self.plan(producers, consumers, count, **names)
        producers.offer(move)
        consumers.request(producers, move)
        return move

    def short(self, consumers, move, *texts):
        """It failed since bytes were missing, and all of it says so."""
        for worker, text in zip(consumers.ranks, consumers.failure(move)):
            for wanted in ("transfer incomplete: tcp://", "request %s is finished" % move.d_req, *texts):
                self.assertIn(wanted, text)
            self.assertEqual(worker.event("failed", req_id=move.d_req)["status"], "KVF_ERR_INCOMPLETE_TRANSFER")

    @staticmethod
    def hold_back(rank):
        """The rank's next write waits for the event that is returned; its code goes to the list."""
        go, codes = threading.Event(), []

        def late(session, moves):
            rank.write = rank._write
            go.wait()
            codes.append(rank._write(session, moves))
            return codes[0]
        rank.write = late
        return go, codes

    # what may be written

    def test_a_write_that_comes_after_the_end(self):
        """Into blocks that are another request's by now."""
        producers, consumers = self.sides(**LATE)
        rank = producers.ranks[0]
        go, codes = self.hold_back(rank)
        move = self.begin(producers, consumers)
        consumers.failure(move)
        self.assertIn("what it still writes is refused", consumers.ranks[0].event("settled")["text"])
        other = self.plan(producers, consumers)._replace(dst=move.dst)
        producers.offer(other)
        consumers.request(producers, other)
        consumers.success(other)
        self.right(consumers, [other])
        go.set()
        rank.until(lambda: codes, "the late write")
        self.assertEqual(codes, [-1])
        self.right(consumers, [other])
        consumers.ranks[0].told("is refused")
        self.assertGreater(self.end(consumers)["refused_accesses"], 0)

    def test_a_write_within_the_quarantine(self):
        """A failed request that is not settled: its writer is not disturbed, nor what else it writes at that time."""
        producers, consumers = self.sides(abort_timeout_s=0.5, slack_s=0.1)
        rank = producers.ranks[0]
        go, codes = self.hold_back(rank)
        move = self.begin(producers, consumers)
        consumers.failure(move, settled=False)
        other = self.begin(producers, consumers)
        consumers.success(other)
        go.set()
        consumers.ranks[0].event("settled", req_id=move.d_req)
        self.assertEqual(codes, [0])
        self.right(consumers, [move, other])

    def test_a_write_into_another_requests_blocks(self):
        """Of one that is over: refused, and the other one stays right. The producer serves on."""
        producers, consumers = self.sides()
        first = self.move(producers, consumers)
        rank = producers.ranks[0]
        where = [dst for _src, dst, _size in rank.writes[0][2]]

        def astray(session, moves):
            rank.write = rank._write
            return rank._write(session, [(src, dst, size) for (src, _, size), dst in zip(moves, where)])
        rank.write = astray
        move = self.begin(producers, consumers)
        self.assertIn("Mooncake transfer engine returned -1", consumers.failure(move)[0])
        self.right(consumers, [first])
        self.right(consumers, [first, self.move(producers, consumers)])

    def test_a_probe(self):
        """Nothing can be read, and the data port is seen to answer."""
        _, consumers = self.sides()
        segment = consumers.ranks[0].ready["segment"]
        probe = subprocess.run([KVFERRY, "mooncake", "probe", segment], capture_output=True, text=True,
                               timeout=PATIENCE, check=True)
        self.assertIn("the data port answers (its memory is not for everybody to read)", probe.stdout)

    # what must have come

    def test_a_word_without_bytes(self):
        for kept in (lambda moves: [], lambda moves: moves[:-1], lambda moves: moves[1:],
                     lambda moves: moves[:-1] + [(moves[-1][0], moves[-1][1], moves[-1][2] // 2)]):
            for generation in (32, 33):
                producers, consumers = self.sides(generation=generation, **AT_ONCE)
                rank = producers.ranks[0]

                def some(session, moves):
                    rank.write = rank._write
                    return rank._write(session, kept(moves)) if kept(moves) else 0
                rank.write = some
                move = self.begin(producers, consumers)
                self.short(consumers, move)
                good = self.begin(producers, consumers)
                consumers.success(good)
                last = self.end(consumers)
                self.assertEqual((last["short_arrivals"], last["late_arrivals"], last["requests_received"]), (1, 0, 1))
                self.again()

    def test_one_of_several_ranks(self):
        """Two producers, one of which does not write: its half of every block is missing."""
        producers, consumers = self.sides(src={"tp": 2}, **AT_ONCE)
        producers.ranks[1].write = lambda session, moves: 0
        move = self.begin(producers, consumers)
        self.short(consumers, move, " and 1 more said", "of 12288 bytes 6144 arrived", "has 2048 of 4096 bytes")

    def test_bytes_that_come_late_in_protocol_1(self):
        """300 ms after the word that all was sent."""
        producers, consumers = self.sides()
        rank = producers.ranks[0]
        rank.initiator.force_v1 = True

        def late(session, moves):
            threading.Timer(0.3, rank._write, (session, moves)).start()
            return 0
        rank.write = late
        moves = [self.begin(producers, consumers, count) for count in (1, 5, 3)]
        for move in moves:
            consumers.success(move)
        self.right(consumers, moves)
        self.assertEqual(self.end(consumers)["late_arrivals"], 3)

    def test_bytes_that_come_late_and_not_all(self):
        producers, consumers = self.sides(**AT_ONCE)
        rank = producers.ranks[0]
        rank.initiator.force_v1 = True

        def late(session, moves):
            threading.Timer(0.05, rank._write, (session, moves[:-1])).start()
            return 0
        rank.write = late
        self.short(consumers, self.begin(producers, consumers), "arrived within 200 ms; block ")

    def test_what_is_believed_without_a_count(self):
        producers, consumers = self.sides(check_arrivals=False)
        producers.ranks[0].write = lambda session, moves: 0
        consumers.success(self.begin(producers, consumers))
        self.right(consumers, [])

    # what stock producers leave unwritten

    def test_latents_that_are_longer_here(self):
        """As with another KV cache dtype: nobody compares their lengths."""
        for order, apart in (("LBHNC", True), ("BLHNC", False)):
            place = {"order": order, "apart": apart}
            producers, consumers = self.sides(place, place, {"mla": True}, {"mla": True, "content": 48}, **AT_ONCE)
            self.short(consumers, self.begin(producers, consumers), "of 4608 bytes")
            self.again()

    def test_layers_that_only_this_side_has(self):
        """They fail the request, unless nothing is counted."""
        producers, consumers = self.sides(model={"layers": 2}, theirs={"layers": 3}, **AT_ONCE)
        self.short(consumers, self.begin(producers, consumers), "of 9216 bytes 6144 arrived")
        self.again()
        producers, consumers = self.sides(model={"layers": 2}, theirs={"layers": 3}, check_arrivals=False)
        move = self.begin(producers, consumers)
        consumers.success(move)
        self.right(consumers, [move._replace(has=[0, 1])])

    def test_states_of_more_ranks_than_heads(self):
        """A producer takes its states for copies of each other when its ranks are more than its heads."""
        shape = {"groups": [[0, 2], [1, 3]], "mamba": [1, 3], "heads": 1}
        producers, consumers = self.sides({"tp": 2}, {}, shape, {**shape, "state": 192}, **AT_ONCE)
        self.short(consumers, self.begin(producers, consumers, [2, 1]), "has 192 of 384 bytes")

    def test_padding_does_not_count(self):
        """Whole rows come, of which payloads must: a row twice does not stand for the one that is missing."""
        place = {"order": "BLHNC", "padding": 512}
        producers, consumers = self.sides(place, place, {"mla": True}, **AT_ONCE)
        rank, rows = producers.ranks[0], []

        def twice(session, moves):
            rank.write = rank._write
            rows.extend(moves)
            return rank._write(session, [(src, dst, size // 2) for src, dst, size in moves] * 2)
        rank.write = twice
        move = self.begin(producers, consumers, 2, rows=True)
        self.short(consumers, move, "of 2048 bytes 1024 arrived", "has 0 of 1024 bytes")
        self.assertEqual([size for _src, _dst, size in rows], [2 * 1536])
        self.right(consumers, [move._replace(dst=[move.dst[0][:1]], src=[move.src[0][:1]]),
                               self.move(producers, consumers, 2, rows=True)])

    @staticmethod
    def end(consumers):
        """Ends them; the counters of the first."""
        for worker in consumers.ranks:
            worker.hurry()
        for worker in consumers.ranks:
            worker.end(None)
        return consumers.ranks[0].all("end")[0]


if __name__ == "__main__":
    unittest.main()
