#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Peers that do not fit, requests that cannot be served, peers that are silent, dead or new: nobody waits for ever."""
import signal
import unittest

import numpy
import zmq

import peer
from model import Instance, Model
from scene import Case, KvferryReceivers, KvferrySenders, PythonReceivers, PythonSenders

MODEL = {"attention": [0, 1, 2], "recurrent": [3], "index": 8, "order": "nhd"}
SOON = peer.PATIENCE / 2  # an answer that needs nobody else


def main_view(info):
    return info["page_table"]["layer_groups"][0]["pool_views"][0]


def put(**fields):
    return lambda info: info.update(fields)


def attention(**fields):
    return lambda info: info["attention"].update(fields)


def view(**fields):
    return lambda info: main_view(info).update(fields)


def state(number, **fields):
    return lambda info: info["page_table"]["layer_groups"][1]["pool_views"][number].update(fields)


def blocks_of(tokens):
    def change(info):
        info["attention"]["tokens_per_block"] = info["page_table"]["tokens_per_block"] = tokens
    return change


def without_index(info):
    del info["page_table"]["layer_groups"][0]["pool_views"][1]


# name, what is said otherwise, what the refusal must speak of
UNFIT = [
    ("protocol version", put(protocol_version=2), "protocol version"),
    ("replay", put(bounded_replay_on_generation=True), "bounded_replay_on_generation"),
    ("draft layers", put(num_draft_layers=2), "unified draft KV layer count differs"),
    ("key-only", attention(is_mla=True), "is_mla"),
    ("element size", attention(element_bytes=1), "element_bytes"),
    ("head size", attention(dims_per_head=16), "dims_per_head"),
    ("tokens of a block", blocks_of(16), "tokens_per_block"),
    ("no head count", view(num_kv_heads=None), "must publish a positive num_kv_heads"),
    ("other roles", view(pool_role=["other_kv"]), "has no peer view with the same roles"),
    ("other kind", view(mapper_kind=0), "incompatible mapper kinds"),
    ("no index key", without_index, "differ on overlapping layers"),
    ("bytes of a state head", state(1, bytes_per_head=16), "ssm_bytes_per_head"),
    ("sections", state(0, section_bytes=[64, 64]), "conv section count differs"),
]


class Unfit(Case):
    def test_contexts_that_do_not_fit(self):
        """Asked once for two requests, named to both, no connection to any sender; a good one works after them."""
        model = Model(**MODEL)
        receivers = KvferryReceivers(self, Instance(model, "gen", slots=256, state_slots=64))
        rank = receivers.ranks[0]
        for number, (name, change, text) in enumerate(UNFIT):
            with self.subTest(name):
                bad = PythonSenders(self, Instance(model, "bad%d" % number, tp=2))
                for sender in bad.ranks:
                    change(sender.info)
                moves = [self.plan(bad, receivers, 20) for _ in range(2)]
                for move in moves:
                    receivers.request(bad.info, move.rid, 20, move.dst)
                for move in moves:
                    event = rank.event("ended", SOON, rid=move.rid)
                    self.assertEqual(event["state"], "error")
                    self.assertIn(text, event["text"])
                    self.assertIn("context peer at '%s' is incompatible" % bad.info, event["text"])
                    rank.event("settled", rid=move.rid)
                self.assertEqual(bad.ranks[0].queries, 1)
                self.assertEqual([sender.connections() for sender in bad.ranks], [0, 0])
                self.assertFalse(bad.ranks[0].count("REGISTER_RANK_INFO") + bad.ranks[1].count("REGISTER_RANK_INFO"))
        good = PythonSenders(self, Instance(model, "ctx", tp=2))
        moves = [self.move(good, receivers, 20) for _ in range(2)]
        self.right(receivers, moves)
        self.assertEqual(good.ranks[0].queries, 1)
        good.end()
        receivers.end(1)

    def test_generations_that_do_not_fit(self):
        """Upstream only logs that it refuses them; here whoever asks is answered."""
        model = Model(**MODEL)
        senders = KvferrySenders(self, Instance(model, "ctx", tp=2, slots=256, state_slots=64))
        for number, (name, change, _) in enumerate(UNFIT):
            with self.subTest(name):
                bad = PythonReceivers(self, Instance(model, "bad%d" % number))
                rank = bad.ranks[0]
                change(rank.info)
                move = self.plan(senders, bad, 20)
                if number % 2:
                    senders.offer(move.rid, 20, move.src)
                rank.writers = lambda *_: [0, 1]
                bad.request(senders.info, move.rid, 20, move.dst)
                self.assertEqual(set(rank.wait(move.rid, SOON).values()), {peer.FAILED})
                self.right(bad, [])
                if number % 2:
                    senders.cancel(move.rid)
                bad.end()
        good = PythonReceivers(self, Instance(model, "gen"))
        self.right(good, [self.move(senders, good, 20)])
        senders.end(None)

    def test_agents_that_are_none(self):
        """What the transfer agent is given to load."""
        model = Model(**MODEL)
        senders = KvferrySenders(self, Instance(model, "ctx", slots=256, state_slots=64))
        for number, agent in enumerate([b"", b"kvferry-cma/1", b"kvferry-cma/1 pid=0", b"kvferry-cma/1 pid=-1",
                                        b"kvferry-cma/1 pid=99999999999999999999", b"kvferry-cma/2 pid=1",
                                        b"kvferry-cma/1 pid=%d " % 1, bytes(range(256)), b"x" * 100000]):
            with self.subTest(agent[:30]):
                bad = PythonReceivers(self, Instance(model, "bad%d" % number))
                bad.ranks[0].info["transfer_engine_info"] = agent
                move = self.plan(senders, bad, 20)
                bad.request(senders.info, move.rid, 20, move.dst)
                senders.offer(move.rid, 20, move.src)
                self.assertEqual(set(bad.ranks[0].wait(move.rid, SOON).values()), {peer.FAILED})
                senders.cancel(move.rid)
                bad.end()
        good = PythonReceivers(self, Instance(model, "gen"))
        self.right(good, [self.move(senders, good, 20)])
        senders.end(None)


