#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of either side: while it waits, in mid-bytes, and after it is done."""

import time
import unittest

from job import JobTest

# A rank that begins and never moves a byte: the transfer is in its midst while the other ranks' bytes have come.
STALLED = ("--fault-policy", "stall")


class Kill(JobTest):
    def test_prefill_dies_while_it_waits(self):
        """Its registration outlives it for a while: the decode side must not hang on that."""
        self.directory()
        self.offer(self.prefill_layout(), "0,0,0").kill().end()
        began = time.monotonic()
        decode = self.decode(self.decode_layout(), "0,0,0", "--out", self.moved())
        self.assertEqual(decode.end(), 4, str(decode))
        self.assertIn("p/pp0.cp0.tp0", decode.stderr)
        self.assertLess(time.monotonic() - began, 30)
        self.assertFalse(self.moved().exists())

    def test_prefill_dies_while_decode_waits(self):
        self.directory()
        prefill = self.offer(self.prefill_layout(), "0,0,0", transfer="another")
        decode = self.decode(self.decode_layout(), "0,0,0", "--verbose", "--out", self.moved())
        decode.wait_for("pulls transfer t1")
        began = time.monotonic()
        prefill.kill().end()
        self.assertEqual(decode.end(), 4, str(decode))
        self.assertIn("p/pp0.cp0.tp0", decode.stderr)
        self.assertLess(time.monotonic() - began, 30)
        self.assertFalse(self.moved().exists())

    def test_decode_dies_while_it_waits(self):
        """Nothing was offered to it yet: another decode worker of the name takes its place."""
        self.directory()
        prefill = self.offer(self.prefill_layout(), "0,0,0")
        decode = self.decode(self.decode_layout(), "0,0,0", "--verbose", transfer="another")
        decode.wait_for("pulls transfer another")
        decode.kill().end()
        self.ends(self.decode(self.decode_layout(), "0,0,0", "--out", self.moved()), 0)
        self.ends(prefill, 0)
        self.assert_moved()

    def in_mid_bytes(self, transport):
        """A transfer of which two pieces have come and the third stalls. Returns the prefill ranks, and decode."""
        self.directory()
        layout = self.prefill_layout("--tp", 3)
        prefill = [self.offer(layout, f"0,0,{tp}", "--transports", transport, *(STALLED if tp == 2 else ()))
                   for tp in range(3)]
        decode = self.decode(self.decode_layout(), "0,0,0", "--verbose", "--transports", transport, "--out",
                             self.moved())
        decode.wait_for(f"{2 * 23040 // 3 * 368:,} bytes have come")
        return prefill, decode

    def test_prefill_dies_in_mid_bytes(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport=transport):
                prefill, decode = self.in_mid_bytes(transport)
                began = time.monotonic()
                prefill[2].kill().end()
                self.assertEqual(decode.end(), 4, str(decode))
                self.assertLess(time.monotonic() - began, 20)
                self.assertIn("p/pp0.cp0.tp2", decode.stderr)
                for process in prefill[:2]:
                    self.ends(process, 0)  # their part had arrived
                self.assertFalse(self.moved().exists())

    def test_decode_dies_in_mid_bytes(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport=transport):
                prefill, decode = self.in_mid_bytes(transport)
                began = time.monotonic()
                decode.kill().end()
                self.ends(prefill[2], 4, "d/pp0.cp0.tp0")
                self.assertLess(time.monotonic() - began, 20)
                self.assertFalse(self.moved().exists())

    def test_either_side_dies_after_it_is_done(self):
        self.directory()
        layout = self.decode_layout("--tp", 3)
        prefill = self.offer(self.prefill_layout(), "0,0,0")
        first = self.decode(layout, "0,0,0", "--out", self.moved(), "--verbose")
        first.wait_for("pulls transfer t1")
        others = [self.decode(layout, f"0,0,{tp}", "--out", self.moved()) for tp in (1, 2)]
        first.wait_for("written to")
        first.kill().end()
        for process in others:
            self.ends(process, 0)
        prefill.wait_for("transfer t1 done")
        prefill.kill().end()
        self.assert_moved()


if __name__ == "__main__":
    unittest.main(verbosity=2)
