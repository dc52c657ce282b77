#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Splits the one file of sanitizer suppressions into one per sanitizer, as each refuses the words of the others.

    split-suppressions.py FILE OUT   writes OUT.leak, OUT.thread, OUT.undefined
"""
import sys


def main():
    source, out = sys.argv[1:3]
    sections = {"leak": [], "thread": [], "undefined": []}
    section = None
    with open(source, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            line = line.strip()
            if line.startswith("["):
                section = line.strip("[]")
                if section not in sections:
                    sys.exit(f"{source}:{number}: no such section: {section}")
            elif line and not line.startswith("#"):
                if section is None:
                    sys.exit(f"{source}:{number}: a line before the first section")
                sections[section].append(line)
    for name, kept in sections.items():
        with open(f"{out}.{name}", "w", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in kept))


if __name__ == "__main__":
    main()
