/* SPDX-License-Identifier: Apache-2.0 */
/** @file rank_kit.h  For tests: rank infos in a few words. A kit is filled with usual values, changed where a test
 *  wants others, and made into a rank; every array that its spec points to is a member with room to spare.
 *
 *      struct rank_kit kit;
 *      rank_kit_init(&kit, "self");           tp 2 rank 0, 2 heads, 16 tokens per block, 8 dims, 2 bytes, no table
 *      kit.spec.tp_rank = 1;
 *      kit.attention.kv_heads_per_rank = 4;
 *      rank_kit_pt(&kit, 1024, 2, 2, 2, 0, 1);
 *      kit.views[0][0].mapper = KVF_TRTLLM_NHD;
 *      kvf_trtllm_rank *rank = rank_kit_make(&kit);
 */
#ifndef KVFI_TRTLLM_RANK_KIT_H
#define KVFI_TRTLLM_RANK_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kvferry/trtllm.h"

enum { RANK_KIT_GROUPS = 6, RANK_KIT_VIEWS = 6, RANK_KIT_ITEMS = 32 };

/** Points into itself: is not moved or copied. */
struct rank_kit {
    struct kvf_trtllm_rank_spec spec;
    struct kvf_trtllm_attention attention; /**< spec.attention, unless that is set to NULL */
    int64_t stages[RANK_KIT_ITEMS];        /**< layers of each stage; none given = 2 of each of pp_size */
    const char *endpoints[RANK_KIT_ITEMS];
    struct kvf_trtllm_aux aux;             /**< used after rank_kit_aux */
    uint64_t aux_ptrs[RANK_KIT_ITEMS];
    int64_t aux_sizes[RANK_KIT_ITEMS], aux_items[RANK_KIT_ITEMS];
    struct kvf_trtllm_page_table table;    /**< used after one of the functions that add to it */
    struct kvf_trtllm_group groups[RANK_KIT_GROUPS];
    struct kvf_trtllm_layer layers[RANK_KIT_GROUPS][RANK_KIT_ITEMS];
    struct kvf_trtllm_view views[RANK_KIT_GROUPS][RANK_KIT_VIEWS];
    struct kvf_trtllm_entry entries[RANK_KIT_GROUPS][RANK_KIT_VIEWS][RANK_KIT_ITEMS];
    const char *roles[RANK_KIT_GROUPS][RANK_KIT_VIEWS][4];
    int64_t sections[RANK_KIT_GROUPS][RANK_KIT_VIEWS][RANK_KIT_ITEMS];
    struct kvf_trtllm_pool_group pool_groups[RANK_KIT_GROUPS];
    struct kvf_trtllm_pool pools[RANK_KIT_GROUPS][RANK_KIT_VIEWS];
};

/** The usual rank: see above. */
void rank_kit_init(struct rank_kit *kit, const char *name);

/** Sets the layers of all stages: rank_kit_stages(&kit, 2, (int64_t)1, (int64_t)2). */
void rank_kit_stages(struct rank_kit *kit, size_t count, ...);

/** Adds a paged (group 0) and a state table: `layer_count` layers, whose global numbers follow as ints; slots of
 *  `bytes` bytes, the state of `mamba_tp` ranks, views of `heads` heads (0: no paged group, and state is group 0). */
void rank_kit_pt(struct rank_kit *kit, int64_t bytes, int64_t mamba_tp, int64_t heads, size_t layer_count, ...);

/** Adds one paged group of 2-token blocks with one view per head count (they follow as ints), all of `mapper`. */
void rank_kit_pv(struct rank_kit *kit, int64_t mapper, size_t view_count, ...);

/** Adds the replicated side view to the state group of rank_kit_pt: two layers of `bytes` bytes. */
void rank_kit_side(struct rank_kit *kit, int64_t bytes);

/** Adds `count` aux buffers: address, size and item size of each follow as int64_t. */
void rank_kit_aux(struct rank_kit *kit, size_t count, ...);

/** Gives one view a set of one role; "" makes it empty. */
void rank_kit_role(struct rank_kit *kit, size_t group, size_t view, const char *role);

/** Lower pieces: each adds to the last group and returns its index. */
size_t rank_kit_group(struct rank_kit *kit, int64_t cache, int64_t pool_group);
size_t rank_kit_view(struct rank_kit *kit, size_t group, int64_t mapper, int64_t pool);
void rank_kit_layer(struct rank_kit *kit, size_t group, int64_t local_layer, int64_t global_layer);
void rank_kit_entry(struct rank_kit *kit, size_t group, size_t view, int64_t local_layer, int64_t offset,
                    int64_t bytes);
size_t rank_kit_pool(struct rank_kit *kit, size_t pool_group, uint64_t base, int64_t slot, int64_t slots);

/** The rank: fails the test when it is refused. Released by the test. */
kvf_trtllm_rank *rank_kit_make(struct rank_kit *kit);

/** The refusal: fails the test unless the status is this and the sentence contains `text`. */
void rank_kit_refused(struct rank_kit *kit, int status, const char *text);

#endif
