#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Mooncake's data protocol, all pairs in one run: the wheel and kvferry as initiator and target, beside a bare TCP
connection. Prints lines of JSON.

    drive.py SIDE_PROGRAM [--wheel PYTHON] [--rounds N] [--ms N] [--bytes N]

Without --wheel only kvferry to kvferry is measured. Every figure is the median of the rounds; the pairs take turns
within a round, so that what slows the machine slows them all. CPU time is of both processes.
"""
import argparse
import json
import os
from pathlib import Path
import statistics
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from side_process import SideProcess  # noqa: E402

BLOCKS = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
MOST = 1024  # blocks a batch: the wheel's limit is a little above
LIMIT = 120
TICK = os.sysconf("SC_CLK_TCK")


class Side(SideProcess):
    """One that says its name and address first."""

    def __init__(self, command):
        super().__init__(command, LIMIT, "env" in command)
        self.name, self.address = self.answer().split()

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK


class Pair:
    def __init__(self, name, initiator, target):
        self.name, self.initiator, self.target = name, Side(initiator), Side(target)
        self.initiator.ask(f"connect {self.target.name} {self.target.address}")

    def run(self, block, count, ms):
        before = self.initiator.cpu() + self.target.cpu()
        moved, seconds = map(float, self.initiator.ask(f"run {block} {count} {ms}").split())
        cpu = self.initiator.cpu() + self.target.cpu() - before
        return moved / seconds, cpu / moved * 1e9

    def small(self, count):
        return int(self.initiator.ask(f"small 64 {count}"))

    def end(self):
        self.initiator.end()
        self.target.end()


def say(**line):
    print(json.dumps({"bench": "mooncake", **line}), flush=True)


def blocks(pairs, options):
    for block in BLOCKS:
        count = max(1, min(MOST, options.bytes // block))
        found = {name: [] for name in pairs}
        for pair in pairs.values():
            pair.run(block, count, 50)
        for _ in range(options.rounds):
            for name, pair in pairs.items():
                found[name].append(pair.run(block, count, options.ms))
        rates = {name: statistics.median(rate for rate, _ in rows) for name, rows in found.items()}
        cpu = {name: statistics.median(cost for _, cost in rows) for name, rows in found.items()}
        for name in pairs:
            say(pair=name, block=block, blocks=count, gb_per_s=round(rates[name] / 1e9, 3),
                lowest=round(min(rate for rate, _ in found[name]) / 1e9, 3),
                highest=round(max(rate for rate, _ in found[name]) / 1e9, 3),
                cpu_s_per_gb=round(cpu[name], 3), of_raw=round(rates[name] / rates["raw"], 3),
                cpu_of_raw=round(cpu[name] / cpu["raw"], 2) if cpu["raw"] else None,
                of_wheel=round(rates[name] / rates["wheel->wheel"], 2) if "wheel->wheel" in rates else None)


def crowd(pair, count, rounds):
    return round(statistics.median(float(pair.initiator.ask(f"crowd {count}")) for _ in range(rounds)), 4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("side")
    parser.add_argument("--wheel")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ms", type=int, default=400)
    parser.add_argument("--bytes", type=int, default=64 << 20)
    options = parser.parse_args()
    ours, raw = ([options.side, kind, str(options.bytes)] for kind in ("kvferry", "raw"))
    pairs = {"raw": Pair("raw", raw, raw), "kvferry->kvferry": Pair("kvferry->kvferry", ours, ours)}
    if options.wheel:
        wheel = ["env", "MC_FORCE_TCP=1", options.wheel, str(Path(__file__).with_name("wheel.py")), str(options.bytes)]
        for name, initiator, target in (("wheel->wheel", wheel, wheel), ("kvferry->wheel", ours, wheel),
                                        ("wheel->kvferry", wheel, ours)):
            pairs[name] = Pair(name, initiator, target)
    blocks(pairs, options)
    small = {name: statistics.median(pair.small(2000 if options.rounds > 1 else 50) for _ in range(options.rounds))
             for name, pair in pairs.items()}
    for name, took in small.items():
        say(pair=name, small_write_bytes=64, p50_us=round(took / 1000, 1), of_raw=round(took / small["raw"], 2))
    at_once = 240 if options.rounds > 1 else 10
    for name in ("kvferry->kvferry", "kvferry->wheel"):
        if name in pairs:
            say(pair=name, peers_at_once=at_once, seconds=crowd(pairs[name], at_once, options.rounds))
            count = 1000 if options.rounds > 1 else 10
            seconds = float(pairs[name].initiator.ask(f"peers {count}"))
            say(pair=name, peers_one_after_the_other=count, per_second=round(count / seconds))
            many = 1000000 if options.rounds > 1 else 10000
            _, seconds = map(float, pairs[name].initiator.ask(f"run 8 {many} 1").split())
            say(pair=name, ranges_in_one_call=many, seconds=round(seconds, 2))
            seconds = float(pairs[name].initiator.ask(f"threads 16 8 {many // 10}"))
            say(pair=name, threads=16, ranges_each=many // 10, seconds=round(seconds, 2))
    ours = pairs["kvferry->kvferry"]
    ours.initiator.ask(f"stall {at_once}")  # they are cut off after 5 s
    say(pair="kvferry->kvferry", peers_at_once=at_once, beside_stalled=at_once, seconds=crowd(ours, at_once, 1))
    for pair in pairs.values():
        pair.end()


if __name__ == "__main__":
    main()
