/* SPDX-License-Identifier: Apache-2.0 */
/* How a request's block tables are paired, chunks, what is refused; and vectors computed from upstream's formulas. */
#include "trtllm/pair_kit.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define BLOCKS(...) {(const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / 8}
#define NO_BLOCKS {NULL, 0}

/** One layer of 64 bytes in blocks of 8 tokens on both sides, slots of 64 bytes; 0x1000 and 0x2000. */
static void plain(struct pair_kit *kit)
{
    pair_kit_init(kit);
    pair_kit_view(&kit->self, KVF_TRTLLM_INDEXED, 2, 8, 64, 1, KIT_OFFSETS(0));
    pair_kit_view(&kit->peer, KVF_TRTLLM_INDEXED, 2, 8, 64, 1, KIT_OFFSETS(0));
    for (int side = 0; side < 2; side++) {
        struct kvf_trtllm_pool *pool = side ? kit->peer.pools[0] : kit->self.pools[0];

        *pool = (struct kvf_trtllm_pool){side ? 0x2000 : 0x1000, 64, 8, 64, KVF_TRTLLM_NONE};
    }
}

static const struct row {
    const char *name;
    struct kvf_trtllm_blocks src, dst;
    int64_t prompt, begin, end; /**< end 0: the whole prompt */
    int64_t start;              /**< dst_start_token; -1: none */
    int64_t self_cp, peer_cp, peer_cp_rank;
    const char *moves;          /**< or the refusal */
} rows[] = {
    {"ordinal order", BLOCKS(7, 1, 5), BLOCKS(2, 4, 0), 19, 0, 0, -1, 1, 1, 0,
     "4544>8320+64 4160>8448+64 4416>8192+64"},
    {"holes on either side", BLOCKS(7, -1, 5), BLOCKS(-1, 4, 0), 19, 0, 0, -1, 1, 1, 0, "4416>8192+64"},
    {"nothing left", BLOCKS(7, -1), BLOCKS(-1, 4), 16, 0, 0, -1, 1, 1, 0, ""},
    {"start inside block 1", BLOCKS(7, 1, 5), BLOCKS(2, 4, 0), 19, 0, 0, 9, 1, 1, 0, "4160>8448+64 4416>8192+64"},
    {"start at block 2", BLOCKS(7, 1, 5), BLOCKS(2, 4, 0), 19, 0, 0, 16, 1, 1, 0, "4416>8192+64"},
    {"start past the end", BLOCKS(7, 1, 5), BLOCKS(2, 4, 0), 19, 0, 0, 900, 1, 1, 0, ""},
    {"first chunk: complete blocks", BLOCKS(7, 1, 5), BLOCKS(2, 4, 0), 19, 0, 15, -1, 1, 1, 0, "4544>8320+64"},
    {"middle chunk", BLOCKS(7, 1, 5), BLOCKS(2, 4, 0), 19, 15, 17, -1, 1, 1, 0, "4160>8448+64"},
    {"last chunk: what is left", BLOCKS(7, 1, 5), BLOCKS(2, 4, 0), 19, 17, 19, -1, 1, 1, 0, "4416>8192+64"},
    {"last chunk, empty", BLOCKS(7, 1), BLOCKS(2, 4), 16, 16, 16, -1, 1, 1, 0, ""},
    {"a prompt of nothing", NO_BLOCKS, NO_BLOCKS, 0, 0, 0, -1, 1, 1, 0, ""},
    {"receiver 0 of 2", BLOCKS(7, 1, 5), BLOCKS(2, 0), 19, 0, 0, -1, 1, 2, 0, "4544>8320+64 4416>8192+64"},
    {"receiver 1 of 2", BLOCKS(7, 1, 5), BLOCKS(4), 19, 0, 0, -1, 1, 2, 1, "4160>8448+64"},
    {"receiver 3 of 4 gets nothing", BLOCKS(7, 1, 5), NO_BLOCKS, 19, 0, 0, -1, 1, 4, 3, ""},
    {"start counts in the receiver's own list", BLOCKS(7, 1, 5, 3), BLOCKS(2, 0), 32, 0, 0, 8, 1, 2, 0,
     "4416>8192+64"},
    {"sender under context parallelism", BLOCKS(7, 5), BLOCKS(2, 0), 19, 0, 0, -1, 2, 1, 0,
     "4544>8320+64 4416>8192+64"},
    {"a list too short", BLOCKS(7, 1, 5), BLOCKS(2, 4), 19, 0, 0, -1, 1, 1, 0,
     "positional block tables differ in length: src=3 dst=2; both sides must span the same prompt"},
    {"a stripe too long", BLOCKS(7, 1, 5), BLOCKS(4, 0), 19, 0, 0, -1, 1, 2, 1,
     "positional block tables differ in length: src=1 dst=2; both sides must span the same prompt"},
    {"a chunk under context parallelism", BLOCKS(7, 1, 5), BLOCKS(4), 19, 0, 8, -1, 1, 2, 1,
     "enable_pipelined_transfer is not supported with context parallelism (sender cp_size=1, receiver cp_size=2)"},
    {"source id outside its pool", BLOCKS(7, 8), BLOCKS(2, 4), 16, 0, 0, -1, 1, 1, 0,
     "source group 0: id 8 at index 1, expected -1 or below 8"},
    {"destination id outside its pool", BLOCKS(7, 1), BLOCKS(2, 9), 16, 0, 0, -1, 1, 1, 0,
     "destination group 0: id 9 at index 1, expected -1 or below 8"},
    {"below -1", BLOCKS(7, 1), BLOCKS(2, -2), 16, 0, 0, -1, 1, 1, 0,
     "destination group 0: id -2 at index 1, expected -1 or below 8"},
    {"one slot for two ordinals", BLOCKS(7, 1), BLOCKS(2, 2), 16, 0, 0, -1, 1, 1, 0,
     "destination group 0: id 2 at index 1 is at index 0 already"},
    {"chunk past the prompt", BLOCKS(7), BLOCKS(2), 8, 0, 9, -1, 1, 1, 0,
     "chunk [0,9) of a prompt of 8 tokens is not valid"},
    {"chunk backwards", BLOCKS(7), BLOCKS(2), 8, 5, 4, -1, 1, 1, 0, "chunk [5,4) of a prompt of 8 tokens is not valid"},
    {"prompt below nothing", BLOCKS(7), BLOCKS(2), -8, 0, 0, -1, 1, 1, 0,
     "chunk [0,-8) of a prompt of -8 tokens is not valid"},
    {"start below nothing", BLOCKS(7), BLOCKS(2), 8, 0, 0, -3, 1, 1, 0, "start token -3 is negative"},
};

