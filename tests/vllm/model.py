#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A model, the ranks of an engine that serves it, and which part of the model each byte of a rank's cache is.

What a byte means comes from here alone: from the model and the order of the axes in memory, not from the arithmetic
that decides which bytes move.
"""
import random

import numpy

import arithmetic

BASE = 0x7f1200000000


class Model:
    """Layers with KV heads or latents, in groups that share block ids; some may keep a state instead."""

    def __init__(self, layers=4, heads=4, content=32, tokens=8, mla=False, groups=None, mamba=(), state=96):
        self.layers, self.heads, self.content, self.tokens = layers, 1 if mla else heads, content, tokens
        self.mla, self.mamba, self.state = mla, set(mamba), state
        self.groups = groups or [list(range(layers))]  # layers of each group
        self.kinds = ["mamba" if set(group) & self.mamba else "attention" for group in self.groups]

    def group(self, layer):
        return next(number for number, group in enumerate(self.groups) if layer in group)

    def name(self, layer):
        return "model.layers.%d.%s" % (layer, "mamba" if layer in self.mamba else
                                       "mla_attn" if self.mla else "self_attn")


class Instance:
    """One engine: how many ranks, and how each lays its part of the model out.

    `order` is the order of the axes L B H N C in memory. `apart`: each layer has an allocation of its own; `overlay`:
    layers that are the k-th of their group share a place. `ways` kernel blocks are one block. `padding`: bytes behind
    each page, or behind the row where pages of several layers make one.
    """

    def __init__(self, model, name, tp=1, pp=1, blocks=48, order="LBHNC", apart=False, overlay=False, ways=1,
                 padding=0, seed=1, stages=None):
        self.model, self.name, self.tp, self.pp, self.blocks, self.order = model, name, tp, pp, blocks, order
        self.apart, self.overlay, self.ways, self.padding = apart, overlay, ways, padding
        self.random, self.free = random.Random("%s %d" % (name, seed)), {}
        each = model.layers // pp
        self.stages = stages or [each + (1 if stage < model.layers % pp else 0) for stage in range(pp)]

    @property
    def size(self):
        return self.tp * self.pp

    def place(self, number):
        """(pp rank, tp rank)"""
        return divmod(number, self.tp)

    def layers(self, number):
        stage = number // self.tp
        start = sum(self.stages[:stage])
        return list(range(start, start + self.stages[stage]))

    def heads(self, number):
        """(first head of the model, number of heads)"""
        part, total = number % self.tp, self.model.heads
        if self.model.mla:
            return 0, 1
        if self.tp <= total:
            return part * (total // self.tp), total // self.tp
        return part * total // self.tp, 1

    # blocks

    def take(self, count, group=0):
        """Block ids that no request before had, in any order; block 0 is nobody's."""
        where = 0 if self.overlay else group
        if where not in self.free:
            self.free[where] = self.random.sample(range(1, self.blocks), self.blocks - 1)
        return [self.free[where].pop() for _ in range(count)]

    def row(self, count, group=0):
        """Blocks one behind the other."""
        free = self.free.setdefault(0 if self.overlay else group, [])
        if not free:
            free += range(1, self.blocks)
        free.sort(reverse=True)
        return [free.pop() for _ in range(count)]


