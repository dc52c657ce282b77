#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The socket of the shm transport, as a process of the same user may misuse it.

    shm_test.py DIRECTORY_HOST WORKER
"""
import os
import socket
import struct
import sys
import unittest

import peer
from peer import LAYERS, TOKENS, chunk, identity, rank_name
from source_test import M, SourceCase

HELLO, WELCOME, MEMORIES, PROBE, PROBED, OPEN, OPENED, PLACED, ACK, ABORT, REVOKE = range(1, 12)
MAGIC = b"kvf-shm1"


class Packets:
    """A raw connection to the socket that an endpoint names."""

    def __init__(self, endpoint):
        fields = dict(field.split("=", 1) for field in endpoint.split(":", 1)[1].split(";"))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(peer.DEADLINE)
        self.socket.connect("\0" + fields["name"])

    def send(self, kind, body=b""):
        self.socket.send(struct.pack("<I", kind) + body)

    def hello(self, self_name, self_incarnation, name, incarnation, version=1):
        self.send(HELLO, MAGIC + struct.pack("<I", version) + identity(self_name, self_incarnation) +
                  identity(name, incarnation))

    def receive(self, kind):
        """The body of the next packet of a kind; descriptors that come along are closed."""
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self.socket, 4096, 64)
            for descriptor in descriptors:
                os.close(descriptor)
            if not packet:
                raise ConnectionError("closed by the worker")
            if struct.unpack("<I", packet[:4])[0] == kind:
                return packet[4:]

    def verdict(self, kind):
        """Status and sentence of OPENED or ACK."""
        status, count = struct.unpack("<IH", (body := self.receive(kind))[12:18])
        return status, body[18:18 + count].decode()

    def close(self):
        self.socket.close()


class ShmCase(SourceCase):
    transport = "shm"
    options = {**SourceCase.options, "transports": "shm,tcp"}

    def endpoint(self):
        return next(t["endpoint"] for t in self.pulled["transports"] if t["name"] == "shm")

    def packets(self):
        packets = Packets(self.endpoint())
        self.addCleanup(packets.close)
        return packets

    def begun(self, timeout_ms=20000):
        self.agreed(timeout_ms)
        self.say("started")
        packets = self.packets()
        packets.hello(M, self.m.incarnation, rank_name("d"), self.m_hello["incarnation"])
        status, count = struct.unpack("<IH", packets.receive(WELCOME)[12:18])
        self.assertEqual((status, count), (0, 0))
        return packets


class Socket(ShmCase):
    def test_packets_that_are_refused(self):
        self.agreed()
        target = (rank_name("d"), self.m_hello["incarnation"])
        hello = MAGIC + b"\1\0\0\0" + identity(M, self.m.incarnation) + identity(*target)
        rows = [
            ("random", [(0x7f7f7f7f, bytes(range(200)))],
             "shm message of kind 2139062143 and 204 bytes does not parse"),
            ("another version", [(HELLO, MAGIC + b"\2\0\0\0" + hello[12:])],
             "shm protocol version 2, this side speaks 1"),
            ("another magic", [(HELLO, b"kvf-shmX" + hello[8:])], "shm message of kind 1 and"),
            ("half a hello", [(HELLO, hello[:20])], "shm message of kind 1 and 24 bytes does not parse"),
            ("a name of 2^16 - 1 bytes", [(HELLO, hello[:12] + b"\xff\xff" + hello[14:])], "does not parse"),
            ("open before hello", [(OPEN, chunk(1))], "expected hello"),
            ("another incarnation", [(HELLO, MAGIC + b"\1\0\0\0" + identity(M, 1) + identity(target[0], 3))],
             "incarnation 0000000000000003, found d/pp0.cp0.tp0"),
            ("hello twice", [(HELLO, hello), (HELLO, hello)], "unexpected message"),
            ("what only the destination says", [(HELLO, hello), (REVOKE, b"\0" * 8)], "unexpected message"),
            ("a packet that is too long", [(HELLO, hello), (OPEN, b"\0" * 5000)],
             "a message of more than 4096 bytes or 64 descriptors"),
            ("a chunk opened twice",
             [(HELLO, hello)] + [(OPEN, chunk(self.pulled["grant"], size=self.scene.bytes))] * 2,
             "a chunk was opened twice"),
        ]
        for name, sent, text in rows:
            with self.subTest(name):
                start = len(self.d.log.lines)
                bad = self.packets()
                for kind, body in sent:
                    try:
                        bad.send(kind, body)
                    except (BrokenPipeError, ConnectionResetError):
                        pass
                self.assertTrue(peer.closed(bad.socket))
                bad.close()
                self.d.logged(text, start)
        self.say("failed", status=40, text="over")
        self.fails("KVF_ERR_CANCELLED", "over")

    def test_grants_of_others(self):
        packets = self.begun()
        for name, grant in (("never armed", 0xabc), ("zero", 0)):
            with self.subTest(name):
                packets.send(OPEN, chunk(grant, size=self.scene.bytes))
                status, text = packets.verdict(OPENED)
                self.assertEqual(status, 46)
                self.assertIn("grant %016x is not armed for %s" % (grant, M), text)
        packets.send(PLACED, struct.pack("<QI", self.pulled["grant"], 0))  # never opened
        packets.send(ABORT, struct.pack("<QI", self.pulled["grant"], 0))
        self.say("failed", status=40, text="over")
        self.fails("KVF_ERR_CANCELLED", "over")

    def test_answers_that_nobody_reads(self):
        """Every message is answered; who does not read the answers is not kept for ever."""
        packets, start = self.begun(), len(self.d.log.lines)
        with self.assertRaises(ConnectionError):
            for _ in range(100000):
                packets.send(OPEN, chunk(0xabc))
        self.d.logged("is given up: it does not read the answers to what it sends", start)
        self.say("failed", status=40, text="over")
        self.fails("KVF_ERR_CANCELLED", "over")

    def test_violations(self):
        size, layer = self.scene.bytes, self.scene.bytes // LAYERS
        rows = [
            ("more bytes than granted", dict(size=size + 64), OPENED, "its writer says %d bytes" % (size + 64)),
            ("tokens outside", dict(tokens=(0, TOKENS + 16), size=size), OPENED, "tokens [0,116) leave the granted"),
            ("fewer bytes than its area has", dict(layers=(0, 1), size=layer - 64), ACK, "its writer says"),
            ("no such layers", dict(layers=(70, 90), size=layer), ACK, "chunk 0 has 0 bytes here, its writer says"),
        ]

        def run(head, answer, text):
            packets = self.begun()
            packets.send(OPEN, chunk(self.pulled["grant"], **head))
            status, why = packets.verdict(answer)
            self.assertEqual(status, 46)
            self.assertIn(text, why)
            got = self.d.event("pull-failed", self.transfer)
            self.assertIn(text, got[1])
            packets.close()
            self.fails(got[0], text)
        self.rows(rows, run)

    def test_done_without_a_byte(self):
        """Nothing opened, nothing placed; or opened and never placed: never a success."""
        for opens in (False, True):
            with self.subTest(opens=opens):
                packets = self.begun(timeout_ms=1200)
                if opens:
                    packets.send(OPEN, chunk(self.pulled["grant"], size=self.scene.bytes))
                    self.assertEqual(packets.verdict(OPENED)[0], 0)
                self.say("done")
                self.answer_pings()
                got = self.d.event("pull-failed", self.transfer)
                self.assertEqual(got[0], "KVF_ERR_EXPIRED", got[1])
                self.assertIn("0 of %d bytes of %s had come" % (self.scene.bytes, M), got[1])
                if opens:  # it holds the mapping and may write: the blocks come back with its end, not before
                    self.scene.good()
                    self.assertNotIn("reusable", self.d.events(self.transfer))
                packets.close()
                self.fails("KVF_ERR_EXPIRED", "had come")

    def test_connections_that_say_nothing(self):
        """More than the queue has places: those that do not fit are told so at once, those that do are closed after
        the connect timeout."""
        self.agreed()
        held = [self.packets() for _ in range(100)]
        self.say("failed", status=40, text="over")
        self.fails("KVF_ERR_CANCELLED", "over")
        self.scene.good()
        for packets in held:
            self.assertTrue(peer.closed(packets.socket))
            packets.close()

    def test_a_source_that_does_it_right(self):
        packets = self.begun()
        packets.send(OPEN, chunk(self.pulled["grant"], size=self.scene.bytes))
        self.assertEqual(packets.verdict(OPENED)[0], 0)
        for _ in range(2):
            packets.send(PLACED, struct.pack("<QI", self.pulled["grant"], 0))
        self.assertEqual(packets.verdict(ACK), (0, ""))
        self.say("done")
        self.succeeds()
        packets.close()


class Gone(ShmCase):
    """A source that vanishes: half of the peer timeout later it is believed to have."""

    options = {**ShmCase.options, "peer_ms": 1000}

    def test_gone_in_the_middle(self):
        start = len(self.d.log.lines)
        packets = self.begun()
        self.d.logged("hears started", start)
        packets.send(OPEN, chunk(self.pulled["grant"], size=self.scene.bytes))
        self.assertEqual(packets.verdict(OPENED)[0], 0)
        packets.close()
        self.fails("KVF_ERR_PEER_LOST", M + ": its data connection is gone")


if __name__ == "__main__":
    peer.Case.directory_program, peer.Case.worker_program = sys.argv[1:3]
    del SourceCase
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