static void test_rows(void **state)
{
    struct pair_kit kit;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct row *row = &rows[i];

        plain(&kit);
        kit.self.spec.cp_size = row->self_cp;
        kit.peer.spec.cp_size = row->peer_cp;
        kit.peer.spec.cp_rank = row->peer_cp_rank;
        pair_kit_make(&kit, true);
        kit.request.prompt_tokens = row->prompt;
        kit.request.token_begin = row->begin;
        if (row->end) kit.request.token_end = row->end;
        if (row->start != -1) kit.request.dst_start_token = row->start;
        pair_kit_ids(&kit, 0, 0, row->src, row->dst);
        if (strcmp(pair_kit_moves(&kit), row->moves) != 0) fail_msg("%s: %s", row->name, kit.text);
        pair_kit_fini(&kit);
    }
}

static void test_requests_that_are_none(void **state)
{
    struct kvf_trtllm_request *request;
    struct kvf_error error = {0};
    kvf_trtllm_write *write = NULL;
    struct pair_kit kit;
    size_t count;

    (void)state;
    plain(&kit);
    pair_kit_make(&kit, true);
    request = &kit.request;
    request->src_count = 0;
    assert_string_equal(pair_kit_moves(&kit),
                        "0 block lists of the source, expected one for each of its 1 layer groups");
    request->src_count = 1;
    request->dst_count = 2;
    assert_string_equal(pair_kit_moves(&kit),
                        "2 block lists of the destination, expected one for each of its 1 layer groups");
    request->dst_count = 1;
    kit.dst[0].count = 3;
    assert_string_equal(pair_kit_moves(&kit), "destination group 0: 3 block ids are no list");
    kit.dst[0].count = 0;
    request->excluded_count = 1;
    assert_string_equal(pair_kit_moves(&kit), "1 excluded views without a list");
    request->excluded_count = 0;
    request->struct_size = sizeof *request + 8;
    assert_int_equal(kvf_trtllm_pair_bind(kit.pair, NULL, &write, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_write_fragments(NULL, NULL, 0, &count, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_null(write);
    kvf_trtllm_write_destroy(NULL);
    kvf_trtllm_cursor_destroy(NULL);
    kvf_trtllm_pair_release(NULL);
    pair_kit_fini(&kit);
}

/** Two groups that share nothing but the prompt: a full one and a window, whose older blocks are holes. */
static void test_window_group(void **state)
{
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    for (int side = 0; side < 2; side++) {
        struct rank_kit *rank = side ? &kit.peer : &kit.self;

        for (int g = 0; g < 2; g++) {
            size_t group = rank_kit_group(rank, KVF_TRTLLM_PAGED, g), view;

            view = rank_kit_view(rank, group, KVF_TRTLLM_INDEXED, 0);
            rank->views[group][view].num_kv_heads = 2;
            rank_kit_layer(rank, group, g, g);
            rank_kit_entry(rank, group, view, g, 0, 64);
            rank_kit_pool(rank, (size_t)g, (side ? 0x2000 : 0x1000) + 0x800 * (uint64_t)g, 64, 16);
        }
        rank->groups[0].sliding_window_size = 32;
        rank->table.tokens_per_block = 8;
        rank->attention.tokens_per_block = 8;
    }
    pair_kit_make(&kit, true);
    kit.request.prompt_tokens = 100;
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(-1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 2, 3, 4),
                 KIT_BLOCKS(-1, -1, -1, -1, -1, -1, -1, -1, 4, 3, 2, 1, 0));
    pair_kit_ids(&kit, 1, 1, KIT_BLOCKS(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12),
                 KIT_BLOCKS(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1));
    assert_string_equal(pair_kit_moves(&kit), "4096>8448+64 4160>8384+64 4224>8320+64 4288>8256+64 4352>8192+64 "
                                              "6848>10240+64 6912>10304+64");
    kit.request.excluded = (const struct kvf_trtllm_view_key[]){{0, 0}};
    kit.request.excluded_count = 1;
    assert_string_equal(pair_kit_moves(&kit), "6848>10240+64 6912>10304+64");
    kit.request.excluded = (const struct kvf_trtllm_view_key[]){{0, 0}, {1, 0}, {7, 7}};
    kit.request.excluded_count = 3;
    assert_string_equal(pair_kit_moves(&kit), "");
    pair_kit_fini(&kit);
}

static void halves(struct pair_kit *kit, int64_t rank, int64_t kind)
{
    pair_kit_init(kit);
    kit->self.spec.tp_rank = rank;
    rank_kit_pt(&kit->self, 1024, 2, 2, 2, 0, 1);
    kit->peer.spec.tp_size = 1;
    kit->peer.attention.kv_heads_per_rank = 4;
    rank_kit_pt(&kit->peer, 2048, 1, 4, 2, 0, 1);
    kit->self.views[0][0].mapper = kit->peer.views[0][0].mapper = kind;
    kit->self.pools[0][0].base_address = kit->peer.pools[0][0].base_address = 0;
    kit->request.prompt_tokens = 16;
}

static void test_finer_source(void **state)
{
    struct pair_kit kit;

    (void)state;
    halves(&kit, 1, KVF_TRTLLM_INDEXED);
    pair_kit_make(&kit, true);
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(0), KIT_BLOCKS(0));
    assert_string_equal(pair_kit_moves(&kit), "0>256+256 256>768+256 512>1280+256 768>1792+256");
    pair_kit_fini(&kit);
}

static void test_token_major_count(void **state)
{
    struct pair_kit kit;
    size_t fragments = 0;

    (void)state;
    halves(&kit, 0, KVF_TRTLLM_NHD);
    pair_kit_make(&kit, true);
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(0), KIT_BLOCKS(0));
    for (const char *at = pair_kit_moves(&kit); (at = strstr(at, "+16")); at++) fragments++;
    assert_int_equal(fragments, 64);
    assert_int_equal(strncmp(kit.text, "0>0+16 16>32+16 32>64+16 ", 25), 0);
    pair_kit_fini(&kit);
}

