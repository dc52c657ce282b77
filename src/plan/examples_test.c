/* SPDX-License-Identifier: Apache-2.0 */
/* The first half of the worked examples in docs/layout-model.md: E1 to E11 without E8, the election's. */
#include <stdio.h>
#include <stdlib.h>

#include "plan/plan_kit.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/** One memory with one pool of 64 slots and one group of 16-token blocks. */
static void start(struct kit *kit, int64_t base, int64_t slot_stride)
{
    kit_init(kit);
    kit_pool(kit, kit_memory(kit), base, slot_stride, 64);
    kit_group(kit, 16);
}

/** A role whose whole block is one row, in these layers. */
static void block_part(struct kit *kit, const char *role, int64_t bytes, const int64_t (*places)[2], size_t count)
{
    kit_view(kit, (struct kit_part){.role = role, .row = bytes});
    for (size_t i = 0; i < count; i++) kit_place(kit, places[i][0], 0, places[i][1]);
}

static void expect_moves_of_block_0(const kvf_plan *plan, const char *const *moves, size_t count)
{
    kvf_binding *binding = kit_bind(plan, 0, 16, &KIT_IDS(0), &KIT_IDS(0), 0);

    kit_expect_moves(binding, moves, count);
    kvf_binding_destroy(binding);
}

/** K and V of 256 bytes in every layer, in the order the layers are given. */
static void layers_of_k_and_v(struct kit *kit, int64_t base, const int64_t *layers, size_t count)
{
    start(kit, base, (int64_t)count * 512);
    for (int v = 0; v < 2; v++) {
        kit_view(kit, (struct kit_part){.role = v ? "v" : "k", .row = 256});
        for (size_t i = 0; i < count; i++) kit_place(kit, layers[i], 0, (int64_t)i * 512 + v * 256);
    }
}

static void test_identity(void **state)
{
    static const int64_t orders[][2] = {{0, 1}, {5, 3}};
    static const int64_t only[] = {3};
    struct kit src, dst;
    kvf_plan *plan;

    (void)state;
    for (size_t i = 0; i < COUNT(orders); i++) {
        layers_of_k_and_v(&src, 1000, orders[i], 2);
        layers_of_k_and_v(&dst, 2000, orders[i], 2);
        plan = kit_plan(&src, &dst, 0);
        kit_expect_boxes(plan, 1);
        kit_expect_box(plan, 0, 0, 0, "0 -> 0, 1024");
        expect_moves_of_block_0(plan, (const char *const[]){"1000 -> 2000, 1024"}, 1);
        kvf_plan_release(plan);
        kit_free(&dst);
        kit_free(&src);
    }
    layers_of_k_and_v(&src, 1000, orders[1], 2);
    layers_of_k_and_v(&dst, 2000, only, 1);
    plan = kit_plan(&src, &dst, 0);
    expect_moves_of_block_0(plan, (const char *const[]){"1512 -> 2000, 512"}, 1);
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);
}

static void test_subset_of_layers(void **state)
{
    static const int64_t src_places[][2] = {{0, 0}, {1, 512}, {2, 1024}}, dst_places[][2] = {{0, 0}, {2, 512}};
    struct kit_fragment *all;
    kvf_binding *binding;
    struct kit src, dst;
    kvf_plan *plan;
    size_t count;

    (void)state;
    start(&src, 1000, 1536);
    block_part(&src, "kv", 512, src_places, 3);
    start(&dst, 2000, 1024);
    block_part(&dst, "kv", 512, dst_places, 2);
    plan = kit_plan(&src, &dst, 0);
    kit_expect_boxes(plan, 1);
    kit_expect_box(plan, 0, 0, 0, "0 -> 0, (2, 1024, 512), 512");
    binding = kit_bind(plan, 0, 16, &KIT_IDS(0), &KIT_IDS(0), 0);
    all = kit_fragments(binding, 0, 0, &count);
    assert_int_equal(count, 2);
    assert_true(all[0].src == 1000 && all[0].dst == 2000 && all[1].src == 2024 && all[1].dst == 2512);
    free(all);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);
}

