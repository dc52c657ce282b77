/* SPDX-License-Identifier: Apache-2.0 */
/* Field cases of class B, byte layout and block geometry. One test per case, named by its number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kit.h"

/* Pulls [0, tokens) and checks tokens up to the end of the moved grain. */
static void pull_all(struct pull *out, const struct worker *src, size_t src_count, const struct worker *dst,
                     size_t dst_count, size_t destination, int64_t tokens, int64_t moved, const char *name)
{
    *out = (struct pull){.end = tokens, .tokens = tokens};
    if (pull(out, src, src_count, dst, dst_count, destination, -1) != KVF_OK) fail_msg("%s: %s", name, out->error.text);
    worker_check(&dst[destination], 0, moved, tokens, name);
}

static void test_fr_013(void **state)
{
    struct worker src[1], dst[2];
    struct pull done;

    (void)state;
    instance_open(src, 4, 1, 3, 48, true);
    for (int64_t i = 0; i < 2; i++) {
        dst[i] = tiny(4, 2, i, 3);
        dst[i].tokens_first[0] = dst[i].tokens_first[1] = true;
        worker_open(&dst[i]);
        pull_all(&done, src, 1, dst, (size_t)i + 1, (size_t)i, 48, 48, "heads first to tokens first");
        assert_int_equal(done.longest_run, 16); /* never a plain copy of a head's block */
    }
    for (int64_t t = 0; t < 16; t++) {
        assert_memory_equal(dst[0].memory[0] + t * 32, worker_row(&src[0], 0, 0, 0, 0, t), 16);
        assert_memory_equal(dst[0].memory[0] + t * 32 + 16, worker_row(&src[0], 0, 0, 0, 1, t), 16);
    }
    instance_close(src, 1);
    instance_close(dst, 2);
}

static void test_fr_014(void **state)
{
    struct worker src[1] = {tiny(8, 1, 0, 3)}, dst[8];
    struct kvf_layout_spec spec;
    struct kvf_error error = {0};
    struct pull done;
    kvf_layout *layout = NULL;
    int64_t too_few;

    (void)state;
    src[0].tokens_first[1] = true; /* one region of either order in one worker */
    worker_open(&src[0]);
    worker_fill(&src[0], 48);
    for (int64_t i = 0; i < 8; i++) {
        dst[i] = tiny(8, 8, i, 3);
        dst[i].tokens_first[1] = true;
        worker_open(&dst[i]);
    }
    for (size_t i = 0; i < 8; i++) pull_all(&done, src, 1, dst, 8, i, 48, 48, "one region of either order");
    spec = *kvf_layout_get_spec(src[0].layout);
    too_few = src[0].memory_bytes[0] - 1;
    spec.memory_bytes = &too_few;
    assert_int_equal(kvf_layout_create(&spec, &layout, &error), KVF_ERR_LAYOUT);
    assert_string_equal(error.text, "v layer 1: ends at 24576, memory has 24575");
    instance_close(src, 1);
    instance_close(dst, 8);
}

static void test_fr_015(void **state)
{
    struct worker src[4], dst[2];

    (void)state;
    for (int64_t i = 0; i < 4; i++) {
        src[i] = tiny(4, 4, i, 1);
        src[i].tokens_first[0] = src[i].tokens_first[1] = true;
        worker_open(&src[i]);
        worker_fill(&src[i], 16);
    }
    for (int64_t i = 0; i < 2; i++) {
        struct pull done;

        dst[i] = tiny(4, 2, i, 1);
        dst[i].tokens_first[0] = dst[i].tokens_first[1] = true;
        worker_open(&dst[i]);
        pull_all(&done, src, 4, dst, (size_t)i + 1, (size_t)i, 16, 16, "tokens first, 4 to 2");
        assert_int_equal(done.longest_run, 16);
        assert_int_equal(done.runs, 2 * (32 + 32));
        assert_int_equal(done.bytes_from[2 * i], done.bytes_from[2 * i + 1]);
    }
    assert_memory_equal(dst[0].memory[0] + 5 * 32 + 16, worker_row(&src[1], 0, 0, 0, 1, 5), 16);
    instance_close(src, 4);
    instance_close(dst, 2);
}

static struct worker blocks_of(int64_t tokens_per_block, int64_t blocks)
{
    struct worker worker = tiny(4, 1, 0, blocks);

    worker.tokens_per_block = tokens_per_block;
    worker_open(&worker);
    return worker;
}

