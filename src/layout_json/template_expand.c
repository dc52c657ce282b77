/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "layout/layout.h"
#include "layout_json/template.h"

/* One place of one view rule while pools are being packed. */
struct entry {
    int64_t pool; /* as listed */
    int64_t layer;
    size_t view;
    struct kvf_place *place;
};

/* What a view rule is on this rank. */
struct local_view {
    int64_t unit_first, unit_count;
    int64_t unit_stride, entry_stride, chunk_stride;
    int64_t extent; /* from its first byte to behind its last */
    struct kvf_place *places;
    size_t place_count;
};

struct expansion {
    const struct kvfi_template *template;
    const struct kvfi_grid *grid;
    const struct kvf_rank *rank;
    struct kvf_error *error;
    struct local_view *locals; /* one per view rule */
    struct entry *entries;
    size_t entry_count;
    struct kvf_place *places; /* of all views, chunks included */
    size_t place_count;
    struct kvf_pool *pools;
    size_t pool_count, pool_capacity;
    int64_t *payloads; /* bytes in use per slot, beside pools */
    size_t payload_capacity;
    int64_t *memories; /* beside pools, when each is a memory of its own */
    struct kvf_group *groups;
    struct kvf_view *views;
    size_t view_count;
};

static enum kvf_status fail_overflow(const struct expansion *x, const char *object, size_t index)
{
    return kvfi_fail(x->error, KVF_ERR_OVERFLOW, "%s[%zu]: its sizes do not fit in 64 bits", object, index);
}

/* ---- what a view is on this rank -------------------------------------------------------------------------------- */

static void cut_units(const struct kvfi_units_rule *rule, const struct kvfi_grid *grid, int64_t tp,
                      struct local_view *out)
{
    switch (rule->kind) {
    case KVFI_UNITS_SPLIT_TP:
        /* The product is small: it is only made where there are fewer units than ranks. */
        out->unit_count = rule->total >= grid->tp ? rule->total / grid->tp : 1;
        out->unit_first = rule->total >= grid->tp ? tp * out->unit_count : tp * rule->total / grid->tp;
        break;
    case KVFI_UNITS_BOUNDS_TP:
        out->unit_first = rule->bounds[tp];
        out->unit_count = rule->bounds[tp + 1] - rule->bounds[tp];
        break;
    default:
        out->unit_first = rule->first;
        out->unit_count = rule->count;
        break;
    }
}

static void cut_layers(const struct kvfi_layers_rule *rule, const struct kvfi_grid *grid, int64_t pp, int64_t *first,
                       int64_t *count)
{
    int64_t share = rule->count / grid->pp, more = rule->count % grid->pp;

    *first = rule->first;
    *count = rule->count;
    if (rule->kind == KVFI_LAYERS_SPLIT_PP) {
        *first = rule->first + pp * share + (pp < more ? pp : more);
        *count = share + (pp < more);
    } else if (rule->kind == KVFI_LAYERS_BOUNDS_PP) {
        *first = rule->list[pp];
        *count = rule->list[pp + 1] - rule->list[pp];
    } else if (rule->kind == KVFI_LAYERS_LIST) {
        *count = (int64_t)rule->list_count;
    }
}

/* Dense strides of an order, and how far the view reaches. */
static bool measure(const struct kvfi_view_rule *rule, struct local_view *out)
{
    int64_t bytes = rule->chunk_bytes;
    bool ok = true;

    if (rule->order == KVFI_ORDER_HEADS_FIRST) {
        out->entry_stride = bytes;
        ok = kvfi_mul_i64(bytes, rule->entries, &out->chunk_stride) &&
             kvfi_mul_i64(out->chunk_stride, rule->chunks, &out->unit_stride);
    } else if (rule->order == KVFI_ORDER_TOKENS_FIRST) {
        out->unit_stride = bytes;
        ok = kvfi_mul_i64(bytes, out->unit_count, &out->entry_stride);
    } else {
        out->unit_stride = rule->unit_stride;
        out->entry_stride = rule->entry_stride;
        out->chunk_stride = rule->chunk_stride;
    }
    return ok && kvfi_mad_i64(rule->chunks - 1, out->chunk_stride, bytes, &out->extent) &&
           kvfi_mad_i64(rule->entries - 1, out->entry_stride, out->extent, &out->extent) &&
           kvfi_mad_i64(out->unit_count - 1, out->unit_stride, out->extent, &out->extent);
}

static int64_t count_places(const struct expansion *x, const struct kvfi_view_rule *rule)
{
    int64_t first, count = 0;

    if (rule->places) {
        for (size_t i = 0; i < rule->places_count && count <= KVF_LAYOUT_MAX_PLACES; i++) {
            count += rule->places[i].count;
        }
    } else {
        cut_layers(&rule->layers, x->grid, x->rank->pp, &first, &count);
    }
    return count;
}

