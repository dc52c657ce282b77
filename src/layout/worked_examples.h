/* SPDX-License-Identifier: Apache-2.0 */
/** @file worked_examples.h  The two pairs of layouts with published fingerprints, for tests. */
#ifndef KVFI_LAYOUT_WORKED_EXAMPLES_H
#define KVFI_LAYOUT_WORKED_EXAMPLES_H

#include "kvferry/layout.h"

/** A layout spec with its arrays beside it. */
struct worked_example {
    struct kvf_layout_spec spec;
    int64_t memory_bytes[2];
    struct kvf_pool pools[2];
    struct kvf_group groups[2];
    struct kvf_view views[4];
    struct kvf_place places[4][4];
};

/** Numbers that source and destination of an example do not share. */
struct worked_side {
    int64_t slot_stride[2], slots[2], tokens_per_block, unit_first, unit_count;
    int64_t entries, unit_stride, entry_stride;
    int64_t layer_step, part_step;       /* first example: between layers, from K to V */
    int64_t offsets[4];                  /* second example: of k in layers 0..3 */
    int64_t conv_entry_stride, conv_layer_step, ssm_entry_stride, ssm_offset;
};

static inline struct kvf_view worked_view(const struct worked_side *side, const char *role, const char *tag,
                                          int64_t row_bytes)
{
    return (struct kvf_view){.role = role, .tag = tag, .row_bytes = row_bytes, .byte_count = row_bytes, .unit_total = 4,
                             .unit_first = side->unit_first, .unit_count = side->unit_count,
                             .unit_stride_bytes = side->unit_stride, .entry_stride_bytes = side->entry_stride,
                             .entries = side->entries, .slots_per_block = 1};
}

static inline void worked_start(struct worked_example *example, const struct worked_side *side, size_t pools,
                                size_t views)
{
    *example = (struct worked_example){.memory_bytes = {-1, -1}};
    kvf_layout_spec_init(&example->spec, sizeof example->spec);
    for (size_t i = 0; i < pools; i++) {
        example->pools[i] = (struct kvf_pool){(int64_t)i, 0, side->slot_stride[i], side->slots[i]};
        example->groups[i] = (struct kvf_group){i == 0 ? side->tokens_per_block : 0, 0, 1, 0, 0};
    }
    example->spec.memory_bytes = example->memory_bytes;
    example->spec.memory_count = pools;
    example->spec.pools = example->pools;
    example->spec.pool_count = pools;
    example->spec.groups = example->groups;
    example->spec.group_count = pools;
    example->spec.views = example->views;
    example->spec.view_count = views;
}

/** Tokens-first page-first heads 0..3 (source), or heads-first layer-first heads 2 and 3 (destination). Two layers. */
static inline void worked_example_first(struct worked_example *example, int destination)
{
    static const struct worked_side sides[2] = {
        {.slot_stride = {4096}, .slots = {16}, .tokens_per_block = 16, .unit_count = 4, .entries = 16,
         .unit_stride = 16, .entry_stride = 64, .layer_step = 2048, .part_step = 1024},
        {.slot_stride = {1024}, .slots = {32}, .tokens_per_block = 16, .unit_first = 2, .unit_count = 2, .entries = 16,
         .unit_stride = 256, .entry_stride = 16, .layer_step = 32768, .part_step = 512},
    };
    const struct worked_side *side = &sides[destination];

    worked_start(example, side, 1, 2);
    for (int64_t part = 0; part < 2; part++) {
        example->views[part] = worked_view(side, part ? "v" : "k", "bf16", 16);
        for (int64_t layer = 0; layer < 2; layer++) {
            example->places[part][layer] = (struct kvf_place){layer, 0,
                                                              layer * side->layer_step + part * side->part_step};
        }
        example->views[part].places = example->places[part];
        example->views[part].place_count = 2;
    }
}

/** Attention layers 0..3, of which 1 and 3 share one place, and state layers 4 and 5; blocks of 24 and of 16 tokens. */
static inline void worked_example_second(struct worked_example *example, int destination)
{
    static const struct worked_side sides[2] = {
        {.slot_stride = {4608, 512}, .slots = {8, 8}, .tokens_per_block = 24, .unit_count = 4, .entries = 24,
         .unit_stride = 16, .entry_stride = 64, .offsets = {3072, 1536, 0, 1536}, .conv_entry_stride = 32,
         .conv_layer_step = 224, .ssm_entry_stride = 128, .ssm_offset = 96},
        {.slot_stride = {512, 224}, .slots = {8, 8}, .tokens_per_block = 16, .unit_first = 2, .unit_count = 2,
         .entries = 16, .unit_stride = 256, .entry_stride = 16, .offsets = {0, 4096, 8192, 4096},
         .conv_entry_stride = 16, .conv_layer_step = 112, .ssm_entry_stride = 64, .ssm_offset = 48},
    };
    const struct worked_side *side = &sides[destination];

    worked_start(example, side, 2, 4);
    for (int64_t part = 0; part < 2; part++) {
        example->views[part] = worked_view(side, part ? "v" : "k", "bf16", 8);
        for (int64_t layer = 0; layer < 4; layer++) {
            example->places[part][layer] = (struct kvf_place){layer, 0, side->offsets[layer] + part * 8};
        }
        example->views[part].place_count = 4;
        example->views[2 + part] = worked_view(side, part ? "ssm" : "conv.x", part ? "fp32" : "bf16", part ? 32 : 8);
        example->views[2 + part].group = 1;
        example->views[2 + part].entries = part ? 1 : 3;
        example->views[2 + part].unit_stride_bytes = part ? 32 : 8;
        example->views[2 + part].entry_stride_bytes = part ? side->ssm_entry_stride : side->conv_entry_stride;
        for (int64_t i = 0; i < 2; i++) {
            example->places[2 + part][i] = (struct kvf_place){4 + i, 1,
                                                              i * side->conv_layer_step + part * side->ssm_offset};
        }
        example->views[2 + part].place_count = 2;
    }
    for (int i = 0; i < 4; i++) example->views[i].places = example->places[i];
}

#endif
