/* SPDX-License-Identifier: Apache-2.0 */
/* Geometry of views and construction of mappers: upstream's tests by their names, then further rows. */
#include "trtllm/mapper.h"
#include "trtllm/rank_kit.h"

#include <string.h>

/* A rank with one paged view: every layer of `layers` (ends with -1) starts at its offset and has `buffers` buffers. */
struct one {
    int64_t tp, tp_rank, heads, tokens;
    int64_t mapper;
    int64_t layer_bytes, buffers;
    int64_t offsets[4];
};

static kvf_trtllm_rank *make(const char *name, const struct one *one)
{
    struct rank_kit kit;
    size_t group, view;

    rank_kit_init(&kit, name);
    kit.spec.tp_size = one->tp;
    kit.spec.tp_rank = one->tp_rank;
    kit.attention.kv_heads_per_rank = one->heads;
    kit.attention.tokens_per_block = one->tokens;
    kit.table.tokens_per_block = one->tokens;
    group = rank_kit_group(&kit, KVF_TRTLLM_PAGED, 0);
    rank_kit_pool(&kit, 0, 0x1000, 4096, 8);
    view = rank_kit_view(&kit, group, one->mapper, 0);
    kit.views[group][view].num_kv_heads = one->heads;
    for (int64_t i = 0; one->offsets[i] >= 0; i++) {
        rank_kit_layer(&kit, group, i, i);
        for (int64_t k = 0; k < one->buffers; k++) {
            int64_t begin = one->layer_bytes * k / one->buffers, end = one->layer_bytes * (k + 1) / one->buffers;

            rank_kit_entry(&kit, group, view, i, one->offsets[i] + begin, end - begin);
        }
    }
    return rank_kit_make(&kit);
}

/* Builds the mapper of view (0, 0) to view (0, 0); fails unless it cannot be built and says `text`. */
static void check_error(const struct one *self, const struct one *peer, const char *text)
{
    kvf_trtllm_rank *own = make("self", self), *other = make("peer", peer);
    struct kvf_trtllm_view_pair pair = {{0, 0}, {0, 0}};
    struct kvfi_trt_mapper mapper;

    assert_int_equal(kvfi_trt_mapper_init(&mapper, own, other, &pair, NULL), KVF_OK);
    assert_int_equal(mapper.name, KVF_TRTLLM_MAP_ERROR);
    if (!strstr(mapper.error, text)) fail_msg("expected \"%s\", found \"%s\"", text, mapper.error);
    kvfi_trt_mapper_fini(&mapper);
    kvf_trtllm_rank_release(other);
    kvf_trtllm_rank_release(own);
}

static void test_intact_mapper_region_size_mismatch_raises(void **state)
{
    (void)state;
    check_error(&(struct one){2, 0, 2, 16, KVF_TRTLLM_INDEXED, 256, 1, {0, -1}},
                &(struct one){2, 0, 2, 16, KVF_TRTLLM_INDEXED, 128, 1, {0, -1}}, "cache region size mismatch");
    check_error(&(struct one){2, 0, 2, 16, KVF_TRTLLM_NHD, 256, 1, {0, -1}},
                &(struct one){2, 0, 2, 16, KVF_TRTLLM_NHD, 128, 1, {0, -1}},
                "NHD cache region size mismatch: local=256, peer=128");
}

static void test_replicated_mapper_per_layer_size_mismatch_raises(void **state)
{
    (void)state;
    check_error(&(struct one){2, 0, 2, 16, KVF_TRTLLM_REPLICATED, 128, 1, {0, 128, -1}},
                &(struct one){2, 0, 2, 16, KVF_TRTLLM_REPLICATED, 64, 1, {0, 64, -1}},
                "Replicated cache region size mismatch");
}

static void test_nhd_mapper_rejects_non_divisible_region_geometry(void **state)
{
    (void)state;
    check_error(&(struct one){2, 0, 2, 2, KVF_TRTLLM_NHD, 17, 2, {0, -1}},
                &(struct one){1, 0, 4, 2, KVF_TRTLLM_NHD, 32, 2, {0, -1}}, "not evenly divisible");
}

