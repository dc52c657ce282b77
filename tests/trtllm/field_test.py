#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What went wrong in public, tried with kvferry's TensorRT-LLM workers against the Python peer."""
import signal
import threading
import unittest

import zmq

import peer
import rank as rank_info
from model import Instance, Model
from scene import Case, KvferryReceivers, KvferrySenders, PythonReceivers, PythonSenders

PAIRS = [("kvferry sends", KvferrySenders, PythonReceivers), ("kvferry receives", PythonSenders, KvferryReceivers)]
SOON = peer.PATIENCE / 2
TINY = {"attention": [0, 1], "tokens": 16}  # 4 heads, rows of 16 bytes


class Field(Case):
    def pairs(self, model, src, dst, prompts, pairs=PAIRS, **options):
        """Moves requests with kvferry in either role; all bytes. Returns senders, receivers and moves of each."""
        out = []
        for pair in pairs:
            with self.subTest(pair[0]):
                senders = pair[1](self, Instance(Model(**model), "ctx", **src))
                receivers = pair[2](self, Instance(Model(**model), "gen", **dst))
                moves = [self.move(senders, receivers, prompt, **options) for prompt in prompts]
                self.right(receivers, moves)
                out.append((senders, receivers, moves))
        return out

    # shards

    def test_stripes_of_five_blocks_on_two_and_of_three_on_four(self):
        """FR-009: round robin, the rank without a block ends at once."""
        for cp, prompt, counts in ((2, 75, [3, 2]), (4, 40, [1, 1, 1, 0])):
            for _, receivers, moves in self.pairs(TINY, {}, {"cp": cp}, [prompt]):
                self.assertEqual([len(tables[0]) for tables in moves[0].dst], counts)
                if receivers.kvferry:
                    for rank, count in zip(receivers.ranks, counts):
                        event = rank.event("ended", rid=moves[0].rid)
                        self.assertIn(event["bytes"], (0, count * 2 * 2 * 4 * 16 * 16), event)

    def test_tokens_first_on_both_sides(self):
        """FR-015: rows of 32 bytes, each of a head of one rank and of a head of another."""
        for senders, _, moves in self.pairs({**TINY, "order": "nhd"}, {"tp": 4}, {"tp": 2}, [75]):
            if senders.kvferry:
                for rank in senders.ranks:
                    event = rank.event("ended", rid=moves[0].rid)
                    self.assertEqual(event["bytes"], 5 * 2 * 2 * 16 * 16)

    def test_fewer_heads_than_ranks(self):
        """FR-001, FR-003, FR-006: copies of heads on either side; every rank gets its own."""
        for src, dst in ((8, 2), (1, 4), (2, 8)):
            self.pairs({**TINY, "heads": 2}, {"tp": src}, {"tp": dst}, [40])

    def test_latents_come_from_one_rank(self):
        """FR-005, FR-036, FR-065: one of the ranks that hold the same writes; all of them are told, and free."""
        for src, dst in ((4, 2), (2, 4), (4, 1)):
            for senders, _, moves in self.pairs({**TINY, "key_only": True, "head_dim": 288}, {"tp": src}, {"tp": dst},
                                                [40]):
                senders.success(moves[0].rid)
                if senders.kvferry:
                    sent = sum(rank.event("ended", rid=moves[0].rid)["bytes"] for rank in senders.ranks)
                    self.assertEqual(sent, dst * 3 * 2 * 16 * 576)

    def test_two_stages_to_one(self):
        """FR-008: head r of all layers from both stages."""
        self.pairs({**TINY, "attention": [0, 1, 2, 3]}, {"tp": 2, "pp": 2}, {"tp": 4}, [40])

    # layouts

    def test_heads_first_and_tokens_first_are_refused(self):
        """FR-013, FR-015: upstream cannot do it, and it is said at first contact, before a byte moves."""
        senders = PythonSenders(self, Instance(Model(**TINY), "ctx", order="nhd"))
        receivers = KvferryReceivers(self, Instance(Model(**TINY), "gen"))
        move = self.plan(senders, receivers, 40)
        receivers.request(senders.info, move.rid, 40, move.dst)
        self.assertIn("incompatible mapper kinds", receivers.ended(move.rid, "error")[0]["text"])
        self.right(receivers, [])

    def test_blocks_of_unlike_sizes(self):
        """FR-016: not green at the check and red at every request: both numbers are named, or it moves right."""
        receivers = KvferryReceivers(self, Instance(Model(**TINY, order="nhd"), "gen"))
        for number, tokens in enumerate((32, 24)):
            senders = PythonSenders(self, Instance(Model(**{**TINY, "tokens": tokens}, order="nhd"), "ctx%d" % number))
            move = self.plan(senders, receivers, 70)
            receivers.request(senders.info, move.rid, 70, move.dst)
            text = receivers.ended(move.rid, "error")[0]["text"]
            self.assertIn("tokens_per_block", text)
            self.assertIn(str(tokens), text)
            self.assertIn("16", text)
        self.right(receivers, [])

    def test_elements_of_one_byte_beside_states_of_two(self):
        """FR-024: each region by its own size; one byte against two is refused with both."""
        hybrid = {"attention": [0, 2], "recurrent": [1, 3], "tokens": 16, "element": 1, "head_bytes": 64}
        self.pairs(hybrid, {"tp": 4}, {"tp": 2}, [40])
        senders = PythonSenders(self, Instance(Model(**hybrid), "ctx"))
        receivers = KvferryReceivers(self, Instance(Model(**{**hybrid, "element": 2}), "gen"))
        move = self.plan(senders, receivers, 40)
        receivers.request(senders.info, move.rid, 40, move.dst)
        text = receivers.ended(move.rid, "error")[0]["text"]
        self.assertRegex(text, "element_bytes.*1.*2|element_bytes.*2.*1")

    # what else a request is made of

    def test_an_index_key_that_the_sender_does_not_have(self):
        """FR-026, FR-031: refused; with it, every byte comes."""
        whole, bare = Model(**TINY, index=32), Model(**TINY)
        receivers = KvferryReceivers(self, Instance(whole, "gen"))
        senders = PythonSenders(self, Instance(bare, "bare"))
        move = self.plan(senders, receivers, 40)
        receivers.request(senders.info, move.rid, 40, move.dst)
        text = receivers.ended(move.rid, "error")[0]["text"]
        self.assertIn("index_key", text)
        self.assertIn("differ on overlapping layers", text)
        good = PythonSenders(self, Instance(whole, "ctx"))
        self.right(receivers, [self.move(good, receivers, 40)])

    def test_draft_layers_on_one_side_only(self):
        """FR-033: the same answer for a prompt of one block and of thirty."""
        receivers = KvferryReceivers(self, Instance(Model(**TINY), "gen"))
        senders = PythonSenders(self, Instance(Model(**TINY), "ctx"))
        senders.ranks[0].info["num_draft_layers"] = 1
        texts = set()
        for prompt in (16, 240):
            move = self.plan(senders, receivers, prompt)
            receivers.request(senders.info, move.rid, prompt, move.dst)
            texts.add(receivers.ended(move.rid, "error")[0]["text"])
            receivers.instance.free.clear()
            senders.instance.free.clear()
        self.assertEqual(len(texts), 1, texts)
        self.assertIn("draft KV layer count differs", texts.pop())

    def test_states_in_padded_pages(self):
        """FR-030: no byte of padding moves, and none is cut."""
        self.pairs({"attention": [0], "recurrent": [1], "sections": (1024, 512, 512), "state_heads": 8,
                    "head_bytes": 1024}, {"padding": 2048}, {"tp": 2, "padding": 96}, [40])

    def test_windows_are_cut_like_the_rest(self):
        """FR-027, FR-035: full and window layers by the same map of heads, only the blocks inside the window."""
        self.pairs({"attention": [0, 1, 2, 3], "heads": 8, "windowed": [1, 3]}, {"tp": 4}, {"tp": 2}, [70])

    # ends

    def test_blocks_are_held_until_they_are_sent(self):
        """FR-041: a request that waits for its reader is not settled; nothing comes of a cancel that comes in time."""
        senders = KvferrySenders(self, Instance(Model(**TINY), "ctx"))
        receivers = PythonReceivers(self, Instance(Model(**TINY), "gen"))
        kept, forced = [self.plan(senders, receivers, 40) for _ in range(2)]
        for move in (kept, forced):
            senders.offer(move.rid, 40, move.src)
        moved = self.move(senders, receivers, 40)
        worker = senders.ranks[0]
        self.assertIsNone(worker.find("settled", rid=kept.rid))
        worker.say(cancel=forced.rid)
        senders.ended(forced.rid, "cancelled")
        for move in (kept, forced):
            receivers.request(senders.info, move.rid, 40, move.dst)
        receivers.success(kept.rid)
        senders.success(kept.rid)
        receivers.ranks[0].until(lambda: receivers.ranks[0].ends(forced.rid), "failure", SOON)
        self.assertEqual(receivers.ranks[0].ends(forced.rid), {0: peer.FAILED})
        self.right(receivers, [moved, kept])

    def test_a_prefill_that_was_tried_again(self):
        """FR-067: the abandoned id is answered soon, the new one works, none at all is refused."""
        senders = KvferrySenders(self, Instance(Model(**TINY), "ctx"))
        receivers = KvferryReceivers(self, Instance(Model(**TINY), "gen"))
        first, second = [self.plan(senders, receivers, 40) for _ in range(2)]
        senders.offer(first.rid, 40, first.src, hold=True)
        senders.cancel(first.rid)
        senders.ended(first.rid, "cancelled")
        senders.offer(second.rid, 40, second.src)
        receivers.request(senders.info, first.rid, 40, first.dst)
        event = receivers.ranks[0].event("ended", SOON, rid=first.rid)
        self.assertIn(event["state"], ("cancelled", "error"))
        receivers.request(senders.info, second.rid, 40, second.dst)
        receivers.success(second.rid)
        receivers.ranks[0].say(prompt=40, blocks=[[0, 1, 2]], info=senders.info)
        self.assertIn("rid", receivers.ranks[0].event("refused")["text"])
        self.right(receivers, [second])

    def test_one_rank_of_four_fails(self):
        """FR-087: it says so at once, the others end too, and the next request is served by all."""
        senders = PythonSenders(self, Instance(Model(**TINY), "ctx", tp=4))
        receivers = KvferryReceivers(self, Instance(Model(**TINY), "gen", tp=4))
        move = self.plan(senders, receivers, 40)
        for rank in senders.ranks:
            rank.status = lambda rid, key, piece: peer.FAILED if (rid, key[1]) == (move.rid, 2) else peer.SUCCESS
        senders.offer(move.rid, 40, move.src)
        receivers.request(senders.info, move.rid, 40, move.dst)
        states = [rank.event("ended", SOON, rid=move.rid)["state"] for rank in receivers.ranks]
        self.assertEqual(states, ["transferred", "transferred", "error", "transferred"])
        for rank in receivers.ranks:
            rank.event("settled", SOON, rid=move.rid)
        after = self.move(senders, receivers, 40)
        receivers.success(after.rid)

    def test_every_reader_that_cancels_is_answered(self):
        """FR-038: two ranks cancel in the middle; each of them gets its word, from each writer."""
        senders = KvferrySenders(self, Instance(Model(**TINY), "ctx", tp=2))
        receivers = PythonReceivers(self, Instance(Model(**TINY), "gen", tp=2, pp=1))
        move = self.plan(senders, receivers, 40)
        senders.offer(move.rid, 40, move.src, pieces=[[0, 16], [16, 40]], hold=True)
        receivers.request(senders.info, move.rid, 40, move.dst)
        senders.send(move.rid)
        for rank in receivers.ranks:
            rank.until(lambda: rank.words.get(move.rid), "first piece")
        receivers.cancel(move.rid)
        receivers.settled(move.rid)
        senders.ended(move.rid, "cancelled")

    def test_readers_that_decline(self):
        """FR-054: ten offers, five declined before they were asked for, five while they wait; nothing moves."""
        senders = KvferrySenders(self, Instance(Model(**TINY), "ctx", slots=64))
        receivers = PythonReceivers(self, Instance(Model(**TINY), "gen", slots=64))
        receivers.ranks[0].contact(senders.info)
        moves = [self.plan(senders, receivers, 40) for _ in range(10)]
        for number, move in enumerate(moves):
            senders.offer(move.rid, 40, move.src, hold=True)
            if number % 2:
                receivers.request(senders.info, move.rid, 40, move.dst)
            else:
                rank, sender = receivers.ranks[0], senders.ranks[0].ready["sender"]
                rank.ask(lambda: rank.send(sender, b"CANCEL_SESSION", b"%d" % move.rid, b"gen", b"0"))
        for move in moves[1::2]:
            receivers.cancel(move.rid)
            receivers.settled(move.rid)
        for move in moves:
            self.assertEqual(senders.ended(move.rid, "cancelled")[0]["bytes"], 0)
        self.right(receivers, [])

    def test_all_of_the_prompt_is_there_already(self):
        """FR-059, FR-076: no byte, done at once, the source is free."""
        for senders, _, moves in self.pairs(TINY, {"tp": 2}, {}, [96], wants=lambda ordinal: False):
            senders.success(moves[0].rid)

    def test_a_failure_of_the_sender_is_passed_on(self):
        """FR-061, FR-078: to those who asked before it, and to one who asks later; a part is not the whole."""
        senders = KvferrySenders(self, Instance(Model(**TINY), "ctx"))
        early, late = [KvferryReceivers(self, Instance(Model(**TINY), name)) for name in ("gen", "late")]
        move = self.plan(senders, early, 160)
        senders.offer(move.rid, 160, move.src, pieces=[[0, 16], [16, 160]], hold=True)
        early.request(senders.info, move.rid, 160, move.dst)
        senders.ranks[0].event("asked", rid=move.rid)
        senders.send(move.rid)
        senders.ranks[0].event("piece", rid=move.rid)
        senders.cancel(move.rid)
        late.request(senders.info, move.rid, 160, [late.instance.blocks(0, 160)])
        for receivers in (early, late):
            receivers.taking[move.rid] = [0]
            self.assertIn(receivers.ranks[0].event("ended", SOON, rid=move.rid)["state"], ("cancelled", "error"))
            receivers.ranks[0].event("settled", rid=move.rid)

    # identity

    def test_words_about_requests_that_are_over_or_never_were(self):
        """FR-069, FR-071, FR-073: ignored and counted; a doubled one does not end anything early."""
        senders = PythonSenders(self, Instance(Model(**TINY), "ctx", tp=2))
        receivers = KvferryReceivers(self, Instance(Model(**TINY), "gen"))
        move, worker = self.plan(senders, receivers, 40), receivers.ranks[0]
        first, second = senders.ranks
        second.hold()
        senders.offer(move.rid, 40, move.src)
        receivers.request(senders.info, move.rid, 40, move.dst)
        first.until(lambda: ("gen", 0) in first.sessions[move.rid].done, "done")
        first.ask(lambda: first.result(move.rid, ("gen", 0), True, peer.SUCCESS))
        other = self.plan(senders, receivers, 40)
        first.ask(lambda: first.send(worker.ready["self"], b"KV_AGENT_RESULT",
                                     peer.RESULT.pack(0, 987654321, 0, 1, peer.SUCCESS, 0)))
        self.assertIsNone(worker.find("ended", rid=move.rid))
        second.release()
        receivers.success(move.rid)
        for rank in senders.ranks:
            rank.ask(lambda: rank.result(move.rid, ("gen", 0), True, peer.SUCCESS))
        senders.offer(other.rid, 40, other.src)
        receivers.request(senders.info, other.rid, 40, other.dst)
        receivers.success(other.rid)
        self.assertEqual(len([event for event in worker.events if event["event"] == "ended"]), 2)
        self.right(receivers, [move, other])
        receivers.end(0)

    def test_readers_are_counted_per_rank(self):
        """FR-074: four heads, 2 to 8 and 8 to 2: free after the last reader, and free where there is none."""
        for src, dst in ((2, 8), (8, 2)):
            for senders, _, moves in self.pairs({**TINY}, {"tp": src}, {"tp": dst}, [40]):
                senders.success(moves[0].rid)

    def test_an_id_that_is_used_twice(self):
        """FR-079: refused while the first one runs, which is unharmed."""
        for role in PAIRS:
            senders = role[1](self, Instance(Model(**TINY), "ctx"))
            receivers = role[2](self, Instance(Model(**TINY), "gen"))
            move = self.plan(senders, receivers, 40)
            if senders.kvferry:
                senders.offer(move.rid, 40, move.src, hold=True)
                senders.ranks[0].say(rid=move.rid, prompt=40, blocks=[[7, 8, 9]])
                senders.ranks[0].event("refused", rid=move.rid)
                receivers.request(senders.info, move.rid, 40, move.dst)
                senders.send(move.rid)
            else:
                receivers.request(senders.info, move.rid, 40, move.dst)
                receivers.ranks[0].say(rid=move.rid, prompt=40, blocks=[[7, 8, 9]], info=senders.info)
                receivers.ranks[0].event("refused", rid=move.rid)
                senders.offer(move.rid, 40, move.src)
            receivers.success(move.rid)
            self.right(receivers, [move])

    def test_many_first_contacts_at_once(self):
        """FR-080: 64 peers at the same time, while transfers run."""
        model = Model(**TINY)
        senders = KvferrySenders(self, Instance(model, "ctx", slots=512))
        peers = [PythonReceivers(self, Instance(model, "gen%d" % number)) for number in range(64)]
        threads, moves = [], [self.plan(senders, other, 40) for other in peers]
        for move in moves:
            senders.offer(move.rid, 40, move.src)
        for other, move in zip(peers, moves):
            threads.append(threading.Thread(target=other.request, args=(senders.info, move.rid, 40, move.dst)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        for other, move in zip(peers, moves):
            other.success(move.rid)
            self.right(other, [move])

    # peers that fail and come back

    def test_one_failure_marks_nobody_for_good(self):
        """FR-084: the next transfer of the pair is served."""
        senders = PythonSenders(self, Instance(Model(**TINY), "ctx"))
        receivers = KvferryReceivers(self, Instance(Model(**TINY), "gen"))
        move = self.plan(senders, receivers, 40)
        senders.ranks[0].status = lambda rid, key, piece: peer.FAILED if rid == move.rid else peer.SUCCESS
        senders.offer(move.rid, 40, move.src)
        receivers.request(senders.info, move.rid, 40, move.dst)
        receivers.ended(move.rid, "error")
        after = self.move(senders, receivers, 40)
        receivers.success(after.rid)

    def test_a_sender_that_stands_still(self):
        """FR-063, FR-086: others are served meanwhile; the time of those that wait runs out."""
        still = KvferrySenders(self, Instance(Model(**TINY), "still"))
        senders = PythonSenders(self, Instance(Model(**TINY), "ctx"))
        receivers = KvferryReceivers(self, Instance(Model(**TINY), "gen", slots=64))
        moves = [self.plan(still, receivers, 40) for _ in range(5)]
        self.move(still, receivers, 16)
        still.ranks[0].kill(signal.SIGSTOP)
        for move in moves:
            receivers.request(still.info, move.rid, 40, move.dst, timeout=1)
        served = [self.move(senders, receivers, 40) for _ in range(3)]
        for move in moves:
            self.assertEqual(receivers.ranks[0].event("ended", rid=move.rid)["state"], "error")
        self.assertEqual(len(served), 3)
        still.ranks[0].kill(signal.SIGCONT)
        for move in moves:
            receivers.ranks[0].event("settled", rid=move.rid)

    def test_infos_that_come_late_or_cut(self):
        """FR-088: an instance that answers later is waited for; half an info is refused by its name, never used."""
        model = Model(**TINY)
        receivers = KvferryReceivers(self, Instance(model, "gen"))
        senders = PythonSenders(self, Instance(model, "ctx"))
        data = rank_info.pack(senders.ranks[0].info)
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)
        for number, cut in enumerate(list(range(0, len(data), len(data) // 12)) + [len(data) - 1]):
            router = context.socket(zmq.ROUTER)
            router.bind("tcp://127.0.0.1:0")
            endpoint = router.last_endpoint.decode("ascii").rstrip("\0")
            receivers.request(endpoint, 5000 + number, 40, [[[0, 1, 2]]])
            self.assertTrue(router.poll(SOON * 1000))
            router.send_multipart([router.recv_multipart()[0], data[:cut]])
            self.assertIn(endpoint, receivers.ended(5000 + number, "error")[0]["text"])
            router.close(0)
        late = context.socket(zmq.ROUTER)
        late.bind("tcp://127.0.0.1:0")
        endpoint = late.last_endpoint.decode("ascii").rstrip("\0")
        move = self.plan(senders, receivers, 40)
        senders.offer(move.rid, 40, move.src)
        receivers.request(endpoint, move.rid, 40, move.dst)
        self.assertTrue(late.poll(SOON * 1000))
        who = late.recv_multipart()[0]
        self.assertIsNone(receivers.ranks[0].find("ended", rid=move.rid))
        late.send_multipart([who, data])
        self.addCleanup(late.close, 0)
        receivers.success(move.rid)
        self.right(receivers, [move])


if __name__ == "__main__":
    unittest.main()
