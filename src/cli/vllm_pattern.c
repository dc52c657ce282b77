/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinate pattern: every byte follows from layer name, occurrence, block and offset. docs/vllm.md has the same
 * in Python. */
#include <stdlib.h>
#include <string.h>

#include "cli/vllm_memory.h"

static uint32_t hash_name(const char *name)
{
    uint32_t hash = 2166136261U;
    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 16777619U;
    return hash;
}

/** The pattern's bytes of one block: `bytes` from `at` on. */
static void fill_block(const char *layer_name, int64_t occurrence, int64_t block, uint32_t seed, uint8_t *at,
                       int64_t bytes)
{
    uint32_t key = hash_name(layer_name) ^ seed * 2654435761U ^ (uint32_t)occurrence * 2246822507U ^
                   (uint32_t)block * 3266489917U;
    for (int64_t offset = 0; offset < bytes; offset += 4) {
        uint32_t word = key + (uint32_t)(offset / 4) * 668265263U;
        word = (word ^ word >> 15) * 739982445U;
        word ^= word >> 12;
        for (int64_t b = 0; b < 4 && offset + b < bytes; b++)
            at[offset + b] = (uint8_t)(word >> 8 * b);
    }
}

/** How many regions before number `index` have its layer name. */
static int64_t occurrence_of(const struct kvf_vllm_region *regions, size_t index)
{
    int64_t before = 0;
    for (size_t i = 0; i < index; i++)
        before += strcmp(regions[i].layer_name, regions[index].layer_name) == 0;
    return before;
}

void vllm_memory_paint(const struct vllm_memory *memory, const kvf_vllm_regions *list, uint32_t seed)
{
    size_t count = 0;
    const struct kvf_vllm_region *regions = kvf_vllm_regions_get(list, &count);
    for (size_t i = 0; i < count; i++) {
        const struct kvf_vllm_region *r = &regions[i];
        int64_t occurrence = occurrence_of(regions, i), block = 0;
        uint64_t at = r->base_addr;
        uint8_t *here = NULL;
        while (r->kv_block_len > 0 && (here = vllm_memory_at(memory, at, r->kv_block_len)) != NULL) {
            fill_block(r->layer_name, occurrence, block, seed, here, r->kv_block_len);
            if (r->block_len <= 0)
                break;
            at += (uint64_t)r->block_len;
            block++;
        }
    }
}
