/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "plan/bind.h"

/** Where the cursor is: shape, box of it, step of the loops outside the blocks, run of blocks. What hangs on the box
 *  alone is kept beside it. */
struct kvf_cursor {
    const struct kvf_binding *binding;
    size_t bound, box, run;
    int64_t outer;                   /**< step of the outer loops */
    int64_t outer_steps;             /**< 1 when they stay loops of the one move */
    int64_t place;                   /**< box loops before the block loop */
    int64_t src_outer, dst_outer;    /**< what the outer loops add at this step */
    const struct kvf_box *at;        /**< NULL = entered anew when needed */
    const struct kvf_pool *src_pool, *dst_pool;
    struct kvf_move ahead;           /**< taken, but not given yet */
    bool has_ahead;
};

/** The block loop goes before the first loop whose destination steps are smaller than a slot. */
static int64_t place_of_blocks(const struct kvf_box *box, int64_t slot_stride)
{
    int64_t place = 0;

    while (place < box->loop_count && box->loops[place].dst_stride_bytes >= slot_stride) place++;
    return place;
}

/** Sets what the outer loops add at step cursor->outer. */
static void set_outer(struct kvf_cursor *cursor)
{
    int64_t rest = cursor->outer;

    cursor->src_outer = 0;
    cursor->dst_outer = 0;
    for (int64_t i = cursor->place - 1; i >= 0 && rest > 0; i--) {
        const struct kvf_loop *loop = &cursor->at->loops[i];
        int64_t step = rest % loop->count;

        rest /= loop->count;
        cursor->src_outer += step * loop->src_stride_bytes;
        cursor->dst_outer += step * loop->dst_stride_bytes;
    }
}

static void enter_box(struct kvf_cursor *cursor)
{
    const struct kvf_plan *plan = cursor->binding->plan;
    const struct kvfi_bound *bound = &cursor->binding->bound[cursor->bound];

    cursor->at = &bound->folded.boxes[cursor->box];
    cursor->src_pool = &plan->src->spec.pools[cursor->at->src_pool];
    cursor->dst_pool = &plan->dst->spec.pools[cursor->at->dst_pool];
    cursor->place = place_of_blocks(cursor->at, cursor->dst_pool->slot_stride_bytes);
    cursor->outer_steps = 1;
    if (bound->run_count > 1)
        for (int64_t i = 0; i < cursor->place; i++) cursor->outer_steps *= cursor->at->loops[i].count;
    set_outer(cursor);
}

/** Writes the loops of the move of one run: the outer ones only when the shape has no other run. */
static void set_loops(const struct kvf_cursor *cursor, const struct kvfi_bound *bound, const struct kvfi_block_run *run,
                      int64_t combs, struct kvf_move *move)
{
    const struct kvf_box *box = cursor->at;
    int64_t count = 0;

    for (int64_t i = bound->run_count > 1 ? cursor->place : 0; i <= box->loop_count; i++) {
        if (i == cursor->place && combs > 1)
            move->loops[count++] = (struct kvf_loop){
                combs,
                run->src_slot_step * cursor->src_pool->slot_stride_bytes +
                    run->src_entry_step * box->src_entry_stride_bytes,
                run->dst_slot_step * cursor->dst_pool->slot_stride_bytes +
                    run->dst_entry_step * box->dst_entry_stride_bytes};
        if (i < box->loop_count) move->loops[count++] = box->loops[i];
    }
    move->loop_count = count;
    for (; count < 5; count++) move->loops[count] = (struct kvf_loop){0, 0, 0};
    if (combs > 1) kvfi_loops_fold(move->loops, &move->loop_count, &move->run_bytes);
}

