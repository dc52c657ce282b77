#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""kvferry as the initiator: rows I1 to I7 of what an initiator must do, towards the Python peer with all its habits."""
import json
import socket
import struct
import threading
import time
import unittest

from kit import Case, KVFERRY_HOST, golden, moved, noise, until
import peer
from peer import OK, REFUSED, READ, WRITE, V2, fill, frame, take

BASE = 0x7F1200000000


class Initiator(Case):
    def start(self, size=1 << 20, **options):
        engine = self.engine([KVFERRY_HOST], **options)
        return engine, self.region(engine, size)

    def move(self, engine, target, write, ranges, **more):
        return engine.call("move", write=write, segment=target.name, ranges=ranges, **more)

    def works(self, engine, region, target, data):
        """Writes and reads back through a target."""
        answer = self.move(engine, target, True, [[region.address, BASE + 5, 3000]])
        self.assertTrue(answer["ok"], answer)
        self.assertEqual(data[5:3005], region.model[:3000])
        answer = self.move(engine, target, False, [[region.address + 5000, BASE + 4000, 3000]])
        self.assertTrue(answer["ok"], answer)
        region.model[5000:8000] = data[4000:7000]
        self.right(region)

    def fails(self, answer, *statuses):
        self.assertFalse(answer["ok"], answer)
        self.assertIn(answer["status"], statuses, answer)
        self.assertTrue(answer["error"])
        self.assertNotIn("\n", answer["error"])


def without(*keys):
    return lambda found: {key: value for key, value in found.items() if key not in keys}


def with_(**more):
    return lambda found: {**found, **more}


