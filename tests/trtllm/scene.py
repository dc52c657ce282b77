#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Instances of either kind, kvferry's workers or the Python peer, behind one set of calls; and what tests look at.

KVFERRY names the command under test. Nothing sleeps: a test waits for a line, a message or an end.
"""
import collections
import sys
import tempfile
import unittest
from pathlib import Path

import numpy

import pattern
import peer
from peer import PATIENCE

sys.path.append(str(Path(__file__).resolve().parents[1]))
from spoken import SpokenWorker  # noqa: E402


class Worker(SpokenWorker):
    """One `kvferry trtllm worker`."""

    def __init__(self, folder, instance, number, role, **members):
        self.instance, self.number, self.plain = instance, number, instance.rank(number)
        self.painter = pattern.Painter(instance, number)
        heads = 1 if instance.model.key_only else instance.model.heads
        spec = {{"context": "src", "generation": "dst"}[role]: self.plain, "kv_heads": heads, **members}
        name = "%s%d" % (instance.name, number)
        super().__init__(name, "trtllm", role, spec, Path(folder) / (name + ".json"), PATIENCE)

    def pools(self):
        """All pools as they are now, read out of the process."""
        return {(pool["group"], pool["pool"]): peer.get(self.popen.pid, pool["address"], pool["bytes"])
                for pool in self.ready["pools"]}

    def aux(self):
        return [peer.get(self.popen.pid, aux["address"], aux["bytes"]) if aux["bytes"] else numpy.zeros(0, numpy.uint8)
                for aux in self.ready["aux"]]


def complete(workers):
    """Gives all ranks of a context instance the sender endpoints of all."""
    endpoints = [worker.ready["sender"] for worker in workers]
    if len(workers) > 1 and workers[0].role == "context":
        for worker in workers:
            worker.say(complete={"sender_endpoints": endpoints})
    for worker in workers:
        worker.event("complete")


def pieces_of(instance, rank, tables, pieces):
    """The tables of each piece: what is outside of it is a hole; state and windowed groups go with the last one."""
    groups = instance.rank(rank)["table"]["groups"]
    for number, (start, end) in enumerate(pieces):
        last = number == len(pieces) - 1
        out = []
        for group, ids in enumerate(tables):
            whole = groups[group].get("window") or groups[group]["cache"] == "state"
            out.append([slot if (last if whole else (start <= ordinal * instance.model.tokens < end)) else -1
                        for ordinal, slot in enumerate(ids)])
        yield out, last


class Side:
    """What the four kinds have in common: each request has the ranks that take part in it."""

    def __init__(self, instance):
        self.instance, self.taking = instance, {}

    def take(self, rid, only):
        self.taking[rid] = list(range(self.instance.size)) if only is None else list(only)
        return self.of(rid)

    def of(self, rid):
        return [(number, self.ranks[number]) for number in self.taking[rid]]


class Peers(Side):
    """Ranks of the Python peer."""
    kvferry = False

    def cancel(self, rid):
        for _, rank in self.of(rid):
            rank.cancel(rid)

    def end(self, _=0):
        for rank in self.ranks:
            assert not rank.surprises, rank.surprises
            assert rank.memory.guards() == 0, "guard bytes were overwritten"


class Workers(Side):
    """Ranks of kvferry."""
    kvferry = True

    def __init__(self, case, instance, role, **members):
        super().__init__(instance)
        self.ranks = [case.worker(instance, number, role, **members) for number in range(instance.size)]
        complete(self.ranks)

    def cancel(self, rid):
        for _, rank in self.of(rid):
            rank.say(cancel=rid)

    def ended(self, rid, state, settled=True):
        """Waits until a request has ended so, and is settled; returns the first of these events."""
        found = [rank.event("ended", rid=rid) for _, rank in self.of(rid)]
        for event, (_, rank) in zip(found, self.of(rid)):
            assert event["state"] == state, "%s instead of %s: %s" % (event, state, rank)
            if settled:
                rank.event("settled", rid=rid)
        return found

    def success(self, rid):
        return self.ended(rid, "transferred")

    def end(self, code=0):
        for rank in self.ranks:
            rank.hurry()
        for rank in self.ranks:
            rank.end(code)


class PythonSenders(Peers):
    def __init__(self, case, instance, **names):
        super().__init__(instance)
        self.ranks = peer.contexts(instance, **names)
        self.info = self.ranks[0].info_endpoint
        self.waiting = {}
        for rank in self.ranks:
            case.addCleanup(rank.close)

    def offer(self, rid, prompt, tables, pieces=None, hold=False, aux_slot=None, only=None):
        """Has ranks send a request's blocks, or wait for `send` with each piece."""
        self.waiting[rid] = []
        for number, rank in self.take(rid, only):
            rank.paint(rid, tables[number], prompt)
            if aux_slot is not None:
                for buffer, item in enumerate(rank.plain["aux"]["item"]):
                    rank.memory.aux[buffer][item * aux_slot:item * (aux_slot + 1)] = \
                        pattern.aux_item(rid, buffer, item)
            parts = [(tables[number], True)]
            if pieces:
                parts = list(pieces_of(self.instance, number, tables[number], pieces))
            self.waiting[rid].append(parts)
        self.aux_slot, self.prompt = aux_slot, prompt
        for _ in range(0 if hold else len(pieces or [0])):
            self.send(rid)

    def send(self, rid):
        """The next piece."""
        for (_, rank), parts in zip(self.of(rid), self.waiting[rid]):
            part, last = parts.pop(0)
            rank.offer(rid, part, last, self.aux_slot, self.prompt)

    def success(self, rid):
        for _, rank in self.of(rid):
            rank.until(lambda: all(key in rank.sessions[rid].done for key in rank.asked(rid)), "done")

    def wait_asked(self, rid, count=1):
        """Waits until so many ranks have asked each rank."""
        for _, rank in enumerate(self.ranks):
            rank.until(lambda: len(rank.asked(rid)) >= count, "request %d" % rid)


