/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "plan/plan.h"

enum { BOX_LOOPS = 4 };

static bool same_loop(const struct kvf_loop *a, const struct kvf_loop *b)
{
    return a->count == b->count && a->src_stride_bytes == b->src_stride_bytes &&
           a->dst_stride_bytes == b->dst_stride_bytes;
}

static bool same_loops(const struct kvf_box *a, const struct kvf_box *b, int64_t first)
{
    bool same = a->loop_count == b->loop_count;

    for (int64_t i = first; i < a->loop_count && same; i++) same = same_loop(&a->loops[i], &b->loops[i]);
    return same;
}

static bool same_frame(const struct kvf_box *a, const struct kvf_box *b)
{
    return a->src_pool == b->src_pool && a->dst_pool == b->dst_pool &&
           a->src_entry_stride_bytes == b->src_entry_stride_bytes &&
           a->dst_entry_stride_bytes == b->dst_entry_stride_bytes;
}

static void fold(struct kvf_box *box)
{
    kvfi_loops_sort(box->loops, box->loop_count);
    kvfi_loops_fold(box->loops, &box->loop_count, &box->run_bytes);
}

/** True when `b` begins `src_bytes` after `a` at the source and `dst_bytes` after it at the destination. */
static bool apart(const struct kvf_box *a, const struct kvf_box *b, int64_t src_bytes, int64_t dst_bytes)
{
    return b->src_offset_bytes - a->src_offset_bytes == src_bytes &&
           b->dst_offset_bytes - a->dst_offset_bytes == dst_bytes;
}

/** Joins `b` to the end of `a` when both offsets go on. */
static bool concatenate(struct kvf_box *a, const struct kvf_box *b)
{
    struct kvf_loop *outer = &a->loops[0];
    int64_t src, dst, sum;
    bool joined = false;

    if (!same_frame(a, b)) goto done;
    if (same_loops(a, b, 0) && apart(a, b, a->run_bytes, a->run_bytes)) {
        joined = kvfi_add_i64(a->run_bytes, b->run_bytes, &sum);
        if (joined) a->run_bytes = sum;
    } else if (a->loop_count > 0 && same_loops(a, b, 1) && a->run_bytes == b->run_bytes &&
               outer->src_stride_bytes == b->loops[0].src_stride_bytes &&
               outer->dst_stride_bytes == b->loops[0].dst_stride_bytes &&
               kvfi_mul_i64(outer->count, outer->src_stride_bytes, &src) &&
               kvfi_mul_i64(outer->count, outer->dst_stride_bytes, &dst) && apart(a, b, src, dst)) {
        joined = kvfi_add_i64(outer->count, b->loops[0].count, &sum);
        if (joined) outer->count = sum;
    }
    if (joined) fold(a);
done:
    return joined;
}

/** Joins two loop-free boxes across an equal gap, as long as both slots hold all of it. */
static bool bridge(const struct kvf_plan *plan, struct kvf_box *a, const struct kvf_box *b)
{
    int64_t src_stride = plan->src->spec.pools[a->src_pool].slot_stride_bytes;
    int64_t dst_stride = plan->dst->spec.pools[a->dst_pool].slot_stride_bytes;
    int64_t step = b->dst_offset_bytes - a->dst_offset_bytes, bytes;
    bool joined = same_frame(a, b) && a->loop_count == 0 && b->loop_count == 0 && step >= a->run_bytes &&
                  b->src_offset_bytes - a->src_offset_bytes == step && kvfi_add_i64(step, b->run_bytes, &bytes) &&
                  bytes <= src_stride && bytes <= dst_stride;

    if (joined) a->run_bytes = bytes;
    return joined;
}

static bool concatenate_all(const struct kvf_plan *plan, struct kvf_box *boxes, size_t *count, bool across_gaps)
{
    size_t last = 0, before = *count;

    for (size_t i = 1; i < before; i++) {
        if (concatenate(&boxes[last], &boxes[i])) continue;
        if (across_gaps && bridge(plan, &boxes[last], &boxes[i])) continue;
        boxes[++last] = boxes[i];
    }
    if (before) *count = last + 1;
    return *count != before;
}

static int order_numbers(int64_t a, int64_t b) { return (a > b) - (a < b); }

