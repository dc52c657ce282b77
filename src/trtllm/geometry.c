/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/geometry_spans.h"

#include "base/array.h"
#include "base/compare.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* A layer of a group by its local number. */
struct local {
    int64_t local_layer, global_layer;
};

/* What a build needs beside its result: sized for the largest view and group. */
struct scratch {
    struct kvfi_trt_span *spans;
    struct kvfi_trt_layer_spans *layers;
    struct local *locals;
    size_t local_count;
};

static int compare_locals(const void *a, const void *b)
{
    return kvfi_compare_i64(((const struct local *)a)->local_layer, ((const struct local *)b)->local_layer);
}

static int compare_hosted(const void *a, const void *b)
{
    const struct kvfi_trt_hosted *x = a, *y = b;
    int order = kvfi_compare_i64(x->global_layer, y->global_layer);

    return order ? order : kvfi_compare_i64(x->group, y->group);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int compare_layers(const void *a, const void *b)
{
    const struct kvfi_trt_layer_spans *x = a, *y = b;
    int order = kvfi_compare_i64(x->start, y->start);

    return order ? order : kvfi_compare_size(x->first, y->first);
}

/* Sorts unless it is in order already, as tables mostly are. */
static void sort_if_needed(void *items, size_t count, size_t bytes, int (*compare)(const void *, const void *))
{
    const char *at = items;

    for (size_t i = 1; i < count; i++) {
        if (compare(at + (i - 1) * bytes, at + i * bytes) > 0) {
            qsort(items, count, bytes, compare);
            break;
        }
    }
}

static bool valid_cache(int64_t cache)
{
    return cache == KVF_TRTLLM_PAGED || cache == KVF_TRTLLM_STATE;
}

/* FNV-1a over the sorted roles, each with its closing zero. */
static uint64_t hash_roles(const char *const *roles, size_t count)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < count; i++) {
        const unsigned char *text = (const unsigned char *)roles[i];

        do {
            hash = (hash ^ *text) * UINT64_C(0x100000001b3);
        } while (*text++);
    }
    return hash;
}

static bool fill_roles(struct kvfi_trt_view *view)
{
    size_t count = view->spec->role_count;

    view->roles = kvfi_alloc_array(count, sizeof *view->roles);
    if (view->roles) {
        for (size_t i = 0; i < count; i++) view->roles[i] = view->spec->roles[i];
        sort_if_needed(view->roles, count, sizeof *view->roles, compare_texts);
        view->role_hash = hash_roles(view->roles, count);
    }
    return view->roles != NULL;
}

/* The places of a view's layers, in physical order. Layers that the group does not list have no global number and are
 * left out. */
static bool fill_places(struct kvfi_trt_view *view, struct scratch *scratch, size_t layer_count)
{
    size_t count = 0;

    view->places = kvfi_alloc_array(layer_count, sizeof *view->places);
    view->by_global = kvfi_alloc_array(layer_count, sizeof *view->by_global);
    if (!view->places || !view->by_global) return false;
    sort_if_needed(scratch->layers, layer_count, sizeof *scratch->layers, compare_layers);
    for (size_t i = 0; i < layer_count; i++) {
        const struct kvfi_trt_layer_spans *layer = &scratch->layers[i];
        struct local key = {.local_layer = layer->local_layer};
        const struct local *found = bsearch(&key, scratch->locals, scratch->local_count, sizeof key, compare_locals);

        if (found) {
            view->places[count].global_layer = found->global_layer;
            view->places[count].local_layer = layer->local_layer;
            view->places[count].start_bytes = layer->start;
            count++;
        }
    }
    view->place_count = count;
    return true;
}

struct by_number {
    int64_t number;
    uint32_t index;
};

static int compare_numbers(const void *a, const void *b)
{
    const struct by_number *x = a, *y = b;
    int order = kvfi_compare_i64(x->number, y->number);

    return order ? order : kvfi_compare_size(x->index, y->index);
}

static bool index_places(struct kvfi_trt_view *view)
{
    struct by_number *order = kvfi_alloc_array(view->place_count, sizeof *order);

    if (!order) return false;
    for (size_t i = 0; i < view->place_count; i++) {
        order[i].number = view->places[i].global_layer;
        order[i].index = (uint32_t)i;
    }
    sort_if_needed(order, view->place_count, sizeof *order, compare_numbers);
    for (size_t i = 0; i < view->place_count; i++) view->by_global[i] = order[i].index;
    free(order);
    return true;
}

