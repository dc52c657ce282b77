#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvferry demo: that it passes, that it can fail, and that it leaves nothing behind."""

import json
import os
import signal
import time
import unittest
from pathlib import Path

from job import CACHE, PATIENCE, JobTest


def workers_of(process):
    """Ids of the child processes."""
    pid = process.popen.pid
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_running(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Demo(JobTest):
    def demo(self, *arguments):
        return self.start("demo", "--data", CACHE.parent, *arguments)

    def until(self, what, condition):
        """Polls the state of processes, for which there is nothing to wait on."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            os.sched_yield()

    def test_every_case_over_every_transport(self):
        demo = self.ends(self.demo("--scale", 2, "--json", "--keep", self.folder / "kept"), 0)
        report = json.loads(demo.stdout)
        self.assertTrue(report["right"])
        self.assertEqual([(row["case"], row["transport"]) for row in report["runs"]],
                         [(case, transport) for case in ("split", "turned", "equal") for transport in ("shm", "tcp")])
        for row in report["runs"]:
            self.assertEqual(row["verdict"], "every byte right")
            self.assertEqual(row["bytes"], 2 * 23040 * 368)
            self.assertEqual(row["pieces"], 2 * 6)
            self.assert_moved(self.folder / "kept" / f"moved-{row['case']}-{row['transport']}.safetensors")
        self.assert_moved(self.folder / "kept" / "moved.safetensors")
        for case in ("split", "turned", "equal"):
            layouts = [self.folder / "kept" / f"{case}-{side}.json" for side in ("prefill", "decode")]
            self.ends(self.start("plan", *layouts), 0)

    def test_picture_and_table(self):
        demo = self.ends(self.demo("--scale", 1, "--case", "split"), 0)
        for text in ("six prefill ranks", "pp0.cp0.tp0 gets", "every byte right", "bare loop"):
            self.assertIn(text, demo.stdout)
        self.assertEqual(demo.stderr, "", "quiet when it is no terminal")

    def test_a_flipped_byte_is_caught(self):
        for transport in ("shm", "tcp"):
            for case in ("split", "turned", "equal"):
                with self.subTest(transport=transport, case=case):
                    demo = self.demo("--scale", 1, "--json", "--corrupt", "--transport", transport, "--case", case)
                    self.ends(demo, 1)
                    report = json.loads(demo.stdout)
                    self.assertFalse(report["right"])
                    self.assertRegex(report["runs"][0]["verdict"],
                                     r"^request \d+: layers\.\d+\.[kv] differs from the stored SHA-256; "
                                     r"first at token \d+ head \d byte \d+: 0x.., expected 0x..$")

    def test_workers_die_with_the_coordinator(self):
        demo = self.demo("--scale", 64)
        self.until("workers are started", lambda: len(workers_of(demo)) == 7)
        workers = workers_of(demo)
        demo.kill()
        self.until("workers are gone", lambda: not any(map(is_running, workers)))

    def test_a_worker_that_dies_is_told(self):
        demo = self.demo("--scale", 64, "--case", "split")
        self.until("workers are started", lambda: len(workers_of(demo)) == 7)
        victim = workers_of(demo)[2]
        os.kill(victim, signal.SIGKILL)
        self.assertIn(demo.end(), (1, 4), str(demo))
        self.assertTrue("was killed by signal 9" in demo.stderr or "lost" in demo.stderr + demo.stdout, str(demo))
        self.assertEqual(workers_of(demo), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