/** State alone, of a request without blocks. */
static void expect_state(struct pair_kit *kit, size_t view, const char *moves)
{
    const struct kvf_trtllm_view_key others[] = {{0, 0}, {1, view == 0}};

    pair_kit_make(kit, true);
    kit->request.excluded = others;
    kit->request.excluded_count = COUNT(others);
    pair_kit_ids(kit, 1, 1, KIT_BLOCKS(0), KIT_BLOCKS(0));
    assert_string_equal(pair_kit_moves(kit), moves);
    pair_kit_fini(kit);
}

static void test_state(void **state)
{
    struct pair_kit kit;

    (void)state;
    /* both layers lie at offset 0: upstream lists each */
    halves(&kit, 1, KVF_TRTLLM_INDEXED);
    expect_state(&kit, 0, "40960>41472+512 40960>41472+512 41472>42240+256 41472>42240+256 41728>42752+256 "
                          "41728>42752+256");
    halves(&kit, 1, KVF_TRTLLM_INDEXED);
    expect_state(&kit, 1, "45056>49152+4096 45056>49152+4096");
    pair_kit_init(&kit);
    kit.self.spec.tp_size = 1;
    kit.self.attention.kv_heads_per_rank = 4;
    rank_kit_pt(&kit.self, 2048, 1, 4, 2, 0, 1);
    kit.peer.spec.tp_rank = 1;
    rank_kit_pt(&kit.peer, 1024, 2, 2, 2, 0, 1);
    expect_state(&kit, 0, "41472>40960+512 41472>40960+512 42240>41472+256 42240>41472+256 42752>41728+256 "
                          "42752>41728+256");
}

