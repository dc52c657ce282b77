/* SPDX-License-Identifier: Apache-2.0 */
/** @file prepared.h  Inside of a prepared pair of ranks, or of the reason why there is none.
 *
 *  Region pairs of one shape share one plan, which knows no address; what a pair adds are two base addresses. Pairs of
 *  one shape whose blocks come from the same lists of ids share a *job*: what a request binds once.
 */
#ifndef KVFI_VLLM_PREPARED_H
#define KVFI_VLLM_PREPARED_H

#include <stdatomic.h>

#include "vllm/align.h"
#include "vllm/rules.h"

/** Payloads and strides of a pair of regions, and what follows from them. */
struct kvfi_vllm_shape {
    int64_t src_stride_bytes, dst_stride_bytes;
    int64_t src_bytes, dst_bytes;
    struct kvfi_vllm_cut cut;
    bool whole;          /**< blocks follow each other without a gap on both sides: adjacent ones are one copy */
    bool leaves_payload; /**< the cut does not fit: a request that would use it is refused */
    kvf_plan *plan;      /**< NULL when nothing is sent, or nothing can be */
};

/** Where a pair's block ids come from: one group, or several, one after the other. */
struct kvfi_vllm_list {
    int64_t group;              /**< or KVF_VLLM_SHARED_GROUP */
    struct kvf_vllm_ids groups; /**< of a shared one; borrowed from the pair's regions */
};

struct kvfi_vllm_job {
    uint32_t shape, list;
};

struct kvf_vllm_prepared {
    atomic_int references;
    struct kvf_error refusal;   /**< status KVF_OK = none: the pair can transfer */
    kvf_vllm_regions *local, *remote; /**< aligned and coalesced; NULL when refused before */
    bool sends;
    int64_t pulls_expected;
    int64_t kernel_blocks_per_block;
    int32_t *group_kinds;
    size_t group_count;
    struct kvfi_vllm_shape *shapes;
    size_t shape_count;
    struct kvfi_vllm_list *lists;
    size_t list_count;
    struct kvfi_vllm_job *jobs;
    size_t job_count;
    uint32_t *job_of;           /**< per pair of regions */
};

/** Makes an empty pair, with what a producer's requests need to know. @return NULL when there is no memory */
kvf_vllm_prepared *kvfi_vllm_prepared_new(const int32_t *group_kinds, size_t group_count,
                                          int64_t kernel_blocks_per_block);

/** Gives a pair whose `local` and `remote` are set its shapes, lists, jobs and plans.
 *  @return KVF_OK; KVF_ERR_INCOMPATIBLE (a region without bytes); KVF_ERR_OVERFLOW; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_prepared_fill(kvf_vllm_prepared *prepared, const struct kvfi_vllm_ranks *ranks,
                                        struct kvf_error *error);

/** Makes the plan of one shape: a payload of bytes on either side, so placed that they meet where the cut says. */
enum kvf_status kvfi_vllm_shape_plan(struct kvfi_vllm_shape *shape, struct kvf_error *error);

/** Bytes that a pair takes. */
size_t kvfi_vllm_prepared_memory(const kvf_vllm_prepared *prepared);

/** Prepares, or finds what was prepared, refusals too.
 *  @param out  returned to the caller (free with kvf_vllm_prepared_release): its `refusal` says whether it is one
 *  @return KVF_OK also for a refusal that is remembered; else as kvf_vllm_prepare */
enum kvf_status kvfi_vllm_prepare(kvf_vllm_producer *producer, const struct kvf_vllm_peer *peer,
                                  kvf_vllm_prepared **out, struct kvf_error *error);

#endif
