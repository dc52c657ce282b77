/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "layout_json/instance.h"

/* Comparisons of byte ranges that one check may take: far above any real instance, far below a hang. */
#define MAX_STEPS ((int64_t)1 << 27)

/* A rank's part in one role and layer. */
struct held {
    int64_t layer;
    const struct kvf_holding *row;
    const struct kvf_rank *rank;
};

struct check {
    struct held *held; /* sorted: role, layer, stripe, units */
    size_t count, capacity;
    int64_t *cuts; /* byte bounds of one role and layer */
    int64_t steps;
    struct kvf_error *error;
};

static int compare(int64_t a, int64_t b) { return (a > b) - (a < b); }

static int by_role_layer(const void *left, const void *right)
{
    const struct held *a = left, *b = right;
    int order = strcmp(a->row->role, b->row->role);

    if (order == 0) order = compare(a->layer, b->layer);
    if (order == 0) order = compare(a->row->stripe, b->row->stripe);
    if (order == 0) order = compare(a->row->unit_first, b->row->unit_first);
    if (order == 0) order = compare(a->row->unit_count, b->row->unit_count);
    if (order == 0) order = (a->rank > b->rank) - (a->rank < b->rank);
    return order;
}

static int by_number(const void *left, const void *right)
{
    return compare(*(const int64_t *)left, *(const int64_t *)right);
}

static enum kvf_status gather(const struct kvf_instance *instance, struct check *check)
{
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < instance->rank_count; i++) {
        size_t row_count;
        const struct kvf_holding *rows = kvf_holdings_rows(instance->ranks[i].holdings, &row_count);

        for (size_t r = 0; r < row_count; r++) {
            for (size_t l = 0; l < rows[r].layer_count; l++) {
                if (!kvfi_array_grow((void **)&check->held, check->count, &check->capacity, sizeof *check->held)) {
                    status = kvfi_fail_memory(check->error, "instance");
                    goto done;
                }
                check->held[check->count++] =
                    (struct held){rows[r].layers[l], &rows[r], &instance->ranks[i].rank};
            }
        }
    }
    qsort(check->held, check->count, sizeof *check->held, by_role_layer);
done:
    return status;
}

static enum kvf_status fail_pair(const struct check *check, const struct held *a, const struct held *b,
                                 const char *field, int64_t value_a, int64_t value_b)
{
    char text_a[KVFI_RANK_TEXT_BYTES], text_b[KVFI_RANK_TEXT_BYTES];

    return kvfi_fail(check->error, KVF_ERR_LAYOUT, "%s layer %" PRId64 ": %s is %" PRId64 " on %s and %" PRId64
                     " on %s", a->row->role, a->layer, field, value_a, kvfi_rank_text(a->rank, text_a), value_b,
                     kvfi_rank_text(b->rank, text_b));
}

/* What is the same for all ranks of a model. */
static enum kvf_status check_alike(const struct check *check, const struct held *a, const struct held *b)
{
    const struct kvf_holding *x = a->row, *y = b->row;
    char text_a[KVFI_RANK_TEXT_BYTES], text_b[KVFI_RANK_TEXT_BYTES];
    enum kvf_status status = KVF_OK;

    if (strcmp(x->tag, y->tag) != 0) {
        status = kvfi_fail(check->error, KVF_ERR_LAYOUT, "%s layer %" PRId64 ": tag is \"%s\" on %s and \"%s\" on %s",
                           x->role, a->layer, x->tag, kvfi_rank_text(a->rank, text_a), y->tag,
                           kvfi_rank_text(b->rank, text_b));
    } else if (x->row_bytes != y->row_bytes) {
        status = fail_pair(check, a, b, "row_bytes", x->row_bytes, y->row_bytes);
    } else if (x->unit_total != y->unit_total) {
        status = fail_pair(check, a, b, "unit_total", x->unit_total, y->unit_total);
    } else if (x->stripes != y->stripes) {
        status = fail_pair(check, a, b, "stripes", x->stripes, y->stripes);
    } else if (x->stripe_tokens != y->stripe_tokens) {
        status = fail_pair(check, a, b, "stripe_tokens", x->stripe_tokens, y->stripe_tokens);
    }
    return status;
}

static enum kvf_status fail_gap(const struct check *check, const struct held *held, int64_t first, int64_t end)
{
    const struct kvf_holding *row = held->row;
    char stripe[64] = "";

    if (row->stripes > 1) snprintf(stripe, sizeof stripe, " of stripe %" PRId64, row->stripe);
    return kvfi_fail(check->error, KVF_ERR_LAYOUT, "%s layer %" PRId64 ": units %" PRId64 " to %" PRId64 " of %" PRId64
                     "%s are on no rank", row->role, held->layer, first, end, row->unit_total, stripe);
}

