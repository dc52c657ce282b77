/* SPDX-License-Identifier: Apache-2.0 */
/* Who sends: upstream's tests by their names, then further vectors. */
#include "trtllm/mapper.h"
#include "trtllm/rank_kit.h"
#include "trtllm/rules.h"

#include <string.h>

/* A rank of PV views: heads per view, rank-wide the first of them. */
static kvf_trtllm_rank *make_pv(const char *name, int64_t tp, int64_t tp_rank, int first, int second)
{
    struct rank_kit kit;

    rank_kit_init(&kit, name);
    kit.spec.tp_size = tp;
    kit.spec.tp_rank = tp_rank;
    kit.attention.kv_heads_per_rank = first;
    kit.attention.tokens_per_block = 2;
    kit.attention.dims_per_head = 2;
    rank_kit_pv(&kit, KVF_TRTLLM_INDEXED, 2, first, second);
    return rank_kit_make(&kit);
}

static void test_per_view_head_duplication_elects_senders_independently(void **state)
{
    static const int senders[2][4] = {{1, 1, 1, 1}, {1, 0, 1, 0}};
    static const int64_t expected[2][2] = {{1, 1}, {2, 1}};
    kvf_trtllm_rank *peer = make_pv("peer", 1, 0, 8, 2);

    (void)state;
    for (int64_t rank = 0; rank < 4; rank++) {
        kvf_trtllm_rank *self = make_pv("self", 4, rank, 2, 1);
        struct kvf_trtllm_overlap overlap;

        assert_int_equal(kvf_trtllm_get_overlap(self, peer, 0, &overlap, NULL, 0, NULL), KVF_OK);
        assert_int_equal(overlap.duplicate_head_factor, 1);
        assert_int_equal(overlap.peer_duplicate_head_factor, 1);
        for (int64_t view = 0; view < 2; view++) {
            struct kvf_trtllm_view_pair pair = {{0, view}, {0, view}};
            int64_t factor = 0, peer_factor = 0;

            kvf_trtllm_view_head_factors(self, peer, &pair, &factor, &peer_factor);
            assert_int_equal(factor, expected[view][0]);
            assert_int_equal(peer_factor, expected[view][1]);
            assert_int_equal(kvf_trtllm_should_send_pool(self, peer, &pair.self, factor), senders[view][rank]);
        }
        kvf_trtllm_rank_release(self);
    }
    kvf_trtllm_rank_release(peer);
}

static kvf_trtllm_rank *make_replicated(const char *name, int64_t tp_rank, int64_t dp_size, int64_t dp_rank)
{
    struct rank_kit kit;

    rank_kit_init(&kit, name);
    kit.spec.tp_size = 8;
    kit.spec.tp_rank = tp_rank;
    kit.spec.dp_size = dp_size;
    kit.spec.dp_rank = dp_rank;
    kit.attention.enable_attention_dp = dp_size > 1;
    rank_kit_pt(&kit, 1024, 2, 2, 1, 0);
    kit.views[0][0].mapper = KVF_TRTLLM_REPLICATED;
    return rank_kit_make(&kit);
}

static void test_replicated_pool_owner_rotates_by_destination_dp_rank(void **state)
{
    static const int64_t dp_ranks[4] = {0, 1, 3, 7};
    static const struct kvf_trtllm_view_key key = {0, 0};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        kvf_trtllm_rank *peer = make_replicated("peer", dp_ranks[i], 8, dp_ranks[i]);

        for (int64_t rank = 0; rank < 8; rank++) {
            kvf_trtllm_rank *self = make_replicated("self", rank, 1, 0);

            assert_int_equal(kvf_trtllm_should_send_pool(self, peer, &key, 1), rank == dp_ranks[i]);
            kvf_trtllm_rank_release(self);
        }
        kvf_trtllm_rank_release(peer);
    }
}

static kvf_trtllm_rank *make_side(const char *name, int64_t tp, int64_t tp_rank)
{
    struct rank_kit kit;

    rank_kit_init(&kit, name);
    kit.spec.tp_size = tp;
    kit.spec.tp_rank = tp_rank;
    rank_kit_pt(&kit, 1024, tp, 2, 2, 0, 1);
    rank_kit_side(&kit, 8);
    return rank_kit_make(&kit);
}

static void test_mamba_replicated_side_view_elects_one_sender(void **state)
{
    static const struct kvf_trtllm_view_key conv = {1, 0}, side = {1, 2};
    kvf_trtllm_rank *peer = make_side("peer", 1, 0);

    (void)state;
    for (int64_t rank = 0; rank < 2; rank++) {
        kvf_trtllm_rank *self = make_side("self", 2, rank);

        assert_int_equal(kvf_trtllm_should_send_pool(self, peer, &conv, 1), 1);
        assert_int_equal(kvf_trtllm_should_send_pool(self, peer, &side, 1), rank == 0);
        kvf_trtllm_rank_release(self);
    }
    kvf_trtllm_rank_release(peer);
}

