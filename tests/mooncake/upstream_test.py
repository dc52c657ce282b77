#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""kvferry beside the published wheel, in either role: the matrix, and how the wheel loses itself.

scripts/test-upstream.sh says where the wheel's Python is (KVF_UPSTREAM_PYTHON). The wheel takes no ports, and no more
than 2,048 ranges in one call.
"""
import json
import os
from pathlib import Path
import select
import signal
import subprocess
import time
import unittest

from kit import Case, DEADLINE, FOLDER, KVFERRY_HOST, PEER_HOST, moved, noise, until
from matrix import Matrix
import peer

KVFERRY = [KVFERRY_HOST]


def wheel(**settings):
    settings = {"MC_FORCE_TCP": "1", **settings}
    return ["env", *(f"{name}={value}" for name, value in settings.items()), os.environ["KVF_UPSTREAM_PYTHON"],
            str(FOLDER / "host.py"), "wheel"]


class Wheel(Matrix):
    largest = 64 << 20


class KvferryToWheel(Wheel, Case):
    initiator_command, target_command = KVFERRY, wheel()
    many = 10000

    test_restart_on_the_same_ports = test_restart_on_another_data_port = None  # it chooses its ports itself

    def test_restart_under_a_new_name(self):
        initiator, target, local, remote = self.pair()
        self.move(initiator, target, True, local, remote, [(0, 0, 5000)])
        target.kill()
        again = self.engine(self.target_command)
        self.remap(again, remote)
        self.move(initiator, again, True, local, remote, [(7, 5000, 5000)])
        self.right(local, remote)
        start = time.monotonic()
        self.assertFalse(initiator.call("move", write=True, segment=target.segment,
                                        ranges=[[local.address, remote.address, 10]])["ok"])
        self.assertLess(time.monotonic() - start, self.dead_seconds)

    def test_a_hundred_thousand_ranges(self):
        initiator, target, local, remote = self.pair()
        ranges = [(at * 10 + 1, (99999 - at) * 10 + 2, 9) for at in range(100000)]
        for write in (True, False):
            self.move(initiator, target, write, local, remote, ranges)
        self.right(local, remote)

    def test_a_quarter_gib(self):
        initiator, target, local, remote = self.pair((256 << 20) + 9, (256 << 20) + 9)
        self.move(initiator, target, True, local, remote, [(3, 5, 256 << 20)])
        self.move(initiator, target, False, local, remote, [(5, 3, 256 << 20)])
        self.right(local, remote)


class KvferryToWheelVersion1(Wheel, Case):
    """Towards the same wheel, as towards an older one."""
    initiator_command, target_command = KVFERRY, wheel()
    initiator_options = {"v1": True}
    many, largest = 1000, 1 << 20

    test_restart_on_the_same_ports = test_restart_on_another_data_port = test_dead_name = None


class KvferryByBatchesToWheel(Wheel, Case):
    """The same moves, submitted and waited for; and many at once, the wheel's notify at the end of each."""
    initiator_command, target_command = KVFERRY, wheel()
    initiator_options = {"batches": True}
    many = 10000

    test_restart_on_the_same_ports = test_restart_on_another_data_port = test_dead_name = None

    def test_many_batches_with_notifies(self):
        initiator, target, local, remote = self.pair()
        batches = []
        for at in range(500):
            ranges = moved(True, local, remote, [(at * 2000 + 3, at * 2000 + 5, 1000),
                                                 (at * 2000 + 1100, at * 2000 + 1200, 7)])
            batches.append(initiator.must("submit", write=True, segment=target.segment, ranges=ranges,
                                          notify=["batch", str(at)])["batch"])
        for batch in batches:
            answer = initiator.must("wait", batch=batch)
            self.assertEqual(answer["progress"]["done_bytes"], 1007)
            initiator.must("free", batch=batch)
        self.right(local, remote)
        self.assertEqual(sorted(target.must("notifies")["list"]), sorted(["batch", str(at)] for at in range(500)))


class WheelToKvferry(Wheel, Case):
    initiator_command, target_command = wheel(), KVFERRY
    calls_after_restart = 12  # a call fails for each of its lanes that the restart cut
    many = 2048

    def test_restart_on_another_data_port(self):
        results, *_ = self.restart(data_port=0)
        self.assertEqual([one["ok"] for one in results], [False] * self.calls_after_restart)  # for ever

    def test_guarded(self):
        """It writes what is granted; what is not fails with its -1, and it goes on."""
        initiator, target, local, remote = self.pair()
        block = 8192
        target.must("guard", grids=[[remote.address, block, block]], blocks=128)
        for turn in range(5):
            granted = list(range(turn, turn + 20))
            target.must("grant", list=granted)
            self.move(initiator, target, True, local, remote, [(at * 5000, at * block, block) for at in granted])
            self.right(remote)
            self.assertEqual(target.must("count", list=granted)["bytes"], len(granted) * block)
            for write, offset in ((True, 100 * block), (True, (turn + 20) * block - 8), (False, turn * block)):
                answer = initiator.call("move", write=write, segment=target.segment,
                                        ranges=[[local.address, remote.address + offset, 16]])
                self.assertEqual(answer.get("error"), "move: -1")
            self.right(local, remote)
            target.must("revoke", list=granted, timeout_ms=5000)
            self.assertFalse(initiator.call("move", write=True, segment=target.segment,
                                            ranges=[[local.address, remote.address + turn * block, 16]])["ok"])
            self.right(remote)

    def test_it_fetches_what_kvferry_publishes(self):
        initiator, target, *_ = self.pair()
        for _ in range(20):
            self.region(target, 4096)
        self.assertEqual(len(peer.fetch(target.segment)["buffers"]), 21)
        self.assertEqual(len(peer.fetch(initiator.segment)["buffers"]), 1)


