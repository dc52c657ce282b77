#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Bytes computed from coordinates: who fills sources, and what every byte of a destination must be.

A destination is wholly looked at. Bytes that no request was to write are guards; padding inside a block that was
written may have come along.
"""
import zlib

import numpy

GUARD, EMPTY = 0xA5, 0x5A  # what destinations, and the padding of sources, hold
PRIME, GOLDEN = numpy.uint64(0x100000001b3), numpy.uint64(0x9e3779b97f4a7c15)


def values(key, layer, head, position, byte):
    """The bytes of a transfer at coordinates; never a guard."""
    x = numpy.uint64(zlib.crc32(key.encode()) + 0xcbf29ce484222325)
    with numpy.errstate(over="ignore"):
        for coordinate in (layer, head, position, byte):
            x = (x ^ numpy.asarray(coordinate, numpy.uint64)) * PRIME
            x = x ^ (x >> numpy.uint64(29))
        x = (x * GOLDEN) >> numpy.uint64(56)
    out = x.astype(numpy.uint8)
    return numpy.where((out == GUARD) | (out == EMPTY), out ^ numpy.uint8(1), out)


def paint(rank, memory, key, blocks, first=None, layers=None):
    """Puts a transfer's bytes into the blocks: `blocks` per group, the first of them number `first[group]` of the
    prompt. `layers`: only those."""
    for group, ids in enumerate(blocks):
        if not ids:
            continue
        start = first[group] if first else 0
        mamba = rank.model.kinds[group] == "mamba"
        for offset, stride, layer, head, token, byte in rank.cells(group):
            if layers is not None and layer not in layers:
                continue
            for number, block in enumerate(ids):
                if mamba and block == 0:
                    continue
                position = (start + number) * rank.model.tokens + token
                memory[offset + block * stride] = values(key, layer, head, position, byte)


def source(rank):
    return numpy.full(rank.bytes, EMPTY, numpy.uint8)


def destination(rank):
    return numpy.full(rank.bytes, GUARD, numpy.uint8)


def loose(rank, blocks):
    """Where padding of a source may have come along: all of the blocks that were written."""
    out = numpy.zeros(rank.bytes, bool)
    for group, ids in enumerate(blocks):
        for start, size, stride in rank.spans(group):
            for block in ids:
                at = start + block * stride
                out[at:at + size] = True
    return out


def differences(rank, found, wanted, may, most=5):
    """Lines about bytes that are not what they should be; none if all are right."""
    wrong = numpy.flatnonzero((found != wanted) & ~(may & (wanted == GUARD) & (found == EMPTY)))
    if not len(wrong):
        return []
    out = ["%s%d: %d of %d bytes are wrong" % (rank.instance.name, rank.number, len(wrong), len(found))]
    for at in wrong[:most]:
        out.append("  %s: 0x%02x instead of 0x%02x" % (where(rank, int(at)), found[at], wanted[at]))
    return out


def where(rank, at):
    for group in range(len(rank.model.groups)):
        for offset, stride, layer, head, token, byte in rank.cells(group):
            inside = numpy.flatnonzero((at - offset) % stride == 0)
            for i in inside:
                block = (at - int(offset[i])) // stride
                if 0 <= block < rank.instance.blocks:
                    return "byte %d: block %d, layer %d head %d token %d byte %d" % (
                        at, block, layer, head[i], token[i], byte[i])
    return "byte %d: padding" % at
