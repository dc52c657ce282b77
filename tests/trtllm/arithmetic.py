#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's planning arithmetic, written down once more and apart from kvferry: who exchanges data with whom,
which views pair, which rank sends a view, and the fragments that its mappers give.

Works on rank infos as they travel: maps with upstream's keys (see rank.py). The local rank is the sender throughout.
"""
import numpy

PAGED, STATE = 0, 1
INDEXED, REPLICATED, NHD, SECTIONED = 0, 1, 2, 3


class Refused(Exception):
    """What upstream's mappers raise."""


def tp_per_group(rank):
    attention = rank["attention"]
    if attention and attention["enable_attention_dp"]:
        return rank["tp_size"] // rank["dp_size"]
    return rank["tp_size"]


# ---- who exchanges data with whom


def stage_bounds(rank, stage):
    start = sum(rank["layer_num_per_pp"][:stage])
    return start, start + rank["layer_num_per_pp"][stage]


def near(own_size, peer_size, own_rank):
    """The ranks along one axis of the peer that hold parts of what `own_rank` holds."""
    if own_size <= peer_size:
        ratio = peer_size // own_size
        return range(own_rank * ratio, own_rank * ratio + ratio)
    at = own_rank // (own_size // peer_size)
    return range(at, at + 1)


def overlap(own, peer, dp_rank):
    """Flat ranks of one data-parallel group of the peer's instance that exchange data with `own`."""
    start, end = stage_bounds(own, own["pp_rank"])
    stages = []
    for stage in range(peer["pp_size"]):
        first, last = stage_bounds(peer, stage)
        if start < last and end > first:
            stages.append(stage)
    group = tp_per_group(peer)
    tps = [dp_rank * group + tp for tp in near(tp_per_group(own), group, own["tp_rank"] % tp_per_group(own))]
    cps = list(near(own["cp_size"], peer["cp_size"], own["cp_rank"]))
    return [(pp * peer["tp_size"] + tp) * peer["cp_size"] + cp for pp in stages for tp in tps for cp in cps]


