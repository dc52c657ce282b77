/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/geometry.h"

#include "base/error.h"
#include "trtllm/names.h"

#include <inttypes.h>
#include <string.h>

const struct kvfi_trt_view *kvfi_trt_geometry_view(const struct kvfi_trt_geometry *geometry,
                                                   const struct kvf_trtllm_view_key *key)
{
    const struct kvfi_trt_view *view = NULL;

    if (key->group < 0 || (uint64_t)key->group >= geometry->group_count || key->view < 0) goto done;
    if ((uint64_t)key->view >= geometry->first_view[key->group + 1] - geometry->first_view[key->group]) goto done;
    view = &geometry->views[geometry->first_view[key->group] + (size_t)key->view];
done:
    return view;
}

int64_t kvfi_trt_geometry_group(const struct kvfi_trt_geometry *geometry, int64_t cache, int64_t global_layer)
{
    const struct kvfi_trt_hosted *hosted;
    size_t low = 0, high;

    if (cache != KVF_TRTLLM_PAGED && cache != KVF_TRTLLM_STATE) return -1;
    hosted = geometry->hosted[cache];
    high = geometry->hosted_count[cache];
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (hosted[middle].global_layer < global_layer) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < geometry->hosted_count[cache] && hosted[low].global_layer == global_layer ? hosted[low].group : -1;
}

const struct kvfi_trt_region *kvfi_trt_view_place(const struct kvfi_trt_view *view, int64_t global_layer)
{
    const struct kvfi_trt_region *place = NULL;
    size_t low = 0, high = view->place_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (view->places[view->by_global[middle]].global_layer < global_layer) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low < view->place_count) place = &view->places[view->by_global[low]];
    return place && place->global_layer == global_layer ? place : NULL;
}

/* Whether a cover comes before the covers of `layer` by views like `like`. */
static bool comes_before(const struct kvfi_trt_geometry *geometry, const struct kvfi_trt_cover *cover,
                         const struct kvfi_trt_view *like, int64_t layer)
{
    const struct kvfi_trt_view *view = &geometry->views[cover->view];

    if (view->group->cache != like->group->cache) return view->group->cache < like->group->cache;
    if (view->role_hash != like->role_hash) return view->role_hash < like->role_hash;
    return view->places[cover->place].global_layer < layer;
}

const struct kvfi_trt_cover *kvfi_trt_geometry_covers(const struct kvfi_trt_geometry *geometry,
                                                      const struct kvfi_trt_view *like, int64_t layer, size_t *count)
{
    size_t low = 0, high = geometry->cover_count, end;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (comes_before(geometry, &geometry->covers[middle], like, layer)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (end = low; end < geometry->cover_count; end++) {
        const struct kvfi_trt_cover *cover = &geometry->covers[end];
        const struct kvfi_trt_view *view = &geometry->views[cover->view];

        if (view->group->cache != like->group->cache || view->role_hash != like->role_hash
            || view->places[cover->place].global_layer != layer) break;
    }
    *count = end - low;
    return geometry->covers + low;
}

const struct kvfi_trt_view *kvfi_trt_geometry_holder(const struct kvfi_trt_geometry *geometry,
                                                     const struct kvfi_trt_view *like, int64_t layer)
{
    const struct kvfi_trt_view *found = NULL;
    size_t count;
    const struct kvfi_trt_cover *covers = kvfi_trt_geometry_covers(geometry, like, layer, &count);

    for (size_t i = 0; i < count && !found; i++) {
        const struct kvfi_trt_view *view = &geometry->views[covers[i].view];

        if (kvfi_trt_view_same_roles(view, like)) found = view;
    }
    return found;
}

bool kvfi_trt_view_same_roles(const struct kvfi_trt_view *a, const struct kvfi_trt_view *b)
{
    bool same = a->role_hash == b->role_hash && a->spec->role_count == b->spec->role_count;

    for (size_t i = 0; same && i < a->spec->role_count; i++) same = strcmp(a->roles[i], b->roles[i]) == 0;
    return same;
}

bool kvfi_trt_view_common(const struct kvfi_trt_view *a, const struct kvfi_trt_view *b)
{
    const struct kvfi_trt_view *less = a->place_count < b->place_count ? a : b, *more = less == a ? b : a;
    bool common = false;

    for (size_t i = 0; !common && i < less->place_count; i++) {
        common = kvfi_trt_view_place(more, less->places[i].global_layer) != NULL;
    }
    return common;
}

enum kvf_status kvfi_trt_view_buffers(const struct kvfi_trt_view *view, int64_t group, int64_t number,
                                      int64_t *buffers, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (view->buffers == 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "PoolView buffer entries are not evenly distributed across"
                           " layers: layer_group=%" PRId64 ", pool=%" PRId64 ", entries=%zu, layers=%zu", group,
                           number, view->spec->entry_count, view->place_count);
        goto done;
    }
    *buffers = view->buffers;
done:
    return status;
}

const char *kvfi_trt_view_role_text(const struct kvfi_trt_view *view, char *text, size_t text_bytes)
{
    bool fits;

    text[0] = 0;
    fits = kvfi_trt_text_add(text, text_bytes, "[");
    for (size_t i = 0; i < view->spec->role_count && fits; i++) {
        fits = kvfi_trt_text_add(text, text_bytes, "%s'%s'", i > 0 ? ", " : "", view->roles[i]);
    }
    kvfi_trt_text_add(text, text_bytes, "]");
    return text;
}
