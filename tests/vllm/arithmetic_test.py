#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The peer's arithmetic and messages against upstream's own answers.

    arithmetic_test.py CASES.jsonl.xz
"""
import json
import lzma
import sys
import unittest

import arithmetic
import wire
from arithmetic import Fatal, Region

CASES = sys.argv.pop(1)


def plain(regions):
    return [[*region[:6], list(region.shared), region.row] for region in regions]


class Upstream(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.now = None
        with lzma.open(CASES, "rt") as lines:
            rows = [json.loads(line) for line in lines]
        cls.cases = [case for case in rows if "family" in case]

    def _formatMessage(self, msg, standardMsg):
        return super()._formatMessage(msg, "case %s: %s" % (self.now, standardMsg))

    def each(self, family, least):
        rows = [case for case in self.cases if case["family"] == family]
        self.assertGreaterEqual(len(rows), least)
        for case in rows:
            self.now = case["id"]
            yield case["input"], case["expect"], case

    def test_register(self):
        for given, expect, _ in self.each("register", 200):
            if "error" in expect:
                with self.assertRaises(Fatal) as seen:
                    arithmetic.Registration(given)
                self.assertIn(expect["error"], ("", str(seen.exception)))
                continue
            found = arithmetic.Registration(given)
            self.assertEqual({"memory": found.memory, "opaque_storages": found.opaque, **found.arrays()}, expect)

    def test_small_families(self):
        for given, expect, _ in self.each("coalesce", 100):
            local, remote = [[Region(*row) for row in given[side]] for side in ("local", "remote")]
            local, remote = arithmetic.coalesce(local, remote, given["promote_full_row"])
            self.assertEqual((plain(local), plain(remote)), (expect["local"], expect["remote"]))
        for given, expect, _ in self.each("align", 100):
            local, remote = [[Region(*row) for row in given[side]] for side in ("local", "remote")]
            local, remote, error = arithmetic.align(local, remote, given["allow_partial_layers"])
            self.assertEqual((plain(local), plain(remote), error), (expect["local"], expect["remote"],
                                                                   expect["error"]))
        for family, least, call in (("sender_plan", 100, lambda given: {"plan": list(
                arithmetic.sender_plan(**given))}), ("validate", 50, lambda given: {"error": arithmetic.validate(
                    **given)})):
            for given, expect, _ in self.each(family, least):
                try:
                    found = call(given)
                except Fatal as fatal:
                    found = {"error": str(fatal)}
                self.assertEqual(found, expect)
        for given, expect, _ in self.each("ranks", 40):
            own = given["own_tp_rank"], given["own_tp_size"]
            try:
                found = {"target_ranks": arithmetic.target_ranks(*own, given["other_tp_size"]),
                         "need_send": arithmetic.need_send(*own, given["own_pp_size"], given["other_tp_size"],
                                                           given["other_pp_size"])}
            except Fatal as fatal:
                found = {"error": str(fatal)}
            self.assertEqual(found, expect)
        for given, expect, _ in self.each("runs", 30):
            left, right = arithmetic.runs(given["src"], given["dst"])
            self.assertEqual({"src": left, "dst": right}, expect)

    def test_plan(self):
        for given, expect, _ in self.each("plan", 1000):
            reply, found = self.answer(given["producer"], given["pull"])
            self.assertEqual(reply["status"], expect["reply"]["status"])
            texts = {row.get("error") for row in expect.get("requests", {}).values()} - {None}
            for key in ("ok_reqs", "err_reqs", "err_msg"):
                if key == "err_msg" and len(texts) > 1:
                    self.assertIn(reply[key], texts)
                else:
                    self.assertEqual(reply.get(key), expect["reply"].get(key))
            if "requests" in expect:
                self.assertEqual(found, expect["requests"])

    @staticmethod
    def answer(given, pull):
        """The whole reply, all requests ready, and what became of each."""
        producer = arithmetic.Producer(given)
        try:
            error = producer.refuse(pull)
            if not error:
                local, remote, error = producer.prepare(pull)
            error = error or producer.lengths(local, remote, pull["tp_size"])
            if error:
                return {"status": wire.ERROR, "err_msg": error}, None
            ready = {row["transfer_id"]: row["block_ids"] for row in given["ready"]}
            found = {}
            for row in pull["requests"]:
                moves, error = producer.descriptors(local, remote, pull, ready[row["transfer_id"]], row["block_ids"])
                found[row["d_req_id"]] = {"error": error} if error else {"descriptors": moves}
        except Fatal as fatal:
            return {"status": wire.ERROR, "err_msg": str(fatal)}, None
        reply = {"status": wire.FINISH}
        for key, bad in (("ok_reqs", False), ("err_reqs", True)):
            ids = sorted(name for name, row in found.items() if ("error" in row) == bad)
            if ids:
                reply[key] = ids
        errors = [row["error"] for row in found.values() if "error" in row]
        if errors:
            reply["err_msg"] = errors[0]
        return reply, found

    def test_requests_as_bytes(self):
        for given, _, case in self.each("plan", 1000):
            pull = given["pull"]
            if "request_hex" not in case:
                continue
            packed = wire.request(pull, {row["d_req_id"]: (row["transfer_id"], row["block_ids"])
                                         for row in pull["requests"]})
            self.assertEqual(packed.hex(), case["request_hex"])
            back = wire.read_request(packed)
            self.assertEqual(wire.pull_of(back), {key: pull[key] for key in wire.pull_of(back)})


class Golden(unittest.TestCase):
    """Byte strings of an encoder of another hand."""

    def test_requests(self):
        for name, (pull, requests, layout, whole), hexed in wire.golden_requests():
            with self.subTest(name):
                packed = wire.request(pull, requests, layout, whole)
                self.assertEqual(packed.hex(), hexed)
                self.assertEqual(wire.read_request(packed)["layout_id"], layout)

    def test_replies(self):
        for name, reply, hexed in wire.GOLDEN_REPLIES:
            with self.subTest(name):
                self.assertEqual(wire.reply(**reply).hex(), hexed)
                back = wire.read_reply(bytes.fromhex(hexed), newest=True)
                self.assertEqual({key: back[key] for key in reply}, reply)

    def test_what_is_no_message(self):
        good = bytes.fromhex(wire.GOLDEN_REPLIES[0][2])
        with self.assertRaises(wire.Malformed):
            wire.read_reply(bytes.fromhex(wire.LAYOUT_MISS_HEX), newest=False)
        for bad in [good + b"\0", b"", b"\x80", b"\x90", b"\x81\xa6status\xc3"] + [good[:at] for at in range(1, 25)]:
            with self.assertRaises(wire.Malformed):
                wire.read_reply(bad, newest=True)


if __name__ == "__main__":
    unittest.main()