/* One view, replicated, that one side has under another role: only the cache kind decides which policy looks at it. */
static void check_policy(int64_t cache, const char *policy)
{
    kvf_trtllm_rank *ranks[2];
    struct kvf_error error = {0};

    for (int i = 0; i < 2; i++) {
        struct rank_kit kit;
        size_t group, view;

        rank_kit_init(&kit, i == 0 ? "self" : "peer");
        kit.table.tokens_per_block = 16;
        group = rank_kit_group(&kit, cache, 0);
        rank_kit_pool(&kit, 0, 0x1000, 64, 4);
        view = rank_kit_view(&kit, group, KVF_TRTLLM_REPLICATED, 0);
        rank_kit_layer(&kit, group, 0, 7);
        rank_kit_entry(&kit, group, view, 0, 0, 64);
        rank_kit_role(&kit, group, view, i == 0 ? "one" : "other");
        ranks[i] = rank_kit_make(&kit);
    }
    assert_int_equal(kvfi_trt_rule_coverage(ranks[0], ranks[1], cache, &error), KVF_ERR_INCOMPATIBLE);
    assert_ptr_equal(strstr(error.text, policy), error.text);
    assert_int_equal(kvfi_trt_rule_coverage(ranks[0], ranks[1], 1 - cache, &error), KVF_OK);
    kvf_trtllm_rank_release(ranks[1]);
    kvf_trtllm_rank_release(ranks[0]);
}

static void test_policy_dispatch_keys_on_cache_kind_only(void **state)
{
    (void)state;
    check_policy(KVF_TRTLLM_PAGED, "AttentionPolicy");
    check_policy(KVF_TRTLLM_STATE, "MambaPolicy");
}

/* 2 heads over 8 ranks of one head each: 4 hold the same one, and the peer's DP rank turns whose it is. */
static void test_head_duplication(void **state)
{
    (void)state;
    for (int64_t dp_rank = 0; dp_rank < 2; dp_rank++) {
        struct rank_kit kit;
        kvf_trtllm_rank *peer;

        rank_kit_init(&kit, "peer");
        kit.spec.tp_size = 2;
        kit.spec.tp_rank = kit.spec.dp_rank = dp_rank;
        kit.spec.dp_size = 2;
        kit.attention.enable_attention_dp = 1;
        rank_kit_pv(&kit, KVF_TRTLLM_INDEXED, 1, 2);
        peer = rank_kit_make(&kit);
        for (int64_t rank = 0; rank < 8; rank++) {
            kvf_trtllm_rank *self = make_pv("self", 8, rank, 1, 1);
            struct kvf_trtllm_view_pair pair = {{0, 0}, {0, 0}};
            struct kvfi_trt_mapper mapper;
            int64_t factor, peer_factor;

            kvf_trtllm_view_head_factors(self, peer, &pair, &factor, &peer_factor);
            assert_int_equal(factor, 4);
            assert_int_equal(kvf_trtllm_should_send_pool(self, peer, &pair.self, factor), rank % 4 == dp_rank);
            assert_int_equal(kvfi_trt_mapper_init(&mapper, self, peer, &pair, NULL), KVF_OK);
            assert_int_equal(mapper.name, KVF_TRTLLM_MAP_HND);
            assert_int_equal(mapper.dst.shift_bytes, rank / 4 * mapper.unit_bytes);
            kvfi_trt_mapper_fini(&mapper);
            kvf_trtllm_rank_release(self);
        }
        kvf_trtllm_rank_release(peer);
    }
}

/* One of the ranks that feed a peer, of the first stage that meets it. */
static void test_aux(void **state)
{
    (void)state;
    for (int64_t stage = 0; stage < 3; stage++) {
        for (int64_t rank = 0; rank < 4; rank++) {
            struct rank_kit kit;
            kvf_trtllm_rank *self, *peer;

            rank_kit_init(&kit, "self");
            kit.spec.tp_size = 4;
            kit.spec.tp_rank = rank;
            kit.spec.pp_size = 3;
            kit.spec.pp_rank = stage;
            rank_kit_stages(&kit, 3, (int64_t)2, (int64_t)2, (int64_t)2);
            self = rank_kit_make(&kit);
            rank_kit_init(&kit, "peer");
            kit.spec.pp_size = 2;
            kit.spec.pp_rank = 1;
            rank_kit_stages(&kit, 2, (int64_t)3, (int64_t)3);
            peer = rank_kit_make(&kit);
            assert_int_equal(kvf_trtllm_should_send_aux(self, peer), stage == 1 && rank % 2 == 0);
            kvf_trtllm_rank_release(peer);
            kvf_trtllm_rank_release(self);
        }
    }
}

static void test_state_pairs(void **state)
{
    static const struct {
        int64_t tp, rank, peer_tp, peer_rank;
        int paired;
    } rows[] = {{2, 0, 2, 0, 1}, {2, 0, 2, 1, 0}, {2, 1, 1, 0, 1}, {4, 3, 2, 1, 1}, {4, 3, 2, 0, 0}, {1, 0, 4, 2, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kvf_trtllm_rank *self = make_side("self", rows[i].tp, rows[i].rank);
        kvf_trtllm_rank *peer = make_side("peer", rows[i].peer_tp, rows[i].peer_rank);

        assert_int_equal(kvf_trtllm_is_state_paired(self, peer), rows[i].paired);
        assert_int_equal(kvf_trtllm_is_state_paired(peer, self), rows[i].paired);
        kvf_trtllm_rank_release(peer);
        kvf_trtllm_rank_release(self);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_per_view_head_duplication_elects_senders_independently),
        cmocka_unit_test(test_replicated_pool_owner_rotates_by_destination_dp_rank),
        cmocka_unit_test(test_mamba_replicated_side_view_elects_one_sender),
        cmocka_unit_test(test_policy_dispatch_keys_on_cache_kind_only),
        cmocka_unit_test(test_head_duplication),
        cmocka_unit_test(test_aux),
        cmocka_unit_test(test_state_pairs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