/* Sizes everything, so that the counts are bounded before the arrays are made. */
static enum kvf_status measure_views(struct expansion *x, struct kvfi_budget *left)
{
    enum kvf_status status = KVF_OK;
    const struct kvfi_template *template = x->template;

    x->locals = kvfi_alloc_zeroed(template->view_count, sizeof *x->locals);
    if (!x->locals) {
        status = kvfi_fail_memory(x->error, "layout");
        goto done;
    }
    for (size_t i = 0; i < template->view_count; i++) {
        const struct kvfi_view_rule *rule = &template->views[i];
        struct local_view *local = &x->locals[i];
        int64_t count = count_places(x, rule), all;

        cut_units(&rule->units, x->grid, x->rank->tp, local);
        if (!measure(rule, local) || !kvfi_mul_i64(count, rule->chunks, &all)) {
            status = fail_overflow(x, "views", i);
            goto done;
        }
        if (all > left->places || all > (int64_t)(KVF_LAYOUT_MAX_PLACES - x->place_count)) {
            status = kvfi_fail(x->error, KVF_ERR_LIMIT,
                               "views[%zu]: too many layers in all views and ranks, at most %d", i,
                               KVF_LAYOUT_MAX_PLACES);
            goto done;
        }
        if (count > 0) x->view_count += (size_t)rule->chunks;
        if (x->view_count > KVF_LAYOUT_MAX_VIEWS) {
            status = kvfi_fail(x->error, KVF_ERR_LIMIT, "views[%zu]: more than %d views with their chunks", i,
                               KVF_LAYOUT_MAX_VIEWS);
            goto done;
        }
        local->place_count = (size_t)count;
        x->entry_count += (size_t)count;
        x->place_count += (size_t)all;
        left->places -= all;
    }
done:
    return status;
}

/* ---- places and pools ------------------------------------------------------------------------------------------- */

static void fill_listed(struct expansion *x, size_t view, struct entry *entry, struct kvf_place *place)
{
    const struct kvfi_view_rule *rule = &x->template->views[view];

    for (size_t i = 0; i < rule->places_count; i++) {
        const struct kvfi_places_rule *run = &rule->places[i];

        for (int64_t j = 0; j < run->count; j++, entry++, place++) {
            *place = (struct kvf_place){.layer = run->first + j * run->layer_step,
                                        .offset_bytes = run->offset + j * run->offset_step};
            *entry = (struct entry){run->pool + j * run->pool_step, place->layer, view, place};
        }
    }
}

static bool fill_layers(struct expansion *x, size_t view, struct entry *entry, struct kvf_place *place)
{
    const struct kvfi_view_rule *rule = &x->template->views[view];
    int64_t first, count;
    bool ok = true;

    cut_layers(&rule->layers, x->grid, x->rank->pp, &first, &count);
    for (int64_t j = 0; j < count && ok; j++, entry++, place++) {
        place->layer = rule->layers.kind == KVFI_LAYERS_LIST ? rule->layers.list[j] : first + j;
        if (rule->offset != KVFI_DERIVED) {
            ok = kvfi_mad_i64(j, rule->offset_step, rule->offset, &place->offset_bytes);
        }
        *entry = (struct entry){rule->pool, place->layer, view, place};
    }
    return ok;
}

static int by_pool_layer_view(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    int order = (a->pool > b->pool) - (a->pool < b->pool);

    if (order == 0) order = (a->layer > b->layer) - (a->layer < b->layer);
    if (order == 0) order = (a->view > b->view) - (a->view < b->view);
    if (order == 0) order = (a->place > b->place) - (a->place < b->place);
    return order;
}

static enum kvf_status fill_places(struct expansion *x)
{
    enum kvf_status status = KVF_OK;
    struct entry *entry;
    struct kvf_place *place;

    x->entries = kvfi_alloc_zeroed(x->entry_count, sizeof *x->entries);
    x->places = kvfi_alloc_zeroed(x->place_count, sizeof *x->places);
    if (!x->entries || !x->places) {
        status = kvfi_fail_memory(x->error, "layout");
        goto done;
    }
    entry = x->entries;
    place = x->places;
    for (size_t i = 0; i < x->template->view_count; i++) {
        struct local_view *local = &x->locals[i];

        local->places = place;
        if (x->template->views[i].places) {
            fill_listed(x, i, entry, place);
        } else if (!fill_layers(x, i, entry, place)) {
            status = fail_overflow(x, "views", i);
            goto done;
        }
        entry += local->place_count;
        place += local->place_count * (size_t)x->template->views[i].chunks;
    }
    qsort(x->entries, x->entry_count, sizeof *x->entries, by_pool_layer_view);
done:
    return status;
}

