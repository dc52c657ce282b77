#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a user reads, and which exit code a script gets, when a transfer cannot be."""

import signal
import socket
import unittest

from job import CACHE, JobTest


class Errors(JobTest):
    def test_directory_down(self):
        with socket.socket() as holder:  # bound, not listening: nobody else gets the port, nobody answers
            holder.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{holder.getsockname()[1]}"
            decode = self.decode(self.decode_layout(), "0,0,0")
            self.ends(decode, 4, f"kvferry decode: {self.url}", "no answer")

    def test_directory_that_is_no_url(self):
        self.url = "nonsense"
        self.ends(self.decode(self.decode_layout(), "0,0,0"), 2, "kvferry decode: ", "nonsense")

    def test_port_in_use(self):
        self.directory()
        port = self.url.rsplit(":", 1)[1]
        self.ends(self.start("directory", "--listen", f"127.0.0.1:{port}"), 1, f"address 127.0.0.1:{port} is in use")

    def test_port_of_the_embedded_directory_in_use(self):
        self.directory()
        port = self.url.rsplit(":", 1)[1]
        layout = self.prefill_layout()
        process = self.start("prefill", layout, "-i", "p", "-t", "t1", "-c", CACHE, "--directory-listen",
                             f"127.0.0.1:{port}")
        self.ends(process, 1, f"127.0.0.1:{port} is in use")

    def test_address_of_another_machine(self):
        self.directory()
        process = self.decode(self.decode_layout(), "0,0,0", "--host", "192.0.2.1")
        self.assertNotEqual(process.end(), 0)
        self.assertIn("192.0.2.1", process.stderr)

    def test_unknown_transport(self):
        self.directory()
        process = self.decode(self.decode_layout(), "0,0,0", "--transports", "shm,pigeon")
        self.ends(process, 2, "pigeon")

    def test_unknown_instance(self):
        self.directory()
        process = self.decode(self.decode_layout(), "0,0,0", "--timeout", 1)
        unknown = f'instance "p" is not known to the directory at {self.url}'
        self.ends(process, 4, f"kvferry warning: d/pp0.cp0.tp0 waits: {unknown}", f"kvferry decode: {unknown}")
        self.assertEqual(process.stderr.count("waits:"), 1, str(process))

    def test_decode_before_prefill(self):
        self.directory()
        decode = self.decode(self.decode_layout(), "0,0,0", "--out", self.moved())
        decode.wait_for("waits: ")
        prefill = self.offer(self.prefill_layout(), "0,0,0")
        self.ends(decode, 0)
        self.ends(prefill, 0)
        self.assert_moved()

    def test_incomplete_instance(self):
        self.directory()
        layout = self.prefill_layout("--tp", 3, "--pp", 2)
        for rank in ("0,0,0", "0,0,1", "1,0,2"):
            self.offer(layout, rank)
        process = self.decode(self.decode_layout(), "0,0,0", "--timeout", 1)
        self.ends(process, 4, 'instance "p"', "3 of 6 ranks registered")

    def test_never_offered(self):
        self.directory()
        self.offer(self.prefill_layout(), "0,0,0", transfer="another")
        process = self.decode(self.decode_layout(), "0,0,0", "--timeout", 1)
        self.ends(process, 4, 'transfer "t1" attempt 0 was never offered at p/pp0.cp0.tp0')

    def test_never_pulled(self):
        self.directory()
        process = self.prefill(self.prefill_layout(), "0,0,0", "--timeout", 1)
        self.ends(process, 4, 'transfer "t1" attempt 0 expired after')

    def test_layouts_that_cannot_be_joined(self):
        self.directory()
        self.offer(self.prefill_layout(), "0,0,0")
        process = self.decode(self.decode_layout("--dtype", "bf16"), "0,0,0")
        self.ends(process, 3, 'k layer 0: tag is "f16"', '"bf16"')

    def test_missing_layers(self):
        self.directory()
        self.offer(self.prefill_layout(), "0,0,0")
        layout = self.layout("D.json", "--block-tokens", 64, layers=32)
        self.ends(self.decode(layout, "0,0,0"), 3, "k layer 30", "no source rank holds them")

    def test_another_model(self):
        self.directory()
        self.offer(self.prefill_layout("--fingerprint", "one"), "0,0,0")
        process = self.decode(self.decode_layout("--fingerprint", "two"), "0,0,0")
        self.ends(process, 3, '"one"', '"two"')

    def test_more_tokens_than_offered(self):
        self.directory()
        self.offer(self.prefill_layout(), "0,0,0")
        process = self.decode(self.layout("D.json", "--block-tokens", 64, "--blocks", 20), "0,0,0", tokens=400)
        self.assertNotIn(process.end(), (0, 2), str(process))
        self.assertIn("353", process.stderr)
        self.assertIn("400", process.stderr)

    def test_pulled_by_a_second_instance(self):
        self.directory()
        layout = self.prefill_layout("--pp", 2)
        prefill = [self.prefill(layout, "0,0,0"), self.prefill(layout, "1,0,0")]
        for process in prefill:
            process.wait_for("offers transfer t1")
        self.ends(self.decode(self.decode_layout(), "0,0,0", "--out", self.moved()), 0)
        for process in prefill:
            self.ends(process, 0)
        self.assert_moved()
        process = self.start("decode", self.decode_layout(), "--instance", "e", "--from", "p", "--transfer", "t1",
                             "--tokens", 353, "--directory", self.url, "--timeout", 1)
        self.assertEqual(process.end(), 4, str(process))  # the workers that offered it are gone

    def test_pulled_by_two_instances_at_once(self):
        self.directory()
        prefill = self.offer(self.prefill_layout(), "0,0,0", "--fault-policy", "stall")
        layout = self.decode_layout()
        first = self.decode(layout, "0,0,0", "--verbose")
        first.wait_for("pulls transfer t1")
        second = self.start("decode", layout, "--instance", "e", "--from", "p", "--transfer", "t1", "--tokens", 353,
                            "--directory", self.url, "--verbose")
        second.wait_for("pulls transfer t1")
        self.ends(self.first_to_end(first, second), 1, 'transfer "t1" attempt 0 is pulled by instance "', "already")
        prefill.kill()

    def test_offered_by_two_processes_of_one_rank(self):
        """The one that registered last is the rank; the other one is told that nobody came."""
        self.directory()
        layout = self.prefill_layout()
        first = self.offer(layout, "0,0,0", "--timeout", 5)
        second = self.offer(layout, "0,0,0")
        self.ends(self.decode(self.decode_layout(), "0,0,0", "--out", self.moved()), 0)
        self.ends(second, 0)
        self.ends(first, 4, 'transfer "t1" attempt 0 expired after')
        self.assert_moved()

    def test_cancelled_while_waiting(self):
        self.directory()
        prefill = self.prefill(self.prefill_layout(), "0,0,0")
        prefill.wait_for("offers transfer t1")
        self.ends(prefill.kill(signal.SIGTERM), 1, "cancelling transfer t1")
        other = self.prefill(self.prefill_layout(), "0,0,0", transfer="other")
        other.wait_for("offers transfer other")
        decode = self.decode(self.decode_layout(), "0,0,0", "--verbose")
        decode.wait_for("pulls transfer t1")
        self.ends(decode.kill(signal.SIGINT), 1, "cancelling transfer t1")

    def test_directory_restarted_in_between(self):
        first = self.directory()
        prefill = self.prefill_all(self.prefill_layout("--pp", 2), 2, 1)
        for process in prefill:
            process.wait_for("offers transfer t1")
        first.kill(signal.SIGTERM).end()
        self.directory(self.url.removeprefix("http://"))
        waiting = True
        while waiting:  # each try fails at once with a reason until both ranks have registered anew
            decode = self.decode(self.decode_layout(), "0,0,0", "--out", self.moved())
            waiting = decode.end() == 4 and 'instance "p" is not known' in decode.stderr
        self.ends(decode, 0)
        for process in prefill:
            self.ends(process, 0)
        self.assert_moved()

    def test_an_old_attempt(self):
        self.directory()
        self.offer(self.prefill_layout(), "0,0,0", "--attempt", 1)
        process = self.decode(self.decode_layout(), "0,0,0", "--attempt", 0, "--timeout", 2)
        self.assertIn(process.end(), (1, 4), str(process))
        self.assertIn("attempt", process.stderr)
        self.ends(self.decode(self.decode_layout(), "0,0,0", "--attempt", 1, "--out", self.moved()), 0)
        self.assert_moved()



if __name__ == "__main__":
    unittest.main(verbosity=2)
