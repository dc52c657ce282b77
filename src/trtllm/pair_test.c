/* SPDX-License-Identifier: Apache-2.0 */
/* What each mapper moves: upstream's tests by their names, with their numbers. Where upstream hands base pointers to a
 * mapper, block 0 lies at that address here. */
#include "trtllm/pair_kit.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/** Puts the pools of the first pool group where upstream's pointers point. */
static void bases(struct pair_kit *kit, uint64_t src, uint64_t dst)
{
    for (size_t i = 0; i < RANK_KIT_VIEWS; i++) {
        kit->self.pools[0][i].base_address = src;
        kit->peer.pools[0][i].base_address = dst;
    }
}

/** Makes the pair and expects the list of block 0 of group 0, and the mapper of that view. */
static void expect_block(struct pair_kit *kit, size_t view, int mapper, const char *moves)
{
    pair_kit_make_view(kit, view);
    assert_int_equal(pair_kit_mapper(kit, view), mapper);
    kit->request.prompt_tokens = 1;
    pair_kit_ids(kit, 0, 0, KIT_BLOCKS(0), KIT_BLOCKS(0));
    assert_string_equal(pair_kit_moves(kit), moves);
    pair_kit_fini(kit);
}

static void grid(struct rank_kit *kit, int64_t tp, int64_t rank, int64_t heads)
{
    kit->spec.tp_size = tp;
    kit->spec.tp_rank = rank;
    kit->attention.kv_heads_per_rank = heads;
}

static void test_per_view_heads_select_correct_transfer_bytes(void **state)
{
    static const struct {
        int64_t kind;
        int mapper;
        const char *moves;
    } rows[] = {
        {KVF_TRTLLM_NHD, KVF_TRTLLM_MAP_NHD, "1000>2004+4 1004>2012+4 1008>2020+4 1012>2028+4"},
        {KVF_TRTLLM_INDEXED, KVF_TRTLLM_MAP_HND, "1000>2008+8 1008>2024+8"},
    };
    struct pair_kit kit;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        pair_kit_init(&kit);
        grid(&kit.self, 4, 2, 2);
        grid(&kit.peer, 1, 0, 8);
        kit.self.attention.tokens_per_block = kit.peer.attention.tokens_per_block = 2;
        rank_kit_pv(&kit.self, rows[i].kind, 2, 2, 1);
        rank_kit_pv(&kit.peer, rows[i].kind, 2, 8, 2);
        bases(&kit, 1000, 2000);
        expect_block(&kit, 1, rows[i].mapper, rows[i].moves);
    }
}

static void test_per_view_heads_select_correct_transfer_bytes_with_larger_gen_tp(void **state)
{
    static const int src_heads[2] = {8, 2}, dst_heads[2] = {2, 1}, heads[2][4] = {{0, 2, 4, 6}, {0, 0, 1, 1}};
    struct pair_kit kit;
    char moves[256];

    (void)state;
    for (int i = 0; i < 16; i++) {
        int view = i % 2, rank = i / 2 % 4, q = heads[view][rank], hs = src_heads[view], hd = dst_heads[view];
        bool nhd = i >= 8;

        pair_kit_init(&kit);
        grid(&kit.self, 1, 0, 8);
        grid(&kit.peer, 4, rank, 2);
        kit.self.attention.tokens_per_block = kit.peer.attention.tokens_per_block = 2;
        rank_kit_pv(&kit.self, nhd ? KVF_TRTLLM_NHD : KVF_TRTLLM_INDEXED, 2, 8, 2);
        rank_kit_pv(&kit.peer, nhd ? KVF_TRTLLM_NHD : KVF_TRTLLM_INDEXED, 2, 2, 1);
        bases(&kit, 1000, 2000);
        if (nhd)
            snprintf(moves, sizeof moves, "%d>2000+%d %d>%d+%d %d>%d+%d %d>%d+%d", 1000 + 4 * q, 4 * hd,
                     1000 + 4 * q + 4 * hs, 2000 + 4 * hd, 4 * hd, 1000 + 4 * q + 8 * hs, 2000 + 8 * hd, 4 * hd,
                     1000 + 4 * q + 12 * hs, 2000 + 12 * hd, 4 * hd);
        else
            snprintf(moves, sizeof moves, "%d>2000+%d %d>%d+%d", 1000 + 8 * q, 8 * hd, 1000 + 8 * hs + 8 * q,
                     2000 + 8 * hd, 8 * hd);
        expect_block(&kit, (size_t)view, nhd ? KVF_TRTLLM_MAP_NHD : KVF_TRTLLM_MAP_HND, moves);
    }
}

