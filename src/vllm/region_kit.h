/* SPDX-License-Identifier: Apache-2.0 */
/** @file region_kit.h  For tests: regions in few words. */
#ifndef KVFI_VLLM_REGION_KIT_H
#define KVFI_VLLM_REGION_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kvferry/vllm.h"

/** A region of layer "layer" number 0 of group 0 without shared groups, whose row offset is its base. */
static inline struct kvf_vllm_region region_kit(uint64_t base, int64_t block_len, int64_t kv_block_len)
{
    return (struct kvf_vllm_region){.layer_name = "layer", .base_addr = base, .block_len = block_len,
                                    .kv_block_len = kv_block_len, .row_offset = (int64_t)base};
}

/** The same, of a named layer. */
static inline struct kvf_vllm_region region_kit_named(const char *name, int64_t index, uint64_t base,
                                                      int64_t block_len, int64_t kv_block_len)
{
    struct kvf_vllm_region region = region_kit(base, block_len, kv_block_len);

    region.layer_name = name;
    region.layer_index = index;
    return region;
}

/** A list of them; the test fails when it cannot be made. */
static inline kvf_vllm_regions *region_kit_list(const struct kvf_vllm_region *items, size_t count)
{
    kvf_vllm_regions *regions = NULL;
    struct kvf_error error = {0};

    if (kvf_vllm_regions_create(items, count, &regions, &error) != KVF_OK) fail_msg("%s", error.text);
    return regions;
}

#endif
