#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Batches of kvferry, rows B1 to B6: towards the Python peer with its habits, and peers that die."""
import struct
import threading
import time
import unittest

from kit import Case, KVFERRY_HOST, PEER_HOST, moved, noise, until
from peer import OK

BASE = 0x7F1200000000


class Batches(Case):
    def start(self, size=1 << 20, **options):
        engine = self.engine([KVFERRY_HOST], **options)
        return engine, self.region(engine, size)

    def submit(self, engine, segment, write, ranges, **more):
        return engine.must("submit", write=write, segment=segment, ranges=ranges, **more)["batch"]

    def ends(self, engine, batch, *statuses, count=1):
        """Waits for a batch, checks that its counts add up, frees it; returns the answer."""
        answer = engine.call("wait", batch=batch)
        self.assertIn("KVF_OK" if answer["ok"] else answer["status"], statuses, answer)
        progress = answer["progress"]
        self.assertTrue(progress["ended"])
        self.assertEqual(answer["outcomes"], [progress["failed"], progress["done"], progress["in_doubt"]])
        self.assertEqual(sum(answer["outcomes"]), count)
        engine.must("free", batch=batch)
        return answer

    def test_B1_a_thousand_batches_to_targets_of_all_ages(self):
        engine, region = self.start()
        rows = {"newest": {}, "version 1": {"version": 1}, "before 0.3.10": {"version": None, "requests_each": 1}}
        for name, habits in rows.items():
            with self.subTest(name):
                target, data = self.own_target(**habits)
                for write in (True, False):
                    batches = [self.submit(engine, target.name, write,
                                           [[region.address + at * 700, BASE + at * 800, 600]]) for at in range(1000)]
                    for batch in batches:
                        answer = self.ends(engine, batch, "KVF_OK")
                        self.assertEqual(answer["progress"]["done_bytes"], 600)
                    for at in range(1000):
                        self.assertEqual(data[at * 800:at * 800 + 600], region.bytes[at * 700:at * 700 + 600])
                    data[:] = noise(len(data), 5 + write)
                region.bytes[:] = bytes(region.model)

    def test_B2_twelve_of_sixteen_peers_stall(self):
        engine, region = self.start()
        over = threading.Event()
        self.addCleanup(over.set)

        def stall(_link, _size, _address, _opcode):
            over.wait(40)
            return True
        stalled = [self.own_target(request=stall)[0] for _ in range(12)]
        live = [self.own_target() for _ in range(4)]
        stuck = [self.submit(engine, target.name, at % 2 == 0, [[region.address, BASE, 1000]])
                 for at in range(20) for target in stalled]
        for at in range(50):
            batches = [self.submit(engine, target.name, True, [[region.address + at * 1000, BASE + at * 1000, 1000]])
                       for target, _ in live]
            for batch in batches:
                self.ends(engine, batch, "KVF_OK")
        for _, data in live:
            self.assertEqual(data[:50000], region.model[:50000])
        for batch in stuck:
            self.assertEqual(engine.call("wait", batch=batch, timeout_ms=0)["status"], "KVF_ERR_AGAIN")
            engine.must("cancel", batch=batch)
        for batch in stuck:
            self.ends(engine, batch, "KVF_ERR_CANCELLED")
        self.right(region)

    def test_B3_a_read_that_is_freed_amid_its_body(self):
        engine, region = self.start()
        half, go, sent = threading.Event(), threading.Event(), threading.Event()
        self.addCleanup(go.set)

        def late(link, size, _address, _opcode):
            link.sendall(struct.pack("<Q", OK) + b"\xEE" * 1000)
            half.set()
            go.wait(40)
            try:
                link.sendall(b"\xEE" * (size - 1000))
                while link.recv(1):
                    pass
            except OSError:
                pass
            sent.set()
            return True
        target, _ = self.own_target(request=late)
        batch = self.submit(engine, target.name, False, [[region.address, BASE, 500000]])
        self.assertTrue(half.wait(30))
        start = time.monotonic()
        engine.must("free", batch=batch)
        self.assertLess(time.monotonic() - start, 10)
        region.model[:] = region.bytes[:] = noise(region.size, 99)  # somebody else's by now
        go.set()
        self.assertTrue(sent.wait(30))
        self.right(region)

    def test_B4_a_write_that_is_cancelled_amid_its_body(self):
        engine, region = self.start(size=64 << 20, lanes=1)
        begun, go, came = threading.Event(), threading.Event(), []
        self.addCleanup(go.set)

        def slow(link, _size, _address, _opcode):
            begun.set()
            go.wait(40)
            try:
                while not came or came[-1]:
                    came.append(link.recv(1 << 20))
            except OSError:
                pass
            return True
        target, _ = self.own_target(request=slow)
        before = bytes(region.model)
        ranges = [[region.address, BASE, 32 << 20], [region.address, BASE, 100], [region.address, BASE, 100]]
        batch = self.submit(engine, target.name, True, ranges)
        self.assertTrue(begun.wait(30))
        engine.must("cancel", batch=batch)
        answer = self.ends(engine, batch, "KVF_ERR_CANCELLED", count=3)
        self.assertEqual(answer["outcomes"], [2, 0, 1])
        region.model[:] = region.bytes[:] = noise(region.size, 98)
        go.set()
        until(lambda: not target.data.links, "what was sent is read")
        data = b"".join(came)
        self.assertLess(len(data), 32 << 20)
        self.assertEqual(data, before[:len(data)])  # and nothing of what came after

    def test_B5_a_peer_that_is_killed_amid_bodies(self):
        engine, region = self.start(size=32 << 20, connect_ms=2000)
        target = self.engine(PEER_HOST)
        remote = self.region(target, 32 << 20)
        whole = [(at << 20, at << 20, 1 << 20) for at in range(32)]
        batches = [self.submit(engine, target.segment, True, moved(True, region, remote, whole), timeout_ms=20000)
                   for _ in range(20)]
        until(lambda: engine.call("wait", batch=batches[0], timeout_ms=0)["progress"]["done"], "one is under way")
        target.kill()
        answers = [self.ends(engine, batch, "KVF_OK", "KVF_ERR_PEER_LOST", "KVF_ERR_UNREACHABLE", "KVF_ERR_TIMEOUT",
                             count=32) for batch in batches]
        self.assertFalse(answers[-1]["ok"])
        again = self.engine(PEER_HOST)
        self.remap(again, remote)
        self.ends(engine, self.submit(engine, again.segment, True, moved(True, region, remote, whole)), "KVF_OK",
                  count=32)
        self.right(region, remote)

    def test_B6_a_notify_after_all_and_none_without(self):
        engine, region = self.start()
        seen = []
        target, data = self.own_target(request=lambda *request: seen.append(len(target.notifies)) or False)
        good = [[region.address + at * 100, BASE + at * 100, 100] for at in range(100)]
        self.ends(engine, self.submit(engine, target.name, True, good, notify=["a", "all"]), "KVF_OK", count=100)
        self.assertEqual([list(one) for one in target.notifies], [["a", "all"]])
        self.assertEqual(seen, [0] * 100)
        self.assertEqual(data[:10000], region.model[:10000])
        bad = good + [[region.address, BASE - 4096, 100]]
        self.ends(engine, self.submit(engine, target.name, True, bad, notify=["b", "all"]), "KVF_ERR_REFUSED",
                  count=101)
        self.assertEqual([list(one) for one in target.notifies], [["a", "all"]])


if __name__ == "__main__":
    unittest.main()