static void test_peer_registrar_get_kv_map_identity(void **state)
{
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    rank_kit_pt(&kit.self, 1024, 2, 2, 2, 0, 1);
    rank_kit_pt(&kit.peer, 1024, 2, 2, 2, 0, 1);
    bases(&kit, 1000, 2000);
    expect_block(&kit, 0, KVF_TRTLLM_MAP_INTACT, "1000>2000+1024");
}

static void test_peer_registrar_get_kv_map_head_match(void **state)
{
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    rank_kit_pt(&kit.self, 1024, 2, 2, 2, 0, 1);
    rank_kit_pt(&kit.peer, 512, 2, 2, 1, 1);
    kit.peer.spec.pp_size = 2;
    kit.peer.spec.pp_rank = 1;
    rank_kit_stages(&kit.peer, 2, (int64_t)1, (int64_t)1);
    bases(&kit, 1000, 2000);
    expect_block(&kit, 0, KVF_TRTLLM_MAP_INTACT, "1512>2000+512");
}

static void head_mismatch(struct pair_kit *kit, int64_t kind)
{
    pair_kit_init(kit);
    rank_kit_pt(&kit->self, 1024, 2, 2, 2, 0, 1);
    grid(&kit->peer, 1, 0, 4);
    rank_kit_pt(&kit->peer, 2048, 1, 4, 2, 0, 1);
    kit->self.views[0][0].mapper = kit->peer.views[0][0].mapper = kind;
    bases(kit, 0, 0);
}

static void test_peer_registrar_get_kv_map_head_mismatch(void **state)
{
    struct pair_kit kit;

    (void)state;
    head_mismatch(&kit, KVF_TRTLLM_INDEXED);
    expect_block(&kit, 0, KVF_TRTLLM_MAP_HND, "0>0+256 256>512+256 512>1024+256 768>1536+256");
}

static void test_peer_registrar_get_kv_map_uses_physical_offset_order(void **state)
{
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    rank_kit_pt(&kit.self, 1024, 2, 2, 2, 5, 3);
    rank_kit_pt(&kit.peer, 512, 2, 2, 1, 3);
    rank_kit_stages(&kit.peer, 1, (int64_t)1);
    bases(&kit, 1000, 2000);
    expect_block(&kit, 0, KVF_TRTLLM_MAP_INTACT, "1512>2000+512");
}

static void test_peer_registrar_get_kv_map_non_contiguous_overlap_splits_fragments(void **state)
{
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    rank_kit_pt(&kit.self, 1536, 2, 2, 3, 0, 1, 2);
    rank_kit_pt(&kit.peer, 1024, 2, 2, 2, 0, 2);
    bases(&kit, 1000, 2000);
    expect_block(&kit, 0, KVF_TRTLLM_MAP_INTACT, "1000>2000+512 2024>2512+512");
}

static void test_peer_registrar_get_kv_map_merges_non_monotonic_contiguous_layout(void **state)
{
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    rank_kit_pt(&kit.self, 1024, 2, 2, 2, 5, 3);
    rank_kit_pt(&kit.peer, 1024, 2, 2, 2, 5, 3);
    bases(&kit, 1000, 2000);
    expect_block(&kit, 0, KVF_TRTLLM_MAP_INTACT, "1000>2000+1024");
}