static void test_concatenate_before_stacking(void **state)
{
    static const int64_t src_places[][2] = {{0, 0}, {1, 192}, {2, 320}}, dst_places[][2] = {{0, 0}, {1, 128}, {2, 256}};
    struct kit src, dst;
    kvf_plan *plan;

    (void)state;
    start(&src, 0, 448);
    block_part(&src, "kv", 128, src_places, 3);
    start(&dst, 0, 384);
    block_part(&dst, "kv", 128, dst_places, 3);
    plan = kit_plan(&src, &dst, 0);
    kit_expect_boxes(plan, 2);
    kit_expect_box(plan, 0, 0, 0, "0 -> 0, 128");
    kit_expect_box(plan, 0, 0, 1, "192 -> 128, 256");
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);
}

/** Two layers, K and V one after the other, heads of 128 bytes (8 tokens of 16) inside. */
static void heads_first(struct kit *kit, int64_t first, int64_t units)
{
    kit_init(kit);
    kit_pool(kit, kit_memory(kit), 0, units * 128 * 4, 64);
    kit_group(kit, 8);
    for (int v = 0; v < 2; v++) {
        kit_view(kit, (struct kit_part){.role = v ? "v" : "k", .row = 16, .total = 4, .first = first, .units = units,
                                        .unit_stride = 128, .entry_stride = 16, .entries = 8});
        for (int64_t layer = 0; layer < 2; layer++) kit_place(kit, layer, 0, (2 * layer + v) * units * 128);
    }
}

static void test_heads_first_mismatch(void **state)
{
    static const char *const boxes[2] = {"0 -> 0, (4, 256, 512), 256", "0 -> 256, (4, 256, 512), 256"};
    struct kit src, dst;

    (void)state;
    heads_first(&dst, 0, 4);
    for (int64_t rank = 0; rank < 2; rank++) {
        kvf_plan *plan;

        heads_first(&src, 2 * rank, 2);
        plan = kit_plan(&src, &dst, 0);
        kit_expect_boxes(plan, 1);
        kit_expect_box(plan, 0, 0, 0, boxes[rank]);
        kvf_plan_release(plan);
        kit_free(&src);
    }
    kit_free(&dst);
}

/** K and V of `heads` heads of 4 bytes, tokens first, so many tokens a block and layers. */
static void tokens_first(struct kit *kit, int64_t base, int64_t heads, int64_t tokens, int64_t layers)
{
    int64_t part = heads * 4 * tokens;

    kit_init(kit);
    kit_pool(kit, kit_memory(kit), base, 2 * layers * part, 64);
    kit_group(kit, tokens);
    for (int v = 0; v < 2; v++) {
        kit_view(kit, (struct kit_part){.role = v ? "v" : "k", .row = 4, .total = 2, .units = heads, .unit_stride = 4,
                                        .entry_stride = heads * 4, .entries = tokens});
        for (int64_t layer = 0; layer < layers; layer++) kit_place(kit, layer, 0, (2 * layer + v) * part);
    }
}

static void test_tokens_first_mismatch(void **state)
{
    static const int64_t sources[] = {1000, 1008, 1016, 1024}, destinations[] = {2000, 2004, 2008, 2012};
    struct kit_fragment *all;
    kvf_binding *binding;
    struct kit src, dst;
    kvf_plan *plan;
    size_t count;

    (void)state;
    tokens_first(&src, 1000, 2, 2, 1);
    tokens_first(&dst, 2000, 1, 2, 1);
    plan = kit_plan(&src, &dst, 0);
    kit_expect_box(plan, 0, 0, 0, "0 -> 0, (4, 8, 4), 4");
    binding = kit_bind(plan, 0, 2, &KIT_IDS(0), &KIT_IDS(0), 0);
    all = kit_fragments(binding, 0, 0, &count);
    assert_int_equal(count, 4);
    for (size_t i = 0; i < 4; i++) assert_true(all[i].src == sources[i] && all[i].dst == destinations[i]);
    free(all);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);

    tokens_first(&src, 1000, 2, 16, 2);
    tokens_first(&dst, 2000, 1, 16, 2);
    plan = kit_plan(&src, &dst, 0);
    kit_expect_boxes(plan, 1);
    binding = kit_bind(plan, 0, 16, &KIT_IDS(0), &KIT_IDS(0), 0);
    all = kit_fragments(binding, 0, 0, &count);
    assert_int_equal(count, 64);
    free(all);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);
}

