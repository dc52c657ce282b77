#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A worker that pulls, and a source that lies: in its answers, in the order of its words, in its bytes.

    source_test.py DIRECTORY_HOST WORKER
"""
import sys
import unittest

import msgpack

import peer
from peer import DATA, HELLO, LAYERS, TOKENS, Stream, chunk, data, frame, message, rank_name

M = rank_name("m")


class SourceCase(peer.Case):
    options = {"connect_ms": 1500, "peer_ms": 30000}  # m need not answer pings

    def source(self, timeout_ms=20000):
        """A new incarnation of m that d pulls from: it has said hello."""
        self.m = self.peer("m", "p")
        self.agrees = False
        self.transfer = self.scene.id()
        self.scene.pull("m", self.transfer, timeout_ms=timeout_ms)
        return self.m.hear("hello")

    def agreed(self, timeout_ms=20000, hello=None):
        """The same, after hello_ack: it has sent its pull."""
        self.m_hello = hello or self.source(timeout_ms)
        self.m.ack(self.m_hello)
        self.pulled, self.agrees = self.m.hear("pull"), True
        return self.pulled

    def say(self, kind, **changes):
        end = {"bytes": self.scene.bytes, "runs": 1, "chunks": 1, "status": 0, "text": ""}
        fields = {"started": {"transport": self.transport, "bytes": self.scene.bytes},
                  "progress": {"layer_first": 0, "layer_end": LAYERS, "token_end": TOKENS, "bytes": self.scene.bytes},
                  "done": end, "failed": end, "in_doubt": end, "quiesced": {"status": 0, "text": ""}}[kind]
        self.m.say(kind, **{"transfer": self.transfer, "attempt": 0, "writer": 0, **fields, **changes})

    transport = "tcp"

    def leave(self):
        """Says goodbye, so that d asks the directory for the next m at once."""
        if self.agrees:
            start = len(self.d.log.lines)
            self.m.say("nack", of="", transfer="", attempt=0, status=15, text="")
            self.d.logged(M + " has closed", start)
        self.agrees = False
        self.m.close()

    def fails(self, status, text, untouched=True, lost=False):
        self.assert_ends(self.d, self.transfer, "pull-failed", status, text)
        if untouched:
            self.assertEqual(self.d.ask("untouched"), "untouched")
        self.d.ask("guard")
        self.agrees = self.agrees and not lost
        self.leave()

    def succeeds(self):
        self.assert_ends(self.d, self.transfer, "pull-done", "KVF_OK", "")
        self.d.ask("guard")
        self.leave()

    def answer_pings(self):
        """Until the pull has ended."""
        while not self.d.events(self.transfer):
            while self.m.router.poll(10):
                _, raw = self.m.router.recv_multipart()
                got = msgpack.unpackb(raw)
                if got["t"] == "ping":
                    self.m.say("pong", sequence=got["sequence"], incarnation=self.m.incarnation)

    def rows(self, rows, run):
        for row in rows:
            with self.subTest(row[0]):
                try:
                    run(*row[1:])
                finally:
                    self.leave()
                self.assert_unharmed()


class Words(SourceCase):
    def test_answers_to_hello(self):
        s = self.scene
        wrong = "f" * 32
        flat = dict(s.layouts["p"], groups=[[0, 0, 1, 0, 0]])
        rows = [
            ("another planner", {"planner": 9}, "KVF_ERR_VERSION", M + " has planner version 9, this side has 1"),
            ("refused", {"status": 20, "text": "I do not like it"}, "KVF_ERR_INCOMPATIBLE",
             M + " refuses: I do not like it"),
            ("refused by a number nobody knows", {"status": 60000, "text": "?"}, "KVF_ERR_UNKNOWN", M + " refuses: ?"),
            ("another plan", {"plan": wrong}, "KVF_ERR_PLAN_MISMATCH",
             "%s: plan %s there, %s here (planner versions 1 and 1)" % (M, wrong, s.plan)),
            ("no plan", {"plan": ""}, "KVF_ERR_PLAN_MISMATCH", "%s: plan none there, %s here" % (M, s.plan)),
            ("another instance answers", {"instance": "q"}, "KVF_ERR_STALE", M + ': "q" incarnation'),
            ("another incarnation answers", {"incarnation": 1}, "KVF_ERR_STALE",
             M + ': "m" incarnation 0000000000000001 answers, expected 0000'),
            ("another rank answers", {"rank": [0, 0, 0, 3, 0]}, "KVF_ERR_STALE", M + ": rank 0,0,3 answers"),
            ("digests differ", {"digest": wrong}, "KVF_ERR_STALE",
             "%s: digests of the holdings are %s and %s there, %s and" % (M, wrong, s.digests["d"], s.digests["p"])),
            ("no layout", {"layout": None}, "KVF_ERR_PROTOCOL", M + ": layout is nil, expected a map"),
            ("a layout without pools", {"layout": dict(s.layouts["p"], pools=[])}, "KVF_ERR_LAYOUT", M + ": "),
            ("a layout of another kind", {"layout": flat}, "KVF_ERR_INCOMPATIBLE",
             "k layer 0: state is 1 at the source, 0 at the destination"),
        ]

        def run(changes, status, text):
            hello = self.source()
            self.m.ack(hello, **changes)
            if status == "KVF_ERR_STALE":  # once more, with what the directory says now
                self.m.ack(self.m.hear("hello"), **changes)
            self.fails(status, text)
        self.rows(rows, run)

    def test_no_answer_to_hello(self):
        rows = [
            ("another protocol version", msgpack.packb({"v": 2, "t": "hello_ack"}), "KVF_ERR_VERSION",
             M + ": message has protocol version 2, this side speaks 1"),
            ("random", bytes(range(100, 180)), "KVF_ERR_PROTOCOL", M + ": kvferry/1: message is not of this protocol"),
            ("half a message", message("hello_ack", planner=1)[:-3], "KVF_ERR_PROTOCOL", M + ": message"),
            ("nack", message("nack", of="hello", transfer="", attempt=0, status=46, text="go away"), "KVF_ERR_REFUSED",
             M + " refuses: go away"),
            ("nack with success", message("nack", of="hello", transfer="", attempt=0, status=0, text="go"),
             "KVF_ERR_REFUSED", M + " refuses: go"),
            ("silence", None, "KVF_ERR_UNREACHABLE", "%s does not answer at tcp://127.0.0.1:" % M),
            ("done instead", message("done", transfer="x", attempt=0, writer=0, bytes=0, runs=0, chunks=0, status=0,
                                     text=""), "KVF_ERR_UNREACHABLE", "within 1500 ms"),
        ]

        def run(raw, status, text):
            self.source()
            if raw is not None:
                self.m.router.send_multipart([self.m.who, raw])
            self.fails(status, text)
        self.rows(rows, run)

    def test_answers_to_pull(self):
        size = self.scene.bytes
        rows = [
            ("other bytes than planned", [("started", {"bytes": size + 1})], "KVF_ERR_PROTOCOL",
             '%s will send %d bytes over "tcp", expected %d bytes' % (M, size + 1, size)),
            ("a transport that was not wished for", [("started", {"transport": "shm"})], "KVF_ERR_PROTOCOL",
             'bytes over "shm", expected'),
            ("done with fewer bytes", [("started", {}), ("done", {"bytes": size - 1})], "KVF_ERR_INCOMPLETE_TRANSFER",
             "%s says it is done with %d bytes, expected %d" % (M, size - 1, size)),
            ("done with none", [("started", {}), ("done", {"bytes": 0})], "KVF_ERR_INCOMPLETE_TRANSFER",
             "%s says it is done with 0 bytes, expected %d" % (M, size)),
            ("done before started", [("done", {})], "KVF_ERR_PROTOCOL", M + " says it is done, but never started"),
            ("failed", [("started", {}), ("failed", {"status": 45, "text": "it rotted"})], "KVF_ERR_CORRUPT",
             M + ": it rotted"),
            ("failed, then done", [("started", {}), ("failed", {"status": 45, "text": "it rotted"}), ("done", {})],
             "KVF_ERR_CORRUPT", "it rotted"),
            ("failed twice, started after", [("failed", {"status": 4, "text": "no"}), ("failed", {}), ("started", {})],
             "KVF_ERR_NO_MEMORY", M + ": no"),
            ("failed with success", [("failed", {"status": 0, "text": "odd"})], "KVF_ERR_INTERNAL", M + ": odd"),
            ("failed without a text", [("failed", {"status": 40})], "KVF_ERR_CANCELLED", "cancelled"),
            ("in doubt, then settled", [("started", {}), ("in_doubt", {"status": 24, "text": "who knows"}),
                                        ("quiesced", {})], "KVF_ERR_PEER_LOST", M + ": who knows"),
            ("in doubt for ever", [("started", {}), ("in_doubt", {"status": 24, "text": "who knows"})],
             "KVF_ERR_PEER_LOST", M + ": who knows"),
            ("quiesced unasked", [("quiesced", {})], "KVF_ERR_CANCELLED", "cancelled"),
            ("progress before started, then failed", [("progress", {}), ("progress", {"bytes": 2**62}),
                                                      ("failed", {"status": 46, "text": "bye"})], "KVF_ERR_REFUSED",
             "bye"),
        ]

        def run(words, status, text):
            self.agreed()
            for kind, changes in words:
                self.say(kind, **changes)
            self.fails(status, text)
        self.rows(rows, run)

    def test_nack_of_the_pull(self):
        self.agreed()
        self.m.say("nack", of="pull", transfer=self.transfer, attempt=0, status=14, text="full")
        self.fails("KVF_ERR_AGAIN", M + " refuses the pull: full")

    def test_words_of_nobody(self):
        """Another writer's number, another attempt, another transfer: they change nothing."""
        self.agreed(timeout_ms=1200)
        self.say("done", writer=3)
        self.say("failed", attempt=1, status=46)
        self.say("failed", transfer="unheard", status=46)
        self.m.say("pull", transfer="t")
        self.m.say("hello_ack", v=1)
        self.answer_pings()
        self.fails("KVF_ERR_EXPIRED", M + " has not begun to send; it may never have been offered there")

    def test_done_without_bytes(self):
        """All the right words, and not a byte: never a success."""
        self.agreed(timeout_ms=1000)
        self.say("started")
        self.say("done")
        self.say("done")
        self.answer_pings()
        self.fails("KVF_ERR_EXPIRED", "0 of %d bytes of %s had come" % (self.scene.bytes, M))

    def test_only_pongs(self):
        self.agreed(timeout_ms=1500)
        self.answer_pings()
        self.fails("KVF_ERR_EXPIRED", M + " has not begun to send; it may never have been offered there")

    def test_goodbye(self):
        self.agreed()
        self.m.say("nack", of="", transfer="", attempt=0, status=15, text="closing")
        self.fails("KVF_ERR_PEER_LOST", M + " has closed", lost=True)

    def test_another_process_answers(self):
        self.agreed()
        self.m.say("pong", sequence=1, incarnation=4711)
        self.fails("KVF_ERR_PEER_LOST", M + " was restarted", lost=True)


