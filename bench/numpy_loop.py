#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a user of two processes on one host would write instead: a numpy loop over shared memory.

    numpy_loop.py SRC_FD DST_FD IDS_FD BLOCKS RUNS RUN_BYTES SRC_STRIDE DST_STRIDE REPETITIONS

The descriptors are inherited; IDS_FD holds the source ids and then the destination ids, 64-bit. Each repetition does
`dst[j] = src[i]` per block. Prints the seconds of each.
"""
import mmap
import sys
import time

import numpy as np


def main():
    src_fd, dst_fd, ids_fd, blocks, runs, run_bytes, src_stride, dst_stride, repetitions = map(int, sys.argv[1:])
    ids = np.frombuffer(mmap.mmap(ids_fd, 2 * blocks * 8, prot=mmap.PROT_READ), dtype="<i8")
    src_ids, dst_ids = ids[:blocks].tolist(), ids[blocks:].tolist()
    src_map = mmap.mmap(src_fd, blocks * runs * src_stride)
    dst_map = mmap.mmap(dst_fd, blocks * runs * dst_stride)
    src = np.frombuffer(src_map, dtype=np.uint8).reshape(blocks, runs, src_stride)[:, :, :run_bytes]
    dst = np.frombuffer(dst_map, dtype=np.uint8).reshape(blocks, runs, dst_stride)[:, :, :run_bytes]
    src.sum()  # maps every page before the clock runs
    dst.sum()
    for _ in range(repetitions):
        started = time.perf_counter()
        for i, j in zip(src_ids, dst_ids):
            dst[j] = src[i]
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
