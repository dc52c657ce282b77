/* SPDX-License-Identifier: Apache-2.0 */
/* The second half of the worked examples in docs/layout-model.md: E13 to E18. */
#include <stdlib.h>

#include "plan/plan_kit.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/** Tiny, one layer, K only, heads first: heads of 16-byte rows in blocks of `tokens`. Memories begin at 0. */
static void heads_first(struct kit *kit, int64_t tokens, int64_t first, int64_t heads)
{
    kit_init(kit);
    kit_pool(kit, kit_memory(kit), 0, heads * tokens * 16, 64);
    kit_group(kit, tokens);
    kit_view(kit, (struct kit_part){.role = "k", .row = 16, .total = 4, .first = first, .units = heads,
                                    .unit_stride = tokens * 16, .entry_stride = 16, .entries = tokens});
    kit_place(kit, 0, 0, 0);
}

static void finish(kvf_plan *plan, struct kit *src, struct kit *dst)
{
    kvf_plan_release(plan);
    kit_free(dst);
    kit_free(src);
}

static void test_small_to_large_blocks(void **state)
{
    static const char *const moves[] = {"4096 -> 4096, (4, 1024, 256), (4, 256, 1024), 256",
                                        "9216 -> 32768, (4, 256, 1024), 256", "2048 -> 33024, (4, 256, 1024), 256"};
    const struct kvf_id_list src_ids = KIT_IDS(4, 5, 6, 7, 9, 2), dst_ids = KIT_IDS(1, 8);
    struct kvf_id_list rest = KIT_IDS(8);
    struct kvf_plan_info info;
    struct kit src, dst;
    kvf_binding *binding;
    kvf_plan *plan;

    (void)state;
    heads_first(&src, 16, 0, 4);
    heads_first(&dst, 64, 0, 4);
    plan = kit_plan(&src, &dst, 0);
    kit_expect_shape(plan, 0, 0, "(1, 1, 1, 16, part)");
    kit_expect_boxes(plan, 1);
    kit_expect_box(plan, 0, 0, 0, "0 -> 0, (4, 256, 1024), 256");
    kvf_plan_get_info(plan, &info);
    assert_int_equal(info.grain_tokens, 16);
    binding = kit_bind(plan, 0, 90, &src_ids, &dst_ids, 0);
    kit_expect_moves(binding, moves, 3);
    kvf_binding_destroy(binding);
    rest.first = 1;
    binding = kit_bind(plan, 64, 90, &src_ids, &rest, 0);
    kit_expect_moves(binding, moves + 1, 2);
    kvf_binding_destroy(binding);
    finish(plan, &src, &dst);
}

static void test_large_to_small_blocks(void **state)
{
    static const char *const moves[] = {"4096 -> 4096, (4, 256, 1024), (4, 1024, 256), 256",
                                        "32768 -> 9216, (4, 1024, 256), 256", "33024 -> 2048, (4, 1024, 256), 256"};
    struct kit src, dst;
    kvf_binding *binding;
    kvf_plan *plan;

    (void)state;
    heads_first(&src, 64, 0, 4);
    heads_first(&dst, 16, 0, 4);
    plan = kit_plan(&src, &dst, 0);
    binding = kit_bind(plan, 0, 90, &KIT_IDS(1, 8), &KIT_IDS(4, 5, 6, 7, 9, 2), 0);
    kit_expect_moves(binding, moves, COUNT(moves));
    kvf_binding_destroy(binding);
    finish(plan, &src, &dst);
}

