/* SPDX-License-Identifier: Apache-2.0 */
/* Native pairs: what upstream cannot do, by example; what is refused, and how it is said. */
#include "trtllm/pair_kit.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/** One paged view of one layer on each side: heads of 4 bytes a token, K and V. */
static void plain(struct pair_kit *kit, int64_t src_kind, int64_t src_tokens, int64_t dst_kind, int64_t dst_tokens)
{
    pair_kit_init(kit);
    kit->self.spec.tp_size = kit->peer.spec.tp_size = 1;
    pair_kit_view(&kit->self, src_kind, 2, src_tokens, 16 * src_tokens, 2, KIT_OFFSETS(0));
    pair_kit_view(&kit->peer, dst_kind, 2, dst_tokens, 16 * dst_tokens, 2, KIT_OFFSETS(0));
    for (int side = 0; side < 2; side++) {
        int64_t bytes = 16 * (side ? dst_tokens : src_tokens);
        struct kvf_trtllm_pool *pool = side ? kit->peer.pools[0] : kit->self.pools[0];

        *pool = (struct kvf_trtllm_pool){side ? 20000 : 10000, bytes, 8, bytes, KVF_TRTLLM_NONE};
    }
}

static const struct row {
    const char *name;
    int64_t kinds[2], tokens[2];
    struct kvf_trtllm_blocks blocks[2];
    int64_t prompt, begin, end, start; /**< end 0: whole; start -1: none */
    const char *moves;                 /**< or the refusal */
} rows[] = {
    {"head-major to token-major", {KVF_TRTLLM_INDEXED, KVF_TRTLLM_NHD}, {2, 2},
     {{(int64_t[]){1}, 1}, {(int64_t[]){2}, 1}}, 2, 0, 0, -1,
     /* K: both heads of token 0, of token 1; then V, whose first row touches K's last on both sides */
     "10032>20064+4 10040>20068+4 10036>20072+4 10044>20076+8 10056>20084+4 10052>20088+4 10060>20092+4"},
    {"blocks of 2 into blocks of 4", {KVF_TRTLLM_NHD, KVF_TRTLLM_NHD}, {2, 4},
     {{(int64_t[]){5, 3, 0}, 3}, {(int64_t[]){1, 7}, 2}}, 5, 0, 0, -1,
     "10160>20064+16 10176>20096+16 10096>20080+16 10112>20112+16 10000>20448+16 10016>20480+16"},
    {"blocks of 4 into blocks of 2", {KVF_TRTLLM_NHD, KVF_TRTLLM_NHD}, {4, 2},
     {{(int64_t[]){1}, 1}, {(int64_t[]){6, 7}, 2}}, 4, 0, 0, -1,
     "10064>20192+16 10096>20208+16 10080>20224+16 10112>20240+16"},
    {"blocks of 3 and 2", {KVF_TRTLLM_NHD, KVF_TRTLLM_NHD}, {3, 2},
     {{(int64_t[]){0}, 1}, {(int64_t[]){0, 1}, 2}}, 3, 0, 0, -1,
     "10000>20000+16 10024>20016+16 10016>20032+8 10040>20048+8"},
    {"a first chunk, cut at whole blocks of both", {KVF_TRTLLM_NHD, KVF_TRTLLM_NHD}, {2, 4},
     {{(int64_t[]){5, 3, 0}, 3}, {(int64_t[]){1, 7}, 2}}, 5, 0, 3, -1, "10160>20064+16 10176>20096+16"},
    {"its last chunk", {KVF_TRTLLM_NHD, KVF_TRTLLM_NHD}, {2, 4}, {{(int64_t[]){5, 3, 0}, 3}, {(int64_t[]){1, 7}, 2}}, 5,
     3, 5, -1, "10096>20080+16 10112>20112+16 10000>20448+16 10016>20480+16"},
    {"nothing before token 3", {KVF_TRTLLM_NHD, KVF_TRTLLM_NHD}, {2, 4},
     {{(int64_t[]){5, 3, 0}, 3}, {(int64_t[]){1, 7}, 2}}, 5, 0, 0, 3,
     "10096>20080+16 10112>20112+16 10000>20448+16 10016>20480+16"},
    {"a source hole", {KVF_TRTLLM_NHD, KVF_TRTLLM_NHD}, {2, 2}, {{(int64_t[]){5, -1}, 2}, {(int64_t[]){1, 7}, 2}},
     4, 0, 0, -1, "source group 0: no block at position 2, but destination group 0 wants it in id 7"},
    {"a destination list too short", {KVF_TRTLLM_NHD, KVF_TRTLLM_NHD}, {2, 2},
     {{(int64_t[]){5, 3}, 2}, {(int64_t[]){1}, 1}}, 4, 0, 0, -1,
     "destination group 0: 1 ids from ordinal 0 end before position 2, the range ends at 4"},
    {"one slot for two ordinals", {KVF_TRTLLM_NHD, KVF_TRTLLM_NHD}, {2, 2},
     {{(int64_t[]){5, 3}, 2}, {(int64_t[]){1, 1}, 2}}, 4, 0, 0, -1,
     "destination group 0: id 1 at index 1 is at index 0 already"},
    {"an id outside its pool", {KVF_TRTLLM_NHD, KVF_TRTLLM_NHD}, {2, 2}, {{(int64_t[]){8}, 1}, {(int64_t[]){1}, 1}},
     2, 0, 0, -1, "source group 0: id 8 at index 0, expected -1 or below 8"},
};

