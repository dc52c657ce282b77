/* SPDX-License-Identifier: Apache-2.0 */
/* The two worked examples with published bytes: canonical plan, fingerprint, moves, fragments. */
#include <stdlib.h>
#include <string.h>

#include "layout/worked_examples.h"
#include "plan/canonical.h"
#include "plan/plan_kit.h"

static kvf_plan *plan_of(void (*make)(struct worked_example *, int))
{
    struct worked_example example;
    struct kvf_error error = {0};
    kvf_layout *layouts[2];
    kvf_plan *plan = NULL;

    for (int i = 0; i < 2; i++) {
        make(&example, i);
        if (kvf_layout_create(&example.spec, &layouts[i], &error) != KVF_OK) fail_msg("%s", error.text);
    }
    if (kvf_plan_create(layouts[0], layouts[1], NULL, NULL, &plan, &error) != KVF_OK) fail_msg("%s", error.text);
    kvf_layout_release(layouts[1]);
    kvf_layout_release(layouts[0]);
    return plan;
}

static void expect_fingerprint(const kvf_plan *plan, size_t bytes, const char *fingerprint)
{
    struct kvfi_canonical canonical = {0};
    char text[KVF_FINGERPRINT_TEXT_BYTES];

    assert_true(kvfi_plan_canonical(plan, &canonical));
    assert_int_equal(canonical.count, bytes);
    assert_memory_equal(canonical.bytes, "KVFP\x01\0\0\0", 8);
    free(canonical.bytes);
    assert_int_equal(kvf_plan_fingerprint(plan, text), KVF_OK);
    assert_string_equal(text, fingerprint);
}

static void expect_fragment(const struct kit_fragment *found, int64_t src, int64_t dst, int64_t bytes)
{
    assert_int_equal(found->src, src);
    assert_int_equal(found->dst, dst);
    assert_int_equal(found->bytes, bytes);
}

static void test_first(void **state)
{
    kvf_plan *plan = plan_of(worked_example_first);
    kvf_binding *binding;
    struct kit_fragment *all;
    struct kvf_track track;
    size_t count;

    (void)state;
    expect_fingerprint(plan, 648, "8a9b121ddae677a4c6d8447026436c31");
    assert_int_equal(kvf_plan_track(plan, 0, &track), KVF_OK);
    assert_int_equal(track.patches, 4);
    assert_int_equal(kvf_plan_track(plan, 1, &track), KVF_ERR_OUT_OF_RANGE);
    kit_expect_shape(plan, 0, 0, "(1, 1, 1, 16, whole)");
    kit_expect_boxes(plan, 1);
    kit_expect_box(plan, 0, 0, 0, "32 -> 0, (2, 2048, 32768), (2, 1024, 512), (2, 16, 256), (16, 64, 16), 16");
    binding = kit_bind(plan, 0, 40, &KIT_IDS(3, 4, 9), &KIT_IDS(1, 5, 6), 0);
    all = kit_fragments(binding, 0, 0, &count);
    assert_int_equal(count, 384);
    expect_fragment(&all[0], 12320, 1024, 16);
    expect_fragment(&all[1], 12384, 1040, 16);
    /* layer 0 of blocks 3, 4, 9, then layer 1: a block is 64 fragments, layer 1 lies 2,048 and 32,768 further */
    expect_fragment(&all[64], 4 * 4096 + 32, 5 * 1024, 16);
    expect_fragment(&all[128], 9 * 4096 + 32, 6 * 1024, 16);
    expect_fragment(&all[192], 12320 + 2048, 1024 + 32768, 16);
    free(all);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
}

static const char *const second_moves[] = {
    "26144 -> 512, (2, 16, 256), (16, 64, 16), 16",
    "31264 -> 3072, (2, 16, 256), (16, 64, 16), 16",
    "12320 -> 0, (2, 16, 256), (16, 64, 16), 16",
    "24608 -> 4608, (2, 16, 256), (16, 64, 16), 16",
    "29728 -> 7168, (2, 16, 256), (16, 64, 16), 16",
    "10784 -> 4096, (2, 16, 256), (16, 64, 16), 16",
    "23072 -> 8704, (2, 16, 256), (16, 64, 16), 16",
    "28192 -> 11264, (2, 16, 256), (16, 64, 16), 16",
    "9248 -> 8192, (2, 16, 256), (16, 64, 16), 16",
    "27168 -> 1024, (3, -1536, 4096), (2, 3584, 128), (2, 16, 256), (8, 64, 16), 16",
    "1696 -> 944, (2, 224, 112), 64",
    "1552 -> 896, (2, 224, 112), (3, 32, 16), 16",
};

