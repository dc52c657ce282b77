# SPDX-License-Identifier: Apache-2.0
"""What every pair of engines must do, whoever is the initiator and whoever the target.

A class of tests names two commands and mixes this in. After every case the bytes on both sides are what a model says,
the bytes around the ranges included.
"""
import random
import time

from kit import Engine, moved

MANY = 10000


class Matrix:
    initiator_command = target_command = None
    initiator_options, target_options = {}, {}
    many = MANY          # ranges in one call
    dead_seconds = 15    # a dead name fails within so many seconds
    calls_after_restart = 1  # calls that may fail before one succeeds when the target came back on its ports
    largest = 64 << 20

    def pair(self, local_bytes=1 << 20, remote_bytes=1 << 20):
        target = self.engine(self.target_command, **self.target_options)
        initiator = self.engine(self.initiator_command, **self.initiator_options)
        return initiator, target, self.region(initiator, local_bytes), self.region(target, remote_bytes)

    def move(self, initiator, target, write, local, remote, ranges):
        initiator.must("move", write=write, segment=target.segment, ranges=moved(write, local, remote, ranges))

    def test_sizes(self):
        initiator, target, local, remote = self.pair(self.largest + 64, self.largest + 64)
        for size in (1, 7, 8, 4095, 4096, 4097, 65535, 65536, 65537, (1 << 20) + 1, self.largest):
            for write in (True, False):
                with self.subTest(size=size, write=write):
                    self.move(initiator, target, write, local, remote, [(size % 13 + 1, size % 11 + 3, size)])
                    if size < self.largest:
                        self.assertEqual(local.bytes[:size + 64], local.model[:size + 64])
                        self.assertEqual(remote.bytes[:size + 64], remote.model[:size + 64])
        self.right(local, remote)

    def scattered(self, seed, count, local, remote):
        """Ranges that do not overlap, of all small sizes, at odd places and in another order on each side."""
        draw = random.Random(seed)
        sizes = [draw.choice((1, 3, 8, 100, 511)) for _ in range(count)]
        places = []
        for region in (local, remote):
            at, starts = 0, [0] * count
            for number in draw.sample(range(count), count):
                at += draw.randrange(3)
                starts[number] = at
                at += sizes[number]
            self.assertLessEqual(at, region.size)
            places.append(starts)
        return list(zip(*places, sizes))

    def test_many_ranges(self):
        initiator, target, local, remote = self.pair(6 << 20, 6 << 20)
        for write in (True, False):
            self.move(initiator, target, write, local, remote, self.scattered(write, self.many, local, remote))
            self.right(local, remote)

    def test_several_buffers(self):
        initiator, target, *_ = self.pair(4096, 4096)
        locals_ = [self.region(initiator, 10000 + 1000 * number) for number in range(3)]
        remotes = [self.region(target, 9000 + 1000 * number) for number in range(5)]
        for write in (True, False):
            ranges = []
            for number in range(30):
                pair = locals_[number % 3], remotes[number % 5]
                ranges += moved(write, *pair, [(number * 290 + 1, number * 250 + 7, 240)])
            initiator.must("move", write=write, segment=target.segment, ranges=ranges)
            self.right(*locals_, *remotes)

    def test_registered_anew(self):
        initiator, target, local, remote = self.pair()
        self.move(initiator, target, True, local, remote, [(0, 0, 1000)])
        target.must("unregister", address=remote.address)
        gone = initiator.call("move", write=True, segment=target.segment, ranges=[[local.address, remote.address, 500]])
        self.assertFalse(gone["ok"])
        self.assertFalse(target.call("unregister", address=remote.address)["ok"])
        target.must("register", address=remote.address, bytes=300000)
        self.assertFalse(target.call("register", address=remote.address + 100, bytes=10)["ok"])
        self.move(initiator, target, False, local, remote, [(5, 299000, 1000)])
        over = [[local.address, remote.address + 299001, 1000]]
        self.assertFalse(initiator.call("move", write=True, segment=target.segment, ranges=over)["ok"])
        self.right(local, remote)

    def test_at_the_same_time(self):
        initiator, target, local, remote = self.pair()
        part = 1 << 17
        for write in (True, False):
            moves = []
            for number in range(4):
                ranges = [(number * 2 * part + at * 600, (7 - 2 * number) * part + at * 500, 499) for at in range(200)]
                moves.append({"write": write, "segment": target.segment,
                              "ranges": moved(write, local, remote, ranges)})
            answer = initiator.must("moves", moves=moves)
            self.assertEqual([one["ok"] for one in answer["results"]], [True] * 4, answer)
            self.right(local, remote)

    def test_refused_ranges(self):
        initiator, target, local, remote = self.pair(1 << 20, 1 << 16)
        target.must("unregister", address=remote.address)
        target.must("register", address=remote.address, bytes=4096)
        target.must("register", address=remote.address + 4096, bytes=4096)
        last = (1 << 64) - 1
        rows = {"before": (remote.address - 1, 10), "behind": (remote.address + 8190, 10),
                "across two buffers": (remote.address + 4000, 200), "far away": (12345, 8),
                "address 0": (0, 1), "the last byte": (last, 1), "wraps": (last - 100, 4096),
                "much too long": (remote.address, 1 << 19)}
        for name, (address, size) in rows.items():
            for write in (True, False):
                with self.subTest(name, write=write):
                    answer = initiator.call("move", write=write, segment=target.segment,
                                            ranges=[[local.address, address, size]])
                    self.assertFalse(answer["ok"])
                    self.assertTrue(target.alive())
        self.move(initiator, target, True, local, remote, [(9, 4096, 4096), (0, 0, 4096)])
        self.right(local, remote)

    def test_one_bad_range_of_many(self):
        initiator, target, local, remote = self.pair()
        ranges = moved(True, local, remote, [(at * 1000, at * 1000, 900) for at in range(100)])
        ranges.insert(50, [local.address, 4096, 100])
        self.assertFalse(initiator.call("move", write=True, segment=target.segment, ranges=ranges)["ok"])
        self.move(initiator, target, True, local, remote, [(at * 1000, at * 1000, 900) for at in range(100)])
        self.right(local, remote)

    def test_nothing_to_move(self):
        initiator, target, local, remote = self.pair(4096, 4096)
        self.move(initiator, target, True, local, remote, [(0, 0, 0)])
        self.right(local, remote)

    def test_dead_name(self):
        initiator, target, local, remote = self.pair(4096, 4096)
        self.move(initiator, target, True, local, remote, [(0, 0, 4096)])
        target.kill()
        for _ in range(2):
            start = time.monotonic()
            answer = initiator.call("move", write=True, segment=target.segment,
                                    ranges=[[local.address, remote.address, 4096]])
            self.assertFalse(answer["ok"])
            self.assertLess(time.monotonic() - start, self.dead_seconds)
        never = self.engine(self.target_command)
        name = never.segment
        never.kill()
        start = time.monotonic()
        answer = initiator.call("move", write=False, segment=name, ranges=[[local.address, remote.address, 4096]])
        self.assertFalse(answer["ok"])
        self.assertLess(time.monotonic() - start, self.dead_seconds)

    def back(self, target, remote, **ports):
        """The target dies and another comes up on its handshake port."""
        data_port = target.answer["data_port"]
        target.kill()
        options = {**self.target_options, "handshake_port": peer_port(target.segment), "data_port": data_port, **ports}
        again = Engine(self.target_command, **options)
        self.addCleanup(again.end)
        self.assertEqual(again.segment, target.segment)
        self.remap(again, remote)
        return again

    def restart(self, **ports):
        initiator, target, local, remote = self.pair()
        for at in range(4):
            self.move(initiator, target, True, local, remote, [(0, 1000 * at, 900)])
        again = self.back(target, remote, **ports)
        ranges = moved(True, local, remote, [(1 + at * 100, 8000 + at * 200, 100) for at in range(50)])
        results = []
        for _ in range(self.calls_after_restart):
            results.append(initiator.call("move", write=True, segment=again.segment, ranges=ranges))
            if results[-1]["ok"]:
                break
        return results, local, remote

    def test_restart_on_the_same_ports(self):
        results, local, remote = self.restart()
        self.assertTrue(results[-1]["ok"], results)
        self.right(local, remote)

    def test_restart_on_another_data_port(self):
        results, local, remote = self.restart(data_port=0)
        self.assertTrue(results[-1]["ok"], results)
        self.right(local, remote)

    def test_notify_and_probe(self):
        initiator, target, local, remote = self.pair(4096, 4096)
        for at in range(3):
            moved(True, local, remote, [(0, 0, 16)])
            initiator.must("notify", segment=target.segment, name="agent", text=f"kv-{at} \u00fc done",
                           range=[local.address, remote.address, 16])
        self.assertEqual(target.must("notifies")["list"], [["agent", f"kv-{at} \u00fc done"] for at in range(3)])
        self.assertEqual(target.must("notifies")["list"], [])
        initiator.must("probe", segment=target.segment)


def peer_port(segment):
    return int(segment.rpartition(":")[2])
