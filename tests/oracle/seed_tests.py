#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Finds each of upstream's tests that seed_tests.txt names: a C test function of that name that is also run, or a row
that starts with the name; a leading "peer_registrar_" may be left out. Prints the ones that are missing. Exit status: 0
all there, 1 not.

    seed_tests.py SOURCE_ROOT
"""
from pathlib import Path
import re
import sys

COUNT = 58


def main():
    root = Path(sys.argv[1])
    names = [line for line in (root / "tests/oracle/seed_tests.txt").read_text(encoding="utf-8").split("\n")
             if line and not line.startswith("#")]
    texts = {path: path.read_text(encoding="utf-8")
             for folder in ("src/trtllm", "src/trtllm_worker", "tests/trtllm") for path in (root / folder).glob("*.c")}
    missing = []
    for name in names:
        either = f"(?:{name}|{name.removeprefix('peer_registrar_')})"
        run = re.compile(rf"cmocka_unit_test\w*\(\s*test_{either}\b|\{{\s*\"{either}[\"( ]")
        found = sorted(path.name for path, text in texts.items() if run.search(text))
        if found:
            print(f"{name}: {', '.join(found)}")
        else:
            missing.append(name)
    for name in missing:
        print(f"{name}: MISSING")
    print(f"{len(names) - len(missing)} of {len(names)} found")
    return 0 if not missing and len(names) == len(set(names)) == COUNT else 1


if __name__ == "__main__":
    sys.exit(main())
