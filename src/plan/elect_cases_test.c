/* SPDX-License-Identifier: Apache-2.0 */
/* Who sends what on grids that people run: copies of heads, latents, uneven cuts, pipeline stages, attention DP. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/test_instance.h"

/* TP grid to TP grid; per destination rank the senders. */
static const struct grid_case {
    const char *name;
    int64_t heads, src_ranks, dst_ranks;
    const char *expected[16];
} grid_cases[] = {
    {"4 heads, 8 to 1", 4, 8, 1, {"0:0-1 2:1-2 4:2-3 6:3-4"}},
    {"4 heads, 1 to 8", 4, 1, 8, {"0:0-1", "0:0-1", "0:1-2", "0:1-2", "0:2-3", "0:2-3", "0:3-4", "0:3-4"}},
    {"4 heads, 8 to 2", 4, 8, 2, {"0:0-1 2:1-2", "4:2-3 6:3-4"}},
    {"8 heads, 2 to 4", 8, 2, 4, {"0:0-2", "0:2-4", "1:4-6", "1:6-8"}},
    {"8 heads, 4 to 8", 8, 4, 8, {"0:0-1", "0:1-2", "1:2-3", "1:3-4", "2:4-5", "2:5-6", "3:6-7", "3:7-8"}},
    {"8 heads, 8 to 16", 8, 8, 16, {"0:0-1", "0:0-1", "1:1-2", "1:1-2", "2:2-3", "2:2-3", "3:3-4", "3:3-4", "4:4-5",
                                    "4:4-5", "5:5-6", "5:5-6", "6:6-7", "6:6-7", "7:7-8", "7:7-8"}},
    {"8 heads, 16 to 8", 8, 16, 8, {"0:0-1", "2:1-2", "4:2-3", "6:3-4", "8:4-5", "10:5-6", "12:6-7", "14:7-8"}},
    {"8 heads, 16 to 4", 8, 16, 4, {"0:0-1 2:1-2", "4:2-3 6:3-4", "8:4-5 10:5-6", "12:6-7 14:7-8"}},
    {"8 heads, 16 to 16", 8, 16, 16, {"0:0-1", "1:0-1", "2:1-2", "3:1-2", "4:2-3", "5:2-3", "6:3-4", "7:3-4", "8:4-5",
                                      "9:4-5", "10:5-6", "11:5-6", "12:6-7", "13:6-7", "14:7-8", "15:7-8"}},
    {"2 heads, 1 to 4", 2, 1, 4, {"0:0-1", "0:0-1", "0:1-2", "0:1-2"}},
    {"2 heads, 2 to 8", 2, 2, 8, {"0:0-1", "0:0-1", "0:0-1", "0:0-1", "1:1-2", "1:1-2", "1:1-2", "1:1-2"}},
    {"latent, 4 to 2", 1, 4, 2, {"0:0-1", "2:0-1"}},
    {"latent, 2 to 4", 1, 2, 4, {"0:0-1", "0:0-1", "1:0-1", "1:0-1"}},
    {"latent, 3 to 2", 1, 3, 2, {"0:0-1", "1:0-1"}},
    {"latent, 2 to 3", 1, 2, 3, {"0:0-1", "0:0-1", "1:0-1"}},
    {"4 heads, 4 to 1", 4, 4, 1, {"0:0-1 1:1-2 2:2-3 3:3-4"}},
    {"6 heads, 4 uneven to 3", 6, 4, 3, {"0:0-1 1:1-2", "1:2-3 2:3-4", "3:4-6"}},
};

static void test_grids(void **state)
{
    static struct test_instance src, dst;

    (void)state;
    for (size_t i = 0; i < sizeof grid_cases / sizeof grid_cases[0]; i++) {
        const struct grid_case *row = &grid_cases[i];

        test_add_heads(&src, row->heads, row->src_ranks, 2);
        test_add_heads(&dst, row->heads, row->dst_ranks, 2);
        for (size_t rank = 0; rank < dst.count; rank++) {
            for (int64_t layer = 0; layer < 2; layer++) {
                char text[512];

                test_describe(&src, &dst, rank, "k", layer, text, sizeof text);
                if (strcmp(text, row->expected[rank]) != 0) fail_msg("%s: rank %zu: %s", row->name, rank, text);
            }
        }
        test_fini(&src);
        test_fini(&dst);
    }
}