static enum kvf_status open_pool(struct expansion *x, size_t listed)
{
    const struct kvfi_pool_rule *rule = &x->template->pools[listed];
    enum kvf_status status = KVF_OK;

    if (x->pool_count >= KVF_LAYOUT_MAX_POOLS) {
        status = kvfi_fail(x->error, KVF_ERR_LIMIT, "pools[%zu]: more than %d pools with those per layer", listed,
                           KVF_LAYOUT_MAX_POOLS);
        goto done;
    }
    if (!kvfi_array_grow((void **)&x->pools, x->pool_count, &x->pool_capacity, sizeof *x->pools) ||
        !kvfi_array_grow((void **)&x->payloads, x->pool_count, &x->payload_capacity, sizeof *x->payloads)) {
        status = kvfi_fail_memory(x->error, "layout");
        goto done;
    }
    x->pools[x->pool_count] = (struct kvf_pool){
        .memory = x->template->memory_per_pool ? (int64_t)x->pool_count : rule->memory,
        .base_offset_bytes = rule->base_offset,
        .slot_stride_bytes = rule->slot_stride,
        .slots = rule->slots,
    };
    x->payloads[x->pool_count++] = 0;
done:
    return status;
}

/* Puts the place behind what its pool holds, if it is packed, and notes how far the slot is used. */
static bool put_in_pool(struct expansion *x, const struct entry *entry)
{
    const struct kvfi_view_rule *rule = &x->template->views[entry->view];
    int64_t *payload = &x->payloads[x->pool_count - 1], end;
    bool ok;

    entry->place->pool = (int64_t)x->pool_count - 1;
    if (!rule->places && rule->offset == KVFI_DERIVED) entry->place->offset_bytes = *payload;
    ok = kvfi_add_i64(entry->place->offset_bytes, x->locals[entry->view].extent, &end);
    if (ok && end > *payload) *payload = end;
    return ok;
}

/* Gives each listed pool its real ones: itself, or one per layer that lies in it. A pool that nothing lies in is kept
 * when the file says its stride. */
static enum kvf_status make_pools(struct expansion *x)
{
    enum kvf_status status = KVF_OK;
    size_t next = 0;

    for (size_t listed = 0; listed < x->template->pool_count; listed++) {
        const struct kvfi_pool_rule *rule = &x->template->pools[listed];
        bool open = false;

        if (!rule->per_layer && rule->slot_stride != KVFI_DERIVED) {
            status = open_pool(x, listed);
            open = true;
        }
        for (; status == KVF_OK && next < x->entry_count && x->entries[next].pool == (int64_t)listed; next++) {
            const struct entry *entry = &x->entries[next];

            if (!open || (rule->per_layer && entry->layer != entry[-1].layer)) status = open_pool(x, listed);
            open = true;
            if (status == KVF_OK && !put_in_pool(x, entry)) status = fail_overflow(x, "views", entry->view);
        }
        if (status != KVF_OK) goto done;
        for (size_t i = x->pool_count; open && i > 0 && x->pools[i - 1].slot_stride_bytes == KVFI_DERIVED; i--) {
            if (!kvfi_add_i64(x->payloads[i - 1], rule->slot_padding, &x->pools[i - 1].slot_stride_bytes)) {
                status = fail_overflow(x, "pools", listed);
                goto done;
            }
        }
    }
done:
    return status;
}

/* Every rank has its own copy of these, whether anything lies in them or not. */
static enum kvf_status count_pools(const struct expansion *x, struct kvfi_budget *left)
{
    enum kvf_status status = KVF_OK;

    left->pools -= (int64_t)(x->pool_count + x->template->memory_count + x->template->group_count);
    if (left->pools < 0) {
        status = kvfi_fail(x->error, KVF_ERR_LIMIT, "too many pools, memories and groups in all ranks, at most %d",
                           KVFI_MAX_INSTANCE_POOLS);
    }
    return status;
}

static enum kvf_status make_memories(struct expansion *x)
{
    enum kvf_status status = KVF_OK;

    x->memories = kvfi_alloc_zeroed(x->pool_count, sizeof *x->memories);
    if (!x->memories) {
        status = kvfi_fail_memory(x->error, "layout");
        goto done;
    }
    for (size_t i = 0; i < x->pool_count; i++) {
        if (!kvfi_mul_i64(x->pools[i].slots, x->pools[i].slot_stride_bytes, &x->memories[i])) {
            status = kvfi_fail(x->error, KVF_ERR_OVERFLOW,
                               "pool %zu: %" PRId64 " slots of %" PRId64 " bytes do not fit in 64 bits", i,
                               x->pools[i].slots, x->pools[i].slot_stride_bytes);
            goto done;
        }
    }
done:
    return status;
}

