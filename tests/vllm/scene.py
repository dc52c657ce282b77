#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Engines of either kind, kvferry's workers or the Python peer, behind one set of calls; and what tests look at.

KVFERRY names the command under test. Nothing sleeps: a test waits for a line, a message or an end.
"""
import collections
import ctypes
import os
import sys
import tempfile
import unittest
from pathlib import Path

import numpy

import pattern
import peer
from model import Rank
from registry import PATIENCE, Registry

sys.path.append(str(Path(__file__).resolve().parents[1]))
from spoken import KVFERRY, SpokenWorker  # noqa: E402

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.process_vm_writev.restype = LIBC.process_vm_readv.restype = ctypes.c_ssize_t
PEER_ONLY = not os.environ.get("KVFERRY")


def vm(call, pid, address, array):
    """Copies a whole array from or to a process."""
    own = numpy.array([array.ctypes.data, array.nbytes], numpy.uint64)
    other = numpy.array([address, array.nbytes], numpy.uint64)
    done = call(ctypes.c_int(pid), ctypes.c_void_p(own.ctypes.data), ctypes.c_ulong(1),
                ctypes.c_void_p(other.ctypes.data), ctypes.c_ulong(1), ctypes.c_ulong(0))
    if done != array.nbytes:
        raise OSError(ctypes.get_errno(), "%d of %d bytes" % (done, array.nbytes))


class Worker(SpokenWorker):
    """One `kvferry vllm worker`."""

    def __init__(self, folder, role, rank, endpoint, **members):
        self.rank = rank
        spec = {"memory": [[storage["base"], storage["bytes"]] for storage in rank.storages],
                "endpoint": {"host": "127.0.0.1", "pp_rank": rank.pp_rank, **endpoint}, "requests": "-"}
        if role == "producer":
            spec["producer"] = rank.producer()
        else:
            spec["pull"] = rank.pull()
            spec["facts"] = rank.facts
        for key, value in members.items():
            spec[key] = {**spec[key], **value} if isinstance(value, dict) and key in spec else value
        super().__init__("%s%d" % (rank.instance.name, rank.number), "vllm", role, spec, Path(folder) / "spec.json",
                         PATIENCE)

    def read(self):
        """All memory as it is now, in the order of the allocations."""
        out = numpy.empty(self.rank.bytes, numpy.uint8)
        for start, (base, size) in zip(self.rank.starts, self.ready["memory"]):
            vm(LIBC.process_vm_readv, self.popen.pid, base, out[start:start + size])
        return out

    def write(self, memory):
        for start, (base, size) in zip(self.rank.starts, self.ready["memory"]):
            vm(LIBC.process_vm_writev, self.popen.pid, base, memory[start:start + size])


class Side:
    """An engine's ranks."""

    def __init__(self, instance):
        self.instance = instance
        self.plain = [Rank(instance, number) for number in range(instance.size)]

    def each(self):
        return zip(self.ranks, self.plain)


class Engines(Side):
    """What producers of either kind are."""
    numbers = 0

    def __init__(self, case, instance, registry=None, engine_id=None):
        super().__init__(instance)
        Engines.numbers += 1
        self.engine_id = engine_id or "engine-%d" % Engines.numbers
        self.registry = registry or case.registry()


class PythonProducers(Engines):
    kvferry, soon = False, {"patience": 2}

    def __init__(self, case, instance, registry=None, engine_id=None, **options):
        super().__init__(case, instance, registry, engine_id)
        self.bootstrap = self.registry.url
        self.ranks = [peer.Producer(rank, self.engine_id, self.bootstrap, **options) for rank in self.plain]
        for rank in self.ranks:
            case.addCleanup(rank.close)

    def paint(self, move):
        for rank, plain in self.each():
            pattern.paint(plain, rank.bytes, move.transfer, move.src)

    def offer(self, move):
        self.paint(move)
        for rank in self.ranks:
            rank.offer(move.transfer, move.p_req, move.src)

    def expect(self, move):
        """The request is known, its blocks are not."""
        for rank in self.ranks:
            rank.offer(move.transfer, move.p_req, None)

    def drop(self, move):
        for rank in self.ranks:
            rank.drop(move.transfer)

    def released(self, move, seconds=PATIENCE):
        for rank in self.ranks:
            rank.until(lambda: move.p_req in rank.finished, "release of %s" % move.p_req, seconds)

    def asked(self, move, count=1):
        """Waits until each rank was asked so often for a transfer."""
        for rank in self.ranks:
            rank.until(lambda: sum(row[0] == move.transfer for request in rank.requests
                                   for row in request["req_blocks"].values()) >= count, "pull of " + move.transfer)

    def end(self):
        for rank in self.ranks:
            assert not rank.surprises, rank.surprises