class WheelToKvferryByConnection(WheelToKvferry):
    """A connection for each request, as its releases before 0.3.13 do by default."""
    initiator_command = wheel(MC_TCP_ENABLE_CONNECTION_POOL="0")
    largest = 1 << 20

    def move(self, initiator, target, write, local, remote, ranges):
        """In this mode a call of thousands of ranges now and then fails at the wheel's side: "no transfer progress
        within 30s", a second after it began. Asked again, it must go through."""
        command = dict(write=write, segment=target.segment, ranges=moved(write, local, remote, ranges))
        if not initiator.call("move", **command)["ok"]:
            initiator.must("move", **command)

    test_restart_on_another_data_port = None


class WheelToKvferryVersion1(Case):
    """Nothing says when a write has arrived: the memory tells."""

    def test_write_and_read(self):
        target = self.engine(KVFERRY)
        initiator = self.engine(wheel(MC_TCP_PROTO="1"))
        local, remote = self.region(initiator, 1 << 22), self.region(target, 1 << 22)
        ranges = [(at * 2000 + 1, at * 2001 + 3, 1999) for at in range(1000)]
        initiator.must("move", write=True, segment=target.segment, ranges=moved(True, local, remote, ranges))
        until(lambda: remote.wrong() is None, "what was written is there")
        ranges = [(at * 2001 + 3, at * 2000 + 1, 1999) for at in range(1000)]
        initiator.must("move", write=False, segment=target.segment, ranges=moved(False, local, remote, ranges))
        self.right(local, remote)


class Command(Case):
    """kvferry mooncake beside the wheel, and beside the wheel's own benchmark."""

    @staticmethod
    def run_command(*arguments):
        done = subprocess.run([os.environ["KVFERRY"], "mooncake", *arguments], capture_output=True, text=True,
                              timeout=DEADLINE, check=False)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return done.stdout

    def serve(self, *arguments):
        server = subprocess.Popen([os.environ["KVFERRY"], "mooncake", "serve", *arguments], stdout=subprocess.PIPE)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        if not select.select([server.stdout], [], [], DEADLINE)[0]:
            raise AssertionError("no line within the deadline")
        return server, json.loads(server.stdout.readline())

    def test_probe_write_and_read(self):
        target = self.engine(wheel())
        region = self.region(target, 1 << 20)
        found = json.loads(self.run_command("probe", target.segment, "--json"))
        self.assertEqual((found["name"], found["protocol"], found["version"], found["data_ok"], found["probe"]),
                         (target.segment, "tcp", 2, True, "answers"))
        self.assertEqual(found["buffers"], [{"addr": region.address, "length": region.size}])
        data, ranges = Path(self.folder, "data"), Path(self.folder, "ranges")
        data.write_bytes(noise(100000, 3))
        rows = [[at * 100, region.address + at * 200, 99] for at in range(1000)]
        ranges.write_text(json.dumps(rows), encoding="ascii")
        self.run_command("write", target.segment, "--file", str(data), "--ranges", str(ranges))
        for at in range(1000):
            region.model[at * 200:at * 200 + 99] = noise(100000, 3)[at * 100:at * 100 + 99]
        self.right(region)
        self.run_command("read", target.segment, "--file", str(data))
        self.assertEqual(data.read_bytes(), region.bytes[:])

    def test_serve(self):
        out = Path(self.folder, "out")
        server, said = self.serve("--bytes", "1MiB", "--out", str(out))
        initiator = self.engine(wheel())
        local = self.region(initiator, 1 << 20)
        base = said["buffers"][0]["addr"]
        ranges = [[local.address + at * 1000, base + at * 1000, 999] for at in range(1000)]
        initiator.must("move", write=True, segment=said["segment"], ranges=ranges)
        initiator.must("notify", segment=said["segment"], name="a", text="done",
                       range=[local.address + 999, base + 999, 1])
        self.assertEqual(json.loads(server.stdout.readline()), {"notify": {"name": "a", "text": "done"}})
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(DEADLINE), 0)
        got = out.read_bytes()
        for at in range(1000):
            self.assertEqual(got[at * 1000:at * 1000 + 999], local.bytes[at * 1000:at * 1000 + 999])

    def test_its_own_benchmark(self):
        _, said = self.serve("--bytes", "256MiB")
        program = Path(os.environ["KVF_UPSTREAM_PYTHON"]).with_name("transfer_engine_bench")
        for operation in ("write", "read"):
            done = subprocess.run(
                [program, "--mode=initiator", "--metadata_server=P2PHANDSHAKE", "--local_server_name=127.0.0.1",
                 "--protocol=tcp", f"--segment_id={said['segment']}", f"--operation={operation}",
                 "--block_size=65536", "--batch_size=32", "--threads=4", "--duration=1", "--buffer_size=67108864"],
                env={**os.environ, "MC_FORCE_TCP": "1"}, capture_output=True, text=True, timeout=DEADLINE, check=False)
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            self.assertIn("batch count", done.stderr)


class PeerToWheel(Wheel, Case):
    """The Python peer is held to the wheel as well, or the tests without the wheel would prove little."""
    initiator_command, target_command = PEER_HOST, wheel()
    many = 2048

    test_restart_on_the_same_ports = test_restart_on_another_data_port = None


class WheelToPeer(Wheel, Case):
    initiator_command, target_command = wheel(), PEER_HOST
    calls_after_restart = 12
    many = 2048

    test_restart_on_another_data_port = None


if __name__ == "__main__":
    unittest.main()
