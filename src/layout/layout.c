/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/compare.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "layout/check.h"
#include "layout/layout.h"

void kvf_layout_spec_init(struct kvf_layout_spec *spec, size_t size)
{
    kvfi_struct_init(spec, size, NULL, 0);
}

static enum kvf_status check_count(const char *what, size_t count, const void *array, size_t limit,
                                   struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (count > limit) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "layout has %zu %s, at most %zu are allowed", count, what, limit);
    } else if (count && !array) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "layout has %zu %s but no array of them", count, what);
    }
    return status;
}

/* Counts are bounded here, before anything is allocated for them. Adds up places and text bytes of all views. */
static enum kvf_status measure_views(const struct kvf_layout_spec *spec, size_t *place_count, size_t *text_bytes,
                                     struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    *place_count = 0;
    *text_bytes = 0;
    for (size_t i = 0; i < spec->view_count && status == KVF_OK; i++) {
        const struct kvf_view *view = &spec->views[i];

        status = check_count("places", view->place_count, view->places, KVF_LAYOUT_MAX_PLACES, error);
        if (status == KVF_OK) status = kvfi_check_name(view->role, "view", i, "role", error);
        if (status == KVF_OK) status = kvfi_check_name(view->tag, "view", i, "tag", error);
        if (status != KVF_OK) break;
        *place_count += view->place_count;
        *text_bytes += strlen(view->role) + strlen(view->tag) + 2;
        if (*place_count > KVF_LAYOUT_MAX_PLACES) {
            status = kvfi_fail(error, KVF_ERR_LIMIT, "layout has more than %d places in all", KVF_LAYOUT_MAX_PLACES);
        }
    }
    return status;
}

static enum kvf_status check_counts(const struct kvf_layout_spec *spec, struct kvf_error *error)
{
    enum kvf_status status = check_count("memories", spec->memory_count, spec->memory_bytes, KVF_LAYOUT_MAX_MEMORIES,
                                         error);

    if (status == KVF_OK) status = check_count("pools", spec->pool_count, spec->pools, KVF_LAYOUT_MAX_POOLS, error);
    if (status == KVF_OK) status = check_count("groups", spec->group_count, spec->groups, KVF_LAYOUT_MAX_GROUPS, error);
    if (status == KVF_OK) status = check_count("views", spec->view_count, spec->views, KVF_LAYOUT_MAX_VIEWS, error);
    return status;
}

static void *copy_array(const void *items, size_t count, size_t item_bytes)
{
    void *copy = kvfi_alloc_array(count, item_bytes);

    if (copy && count) memcpy(copy, items, count * item_bytes);
    return copy;
}

static const char *store_text(char **at, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *own = memcpy(*at, text, bytes);

    *at += bytes;
    return own;
}

static int compare_layers(const void *left, const void *right)
{
    const struct kvf_place *a = left, *b = right;

    return kvfi_compare_i64(a->layer, b->layer);
}

/* Points the copied views at copies of their own places and texts. */
static void own_views(struct kvf_layout *layout, struct kvf_view *views)
{
    struct kvf_place *place = layout->places;
    char *text = layout->text;

    for (size_t i = 0; i < layout->spec.view_count; i++) {
        size_t count = views[i].place_count;
        struct kvf_place *sorted = layout->places_by_layer + (place - layout->places);

        if (count) {
            memcpy(place, views[i].places, count * sizeof *place);
            memcpy(sorted, place, count * sizeof *place);
            qsort(sorted, count, sizeof *sorted, compare_layers);
        }
        views[i].role = store_text(&text, views[i].role);
        views[i].tag = store_text(&text, views[i].tag);
        views[i].places = place;
        place += count;
    }
}

static void destroy(struct kvf_layout *layout)
{
    if (layout) {
        free((void *)layout->spec.memory_bytes);
        free((void *)layout->spec.pools);
        free((void *)layout->spec.groups);
        free((void *)layout->spec.views);
        free(layout->places);
        free(layout->places_by_layer);
        free(layout->text);
        free(layout);
    }
}