static void test_nhd_mapper_rejects_tokens_per_block_mismatch(void **state)
{
    (void)state;
    check_error(&(struct one){2, 0, 2, 2, KVF_TRTLLM_NHD, 32, 2, {0, -1}},
                &(struct one){1, 0, 4, 4, KVF_TRTLLM_NHD, 64, 2, {0, -1}}, "requires equal tokens_per_block");
}

static void test_indexed_head_mismatch_inconsistent_slot_geometry_raises(void **state)
{
    (void)state;
    check_error(&(struct one){1, 0, 2, 16, KVF_TRTLLM_INDEXED, 256, 2, {0, 256, -1}},
                &(struct one){2, 0, 1, 16, KVF_TRTLLM_INDEXED, 256, 2, {0, 256, -1}},
                "HND bytes per head mismatch: local=64, peer=128");
}

static void test_get_buffers_per_layer_rejects_non_uniform_nhd_entries(void **state)
{
    struct kvf_error error = {0};
    struct rank_kit kit;
    kvf_trtllm_rank *rank;
    int64_t buffers = 0;

    (void)state;
    rank_kit_init(&kit, "self");
    kit.table.tokens_per_block = 16;
    rank_kit_group(&kit, KVF_TRTLLM_PAGED, 0);
    rank_kit_pool(&kit, 0, 0x1000, 64, 8);
    rank_kit_view(&kit, 0, KVF_TRTLLM_NHD, 0);
    for (int64_t i = 0; i < 3; i++) {
        if (i < 2) rank_kit_layer(&kit, 0, i, i);
        rank_kit_entry(&kit, 0, 0, i / 2, 16 * i, 16);
    }
    rank = rank_kit_make(&kit);
    assert_int_equal(kvfi_trt_view_buffers(&kvfi_trt_rank_geometry(rank)->views[0], 3, 4, &buffers, &error),
                     KVF_ERR_INCOMPATIBLE);
    assert_non_null(strstr(error.text, "layer_group=3, pool=4, entries=3, layers=2"));
    assert_int_equal(buffers, 0);
    kvf_trtllm_rank_release(rank);
}

