#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a stranger may say on the control port of a worker that offers, and what comes back.

    channel_test.py DIRECTORY_HOST WORKER
"""
import os
import random
import socket
import sys
import unittest

import msgpack
import zmq

import peer
from peer import IDS, TOKENS, differences, message

PING = message("ping", sequence=5, incarnation=1)


def pull(scene, transfer, **changes):
    fields = {"transfer": transfer, "attempt": 0, "from": "p", "plan": scene.plan, "begin": 0, "end": TOKENS,
              "tokens": TOKENS, "grant": 77, "timeout_ms": 20000,
              "transports": [{"name": "tcp", "endpoint": "tcp:127.0.0.1:1"}],
              "groups": [{"first": 0, "ids": differences(IDS)}]}
    fields.update(changes)
    return message("pull", **fields)


class ChannelCase(peer.Case):
    options = {"peer_ms": 30000}  # a stranger need not answer pings in time

    def greeted(self, name="x", like="d", **changes):
        """A peer with which p has agreed."""
        stranger = self.peer(name, like)
        dealer = stranger.dealer("p")
        dealer.send(self.hello(stranger, **changes))
        ack = stranger.answer(dealer, "hello_ack")
        self.assertEqual(ack["status"], 0, ack["text"])
        return stranger, dealer

    def hello(self, stranger, **changes):
        return stranger.hello("p", self.scene.layouts["d"], self.scene.digests["d"], self.scene.digests["p"],
                              **changes)


class ChannelTest(ChannelCase):
    # ---- what is no message ----

    def test_unreadable(self):
        rows = [
            ("another protocol version", msgpack.packb({"v": 2, "t": "hello", "x": 1}), 21,
             "message has protocol version 2, this side speaks 1"),
            ("http", b"GET / HTTP/1.1", 23, "message is not of this protocol"),
            ("random", b"\x07" + random.Random(1).randbytes(500), 23, "message is not of this protocol"),
            ("empty", b"", 23, "message is empty"),
            ("half of a pull", pull(self.scene, "h")[:60], 23, "starts nothing that fits in the 17 bytes left"),
            ("a text of 2^32 - 1", b"\x82\xa1v\x01\xa1t\xdb\xff\xff\xff\xff", 23, "starts nothing that fits"),
            ("deep", b"\x83\xa1v\x01\xa1t\xa4ping\xa1z" + b"\x91" * 200 + b"\x01", 23, "nested more than 8 deep"),
            ("unknown type", message("gossip"), 23, 'message type "gossip" is not known'),
            ("of several frames", [b"a", b"b"], 23, "several frames"),
        ]
        stranger = self.peer("x", "d", register=False)
        dealer = stranger.dealer("p")
        for name, raw, status, text in rows:
            with self.subTest(name):
                dealer.send_multipart(raw if isinstance(raw, list) else [raw])
                nack = stranger.answer(dealer)
                self.assertEqual((nack["t"], nack["status"]), ("nack", status))
                self.assertIn(text, nack["text"])
                self.p.logged(text)
        dealer.send(PING)
        self.assertEqual(stranger.answer(dealer)["sequence"], 5)

    def test_random_messages(self):
        seed = int(os.environ.get("KVF_TEST_SEED", "20240607"))
        rand = random.Random(seed)
        stranger = self.peer("x", "d", register=False)
        dealer = stranger.dealer("p")
        base = [self.hello(stranger), pull(self.scene, "r"), message("cancel", transfer="r", attempt=0, writer=-1,
                                                                     status=0, text="")]
        for i in range(600):
            raw = bytearray(rand.choice(base))
            for _ in range(rand.randrange(1, 6)):
                raw[rand.randrange(len(raw))] = rand.randrange(256)
            dealer.send(bytes(raw[:rand.randrange(len(raw) + 1)] if i % 3 == 0 else raw))
        dealer.send(PING)
        while stranger.answer(dealer)["t"] != "pong":
            pass

    def test_raw_sockets(self):
        """Bytes on the port that are not even ZMTP; half a greeting; a frame of 2^63 bytes."""
        host, port = self.scene.channel("p")[6:].rsplit(":", 1)
        greeting = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00NULL".ljust(55, b"\0")
        ready = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
        rows = [
            ("random", random.Random(2).randbytes(4096)),
            ("nothing", b""),
            ("half a greeting", greeting[:20]),
            ("http", b"GET / HTTP/1.0\r\n\r\n".ljust(100)),
            ("frame of 2^63 bytes", greeting + ready + b"\x02\x80" + b"\0" * 7),
            ("frame of 1 MiB + 1", greeting + ready + b"\x02\0\0\0\0\0\x10\0\x01"),
        ]
        held = []
        for name, raw in rows:
            held.append((name, socket.create_connection((host, int(port)), timeout=peer.DEADLINE)))
            held[-1][1].sendall(raw)
        self.scene.good()  # with all of them open
        for name, stream in held:
            with self.subTest(name):
                self.assertTrue(peer.closed(stream))
                stream.close()

    def test_a_thousand_connections_that_say_nothing(self):
        host, port = self.scene.channel("p")[6:].rsplit(":", 1)
        held = [socket.create_connection((host, int(port)), timeout=peer.DEADLINE) for _ in range(1000)]
        self.scene.good()
        for stream in held:
            stream.close()

    # ---- hello ----

    def test_hello_refused(self):
        layout = self.scene.layouts["d"]
        wrong = "0" * 32
        no_pools = dict(layout, pools=[])
        deep = dict(layout, views=[[[[[[[[[[]]]]]]]]]])
        rows = [
            ("another planner", {"planner": 9}, 21, "x/pp0.cp0.tp0 has planner version 9, p/pp0.cp0.tp0 has "),
            ("another model", {"model": "sha256:b"}, 0, ""),  # p states none: nothing to compare
            ("another instance meant", {"peer": "q"}, 27, 'hello is meant for "q" incarnation'),
            ("another incarnation meant", {"peer_incarnation": 5}, 27, "incarnation 0000000000000005, this is p/"),
            ("a rank that is not registered", {"rank": [0, 0, 0, 7, 0]}, 27,
             "x/pp0.cp0.tp7 is not among the ranks that the directory lists"),
            ("another incarnation than registered", {"incarnation": 99}, 27,
             "x/pp0.cp0.tp0 is registered by another process: incarnation "),
            ("an instance that is not registered", {"instance": "nobody"}, 8,
             'instance "nobody" is not known to the directory at http://'),
            ("digest of own holdings", {"digest": wrong}, 27, 'holdings of instance "x" have digest ' + wrong),
            ("digest of the other's holdings", {"peer_digest": wrong}, 27,
             "holdings of this instance have digest " + wrong),
            ("no layout", {"layout": None}, 23, "layout"),
            ("a layout without pools", {"layout": no_pools}, 11, "pool"),
            ("a layout that is nested", {"layout": deep}, 23, "nested more than 8 deep"),
        ]
        stranger = self.peer("x", "d")
        for name, changes, status, text in rows:
            with self.subTest(name):
                dealer = stranger.dealer("p")
                dealer.send(self.hello(stranger, **changes))
                got = stranger.answer(dealer)
                self.assertEqual(got["status"], status, got["text"])
                self.assertIn(text, got["text"])
                if status == 0:
                    continue
                dealer.send(pull(self.scene, "z"))  # and what comes after a refusal is refused
                got = stranger.answer(dealer)
                self.assertEqual((got["t"], got["status"]), ("nack", 23))
                self.assertIn("say hello first", got["text"])
        # who was refused may come back with what is right
        dealer = stranger.dealer("p")
        dealer.send(self.hello(stranger))
        self.assertEqual(stranger.answer(dealer, "hello_ack")["status"], 0)

    def test_order(self):
        """Each of these without hello."""
        stranger = self.peer("x", "d", register=False)
        dealer = stranger.dealer("p")
        note = {"transfer": "t", "attempt": 0, "writer": -1, "status": 0, "text": ""}
        end = dict(note, writer=0, bytes=1, runs=1, chunks=1)
        rows = [("pull", pull(self.scene, "t")), ("cancel", message("cancel", **note)),
                ("release", message("release", **note)), ("done", message("done", **end)),
                ("failed", message("failed", **end)), ("quiesced", message("quiesced", **note)),
                ("hello_ack", stranger.hello("p", self.scene.layouts["d"], "", "", t="hello_ack", status=0, text=""))]
        for name, raw in rows:
            with self.subTest(name):
                dealer.send(raw)
                got = stranger.answer(dealer)
                self.assertEqual((got["t"], got["of"], got["status"]), ("nack", name, 23), got)
                self.assertIn("say hello first", got["text"])

    # ---- pull ----

    def test_pull_refused(self):
        stranger, dealer = self.greeted()
        rows = [
            ("another plan", {"plan": "f" * 32}, 22, "plan " + "f" * 32 + " at x/pp0.cp0.tp0, " + self.scene.plan +
             " at p/pp0.cp0.tp0"),
            ("no plan", {"plan": ""}, 22, "at p/pp0.cp0.tp0"),
            ("another instance", {"from": "q"}, 46, 'the pull is meant for instance "q", this is p/pp0.cp0.tp0'),
            ("a range outside of the request", {"end": TOKENS + 1}, 23, "does not lie in the 100 tokens"),
            ("an id below -1", {"groups": [{"first": 0, "ids": [-2]}]}, 23, "is not in -1 to 2^63 - 2"),
        ]
        self.assertEqual(self.p.ask("offer refused 1 %d %d 60000" % (TOKENS, TOKENS)), "ok")
        for name, changes, status, text in rows:
            with self.subTest(name):
                dealer.send(pull(self.scene, "refused", **changes))
                got = stranger.answer(dealer, "nack")
                self.assertEqual(got["status"], status, got["text"])
                self.assertIn(text, got["text"])
        # the offer was not harmed: the right one may still pull it
        self.scene.pull("p", "refused", request=1)
        self.assert_ends(self.d, "refused", "pull-done", "KVF_OK", "")
        self.assertEqual(self.d.ask("check 1 %d" % TOKENS), "right")
        self.d.ask("guard")
        self.assert_ends(self.p, "refused", "offer-done", "KVF_OK", "")

    def test_pull_fails(self):
        """Ids that only the offer shows to be wrong: the transfer fails on both sides, for the same reason."""
        stranger, dealer = self.greeted()
        twice, high = list(IDS), list(IDS)
        twice[6], high[6] = twice[0], 64
        rows = [
            ("ids twice", {"groups": [{"first": 0, "ids": differences(twice)}]}, 12,
             "destination group 0: id 7 at index 6 is at index 0 already"),
            ("id out of range", {"groups": [{"first": 0, "ids": differences(high)}]}, 12,
             "destination group 0: id 64 at index 6, expected -1 or below 64"),
            ("an id of 2^62", {"groups": [{"first": 0, "ids": [2**62] + [1] * 6}]}, 12,
             "id 4611686018427387904 at index 0, expected -1 or below 64"),
            ("too few ids", {"groups": [{"first": 0, "ids": differences(IDS[:6])}]}, 12,
             "6 ids from ordinal 0 end before position 96, the range ends at 112"),
            ("too many groups", {"groups": [{"first": 0, "ids": differences(IDS)}] * 2}, 1,
             "2 destination id lists, expected one for each of 1 groups"),
            ("another request", {"tokens": 90, "end": 90, "groups": [{"first": 0, "ids": differences(IDS[:6])}]}, 2,
             "the offer at p/pp0.cp0.tp0 has 100 tokens, the pull asks for a request of 90"),
            ("no transport in common", {"transports": [{"name": "pigeon", "endpoint": "roof"}]}, 25,
             "offers none of the transports that x/pp0.cp0.tp0 wishes"),
            ("a port where nobody listens", {}, 25, "p/pp0.cp0.tp0 cannot reach x/pp0.cp0.tp0"),
            ("no endpoint", {"transports": [{"name": "tcp", "endpoint": "tcp:example.org:80"}]}, 25,
             "cannot reach x/pp0.cp0.tp0"),
        ]
        for name, changes, status, text in rows:
            with self.subTest(name):
                transfer = self.scene.id()
                self.assertEqual(self.p.ask("offer %s 1 %d %d 60000" % (transfer, TOKENS, TOKENS)), "ok")
                dealer.send(pull(self.scene, transfer, **changes))
                got = stranger.answer(dealer, "failed")
                self.assertEqual((got["transfer"], got["status"]), (transfer, status), got["text"])
                self.assertIn(text, got["text"])
                ended = self.p.event("offer-failed", transfer)
                self.assertIn(text, ended[1])
                self.p.event("reusable", transfer)

    def test_doubled_and_late(self):
        """Pulled twice, before and after the offer; cancelled, released and pulled again after the end."""
        stranger, dealer = self.greeted()
        note = {"attempt": 0, "writer": -1, "status": 40, "text": "enough"}
        dealer.send(pull(self.scene, "two", timeout_ms=60000))
        dealer.send(pull(self.scene, "two", timeout_ms=60000))
        got = stranger.answer(dealer)
        self.assertEqual((got["t"], got["status"]), ("nack", 9))
        self.assertIn('transfer "two" attempt 0 is asked for by x/pp0.cp0.tp0 already', got["text"])
        dealer.send(message("cancel", transfer="two", **note))
        dealer.send(message("cancel", transfer="two", **note))
        self.assertEqual([stranger.answer(dealer)["t"] for _ in range(2)], ["quiesced"] * 2)
        # an offer that one instance pulls is not for another
        self.assertEqual(self.p.ask("offer one 2 %d 16 60000" % TOKENS), "ok")
        self.assertEqual(self.p.ask("offer one 2 %d 16 60000" % TOKENS), 'transfer "one" attempt 0 is offered already')
        sent = int(self.p.ask("sent"))
        self.scene.pull("p", "one", request=2, timeout_ms=60000)
        self.assertEqual(self.d.ask("ids p one %d 1,2,3,4,5,6,7" % TOKENS),
                         'transfer "one" attempt 0 is pulled already')
        peer.until(lambda: int(self.p.ask("sent")) > sent, "the first bytes of d's pull")
        dealer.send(pull(self.scene, "one"))
        got = stranger.answer(dealer, "nack")
        self.assertEqual(got["status"], 9)
        self.assertIn('is pulled by instance "d" already', got["text"])
        dealer.send(message("cancel", transfer="one", **note))  # not the stranger's to cancel
        self.assertEqual(stranger.answer(dealer, "quiesced")["transfer"], "one")
        self.assertEqual(self.p.ask("ready one %d" % TOKENS), "KVF_OK")
        self.assert_ends(self.d, "one", "pull-done", "KVF_OK", "")
        self.assert_ends(self.p, "one", "offer-done", "KVF_OK", "")
        self.assertEqual(self.d.ask("check 2 %d" % TOKENS), "right")
        self.d.ask("guard")
        # after the end
        dealer.send(pull(self.scene, "one"))
        got = stranger.answer(dealer, "failed")
        self.assertIn('transfer "one" attempt 0 has ended at p/pp0.cp0.tp0: done', got["text"])
        dealer.send(message("release", transfer="old", attempt=0, writer=-1, status=0, text=""))
        dealer.send(message("quiesced", transfer="old", attempt=0, writer=0, status=0, text=""))
        self.assertIn("this is for the prefill side to say", stranger.answer(dealer, "nack")["text"])

    def test_never_offered(self):
        stranger, dealer = self.greeted()
        dealer.send(pull(self.scene, "never", timeout_ms=300))
        got = stranger.answer(dealer, "failed")
        self.assertEqual(got["status"], 41)
        self.assertEqual(got["text"], 'transfer "never" attempt 0 was never offered at p/pp0.cp0.tp0')

    def test_two_ranks_on_one_connection(self):
        """The connection speaks for the last one it named; the first is not answered there any more."""
        first, second = self.peer("x", "d"), self.peer("y", "d")
        dealer = first.dealer("p")
        for who in (first, second):
            dealer.send(self.hello(who))
            self.assertEqual(first.answer(dealer, "hello_ack")["status"], 0)
        dealer.send(pull(self.scene, "nobody's", plan="f" * 32))
        self.assertIn("at y/pp0.cp0.tp0", first.answer(dealer, "nack")["text"])


class Silence(ChannelCase):
    options = {"peer_ms": 1000}

    def test_silent_puller(self):
        """A peer that pulls and then says nothing, not even pong: its transfer ends, with a reason."""
        stranger, dealer = self.greeted()
        self.assertEqual(self.p.ask("offer mute 1 %d 0 60000" % TOKENS), "ok")
        listener = socket.create_server(("127.0.0.1", 0))
        dealer.send(pull(self.scene, "mute", transports=[{"name": "tcp", "endpoint": "tcp:127.0.0.1:%d" %
                                                          listener.getsockname()[1]}]))
        got = self.p.event("offer-failed", "mute")
        listener.close()
        self.assertIn(got[0], ("KVF_ERR_PEER_LOST", "KVF_ERR_UNREACHABLE"))
        self.assertRegex(got[1], "x/pp0.cp0.tp0 (is lost: nothing heard of it for \\d+ ms|.*)")
        self.p.event("reusable", "mute")


if __name__ == "__main__":
    peer.Case.directory_program, peer.Case.worker_program = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
