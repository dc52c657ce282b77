#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up the results of meson test logs and prints one line: `N passed, N failed[, N skipped]`.

A log that is not there counts as one failure: what should have written it did not get that far.
Exit status: 0 when nothing failed and something passed, else 1.
"""
import argparse
import json
import sys

PASSED = {"OK", "EXPECTEDFAIL"}
SKIPPED = {"SKIP"}


def results_of(path):
    try:
        with open(path, encoding="utf-8") as log:
            return [json.loads(line)["result"] for line in log if line.strip()]
    except (OSError, ValueError, KeyError) as error:
        print(f"test-summary: {path}: {error}", file=sys.stderr)
        return ["ERROR"]


def main():
    parser = argparse.ArgumentParser(description="Adds up the results of meson test logs.")
    parser.add_argument("--label", help="printed before the numbers")
    parser.add_argument("logs", nargs="+", metavar="testlog.json")
    arguments = parser.parse_args()
    results = [result for path in arguments.logs for result in results_of(path)]
    passed = sum(result in PASSED for result in results)
    skipped = sum(result in SKIPPED for result in results)
    failed = len(results) - passed - skipped
    line = f"{passed} passed, {failed} failed"
    if skipped:
        line += f", {skipped} skipped"
    sys.stderr.flush()
    print(f"{arguments.label}: {line}" if arguments.label else line)
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
