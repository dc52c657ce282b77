#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the manual page to the command: every command, exit code and common option that --help shows stands in it.

    manpage.py KVFERRY_COMMAND MANUAL_PAGE
"""
import re
import subprocess
import sys


def help_of(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"manpage: {program} {' '.join(arguments)}: status {done.returncode}\n{done.stderr}")
    return done.stdout


def all_help(program, command):
    """The help of a command and of the commands below it, which its own help lists as rows of two words and more."""
    text = help_of(program, command, "--help")
    below = re.findall(r"^  ([a-z]+)  +\S", text.partition("options:")[0], re.MULTILINE)
    return text + "".join(help_of(program, command, name, "--help") for name in below)


def main():
    program, page = sys.argv[1:3]
    with open(page, encoding="utf-8") as file:
        text = file.read().replace("\\-", "-")
    overview = help_of(program, "--help")
    listed = overview.partition("commands:")[2].partition("exit codes:")[0]
    commands = re.findall(r"^  ([a-z]+)  +\S", listed, re.MULTILINE)
    codes = re.findall(r"^  (\d)  ", overview, re.MULTILINE)
    missing = []
    if len(commands) < 6 or len(codes) < 4:
        missing.append(f"this test is broken: it found only the commands {commands} and the exit codes {codes}")
    for command in commands:
        if not re.search(rf'^\.SS {command}$', text, re.MULTILINE):
            missing.append(f"command {command}")
        if "example" not in help_of(program, command, "--help").lower():
            missing.append(f"(in the help of {command}) an example")
    status = text.partition(".SH EXIT STATUS")[2].partition(".SH EXAMPLES")[0]
    missing += [f"exit code {code}" for code in codes if f".B {code}\n" not in status]
    options = set(re.findall(r"--([a-z][a-z-]+)", text)) - {"version"}
    known = set(re.findall(r"--([a-z][a-z-]+)", "".join(all_help(program, command) for command in commands)))
    missing += [f"(in the command) the option --{option} that the page names" for option in sorted(options - known)]
    for line in missing:
        print(f"missing: {line}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