/* ---- groups and views ------------------------------------------------------------------------------------------- */

static void fill_groups(struct expansion *x)
{
    for (size_t i = 0; i < x->template->group_count; i++) {
        const struct kvfi_group_rule *rule = &x->template->groups[i];

        x->groups[i] = rule->group;
        if (!rule->striped_by_cp) continue;
        x->groups[i].stripes = x->grid->cp;
        x->groups[i].stripe = x->rank->cp;
        if (x->grid->cp == 1) x->groups[i].stripe_tokens = 0;
    }
}

/* One view per chunk: the first one's places, further on. */
static bool fill_chunks(const struct kvfi_view_rule *rule, const struct local_view *local, struct kvf_view *views)
{
    bool ok = true;

    for (int64_t c = 0; c < rule->chunks && ok; c++) {
        struct kvf_place *places = local->places + (size_t)c * local->place_count;

        views[c] = (struct kvf_view){
            .role = rule->role, .tag = rule->tag, .group = rule->group, .row_bytes = rule->row_bytes,
            .byte_first = rule->byte_first + c * rule->chunk_bytes, .byte_count = rule->chunk_bytes,
            .unit_total = rule->units.total, .unit_first = local->unit_first, .unit_count = local->unit_count,
            .unit_stride_bytes = local->unit_stride, .entry_stride_bytes = local->entry_stride,
            .entries = rule->entries, .slots_per_block = rule->slots_per_block, .flags = rule->flags,
            .places = places, .place_count = local->place_count};
        for (size_t i = 0; c > 0 && i < local->place_count && ok; i++) {
            places[i] = local->places[i];
            ok = kvfi_mad_i64(c, local->chunk_stride, local->places[i].offset_bytes, &places[i].offset_bytes);
        }
    }
    return ok;
}

static enum kvf_status make_views(struct expansion *x)
{
    enum kvf_status status = KVF_OK;
    size_t used = 0;

    x->groups = kvfi_alloc_zeroed(x->template->group_count, sizeof *x->groups);
    x->views = kvfi_alloc_zeroed(x->view_count, sizeof *x->views);
    if (!x->groups || !x->views) {
        status = kvfi_fail_memory(x->error, "layout");
        goto done;
    }
    fill_groups(x);
    for (size_t i = 0; i < x->template->view_count; i++) {
        const struct kvfi_view_rule *rule = &x->template->views[i];

        if (x->locals[i].place_count == 0) continue; /* no layer of it on this rank's stage */
        if (!fill_chunks(rule, &x->locals[i], x->views + used)) {
            status = fail_overflow(x, "views", i);
            goto done;
        }
        used += (size_t)rule->chunks;
    }
done:
    return status;
}

/* The check of a layout whose rows lie apart costs some time for each of them: not for every rank of a large grid. */
static enum kvf_status create(const struct kvf_layout_spec *spec, struct kvfi_budget *left, kvf_layout **out,
                              struct kvf_error *error)
{
    int64_t runs = 0;
    enum kvf_status status;

    if (left->runs < 0) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "too many separate runs in the slots of all ranks, at most %d",
                           KVFI_MAX_INSTANCE_RUNS);
        goto done;
    }
    status = kvfi_layout_create_counted(spec, out, &runs, error);
    left->runs -= runs;
done:
    return status;
}

enum kvf_status kvfi_template_expand(const struct kvfi_template *template, const struct kvfi_grid *grid,
                                     const struct kvf_rank *rank, struct kvfi_budget *left, kvf_layout **out,
                                     struct kvf_error *error)
{
    struct expansion x = {.template = template, .grid = grid, .rank = rank, .error = error};
    struct kvf_layout_spec spec;
    enum kvf_status status = measure_views(&x, left);

    if (status == KVF_OK) status = fill_places(&x);
    if (status == KVF_OK) status = make_pools(&x);
    if (status == KVF_OK) status = count_pools(&x, left);
    if (status == KVF_OK && template->memory_per_pool) status = make_memories(&x);
    if (status == KVF_OK) status = make_views(&x);
    if (status != KVF_OK) goto done;
    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = template->memory_per_pool ? x.memories : template->memories;
    spec.memory_count = template->memory_per_pool ? x.pool_count : template->memory_count;
    spec.pools = x.pools;
    spec.pool_count = x.pool_count;
    spec.groups = x.groups;
    spec.group_count = template->group_count;
    spec.views = x.views;
    spec.view_count = x.view_count;
    status = create(&spec, left, out, error);
done:
    free(x.views);
    free(x.groups);
    free(x.memories);
    free(x.payloads);
    free(x.pools);
    free(x.places);
    free(x.entries);
    free(x.locals);
    return status;
}