class Unserved(Case):
    def test_requests_that_cannot_be(self):
        """Answered with a failure before anything is written, whoever of the two comes first."""
        model = Model(**MODEL)
        senders = KvferrySenders(self, Instance(model, "ctx", slots=64))
        receivers = PythonReceivers(self, Instance(model, "gen", slots=64))
        rank = receivers.ranks[0]
        whole = numpy.arange(3, dtype="<i8").tobytes()
        one = numpy.zeros(1, "<i8").tobytes()
        rows = [
            ("a block too few", {"block_ids_per_layer_groups": [whole[:-8], one]}),
            ("a block too many", {"block_ids_per_layer_groups": [whole + one, one]}),
            ("half an id", {"block_ids_per_layer_groups": [whole[:-3], one]}),
            ("an id past the pool", {"block_ids_per_layer_groups": [numpy.array([0, 1, 64], "<i8").tobytes(), one]}),
            ("an id of 2^62", {"block_ids_per_layer_groups": [numpy.array([0, 1, 1 << 62], "<i8").tobytes(), one]}),
            ("a group too few", {"block_ids_per_layer_groups": [whole]}),
            ("a group too many", {"block_ids_per_layer_groups": [whole, one, one]}),
            ("no groups", {"block_ids_per_layer_groups": []}),
            ("a state slot past the pool", {"block_ids_per_layer_groups": [whole, numpy.array([99], "<i8").tobytes()]}),
        ]
        for number, (name, changes) in enumerate(rows):
            with self.subTest(name):
                move = self.plan(senders, receivers, 20)._replace(to=[])
                if number % 2:
                    senders.offer(move.rid, 20, move.src)
                rank.request(senders.info, move.rid, move.dst[0], **changes)
                if not number % 2:
                    senders.offer(move.rid, 20, move.src)
                self.assertEqual(set(rank.wait(move.rid, SOON).values()), {peer.FAILED})
                senders.cancel(move.rid)
                senders.instance.free.clear()
                receivers.instance.free.clear()
        self.right(receivers, [])
        self.right(receivers, [self.move(senders, receivers, 20)])
        receivers.end()
        senders.end(None)

    def test_memory_that_is_not_there(self):
        """The destination's addresses lead nowhere: a failure or a doubt, and the next request is served."""
        model = Model(attention=[0])
        senders = KvferrySenders(self, Instance(model, "ctx"))
        bad = PythonReceivers(self, Instance(model, "bad"))
        for pools in bad.ranks[0].info["page_table"]["pool_groups"]:
            for pool in pools["pools"]:
                pool["base_address"] = 4096
        move = self.plan(senders, bad, 20)
        senders.offer(move.rid, 20, move.src)
        bad.request(senders.info, move.rid, 20, move.dst)
        rank = bad.ranks[0]
        rank.until(lambda: rank.words.get(move.rid), "answer", SOON)
        self.assertIn(rank.words[move.rid][0][0][2], (peer.FAILED, peer.IN_DOUBT))
        self.assertEqual(senders.ranks[0].event("ended", rid=move.rid)["state"], "error")
        good = PythonReceivers(self, Instance(model, "gen"))
        self.right(good, [self.move(senders, good, 20)])
        senders.end(None)