class Descriptor(Initiator):
    def test_I1_descriptors_that_work(self):
        engine, region = self.start()
        rows = {"as it is": {}, "in single bytes": {"pieces": 1},
                "smallest": {"describe": without("buffers", "rdma_server_name", "timestamp", "tcp_data_host",
                                                 "tcp_proto_version")},
                "no data host": {"publish_host": False}, "an empty data host": {"describe": with_(tcp_data_host="")},
                "a data host where nobody is": {"describe": with_(tcp_data_host="127.0.0.99")},
                "no name": {"describe": without("name")},
                "unknown members": {"describe": with_(more={"a": [1, {"b": None}]}, capability="x" * 1000)},
                "several protocols": {"describe": with_(protocol=["rdma", "tcp"])},
                "version 99": {"describe": with_(tcp_proto_version=99)},
                "spaces and another order": {"describe": lambda found: json.dumps(
                    dict(reversed(list(found.items()))), indent=8)},
                "no end of line": {"describe": lambda found: json.dumps(found)},
                "20000 buffers": {"describe": with_(buffers=[{"addr": BASE + at * 64, "length": 50, "name": "n"}
                                                             for at in range(16000)])},
                "the largest numbers": {"describe": with_(buffers=[{"addr": (1 << 64) - 4096, "length": 4095,
                                                                    "name": "n"}])},
                "before 0.3.5": {"publish_port": False, "version": None}}
        for name, habits in rows.items():
            with self.subTest(name):
                target, data = self.own_target(**habits)
                self.works(engine, region, target, data)
                kind, text = target.asked[0]
                self.assertEqual((kind, type(json.loads(text))), (peer.METADATA, dict))
                self.assertEqual(target.late, [])
                target.close()

    def test_I1_descriptors_that_do_not(self):
        engine, region = self.start()
        rows = {"not JSON": lambda found: "{\"name\": ", "empty": lambda found: "", "null": lambda found: "null\n",
                "an array": lambda found: "[]", "a number": lambda found: "7", "deep": lambda found: "[" * 100000,
                "not UTF-8": lambda found: b'{"protocol":"tcp","name":"\xff\xfe"', "closed": lambda found: None,
                "port as text": with_(tcp_data_port="x"), "port as object": with_(tcp_data_port={}),
                "version as list": with_(tcp_proto_version=[2]), "host as list": with_(tcp_data_host=[1]),
                "another protocol": with_(protocol="rdma"), "no protocol": without("protocol"),
                "protocols without tcp": with_(protocol=["cxl", "rdma"]), "protocol as object": with_(protocol={}),
                "port 0": with_(tcp_data_port=0), "a huge port": with_(tcp_data_port=10 ** 30)}
        for name, describe in rows.items():
            with self.subTest(name):
                target, data = self.own_target(describe=describe)
                before = bytes(data)
                answer = self.move(engine, target, True, [[region.address, BASE, 100]], timeout_ms=3000)
                self.assertFalse(answer["ok"], answer)
                self.assertTrue(answer["error"])
                self.assertEqual(data, before)
                target.close()
        target, data = self.own_target()
        self.works(engine, region, target, data)

    def test_I1_hostile_answers(self):
        engine, region = self.start()
        rows = {"length 0": bytes(9), "length 2^63": struct.pack("<QB", 1 << 63, 1), "cut": frame(1, "{}")[:10],
                "above the limit": struct.pack("<QB", (1 << 20) + 1, 1), "another kind": frame(3, "{}\n"),
                "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n", "nothing": b"", "one byte": b"\x04"}
        for name, data in rows.items():
            with self.subTest(name):
                listener = peer.Listener("127.0.0.1", 0, lambda link, data=data: (link.recv(65536),
                                                                                 link.sendall(data)))
                start = time.monotonic()
                answer = engine.call("move", write=False, segment=f"127.0.0.1:{listener.port}", timeout_ms=3000,
                                     ranges=[[region.address, BASE, 8]])
                self.fails(answer, "KVF_ERR_PROTOCOL", "KVF_ERR_PARSE", "KVF_ERR_LIMIT", "KVF_ERR_PEER_LOST",
                           "KVF_ERR_TIMEOUT")
                self.assertLess(time.monotonic() - start, 5)
                listener.close()

    def test_I1_an_answer_that_trickles_or_never_comes(self):
        engine, region = self.start()
        over = threading.Event()
        self.addCleanup(over.set)

        def trickle(link):
            link.recv(65536)
            for byte in frame(1, "{" + " " * 10000):
                if over.wait(0.05):
                    return
                link.sendall(bytes([byte]))

        def silence(link):
            link.recv(65536)
            over.wait(30)
        for serve in (trickle, silence):
            listener = peer.Listener("127.0.0.1", 0, serve)
            start = time.monotonic()
            answer = engine.call("move", write=False, segment=f"127.0.0.1:{listener.port}", timeout_ms=800,
                                 ranges=[[region.address, BASE, 8]])
            self.fails(answer, "KVF_ERR_TIMEOUT")
            self.assertLess(time.monotonic() - start, 4)
            listener.close()

    def test_I7_notify_and_probe(self):
        engine, _ = self.start()
        target, _ = self.own_target(pieces=1)
        engine.must("notify", segment=target.name, name="agentA", text="kv-42 \u00fc \" done")
        self.assertEqual(target.notifies, [("agentA", "kv-42 \u00fc \" done")])
        engine.must("probe", segment=target.name)
        old, _ = self.own_target(kinds={peer.SETUP, peer.METADATA})
        self.fails(engine.call("probe", segment=old.name), "KVF_ERR_NOT_SUPPORTED")
        self.fails(engine.call("notify", segment=old.name, name="a", text="b"), "KVF_ERR_NOT_SUPPORTED")

    def test_I7_a_rejected_notify(self):
        engine, _ = self.start()
        target, _ = self.own_target()
        target.answer = lambda kind, value, answer=target.answer: (
            '{"name":"","notify_msg":""}\n' if kind == peer.NOTIFY else answer(kind, value))
        self.fails(engine.call("notify", segment=target.name, name="a", text="b"), "KVF_ERR_REFUSED")

    def test_I7_golden_request(self):
        engine, _ = self.start()
        seen = []

        def serve(link):
            length, = struct.unpack("<Q", head := take(link, 8))
            seen.append(head + take(link, length))
            link.sendall(frame(seen[-1][8], '{"status":"success"}\n'))
        listener = peer.Listener("127.0.0.1", 0, serve)
        self.addCleanup(listener.close)
        engine.must("probe", segment=f"127.0.0.1:{listener.port}")
        self.assertEqual(seen, [golden("probe_request")])


