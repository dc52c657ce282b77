#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What kvferry's workers refuse, and with which words: pulls, registries, addresses."""
import copy
import re
import socket
import subprocess
import types
import unittest

import msgpack
import zmq

import arithmetic
import peer
import wire
from model import Instance, Model, Rank
from registry import http_request
from scene import Case, KVFERRY, KvferryConsumers, KvferryProducers, PythonConsumers, PythonProducers

SOON = peer.PATIENCE / 2
TEXT = "model.layers.%d.self_attn"


class Asking(Case):
    """Raw pulls at a producer; the answer is compared with what stock arithmetic says of the same pull."""

    def setUp(self):
        super().setUp()
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, 0)

    def ask(self, worker, data, seconds=SOON):
        dealer = self.context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.connect(worker.ready["side_channel"])
        dealer.send(data)
        if not dealer.poll(seconds * 1000):
            raise AssertionError("no answer: %s" % worker)
        answer = dealer.recv()
        dealer.close(0)
        return answer

    def sides(self, src=None, dst=None, model=None):
        model = model or Model()
        producers = KvferryProducers(self, Instance(model, "p", **(src or {})))
        return producers, PythonConsumers(self, Instance(model, "d", **(dst or {})))

    def expected(self, plain, pull):
        facts = arithmetic.Producer(plain.producer())
        try:
            error = facts.refuse(pull)
            if not error:
                local, remote, error = facts.prepare(pull)
            return error or facts.lengths(local, remote, pull["tp_size"])
        except arithmetic.Fatal as fatal:
            return str(fatal)

    def refused(self, producers, consumers, bends, number=0):
        """Each bend of a good pull is answered by ERROR with the stock text; the producer serves on."""
        good = {**copy.deepcopy(consumers.ranks[0].described)}
        for name, bend in bends:
            with self.subTest(name):
                pull = copy.deepcopy(good)
                bend(pull)
                text = self.expected(producers.plain[number], pull)
                self.assertTrue(text, "the stock one would not refuse this")
                answer = self.ask(producers.ranks[number], wire.request(pull, {"d": ("x", [[1]])}))
                self.assertEqual(wire.read_reply(answer, True)["err_msg"], text)
                self.assertEqual(answer, wire.reply(wire.ERROR, err_msg=text))
        self.right(consumers, [self.move(producers, consumers)])

    def test_ranks_that_are_not_paired(self):
        producers, consumers = self.sides({"tp": 2})
        self.refused(producers, consumers, [
            ("another rank", lambda pull: pull.update(tp_rank=1)),
            ("a rank that is none", lambda pull: pull.update(tp_size=4, tp_rank=3)),
            ("a negative rank", lambda pull: pull.update(tp_rank=-1)),
            ("three ranks", lambda pull: pull.update(tp_size=3))])
        producers, consumers = self.sides({"tp": 3}, {"tp": 3}, Model(heads=3))
        self.refused(producers, consumers, [("two ranks", lambda pull: pull.update(tp_size=2))])

    def test_regions_that_do_not_fit(self):
        producers, consumers = self.sides()

        def column(name, change):
            return lambda pull: pull["regions"].update({name: change(pull["regions"][name])})

        def longer(values):
            return [value + 32 for value in values]
        self.refused(producers, consumers, [
            ("a layer too few", lambda pull: [values.pop() for values in pull["regions"].values()]),
            ("another name", column("layer_name", lambda names: [TEXT % 9] + names[1:])),
            ("another index", column("layer_index", lambda ids: [ids[0] + 1] + ids[1:])),
            ("another group", column("group_index", lambda ids: [1] + ids[1:])),
            ("other groups", column("shared_groups", lambda ids: [[0, 1]] + ids[1:])),
            ("other lengths", column("kv_block_len", longer)),
            ("twice the ranks, the same lengths", lambda pull: pull.update(tp_size=2)),
            ("lists of unlike length", column("block_len", lambda lens: lens[1:])),
            ("groups of unlike length", column("group_index", lambda ids: ids[1:])),
            ("no layers", lambda pull: pull.update(regions={name: [] for name in pull["regions"]}))])

    def test_rows_that_hide_their_layers(self):
        producers, consumers = self.sides({"order": "BLNHC"}, {"order": "BLNHC"})
        self.refused(producers, consumers, [("two stages", lambda pull: pull.update(pp_size=2))])
        producers, consumers = self.sides({"order": "BLHNC"}, {"order": "BLHNC"})
        self.refused(producers, consumers, [("an opaque row at the consumer", lambda pull: pull.update(
            pp_size=2, regions={**pull["regions"], "row_offset": [0] * 4,
                                "kv_block_len": pull["regions"]["block_len"]}))])

    def test_heads_that_cannot_be_cut_again(self):
        producers, consumers = self.sides({"padding": 32}, {"padding": 32})
        self.refused(producers, consumers, [("padded pages", lambda pull: pull.update(
            tp_size=2, regions={**pull["regions"], "kv_block_len": [pull["regions"]["kv_block_len"][0] // 2] * 4}))])

    def test_messages_that_are_almost_right(self):
        """Any order, unknown keys, nothing where something may be left out; fields that are missing are named."""
        producers, consumers = self.sides()
        rank, worker = consumers.ranks[0], producers.ranks[0]
        rows = [lambda fields: dict(reversed(fields.items())),
                lambda fields: {"later": {"a": [1, None]}, **fields, "prefix_replay_protocol": 1},
                lambda fields: {**fields, "remote_pp_size": 1, "layout_id": 0}]
        moves = []
        for change in rows:
            move = self.plan(producers, consumers)
            producers.offer(move)
            fields = change(wire.fields(rank.described, {move.d_req: (move.transfer, move.dst)}))
            self.assertEqual(self.ask(worker, msgpack.packb(fields)), wire.reply(0, ok_reqs=[move.d_req]))
            moves.append(move)
        self.right(consumers, moves)
        fields = wire.fields(rank.described, {"d": ("x", [[1]])}, 5)
        for name in fields:
            bare = {key: value for key, value in fields.items() if key != name}
            if name in ("remote_hostname", "remote_port", "remote_tp_size", "remote_tp_rank", "req_blocks",
                        "kv_caches_base_addr", "block_lens", "kv_block_lens"):
                reply = wire.read_reply(self.ask(worker, msgpack.packb(bare)), True)
                self.assertEqual(reply["status"], wire.ERROR)
                self.assertIn(name, reply["err_msg"])
            for value in (None, True, 1.0, b"x", {}, "1" if name != "remote_hostname" else 1, [b"x"], [[True]]):
                if name == "req_blocks" and value == {}:
                    continue
                reply = wire.read_reply(self.ask(worker, msgpack.packb({**fields, name: value})), True)
                self.assertEqual((name, value, reply["status"]), (name, value, wire.ERROR))
        self.right(consumers, moves + [self.move(producers, consumers)])

    def test_a_producer_as_it_was_before(self):
        """Without layout ids an id is not answered, and arrays are expected each time."""
        model = Model()
        producers = KvferryProducers(self, Instance(model, "p"), layout_ids=0)
        consumers = PythonConsumers(self, Instance(model, "d"))
        rank, move = consumers.ranks[0], self.plan(producers, consumers)
        producers.offer(move)
        answer = self.ask(producers.ranks[0], wire.request(rank.described, {move.d_req: (move.transfer, move.dst)}, 9))
        self.assertEqual(answer, wire.reply(0, ok_reqs=[move.d_req]))


class Registering(Case):
    """A producer and its registry."""

    def producer(self, **endpoint):
        return self.worker("producer", Rank(Instance(Model(), "p"), 0), {"engine_id": "e-1", **endpoint})

    def test_what_is_registered(self):
        registry = self.registry()
        KvferryProducers(self, Instance(Model(), "p", tp=2, pp=2), registry, "e-1", dp_rank=3)
        bodies = sorted((body["pp_rank"], body["tp_rank"], body["dp_rank"], body["engine_id"])
                        for body in registry.asked)
        self.assertEqual(bodies, [(pp, tp, 3, "e-1") for pp in (0, 1) for tp in (0, 1)])
        for body in registry.asked:
            self.assertEqual(set(body), {"engine_id", "dp_rank", "tp_rank", "pp_rank", "addr"})
            self.assertRegex(body["addr"], r"^tcp://127\.0\.0\.1:[0-9]+$")

    def test_registries_that_refuse(self):
        """Their words are passed on, at once, and the exit code says that it failed."""
        registry = self.registry()
        for status, text in ((400, "Engine ID mismatch for dp_rank=0: expected a, got b"), (422, "no"), (500, "oh")):
            registry.broken = status, {"detail": text}
            worker = self.producer(bootstrap=registry.url)
            worker.told(text if status == 400 else str(status))
            self.assertNotEqual(worker.end(None), 0)
            self.assertEqual(len(registry.asked), 1)
            registry.asked.clear()

    def test_registries_that_are_not_there(self):
        """Three attempts, then the stock text with the address."""
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            url = "http://127.0.0.1:%d" % bound.getsockname()[1]
            worker = self.producer(bootstrap=url)
            worker.told("with the Mooncake bootstrap server at %s/register after 3 attempts." % url)
            self.assertNotEqual(worker.end(None), 0)

    def test_a_registry_that_comes_late(self):
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            port = bound.getsockname()[1]
            worker = self.producer(bootstrap="http://127.0.0.1:%d" % port)
        registry = self.registry(port=port)
        self.assertTrue(worker.ready)
        self.assertEqual(len(registry.workers), 1)

    def test_two_engines_at_one_registry(self):
        """A second engine of the same number is refused, the first one goes on."""
        model, registry = Model(), self.registry()
        producers = KvferryProducers(self, Instance(model, "p"), registry)
        worker = self.producer(bootstrap=registry.url)
        worker.told("Engine ID mismatch for dp_rank=0: expected %s, got e-1" % producers.engine_id)
        self.assertNotEqual(worker.end(None), 0)
        consumers = PythonConsumers(self, Instance(model, "d"))
        self.right(consumers, [self.move(producers, consumers)])


class Serving(Case):
    """The registry that kvferry's producer runs."""

    def test_rows(self):
        producers = KvferryProducers(self, Instance(Model(), "p", tp=2), serve=True)
        url, engine = producers.bootstrap, producers.engine_id
        addresses = [worker.ready["side_channel"] for worker in producers.ranks]
        self.assertEqual(http_request("GET", url, "/query"), (200, {"0": {
            "engine_id": engine, "worker_addr": {"0": {"0": addresses[0]}, "1": {"0": addresses[1]}}}}))
        body = {"engine_id": engine, "dp_rank": 0, "tp_rank": 1, "pp_rank": 0, "addr": addresses[1]}
        rows = [
            (body, 200, {"status": "ok"}),
            ({**body, "addr": "tcp://9.9.9.9:9999"}, 400, {
                "detail": "Worker with dp_rank=0, tp_rank=1, pp_rank=0 is already registered at %s, but still want to "
                "register at tcp://9.9.9.9:9999" % addresses[1]}),
            ({**body, "engine_id": "other"}, 400, {
                "detail": "Engine ID mismatch for dp_rank=0: expected %s, got other" % engine}),
            ({**body, "engine_id": "e-7", "dp_rank": "7", "tp_rank": 0.0, "pp_rank": False, "more": [1]}, 200,
             {"status": "ok"}),
            ({**body, "dp_rank": 2.5}, 422, None), ({**body, "engine_id": 3}, 422, None),
            ({key: value for key, value in body.items() if key != "addr"}, 422, None), ([], 422, None)]
        for row, status, answer in rows:
            found = http_request("POST", url, "/register", row)
            self.assertEqual(found[0], status)
            if answer:
                self.assertEqual(found[1], answer)
            else:
                self.assertIn("detail", found[1])
        self.assertEqual(http_request("GET", url, "/nowhere"), (404, {"detail": "Not Found"}))
        self.assertEqual(http_request("GET", url, "/register"), (405, {"detail": "Method Not Allowed"}))
        consumers = PythonConsumers(self, Instance(Model(), "d"))
        self.right(consumers, [self.move(producers, consumers)])


class Standalone(Case):
    """`kvferry directory --vllm` as the registry of both kinds."""

    def test_both_kinds(self):
        popen = subprocess.Popen([KVFERRY, "directory", "--vllm", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE,
                                 text=True)
        self.addCleanup(popen.stdout.close)
        self.addCleanup(popen.wait)
        self.addCleanup(popen.kill)
        registry = types.SimpleNamespace(url=re.search(r"http://\S+", popen.stdout.readline()).group(0))
        model = Model()
        sides = [KvferryProducers(self, Instance(model, "a", tp=2), registry, dp_rank=0),
                 PythonProducers(self, Instance(model, "b", tp=4), registry, dp_rank=1)]
        self.assertEqual(list(http_request("GET", registry.url, "/query")[1]), ["0", "1"])
        for kind in (PythonConsumers, KvferryConsumers):
            consumers = kind(self, Instance(model, "d", tp=2))
            self.right(consumers, [self.move(producers, consumers) for producers in sides])


class Querying(Case):
    """A consumer and registries."""

    def setUp(self):
        super().setUp()
        self.model = Model()
        self.producers = PythonProducers(self, Instance(self.model, "p", blocks=128))
        self.consumers = KvferryConsumers(self, Instance(self.model, "d", blocks=128))

    def ask(self, engine_id, bootstrap):
        move = self.plan(self.producers, self.consumers)
        self.producers.offer(move)
        self.consumers.ranks[0].say(d_req_id=move.d_req, transfer_id=move.transfer, block_ids=move.dst,
                                    remote_engine_id=engine_id, remote_bootstrap_addr=bootstrap)
        return move

    def served(self, *moves):
        self.right(self.consumers, [*moves, self.move(self.producers, self.consumers)])

    def test_engines_that_are_not_known(self):
        move = self.ask("nobody", self.producers.bootstrap)
        self.assertIn("remote engine_id nobody not found from bootstrap server " + self.producers.bootstrap,
                      self.consumers.failure(move, SOON)[0])
        self.served()

    def test_registries_that_do_not_answer_well(self):
        registry = self.registry()
        for answer in [(500, {}), (404, {"detail": "Not Found"}), (200, b"garbage"), (200, []), (200, {"0": 5}),
                       (200, b""), (200, {"0": {"engine_id": "e", "worker_addr": {}}}),
                       (200, {"x": {"engine_id": "e"}}),
                       (200, {"0": {"engine_id": "e", "worker_addr": {"0": {"0": 7}}}}),
                       (200, {"0": {"engine_id": "e", "worker_addr": {"-1": {"x": "tcp://127.0.0.1:1"}}}}),
                       (200, b"[" * 100000)]:
            registry.broken = answer
            move = self.ask("e", registry.url)
            self.consumers.failure(move, SOON)
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            self.consumers.failure(self.ask("e", "http://127.0.0.1:%d" % bound.getsockname()[1]))
        for url in ("", "127.0.0.1", "tcp://127.0.0.1:5", "http://", "file:///etc/passwd", "http://127.0.0.1:99999"):
            self.consumers.failure(self.ask("e", url) if url else self.ask("e", "http://:"))
        self.served()

    def test_addresses_that_are_none(self):
        """Of workers: no numbers, names of hosts, other transports."""
        registry = self.registry()
        for number, address in enumerate(["tcp://a.name.invalid:5", "tcp://127.0.0.1", "tcp://127.0.0.1:0",
                                          "tcp://127.0.0.1:70000", "ipc:///tmp/x", "inproc://x", "", "tcp://[::1:5",
                                          "tcp://*:5", "x" * 5000]):
            registry.forget()
            registry.register({"engine_id": "e%d" % number, "dp_rank": 0, "tp_rank": 0, "pp_rank": 0, "addr": address})
            move = self.ask("e%d" % number, registry.url)
            self.consumers.failure(move, SOON)
        self.served()

    def test_one_question_for_many(self):
        """Those that come while a registry is asked wait for the same answer."""
        registry = self.producers.registry
        registry.hold.clear()
        registry.asked.clear()
        moves = [self.ask(self.producers.engine_id, registry.url) for _ in range(8)]
        registry.hold.set()
        for move in moves:
            self.consumers.success(move)
        self.assertEqual(registry.asked, ["query"])
        self.served(*moves)


class Ipv6(Case):
    """Addresses in brackets, both ways, with the registry behind one too."""

    def test_both_ways(self):
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError:
            self.skipTest("no IPv6 here")
        model = Model()
        registry = self.registry()
        producers = PythonProducers(self, Instance(model, "p"), registry, host="::1")
        consumers = KvferryConsumers(self, Instance(model, "d"), host="::1")
        self.right(consumers, [self.move(producers, consumers)])
        registry.forget()
        producers = KvferryProducers(self, Instance(model, "p"), registry, host="::1")
        self.assertRegex(producers.ranks[0].ready["side_channel"], r"^tcp://\[::1\]:[0-9]+$")
        for bare in ("::1", "[::1]"):
            consumers = PythonConsumers(self, Instance(model, "d"), host="::1")
            consumers.ranks[0].described["hostname"] = bare
            self.right(consumers, [self.move(producers, consumers)])


if __name__ == "__main__":
    unittest.main()