class Restarted(SourceCase):
    """Another process takes the place of the one that d knows, or is greeting. Its pull goes on with the new one."""

    def old(self):
        """An m that has served and closed, but whose port still takes what comes."""
        self.agreed()
        self.say("failed", status=40, text="enough")
        self.assert_ends(self.d, self.transfer, "pull-failed", "KVF_ERR_CANCELLED", "enough")
        start = len(self.d.log.lines)
        self.m.say("nack", of="", transfer="", attempt=0, status=15, text="")
        self.d.logged(M + " has closed", start)
        return self.m

    def ends_well(self):
        """The m that was just greeted sends nothing; it is enough that it was asked."""
        self.say("failed", status=40, text="at last")
        self.assert_ends(self.d, self.transfer, "pull-failed", "KVF_ERR_CANCELLED", M + ": at last")
        self.leave()

    def test_while_the_directory_is_silent(self):
        """d goes by its last word, which is about the process before, until it speaks again."""
        old, self.transfer = self.old(), self.scene.id()
        self.m = self.peer("m", "p")
        self.scene.directory.stop()
        try:
            self.scene.pull("m", self.transfer)
            old.hear("hello")
        finally:
            self.scene.directory.go_on()
        self.agreed(hello=self.m.hear("hello"))
        self.ends_well()

    def test_while_it_is_greeted(self):
        """Two pulls wait for an answer to hello when the process is replaced; the directory is asked why there is
        none."""
        old = self.source()
        self.assertEqual(old["t"], "hello")
        first, second = self.transfer, self.scene.id()
        self.scene.pull("m", second, request=2)
        self.m = self.peer("m", "p")
        self.agreed(hello=self.m.hear("hello"))
        asked = {self.pulled["transfer"], self.m.hear("pull")["transfer"]}
        self.assertEqual(asked, {first, second})
        for self.transfer in (first, second):
            self.say("failed", status=40, text="at last")
            self.assert_ends(self.d, self.transfer, "pull-failed", "KVF_ERR_CANCELLED", M + ": at last")
        self.leave()