static void test_state_that_stays(void **state)
{
    struct pair_kit kit;

    (void)state;
    halves(&kit, 0, KVF_TRTLLM_INDEXED);
    pair_kit_make(&kit, true);
    kit.request.prompt_tokens = 32;
    kit.request.token_end = 16;
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(-1, -1), KIT_BLOCKS(-1, -1));
    pair_kit_ids(&kit, 1, 1, KIT_BLOCKS(0), KIT_BLOCKS(0));
    assert_string_equal(pair_kit_moves(&kit), ""); /* not the last chunk */
    kit.request.token_end = 32;
    pair_kit_ids(&kit, 1, 1, KIT_BLOCKS(-1), KIT_BLOCKS(0));
    assert_string_equal(pair_kit_moves(&kit), "");
    kit.src[1].count = 0;
    assert_string_equal(pair_kit_moves(&kit), "");
    pair_kit_ids(&kit, 1, 1, KIT_BLOCKS(128), KIT_BLOCKS(0));
    assert_string_equal(pair_kit_moves(&kit), "source group 1: id 128 at index 0, expected -1 or below 128");
    pair_kit_fini(&kit);
}

/** The recurrent state of four layers (KDA: 4 heads of 4096 bytes, three sections of 512) from four ranks to one: each
 *  writes its quarter, together a slot of 71680 bytes. */
