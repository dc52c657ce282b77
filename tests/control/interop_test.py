#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Another implementation of kvferry/1 (pyzmq and msgpack) talks to the channel of this one.

    interop_test.py GOLDEN_FOLDER CONTROL_PEER WIRE_PAGE
"""
import pathlib
import re
import subprocess
import sys
import unittest

import msgpack
import zmq

GOLDEN = pathlib.Path(sys.argv[1])
PEER = sys.argv[2]
PAGE = pathlib.Path(sys.argv[3])
TIMEOUT_MS = 20000


def golden(name):
    return bytes.fromhex((GOLDEN / (name + ".hex")).read_text().replace("\n", ""))


class GoldenFiles(unittest.TestCase):
    def test_another_packer_gives_the_same_bytes(self):
        names = sorted(path.stem for path in GOLDEN.glob("*.hex"))
        self.assertEqual(len(names), 14)
        for name in names:
            with self.subTest(name):
                message = msgpack.unpackb(golden(name))
                self.assertEqual(list(message)[:2], ["v", "t"])
                self.assertEqual((message["v"], message["t"]), (1, name))
                self.assertEqual(msgpack.packb(message), golden(name))

    def test_each_key_is_on_the_page(self):
        sections = {}
        for section in PAGE.read_text(encoding="utf-8").split("\n### ")[1:]:
            title, text = section.split("\n", 1)
            for name in title.split(", "):
                sections[name] = set(re.findall(r"`(\w+)`", text))
        for path in sorted(GOLDEN.glob("*.hex")):
            with self.subTest(path.stem):
                keys = set(msgpack.unpackb(golden(path.stem))) - {"v", "t"}
                self.assertEqual(keys - sections[path.stem], set())

    def test_ids_are_differences(self):
        ids, before = [], 0
        for step in msgpack.unpackb(golden("pull"))["groups"][0]["ids"]:
            before += step
            ids.append(before)
        self.assertEqual(ids, [70000, 70001, 70002, 5, -1, 4294967296, 0])

    def test_places_are_runs(self):
        views = msgpack.unpackb(golden("hello"))["layout"]["views"]
        places = []
        for run in views[0][14]:
            layer, pool, offset, count, dl, dp, do = (run + [1, 0, 0, 0])[:7]
            places += [(layer + i * dl, pool + i * dp, offset + i * do) for i in range(count)]
        self.assertEqual(places, [(layer, 0, 512 * layer) for layer in range(6)])
        self.assertEqual(views[2][14], [[6, 1, 128], [7, 1, 0]])


class Channel(unittest.TestCase):
    def setUp(self):
        self.context = zmq.Context()
        self.addCleanup(self.context.term)

    def socket(self, kind):
        socket = self.context.socket(kind)
        socket.linger = 1000
        socket.rcvtimeo = TIMEOUT_MS
        self.addCleanup(socket.close)
        return socket

    def peer(self, *arguments):
        process = subprocess.Popen([PEER, *arguments], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        endpoint = process.stdout.readline().strip()
        self.assertRegex(endpoint, r"^tcp://127\.0\.0\.1:\d+$")
        return process, endpoint

    def end(self, process, socket):
        socket.send(msgpack.packb({"v": 1, "t": "release", "transfer": "bye", "attempt": 0, "writer": -1, "status": 0}))
        self.assertEqual(process.wait(TIMEOUT_MS / 1000), 0)

    def ask(self, socket, message):
        socket.send(message if isinstance(message, bytes) else msgpack.packb(message))
        return msgpack.unpackb(socket.recv())

    def test_a_whole_conversation(self):
        process, endpoint = self.peer()
        socket = self.socket(zmq.DEALER)
        socket.connect(endpoint)
        self.assertEqual(self.ask(socket, golden("hello")), msgpack.unpackb(golden("hello_ack")))
        self.assertEqual(self.ask(socket, golden("pull")), msgpack.unpackb(golden("started")))
        self.assertEqual(msgpack.unpackb(socket.recv())["t"], "progress")
        self.assertEqual(socket.recv(), golden("done"))
        ping = {"v": 1, "t": "ping", "sequence": 2**64 - 1, "incarnation": 1, "unheard": {"of": [1, 2.5, None]}}
        self.assertEqual(self.ask(socket, ping), {"v": 1, "t": "pong", "sequence": 2**64 - 1, "incarnation": 1})
        self.end(process, socket)

    def test_refusals_are_answered(self):
        process, endpoint = self.peer()
        socket = self.socket(zmq.DEALER)
        socket.connect(endpoint)
        cut = golden("pull").index(b"grant") + 5
        rows = [
            (b"GET / HTTP/1.1", 23, "kvferry/1: message is not of this protocol"),
            (msgpack.packb([1, 2]), 23, "kvferry/1: message is not of this protocol"),
            (golden("pull")[:-1], 23, "message byte 288 (0x91) starts nothing that fits in the 1 bytes left"),
            (golden("pull")[:cut], 23, "message ends after %d bytes, in the middle" % cut),
            (golden("ping") + b"\0", 23, "message has 1 bytes after its end"),
            (msgpack.packb({"v": 9, "t": "hello"}), 21, "message has protocol version 9, this side speaks 1"),
            (msgpack.packb({"v": 1, "t": "ping", "sequence": b"1"}), 23,
             "ping: sequence is binary, expected an integer of 0 or more"),
            (b"", 23, "kvferry/1: message is empty"),
        ]
        for message, status, text in rows:
            with self.subTest(text):
                nack = self.ask(socket, message)
                self.assertEqual((nack["t"], nack["status"], nack["text"]), ("nack", status, text))
        socket.send_multipart([b"", golden("ping")])
        self.assertEqual(msgpack.unpackb(socket.recv())["text"], "kvferry/1: message has several frames, expected one")
        self.assertEqual(self.ask(socket, golden("ping"))["t"], "pong")
        self.end(process, socket)

    def test_it_greets_a_router(self):
        router = self.socket(zmq.ROUTER)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        process, _ = self.peer("tcp://127.0.0.1:%d" % port)
        identity, message = router.recv_multipart()
        self.assertEqual(message, golden("hello"))
        router.send_multipart([identity, golden("ping")])
        self.assertEqual(router.recv_multipart(), [identity, golden("pong")])
        router.send_multipart([identity, msgpack.packb(
            {"v": 1, "t": "release", "transfer": "bye", "attempt": 0, "writer": -1, "status": 0, "text": ""})])
        self.assertEqual(process.wait(TIMEOUT_MS / 1000), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
