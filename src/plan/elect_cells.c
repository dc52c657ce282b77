/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/compare.h"
#include "base/error.h"
#include "plan/elect.h"

/* Answers that one election may have; a bound on its memory, far above any real instance. */
enum { MOST_ANSWERS = 2 * 1024 * 1024 };

/* Working space of one class. */
struct work {
    const struct kvfi_elect_class *job;
    struct kvfi_elected_list *list;
    int64_t *units, *bytes; /* where the destination's ranges are cut, ends included */
    size_t unit_cuts, byte_cuts;
    struct kvfi_holder *active; /* holders of the present unit slab, in rank order */
    size_t active_count;
    struct kvfi_holder *cover; /* those of them that cover the present cell, in rank order */
    struct kvfi_holder *copies; /* the same, one stripe after the other */
    size_t *stripe_start;
};

static int compare_cuts(const void *left, const void *right)
{
    return kvfi_compare_i64(*(const int64_t *)left, *(const int64_t *)right);
}

static int compare_holders(const void *left, const void *right)
{
    const struct kvfi_holder *a = left, *b = right;
    int order = kvfi_compare_i64(a->row->unit_first, b->row->unit_first);

    return order ? order : kvfi_compare_size(a->rank, b->rank);
}

/* Sorts cuts, keeps each once and only those inside [first, end]. */
static size_t tidy_cuts(int64_t *cuts, size_t count, int64_t first, int64_t end)
{
    size_t kept = 0;

    qsort(cuts, count, sizeof *cuts, compare_cuts);
    for (size_t i = 0; i < count; i++) {
        if (cuts[i] >= first && cuts[i] <= end && (kept == 0 || cuts[kept - 1] != cuts[i])) cuts[kept++] = cuts[i];
    }
    return kept;
}

static void cut(struct work *work)
{
    const struct kvf_holding *row = work->job->row;
    size_t count = 0;

    for (size_t i = 0; i < work->job->holder_count; i++) {
        const struct kvf_holding *holder = work->job->holders[i].row;

        work->units[count] = holder->unit_first;
        work->bytes[count++] = holder->byte_first;
        work->units[count] = holder->unit_first + holder->unit_count;
        work->bytes[count++] = holder->byte_first + holder->byte_count;
    }
    work->units[count] = row->unit_first;
    work->bytes[count++] = row->byte_first;
    work->units[count] = row->unit_first + row->unit_count;
    work->bytes[count++] = row->byte_first + row->byte_count;
    work->unit_cuts = tidy_cuts(work->units, count, row->unit_first, row->unit_first + row->unit_count);
    work->byte_cuts = tidy_cuts(work->bytes, count, row->byte_first, row->byte_first + row->byte_count);
}

/* Appends one cell for every layer of the class. */
static enum kvf_status append(struct work *work, size_t source, struct kvf_cell cell, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvfi_elected_list *list = work->list;

    if (work->job->layer_count > MOST_ANSWERS - list->count) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "election of %s has more than %d cells", cell.role, MOST_ANSWERS);
        goto done;
    }
    for (size_t i = 0; i < work->job->layer_count; i++) {
        if (!kvfi_array_grow((void **)&list->items, list->count, &list->capacity, sizeof *list->items)) {
            status = kvfi_fail_memory(error, "election");
            goto done;
        }
        cell.layer = work->job->layers[i];
        list->items[list->count++] = (struct kvfi_elected){source, cell};
    }
done:
    return status;
}

/* A cell that nobody holds, or of which stripe number `stripe` has no holder (-1: none has). */
static enum kvf_status miss(struct work *work, const struct kvf_cell *cell, int64_t stripe, int64_t stripes,
                            struct kvf_error *error)
{
    const struct kvf_holding *row = work->job->row;
    int64_t unit_end = cell->unit_first + cell->unit_count, byte_end = cell->byte_first + cell->byte_count;
    char bytes[64] = "";
    enum kvf_status status;

