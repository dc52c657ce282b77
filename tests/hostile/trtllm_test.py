#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What strangers may say at the three ports of a `kvferry trtllm worker`: who one is, the sender's, the receiver's.

Two honest workers move caches to and from honest peers before, between and after; neither of them stops, grows without
bounds, or keeps a descriptor or thread. KVFERRY names the command.
"""
import os
import random
import sys
import time
import unittest
from pathlib import Path

import msgpack
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "trtllm"))
import peer  # noqa: E402
import rank as rank_info  # noqa: E402
from model import Instance, Model  # noqa: E402
from scene import Case, KvferryReceivers, KvferrySenders, PythonReceivers, PythonSenders  # noqa: E402

SOON = peer.PATIENCE / 2
# Most that a worker's memory may grow by in one attack.
GROWTH = (4 if os.environ.get("KVF_SANITIZER") else 1) * 96 << 20
NONSENSE = [b"", b"\0", b"\xff" * 8, b"-", b"-1", b"1.5", b"1e9", b"0x10", b" 1", b"1 ", b"+1", b"99999999999999999999",
            "\u0661".encode(), b"9" * 5000, b"\xc1", b"\x90", b"\x80", b"\xc0"]
BOMBS = [b"\x91" * 100000 + b"\xc0", b"\x81\xa1a" * 50000 + b"\xc0", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
         b"\xdb\xff\xff\xff\xffx", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\0", b"\xde\xff\xff" + b"\xc0" * 200,
         b"\x07" + random.Random(1).randbytes(3000), b"GET / HTTP/1.1\r\n\r\n"]


class Hostile(Case):
    def setUp(self):
        super().setUp()
        self.model = Model(attention=[0, 1], order="nhd", index=8)
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, 0)
        self.sends = KvferrySenders(self, Instance(self.model, "ctx", slots=4096))
        self.asks = PythonReceivers(self, Instance(self.model, "gen", slots=4096))
        self.takes = KvferryReceivers(self, Instance(self.model, "gen", slots=4096))
        self.gives = PythonSenders(self, Instance(self.model, "ctx", slots=4096))
        self.moves = ([], [])
        self.good()
        self.victims = [self.sends.ranks[0], self.takes.ranks[0]]
        self.before = [self.figures(victim) for victim in self.victims]

    def dealer(self, endpoint):
        dealer = self.context.socket(zmq.DEALER)
        dealer.linger = peer.PATIENCE * 1000
        dealer.connect(endpoint)
        return dealer

    @property
    def ports(self):
        return [self.victims[0].ready["info"], self.victims[0].ready["sender"], self.victims[0].ready["self"],
                self.victims[1].ready["sender"], self.victims[1].ready["self"]]

    def good(self):
        """Caches move both ways, byte for byte."""
        for (senders, receivers), moves in zip([(self.sends, self.asks), (self.gives, self.takes)], self.moves):
            moves.append(self.move(senders, receivers, 20))
        self.right(self.asks, self.moves[0])
        self.right(self.takes, self.moves[1])

    @staticmethod
    def figures(worker):
        pid = worker.popen.pid
        with open("/proc/%d/statm" % pid, encoding="ascii") as file:
            pages = int(file.read().split()[1])
        return len(os.listdir("/proc/%d/fd" % pid)), len(os.listdir("/proc/%d/task" % pid)), pages * 4096

    def unharmed(self, close=True):
        """Good ones go on, and nothing is left."""
        self.good()
        for victim, (descriptors, threads, size) in zip(self.victims, self.before):
            end = time.monotonic() + SOON
            while True:
                found = self.figures(victim)
                if found[0] <= descriptors + 4 and found[1] <= threads + 1:
                    break
                if time.monotonic() > end:
                    raise AssertionError("descriptors and threads: %s before, %s now" % ((descriptors, threads), found))
                victim.news.acquire()
                victim.news.wait(0.05)
                victim.news.release()
            self.assertLess(found[2], size + GROWTH)
        for rank in self.asks.ranks + self.gives.ranks:
            self.assertFalse(rank.surprises)
        if close:
            for side in (self.sends, self.takes):
                side.end(0)

    @staticmethod
    def say(endpoint, messages, linger=peer.PATIENCE):
        """All of them, on one connection; returns when it has handed them over."""
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.linger, dealer.sndtimeo = linger * 1000, peer.PATIENCE * 1000
        dealer.connect(endpoint)
        for frames in messages:
            dealer.send_multipart(list(frames))
        dealer.close()
        context.term()

    # frames

    def test_frames(self):
        tags = [b"REQUEST_INSTANCE_INFO", b"REGISTER_RANK_INFO", b"REQUEST_DATA", b"KV_AGENT_RESULT",
                b"AUX_AGENT_RESULT", b"CANCEL_SESSION", b"SESSION_QUIESCED"]
        rows = [[b""], [b"", b""], [b"x"], [b"x" * (1 << 20)], [b"\xff\xfe"], [b"request_data", b""],
                [b"REQUEST_DATA\0"],
                [b"TERMINATION"], [b"TERMINATION", b""], [b"x"] * 5000, [b""] * 5000]
        for tag in tags:
            rows += [[tag], [tag, b""], [tag, b"", b""], [tag, b"", b"", b""], [tag] + [b"7"] * 6, [tag] + [b""] * 5000,
                     [tag, b"x" * (2 << 20)]]
            rows += [[tag, text] for text in NONSENSE + BOMBS]
            rows += [[tag, text, text] for text in NONSENSE] + [[tag, text, b"gen", text] for text in NONSENSE]
            rows += [[tag, text, text, b"SUCCESS"] for text in NONSENSE]
        for endpoint in self.ports:
            self.say(endpoint, [row for row in rows if sum(map(len, row)) < 500000])
            for row in rows:
                if sum(map(len, row)) >= 500000:
                    self.say(endpoint, [row], linger=1)  # the connection may be cut over it
        self.good()
        self.unharmed()

    def test_results(self):
        """Of any length, of requests, writers and pieces that never were."""
        rows = [[b"KV_AGENT_RESULT", bytes(size)] for size in range(60)]
        rows += [[b"KV_AGENT_RESULT", b"\xff" * size] for size in range(30, 60)]
        for writer in (0, -1, 5, 1 << 62):
            for rid in (0, -1, 5, 1 << 62):
                for piece in (0, -1, 3, 1 << 40):
                    for last, status in ((0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (1, 4), (255, 255)):
                        result = peer.RESULT.pack(writer, rid, piece, last, status, -1)
                        rows += [[b"KV_AGENT_RESULT", result], [b"KV_AGENT_RESULT", result, b"a" * 8, b"b", b"c" * 8]]
        for status in (b"SUCCESS", b"FAILED", b"success", b"", b"\xff"):
            rows += [[b"AUX_AGENT_RESULT", b"0", b"5", status], [b"AUX_AGENT_RESULT", b"5", b"0", status]]
        rows += [[b"SESSION_QUIESCED", writer, rid] for writer in NONSENSE for rid in NONSENSE]
        for endpoint in self.ports:
            self.say(endpoint, rows)
        self.unharmed()

    # what claims to be a rank info or a request

    def test_rank_infos_cut_and_bent(self):
        info = dict(self.asks.ranks[0].info, instance_name="stranger")
        data = rank_info.pack(info)
        rand = random.Random(7)
        rows = [data[:cut] for cut in range(0, len(data), 7)] + [data + b"\0"]
        for _ in range(1500):
            bent = bytearray(data)
            for _ in range(rand.choice([1, 1, 2, 8])):
                bent[rand.randrange(len(bent))] = rand.choice([0, 0x7f, 0x80, 0xc0, 0xff, rand.randrange(256)])
            rows.append(bytes(bent))
        for key in info:
            for value in (None, -1, 1 << 63, 0.5, "x", b"x", [], {}, [[]], True, float("nan"), "y" * 70000):
                rows.append(rank_info.pack({**info, key: value}))
            rows.append(rank_info.pack({other: value for other, value in info.items() if other != key}))
        rows += [msgpack.packb({**info, number: number}) for number in (5, -1)]
        for endpoint in self.ports:
            self.say(endpoint, [[b"REGISTER_RANK_INFO", row] for row in rows])
        self.unharmed()

    def test_rank_infos_with_tables_that_cannot_be(self):
        info = dict(self.asks.ranks[0].info, instance_name="stranger")
        rows = []
        for path, values in [
                (("tokens_per_block",), (0, -1, 1 << 62)),
                (("layer_groups",), ([], [None], [[]] * 5000)),
                (("layer_groups", 0, "pool_group_idx"), (-1, 1, 1 << 40)),
                (("layer_groups", 0, "local_layers"), ([], [{}], [{"local_layer_id": 0, "global_layer_id": 0}] * 3)),
                (("layer_groups", 0, "pool_views"), ([], [{}], None)),
                (("layer_groups", 0, "pool_views", 0, "pool_idx"), (-1, 9)),
                (("layer_groups", 0, "pool_views", 0, "mapper_kind"), (-1, 3, 9, 1 << 33)),
                (("layer_groups", 0, "pool_views", 0, "num_kv_heads"), (0, -4, 1 << 62)),
                (("layer_groups", 0, "pool_views", 0, "buffer_entries"),
                 ([], [[0, 0, 0]], [[0, 0]], [[9, 0, 8]], [[0, 1 << 62, 1 << 62]], [[0, -8, 8]], [[0, 0, 1]] * 5000)),
                (("pool_groups",), ([], [{"pools": []}])),
                (("pool_groups", 0, "pools", 0, "base_address"), (0, (1 << 64) - 1, -1)),
                (("pool_groups", 0, "pools", 0, "slot_bytes"), (0, -1, 1 << 62)),
                (("pool_groups", 0, "pools", 0, "slot_stride_bytes"), (0, 1, 1 << 62)),
                (("pool_groups", 0, "pools", 0, "num_slots"), (0, -1, 1 << 62))]:
            for value in values:
                bent = rank_info.unpack(rank_info.pack(info))
                at = bent["page_table"]
                for step in path[:-1]:
                    at = at[step]
                at[path[-1]] = value
                rows.append([b"REGISTER_RANK_INFO", rank_info.pack(bent)])
                rows.append([b"REQUEST_DATA", self.asks.ranks[0].payload(4, [[0]], instance_name="stranger")])
        self.say(self.sends.ranks[0].ready["sender"], rows)
        self.unharmed()

    def test_requests_cut_and_bent(self):
        """Of a rank that is registered, and of one that is not."""
        sender, asks = self.sends.ranks[0].ready["sender"], self.asks.ranks[0]
        rand = random.Random(11)
        for name in ("gen", "stranger"):
            data = asks.payload(77, [[0, 1, 2]], instance_name=name)
            rows = [data[:cut] for cut in range(len(data))]
            for _ in range(1000):
                bent = bytearray(data)
                bent[rand.randrange(len(bent))] = rand.randrange(256)
                rows.append(bytes(bent))
            fields = msgpack.unpackb(data)
            for key in fields:
                for value in (None, -1, 1 << 63, 0.5, "x", b"x", [], {}, [b""] * 5000, [b"x" * 100000]):
                    rows.append(msgpack.packb({**fields, key: value}))
                rows.append(msgpack.packb({other: value for other, value in fields.items() if other != key}))
            self.say(sender, [[b"REQUEST_DATA", row] for row in rows])
        self.moves[0].clear()  # a bent one may be a good one: not looked at
        self.asks.ranks[0].memory.pools[0, 0][:] = 0xA5
        self.asks.ranks[0].memory.pools[0, 1][:] = 0xA5
        self.unharmed()

    # in great numbers

    def test_cancels_of_what_never_was(self):
        """More than it remembers, from one connection and from many."""
        for endpoint in (self.sends.ranks[0].ready["sender"], self.takes.ranks[0].ready["self"]):
            self.say(endpoint, ([b"CANCEL_SESSION", b"%d" % (1 << 40 | number)] for number in range(100000)))
            self.say(endpoint, ([b"CANCEL_SESSION", b"%d" % (1 << 41 | number), b"gen", b"0"]
                                for number in range(20000)))
        self.unharmed()

    def test_requests_that_nobody_will_serve(self):
        """As many as there is room for are kept; what comes on top is answered with a failure."""
        asks = self.asks.ranks[0]
        self.say(self.sends.ranks[0].ready["sender"],
                 ([b"REQUEST_DATA", asks.payload(1 << 42 | number, [[0, 1, 2]])] for number in range(80000)))
        refused = lambda: sum(rid >> 42 == 1 for rid in list(asks.words))  # its thread adds some meanwhile
        asks.until(lambda: refused() >= 80000 - 65536, "answers to what is too much")
        self.unharmed(close=False)

    def test_identities_that_rotate(self):
        for _ in range(20):
            dealers = [self.dealer(endpoint) for endpoint in self.ports for _ in range(10)]
            for number, dealer in enumerate(dealers):
                dealer.send_multipart([[b"REQUEST_INSTANCE_INFO"], [b"CANCEL_SESSION", b"%d" % (1 << 43 | number)],
                                       [b"x"]][number % 3])
            for dealer in dealers:
                dealer.close(1000)
        self.unharmed()

    def test_names_that_rotate(self):
        """Thousands of instances that register once and are never seen again."""
        info = dict(self.asks.ranks[0].info)
        self.say(self.sends.ranks[0].ready["sender"],
                 ([b"REGISTER_RANK_INFO", rank_info.pack({**info, "instance_name": "s%d" % number})]
                  for number in range(3000)))
        self.unharmed(close=False)

    def test_questions_whose_answers_are_not_read(self):
        dealer = self.dealer(self.sends.info)
        dealer.rcvhwm = 1
        for _ in range(20000):
            dealer.send_multipart([b"REQUEST_INSTANCE_INFO"])
        self.good()
        dealer.close(0)
        self.unharmed()


class Foreign(Case):
    """Words about a request that is out, from those whose words do not count, or that contradict what was said."""

    def out(self, words):
        """A request that waits for its writers meets words made of (rid, what of the peer); returns what came of it."""
        model = Model(attention=[0, 1], order="nhd")
        senders = PythonSenders(self, Instance(model, "ctx", tp=2))
        receivers = KvferryReceivers(self, Instance(model, "gen"))
        move, worker, rank = self.plan(senders, receivers, 20), receivers.ranks[0], senders.ranks[0]
        for sender in senders.ranks:
            sender.hold()
        senders.offer(move.rid, 20, move.src)
        receivers.request(senders.info, move.rid, 20, move.dst)
        senders.wait_asked(move.rid)
        for frames in words(move.rid):
            rank.ask(lambda: rank.send(worker.ready["self"], *frames))
        return senders, receivers, move, worker

    @staticmethod
    def result(rid, writer=0, piece=0, last=1, status=peer.SUCCESS):
        return [b"KV_AGENT_RESULT", peer.RESULT.pack(writer, rid, piece, last, status, 0)]

    def test_words_that_deny_each_other(self):
        """Nobody knows any more who writes: the blocks are never free, and nothing new is received."""
        rows = [
            ("a writer that was not asked", lambda rid: [self.result(rid, writer=7)]),
            ("a piece that was not asked for", lambda rid: [self.result(rid, piece=3)]),
            ("done, then failed", lambda rid: [self.result(rid), self.result(rid, status=peer.FAILED)]),
            ("auxiliary data", lambda rid: [[b"AUX_AGENT_RESULT", b"0", b"%d" % rid, b"SUCCESS"]]),
            ("a bounced one", lambda rid: [self.result(rid) + [bytes(8), bytes(8), bytes(8)]]),
            ("an acknowledgement of one not asked", lambda rid: [[b"SESSION_QUIESCED", b"9", b"%d" % rid]]),
        ]
        for name, words in rows:
            with self.subTest(name):
                _, receivers, move, worker = self.out(words)
                self.assertIn(str(move.rid), worker.event("quarantined", SOON, rid=move.rid)["text"])
                receivers.request("tcp://127.0.0.1:1", 5, 20, [[[29, 30, 31]]])
                self.assertIn("quarantined", worker.event("refused", SOON, rid=5)["text"])
                self.assertIsNone(worker.find("settled", rid=move.rid))
                self.assertTrue(worker.alive())

    def test_words_that_change_nothing(self):
        """Doubled, stray, unreadable, of other requests: the transfer goes on and ends well."""
        stray = [[b"KV_AGENT_RESULT", b"x" * 33], [b"KV_AGENT_RESULT"], [b"CANCEL_SESSION", b"x"],
                 [b"SESSION_QUIESCED"],
                 [b"AUX_AGENT_RESULT", b"0", b"0", b"SUCCESS"], [b"SESSION_QUIESCED", b"0", b"12345"]]
        rows = [
            ("of another request", lambda rid: [self.result(rid + 7), self.result(rid + 7, writer=9)]),
            ("doubled", lambda rid: [self.result(rid, last=0), self.result(rid, last=0)]),
            ("a status that is none", lambda rid: [self.result(rid, status=9), self.result(rid, last=2)]),
            ("a negative writer", lambda rid: [self.result(rid, writer=-1), self.result(rid, piece=-1)]),
            ("stray", lambda rid: stray),
        ]
        for name, words in rows:
            with self.subTest(name):
                senders, receivers, move, worker = self.out(words)
                self.assertIsNone(worker.find("ended", rid=move.rid))
                for sender in senders.ranks:
                    sender.release()
                receivers.success(move.rid)
                self.right(receivers, [move])
                receivers.end(0)


if __name__ == "__main__":
    unittest.main()
