/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks of the peer a rank meets: upstream's tests by their names, then further vectors. */
#include "trtllm/rank_kit.h"

#define MAX_RANKS 16

/* A rank's place; layers of its stages end with -1. */
struct grid {
    int64_t tp, tp_rank, pp, pp_rank, cp, cp_rank, dp, attention_dp;
    int64_t layers[6];
};

static kvf_trtllm_rank *make(const char *name, const struct grid *grid, int64_t heads)
{
    struct rank_kit kit;

    rank_kit_init(&kit, name);
    kit.spec.tp_size = grid->tp;
    kit.spec.tp_rank = grid->tp_rank;
    kit.spec.pp_size = grid->pp;
    kit.spec.pp_rank = grid->pp_rank;
    kit.spec.cp_size = grid->cp;
    kit.spec.cp_rank = grid->cp_rank;
    kit.spec.dp_size = grid->dp;
    kit.attention.enable_attention_dp = grid->attention_dp;
    kit.attention.kv_heads_per_rank = heads;
    for (size_t i = 0; grid->layers[i] >= 0; i++) {
        kit.stages[i] = grid->layers[i];
        kit.spec.layer_num_count = i + 1;
    }
    rank_kit_pt(&kit, 1024, 1, heads, 2, 0, 1);
    return rank_kit_make(&kit);
}

static struct kvf_trtllm_overlap get(const struct grid *self, int64_t self_heads, const struct grid *peer,
                                     int64_t peer_heads, int64_t dp_rank, int64_t ranks[MAX_RANKS])
{
    kvf_trtllm_rank *own = make("self", self, self_heads), *other = make("peer", peer, peer_heads);
    struct kvf_trtllm_overlap overlap;
    struct kvf_error error;

    assert_int_equal(kvf_trtllm_get_overlap(own, other, dp_rank, &overlap, ranks, MAX_RANKS, &error), KVF_OK);
    kvf_trtllm_rank_release(other);
    kvf_trtllm_rank_release(own);
    return overlap;
}

/* What is expected: `ranks` end with -1. */
struct row {
    struct grid self, peer;
    int64_t dp_rank, pp, tp, cp, dup, peer_dup;
    int64_t ranks[MAX_RANKS + 1];
};

static void check(const struct row *row)
{
    int64_t ranks[MAX_RANKS];
    struct kvf_trtllm_overlap overlap = get(&row->self, 2, &row->peer, 2, row->dp_rank, ranks);
    size_t count = 0;

    while (row->ranks[count] >= 0) count++;
    assert_int_equal(overlap.overlap_pp_size, row->pp);
    assert_int_equal(overlap.overlap_tp_size, row->tp);
    assert_int_equal(overlap.overlap_cp_size, row->cp);
    assert_int_equal(overlap.duplicate_head_factor, row->dup);
    assert_int_equal(overlap.peer_duplicate_head_factor, row->peer_dup);
    assert_int_equal(overlap.rank_count, count);
    assert_memory_equal(ranks, row->ranks, count * sizeof *ranks);
}

static void test_basic_overlap(void **state)
{
    (void)state;
    check(&(struct row){{1, 0, 1, 0, 1, 0, 1, 0, {2, -1}}, {1, 0, 2, 0, 1, 0, 1, 0, {1, 1, -1}}, 0, 2, 1, 1, 1, 1,
                        {0, 1, -1}});
}

static void test_no_overlap(void **state)
{
    (void)state;
    check(&(struct row){{1, 0, 1, 0, 1, 0, 1, 0, {0, -1}}, {1, 0, 1, 0, 1, 0, 1, 0, {2, -1}}, 0, 0, 0, 0, 1, 1, {-1}});
}

static void test_attention_free_stage_has_no_head_duplication(void **state)
{
    static const struct grid grid = {2, 0, 1, 0, 1, 0, 1, 0, {2, -1}};
    static const int64_t heads[3][2] = {{0, 0}, {0, 2}, {2, 0}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        int64_t ranks[MAX_RANKS];
        struct kvf_trtllm_overlap overlap = get(&grid, heads[i][0], &grid, heads[i][1], 0, ranks);

        assert_int_equal(overlap.duplicate_head_factor, 1);
        assert_int_equal(overlap.peer_duplicate_head_factor, 1);
        assert_int_equal(overlap.rank_count, 1);
        assert_int_equal(ranks[0], 0);
    }
}

