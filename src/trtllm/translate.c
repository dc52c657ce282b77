/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/translate.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "plan/plan.h"
#include "plan/share.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kvf_status kvfi_trt_side_init(struct kvfi_trt_side *side, const char *name,
                                   const struct kvf_trtllm_page_table *table, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t pool = 0;

    *side = (struct kvfi_trt_side){.name = name, .table = table};
    for (size_t i = 0; i < table->pool_group_count; i++) side->pool_count += table->pool_groups[i].pool_count;
    side->first_pool = kvfi_alloc_array(table->pool_group_count, sizeof *side->first_pool);
    side->pools = kvfi_alloc_array(side->pool_count, sizeof *side->pools);
    side->memory_bytes = kvfi_alloc_array(side->pool_count, sizeof *side->memory_bytes);
    if (!side->first_pool || !side->pools || !side->memory_bytes) {
        status = kvfi_fail_memory(error, "the pools of a page table");
        goto done;
    }
    for (size_t i = 0; i < table->pool_group_count; i++) {
        side->first_pool[i] = pool;
        for (size_t j = 0; j < table->pool_groups[i].pool_count; j++, pool++) {
            const struct kvf_trtllm_pool *from = &table->pool_groups[i].pools[j];

            /* a pool that nothing can be in is told when a view is in it */
            side->pools[pool] = (struct kvf_pool){
                .memory = (int64_t)pool, .slot_stride_bytes = from->slot_stride_bytes > 0 ? from->slot_stride_bytes : 1,
                .slots = from->num_slots > 0 ? from->num_slots : 1};
            side->memory_bytes[pool] = -1;
        }
    }
done:
    return status;
}

void kvfi_trt_side_fini(struct kvfi_trt_side *side)
{
    for (size_t i = 0; i < side->view_count; i++) free((void *)side->views[i].places);
    free(side->keys);
    free(side->views);
    free(side->groups);
    free(side->memory_bytes);
    free(side->pools);
    free(side->first_pool);
    *side = (struct kvfi_trt_side){0};
}

enum kvf_status kvfi_trt_side_group(struct kvfi_trt_side *side, const struct kvf_group *group,
                                    struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (kvfi_array_grow((void **)&side->groups, side->group_count, &side->group_capacity, sizeof *side->groups))
        side->groups[side->group_count++] = *group;
    else
        status = kvfi_fail_memory(error, "the groups of a page table");
    return status;
}

enum kvf_status kvfi_trt_side_groups(struct kvfi_trt_side *side, int64_t tokens_per_block, int64_t stripes,
                                     int64_t stripe, struct kvf_error *error)
{
    struct kvf_group paged = {.tokens_per_block = tokens_per_block, .stripes = 1}, state = {.stripes = 1};
    enum kvf_status status = KVF_OK;

    if (stripes > 1) {
        paged.stripes = stripes;
        paged.stripe = stripe;
        paged.stripe_tokens = tokens_per_block;
    }
    for (size_t i = 0; i < side->table->group_count && status == KVF_OK; i++) {
        bool is_state = side->table->groups[i].cache == KVF_TRTLLM_STATE;

        status = kvfi_trt_side_group(side, is_state ? &state : &paged, error);
    }
    return status;
}

/** Makes one block of a view's places, role and tag, and fills it. */
static enum kvf_status own_places(struct kvf_view *view, int64_t pool, int64_t offset_bytes,
                                  const struct kvfi_trt_spot *spots, size_t spot_count, struct kvf_error *error)
{
    size_t role_bytes = strlen(view->role) + 1, tag_bytes = strlen(view->tag) + 1, places_bytes, bytes;
    enum kvf_status status = KVF_OK;
    struct kvf_place *places = NULL;

    if (kvfi_mul_size(spot_count, sizeof *places, &places_bytes) &&
        kvfi_add_size(places_bytes, role_bytes + tag_bytes, &bytes))
        places = kvfi_alloc_array(1, bytes);
    if (!places) {
        status = kvfi_fail_memory(error, "the places of a view");
        goto done;
    }
    view->role = memcpy((char *)places + places_bytes, view->role, role_bytes);
    view->tag = memcpy((char *)places + places_bytes + role_bytes, view->tag, tag_bytes);
    view->places = places;
    view->place_count = spot_count;
    for (size_t i = 0; i < spot_count && status == KVF_OK; i++) {
        places[i] = (struct kvf_place){.layer = spots[i].layer, .pool = pool};
        if (!kvfi_add_i64(spots[i].start_bytes, offset_bytes, &places[i].offset_bytes))
            status = kvfi_fail(error, KVF_ERR_OVERFLOW, "%s layer %" PRId64 ": an offset does not fit", view->role,
                               spots[i].layer);
    }
    if (status != KVF_OK) free(places);
done:
    return status;
}

