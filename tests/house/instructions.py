#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the cost of planning and binding by counting instructions under callgrind, which repeats where time does not.

    instructions.py BENCH_PLAN_PROGRAM BENCH_TRTLLM_PROGRAM VLLM_PLAN_PROGRAM

The limits are about a quarter above what gcc 12 counts at -O2: room for compilers, none for another order of growth.
Exit status: 0 within the limits, 1 above one, 77 skipped (no valgrind).
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

# (what, function that is counted, what bench-plan is told, most instructions)
LIMITS = [
    ("plan of 80 layers, TP 4 to TP 2", "kvf_plan_create", ["--only", "1"], 600_000),
    ("bind of 8,192 contiguous blocks", "kvf_bind", ["--only", "2"], 4_500_000),
    ("bind of 8,192 scattered blocks", "kvf_bind", ["--only", "3"], 5_200_000),
]
# The same for bench-trtllm.
TRTLLM_LIMITS = [
    ("registering a peer of 80 layers", "kvf_trtllm_registrar_register", ["--only", "1"], 12_000),
    ("planning its views, TP 4 to TP 2", "kvf_trtllm_registrar_pair", ["--only", "1"], 1_600_000),
    ("bind of 8,192 blocks, head-major", "kvf_trtllm_pair_bind", ["--only", "2"], 5_200_000),
    ("bind of 8,192 blocks, token-major", "kvf_trtllm_pair_bind", ["--only", "3"], 5_200_000),
]
# The same for vllm-plan.
VLLM_LIMITS = [
    ("preparing two peers of 80 layers, TP 4 to TP 2", "kvf_vllm_prepare", ["prepare", "split", "1"], 460_000),
    ("8,192 contiguous blocks ready to be sent", "kvf_vllm_write_create", ["ready", "split", "contiguous", "8192", "1"],
     740_000),
    ("8,192 scattered blocks ready to be sent", "kvf_vllm_write_create", ["ready", "split", "scattered", "8192", "1"],
     1_360_000),
    ("encoding two pulls of 8,192 blocks", "kvfi_vllm_pull_encode", ["encode", "8192", "1"], 1_180_000),
    ("decoding a pull of 8,192 blocks", "kvfi_vllm_pull_decode", ["decode", "8192", "1"], 640_000),
]
# Eight times the peers may cost at most this many times as much: each costs the same.
MOST_GROWTH_OF_PEERS = 10
# Eight times the layers may cost at most this many times as much: near linear.
MOST_GROWTH = 12


def count(program, function, arguments):
    # Meson lets malloc fill what it hands out, which would be counted too.
    plain = {name: value for name, value in os.environ.items() if name != "MALLOC_PERTURB_"}
    with tempfile.NamedTemporaryFile() as out:
        done = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}",
                               f"--toggle-collect={function}", program, *arguments],
                              capture_output=True, text=True, check=False, env=plain)
    match = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or match is None or int(match.group(1)) == 0:
        sys.exit(f"instructions: {program} under callgrind: status {done.returncode}\n{done.stderr}")
    return int(match.group(1))


def count_vllm(program):
    """Counts what vllm-plan does. Returns how many limits are broken."""
    broken = 0
    for what, function, arguments, limit in VLLM_LIMITS:
        counted = count(program, function, arguments)
        print(f"{what}: {counted:,} instructions, at most {limit:,}")
        broken += counted > limit
    return broken


def count_trtllm(program):
    """Counts what bench-trtllm does. Returns how many limits are broken."""
    broken = 0
    for what, function, arguments, limit in TRTLLM_LIMITS:
        counted = count(program, function, arguments)
        print(f"{what}: {counted:,} instructions, at most {limit:,}")
        broken += counted > limit
    few, many = (count(program, "kvf_trtllm_registrar_register", ["--only", "4", "--peers", peers])
                 for peers in ("40", "320"))
    print(f"registering 320 peers: {many:,} instructions, {many / few:.1f} times those of 40, "
          f"at most {MOST_GROWTH_OF_PEERS}")
    return broken + (many / few > MOST_GROWTH_OF_PEERS)


def main():
    program = sys.argv[1]
    if shutil.which("valgrind") is None:
        print("instructions: no valgrind")
        return 77
    broken = 0
    counts = {}
    for what, function, arguments, limit in LIMITS:
        counts[what] = count(program, function, arguments)
        print(f"{what}: {counts[what]:,} instructions, at most {limit:,}")
        broken += counts[what] > limit
    many = count(program, "kvf_plan_create", ["--only", "4"])
    growth = many / counts[LIMITS[0][0]]
    print(f"plan of 640 layers: {many:,} instructions, {growth:.1f} times those of 80, at most {MOST_GROWTH}")
    broken += growth > MOST_GROWTH
    broken += count_trtllm(sys.argv[2])
    broken += count_vllm(sys.argv[3])
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
