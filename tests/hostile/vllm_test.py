#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What strangers may say to `kvferry vllm worker`: at a producer's side channel and registry, and in answers to a
consumer.

Two honest workers move caches to and from honest peers before and after; neither of them stops, grows without bounds,
or keeps a descriptor or thread. KVFERRY names the command.
"""
import copy
import json
import os
import random
import socket
import sys
import time
import unittest
import urllib.parse
from pathlib import Path

import msgpack
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "vllm"))
import peer  # noqa: E402
import wire  # noqa: E402
from model import Instance, Model  # noqa: E402
from registry import http_request  # noqa: E402
from scene import Case, KvferryConsumers, KvferryProducers, PythonConsumers, PythonProducers  # noqa: E402

SOON = peer.PATIENCE / 2
# Most that a worker's memory may grow by in one attack.
GROWTH = (8 if os.environ.get("KVF_SANITIZER") else 1) * 96 << 20
POOL = 16  # threads, with a descriptor each, that writes may come to need and that stay
# Seconds that a pull waits for readiness: longer where a slow machine must have filled all room by then.
WAITS = 60 if os.environ.get("KVF_SANITIZER") else 20
BOMBS = [b"\x91" * 100000 + b"\xc0", b"\x81\xa1a" * 50000 + b"\xc0", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
         b"\xdb\xff\xff\xff\xffx", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\0", b"\xde\xff\xff" + b"\xc0" * 200,
         b"\x07" + random.Random(1).randbytes(3000), b"GET / HTTP/1.1\r\n\r\n", b"", b"\0", b"\xc0", b"\x80", b"\x90",
         b"\x81\xc0\xc0", b"\x82\xa1a\x00\xa1a\x00", b"\xff" * 8]


class Hostile(Case):
    def setUp(self):
        super().setUp()
        self.waits = WAITS if self._testMethodName == "test_pulls_for_what_never_was" else 5
        self.model = Model(layers=2)
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, 0)
        size = {"blocks": 1024}
        self.sends = KvferryProducers(self, Instance(self.model, "p", **size), serve=True, abort_timeout_s=self.waits)
        self.asks = PythonConsumers(self, Instance(self.model, "d", **size))
        self.gives = PythonProducers(self, Instance(self.model, "p", **size))
        self.takes = KvferryConsumers(self, Instance(self.model, "d", **size), abort_timeout_s=5, slack_s=1)
        self.moves = [], []
        self.good()
        self.victims = [self.sends.ranks[0], self.takes.ranks[0]]
        self.before = [self.figures(victim) for victim in self.victims]

    @property
    def endpoint(self):
        return self.sends.ranks[0].ready["side_channel"]

    def good(self):
        """Caches move both ways, byte for byte."""
        for (producers, consumers), moves in zip([(self.sends, self.asks), (self.gives, self.takes)], self.moves):
            moves.append(self.move(producers, consumers))
            self.right(consumers, moves)

    @staticmethod
    def figures(worker):
        pid = worker.popen.pid
        with open("/proc/%d/statm" % pid, encoding="ascii") as file:
            pages = int(file.read().split()[1])
        return len(os.listdir("/proc/%d/fd" % pid)), len(os.listdir("/proc/%d/task" % pid)), pages * 4096

    def unharmed(self):
        """Good ones go on, and nothing is left."""
        self.good()
        for victim, (descriptors, threads, size) in zip(self.victims, self.before):
            end = time.monotonic() + SOON
            while True:
                found = self.figures(victim)
                if found[0] <= descriptors + 8 + POOL and found[1] <= threads + POOL:
                    break
                if time.monotonic() > end:
                    raise AssertionError("descriptors and threads: %s before, %s now" % ((descriptors, threads), found))
                with victim.news:
                    victim.news.wait(0.05)
            self.assertLess(found[2], size + GROWTH)
        self.good()

    def say(self, messages, linger=peer.PATIENCE):
        """All of them, on one connection; returns when it has handed them over."""
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.linger, dealer.sndtimeo, dealer.rcvhwm = linger * 1000, peer.PATIENCE * 1000, 0
        dealer.connect(self.endpoint)
        for frames in messages:
            dealer.send_multipart(list(frames))
        dealer.close()
        context.term()

    def ask(self, data, seconds=SOON):
        dealer = self.context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.connect(self.endpoint)
        dealer.send(data)
        answered = dealer.poll(seconds * 1000)
        answer = wire.read_reply(dealer.recv(), True) if answered else None
        dealer.close(0)
        return answer

    def pull(self, **changes):
        """A pull of a transfer that is ready, with some changes in its fields."""
        move = self.plan(self.sends, self.asks, 2)
        self.sends.say(move)
        fields = wire.fields(self.asks.ranks[0].described, {move.d_req: (move.transfer, move.dst)}, 0)
        return move, {**fields, **changes}

    # frames

    def test_frames(self):
        rows = [[b"", b""], [b"x", b"y"], [b"x"] * 5000, [b""] * 5000, [b"", self.good_request()],
                [self.good_request(), b""], [b"x" * (1 << 20)], [b"x", b"", b"y"]]
        rows += [[bomb] for bomb in BOMBS] + [[bomb, bomb] for bomb in BOMBS]
        self.say(rows)
        self.good()
        self.say([[b"x" * (80 << 20)]], linger=2)  # the connection may be cut over it
        self.unharmed()

    def good_request(self):
        return wire.request(self.asks.ranks[0].described, {"d": ("nobody", [[1]])})

    def test_no_zeromq_at_all(self):
        host, port = self.endpoint[len("tcp://"):].rsplit(":", 1)
        rand = random.Random(3)
        for data in [b"", b"\xff", b"\xff" + bytes(8) + b"\x7f", b"GET / HTTP/1.1\r\n\r\n", rand.randbytes(5000),
                     b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL" + bytes(48) + b"\4\xff" + b"\xff" * 8] * 20:
            with socket.create_connection((host, int(port)), timeout=peer.PATIENCE) as link:
                try:
                    link.sendall(data)
                except OSError:
                    pass
        self.unharmed()

    def test_requests_cut_and_bent(self):
        data, rand = self.good_request(), random.Random(7)
        rows = [data[:cut] for cut in range(len(data))] + [data + b"\0", data + data]
        for _ in range(3000):
            bent = bytearray(data)
            for _ in range(rand.choice([1, 1, 2, 8])):
                bent[rand.randrange(len(bent))] = rand.choice([0, 0x7f, 0x80, 0xc0, 0xff, rand.randrange(256)])
            rows.append(bytes(bent))
        fields = msgpack.unpackb(data)
        for key in fields:
            for value in (None, -1, 1 << 63, (1 << 64) - 1, 0.5, "x", b"x", [], {}, [[]], True, float("nan"),
                          "y" * 70000, [1] * 100000, {"a": ["b", [[1] * 100000]]}, {"a": []}, {"a": ["b"]}):
                rows.append(msgpack.packb({**fields, key: value}))
        self.say([[row] for row in rows])
        self.unharmed()

    # numbers, names and places

    def test_numbers_that_cannot_be(self):
        """Addresses that overflow or are outside of what is published; lengths and ids that mean nothing."""
        base = self.asks.ranks[0].described["regions"]["base_addr"][0]
        refused = [{"kv_caches_base_addr": [value] * 2} for value in
                   (0, 1, base - (1 << 30), base + (1 << 30), 1 << 47, 1 << 63, (1 << 64) - 1, (1 << 64) - 4096, -1)]
        refused += [{"block_lens": [value] * 2} for value in (1 << 62, (1 << 63) - 1, (1 << 64) - 1)]
        refused += [{"kv_block_lens": [value] * 2} for value in (0, 1, -1, 1 << 62, (1 << 64) - 1)]
        refused += [{"block_lens": [1 << 40] * 2, "kv_block_lens": [1 << 40] * 2}]
        refused += [{"registered_group_indices": [value] * 2} for value in (-2, 1, 1 << 62)]
        refused += [{"registered_group_indices": [-1] * 2, "registered_shared_group_ids": [value] * 2}
                    for value in ([], [0, 0], [5], [-1], [1 << 62])]
        refused += [{"registered_layer_indices": [value] * 2} for value in (-1, 1 << 62)]
        refused += [{"registered_layer_names": ["model.layers.0.self_attn"] * 2}]
        refused += [{"remote_tp_size": value} for value in (0, -1, 3, 1 << 31, 1 << 62, (1 << 64) - 1)]
        refused += [{"remote_tp_rank": value} for value in (-1, 1, 1 << 62, (1 << 64) - 1)]
        refused += [{"remote_port": value} for value in (0, -1, 1, 65536, 1 << 62, (1 << 64) - 1)]
        answered = [{"block_lens": [value] * 2} for value in (0, 1, -1)]
        answered += [{"registered_row_offsets": [value] * 2} for value in (0, -2, 1 << 63)]
        answered += [{"remote_pp_size": value} for value in (0, -1, 1 << 62)]
        answered += [{"layout_id": value} for value in (-1, (1 << 64) - 1)]
        for change in refused + answered:
            with self.subTest(**change):
                _, fields = self.pull(**change)
                answer = self.ask(msgpack.packb(fields))
                self.assertIsNotNone(answer)
                if change in refused:
                    self.assertTrue(answer["status"] == wire.ERROR or answer["err_reqs"], answer)
        for ids in ([[-1, 2]], [[1 << 62, 2]], [[(1 << 64) - 1, 2]], [[1024, 1025]], [[1 << 31, 1 << 32]]):
            with self.subTest(ids=ids):
                move, fields = self.pull()
                fields["req_blocks"] = {move.d_req: [move.transfer, ids]}
                answer = self.ask(msgpack.packb(fields))
                self.assertTrue(answer["status"] == wire.ERROR or answer["err_reqs"], answer)
        rank = self.asks.ranks[0]
        for opcode, address, size, _ in rank.target.requests:
            if opcode & 0x7f:
                self.assertIsNotNone(rank.memory.granted(address, size), "a write outside")
        rank.bytes[:] = peer.pattern.GUARD
        self.moves[0].clear()
        self.unharmed()

    def test_names_of_hosts(self):
        """No number, no host, with brackets and without: an answer, and others are served meanwhile."""
        for host in ("", " ", "a.name.invalid", "256.1.1.1", "127.0.0.1:1", "[127.0.0.1", "[::1]", "::1",
                     "[::ffff:127.0.0.1]", "fe80::1%lo", "\0", "127.0.0.1\0x", "-", "../../x", "%s%n", "\u00e9" * 100,
                     "h" * 70000,
                     "http://127.0.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1"):
            with self.subTest(host=host[:40]):
                _, fields = self.pull(remote_hostname=host)
                answer = self.ask(msgpack.packb(fields))
                self.assertIsNotNone(answer)
                if host not in ("0.0.0.0", "[::ffff:127.0.0.1]"):  # these lead to the peer
                    self.assertTrue(answer["status"] == wire.ERROR or answer["err_reqs"], answer)
        self.asks.ranks[0].bytes[:] = peer.pattern.GUARD
        self.moves[0].clear()
        self.unharmed()

    # in great numbers

    def test_pulls_for_what_never_was(self):
        """As many as there is room for wait, and delay nobody; more are refused; when their time is over there is room
        again."""
        data = self.asks.ranks[0].described
        for number in range(4):
            self.say([wire.request(data, {"d%d" % one: ("n%d-%d" % (number, one), [[1]])})]
                     for one in range(20000 * number, 20000 * (number + 1)))
            if number == 2:
                self.good()
        self.sends.ranks[0].until(lambda: self.sends.ranks[0].all("refused"), "refusal")
        end = time.monotonic() + peer.PATIENCE + WAITS
        while True:
            move, fields = self.pull()
            answer = self.ask(msgpack.packb(fields))
            if answer["status"] == wire.FINISH and answer["ok_reqs"]:
                self.moves[0].append(move)
                break
            self.assertIn("65536", answer["err_msg"])
            self.assertLess(time.monotonic(), end)
            with self.asks.ranks[0].news:
                self.asks.ranks[0].news.wait(0.2)
        self.asks.ranks[0].bytes[:] = peer.pattern.GUARD
        self.moves[0].clear()
        self.unharmed()

    def test_one_pull_of_many(self):
        """A hundred thousand requests in one message."""
        requests = {"d%d" % one: ("t%d" % one, [[1]]) for one in range(100000)}
        self.say([[wire.request(self.asks.ranks[0].described, requests)]] * 3)
        self.unharmed()

    def test_layouts_that_rotate(self):
        """Thousands of layouts of as many peers, each with an id."""
        pull = copy.deepcopy(self.asks.ranks[0].described)

        def rows():
            for number in range(4000):
                pull["port"] = 1 + number % 60000
                pull["regions"]["base_addr"] = [number << 20, (number << 20) + 4096]
                yield [wire.request(pull, {"d": ("never", [])}, 2 * number + 1)]
        self.say(rows())
        self.unharmed()

    def test_layouts_that_are_long(self):
        """A hundred thousand regions, with and without names that are known."""
        pull = copy.deepcopy(self.asks.ranks[0].described)
        count = 100000
        for names in (["model.layers.%d.self_attn" % (number % 2) for number in range(count)],
                      ["model.layers.%d.self_attn" % number for number in range(count)]):
            pull["regions"] = {"base_addr": [4096] * count, "block_len": [4096] * count, "kv_block_len": [4096] * count,
                               "layer_name": names, "layer_index": [0] * count, "group_index": [0] * count,
                               "shared_groups": [[0]] * count, "row_offset": [-1] * count}
            self.assertEqual(self.ask(wire.request(pull, {"d": ("x", [[1]])}))["status"], wire.ERROR)
        self.unharmed()

    def test_identities_that_rotate(self):
        for _ in range(20):
            dealers = []
            for number in range(40):
                dealer = self.context.socket(zmq.DEALER)
                dealer.linger = 0
                dealer.connect(self.endpoint)
                dealer.send([b"x", self.good_request(), b""][number % 3])
                dealers.append(dealer)
            for dealer in dealers:
                dealer.close(1000)
        self.unharmed()

    def test_answers_that_are_not_read(self):
        dealer = self.context.socket(zmq.DEALER)
        dealer.linger, dealer.rcvhwm = 0, 1
        dealer.connect(self.endpoint)
        for _ in range(50000):
            dealer.send(b"\xc1")
        self.good()
        dealer.close(0)
        self.unharmed()

    # a registry

    def post(self, body, head=""):
        where = urllib.parse.urlsplit(self.sends.bootstrap)
        with socket.create_connection((where.hostname, where.port), timeout=peer.PATIENCE) as link:
            try:
                link.sendall(b"POST /register HTTP/1.1\r\nhost: x\r\nconnection: close\r\n%scontent-length: %d\r\n"
                             b"content-type: application/json\r\n\r\n%s" % (head.encode(), len(body), body))
                answer = b""
                while True:
                    part = link.recv(65536)
                    if not part:
                        break
                    answer += part
            except (ConnectionError, TimeoutError):
                return None
        return int(answer.split(None, 2)[1]) if answer else None

    def test_bodies_at_the_registry(self):
        """Wrong types, huge, nested, cut, doubled: refused, and what is registered stays."""
        url = self.sends.bootstrap
        known = http_request("GET", url, "/query")[1]
        good = {"engine_id": "e", "dp_rank": 5, "tp_rank": 0, "pp_rank": 0, "addr": "tcp://1.1.1.1:1"}
        whole = json.dumps(good).encode()
        rows = [whole[:cut] for cut in range(0, len(whole), 5)]
        rows += [b"[" * 100000, b"{\"a\":" * 50000, b"\xff\xfe", b"null", b"5", b"\"x\"", b"[]", b"{}", b"NaN",
                 whole + b"x", b"{\"engine_id\": \"" + b"x" * (8 << 20) + b"\"}"]
        for key in good:
            values = (None, [], {}, 1.5, "x" if "rank" in key else 5, True if "rank" not in key else None)
            rows += [json.dumps({**good, key: value}).encode() for value in values]
            if "rank" in key:
                rows += [json.dumps({**good, key: value}).encode() for value in (1e300, "1.5", "", "9" * 400)]
        for row in rows:
            self.assertIn(self.post(row), (None, 400, 413, 422), row[:100])
        for address in ("x" * 100000, "", "tcp://\0:1", "\u00e9"):
            self.post(json.dumps({**good, "dp_rank": 9, "addr": address, "engine_id": address}).encode())
        self.assertEqual(http_request("GET", url, "/query")[1]["0"], known["0"])
        for head in ("content-length: 5\r\n", "transfer-encoding: chunked\r\n", "x: %s\r\n" % ("y" * 100000),
                     "expect: 100-continue\r\n"):
            self.post(whole, head)
        self.unharmed()

    def test_ranks_in_great_numbers(self):
        """Ten thousand slots, or as many as there is room for."""
        for number in range(10000):
            body = {"engine_id": "e%d" % (number % 100), "dp_rank": number % 100 + 1, "tp_rank": number // 100,
                    "pp_rank": 0, "addr": "tcp://10.0.0.1:%d" % number}
            if number % 1000 == 0:
                self.assertIn(http_request("POST", self.sends.bootstrap, "/register", body)[0], range(200, 600))
            else:
                self.post(json.dumps(body).encode())
        self.unharmed()

    # a consumer

    def test_answers_to_a_consumer(self):
        """Thousands of frames, bombs, words about requests of others; then silence."""
        router = self.context.socket(zmq.ROUTER)
        router.bind("tcp://127.0.0.1:0")
        address = router.last_endpoint.decode("ascii").rstrip("\0")
        rogue = self.registry()
        for number, answers in enumerate([
                [[bomb] for bomb in BOMBS[:1]], [[b""] * 3000], [[wire.reply(1, ok_reqs=["x%d" % one])]
                                                                for one in range(20000)],
                [[wire.reply(1)]] * 50000, [[wire.reply(0, ok_reqs=["x"] * 200000)]],
                [[wire.reply(1, err_reqs=["a"], err_msg="m" * 1000000)]] * 20, [[b"x" * (30 << 20)]]]
                + [[[bomb]] for bomb in BOMBS]):
            name = "r%d" % number
            rogue.forget()
            rogue.register({"engine_id": name, "dp_rank": 0, "tp_rank": 0, "pp_rank": 0, "addr": address})
            self.takes.ranks[0].say(d_req_id=name, transfer_id=name, block_ids=[[1]], remote_engine_id=name,
                                    remote_bootstrap_addr=rogue.url)
            self.assertTrue(router.poll(SOON * 1000))
            who = router.recv_multipart()[0]
            for frames in answers:
                router.send_multipart([who, *frames])
        for number in range(7 + len(BOMBS)):
            self.takes.ranks[0].event("failed", req_id="r%d" % number)
        router.close(0)
        self.unharmed()

    def test_answers_of_registries(self):
        """Huge, nested, with thousands of workers, doubled ranks."""
        rogue, worker = self.registry(), self.takes.ranks[0]
        many = {str(dp): {"engine_id": "m%d" % dp, "worker_addr": {str(tp): {"0": "tcp://127.0.0.1:1"}
                                                                  for tp in range(200)}} for dp in range(100)}
        for number, body in enumerate([
                b" " * (40 << 20) + b"{}", b"[" * 1000000, b"{\"0\":" * 100000, many,
                b'{"0":{"engine_id":"e","worker_addr":{"0":{"0":"tcp://127.0.0.1:1"},"0":{}}},"0":{}}',
                {"0": {"engine_id": "e", "worker_addr": {"9" * 30: {"0": "tcp://127.0.0.1:1"}}}},
                {"0": {"engine_id": "e", "worker_addr": {"0": {}}}},
                {"0": {"engine_id": "e", "worker_addr": {"7": {"0": "tcp://127.0.0.1:1"}}}}]):
            rogue.broken = 200, body
            worker.say(d_req_id="q%d" % number, transfer_id="q", block_ids=[[1]], remote_engine_id="nobody",
                       remote_bootstrap_addr=rogue.url)
            worker.event("failed", req_id="q%d" % number)
        self.unharmed()


if __name__ == "__main__":
    unittest.main()