enum kvf_status kvfi_trt_side_part(struct kvfi_trt_side *side, const struct kvf_view *model,
                                   const struct kvfi_trt_view *view, int64_t offset_bytes,
                                   const struct kvfi_trt_spot *spots, size_t spot_count, struct kvf_error *error)
{
    struct kvf_view own = *model;
    enum kvf_status status;
    size_t pool;

    if (!view->pool || view->pool->num_slots < 1 || view->pool->slot_stride_bytes < 1) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s: group %" PRId64 " view %" PRId64 ": its pool has no slots",
                           side->name, view->key.group, view->key.view);
        goto done;
    }
    pool = side->first_pool[view->group->pool_group] + (size_t)view->spec->pool;
    if (!kvfi_array_grow((void **)&side->views, side->view_count, &side->view_capacity, sizeof *side->views) ||
        !kvfi_array_grow((void **)&side->keys, side->view_count, &side->key_capacity, sizeof *side->keys)) {
        status = kvfi_fail_memory(error, "the views of a page table");
        goto done;
    }
    status = own_places(&own, (int64_t)pool, offset_bytes, spots, spot_count, error);
    if (status != KVF_OK) goto done;
    side->keys[side->view_count] = view->key;
    side->views[side->view_count++] = own;
done:
    return status;
}

enum kvf_status kvfi_trt_side_layout(const struct kvfi_trt_side *side, kvf_layout **out, struct kvf_error *error)
{
    struct kvf_layout_spec spec;
    struct kvf_error own = {0};
    enum kvf_status status;

    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = side->memory_bytes;
    spec.memory_count = side->pool_count;
    spec.pools = side->pools;
    spec.pool_count = side->pool_count;
    spec.groups = side->groups;
    spec.group_count = side->group_count;
    spec.views = side->views;
    spec.view_count = side->view_count;
    status = kvf_layout_create(&spec, out, &own);
    if (status == KVF_ERR_LAYOUT) status = KVF_ERR_INCOMPATIBLE;
    if (status != KVF_OK) status = kvfi_fail(error, status, "%s's page table: %s", side->name, own.text);
    return status;
}

const char *kvfi_trt_role_name(const struct kvfi_trt_view *view, size_t number, int64_t part,
                               char text[KVFI_TRT_ROLE_BYTES])
{
    const size_t longest = KVFI_TRT_ROLE_BYTES - 48; /* room for the two numbers */
    size_t at = 0;

    for (size_t i = 0; i < view->spec->role_count; i++) {
        if (i > 0 && at < longest) text[at++] = '+';
        for (const char *c = view->roles[i]; *c && at < longest; c++) text[at++] = *c > ' ' && *c < 0x7f ? *c : '?';
    }
    if (part < 0) snprintf(text + at, KVFI_TRT_ROLE_BYTES - at, "#%zu", number);
    else snprintf(text + at, KVFI_TRT_ROLE_BYTES - at, "#%zu/%" PRId64, number, part);
    return text;
}

enum kvf_status kvfi_trt_pair_finish(kvf_trtllm_pair *pair, struct kvfi_trt_side *src_side, const kvf_layout *src,
                                     const kvf_layout *dst, struct kvf_error *error)
{
    enum kvf_status status = kvf_plan_create(src, dst, pair->share, NULL, &pair->plan, error);

    if (status == KVF_OK) {
        pair->part_keys = src_side->keys;
        pair->part_count = src_side->view_count;
        src_side->keys = NULL;
    }
    return status;
}

/** Adds the cells of one part: its layers whole, or what the pair's share has of them. */
static void add_cells(const kvf_trtllm_pair *pair, const struct kvf_view *view, struct kvf_cell *cells, size_t *count)
{
    for (size_t i = 0; i < view->place_count; i++) {
        struct kvf_cell whole = {.role = view->role, .layer = view->places[i].layer, .unit_first = view->unit_first,
                                 .unit_count = view->unit_count, .byte_first = view->byte_first,
                                 .byte_count = view->byte_count};
        const struct kvf_cell *from = &whole;
        size_t found = 1;

        if (pair->share) from = kvfi_share_find(pair->share, view->role, whole.layer, &found);
        for (size_t j = 0; j < found; j++) {
            if (cells) cells[*count] = from[j];
            (*count)++;
        }
    }
}

enum kvf_status kvfi_trt_subplan(const kvf_trtllm_pair *pair, const bool *parts, kvf_plan **out,
                                 struct kvf_error *error)
{
    const struct kvf_layout_spec *spec = pair->plan ? kvf_layout_get_spec(pair->plan->src) : NULL;
    struct kvf_cell *cells = NULL;
    struct kvf_share *share = NULL;
    enum kvf_status status = KVF_OK;
    size_t count = 0;

    *out = NULL;
    for (size_t i = 0; i < pair->part_count; i++)
        if (parts[i]) add_cells(pair, &spec->views[i], NULL, &count);
    if (count == 0) goto done;
    cells = kvfi_alloc_array(count, sizeof *cells);
    if (!cells) {
        status = kvfi_fail_memory(error, "a part of a plan");
        goto done;
    }
    count = 0;
    for (size_t i = 0; i < pair->part_count; i++)
        if (parts[i]) add_cells(pair, &spec->views[i], cells, &count);
    status = kvfi_share_create(cells, count, &share, error);
    if (status == KVF_OK) status = kvf_plan_create(pair->plan->src, pair->plan->dst, share, NULL, out, error);
done:
    kvfi_share_destroy(share);
    free(cells);
    return status;
}