static void test_blocks_and_heads(void **state)
{
    const struct kvf_id_list src_ids = KIT_IDS(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18);
    struct kit src, dst;

    (void)state;
    heads_first(&src, 16, 0, 4);
    for (int64_t rank = 0; rank < 2; rank++) {
        int64_t bytes_in_block_2 = 0;
        struct kit_fragment *all;
        kvf_binding *binding;
        kvf_plan *plan;
        size_t count;

        heads_first(&dst, 128, 2 * rank, 2);
        plan = kit_plan(&src, &dst, 0);
        kit_expect_boxes(plan, 1);
        binding = kit_bind(plan, 0, 300, &src_ids, &KIT_IDS(0, 1, 2), 0);
        all = kit_fragments(binding, 0, 0, &count);
        assert_int_equal(count, 38);
        for (size_t i = 0; i < count; i++) {
            int64_t block = all[i].src / 1024, head = all[i].src % 1024 / 256 - 2 * rank;

            assert_int_equal(all[i].bytes, 256);
            assert_int_equal(all[i].dst, block / 8 * 4096 + head * 2048 + block % 8 * 256);
            if (all[i].dst >= 2 * 4096 && head == 0) bytes_in_block_2 += all[i].bytes;
        }
        assert_int_equal(bytes_in_block_2, 768);
        free(all);
        kvf_binding_destroy(binding);
        kvf_plan_release(plan);
        kit_free(&dst);
    }
    kit_free(&src);
}

static void test_token_interleave(void **state)
{
    static const char *const moves[] = {"32 -> 7168, (4, 1024, 64), (4, 256, 256), (4, 64, 16), 16",
                                        "4128 -> 5120, (4, 256, 256), 16"};
    struct kvf_binding_info info;
    struct kit src, dst;
    kvf_binding *binding;
    kvf_plan *plan;

    (void)state;
    heads_first(&src, 16, 0, 4);
    heads_first(&dst, 16, 0, 4);
    dst.groups[0] = (struct kvf_group){16, 0, 4, 2, 1};
    plan = kit_plan(&src, &dst, 0);
    kit_expect_shape(plan, 0, 0, "(4, 4, 1, 1, part)");
    kit_expect_box(plan, 0, 0, 0, "0 -> 0, (4, 256, 256), (4, 64, 16), 16");
    binding = kit_bind(plan, 0, 70, &KIT_IDS(0, 1, 2, 3, 4), &KIT_IDS(7, 5), 0);
    kit_expect_moves(binding, moves, COUNT(moves));
    kvf_binding_get_info(binding, &info);
    assert_int_equal(info.runs, 68);
    kvf_binding_destroy(binding);
    finish(plan, &src, &dst);
}

static void test_stripes_on_both_sides(void **state)
{
    struct kit_fragment *all;
    struct kit src, dst;
    kvf_binding *binding;
    kvf_plan *plan;
    size_t count;

    (void)state;
    heads_first(&src, 12, 0, 4);
    heads_first(&dst, 12, 0, 4);
    src.groups[0] = (struct kvf_group){12, 0, 2, 1, 1};
    dst.groups[0] = (struct kvf_group){12, 0, 3, 2, 1};
    plan = kit_plan(&src, &dst, 0);
    kit_expect_shape(plan, 0, 0, "(4, 3, 2, 1, part)");
    kit_expect_shape(plan, 0, 1, "(2, 3, 2, 1, part)");
    binding = kit_bind(plan, 0, 48, &KIT_IDS(0, 1), &KIT_IDS(3, 4), 0);
    all = kit_fragments(binding, 0, 0, &count);
    assert_int_equal(count, 8 * 4);
    /* head 0 of the first shape's comb, then of the second's two: positions 5, 11, 17, 23; 29, 35; 41, 47 */
    for (int64_t i = 0; i < 4; i++) {
        assert_int_equal(all[i].src, (2 + 3 * i) * 16);
        assert_int_equal(all[i].dst, 3 * 768 + (1 + 2 * i) * 16);
    }
    for (int64_t i = 0; i < 2; i++) {
        assert_int_equal(all[16 + i].src, 768 + (2 + 3 * i) * 16);
        assert_int_equal(all[16 + i].dst, 3 * 768 + (9 + 2 * i) * 16);
        assert_int_equal(all[24 + i].src, 768 + (8 + 3 * i) * 16);
        assert_int_equal(all[24 + i].dst, 4 * 768 + (1 + 2 * i) * 16);
    }
    free(all);
    kvf_binding_destroy(binding);
    finish(plan, &src, &dst);
}