    if (row->flags & KVF_VIEW_OPTIONAL) {
        status = append(work, SIZE_MAX, *cell, error);
        goto done;
    }
    if (cell->byte_count != row->row_bytes) {
        snprintf(bytes, sizeof bytes, " bytes [%" PRId64 ",%" PRId64 ")", cell->byte_first, byte_end);
    }
    if (stripe >= 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s layer %" PRId64 " units [%" PRId64 ",%" PRId64
                           ")%s: no source rank holds stripe %" PRId64 " of %" PRId64, cell->role, work->job->layers[0],
                           cell->unit_first, unit_end, bytes, stripe, stripes);
    } else {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s layer %" PRId64 " units [%" PRId64 ",%" PRId64
                           ")%s: no source rank holds them", cell->role, work->job->layers[0], cell->unit_first,
                           unit_end, bytes);
    }
done:
    return status;
}

static enum kvf_status check_stripes(const struct work *work, size_t count, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    const struct kvfi_holder *first = &work->cover[0];

    for (size_t i = 1; i < count && status == KVF_OK; i++) {
        const struct kvfi_holder *other = &work->cover[i];

        if (other->row->stripes != first->row->stripes || other->row->stripe_tokens != first->row->stripe_tokens) {
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s layer %" PRId64 ": source ranks %zu and %zu stripe it "
                               "in different ways: %" PRId64 " stripes of %" PRId64 " tokens and %" PRId64 " of %"
                               PRId64, first->row->role, work->job->layers[0], first->member, other->member,
                               first->row->stripes, first->row->stripe_tokens, other->row->stripes,
                               other->row->stripe_tokens);
        }
    }
    return status;
}

static bool touches(const struct kvf_holding *row, const struct kvf_cell *cell)
{
    return row->unit_first < cell->unit_first + cell->unit_count &&
           cell->unit_first < row->unit_first + row->unit_count &&
           row->byte_first < cell->byte_first + cell->byte_count &&
           cell->byte_first < row->byte_first + row->byte_count;
}

/* Counts the destination ranks that want the cell at the same positions, and finds the destination's number. */
static void count_rivals(const struct kvfi_elect_class *job, const struct kvf_cell *cell, size_t *count, size_t *own)
{
    size_t last = SIZE_MAX;

    *count = 0;
    *own = 0;
    for (size_t i = 0; i < job->rival_count; i++) {
        const struct kvfi_holder *rival = &job->rivals[i];

        if (rival->rank == last || rival->row->stripes != job->row->stripes ||
            rival->row->stripe != job->row->stripe || rival->row->stripe_tokens != job->row->stripe_tokens ||
            !touches(rival->row, cell)) continue;
        last = rival->rank;
        if (rival->rank == job->rank) *own = *count;
        ++*count;
    }
}

/* Puts the covering holders one stripe after the other. Returns the first stripe that none has, -1 when all are
 * there. */
static int64_t sort_stripes(struct work *work, size_t count)
{
    size_t stripes = work->cover[0].row->stripes > (int64_t)count ? count : (size_t)work->cover[0].row->stripes;
    size_t *start = work->stripe_start;
    int64_t missing = work->cover[0].row->stripes > (int64_t)stripes ? (int64_t)stripes : -1;

    memset(start, 0, (stripes + 1) * sizeof *start);
    for (size_t i = 0; i < count; i++) {
        if (work->cover[i].row->stripe < (int64_t)stripes) start[work->cover[i].row->stripe + 1]++;
    }
    for (size_t i = stripes; i > 0; i--) {
        if (start[i] == 0) missing = (int64_t)i - 1;
    }
    if (missing >= 0) goto done;
    for (size_t i = 0; i < stripes; i++) start[i + 1] += start[i];
    for (size_t i = 0; i < count; i++) work->copies[start[work->cover[i].row->stripe]++] = work->cover[i];
    for (size_t i = stripes; i > 0; i--) start[i] = start[i - 1];
    start[0] = 0;
done:
    return missing;
}

/* The formula that shares `copies` of a cell among `rivals` that want it. */
static size_t choose(size_t copies, size_t rivals, size_t own, int64_t salt)
{
    size_t low = own * copies / rivals, high = (own + 1) * copies / rivals;
    int64_t size, turn;

    if (high < low + 1) high = low + 1;
    size = (int64_t)(high - low);
    turn = salt % size;
    return low + (size_t)(turn < 0 ? turn + size : turn);
}

