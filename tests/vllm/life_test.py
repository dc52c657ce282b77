#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Lives of requests between kvferry's workers and the Python peer: waiting, batches, failures, deaths, restarts."""
import signal
import time
import unittest

import numpy

import arithmetic
import peer
import wire
from lives import Lives
from model import Instance, Model
from scene import BOTH, CONSUMES, Case, KvferryConsumers, KvferryProducers, PRODUCES, PythonConsumers, PythonProducers

SOON = peer.PATIENCE / 2
IMPATIENT = {"abort_timeout_s": 2, "slack_s": 0.1}


class BothWays(Lives, Case):
    pairs = [PRODUCES, CONSUMES, BOTH]


class Messages(Case):
    """What is said, to the letter."""

    def test_requests(self):
        """All arrays, in order; the second one without them."""
        for more in ({}, {"layout_ids": 0}):
            model = Model(groups=[[0, 2], [1, 3]])
            producers = PythonProducers(self, Instance(model, "p", pp=2, tp=2))
            consumers = KvferryConsumers(self, Instance(model, "d", overlay=True, order="BLHNC"), **more)
            moves = [self.move(producers, consumers) for _ in range(2)]
            ready, rank = consumers.ranks[0].ready, consumers.plain[0]
            host, port = ready["segment"].rsplit(":", 1)
            pull = {**rank.pull(rank.moved(ready["memory"])), "hostname": host, "port": int(port)}
            self.assertEqual(port, str(ready["rpc_port"]))
            layout = 0 if more else ready["layout_id"]
            self.assertEqual(layout % 2, 0 if more else 1)
            for worker in producers.ranks:
                found = [data.hex() for data in worker.asked]
                wanted = [wire.request(pull, {move.d_req: (move.transfer, move.dst)}, layout, whole=bool(more) or
                                       move is moves[0]).hex() for move in moves]
                self.assertEqual(found, wanted)
            self.right(consumers, moves)
            self.again()

    def test_answers(self):
        """FINISH, CONTINUE, ERROR, LAYOUT_MISS byte for byte."""
        model = Model()
        producers = KvferryProducers(self, Instance(model, "p"), abort_timeout_s=2)
        consumers = PythonConsumers(self, Instance(model, "d"))
        rank = consumers.ranks[0]
        good, few, late = [self.plan(producers, consumers, 3, wants=wants) for wants in (3, 4, 3)]
        for move in (good, few):
            producers.offer(move)
        for move in (good, few, late):
            consumers.request(producers, move)
        consumers.success(good)
        for move in (few, late):
            consumers.failure(move)
        name, text = rank.described["hostname"], "P num blocks less than D"
        ways = [wire.reply(wire.FINISH, ok_reqs=[good.d_req], layout_id=rank.layout),
                wire.reply(wire.FINISH, err_reqs=[few.d_req], err_msg=text, layout_id=rank.layout),
                wire.reply(wire.FINISH, err_reqs=[late.d_req], err_msg="Timeout waiting for P side ready.",
                           layout_id=rank.layout)]
        self.assertEqual(sorted(rank.replies), sorted(ways))
        rank.replies.clear()
        one, two = [self.plan(producers, consumers) for _ in range(2)]
        producers.offer(one)
        consumers.request(producers, one, two)
        consumers.success(one)
        producers.offer(two)
        consumers.success(two)
        self.assertEqual(rank.replies, [wire.reply(wire.CONTINUE, ok_reqs=[one.d_req], layout_id=rank.layout),
                                        wire.reply(wire.FINISH, ok_reqs=[two.d_req], layout_id=rank.layout)])
        rank.replies.clear()
        rank.layout = 0x1122334455667789
        rank.ask(lambda: rank.acknowledged.add(producers.ranks[0].ready["side_channel"]))
        after = self.move(producers, consumers)
        self.assertEqual(rank.replies, [
            wire.reply(wire.LAYOUT_MISS, err_msg="Mooncake KV layout 0x1122334455667789 from %s:%d is not cached."
                       % (name, rank.described["port"])),
            wire.reply(wire.FINISH, ok_reqs=[after.d_req], layout_id=rank.layout)])
        self.right(consumers, [good, one, two, after])

    def test_descriptors_are_upstreams(self):
        """The writes that arrive: those of the arithmetic, none else."""
        for src, dst in (({"tp": 2}, {"tp": 4}), ({"order": "BLHNC"}, {"order": "BLHNC"}), ({"pp": 2}, {})):
            model = Model()
            producers = KvferryProducers(self, Instance(model, "p", **src))
            consumers = PythonConsumers(self, Instance(model, "d", **dst))
            move = self.move(producers, consumers, 6)
            for rank in consumers.ranks:
                wanted = []
                for plain in producers.plain:
                    facts = arithmetic.Producer(plain.producer())
                    if facts.refuse(rank.described) is None:
                        local, remote, _ = facts.prepare(rank.described)
                        wanted += facts.descriptors(local, remote, rank.described, move.src, move.dst)[0]
                found = [(address, size) for opcode, address, size, _ in rank.target.requests if opcode & 0x7f]
                self.assertEqual(cover(found), cover([(to, size) for _, to, size in wanted]))
            self.again()

    def test_a_release_moves_nothing(self):
        """And the word of it carries no arrays that are not there."""
        model = Model()
        producers = PythonProducers(self, Instance(model, "p"))
        consumers = KvferryConsumers(self, Instance(model, "d"))
        move = self.plan(producers, consumers)._replace(dst=[])
        producers.offer(move)
        consumers.request(producers, move)
        producers.released(move)
        request = producers.ranks[0].requests[0]
        self.assertEqual(request["req_blocks"], {move.d_req: [move.transfer, []]})
        self.right(consumers, [])


