/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

void vllm_check(enum kvf_status status, const struct kvf_error *error, const char *what)
{
    if (status != KVF_OK)
        bench_fail("%s: %s", what, error->text);
}

void vllm_cache_init(struct vllm_cache *cache, uint64_t base, int64_t layers, int64_t blocks, int64_t block_bytes)
{
    static const int64_t first_group[] = {0};
    size_t count = (size_t)layers;

    if (layers > VLLM_MOST_LAYERS)
        bench_fail("%" PRId64 " layers, at most %d", layers, VLLM_MOST_LAYERS);
    for (int64_t i = 0; i < layers; i++) {
        cache->base_addrs[i] = base + (uint64_t)(i * blocks * block_bytes);
        cache->block_lens[i] = cache->kv_block_lens[i] = block_bytes;
        cache->layer_indices[i] = i;
        cache->group_indices[i] = 0;
        cache->row_offsets[i] = KVF_VLLM_NO_ROW;
        snprintf(cache->names[i], sizeof cache->names[i], "model.layers.%" PRId64 ".self_attn.attn", i);
        cache->layer_names[i] = cache->names[i];
        cache->shared_groups[i] = (struct kvf_vllm_ids){first_group, 1};
        cache->layers[i] = (struct kvf_vllm_layer){cache->names[i], 0, KVF_VLLM_ATTENTION, 0, block_bytes, block_bytes};
    }
    cache->bytes = layers * blocks * block_bytes;
    cache->arrays = (struct kvf_vllm_arrays){
        cache->base_addrs, count, cache->block_lens, count, cache->kv_block_lens, count, cache->layer_names, count,
        cache->layer_indices, count, cache->group_indices, count, cache->shared_groups, count, cache->row_offsets,
        count};
}

int64_t *vllm_ids(int64_t first, int64_t count)
{
    int64_t *ids = calloc((size_t)count, sizeof *ids);

    if (ids == NULL)
        bench_fail("no memory for %" PRId64 " block ids", count);
    for (int64_t i = 0; i < count; i++)
        ids[i] = first + i;
    return ids;
}
