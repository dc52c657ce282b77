#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Finds each of upstream's tests that a list names: a C test function of that name, with or without "test_" before it,
that is also run, or a row that starts with the name; a leading "peer_registrar_" may be left out. Prints the ones that
are missing. Exit status: 0 all there, 1 not.

    seed_tests.py SOURCE_ROOT NAMES.txt COUNT FOLDER...

COUNT is how many names there are, FOLDERs are where the tests may be.
"""
from pathlib import Path
import re
import sys


def main():
    root, count, folders = Path(sys.argv[1]), int(sys.argv[3]), sys.argv[4:]
    names = [line for line in Path(sys.argv[2]).read_text(encoding="utf-8").split("\n")
             if line and not line.startswith("#")]
    texts = {path: path.read_text(encoding="utf-8") for folder in folders for path in (root / folder).glob("*.c")}
    missing = []
    for name in names:
        either = f"(?:{name}|{name.removeprefix('peer_registrar_')})"
        run = re.compile(rf"cmocka_unit_test\w*\(\s*(?:test_)?{either}\b|\{{\s*\"{either}[\"( ]")
        found = sorted(path.name for path, text in texts.items() if run.search(text))
        if found:
            print(f"{name}: {', '.join(found)}")
        else:
            missing.append(name)
    for name in missing:
        print(f"{name}: MISSING")
    print(f"{len(names) - len(missing)} of {len(names)} found")
    return 0 if not missing and len(names) == len(set(names)) == count else 1


if __name__ == "__main__":
    sys.exit(main())