static void test_recurrent_sizes(void **state)
{
    static const int64_t ssm[] = {16384, 4096}, section[] = {512, 128};
    int64_t bytes = 0;

    (void)state;
    for (int64_t rank = 0; rank < 4; rank++) {
        kvf_trtllm_write *write = NULL;
        struct pair_kit kit;

        pair_kit_init(&kit);
        for (int side = 0; side < 2; side++) {
            struct rank_kit *to = side ? &kit.peer : &kit.self;
            size_t group = rank_kit_group(to, KVF_TRTLLM_STATE, 0), conv, heads;

            conv = rank_kit_view(to, group, KVF_TRTLLM_SECTIONED, 0);
            heads = rank_kit_view(to, group, KVF_TRTLLM_INDEXED, 1);
            rank_kit_role(to, group, conv, "conv_state");
            rank_kit_role(to, group, heads, "ssm_state");
            to->spec.tp_size = side ? 1 : 4;
            to->spec.tp_rank = side ? 0 : rank;
            to->table.tokens_per_block = 16;
            to->views[group][heads].bytes_per_head = 4096;
            to->views[group][conv].section_bytes = to->sections[group][conv];
            to->views[group][conv].section_count = 3;
            for (int64_t i = 0; i < 4; i++) {
                rank_kit_layer(to, group, i, i);
                rank_kit_entry(to, group, conv, i, i * 3 * section[!side], 3 * section[!side]);
                rank_kit_entry(to, group, heads, i, i * ssm[!side], ssm[!side]);
                to->sections[group][conv][i] = section[!side];
            }
            rank_kit_pool(to, 0, 0x10000, 12 * section[!side], 4);
            rank_kit_pool(to, 0, 0x100000, 4 * ssm[!side], 4);
        }
        pair_kit_make(&kit, true);
        pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(3), KIT_BLOCKS(1));
        pair_kit_moves(&kit); /* checks that the cursor's bytes are the list's */
        assert_int_equal(kvf_trtllm_pair_bind(kit.pair, &kit.request, &write, NULL), KVF_OK);
        assert_int_equal(kvf_trtllm_write_bytes(write), 4 * (384 + 4096));
        bytes += kvf_trtllm_write_bytes(write);
        kvf_trtllm_write_destroy(write);
        pair_kit_fini(&kit);
    }
    assert_int_equal(bytes, 71680);
}

/** Two ring views of unlike length in one group: each moves what both its rings retain. */
static void test_two_rings(void **state)
{
    static const int64_t slots[2][2] = {{4, 6}, {3, 2}};
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    for (int side = 0; side < 2; side++) {
        struct rank_kit *to = side ? &kit.peer : &kit.self;
        size_t group = rank_kit_group(to, KVF_TRTLLM_PAGED, 0);

        to->table.tokens_per_block = to->attention.tokens_per_block = 8;
        rank_kit_layer(to, group, 0, 0);
        for (int v = 0; v < 2; v++) {
            size_t view = rank_kit_view(to, group, KVF_TRTLLM_REPLICATED, v);

            rank_kit_role(to, group, view, v ? "tail_b" : "tail_a");
            rank_kit_entry(to, group, view, 0, 0, 10 * slots[v][side]);
            to->views[group][view].ring_slot_bytes = 10;
            rank_kit_pool(to, 0, (side ? 2000u : 1000u) + 500u * (unsigned)v, 100, 4);
        }
    }
    pair_kit_make(&kit, true);
    kit.request.prompt_tokens = 13;
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(1, 2), KIT_BLOCKS(3, 0));
    /* positions 9..12 in rings of 4 and 6, 11 and 12 in rings of 3 and 2 */
    assert_string_equal(pair_kit_moves(&kit), "1210>2030+30 1200>2000+10 1720>2510+10 1700>2500+10");
    kit.request.excluded = (const struct kvf_trtllm_view_key[]){{0, 0}};
    kit.request.excluded_count = 1;
    assert_string_equal(pair_kit_moves(&kit), "1720>2510+10 1700>2500+10");
    kit.request.excluded_count = 0;
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(1, -1), KIT_BLOCKS(3, 0));
    assert_string_equal(pair_kit_moves(&kit), "");
    pair_kit_fini(&kit);
    kit.peer.spec.cp_size = 2;
    pair_kit_make(&kit, true);
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(1, 2), KIT_BLOCKS(3));
    assert_string_equal(pair_kit_moves(&kit),
                        "group 0 view 0: rings of unlike length do not move under context parallelism");
    pair_kit_fini(&kit);
}