class Silence(Case):
    def test_an_info_endpoint_that_does_not_answer(self):
        receivers = KvferryReceivers(self, Instance(Model(), "gen"))
        context = zmq.Context()
        silent = context.socket(zmq.ROUTER)
        silent.bind("tcp://127.0.0.1:0")
        self.addCleanup(context.term)
        self.addCleanup(silent.close, 0)
        endpoint = silent.last_endpoint.decode("ascii").rstrip("\0")
        receivers.request(endpoint, 1, 20, [[[0, 1, 2]]], timeout=1)
        event = receivers.ended(1, "error")[0]
        self.assertIn(endpoint, event["text"])
        good = PythonSenders(self, Instance(Model(), "ctx"))
        self.right(receivers, [self.move(good, receivers, 20)])
        receivers.end(None)

    def test_a_context_that_never_sends(self):
        """The time is up: an error, a cancel to the writer, and settled by its answer."""
        senders = PythonSenders(self, Instance(Model(), "ctx"))
        receivers = KvferryReceivers(self, Instance(Model(), "gen"))
        move = self.plan(senders, receivers, 20)
        receivers.request(senders.info, move.rid, 20, move.dst, timeout=1)
        self.assertEqual(receivers.ranks[0].event("ended", rid=move.rid)["state"], "error")
        rank = senders.ranks[0]
        rank.until(lambda: rank.count("CANCEL_SESSION"), "cancel")
        receivers.ranks[0].event("settled", rid=move.rid)
        self.right(receivers, [self.move(senders, receivers, 20)])
        receivers.end(4)

    def test_a_request_that_nobody_asks_for(self):
        """Its time is over: it says so, and is cancelled."""
        senders = KvferrySenders(self, Instance(Model(), "ctx"))
        senders.offer(1, 20, [[[0, 1, 2]]], timeout=1)
        worker = senders.ranks[0]
        self.assertIn("request 1 is not sent after 1000 ms: 0 of 0 ranks asked", worker.event("timeout", rid=1)["text"])
        senders.ended(1, "cancelled")
        senders.end(4)

    def test_a_sender_that_is_dead(self):
        """Its process ends while a request waits for it: nobody can write any more, so that settles it too."""
        senders = KvferrySenders(self, Instance(Model(), "ctx"))
        receivers = KvferryReceivers(self, Instance(Model(), "gen"))
        move = self.plan(senders, receivers, 20)
        senders.offer(move.rid, 20, move.src, hold=True)
        receivers.request(senders.info, move.rid, 20, move.dst, timeout=5)
        for rank in senders.ranks:
            rank.event("asked", rid=move.rid)
            rank.kill()
        receivers.ended(move.rid, "error")
        receivers.end(None)

    def test_a_receiver_that_is_dead(self):
        """Its memory is gone: an error for its request, and its blocks are free."""
        senders = KvferrySenders(self, Instance(Model(), "ctx"))
        receivers = KvferryReceivers(self, Instance(Model(), "gen"))
        move = self.plan(senders, receivers, 20)
        receivers.request(senders.info, move.rid, 20, move.dst)
        senders.offer(move.rid, 20, move.src, hold=True, timeout=5)
        senders.ranks[0].event("asked", rid=move.rid)
        receivers.ranks[0].kill()
        senders.send(move.rid)
        senders.ended(move.rid, "error")
        good = PythonReceivers(self, Instance(Model(), "other"))
        self.right(good, [self.move(senders, good, 20)])
        senders.end(None)


class Restarts(Case):
    @staticmethod
    def port(endpoint):
        return int(endpoint.rsplit(":", 1)[1])

    def test_a_context_that_comes_back(self):
        """At the same info endpoint, with other endpoints behind it."""
        model = Model()
        first = KvferrySenders(self, Instance(model, "ctx"))
        receivers = PythonReceivers(self, Instance(model, "gen"))
        moves = [self.move(first, receivers, 20)]
        first.ranks[0].kill()
        first.instance.free.clear()
        again = KvferrySenders(self, first.instance, endpoint="127.0.0.1:%d" % self.port(first.info))
        self.assertEqual(again.info, first.info)
        receivers.ranks[0].known.clear()
        moves.append(self.move(again, receivers, 20))
        self.right(receivers, moves)
        again.end()

    def test_a_stock_context_that_comes_back(self):
        """Upstream would ask the old endpoints for ever. Here a request fails in time at worst, and then it works."""
        model = Model()
        first = PythonSenders(self, Instance(model, "ctx"))
        receivers = KvferryReceivers(self, Instance(model, "gen"))
        moves = [self.move(first, receivers, 20)]
        port = self.port(first.info)
        for rank in first.ranks:
            rank.close()
        again = PythonSenders(self, first.instance, info_port=port)
        for _ in range(40):
            move = self.plan(again, receivers, 20)
            again.offer(move.rid, 20, move.src)
            receivers.request(again.info, move.rid, 20, move.dst, timeout=1)
            if receivers.ranks[0].event("ended", rid=move.rid)["state"] == "transferred":
                moves.append(move)
                break
            again.instance.free.clear()
        self.assertEqual(len(moves), 2)
        self.right(receivers, moves)

    def test_a_generation_that_comes_back(self):
        """Under the same name, with other memory: what it registers now holds."""
        model = Model()
        senders = KvferrySenders(self, Instance(model, "ctx", tp=2))
        for kind in (PythonReceivers, KvferryReceivers, PythonReceivers):
            receivers = kind(self, Instance(model, "gen"))
            self.right(receivers, [self.move(senders, receivers, 20)])
            for rank in receivers.ranks:
                rank.kill(signal.SIGKILL) if receivers.kvferry else rank.close()
        senders.end()


if __name__ == "__main__":
    unittest.main()