static bool fill_view(struct kvfi_trt_view *view, struct scratch *scratch)
{
    const struct kvf_trtllm_view *spec = view->spec;
    size_t layer_count = kvfi_trt_gather(spec, scratch->spans, scratch->layers);

    view->sound = kvfi_trt_spans_check(view, scratch->spans, scratch->layers, layer_count, NULL) == KVF_OK;
    view->layer_bytes = view->sound ? scratch->layers[0].total : 0;
    view->buffers = 1;
    if (layer_count > 0) {
        view->buffers = spec->entry_count % layer_count == 0 ? (int64_t)(spec->entry_count / layer_count) : 0;
    }
    return fill_roles(view) && fill_places(view, scratch, layer_count) && index_places(view);
}

static const struct kvf_trtllm_pool *find_pool(const struct kvf_trtllm_page_table *table,
                                               const struct kvf_trtllm_group *group, int64_t pool)
{
    const struct kvf_trtllm_pool_group *found;

    if (group->pool_group < 0 || (uint64_t)group->pool_group >= table->pool_group_count) return NULL;
    found = &table->pool_groups[group->pool_group];
    return pool >= 0 && (uint64_t)pool < found->pool_count ? &found->pools[pool] : NULL;
}

static void load_locals(struct scratch *scratch, const struct kvf_trtllm_group *group)
{
    scratch->local_count = group->layer_count;
    for (size_t i = 0; i < group->layer_count; i++) {
        scratch->locals[i].local_layer = group->layers[i].local_layer;
        scratch->locals[i].global_layer = group->layers[i].global_layer;
    }
    sort_if_needed(scratch->locals, scratch->local_count, sizeof *scratch->locals, compare_locals);
}

static bool fill_group(struct kvfi_trt_geometry *geometry, const struct kvf_trtllm_page_table *table, size_t number,
                       struct scratch *scratch)
{
    const struct kvf_trtllm_group *group = &table->groups[number];
    bool filled = true;

    load_locals(scratch, group);
    for (size_t i = 0; i < group->view_count && filled; i++) {
        struct kvfi_trt_view *view = &geometry->views[geometry->first_view[number] + i];

        view->spec = &group->views[i];
        view->group = group;
        view->pool = find_pool(table, group, view->spec->pool);
        view->key.group = (int64_t)number;
        view->key.view = (int64_t)i;
        filled = fill_view(view, scratch);
        if (valid_cache(group->cache)) {
            int64_t mapper = view->spec->mapper;

            geometry->cache_views[group->cache]++;
            geometry->whole_blocks[group->cache] |= mapper == KVF_TRTLLM_NHD || mapper == KVF_TRTLLM_REPLICATED;
        }
    }
    return filled;
}

static bool fill_hosted(struct kvfi_trt_geometry *geometry, const struct kvf_trtllm_page_table *table)
{
    size_t count[2] = {0, 0};

    for (size_t i = 0; i < table->group_count; i++) {
        if (valid_cache(table->groups[i].cache)) count[table->groups[i].cache] += table->groups[i].layer_count;
    }
    for (int cache = 0; cache < 2; cache++) {
        geometry->hosted[cache] = kvfi_alloc_array(count[cache], sizeof *geometry->hosted[cache]);
        if (!geometry->hosted[cache]) return false;
    }
    for (size_t i = 0; i < table->group_count; i++) {
        const struct kvf_trtllm_group *group = &table->groups[i];

        for (size_t k = 0; k < group->layer_count && valid_cache(group->cache); k++) {
            struct kvfi_trt_hosted *hosted = &geometry->hosted[group->cache][geometry->hosted_count[group->cache]++];

            hosted->global_layer = group->layers[k].global_layer;
            hosted->group = (int64_t)i;
        }
    }
    for (int cache = 0; cache < 2; cache++) {
        sort_if_needed(geometry->hosted[cache], count[cache], sizeof *geometry->hosted[cache], compare_hosted);
    }
    return true;
}

struct by_role {
    int64_t group;
    uint64_t hash;
    uint32_t index;
};

static int compare_roles(const void *a, const void *b)
{
    const struct by_role *x = a, *y = b;
    int order = kvfi_compare_i64(x->group, y->group);

    if (order == 0) order = (x->hash > y->hash) - (x->hash < y->hash);
    return order ? order : kvfi_compare_size(x->index, y->index);
}

static bool index_roles(struct kvfi_trt_geometry *geometry)
{
    struct by_role *order = kvfi_alloc_array(geometry->view_count, sizeof *order);

    geometry->by_role = kvfi_alloc_array(geometry->view_count, sizeof *geometry->by_role);
    if (order && geometry->by_role) {
        for (size_t i = 0; i < geometry->view_count; i++) {
            order[i].group = geometry->views[i].key.group;
            order[i].hash = geometry->views[i].role_hash;
            order[i].index = (uint32_t)i;
        }
        sort_if_needed(order, geometry->view_count, sizeof *order, compare_roles);
        for (size_t i = 0; i < geometry->view_count; i++) geometry->by_role[i] = order[i].index;
    }
    free(order);
    return order && geometry->by_role;
}