/** Equal boxes next to each other, then by offset. */
static int order_buckets(const void *left, const void *right)
{
    const struct kvf_box *a = *(const struct kvf_box *const *)left, *b = *(const struct kvf_box *const *)right;
    int order = order_numbers(a->dst_pool, b->dst_pool);

    if (!order) order = order_numbers(a->src_pool, b->src_pool);
    if (!order) order = order_numbers(a->run_bytes, b->run_bytes);
    if (!order) order = order_numbers(a->loop_count, b->loop_count);
    if (!order) order = order_numbers(a->src_entry_stride_bytes, b->src_entry_stride_bytes);
    if (!order) order = order_numbers(a->dst_entry_stride_bytes, b->dst_entry_stride_bytes);
    for (int64_t i = 0; i < a->loop_count && !order; i++) {
        const struct kvf_loop *x = &a->loops[i], *y = &b->loops[i];

        order = order_numbers(x->count, y->count);
        if (!order) order = order_numbers(x->dst_stride_bytes, y->dst_stride_bytes);
        if (!order) order = order_numbers(x->src_stride_bytes, y->src_stride_bytes);
    }
    if (!order) order = order_numbers(a->dst_offset_bytes, b->dst_offset_bytes);
    if (!order) order = order_numbers(a->src_offset_bytes, b->src_offset_bytes);
    return order;
}

static bool same_bucket(const struct kvf_box *a, const struct kvf_box *b)
{
    return same_frame(a, b) && a->run_bytes == b->run_bytes && same_loops(a, b, 0);
}

/** Turns the progression that begins at order[first] into one more loop of that box. Returns where it ends. The boxes
 *  that went into it get run_bytes 0. */
static size_t stack_from(struct kvf_box **order, size_t count, size_t first)
{
    struct kvf_box *box = order[first];
    int64_t src_step, dst_step;
    size_t end = first + 1;

    if (end == count || box->loop_count == BOX_LOOPS || !same_bucket(box, order[end])) goto done;
    src_step = order[end]->src_offset_bytes - box->src_offset_bytes;
    dst_step = order[end]->dst_offset_bytes - box->dst_offset_bytes;
    for (end++; end < count && same_bucket(box, order[end]); end++)
        if (!apart(order[end - 1], order[end], src_step, dst_step)) break;
    for (size_t i = first + 1; i < end; i++) order[i]->run_bytes = 0;
    box->loops[box->loop_count++] = (struct kvf_loop){(int64_t)(end - first), src_step, dst_step};
done:
    return end;
}

static bool stack_all(struct kvf_box *boxes, size_t *count, struct kvf_box **order)
{
    size_t before = *count, kept = 0;

    for (size_t i = 0; i < before; i++) order[i] = &boxes[i];
    qsort(order, before, sizeof *order, order_buckets);
    for (size_t i = 0; i < before;) i = stack_from(order, before, i);
    for (size_t i = 0; i < before; i++) {
        if (boxes[i].run_bytes == 0) continue;
        boxes[kept] = boxes[i];
        fold(&boxes[kept++]);
    }
    *count = kept;
    return kept != before;
}

/* Joins boxes, sorted by place, in place: concatenates and stacks until nothing changes. Returns false when there is no
 * memory. */
static bool join_boxes(const struct kvf_plan *plan, struct kvf_box *boxes, size_t *count, bool across_gaps)
{
    struct kvf_box **order = kvfi_alloc_array(*count, sizeof *order);
    bool changed = order != NULL && *count > 1;
    bool ok = order != NULL;

    while (changed) {
        changed = concatenate_all(plan, boxes, count, across_gaps);
        changed |= stack_all(boxes, count, order);
    }
    free(order);
    return ok;
}

/** Patches that touch and are alike become one with a longer row. */
static size_t join_rows(struct kvf_patch *patches, size_t count)
{
    size_t last = 0;

    for (size_t i = 1; i < count; i++) {
        struct kvf_patch *a = &patches[last], *b = &patches[i];
        bool touch = a->src_pool == b->src_pool && a->dst_pool == b->dst_pool && a->units == b->units &&
                     a->src_unit_stride_bytes == b->src_unit_stride_bytes &&
                     a->dst_unit_stride_bytes == b->dst_unit_stride_bytes &&
                     a->src_entry_stride_bytes == b->src_entry_stride_bytes &&
                     a->dst_entry_stride_bytes == b->dst_entry_stride_bytes &&
                     b->src_offset_bytes - a->src_offset_bytes == a->row_bytes &&
                     b->dst_offset_bytes - a->dst_offset_bytes == a->row_bytes;

        if (touch) a->row_bytes += b->row_bytes;
        else patches[++last] = *b;
    }
    return count ? last + 1 : 0;
}

