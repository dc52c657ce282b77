#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Everything that can happen to requests, drawn at random, with kvferry on one side and a peer that misbehaves on the
other: each request ends once, what is told as received is right to the byte, what was not asked for is untouched."""
import os
import random
import threading
import unittest

import numpy

import pattern
import peer
import wire
from model import Instance, Model
from scene import Case, KvferryConsumers, KvferryProducers, PythonConsumers, PythonProducers

SEED = int(os.environ.get("KVF_SEED", "5"))
COUNT = int(os.environ.get("KVF_COUNT", "100"))


class Chaos(Case):
    def sides(self, seed):
        rand = random.Random(seed)
        model = Model(layers=rand.choice([1, 2, 3]), heads=4, content=16, tokens=4, groups=None)
        size = {"blocks": 3 * COUNT + 8, "order": rand.choice(["LBHNC", "BLHNC"])}
        return rand, model, {**size, "tp": rand.choice([1, 2, 4])}, {**size, "tp": rand.choice([1, 2])}

    @staticmethod
    def way(rand):
        return rand.choice(["first", "late", "late", "never" if rand.random() < .1 else "late"])

    def settled_bytes(self, consumers, good, bad):
        """Received ones are right; blocks of failed ones hold what was there or what was sent, others nothing."""
        for number, rank in enumerate(consumers.plain):
            found, wanted = consumers.memory(number), pattern.destination(rank)
            may = numpy.zeros(rank.bytes, bool)
            for move in good + bad:
                first = [len(src) - len(dst) for src, dst in zip(move.src, move.dst)]
                pattern.paint(rank, wanted, move.transfer, move.dst, first)
            for move in bad:
                may |= pattern.loose(rank, move.dst)
            found[may & (found == pattern.GUARD)] = wanted[may & (found == pattern.GUARD)]
            lines = pattern.differences(rank, found, wanted, may)
            self.assertFalse(lines, "\n".join(lines))

    def test_producers_that_misbehave(self):
        for seed in range(SEED, SEED + 2):
            with self.subTest(seed=seed):
                rand, model, src, dst = self.sides(seed)
                producers = PythonProducers(self, Instance(model, "p", **src), patience=4)
                consumers = KvferryConsumers(self, Instance(model, "d", **dst), abort_timeout_s=6, slack_s=0.5,
                                             settle_timeout_s=4)
                for rank in producers.ranks:
                    self.spoil(rank, random.Random(rand.random()))
                moves, ways = [], {}
                for _ in range(COUNT):
                    count = rand.randint(1, 3)
                    move = self.plan(producers, consumers, count, wants=rand.randint(1, count))
                    moves.append(move)
                    ways[move.transfer] = self.way(rand)
                    if ways[move.transfer] == "first":
                        producers.offer(move)
                    consumers.request(producers, move)
                rand.shuffle(moves)
                for move in moves:
                    if ways[move.transfer] == "late":
                        producers.offer(move)
                good, bad = [], []
                for move in moves:
                    ends = [worker.event(("received", "failed"), req_id=move.d_req)["event"]
                            for worker in consumers.ranks]
                    for worker in consumers.ranks:
                        worker.event(("received", "settled"), req_id=move.d_req)
                    (bad if "failed" in ends else good).append(move)
                for worker in consumers.ranks:
                    for move in moves:
                        kinds = sorted(event["event"] for event in worker.all(("received", "failed", "settled"),
                                                                              req_id=move.d_req))
                        self.assertIn(kinds, (["received"], ["failed", "settled"]))
                self.assertGreater(len(good), COUNT // 20)
                self.assertGreater(len(bad), 0)
                self.settled_bytes(consumers, good, bad)
                for rank in producers.ranks:
                    rank.say, rank.write = lambda identity, data: [data], rank._write
                after = self.move(producers, consumers, 1)
                self.settled_bytes(consumers, good + [after], bad)
                self.again()

    @staticmethod
    def spoil(rank, rand):
        """Answers that are lost, doubled, bent; writes that fail before, in the middle and after."""
        lock = threading.Lock()

        def say(_, data):
            luck = rand.random()
            if luck < .03:
                return []
            if luck < .2:
                return [data, data]
            if luck < .22:
                return [wire.reply(wire.ERROR, err_msg="so it is")]
            if luck < .24:
                return [data[:-1]]
            return [wire.reply(wire.CONTINUE, ok_reqs=["stranger"]), data] if luck < .4 else [data]

        def write(session, moves):
            with lock:
                luck, cut = rand.random(), rand.randrange(len(moves))
            if luck < .03:
                return 11
            if luck < .06:
                rank._write(session, moves[:cut])
                return 12
            code = rank._write(session, moves)
            return 13 if luck < .08 else code
        rank.say, rank.write = say, write

    def test_consumers_that_misbehave(self):
        for seed in range(SEED, SEED + 2):
            with self.subTest(seed=seed):
                rand, model, src, dst = self.sides(seed + 100)
                producers = KvferryProducers(self, Instance(model, "p", **src), abort_timeout_s=3)
                consumers = PythonConsumers(self, Instance(model, "d", **dst), patience=8)
                for rank in consumers.ranks:
                    self.bend(rank, random.Random(rand.random()))
                moves, ways = [], {}
                for _ in range(COUNT):
                    count = rand.randint(1, 3)
                    move = self.plan(producers, consumers, count, wants=rand.randint(1, count))
                    moves.append(move)
                    producers.paint(move) if len(moves) == COUNT else self.paint(producers, move)
                    ways[move.transfer] = self.way(rand)
                for move in moves:
                    if ways[move.transfer] == "first":
                        producers.say(move)
                    consumers.request(producers, move)
                    if rand.random() < .1:
                        consumers.ranks[0].target.data.cut(reset=rand.random() < .5)
                rand.shuffle(moves)
                for move in moves:
                    if ways[move.transfer] == "late":
                        producers.say(move)
                    elif ways[move.transfer] == "never" and rand.random() < .5:
                        producers.drop(move)
                good, bad = [], []
                for move in moves:
                    for rank in consumers.ranks:
                        rank.until(lambda: not rank.fetches[move.d_req].left, "end of " + move.d_req)
                    failed = any(move.d_req in rank.failed for rank in consumers.ranks)
                    (bad if failed else good).append(move)
                self.assertGreater(len(good), COUNT // 20)
                self.assertGreater(len(bad), 0)
                for move in moves:
                    if ways[move.transfer] != "never":
                        producers.released(move)
                self.settled_bytes(consumers, good, bad)
                for rank in consumers.ranks:
                    rank.bend, rank.target.habits.request = lambda data: data, None
                after = self.move(producers, consumers, 1)
                self.settled_bytes(consumers, good + [after], bad)
                self.again()

    @staticmethod
    def paint(producers, move):
        for plain, memory in zip(producers.plain, producers.bytes):
            pattern.paint(plain, memory, move.transfer, move.src)

    @staticmethod
    def bend(rank, rand):
        """Requests that are cut, doubled or bent; data connections that end in the middle."""
        lock = threading.Lock()

        def bend(data):
            luck = rand.random()
            if luck < .02:
                return data[:-1]
            if luck < .04:
                return wire.msgpack.packb({**wire.msgpack.unpackb(data), "remote_port": 1})
            return data

        def request(link, size, address, opcode):
            with lock:
                luck = rand.random()
            if luck < .01:
                return True
            if luck < .02:
                peer.engine.take(link, size // 2)
                return True
            return False
        rank.bend, rank.target.habits.request = bend, request


if __name__ == "__main__":
    unittest.main()