/* Units of one stripe at one byte of the row: without gaps, and where ranks share units they share all of them. A byte
 * that nobody holds is no matter here. */
static enum kvf_status check_units(const struct check *check, const struct held *held, size_t count, int64_t byte)
{
    const struct held *last = NULL;
    char text_a[KVFI_RANK_TEXT_BYTES], text_b[KVFI_RANK_TEXT_BYTES];
    int64_t covered = 0;
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < count; i++) {
        const struct kvf_holding *row = held[i].row;

        if (row->byte_first > byte || row->byte_first + row->byte_count <= byte) continue;
        if (last && row->unit_first == last->row->unit_first && row->unit_count == last->row->unit_count) continue;
        if (row->unit_first < covered) {
            status = kvfi_fail(check->error, KVF_ERR_LAYOUT, "%s layer %" PRId64 ": units %" PRId64 " to %" PRId64
                               " on %s and units %" PRId64 " to %" PRId64 " on %s overlap without being equal",
                               row->role, held[i].layer, last->row->unit_first, covered,
                               kvfi_rank_text(last->rank, text_a), row->unit_first, row->unit_first + row->unit_count,
                               kvfi_rank_text(held[i].rank, text_b));
            goto done;
        }
        if (row->unit_first > covered) {
            status = fail_gap(check, &held[i], covered, row->unit_first);
            goto done;
        }
        covered = row->unit_first + row->unit_count;
        last = &held[i];
    }
    if (last && covered < last->row->unit_total) status = fail_gap(check, last, covered, last->row->unit_total);
done:
    return status;
}

/* All ranks of one stripe of one role and layer. */
static enum kvf_status check_stripe(struct check *check, const struct held *held, size_t count)
{
    enum kvf_status status = KVF_OK;
    size_t cuts = 0, kept = 0;

    for (size_t i = 0; i < count; i++) {
        check->cuts[cuts++] = held[i].row->byte_first;
        check->cuts[cuts++] = held[i].row->byte_first + held[i].row->byte_count;
    }
    qsort(check->cuts, cuts, sizeof *check->cuts, by_number);
    for (size_t i = 0; i < cuts; i++) {
        if (i == 0 || check->cuts[i] != check->cuts[i - 1]) check->cuts[kept++] = check->cuts[i];
    }
    check->steps += (int64_t)kept * (int64_t)count;
    if (check->steps > MAX_STEPS) {
        status = kvfi_fail(check->error, KVF_ERR_LIMIT, "%s layer %" PRId64 ": %zu views with %zu byte ranges are too "
                           "many to check", held->row->role, held->layer, count, kept);
        goto done;
    }
    for (size_t i = 0; i < kept && status == KVF_OK; i++) status = check_units(check, held, count, check->cuts[i]);
done:
    return status;
}

/* All ranks of one role and layer. */
static enum kvf_status check_layer(struct check *check, const struct held *held, size_t count)
{
    enum kvf_status status = KVF_OK;
    int64_t stripe = 0;

    for (size_t i = 1; i < count && status == KVF_OK; i++) status = check_alike(check, &held[i - 1], &held[i]);
    for (size_t i = 0, end; i < count && status == KVF_OK; i = end, stripe++) {
        for (end = i; end < count && held[end].row->stripe == held[i].row->stripe; end++) continue;
        if (held[i].row->stripe == stripe) status = check_stripe(check, held + i, end - i);
        else break;
    }
    if (status == KVF_OK && stripe < held->row->stripes) {
        status = kvfi_fail(check->error, KVF_ERR_LAYOUT, "%s layer %" PRId64 ": stripe %" PRId64 " of %" PRId64
                           " is on no rank", held->row->role, held->layer, stripe, held->row->stripes);
    }
    return status;
}

enum kvf_status kvfi_instance_check(const struct kvf_instance *instance, struct kvf_error *error)
{
    struct check check = {.error = error};
    enum kvf_status status = gather(instance, &check);

    if (status != KVF_OK) goto done;
    check.cuts = kvfi_alloc_array(check.count, 2 * sizeof *check.cuts);
    if (!check.cuts) {
        status = kvfi_fail_memory(error, "instance");
        goto done;
    }
    for (size_t i = 0, end; i < check.count && status == KVF_OK; i = end) {
        const struct held *first = &check.held[i];

        for (end = i; end < check.count && check.held[end].layer == first->layer &&
                      strcmp(check.held[end].row->role, first->row->role) == 0; end++) continue;
        if (!(first->row->flags & KVF_VIEW_OPTIONAL)) status = check_layer(&check, first, end - i);
    }
done:
    free(check.cuts);
    free(check.held);
    return status;
}