/** State: sections of a convolution, one after the other, one byte a channel. */
static void sections(struct kit *kit, int64_t first, int64_t shards)
{
    static const char *const roles[] = {"conv.x", "conv.B", "conv.C"};
    static const int64_t channels[] = {1024, 512, 512};
    int64_t offset = 0;

    kit_init(kit);
    kit_pool(kit, kit_memory(kit), 0, 2048 / shards, 8);
    kit_group(kit, 0);
    for (int i = 0; i < 3; i++) {
        int64_t units = channels[i] / shards;

        kit_view(kit, (struct kit_part){.role = roles[i], .row = 1, .total = channels[i], .first = first * units,
                                        .units = units});
        kit_place(kit, 7, 0, offset);
        offset += units;
    }
}

static void test_conv_sections(void **state)
{
    static const struct {
        const char *name;
        int64_t src, src_shards, dst, dst_shards;
        const char *boxes[2];
    } rows[] = {
        {"rank 0 of 2 to all", 0, 2, 0, 1, {"0 -> 0, 512", "512 -> 1024, (2, 256, 512), 256"}},
        {"rank 1 of 2 to all", 1, 2, 0, 1, {"0 -> 512, 512", "512 -> 1280, (2, 256, 512), 256"}},
        {"all to rank 1 of 2", 0, 1, 1, 2, {"512 -> 0, 512", "1280 -> 512, (2, 512, 256), 256"}},
        {"equal shards", 1, 2, 1, 2, {"0 -> 0, 1024", NULL}},
    };
    struct kit src, dst;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvf_plan *plan;

        print_message("%s\n", rows[i].name);
        sections(&src, rows[i].src, rows[i].src_shards);
        sections(&dst, rows[i].dst, rows[i].dst_shards);
        plan = kit_plan(&src, &dst, 0);
        kit_expect_boxes(plan, rows[i].boxes[1] ? 2 : 1);
        for (size_t j = 0; j < 2 && rows[i].boxes[j]; j++) kit_expect_box(plan, 0, 0, j, rows[i].boxes[j]);
        kvf_plan_release(plan);
        kit_free(&dst);
        kit_free(&src);
    }
}

static void test_ssm(void **state)
{
    struct kit src, dst;
    kvf_plan *plan;

    (void)state;
    for (int side = 0; side < 2; side++) {
        struct kit *kit = side ? &dst : &src;

        kit_init(kit);
        kit_pool(kit, kit_memory(kit), 0, side ? 8192 : 4096, 8);
        kit_group(kit, 0);
        kit_view(kit, (struct kit_part){.role = "ssm", .row = 1024, .total = 8, .first = side ? 0 : 4,
                                        .units = side ? 8 : 4});
        kit_place(kit, 0, 0, 0);
    }
    plan = kit_plan(&src, &dst, 0);
    kit_expect_box(plan, 0, 0, 0, "0 -> 4096, 4096");
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);
}

static void ring(struct kit *kit, int64_t base, int64_t tokens, int64_t layer_1)
{
    kit_init(kit);
    kit_pool(kit, kit_memory(kit), base, 2 * layer_1, 4);
    kit->groups[kit_group(kit, tokens)].ring_tokens = tokens;
    kit_view(kit, (struct kit_part){.role = "mla", .row = 2, .entries = tokens});
    kit_place(kit, 0, 0, 0);
    kit_place(kit, 1, 0, layer_1);
}

static void test_rings(void **state)
{
    static const char *const moves[] = {"1028 -> 5018, (2, 100, 200), 4", "1000 -> 5022, (2, 100, 200), 20",
                                        "1020 -> 5000, (2, 100, 200), 8"};
    struct kvf_bind_request request;
    const struct kvf_id_list ids = KIT_IDS(0);
    struct kvf_error error = {0};
    kvf_binding *binding;
    struct kit src, dst;
    kvf_plan *plan;

    (void)state;
    ring(&src, 1000, 16, 100);
    ring(&dst, 5000, 21, 200);
    plan = kit_plan(&src, &dst, 0);
    binding = kit_bind(plan, 30, 46, &ids, &ids, 0);
    kit_expect_moves(binding, moves, COUNT(moves));
    kvf_binding_destroy(binding);
    kvf_bind_request_init(&request, sizeof request);
    request.token_begin = 29;
    request.token_end = 46;
    request.src = &ids;
    request.dst = &ids;
    request.src_count = 1;
    request.dst_count = 1;
    binding = NULL;
    assert_int_equal(kvf_bind(plan, &request, &binding, &error), KVF_ERR_OUT_OF_RANGE);
    assert_null(binding);
    assert_string_equal(error.text,
                        "groups 0 and 0: range [29,46) is 17 positions, positions both rings retain: 16");
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);
}