class Rank:
    """One rank's memory: allocations, tensors over them, registration, coordinates."""

    def __init__(self, instance, number):
        self.instance, self.number, self.model = instance, number, instance.model
        self.pp_rank, self.tp_rank = instance.place(number)
        self.storages, self.views, self.starts = [], [], []
        self.where = {}  # layer -> (storage, offset, shape, strides)
        attention = [layer for layer in instance.layers(number) if layer not in self.model.mamba]
        if attention:
            self._attention(attention)
        for layer in instance.layers(number):
            if layer in self.model.mamba:
                self._view(layer, self._storage(instance.blocks * self.model.state), 0,
                           [instance.blocks, self.model.state], [self.model.state, 1])
        self.views.sort(key=lambda view: arithmetic.layer_index(view["layer"]))
        self.given = {"num_blocks": instance.blocks, "kernel_blocks_per_block": instance.ways,
                      "storages": self.storages, "views": self.views, "specs": self.specs(),
                      "layer_groups": self.layer_groups()}
        self.registration = arithmetic.Registration(self.given)
        self.bytes = sum(storage["bytes"] for storage in self.storages)

    def _storage(self, size):
        base = BASE + (self.number << 32) + (len(self.storages) << 28) + 0x1040
        self.starts.append(sum(storage["bytes"] for storage in self.storages))
        self.storages.append({"base": base, "bytes": size})
        return len(self.storages) - 1

    def _view(self, layer, storage, offset, shape, strides):
        self.where[layer] = storage, offset, shape, strides
        self.views.append({"layer": self.model.name(layer), "storage": storage, "offset": offset, "shape": shape,
                           "strides": strides, "elem": 1})

    def _attention(self, layers):
        """Dense in the order of the axes; padding goes behind what one block holds, of one layer or of a row."""
        instance, model = self.instance, self.model
        places = {}
        for layer in layers:  # the L axis
            group = model.groups[model.group(layer)]
            local = [other for other in group if other in layers]
            places[layer] = local.index(layer) if instance.overlay else len(places)
        count = max(places.values()) + 1
        tokens = model.tokens // instance.ways
        sizes = {"L": 1 if instance.apart else count, "B": instance.blocks * instance.ways,
                 "H": instance.heads(self.number)[1], "N": tokens, "C": model.content}
        strides, at = {}, 1
        for axis in reversed(instance.order):
            if axis == "B":
                at += instance.padding
            strides[axis] = at
            at *= sizes[axis]
        shared = None if instance.apart else self._storage(at)
        own = {}
        for layer in layers:
            if instance.apart and places[layer] not in own:
                own[places[layer]] = self._storage(at)
            storage = own[places[layer]] if instance.apart else shared
            offset = 0 if instance.apart else places[layer] * strides["L"]
            axes = "BNC" if model.mla else "BHNC"
            self._view(layer, storage, offset, [sizes[axis] for axis in axes], [strides[axis] for axis in axes])

    def specs(self):
        instance, model = self.instance, self.model
        out = {}
        page = instance.heads(self.number)[1] * model.tokens * model.content
        inner = instance.padding * instance.ways if instance.order[0] == "L" else 0
        for layer in instance.layers(self.number):
            if layer in model.mamba:
                out[model.name(layer)] = {"kind": "mamba", "page_bytes": model.state,
                                          "unpadded_page_bytes": model.state, "nvfp4": False}
            else:
                out[model.name(layer)] = {"kind": "mla" if model.mla else "attention", "page_bytes": page + inner,
                                          "unpadded_page_bytes": page, "nvfp4": False}
        return out

    def layer_groups(self):
        """Of the whole model: a producer looks up what others name."""
        return {self.model.name(layer): self.model.group(layer) for layer in range(self.model.layers)}

    # objects of SPEC files

    @property
    def regions(self):
        return self.registration.arrays()

    @property
    def facts(self):
        return {"is_mla": self.model.mla, "group_kinds": self.model.kinds, "layer_groups": self.layer_groups(),
                "layer_specs": self.specs(), "kernel_blocks_per_block": self.instance.ways}

    def producer(self, regions=None):
        return {"tp_rank": self.tp_rank, "tp_size": self.instance.tp, "pp_size": self.instance.pp,
                "total_kv_heads": self.model.heads, **self.facts, "has_opaque_row": bool(self.registration.opaque),
                "regions": regions or self.regions, "ready": []}

    def pull(self, regions=None):
        return {"tp_rank": self.tp_rank, "tp_size": self.instance.tp, "pp_size": self.instance.pp,
                "regions": regions or self.regions, "requests": []}

    def moved(self, real):
        """The regions when the allocations lie elsewhere: `real` = [[base, bytes], ...]."""
        out = self.regions
        for at, base in enumerate(out["base_addr"]):
            for storage, (there, _) in zip(self.storages, real):
                if storage["base"] <= base < storage["base"] + storage["bytes"]:
                    out["base_addr"][at] = base - storage["base"] + there
                    break
        return out

    # coordinates

    def cells(self, group):
        """What a block of a group holds on this rank: (offset in the whole memory at block 0, bytes from one block to
        the next, layer, head, token, byte), arrays but the second, one tuple per layer and kernel block of a block."""
        first, instance, model = self.instance.heads(self.number)[0], self.instance, self.model
        for layer in instance.layers(self.number):
            if model.group(layer) != group:
                continue
            storage, offset, shape, strides = self.where[layer]
            start = self.starts[storage] + offset
            if layer in model.mamba:
                byte = numpy.arange(shape[1])
                yield start + byte, strides[0], layer, byte * 0 + self.tp_rank, byte * 0, byte
                continue
            if len(shape) == 3:
                shape, strides = [shape[0], 1, *shape[1:]], [strides[0], 0, *strides[1:]]
            head, token, byte = [axis.ravel() for axis in numpy.indices(shape[1:])]
            inside = head * strides[1] + token * strides[2] + byte * strides[3]
            for kernel in range(instance.ways):
                yield (start + kernel * strides[0] + inside, strides[0] * instance.ways, layer, first + head,
                       kernel * shape[2] + token, byte)

    def spans(self, group):
        """Of each block of a group, all that belongs to it, padding too: (start at block 0, bytes, stride)."""
        out = []
        for layer in self.instance.layers(self.number):
            if self.model.group(layer) == group:
                storage, offset, _, strides = self.where[layer]
                row = self.instance.order[0] == "B" or self.instance.order[:2] == "LB" or layer in self.model.mamba
                start = self.starts[storage] + (offset if self.instance.order[0] != "B" else 0)
                if row:
                    stride = strides[0] * self.instance.ways
                    out.append((start, stride, stride))
        return out
