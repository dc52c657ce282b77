/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a page table: indices, kinds, and sums that fit. */
#include <inttypes.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "trtllm/rank.h"
#include "wire/text.h"

/** Where a check is: for its sentence. */
struct at {
    const struct kvf_trtllm_rank *rank;
    struct kvfi_trt_layers layers;
    const struct kvf_trtllm_group *group;
    const struct kvf_trtllm_view *view;
    size_t group_index, view_index;
    struct kvf_error *error;
};

static enum kvf_status fail_view(const struct at *at, enum kvf_status status, const char *what, int64_t value)
{
    return kvfi_fail(at->error, status, "layer group %zu view %zu: %s %" PRId64, at->group_index, at->view_index, what,
                     value);
}

static enum kvf_status check_pool(size_t group, size_t index, const struct kvf_trtllm_pool *pool,
                                  struct kvf_error *error)
{
    int64_t last, end;
    uint64_t address;

    if (pool->slot_bytes < 1 || pool->num_slots < 1)
        return kvfi_fail(error, KVF_ERR_LAYOUT, "pool group %zu pool %zu: %" PRId64 " slots of %" PRId64
                         " bytes, expected at least one of each", group, index, pool->num_slots, pool->slot_bytes);
    if (pool->slot_stride_bytes < pool->slot_bytes)
        return kvfi_fail(error, KVF_ERR_LAYOUT, "pool group %zu pool %zu: slot_stride_bytes must be greater than or "
                         "equal to slot_bytes, found %" PRId64 " and %" PRId64, group, index, pool->slot_stride_bytes,
                         pool->slot_bytes);
    if (pool->layer_stride_bytes != KVF_TRTLLM_NONE && pool->layer_stride_bytes < 0)
        return kvfi_fail(error, KVF_ERR_LAYOUT, "pool group %zu pool %zu: layer_stride_bytes is %" PRId64, group,
                         index, pool->layer_stride_bytes);
    if (!kvfi_mul_i64(pool->num_slots - 1, pool->slot_stride_bytes, &last) ||
        !kvfi_add_i64(last, pool->slot_bytes, &end) ||
        __builtin_add_overflow(pool->base_address, (uint64_t)end, &address))
        return kvfi_fail(error, KVF_ERR_OVERFLOW, "pool group %zu pool %zu: %" PRId64 " slots, %" PRId64
                         " bytes apart, from address 0x%" PRIx64 " end past 64 bits", group, index, pool->num_slots,
                         pool->slot_stride_bytes, pool->base_address);
    return KVF_OK;
}

static bool kind_fits(int64_t cache, int64_t mapper)
{
    if (mapper == KVF_TRTLLM_INDEXED || mapper == KVF_TRTLLM_REPLICATED) return true;
    return mapper == (cache == KVF_TRTLLM_PAGED ? KVF_TRTLLM_NHD : KVF_TRTLLM_SECTIONED);
}

static enum kvf_status check_roles(const struct at *at)
{
    for (size_t i = 0; i < at->view->role_count; i++) {
        const char *role = at->view->roles[i];

        if (!kvfi_text_is_clean(role, strlen(role)))
            return fail_view(at, KVF_ERR_LAYOUT, "not UTF-8 without control characters: role", (int64_t)i);
        if (i > 0 && strcmp(at->view->roles[i - 1], role) == 0)
            return kvfi_fail(at->error, KVF_ERR_LAYOUT, "layer group %zu view %zu: role \"%.64s\" is there twice",
                             at->group_index, at->view_index, role);
    }
    return KVF_OK;
}

/* Sizes of a rank are multiplied by the ranks that share it; that must fit. */
static bool fits_all_ranks(const struct at *at, int64_t bytes)
{
    const struct kvf_trtllm_rank_spec *spec = &at->rank->spec;
    int64_t product;

    return bytes == KVF_TRTLLM_NONE || kvfi_mul_i64(bytes, spec->tp_size * spec->cp_size, &product);
}

