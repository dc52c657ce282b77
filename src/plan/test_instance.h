/* SPDX-License-Identifier: Apache-2.0 */
/** @file test_instance.h  Small instances for tests of election: ranks with rows, and who sends what as text. */
#ifndef KVFI_PLAN_TEST_INSTANCE_H
#define KVFI_PLAN_TEST_INSTANCE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvferry/plan.h"

enum { TEST_RANKS = 1024, TEST_LAYERS = 96 };

struct test_instance {
    struct kvf_member members[TEST_RANKS];
    size_t count;
};

/** A row of one role with a range of layers. */
struct test_row {
    const char *role;
    int64_t unit_total, unit_first, unit_count;
    int64_t row_bytes, byte_first, byte_count;
    int64_t stripes, stripe, stripe_tokens;
    int64_t layer_first, layer_count;
    uint32_t flags;
};

static inline struct test_row test_units(const char *role, int64_t total, int64_t first, int64_t count, int64_t layers)
{
    return (struct test_row){role, total, first, count, 16, 0, 16, 1, 0, 0, 0, layers, 0};
}

/** Adds a rank with some rows; exits when they are refused. */
static inline void test_add(struct test_instance *instance, struct kvf_rank rank, const struct test_row *rows,
                            size_t row_count)
{
    struct kvf_holding holdings[8];
    int64_t layers[8][TEST_LAYERS];
    struct kvf_error error = {0};
    kvf_holdings *own = NULL;

    for (size_t i = 0; i < row_count; i++) {
        const struct test_row *row = &rows[i];

        for (int64_t j = 0; j < row->layer_count; j++) layers[i][j] = row->layer_first + j;
        holdings[i] = (struct kvf_holding){row->role, "bf16", row->row_bytes, row->byte_first, row->byte_count,
                                           row->unit_total, row->unit_first, row->unit_count, row->stripes,
                                           row->stripe, row->stripe_tokens, row->flags, 0, layers[i],
                                           (size_t)row->layer_count};
    }
    if (kvf_holdings_create(holdings, row_count, &own, &error) != KVF_OK) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    instance->members[instance->count++] = (struct kvf_member){rank, own};
}

/** A TP grid of `ranks` with `heads` heads of k in `layers` layers; copies of heads when there are more ranks. */
static inline void test_add_heads(struct test_instance *instance, int64_t heads, int64_t ranks, int64_t layers)
{
    for (int64_t tp = 0; tp < ranks; tp++) {
        int64_t first = tp * heads / ranks;
        int64_t count = ranks > heads ? 1 : (tp + 1) * heads / ranks - first;
        const struct test_row row = test_units("k", heads, first, count, layers);

        test_add(instance, (struct kvf_rank){.tp = tp}, &row, 1);
    }
}

static inline void test_fini(struct test_instance *instance)
{
    for (size_t i = 0; i < instance->count; i++) kvf_holdings_release((kvf_holdings *)instance->members[i].holdings);
    instance->count = 0;
}

/** Writes who sends what of one role and layer to one rank: "source:first-end[/byte-end] ...", or the refusal. */
static inline void test_describe(const struct test_instance *src, const struct test_instance *dst, size_t destination,
                                 const char *role, int64_t layer, char *text, size_t bytes)
{
    struct kvf_error error = {0};
    kvf_election *election = NULL;
    size_t at = 0;

    text[0] = 0;
    if (kvf_elect(src->members, src->count, dst->members, dst->count, destination, &election, &error) != KVF_OK) {
        snprintf(text, bytes, "%s", error.text);
    }
    for (size_t source = 0; election && source < src->count; source++) {
        const kvf_share *share = kvf_election_share(election, source);

        for (size_t i = 0; share && i < kvf_share_count(share); i++) {
            const struct kvf_cell cell = kvf_share_cell(share, i);

            if (strcmp(cell.role, role) != 0 || cell.layer != layer) continue;
            at += (size_t)snprintf(text + at, bytes - at, "%s%zu:%lld-%lld", at ? " " : "", source,
                                   (long long)cell.unit_first, (long long)(cell.unit_first + cell.unit_count));
            if (cell.byte_first || cell.byte_count != 16) {
                at += (size_t)snprintf(text + at, bytes - at, "/%lld-%lld", (long long)cell.byte_first,
                                       (long long)(cell.byte_first + cell.byte_count));
            }
        }
    }
    kvf_election_destroy(election);
}

#endif
