/* SPDX-License-Identifier: Apache-2.0 */
/** @file regions.h  Limits of lists of regions, and what is asked of their arrays. */
#ifndef KVFI_VLLM_REGIONS_H
#define KVFI_VLLM_REGIONS_H

#include <stdbool.h>

#include "kvferry/vllm.h"

/** What one list may hold. */
enum {
    KVFI_VLLM_MAX_REGIONS = 1 << 16,
    KVFI_VLLM_MAX_NAME_BYTES = 1 << 12,     /**< of one layer's name, closing zero included */
    KVFI_VLLM_MAX_ALL_NAME_BYTES = 1 << 24, /**< of all, names repeated in a row counted once */
    KVFI_VLLM_MAX_SHARED_GROUPS = 1 << 20   /**< of all regions together, lists repeated in a row counted once */
};

/** Bytes that a list takes. */
size_t kvfi_vllm_regions_memory(const kvf_vllm_regions *regions);

/** Whether every array that has a count is there. */
bool kvfi_vllm_arrays_are_there(const struct kvf_vllm_arrays *arrays);

/** Whether two lists of ids are the same. */
bool kvfi_vllm_ids_equal(const struct kvf_vllm_ids *a, const struct kvf_vllm_ids *b);

#endif
