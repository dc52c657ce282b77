#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Lives of requests between kvferry's workers and the Python peer: orders, pieces, cancels, failures, crowds."""
import unittest

import msgpack
import numpy

import peer
import rank as rank_info
from model import Instance, Model
from scene import Case, KvferryReceivers, KvferrySenders, PythonReceivers, PythonSenders

PAIRS = [("kvferry sends", KvferrySenders, PythonReceivers), ("kvferry receives", PythonSenders, KvferryReceivers)]
SENDS, RECEIVES = PAIRS


class Lives(Case):
    def sides(self, pair, model=None, src=None, dst=None):
        model = model or Model(order="nhd")
        senders = pair[1](self, Instance(model, "ctx", **(src or {"tp": 2})))
        receivers = pair[2](self, Instance(model, "gen", **(dst or {})))
        return senders, receivers

    def each(self, body, pairs=PAIRS, **names):
        """The body once per pair, each with processes of its own."""
        for pair in pairs:
            with self.subTest(pair[0]):
                senders, receivers = self.sides(pair, **names)
                body(senders, receivers)
                self.doCleanups()
                self.setUp()

    @staticmethod
    def close(*sides, code=0):
        for side in sides:
            side.end(code)

    # orders and pieces

    def test_before_during_and_after_the_send(self):
        def body(senders, receivers):
            moves = []
            for asks_at in range(4):  # before the first of three pieces, ..., after the last one
                move = self.plan(senders, receivers, 45)
                if asks_at == 0:
                    receivers.request(senders.info, move.rid, 45, move.dst)
                senders.offer(move.rid, 45, move.src, pieces=[[0, 16], [16, 40], [40, 45]], hold=True)
                for piece in range(3):
                    senders.send(move.rid)
                    if asks_at == piece + 1:
                        receivers.request(senders.info, move.rid, 45, move.dst)
                receivers.success(move.rid)
                senders.success(move.rid)
                moves.append(move)
            self.right(receivers, moves)
            self.close(senders, receivers)
        self.each(body)

    def test_the_last_piece_may_be_empty(self):
        def body(senders, receivers):
            moves = [self.move(senders, receivers, 48, first=first, pieces=[[0, 16], [16, 48], [48, 48]])
                     for first in ("offer", "request")]
            self.right(receivers, moves)
            self.close(senders, receivers)
        self.each(body, model=Model(windowed=[1, 2]))

    def test_each_piece_is_reported_and_one_of_them_is_the_last(self):
        senders, receivers = self.sides(SENDS)
        move = self.move(senders, receivers, 48, pieces=[[0, 16], [16, 32], [32, 48], [48, 48]])
        for words in receivers.ranks[0].words[move.rid].values():
            self.assertEqual([word[1:] for word in words], [(0, peer.SUCCESS)] * 3 + [(1, peer.SUCCESS)])
        self.close(senders, receivers)

    def test_nothing_to_move(self):
        """All of the prompt is there already."""
        def body(senders, receivers):
            self.move(senders, receivers, 40, wants=lambda ordinal: False)
            self.right(receivers, [])
            self.close(senders, receivers)
        self.each(body)

    def test_generation_first(self):
        """Auxiliary data follows the blocks, of slots that differ."""
        def body(senders, receivers):
            moves = [self.move(senders, receivers, 45, first="request", aux=(number, 3 - number))
                     for number in range(3)]
            moves.append(self.move(senders, receivers, 16, aux=(3, 0)))
            self.right(receivers, moves)
            self.close(senders, receivers)
        self.each(body, src={"tp": 4, "pp": 2, "aux": 4}, dst={"tp": 2, "aux": 4, "aux_draft": 6})

    def test_context_first_moves_no_auxiliary_data(self):
        """Buffers that could not be joined do no harm."""
        def body(senders, receivers):
            self.right(receivers, [self.move(senders, receivers, 45)])
            self.close(senders, receivers)
        self.each(body, src={"tp": 2, "aux": 4, "aux_draft": 6}, dst={"aux": 4, "aux_draft": 0})

    def test_a_group_that_is_not_known_is_asked_everywhere(self):
        """Attention data parallelism on the context: all groups are asked, the one with the prefill writes."""
        def body(senders, receivers):
            moves = [self.move(senders, receivers, 45, first="request", dp_rank=None, of=[group], aux=(group, group))
                     for group in (2, 0)]
            moves.append(self.move(senders, receivers, 45, dp_rank=1, of=[1], aux=(1, 1)))
            self.right(receivers, moves)
            self.close(senders, receivers)
        self.each(body, src={"tp": 3, "dp": True, "aux": 4}, dst={"tp": 2, "aux": 4})

    def test_groups_of_the_generation(self):
        """Attention data parallelism on the generation: a request goes to one rank, from whoever is elected for it."""
        def body(senders, receivers):
            moves = [self.move(senders, receivers, 45, to=[rank]) for rank in range(4)]
            self.right(receivers, moves)
            self.close(senders, receivers)
        for model in (Model(heads=4, index=8), Model(key_only=True)):
            self.each(body, model=model, src={"tp": 4, "pp": 2}, dst={"tp": 4, "dp": True})

    def test_hundreds_at_once(self):
        count = 300

        def body(senders, receivers):
            moves = [self.plan(senders, receivers, 9) for _ in range(count)]
            for number, move in enumerate(moves):
                steps = [lambda: senders.offer(move.rid, 9, move.src),
                         lambda: receivers.request(senders.info, move.rid, 9, move.dst)]
                for step in steps if number % 2 else reversed(steps):
                    step()
            for move in moves:
                receivers.success(move.rid)
                senders.success(move.rid)
            self.right(receivers, moves)
            self.close(senders, receivers)
        size = {"slots": 2 * count + 8}
        self.each(body, model=Model(attention=[0, 1], order="nhd"), src={"tp": 4, **size}, dst={"tp": 2, **size})

    # cancels

    def test_the_receiver_cancels_before_the_send(self):
        def body(senders, receivers):
            move = self.plan(senders, receivers, 45)
            receivers.request(senders.info, move.rid, 45, move.dst)
            if not senders.kvferry:
                senders.wait_asked(move.rid)
            receivers.cancel(move.rid)
            if receivers.kvferry:
                self.assertEqual([event["by_peer"] for event in receivers.ended(move.rid, "cancelled")], [0])
            else:
                receivers.settled(move.rid)
            senders.offer(move.rid, 45, move.src)
            if senders.kvferry:
                senders.ended(move.rid, "cancelled")
            self.right(receivers, [])
            after = self.move(senders, receivers, 45)
            self.right(receivers, [after])
            self.close(senders, receivers, code=None)
        self.each(body)

    def test_the_receiver_cancels_between_two_pieces(self):
        def body(senders, receivers):
            move = self.plan(senders, receivers, 48)
            senders.offer(move.rid, 48, move.src, pieces=[[0, 24], [24, 48]], hold=True)
            receivers.request(senders.info, move.rid, 48, move.dst)
            senders.send(move.rid)
            if senders.kvferry:
                rank = receivers.ranks[0]
                rank.until(lambda: len(rank.words.get(move.rid, {})) == 2, "first piece")
            else:
                for rank in senders.ranks:
                    rank.until(lambda: any(write[0] == move.rid for write in rank.writes), "first piece")
            receivers.cancel(move.rid)
            if receivers.kvferry:
                receivers.ended(move.rid, "cancelled")
            else:
                receivers.settled(move.rid)
            if senders.kvferry:
                self.assertEqual([event["by_peer"] for event in senders.ended(move.rid, "cancelled")], [1, 1])
            half = move._replace(wanted=lambda ordinal: ordinal < 3)
            self.right(receivers, [half])
            self.close(senders, receivers, code=None)
        self.each(body)

    def test_the_sender_cancels(self):
        """Requests that were answered, or not asked for yet: each receiver hears of it and is settled."""
        def body(senders, receivers):
            move, late = self.plan(senders, receivers, 48), self.plan(senders, receivers, 48)
            senders.offer(move.rid, 48, move.src, pieces=[[0, 24], [24, 48]], hold=True)
            receivers.request(senders.info, move.rid, 48, move.dst)
            if not senders.kvferry:
                senders.wait_asked(move.rid)
            senders.cancel(move.rid)
            senders.offer(late.rid, 48, late.src, hold=True)
            senders.cancel(late.rid)
            receivers.request(senders.info, late.rid, 48, late.dst)
            for one in (move, late):
                if receivers.kvferry:
                    for rank in receivers.ranks:
                        event = rank.event("ended", rid=one.rid)
                        self.assertIn(event["state"], ("cancelled", "error"))
                        rank.event("settled", rid=one.rid)
                else:
                    receivers.settled(one.rid)
                if senders.kvferry:
                    self.assertEqual([event["by_peer"] for event in senders.ended(one.rid, "cancelled")], [0, 0])
            self.right(receivers, [])
            self.right(receivers, [self.move(senders, receivers, 45)])
            self.close(senders, receivers, code=None)
        self.each(body)

    def test_a_cancelled_request_is_settled_by_the_last_word_only(self):
        """Blocks are not free while a writer has not spoken."""
        senders, receivers = self.sides(RECEIVES)
        move = self.plan(senders, receivers, 45)
        slow = senders.ranks[1]
        slow.answering = False
        senders.offer(move.rid, 45, move.src, hold=True)
        receivers.request(senders.info, move.rid, 45, move.dst)
        senders.wait_asked(move.rid)
        receivers.cancel(move.rid)
        worker = receivers.ranks[0]
        self.assertEqual(worker.event("ended", rid=move.rid)["state"], "cancelled")
        slow.until(lambda: slow.count("CANCEL_SESSION") == 1, "cancel")
        other = self.plan(senders, receivers, 8)  # what comes later is not a proof either
        slow.answering = True
        senders.offer(other.rid, 8, other.src)
        receivers.request(senders.info, other.rid, 8, other.dst)
        receivers.success(other.rid)
        self.assertIsNone(worker.find("settled", rid=move.rid))
        key = (receivers.instance.name, 0)
        slow.ask(lambda: slow.result(move.rid, key, True, peer.FAILED))
        worker.event("settled", rid=move.rid)
        self.assertEqual(senders.ranks[0].count("CANCEL_SESSION"), 1)
        self.close(senders, receivers)

    def test_a_cancel_before_anything_was_asked(self):
        """The info endpoint has not answered: the blocks are free at once, and nobody is told."""
        senders, receivers = self.sides(RECEIVES)
        silent = peer.Context(senders.instance, 0)  # bound, and not running
        self.addCleanup(silent.close)
        move = self.plan(senders, receivers, 45)
        receivers.request(silent.info_endpoint, move.rid, 45, move.dst)
        receivers.ranks[0].event("accepted", rid=move.rid)
        receivers.cancel(move.rid)
        receivers.ended(move.rid, "cancelled")
        self.right(receivers, [self.move(senders, receivers, 45)])
        self.close(senders, receivers)

    def test_a_cancelled_broadcast_is_settled_by_every_group(self):
        """All groups were asked: also those that will never write have to say so."""
        senders, receivers = self.sides(RECEIVES, src={"tp": 3, "dp": True})
        move, worker, slow = self.plan(senders, receivers, 45), receivers.ranks[0], senders.ranks[2]
        slow.answering = False
        receivers.request(senders.info, move.rid, 45, move.dst, dp_rank=None)
        senders.wait_asked(move.rid)
        receivers.cancel(move.rid)
        self.assertEqual(worker.event("ended", rid=move.rid)["state"], "cancelled")
        for rank in senders.ranks:
            rank.until(lambda: rank.count("CANCEL_SESSION") == 1, "cancel")
        other = self.move(senders, receivers, 8, of=[0])
        self.assertIsNone(worker.find("settled", rid=move.rid))
        slow.ask(lambda: slow.send(worker.ready["self"], b"SESSION_QUIESCED", b"2", b"%d" % move.rid))
        worker.event("settled", rid=move.rid)
        self.right(receivers, [other])
        self.close(senders, receivers)

    def test_auxiliary_data_is_waited_for(self):
        """Blocks alone are not enough, and a cancel then still waits for the writers' words about the slot."""
        senders, receivers = self.sides(RECEIVES, src={"aux": 4}, dst={"aux": 4})
        rank, worker = senders.ranks[0], receivers.ranks[0]
        for ends in ("SUCCESS", "FAILED", "cancel"):
            move = self.plan(senders, receivers, 45, aux=(1, 2))
            rank.holding_aux = True
            senders.offer(move.rid, 45, move.src, aux_slot=1)
            receivers.request(senders.info, move.rid, 45, move.dst, aux_slot=2)
            rank.until(lambda: ("gen", 0) in rank.sessions[move.rid].done, "blocks")
            if ends == "cancel":
                rank.answering = False
                receivers.cancel(move.rid)
                self.assertEqual(worker.event("ended", rid=move.rid)["state"], "cancelled")
                rank.until(lambda: rank.count("CANCEL_SESSION") == 1, "cancel")
            self.move(senders, receivers, 8) if ends != "cancel" else None
            self.assertIsNone(worker.find("settled", rid=move.rid))
            rank.answering = True
            status = b"SUCCESS" if ends == "cancel" else ends.encode()
            rank.ask(lambda: rank.send(worker.ready["self"], b"AUX_AGENT_RESULT", b"0", b"%d" % move.rid, status))
            worker.event("settled", rid=move.rid)
            self.assertEqual(worker.find("ended", rid=move.rid)["state"],
                             {"SUCCESS": "transferred", "FAILED": "error", "cancel": "cancelled"}[ends])

    # what is said, to the letter

    def test_messages_are_upstreams(self):
        """Rank infos byte for byte as upstream packs them, requests with its fields and no other."""
        src, dst = {"tp": 2, "pp": 2, "aux": 4}, {"aux": 4}
        model = Model(attention=[0, 2], recurrent=[1, 3], index=8, order="nhd")
        senders, receivers = self.sides(SENDS, model=model, src=src, dst=dst)
        peer_info = receivers.ranks[0].contact(senders.info)
        worker = senders.ranks[0]
        wanted = self.info_of(worker, [rank.ready["sender"] for rank in senders.ranks])
        self.assertEqual(rank_info.pack(peer_info), rank_info.pack(wanted))
        senders, receivers = self.sides(RECEIVES, model=model, src=src, dst=dst)
        move = self.move(senders, receivers, 45, aux=(1, 2), start_token=16)
        for rank in senders.ranks:
            rank.until(lambda rank=rank: rank.count("REQUEST_DATA"), "request")
            raw = dict(rank.came)["REGISTER_RANK_INFO"][0]
            wanted = self.info_of(receivers.ranks[0], [receivers.ranks[0].ready["sender"]])
            self.assertEqual(raw, rank_info.pack(wanted))
            request = msgpack.unpackb(dict(rank.came)["REQUEST_DATA"][0])
            ids = [numpy.asarray(ids, "<i8").tobytes() for ids in move.dst[0]]
            self.assertEqual(request, {"sender_req_id": move.rid, "instance_name": "gen", "instance_rank": 0,
                                       "block_ids_per_layer_groups": ids, "unique_rid": move.rid,
                                       "dst_start_token": 16, "aux_slot": 2, "slice_id": 0, "bounce_dst_base": None})

    @staticmethod
    def info_of(worker, sender_endpoints):
        """What a worker must say of itself, with the addresses and endpoints that it told."""
        plain = worker.instance.rank(worker.number)
        for pool in worker.ready["pools"]:
            plain["table"]["pools"][pool["group"]][pool["pool"]]["base"] = pool["address"]
        plain["aux"]["address"] = [aux["address"] for aux in worker.ready["aux"]]
        return rank_info.rank_info(plain, sender_endpoints, worker.ready["self"],
                                   b"kvferry-cma/1 pid=%d" % worker.ready["pid"])

    # failures

    def test_one_writer_of_two_fails(self):
        """It fails at once, and is settled when the other one has spoken too."""
        senders, receivers = self.sides(RECEIVES)
        move = self.plan(senders, receivers, 45)
        senders.ranks[0].status = lambda rid, key, piece: peer.FAILED if rid == move.rid else peer.SUCCESS
        senders.ranks[1].hold()
        senders.offer(move.rid, 45, move.src)
        receivers.request(senders.info, move.rid, 45, move.dst)
        worker = receivers.ranks[0]
        event = worker.event("ended", rid=move.rid)
        self.assertEqual(event["state"], "error")
        self.assertRegex(event["text"] + str(event.get("peer")), "ctx0|peer_rank=0|rank 0")
        self.assertIsNone(worker.find("settled", rid=move.rid))
        senders.ranks[1].release()
        worker.event("settled", rid=move.rid)
        self.close(senders, receivers, code=1)

    def test_in_doubt(self):
        """It fails, and is settled by the proof that comes later, not before."""
        senders, receivers = self.sides(RECEIVES)
        move = self.plan(senders, receivers, 45)
        senders.ranks[0].status = lambda rid, key, piece: peer.IN_DOUBT if rid == move.rid else peer.SUCCESS
        senders.offer(move.rid, 45, move.src)
        receivers.request(senders.info, move.rid, 45, move.dst)
        worker = receivers.ranks[0]
        self.assertEqual(worker.event("ended", rid=move.rid)["state"], "error")
        rank = senders.ranks[1]
        rank.until(lambda: ("gen", 0) in rank.sessions[move.rid].done, "the other writer")
        self.assertIsNone(worker.find("settled", rid=move.rid))
        rank = senders.ranks[0]
        rank.ask(lambda: rank.result(move.rid, ("gen", 0), True, peer.FAILED_QUIESCED))
        worker.event("settled", rid=move.rid)
        self.close(senders, receivers, code=1)


if __name__ == "__main__":
    unittest.main()
