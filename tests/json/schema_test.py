#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of layout files against the library's parser.

    schema_test.py PARSE_LAYOUT LAYOUT_BAD_TEST ROOT

Every example of docs/layout.md, every file of examples/layouts and every golden file must pass both. Of the files that
the parser refuses the schema must refuse those that it can see; what it lets pass must be known as such.
"""
import json
from pathlib import Path
import re
import subprocess
import sys

import jsonschema

PARSE, BAD, ROOT = sys.argv[1], sys.argv[2], Path(sys.argv[3])
failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print("FAILED:", what)


def parser_takes(text):
    run = subprocess.run([PARSE], input=text.encode(), stdout=subprocess.PIPE, check=False)
    check(run.returncode in (0, 1), f"parser ended with {run.returncode}")
    return run.returncode == 0, run.stdout.decode(errors="replace").strip()


schema = json.loads((ROOT / "docs/layout.schema.json").read_text())
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)

good = {f"docs/layout.md example {number}": text for number, text in
        enumerate(re.findall(r"```json\n(.*?)```", (ROOT / "docs/layout.md").read_text(), re.S), 1)}
for folder in ("examples/layouts", "tests/json/golden"):
    good.update({str(path): path.read_text() for path in sorted((ROOT / folder).glob("*.json"))})
check(len(good) >= 12, f"only {len(good)} good files found")
for name, text in good.items():
    takes, story = parser_takes(text)
    check(takes, f"{name}: the parser says {story}")
    errors = [error.message for error in validator.iter_errors(json.loads(text))]
    check(not errors, f"{name}: the schema says {errors}")

printed = subprocess.run([BAD, "--print"], stdout=subprocess.PIPE, check=True).stdout
rows = [json.loads(line) for line in printed.split(b"\n") if line]
seen = 0
for row in rows:
    takes, story = parser_takes(row["text"])
    check(not takes, f"{row['name']}: the parser takes it")
    refused = not validator.is_valid(json.loads(row["text"]))
    check(refused == row["schema_sees"], f"{row['name']}: the schema {'refuses' if refused else 'takes'} it; {story}")
    seen += refused
check(seen >= 30, f"the schema refuses {seen} of the bad files only")

print(f"{len(good)} good files, {len(rows)} bad ones of which the schema sees {seen}, {len(failures)} failures")
sys.exit(1 if failures else 0)