def head_factor(own_heads, own, peer_heads, peer):
    if not own_heads or not peer_heads:
        return 1
    return max(1, own_heads * tp_per_group(own) // (peer_heads * tp_per_group(peer)))


# ---- views


def starts(view):
    """First byte of each layer's region, by local layer."""
    found = {}
    for layer, offset, _ in view["buffer_entries"]:
        found[layer] = min(found.get(layer, offset), offset)
    return found


def sizes(view):
    found = {}
    for layer, _, size in view["buffer_entries"]:
        found[layer] = found.get(layer, 0) + size
    return found


def layer_bytes(view):
    every = set(sizes(view).values())
    if len(every) != 1:
        raise Refused("per-layer region sizes are not uniform: %s" % sorted(every))
    total = every.pop()
    if view["bytes_per_layer"] is not None and view["bytes_per_layer"] != total:
        raise Refused("declares bytes_per_layer=%d but buffer entries sum to %d per layer"
                      % (view["bytes_per_layer"], total))
    return total


def global_layers(group, view):
    """Global layers of a view in the order of their places."""
    number = {layer["local_layer_id"]: layer["global_layer_id"] for layer in group["local_layers"]}
    return [number[layer] for layer, _ in sorted(starts(view).items(), key=lambda item: item[1])]


def groups_of(rank):
    return (rank["page_table"] or {"layer_groups": []})["layer_groups"]


def view_at(rank, key):
    group = groups_of(rank)[key[0]]
    return group, group["pool_views"][key[1]]


def mapping(own, peer):
    """[(own view key, peer view key)]: the same roles, and a layer in common."""
    pairs = []
    for number, group in enumerate(groups_of(own)):
        for index, view in enumerate(group["pool_views"]):
            ids = global_layers(group, view)
            other = first_home(peer, group["kind"], ids)
            if other is None:
                continue
            peer_group = groups_of(peer)[other]
            for peer_index, peer_view in enumerate(peer_group["pool_views"]):
                if set(view["pool_role"]) != set(peer_view["pool_role"]):
                    continue
                if not set(ids) & set(global_layers(peer_group, peer_view)):
                    continue
                if view["mapper_kind"] != peer_view["mapper_kind"]:
                    raise Refused("incompatible mapper kinds")
                pairs.append(((number, index), (other, peer_index)))
                break
    return pairs


def first_home(rank, kind, ids):
    """The layer group that holds the first of the global layers that the rank knows at all."""
    home = {layer["global_layer_id"]: number for number, group in enumerate(groups_of(rank)) if group["kind"] == kind
            for layer in group["local_layers"]}
    return next((home[layer] for layer in ids if layer in home), None)


# ---- who sends


def state_rank(rank):
    """(size, rank) of the axis that cuts recurrent state."""
    attention = rank["attention"]
    if attention and attention["enable_attention_dp"]:
        return 1, 0
    if rank["cp_size"] > 1:
        return rank["tp_size"] * rank["cp_size"], rank["tp_rank"] * rank["cp_size"] + rank["cp_rank"]
    return rank["tp_size"], rank["tp_rank"]


def state_paired(own, peer):
    (own_size, own_rank), (peer_size, peer_rank) = state_rank(own), state_rank(peer)
    if own_size <= peer_size:
        return peer_rank // (peer_size // own_size) == own_rank
    return own_rank // (own_size // peer_size) == peer_rank


def sends_view(own, peer, key, peer_key):
    group, view = view_at(own, key)
    _, peer_view = view_at(peer, peer_key)
    size = tp_per_group(own)
    rank = own["tp_rank"] % size
    if view["mapper_kind"] != REPLICATED:
        if group["kind"] == PAGED:
            factor = head_factor(view["num_kv_heads"], own, peer_view["num_kv_heads"], peer)
            return factor <= 1 or peer["dp_rank"] % factor == rank % factor
        if state_rank(own)[0] > 1:
            return True
    ratio = max(1, size // tp_per_group(peer))
    return rank % ratio == peer["dp_rank"] % ratio


def sends_aux(own, peer):
    size = tp_per_group(own)
    if own["tp_rank"] % size % max(1, size // tp_per_group(peer)):
        return False
    start, end = stage_bounds(peer, peer["pp_rank"])
    for stage in range(own["pp_size"]):
        first, last = stage_bounds(own, stage)
        if first < end and last > start:
            return stage == own["pp_rank"]
    return False


# ---- mappers: all give [(offset in the source's slot, offset in the destination's slot, bytes)]


def common(own, key, peer, peer_key):
    """(global layers in common in the source's order, their places on both sides)"""
    group, view = view_at(own, key)
    peer_group, peer_view = view_at(peer, peer_key)
    theirs = set(global_layers(peer_group, peer_view))
    both = [layer for layer in global_layers(group, view) if layer in theirs]
    return both, places(group, view, both), places(peer_group, peer_view, both)


def places(group, view, layers):
    local = {layer["global_layer_id"]: layer["local_layer_id"] for layer in group["local_layers"]}
    found = starts(view)
    return [found[local[layer]] for layer in layers]


def buffers(view):
    return len(view["buffer_entries"]) // len(sizes(view))


def mapper_name(own, key, peer, peer_key):
    group, view = view_at(own, key)
    _, peer_view = view_at(peer, peer_key)
    kind = view["mapper_kind"]
    if group["kind"] == STATE:
        if kind == REPLICATED or state_rank(own)[0] == state_rank(peer)[0]:
            return "state-match"
        return "state-sections" if kind == SECTIONED else "state-heads"
    if kind == REPLICATED:
        ring = view["ring_slot_bytes"] and peer_view["ring_slot_bytes"]
        return "ring" if ring and layer_bytes(view) != layer_bytes(peer_view) else "replicated"
    if own["attention"]["is_mla"] or view["num_kv_heads"] == peer_view["num_kv_heads"]:
        return "intact"
    return "nhd" if kind == NHD else "hnd"


def head_offsets(own, peer, heads, peer_heads, unit):
    """Where the copied heads begin in the source's and in the destination's buffer."""
    size, peer_size = tp_per_group(own), tp_per_group(peer)
    if size < peer_size:
        return peer["tp_rank"] * (heads * size) // peer_size % heads * unit, 0
    if size > peer_size:
        return 0, own["tp_rank"] * (peer_heads * peer_size) // size % peer_heads * unit
    return 0, 0


def whole_layers(src, dst, size, peer_size):
    if size != peer_size:
        raise Refused("cache region size mismatch: local=%d, peer=%d" % (size, peer_size))
    runs = []
    for a, b in zip(src, dst):
        if runs and runs[-1][0] + runs[-1][2] == a and runs[-1][1] + runs[-1][2] == b:
            runs[-1][2] += size
        else:
            runs.append([a, b, size])
    return [tuple(run) for run in runs]


def head_major(own, view, src, peer, peer_view, dst):
    count, peer_count = buffers(view), buffers(peer_view)
    size, peer_size = layer_bytes(view), layer_bytes(peer_view)
    heads, peer_heads = view["num_kv_heads"], peer_view["num_kv_heads"]
    if count != peer_count or size % count or peer_size % count:
        raise Refused("HND buffers")
    size, peer_size = size // count, peer_size // count
    if size % heads or peer_size % peer_heads or size // heads != peer_size // peer_heads:
        raise Refused("HND bytes per head mismatch")
    head = size // heads
    at, peer_at = head_offsets(own, peer, heads, peer_heads, head)
    copied = min(heads, peer_heads) * head
    return [(a + k * size + at, b + k * peer_size + peer_at, copied) for a, b in zip(src, dst) for k in range(count)]


def token_major(own, view, src, peer, peer_view, dst):
    tokens = own["attention"]["tokens_per_block"]
    count, peer_count = buffers(view), buffers(peer_view)
    heads, peer_heads = view["num_kv_heads"], peer_view["num_kv_heads"]
    size, peer_size = layer_bytes(view), layer_bytes(peer_view)
    if tokens != peer["attention"]["tokens_per_block"] or count != peer_count:
        raise Refused("NHDHeadMismatchMapper requires equal tokens_per_block")
    if size % (count * tokens * heads) or peer_size % (count * tokens * peer_heads):
        raise Refused("NHD region geometry is not evenly divisible")
    cell = size // (count * tokens * heads)
    if cell != peer_size // (count * tokens * peer_heads):
        raise Refused("NHD bytes per token/head mismatch")
    at, peer_at = head_offsets(own, peer, heads, peer_heads, cell)
    copied = min(heads, peer_heads) * cell
    return [(a + (k * tokens + t) * heads * cell + at, b + (k * tokens + t) * peer_heads * cell + peer_at, copied)
            for a, b in zip(src, dst) for k in range(count) for t in range(tokens)]


def sections(own, view, src, peer, peer_view, dst):
    (size, rank), (peer_size, peer_rank) = state_rank(own), state_rank(peer)
    ours, theirs = view["section_bytes"], peer_view["section_bytes"]
    if len(ours) != len(theirs):
        raise Refused("Section count mismatch")
    ratio = max(size, peer_size) // min(size, peer_size)
    out, a, b = [], 0, 0
    for one, other in zip(ours, theirs):
        copied = min(one, other)
        u = peer_rank % ratio * copied if size < peer_size else 0
        v = rank % ratio * copied if size > peer_size else 0
        out += [(p + a + u, q + b + v, copied) for p, q in zip(src, dst)]
        a, b = a + one, b + other
    return out


def state_heads(own, view, src, peer, peer_view, dst):
    (size, rank), (peer_size, peer_rank) = state_rank(own), state_rank(peer)
    ratio = max(size, peer_size) // min(size, peer_size)
    head = view["bytes_per_head"]
    copied = min(layer_bytes(view) // head, layer_bytes(peer_view) // peer_view["bytes_per_head"]) * head
    at = peer_rank % ratio * copied if size < peer_size else 0
    peer_at = rank % ratio * copied if size > peer_size else 0
    return [(p + at, q + peer_at, copied) for p, q in zip(src, dst)]


def copies(own, key, peer, peer_key):
    """The copies inside one pair of slots."""
    _, view = view_at(own, key)
    _, peer_view = view_at(peer, peer_key)
    name = mapper_name(own, key, peer, peer_key)
    _, src, dst = common(own, key, peer, peer_key)
    if name in ("intact", "replicated"):
        return whole_layers(src, dst, layer_bytes(view), layer_bytes(peer_view))
    if name == "state-match":
        if view["mapper_kind"] == REPLICATED and layer_bytes(view) != layer_bytes(peer_view):
            raise Refused("Replicated recurrent side-state slot_bytes differs")
        return [(a, b, layer_bytes(view)) for a, b in zip(src, dst)]
    shape = {"hnd": head_major, "nhd": token_major, "state-sections": sections, "state-heads": state_heads}[name]
    return shape(own, view, src, peer, peer_view, dst)


def ring_moves(own, key, peer, peer_key, first, last):
    """Copies of the positions [first, last) inside one pair of slots whose rings differ in length."""
    _, view = view_at(own, key)
    _, peer_view = view_at(peer, peer_key)
    _, src, dst = common(own, key, peer, peer_key)
    cell = view["ring_slot_bytes"]
    n, m = layer_bytes(view) // cell, layer_bytes(peer_view) // cell
    first, out = max(first, 0, last - min(n, m)), []
    while first < last:
        run = min(last - first, n - first % n, m - first % m)
        out += [(a + first % n * cell, b + first % m * cell, run * cell) for a, b in zip(src, dst)]
        first += run
    return out


# ---- one request


def pairs_of_blocks(own, peer, src, dst, start_token=None):
    """Ordinals that move, as two lists of slots."""
    if peer["cp_size"] > 1 and own["cp_size"] == 1:
        src = src[peer["cp_rank"]::peer["cp_size"]]
    if len(src) != len(dst):
        raise Refused("positional block tables differ in length: src=%d dst=%d; both sides must span the same prompt"
                      % (len(src), len(dst)))
    first = (start_token or 0) // own["page_table"]["tokens_per_block"]
    both = [(a, b) for number, (a, b) in enumerate(zip(src, dst)) if a >= 0 and b >= 0 and number >= first]
    return [a for a, _ in both], [b for _, b in both]


def pool_of(rank, key):
    group, view = view_at(rank, key)
    return rank["page_table"]["pool_groups"][group["pool_group_idx"]]["pools"][view["pool_idx"]]


def bases(rank, key, slots):
    pool = pool_of(rank, key)
    return pool["base_address"] + numpy.asarray(slots, numpy.int64) * pool["slot_stride_bytes"]


def fragments(own, peer, src_tables, dst_tables, start_token=None, prompt=None, excluded=()):
    """Every copy of one request from `own` to `peer`, an array of rows (source address, destination address, bytes).
    Rings move only where `prompt`, the number of tokens, is given."""
    out = [numpy.zeros((0, 3), numpy.int64)]
    for key, peer_key in mapping(own, peer):
        src, dst = src_tables[key[0]], dst_tables[peer_key[0]]
        if key in excluded or not sends_view(own, peer, key, peer_key):
            continue
        if view_at(own, key)[0]["kind"] == STATE:
            if not len(src) or not len(dst) or not state_paired(own, peer):
                continue
            src, dst = list(src[:1]), list(dst[:1])
        else:
            src, dst = pairs_of_blocks(own, peer, list(src), list(dst), start_token)
        if not src:
            continue
        if mapper_name(own, key, peer, peer_key) == "ring":
            if prompt is None:
                continue
            src, dst = src[-1:], dst[-1:]
            inside = ring_moves(own, key, peer, peer_key, 0, prompt)
        else:
            inside = copies(own, key, peer, peer_key)
        inside = numpy.array(inside, numpy.int64).reshape(-1, 3)
        rows = numpy.zeros((len(src), len(inside), 3), numpy.int64)
        rows[:, :, 0] = bases(own, key, src)[:, None] + inside[:, 0]
        rows[:, :, 1] = bases(peer, peer_key, dst)[:, None] + inside[:, 1]
        rows[:, :, 2] = inside[:, 2]
        out.append(rows.reshape(-1, 3))
    return numpy.concatenate(out)


def aux_copies(own, peer, slot, peer_slot):
    """The copies of one auxiliary slot."""
    ours, theirs = own["aux_meta"], peer["aux_meta"]
    if len(ours["ptrs"]) != len(theirs["ptrs"]):
        raise Refused("Source and destination auxiliary layouts do not match")
    out = []
    for a, size, b, peer_size in zip(ours["ptrs"], ours["item_sizes"], theirs["ptrs"], theirs["item_sizes"]):
        if size > peer_size:
            raise Refused("Destination auxiliary buffers are too small")
        if size:
            out.append((a + size * slot, b + peer_size * peer_slot, size))
    return numpy.array(out, numpy.int64).reshape(-1, 3)