/* Elects one cell that `count` holders cover. */
static enum kvf_status elect_cell(struct work *work, struct kvf_cell cell, size_t count, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t rivals, own, stripes;
    int64_t missing;

    if (count == 0) {
        status = miss(work, &cell, -1, 0, error);
        goto done;
    }
    status = check_stripes(work, count, error);
    if (status != KVF_OK) goto done;
    missing = sort_stripes(work, count);
    if (missing >= 0) {
        status = miss(work, &cell, missing, work->cover[0].row->stripes, error);
        goto done;
    }
    count_rivals(work->job, &cell, &rivals, &own);
    stripes = (size_t)work->cover[0].row->stripes;
    for (size_t i = 0; i < stripes && status == KVF_OK; i++) {
        size_t first = work->stripe_start[i];
        size_t winner = choose(work->stripe_start[i + 1] - first, rivals, own, work->job->salt);

        status = append(work, work->copies[first + winner].member, cell, error);
    }
done:
    return status;
}

/* Brings the active holders to the slab of units that starts at `unit`; `*next` is the first holder not yet met. */
static enum kvf_status move_to(struct work *work, int64_t unit, size_t *next, struct kvf_error *error)
{
    const struct kvfi_elect_class *job = work->job;
    enum kvf_status status = kvfi_elect_spend(work->list, work->active_count + 1, job->row->role, error);
    size_t kept = 0;

    if (status != KVF_OK) goto done;

    for (size_t i = 0; i < work->active_count; i++) {
        const struct kvf_holding *row = work->active[i].row;

        if (row->unit_first + row->unit_count > unit) work->active[kept++] = work->active[i];
    }
    for (; status == KVF_OK && *next < job->holder_count && job->holders[*next].row->unit_first <= unit; ++*next) {
        const struct kvfi_holder holder = job->holders[*next];
        size_t at = kept;

        if (holder.row->unit_first + holder.row->unit_count <= unit) continue;
        for (; at > 0 && work->active[at - 1].rank > holder.rank; at--) work->active[at] = work->active[at - 1];
        work->active[at] = holder;
        status = kvfi_elect_spend(work->list, ++kept - at, job->row->role, error);
    }
    work->active_count = kept;
done:
    return status;
}

static size_t find_cover(struct work *work, const struct kvf_cell *cell)
{
    size_t count = 0;

    for (size_t i = 0; i < work->active_count; i++) {
        const struct kvf_holding *row = work->active[i].row;

        if (row->byte_first <= cell->byte_first &&
            row->byte_first + row->byte_count >= cell->byte_first + cell->byte_count) {
            work->cover[count++] = work->active[i];
        }
    }
    return count;
}

static enum kvf_status elect_cells(struct work *work, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t next = 0;

    qsort(work->job->holders, work->job->holder_count, sizeof *work->job->holders, compare_holders);
    for (size_t u = 0; u + 1 < work->unit_cuts && status == KVF_OK; u++) {
        status = move_to(work, work->units[u], &next, error);
        for (size_t b = 0; b + 1 < work->byte_cuts && status == KVF_OK; b++) {
            const struct kvf_cell cell = {work->job->row->role, 0, work->units[u], work->units[u + 1] - work->units[u],
                                          work->bytes[b], work->bytes[b + 1] - work->bytes[b]};

            status = kvfi_elect_spend(work->list, work->active_count + work->job->rival_count + 1, cell.role, error);
            if (status == KVF_OK) status = elect_cell(work, cell, find_cover(work, &cell), error);
        }
    }
    return status;
}

enum kvf_status kvfi_elect_class(const struct kvfi_elect_class *job, struct kvfi_elected_list *list,
                                 struct kvf_error *error)
{
    enum kvf_status status;
    size_t count = job->holder_count;
    struct work work = {.job = job, .list = list};

    work.units = kvfi_alloc_array(2 * count + 2, sizeof *work.units);
    work.bytes = kvfi_alloc_array(2 * count + 2, sizeof *work.bytes);
    work.active = kvfi_alloc_array(count, sizeof *work.active);
    work.cover = kvfi_alloc_array(count, sizeof *work.cover);
    work.copies = kvfi_alloc_array(count, sizeof *work.copies);
    work.stripe_start = kvfi_alloc_array(count + 1, sizeof *work.stripe_start);
    if (!work.units || !work.bytes || !work.active || !work.cover || !work.copies || !work.stripe_start) {
        status = kvfi_fail_memory(error, "election");
        goto done;
    }
    cut(&work);
    status = elect_cells(&work, error);
done:
    free(work.stripe_start);
    free(work.copies);
    free(work.cover);
    free(work.active);
    free(work.bytes);
    free(work.units);
    return status;
}
