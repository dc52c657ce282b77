/* SPDX-License-Identifier: Apache-2.0 */
/** @file kit.h  What the benchmarks of vLLM's dialect share: caches of many layers in one allocation, head-major. */
#ifndef KVF_BENCH_VLLM_KIT_H
#define KVF_BENCH_VLLM_KIT_H

#include "kvferry/vllm.h"

enum { VLLM_MOST_LAYERS = 128 };

/** Regions of one rank, a region per layer, one behind the other. They point into themselves: not to be copied. */
struct vllm_cache {
    uint64_t base_addrs[VLLM_MOST_LAYERS];
    int64_t block_lens[VLLM_MOST_LAYERS], kv_block_lens[VLLM_MOST_LAYERS], layer_indices[VLLM_MOST_LAYERS];
    int64_t group_indices[VLLM_MOST_LAYERS], row_offsets[VLLM_MOST_LAYERS];
    char names[VLLM_MOST_LAYERS][48];
    const char *layer_names[VLLM_MOST_LAYERS];
    struct kvf_vllm_ids shared_groups[VLLM_MOST_LAYERS];
    struct kvf_vllm_layer layers[VLLM_MOST_LAYERS];
    struct kvf_vllm_arrays arrays;
    int64_t bytes;
};

void vllm_cache_init(struct vllm_cache *cache, uint64_t base, int64_t layers, int64_t blocks, int64_t block_bytes);

/** Block ids: `first`, first + 1, ...; free with free(). */
int64_t *vllm_ids(int64_t first, int64_t count);

/** Ends the benchmark unless the status is KVF_OK. */
void vllm_check(enum kvf_status status, const struct kvf_error *error, const char *what);

#endif
