#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A model, the ranks of an instance of it, and which part of the model each byte of a rank's slots is.

What a byte means comes from here alone: from the model and from the way each rank was laid out, not from the arithmetic
that decides which bytes move.
"""
import random

import numpy


class Model:
    """Attention layers with KV heads, optionally an index key without heads, and recurrent layers."""

    def __init__(self, attention=(0, 1, 2, 3), heads=4, head_dim=8, element=2, tokens=8, order="indexed",
                 key_only=False, index=0, shared=False, windowed=(), recurrent=(), sections=(64, 32, 32),
                 state_heads=8, head_bytes=32, side=0, ring=0):
        self.attention, self.heads, self.head_dim, self.element = list(attention), heads, head_dim, element
        self.tokens, self.order, self.key_only = tokens, order, key_only
        self.index = index            # bytes of the index key of one token of one layer, 0 = none
        self.shared = shared          # the index key lies in the slot of its layer's K and V
        self.windowed = list(windowed)  # attention layers with a life cycle of their own
        self.recurrent, self.sections = list(recurrent), list(sections)
        self.state_heads, self.head_bytes = state_heads, head_bytes
        self.side = side              # bytes of replicated state of one layer, 0 = none
        self.ring = ring              # bytes of one position in the ring that each page holds, 0 = none

    @property
    def layers(self):
        return sorted(self.attention + self.recurrent)


class Instance:
    """How many ranks, and how each lays its part of the model out."""

    def __init__(self, model, name, tp=1, pp=1, cp=1, dp=False, slots=32, state_slots=8, padding=0, order=None, seed=1,
                 stages=None, aux=0, aux_draft=4, reverse=False, ring=0):
        self.model, self.name, self.tp, self.pp, self.cp, self.dp = model, name, tp, pp, cp, dp
        self.slots, self.state_slots, self.padding, self.reverse = slots, state_slots, padding, reverse
        self.ring = ring  # positions of a ring
        self.order = order or model.order
        self.random, self.free = random.Random("%s %d" % (name, seed)), {}
        self.aux, self.aux_draft = aux, aux_draft  # slots of the auxiliary buffers, 0 = none
        count = len(model.layers)
        self.stages = stages or [count // pp + (1 if stage < count % pp else 0) for stage in range(pp)]

    @property
    def size(self):
        return self.tp * self.pp * self.cp

    def place(self, rank):
        """(pp, tp, cp) of a flat rank."""
        return rank // (self.tp * self.cp), rank // self.cp % self.tp, rank % self.cp

    def layers(self, rank):
        start = sum(self.stages[:self.place(rank)[0]])
        return self.model.layers[start:start + self.stages[self.place(rank)[0]]]

    def shard(self, rank):
        """(number of ranks that cut the heads, this one's number)"""
        return (1, 0) if self.dp else (self.tp, self.place(rank)[1])

    def state_shard(self, rank):
        _, tp, cp = self.place(rank)
        return (1, 0) if self.dp else (self.tp * self.cp, tp * self.cp + cp)

    def heads(self, rank):
        """(first head of the model, number of heads)"""
        ways, part = self.shard(rank)
        total = 1 if self.model.key_only else self.model.heads
        if ways <= total:
            return part * (total // ways), total // ways
        return part * total // ways, 1

    def rank(self, rank):
        """The rank as SPEC files describe it. Addresses are 0: whoever has the memory puts them in."""
        pp, tp, cp = self.place(rank)
        model, heads = self.model, self.heads(rank)[1]
        layers = self.layers(rank)
        local = {layer: number for number, layer in enumerate(layers)}
        groups, pools = [], []
        for chosen, window in ((set(model.attention) - set(model.windowed), None), (set(model.windowed), 32)):
            mine = [layer for layer in layers if layer in chosen]
            if mine:
                groups.append(self._paged(mine, local, heads, len(pools), window))
                pools.append(self._pools(groups[-1], self.slots))
        mine = [layer for layer in layers if layer in model.recurrent]
        if mine:
            groups.append(self._state(mine, local, len(pools), rank))
            pools.append(self._pools(groups[-1], self.state_slots))
        return {"name": self.name, "rank": rank, "tp": [self.tp, tp], "pp": [self.pp, pp],
                "dp": [self.tp, tp] if self.dp else [1, 0], "cp": [self.cp, cp], "device": rank,
                "layers_per_stage": self.stages,
                "attention": {"kv_heads": heads if any(group["cache"] == "paged" for group in groups) else 0,
                              "tokens_per_block": model.tokens, "head_dim": model.head_dim,
                              "element_bytes": model.element, "attention_dp": self.dp, "key_only": model.key_only},
                "aux": self._aux(),
                "table": {"tokens_per_block": model.tokens, "groups": groups, "pools": pools}}

    def spec_ranks(self):
        return [self.rank(rank) for rank in range(self.size)]

    def _paged(self, mine, local, heads, pool_group, window):
        model = self.model
        size = model.tokens * heads * model.head_dim * model.element
        names = ["key"] if model.key_only else ["key", "value"]
        main, index, at, index_at = [], [], 0, 0
        for layer in reversed(mine) if self.reverse else mine:
            for _ in names:
                main.append([local[layer], at, size])
                at += size
            if model.index:
                index.append([local[layer], at if model.shared else index_at, model.index * model.tokens])
                at += model.index * model.tokens if model.shared else 0
                index_at += model.index * model.tokens
        views = [{"pool": 0, "roles": names, "kind": self.order, "entries": main,
                  "layer_bytes": size * len(names), "heads": heads, "ring_slot_bytes": None}]
        if index:
            views.append({"pool": 0 if model.shared else 1, "roles": ["index_key"], "kind": "replicated",
                          "entries": index, "layer_bytes": None, "heads": None, "ring_slot_bytes": None})
        if model.ring:
            size = model.ring * self.ring
            views.append({"pool": 1 + max(view["pool"] for view in views), "roles": ["mla_hp_tail"],
                          "kind": "replicated",
                          "entries": [[local[layer], size * number, size] for number, layer in enumerate(mine)],
                          "layer_bytes": None, "heads": None, "ring_slot_bytes": model.ring})
        return {"cache": "paged", "pool_group": pool_group, "layers": [[local[layer], layer] for layer in mine],
                "window": window, "kv_heads": heads, "views": views}

    def _state(self, mine, local, pool_group, rank):
        model, ways = self.model, self.state_shard(rank)[0]
        cut = [size // ways for size in model.sections]
        state = model.state_heads // ways * model.head_bytes
        views = [{"pool": 0, "roles": ["conv_state"], "kind": "sectioned", "layer_bytes": sum(cut), "sections": cut,
                  "entries": [[local[layer], number * sum(cut), sum(cut)] for number, layer in enumerate(mine)]},
                 {"pool": 1, "roles": ["ssm_state"], "kind": "indexed", "layer_bytes": state,
                  "head_bytes": model.head_bytes,
                  "entries": [[local[layer], number * state, state] for number, layer in enumerate(mine)]}]
        if model.side:
            views.append({"pool": 2, "roles": ["ple_ngram_context"], "kind": "replicated", "layer_bytes": model.side,
                          "entries": [[local[layer], number * model.side, model.side]
                                      for number, layer in enumerate(mine)]})
        return {"cache": "state", "pool_group": pool_group, "layers": [[local[layer], layer] for layer in mine],
                "views": views}

    def _pools(self, group, slots):
        out = []
        for pool in range(1 + max(view["pool"] for view in group["views"])):
            slot = max(offset + size for view in group["views"] if view["pool"] == pool
                       for _, offset, size in view["entries"])
            out.append({"base": 0, "slot": slot, "stride": slot + self.padding, "slots": slots})
        return out

    def _aux(self):
        if not self.aux:
            return None
        items = [4, 4 * self.aux_draft, 8, 8]
        return {"address": [0] * len(items), "size": [item * self.aux for item in items], "item": items}

    # requests

    def blocks(self, rank, prompt, held=None):
        """A positional table per layer group of a rank, of slots that no request before had, in any order. `held` says
        of an ordinal of the prompt whether this side has it; ranks of one instance draw apart."""
        cp = self.place(rank)[2]
        ordinals = range(cp, -(-prompt // self.model.tokens), self.cp)
        out = []
        for number, group in enumerate(self.rank(rank)["table"]["groups"]):
            if group["cache"] == "state":
                out.append([self.slot(rank, number, self.state_slots)])
            else:
                out.append([self.slot(rank, number, self.slots) if held is None or held(ordinal) else -1
                            for ordinal in ordinals])
        return out

    def slot(self, rank, group, slots):
        if (rank, group) not in self.free:
            self.free[rank, group] = self.random.sample(range(slots), slots)
        return self.free[rank, group].pop()


# ---- what the bytes of a slot are


def cells(instance, rank, group, view):
    """Of every byte that a view has in one slot: (offset in the slot, layer, buffer, head, token in the block, byte),
    six arrays, all of them numbers of the whole model but the token."""
    plain = instance.rank(rank)["table"]["groups"][group]
    number = dict(map(tuple, plain["layers"]))
    view = plain["views"][view]
    parts, seen = [], {}
    for local, offset, size in sorted(view["entries"], key=lambda entry: entry[1]):
        buffer = seen[local] = seen.get(local, -1) + 1
        if plain["cache"] == "state":
            parts += _state_cells(instance, rank, view, number[local], buffer, offset, size)
        else:
            parts.append(_paged_cells(instance, rank, view, number[local], buffer, offset, size))
    return [numpy.concatenate(column).astype(numpy.uint64) for column in zip(*parts)]


def _paged_cells(instance, rank, view, layer, buffer, offset, size):
    model = instance.model
    at = numpy.arange(size)
    if view["kind"] == "replicated":
        row = view.get("ring_slot_bytes") or size // model.tokens
        return _columns(offset + at, layer, buffer, 0, at // row, at % row)
    first, heads = instance.heads(rank)
    row = model.head_dim * model.element
    if view["kind"] == "indexed":
        head, token = at // (row * model.tokens), at // row % model.tokens
    else:
        token, head = at // (row * heads), at // row % heads
    return _columns(offset + at, layer, buffer, first + head, token, at % row)


def _state_cells(instance, rank, view, layer, buffer, offset, size):
    _, part = instance.state_shard(rank)
    if view["kind"] == "replicated":
        at = numpy.arange(size)
        return [_columns(offset + at, layer, buffer, 0, 0, at)]
    if view["kind"] == "indexed":
        at = numpy.arange(size)
        return [_columns(offset + at, layer, buffer, 0, 0, part * size + at)]
    out = []
    for section, cut in enumerate(view["sections"]):
        at = numpy.arange(cut)
        out.append(_columns(offset + at, layer, section, 0, 0, part * cut + at))
        offset += cut
    return out


def _columns(*values):
    length = max(numpy.size(value) for value in values)
    return [numpy.broadcast_to(value, length) for value in values]