static void test_rows(void **state)
{
    struct pair_kit kit;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct row *row = &rows[i];

        plain(&kit, row->kinds[0], row->tokens[0], row->kinds[1], row->tokens[1]);
        pair_kit_make(&kit, false);
        kit.request.prompt_tokens = row->prompt;
        kit.request.token_begin = row->begin;
        if (row->end) kit.request.token_end = row->end;
        if (row->start >= 0) kit.request.dst_start_token = row->start;
        pair_kit_ids(&kit, 0, 0, row->blocks[0], row->blocks[1]);
        if (strcmp(pair_kit_moves(&kit), row->moves) != 0) fail_msg("%s: %s", row->name, kit.text);
        pair_kit_fini(&kit);
    }
}

/** A window's older blocks may be gone at the source: what both hold moves, whatever the block sizes. */
static void test_window(void **state)
{
    struct pair_kit kit;

    (void)state;
    plain(&kit, KVF_TRTLLM_NHD, 2, KVF_TRTLLM_NHD, 4);
    kit.self.groups[0].sliding_window_size = kit.peer.groups[0].sliding_window_size = 2;
    pair_kit_make(&kit, false);
    kit.request.prompt_tokens = 8;
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(-1, -1, -1, 3), KIT_BLOCKS(-1, 7));
    assert_string_equal(pair_kit_moves(&kit), "10096>20464+16 10112>20496+16");
    pair_kit_fini(&kit);
}

/** A request in pieces, each with its own blocks alone: an early one moves no state, and no hole is refused. */
static void test_pieces(void **state)
{
    struct pair_kit kit;

    (void)state;
    plain(&kit, KVF_TRTLLM_NHD, 2, KVF_TRTLLM_NHD, 4);
    pair_kit_make(&kit, false);
    kit.request.prompt_tokens = 5;
    kit.request.by_holes = kit.request.is_early = 1;
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(5, -1, -1), KIT_BLOCKS(1, 7));
    assert_string_equal(pair_kit_moves(&kit), "10160>20064+16 10176>20096+16");
    kit.request.is_early = 0;
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(-1, 3, 0), KIT_BLOCKS(1, 7));
    assert_string_equal(pair_kit_moves(&kit), "10096>20080+16 10112>20112+16 10000>20448+16 10016>20480+16");
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(-1, -1, -1), KIT_BLOCKS(1, 7));
    assert_string_equal(pair_kit_moves(&kit), "");
    pair_kit_fini(&kit);
}

/** Both sides under context parallelism: stripes of unlike length. */
static void test_context_parallelism_on_both_sides(void **state)
{
    struct pair_kit kit;

    (void)state;
    plain(&kit, KVF_TRTLLM_NHD, 2, KVF_TRTLLM_NHD, 4);
    kit.self.spec.cp_size = kit.peer.spec.cp_size = 2;
    kit.self.spec.cp_rank = 1;
    pair_kit_make(&kit, false);
    kit.request.prompt_tokens = 16;
    /* source: tokens 2,3 6,7 10,11 14,15; destination: 0..3 8..11 */
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(0, 1, 2, 3), KIT_BLOCKS(0, 1));
    assert_string_equal(pair_kit_moves(&kit), "10000>20016+16 10016>20048+16 10064>20080+16 10080>20112+16");
    pair_kit_fini(&kit);
}