static void test_peer_registrar_nhd_head_match_uses_intact_mapper(void **state)
{
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    rank_kit_pt(&kit.self, 1024, 2, 2, 2, 0, 1);
    rank_kit_pt(&kit.peer, 1024, 2, 2, 2, 0, 1);
    kit.self.views[0][0].mapper = kit.peer.views[0][0].mapper = KVF_TRTLLM_NHD;
    kit.self.pools[0][0].slot_stride_bytes = kit.peer.pools[0][0].slot_stride_bytes = 4000;
    bases(&kit, 1000, 2000);
    pair_kit_make(&kit, true);
    assert_int_equal(pair_kit_mapper(&kit, 0), KVF_TRTLLM_MAP_INTACT);
    kit.request.prompt_tokens = 32;
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(0, 1), KIT_BLOCKS(0, 1));
    assert_string_equal(pair_kit_moves(&kit), "1000>2000+1024 5000>6000+1024");
    pair_kit_fini(&kit);
}

static void test_peer_registrar_dispatches_nhd_mapper(void **state)
{
    struct pair_kit kit;

    (void)state;
    head_mismatch(&kit, KVF_TRTLLM_NHD);
    pair_kit_make(&kit, true);
    assert_int_equal(pair_kit_mapper(&kit, 0), KVF_TRTLLM_MAP_NHD);
    pair_kit_fini(&kit);
}

static void test_nhd_head_mismatch_mapper_slices_each_token(void **state)
{
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    kit.self.spec.dp_size = 2;
    kit.self.attention.enable_attention_dp = 1;
    pair_kit_view(&kit.self, KVF_TRTLLM_NHD, 2, 2, 32, 2, KIT_OFFSETS(0));
    pair_kit_view(&kit.peer, KVF_TRTLLM_NHD, 1, 2, 16, 2, KIT_OFFSETS(0));
    bases(&kit, 1000, 2000);
    expect_block(&kit, 0, KVF_TRTLLM_MAP_NHD, "1000>2000+4 1008>2004+4 1016>2008+4 1024>2012+4");
}

static void test_nhd_head_mismatch_mapper_uses_scale_pool_geometry(void **state)
{
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    grid(&kit.peer, 1, 0, 1);
    kit.self.attention.element_eighths = kit.peer.attention.element_eighths = 4;
    pair_kit_view(&kit.self, KVF_TRTLLM_NHD, 2, 2, 8, 2, KIT_OFFSETS(0));
    pair_kit_view(&kit.peer, KVF_TRTLLM_NHD, 1, 2, 4, 2, KIT_OFFSETS(0));
    bases(&kit, 1000, 2000);
    expect_block(&kit, 0, KVF_TRTLLM_MAP_NHD, "1000>2000+1 1002>2001+1 1004>2002+1 1006>2003+1");
}

static void test_indexed_head_mismatch_subbyte_geometry_is_entries_derived(void **state)
{
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    grid(&kit.self, 1, 0, 2);
    grid(&kit.peer, 2, 1, 1);
    kit.self.attention.element_eighths = kit.peer.attention.element_eighths = 4;
    pair_kit_view(&kit.self, KVF_TRTLLM_INDEXED, 2, 16, 256, 2, KIT_OFFSETS(0, 256));
    pair_kit_view(&kit.peer, KVF_TRTLLM_INDEXED, 1, 16, 128, 2, KIT_OFFSETS(0, 128));
    bases(&kit, 1000, 2000);
    expect_block(&kit, 0, KVF_TRTLLM_MAP_HND, "1064>2000+64 1192>2064+64 1320>2128+64 1448>2192+64");
}

static void test_replicated_mapper_ignores_kv_head_mismatch(void **state)
{
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    kit.self.attention.kv_heads_per_rank = 1;
    grid(&kit.peer, 1, 0, 8);
    rank_kit_stages(&kit.peer, 1, (int64_t)1);
    rank_kit_pt(&kit.self, 1024, 2, 2, 1, 0);
    rank_kit_pt(&kit.peer, 1024, 2, 2, 1, 0);
    rank_kit_role(&kit.self, 0, 0, "index_key");
    rank_kit_role(&kit.peer, 0, 0, "index_key");
    kit.self.views[0][0].mapper = kit.peer.views[0][0].mapper = KVF_TRTLLM_REPLICATED;
    bases(&kit, 1000, 2000);
    expect_block(&kit, 0, KVF_TRTLLM_MAP_REPLICATED, "1000>2000+1024");
}

