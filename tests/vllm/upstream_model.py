# SPDX-License-Identifier: Apache-2.0
"""A model's cache as a formula: what each byte of each rank must be, whatever moved it there.

A byte is named by (transfer, block of the request, layer, head, token, byte of the content); its value follows from the
name alone. Ranks see it through the strides of their tensors, which is all that this file knows of layouts.
"""
import numpy

TOKENS = 16


def values(transfer, block, layer, heads, content):
    """The bytes [heads, TOKENS, content] of one block of one layer."""
    head, token, byte = numpy.meshgrid(numpy.asarray(heads), numpy.arange(TOKENS), numpy.arange(content), indexing="ij")
    name = numpy.zeros(head.shape, dtype=numpy.uint64)
    for part in (transfer + 1, block + 1, layer + 1, head, token, byte):
        name = name * numpy.uint64(1000003) + numpy.asarray(part, dtype=numpy.uint64)
    name ^= name >> numpy.uint64(29)
    name *= numpy.uint64(0x9E3779B97F4A7C15)
    return (name >> numpy.uint64(56)).astype(numpy.uint8)


class Shape:
    """One rank's share of the model: its layers and heads, and its tensors in one of several layouts."""

    def __init__(self, layout, tp=(0, 1), pp=(0, 1), layers=4, heads=4, content=64, blocks=12):
        self.layout, self.tp, self.pp, self.total_heads, self.blocks = layout, tp, pp, heads, blocks
        self.is_mla = layout == "mla" or layout == "mla rows"
        first, last = (layers * (pp[0] + at) // pp[1] for at in (0, 1))
        self.layers = list(range(first, last))
        if self.is_mla:
            self.heads, self.content = [0], content * 2
        else:
            begin = tp[0] * heads // tp[1]
            self.heads, self.content = list(range(begin, begin + max(heads // tp[1], 1))), content
        self.page = len(self.heads) * TOKENS * self.content
        self.storages, self.views = self.tensors()

    def name(self, layer):
        return f"model.layers.{layer}.self_attn"

    def tensors(self):
        """([bytes of each allocation], [one view per layer])."""
        heads, content, page, layers, blocks = len(self.heads), self.content, self.page, len(self.layers), self.blocks
        inner = TOKENS * content
        plain = (page, inner, content, 1)
        per_layer = {
            "head-major": (plain, page * blocks),
            "token-major": ((page, content, heads * content, 1), page * blocks),
            "rows": ((page * layers, inner, content, 1), page),
            "mla rows": ((page * layers, inner, content, 1), page),
            "opaque": ((page * layers, layers * inner, content, 1), inner),
            "mla": (plain, 0),
        }
        strides, step = per_layer[self.layout]
        alone = self.layout == "mla"
        views = [dict(layer=self.name(layer), storage=at if alone else 0, offset=0 if alone else at * step,
                      shape=[blocks, heads, TOKENS, content], strides=list(strides), elem=1)
                 for at, layer in enumerate(self.layers)]
        return [page * blocks] * layers if alone else [page * blocks * layers], views

    def register_input(self, bases):
        """The same as a case of registration, with allocations at `bases`."""
        spec = dict(kind="mla" if self.is_mla else "attention", page_bytes=self.page, unpadded_page_bytes=self.page)
        names = [self.name(layer) for layer in self.layers]
        return dict(num_blocks=self.blocks, kernel_blocks_per_block=1,
                    storages=[dict(base=base, bytes=size) for base, size in zip(bases, self.storages)],
                    views=self.views, specs=dict.fromkeys(names, spec), layer_groups=dict.fromkeys(names, 0))

    def noise(self, seed):
        """Memory before anything moves."""
        return [numpy.random.default_rng([seed, at]).integers(0, 256, size, dtype=numpy.uint8)
                for at, size in enumerate(self.storages)]

    def put(self, memory, transfer, ids, first=0):
        """Writes blocks first, first + 1, ... of a transfer into `memory`, at block ids `ids`."""
        for view, layer in zip(self.views, self.layers):
            base = memory[view["storage"]][view["offset"]:]
            tensor = numpy.lib.stride_tricks.as_strided(base, view["shape"], view["strides"])
            for at, block in enumerate(ids):
                tensor[block] = values(transfer, first + at, layer, self.heads, self.content)
