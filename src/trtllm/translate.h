/* SPDX-License-Identifier: Apache-2.0 */
/** @file translate.h  Page tables and view pairs -> two layouts.
 *
 *  Memory and pool number i are the page table's pool number i, all pool groups counted through; groups are the layer
 *  groups in order, and after them one for every ring pair. A view pair becomes *parts*: roles that only its two views
 *  have, so that only they meet.
 */
#ifndef KVFI_TRTLLM_TRANSLATE_H
#define KVFI_TRTLLM_TRANSLATE_H

#include "trtllm/mapper.h"
#include "trtllm/pair.h"

/** Bytes that a role's name may take, its zero included. */
#define KVFI_TRT_ROLE_BYTES 224

/** One side's layout in the making. */
struct kvfi_trt_side {
    const char *name;                          /**< in errors: "self", "peer" */
    const struct kvf_trtllm_page_table *table; /**< borrowed */
    size_t *first_pool;                        /**< by pool group: number of its first pool */
    struct kvf_pool *pools;
    int64_t *memory_bytes;
    size_t pool_count;
    struct kvf_group *groups;
    size_t group_count, group_capacity;
    struct kvf_view *views;                    /**< each owns one block: its places, role and tag */
    struct kvf_trtllm_view_key *keys;          /**< by view: what of the page table it is a part of */
    size_t view_count, view_capacity, key_capacity;
};

/** Takes over the pools, unbounded. @return KVF_OK, KVF_ERR_NO_MEMORY. End with kvfi_trt_side_fini in any case. */
enum kvf_status kvfi_trt_side_init(struct kvfi_trt_side *side, const char *name,
                                   const struct kvf_trtllm_page_table *table, struct kvf_error *error);

/** Ends a side; a zeroed one is fine. */
void kvfi_trt_side_fini(struct kvfi_trt_side *side);

/** Adds a group. @return KVF_OK, KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_trt_side_group(struct kvfi_trt_side *side, const struct kvf_group *group,
                                    struct kvf_error *error);

/** Adds the table's layer groups: paged ones of `tokens_per_block` in stripes of that size, and state. */
enum kvf_status kvfi_trt_side_groups(struct kvfi_trt_side *side, int64_t tokens_per_block, int64_t stripes,
                                     int64_t stripe, struct kvf_error *error);

/** Where one layer of a part lies. */
struct kvfi_trt_spot {
    int64_t layer, start_bytes;
};

/** Adds one part of `view`: `model` without places, its texts copied; each layer at its start plus `offset_bytes`.
 *  @return KVF_OK; KVF_ERR_INCOMPATIBLE (a pool without slots); KVF_ERR_OVERFLOW; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_trt_side_part(struct kvfi_trt_side *side, const struct kvf_view *model,
                                   const struct kvfi_trt_view *view, int64_t offset_bytes,
                                   const struct kvfi_trt_spot *spots, size_t spot_count, struct kvf_error *error);

/** Makes the layout. @return KVF_OK; KVF_ERR_INCOMPATIBLE with the side's name and what is wrong; KVF_ERR_OVERFLOW;
 *          KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_trt_side_layout(const struct kvfi_trt_side *side, kvf_layout **out, struct kvf_error *error);

/** Writes a role's name: the view's roles, cut and without control characters, then `#number`, and `/part` from 0 on.
 *  Returns `text`. */
const char *kvfi_trt_role_name(const struct kvfi_trt_view *view, size_t number, int64_t part,
                               char text[KVFI_TRT_ROLE_BYTES]);

/** Plans what a strict pair's views mark as planned; `pair->plan` stays NULL when none is. */
enum kvf_status kvfi_trt_strict_plan(kvf_trtllm_pair *pair, struct kvf_error *error);

/** Makes the plan of a pair from its layouts within the pair's share, and takes over the keys of the source's side. */
enum kvf_status kvfi_trt_pair_finish(kvf_trtllm_pair *pair, struct kvfi_trt_side *src_side, const kvf_layout *src,
                                     const kvf_layout *dst, struct kvf_error *error);

/** Plans anew a part of what a pair's plan holds: the source's parts that `parts` marks (pair->part_count of them).
 *  @param out  returned to the caller (free with kvf_plan_release); NULL when nothing is marked */
enum kvf_status kvfi_trt_subplan(const kvf_trtllm_pair *pair, const bool *parts, kvf_plan **out,
                                 struct kvf_error *error);

#endif
