/* SPDX-License-Identifier: Apache-2.0 */
/* The walk over a nest: whatever the cuts, the same bytes in the same order. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "copy/walk.h"

struct nest_row {
    const char *name;
    struct kvf_move move;
};

static const struct nest_row nests[] = {
    {"one run", {.run_bytes = 37, .loop_count = 0}},
    {"one loop", {.run_bytes = 16, .loop_count = 1, .loops = {{5, 48, 32}}}},
    {"rows touch at the destination", {.run_bytes = 8, .loop_count = 2, .loops = {{4, 8, 24}, {3, 64, 8}}}},
    {"all touches on both sides", {.run_bytes = 8, .loop_count = 2, .loops = {{4, 24, 24}, {3, 8, 8}}}},
    {"three loops, source backwards",
     {.run_bytes = 6, .loop_count = 3, .loops = {{3, -400, 500}, {2, 90, 200}, {4, 7, 9}}}},
    {"five loops",
     {.run_bytes = 4,
      .loop_count = 5,
      .loops = {{2, 4000, 5000}, {2, 1000, 1300}, {2, 300, 400}, {3, 60, 70}, {2, 10, 20}}}},
    {"counts of one", {.run_bytes = 4, .loop_count = 4, .loops = {{1, 9, 9}, {3, 100, 200}, {1, 7, 7}, {2, 10, 20}}}},
};

enum { BASE_SRC = 100000, BASE_DST = 200000, MAX_BYTES = 1024 };

struct pairs {
    size_t count;
    uint64_t src[MAX_BYTES], dst[MAX_BYTES];
};

static void add_run(struct pairs *pairs, uint64_t src, uint64_t dst, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++) {
        assert_true(pairs->count < MAX_BYTES);
        pairs->src[pairs->count] = src + (uint64_t)i;
        pairs->dst[pairs->count++] = dst + (uint64_t)i;
    }
}

static void expand(const struct kvf_move *move, int64_t loop, uint64_t src, uint64_t dst, struct pairs *pairs)
{
    if (loop == move->loop_count || loop == (int64_t)(sizeof move->loops / sizeof *move->loops)) {
        add_run(pairs, src, dst, move->run_bytes);
        return;
    }
    for (int64_t i = 0; i < move->loops[loop].count; i++)
        expand(move, loop + 1, src + (uint64_t)(i * move->loops[loop].src_stride_bytes),
               dst + (uint64_t)(i * move->loops[loop].dst_stride_bytes), pairs);
}

static void add_tile(const struct kvfi_tile *tile, struct pairs *pairs)
{
    for (int64_t row = 0; row < tile->rows; row++) {
        for (int64_t column = 0; column < tile->columns; column++)
            add_run(pairs, (uintptr_t)tile->src + (uint64_t)(row * tile->src_row_stride + column * tile->src_stride),
                    (uintptr_t)tile->dst + (uint64_t)(row * tile->dst_row_stride + column * tile->dst_stride),
                    tile->run_bytes);
    }
}

/* Walks with pieces of at most `cut` bytes after passing over `skip`. */
static void check(const struct nest_row *nest, bool fold, int64_t skip, int64_t cut)
{
    struct pairs expected = {0}, found = {0};
    struct kvfi_walk walk;
    struct kvfi_tile tile;
    int64_t bytes;

    expand(&nest->move, 0, BASE_SRC, BASE_DST, &expected);
    kvfi_walk_start(&walk, &nest->move, BASE_SRC, BASE_DST);
    if (fold) kvfi_walk_fold(&walk);
    assert_int_equal(walk.left_bytes, (int64_t)expected.count);
    kvfi_walk_skip(&walk, skip);
    while ((bytes = kvfi_walk_take(&walk, cut, &tile)) > 0) {
        assert_true(bytes <= cut);
        add_tile(&tile, &found);
    }
    if (found.count != expected.count - (size_t)skip ||
        memcmp(found.src, expected.src + skip, found.count * sizeof found.src[0]) != 0 ||
        memcmp(found.dst, expected.dst + skip, found.count * sizeof found.dst[0]) != 0)
        fail_msg("%s: fold %d, skip %lld, cut %lld", nest->name, fold, (long long)skip, (long long)cut);
}

static void every_cut_and_every_start(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof nests / sizeof nests[0]; i++) {
        struct pairs all = {0};

        expand(&nests[i].move, 0, 0, 0, &all);
        for (int64_t cut = 1; cut <= (int64_t)all.count; cut++) {
            for (int fold = 0; fold < 2; fold++) {
                check(&nests[i], fold, 0, cut);
                check(&nests[i], fold, cut, 1 + cut % 29);
            }
        }
    }
}

static void folding_joins_what_touches(void **state)
{
    struct kvfi_walk walk;

    (void)state;
    kvfi_walk_start(&walk, &nests[3].move, BASE_SRC, BASE_DST);
    kvfi_walk_fold(&walk);
    assert_int_equal(walk.loop_count, 0);
    assert_int_equal(walk.run_bytes, 96);
    kvfi_walk_start(&walk, &nests[6].move, BASE_SRC, BASE_DST);
    kvfi_walk_fold(&walk);
    assert_int_equal(walk.loop_count, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_and_every_start),
        cmocka_unit_test(folding_joins_what_touches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
