#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The coordinate pattern of docs/trtllm.md: what every byte must be, who fills sources and who looks at destinations.

A destination is wholly looked at: bytes that no request was to write must be what they were.
"""
import numpy

from model import cells

GUARD, EMPTY = 0xA5, 0x5A  # what destinations, and sources, hold before anything else
BASIS, PRIME, GOLDEN = 0xcbf29ce484222325, 0x100000001b3, 0x9e3779b97f4a7c15
WORD = (1 << 64) - 1


def start(roles, rid):
    x = BASIS
    for byte in "+".join(sorted(roles)).encode():
        x = (x ^ byte) * PRIME & WORD
    return (x ^ rid) * PRIME & WORD


def values(roles, rid, layer, buffer, head, token, byte):
    """The bytes at coordinates that are arrays of uint64."""
    x = numpy.uint64(start(roles, rid))
    for coordinate in (layer, buffer, head, token, byte):
        x = (x ^ coordinate) * numpy.uint64(PRIME)
    x = x ^ (x >> numpy.uint64(32))
    return ((x * numpy.uint64(GOLDEN)) >> numpy.uint64(56)).astype(numpy.uint8)


class Painter:
    """Bytes of one rank's slots; keeps what it worked out of the views."""

    def __init__(self, instance, rank):
        self.instance, self.rank, self.plain = instance, rank, instance.rank(rank)
        self.known = {}

    def view(self, group, view):
        if (group, view) not in self.known:
            self.known[group, view] = cells(self.instance, self.rank, group, view)
        return self.known[group, view]

    def token(self, ordinal):
        """First token of the block with this ordinal of the rank's own list."""
        cp = self.instance.place(self.rank)[2]
        return (ordinal * self.instance.cp + cp) * self.instance.model.tokens

    def paint(self, pools, rid, tables, prompt, wanted=None, retained=None):
        """Puts a request's bytes into the pools ({(pool group, pool): array}). `wanted` says of (group, ordinal)
        whether it is there; of a ring's positions the last `retained` ones are."""
        for number, group in enumerate(self.plain["table"]["groups"]):
            for index, view in enumerate(group["views"]):
                offset, layer, buffer, head, token, byte = self.view(number, index)
                pool = pools[group["pool_group"], view["pool"]]
                stride = self.plain["table"]["pools"][group["pool_group"]][view["pool"]]["stride"]
                blocks = [(ordinal, slot) for ordinal, slot in enumerate(tables[number])
                          if slot >= 0 and (wanted is None or wanted(number, ordinal))]
                keep = slice(None)
                if view.get("ring_slot_bytes"):
                    blocks = [block for block in blocks if block[0] == len(tables[number]) - 1]
                    token, keep = self.ring(token, prompt, retained)
                for ordinal, slot in blocks:
                    at = self.token(ordinal) if group["cache"] == "paged" and isinstance(keep, slice) else 0
                    found = values(view["roles"], rid, layer, buffer, head, token + numpy.uint64(at), byte)
                    pool[slot * stride + offset[keep].astype(numpy.int64)] = found[keep]

    def ring(self, slot, prompt, retained):
        """The positions that the slots of a ring hold at the end of a prompt, and of which there are any."""
        size = self.instance.ring
        first = max(0, prompt - min(size, retained or size))
        position = (prompt - 1) - (prompt - 1 - slot.astype(numpy.int64)) % size
        return position.astype(numpy.uint64), numpy.flatnonzero(position >= first)

    def where(self, pool_group, pool, at):
        """What a byte of a pool is, in words."""
        stride = self.plain["table"]["pools"][pool_group][pool]["stride"]
        slot, inside = divmod(at, stride)
        for number, group in enumerate(self.plain["table"]["groups"]):
            for index, view in enumerate(group["views"]):
                if (group["pool_group"], view["pool"]) != (pool_group, pool):
                    continue
                offset, layer, buffer, head, token, byte = self.view(number, index)
                found = numpy.flatnonzero(offset == inside)
                if len(found):
                    i = found[0]
                    return "slot %d: %s layer %d buffer %d head %d token %d byte %d" % (
                        slot, "+".join(view["roles"]), layer[i], buffer[i], head[i], token[i], byte[i])
        return "slot %d: padding at %d" % (slot, inside)


def blank(plain, byte):
    """Pools of a rank before anything was put there."""
    return {(group, number): numpy.full(pool_bytes(plain, group, number), byte, numpy.uint8)
            for group, pools in enumerate(plain["table"]["pools"]) for number in range(len(pools))}


def pool_bytes(plain, group, number):
    """Bytes that a pool takes: docs/trtllm.md."""
    pool = plain["table"]["pools"][group][number]
    end = max([pool["slot"]] + [offset + size for view_group in plain["table"]["groups"]
                                if view_group["pool_group"] == group for view in view_group["views"]
                                if view["pool"] == number for _, offset, size in view["entries"]])
    return max(pool["stride"] * pool["slots"], pool["stride"] * (pool["slots"] - 1) + end)


def differences(painter, found, wanted, most=5):
    """Lines about bytes that are not what they should be; none if all are right."""
    out = []
    for key in sorted(wanted):
        wrong = numpy.flatnonzero(found[key] != wanted[key])
        if not len(wrong):
            continue
        out.append("pool %s: %d of %d bytes are wrong" % (key, len(wrong), len(wanted[key])))
        for at in wrong[:most]:
            out.append("  %s: 0x%02x instead of 0x%02x" % (painter.where(*key, int(at)), found[key][at],
                                                          wanted[key][at]))
    return out


def aux_item(rid, buffer, size):
    """What one slot of an auxiliary buffer holds."""
    zero = numpy.zeros(size, numpy.uint64)
    return values(["aux"], rid, zero + numpy.uint64(buffer), zero, zero, zero, numpy.arange(size, dtype=numpy.uint64))