static void test_second_plan(void **state)
{
    kvf_plan *plan = plan_of(worked_example_second);
    static const int64_t keys[3][9] = {
        {0, 0, 1, 1, 1, 24, 16, 6, 2}, {1, 1, 0, 1, 1, 1, 1, 2, 1}, {1, 1, 0, 1, 1, 3, 3, 2, 1}};
    static const int64_t offsets[6][2] = {{3104, 0}, {3112, 8}, {1568, 4096}, {1576, 4104}, {32, 8192}, {40, 8200}};
    struct kvf_plan_info info;
    struct kvf_track track;
    struct kvf_patch patch;

    (void)state;
    expect_fingerprint(plan, 1776, "1e40269aa416594bcc62c138e02d3a1d");
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(kvf_plan_track(plan, i, &track), KVF_OK);
        assert_memory_equal(&track, keys[i], sizeof keys[i]);
    }
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(kvf_plan_patch(plan, 0, i, &patch), KVF_OK);
        assert_int_equal(patch.src_offset_bytes, offsets[i][0]);
        assert_int_equal(patch.dst_offset_bytes, offsets[i][1]);
    }
    kit_expect_shape(plan, 0, 0, "(1, 1, 1, 16, part)");
    kit_expect_shape(plan, 0, 1, "(1, 1, 1, 8, part)");
    kit_expect_box(plan, 0, 0, 0, "3104 -> 0, (3, -1536, 4096), (2, 16, 256), (16, 64, 16), 16");
    kit_expect_box(plan, 0, 1, 0, "3104 -> 0, (3, -1536, 4096), (2, 16, 256), (8, 64, 16), 16");
    kit_expect_shape(plan, 1, 0, "(1, 1, 1, 1, whole)");
    kit_expect_box(plan, 1, 0, 0, "160 -> 48, (2, 224, 112), 64");
    kit_expect_shape(plan, 2, 0, "(1, 1, 1, 3, whole)");
    kit_expect_box(plan, 2, 0, 0, "16 -> 0, (2, 224, 112), (3, 32, 16), 16");
    kvf_plan_get_info(plan, &info);
    assert_int_equal(info.layer_min, 0);
    assert_int_equal(info.layer_end, 6);
    assert_int_equal(info.grain_tokens, 8);
    assert_int_equal(info.shortest_run_bytes, 16);
    kvf_plan_release(plan);
}

static void test_second_whole_range(void **state)
{
    kvf_plan *plan = plan_of(worked_example_second);
    const struct kvf_id_list src[2] = {KIT_IDS(5, 6, 2), KIT_IDS(3)}, dst[2] = {KIT_IDS(1, 2, 6, 0), KIT_IDS(4)};
    kvf_binding *binding = kit_bind(plan, 0, 60, src, dst, 0);
    char digest[KVF_FINGERPRINT_TEXT_BYTES];
    struct kvf_binding_info info;
    struct kit_fragment *all;
    size_t count;

    (void)state;
    kit_expect_moves(binding, second_moves, sizeof second_moves / sizeof *second_moves);
    kvf_binding_get_info(binding, &info);
    assert_int_equal(info.bytes, 6368);
    assert_int_equal(info.runs, 392);
    assert_int_equal(info.block_runs, 6);
    assert_int_equal(info.valid_tokens, 60);
    assert_int_equal(info.first_missing, -1);
    all = kit_fragments(binding, 0, 0, &count);
    expect_fragment(&all[0], 26144, 512, 16);
    expect_fragment(&all[1], 26208, 528, 16);
    expect_fragment(&all[391], 1840, 1040, 16);
    free(all);
    kit_digest(binding, digest, &count);
    assert_int_equal(count, 392);
    assert_string_equal(digest, "8d691a0e68be6830e0ecb7ba4d13cf1b");
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
}

static void test_second_rest(void **state)
{
    kvf_plan *plan = plan_of(worked_example_second);
    struct kvf_id_list src[2] = {KIT_IDS(5, 6, 2), KIT_IDS(3)}, dst[2] = {KIT_IDS(2, 6, 0), KIT_IDS(4)};
    char digest[KVF_FINGERPRINT_TEXT_BYTES];
    struct kvf_binding_info info;
    struct kit_fragment *all;
    kvf_binding *binding;
    struct kvf_move move;
    kvf_cursor *cursor = NULL;
    size_t count, moves = 0;

    (void)state;
    dst[0].first = 1;
    binding = kit_bind(plan, 16, 60, src, dst, 0);
    assert_int_equal(kvf_cursor_create(binding, &cursor, NULL), KVF_OK);
    while (kvf_cursor_next(cursor, &move) == KVF_OK) moves++;
    kvf_cursor_destroy(cursor);
    assert_int_equal(moves, 9);
    kvf_binding_get_info(binding, &info);
    assert_int_equal(info.bytes, 4832);
    all = kit_fragments(binding, 0, 0, &count);
    expect_fragment(&all[0], 27168, 1024, 16);
    expect_fragment(&all[295], 1840, 1040, 16);
    free(all);
    kit_digest(binding, digest, &count);
    assert_int_equal(count, 296);
    assert_string_equal(digest, "9574a1fea40a57ae2391a8c51f408661");
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first),
        cmocka_unit_test(test_second_plan),
        cmocka_unit_test(test_second_whole_range),
        cmocka_unit_test(test_second_rest),
    };

    return cmocka_run_group_tests_name("plan goldens", tests, NULL, NULL);
}
