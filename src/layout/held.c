/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/compare.h"
#include "base/error.h"
#include "layout/check.h"
#include "layout/rects.h"

static int compare_held(const void *left, const void *right)
{
    const struct kvfi_held *a = left, *b = right;
    int order = a->role == b->role ? 0 : strcmp(a->role, b->role);

    if (!order) order = kvfi_compare_i64(a->layer, b->layer);
    if (!order) order = kvfi_compare_size(a->owner, b->owner);
    return order;
}

static bool same_place(const struct kvfi_held *a, const struct kvfi_held *b)
{
    return a->layer == b->layer && strcmp(a->role, b->role) == 0;
}

/* Checks `held`, all of one role and layer. */
static enum kvf_status check_one(const struct kvfi_held *held, size_t count, const char *objects,
                                 struct kvfi_rect *rects, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t a, b;
    bool found;

    for (size_t i = 0; i < count; i++) {
        if (i && held[i].owner == held[i - 1].owner) {
            status = kvfi_fail(error, KVF_ERR_LAYOUT, "%s layer %" PRId64 ": given twice", held->role, held->layer);
            goto done;
        }
        rects[i] = (struct kvfi_rect){held[i].unit_first, held[i].unit_first + held[i].unit_count, held[i].byte_first,
                                      held[i].byte_first + held[i].byte_count, i};
    }
    status = kvfi_rects_overlap(rects, count, &found, &a, &b);
    if (status == KVF_ERR_NO_MEMORY) {
        status = kvfi_fail_memory(error, "layout check");
    } else if (found) {
        int64_t unit = held[a].unit_first > held[b].unit_first ? held[a].unit_first : held[b].unit_first;
        int64_t byte = held[a].byte_first > held[b].byte_first ? held[a].byte_first : held[b].byte_first;

        status = kvfi_fail(error, KVF_ERR_LAYOUT, "%s layer %" PRId64 ": unit %" PRId64 " byte %" PRId64
                           " is held by %s %zu and %zu", held->role, held->layer, unit, byte, objects, held[a].owner,
                           held[b].owner);
    }
done:
    return status;
}

enum kvf_status kvfi_check_held(struct kvfi_held *held, size_t count, const char *objects, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvfi_rect *rects = kvfi_alloc_array(count, sizeof *rects);
    size_t end;

    if (!rects) {
        status = kvfi_fail_memory(error, "layout check");
        goto done;
    }
    if (count) qsort(held, count, sizeof *held, compare_held);
    for (size_t first = 0; first < count && status == KVF_OK; first = end) {
        for (end = first + 1; end < count && same_place(&held[first], &held[end]);) end++;
        if (end - first > 1) status = check_one(held + first, end - first, objects, rects, error);
    }
done:
    free(rects);
    return status;
}

enum kvf_status kvfi_check_held_once(const struct kvf_layout *layout, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    const struct kvf_layout_spec *spec = &layout->spec;
    struct kvfi_held *held;
    size_t count = 0;

    for (size_t i = 0; i < spec->view_count; i++) count += spec->views[i].place_count;
    held = kvfi_alloc_array(count, sizeof *held);
    if (!held) {
        status = kvfi_fail_memory(error, "layout check");
        goto done;
    }
    count = 0;
    for (size_t i = 0; i < spec->view_count; i++) {
        const struct kvf_view *view = &spec->views[i];

        for (size_t j = 0; j < view->place_count; j++) {
            held[count++] = (struct kvfi_held){view->role, view->places[j].layer, view->unit_first, view->unit_count,
                                               view->byte_first, view->byte_count, i};
        }
    }
    status = kvfi_check_held(held, count, "views", error);
done:
    free(held);
    return status;
}