static void test_pp_ratio_peer_smaller(void **state)
{
    (void)state;
    check(&(struct row){{1, 0, 2, 1, 1, 0, 1, 0, {1, 2, -1}}, {1, 0, 1, 0, 1, 0, 1, 0, {3, -1}}, 0, 1, 1, 1, 1, 1,
                        {0, -1}});
}

static void test_tp_overlap(void **state)
{
    (void)state;
    check(&(struct row){{2, 1, 1, 0, 1, 0, 1, 0, {2, -1}}, {4, 0, 1, 0, 1, 0, 1, 0, {2, -1}}, 0, 1, 2, 1, 1, 2,
                        {2, 3, -1}});
}

static void test_cp_overlap(void **state)
{
    (void)state;
    check(&(struct row){{1, 0, 1, 0, 2, 1, 1, 0, {2, -1}}, {1, 0, 1, 0, 4, 0, 1, 0, {2, -1}}, 0, 1, 1, 2, 1, 1,
                        {2, 3, -1}});
}

static void test_multiple_overlap(void **state)
{
    (void)state;
    check(&(struct row){{2, 1, 2, 1, 2, 1, 1, 0, {1, 2, -1}}, {4, 0, 4, 0, 4, 0, 1, 0, {1, 1, 1, 1, -1}}, 0, 2, 2, 2, 1,
                        2, {26, 27, 30, 31, 42, 43, 46, 47, -1}});
}

/* The flat rank counts CP fastest. */
static void test_rank_order(void **state)
{
    (void)state;
    check(&(struct row){{2, 1, 1, 0, 1, 0, 1, 0, {2, -1}}, {2, 0, 1, 0, 2, 0, 1, 0, {2, -1}}, 0, 1, 1, 2, 1, 1,
                        {2, 3, -1}});
}

static void test_empty_inner_stage(void **state)
{
    (void)state;
    check(&(struct row){{1, 0, 3, 1, 1, 0, 1, 0, {1, 0, 1, -1}}, {1, 0, 1, 0, 1, 0, 1, 0, {2, -1}}, 0, 1, 1, 1, 1, 1,
                        {0, -1}});
}

static void test_dp_group_addressing(void **state)
{
    (void)state;
    check(&(struct row){{2, 1, 1, 0, 1, 0, 1, 0, {2, -1}}, {8, 0, 1, 0, 1, 0, 4, 1, {2, -1}}, 3, 1, 1, 1, 1, 1,
                        {7, -1}});
}

static void test_refused(void **state)
{
    static const struct grid grid = {2, 0, 1, 0, 1, 0, 1, 0, {2, -1}};
    kvf_trtllm_rank *rank = make("self", &grid, 2);
    struct kvf_trtllm_overlap overlap = {.rank_count = 77};
    struct kvf_error error;

    (void)state;
    assert_int_equal(kvf_trtllm_get_overlap(rank, rank, -1, &overlap, NULL, 0, &error), KVF_ERR_OUT_OF_RANGE);
    assert_int_equal(kvf_trtllm_get_overlap(rank, rank, INT64_MAX, &overlap, NULL, 0, &error), KVF_ERR_OUT_OF_RANGE);
    assert_int_equal(overlap.rank_count, 77);
    assert_int_equal(kvf_trtllm_get_overlap(rank, rank, 0, &overlap, NULL, 0, &error), KVF_OK);
    assert_int_equal(overlap.rank_count, 1);
    kvf_trtllm_rank_release(rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_basic_overlap),
        cmocka_unit_test(test_no_overlap),
        cmocka_unit_test(test_attention_free_stage_has_no_head_duplication),
        cmocka_unit_test(test_pp_ratio_peer_smaller),
        cmocka_unit_test(test_tp_overlap),
        cmocka_unit_test(test_cp_overlap),
        cmocka_unit_test(test_multiple_overlap),
        cmocka_unit_test(test_rank_order),
        cmocka_unit_test(test_empty_inner_stage),
        cmocka_unit_test(test_dp_group_addressing),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
