/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/compare.h"
#include "base/error.h"
#include "layout/layout.h"
#include "plan/elect.h"
#include "plan/share.h"

/* One layer of one view at the destination. `place` says where its bytes lie; equal means one place. */
struct spot {
    int64_t place[9];
    const struct kvf_view *view;
    int64_t layer;
};

/* A cell relative to its view, and who sends it. */
struct origin {
    int64_t unit, units, byte, bytes;
    size_t source;
};

struct origins {
    struct origin *items;
    size_t count, capacity;
};

static int compare_place(const struct spot *a, const struct spot *b)
{
    int order = 0;

    for (size_t i = 0; i < sizeof a->place / sizeof a->place[0] && !order; i++) {
        order = kvfi_compare_i64(a->place[i], b->place[i]);
    }
    return order;
}

static int compare_spots(const void *left, const void *right)
{
    const struct spot *a = left, *b = right;
    int order = compare_place(a, b);

    if (!order) order = kvfi_compare_i64(a->layer, b->layer);
    return order ? order : strcmp(a->view->role, b->view->role);
}

static struct spot make_spot(const struct kvf_layout_spec *spec, const struct kvf_view *view,
                             const struct kvf_place *place)
{
    const struct kvf_pool *pool = &spec->pools[place->pool];
    struct spot spot = {.place = {pool->memory, pool->base_offset_bytes + place->offset_bytes, pool->slot_stride_bytes,
                                  view->group, view->byte_count, view->unit_count, view->entries},
                        .view = view, .layer = place->layer};

    if (view->unit_count > 1) spot.place[7] = view->unit_stride_bytes;
    if (view->entries > 1) spot.place[8] = view->entry_stride_bytes;
    return spot;
}

static bool add_cells(const struct spot *spot, const struct kvf_cell *cells, size_t count, size_t source,
                      struct origins *out)
{
    const struct kvf_view *view = spot->view;
    int64_t unit_end = view->unit_first + view->unit_count, byte_end = view->byte_first + view->byte_count;

    for (size_t i = 0; i < count; i++) {
        const struct kvf_cell *cell = &cells[i];
        int64_t u0 = cell->unit_first > view->unit_first ? cell->unit_first : view->unit_first;
        int64_t u1 = cell->unit_first + cell->unit_count < unit_end ? cell->unit_first + cell->unit_count : unit_end;
        int64_t b0 = cell->byte_first > view->byte_first ? cell->byte_first : view->byte_first;
        int64_t b1 = cell->byte_first + cell->byte_count < byte_end ? cell->byte_first + cell->byte_count : byte_end;

        if (u0 >= u1 || b0 >= b1) continue;
        if (!kvfi_array_grow((void **)&out->items, out->count, &out->capacity, sizeof *out->items)) return false;
        out->items[out->count++] = (struct origin){u0 - view->unit_first, u1 - u0, b0 - view->byte_first, b1 - b0,
                                                   source};
    }
    return true;
}

/* Who sends what to one spot, by source. */
static bool find_origins(const struct kvf_election *election, const struct spot *spot, struct origins *out)
{
    out->count = 0;
    for (size_t source = 0; source < election->source_count; source++) {
        size_t count;
        const struct kvf_cell *cells;

        if (!election->shares[source]) continue;
        cells = kvfi_share_find(election->shares[source], spot->view->role, spot->layer, &count);
        if (!add_cells(spot, cells, count, source, out)) return false;
    }
    return true;
}

static bool same_origin(const struct origin *a, const struct origin *b)
{
    return a->unit == b->unit && a->units == b->units && a->byte == b->byte && a->bytes == b->bytes &&
           a->source == b->source;
}

static bool contains(const struct origins *list, const struct origin *wanted)
{
    for (size_t i = 0; i < list->count; i++) {
        if (same_origin(&list->items[i], wanted)) return true;
    }
    return false;
}

/* A source in `a` that does not send the same to `b`. */
static size_t odd_source(const struct origins *a, const struct origins *b)
{
    size_t source = a->items[0].source;

    for (size_t i = 0; i < a->count; i++) {
        if (!contains(b, &a->items[i])) {
            source = a->items[i].source;
            break;
        }
    }
    return source;
}

static enum kvf_status refuse(const struct spot *a, const struct origins *from_a, const struct spot *b,
                              const struct origins *from_b, struct kvf_error *error)
{
    size_t rank_a = odd_source(from_a, from_b), rank_b = odd_source(from_b, from_a);
    enum kvf_status status;

    if (strcmp(a->view->role, b->view->role) == 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "layers %" PRId64 " and %" PRId64
                           " share one place here but come from ranks %zu and %zu", a->layer, b->layer, rank_a, rank_b);
    } else {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s layer %" PRId64 " and %s layer %" PRId64
                           " share one place here but come from ranks %zu and %zu", a->view->role, a->layer,
                           b->view->role, b->layer, rank_a, rank_b);
    }
    return status;
}

/* Compares all spots of one place with the first that anybody sends to. */
static enum kvf_status check_place(const struct kvf_election *election, const struct spot *spots, size_t count,
                                   struct origins lists[2], struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    const struct spot *first = NULL;

    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        struct origins *list = &lists[first ? 1 : 0];
        bool same;

        if (!find_origins(election, &spots[i], list)) {
            status = KVF_ERR_NO_MEMORY;
            break;
        }
        if (list->count == 0) continue;
        if (!first) {
            first = &spots[i];
            continue;
        }
        same = list->count == lists[0].count;
        for (size_t j = 0; j < list->count && same; j++) same = same_origin(&list->items[j], &lists[0].items[j]);
        if (!same) status = refuse(first, &lists[0], &spots[i], list, error);
    }
    return status;
}

enum kvf_status kvf_election_check_places(const kvf_election *election, const kvf_layout *destination,
                                          struct kvf_error *error)
{
    enum kvf_status status = KVF_ERR_NO_MEMORY;
    const struct kvf_layout_spec *spec = &destination->spec;
    struct origins lists[2] = {{0}, {0}};
    struct spot *spots;
    size_t count = 0, end;

    for (size_t i = 0; i < spec->view_count; i++) count += spec->views[i].place_count;
    spots = kvfi_alloc_array(count, sizeof *spots);
    if (!spots) goto done;
    count = 0;
    for (size_t i = 0; i < spec->view_count; i++) {
        for (size_t j = 0; j < spec->views[i].place_count; j++) {
            spots[count++] = make_spot(spec, &spec->views[i], &spec->views[i].places[j]);
        }
    }
    if (count) qsort(spots, count, sizeof *spots, compare_spots);
    status = KVF_OK;
    for (size_t first = 0; first < count && status == KVF_OK; first = end) {
        for (end = first + 1; end < count && compare_place(&spots[first], &spots[end]) == 0;) end++;
        if (end - first > 1) status = check_place(election, spots + first, end - first, lists, error);
    }
done:
    if (status == KVF_ERR_NO_MEMORY) kvfi_fail_memory(error, "check of places");
    free(lists[0].items);
    free(lists[1].items);
    free(spots);
    return status;
}
