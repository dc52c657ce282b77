# SPDX-License-Identifier: Apache-2.0
"""Runs the job by hand as a user would: a directory, prefill and decode ranks, each a process of its own.

KVFERRY names the command under test. Nothing sleeps: a test waits for a line that a process prints, or for its end.
"""

import json
import os
import queue
import selectors
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "examples" / "data" / "kv.safetensors"
KVFERRY = os.path.abspath(os.environ["KVFERRY"])
# Sanitizers slow everything down; the meson test's own timeout is the last word.
PATIENCE = 60 * (4 if os.environ.get("KVF_SANITIZER") else 1)


class Process:
    """A kvferry process whose output is read while it runs."""

    def __init__(self, *arguments):
        self.arguments = [str(argument) for argument in arguments]
        self.popen = subprocess.Popen([KVFERRY, *self.arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
        self.lines = {"stdout": [], "stderr": []}
        self.news = queue.Queue()
        self.readers = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in self.lines]
        for reader in self.readers:
            reader.start()

    def _read(self, name):
        for line in getattr(self.popen, name):
            self.lines[name].append(line.rstrip("\n"))
            self.news.put(line)
        self.news.put(None)

    def wait_for(self, text):
        """Waits for a line that holds `text`, on either output, and returns it."""
        deadline = time.monotonic() + PATIENCE
        ended = 0
        while True:
            for line in self.lines["stdout"] + self.lines["stderr"]:
                if text in line:
                    return line
            if ended == 2:
                raise AssertionError(f"{self}: ended without saying \"{text}\"")
            try:
                ended += self.news.get(timeout=max(0.1, deadline - time.monotonic())) is None
            except queue.Empty:
                raise AssertionError(f"{self}: did not say \"{text}\"") from None

    def end(self):
        """Waits for the end and returns the exit code."""
        try:
            code = self.popen.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self}: did not end") from None
        for reader in self.readers:
            reader.join()
        return code

    def kill(self, number=signal.SIGKILL):
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        return self

    def close(self):
        self.kill()
        self.popen.wait()
        for reader in self.readers:
            reader.join()
        self.popen.stdout.close()
        self.popen.stderr.close()

    @property
    def stdout(self):
        return "\n".join(self.lines["stdout"])

    @property
    def stderr(self):
        return "\n".join(self.lines["stderr"])

    def __str__(self):
        return f"kvferry {' '.join(self.arguments)}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}\n---"


class JobTest(unittest.TestCase):
    """A test with a scratch folder and processes that end with it."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kvferry-e2e-"))
        self.processes = []
        self.url = None

    def tearDown(self):
        for process in self.processes:
            process.close()
        shutil.rmtree(self.folder)

    def start(self, *arguments):
        process = Process(*arguments)
        self.processes.append(process)
        return process

    def ends(self, process, code, *texts):
        """The process ends with `code` and says each of `texts`."""
        self.assertEqual(process.end(), code, str(process))
        for text in texts:
            self.assertIn(text, process.stdout + "\n" + process.stderr)
        return process

    @staticmethod
    def first_to_end(*processes):
        """Waits until one of the processes has ended, and returns it."""
        with selectors.DefaultSelector() as selector:
            descriptors = [os.pidfd_open(process.popen.pid) for process in processes]
            for descriptor, process in zip(descriptors, processes):
                selector.register(descriptor, selectors.EVENT_READ, process)
            ready = selector.select(timeout=PATIENCE)
            for descriptor in descriptors:
                os.close(descriptor)
        if not ready:
            raise AssertionError("none has ended: " + "\n".join(map(str, processes)))
        return ready[0][0].data

    def directory(self, listen="127.0.0.1:0"):
        process = self.start("directory", "--listen", listen)
        self.url = process.wait_for("listening on ").split()[-1]
        return process

    def layout(self, name, *arguments, layers=30, kv_heads=3, head_dim=64):
        path = self.folder / name
        self.ends(self.start("layout", "--layers", layers, "--kv-heads", kv_heads, "--head-dim", head_dim, "-o", path,
                             *arguments), 0)
        return path

    def prefill_layout(self, *arguments):
        return self.layout("P.json", "--order", "hnd", "--kv-pools", "separate", "--blocks", 40, "--value-blocks", 50,
                           *arguments)

    def decode_layout(self, *arguments):
        return self.layout("D.json", "--block-tokens", 64, "--blocks", 9, "--padding", 256, *arguments)

    def prefill(self, layout, rank, *arguments, transfer="t1", cache=CACHE, seed=1):
        return self.start("prefill", layout, "--instance", "p", "--rank", rank, "--cache", cache, "--directory",
                          self.url, "--transfer", transfer, "--seed", seed, *arguments)

    def offer(self, *arguments, **names):
        """Starts a prefill rank and waits until it offers."""
        process = self.prefill(*arguments, **names)
        process.wait_for("offers transfer")
        return process

    def prefill_all(self, layout, pp, tp, *arguments, **names):
        """Starts all ranks of a prefill instance, each with blocks of its own, and waits until they offer."""
        ranks = [f"{p},0,{t}" for p in range(pp) for t in range(tp)]
        processes = [self.prefill(layout, rank, *arguments, seed=seed, **names) for seed, rank in enumerate(ranks)]
        for process in processes:
            process.wait_for("offers transfer")
        return processes

    def decode(self, layout, rank, *arguments, transfer="t1", tokens=353):
        return self.start("decode", layout, "--instance", "d", "--from", "p", "--rank", rank, "--transfer", transfer,
                          "--tokens", tokens, "--directory", self.url, *arguments)

    def moved(self):
        return self.folder / "moved.safetensors"

    def assert_moved(self, path=None, tokens=353):
        """Every tensor of the file has the bytes of the cache's first `tokens` tokens."""
        wanted, found = tensors(CACHE), tensors(path or self.moved())
        self.assertEqual(sorted(wanted), sorted(found))
        for name, (shape, content) in wanted.items():
            row = len(content) // shape[0]
            self.assertEqual(found[name][0], [tokens] + shape[1:], name)
            self.assertTrue(found[name][1] == content[:tokens * row], f"{name} has other bytes")


def tensors(path):
    """Names, shapes and bytes of a safetensors file."""
    data = Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    content = data[8 + length:]
    return {name: (t["shape"], content[t["data_offsets"][0]:t["data_offsets"][1]]) for name, t in header.items()}
