/* SPDX-License-Identifier: Apache-2.0 */
/** @file write.h  Inside of writes. */
#ifndef KVFI_VLLM_WRITE_H
#define KVFI_VLLM_WRITE_H

#include "vllm/prepared.h"

/** Memory that the runs of blocks of one write may take. */
#define KVFI_VLLM_MAX_WRITE_BYTES (INT64_C(1) << 30)

/** A prepared pair's job, bound to a request's blocks. */
struct kvfi_vllm_bound {
    kvf_binding *binding; /**< NULL: nothing of it moves, or it was not needed yet */
    kvf_cursor *cursor;
    bool looked_at;
    int64_t descriptors;
    int64_t src_low, src_high, dst_low, dst_high; /**< block ids */
};

/** What of the current move was not given yet. */
struct kvfi_vllm_piece {
    uint64_t src, dst;
    int64_t bytes;                  /**< of one descriptor */
    int64_t left, left_of_all;      /**< bytes of this step of the block loop; steps after it */
    int64_t run_bytes;
    uint64_t src_step, dst_step;    /**< from the begin of this step to the next */
    uint64_t src_next, dst_next;    /**< where the next step begins */
};

struct kvf_vllm_write {
    kvf_vllm_prepared *prepared;
    struct kvfi_vllm_bound *bound; /**< per job */
    int64_t bytes, count;
    int64_t memory_bytes;          /**< of all bindings */
    size_t pair;                   /**< where kvf_vllm_write_next is; its cursor says where in it */
    bool in_pair;
    struct kvfi_vllm_piece piece;
};

#endif