/** Two source ranks with the same head: one of them sends, as the destination's DP rank says. */
static void test_head_copies(void **state)
{
    (void)state;
    for (int64_t dp = 0; dp < 2; dp++) {
        for (int64_t rank = 0; rank < 2; rank++) {
            struct pair_kit kit;

            plain(&kit, KVF_TRTLLM_INDEXED, 2, KVF_TRTLLM_INDEXED, 2);
            kit.self.spec.tp_size = 4; /* 2 heads, each on two ranks, held in whole */
            kit.self.spec.tp_rank = rank;
            kit.self.views[0][0].num_kv_heads = 1;
            kit.self.attention.kv_heads_per_rank = 1;
            for (int k = 0; k < 2; k++)
                kit.self.entries[0][0][k] = (struct kvf_trtllm_entry){0, 8 * k, 8};
            kit.peer.spec.tp_size = kit.peer.spec.dp_size = 2;
            kit.peer.spec.tp_rank = kit.peer.spec.dp_rank = dp;
            kit.peer.attention.enable_attention_dp = 1;
            pair_kit_make(&kit, false);
            kit.request.prompt_tokens = 2;
            pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(0), KIT_BLOCKS(0));
            assert_string_equal(pair_kit_moves(&kit), dp == rank ? "10000>20000+8 10008>20016+8" : "");
            assert_true((kvf_trtllm_pair_plan(kit.pair) != NULL) == (dp == rank));
            pair_kit_fini(&kit);
        }
    }
}

/** Layers of one view that lie in two views of the other side: upstream pairs the first and loses the rest. */
static void test_one_view_to_two(void **state)
{
    struct kvf_trtllm_pair_view view;
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    kit.self.spec.tp_size = kit.peer.spec.tp_size = 1;
    pair_kit_view(&kit.self, KVF_TRTLLM_INDEXED, 2, 2, 32, 2, KIT_OFFSETS(0, 32));
    pair_kit_view(&kit.peer, KVF_TRTLLM_INDEXED, 2, 2, 32, 2, KIT_OFFSETS(0));
    rank_kit_layer(&kit.peer, 0, 1, 1);
    rank_kit_view(&kit.peer, 0, KVF_TRTLLM_INDEXED, (int64_t)rank_kit_pool(&kit.peer, 0, 30000, 32, 8));
    kit.peer.views[0][1].num_kv_heads = 2;
    for (int k = 0; k < 2; k++) rank_kit_entry(&kit.peer, 0, 1, 1, 16 * k, 16);
    kit.self.pools[0][0].base_address = 10000;
    kit.peer.pools[0][0].base_address = 20000;
    pair_kit_make(&kit, false);
    assert_int_equal(kvf_trtllm_pair_view_count(kit.pair), 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(kvf_trtllm_pair_view(kit.pair, i, &view), KVF_OK);
        assert_int_equal(view.key.peer.view, i);
        assert_int_equal(view.elected, 1);
    }
    assert_int_equal(kvf_trtllm_pair_view(kit.pair, 2, &view), KVF_ERR_OUT_OF_RANGE);
    kit.request.prompt_tokens = 2;
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(0), KIT_BLOCKS(0));
    assert_string_equal(pair_kit_moves(&kit), "10000>20000+32 10032>30000+32");
    pair_kit_fini(&kit);
}

/** Upstream's arithmetic over whole instances: pipeline stages that cut elsewhere, all of a rank's layers found. */
static void test_whole_instances(void **state)
{
    kvf_trtllm_rank *src[2], *dst;
    kvf_trtllm_pair *pair = NULL;
    struct kvf_error error = {0};
    struct pair_kit kit;

    (void)state;
    for (int stage = 0; stage < 2; stage++) {
        plain(&kit, KVF_TRTLLM_INDEXED, 2, KVF_TRTLLM_INDEXED, 2);
        kit.self.spec.pp_size = 2;
        kit.self.spec.pp_rank = kit.self.spec.instance_rank = stage;
        rank_kit_stages(&kit.self, 2, (int64_t)1, (int64_t)1);
        kit.self.layers[0][0].global_layer = stage;
        src[stage] = rank_kit_make(&kit.self);
    }
    rank_kit_layer(&kit.peer, 0, 1, 1);
    for (int k = 0; k < 2; k++) rank_kit_entry(&kit.peer, 0, 0, 1, 32 + 16 * k, 16);
    kit.peer.pools[0][0].slot_bytes = kit.peer.pools[0][0].slot_stride_bytes = 64;
    dst = rank_kit_make(&kit.peer);
    for (size_t i = 0; i < 2; i++) {
        struct kvf_plan_info info;

        if (kvf_trtllm_pair_native((const kvf_trtllm_rank *const *)src, 2, (const kvf_trtllm_rank *const[]){dst}, 1, i,
                                   0, &pair, &error) != KVF_OK)
            fail_msg("%s", error.text);
        kvf_plan_get_info(kvf_trtllm_pair_plan(pair), &info);
        assert_int_equal(info.layer_min, i);
        assert_int_equal(info.layer_end, i + 1);
        kvf_trtllm_pair_release(pair);
        pair = NULL;
    }
    assert_int_equal(kvf_trtllm_pair_native((const kvf_trtllm_rank *const *)src, 1,
                                            (const kvf_trtllm_rank *const[]){dst}, 1, 0, 0, &pair, &error),
                     KVF_ERR_INCOMPATIBLE);
    assert_string_equal(error.text, "view [] layer 1: no source rank holds it");
    assert_int_equal(kvf_trtllm_pair_native((const kvf_trtllm_rank *const *)src, 2,
                                            (const kvf_trtllm_rank *const[]){dst}, 1, 2, 0, &pair, &error),
                     KVF_ERR_INVALID_ARGUMENT);
    assert_null(pair);
    kvf_trtllm_rank_release(src[0]);
    kvf_trtllm_rank_release(src[1]);
    kvf_trtllm_rank_release(dst);
}

