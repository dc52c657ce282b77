/* SPDX-License-Identifier: Apache-2.0 */
/* Parallel arrays, as they travel, as regions. */
#include "vllm/regions.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"

bool kvfi_vllm_arrays_are_there(const struct kvf_vllm_arrays *arrays)
{
    return (arrays->base_addrs || arrays->base_addr_count == 0) && (arrays->block_lens || arrays->block_len_count == 0)
           && (arrays->kv_block_lens || arrays->kv_block_len_count == 0)
           && (arrays->layer_names || arrays->layer_name_count == 0)
           && (arrays->layer_indices || arrays->layer_index_count == 0)
           && (arrays->group_indices || arrays->group_index_count == 0)
           && (arrays->shared_groups || arrays->shared_group_count == 0)
           && (arrays->row_offsets || arrays->row_offset_count == 0);
}

/* A peer's arrays must fit each other before one of them is read. */
static enum kvf_status check_counts(const struct kvf_vllm_arrays *arrays, struct kvf_error *error)
{
    size_t count = arrays->base_addr_count;
    enum kvf_status status = KVF_OK;

    if (arrays->block_len_count != count || arrays->kv_block_len_count != count || arrays->layer_name_count != count
        || arrays->layer_index_count != count) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Mooncake transfer regions require matching metadata lengths, got base_addrs=%zu, "
                           "block_lens=%zu, kv_block_lens=%zu, layer_names=%zu, layer_indices=%zu.", count,
                           arrays->block_len_count, arrays->kv_block_len_count, arrays->layer_name_count,
                           arrays->layer_index_count);
    } else if (arrays->group_index_count > 0 && arrays->group_index_count != count) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Mooncake transfer regions require matching group metadata lengths, got group_indices=%zu, "
                           "layer_names=%zu.", arrays->group_index_count, count);
    } else if (arrays->shared_group_count > 0 && arrays->shared_group_count != count) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "regions: %zu lists of shared groups for %zu layer names",
                           arrays->shared_group_count, count);
    } else if (arrays->row_offset_count > 0 && arrays->row_offset_count != count) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "regions: %zu row offsets for %zu layer names",
                           arrays->row_offset_count, count);
    } else if (count > KVFI_VLLM_MAX_REGIONS) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "regions: %zu of them, the limit is %d", count, KVFI_VLLM_MAX_REGIONS);
    } else if (!kvfi_vllm_arrays_are_there(arrays)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "regions: an array of %zu is NULL", count);
    }
    return status;
}

static int compare_layers(const void *a, const void *b)
{
    const struct kvf_vllm_layer *const *one = a, *const *other = b;

    return strcmp((*one)->name, (*other)->name);
}

static int compare_name(const void *key, const void *element)
{
    const struct kvf_vllm_layer *const *layer = element;

    return strcmp(key, (*layer)->name);
}

/* Regions without groups have those of the producer's layers of their names. */
static enum kvf_status look_up_groups(const struct kvf_vllm_layer *layers, size_t layer_count,
                                      struct kvf_vllm_region *items, size_t count, struct kvf_error *error)
{
    const struct kvf_vllm_layer **sorted = kvfi_alloc_array(layer_count, sizeof *sorted);
    enum kvf_status status = KVF_OK;

    if (!sorted) {
        status = kvfi_fail_memory(error, "the layers by name");
        goto done;
    }
    for (size_t i = 0; i < layer_count; i++) {
        if (!layers[i].name) {
            status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "layer %zu: its name is NULL", i);
            goto done;
        }
        sorted[i] = &layers[i];
    }
    qsort(sorted, layer_count, sizeof *sorted, compare_layers);
    for (size_t i = 0; i < count; i++) {
        const struct kvf_vllm_layer *const *found =
            bsearch(items[i].layer_name, sorted, layer_count, sizeof *sorted, compare_name);

        items[i].group_index = found ? (*found)->group : 0;
    }
done:
    free(sorted);
    return status;
}

/* Fills `items`, as many as the arrays have base addresses, with what the arrays say: names and shared groups point
   into the arrays. */
static enum kvf_status fill_regions(const struct kvf_vllm_arrays *arrays, const struct kvf_vllm_layer *layers,
                                    size_t layer_count, struct kvf_vllm_region *items, struct kvf_error *error)
{
    size_t count = arrays->base_addr_count;
    enum kvf_status status = check_counts(arrays, error);

    for (size_t i = 0; status == KVF_OK && i < count; i++) {
        items[i] = (struct kvf_vllm_region){
            .layer_name = arrays->layer_names[i],
            .layer_index = arrays->layer_indices[i],
            .base_addr = arrays->base_addrs[i],
            .block_len = arrays->block_lens[i],
            .kv_block_len = arrays->kv_block_lens[i],
            .group_index = arrays->group_index_count > 0 ? arrays->group_indices[i] : 0,
            .row_offset = arrays->row_offset_count > 0 ? arrays->row_offsets[i] : KVF_VLLM_NO_ROW,
        };
        if (arrays->shared_group_count > 0) items[i].shared_groups = arrays->shared_groups[i];
        if (!items[i].layer_name) {
            status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "region %zu: its layer name is NULL", i);
        } else if (items[i].block_len < 0 || items[i].kv_block_len < 0) {
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                               "region %zu: block_len %" PRId64 " and kv_block_len %" PRId64
                               ", expected 0 bytes or more", i, items[i].block_len, items[i].kv_block_len);
        }
    }
    if (status == KVF_OK && arrays->group_index_count == 0 && layer_count > 0) {
        status = look_up_groups(layers, layer_count, items, count, error);
    }
    return status;
}

enum kvf_status kvf_vllm_regions_expand(const struct kvf_vllm_arrays *arrays, const struct kvf_vllm_layer *layers,
                                        size_t layer_count, kvf_vllm_regions **out, struct kvf_error *error)
{
    struct kvf_vllm_region *items = NULL;
    enum kvf_status status;

    if (!arrays || !out || (layer_count > 0 && !layers)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "regions: arrays, layers or out is NULL");
        goto done;
    }
    status = check_counts(arrays, error);
    if (status != KVF_OK) goto done;
    items = kvfi_alloc_array(arrays->base_addr_count, sizeof *items);
    if (!items) {
        status = kvfi_fail_memory(error, "a list of regions");
        goto done;
    }
    status = fill_regions(arrays, layers, layer_count, items, error);
    if (status == KVF_OK) status = kvf_vllm_regions_create(items, arrays->base_addr_count, out, error);
done:
    free(items);
    return status;
}