class KvferrySenders(Workers):
    def __init__(self, case, instance, **members):
        super().__init__(case, instance, "context", **members)
        self.info = self.ranks[0].ready["info"]

    def offer(self, rid, prompt, tables, pieces=None, hold=False, aux_slot=None, only=None, **more):
        for number, rank in self.take(rid, only):
            line = {"rid": rid, "prompt": prompt, "blocks": tables[number], **more}
            if pieces:
                line["pieces"] = pieces
            if hold:
                line["hold"] = True
            if aux_slot is not None:
                line.update(schedule="generation-first", aux_slot=aux_slot)
            rank.say(**line)
        for _, rank in self.of(rid):
            rank.event(("accepted", "refused"), rid=rid)

    def send(self, rid):
        for _, rank in self.of(rid):
            rank.say(send=rid)


class PythonReceivers(Peers):
    def __init__(self, case, instance):
        super().__init__(instance)
        self.ranks = peer.generations(instance)
        for rank in self.ranks:
            case.addCleanup(rank.close)

    def request(self, info, rid, prompt, tables, aux_slot=None, dp_rank=0, start_token=None, only=None):
        for number, rank in self.take(rid, only):
            rank.request(info, rid, tables[number], aux_slot=aux_slot, dp_rank=dp_rank, start_token=start_token)

    def success(self, rid):
        for _, rank in self.of(rid):
            rank.success(rid)

    def settled(self, rid):
        """Every writer that was asked has said its last word, or that it is through with the request."""
        for _, rank in self.of(rid):
            rank.until(lambda: set(rank.ends(rid)) | rank.quiesced.get(rid, set()) >= set(rank.asked[rid]["writers"]),
                       "last words about %d" % rid)

    def pools(self, number):
        return self.ranks[number].memory.pools

    def aux(self, number):
        return self.ranks[number].memory.aux


class KvferryReceivers(Workers):
    def __init__(self, case, instance, **members):
        super().__init__(case, instance, "generation", **members)

    def request(self, info, rid, prompt, tables, aux_slot=None, dp_rank=0, start_token=None, only=None, **more):
        for number, rank in self.take(rid, only):
            line = {"rid": rid, "prompt": prompt, "blocks": tables[number], "info": info, "ctx_dp_rank": dp_rank,
                    **more}
            if start_token is not None:
                line["start_token"] = start_token
            if aux_slot is not None:
                line.update(schedule="generation-first", aux_slot=aux_slot)
            rank.say(**line)

    def pools(self, number):
        return self.ranks[number].pools()

    def aux(self, number):
        return self.ranks[number].aux()


