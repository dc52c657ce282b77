/* SPDX-License-Identifier: Apache-2.0 */
/** @file producer.h  Inside of a producer rank. */
#ifndef KVFI_VLLM_PRODUCER_H
#define KVFI_VLLM_PRODUCER_H

#include "vllm/memo.h"
#include "vllm/rules.h"

/** What a producer may keep of its peers, in bytes, each way of finding it. */
#define KVFI_VLLM_MEMO_BYTES ((size_t)256 << 20)

enum {
    KVFI_VLLM_MAX_TP = 1 << 20, /**< ranks of a producer */
    KVFI_VLLM_MAX_GROUPS = 1024
};

struct kvf_vllm_producer {
    int64_t tp_rank, tp_size, pp_size;
    bool has_opaque_row, replicated, keeps_layers_apart;
    int64_t total_heads;           /**< 0 = heads do not matter */
    int64_t kernel_blocks_per_block;
    int32_t *group_kinds;
    size_t group_count;
    struct kvf_vllm_layer *layers; /**< sorted by name; the names are the producer's own */
    size_t layer_count;
    kvf_vllm_regions *regions;     /**< NULL when the arrays do not fit each other: */
    struct kvf_error refusal;      /**< what every pull is told then */
    struct kvfi_vllm_memo by_layout, by_id;
};

/** The ranks of a pull. */
struct kvfi_vllm_ranks kvfi_vllm_producer_ranks(const struct kvf_vllm_producer *producer,
                                                const struct kvf_vllm_peer *peer);

#endif
