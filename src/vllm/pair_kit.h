/* SPDX-License-Identifier: Apache-2.0 */
/** @file pair_kit.h  For tests: a producer rank and a consumer's pull in a few words, a request's descriptors. */
#ifndef KVFI_VLLM_PAIR_KIT_H
#define KVFI_VLLM_PAIR_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kvferry/vllm.h"

enum { PAIR_KIT_REGIONS = 128, PAIR_KIT_GROUPS = 8 };

/** One side's regions as they travel. */
struct pair_kit_side {
    uint64_t base_addrs[PAIR_KIT_REGIONS];
    int64_t block_lens[PAIR_KIT_REGIONS], kv_block_lens[PAIR_KIT_REGIONS], layer_indices[PAIR_KIT_REGIONS];
    int64_t group_indices[PAIR_KIT_REGIONS], row_offsets[PAIR_KIT_REGIONS];
    const char *layer_names[PAIR_KIT_REGIONS];
    char names[PAIR_KIT_REGIONS][48];
    struct kvf_vllm_ids shared_groups[PAIR_KIT_REGIONS];
    int64_t groups[PAIR_KIT_REGIONS][PAIR_KIT_GROUPS];
    size_t count;
};

/** TP 1, PP 1, one attention group and 12 heads on both sides; no regions yet. */
struct pair_kit {
    struct kvf_vllm_producer_spec spec;
    struct kvf_vllm_peer peer;
    struct pair_kit_side local, remote;
    int32_t kinds[PAIR_KIT_GROUPS];
};

void pair_kit_init(struct pair_kit *kit);

/** Adds a region of layer "model.layers.LAYER.self_attn" in group 0, whose only group is 0, without a row. */
void pair_kit_region(struct pair_kit_side *side, int64_t layer, uint64_t base, int64_t block_len, int64_t kv_block_len);

/** Changes the region added last: its row offset; its group, with the groups that share it when it is -1. */
void pair_kit_row(struct pair_kit_side *side, int64_t row_offset);
void pair_kit_group(struct pair_kit_side *side, int64_t group, size_t count, const int64_t *groups);

/** The producer, and the pair: the test fails when one is refused. Free both. */
kvf_vllm_producer *pair_kit_producer(struct pair_kit *kit);
kvf_vllm_prepared *pair_kit_prepare(struct pair_kit *kit, kvf_vllm_producer *producer);

/** The same, of a producer that is gone after. */
kvf_vllm_prepared *pair_kit_pair(struct pair_kit *kit);

/** Points the kit's spec and peer at its arrays as they are now. */
void pair_kit_arrays(struct pair_kit *kit);

/** Lists of ids: KIT_LISTS(KIT_LIST(1, 2), KIT_LIST(3)) and their number. */
#define KIT_LIST(...) \
    {(const int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)}

/** Fails the test unless the request's descriptors are these, in this order. `bytes` and count are compared as well. */
void pair_kit_expect(const kvf_vllm_prepared *prepared, const struct kvf_vllm_ids *producer,
                     const struct kvf_vllm_ids *consumer, size_t groups, const struct kvf_vllm_descriptor *wanted,
                     size_t count);

#endif