static void test_fr_016(void **state)
{
    static const struct { const char *name; int64_t src, dst, moved; } rows[] = {
        {"32 to 16", 32, 16, 80}, {"16 to 32", 16, 32, 80}, {"16 to 24", 16, 24, 72}, {"24 to 16", 24, 16, 72},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct worker src = blocks_of(rows[i].src, 5), dst = blocks_of(rows[i].dst, 5);
        struct pull done;

        worker_fill(&src, 70);
        pull_all(&done, &src, 1, &dst, 1, 0, 70, rows[i].moved, rows[i].name);
        if (i == 0) { /* the fifth block is the first half of the third */
            assert_memory_equal(worker_row(&dst, 0, 0, 4, 0, 0), worker_row(&src, 0, 0, 2, 0, 0), 256);
        }
        worker_close(&src);
        worker_close(&dst);
    }
}

/* As far as a stock peer is concerned, 16 against 24 stays refused. */
static void test_fr_016_option(void **state)
{
    struct worker src = blocks_of(16, 5), dst = blocks_of(24, 5);
    struct kvf_plan_options options;
    struct kvf_error error = {0};
    kvf_plan *plan = NULL;

    (void)state;
    kvf_plan_options_init(&options, sizeof options);
    options.flags = KVF_PLAN_DIVISIBLE_BLOCKS;
    assert_int_equal(kvf_plan_create(src.layout, dst.layout, NULL, &options, &plan, &error), KVF_ERR_INCOMPATIBLE);
    if (!strstr(error.text, "16") || !strstr(error.text, "24")) fail_msg("%s", error.text);
    worker_close(&src);
    worker_close(&dst);
}

static void test_fr_017(void **state)
{
    struct worker src[1] = {tiny(4, 1, 0, 19)}, dst[2];
    struct pull done;

    (void)state;
    worker_open(&src[0]);
    worker_fill(&src[0], 300);
    for (int64_t i = 0; i < 2; i++) {
        dst[i] = tiny(4, 2, i, 3);
        dst[i].tokens_per_block = 128;
        worker_open(&dst[i]);
        pull_all(&done, src, 1, dst, (size_t)i + 1, (size_t)i, 300, 304, "16 to 128 with a head cut");
        assert_int_equal(done.bytes, 2 * 2 * 2 * (2048 + 2048 + 768));
    }
    for (int64_t block = 0; block < 8; block++) {
        assert_memory_equal(worker_row(&dst[0], 0, 0, 0, 1, 0) + block * 256, worker_row(&src[0], 0, 0, block, 1, 0),
                            256);
    }
    instance_close(src, 1);
    instance_close(dst, 2);
}

static void test_fr_020(void **state)
{
    struct worker src = tiny(4, 1, 0, 4), dst = tiny(4, 1, 0, 4);
    static const int64_t from[] = {3, 0, 2, 1}, to[] = {1, 3, 0, 2};
    struct pull done;

    (void)state;
    src.apart = true;
    worker_ids(&src, 4, from);
    worker_ids(&dst, 4, to);
    worker_open(&src);
    worker_open(&dst);
    worker_fill(&src, 64);
    pull_all(&done, &src, 1, &dst, 1, 0, 64, 64, "K and V in halves to side by side");
    assert_int_equal(done.runs, 4 * 2 * 2);
    assert_int_equal(done.longest_run, 1024);
    worker_close(&src);
    worker_close(&dst);
}

static void test_fr_021(void **state)
{
    static const struct { const char *name; int64_t from, to; enum kvf_status status; const char *value; } rows[] = {
        {"last ids", 112, 210, KVF_OK, NULL},
        {"source id 113", 113, 210, KVF_ERR_IDS, "113"},
        {"destination id 211", 112, 211, KVF_ERR_IDS, "211"},
    };
    struct worker src = tiny(4, 1, 0, 113), dst = tiny(4, 1, 0, 211);

    (void)state;
    worker_open(&src);
    worker_open(&dst);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pull done = {.end = 16, .tokens = 16};

        worker_ids(&src, 1, &rows[i].from);
        worker_ids(&dst, 1, &rows[i].to);
        if (i == 0) worker_fill(&src, 16);
        if (pull(&done, &src, 1, &dst, 1, 0, -1) != rows[i].status) fail_msg("%s: %s", rows[i].name, done.error.text);
        if (rows[i].value && !strstr(done.error.text, rows[i].value)) fail_msg("%s: %s", rows[i].name, done.error.text);
        if (i == 0) worker_check(&dst, 0, 16, 16, rows[i].name);
    }
    worker_close(&src);
    worker_close(&dst);
}