/* ---- refusals ---- */

static void change_dims(struct pair_kit *kit) { kit->peer.attention.dims_per_head = 4; }
static void change_element(struct pair_kit *kit) { kit->peer.attention.element_eighths = 8; }
static void change_key_only(struct pair_kit *kit) { kit->peer.attention.is_mla = 1; }
static void change_heads(struct pair_kit *kit) { kit->peer.views[0][0].num_kv_heads = 0; }

static void change_kind(struct pair_kit *kit)
{
    kit->peer.views[0][0].mapper = KVF_TRTLLM_REPLICATED;
}

static void change_size(struct pair_kit *kit)
{
    for (int k = 0; k < 2; k++) kit->peer.entries[0][0][k] = (struct kvf_trtllm_entry){0, 8 * k, 8};
}

static void change_buffers(struct pair_kit *kit)
{
    kit->peer.views[0][0].mapper = KVF_TRTLLM_NHD;
    kit->peer.entries[0][0][0].size_bytes = 32;
    kit->peer.views[0][0].entry_count = 1;
}

/** 2 heads of 5 bytes in all, at 2 tokens: no whole byte for one of them. */
static void change_row(struct pair_kit *kit)
{
    kit->peer.views[0][0].mapper = KVF_TRTLLM_NHD;
    for (int side = 0; side < 2; side++)
        for (int k = 0; k < 2; k++)
            (side ? &kit->peer : &kit->self)->entries[0][0][k] = (struct kvf_trtllm_entry){0, 5 * k, 5};
}

static void change_end(struct pair_kit *kit)
{
    kit->self.pools[0][0].slot_bytes = 24;
    kit->self.pools[0][0].slot_stride_bytes = 64;
}

static void change_gap(struct pair_kit *kit)
{
    kit->peer.entries[0][0][1].offset_bytes = 20;
}

static void change_replicated(struct pair_kit *kit)
{
    kit->self.views[0][0].mapper = kit->peer.views[0][0].mapper = KVF_TRTLLM_REPLICATED;
    kit->peer.table.tokens_per_block = 4;
}

static void change_overlap(struct pair_kit *kit)
{
    rank_kit_layer(&kit->self, 0, 1, 1);
    rank_kit_layer(&kit->peer, 0, 1, 1);
    for (int k = 0; k < 2; k++) {
        rank_kit_entry(&kit->self, 0, 0, 1, 8 + 8 * k, 8);
        kit->self.entries[0][0][k] = (struct kvf_trtllm_entry){0, 8 * k, 8};
        kit->peer.entries[0][0][k] = (struct kvf_trtllm_entry){0, 8 * k, 8};
        rank_kit_entry(&kit->peer, 0, 0, 1, 16 + 8 * k, 8);
    }
}

