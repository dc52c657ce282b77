#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Caches of every shape, for any pair of sides: a class with `pairs` and scene.Case takes these tests."""
from model import Instance, Model


class Shapes:
    def shape(self, model, src, dst, counts=((3, None), (5, 2)), rows=False, has=None):
        """The same transfers through each pair; every byte is looked at."""
        model = Model(**model)
        for pair in self.pairs:
            with self.subTest(pair.name):
                producers = pair.producers(self, Instance(model, "p", **src))
                consumers = pair.consumers(self, Instance(model, "d", **dst))
                moves = [self.move(producers, consumers, count, wants=wants, rows=rows,
                                   first=("offer", "request")[number % 2])
                         for number, (count, wants) in enumerate(counts)]
                self.right(consumers, moves)
                producers.end()
                consumers.end()
                self.again()

    # ranks

    def test_one_to_one(self):
        self.shape({}, {}, {})

    def test_two_to_four(self):
        self.shape({}, {"tp": 2}, {"tp": 4})

    def test_four_to_two(self):
        self.shape({}, {"tp": 4}, {"tp": 2})

    def test_eight_to_one_with_copied_heads(self):
        self.shape({"layers": 2}, {"tp": 8}, {})

    def test_one_to_eight_with_copied_heads(self):
        self.shape({"layers": 2}, {}, {"tp": 8})

    def test_two_stages_to_one(self):
        self.shape({}, {"tp": 2, "pp": 2}, {})

    def test_one_stage_to_two(self):
        self.shape({}, {}, {"tp": 2, "pp": 2})

    def test_two_stages_to_two(self):
        self.shape({}, {"pp": 2}, {"pp": 2, "tp": 2})

    def test_stages_that_are_cut_elsewhere(self):
        self.shape({"layers": 6}, {"pp": 3}, {"pp": 2})

    # orders of the axes

    def test_heads_first(self):
        self.shape({}, {}, {}, rows=True)
        self.shape({}, {"tp": 2, "apart": True}, {})

    def test_tokens_first(self):
        self.shape({}, {"order": "LBNHC", "tp": 2}, {"order": "LBNHC", "tp": 2}, rows=True)

    def test_rows_of_layers(self):
        """Merged to whole rows, or block by block where the rows are cut."""
        self.shape({}, {"order": "BLHNC"}, {"order": "BLHNC"}, rows=True)
        self.shape({}, {"order": "BLHNC", "tp": 2}, {"order": "BLHNC", "tp": 1})
        self.shape({}, {"order": "BLHNC"}, {"order": "LBHNC", "tp": 2})

    def test_rows_of_unlike_stages(self):
        self.shape({}, {"order": "BLHNC", "pp": 2}, {"order": "BLHNC"})

    def test_opaque_rows(self):
        self.shape({}, {"order": "BLNHC"}, {"order": "BLNHC"}, rows=True)
        self.shape({}, {"order": "BHLNC", "pp": 2}, {"order": "BHLNC", "pp": 2})

    def test_a_region_for_each_head(self):
        self.shape({}, {"order": "LHBNC"}, {"order": "LHBNC"})

    def test_latents(self):
        """In rows or apart, any numbers of ranks: one of those that hold the same writes."""
        rows, apart = {"order": "BLHNC"}, {"order": "LBHNC", "apart": True}
        self.shape({"mla": True}, {"tp": 4, **rows}, {"tp": 2, **rows}, rows=True)
        self.shape({"mla": True}, {"tp": 2, **apart}, {"tp": 4, **apart})
        self.shape({"mla": True}, {"pp": 2, **rows}, {**rows})

    # blocks and groups

    def test_padded_pages(self):
        self.shape({}, {"padding": 64}, {"padding": 64})
        self.shape({"mla": True}, {"order": "BLHNC", "padding": 96, "tp": 2}, {"order": "BLHNC", "padding": 96})

    def test_kernel_blocks(self):
        self.shape({"tokens": 16}, {"ways": 4, "tp": 2}, {"ways": 4})

    def test_groups(self):
        """Windows of their own, in places of their own or in one place."""
        groups = {"groups": [[0, 2], [1, 3]]}
        counts = (([5, 2], None), ([6, 3], [2, 2]), ([4, 2], [0, 1]))
        self.shape(groups, {"tp": 2}, {"tp": 1}, counts)
        self.shape(groups, {"overlay": True}, {"overlay": True}, counts)
        self.shape({**groups, "mla": True}, {"overlay": True, "order": "BLHNC"}, {"overlay": True, "order": "BLHNC"},
                   counts)

    def test_states(self):
        """Recurrent layers beside attention; block 0 is nobody's."""
        self.shape({"groups": [[0, 2], [1, 3]], "mamba": [1, 3]}, {"tp": 2}, {"tp": 2},
                   (([4, 1], None), ([3, 2], None)))
