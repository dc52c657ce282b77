#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Does what README.md tells a user to type in three terminals, word for word but for the port.

    readme.py KVFERRY_COMMAND SOURCE_ROOT
"""
import json
import os
from pathlib import Path
import re
import subprocess
import sys
import tempfile

PORT = "127.0.0.1:8700"


def blocks(readme):
    """The indented blocks of the section, in order: layouts and plan, directory, prefill, decode."""
    section = readme.partition("## The same by hand")[2].partition("\n## ")[0]
    found = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    if len(found) != 4:
        sys.exit(f"readme: expected 4 blocks of commands, found {len(found)}")
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


def tensors(path):
    """The bytes of each tensor of a safetensors file."""
    file = path.read_bytes()
    start = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:start])
    header.pop("__metadata__", None)
    return {name: file[start + row["data_offsets"][0]:start + row["data_offsets"][1]] for name, row in header.items()}


def main():
    program, root = (Path(argument).resolve() for argument in sys.argv[1:3])
    layouts, directory, prefill, decode = blocks((root / "README.md").read_text(encoding="utf-8"))
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(root / "examples")
        shell = {"shell": True, "cwd": folder, "env": environment, "text": True}
        subprocess.run(layouts, check=True, stdout=subprocess.DEVNULL, timeout=60, **shell)
        server = subprocess.Popen("exec " + directory.replace(PORT, "127.0.0.1:0"), stdout=subprocess.PIPE, **shell)
        try:
            url = re.search(r"http://\S+", server.stdout.readline()).group(0)
            first = subprocess.Popen(prefill.replace(f"http://{PORT}", url), **shell)
            subprocess.run(decode.replace(f"http://{PORT}", url), check=True, timeout=90, **shell)
            first.wait(timeout=60)
        finally:
            server.terminate()
            server.wait(timeout=20)
        moved = tensors(Path(folder) / "moved.safetensors")
    if moved != tensors(root / "examples" / "data" / "kv.safetensors") or len(moved) != 60:
        sys.exit("readme: the moved cache is not the stored one")
    print("readme: ok")


if __name__ == "__main__":
    main()
