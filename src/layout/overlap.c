/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/compare.h"
#include "base/error.h"
#include "layout/check.h"
#include "layout/rects.h"

/* Runs that one layout may fall apart into for this check; a bound on its memory and time, far above any real cache. */
enum { MOST_RUNS = 2 * 1024 * 1024 };

/* Slot 0 of one layer of one view. The first fields name what is tested together: pools of one memory and stride are
 * one pool here, those of a single slot stay apart (`lone` is their number, else -1). */
struct strand {
    int64_t memory, stride, group, lone;
    int64_t x, slots;
    int64_t counts[6]; /* as given, before runs are joined: exact aliases have all of them equal */
    int64_t bytes;
    struct { int64_t stride, steps; } axes[2]; /* inner first, {0, 1} where there is one step only */
    const struct kvf_view *view;
    int64_t layer;
};

static int compare_class(const struct strand *a, const struct strand *b)
{
    int order = kvfi_compare_i64(a->memory, b->memory);

    if (!order) order = kvfi_compare_i64(a->stride, b->stride);
    if (!order) order = kvfi_compare_i64(a->group, b->group);
    if (!order) order = kvfi_compare_i64(a->lone, b->lone);
    return order;
}

/* Equal means an exact alias. */
static int compare_place(const struct strand *a, const struct strand *b)
{
    int order = compare_class(a, b);

    if (!order) order = kvfi_compare_i64(a->x, b->x);
    if (!order) order = kvfi_compare_i64(a->slots, b->slots);
    for (int i = 0; i < 6 && !order; i++) order = kvfi_compare_i64(a->counts[i], b->counts[i]);
    return order;
}

static int compare_strands(const void *left, const void *right)
{
    const struct strand *a = left, *b = right;
    int order = compare_place(a, b);

    if (!order) order = (a->view > b->view) - (a->view < b->view);
    if (!order) order = kvfi_compare_i64(a->layer, b->layer);
    return order;
}

static struct strand make_strand(const struct kvf_layout_spec *spec, const struct kvf_view *view,
                                 const struct kvf_place *place)
{
    const struct kvf_pool *pool = &spec->pools[place->pool];
    struct strand strand = {.memory = pool->memory, .stride = pool->slot_stride_bytes, .group = view->group,
                            .lone = pool->slots > 1 ? -1 : place->pool,
                            .x = pool->base_offset_bytes + place->offset_bytes, .slots = pool->slots,
                            .counts = {view->byte_count, view->unit_count, view->entries, view->slots_per_block,
                                       view->unit_count > 1 ? view->unit_stride_bytes : 0,
                                       view->entries > 1 ? view->entry_stride_bytes : 0},
                            .bytes = view->byte_count, .view = view, .layer = place->layer};
    int unit = view->unit_stride_bytes <= view->entry_stride_bytes ? 0 : 1;

    strand.axes[unit].stride = view->unit_stride_bytes;
    strand.axes[unit].steps = view->unit_count;
    strand.axes[!unit].stride = view->entry_stride_bytes;
    strand.axes[!unit].steps = view->entries;
    for (int i = 0; i < 2; i++) {
        if (strand.axes[i].steps == 1) strand.axes[i].stride = 0;
        /* Rows that continue one another are one run, as long as that fits between two slots. */
        else if (strand.axes[i].stride == strand.bytes &&
                 (strand.slots == 1 || strand.bytes * strand.axes[i].steps <= strand.stride)) {
            strand.bytes *= strand.axes[i].steps;
            strand.axes[i].stride = 0;
            strand.axes[i].steps = 1;
        }
    }
    return strand;
}

static size_t count_runs(const struct strand *strands, size_t count)
{
    int64_t runs = 0, more;

    for (size_t i = 0; i < count && runs <= MOST_RUNS; i++) {
        if (!kvfi_mul_i64(strands[i].axes[0].steps, strands[i].axes[1].steps, &more)) more = MOST_RUNS;
        runs += more < MOST_RUNS ? more : MOST_RUNS + 1;
    }
    return (size_t)runs;
}