/** Blocks of one sequence dealt to ranks: by block, and contiguous. The destination's ids name the blocks it gets. */
static void test_dealt_blocks(void **state)
{
    static const struct {
        const char *name;
        int64_t stripes, stripe, stripe_tokens, blocks;
        int64_t sources[3];
        size_t count;
    } rows[] = {
        {"by block, rank 0", 2, 0, 16, 4, {7, 5}, 2},
        {"by block, rank 1", 2, 1, 16, 4, {1, 9}, 2},
        {"contiguous, 5 blocks, rank 0 of 2", 2, 0, 0, 5, {7, 1, 5}, 3},
        {"contiguous, 5 blocks, rank 1 of 2", 2, 1, 0, 5, {9, 3}, 2},
        {"contiguous, 3 blocks, rank 0 of 4", 4, 0, 0, 3, {7}, 1},
        {"contiguous, 3 blocks, rank 2 of 4", 4, 2, 0, 3, {5}, 1},
        {"contiguous, 3 blocks, rank 3 of 4", 4, 3, 0, 3, {0}, 0},
    };
    const struct kvf_id_list src_ids = KIT_IDS(7, 1, 5, 9, 3);

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kit_fragment *all;
        struct kit src, dst;
        kvf_binding *binding;
        kvf_plan *plan;
        size_t count;

        print_message("%s\n", rows[i].name);
        heads_first(&src, 16, 0, 4);
        heads_first(&dst, 16, 0, 4);
        dst.groups[0] = (struct kvf_group){16, 0, rows[i].stripes, rows[i].stripe, rows[i].stripe_tokens};
        plan = kit_plan(&src, &dst, 0);
        /* ids two apart, so that no two blocks become one move */
        binding = kit_bind(plan, 0, rows[i].blocks * 16 - 3, &src_ids, &KIT_IDS(10, 12, 14), 0);
        all = kit_fragments(binding, 0, 0, &count);
        assert_int_equal(count, rows[i].count);
        for (size_t j = 0; j < count; j++) {
            assert_int_equal(all[j].src, rows[i].sources[j] * 1024);
            assert_int_equal(all[j].dst, (10 + 2 * (int64_t)j) * 1024);
        }
        free(all);
        kvf_binding_destroy(binding);
        finish(plan, &src, &dst);
    }
}

static void test_scales_apart(void **state)
{
    static const char *const roles[] = {"k", "k.scale", "v", "v.scale"};
    struct kit src, dst;
    kvf_plan *plan;

    (void)state;
    kit_init(&src);
    kit_pool(&src, kit_memory(&src), 0, 2304, 64);
    kit_group(&src, 16);
    kit_init(&dst);
    kit_pool(&dst, kit_memory(&dst), 0, 2048, 64);
    kit_pool(&dst, kit_memory(&dst), 0, 256, 64);
    kit_group(&dst, 16);
    for (int64_t part = 0; part < 4; part++) {
        int64_t scale = part % 2, row = scale ? 1 : 8;

        kit_view(&src, (struct kit_part){.role = roles[part], .row = row, .total = 4, .unit_stride = 16 * 18,
                                         .entry_stride = 18, .entries = 16});
        kit_view(&dst, (struct kit_part){.role = roles[part], .row = row, .total = 4, .unit_stride = 16 * row,
                                         .entry_stride = row, .entries = 16});
        for (int64_t layer = 0; layer < 2; layer++) {
            kit_place(&src, layer, 0, layer * 1152 + (part / 2) * 9 + scale * 8);
            kit_place(&dst, layer, scale, (2 * layer + part / 2) * 64 * row);
        }
    }
    plan = kit_plan(&src, &dst, 0);
    kit_expect_boxes(plan, 2);
    kit_expect_box(plan, 0, 0, 0, "0 -> 0, (2, 1152, 1024), (2, 9, 512), (64, 18, 8), 8");
    kit_expect_box(plan, 0, 0, 1, "8 -> 0, (2, 1152, 128), (2, 9, 64), (64, 18, 1), 1");
    finish(plan, &src, &dst);
}

