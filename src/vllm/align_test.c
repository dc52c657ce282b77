/* SPDX-License-Identifier: Apache-2.0 */
/* Which region goes to which, and what is refused. */
#include "vllm/region_kit.h"

#include <stdio.h>
#include <string.h>

#include "vllm/align.h"

static struct kvf_vllm_region layer(int64_t index, uint64_t base)
{
    static const char *const names[] = {"model.layers.0.self_attn", "model.layers.1.self_attn",
                                        "model.layers.2.self_attn", "model.layers.3.self_attn"};

    return region_kit_named(names[index], index, base, 256, 128);
}

/* Aligns and checks the bases, local and remote in turn. */
static void expect(const struct kvf_vllm_region *local, size_t local_count, const struct kvf_vllm_region *remote,
                   size_t remote_count, bool allow_partial, const uint64_t *bases, size_t count)
{
    kvf_vllm_regions *near = region_kit_list(local, local_count), *far = region_kit_list(remote, remote_count);
    struct kvfi_vllm_pairs pairs = {0};
    struct kvf_error error = {0};

    if (kvfi_vllm_align(near, far, allow_partial, &pairs, &error) != KVF_OK) fail_msg("%s", error.text);
    assert_int_equal(pairs.count, count);
    for (size_t i = 0; i < count; i++) {
        assert_true(pairs.local[i].base_addr == bases[2 * i]);
        assert_true(pairs.remote[i].base_addr == bases[2 * i + 1]);
    }
    kvfi_vllm_pairs_fini(&pairs);
    kvf_vllm_regions_release(far);
    kvf_vllm_regions_release(near);
}

static void refuse(const struct kvf_vllm_region *local, size_t local_count, const struct kvf_vllm_region *remote,
                   size_t remote_count, bool allow_partial, const char *text)
{
    kvf_vllm_regions *near = region_kit_list(local, local_count), *far = region_kit_list(remote, remote_count);
    struct kvfi_vllm_pairs pairs = {0};
    struct kvf_error error = {0};

    assert_int_equal(kvfi_vllm_align(near, far, allow_partial, &pairs, &error), KVF_ERR_INCOMPATIBLE);
    assert_string_equal(error.text, text);
    assert_null(pairs.local);
    kvf_vllm_regions_release(far);
    kvf_vllm_regions_release(near);
}

static void test_align_transfer_regions_uses_layer_name_occurrences(void **state)
{
    const struct kvf_vllm_region local[] = {layer(1, 0x1000), layer(1, 0x1100)};
    const struct kvf_vllm_region remote[] = {layer(0, 0xA000), layer(1, 0xB000), layer(1, 0xB100)};
    struct kvf_vllm_region own = layer(2, 0x1000), peers = layer(0, 0xA000);

    (void)state;
    expect(local, 2, remote, 3, false, (const uint64_t[]){0x1000, 0xB000, 0x1100, 0xB100}, 2);
    own.block_len = peers.block_len = 2048;
    own.kv_block_len = peers.kv_block_len = 1024;
    own.row_offset = peers.row_offset = 0;
    expect(&own, 1, &peers, 1, true, NULL, 0);
    refuse(&own, 1, &peers, 1, false,
           "Mooncake producer registered layer has no matching consumer occurrence: model.layers.2.self_attn "
           "occurrence 0.");
}

static void test_occurrences_count_over_the_whole_list(void **state)
{
    const struct kvf_vllm_region local[] = {layer(0, 1), layer(1, 2), layer(0, 3), layer(2, 4), layer(1, 5)};
    const struct kvf_vllm_region remote[] = {layer(2, 11), layer(1, 12), layer(1, 13), layer(3, 14), layer(0, 15),
                                             layer(0, 16), layer(0, 17)};

    (void)state;
    expect(local, 5, remote, 7, false, (const uint64_t[]){1, 15, 2, 12, 3, 16, 4, 11, 5, 13}, 5);
}

static void test_some_occurrences_are_not_enough(void **state)
{
    const struct kvf_vllm_region local[] = {layer(1, 1), layer(3, 2), layer(0, 3), layer(3, 4)};
    const struct kvf_vllm_region remote[] = {layer(0, 11), layer(3, 12)};
    const char *text = "Mooncake producer registered layer has no matching consumer occurrence: "
                       "model.layers.3.self_attn occurrence 1.";

    (void)state;
    refuse(local, 4, remote, 2, true, text);
    expect(local, 3, remote, 2, true, (const uint64_t[]){2, 12, 3, 11}, 2);
}

static void test_pairs_that_do_not_agree(void **state)
{
    static const int64_t many[] = {0, 1, 2};
    struct kvf_vllm_region local[2] = {layer(0, 1), layer(1, 2)}, remote[2] = {layer(0, 11), layer(1, 12)};

    (void)state;
    local[1].shared_groups = (struct kvf_vllm_ids){many, 1};
    expect(local, 2, remote, 2, false, (const uint64_t[]){1, 11, 2, 12}, 2);
    remote[1].shared_groups = (struct kvf_vllm_ids){many, 3};
    refuse(local, 2, remote, 2, false,
           "Mooncake shared-group set mismatch for model.layers.1.self_attn: producer=(0,), consumer=(0, 1, 2).");
    remote[1].group_index = KVF_VLLM_SHARED_GROUP;
    refuse(local, 2, remote, 2, false,
           "Mooncake registered group index mismatch for model.layers.1.self_attn: producer=0, consumer=-1.");
    remote[1].layer_index = 7;
    refuse(local, 2, remote, 2, true,
           "Mooncake registered layer index mismatch for model.layers.1.self_attn: producer=1, consumer=7.");
    local[0].layer_name = "other.0";
    refuse(local, 2, remote, 2, false,
           "Mooncake producer registered layer has no matching consumer occurrence: other.0 occurrence 0.");
}

static void test_nothing_to_align(void **state)
{
    const struct kvf_vllm_region remote = layer(0, 11);

    (void)state;
    expect(NULL, 0, &remote, 1, false, NULL, 0);
    expect(NULL, 0, NULL, 0, false, NULL, 0);
    expect(&remote, 1, NULL, 0, true, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_align_transfer_regions_uses_layer_name_occurrences),
        cmocka_unit_test(test_occurrences_count_over_the_whole_list),
        cmocka_unit_test(test_some_occurrences_are_not_enough),
        cmocka_unit_test(test_pairs_that_do_not_agree),
        cmocka_unit_test(test_nothing_to_align),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