/* Adds one run of slot 0 as the residues and quotients that it takes over all slots. */
static void add_run(struct kvfi_rect *rects, size_t *count, const struct strand *strand, int64_t x, size_t owner)
{
    bool single = strand->slots == 1;
    int64_t q = single ? 0 : x / strand->stride, r = single ? x : x % strand->stride;
    int64_t end = r + strand->bytes, wrapped = single || end <= strand->stride ? 0 : end - strand->stride;

    rects[(*count)++] = (struct kvfi_rect){r, end - wrapped, q, q + strand->slots, owner};
    if (wrapped) rects[(*count)++] = (struct kvfi_rect){0, wrapped, q + 1, q + 1 + strand->slots, owner};
}

static size_t list_runs(const struct strand *strands, size_t count, struct kvfi_rect *rects)
{
    size_t runs = 0;

    for (size_t i = 0; i < count; i++) {
        const struct strand *strand = &strands[i];

        for (int64_t outer = 0; outer < strand->axes[1].steps; outer++) {
            for (int64_t inner = 0; inner < strand->axes[0].steps; inner++) {
                add_run(rects, &runs, strand,
                        strand->x + outer * strand->axes[1].stride + inner * strand->axes[0].stride, i);
            }
        }
    }
    return runs;
}

/* The first quotient that both take names the two slots. A wrapped run belongs to the slot before its quotient, so
 * slots are counted from the rectangle's own first quotient. */
static enum kvf_status refuse(const struct strand *strands, const struct kvfi_rect *a, const struct kvfi_rect *b,
                              struct kvf_error *error)
{
    const struct strand *first = &strands[a->owner], *second = &strands[b->owner];
    int64_t q = a->y_first > b->y_first ? a->y_first : b->y_first;

    return kvfi_fail(error, KVF_ERR_LAYOUT, "%s layer %" PRId64 " slot %" PRId64 " overlaps %s layer %" PRId64
                     " slot %" PRId64, first->view->role, first->layer, q - a->y_first, second->view->role,
                     second->layer, q - b->y_first);
}

/* Tests strands of one class. `runs_left` is what all classes may have. */
static enum kvf_status check_class(const struct strand *strands, size_t count, size_t *runs_left,
                                   struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t runs = count_runs(strands, count), a, b;
    struct kvfi_rect *rects = NULL;
    bool found = false;

    if (runs > *runs_left) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "%s layer %" PRId64 ": the layout has more than %d separate runs in "
                           "its slots", strands->view->role, strands->layer, MOST_RUNS);
        goto done;
    }
    *runs_left -= runs;
    rects = kvfi_alloc_array(2 * runs, sizeof *rects);
    status = rects ? kvfi_rects_overlap(rects, list_runs(strands, count, rects), &found, &a, &b) : KVF_ERR_NO_MEMORY;
    if (status == KVF_ERR_NO_MEMORY) status = kvfi_fail_memory(error, "layout check");
    else if (found) status = refuse(strands, &rects[a], &rects[b], error);
done:
    free(rects);
    return status;
}

enum kvf_status kvfi_check_overlaps(const struct kvf_layout *layout, int64_t *runs, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    const struct kvf_layout_spec *spec = &layout->spec;
    struct strand *strands = NULL;
    size_t count = 0, kept = 0, runs_left = MOST_RUNS, end;

    for (size_t i = 0; i < spec->view_count; i++) count += spec->views[i].place_count;
    strands = kvfi_alloc_array(count, sizeof *strands);
    if (!strands) {
        status = kvfi_fail_memory(error, "layout check");
        goto done;
    }
    count = 0;
    for (size_t i = 0; i < spec->view_count; i++) {
        for (size_t j = 0; j < spec->views[i].place_count; j++) {
            strands[count++] = make_strand(spec, &spec->views[i], &spec->views[i].places[j]);
        }
    }
    if (count) qsort(strands, count, sizeof *strands, compare_strands);
    for (size_t i = 0; i < count; i++) {
        if (!kept || compare_place(&strands[kept - 1], &strands[i]) != 0) strands[kept++] = strands[i];
    }
    for (size_t first = 0; first < kept && status == KVF_OK; first = end) {
        for (end = first + 1; end < kept && compare_class(&strands[first], &strands[end]) == 0;) end++;
        if (end - first > 1) status = check_class(strands + first, end - first, &runs_left, error);
    }
    *runs += (int64_t)(MOST_RUNS - runs_left);
done:
    free(strands);
    return status;
}
