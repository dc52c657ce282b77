#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The map of bad input names files that are there, and rows that are in them.

    map_test.py SOURCE_ROOT README
"""
import pathlib
import re
import sys

ROOT, PAGE = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
wrong, rows = [], 0

text = PAGE.read_text(encoding="utf-8").split("## Bad input")[1]
for line in text.splitlines():
    if not line.startswith("| ") or "`" not in line:
        continue
    for entry in line.split(" | ", 1)[1].rstrip(" |").split("; "):
        found = re.fullmatch(r"`([^`]+)`((?: |, )\"[^\"]+\")+", entry)
        if not found:
            wrong.append("does not read as `file` \"row\", ...: " + entry)
            continue
        path = ROOT / found.group(1)
        content = path.read_text(encoding="utf-8") if path.is_file() else None
        for row in re.findall(r"\"([^\"]+)\"", entry):
            rows += 1
            if content is None or row not in content:
                wrong.append("%s has no \"%s\"" % (found.group(1), row))
for suite in re.findall(r"^\| `((?:tests|src|fuzz)[^`*]*)`", PAGE.read_text(encoding="utf-8"), re.M):
    if not (ROOT / suite).exists():
        wrong.append("no folder " + suite)
for folder in sorted(path.name for path in (ROOT / "tests").iterdir() if path.is_dir()):
    if "`tests/%s/`" % folder not in PAGE.read_text(encoding="utf-8"):
        wrong.append("tests/%s/ is not on the map" % folder)
print("%d rows named" % rows)
sys.exit("\n".join(wrong) if wrong or rows < 50 else 0)