/* What covers are sorted by. */
struct by_layer {
    int64_t cache, layer;
    uint64_t hash;
    struct kvfi_trt_cover cover;
};

static int compare_covers(const void *a, const void *b)
{
    const struct by_layer *x = a, *y = b;
    int order = kvfi_compare_i64(x->cache, y->cache);

    if (order == 0) order = (x->hash > y->hash) - (x->hash < y->hash);
    if (order == 0) order = kvfi_compare_i64(x->layer, y->layer);
    return order ? order : kvfi_compare_size(x->cover.view, y->cover.view);
}

static bool index_covers(struct kvfi_trt_geometry *geometry)
{
    struct by_layer *order;
    size_t count = 0;

    for (size_t i = 0; i < geometry->view_count; i++) count += geometry->views[i].place_count;
    order = kvfi_alloc_array(count, sizeof *order);
    geometry->covers = kvfi_alloc_array(count, sizeof *geometry->covers);
    if (!order || !geometry->covers) goto done;
    for (size_t i = 0; i < geometry->view_count; i++) {
        const struct kvfi_trt_view *view = &geometry->views[i];

        for (size_t k = 0; k < view->place_count; k++) {
            order[geometry->cover_count++] = (struct by_layer){view->group->cache, view->places[k].global_layer,
                                                               view->role_hash, {(uint32_t)i, (uint32_t)k}};
        }
    }
    sort_if_needed(order, count, sizeof *order, compare_covers);
    for (size_t i = 0; i < count; i++) geometry->covers[i] = order[i].cover;
done:
    free(order);
    return order && geometry->covers;
}

static bool make_scratch(struct scratch *scratch, const struct kvf_trtllm_page_table *table)
{
    size_t entries = 0, layers = 0;

    for (size_t i = 0; i < table->group_count; i++) {
        const struct kvf_trtllm_group *group = &table->groups[i];

        if (group->layer_count > layers) layers = group->layer_count;
        for (size_t k = 0; k < group->view_count; k++) {
            if (group->views[k].entry_count > entries) entries = group->views[k].entry_count;
        }
    }
    scratch->spans = kvfi_alloc_array(entries, sizeof *scratch->spans);
    scratch->layers = kvfi_alloc_array(entries, sizeof *scratch->layers);
    scratch->locals = kvfi_alloc_array(layers, sizeof *scratch->locals);
    return scratch->spans && scratch->layers && scratch->locals;
}

static bool fill(struct kvfi_trt_geometry *geometry, const struct kvf_trtllm_page_table *table,
                 struct scratch *scratch)
{
    size_t count = 0;

    geometry->group_count = table->group_count;
    geometry->first_view = kvfi_alloc_zeroed(table->group_count + 1, sizeof *geometry->first_view);
    if (!geometry->first_view) return false;
    for (size_t i = 0; i < table->group_count; i++) {
        geometry->first_view[i] = count;
        count += table->groups[i].view_count;
    }
    geometry->first_view[table->group_count] = count;
    geometry->views = kvfi_alloc_zeroed(count, sizeof *geometry->views);
    if (!geometry->views || !make_scratch(scratch, table)) return false;
    geometry->view_count = count;
    for (size_t i = 0; i < table->group_count; i++) {
        if (!fill_group(geometry, table, i, scratch)) return false;
    }
    return fill_hosted(geometry, table) && index_roles(geometry) && index_covers(geometry);
}

enum kvf_status kvfi_trt_geometry_create(const struct kvf_trtllm_page_table *table, struct kvfi_trt_geometry **out,
                                         struct kvf_error *error)
{
    static const struct kvf_trtllm_page_table none;
    struct kvfi_trt_geometry *geometry = kvfi_alloc_zeroed(1, sizeof *geometry);
    struct scratch scratch = {NULL, NULL, NULL, 0};
    enum kvf_status status = KVF_OK;

    if (!geometry || !fill(geometry, table ? table : &none, &scratch)) {
        status = kvfi_fail_memory(error, "the geometry of a page table");
        goto done;
    }
    *out = geometry;
    geometry = NULL;
done:
    free(scratch.locals);
    free(scratch.layers);
    free(scratch.spans);
    kvfi_trt_geometry_destroy(geometry);
    return status;
}

void kvfi_trt_geometry_destroy(struct kvfi_trt_geometry *geometry)
{
    if (!geometry) return;
    for (size_t i = 0; i < geometry->view_count; i++) {
        free(geometry->views[i].by_global);
        free(geometry->views[i].places);
        free(geometry->views[i].roles);
    }
    free(geometry->hosted[1]);
    free(geometry->hosted[0]);
    free(geometry->covers);
    free(geometry->by_role);
    free(geometry->first_view);
    free(geometry->views);
    free(geometry);
}