def cover(rows):
    """Ranges, sorted and joined."""
    out = []
    for start, size in sorted(rows):
        if out and out[-1][1] == start:
            out[-1][1] += size
        else:
            out.append([start, start + size])
    return out


class Producing(Case):
    """kvferry's producer, and consumers that fail."""

    def sides(self, src=None, dst=None, **endpoint):
        model = Model()
        producers = KvferryProducers(self, Instance(model, "p", **(src or {})), **endpoint)
        return producers, PythonConsumers(self, Instance(model, "d", **(dst or {})))

    def good(self, producers, consumers, *moves):
        """Another one is served, and all these bytes are right."""
        self.right(consumers, [*moves, self.move(producers, consumers)])

    def test_a_pull_that_comes_twice_counts_once(self):
        """16.6: two consumers are expected, not two pulls."""
        producers, consumers = self.sides(dst={"tp": 2})
        move, worker = self.plan(producers, consumers), producers.ranks[0]
        producers.offer(move)
        for _ in range(3):
            consumers.request(producers, move, only=[0])
        consumers.ranks[0].until(lambda: len(consumers.ranks[0].replies) == 3, "answers")
        after = self.move(producers, consumers)
        self.assertFalse(worker.all("released", req_id=move.p_req))
        consumers.request(producers, move, only=[1])
        consumers.success(move)
        producers.released(move)
        self.right(consumers, [move, after])

    def test_a_pull_that_comes_twice_while_it_waits(self):
        producers, consumers = self.sides()
        move = self.plan(producers, consumers)
        for _ in range(2):
            consumers.request(producers, move)
        producers.asked(move, 2)
        producers.offer(move)
        consumers.success(move)
        producers.released(move)
        self.good(producers, consumers, move)

    def test_a_consumer_that_is_gone(self):
        """Before the bytes: nothing is written, the blocks are given back in time, others are served."""
        producers, consumers = self.sides(abort_timeout_s=2)
        gone = PythonConsumers(self, Instance(Model(), "gone"))
        move, worker = self.plan(producers, gone), producers.ranks[0]
        gone.request(producers, move)
        producers.asked(move)
        gone.ranks[0].close()
        producers.offer(move)
        worker.event("send_failed")
        self.good(producers, consumers)
        worker.event("expired", req_id=move.p_req)

    def test_a_data_connection_that_is_cut(self):
        """In the middle of the bytes, at the status, or at once: an error for that request, not for the next."""
        producers, consumers = self.sides()
        rank, target = consumers.ranks[0], consumers.ranks[0].target

        def half(link, size, address, opcode):
            peer.engine.take(link, size // 2)
            return True

        def unanswered(link, size, address, opcode):
            peer.engine.take(link, size)
            return True
        for hook in (half, unanswered, lambda *_: True):
            target.habits.request = hook
            move = self.plan(producers, consumers)
            producers.offer(move)
            consumers.request(producers, move)
            self.assertIn("Mooncake transfer engine returned", consumers.failure(move)[0])
            target.habits.request = None
            target.data.cut()
            rank.bytes[:] = peer.pattern.GUARD
            self.good(producers, consumers)
            rank.bytes[:] = peer.pattern.GUARD

    def test_a_data_connection_that_stalls(self):
        """Others are served meanwhile; it ends when the connection does."""
        producers, consumers = self.sides()
        stalled = PythonConsumers(self, Instance(Model(), "stalled"))
        target, hold = stalled.ranks[0].target, peer.threading.Event()
        self.addCleanup(hold.set)
        target.habits.request = lambda *_: hold.wait(peer.PATIENCE) or True
        moves = [self.plan(producers, stalled) for _ in range(12)]
        for move in moves:
            producers.offer(move)
            stalled.request(producers, move)
        self.good(producers, consumers)
        hold.set()
        target.data.cut()
        for move in moves:
            self.assertIn("Mooncake transfer engine returned", stalled.failure(move)[0])

    def test_memory_that_was_not_registered(self):
        """The consumer's descriptor says what may be written."""
        producers, consumers = self.sides()
        rank = consumers.ranks[0]
        base = rank.rank.storages[0]["base"]
        rank.memory.unregister(base)
        rank.memory.register(4096, 4096)
        move = self.plan(producers, consumers)
        producers.offer(move)
        consumers.request(producers, move)
        consumers.failure(move)
        self.assertFalse([row for row in rank.target.requests if row[0] & 0x7f])
        rank.memory.register(base, rank.rank.storages[0]["bytes"])
        self.good(producers, consumers)

    def test_a_transfer_that_will_not_be_sent(self):
        """A pull that waits for it is told at once (16.2); so is one that comes later, or it waits its time."""
        producers, consumers = self.sides()
        move = self.plan(producers, consumers)
        consumers.request(producers, move)
        producers.asked(move)
        producers.drop(move)
        consumers.failure(move, SOON)
        self.good(producers, consumers)

    def test_blocks_that_nobody_fetches(self):
        producers, consumers = self.sides(abort_timeout_s=2)
        move = self.plan(producers, consumers)
        producers.offer(move)
        producers.ranks[0].event("expired", req_id=move.p_req)
        self.good(producers, consumers)

    def test_consumers_that_come_back(self):
        """At the same place with memory elsewhere: what was known of it does not count any more."""
        for generation in (33, 32):
            producers, _ = self.sides()
            model, ports = Model(), (0, 0)
            for number in range(3):
                instance = Instance(model, "d", blocks=32 + 8 * number, order=("LBHNC", "BLHNC")[number % 2])
                consumers = PythonConsumers(self, instance, generation=generation, ports=ports)
                target = consumers.ranks[0].target
                ports = target.handshake.port, target.data.port
                self.good(producers, consumers)
                consumers.ranks[0].close()
            self.again()

    def test_a_consumer_that_is_killed(self):
        """kill -9 of kvferry's, while its pull waits."""
        producers, consumers = self.sides(abort_timeout_s=2)
        killed = KvferryConsumers(self, Instance(Model(), "killed"))
        move = self.plan(producers, killed)
        killed.request(producers, move)
        producers.asked(move)
        killed.ranks[0].kill()
        producers.offer(move)
        producers.ranks[0].event("expired", req_id=move.p_req)
        self.good(producers, consumers)


class Consuming(Case):
    """kvferry's consumer, and producers that fail."""

    def sides(self, src=None, dst=None, **endpoint):
        model = Model()
        producers = PythonProducers(self, Instance(model, "p", **(src or {})))
        return producers, KvferryConsumers(self, Instance(model, "d", **(dst or {})), **endpoint)

    def good(self, producers, consumers, *moves):
        self.right(consumers, [*moves, self.move(producers, consumers)])

    def test_an_answer_that_is_lost(self):
        """Failed in time; its blocks are free when the producer has spoken after all."""
        producers, consumers = self.sides(**IMPATIENT)
        rank, worker, kept = producers.ranks[0], consumers.ranks[0], []
        rank.say = lambda identity, data: kept.append((identity, data)) or []
        move = self.plan(producers, consumers)
        producers.offer(move)
        consumers.request(producers, move)
        worker.event("failed", req_id=move.d_req)
        rank.say = lambda identity, data: [data]
        self.good(producers, consumers, move)
        self.assertFalse(worker.all("settled", req_id=move.d_req))
        rank.ask(lambda: rank.router.send_multipart(list(kept[0])))
        worker.event("settled", req_id=move.d_req)
        self.assertFalse(worker.all("received", req_id=move.d_req))

    def test_a_consumer_that_was_stopped(self):
        """What came while its process was stopped, past all deadlines, came in time."""
        producers, consumers = self.sides(**IMPATIENT)
        rank, worker, kept = producers.ranks[0], consumers.ranks[0], []
        rank.say = lambda identity, data: kept.append((identity, data)) or []
        move = self.plan(producers, consumers)
        producers.offer(move)
        consumers.request(producers, move)
        while not kept:  # until its bytes are there; the case has a time limit
            time.sleep(0.01)
        worker.popen.send_signal(signal.SIGSTOP)
        rank.ask(lambda: rank.router.send_multipart(list(kept[0])))
        time.sleep(IMPATIENT["abort_timeout_s"] + IMPATIENT["slack_s"] + 1.5)
        worker.popen.send_signal(signal.SIGCONT)
        consumers.success(move)
        rank.say = lambda identity, data: [data]
        self.good(producers, consumers, move)

    def test_answers_that_are_doubled(self):
        producers, consumers = self.sides(src={"tp": 2})
        for rank in producers.ranks:
            rank.say = lambda identity, data: [data, data]
        moves = [self.move(producers, consumers) for _ in range(3)]
        # a doubled CONTINUE must not stand for the other request
        producers.ranks[1].say = lambda identity, data: [data]
        one, two = [self.plan(producers, consumers) for _ in range(2)]
        producers.offer(one)
        consumers.request(producers, one, two)
        consumers.success(one)
        self.assertFalse(consumers.ranks[0].all(("received", "failed"), req_id=two.d_req))
        producers.offer(two)
        consumers.success(two)
        self.right(consumers, [*moves, one, two])
        self.assertEqual(len(consumers.ranks[0].all("received")), 5)
        consumers.end()

    def test_answers_that_are_none(self):
        """Unreadable, of a status that is none, of strangers' requests, without the request."""
        producers, consumers = self.sides()
        rank = producers.ranks[0]
        for bad, text in [(b"", ""), (b"\xc1", ""), (b"\x80", ""), (wire.reply(0, ok_reqs=["other"]), ""),
                          (wire.reply(0), "peer finished without reporting a transfer result"),
                          (wire.reply(2), "transfer error"), (wire.reply(2, err_msg="so it is"), "so it is"),
                          (wire.reply(9), ""), (wire.reply(3), ""), (b"\x92\x00\x00" * 9000, "")]:
            rank.say = lambda identity, data: [bad]
            move = self.plan(producers, consumers)
            producers.offer(move)
            consumers.request(producers, move)
            self.assertIn(text, consumers.failure(move, settled=False)[0])
        rank.say = lambda identity, data: [data]
        move = self.move(producers, consumers)
        self.assertFalse(consumers.ranks[0].all("received", req_id=None))
        self.assertTrue(consumers.ranks[0].all("received", req_id=move.d_req))

    def test_one_of_two_fails(self):
        """Told when it is known; its blocks are free when the other producer has ended too."""
        producers, consumers = self.sides(src={"tp": 2})
        worker, (bad, slow) = consumers.ranks[0], producers.ranks
        bad.write = lambda session, moves: 7
        go = peer.threading.Event()
        self.addCleanup(go.set)
        slow.write = lambda session, moves: go.wait(peer.PATIENCE) and slow._write(session, moves)
        move = self.plan(producers, consumers)
        producers.offer(move)
        consumers.request(producers, move)
        self.assertIn("Mooncake transfer engine returned 7", worker.event("failed", req_id=move.d_req)["text"])
        bad.write = bad._write
        self.assertFalse(worker.all("settled", req_id=move.d_req))
        go.set()
        worker.event("settled", req_id=move.d_req)
        self.assertEqual(len(worker.all(("failed", "received", "settled"), req_id=move.d_req)), 2)

    def test_a_write_that_stalls(self):
        """Half of the bytes, then nothing: failed, and not settled before that connection is gone."""
        producers, consumers = self.sides(**IMPATIENT)
        rank, worker, links, go = producers.ranks[0], consumers.ranks[0], [], peer.threading.Event()
        self.addCleanup(go.set)

        def write(session, moves):
            _, address, size = moves[0]
            link = peer.engine.Lane(rank.initiator.segment(session)[0])
            links.append(link)
            link.link.sendall(peer.engine.HEADER.pack(size, address, 0x81, bytes(7)) + bytes(size // 2))
            go.wait(peer.PATIENCE)
            return 1
        rank.write = write
        move = self.plan(producers, consumers)
        producers.offer(move)
        consumers.request(producers, move)
        worker.event("failed", req_id=move.d_req)
        rank.write = rank._write
        other = self.move(producers, consumers)
        self.assertFalse(worker.all("settled", req_id=move.d_req))
        links[0].close()
        go.set()
        worker.event("settled", req_id=move.d_req)
        consumers.success(other)

    def test_a_producer_that_is_gone(self):
        """Before it answers: failed in time, and settled in time."""
        producers, consumers = self.sides(settle_timeout_s=2, **IMPATIENT)
        good = PythonProducers(self, Instance(Model(), "p"))
        move = self.plan(producers, consumers)
        consumers.request(producers, move)
        producers.asked(move)
        producers.ranks[0].close()
        self.good(good, consumers)
        consumers.failure(move)

    def test_a_producer_that_is_killed(self):
        """kill -9 of kvferry's."""
        _, consumers = self.sides(settle_timeout_s=2, **IMPATIENT)
        killed = KvferryProducers(self, Instance(Model(), "p"))
        moved = self.move(killed, consumers)
        move = self.plan(killed, consumers)
        consumers.request(killed, move)
        killed.asked(move, 2)
        killed.ranks[0].kill()
        good = PythonProducers(self, Instance(Model(), "p"))
        self.good(good, consumers, moved)
        consumers.failure(move)

    def test_producers_that_come_back(self):
        """At the same address with another engine id: asked by the new id, and sent the arrays again."""
        model, registry, port = Model(), self.registry(), 0
        consumers = KvferryConsumers(self, Instance(model, "d"))
        moves = []
        for _ in range(3):
            registry.forget()
            producers = PythonProducers(self, Instance(model, "p"), registry, port=port)
            moves += [self.move(producers, consumers) for _ in range(2)]
            self.right(consumers, moves)
            port = int(producers.ranks[0].address.rsplit(":", 1)[1])
            producers.ranks[0].close()

    def test_producers_with_a_registry_of_their_own_come_back(self):
        """kvferry's, killed and started anew where it was."""
        model, consumers, more, moves = Model(), [], {}, []
        for kind in (PythonConsumers, KvferryConsumers):
            consumers.append(kind(self, Instance(model, "d")))
        for _ in range(2):
            producers = KvferryProducers(self, Instance(model, "p", tp=2), serve=True, **more)
            moves.append([self.move(producers, other, first="request") for other in consumers])
            for number, other in enumerate(consumers):
                self.right(other, [row[number] for row in moves])
            for worker in producers.ranks:
                worker.kill()

    def test_a_producer_that_has_forgotten_layouts(self):
        """kvferry's, started anew at the same address: it says so, and is sent the arrays."""
        model, port = Model(), 0
        consumers = PythonConsumers(self, Instance(model, "d"))
        rank, moves = consumers.ranks[0], []
        for number in range(3):
            producers = KvferryProducers(self, Instance(model, "p"), side_port=port)
            moves += [self.move(producers, consumers) for _ in range(2)]
            self.assertEqual(rank.misses, number)
            address = producers.ranks[0].ready["side_channel"]
            self.assertIn(address, rank.acknowledged)
            port = int(address.rsplit(":", 1)[1])
            producers.ranks[0].kill()
        self.right(consumers, moves)

    def test_the_blocks_are_named(self):
        """What failed is told with its transfer, and guards stay where nothing was written."""
        producers, consumers = self.sides()
        move = self.plan(producers, consumers, 2, wants=4)
        producers.offer(move)
        consumers.request(producers, move)
        consumers.failure(move)
        self.assertTrue((numpy.asarray(consumers.memory(0)) == peer.pattern.GUARD).all())
        worker = consumers.ranks[0]
        self.assertEqual(worker.all("failed")[0]["transfer_id"], move.transfer)
        over = worker.event("finished")
        self.assertEqual(over["finished_recving"], [move.d_req])
        self.assertEqual(over["invalid_blocks"], sorted(move.dst[0]))
        self.assertNotIn("failed_recving", over)

    def test_requests_are_named_where_blocks_say_too_little(self):
        """With several groups a block id means nothing alone."""
        model = Model(groups=[[0, 1], [2, 3]])
        producers = PythonProducers(self, Instance(model, "p"))
        consumers = KvferryConsumers(self, Instance(model, "d"))
        good = self.move(producers, consumers)
        bad = self.plan(producers, consumers, 2, wants=[2, 3])
        producers.offer(bad)
        consumers.request(producers, bad)
        consumers.failure(bad)
        worker = consumers.ranks[0]
        worker.until(lambda: len(worker.all("finished")) == 2, "what is over")
        over = worker.all("finished")
        self.assertEqual([row["finished_recving"] for row in over], [[good.d_req], [bad.d_req]])
        self.assertEqual(over[1]["failed_recving"], [bad.d_req])
        self.assertNotIn("invalid_blocks", over[1])


if __name__ == "__main__":
    unittest.main()
