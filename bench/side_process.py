# SPDX-License-Identifier: Apache-2.0
"""Processes that are measured: each answers lines on standard input with lines on standard output."""
import select
import subprocess
import sys


class SideProcess:
    """A process that answers lines, each within so many seconds."""

    def __init__(self, command, limit, quiet):
        self.limit = limit
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                                        stderr=subprocess.DEVNULL if quiet else None)

    def answer(self):
        if not select.select([self.process.stdout], [], [], self.limit)[0]:
            sys.exit(f"drive: no answer within {self.limit} s of {self.process.args}")
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"drive: a side ended: {self.process.args}")
        return line

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        return self.answer()

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