/* The winner rotates with the destination's salt. */
static void test_salt(void **state)
{
    static const struct { const char *name; int64_t heads, salt; const char *expected; } rows[] = {
        {"one unit, DP 0", 1, 0, "0:0-1"}, {"one unit, DP 1", 1, 1, "1:0-1"}, {"one unit, DP 3", 1, 3, "3:0-1"},
        {"one unit, DP 7", 1, 7, "7:0-1"}, {"one unit, DP 8", 1, 8, "0:0-1"}, {"below zero", 1, -1, "7:0-1"},
        {"2 heads, DP 0", 2, 0, "0:0-1 4:1-2"}, {"2 heads, DP 1", 2, 1, "1:0-1 5:1-2"},
        {"2 heads, DP 6", 2, 6, "2:0-1 6:1-2"},
    };
    static struct test_instance src, dst;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[512];

        test_add_heads(&src, rows[i].heads, 8, 1);
        test_add_heads(&dst, rows[i].heads, 1, 1);
        dst.members[0].rank.salt = rows[i].salt;
        test_describe(&src, &dst, 0, "k", 0, text, sizeof text);
        if (strcmp(text, rows[i].expected) != 0) fail_msg("%s: %s", rows[i].name, text);
        test_fini(&src);
        test_fini(&dst);
    }
}

/* Members need not be given in rank order; numbers in the answer are those of the arrays as given. */
static void test_any_order(void **state)
{
    static struct test_instance src, dst;
    struct kvf_member swap;
    char text[512];

    (void)state;
    test_add_heads(&src, 1, 4, 1);
    test_add_heads(&dst, 1, 2, 1);
    swap = src.members[0];
    src.members[0] = src.members[3];
    src.members[3] = swap;
    swap = dst.members[0];
    dst.members[0] = dst.members[1];
    dst.members[1] = swap;
    test_describe(&src, &dst, 0, "k", 0, text, sizeof text); /* rank 1 */
    assert_string_equal(text, "2:0-1");
    test_describe(&src, &dst, 1, "k", 0, text, sizeof text); /* rank 0 */
    assert_string_equal(text, "3:0-1");
    test_fini(&src);
    test_fini(&dst);
}

static void add_cut(struct test_instance *instance, const int64_t *bounds, size_t ranks)
{
    for (size_t tp = 0; tp < ranks; tp++) {
        const struct test_row row = test_units("k", bounds[ranks], bounds[tp], bounds[tp + 1] - bounds[tp], 1);

        test_add(instance, (struct kvf_rank){.tp = (int64_t)tp}, &row, 1);
    }
}

static void test_uneven(void **state)
{
    static const int64_t four[] = {0, 2, 4, 5, 6}, three[] = {0, 2, 4, 6};
    static const char *const expected[] = {"0:0-2", "1:2-4", "2:4-5 3:5-6"};
    static struct test_instance src, dst;
    char text[512];

    (void)state;
    add_cut(&src, four, 4);
    add_cut(&dst, three, 3);
    for (size_t rank = 0; rank < 3; rank++) {
        test_describe(&src, &dst, rank, "k", 0, text, sizeof text);
        assert_string_equal(text, expected[rank]);
    }
    test_fini(&src);
    test_fini(&dst);
}

/* 4 layers and heads: stages of layers 0-1 and 2-3 by TP 2 to one stage of TP 4. */
static void test_pipeline(void **state)
{
    static struct test_instance src, dst;
    char text[512];

    (void)state;
    for (int64_t pp = 0; pp < 2; pp++) {
        for (int64_t tp = 0; tp < 2; tp++) {
            struct test_row row = test_units("k", 4, 2 * tp, 2, 2);

            row.layer_first = 2 * pp;
            test_add(&src, (struct kvf_rank){.pp = pp, .tp = tp}, &row, 1);
        }
    }
    test_add_heads(&dst, 4, 4, 4);
    for (size_t rank = 0; rank < 4; rank++) {
        for (int64_t layer = 0; layer < 4; layer++) {
            char expected[32];

            snprintf(expected, sizeof expected, "%zu:%zu-%zu", (size_t)layer / 2 * 2 + rank / 2, rank, rank + 1);
            test_describe(&src, &dst, rank, "k", layer, text, sizeof text);
            assert_string_equal(text, expected);
        }
    }
    test_fini(&src);
    test_fini(&dst);
}

/* The other way: the rivals of a rank are those of its own stage only, so each stage shares the copies anew. */
static void test_pipeline_rivals(void **state)
{
    static struct test_instance src, dst;
    char text[512];

    (void)state;
    test_add_heads(&src, 1, 4, 4);
    for (int64_t pp = 0; pp < 2; pp++) {
        for (int64_t tp = 0; tp < 2; tp++) {
            struct test_row row = test_units("k", 1, 0, 1, 2);

            row.layer_first = 2 * pp;
            test_add(&dst, (struct kvf_rank){.pp = pp, .tp = tp}, &row, 1);
        }
    }
    for (size_t rank = 0; rank < 4; rank++) {
        test_describe(&src, &dst, rank, "k", (int64_t)rank / 2 * 2, text, sizeof text);
        assert_string_equal(text, rank % 2 ? "2:0-1" : "0:0-1");
        test_describe(&src, &dst, rank, "k", rank / 2 ? 0 : 3, text, sizeof text);
        assert_string_equal(text, "");
    }
    test_fini(&src);
    test_fini(&dst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grids), cmocka_unit_test(test_salt), cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_uneven), cmocka_unit_test(test_pipeline), cmocka_unit_test(test_pipeline_rivals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