/* Further construction errors, each side and each check once. */
static void test_construction_errors(void **state)
{
    static const struct {
        struct one self, peer;
        const char *text;
    } rows[] = {
        {{2, 0, 2, 16, KVF_TRTLLM_INDEXED, 256, 2, {0, -1}}, {1, 0, 4, 16, KVF_TRTLLM_INDEXED, 512, 1, {0, -1}},
         "HND buffer count per layer mismatch: local=2, peer=1"},
        {{2, 0, 2, 16, KVF_TRTLLM_NHD, 256, 1, {0, -1}}, {1, 0, 4, 16, KVF_TRTLLM_NHD, 512, 2, {0, -1}},
         "NHD buffer count per layer mismatch: local=1, peer=2"},
        {{2, 0, 2, 16, KVF_TRTLLM_INDEXED, 255, 2, {0, -1}}, {1, 0, 4, 16, KVF_TRTLLM_INDEXED, 512, 2, {0, -1}},
         "HND layer geometry is not evenly divisible (local): bytes_per_layer=255, buffers_per_layer=2"},
        {{2, 0, 2, 16, KVF_TRTLLM_INDEXED, 256, 2, {0, -1}}, {1, 0, 4, 16, KVF_TRTLLM_INDEXED, 513, 2, {0, -1}},
         "HND layer geometry is not evenly divisible (peer): bytes_per_layer=513, buffers_per_layer=2"},
        {{2, 0, 3, 16, KVF_TRTLLM_INDEXED, 256, 2, {0, -1}}, {1, 0, 4, 16, KVF_TRTLLM_INDEXED, 512, 2, {0, -1}},
         "HND head slicing is not byte-aligned (local): layer_kv_bytes=128, kv_heads=3"},
        {{2, 0, 2, 16, KVF_TRTLLM_INDEXED, 256, 2, {0, -1}}, {1, 0, 3, 16, KVF_TRTLLM_INDEXED, 512, 2, {0, -1}},
         "HND head slicing is not byte-aligned (peer): layer_kv_bytes=256, kv_heads=3"},
        {{2, 0, 2, 16, KVF_TRTLLM_NHD, 256, 2, {0, -1}}, {1, 0, 4, 16, KVF_TRTLLM_NHD, 1024, 2, {0, -1}},
         "NHD bytes per token/head mismatch: local=4, peer=8"},
        {{2, 0, 2, 16, KVF_TRTLLM_NHD, 256, 2, {0, -1}}, {1, 0, 4, 16, KVF_TRTLLM_INDEXED, 512, 2, {0, -1}},
         "PeerRegistrar.get_kv_map: incompatible mapper kinds (local=NHD, peer=INDEXED)"},
        {{2, 1, 3, 16, KVF_TRTLLM_INDEXED, 192, 1, {0, -1}}, {3, 1, 2, 16, KVF_TRTLLM_INDEXED, 128, 1, {0, -1}},
         "HND head slice passes the end of a region"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_error(&rows[i].self, &rows[i].peer, rows[i].text);
}

/* What upstream says of entries that do not make a region. */
static void test_entries(void **state)
{
    static const struct {
        struct kvf_trtllm_entry entries[4];
        size_t count;
        int64_t declared;
        const char *text;
    } rows[] = {
        {{{0}}, 0, KVF_TRTLLM_NONE, "PoolView(pool_idx=0, role=['key', 'value']) has no buffer entries"},
        {{{0, 0, 16}, {0, 20, 16}}, 2, KVF_TRTLLM_NONE,
         "layer 0 buffers are not contiguous: [0, 16) is followed by offset 20"},
        {{{1, 64, 16}, {0, 0, 16}, {1, 72, 16}, {0, 20, 16}}, 4, KVF_TRTLLM_NONE,
         "layer 1 buffers are not contiguous: [64, 80) is followed by offset 72"},
        {{{0, 0, 16}, {1, 16, 24}}, 2, KVF_TRTLLM_NONE, "per-layer region sizes are not uniform: [16, 24]"},
        {{{0, 16, 16}, {0, 0, 16}}, 2, 40,
         "role=['key', 'value']) declares bytes_per_layer=40 but buffer entries sum to 32 per layer"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_error error = {0};
        struct rank_kit kit;
        kvf_trtllm_rank *rank;

        rank_kit_init(&kit, "self");
        kit.table.tokens_per_block = 16;
        rank_kit_group(&kit, KVF_TRTLLM_PAGED, 0);
        rank_kit_pool(&kit, 0, 0x1000, 256, 8);
        rank_kit_view(&kit, 0, KVF_TRTLLM_INDEXED, 0);
        for (int64_t layer = 0; layer < 2; layer++) rank_kit_layer(&kit, 0, layer, layer);
        kit.roles[0][0][0] = "value";
        kit.roles[0][0][1] = "key";
        kit.views[0][0].role_count = 2;
        kit.views[0][0].bytes_per_layer = rows[i].declared;
        memcpy(kit.entries[0][0], rows[i].entries, sizeof rows[i].entries);
        kit.views[0][0].entry_count = rows[i].count;
        rank = rank_kit_make(&kit);
        assert_int_equal(kvfi_trt_view_check(&kvfi_trt_rank_geometry(rank)->views[0], &error), KVF_ERR_INCOMPATIBLE);
        if (!strstr(error.text, rows[i].text)) fail_msg("expected \"%s\", found \"%s\"", rows[i].text, error.text);
        kvf_trtllm_rank_release(rank);
    }
}

/* Physical order is by offset; layers at one offset keep the order of their entries. */
static void test_physical_order(void **state)
{
    static const int64_t expected[4] = {13, 12, 10, 11};
    struct rank_kit kit;
    kvf_trtllm_rank *rank;
    const struct kvfi_trt_view *view;

    (void)state;
    rank_kit_init(&kit, "self");
    kit.table.tokens_per_block = 16;
    rank_kit_group(&kit, KVF_TRTLLM_PAGED, 0);
    rank_kit_pool(&kit, 0, 0x1000, 256, 8);
    rank_kit_view(&kit, 0, KVF_TRTLLM_INDEXED, 0);
    for (int64_t layer = 0; layer < 4; layer++) rank_kit_layer(&kit, 0, layer, 10 + layer);
    rank_kit_entry(&kit, 0, 0, 3, 0, 16);
    rank_kit_entry(&kit, 0, 0, 0, 64, 16);
    rank_kit_entry(&kit, 0, 0, 2, 0, 16);
    rank_kit_entry(&kit, 0, 0, 1, 128, 16);
    rank = rank_kit_make(&kit);
    view = &kvfi_trt_rank_geometry(rank)->views[0];
    assert_int_equal(view->place_count, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(view->places[i].global_layer, expected[i]);
        assert_ptr_equal(kvfi_trt_view_place(view, expected[i]), &view->places[i]);
    }
    assert_null(kvfi_trt_view_place(view, 14));
    assert_int_equal(view->layer_bytes, 16);
    assert_int_equal(view->buffers, 1);
    kvf_trtllm_rank_release(rank);
}

static kvf_trtllm_rank *make_state(const char *name, int64_t tp, int64_t tp_rank)
{
    struct rank_kit kit;

    rank_kit_init(&kit, name);
    kit.spec.tp_size = tp;
    kit.spec.tp_rank = tp_rank;
    rank_kit_pt(&kit, 1024, tp, 2, 2, 0, 1);
    return rank_kit_make(&kit);
}

static void check_cuts(int64_t self_tp, int64_t self_rank, int64_t peer_tp, int64_t peer_rank,
                       const struct kvfi_trt_cut expected[3], int64_t src_shift, int64_t dst_shift)
{
    kvf_trtllm_rank *self = make_state("self", self_tp, self_rank), *peer = make_state("peer", peer_tp, peer_rank);
    struct kvf_trtllm_view_pair conv = {{1, 0}, {1, 0}}, ssm = {{1, 1}, {1, 1}};
    struct kvfi_trt_mapper mapper;

    assert_int_equal(kvfi_trt_mapper_init(&mapper, self, peer, &conv, NULL), KVF_OK);
    assert_int_equal(mapper.name, KVF_TRTLLM_MAP_STATE_SECTIONS);
    assert_int_equal(mapper.cut_count, 3);
    assert_memory_equal(mapper.cuts, expected, 3 * sizeof *expected);
    kvfi_trt_mapper_fini(&mapper);
    assert_int_equal(kvfi_trt_mapper_init(&mapper, self, peer, &ssm, NULL), KVF_OK);
    assert_int_equal(mapper.name, KVF_TRTLLM_MAP_STATE_HEADS);
    assert_int_equal(mapper.copy_bytes, 4096);
    assert_int_equal(mapper.src.shift_bytes, src_shift);
    assert_int_equal(mapper.dst.shift_bytes, dst_shift);
    kvfi_trt_mapper_fini(&mapper);
    kvf_trtllm_rank_release(peer);
    kvf_trtllm_rank_release(self);
}

static void test_state_cuts(void **state)
{
    static const struct kvfi_trt_cut first[3] = {{0, 0, 512}, {512, 1024, 256}, {768, 1536, 256}};
    static const struct kvfi_trt_cut second[3] = {{0, 512, 512}, {512, 1280, 256}, {768, 1792, 256}};
    static const struct kvfi_trt_cut back[3] = {{512, 0, 512}, {1280, 512, 256}, {1792, 768, 256}};

    (void)state;
    check_cuts(2, 0, 1, 0, first, 0, 0);
    check_cuts(2, 1, 1, 0, second, 0, 4096);
    check_cuts(1, 0, 2, 1, back, 4096, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_intact_mapper_region_size_mismatch_raises),
        cmocka_unit_test(test_replicated_mapper_per_layer_size_mismatch_raises),
        cmocka_unit_test(test_nhd_mapper_rejects_non_divisible_region_geometry),
        cmocka_unit_test(test_nhd_mapper_rejects_tokens_per_block_mismatch),
        cmocka_unit_test(test_indexed_head_mismatch_inconsistent_slot_geometry_raises),
        cmocka_unit_test(test_get_buffers_per_layer_rejects_non_uniform_nhd_entries),
        cmocka_unit_test(test_construction_errors),
        cmocka_unit_test(test_entries),
        cmocka_unit_test(test_physical_order),
        cmocka_unit_test(test_state_cuts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