static const struct refusal {
    const char *name;
    void (*change)(struct pair_kit *kit);
    const char *text;
} refusals[] = {
    {"head dimension", change_dims,
     "layer 0: tag is \"16 bits, 8 dims\" at the source, \"16 bits, 4 dims\" at the destination"},
    {"element size", change_element, "tag is \"16 bits, 8 dims\" at the source, \"8 bits, 8 dims\" at the destination"},
    {"key-only", change_key_only, "view []: is_mla is 0 at the source, 1 at the destination"},
    {"no heads", change_heads,
     "view []: num_kv_heads, which must be positive, is 2 at the source, 0 at the destination"},
    {"unlike kinds", change_kind, "view []: its kind is INDEXED at the source, REPLICATED at the destination"},
    {"region size", change_size, "view []: bytes per layer is 32 at the source, 16 at the destination"},
    {"buffers", change_buffers, "view []: buffers per layer is 2 at the source, 1 at the destination"},
    {"parts of a byte", change_row,
     "source rank 0: group 0 view 0: a buffer, cut at heads and tokens, of 5 bytes does not divide into 4 parts"},
    {"past the end of a slot", change_end,
     "source rank 0: group 0 view 0 layer 0: 32 bytes from 0 on pass the end of a slot of 24"},
    {"a gap in a layer", change_gap, "buffers are not contiguous"},
    {"replicated blocks of unlike size", change_replicated,
     "view []: tokens per block of a replicated view, whose blocks are whole, is 2 at the source, 4 at the "
     "destination"},
    {"layers that overlap", change_overlap, "source rank 0's page table: #0 layer 0 slot 0 overlaps #0 layer 1 slot 0"},
};

static void test_refusals(void **state)
{
    struct pair_kit kit;

    (void)state;
    for (size_t i = 0; i < COUNT(refusals); i++) {
        struct kvf_error error = {0};

        plain(&kit, KVF_TRTLLM_INDEXED, 2, KVF_TRTLLM_INDEXED, 2);
        refusals[i].change(&kit);
        pair_kit_make_ranks(&kit);
        if (kvfi_trt_pair_create(kit.ranks[0], kit.ranks[1], false, &kit.pair, &error) != KVF_ERR_INCOMPATIBLE ||
            !strstr(error.text, refusals[i].text))
            fail_msg("%s: \"%s\"", refusals[i].name, error.text);
        assert_null(kit.pair);
        pair_kit_fini(&kit);
    }
}

/** Sizes that a peer may claim: told, before anything is made for them. */
static void test_limits(void **state)
{
    struct kvf_error error = {0};
    struct pair_kit kit;

    (void)state;
    plain(&kit, KVF_TRTLLM_INDEXED, 2, KVF_TRTLLM_INDEXED, 2);
    kit.peer.spec.tp_size = KVF_TRTLLM_MAX_RANKS;
    pair_kit_make_ranks(&kit);
    assert_int_equal(kvfi_trt_pair_create(kit.ranks[0], kit.ranks[1], false, &kit.pair, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "65536 by 1 ranks of a stage, at most 4096 are planned");
    pair_kit_fini(&kit);
    assert_null(kit.pair);
}

static void test_no_page_table(void **state)
{
    struct kvf_error error = {0};
    struct pair_kit kit;

    (void)state;
    plain(&kit, KVF_TRTLLM_INDEXED, 2, KVF_TRTLLM_INDEXED, 2);
    kit.peer.spec.page_table = NULL;
    kit.peer.table.group_count = 0;
    pair_kit_make(&kit, false);
    assert_null(kvf_trtllm_pair_plan(kit.pair));
    kit.request.prompt_tokens = 4;
    assert_string_equal(pair_kit_moves(&kit), "");
    kvf_trtllm_pair_release(kit.pair);
    kit.pair = NULL;
    assert_int_equal(kvf_trtllm_pair_native((const kvf_trtllm_rank *const[]){kit.ranks[0]}, 1,
                                            (const kvf_trtllm_rank *const[]){kit.ranks[1]}, 1, 0, 0, &kit.pair, &error),
                     KVF_ERR_INCOMPATIBLE);
    assert_string_equal(error.text, "destination rank 0 has no page table");
    pair_kit_fini(&kit);
}

static void test_no_list_of_fragments(void **state)
{
    kvf_trtllm_write *write = NULL;
    struct kvf_error error = {0};
    struct pair_kit kit;
    size_t count = 7;

    (void)state;
    plain(&kit, KVF_TRTLLM_INDEXED, 2, KVF_TRTLLM_INDEXED, 2);
    pair_kit_make(&kit, false);
    kit.request.prompt_tokens = 2;
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(0), KIT_BLOCKS(0));
    assert_int_equal(kvf_trtllm_pair_bind(kit.pair, &kit.request, &write, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_write_fragments(write, NULL, 0, &count, &error), KVF_ERR_NOT_SUPPORTED);
    assert_int_equal(count, 7);
    kvf_trtllm_write_destroy(write);
    pair_kit_fini(&kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_context_parallelism_on_both_sides),
        cmocka_unit_test(test_head_copies),
        cmocka_unit_test(test_one_view_to_two),
        cmocka_unit_test(test_whole_instances),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_no_page_table),
        cmocka_unit_test(test_no_list_of_fragments),
    };

    return cmocka_run_group_tests_name("native pairs", tests, NULL, NULL);
}
