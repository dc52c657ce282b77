#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The Python peer against itself, and the check of the bytes against a sender that is wrong in one place."""
import hashlib
import unittest

import arithmetic
import rank
from model import Instance, Model
from scene import Case, PythonReceivers, PythonSenders

GOLDEN = "375909e27ee244b1a5543b0c15b95c381ab152c0c7dffa5a099bc5d1f19070da"


def golden():
    """A rank info with all fields, whose bytes are known."""
    none = {"section_bytes": None, "bytes_per_head": None, "num_kv_heads": None, "ring_slot_bytes": None}
    order = ["pool_idx", "buffer_entries", "pool_role", "mapper_kind", "bytes_per_layer", "section_bytes",
             "bytes_per_head", "num_kv_heads", "ring_slot_bytes"]

    def view(**members):
        members = {**none, **members}
        return {key: members[key] for key in order}
    keys = view(pool_idx=0, buffer_entries=[[0, 0, 256], [0, 256, 256]], pool_role=["key", "value"], mapper_kind=0,
                bytes_per_layer=512, num_kv_heads=2)
    conv = view(pool_idx=0, buffer_entries=[[0, 0, 96]], pool_role=["conv_state"], mapper_kind=3, bytes_per_layer=96,
                section_bytes=[32, 32, 32])
    ssm = view(pool_idx=1, buffer_entries=[[0, 0, 128]], pool_role=["ssm_state"], mapper_kind=0, bytes_per_layer=128,
               bytes_per_head=32)
    plain = {"name": "gen", "rank": 0, "tp": [1, 0], "pp": [1, 0], "dp": [1, 0], "cp": [1, 0], "device": 0,
             "layers_per_stage": [2],
             "attention": {"kv_heads": 2, "tokens_per_block": 16, "head_dim": 8, "element_bytes": 2,
                           "attention_dp": False, "key_only": False}, "aux": None}
    out = rank.rank_info(plain, ["tcp://127.0.0.1:5003"], "tcp://127.0.0.1:6002")
    pools = [[(0x7f0000000000, 512, 128)], [(0xA000, 96, 8), (0xFFFFFFFF00000000, 128, 8)]]
    out["page_table"] = {
        "tokens_per_block": 16, "layer_groups": [
            {"kind": 0, "pool_group_idx": 0, "local_layers": [{"local_layer_id": 0, "global_layer_id": 4}],
             "pool_views": [keys], "kv_head_num_per_rank": 2, "sliding_window_size": None},
            {"kind": 1, "pool_group_idx": 1, "local_layers": [{"local_layer_id": 0, "global_layer_id": 5}],
             "pool_views": [conv, ssm], "slot_major_layout": True}],
        "pool_groups": [{"pools": [{"base_address": base, "slot_bytes": slot, "num_slots": slots,
                                    "slot_stride_bytes": slot, "layer_stride_bytes": None}
                                   for base, slot, slots in group]} for group in pools]}
    return out


