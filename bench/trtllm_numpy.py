#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The documented arithmetic of TensorRT-LLM's head-mismatch mappers, in numpy: the pointer arrays of one request.

    trtllm_numpy.py ORDER BLOCKS LAYERS TOKENS HEADS PEER_HEADS ROW_BYTES REPETITIONS

ORDER is `indexed` (head-major) or `nhd` (token-major). K and V of all layers lie one behind the other in a slot; block
ids are shuffled on both sides. Prints, for each repetition, the seconds that it takes to derive the offsets of one view
pair from its buffer entries (first contact) and those that the three arrays of a write take; then the fragments and the
bytes of the arrays.
"""
import sys
import time

import numpy as np


def entries_of(layers, buffer_bytes):
    """(layer, offset, size) of K and V."""
    return [(layer, (2 * layer + kv) * buffer_bytes, buffer_bytes) for layer in range(layers) for kv in range(2)]


def geometry(entries):
    """Start and size of each layer's region, checked to be contiguous and uniform."""
    spans = {}
    for layer, offset, size in entries:
        spans.setdefault(layer, []).append((offset, size))
    starts, totals = {}, set()
    for layer, own in spans.items():
        own.sort()
        for (offset, size), (following, _) in zip(own, own[1:]):
            if offset + size != following:
                raise ValueError("buffers are not contiguous")
        starts[layer] = own[0][0]
        totals.add(sum(size for _, size in own))
    if len(totals) != 1:
        raise ValueError("per-layer region sizes are not uniform")
    return starts, totals.pop()


def flat_offsets(starts, layer_bytes, order, tokens, heads, shift_heads):
    """Offsets of all pieces of a block: per layer, buffer and, token-major, token."""
    buffer_bytes = layer_bytes // 2
    if order == "indexed":
        shift = buffer_bytes // heads * shift_heads
        flat = [start + k * buffer_bytes + shift for start in starts for k in range(2)]
    else:
        row = buffer_bytes // (tokens * heads)
        flat = [start + k * buffer_bytes + t * heads * row + shift_heads * row
                for start in starts for k in range(2) for t in range(tokens)]
    return np.array(flat, dtype=np.int64)


def pair(src, dst):
    """Keeps the ordinals that both sides hold."""
    keep = (src >= 0) & (dst >= 0)
    return src[keep], dst[keep]


def main():
    order = sys.argv[1]
    blocks, layers, tokens, heads, peer_heads, row_bytes, repetitions = map(int, sys.argv[2:])
    own_buffer, peer_buffer = heads * tokens * row_bytes, peer_heads * tokens * row_bytes
    generator = np.random.default_rng(1)
    src_ids, dst_ids = generator.permutation(blocks), generator.permutation(blocks)
    for _ in range(repetitions):
        started = time.perf_counter()
        flats = []
        for buffer_bytes, own_heads, shift in ((own_buffer, heads, 0), (peer_buffer, peer_heads, heads)):
            starts, layer_bytes = geometry(entries_of(layers, buffer_bytes))
            flats.append(flat_offsets([starts[layer] for layer in sorted(starts, key=starts.get)], layer_bytes, order,
                                      tokens, own_heads, shift))
        contact = time.perf_counter() - started

        started = time.perf_counter()
        src, dst = pair(src_ids, dst_ids)
        src_bases = 0x100000000000 + src.astype(np.int64) * (2 * layers * own_buffer)
        dst_bases = 0x200000000000 + dst.astype(np.int64) * (2 * layers * peer_buffer)
        src_ptrs = np.concatenate([(src_bases[:, None] + flats[0][None, :]).ravel()])
        dst_ptrs = np.concatenate([(dst_bases[:, None] + flats[1][None, :]).ravel()])
        copy = min(heads, peer_heads) * row_bytes * (tokens if order == "indexed" else 1)
        sizes = np.full(src_ptrs.size, copy, dtype=np.int64)
        print(contact, time.perf_counter() - started, src_ptrs.size,
              src_ptrs.nbytes + dst_ptrs.nbytes + sizes.nbytes, flush=True)
        del src_ptrs, dst_ptrs, sizes


if __name__ == "__main__":
    main()
