#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Guards of kvferry's: what peers may write while it is granted, and never otherwise. Rows G1 to G6."""
import os
import random
import select
import socket
import struct
import threading
import time
import unittest

from kit import KVFERRY_HOST, noise, until
from peer import HEADER, READ, WRITE, V2, Lane, Refused, take
from target_test import STATUS_OK, STATUS_REFUSED, Target

BLOCK = 8192
BLOCKS = 32


class Guarded(Target):
    def guarded(self, size=BLOCK * BLOCKS, **options):
        """An engine with one buffer under one guard: block i is the i-th 8 KiB of it."""
        log = os.path.join(self.folder, "log")
        engine, region = self.start(size, log=log, **options)
        engine.log = log
        engine.must("guard", grids=[[region.address, BLOCK, BLOCK]], blocks=size // BLOCK)
        return engine, region

    @staticmethod
    def lines(engine):
        with open(engine.log, encoding="utf-8") as file:
            return file.read().splitlines()

    def ask(self, engine, opcode, address, body, size=None):
        """What comes back for one request on a connection of its own, up to the end of the connection if refused."""
        with socket.create_connection(engine.data) as link:
            link.sendall(HEADER.pack(size or len(body), address, opcode, bytes(7)))
            try:
                link.sendall(body)
                if not opcode & V2:
                    link.shutdown(socket.SHUT_WR)
            except OSError:  # it was refused already
                pass
            if not opcode & V2:
                return self.ends(link)
            link.settimeout(10)
            answer = take(link, 8)
            return answer if answer == STATUS_OK else answer + self.ends(link)

    def refused(self, engine, region, opcode, offset, body, size=None):
        self.assertEqual(self.ask(engine, opcode, region.address + offset, body, size),
                         STATUS_REFUSED if opcode & V2 else b"")
        self.right(region)

    def writes(self, engine, region, offset, body, opcode=WRITE | V2):
        self.assertEqual(self.ask(engine, opcode, region.address + offset, body), STATUS_OK if opcode & V2 else b"")
        region.model[offset:offset + len(body)] = body
        if not opcode & V2:  # nothing says when it is there
            until(lambda: region.wrong() is None, "what was written is there")
        self.right(region)

    def count(self, engine, *blocks):
        return engine.must("count", list=list(blocks))["bytes"]

    def stalled(self, engine, region, block, opcode=WRITE | V2, sent=1000):
        """A write of a whole block, of which only so many bytes have come."""
        link = socket.create_connection(engine.data)
        self.addCleanup(link.close)
        data = noise(BLOCK, block + 50)
        link.sendall(HEADER.pack(BLOCK, region.address + block * BLOCK, opcode, bytes(7)) + data[:sent])
        start = block * BLOCK
        until(lambda: region.bytes[start:start + sent] == data[:sent], "the first bytes are in memory")
        return link, data


class Guards(Guarded):
    def test_G1_only_what_is_granted(self):
        engine, region = self.guarded()
        engine.must("grant", list=[3, 4, 9])
        for opcode in (WRITE, WRITE | V2):
            for name, offset, size in (("a block", 0, BLOCK), ("a byte", 100, 1), ("into the next", 5 * BLOCK - 1, 2),
                                       ("from the one before", 3 * BLOCK - 1, 2), ("all", 0, BLOCK * BLOCKS),
                                       ("around", 3 * BLOCK - 5, 2 * BLOCK + 10)):
                with self.subTest(name, opcode=opcode):
                    self.refused(engine, region, opcode, offset, noise(size, 9))
            self.writes(engine, region, 3 * BLOCK, noise(2 * BLOCK, 5 + opcode), opcode)
            self.writes(engine, region, 9 * BLOCK + 17, noise(100, 6 + opcode), opcode)
        self.assertEqual(self.count(engine, 3, 4), 4 * BLOCK)
        self.assertEqual(self.count(engine, 9), 200)
        self.assertEqual(self.count(engine, *range(BLOCKS)), 4 * BLOCK + 200)

    def test_G1_no_reads(self):
        engine, region = self.guarded()
        engine.must("grant", list=[3])
        for opcode in (READ, READ | V2):
            for offset, size in ((3 * BLOCK, BLOCK), (3 * BLOCK, 1), (0, BLOCK), (0, BLOCK * BLOCKS)):
                self.refused(engine, region, opcode, offset, b"", size)

    def test_G1_grids_side_by_side(self):
        engine, region = self.start(1 << 18)
        row, part = 4096, 1024
        grids = [[region.address + place * part, row, part] for place in (2, 0, 1)]  # the fourth part is nobody's
        self.assertIn("grid 3", engine.call("guard", grids=grids + [grids[0]], blocks=16)["error"])
        engine.must("guard", grids=grids, blocks=16)
        engine.must("grant", list=[2, 3])
        self.writes(engine, region, 2 * row, noise(3 * part, 1))
        self.writes(engine, region, 3 * row + part - 5, noise(part + 10, 2))
        self.refused(engine, region, WRITE | V2, 2 * row, noise(3 * part + 1, 3))
        self.refused(engine, region, WRITE | V2, 2 * row + 3 * part, noise(1, 3))
        self.refused(engine, region, WRITE | V2, row, noise(part, 3))
        self.assertEqual(self.count(engine, 2, 3), 4 * part + 10)

    def test_G1_hostile_numbers(self):
        engine, region = self.guarded()
        engine.must("grant", list=[0, BLOCKS - 1])
        base, top = region.address, (1 << 64) - 1
        draw = random.Random(4)
        rows = [(0, base), (top, base), (top - base, base), (top - base + 1, base), (1 << 63, base), (BLOCK, top),
                (1, 0), (BLOCK * BLOCKS + 1, base), (1, base - 1), (2, base + BLOCK * BLOCKS - 1)]
        rows += [(draw.getrandbits(64), base + draw.randrange(BLOCK)) for _ in range(50)]
        for size, address in rows:
            with self.subTest(size=size, address=address), socket.create_connection(engine.data) as link:
                link.sendall(HEADER.pack(size, address, WRITE | V2, bytes(7)))
                self.assertEqual(self.ends(link), STATUS_REFUSED)
        self.right(region)
        self.writes(engine, region, (BLOCKS - 1) * BLOCK, noise(BLOCK, 5))

    def test_G2_late_writes(self):
        engine, region = self.guarded()
        lane = self.lane(engine)
        engine.must("grant", list=[5])
        lane.write(region.address + 5 * BLOCK, memoryview(noise(BLOCK, 1)))
        region.model[5 * BLOCK:6 * BLOCK] = noise(BLOCK, 1)
        engine.must("revoke", list=[5])
        with self.assertRaises(Refused):
            lane.write(region.address + 5 * BLOCK, memoryview(noise(BLOCK, 2)))
        self.right(region)
        self.assertEqual(self.count(engine, 5), BLOCK)
        engine.must("grant", list=[5])  # for another
        self.assertEqual(self.count(engine, 5), 0)

    def test_G2_amid_others_on_one_connection(self):
        """Those before it have their answers, and nothing behind it is looked at."""
        engine, region = self.guarded()
        engine.must("grant", list=list(range(0, BLOCKS, 2)))
        data = noise(100, 3)
        with socket.create_connection(engine.data) as link:
            for block in (0, 2, 4, 7, 8, 10):
                link.sendall(HEADER.pack(100, region.address + block * BLOCK, WRITE | V2, bytes(7)) + data)
            self.assertEqual(self.ends(link), STATUS_OK * 3 + STATUS_REFUSED)
        for block in (0, 2, 4):
            region.model[block * BLOCK:block * BLOCK + 100] = data
        self.right(region)

    def test_G3_revoke_waits_for_a_body(self):
        for opcode in (WRITE, WRITE | V2):
            engine, region = self.guarded()
            engine.must("grant", list=[6, 7])
            link, data = self.stalled(engine, region, 6, opcode)
            engine.must("revoke", list=[7], timeout_ms=20000)  # nobody is there
            engine.send("revoke", list=[6], timeout_ms=20000)
            until(lambda: self.ask(engine, WRITE | V2, region.address + 6 * BLOCK + 4000, b"x") != STATUS_OK,
                  "nothing new begins")
            self.assertEqual(select.select([engine.process.stdout], [], [], 0)[0], [])
            link.sendall(data[1000:])
            self.assertTrue(engine.receive()["ok"])
            region.model[6 * BLOCK:7 * BLOCK] = data
            self.right(region)

    def test_G3_revoke_ends_what_does_not_end(self):
        for opcode, timeout_ms in ((WRITE, 300), (WRITE | V2, 300), (WRITE | V2, 0)):
            engine, region = self.guarded()
            engine.must("grant", list=[6, 8])
            link, data = self.stalled(engine, region, 6, opcode)
            other, other_data = self.stalled(engine, region, 8, opcode)
            start = time.monotonic()
            engine.must("revoke", list=[6], timeout_ms=timeout_ms)
            self.assertLess(time.monotonic() - start, 5)
            before = region.bytes[:]
            try:
                link.sendall(data[1000:])
            except OSError:
                pass
            self.assertIn(self.ends(link), (b"", STATUS_REFUSED))
            self.assertEqual(region.bytes[:], before)
            self.assertEqual(self.count(engine, 6), 0)
            other.sendall(other_data[1000:])  # whose block is still granted goes on
            until(lambda engine=engine: self.count(engine, 8) == BLOCK, "the other one is complete")

    def test_G3_revoke_amid_a_large_body(self):
        engine, region = self.guarded(64 << 20)
        every = list(range((64 << 20) // BLOCK))
        engine.must("grant", list=every)
        stop, lost = threading.Event(), []

        def pour():
            while not stop.is_set():
                try:
                    with socket.create_connection(engine.data) as link:
                        link.sendall(HEADER.pack(64 << 20, region.address, WRITE | V2, bytes(7)))
                        while not stop.is_set():
                            link.sendall(bytes(1 << 20))
                except OSError:
                    lost.append(None)
        threads = [threading.Thread(target=pour) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            until(lambda: not any(region.bytes[:4096]), "the first bytes are in memory")
            engine.must("revoke", list=every, timeout_ms=0)
            region.bytes[:] = bytes(region.model)
            before = len(lost)
            until(lambda: len(lost) >= before + 20, "all of them are turned away")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.right(region)

    def test_G3_revoked_blocks_are_the_owners_alone(self):
        """Initiators write all blocks, again and again; each block that was revoked stays what its owner makes it."""
        engine, region = self.guarded(progress_ms=20000)
        stop, draw = threading.Event(), random.Random(8)

        def write(options, sizes):
            initiator = self.engine([KVFERRY_HOST], **options)
            local = self.region(initiator, BLOCK * BLOCKS)
            done = 0
            while not stop.is_set():
                size = sizes * BLOCK
                ranges = [[local.address + at, region.address + at, size] for at in range(0, BLOCK * BLOCKS, size)]
                done += initiator.call("move", write=True, segment=engine.segment, ranges=ranges)["outcomes"][1]
            written.append(done)
        written = []
        threads = [threading.Thread(target=write, args=one) for one in (({}, 1), ({"lanes": 4}, 2), ({"v1": True}, 1))]
        for thread in threads:
            thread.start()
        granted = {}
        try:
            for turn in range(400):
                block = draw.randrange(BLOCKS)
                place = slice(block * BLOCK, (block + 1) * BLOCK)
                if block in granted:
                    engine.must("revoke", list=[block], timeout_ms=draw.choice((0, 1, 5000)))
                    del granted[block]
                    region.bytes[place] = region.model[place] = noise(BLOCK, turn)
                else:
                    self.assertEqual(region.bytes[place], bytes(region.model[place]))
                    engine.must("grant", list=[block])
                    granted[block] = turn
            until(lambda: self.count(engine, *granted) > 0, "something arrives where it is granted")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(len(written), 3)
        for block in set(range(BLOCKS)) - set(granted):
            place = slice(block * BLOCK, (block + 1) * BLOCK)
            self.assertEqual(region.bytes[place], bytes(region.model[place]))

    def test_G2_each_range_has_its_outcome(self):
        for options in ({}, {"lanes": 4}, {"v1": True}):
            with self.subTest(**options):
                engine, region = self.guarded()
                engine.must("grant", list=list(range(0, BLOCKS, 2)))
                initiator = self.engine([KVFERRY_HOST], **options)
                local = self.region(initiator, BLOCK * BLOCKS)
                ranges = [[local.address + at, region.address + at, BLOCK] for at in range(0, BLOCK * BLOCKS, BLOCK)]
                answer = initiator.call("move", write=True, segment=engine.segment, ranges=ranges)
                self.assertEqual(answer["status"], "KVF_ERR_PEER_LOST" if "v1" in options else "KVF_ERR_REFUSED")
                failed, done, in_doubt = answer["outcomes"]
                self.assertEqual((failed + in_doubt, done), (BLOCKS // 2, BLOCKS // 2))
                for at in range(0, BLOCK * BLOCKS, 2 * BLOCK):
                    region.model[at:at + BLOCK] = local.model[at:at + BLOCK]
                self.right(region)
                answer = initiator.call("move", write=False, segment=engine.segment, ranges=ranges)
                self.assertEqual(answer["outcomes"][1], 0)
                self.right(local)

    def test_G4_what_gets_guarded(self):
        engine, region = self.start(BLOCK * BLOCKS)
        half = BLOCK * BLOCKS // 2
        engine.must("unregister", address=region.address)
        engine.must("guard", grids=[[region.address, BLOCK, BLOCK]], blocks=BLOCKS // 2)
        engine.must("register", address=region.address, bytes=half)           # later
        engine.must("register", address=region.address + half, bytes=half)    # no block is there
        self.refused(engine, region, WRITE | V2, 0, b"x")
        self.writes(engine, region, half, noise(half, 1))
        engine.must("unregister", address=region.address)
        engine.must("register", address=region.address, bytes=half)           # again
        self.refused(engine, region, WRITE | V2, 0, b"x")
        self.refused(engine, region, READ | V2, 0, b"", 1)
        engine.must("grant", list=[0])
        self.writes(engine, region, 0, noise(BLOCK, 2))
        engine.must("unguard", guard=0)                                       # it stays guarded
        self.refused(engine, region, WRITE | V2, 0, b"x")
        self.refused(engine, region, READ | V2, 0, b"", 1)
        engine.must("unregister", address=region.address)
        engine.must("register", address=region.address, bytes=half)           # nobody guards it any more
        self.writes(engine, region, 0, noise(BLOCK, 3))

    def test_G4_guarded_amid_requests(self):
        engine, region = self.start(4 << 20)
        writer, _ = self.stalled(engine, region, 0)
        reader = socket.create_connection(engine.data)
        self.addCleanup(reader.close)
        reader.sendall(HEADER.pack(4 << 20, region.address, READ | V2, bytes(7)) * 8)  # more than sockets hold
        take(reader, 8)
        engine.must("guard", grids=[[region.address, BLOCK, BLOCK]], blocks=512)
        self.assertIn(self.ends(writer), (b"", STATUS_REFUSED))
        self.assertLess(len(self.ends(reader)), 32 << 20)
        engine.must("grant", list=[0])
        engine.must("revoke", list=[0], timeout_ms=0)
        region.model[:1000] = region.bytes[:1000]
        self.right(region)

    def test_G4_two_guards_over_the_same_memory(self):
        engine, region = self.guarded()
        engine.must("guard", grids=[[region.address, 2 * BLOCK, 2 * BLOCK]], blocks=BLOCKS // 2)
        engine.must("grant", guard=1, list=[1])  # blocks 2 and 3 of the other
        self.writes(engine, region, 2 * BLOCK, noise(2 * BLOCK, 1))
        engine.must("grant", list=[4])
        self.writes(engine, region, 3 * BLOCK, noise(2 * BLOCK, 2))
        self.assertEqual(engine.must("count", guard=1, list=[1])["bytes"], 3 * BLOCK)
        self.assertEqual(self.count(engine, 2, 3), 0)
        self.assertEqual(self.count(engine, 4), BLOCK)
        engine.must("unguard", guard=1)
        self.refused(engine, region, WRITE | V2, 3 * BLOCK, noise(2 * BLOCK, 3))
        self.writes(engine, region, 4 * BLOCK, noise(BLOCK, 3))

    def test_G5_cut_bodies_do_not_count(self):
        engine, region = self.guarded()
        engine.must("grant", list=[6])
        for opcode in (WRITE, WRITE | V2):
            for reset in (False, True):
                link, data = self.stalled(engine, region, 6, opcode, 5000)
                if reset:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                link.close()
        engine.must("revoke", list=[6])  # all of them have ended
        self.assertEqual(self.count(engine, 6), 0)
        engine.must("grant", list=[6])
        self.writes(engine, region, 6 * BLOCK, noise(BLOCK, 5))
        self.assertEqual(self.count(engine, 6), BLOCK)

    def test_G6_refusals_are_told(self):
        engine, region = self.guarded()
        with socket.create_connection(engine.data) as link:
            name = "%s:%d" % link.getsockname()
            link.sendall(HEADER.pack(16, region.address + 2 * BLOCK + 1, WRITE | V2, bytes(7)))
            self.assertEqual(self.ends(link), STATUS_REFUSED)
        place = f"{region.address + 2 * BLOCK + 1:#x}"
        self.assertEqual(self.lines(engine), [
            f"kvferry warning: mooncake: {name}: a write of 16 bytes at {place} is refused: block 2 of guard 1, at "
            f"{place}, is not granted"])
        rows = [(READ | V2, region.address, 1, "a read of 1 bytes .* the memory is guarded, and nobody reads it"),
                (READ, 4096, 1, "a read of 1 bytes at 0x1000 is refused: they lie in no registered buffer"),
                (0x7F, 0, 0, "opcode 0x7f, expected 0x00, 0x01, 0x80 or 0x81")]
        for opcode, address, size, said in rows:
            with socket.create_connection(engine.data) as link:
                link.sendall(HEADER.pack(size, address, opcode, bytes(7)))
                self.ends(link)
            self.assertRegex(self.lines(engine)[-1], said)

    def test_G6_a_flood_does_not_fill_the_log(self):
        engine, region = self.guarded()
        start = time.monotonic()
        for _ in range(500):
            with socket.create_connection(engine.data) as link:
                link.sendall(HEADER.pack(16, region.address, WRITE, bytes(7)))
                self.assertEqual(self.ends(link), b"")
        self.assertLessEqual(len(self.lines(engine)), 17 + time.monotonic() - start)
        self.assertGreaterEqual(len(self.lines(engine)), 16)

        def told_again():
            with socket.create_connection(engine.data) as link:
                link.sendall(HEADER.pack(16, region.address, WRITE, bytes(7)))
                self.ends(link)
            return "that were not told)" in self.lines(engine)[-1]
        until(told_again, "how many were not told")

    def test_honest_and_hostile_side_by_side(self):
        """Blocks of which each has an owner; who writes to one that is not its own is refused, all of the time."""
        engine, region = self.guarded()
        mine = list(range(0, BLOCKS, 2))
        engine.must("grant", list=mine)
        stop, wrong = threading.Event(), []

        def hostile(seed):
            draw = random.Random(seed)
            while not stop.is_set():
                block = draw.randrange(0, BLOCKS, 2) + 1
                offset, size = block * BLOCK + draw.randrange(-100, BLOCK), draw.choice((1, 101, 5000))
                opcode = draw.choice((WRITE, WRITE | V2))
                answer = self.ask(engine, opcode, region.address + max(0, offset), bytes(size))
                if answer == STATUS_OK and offset + size > block * BLOCK:
                    wrong.append((offset, size))

        def honest(seed):
            draw, lane, moved = random.Random(seed), Lane(engine.data), 0
            while moved < 300:
                block = draw.choice(mine[seed::2])
                data = noise(BLOCK, moved + seed)
                lane.write(region.address + block * BLOCK, memoryview(data)[:BLOCK - 100])
                region.model[block * BLOCK:(block + 1) * BLOCK - 100] = data[:BLOCK - 100]
                moved += 1
            lane.close()
        owners = [threading.Thread(target=honest, args=(seed,)) for seed in range(2)]
        others = [threading.Thread(target=hostile, args=(seed,)) for seed in range(2)]
        for thread in owners + others:
            thread.start()
        for thread in owners:
            thread.join()
        stop.set()
        for thread in others:
            thread.join()
        self.assertEqual(wrong, [])
        for block in mine:  # a hostile one may begin in the last bytes of a granted block, and then all is refused
            self.assertEqual(region.bytes[block * BLOCK:(block + 1) * BLOCK - 100],
                             bytes(region.model[block * BLOCK:(block + 1) * BLOCK - 100]))
        for block in range(1, BLOCKS, 2):
            self.assertEqual(region.bytes[block * BLOCK:(block + 1) * BLOCK],
                             bytes(region.model[block * BLOCK:(block + 1) * BLOCK]))
        self.assertEqual(self.count(engine, *range(1, BLOCKS, 2)), 0)


if __name__ == "__main__":
    unittest.main()