class KvferryProducers(Engines):
    kvferry, soon = True, {"abort_timeout_s": 2}

    def __init__(self, case, instance, registry=None, engine_id=None, serve=False, members=None, each=None,
                 **endpoint):
        super().__init__(case, instance, registry, engine_id)
        self.ranks, self.bootstrap, self.bytes = [], self.registry.url, []
        for plain in self.plain:
            where = {"serve_bootstrap": True} if serve and not self.ranks else {"bootstrap": self.bootstrap}
            own = each[plain.number] if each else {}
            worker = case.worker("producer", plain, {"engine_id": self.engine_id, **where, **endpoint, **own},
                                 **(members or {}))
            self.ranks.append(worker)
            if serve and len(self.ranks) == 1:
                self.bootstrap = worker.ready["bootstrap"]
            self.bytes.append(pattern.source(plain))
        for worker, memory in zip(self.ranks, self.bytes):
            worker.write(memory)

    def paint(self, move):
        for (worker, plain), memory in zip(self.each(), self.bytes):
            pattern.paint(plain, memory, move.transfer, move.src)
            worker.write(memory)

    def say(self, move):
        for worker in self.ranks:
            worker.say(transfer_id=move.transfer, p_req_id=move.p_req, block_ids=move.src)

    def offer(self, move):
        self.paint(move)
        self.say(move)

    def drop(self, move):
        for worker in self.ranks:
            worker.say(not_processed=move.transfer)

    def released(self, move, seconds=PATIENCE):
        for worker in self.ranks:
            worker.event(("released", "expired"), seconds, req_id=move.p_req)

    def asked(self, move, count=1):
        """Waits until pulls of so many requests came in all."""
        for worker in self.ranks:
            worker.until(lambda: sum(event["requests"] for event in worker.all("pull")) >= count, "pulls")

    def end(self, code=0):
        for worker in self.ranks:
            worker.hurry()
        for worker in self.ranks:
            worker.end(code)


class PythonConsumers(Side):
    kvferry = False

    def __init__(self, case, instance, **options):
        super().__init__(instance)
        self.ranks = [peer.Consumer(rank, **options) for rank in self.plain]
        for rank in self.ranks:
            case.addCleanup(rank.close)

    def request(self, producers, *moves, only=None):
        """One batch."""
        for rank in self.ranks if only is None else [self.ranks[number] for number in only]:
            rank.fetch(producers.engine_id, producers.bootstrap,
                       {move.d_req: (move.transfer, move.dst) for move in moves})

    def success(self, move):
        for rank in self.ranks:
            rank.until(lambda: move.d_req in rank.finished or move.d_req in rank.failed, "end of " + move.d_req)
            if move.d_req in rank.failed:
                raise AssertionError("%s failed: %s" % (move.d_req, rank.failed[move.d_req]))

    def failure(self, move, seconds=PATIENCE):
        """Waits until it failed everywhere, and has ended; returns the texts."""
        for rank in self.ranks:
            rank.until(lambda: move.d_req in rank.failed and not rank.fetches[move.d_req].left,
                       "failure of " + move.d_req, seconds)
        return [rank.failed[move.d_req] for rank in self.ranks]

    def memory(self, number):
        return self.ranks[number].bytes.copy()

    def end(self):
        for rank in self.ranks:
            assert not rank.surprises, rank.surprises


