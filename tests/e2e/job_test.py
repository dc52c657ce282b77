#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The job by hand, where everything goes well."""

import json
import subprocess
import unittest
import urllib.request

from job import CACHE, KVFERRY, JobTest, tensors


class Job(JobTest):
    def move(self, *arguments):
        """Six prefill ranks to one decode rank."""
        self.directory()
        prefill = self.prefill_all(self.prefill_layout("--tp", 3, "--pp", 2), 2, 3, *arguments)
        decode = self.decode(self.decode_layout(), "0,0,0", "--out", self.moved(), *arguments)
        self.ends(decode, 0, "6 pieces")
        for process in prefill:
            self.ends(process, 0, "done")
        self.assert_moved()
        return decode

    def test_three_terminals(self):
        self.assertIn("over shm", self.move().stdout)

    def test_three_terminals_over_tcp(self):
        self.assertIn("over tcp", self.move("--transports", "tcp").stdout)

    def test_three_terminals_over_tcp_with_checksums(self):
        self.assertIn("over tcp", self.move("--transports", "tcp", "--checksum", "--streams", 1).stdout)

    def test_several_decode_ranks_write_one_file(self):
        self.directory()
        prefill = self.prefill_all(self.prefill_layout("--pp", 2), 2, 1)
        layout = self.decode_layout("--tp", 3)
        decode = [self.decode(layout, f"0,0,{tp}", "--out", self.moved(), "--seed", tp) for tp in range(3)]
        for process in decode:
            self.ends(process, 0, "2 pieces")
        for process in prefill:
            self.ends(process, 0)
        self.assert_moved()

    def test_decode_waits_for_a_rank(self):
        self.directory()
        layout = self.prefill_layout("--pp", 2)
        first = self.offer(layout, "0,0,0")
        decode = self.decode(self.decode_layout(), "0,0,0", "--out", self.moved(), "--verbose")
        decode.wait_for("pulls transfer t1")
        second = self.prefill(layout, "1,0,0")
        for process in [decode, first, second]:
            self.ends(process, 0)
        self.assert_moved()

    def test_decode_waits_for_the_offer(self):
        self.directory()
        layout = self.prefill_layout()
        other = self.offer(layout, "0,0,0", transfer="other")
        decode = self.decode(self.decode_layout(), "0,0,0", "--verbose", "--timeout", 1)
        self.ends(decode, 4, 'transfer "t1" attempt 0 was never offered')
        self.ends(self.decode(self.decode_layout(), "0,0,0", "--out", self.moved(), transfer="other"), 0)
        self.ends(other, 0)
        self.assert_moved()

    def test_prefill_embeds_the_directory(self):
        prefill = self.start("prefill", self.prefill_layout(), "--instance", "p", "--cache", CACHE, "--transfer", "t1")
        self.url = prefill.wait_for("directory http").split()[-1]
        self.ends(self.decode(self.decode_layout(), "0,0,0", "--out", self.moved()), 0)
        self.ends(prefill, 0)
        self.assert_moved()

    def test_context_parallel_prefill(self):
        for stripe in (16, 4, 0):
            with self.subTest(stripe=stripe):
                self.directory()
                layout = self.prefill_layout("--cp", 2, "--cp-stripe", stripe)
                prefill = [self.prefill(layout, f"0,{cp},0", seed=cp) for cp in range(2)]
                for process in prefill:
                    process.wait_for("offers transfer t1")
                decode = self.decode(self.decode_layout("--tp", 3), "0,0,0")
                others = [self.decode(self.decode_layout("--tp", 3), f"0,0,{tp}") for tp in (1, 2)]
                for process in [decode] + others + prefill:
                    self.ends(process, 0)

    def test_the_first_tokens_only(self):
        self.directory()
        prefill = self.offer(self.prefill_layout(), "0,0,0", "--tokens", 100)
        self.ends(self.decode(self.decode_layout(), "0,0,0", "--out", self.moved(), tokens=100), 0)
        self.ends(prefill, 0)
        self.assert_moved(tokens=100)

    def test_named_blocks(self):
        self.directory()
        prefill = self.offer(self.prefill_layout(), "0,0,0", "--block-ids", ",".join(map(str, range(22, -1, -1))))
        self.ends(self.decode(self.decode_layout(), "0,0,0", "--block-ids", "8,1,7,2,6,3", "--out", self.moved()), 0)
        self.ends(prefill, 0)
        self.assert_moved()

    def test_what_was_moved_moves_again(self):
        self.directory()
        first = self.folder / "first.safetensors"
        prefill = self.offer(self.prefill_layout(), "0,0,0")
        self.ends(self.decode(self.decode_layout(), "0,0,0", "--out", first), 0)
        self.ends(prefill, 0)
        prefill = self.offer(self.prefill_layout(), "0,0,0", transfer="t2", cache=first)
        self.ends(self.decode(self.decode_layout(), "0,0,0", "--out", self.moved(), transfer="t2"), 0)
        self.ends(prefill, 0)
        self.assert_moved()
        subprocess.run(["cmp", first, self.moved()], check=True)

    def test_json(self):
        self.directory()
        prefill = self.offer(self.prefill_layout(), "0,0,0", "--json")
        decode = self.ends(self.decode(self.decode_layout(), "0,0,0", "--json", "--out", self.moved()), 0)
        self.ends(prefill, 0)
        result = json.loads(decode.stdout)
        self.assertEqual((result["status"], result["pieces"], result["tokens"], result["transport"], result["out"]),
                         ("KVF_OK", 1, 353, "shm", str(self.moved())))
        self.assertEqual(result["bytes"], 23040 * 368)  # whole grains of 16 tokens
        self.assertEqual(json.loads(prefill.stdout)["status"], "KVF_OK")

    def endpoints(self, instance):
        """Where the directory says that the ranks of an instance are reached."""
        with urllib.request.urlopen(f"{self.url}/v1/query?instance={instance}", timeout=10) as answer:
            return [rank["endpoints"]["channel"] for rank in json.load(answer)["ranks"]]

    def test_several_engines_of_one_layout_file_on_one_host(self):
        """FR-012: four prefill and four decode engines, each pair with a transfer of its own."""
        self.directory()
        source, destination = self.prefill_layout(), self.decode_layout()
        prefill = [self.offer(source, "0,0,0", "--instance", f"p{i}", transfer=f"t{i}", seed=i) for i in range(4)]
        found = [endpoint for i in range(4) for endpoint in self.endpoints(f"p{i}")]
        self.assertEqual((len(found), len(set(found))), (4, 4))
        out = [self.folder / f"moved{i}.safetensors" for i in range(4)]
        decode = [self.decode(destination, "0,0,0", "--instance", f"d{i}", "--from", f"p{3 - i}", "--out", out[i],
                              transfer=f"t{3 - i}") for i in range(4)]
        for process in decode + prefill:
            self.ends(process, 0)
        for path in out:
            self.assert_moved(path)

    def test_an_instance_on_two_addresses(self):
        """FR-012: one rank of the source is reached at another address than the rest."""
        self.directory()
        layout = self.prefill_layout("--tp", 3)
        hosts = ["127.0.0.1", "127.0.0.1", "127.0.0.2"]
        prefill = [self.offer(layout, f"0,0,{tp}", "--host", host, seed=tp) for tp, host in enumerate(hosts)]
        found = self.endpoints("p")
        self.assertEqual([endpoint.rsplit(":", 1)[0] for endpoint in found], [f"tcp://{host}" for host in hosts])
        decode = self.decode(self.decode_layout(), "0,0,0", "--transports", "tcp", "--out", self.moved())
        self.ends(decode, 0, "3 pieces", "over tcp")
        for process in prefill:
            self.ends(process, 0)
        self.assert_moved()

    def test_the_command_is_one_program(self):
        self.assertTrue(subprocess.run([KVFERRY, "--version"], check=True, capture_output=True).stdout)
        self.assertEqual(len(tensors(CACHE)), 60)


if __name__ == "__main__":
    unittest.main(verbosity=2)