static void make_move(const struct kvf_cursor *cursor, struct kvf_move *move)
{
    const struct kvfi_bound *bound = &cursor->binding->bound[cursor->bound];
    const struct kvfi_block_run *run = &bound->runs[cursor->run];
    const struct kvf_pool *src = cursor->src_pool, *dst = cursor->dst_pool;
    const struct kvf_box *box = cursor->at;

    move->src_memory = src->memory;
    move->src_offset_bytes = src->base_offset_bytes + run->src_slot * src->slot_stride_bytes + box->src_offset_bytes +
                             run->src_entry * box->src_entry_stride_bytes + cursor->src_outer;
    move->dst_memory = dst->memory;
    move->dst_offset_bytes = dst->base_offset_bytes + run->dst_slot * dst->slot_stride_bytes + box->dst_offset_bytes +
                             run->dst_entry * box->dst_entry_stride_bytes + cursor->dst_outer;
    move->run_bytes = box->run_bytes;
    set_loops(cursor, bound, run, kvfi_run_combs(bound, cursor->run), move);
}

/** Goes to what follows: the next run, else the next outer step, else the next box, else the next shape. */
static void step(struct kvf_cursor *cursor)
{
    const struct kvfi_bound *bound = &cursor->binding->bound[cursor->bound];

    if (++cursor->run < bound->run_count) return;
    cursor->run = 0;
    if (++cursor->outer < cursor->outer_steps) {
        set_outer(cursor);
        return;
    }
    cursor->outer = 0;
    cursor->at = NULL;
    if (++cursor->box < (size_t)bound->folded.shape.boxes) return;
    cursor->box = 0;
    cursor->bound++;
}

/** Takes the next move before any joining. Returns false at the end. */
static bool take(struct kvf_cursor *cursor, struct kvf_move *move)
{
    bool more = cursor->bound < cursor->binding->bound_count;

    if (!more) goto done;
    if (!cursor->at) enter_box(cursor);
    make_move(cursor, move);
    step(cursor);
done:
    return more;
}

enum kvf_status kvf_cursor_create(const kvf_binding *binding, kvf_cursor **out, struct kvf_error *error)
{
    kvf_cursor *cursor;

    if (!binding || !out)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "cursor: the binding or the result is NULL");
    cursor = kvfi_alloc_zeroed(1, sizeof *cursor);
    if (!cursor) return kvfi_fail_memory(error, "a cursor");
    cursor->binding = binding;
    *out = cursor;
    return KVF_OK;
}

void kvf_cursor_destroy(kvf_cursor *cursor)
{
    free(cursor);
}

/** True when `b` begins where the loop-free `a` ends, on both sides. */
static bool touches(const struct kvf_move *a, const struct kvf_move *b)
{
    return b->loop_count == 0 && a->src_memory == b->src_memory && a->dst_memory == b->dst_memory &&
           b->src_offset_bytes - a->src_offset_bytes == a->run_bytes &&
           b->dst_offset_bytes - a->dst_offset_bytes == a->run_bytes;
}

enum kvf_status kvf_cursor_next(kvf_cursor *cursor, struct kvf_move *out)
{
    enum kvf_status status = KVF_OK;

    if (!cursor->has_ahead && !take(cursor, &cursor->ahead)) {
        status = KVF_ERR_NOT_FOUND;
        goto done;
    }
    *out = cursor->ahead;
    cursor->has_ahead = false;
    if (out->loop_count > 0) goto done;
    while ((cursor->has_ahead = take(cursor, &cursor->ahead)) && touches(out, &cursor->ahead))
        out->run_bytes += cursor->ahead.run_bytes;
done:
    return status;
}

/** Finds the run that holds comb number `comb`. */
static size_t find_run(const struct kvfi_bound *bound, int64_t comb)
{
    size_t low = 0, high = bound->run_count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (bound->runs[middle].first <= comb) low = middle;
        else high = middle;
    }
    return low;
}

/** Finds the shape that holds a packed byte. */
static size_t find_bound(const struct kvf_binding *binding, int64_t offset)
{
    size_t low = 0, high = binding->bound_count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (binding->bound[middle].first_byte <= offset) low = middle;
        else high = middle;
    }
    return low;
}

