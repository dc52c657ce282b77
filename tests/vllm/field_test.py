#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What went wrong in public with vLLM's connectors, case by case: README.md says which test is for which."""
import os
import socket
import unittest

import numpy

import pattern
import peer
from model import Instance, Model, Rank
from scene import (BOTH, CONSUMES, Case, KvferryConsumers, KvferryProducers, PRODUCES, PythonConsumers,
                   PythonProducers)
from shapes import Shapes

SOON = peer.PATIENCE / 2
TINY = {"layers": 2, "heads": 4, "content": 32, "tokens": 16}


class Maps(Shapes, Case):
    """Which rank gets what."""
    pairs = [PRODUCES, CONSUMES]
    locals().update({name: None for name in dir(Shapes) if name.startswith("test")})

    def test_fr_001_more_ranks_than_heads(self):
        """Every head comes, from one of those who hold it; all eight ranks are released; and the other way round."""
        self.shape(TINY, {"tp": 8}, {"tp": 1}, ((3, None),))
        self.shape(TINY, {"tp": 1}, {"tp": 8}, ((3, None),))

    def test_fr_001_rows_of_layers(self):
        """Stock producers put these heads into wrong layers; ours does not."""
        self.pairs = [PRODUCES, BOTH]
        for heads, src, dst in ((4, 8, 1), (4, 8, 2), (2, 4, 1), (1, 4, 1), (4, 8, 4), (4, 4, 8)):
            self.shape({**TINY, "heads": heads}, {"tp": src, "order": "BLHNC"}, {"tp": dst, "order": "BLHNC"},
                       ((3, None), (4, 2)))

    def test_fr_001_bytes(self):
        """Three blocks, one head's bytes each from every second rank, at its own place."""
        producers = KvferryProducers(self, Instance(Model(**TINY), "p", tp=8))
        consumers = PythonConsumers(self, Instance(Model(**TINY), "d"))
        move = self.move(producers, consumers)
        rank = consumers.ranks[0]
        writes = [row for row in rank.target.requests if row[0] & 0x7f]
        self.assertEqual({size for _, _, size, _ in writes}, {512})
        self.assertEqual(sum(size for _, _, size, _ in writes), 3 * 2 * 4 * 512)
        self.right(consumers, [move])

    def test_fr_002_half_the_ranks_have_a_head_each(self):
        for src, dst in ((2, 4), (4, 8), (8, 16), (16, 8), (16, 4)):
            self.shape({**TINY, "layers": 1, "heads": 8}, {"tp": src}, {"tp": dst}, ((2, None),))

    def test_fr_006_all_who_share_a_head(self):
        self.shape({**TINY, "heads": 2}, {"tp": 2}, {"tp": 8}, ((1, None),))

    def test_fr_008_stages(self):
        self.shape({**TINY, "layers": 4}, {"tp": 2, "pp": 2}, {"tp": 4}, ((3, None),))

    def test_fr_025_high_ids_of_blocks_that_are_eight(self):
        for pair in self.pairs:
            producers = pair.producers(self, Instance(Model(**TINY), "p", ways=8, blocks=1000))
            consumers = pair.consumers(self, Instance(Model(**TINY), "d", ways=8, blocks=950))
            moves = []
            for src, dst in (([[1]], [[901]]), ([[900, 901, 999]], [[1, 2, 900]])):
                move = self.plan(producers, consumers)._replace(src=src, dst=dst)
                producers.offer(move)
                consumers.request(producers, move)
                consumers.success(move)
                moves.append(move)
            self.right(consumers, moves)
            self.again()

    def test_fr_065_ids_of_both_sides(self):
        """Latents of four ranks to one: also those who send nothing are released, by their own id."""
        for pair in self.pairs:
            model = Model(**{**TINY, "mla": True})
            producers = pair.producers(self, Instance(model, "p", tp=4, order="BLHNC"))
            consumers = pair.consumers(self, Instance(model, "d", order="BLHNC"))
            move = self.plan(producers, consumers)._replace(p_req="u-a2241df7", d_req="u-92d68142")
            producers.offer(move)
            consumers.request(producers, move)
            consumers.success(move)
            producers.released(move, SOON)
            self.right(consumers, [move])
            self.again()

    def test_fr_074_readers_per_rank(self):
        """Two ranks read by four each are released after the fourth; eight of which four are read, all."""
        self.shape(TINY, {"tp": 8}, {"tp": 2}, ((2, None),))
        producers = KvferryProducers(self, Instance(Model(**TINY), "p", tp=2))
        consumers = PythonConsumers(self, Instance(Model(**TINY), "d", tp=8))
        move = self.plan(producers, consumers)
        producers.offer(move)
        for number in range(8):
            worker = producers.ranks[number // 4]
            self.assertFalse(worker.all("released"))
            consumers.request(producers, move, only=[number])
            rank = consumers.ranks[number]
            rank.until(lambda: move.d_req in rank.finished, "end")
        producers.released(move)
        self.right(consumers, [move])

    def test_fr_027_windows_have_lists_of_their_own(self):
        """64 blocks of one layer and 17 of the other, to the byte; nothing else is touched."""
        model = Model(layers=2, heads=4, content=32, tokens=16, groups=[[0], [1]])
        producers = KvferryProducers(self, Instance(model, "p", blocks=160))
        consumers = PythonConsumers(self, Instance(model, "d", blocks=160))
        move = self.move(producers, consumers, [64, 17])
        writes = [size for opcode, _, size, _ in consumers.ranks[0].target.requests if opcode & 0x7f]
        self.assertEqual(sum(writes), (64 + 17) * 2048)
        self.right(consumers, [move])

    def test_fr_103_the_last_blocks_are_those_that_are_wanted(self):
        for pair in self.pairs:
            producers = pair.producers(self, Instance(Model(**TINY), "p", blocks=64))
            consumers = pair.consumers(self, Instance(Model(**TINY), "d", blocks=64))
            move = self.plan(producers, consumers)._replace(src=[list(range(10, 18))], dst=[list(range(50, 55))])
            producers.offer(move)
            consumers.request(producers, move)
            consumers.success(move)
            self.right(consumers, [move])
            self.again()


class Geometry(Case):
    """Bytes, pages, capacities."""

    def both(self, src, dst, body):
        """The body with kvferry on one side, then on the other. `src`, `dst`: (model, instance)."""
        for pair in (PRODUCES, CONSUMES):
            with self.subTest(pair.name):
                body(pair.producers(self, Instance(Model(**src[0]), "p", **src[1])),
                     pair.consumers(self, Instance(Model(**dst[0]), "d", **dst[1])))
                self.again()

    def refused(self, src, dst, *texts, count=2):
        def body(producers, consumers):
            move = self.plan(producers, consumers, count)
            producers.offer(move)
            consumers.request(producers, move)
            for text in texts:
                self.assertIn(text, consumers.failure(move, SOON)[0])
            self.right(consumers, [])
        self.both(src, dst, body)

    def test_fr_016_blocks_of_unlike_size(self):
        """Also FR-017: refused at the first pull with both lengths."""
        self.refused(({**TINY, "tokens": 32}, {}), (TINY, {}), "length mismatch", "local=4096, remote=2048")
        self.refused((TINY, {}), ({**TINY, "tokens": 128}, {"tp": 2}), "local=2048, remote=8192")

    def test_fr_118_whatever_does_not_fit(self):
        """Elements, heads, sizes, layers, blocks, regions: six of six with a reason, and a good peer is served."""
        rows = [({"content": 64}, "length mismatch"), ({"heads": 8}, "length mismatch"),
                ({"content": 24}, "length mismatch"), ({"layers": 1}, "no matching consumer occurrence"),
                ({"tokens": 8}, "length mismatch"), ({"mla": True}, "no matching consumer occurrence")]
        model = Model(**TINY)
        producers = KvferryProducers(self, Instance(model, "p"))
        good = PythonConsumers(self, Instance(model, "d"))
        moves = []
        for change, text in rows:
            bad = PythonConsumers(self, Instance(Model(**{**TINY, **change}), "bad"))
            move = self.plan(producers, bad)
            producers.offer(move)
            bad.request(producers, move)
            self.assertIn(text, bad.failure(move, SOON)[0])
            self.right(bad, [])
            moves.append(self.move(producers, good))
        self.right(good, moves)

    def test_fr_019_padding_stays(self):
        """Behind rows that are not full: not a byte of it moves."""
        def body(producers, consumers):
            move = self.move(producers, consumers, 4, rows=True)
            for number, rank in enumerate(consumers.plain):
                wanted = pattern.destination(rank)
                pattern.paint(rank, wanted, move.transfer, move.dst)
                self.assertTrue(numpy.array_equal(consumers.memory(number), wanted))
        self.both((TINY, {"order": "BLHNC", "padding": 96}), (TINY, {"order": "BLHNC", "padding": 160}), body)

    def test_fr_021_capacities_differ(self):
        """113 and 211 blocks: accepted; the last ids work, one more is refused and nothing is written."""
        def body(producers, consumers):
            move = self.plan(producers, consumers)._replace(src=[[112, 5]], dst=[[210, 0]])
            producers.offer(move)
            consumers.request(producers, move)
            consumers.success(move)
            self.right(consumers, [move])
        self.both((TINY, {"blocks": 113}), (TINY, {"blocks": 211}), body)
        producers = KvferryProducers(self, Instance(Model(**TINY), "p", blocks=113))
        consumers = PythonConsumers(self, Instance(Model(**TINY), "d", blocks=211, apart=True))
        move = self.plan(producers, consumers)._replace(src=[[1, 2]], dst=[[210, 211]])
        producers.offer(move)
        consumers.request(producers, move)
        consumers.failure(move)
        # What came of the block that is there may stay; behind it nothing was written.
        consumers.ranks[0].bytes[pattern.loose(consumers.plain[0], [[210]])] = pattern.GUARD
        self.right(consumers, [self.move(producers, consumers)])

    def test_fr_033_groups_that_only_one_side_has(self):
        """Also FR-032: the same answer for a short and a long prompt."""
        def body(producers, consumers):
            texts = set()
            for count in (1, 40):
                move = self.plan(producers, consumers, [count])._replace(dst=[list(range(count)), list(range(count))])
                producers.offer(move)
                consumers.request(producers, move)
                texts.add(consumers.failure(move)[0].split(": ")[-1])
            self.assertEqual(texts, {"KV group count mismatch"})
            self.right(consumers, [])
        self.both((TINY, {}), ({**TINY, "layers": 3, "groups": [[0, 1], [2]]}, {}), body)

    def test_fr_106_lists_that_do_not_agree(self):
        """73 to 72: the last 72; 72 to 73: refused; the next one is served."""
        def body(producers, consumers):
            moves = [self.move(producers, consumers, 73, wants=72)]
            bad = self.plan(producers, consumers, 72, wants=73)
            producers.offer(bad)
            consumers.request(producers, bad)
            consumers.failure(bad)
            moves.append(self.move(producers, consumers, 2))
            self.right(consumers, moves)
        self.both((TINY, {"blocks": 160}), (TINY, {"blocks": 160}), body)


class Ends(Case):
    """Blocks and requests that come to an end."""

    def sides(self, pair=PRODUCES, src=None, dst=None, **endpoint):
        model = Model(**TINY)
        return (pair.producers(self, Instance(model, "p", **(src or {})), **(
                    endpoint if pair.producers.kvferry else {})),
                pair.consumers(self, Instance(model, "d", **(dst or {})), **(
                    endpoint if pair.consumers.kvferry and not pair.producers.kvferry else {})))

    def test_fr_040_blocks_that_were_given_back(self):
        """Also FR-042, FR-043: a pull that comes after the hold has ended gets no byte, and is told."""
        producers, consumers = self.sides(abort_timeout_s=2)
        moves = [self.plan(producers, consumers, 1) for _ in range(20)]
        for move in moves:
            producers.offer(move)
        for move in moves:
            producers.ranks[0].event("expired", req_id=move.p_req)
        for move in moves:
            consumers.request(producers, move)
        for move in moves:
            consumers.failure(move)
        self.right(consumers, [])
        self.right(consumers, [self.move(producers, consumers)])

    def test_fr_048_a_write_that_is_out_holds_its_blocks(self):
        """They are given back when it has ended, whatever the hold says."""
        producers, consumers = self.sides(abort_timeout_s=2)
        target, hold, worker = consumers.ranks[0].target, peer.threading.Event(), producers.ranks[0]
        self.addCleanup(hold.set)
        target.habits.request = lambda *_: hold.wait(peer.PATIENCE) or True
        move, other = [self.plan(producers, consumers, 1) for _ in range(2)]
        producers.offer(other)
        producers.offer(move)
        consumers.request(producers, move)
        worker.event("expired", req_id=other.p_req)
        worker.event("expired", req_id=move.p_req)
        kinds = [event["event"] for event in worker.events if event.get("req_id") == move.p_req]
        self.assertEqual(kinds, ["send_failed", "expired"])
        self.assertIn("Mooncake transfer engine returned", consumers.failure(move)[0])

    def test_fr_051_many_large_ones_at_once(self):
        model = Model(layers=4, heads=4, content=512, tokens=16)
        for pair in (PRODUCES, CONSUMES):
            producers = pair.producers(self, Instance(model, "p", blocks=264))
            consumers = pair.consumers(self, Instance(model, "d", blocks=264))
            moves = [self.plan(producers, consumers, 8) for _ in range(32)]
            for move in moves[:-1]:
                if producers.kvferry:
                    for plain, memory in zip(producers.plain, producers.bytes):
                        pattern.paint(plain, memory, move.transfer, move.src)
                else:
                    producers.paint(move)
            producers.paint(moves[-1])
            for move in moves:
                consumers.request(producers, move)
            for move in moves:
                if producers.kvferry:
                    producers.say(move)
                else:
                    producers.ranks[0].offer(move.transfer, move.p_req, move.src)
            for move in moves:
                consumers.success(move)
            self.right(consumers, moves)
            self.again()

    def test_fr_052_producers_that_die(self):
        """Every request ends in time, and is settled."""
        model = Model(**TINY)
        consumers = KvferryConsumers(self, Instance(model, "d", blocks=96), abort_timeout_s=2, slack_s=0.1,
                                     settle_timeout_s=1)
        moves = []
        for _ in range(8):
            producers = PythonProducers(self, Instance(model, "p"))
            moves += [self.plan(producers, consumers, 1) for _ in range(3)]
            consumers.request(producers, *moves[-3:])
            producers.asked(moves[-1])
            producers.ranks[0].close()
        for move in moves:
            consumers.failure(move)
        good = PythonProducers(self, Instance(model, "p"))
        self.right(consumers, [self.move(good, consumers)])

    def test_fr_054_requests_that_are_declined(self):
        """Also FR-053, FR-059: ten offers, five declined before they are ready, five after; none holds, none moves."""
        for pair in (PRODUCES, CONSUMES, BOTH):
            producers, consumers = self.sides(pair)
            moves = [self.plan(producers, consumers)._replace(dst=[[]]) for _ in range(10)]
            for move in moves[:5]:
                consumers.request(producers, move)
            producers.asked(moves[4], 5 if producers.kvferry else 1)
            for move in moves:
                producers.offer(move)
            for move in moves[5:]:
                consumers.request(producers, move)
            for move in moves:
                producers.released(move, SOON)
            self.right(consumers, [])
            self.right(consumers, [self.move(producers, consumers)])
            self.again()

    def test_fr_066_ids_of_any_form(self):
        """Separators, 200 bytes of UTF-8: they go through unchanged, and mean nothing."""
        for pair in (PRODUCES, CONSUMES, BOTH):
            producers, consumers = self.sides(pair)
            moves = []
            for text in ("chatcmpl-___p_10.0.0.1:7___d_[::1]:9_0-1", "\u00e9\u4e16\U0001f600" * 22, " ", "a\"b\\c\n{}"):
                move = self.plan(producers, consumers)
                move = move._replace(transfer=text, p_req="p" + text, d_req="d" + text)
                producers.offer(move)
                consumers.request(producers, move)
                consumers.success(move)
                producers.released(move)
                moves.append(move)
            self.right(consumers, moves)
            self.again()

    def test_fr_070_one_end_for_each(self):
        """Four producers fail at different times: told once, settled once."""
        producers, consumers = self.sides(CONSUMES, {"tp": 4})
        worker, move = consumers.ranks[0], self.plan(producers, consumers)
        for rank in producers.ranks:
            rank.write = lambda session, moves: 3
        consumers.request(producers, move)
        producers.asked(move)
        producers.paint(move)
        for rank in producers.ranks:
            rank.offer(move.transfer, move.p_req, move.src)
            worker.event("failed", req_id=move.d_req)
        consumers.failure(move)
        for rank in producers.ranks:
            rank.write = rank._write
        after = self.move(producers, consumers)
        self.assertEqual(len(worker.all("failed")), 1)
        self.assertEqual(len(worker.all("settled")), 1)
        self.right(consumers, [after])

    def test_fr_071_declined_at_a_producer_that_is_gone(self):
        """Nothing is told as received, and the worker lives."""
        producers, consumers = self.sides(CONSUMES, abort_timeout_s=2, slack_s=0.1, settle_timeout_s=1)
        good = PythonProducers(self, Instance(Model(**TINY), "p"))
        known = self.move(producers, consumers)
        producers.ranks[0].close()
        move = self.plan(producers, consumers)._replace(dst=[[]])
        consumers.request(producers, move)
        self.right(consumers, [known, self.move(good, consumers)])
        self.assertFalse(consumers.ranks[0].all("received", req_id=move.d_req))
        self.assertEqual(len(consumers.ranks[0].all("received")), 2)

    def test_fr_083_connections_that_are_cut_again_and_again(self):
        """What is in flight fails or is right; the next one works; no wrong block."""
        producers, consumers = self.sides(dst={"blocks": 200}, src={"blocks": 200})
        rank, good = consumers.ranks[0], []
        for number in range(40):
            move = self.plan(producers, consumers, 4)
            producers.offer(move)
            consumers.request(producers, move)
            if number % 3 == 0:
                rank.target.data.cut(reset=number % 2 == 0)
            rank.until(lambda: move.d_req in rank.finished, "end of " + move.d_req)
            if move.d_req not in rank.failed:
                good.append(move)
            else:
                rank.bytes[pattern.loose(rank.rank, move.dst)] = pattern.GUARD
            if number % 3 == 2:
                self.assertIn(move, good)
        self.right(consumers, good)

    def test_fr_098_one_that_does_not_answer(self):
        """Neither a registry nor a producer that is silent delays others."""
        producers, consumers = self.sides(CONSUMES)
        silent, hanging = PythonProducers(self, Instance(Model(**TINY), "s")), PythonProducers(
            self, Instance(Model(**TINY), "h"))
        hanging.registry.hold.clear()
        silent.ranks[0].answering = False
        for other in (silent, hanging):
            for _ in range(4):
                consumers.request(other, self.plan(other, consumers, 1))
        move = self.plan(producers, consumers)
        producers.offer(move)
        consumers.request(producers, move)
        consumers.ranks[0].event("received", SOON, req_id=move.d_req)
        self.right(consumers, [move])
        hanging.registry.hold.set()

    def test_fr_099_pulls_for_what_never_comes(self):
        """200 of them wait; a real one is served at once, and they end in time."""
        producers, consumers = self.sides(abort_timeout_s=3)
        lost = [self.plan(producers, consumers, 0) for _ in range(200)]
        lost = [move._replace(dst=[[1]]) for move in lost]
        for move in lost:
            consumers.request(producers, move)
        producers.asked(lost[0], len(lost))
        move = self.move(producers, consumers)
        self.assertFalse(consumers.ranks[0].failed)
        for one in lost:
            self.assertIn("Timeout waiting for P side ready.", consumers.failure(one)[0])
        self.right(consumers, [move])


class Addresses(Case):
    """Who is where."""

    def test_fr_012_engines_side_by_side(self):
        """Four engines behind one registry, one address for each of all; two hosts of one engine."""
        model, registry = Model(**TINY), self.registry()
        producers = [KvferryProducers(self, Instance(model, "p%d" % number), registry, dp_rank=number)
                     for number in range(4)]
        self.assertEqual(len({side.ranks[0].ready["side_channel"] for side in producers}), 4)
        takers = [KvferryConsumers(self, Instance(model, "d%d" % number)) for number in range(4)]
        for consumers in takers:
            self.right(consumers, [self.move(side, consumers) for side in producers])
        self.again()
        registry = self.registry()
        hosts = [{"host": "127.0.0.%d" % (1 + number // 2)} for number in range(4)]
        producers = KvferryProducers(self, Instance(model, "p", tp=4), registry, each=hosts)
        self.assertEqual([worker.ready["side_channel"].split(":")[1] for worker in producers.ranks],
                         ["//127.0.0.1", "//127.0.0.1", "//127.0.0.2", "//127.0.0.2"])
        for kind in (PythonConsumers, KvferryConsumers):
            consumers = kind(self, Instance(model, "d"))
            self.right(consumers, [self.move(producers, consumers)])

    def test_fr_060_registries_that_hang_or_die(self):
        """A start that is bounded and names the address; one that waits; one whose registry is gone later."""
        model, registry = Model(**TINY), self.registry()
        registry.hold.clear()
        os.environ["VLLM_MOONCAKE_CONNECTOR_TIMEOUT"] = "1"
        try:
            worker = self.worker("producer", Rank(Instance(model, "alone"), 0), {
                "engine_id": "e", "bootstrap": registry.url})
            worker.told(registry.url)
            self.assertNotEqual(worker.end(None), 0)
        finally:
            del os.environ["VLLM_MOONCAKE_CONNECTOR_TIMEOUT"]
        registry = self.registry()
        producers = PythonProducers(self, Instance(model, "p"), registry)
        consumers = KvferryConsumers(self, Instance(model, "d"))
        first = self.move(producers, consumers)
        registry.close()
        second = self.move(producers, consumers)
        consumers.ranks[0].say(d_req_id="new", transfer_id="new", block_ids=[[1]], remote_engine_id="new",
                               remote_bootstrap_addr=registry.url)
        self.assertIn("new", consumers.ranks[0].event("failed", SOON, req_id="new")["text"])
        self.right(consumers, [first, second])

    def test_fr_111_addresses_that_are_not_here(self):
        model = Model(**TINY)
        worker = self.worker("producer", Rank(Instance(model, "alone"), 0), {
            "engine_id": "e", "host": "192.0.2.1", "bootstrap": self.registry().url})
        worker.told("192.0.2.1")
        self.assertNotEqual(worker.end(None), 0)

    def test_fr_112_ports(self):
        """Sixteen workers of two engines at one host: all ports differ; a port that is taken is named."""
        model = Model(**{**TINY, "heads": 8})
        producers = KvferryProducers(self, Instance(model, "p", tp=8))
        consumers = KvferryConsumers(self, Instance(model, "d", tp=8))
        ports = [int(worker.ready["side_channel"].rsplit(":", 1)[1]) for worker in producers.ranks]
        ports += [worker.ready[key] for worker in consumers.ranks for key in ("rpc_port", "data_port")]
        self.assertEqual(len(set(ports) - {0}), 24)
        self.right(consumers, [self.move(producers, consumers)])
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for role, key in (("producer", "side_port"), ("consumer", "rpc_port"), ("consumer", "data_port")):
                worker = self.worker(role, Rank(Instance(model, "alone"), 0), {"engine_id": "e", key: port})
                worker.told(str(port))
                self.assertNotEqual(worker.end(None), 0)


if __name__ == "__main__":
    unittest.main()