static void test_fr_022(void **state)
{
    struct worker src = tiny(4, 1, 0, 3), dst = tiny(4, 1, 0, 3);
    struct pull done = {.end = 48, .tokens = 48};
    kvf_plan *plan = NULL;
    struct kvf_error error = {0};

    (void)state;
    dst.row_bytes = 12; /* 1,536 bytes per block and layer instead of 2,048 */
    worker_open(&src);
    worker_open(&dst);
    worker_fill(&src, 48);
    assert_int_equal(pull(&done, &src, 1, &dst, 1, 0, -1), KVF_ERR_INCOMPATIBLE);
    if (!strstr(done.error.text, "k ") || !strstr(done.error.text, "16") || !strstr(done.error.text, "12")) {
        fail_msg("%s", done.error.text);
    }
    assert_int_equal(kvf_plan_create(src.layout, dst.layout, NULL, NULL, &plan, &error), KVF_ERR_INCOMPATIBLE);
    if (!strstr(error.text, "k ") || !strstr(error.text, "16") || !strstr(error.text, "12")) fail_msg("%s", error.text);
    worker_check(&dst, 0, 0, 48, "nothing was written");
    worker_close(&src);
    worker_close(&dst);
}

static void test_fr_023(void **state)
{
    static const int64_t capacities[] = {100, 98};
    struct worker src[1], dst[2];

    (void)state;
    instance_open(src, 4, 1, 1, 16, true);
    for (int64_t i = 0; i < 2; i++) {
        dst[i] = tiny(4, 2, i, capacities[i]);
        worker_open(&dst[i]);
    }
    for (int64_t id = 97; id <= 100; id++) {
        for (size_t rank = 0; rank < 2; rank++) {
            struct pull done = {.end = 16, .tokens = 16};

            worker_ids(&dst[rank], 1, &id);
            assert_int_equal(pull(&done, src, 1, dst, 2, rank, -1),
                             id < capacities[rank] ? KVF_OK : KVF_ERR_IDS);
            if (id >= capacities[rank] && !strstr(done.error.text, id == 100 ? "100" : id == 99 ? "99" : "98")) {
                fail_msg("%s", done.error.text);
            }
        }
    }
    instance_close(src, 1);
    instance_close(dst, 2);
}

/* ---- cases with regions of their own ---- */

/* Two regions, one view each, one layer. */
struct regions {
    int64_t memory_bytes[2];
    struct kvf_pool pools[2];
    struct kvf_view views[2];
    struct kvf_place places[2];
    size_t memories;
    int64_t tokens_per_block;
};

static kvf_layout *create_regions(struct regions *r)
{
    const struct kvf_group group = {r->tokens_per_block, 0, 1, 0, 0};
    struct kvf_layout_spec spec;
    struct kvf_error error = {0};
    kvf_layout *layout = NULL;

    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = r->memory_bytes;
    spec.pools = r->pools;
    spec.memory_count = spec.pool_count = r->memories;
    spec.groups = &group;
    spec.group_count = 1;
    spec.views = r->views;
    spec.view_count = 2;
    for (int i = 0; i < 2; i++) {
        r->views[i].places = &r->places[i];
        r->views[i].place_count = 1;
    }
    if (kvf_layout_create(&spec, &layout, &error) != KVF_OK) fail_msg("%s", error.text);
    return layout;
}

static struct kvf_view region_view(const char *role, int64_t row_bytes, int64_t entries, int64_t slots_per_block)
{
    return (struct kvf_view){.role = role, .tag = "t", .row_bytes = row_bytes, .byte_count = row_bytes, .unit_total = 1,
                             .unit_count = 1, .unit_stride_bytes = row_bytes, .entry_stride_bytes = row_bytes,
                             .entries = entries, .slots_per_block = slots_per_block};
}

/* Binds one block of `id` on both sides and lists the moves. */
static size_t list_moves(const kvf_layout *src, const kvf_layout *dst, int64_t id, int64_t tokens,
                         struct kvf_move *moves, size_t most, int64_t *bytes)
{
    const struct kvf_id_list list = {&id, 1, 0};
    struct kvf_bind_request request;
    struct kvf_binding_info info;
    struct kvf_error error = {0};
    kvf_plan *plan = NULL;
    kvf_binding *binding = NULL;
    kvf_cursor *cursor = NULL;
    size_t count = 0;

    kvf_bind_request_init(&request, sizeof request);
    request.token_end = request.request_tokens = tokens;
    request.src = request.dst = &list;
    request.src_count = request.dst_count = 1;
    if (kvf_plan_create(src, dst, NULL, NULL, &plan, &error) != KVF_OK ||
        kvf_bind(plan, &request, &binding, &error) != KVF_OK) fail_msg("%s", error.text);
    assert_int_equal(kvf_cursor_create(binding, &cursor, NULL), KVF_OK);
    while (count < most && kvf_cursor_next(cursor, &moves[count]) == KVF_OK) count++;
    kvf_binding_get_info(binding, &info);
    *bytes = info.bytes;
    kvf_cursor_destroy(cursor);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    return count;
}