Move = collections.namedtuple("Move", "rid prompt src dst wanted aux to source")


class Case(unittest.TestCase):
    """A test with a scratch folder, workers and peers that end with it."""

    rids = 1000

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="kvferry-trtllm-")
        self.addCleanup(self.scratch.cleanup)
        self.workers = []

    def worker(self, instance, number, role, **members):
        folder = tempfile.mkdtemp(dir=self.scratch.name)
        worker = Worker(folder, instance, number, role, **members)
        self.workers.append(worker)
        self.addCleanup(self.clear, worker)
        return worker

    @staticmethod
    def clear(worker):
        worker.hurry()
        worker.kill()
        worker.end(None)
        if any("Sanitizer" in line for line in worker.log):
            raise AssertionError("\n".join(worker.log[-60:]))

    @classmethod
    def rid(cls):
        cls.rids += 1
        return cls.rids

    def plan(self, senders, receivers, prompt, held=None, wants=None, aux=None, to=None):
        """Draws the block tables of a request for all ranks: `held` and `wants` say which ordinals of the prompt the
        sources have and the destinations want."""
        src = [senders.instance.blocks(rank, prompt, held) for rank in range(senders.instance.size)]
        dst = [receivers.instance.blocks(rank, prompt, wants) for rank in range(receivers.instance.size)]
        return Move(self.rid(), prompt, src, dst, held, aux, to, senders.instance)

    def expected(self, instance, number, moves):
        """What a destination rank's pools must hold after these requests, and the painter that can say why not."""
        painter = pattern.Painter(instance, number)
        pools = pattern.blank(painter.plain, pattern.GUARD)
        for move in moves:
            if move.to is not None and number not in move.to:
                continue

            def wanted(group, ordinal):
                cp = instance.place(number)[2]
                state = painter.plain["table"]["groups"][group]["cache"] == "state"
                return state or move.wanted is None or move.wanted(ordinal * instance.cp + cp)
            painter.paint(pools, move.rid, move.dst[number], move.prompt, wanted, move.source.ring)
        return painter, pools

    def problems(self, receivers, moves):
        """Lines about every byte of every destination rank that is not what it must be."""
        out = []
        for number in range(receivers.instance.size):
            painter, wanted = self.expected(receivers.instance, number, moves)
            out += ["%s%d %s" % (receivers.instance.name, number, line)
                    for line in pattern.differences(painter, receivers.pools(number), wanted)]
            out += self.aux_problems(receivers, number, moves)
        return out

    @staticmethod
    def aux_problems(receivers, number, moves):
        out, plain = [], receivers.instance.rank(number)
        if not plain["aux"]:
            return out
        for buffer, (item, found) in enumerate(zip(plain["aux"]["item"], receivers.aux(number))):
            wanted = numpy.full(plain["aux"]["size"][buffer], pattern.GUARD, numpy.uint8)
            for move in moves:
                if move.aux and (move.to is None or number in move.to):
                    size = move.source.rank(0)["aux"]["item"][buffer]
                    at = item * move.aux[1]
                    wanted[at:at + size] = pattern.aux_item(move.rid, buffer, size)
            if (found != wanted).any():
                out.append("%s%d: auxiliary buffer %d" % (receivers.instance.name, number, buffer))
        return out

    def right(self, receivers, moves):
        problems = self.problems(receivers, moves)
        self.assertFalse(problems, "\n".join(problems[:30]))

    def move(self, senders, receivers, prompt, first="offer", **names):
        """One request from offer to the last word, without a look at the bytes. `first` is who begins."""
        options = {key: names.pop(key) for key in ("pieces", "dp_rank", "start_token", "of") if key in names}
        move = self.plan(senders, receivers, prompt, **names)
        aux = move.aux or (None, None)

        def offer():
            senders.offer(move.rid, prompt, move.src, pieces=options.get("pieces"), aux_slot=aux[0],
                          only=options.get("of"))

        def request():
            receivers.request(senders.info, move.rid, prompt, move.dst, aux_slot=aux[1],
                              dp_rank=options.get("dp_rank", 0), start_token=options.get("start_token"),
                              only=move.to)
        for step in [offer, request] if first == "offer" else [request, offer]:
            step()
        receivers.success(move.rid)
        senders.success(move.rid)
        return move