static void test_latent_and_rope(void **state)
{
    struct kit src, dst;
    kvf_plan *plan;

    (void)state;
    kit_init(&src);
    kit_pool(&src, kit_memory(&src), 0, 2 * 16 * 1152, 64);
    kit_group(&src, 16);
    kit_init(&dst);
    kit_pool(&dst, kit_memory(&dst), 0, 2 * 16 * 1024, 64);
    kit_pool(&dst, kit_memory(&dst), 0, 2 * 16 * 128, 64);
    kit_group(&dst, 16);
    for (int64_t rope = 0; rope < 2; rope++) {
        struct kit_part part = {.role = "mla", .row = 1152, .byte_first = rope ? 1024 : 0, .bytes = rope ? 128 : 1024,
                                .entries = 16};

        kit_view(&dst, part);
        for (int64_t layer = 0; layer < 2; layer++) kit_place(&dst, layer, rope, layer * 16 * part.bytes);
        part.entry_stride = 1152;
        part.unit_stride = 16 * 1152;
        kit_view(&src, part);
        for (int64_t layer = 0; layer < 2; layer++) kit_place(&src, layer, 0, layer * 16 * 1152 + part.byte_first);
    }
    plan = kit_plan(&src, &dst, 0);
    kit_expect_boxes(plan, 2);
    kit_expect_box(plan, 0, 0, 0, "0 -> 0, (32, 1152, 1024), 1024");
    kit_expect_box(plan, 0, 0, 1, "1024 -> 0, (32, 1152, 128), 128");
    finish(plan, &src, &dst);
}

static void test_columns(void **state)
{
    struct kit src, dst;
    kvf_plan *plan;

    (void)state;
    kit_init(&src);
    kit_pool(&src, kit_memory(&src), 0, 256, 64);
    kit_group(&src, 4);
    kit_init(&dst);
    kit_pool(&dst, kit_memory(&dst), 0, 256, 64);
    kit_group(&dst, 4);
    for (int64_t column = 0; column < 4; column++) {
        kit_view(&src, (struct kit_part){.role = "k", .row = 32, .byte_first = column * 8, .bytes = 8, .total = 2,
                                         .unit_stride = 128, .entry_stride = 8, .entries = 4});
        kit_place(&src, 0, 0, column * 32);
    }
    kit_view(&dst, (struct kit_part){.role = "k", .row = 32, .total = 2, .unit_stride = 128, .entry_stride = 32,
                                     .entries = 4});
    kit_place(&dst, 0, 0, 0);
    plan = kit_plan(&src, &dst, 0);
    kit_expect_boxes(plan, 1);
    kit_expect_box(plan, 0, 0, 0, "0 -> 0, (2, 128, 128), (4, 8, 32), (4, 32, 8), 8");
    finish(plan, &src, &dst);
}

