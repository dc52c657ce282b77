#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The published wheel as a side of the Mooncake benchmark; side.c tells the lines. Run by the wheel's own Python."""
import ctypes
import mmap
import os
import random
import sys
import time


def run(engine, here, name, there, block, count, seconds):
    draw = random.Random(1)
    orders = [draw.sample(range(count), count) for _ in range(2)]
    local = [here + at * block for at in orders[0]]
    remote = [there + at * block for at in orders[1]]
    sizes = [block] * count
    begin = now = time.monotonic()
    batches = 0
    while batches == 0 or now - begin < seconds:
        if engine.batch_transfer_sync_write(name, local, remote, sizes) != 0:
            sys.exit("wheel: a batch failed")
        batches += 1
        now = time.monotonic()
    return f"{batches * count * block} {now - begin:.9f}"


def small(engine, here, name, there, size, count):
    took = []
    for _ in range(count):
        begin = time.monotonic_ns()
        if engine.transfer_sync_write(name, here, there, size) != 0:
            sys.exit("wheel: a write failed")
        took.append(time.monotonic_ns() - begin)
    return str(sorted(took)[count // 2])


def main():
    size = int(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from mooncake.engine import TransferEngine
    memory = mmap.mmap(-1, size)
    memory.write(bytes(size))
    here = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0 or engine.register_memory(here, size) != 0:
        sys.exit("wheel: no engine")
    print(f"127.0.0.1:{engine.get_rpc_port()} {here}", file=out, flush=True)
    name, there = "", 0
    for line in sys.stdin:
        word, *numbers = line.split()
        if word == "connect":
            name, there = numbers[0], int(numbers[1])
            answer = "ok"
        elif word == "run":
            block, count, limit = map(int, numbers)
            answer = run(engine, here, name, there, block, count, limit / 1000)
        else:
            answer = small(engine, here, name, there, *map(int, numbers))
        print(answer, file=out, flush=True)


if __name__ == "__main__":
    main()