class KvferryConsumers(Side):
    kvferry = True

    def __init__(self, case, instance, members=None, **endpoint):
        super().__init__(instance)
        self.ranks = [case.worker("consumer", plain, endpoint, **(members or {})) for plain in self.plain]
        for worker, plain in self.each():
            worker.write(pattern.destination(plain))

    def request(self, producers, *moves, only=None):
        for worker in self.ranks if only is None else [self.ranks[number] for number in only]:
            for move in moves:
                worker.say(d_req_id=move.d_req, transfer_id=move.transfer, block_ids=move.dst,
                           remote_engine_id=producers.engine_id, remote_bootstrap_addr=producers.bootstrap)

    def success(self, move):
        for worker in self.ranks:
            event = worker.event(("received", "failed", "refused"), req_id=move.d_req)
            if event["event"] != "received":
                raise AssertionError("%s: %s" % (event, worker))

    def failure(self, move, seconds=PATIENCE, settled=True):
        out = []
        for worker in self.ranks:
            out.append(worker.event("failed", seconds, req_id=move.d_req).get("text", ""))
            if settled:
                worker.event("settled", seconds, req_id=move.d_req)
        return out

    def memory(self, number):
        return self.ranks[number].read()

    def end(self, code=0):
        for worker in self.ranks:
            worker.hurry()
        for worker in self.ranks:
            worker.end(code)


Move = collections.namedtuple("Move", "transfer p_req d_req src dst has")
Pair = collections.namedtuple("Pair", "name producers consumers")
PYTHON = Pair("peer to peer", PythonProducers, PythonConsumers)
PRODUCES = Pair("kvferry produces", KvferryProducers, PythonConsumers)
CONSUMES = Pair("kvferry consumes", PythonProducers, KvferryConsumers)
BOTH = Pair("kvferry to kvferry", KvferryProducers, KvferryConsumers)


class Case(unittest.TestCase):
    """A test with a scratch folder, workers and peers that end with it."""

    transfers = 0

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="kvferry-vllm-")
        self.addCleanup(self.scratch.cleanup)

    def registry(self, **options):
        registry = Registry(**options)
        self.addCleanup(registry.close)
        return registry

    def worker(self, role, rank, endpoint, **members):
        worker = Worker(tempfile.mkdtemp(dir=self.scratch.name), role, rank, endpoint, **members)
        self.addCleanup(self.clear, worker)
        return worker

    @staticmethod
    def clear(worker):
        worker.kill()
        worker.end(None)
        if any("Sanitizer" in line for line in worker.log):
            raise AssertionError("\n".join(worker.log[-60:]))

    def plan(self, producers, consumers, count=3, wants=None, has=None, rows=False):
        """Draws the blocks of a request of `count` blocks; the consumer wants the last `wants` of them. Both may be
        lists, one number per group. `has`: layers that the producer's side can fill, None = all. `rows`: neighbours."""
        Case.transfers += 1
        groups = len(producers.instance.model.groups)
        counts = count if isinstance(count, list) else [count] * groups
        wants = counts if wants is None else wants if isinstance(wants, list) else [wants] * groups
        name = "%d-%s" % (Case.transfers, producers.instance.name)
        draw = (lambda instance, number, group: instance.row(number, group)) if rows else \
            (lambda instance, number, group: instance.take(number, group))
        return Move("xfer-" + name, "p-req-" + name, "d-req-" + name,
                    [draw(producers.instance, number, group) for group, number in enumerate(counts)],
                    [draw(consumers.instance, number, group) for group, number in enumerate(wants)], has)

    def problems(self, consumers, moves):
        """Lines about every byte of every rank that is not what it must be."""
        out = []
        for number, rank in enumerate(consumers.plain):
            wanted = pattern.destination(rank)
            may = numpy.zeros(rank.bytes, bool)
            for move in moves:
                first = [len(src) - len(dst) for src, dst in zip(move.src, move.dst)]
                pattern.paint(rank, wanted, move.transfer, move.dst, first, move.has)
                may |= pattern.loose(rank, move.dst)
            out += pattern.differences(rank, consumers.memory(number), wanted, may)
        return out

    def right(self, consumers, moves):
        problems = self.problems(consumers, moves)
        self.assertFalse(problems, "\n".join(problems[:30]))

    def move(self, producers, consumers, count=3, first="offer", release=True, **names):
        """One request from offer to the last word, without a look at the bytes. `first` is who begins."""
        move = self.plan(producers, consumers, count, **names)
        steps = [lambda: producers.offer(move), lambda: consumers.request(producers, move)]
        for step in steps if first == "offer" else reversed(steps):
            step()
        consumers.success(move)
        if release:
            producers.released(move)
        return move

    def again(self):
        """Ends what the test has so far."""
        self.doCleanups()
        self.setUp()