static void test_page_first_from_layer_first(void **state)
{
    struct kit src, dst;
    kvf_binding *binding;
    kvf_plan *plan;

    (void)state;
    kit_init(&src);
    kit_pool(&src, kit_memory(&src), 0, 1024, 8);
    kit_group(&src, 16);
    kit_init(&dst);
    kit_pool(&dst, kit_memory(&dst), 0, 4096, 8);
    kit_group(&dst, 16);
    for (int64_t v = 0; v < 2; v++) {
        struct kit_part part = {.role = v ? "v" : "k", .row = 16, .total = 4, .unit_stride = 256, .entry_stride = 16,
                                .entries = 16};

        kit_view(&src, part);
        kit_view(&dst, part);
        for (int64_t layer = 0; layer < 2; layer++) {
            kit_place(&src, layer, 0, (2 * layer + v) * 8192);
            kit_place(&dst, layer, 0, (2 * layer + v) * 1024);
        }
    }
    plan = kit_plan(&src, &dst, 0);
    kit_expect_boxes(plan, 1);
    kit_expect_box(plan, 0, 0, 0, "0 -> 0, (4, 8192, 1024), 1024");
    binding = kit_bind(plan, 0, 32, &KIT_IDS(2, 3), &KIT_IDS(0, 1), 0);
    kit_expect_moves(binding, (const char *const[]){"2048 -> 0, (2, 1024, 4096), (4, 8192, 1024), 1024"}, 1);
    kvf_binding_destroy(binding);
    finish(plan, &src, &dst);
}

static void test_window(void **state)
{
    int64_t full[64], window[64];
    struct kvf_binding_info info;
    struct kit src, dst;
    kvf_binding *binding;
    kvf_cursor *cursor = NULL;
    struct kvf_move move;
    kvf_plan *plan;
    size_t moves = 0;

    (void)state;
    for (int64_t i = 0; i < 64; i++) {
        full[i] = i;
        window[i] = i < 47 ? -1 : 100 + i;
    }
    for (int side = 0; side < 2; side++) {
        struct kit *kit = side ? &dst : &src;

        kit_init(kit);
        kit_pool(kit, kit_memory(kit), 0, 2048, 200);
        for (int64_t group = 0; group < 2; group++) {
            kit_group(kit, 16);
            kit_view(kit, (struct kit_part){.role = group ? "kv@1" : "kv@0", .group = group, .row = 2048});
            kit_place(kit, 0, 0, 0);
        }
    }
    plan = kit_plan(&src, &dst, 0);
    {
        const struct kvf_id_list lists[] = {{full, 64, 0}, {window, 64, 0}};

        binding = kit_bind(plan, 0, 1024, lists, lists, 0);
    }
    kvf_binding_get_info(binding, &info);
    assert_int_equal(info.bytes, 165888);
    assert_int_equal(kvf_cursor_create(binding, &cursor, NULL), KVF_OK);
    while (kvf_cursor_next(cursor, &move) == KVF_OK) moves++;
    assert_int_equal(moves, 2);
    kvf_cursor_destroy(cursor);
    kvf_binding_destroy(binding);
    finish(plan, &src, &dst);
}

static void test_padding_untouched(void **state)
{
    static const char *const moves[] = {"12288 -> 12288, 1536", "14336 -> 14336, 1024"};
    struct kit kit;
    kvf_binding *binding;
    kvf_plan *plan;

    (void)state;
    kit_init(&kit);
    kit_pool(&kit, kit_memory(&kit), 0, 4096, 8);
    kit_group(&kit, 16);
    kit_view(&kit, (struct kit_part){.role = "k", .row = 1536});
    kit_place(&kit, 0, 0, 0);
    kit_view(&kit, (struct kit_part){.role = "v", .row = 1024});
    kit_place(&kit, 0, 0, 2048);
    plan = kit_plan(&kit, &kit, 0);
    binding = kit_bind(plan, 0, 16, &KIT_IDS(3), &KIT_IDS(3), 0);
    kit_expect_moves(binding, moves, 2);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    kit_free(&kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_to_large_blocks),
        cmocka_unit_test(test_large_to_small_blocks),
        cmocka_unit_test(test_blocks_and_heads),
        cmocka_unit_test(test_token_interleave),
        cmocka_unit_test(test_stripes_on_both_sides),
        cmocka_unit_test(test_dealt_blocks),
        cmocka_unit_test(test_scales_apart),
        cmocka_unit_test(test_latent_and_rope),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_page_first_from_layer_first),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_padding_untouched),
    };

    return cmocka_run_group_tests_name("worked examples, second half", tests, NULL, NULL);
}