class DataCase(SourceCase):

    def stream(self, who="m", incarnation=None, endpoint=None, window=None):
        endpoint = endpoint or self.pulled["transports"][0]["endpoint"]
        stream = Stream(endpoint, window)
        self.addCleanup(stream.close)
        status, text = stream.hello(rank_name(who), incarnation or self.m.incarnation, rank_name("d"),
                                    self.m_hello["incarnation"])
        self.assertEqual(status, 0, text)
        return stream

    def begun(self):
        self.agreed()
        self.say("started")
        self.grant = self.pulled["grant"]
        return self.stream()

    def whole(self, payload, **head):
        return data(chunk(self.grant, size=self.scene.bytes, **head), payload)


class Bytes(DataCase):
    """What comes on the data port, with the right words on the control port."""

    def test_a_source_that_does_it_right(self):
        """The control: these peers can also make a transfer succeed. Words and frames doubled."""
        stream = self.begun()
        raw = bytes(self.scene.bytes)
        half = len(raw) // 2
        head = chunk(self.grant, size=len(raw))
        self.say("started")
        stream.socket.sendall(data(head, raw[half:], offset=half) + data(head, raw[:half]))
        self.assertEqual(stream.ack(), (self.grant, 0, 0, ""))
        stream.socket.sendall(data(head, raw[:half]))  # placed already: acknowledged again
        self.assertEqual(stream.ack(), (self.grant, 0, 0, ""))
        for kind in ("progress", "done", "done", "started", "quiesced", "failed"):
            self.say(kind)
        self.assert_ends(self.d, self.transfer, "pull-done", "KVF_OK", "")
        self.d.ask("guard")
        # the transfer has ended: its grant counts no more
        stream.socket.sendall(data(head, raw))
        got = stream.ack()
        self.assertEqual(got[2], 46)
        self.assertIn("grant %016x is not armed for %s" % (self.grant, M), got[3])
        self.assertEqual(self.d.ask("untouched"), "untouched")
        self.leave()

    def test_done_before_the_bytes(self):
        stream = self.begun()
        self.say("done")
        stream.socket.sendall(self.whole(bytes(self.scene.bytes)))
        self.succeeds()

    def test_violations(self):
        size = self.scene.bytes
        layer = size // LAYERS
        part = {"layers": (0, 1), "size": layer}
        rows = [
            ("more bytes than granted", [chunk(0, size=size + 64)], "its writer says %d bytes, %d are granted" %
             (size + 64, size)),
            ("fewer bytes than its area has", [chunk(0, size=size - 64)], "chunk 0 has %d bytes here, its writer says" %
             size),
            ("no such layers", [chunk(0, layers=(70, 90), size=layer)], "chunk 0 has 0 bytes here, its writer says"),
            ("layers that end before they begin", [chunk(0, layers=(2, 1), size=layer)], "layers [2,1) are none"),
            ("layers of 2^63", [chunk(0, layers=(0, 2**63 - 1), size=64)], "its writer says"),
            ("tokens outside", [chunk(0, tokens=(0, TOKENS + 16), size=size)],
             "tokens [0,116) leave the granted [0,100)"),
            ("negative tokens", [chunk(0, tokens=(-16, 0), size=64)], "tokens [-16,0) leave the granted [0,100)"),
            ("the same area twice", [chunk(0, 0, 0, **part), chunk(0, 1, 0, **part)],
             "chunk 1 covers layers [0,1) tokens [0,100) a second time"),
            ("an area that meets another", [chunk(0, 0, 0, **part), chunk(0, 1, 1, layers=(0, 2), size=2 * layer)],
             "chunk 1 covers layers [0,2) tokens [0,100) a second time"),
            ("the last chunk too early", [chunk(0, 0, 1, **part)], "the last chunk is placed, "),
            ("a chunk after the last", [chunk(0, 1, 1, **part), chunk(0, 5, 0, layers=(1, 2), size=layer)],
             "chunk 5 (last: 0) of a grant of 2 chunks"),
            ("an index of 2^32 - 1", [chunk(0, 2**32 - 1, 0, **part)], "chunk 4294967295 (last: 0)"),
            ("flags nobody knows", [chunk(0, flags=1 << 40, size=size)], "bind flags 0x10000000000"),
            ("one chunk in two ways", [chunk(0, 0, 0, **part) + b"half", chunk(0, 0, 1, **part)],
             "chunk 0 is announced twice in different ways"),
        ]

        def run(heads, text):
            stream = self.begun()
            sent = b""
            for head in heads:
                half = head.endswith(b"half")
                head = self.grant.to_bytes(8, "little") + head[8:64]
                count = int.from_bytes(head[56:64], "little")
                sent += data(head, bytes(min(count // 2 if half else count, 1 << 20)))
            stream.socket.sendall(sent)
            while True:
                got = stream.ack()
                if got[2] != 0:
                    break
            self.assertEqual(got[2], 46)
            self.assertIn(text, got[3])
            status, why = self.d.event("pull-failed", self.transfer)
            self.assertIn(text, why)
            self.fails(status, text, untouched=len(heads) == 1 and "last chunk" not in text)
            stream.close()
        self.rows(rows, run)

    def test_bytes_come_twice(self):
        stream = self.begun()
        head = chunk(self.grant, size=self.scene.bytes)
        stream.socket.sendall(data(head, bytes(256)) + data(head, bytes(256), offset=128))
        got = stream.ack()
        self.assertEqual((got[2], got[3]), (46, "chunk 0: bytes [128,384) come twice"))
        self.fails("KVF_ERR_PROTOCOL", "chunk 0: bytes [128,384) come twice", untouched=False)

    def test_checksum(self):
        stream = self.begun()
        stream.socket.sendall(data(chunk(self.grant, size=self.scene.bytes), b"\1" * self.scene.bytes, checksum=5,
                                   flags=1))
        got = stream.ack()
        self.assertEqual(got[2], 45)
        self.assertIn("expected 0000000000000005", got[3])
        self.fails("KVF_ERR_CORRUPT", "expected 0000000000000005")

    def test_grants_of_others(self):
        self.begun()
        y = self.peer("y", "p")
        for name, stream, grant in (("another writer", self.stream("y", y.incarnation), self.grant),
                                    ("another incarnation", self.stream("m", 5), self.grant),
                                    ("never armed", self.stream(), 0xabc),
                                    ("grant 0", self.stream(), 0)):
            with self.subTest(name):
                stream.socket.sendall(data(chunk(grant, size=self.scene.bytes), bytes(self.scene.bytes)))
                got = stream.ack()
                self.assertEqual((got[0], got[2]), (grant, 46))
                self.assertIn("grant %016x is not armed for " % grant, got[3])
        self.say("failed", status=40, text="over")  # none of that ended it
        self.fails("KVF_ERR_CANCELLED", "over")

    def test_answers_that_nobody_reads(self):
        """Every frame is answered; who does not read the answers is not kept for ever."""
        self.begun()
        stream, start = self.stream(window=4096), len(self.d.log.lines)
        frames = data(chunk(0xabc), b"") * 1000
        with self.assertRaises(ConnectionError):
            for _ in range(1000):
                stream.socket.sendall(frames)
        self.d.logged("is given up: it does not read the answers to what it sends", start)
        self.say("failed", status=40, text="over")
        self.fails("KVF_ERR_CANCELLED", "over")

    def test_streams_that_are_refused(self):
        """Frames that no source sends: the connection is closed, the transfer goes on."""
        stream = self.begun()
        endpoint = self.pulled["transports"][0]["endpoint"]
        own = peer.identity(M, self.m.incarnation)
        good = frame(HELLO, b"\1\0\0\0" + own + peer.identity(rank_name("d"), self.m_hello["incarnation"]) +
                     (1).to_bytes(8, "little") * 2 + b"\0\0\0\0\1\0\0\0")
        rows = [
            ("random", bytes(range(250)) * 10, "frame starts with 0x03020100, expected 0x3154566b"),
            ("length 2^63", frame(DATA, b"", length=2**63), "with 9223372036854775808 bytes, at most 1048664"),
            ("control frame of 2^63", frame(HELLO, b"", length=2**63), "with 9223372036854775808 bytes, at most 1024"),
            ("a kind nobody knows", frame(9, b"abc"), "frame of kind 9 with flags 0x0 is not known"),
            ("data before hello", self.whole(b"\0" * 64), "unexpected frame"),
            ("a hello that is too short", frame(HELLO, b"\1\0\0\0abc"), "hello of 7 bytes does not parse"),
            ("hello twice", good + good, "unexpected frame"),
            ("an ack", good + frame(peer.ACK, b"\0" * 18), "unexpected frame"),
            ("more payload than the chunk has", good + data(chunk(self.grant, size=64), bytes(128)),
             "a frame of 128 bytes at 0 of a chunk of 64"),
            ("an offset behind the chunk", good + data(chunk(self.grant, size=64), b"", offset=65),
             "a frame of 0 bytes at 65 of a chunk of 64"),
            ("an offset of -1", good + data(chunk(self.grant, size=64), bytes(8), offset=-1),
             "a frame of 8 bytes at -1 of a chunk of 64"),
            ("a chunk of -1 bytes", good + data(chunk(self.grant, size=-1), bytes(8)), "of a chunk of -1"),
        ]
        for name, raw, text in rows:
            with self.subTest(name):
                start = len(self.d.log.lines)
                bad = Stream(endpoint)
                bad.socket.sendall(raw)
                self.assertTrue(bad.closed())
                bad.close()
                self.d.logged(text, start)
        stream.socket.sendall(self.whole(bytes(self.scene.bytes)))
        self.assertEqual(stream.ack()[2], 0)
        self.say("done")
        self.succeeds()

    def test_hello_of_others(self):
        self.begun()
        endpoint = self.pulled["transports"][0]["endpoint"]
        rows = [
            ("another version", (M, 1, rank_name("d"), self.m_hello["incarnation"]), {"version": 2}, 21,
             "tcp data protocol version 2, this side speaks 1"),
            ("another incarnation", (M, 1, rank_name("d"), 3), {}, 27, "incarnation 0000000000000003, found d/"),
            ("another rank", (M, 1, "q/pp9", self.m_hello["incarnation"]), {}, 27, "expected q/pp9 incarnation"),
        ]
        for name, who, changes, status, text in rows:
            with self.subTest(name):
                stream = Stream(endpoint)
                got = stream.hello(*who, **changes)
                self.assertEqual(got[0], status)
                self.assertIn(text, got[1])
                self.d.logged(text)
                self.assertTrue(stream.closed())
                stream.close()
        self.say("failed", status=40, text="over")
        self.fails("KVF_ERR_CANCELLED", "over")

    def test_half_a_head_then_the_end(self):
        stream = self.begun()
        stream.socket.sendall(self.whole(bytes(64))[:9])
        stream.close()
        self.say("failed", status=25, text="cut")
        self.fails("KVF_ERR_UNREACHABLE", M + ": cut")

    def test_a_thousand_connections_that_say_nothing(self):
        self.begun()
        endpoint = self.pulled["transports"][0]["endpoint"]
        held = [Stream(endpoint) for _ in range(1000)]
        self.say("failed", status=40, text="over")
        self.fails("KVF_ERR_CANCELLED", "over")
        self.assert_unharmed()
        for stream in held:
            stream.close()


class Silence(DataCase):
    """A source that says nothing any more, for longer than the peer timeout."""

    options = {"connect_ms": 1500, "peer_ms": 1000}

    def test_answers_hello_and_then_nothing(self):
        self.agreed()
        self.fails("KVF_ERR_PEER_LOST", M + " is lost: nothing heard of it for ", lost=True)

    def test_half_a_frame_then_silence(self):
        stream = self.begun()
        raw = self.whole(b"\x55" * self.scene.bytes)
        stream.socket.sendall(raw[:len(raw) // 2])
        self.fails("KVF_ERR_PEER_LOST", M + " is lost: nothing heard of it for ", untouched=False, lost=True)
        # its grant is gone: what comes now lands nowhere
        stream.socket.sendall(raw[len(raw) // 2:])
        got = stream.ack()
        self.assertEqual(got[2], 46)
        self.assertEqual(self.d.ask("untouched"), "untouched")


if __name__ == "__main__":
    peer.Case.directory_program, peer.Case.worker_program = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