static enum kvf_status check_sizes(const struct at *at)
{
    const struct kvf_trtllm_view *view = at->view;

    if (view->bytes_per_layer != KVF_TRTLLM_NONE && view->bytes_per_layer < 0)
        return fail_view(at, KVF_ERR_LAYOUT, "bytes_per_layer is", view->bytes_per_layer);
    if (view->bytes_per_head != KVF_TRTLLM_NONE && view->bytes_per_head < 1)
        return fail_view(at, KVF_ERR_LAYOUT, "bytes_per_head is", view->bytes_per_head);
    if (view->ring_slot_bytes != KVF_TRTLLM_NONE && view->ring_slot_bytes < 1)
        return fail_view(at, KVF_ERR_LAYOUT, "ring_slot_bytes is", view->ring_slot_bytes);
    if (!fits_all_ranks(at, view->bytes_per_layer))
        return fail_view(at, KVF_ERR_OVERFLOW, "does not fit in 63 bits over all ranks: bytes_per_layer",
                         view->bytes_per_layer);
    if (!fits_all_ranks(at, view->num_kv_heads))
        return fail_view(at, KVF_ERR_OVERFLOW, "does not fit in 63 bits over all ranks: num_kv_heads",
                         view->num_kv_heads);
    for (size_t i = 0; i < view->section_count; i++) {
        if (view->section_bytes[i] < 0)
            return fail_view(at, KVF_ERR_LAYOUT, "a section's size is", view->section_bytes[i]);
        if (!fits_all_ranks(at, view->section_bytes[i]))
            return fail_view(at, KVF_ERR_OVERFLOW, "does not fit in 63 bits over all ranks: a section of",
                             view->section_bytes[i]);
    }
    return KVF_OK;
}

/* Entries may lie past their slot: layer-major pools hold the layers outside it. */
static enum kvf_status check_entries(const struct at *at)
{
    const struct kvf_trtllm_pool *pool = kvfi_trt_view_pool(at->rank, at->group, at->view);
    int64_t total = 0, furthest = 0, reach, sum;
    uint64_t address;

    for (size_t i = 0; i < at->view->entry_count; i++) {
        const struct kvf_trtllm_entry *entry = &at->view->entries[i];

        if (!kvfi_trt_layers_have(&at->layers, at->group_index, entry->local_layer))
            return fail_view(at, KVF_ERR_LAYOUT, "an entry is of a layer that its group does not list: local layer",
                             entry->local_layer);
        if (entry->offset_bytes < 0)
            return fail_view(at, KVF_ERR_LAYOUT, "an entry's offset is", entry->offset_bytes);
        if (entry->size_bytes < 1) return fail_view(at, KVF_ERR_LAYOUT, "an entry's size is", entry->size_bytes);
        if (!kvfi_add_i64(entry->offset_bytes, entry->size_bytes, &sum) ||
            !kvfi_add_i64(total, entry->size_bytes, &total))
            return fail_view(at, KVF_ERR_OVERFLOW, "does not fit in 63 bits: the end of the entry at offset",
                             entry->offset_bytes);
        if (sum > furthest) furthest = sum;
    }
    if (!kvfi_mad_i64(pool->num_slots - 1, pool->slot_stride_bytes, furthest, &reach) ||
        __builtin_add_overflow(pool->base_address, (uint64_t)reach, &address))
        return fail_view(at, KVF_ERR_OVERFLOW, "ends past 64 bits in the pool's last slot: an entry up to byte",
                         furthest);
    if (!fits_all_ranks(at, total))
        return fail_view(at, KVF_ERR_OVERFLOW, "does not fit in 63 bits over all ranks: entries of", total);
    return KVF_OK;
}

static enum kvf_status check_view(const struct at *at)
{
    const struct kvf_trtllm_pool_group *pools = &at->rank->spec.page_table->pool_groups[at->group->pool_group];
    enum kvf_status status = KVF_OK;

