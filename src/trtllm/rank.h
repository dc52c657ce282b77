/* SPDX-License-Identifier: Apache-2.0 */
/** @file rank.h  Inside of rank infos. Everything here is immutable once made. */
#ifndef KVFI_TRTLLM_RANK_H
#define KVFI_TRTLLM_RANK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "kvferry/trtllm.h"
#include "trtllm/geometry.h"
#include "wire/arena.h"

/** Where one layer of a rank is listed. */
struct kvfi_trt_place {
    int64_t cache, global_layer, local_layer;
    size_t group, layer; /**< spec.page_table->groups[group].layers[layer] */
};

/** A rank info owns, in its arena, all that its spec points to. Fields of a group that do not belong to its cache kind
 *  are KVF_TRTLLM_NONE, roles are sorted. */
struct kvf_trtllm_rank {
    atomic_int references;
    struct kvfi_arena arena;
    struct kvf_trtllm_rank_spec spec;
    struct kvfi_trt_place *by_global; /**< every layer of the page table, sorted by cache kind and global layer */
    struct kvfi_trt_place *by_local;  /**< the same, sorted by group and local layer */
    size_t place_count;
    struct kvfi_trt_geometry *geometry; /**< what the views of the page table come to */
    const void *bytes;                /**< of a decoded rank that encoding would spell otherwise; else NULL */
    size_t byte_count;
};

/** What is left of the limits of one rank info while it is read or copied. */
struct kvfi_trt_budget {
    size_t pools, views, entries, layers, roles, sections;
};

/** The whole budget. */
struct kvfi_trt_budget kvfi_trt_budget_full(void);

/** Takes `count` of `*left`; KVF_ERR_LIMIT naming `what` when there are not that many, and nothing is taken. */
enum kvf_status kvfi_trt_budget_take(size_t *left, size_t count, const char *what, struct kvf_error *error);

/** Copies `spec`, whose counts are within the limits, into the arena of `rank`. @return false: out of memory */
bool kvfi_trt_rank_copy(struct kvf_trtllm_rank *rank, const struct kvf_trtllm_rank_spec *spec);

/** Checks counts and pointers of a spec that the caller made: nothing else of it may be read before. */
enum kvf_status kvfi_trt_rank_count(const struct kvf_trtllm_rank_spec *spec, struct kvf_error *error);

/** Checks all values of a copied rank, page table and the rest. */
enum kvf_status kvfi_trt_rank_check(const struct kvf_trtllm_rank *rank, struct kvf_error *error);
enum kvf_status kvfi_trt_table_check(const struct kvf_trtllm_rank *rank, struct kvf_error *error);

/** Fills by_global and by_local, and refuses layers that are listed twice. */
enum kvf_status kvfi_trt_rank_index(struct kvf_trtllm_rank *rank, struct kvf_error *error);

/** The place of a layer, or NULL: by its number on every rank, by its number in one group of this rank. */
const struct kvfi_trt_place *kvfi_trt_find_global(const struct kvf_trtllm_rank *rank, int64_t cache,
                                                  int64_t global_layer);
const struct kvfi_trt_place *kvfi_trt_find_local(const struct kvf_trtllm_rank *rank, size_t group,
                                                 int64_t local_layer);

/** TP ranks of one DP group: fewer than tp_size under attention DP only. At least 1. */
int64_t kvfi_trt_tp_per_dp(const struct kvf_trtllm_rank *rank);

/** Number of layer groups; 0 without a page table. */
static inline size_t kvfi_trt_group_count(const struct kvf_trtllm_rank *rank)
{
    return rank->spec.page_table ? rank->spec.page_table->group_count : 0;
}

static inline const struct kvf_trtllm_group *kvfi_trt_group(const struct kvf_trtllm_rank *rank, size_t group)
{
    return &rank->spec.page_table->groups[group];
}

/** The pool that a view of a group lies in. */
static inline const struct kvf_trtllm_pool *kvfi_trt_view_pool(const struct kvf_trtllm_rank *rank,
                                                               const struct kvf_trtllm_group *group,
                                                               const struct kvf_trtllm_view *view)
{
    return &rank->spec.page_table->pool_groups[group->pool_group].pools[view->pool];
}

#endif
