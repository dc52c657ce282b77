#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""All benchmarks of vLLM's dialect in one run, and what upstream's own functions take for the same, in turns. Prints
lines of JSON.

    drive.py FOLDER [--upstream PYTHON] [--rounds N] [--short] [--only PART]

FOLDER has the programs vllm-plan, vllm-crowd, vllm-waiting and vllm-pair. PYTHON is one that has vLLM; without it
kvferry is measured alone. Where both must give the same answer (all descriptors, the bytes of a message), this is
checked.
PART is plan, messages, growth, registry, waiting or pair. --short does a little of everything, to see that it works.
"""
import argparse
import json
import os
from pathlib import Path
import statistics
import subprocess
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from side_process import SideProcess  # noqa: E402

LIMIT = 300


def say(**line):
    print(json.dumps({"bench": "vllm", **line}), flush=True)


class Side(SideProcess):
    """One that answers with numbers, after a greeting perhaps."""

    def __init__(self, command, greets):
        super().__init__(command, LIMIT, greets == "ready")
        self.greeting = self.answer() if greets else None

    def numbers(self, line):
        return [float(word) if "." in word else int(word) for word in self.ask(line).split()]


def beside(options, sides, command, many, few):
    """Both sides in turns, each its median of so many; returns the medians of the turns."""
    took = {name: [] for name in sides}
    told = {}
    for _ in range(options.rounds):
        for name, side in sides.items():
            microseconds, told[name] = side.numbers(f"{command} {many if name == 'kvferry' else few}")
            took[name].append(microseconds)
    if len(set(told.values())) > 1 and not command.startswith(("prepare", "cached")):
        sys.exit(f"drive: {command}: the answers differ: {told}")
    return {name: statistics.median(all_of_it) for name, all_of_it in took.items()}, told["kvferry"]


def compare(options, sides, what, command, many, few, aim=None, **more):
    medians, told = beside(options, sides, command, many, few)
    line = {"what": what, "kvferry_us": round(medians["kvferry"], 2), **more}
    if aim is not None:
        line["aim_us"] = aim
    if "upstream" in medians:
        line["upstream_us"] = round(medians["upstream"], 1)
        line["upstream_against_kvferry"] = round(medians["upstream"] / medians["kvferry"], 1)
    say(**line)
    return told


def plan(options, sides):
    alone = {"kvferry": sides["kvferry"]}
    many, few = (3, 1) if options.short else (101, 11)
    blocks = 64 if options.short else 8192
    for shape, words in (("split", "TP 4 to TP 2"), ("equal", "TP 4 to TP 4"), ("wide", "TP 40 to TP 20")):
        compare(options, sides, "a peer that is new", f"prepare {shape}", many, few, 200, shape=words)
        compare(options, sides, "a peer that is known, by its arrays", f"cached {shape}", many, few, shape=words)
        compare(options, alone, "a peer that is known, by its layout id", f"named {shape}", many, few, shape=words)
    for shape, words in (("split", "TP 4 to TP 2"), ("equal", "TP 4 to TP 4")):
        for order, aim in (("contiguous", 50), ("scattered", 1000)):
            for count in (blocks, 10 * blocks):
                rest = {"shape": words, "order": order, "blocks": count}
                descriptors = alone["kvferry"].numbers(f"ready {shape} {order} {count} 1")[1]
                compare(options, alone, "a request ready to be sent", f"ready {shape} {order} {count}", many, few,
                        aim if count == blocks else None, descriptors=descriptors, **rest)
                if count == blocks:
                    compare(options, sides, "the same with all descriptors one by one", f"walk {shape} {order} {count}",
                            3, 1, descriptors=descriptors, **rest)


def messages(options, sides):
    many, few = (3, 3) if options.short else (101, 101)
    for ids in (16, 64 if options.short else 8192):
        for what in ("encode", "decode"):
            compare(options, sides, f"{what} a pull", f"{what} {ids}", many, few, layers=80, blocks=ids)


def growth(options, folder):
    for peers in (20, 40) if options.short else (100, 1000, 10000):
        side = Side([folder / "vllm-plan"], False)
        first, last, memory = side.numbers(f"peers {peers}")
        say(what="peers of one producer", peers=peers, first_us=first, last_us=last, bytes_per_peer=memory)
        side.end()


def registry(options, sides, folder):
    clients, count = (4, 20) if options.short else (16, 1000)
    rows = {}
    for _ in range(1 if options.short else options.rounds):
        for name, side in sides.items():
            own = Side([folder / "vllm-crowd", "serve"], True) if name == "kvferry" else None
            port = int(own.greeting) if own else int(side.numbers("registry")[0])
            done = subprocess.run([folder / "vllm-crowd", "load", str(port), str(clients), str(count)],
                                  stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT)
            rows.setdefault(name, []).append([int(word) for word in done.stdout.split()])
            if own:
                own.end()
    for name, all_of_it in rows.items():
        register_50, register_99, query_50, query_99 = (statistics.median(column) for column in zip(*all_of_it))
        say(what="registry", server=name, clients=clients, registrations=count, queries=count, errors=0,
            register_p50_us=register_50, register_p99_us=register_99, query_p50_us=query_50, query_p99_us=query_99)


def run(program, *arguments):
    subprocess.run([program, *map(str, arguments)], check=True, timeout=LIMIT)


def waiting(options, folder):
    if options.short:
        run(folder / "vllm-waiting", "--pulls", 40, "--peers", 4, "--samples", 5)
        return
    run(folder / "vllm-waiting")
    run(folder / "vllm-waiting", "--generation", 33)
    run(folder / "vllm-waiting", "--peers", 80)
    run(folder / "vllm-waiting", "--pulls", 3000, "--descriptors", 1024)


def pair(options, folder):
    if options.short:
        for tp in (1, 2):
            run(folder / "vllm-pair", "--tp", tp, "--mib", 4, "--rounds", 1, "--small", 5)
        return
    run(folder / "vllm-pair", "--tp", 1, "--small", 1)
    for block in (4096, 16384, 65536):
        run(folder / "vllm-pair", "--tp", 2, "--block", block, "--small", 1)
    for tp in (1, 2):
        run(folder / "vllm-pair", "--tp", tp, "--block", 1024, "--mib", 16, "--rounds", 1, "--small", 1000)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--upstream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only")
    options = parser.parse_args()
    folder = options.folder.resolve()
    say(what="machine", load=[round(one, 1) for one in os.getloadavg()], cpus=os.cpu_count(),
        upstream=bool(options.upstream))
    sides = {"kvferry": Side([folder / "vllm-plan"], False)}
    if options.upstream and options.only not in ("growth", "waiting", "pair"):
        sides["upstream"] = Side([options.upstream, str(Path(__file__).with_name("upstream.py"))], "ready")
    parts = {"plan": lambda: plan(options, sides), "messages": lambda: messages(options, sides),
             "growth": lambda: growth(options, folder), "registry": lambda: registry(options, sides, folder),
             "waiting": lambda: waiting(options, folder), "pair": lambda: pair(options, folder)}
    for name, part in parts.items():
        if options.only in (None, name):
            part()
    for side in sides.values():
        side.end()
    say(what="machine", load=[round(one, 1) for one in os.getloadavg()])


if __name__ == "__main__":
    main()