    if (at->view->pool < 0 || (uint64_t)at->view->pool >= pools->pool_count)
        status = kvfi_fail(at->error, KVF_ERR_LAYOUT, "layer group %zu view %zu: pool %" PRId64 " of %zu in pool group "
                           "%" PRId64, at->group_index, at->view_index, at->view->pool, pools->pool_count,
                           at->group->pool_group);
    else if (!kind_fits(at->group->cache, at->view->mapper))
        status = fail_view(at, KVF_ERR_LAYOUT, at->group->cache == KVF_TRTLLM_PAGED
                           ? "a paged group allows mapper kinds 0, 1 and 2, found"
                           : "a state group allows mapper kinds 0, 1 and 3, found", at->view->mapper);
    if (status == KVF_OK) status = check_roles(at);
    if (status == KVF_OK) status = check_sizes(at);
    if (status == KVF_OK) status = check_entries(at);
    return status;
}

static enum kvf_status check_group(struct at *at)
{
    const struct kvf_trtllm_group *group = at->group;
    size_t pool_groups = at->rank->spec.page_table->pool_group_count;

    if (group->cache != KVF_TRTLLM_PAGED && group->cache != KVF_TRTLLM_STATE)
        return kvfi_fail(at->error, KVF_ERR_LAYOUT, "layer group %zu: cache kind %" PRId64 ", expected 0 (paged) or 1 "
                         "(state)", at->group_index, group->cache);
    if (group->pool_group < 0 || (uint64_t)group->pool_group >= pool_groups)
        return kvfi_fail(at->error, KVF_ERR_LAYOUT, "layer group %zu: pool group %" PRId64 " of %zu", at->group_index,
                         group->pool_group, pool_groups);
    if (group->sliding_window_size != KVF_TRTLLM_NONE && group->sliding_window_size < 1)
        return kvfi_fail(at->error, KVF_ERR_LAYOUT, "layer group %zu: sliding_window_size is %" PRId64
                         " tokens, expected at least 1", at->group_index, group->sliding_window_size);
    if (group->slot_major_layout != KVF_TRTLLM_NONE && (group->slot_major_layout < 0 || group->slot_major_layout > 1))
        return kvfi_fail(at->error, KVF_ERR_LAYOUT, "layer group %zu: slot_major_layout is %" PRId64
                         ", expected 0 or 1", at->group_index, group->slot_major_layout);
    for (size_t i = 0; i < group->layer_count; i++) {
        if (group->layers[i].local_layer < 0 || group->layers[i].global_layer < 0)
            return kvfi_fail(at->error, KVF_ERR_LAYOUT, "layer group %zu layer %zu: local %" PRId64 " and global %"
                             PRId64 ", expected neither below 0", at->group_index, i, group->layers[i].local_layer,
                             group->layers[i].global_layer);
    }
    return KVF_OK;
}

enum kvf_status kvfi_trt_table_check(const struct kvf_trtllm_rank *rank, struct kvf_error *error)
{
    const struct kvf_trtllm_page_table *table = rank->spec.page_table;
    struct at at = {.rank = rank, .error = error};
    enum kvf_status status = KVF_OK;

    if (!table) goto done;
    if (table->tokens_per_block < 1) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT, "page table: tokens_per_block is %" PRId64 ", expected at least 1",
                           table->tokens_per_block);
        goto done;
    }
    status = kvfi_trt_layers_init(&at.layers, table, error);
    for (size_t g = 0; g < table->pool_group_count && status == KVF_OK; g++) {
        for (size_t p = 0; p < table->pool_groups[g].pool_count && status == KVF_OK; p++)
            status = check_pool(g, p, &table->pool_groups[g].pools[p], error);
    }
    for (at.group_index = 0; at.group_index < table->group_count && status == KVF_OK; at.group_index++) {
        at.group = &table->groups[at.group_index];
        status = check_group(&at);
        for (at.view_index = 0; at.view_index < at.group->view_count && status == KVF_OK; at.view_index++) {
            at.view = &at.group->views[at.view_index];
            status = check_view(&at);
        }
    }
done:
    kvfi_trt_layers_fini(&at.layers);
    return status;
}