static void test_fr_019(void **state)
{
    struct regions r = {.memory_bytes = {6 * 4096}, .pools = {{0, 0, 4096, 6}}, .memories = 1, .tokens_per_block = 16,
                        .views = {region_view("r1", 96, 16, 1), region_view("r2", 64, 16, 1)},
                        .places = {{0, 0, 0}, {0, 0, 2048}}};
    kvf_layout *layout = create_regions(&r);
    struct kvf_move moves[8];
    int64_t bytes;

    (void)state;
    assert_int_equal(list_moves(layout, layout, 3, 16, moves, 8, &bytes), 2);
    assert_int_equal(bytes, 2560);
    assert_int_equal(moves[0].src_offset_bytes, 12288);
    assert_int_equal(moves[0].run_bytes, 1536);
    assert_int_equal(moves[1].src_offset_bytes, 14336);
    assert_int_equal(moves[1].dst_offset_bytes, 14336);
    assert_int_equal(moves[1].run_bytes, 1024);
    for (int i = 0; i < 2; i++) assert_int_equal(moves[i].loop_count, 0); /* nothing between the regions moves */
    kvf_layout_release(layout);
}

static void test_fr_024(void **state)
{
    struct regions r = {.memory_bytes = {65536, 65536}, .pools = {{0, 0, 256, 8}, {1, 0, 128, 8}}, .memories = 2,
                        .tokens_per_block = 16, .views = {region_view("a", 2, 16, 1), region_view("b", 1, 16, 1)},
                        .places = {{0, 0, 0}, {0, 1, 0}}};
    kvf_layout *src = create_regions(&r), *dst;
    struct kvf_move moves[8];
    struct kvf_error error = {0};
    kvf_plan *plan = NULL;
    int64_t bytes;

    (void)state;
    assert_int_equal(list_moves(src, src, 5, 16, moves, 8, &bytes), 2);
    assert_int_equal(moves[0].run_bytes, 32);
    assert_int_equal(moves[0].src_offset_bytes, 5 * 256);
    assert_int_equal(moves[1].run_bytes, 16);
    assert_int_equal(moves[1].src_offset_bytes, 5 * 128);
    r.views[1] = region_view("b", 2, 16, 1);
    dst = create_regions(&r);
    assert_int_equal(kvf_plan_create(src, dst, NULL, NULL, &plan, &error), KVF_ERR_INCOMPATIBLE);
    if (!strstr(error.text, "b layer 0") || !strstr(error.text, "1") || !strstr(error.text, "2")) {
        fail_msg("%s", error.text);
    }
    kvf_layout_release(src);
    kvf_layout_release(dst);
}

static void test_fr_025(void **state)
{
    struct regions r = {.memory_bytes = {8000 * 2, 1000 * 16}, .pools = {{0, 0, 2, 8000}, {1, 0, 16, 1000}},
                        .memories = 2, .tokens_per_block = 16,
                        .views = {region_view("x", 1, 2, 8), region_view("y", 1, 16, 1)},
                        .places = {{5, 0, 0}, {5, 1, 0}}};
    kvf_layout *layout = create_regions(&r);

    (void)state;
    for (int i = 0; i < 2; i++) {
        int64_t id = i ? 900 : 1, bytes;
        struct kvf_move moves[32];
        size_t count = list_moves(layout, layout, id, 16, moves, 32, &bytes);
        int64_t x_bytes = 0;

        assert_int_equal(bytes, 32);
        for (size_t m = 0; m < count; m++) {
            int64_t moved = moves[m].run_bytes;

            for (int64_t j = 0; j < moves[m].loop_count; j++) moved *= moves[m].loops[j].count;
            if (moves[m].src_memory == 0) {
                assert_in_range(moves[m].src_offset_bytes / 2, 8 * id, 8 * id + 7);
                x_bytes += moved;
            } else {
                assert_int_equal(moves[m].src_offset_bytes, 16 * id);
                assert_int_equal(moved, 16);
            }
        }
        assert_int_equal(x_bytes, 16); /* slots 8*id .. 8*id+7 of two bytes each */
    }
    kvf_layout_release(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fr_013), cmocka_unit_test(test_fr_014), cmocka_unit_test(test_fr_015),
        cmocka_unit_test(test_fr_016), cmocka_unit_test(test_fr_016_option), cmocka_unit_test(test_fr_017),
        cmocka_unit_test(test_fr_019), cmocka_unit_test(test_fr_020), cmocka_unit_test(test_fr_021),
        cmocka_unit_test(test_fr_022), cmocka_unit_test(test_fr_023), cmocka_unit_test(test_fr_024),
        cmocka_unit_test(test_fr_025),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