/** Goes to the move of this box that holds byte `offset` of the box. Returns the bytes of the move before it. */
static int64_t seek_in_box(struct kvf_cursor *cursor, const struct kvfi_bound *bound, int64_t offset)
{
    int64_t comb_bytes = cursor->at->run_bytes;

    if (bound->run_count > 1) {
        for (int64_t i = cursor->place; i < cursor->at->loop_count; i++) comb_bytes *= cursor->at->loops[i].count;
        cursor->outer = offset / (comb_bytes * bound->combs);
        offset %= comb_bytes * bound->combs;
        cursor->run = find_run(bound, offset / comb_bytes);
        offset -= bound->runs[cursor->run].first * comb_bytes;
        set_outer(cursor);
    }
    return offset;
}

enum kvf_status kvf_cursor_seek(kvf_cursor *cursor, int64_t offset_bytes, int64_t *skip_bytes)
{
    const struct kvf_binding *binding = cursor->binding;
    const struct kvfi_bound *bound;
    enum kvf_status status = KVF_OK;
    int64_t rest, box_bytes = 0;

    if (offset_bytes < 0 || offset_bytes > binding->info.bytes) {
        status = KVF_ERR_OUT_OF_RANGE;
        goto done;
    }
    *cursor = (struct kvf_cursor){.binding = binding, .bound = binding->bound_count};
    *skip_bytes = 0;
    if (offset_bytes == binding->info.bytes) goto done;
    cursor->bound = find_bound(binding, offset_bytes);
    bound = &binding->bound[cursor->bound];
    rest = offset_bytes - bound->first_byte;
    while (kvfi_box_bytes(&bound->folded.boxes[cursor->box], &box_bytes) && rest >= box_bytes * bound->combs) {
        rest -= box_bytes * bound->combs;
        cursor->box++;
    }
    enter_box(cursor);
    *skip_bytes = seek_in_box(cursor, bound, rest);
done:
    return status;
}

int64_t kvf_binding_bytes(const kvf_binding *binding)
{
    return binding->info.bytes;
}

/** Counts the runs without walking the moves: exact where every box keeps a loop inside the blocks, since then no block
 *  loop becomes part of a run and no two moves become one. Returns -1 where that is not so. */
static int64_t runs_of_loops(const struct kvf_binding *binding)
{
    const struct kvf_pool *pools = binding->plan->dst->spec.pools;
    int64_t runs = 0;

    for (size_t i = 0; i < binding->bound_count; i++) {
        const struct kvfi_bound *bound = &binding->bound[i];

        for (int64_t b = 0; b < bound->folded.shape.boxes; b++) {
            const struct kvf_box *box = &bound->folded.boxes[b];
            int64_t product = bound->combs;

            if (place_of_blocks(box, pools[box->dst_pool].slot_stride_bytes) == box->loop_count) return -1;
            for (int64_t loop = 0; loop < box->loop_count; loop++) product *= box->loops[loop].count;
            runs += product;
        }
    }
    return runs;
}

static int64_t runs_of_moves(const struct kvf_binding *binding)
{
    struct kvf_cursor cursor = {.binding = binding};
    struct kvf_move move;
    int64_t runs = 0;

    while (kvf_cursor_next(&cursor, &move) == KVF_OK) {
        int64_t product = 1;

        for (int64_t i = 0; i < move.loop_count; i++) product *= move.loops[i].count;
        runs += product;
    }
    return runs;
}

void kvf_binding_get_info(const kvf_binding *binding, struct kvf_binding_info *info)
{
    kvf_binding *own = (kvf_binding *)binding; /* only the count of runs is written, always to the same value */
    int64_t runs = atomic_load_explicit(&own->runs, memory_order_relaxed);

    if (runs < 0) {
        runs = runs_of_loops(binding);
        if (runs < 0) runs = runs_of_moves(binding);
        atomic_store_explicit(&own->runs, runs, memory_order_relaxed);
    }
    *info = binding->info;
    info->runs = runs;
}