/** The box of one patch and a shape. Returns false when a stride does not fit. */
static bool start_box(const struct kvf_patch *patch, const struct kvf_shape *shape, struct kvf_box *box)
{
    struct kvf_loop *comb = &box->loops[1];
    bool ok;

    memset(box, 0, sizeof *box);
    box->src_pool = patch->src_pool;
    box->src_offset_bytes = patch->src_offset_bytes;
    box->dst_pool = patch->dst_pool;
    box->dst_offset_bytes = patch->dst_offset_bytes;
    box->run_bytes = patch->row_bytes;
    box->loops[0] = (struct kvf_loop){patch->units, patch->src_unit_stride_bytes, patch->dst_unit_stride_bytes};
    comb->count = shape->m;
    ok = shape->m == 1 ||
         (kvfi_mul_i64(shape->src_step, patch->src_entry_stride_bytes, &comb->src_stride_bytes) &&
          kvfi_mul_i64(shape->dst_step, patch->dst_entry_stride_bytes, &comb->dst_stride_bytes));
    box->loops[2] = (struct kvf_loop){shape->n, patch->src_entry_stride_bytes, patch->dst_entry_stride_bytes};
    box->loop_count = 3;
    /* loops of one step must not take part in the order */
    for (int64_t i = 0; i < 3; i++)
        if (box->loops[i].count == 1) box->loops[i] = (struct kvf_loop){1, 0, 0};
    fold(box);
    if (!shape->whole) {
        box->src_entry_stride_bytes = patch->src_entry_stride_bytes;
        box->dst_entry_stride_bytes = patch->dst_entry_stride_bytes;
    }
    return ok;
}

/** A loop-free box at the start of equal slots takes the whole slot. */
static void promote_rows(const struct kvf_plan *plan, struct kvf_box *boxes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct kvf_box *box = &boxes[i];
        int64_t src = plan->src->spec.pools[box->src_pool].slot_stride_bytes;
        int64_t dst = plan->dst->spec.pools[box->dst_pool].slot_stride_bytes;

        if (box->loop_count == 0 && box->src_offset_bytes == 0 && box->dst_offset_bytes == 0 && src == dst)
            box->run_bytes = src;
    }
}

/** Sums the bytes of all boxes into `folded`. */
static bool count_bytes(struct kvfi_folded *folded)
{
    bool ok = true;

    folded->comb_bytes = 0;
    for (int64_t i = 0; i < folded->shape.boxes && ok; i++) {
        int64_t bytes;

        ok = kvfi_box_bytes(&folded->boxes[i], &bytes) && kvfi_add_i64(folded->comb_bytes, bytes, &folded->comb_bytes);
    }
    return ok;
}

enum kvf_status kvfi_boxes_make(const struct kvf_plan *plan, const struct kvfi_track *track,
                                const struct kvf_shape *shape, struct kvfi_folded *folded, struct kvf_error *error)
{
    size_t count = (size_t)track->key.patches;
    struct kvf_patch *rows = kvfi_alloc_array(count, sizeof *rows);
    struct kvf_box *boxes = NULL, *smaller;
    enum kvf_status status = KVF_OK;
    bool fits = true;

    if (!rows) goto no_memory;
    memcpy(rows, track->patches, count * sizeof *rows);
    count = join_rows(rows, count);
    boxes = kvfi_alloc_array(count, sizeof *boxes);
    if (!boxes) goto no_memory;
    for (size_t i = 0; i < count && fits; i++) fits = start_box(&rows[i], shape, &boxes[i]);
    if (!fits) goto overflow;
    if (!join_boxes(plan, boxes, &count, shape->whole && (plan->flags & KVF_PLAN_BRIDGE_GAPS))) goto no_memory;
    if (shape->whole && (plan->flags & KVF_PLAN_PROMOTE_ROW)) promote_rows(plan, boxes, count);
    smaller = realloc(boxes, (count ? count : 1) * sizeof *boxes);
    if (smaller) boxes = smaller;
    *folded = (struct kvfi_folded){.shape = *shape, .boxes = boxes};
    folded->shape.boxes = (int64_t)count;
    if (!count_bytes(folded)) goto overflow;
    boxes = NULL;
    goto done;
no_memory:
    status = kvfi_fail_memory(error, "the boxes of a plan");
    goto done;
overflow:
    status =
        kvfi_fail(error, KVF_ERR_OVERFLOW, "groups %" PRId64 " and %" PRId64 ": the bytes of a slot pair do not fit",
                  track->key.src_group, track->key.dst_group);
done:
    free(boxes);
    free(rows);
    return status;
}