class Peer(Case):
    def test_golden_bytes(self):
        data = rank.pack(golden())
        self.assertEqual((len(data), hashlib.sha256(data).hexdigest()), (1441, GOLDEN))
        self.assertEqual(rank.unpack(data), golden())

    def test_moves_between_itself(self):
        model = Model(attention=[0, 2, 4, 6], recurrent=[1, 3, 5, 7], index=12, side=24, order="nhd")
        senders = PythonSenders(self, Instance(model, "ctx", tp=4, pp=2, padding=32, aux=4))
        receivers = PythonReceivers(self, Instance(model, "gen", tp=2, aux=4))
        moves = [self.move(senders, receivers, prompt, aux=(number, 3 - number))
                 for number, prompt in enumerate([61, 8])]
        self.right(receivers, moves)
        senders.end()
        receivers.end()

    def test_the_check_sees_one_head_at_a_wrong_place(self):
        """A sender that puts one head of one layer one head further."""
        for order in ("indexed", "nhd"):
            model = Model(order=order)
            senders = PythonSenders(self, Instance(model, "ctx", tp=4))
            receivers = PythonReceivers(self, Instance(model, "gen", tp=2))
            head = model.head_dim * model.element * (model.tokens if order == "indexed" else 1)

            def bend(rows, _):
                rows = rows.copy()
                rows[0, 1] += head
                return rows
            senders.ranks[2].bend = bend
            move = self.move(senders, receivers, 40)
            problems = self.problems(receivers, [move])
            self.assertTrue(any("gen1 pool (0, 0)" in line for line in problems), problems)
            self.assertTrue(any("head 2 token 0" in line for line in problems), problems)
            self.assertFalse(any("gen0" in line for line in problems), problems)

    def test_the_check_sees_a_byte_beside_a_slot(self):
        senders = PythonSenders(self, Instance(Model(), "ctx", tp=2))
        receivers = PythonReceivers(self, Instance(Model(), "gen", padding=64))
        move = self.move(senders, receivers, 40)
        self.right(receivers, [move])
        slot = receivers.ranks[0].plain["table"]["pools"][0][0]["slot"]
        receivers.pools(0)[0, 0][slot] ^= 1
        self.assertTrue(any("padding at %d" % slot in line for line in self.problems(receivers, [move])))
        receivers.ranks[0].memory.all[0] ^= 1
        self.assertEqual(receivers.ranks[0].memory.guards(), 1)

    def test_a_request_that_comes_first(self):
        """Before, during and after: the same bytes, each once."""
        model = Model()
        senders = PythonSenders(self, Instance(model, "ctx", tp=2))
        receivers = PythonReceivers(self, Instance(model, "gen", tp=4))
        move = self.plan(senders, receivers, 33)
        receivers.request(senders.info, move.rid, 33, move.dst)
        senders.wait_asked(move.rid, 2)
        senders.offer(move.rid, 33, move.src, pieces=[[0, 16], [16, 33], [33, 33]])
        receivers.success(move.rid)
        self.right(receivers, [move])
        self.assertEqual(sum(len(rank.writes) for rank in senders.ranks), 2 * 2 * 3)

    def test_cancel(self):
        senders = PythonSenders(self, Instance(Model(), "ctx", tp=2))
        receivers = PythonReceivers(self, Instance(Model(), "gen"))
        move = self.plan(senders, receivers, 33)
        receivers.request(senders.info, move.rid, 33, move.dst)
        senders.wait_asked(move.rid)
        receivers.cancel(move.rid)
        receivers.settled(move.rid)
        senders.offer(move.rid, 33, move.src)
        receivers.ranks[0].until(lambda: len(receivers.ranks[0].ends(move.rid)) == 2, "both")
        self.right(receivers, [])

    def test_every_wanted_byte_has_one_writer(self):
        """Over the writers of a rank, by addresses alone."""
        for order in ("indexed", "nhd"):
            for src, dst in (((4, 2, 1), (2, 1, 1)), ((2, 1, 1), (4, 2, 1)), ((8, 1, 1), (2, 1, 1)),
                             ((2, 1, 1), (2, 1, 2))):
                with self.subTest(order=order, src=src, dst=dst):
                    self.once(Model(order=order, index=8, recurrent=[9, 10]), src, dst)

    def once(self, model, src, dst):
        source = Instance(model, "ctx", *src)
        target = Instance(model, "gen", *dst)
        senders = [rank.rank_info(plain) for plain in source.spec_ranks()]
        for number in range(target.size):
            info = rank.rank_info(target.rank(number))
            base = 1 << 40
            for group in info["page_table"]["pool_groups"]:
                for pool in group["pools"]:
                    pool["base_address"], base = base, base + (1 << 30)
            tables = target.blocks(number, 40)
            got = []
            for writer in arithmetic.overlap(info, senders[0], 0):
                got += arithmetic.fragments(senders[writer], info, source.blocks(writer, 40), tables)[:, 1:].tolist()
            got.sort()
            self.assertTrue(all(a[0] + a[1] <= b[0] for a, b in zip(got, got[1:])))
            wanted = sum(size * len(tables[group_number])
                         for group_number, group in enumerate(target.rank(number)["table"]["groups"])
                         for view in group["views"] for _, _, size in view["entries"])
            self.assertEqual(sum(size for _, size in got), wanted)


if __name__ == "__main__":
    unittest.main()