/** A lap of a ring ends a comb, even where both rings lap together; the two combs are one block run of negative step.
 */
static void test_lap(void **state)
{
    static const char *const moves[] = {"16 -> 16, (2, -16, -16), (2, 100, 200), 16"};
    struct kvf_binding_info info;
    kvf_binding *binding;
    struct kit src, dst;
    kvf_plan *plan;

    (void)state;
    ring(&src, 0, 16, 100);
    ring(&dst, 0, 16, 200);
    plan = kit_plan(&src, &dst, 0);
    kit_expect_shape(plan, 0, 0, "(1, 1, 1, 16, whole)");
    binding = kit_bind(plan, 8, 24, &KIT_IDS(0), &KIT_IDS(0), 0);
    kvf_binding_get_info(binding, &info);
    assert_int_equal(info.block_runs, 1);
    kit_expect_moves(binding, moves, 1);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);
}

/** Pages of whole layers in one row: `first` to `last`. */
static void row_of_layers(struct kit *kit, int64_t base, int64_t first, int64_t last)
{
    start(kit, base, (last - first + 1) * 1024);
    kit_view(kit, (struct kit_part){.role = "kv", .row = 1024});
    for (int64_t layer = first; layer <= last; layer++) kit_place(kit, layer, 0, (layer - first) * 1024);
}

static void test_packed_rows(void **state)
{
    struct kit_fragment *all;
    kvf_binding *binding;
    struct kit src, dst;
    kvf_plan *plan;
    size_t count;

    (void)state;
    row_of_layers(&src, 0, 2, 3);
    row_of_layers(&dst, 1000000, 0, 3);
    plan = kit_plan(&src, &dst, 0);
    kit_expect_boxes(plan, 1);
    kit_expect_box(plan, 0, 0, 0, "0 -> 2048, 2048");
    binding = kit_bind(plan, 0, 32, &KIT_IDS(10, 11), &KIT_IDS(10, 11), 0);
    all = kit_fragments(binding, 0, 0, &count);
    assert_int_equal(count, 2);
    assert_true(all[0].src == 20480 && all[0].dst == 1000000 + 2048 + 40960);
    assert_true(all[1].src == 22528 && all[1].dst == 1000000 + 2048 + 45056);
    free(all);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);

    row_of_layers(&src, 0, 0, 1);
    plan = kit_plan(&src, &src, 0);
    binding = kit_bind(plan, 0, 32, &KIT_IDS(10, 11), &KIT_IDS(20, 21), 0);
    kit_expect_moves(binding, (const char *const[]){"20480 -> 40960, 4096"}, 1);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    kit_free(&src);
}

static void test_padding_options(void **state)
{
    static const struct {
        const char *name;
        int64_t page;
        uint64_t flags;
        const char *box;
    } rows[] = {
        {"pages that touch", 1024, 0, "0 -> 0, 2048"},
        {"pages that touch, whole rows", 1024, KVF_PLAN_PROMOTE_ROW, "0 -> 0, 2560"},
        {"pages with a gap", 1000, 0, "0 -> 0, (2, 1024, 1024), 1000"},
        {"pages with a gap, gaps bridged", 1000, KVF_PLAN_BRIDGE_GAPS, "0 -> 0, 2024"},
        {"pages with a gap, whole rows of loop-free boxes only", 1000, KVF_PLAN_PROMOTE_ROW,
         "0 -> 0, (2, 1024, 1024), 1000"},
        {"both", 1000, KVF_PLAN_BRIDGE_GAPS | KVF_PLAN_PROMOTE_ROW, "0 -> 0, 2560"},
    };
    static const int64_t places[][2] = {{0, 0}, {1, 1024}};

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kit kit;
        kvf_plan *plan;

        print_message("%s\n", rows[i].name);
        start(&kit, 0, 2560);
        block_part(&kit, "kv", rows[i].page, places, 2);
        plan = kit_plan(&kit, &kit, rows[i].flags);
        kit_expect_boxes(plan, 1);
        kit_expect_box(plan, 0, 0, 0, rows[i].box);
        kvf_plan_release(plan);
        kit_free(&kit);
    }
}

