/* SPDX-License-Identifier: Apache-2.0 */
/** @file rank.h  Inside of rank infos. Everything here is immutable once made. */
#ifndef KVFI_TRTLLM_RANK_H
#define KVFI_TRTLLM_RANK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "kvferry/trtllm.h"
#include "trtllm/geometry.h"
#include "wire/arena.h"

/** A rank info owns, in its arena, all that its spec points to. Fields of a group that do not belong to its cache kind
 *  are KVF_TRTLLM_NONE, roles are sorted. */
struct kvf_trtllm_rank {
    atomic_int references;
    struct kvfi_arena arena;
    struct kvf_trtllm_rank_spec spec;
    struct kvfi_trt_geometry *geometry; /**< what the views of the page table come to */
    const void *bytes;                  /**< of a decoded rank that encoding would spell otherwise; else NULL */
    size_t byte_count;
};

/** Memory that a rank info takes, near enough to bound what many of them take. */
size_t kvfi_trt_rank_memory(const kvf_trtllm_rank *rank);

/** What is left of the limits of one rank info while it is read or copied. */
struct kvfi_trt_budget {
    size_t pools, views, entries, layers, roles, sections;
};

/** The whole budget. */
struct kvfi_trt_budget kvfi_trt_budget_full(void);

/** Copies `spec`, whose counts are within the limits, into the arena of `rank`. @return false: out of memory */
bool kvfi_trt_rank_copy(struct kvf_trtllm_rank *rank, const struct kvf_trtllm_rank_spec *spec);

/** Checks counts and pointers of a spec that the caller made: nothing else of it may be read before. */
enum kvf_status kvfi_trt_rank_count(const struct kvf_trtllm_rank_spec *spec, struct kvf_error *error);

/** Checks all values of a copied rank, page table and the rest. */
enum kvf_status kvfi_trt_rank_check(const struct kvf_trtllm_rank *rank, struct kvf_error *error);
enum kvf_status kvfi_trt_table_check(const struct kvf_trtllm_rank *rank, struct kvf_error *error);

/** The layers of a page table while it is checked. */
struct kvfi_trt_layers {
    struct kvfi_trt_listed *items; /**< sorted by group and local layer */
    size_t count;
};

/** Lists them, and refuses layers that are listed twice. End with kvfi_trt_layers_fini in any case. */
enum kvf_status kvfi_trt_layers_init(struct kvfi_trt_layers *layers, const struct kvf_trtllm_page_table *table,
                                     struct kvf_error *error);
void kvfi_trt_layers_fini(struct kvfi_trt_layers *layers);

/** True when the group has that local layer. */
bool kvfi_trt_layers_have(const struct kvfi_trt_layers *layers, size_t group, int64_t local_layer);

/** The pool that a view of a group lies in. */
static inline const struct kvf_trtllm_pool *kvfi_trt_view_pool(const struct kvf_trtllm_rank *rank,
                                                               const struct kvf_trtllm_group *group,
                                                               const struct kvf_trtllm_view *view)
{
    return &rank->spec.page_table->pool_groups[group->pool_group].pools[view->pool];
}

#endif