static void test_replicated_mapper_selects_partial_layer_range(void **state)
{
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    pair_kit_view(&kit.self, KVF_TRTLLM_REPLICATED, 2, 16, 128, 1, KIT_OFFSETS(0, 128));
    pair_kit_view(&kit.peer, KVF_TRTLLM_REPLICATED, 2, 16, 128, 1, KIT_OFFSETS(128, 256));
    bases(&kit, 1000, 2000);
    expect_block(&kit, 0, KVF_TRTLLM_MAP_REPLICATED, "1000>2128+256");
}

static void test_intact_mapper_splits_non_contiguous_runs(void **state)
{
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    pair_kit_view(&kit.self, KVF_TRTLLM_INDEXED, 2, 16, 128, 1, KIT_OFFSETS(0, 192, 320));
    pair_kit_view(&kit.peer, KVF_TRTLLM_INDEXED, 2, 16, 128, 1, KIT_OFFSETS(0, 128, 256));
    bases(&kit, 1000, 2000);
    expect_block(&kit, 0, KVF_TRTLLM_MAP_INTACT, "1000>2000+128 1192>2128+256");
}

static void test_ring_views_move_positions_only_when_ring_sizes_differ(void **state)
{
    static const struct {
        int64_t bytes;
        int mapper;
        int64_t slots[2];
    } rows[] = {{1344, KVF_TRTLLM_MAP_RING, {16, 21}}, {1024, KVF_TRTLLM_MAP_REPLICATED, {0, 0}}};
    struct kvf_trtllm_pair_view view;
    struct pair_kit kit;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        pair_kit_init(&kit);
        kit.self.attention.kv_heads_per_rank = 1;
        grid(&kit.peer, 1, 0, 1);
        rank_kit_stages(&kit.peer, 1, (int64_t)1);
        rank_kit_pt(&kit.self, 1024, 2, 1, 1, 0);
        rank_kit_pt(&kit.peer, rows[i].bytes, 2, 1, 1, 0);
        for (int side = 0; side < 2; side++) {
            struct rank_kit *rank = side ? &kit.peer : &kit.self;

            rank_kit_role(rank, 0, 0, "mla_hp_tail");
            rank->views[0][0].mapper = KVF_TRTLLM_REPLICATED;
            rank->views[0][0].ring_slot_bytes = 64;
        }
        pair_kit_make(&kit, true);
        assert_int_equal(kvf_trtllm_pair_view(kit.pair, 0, &view), KVF_OK);
        assert_int_equal(view.mapper, rows[i].mapper);
        assert_int_equal(view.ring_src_slots, rows[i].slots[0]);
        assert_int_equal(view.ring_dst_slots, rows[i].slots[1]);
        pair_kit_fini(&kit);
    }
}

/** Two layers whose rings have positions of two bytes: 16 at 0 and 100, 21 at 0 and 200. */
static void make_rings(struct pair_kit *kit)
{
    pair_kit_init(kit);
    pair_kit_view(&kit->self, KVF_TRTLLM_REPLICATED, 1, 4, 32, 1, KIT_OFFSETS(0, 100));
    pair_kit_view(&kit->peer, KVF_TRTLLM_REPLICATED, 1, 4, 42, 1, KIT_OFFSETS(0, 200));
    kit->self.views[0][0].ring_slot_bytes = kit->peer.views[0][0].ring_slot_bytes = 2;
    bases(kit, 1000, 5000);
    pair_kit_make(kit, true);
}

