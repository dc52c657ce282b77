# SPDX-License-Identifier: Apache-2.0
"""Engines as processes, memory that the test sees too, and what moved bytes must be.

Every wait has a deadline of DEADLINE seconds; a test that has to wait so long has failed.
"""
import json
import mmap
import os
from pathlib import Path
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import peer

FOLDER = Path(__file__).resolve().parent
DEADLINE = float(os.environ.get("KVF_TEST_DEADLINE", "40"))
KVFERRY_HOST = os.environ.get("KVF_MOONCAKE_HOST", "")
PEER_HOST = [sys.executable, str(FOLDER / "host.py"), "peer"]
NOISE = random.Random(6).randbytes(1048573)  # a length that no block size divides


def noise(size, shift=0):
    """`size` bytes that differ from place to place and from shift to shift."""
    shift = shift * 7919 % len(NOISE)
    turned = NOISE[shift:] + NOISE[:shift]
    return (turned * (size // len(turned) + 1))[:size]


def golden(name):
    """The bytes of a frame, from tests/golden/mooncake."""
    return bytes.fromhex((FOLDER.parent / "golden" / "mooncake" / (name + ".hex")).read_text())


def until(condition, what, deadline=None):
    """Polls a condition until it holds, and returns what it gave."""
    end = time.monotonic() + (deadline or DEADLINE)
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("not within the deadline: " + what)
        time.sleep(0.005)


def signed(value):
    """Numbers of 64 bits as JSON readers with signed numbers take them."""
    if isinstance(value, dict):
        return {key: signed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [signed(item) for item in value]
    return value - (1 << 64) if type(value) is int and value >> 63 == 1 else value


class Region:
    """Memory of an engine, through a file that the test maps as well. `model` is what it must hold."""

    def __init__(self, folder, size, shift):
        handle, self.path = tempfile.mkstemp(dir=folder)
        os.ftruncate(handle, size)
        self.bytes = mmap.mmap(handle, size)
        os.close(handle)
        self.size, self.address = size, None
        self.model = bytearray(noise(size, shift))
        self.bytes[:] = bytes(self.model)

    def wrong(self):
        """Where the memory is not what it must be, or None."""
        found = self.bytes[:]  # at one moment: a peer may be writing
        if found == self.model:
            return None
        return next(at for at in range(self.size) if found[at] != self.model[at])


class Engine:
    """An engine's process. `failing` calls return the answer; the others assert that it is ok."""

    def __init__(self, command, **options):
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL if "wheel" in command else None)
        self.pending, self.killed = b"", False
        self.answer = self.must("open", **options)
        self.segment = self.answer["segment"]

    def send(self, do, **line):
        self.process.stdin.write(json.dumps(signed({"do": do, **line})).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self, deadline=None):
        end = time.monotonic() + (deadline or DEADLINE)
        while b"\n" not in self.pending:
            ready = select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0]
            if not ready:
                raise AssertionError("not within the deadline: an answer of the engine")
            part = os.read(self.process.stdout.fileno(), 1 << 20)
            if not part:
                raise AssertionError(f"the engine ended: {self.process.wait()}")
            self.pending += part
        line, self.pending = self.pending.split(b"\n", 1)
        return json.loads(line)

    def call(self, do, **line):
        self.send(do, **line)
        return self.receive()

    def must(self, do, **line):
        answer = self.call(do, **line)
        if not answer["ok"]:
            raise AssertionError(f"{do}: {answer}")
        return answer

    def map(self, region):
        return self.must("map", file=region.path, bytes=region.size)["address"] % (1 << 64)

    def alive(self):
        return self.process.poll() is None

    def rss_bytes(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) * 1024

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def kill(self):
        self.killed = True
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self):
        """Ends it; kvferry's must end well, unless it was killed."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            code = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the engine does not end") from None
        finally:
            self.process.stdout.close()
        if KVFERRY_HOST in self.command and not self.killed and code != 0:
            raise AssertionError(f"the engine ended with {code}")


class Case(unittest.TestCase):
    def setUp(self):
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.mkdtemp(prefix="kvferry-mooncake-", dir=shared)
        self.addCleanup(shutil.rmtree, self.folder)
        self.shift = 0

    def engine(self, command, **options):
        engine = Engine(command, **options)
        self.addCleanup(engine.end)
        return engine

    def region(self, engine, size, register=True):
        self.shift += 1
        region = Region(self.folder, size, self.shift)
        region.address = engine.map(region)
        if register:
            engine.must("register", address=region.address, bytes=size)
        return region

    def remap(self, engine, region):
        """The region for an engine that took another's place."""
        region.address = engine.map(region)
        engine.must("register", address=region.address, bytes=region.size)

    def own_target(self, size=1 << 20, address=0x7F1200000000, **habits):
        """A target of this process, with one buffer; returns it and the buffer's bytes."""
        memory, data = peer.Memory(), bytearray(noise(size, 77))
        memory.map(address, data)
        memory.register(address, size)
        target = peer.Target(memory, habits=peer.Habits(**habits))
        self.addCleanup(target.close)
        return target, data

    def right(self, *regions):
        for number, region in enumerate(regions):
            self.assertIsNone(region.wrong(), f"region {number} differs at this byte")


def moved(write, local, remote, ranges):
    """Applies ranges (local offset, remote offset, size) to the models; returns them as addresses."""
    for here, there, size in ranges:
        if write:
            remote.model[there:there + size] = local.model[here:here + size]
        else:
            local.model[here:here + size] = remote.model[there:there + size]
    return [[local.address + here, remote.address + there, size] for here, there, size in ranges]