/** A view that cannot be mapped is told when it is to be sent, and only then; before it, what its lists say. */
static void test_mapper_that_cannot_be_built(void **state)
{
    struct pair_kit kit;

    (void)state;
    plain(&kit);
    kit.peer.entries[0][0][0].size_bytes = 32;
    pair_kit_make(&kit, true);
    assert_int_equal(pair_kit_mapper(&kit, 0), KVF_TRTLLM_MAP_ERROR);
    assert_null(kvf_trtllm_pair_plan(kit.pair));
    kit.request.prompt_tokens = 16;
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(0, -1), KIT_BLOCKS(-1, 0));
    assert_string_equal(pair_kit_moves(&kit), "");
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(0, 1), KIT_BLOCKS(0));
    assert_non_null(strstr(pair_kit_moves(&kit), "positional block tables differ in length: src=2 dst=1"));
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(0, 1), KIT_BLOCKS(0, 1));
    assert_string_equal(pair_kit_moves(&kit), "INDEXED cache region size mismatch: local=64, peer=32");
    kit.request.excluded = (const struct kvf_trtllm_view_key[]){{0, 0}};
    kit.request.excluded_count = 1;
    assert_string_equal(pair_kit_moves(&kit), "");
    pair_kit_fini(&kit);
}

/** Views whose memory overlaps at the receiver: each is named and mapped all the same, those before it are sent, and
 *  what is wrong is told when it is to be sent. */
static void test_views_that_overlap(void **state)
{
    static const char *const wrong = "share one place at the destination but not at the source";
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    rank_kit_pv(&kit.self, KVF_TRTLLM_INDEXED, 5, 2, 2, 2, 2, 2);
    rank_kit_pv(&kit.peer, KVF_TRTLLM_INDEXED, 5, 2, 2, 2, 2, 2);
    kit.peer.views[0][1].pool = 0;
    kit.peer.views[0][4].pool = 3;
    pair_kit_make(&kit, true);
    assert_int_equal(kvf_trtllm_pair_view_count(kit.pair), 5);
    for (size_t i = 0; i < 5; i++) assert_int_equal(pair_kit_mapper(&kit, i), KVF_TRTLLM_MAP_INTACT);
    kit.request.prompt_tokens = 2;
    pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(0), KIT_BLOCKS(1));
    if (!strstr(pair_kit_moves(&kit), wrong)) fail_msg("found \"%s\"", kit.text);
    kit.request.excluded = (const struct kvf_trtllm_view_key[]){{0, 1}, {0, 4}};
    kit.request.excluded_count = 1;
    if (!strstr(pair_kit_moves(&kit), wrong)) fail_msg("found \"%s\"", kit.text);
    kit.request.excluded_count = 2;
    assert_string_equal(pair_kit_moves(&kit), "4096>4128+32 12288>12320+32 16384>16416+32");
    pair_kit_fini(&kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_requests_that_are_none),
        cmocka_unit_test(test_window_group),
        cmocka_unit_test(test_finer_source),
        cmocka_unit_test(test_token_major_count),
        cmocka_unit_test(test_state),
        cmocka_unit_test(test_state_that_stays),
        cmocka_unit_test(test_recurrent_sizes),
        cmocka_unit_test(test_two_rings),
        cmocka_unit_test(test_mapper_that_cannot_be_built),
        cmocka_unit_test(test_views_that_overlap),
    };

    return cmocka_run_group_tests_name("pair requests", tests, NULL, NULL);
}