static void test_ring_mapper_splits_positions_where_either_ring_wraps(void **state)
{
    const int64_t zero = 0;
    const struct kvf_id_list lists[2] = {{NULL, 0, INT64_MAX / 2}, {&zero, 1, 0}};
    struct kvf_bind_request request;
    kvf_binding *binding = NULL;
    struct kvf_error error = {0};
    struct pair_kit kit;

    (void)state;
    make_rings(&kit);
    kit.request.prompt_tokens = 46;
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(3, 0), KIT_BLOCKS(2, 0));
    assert_string_equal(pair_kit_moves(&kit), "1028>5018+4 1128>5218+4 1000>5022+20 1100>5222+20 1020>5000+8 "
                                              "1120>5200+8");
    kvf_bind_request_init(&request, sizeof request);
    request.token_begin = 29;
    request.token_end = request.request_tokens = 46;
    request.src = request.dst = lists;
    request.src_count = request.dst_count = COUNT(lists);
    assert_int_equal(kvf_bind(kvf_trtllm_pair_plan(kit.pair), &request, &binding, &error), KVF_ERR_OUT_OF_RANGE);
    assert_non_null(strstr(error.text, "positions both rings retain"));
    pair_kit_fini(&kit);
}

static void test_mamba_replicated_side_view_copies_whole_layers_under_tp_mismatch(void **state)
{
    static const char conv[] = "40960>40960+512 40960>40960+512 41472>41984+256 41472>41984+256 41728>42496+256 "
                               "41728>42496+256";
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    rank_kit_pt(&kit.self, 1024, 2, 2, 2, 0, 1);
    grid(&kit.peer, 1, 0, 4);
    rank_kit_pt(&kit.peer, 2048, 1, 4, 2, 0, 1);
    rank_kit_side(&kit.self, 8);
    rank_kit_side(&kit.peer, 8);
    pair_kit_make(&kit, true);
    assert_int_equal(pair_kit_mapper(&kit, 3), KVF_TRTLLM_MAP_STATE_MATCH);
    assert_int_equal(pair_kit_mapper(&kit, 1), KVF_TRTLLM_MAP_STATE_SECTIONS);
    pair_kit_ids(&kit, 1, 1, KIT_BLOCKS(0), KIT_BLOCKS(0));
    /* 16 bytes in slots of 8: upstream never looks, here it is told when they are to be sent */
    assert_non_null(strstr(pair_kit_moves(&kit), "self's page table: ple_ngram_context#3 layer 10"));
    kit.request.excluded = (const struct kvf_trtllm_view_key[]){{1, 1}, {1, 2}};
    kit.request.excluded_count = 2;
    assert_string_equal(pair_kit_moves(&kit), conv);
    pair_kit_fini(&kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_per_view_heads_select_correct_transfer_bytes),
        cmocka_unit_test(test_per_view_heads_select_correct_transfer_bytes_with_larger_gen_tp),
        cmocka_unit_test(test_peer_registrar_get_kv_map_identity),
        cmocka_unit_test(test_peer_registrar_get_kv_map_head_match),
        cmocka_unit_test(test_peer_registrar_get_kv_map_head_mismatch),
        cmocka_unit_test(test_peer_registrar_get_kv_map_uses_physical_offset_order),
        cmocka_unit_test(test_peer_registrar_get_kv_map_non_contiguous_overlap_splits_fragments),
        cmocka_unit_test(test_peer_registrar_get_kv_map_merges_non_monotonic_contiguous_layout),
        cmocka_unit_test(test_peer_registrar_nhd_head_match_uses_intact_mapper),
        cmocka_unit_test(test_peer_registrar_dispatches_nhd_mapper),
        cmocka_unit_test(test_nhd_head_mismatch_mapper_slices_each_token),
        cmocka_unit_test(test_nhd_head_mismatch_mapper_uses_scale_pool_geometry),
        cmocka_unit_test(test_indexed_head_mismatch_subbyte_geometry_is_entries_derived),
        cmocka_unit_test(test_replicated_mapper_ignores_kv_head_mismatch),
        cmocka_unit_test(test_replicated_mapper_selects_partial_layer_range),
        cmocka_unit_test(test_intact_mapper_splits_non_contiguous_runs),
        cmocka_unit_test(test_ring_views_move_positions_only_when_ring_sizes_differ),
        cmocka_unit_test(test_ring_mapper_splits_positions_where_either_ring_wraps),
        cmocka_unit_test(test_mamba_replicated_side_view_copies_whole_layers_under_tp_mismatch),
    };

    return cmocka_run_group_tests_name("pairs", tests, NULL, NULL);
}
