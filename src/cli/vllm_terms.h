/* SPDX-License-Identifier: Apache-2.0 */
/** @file vllm_terms.h  vLLM's terms out of JSON: ranks, regions, block ids. */
#ifndef KVFERRY_CLI_VLLM_TERMS_H
#define KVFERRY_CLI_VLLM_TERMS_H

#include "cli/json_take.h"
#include "kvferry/vllm.h"

/** Memory that is freed together. */
struct vllm_keep {
    void **blocks;
    size_t count;
};

/** Zeroed memory that is freed with the rest; NULL when there is none. */
void *vllm_keep_add(struct vllm_keep *keep, size_t count, size_t bytes);
void vllm_keep_free(struct vllm_keep *keep);

/** A rank of either side. Everything is borrowed from its JSON or its keep. */
struct vllm_rank {
    int64_t tp_rank, tp_size, pp_rank, pp_size;
    int64_t total_kv_heads, kernel_blocks_per_block, kv_cache_groups;
    bool is_mla, has_opaque_row;
    int32_t *group_kinds;
    size_t group_count;
    struct kvf_vllm_layer *layers;
    size_t layer_count;
    struct kvf_vllm_arrays regions;
    const char *hostname; /* of a pull */
    int64_t port;
    uint64_t layout_id;
    const json_t *requests; /* a producer's `ready`, a consumer's `requests`; NULL = none */
};

/** An unsigned number: an integer, or a text "0x...". */
bool vllm_take_u64(struct json_take *take, const char *key, const json_t *value, uint64_t *out);

/** Eight parallel arrays by name; those that are absent, null or empty are absent. */
bool vllm_take_regions(struct json_take *take, const json_t *object, struct vllm_keep *keep,
                       struct kvf_vllm_arrays *out);

/** A list of lists of numbers from 0 on. `*out` is NULL when there is none. */
bool vllm_take_groups(struct json_take *take, const json_t *object, const char *key, struct vllm_keep *keep,
                      struct kvf_vllm_ids **out, size_t *count);

/** Sets what a rank is when nothing is said. */
void vllm_rank_init(struct vllm_rank *rank);

/** Takes a rank's members, but not its regions. `object` may be NULL. */
bool vllm_take_rank(struct json_take *take, const json_t *object, struct vllm_keep *keep, struct vllm_rank *rank);

/** Says what a rank lacks to be a producer, which a consumer may leave out. */
bool vllm_can_produce(struct json_take *take, const struct vllm_rank *rank);

/** What a rank is as a producer, and what its pulls say of it as a consumer. Both borrow from the rank. */
void vllm_producer_spec(const struct vllm_rank *rank, struct kvf_vllm_producer_spec *out);
void vllm_peer(const struct vllm_rank *rank, struct kvf_vllm_peer *out);

/** A number as JSON: a text "0x..." above what fits. */
json_t *vllm_json_u64(uint64_t number);

#endif
