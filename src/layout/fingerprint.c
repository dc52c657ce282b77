/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/compare.h"
#include "layout/layout.h"

/* A view beside its places by layer, so that sorting needs no context. */
struct sorted_view {
    const struct kvf_view *view;
    const struct kvf_place *places;
};

static int compare_views(const void *left, const void *right)
{
    const struct sorted_view *a = left, *b = right;
    int order = strcmp(a->view->role, b->view->role);

    if (!order) order = kvfi_compare_i64(a->view->group, b->view->group);
    if (!order) order = kvfi_compare_i64(a->view->byte_first, b->view->byte_first);
    if (!order) order = kvfi_compare_i64(a->view->unit_first, b->view->unit_first);
    for (size_t i = 0; !order && i < a->view->place_count && i < b->view->place_count; i++) {
        order = kvfi_compare_i64(a->places[i].layer, b->places[i].layer);
        if (!order) order = kvfi_compare_i64(a->places[i].pool, b->places[i].pool);
        if (!order) order = kvfi_compare_i64(a->places[i].offset_bytes, b->places[i].offset_bytes);
    }
    if (!order) order = kvfi_compare_i64((int64_t)a->view->place_count, (int64_t)b->view->place_count);
    return order;
}

static void write_view(struct kvfi_canonical *out, const struct kvf_view *view, const struct kvf_place *places)
{
    const int64_t numbers[] = {view->group, view->row_bytes, view->byte_first, view->byte_count, view->unit_first,
                               view->unit_count, view->unit_total, view->entries, view->slots_per_block,
                               view->unit_stride_bytes, view->entry_stride_bytes, view->flags,
                               (int64_t)view->place_count};

    kvfi_canonical_text(out, view->role);
    kvfi_canonical_text(out, view->tag);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) kvfi_canonical_i64(out, numbers[i]);
    for (size_t i = 0; i < view->place_count; i++) {
        kvfi_canonical_i64(out, places[i].layer);
        kvfi_canonical_i64(out, places[i].pool);
        kvfi_canonical_i64(out, places[i].offset_bytes);
    }
}

static void write_spec(struct kvfi_canonical *out, const struct kvf_layout_spec *spec, const struct sorted_view *views)
{
    kvfi_canonical_raw(out, "KVFL", 4);
    kvfi_canonical_u32(out, KVF_PLANNER_VERSION);
    kvfi_canonical_i64(out, (int64_t)spec->pool_count);
    for (size_t i = 0; i < spec->pool_count; i++) kvfi_canonical_i64(out, spec->pools[i].slot_stride_bytes);
    kvfi_canonical_i64(out, (int64_t)spec->group_count);
    for (size_t i = 0; i < spec->group_count; i++) {
        kvfi_canonical_i64(out, spec->groups[i].tokens_per_block);
        kvfi_canonical_i64(out, spec->groups[i].ring_tokens);
        kvfi_canonical_i64(out, spec->groups[i].stripes);
        kvfi_canonical_i64(out, spec->groups[i].stripe);
        kvfi_canonical_i64(out, spec->groups[i].stripe_tokens);
    }
    kvfi_canonical_i64(out, (int64_t)spec->view_count);
    for (size_t i = 0; i < spec->view_count; i++) write_view(out, views[i].view, views[i].places);
}

enum kvf_status kvfi_layout_canonical(const struct kvf_layout *layout, unsigned char **bytes, size_t *count)
{
    enum kvf_status status = KVF_ERR_NO_MEMORY;
    const struct kvf_layout_spec *spec = &layout->spec;
    struct kvfi_canonical out = {0};
    struct sorted_view *views = kvfi_alloc_array(spec->view_count, sizeof *views);

    if (!views) goto done;
    for (size_t i = 0; i < spec->view_count; i++) {
        views[i].view = &spec->views[i];
        views[i].places = kvfi_view_places_by_layer(layout, &spec->views[i]);
    }
    if (spec->view_count) qsort(views, spec->view_count, sizeof *views, compare_views);
    write_spec(&out, spec, views);
    if (out.failed) goto done;
    *bytes = out.bytes;
    *count = out.count;
    out.bytes = NULL;
    status = KVF_OK;
done:
    free(out.bytes);
    free(views);
    return status;
}

enum kvf_status kvf_layout_fingerprint(const kvf_layout *layout, char text[KVF_FINGERPRINT_TEXT_BYTES])
{
    unsigned char *bytes = NULL;
    size_t count;
    enum kvf_status status = kvfi_layout_canonical(layout, &bytes, &count);

    if (status == KVF_OK) kvfi_fingerprint_text(bytes, count, text);
    free(bytes);
    return status;
}