/** One region of 256-byte slots, addressed by two groups. */
static void shared_region(struct kit *kit, int64_t base)
{
    start(kit, base, 256);
    kit_group(kit, 16);
    kit_view(kit, (struct kit_part){.role = "kv@0", .row = 256});
    kit_place(kit, 0, 0, 0);
    kit_view(kit, (struct kit_part){.role = "kv@1", .group = 1, .row = 256});
    kit_place(kit, 0, 0, 0);
}

static void test_region_of_two_groups(void **state)
{
    const struct kvf_id_list src_ids[] = {KIT_IDS(10, 11), KIT_IDS(12, -1)};
    const struct kvf_id_list dst_ids[] = {KIT_IDS(20, 21), KIT_IDS(22, -1)};
    struct kvf_plan_info info;
    kvf_binding *binding;
    struct kit src, dst;
    kvf_plan *plan;

    (void)state;
    shared_region(&src, 0x1000);
    shared_region(&dst, 0xA000);
    plan = kit_plan(&src, &dst, 0);
    kvf_plan_get_info(plan, &info);
    assert_int_equal(info.tracks, 2);
    binding = kit_bind(plan, 0, 32, src_ids, dst_ids, 0);
    kit_expect_moves(binding, (const char *const[]){"6656 -> 46080, 768"}, 1); /* 0x1A00 -> 0xB400 */
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);
}

static void test_five_axes(void **state)
{
    static const char *const loops = "(2, 262144, 131072), (2, 16, 1024), (8, 512, 32), (2, 64, 16), 16";
    struct kit src, dst;
    kvf_plan *plan;
    char text[128];

    (void)state;
    kit_init(&src);
    kit_pool(&src, kit_memory(&src), 0, 4096, 64);
    kit_group(&src, 64);
    kit_init(&dst);
    kit_pool(&dst, kit_memory(&dst), 0, 2048, 64);
    dst.groups[kit_group(&dst, 64)] = (struct kvf_group){64, 0, 4, 1, 2};
    for (int64_t v = 0; v < 2; v++) {
        kit_view(&src, (struct kit_part){.role = v ? "v" : "k", .row = 16, .total = 4, .unit_stride = 16,
                                         .entry_stride = 64, .entries = 64});
        kit_view(&dst, (struct kit_part){.role = v ? "v" : "k", .row = 16, .total = 4, .first = 2, .units = 2,
                                         .unit_stride = 1024, .entry_stride = 16, .entries = 64});
        for (int64_t layer = 0; layer < 2; layer++) {
            kit_place(&src, layer, 0, layer * (2 * 262144 + 64) + v * 262144);
            kit_place(&dst, layer, 0, layer * (2 * 131072 + 64) + v * 131072);
        }
    }
    plan = kit_plan(&src, &dst, 0);
    kit_expect_shape(plan, 0, 0, "(8, 8, 2, 2, part)");
    kit_expect_boxes(plan, 2);
    snprintf(text, sizeof text, "32 -> 0, %s", loops);
    kit_expect_box(plan, 0, 0, 0, text);
    snprintf(text, sizeof text, "524384 -> 262208, %s", loops);
    kit_expect_box(plan, 0, 0, 1, text);
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_subset_of_layers),
        cmocka_unit_test(test_concatenate_before_stacking),
        cmocka_unit_test(test_heads_first_mismatch),
        cmocka_unit_test(test_tokens_first_mismatch),
        cmocka_unit_test(test_conv_sections),
        cmocka_unit_test(test_ssm),
        cmocka_unit_test(test_rings),
        cmocka_unit_test(test_lap),
        cmocka_unit_test(test_packed_rows),
        cmocka_unit_test(test_padding_options),
        cmocka_unit_test(test_region_of_two_groups),
        cmocka_unit_test(test_five_axes),
    };

    return cmocka_run_group_tests_name("worked examples, first half", tests, NULL, NULL);
}
