/* SPDX-License-Identifier: Apache-2.0 */
/* What plans and bindings must not grow with. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan_kit.h"

/** K and V of `layers` layers, 8 heads of 256-byte rows in blocks of 16, in one slot or in a memory per layer. */
static void build(struct kit *kit, int64_t layers, int64_t slots, bool memory_per_layer, int64_t first, int64_t units)
{
    int64_t bytes = units * 16 * 256;

    kit_init(kit);
    for (int64_t i = 0; i < (memory_per_layer ? layers : 1); i++)
        kit_pool(kit, kit_memory(kit), 0, 2 * bytes * (memory_per_layer ? 1 : layers), slots);
    kit_group(kit, 16);
    for (int64_t v = 0; v < 2; v++) {
        kit_view(kit, (struct kit_part){.role = v ? "v" : "k", .row = 256, .total = 8, .first = first, .units = units,
                                        .unit_stride = 16 * 256, .entry_stride = 256, .entries = 16});
        for (int64_t layer = 0; layer < layers; layer++)
            kit_place(kit, layer, memory_per_layer ? layer : 0, bytes * (memory_per_layer ? v : 2 * layer + v));
    }
}

static kvf_plan *plan_of(int64_t layers, int64_t slots, bool memory_per_layer)
{
    struct kit src, dst;
    kvf_plan *plan;

    build(&src, layers, slots, memory_per_layer, 0, 8);
    build(&dst, layers, slots, memory_per_layer, 2, 2);
    plan = kit_plan(&src, &dst, 0);
    kit_free(&dst);
    kit_free(&src);
    return plan;
}

static struct kvf_plan_info info_of(int64_t layers, int64_t slots, bool memory_per_layer)
{
    kvf_plan *plan = plan_of(layers, slots, memory_per_layer);
    struct kvf_plan_info info;

    kvf_plan_get_info(plan, &info);
    kvf_plan_release(plan);
    return info;
}

static void test_layers(void **state)
{
    struct kvf_plan_info few = info_of(80, 1000, false), many = info_of(160, 1000, false);
    struct kvf_plan_info few_apart = info_of(80, 1000, true), many_apart = info_of(160, 1000, true);

    (void)state;
    assert_int_equal(few.boxes, 1);
    assert_int_equal(many.boxes, 1);
    assert_int_equal(many.patches, 2 * few.patches);
    assert_int_equal(few_apart.boxes, 80);
    assert_int_equal(many_apart.boxes, 160);
}

static void test_slots(void **state)
{
    struct kvf_plan_info few = info_of(80, 1000, false), many = info_of(80, 1000000, false);
    kvf_plan *small = plan_of(80, 1000, true), *large = plan_of(80, 1000000, true);
    char small_text[KVF_FINGERPRINT_TEXT_BYTES], large_text[KVF_FINGERPRINT_TEXT_BYTES];

    (void)state;
    assert_memory_equal(&few, &many, sizeof few);
    assert_int_equal(kvf_plan_fingerprint(small, small_text), KVF_OK);
    assert_int_equal(kvf_plan_fingerprint(large, large_text), KVF_OK);
    assert_string_equal(small_text, large_text);
    kvf_plan_release(large);
    kvf_plan_release(small);
}

/** Binds `blocks` ids at distance `step`, modulo the slots, on both sides. */
static struct kvf_binding_info bound(const kvf_plan *plan, int64_t blocks, int64_t slots, int64_t step)
{
    int64_t *ids = malloc((size_t)blocks * sizeof *ids);
    struct kvf_id_list list = {ids, (size_t)blocks, 0};
    struct kvf_binding_info info;
    kvf_binding *binding;

    assert_non_null(ids);
    for (int64_t i = 0; i < blocks; i++) ids[i] = i * step % slots;
    binding = kit_bind(plan, 0, blocks * 16, &list, &list, 0);
    kvf_binding_get_info(binding, &info);
    kvf_binding_destroy(binding);
    free(ids);
    return info;
}

static void test_blocks(void **state)
{
    kvf_plan *plan = plan_of(80, 1000000, false), *apart = plan_of(80, 1000000, true);
    kvf_plan *twice = plan_of(160, 1000000, true);
    struct kvf_binding_info few = bound(plan, 1000, 1000000, 1), many = bound(plan, 1000000, 1000000, 1);
    struct kvf_binding_info scattered = bound(apart, 8192, 1000000, 611953);
    struct kvf_binding_info scattered_twice = bound(twice, 8192, 1000000, 611953);

    (void)state;
    assert_int_equal(few.block_runs, 1);
    assert_int_equal(many.block_runs, 1);
    assert_int_equal(few.binding_bytes, many.binding_bytes);
    /* scattered: as many block runs as blocks, whatever the layers */
    assert_int_equal(scattered.block_runs, 8192);
    assert_true(scattered.binding_bytes < 8192 * 64 + 1024);
    assert_int_equal(scattered.binding_bytes, scattered_twice.binding_bytes);
    assert_int_equal(scattered.bytes * 2, scattered_twice.bytes);
    kvf_plan_release(twice);
    kvf_plan_release(apart);
    kvf_plan_release(plan);
}

/** Long runs of positions cost a step each, tokens nothing: a binding of 2^40 tokens in three blocks. */
static void test_tokens(void **state)
{
    const int64_t tokens = INT64_C(1) << 40;
    const struct kvf_id_list ids = KIT_IDS(2, 0, 1);
    struct kit kit;
    kvf_binding *binding;
    kvf_plan *plan;

    (void)state;
    kit_init(&kit);
    kit_pool(&kit, kit_memory(&kit), 0, 4 * tokens, 3);
    kit_group(&kit, tokens);
    kit_view(&kit, (struct kit_part){.role = "k", .row = 4, .entries = tokens});
    kit_place(&kit, 0, 0, 0);
    plan = kit_plan(&kit, &kit, 0);
    binding = kit_bind(plan, 0, 3 * tokens, &ids, &ids, 0);
    assert_int_equal(kvf_binding_bytes(binding), 12 * tokens);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    kit_free(&kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_tokens),
    };

    return cmocka_run_group_tests_name("growth", tests, NULL, NULL);
}