static enum kvf_status copy_spec(const struct kvf_layout_spec *spec, struct kvf_layout **out, struct kvf_error *error)
{
    enum kvf_status status;
    size_t place_count, text_bytes;
    struct kvf_view *views;
    struct kvf_layout *layout = NULL;

    status = measure_views(spec, &place_count, &text_bytes, error);
    if (status != KVF_OK) goto done;
    status = KVF_ERR_NO_MEMORY;
    layout = calloc(1, sizeof *layout);
    if (!layout) goto done;
    atomic_init(&layout->references, 1);
    layout->spec = *spec;
    layout->spec.memory_bytes = copy_array(spec->memory_bytes, spec->memory_count, sizeof *spec->memory_bytes);
    layout->spec.pools = copy_array(spec->pools, spec->pool_count, sizeof *spec->pools);
    layout->spec.groups = copy_array(spec->groups, spec->group_count, sizeof *spec->groups);
    layout->spec.views = views = copy_array(spec->views, spec->view_count, sizeof *spec->views);
    layout->places = kvfi_alloc_array(place_count, sizeof *layout->places);
    layout->places_by_layer = kvfi_alloc_array(place_count, sizeof *layout->places);
    layout->text = kvfi_alloc_array(text_bytes, 1);
    if (!layout->spec.memory_bytes || !layout->spec.pools || !layout->spec.groups || !views || !layout->places ||
        !layout->places_by_layer || !layout->text) goto done;
    own_views(layout, views);
    status = KVF_OK;
    *out = layout;
    layout = NULL;
done:
    if (status == KVF_ERR_NO_MEMORY) kvfi_fail_memory(error, "layout");
    destroy(layout);
    return status;
}

enum kvf_status kvfi_layout_create_counted(const struct kvf_layout_spec *spec, kvf_layout **out, int64_t *runs,
                                           struct kvf_error *error)
{
    enum kvf_status status;
    struct kvf_layout_spec own = {0};
    struct kvf_layout *layout = NULL;

    if (!spec || !out) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "layout: %s is missing", spec ? "out" : "spec");
        goto done;
    }
    status = kvfi_options_copy(&own, sizeof own, spec, "layout", error);
    if (status == KVF_OK) status = check_counts(&own, error);
    if (status == KVF_OK) status = copy_spec(&own, &layout, error);
    if (status == KVF_OK) status = kvfi_check_fields(layout, error);
    if (status == KVF_OK) status = kvfi_check_extents(layout, error);
    if (status == KVF_OK) status = kvfi_check_held_once(layout, error);
    if (status == KVF_OK) status = kvfi_check_overlaps(layout, runs, error);
    if (status != KVF_OK) goto done;
    *out = layout;
    layout = NULL;
done:
    destroy(layout);
    return status;
}

enum kvf_status kvf_layout_create(const struct kvf_layout_spec *spec, kvf_layout **out, struct kvf_error *error)
{
    int64_t runs = 0;

    return kvfi_layout_create_counted(spec, out, &runs, error);
}

kvf_layout *kvf_layout_acquire(const kvf_layout *layout)
{
    struct kvf_layout *own = (struct kvf_layout *)layout;

    atomic_fetch_add_explicit(&own->references, 1, memory_order_relaxed);
    return own;
}

void kvf_layout_release(kvf_layout *layout)
{
    if (layout && atomic_fetch_sub_explicit(&layout->references, 1, memory_order_acq_rel) == 1) destroy(layout);
}

const struct kvf_layout_spec *kvf_layout_get_spec(const kvf_layout *layout)
{
    return &layout->spec;
}

const struct kvf_place *kvfi_view_place(const struct kvf_layout *layout, const struct kvf_view *view, int64_t layer)
{
    const struct kvf_place wanted = {.layer = layer};

    return bsearch(&wanted, kvfi_view_places_by_layer(layout, view), view->place_count, sizeof wanted, compare_layers);
}