class Requests(Initiator):
    def test_I2_version_and_header(self):
        for forced in (False, True):
            engine, region = self.start(v1=forced)
            for version in (None, 1, 2, 3):
                with self.subTest(forced=forced, version=version):
                    target, data = self.own_target(version=version)
                    self.works(engine, region, target, data)
                    second = version in (2, 3) and not forced
                    self.assertEqual({opcode for opcode, *_ in target.requests},
                                     {WRITE | V2, READ | V2} if second else {WRITE, READ})
                    self.assertEqual({padding for *_, padding in target.requests}, {bytes(7)})
                    target.close()

    def test_I3_an_early_refusal_of_a_large_write(self):
        engine, region = self.start(64 << 20)
        target, data = self.own_target()
        before = bytes(data)
        for _ in range(5):
            start = time.monotonic()
            answer = self.move(engine, target, True, [[region.address, 4096, 64 << 20]])
            self.fails(answer, "KVF_ERR_REFUSED")
            self.assertEqual(answer["outcomes"], [1, 0, 0])
            self.assertLess(time.monotonic() - start, 3)
        self.assertEqual(data, before)

    def test_I3_a_status_before_the_end_of_the_body(self):
        engine, region = self.start(8 << 20)

        def eager(link, size, address, opcode):
            if not opcode & 0x7F:
                return False
            link.sendall(struct.pack("<Q", OK))
            fill(link, target.memory.local(address, size))
            link.recv(1)
            return True
        target, data = self.own_target(8 << 20, request=eager)
        answer = self.move(engine, target, True, [[region.address, BASE, 8 << 20]])
        self.assertTrue(answer["ok"], answer)
        until(lambda: data == region.model, "the rest of the body has come")

    def test_I4_a_status_that_does_not_come(self):
        engine, region = self.start(progress_ms=400)
        over = threading.Event()
        self.addCleanup(over.set)

        def mute(link, size, address, opcode):
            if opcode & 1:
                fill(link, memoryview(bytearray(size)))
            over.wait(30)
            return True
        target, _ = self.own_target(request=mute)
        for write in (True, False):
            start = time.monotonic()
            answer = self.move(engine, target, write, [[region.address, BASE, 1000]])
            self.fails(answer, "KVF_ERR_TIMEOUT", "KVF_ERR_PEER_LOST")
            self.assertEqual(answer["outcomes"], [0, 0, 1] if write else [1, 0, 0])
            self.assertLess(time.monotonic() - start, 5)
        self.right(region)

    def test_I4_memory_is_still_after_a_failure(self):
        engine, region = self.start(progress_ms=300)
        go, sent = threading.Event(), threading.Event()

        def late(link, size, _address, _opcode):
            link.sendall(struct.pack("<Q", OK) + b"\xEE" * 1000)
            go.wait(30)
            try:
                link.sendall(b"\xEE" * (size - 1000))
            except OSError:
                pass
            sent.set()
            return True
        target, _ = self.own_target(request=late)
        self.fails(self.move(engine, target, False, [[region.address, BASE, 500000]]), "KVF_ERR_TIMEOUT",
                   "KVF_ERR_PEER_LOST")
        before = region.bytes[:]
        go.set()
        self.assertTrue(sent.wait(10))
        self.assertEqual(region.bytes[:], before)
        self.assertEqual(before[1000:], region.model[1000:])

    def test_I4_the_deadline_of_the_call(self):
        engine, region = self.start()
        over = threading.Event()
        self.addCleanup(over.set)

        def slow(link, size, _address, _opcode):  # always some progress, never an end
            link.sendall(struct.pack("<Q", OK))
            for _ in range(size):
                if over.wait(0.05):
                    break
                link.sendall(b"\xEE")
            return True
        target, _ = self.own_target(request=slow)
        start = time.monotonic()
        answer = self.move(engine, target, False, [[region.address, BASE, 100000]], timeout_ms=700)
        self.fails(answer, "KVF_ERR_TIMEOUT")
        self.assertLess(time.monotonic() - start, 4)

    def test_I5_one_request_a_connection(self):
        engine, region = self.start()
        target, data = self.own_target(version=None, requests_each=1)
        for write in (True, False):
            ranges = [[region.address + at * 700, BASE + at * 800, 600] for at in range(300)]
            answer = self.move(engine, target, write, ranges)
            self.assertTrue(answer["ok"], answer)
            for at in range(300):
                self.assertEqual(data[at * 800:at * 800 + 600], region.bytes[at * 700:at * 700 + 600])
            data[:] = noise(len(data), 5 + write)
        self.assertLess(target.data.most, 64)

    def test_I5_a_close_every_few_requests(self):
        engine, region = self.start()
        for each in (2, 7):
            target, data = self.own_target(version=None, requests_each=each)
            ranges = [[region.address + at * 100, BASE + at * 100, 100] for at in range(1000)]
            answer = self.move(engine, target, True, ranges)
            self.assertTrue(answer["ok"], answer)
            self.assertEqual(data[:100000], region.model[:100000])

    def test_I5_a_close_amid_pipelined_requests(self):
        """No release does that. What is said to be done is there, and what is in doubt is said to be."""
        engine, region = self.start()
        target, data = self.own_target(requests_each=20)
        ranges = [[region.address + at * 100, BASE + at * 100, 100] for at in range(1000)]
        answer = self.move(engine, target, True, ranges, timeout_ms=10000)
        failed, done, in_doubt = answer["outcomes"]
        right = sum(data[at * 100:at * 100 + 100] == region.model[at * 100:at * 100 + 100] for at in range(1000))
        self.assertEqual(failed + done + in_doubt, 1000)
        self.assertEqual(answer["ok"], done == 1000)
        self.assertTrue(done <= right <= done + in_doubt, (answer, right))

    def test_I6_nothing_to_move(self):
        engine, region = self.start()
        target, _ = self.own_target()
        for ranges in ([], [[region.address, BASE, 0]], [[0, 0, 0]] * 5):
            self.assertTrue(self.move(engine, target, True, ranges)["ok"])
        self.assertEqual(target.requests, [])

    def test_few_connections_and_no_more_handshakes(self):
        engine, region = self.start()
        target, data = self.own_target()
        for _ in range(20):
            self.works(engine, region, target, data)
        self.assertEqual(len(target.asked), 1)
        self.assertLessEqual(target.data.accepted, 4)

    def refused(self, **habits):
        engine, region = self.start()
        target, data = self.own_target(**habits)
        ranges = [[region.address + at * 100, BASE + at * 100, 100] for at in range(500)]
        ranges[250][1] = 4096
        answer = self.move(engine, target, True, ranges)
        right = sum(data[at * 100:at * 100 + 100] == region.model[at * 100:at * 100 + 100] for at in range(500)
                    if at != 250)
        return answer, right

    def test_one_refused_of_many(self):
        answer, right = self.refused(drains=True)
        self.fails(answer, "KVF_ERR_REFUSED")
        self.assertEqual((answer["outcomes"], right), ([1, 499, 0], 499))
        self.assertIn("range 250", answer["error"])

    def test_one_refused_of_many_and_answers_lost(self):
        """A target that closes with input unread, as the reference does: what it had still to say may be lost."""
        answer, right = self.refused()
        self.fails(answer, "KVF_ERR_REFUSED", "KVF_ERR_PEER_LOST")
        failed, done, in_doubt = answer["outcomes"]
        self.assertEqual(failed + done + in_doubt, 500)
        self.assertTrue(done <= right <= done + in_doubt, (answer, right))

    def test_version_1_refusals_are_not_taken_for_done(self):
        engine, region = self.start()
        target, _ = self.own_target(version=1)
        for write in (True, False):
            answer = self.move(engine, target, write, [[region.address, 4096, 100000]])
            self.assertFalse(answer["ok"], answer)
            self.assertEqual(answer["outcomes"][1], 0)
        self.right(region)

    def test_local_ranges_are_checked(self):
        engine, region = self.start()
        target, _ = self.own_target()
        for address, size in ((region.address - 1, 10), (region.address + region.size - 1, 2), (4096, 1),
                              ((1 << 64) - 1, 1), (region.address, (1 << 64) - 1)):
            for write in (True, False):
                self.fails(self.move(engine, target, write, [[address, BASE, size]]), "KVF_ERR_OUT_OF_RANGE")
        self.assertEqual(target.requests, [])

    def bad_data(self, serve):
        engine, region = self.start(progress_ms=1500)
        target, data = self.own_target(request=serve)
        for write in (True, False):
            start = time.monotonic()
            answer = self.move(engine, target, write, [[region.address + at * 1000, BASE, 1000] for at in range(20)],
                               timeout_ms=5000)
            self.assertFalse(answer["ok"], answer)
            self.assertEqual(answer["outcomes"][1], 0)
            self.assertLess(time.monotonic() - start, 10)
            self.assertTrue(engine.alive())
        target.habits.request = None
        self.assertTrue(self.move(engine, target, True, [[region.address, BASE, 1000]])["ok"])
        self.assertEqual(data[:1000], region.bytes[:1000])

    def test_a_wrong_magic(self):
        def serve(link, size, _address, opcode):
            if opcode & 1:
                fill(link, memoryview(bytearray(size)))
            link.sendall(b"ABCDEFGH" + bytes(size))
            return True
        self.bad_data(serve)

    def test_an_unknown_code(self):
        def serve(link, size, _address, opcode):
            if opcode & 1:
                fill(link, memoryview(bytearray(size)))
            link.sendall(struct.pack("<Q", OK + 7))
            return True
        self.bad_data(serve)

    def test_cut_and_reset(self):
        for reset in (False, True):
            for sent in (b"", struct.pack("<Q", OK)[:3]):
                def serve(link, size, _address, opcode, reset=reset, sent=sent):
                    if opcode & 1:
                        fill(link, memoryview(bytearray(size)))
                    link.sendall(sent)
                    if reset:
                        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return True
                with self.subTest(reset=reset, sent=len(sent)):
                    self.bad_data(serve)

    def test_cut_in_the_body_of_a_read(self):
        def serve(link, size, _address, opcode):
            if opcode & 1:
                link.recv(10)
            else:
                link.sendall(struct.pack("<Q", OK) + bytes(size - 1))
            return True
        self.bad_data(serve)

    def test_a_refusal_without_a_reason(self):
        def serve(link, _size, _address, _opcode):
            link.sendall(struct.pack("<Q", REFUSED))
            return True
        self.bad_data(serve)

    def test_connections_cut_between_calls(self):
        engine, region = self.start()
        target, data = self.own_target()
        for reset in (False, True, False):
            self.works(engine, region, target, data)
            target.data.cut(reset)
        self.works(engine, region, target, data)
        self.assertEqual(len(target.asked), 4)  # once more after each: its data port may be another process's by now

    def test_a_new_data_port_is_asked_for(self):
        engine, region = self.start()
        target, data = self.own_target()
        self.works(engine, region, target, data)
        target.data.close()
        target.data = peer.Listener("127.0.0.1", 0, target.serve_data)
        self.works(engine, region, target, data)
        self.assertEqual(len(target.asked), 2)

    def test_a_hundred_thousand_ranges(self):
        engine, region = self.start(1 << 20)
        other = self.engine([KVFERRY_HOST])
        remote = self.region(other, 1 << 20)
        ranges = [(at * 10 + 1, (99999 - at) * 10 + 2, 9) for at in range(100000)]
        engine.must("move", write=True, segment=other.segment, ranges=moved(True, region, remote, ranges))
        self.right(region, remote)


if __name__ == "__main__":
    unittest.main()
