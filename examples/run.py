#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs both examples on the real cache: six prefill processes, one decode process, every tensor compared.

    run.py PREFILL DECODE FOLDER-OF-EXAMPLES
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

DEADLINE = 120


def tensors(path):
    """Name to bytes of a safetensors file."""
    data = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    body = data[8 + length:]
    return {name: body[slice(*entry["data_offsets"])] for name, entry in header.items() if name != "__metadata__"}


def user_lines(path):
    """Lines that are neither blank nor comment nor #include."""
    lines = [line.strip() for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]
    return sum(1 for line in lines if line and not line.startswith(("/*", "*", "#include")))


def main():
    prefill, decode, folder = sys.argv[1:]
    folder = pathlib.Path(folder)
    cache = folder / "data" / "kv.safetensors"
    for name in ("prefill.c", "decode.c"):
        assert user_lines(folder / name) <= 60, f"{name} has {user_lines(folder / name)} lines of user code"
    workers = []
    try:
        url = ""
        for pp in range(2):
            for tp in range(3):
                worker = subprocess.Popen([prefill, folder / "layouts" / "smollm2-prefill.json", f"{pp},0,{tp}",
                                           cache, url,
                                           "t"], stdout=subprocess.PIPE, text=True)
                workers.append(worker)
                url = worker.stdout.readline().strip()
                assert url.startswith("http://"), url
        with tempfile.TemporaryDirectory() as scratch:
            out = pathlib.Path(scratch) / "moved.safetensors"
            subprocess.run([decode, folder / "layouts" / "smollm2-decode.json", url, "t", "353", out], check=True,
                           timeout=DEADLINE)
            assert tensors(out) == tensors(cache), "the moved cache differs"
        # rank 0 serves the directory: it is waited for last
        for worker in reversed(workers):
            assert worker.wait(DEADLINE) == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            worker.stdout.close()


if __name__ == "__main__":
    main()
