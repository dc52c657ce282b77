/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of regions: copied whole, told as arrays, made of arrays, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "vllm/regions.h"

static const int64_t both[] = {0, 1};

static void test_copies_all(void **state)
{
    char name[] = "model.layers.1.self_attn";
    int64_t groups[] = {0, 1};
    struct kvf_vllm_region given[3] = {
        {name, 1, UINT64_MAX, 4096, 1000, KVF_VLLM_SHARED_GROUP, {groups, 2}, 0},
        {name, 1, 0x2000, 4096, 1000, KVF_VLLM_SHARED_GROUP, {groups, 2}, 1000},
        {"model.layers.2.self_attn", 2, 0x3000, 256, 512, 0, {NULL, 0}, KVF_VLLM_NO_ROW},
    };
    kvf_vllm_regions *regions = NULL, *held;
    const struct kvf_vllm_region *items;
    struct kvf_vllm_arrays arrays;
    size_t count;

    (void)state;
    assert_int_equal(kvf_vllm_regions_create(given, 3, &regions, NULL), KVF_OK);
    memset(name, 'x', sizeof name - 1);
    memset(groups, 0x55, sizeof groups);
    items = kvf_vllm_regions_get(regions, &count);
    assert_int_equal(count, 3);
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(items[i].layer_name, "model.layers.1.self_attn");
        assert_int_equal(items[i].shared_groups.count, 2);
        assert_memory_equal(items[i].shared_groups.ids, both, sizeof both);
    }
    assert_ptr_equal(items[0].layer_name, items[1].layer_name);
    assert_ptr_equal(items[0].shared_groups.ids, items[1].shared_groups.ids);
    assert_string_equal(items[2].layer_name, "model.layers.2.self_attn");
    assert_true(items[0].base_addr == UINT64_MAX);
    assert_int_equal(items[2].kv_block_len, 512);
    kvf_vllm_regions_arrays(regions, &arrays);
    assert_int_equal(arrays.base_addr_count + arrays.row_offset_count + arrays.shared_group_count, 9);
    for (size_t i = 0; i < 3; i++) {
        assert_true(arrays.base_addrs[i] == items[i].base_addr);
        assert_int_equal(arrays.block_lens[i], items[i].block_len);
        assert_int_equal(arrays.kv_block_lens[i], items[i].kv_block_len);
        assert_ptr_equal(arrays.layer_names[i], items[i].layer_name);
        assert_int_equal(arrays.layer_indices[i], items[i].layer_index);
        assert_int_equal(arrays.group_indices[i], items[i].group_index);
        assert_true(kvfi_vllm_ids_equal(&arrays.shared_groups[i], &items[i].shared_groups));
        assert_int_equal(arrays.row_offsets[i], items[i].row_offset);
    }
    held = kvf_vllm_regions_acquire(regions);
    assert_ptr_equal(held, regions);
    kvf_vllm_regions_release(regions);
    assert_string_equal(kvf_vllm_regions_get(held, &count)[2].layer_name, "model.layers.2.self_attn");
    kvf_vllm_regions_release(held);
    kvf_vllm_regions_release(NULL);
    assert_null(kvf_vllm_regions_acquire(NULL));
}

static void test_empty(void **state)
{
    const struct kvf_vllm_arrays none = {0};
    struct kvf_vllm_arrays arrays;
    kvf_vllm_regions *regions = NULL;
    size_t count = 7;

    (void)state;
    assert_int_equal(kvf_vllm_regions_create(NULL, 0, &regions, NULL), KVF_OK);
    kvf_vllm_regions_get(regions, &count);
    assert_int_equal(count, 0);
    kvf_vllm_regions_arrays(regions, &arrays);
    assert_int_equal(arrays.layer_name_count, 0);
    kvf_vllm_regions_release(regions);
    assert_int_equal(kvf_vllm_regions_expand(&none, NULL, 0, &regions, NULL), KVF_OK);
    kvf_vllm_regions_release(regions);
}

static const uint64_t bases[] = {0x1000, 0x2000, 0x3000};
static const int64_t lens[] = {256, 256, 256}, kvs[] = {128, 256, 64}, indices[] = {0, 1, 2}, rows[] = {0, -1, 8};
static const char *const names[] = {"l.0", "l.1", "l.2"};
static const struct kvf_vllm_ids shared[] = {{both, 2}, {NULL, 0}, {both, 1}};

static struct kvf_vllm_arrays five(void)
{
    return (struct kvf_vllm_arrays){.base_addrs = bases, .base_addr_count = 3, .block_lens = lens, .block_len_count = 3,
                                    .kv_block_lens = kvs, .kv_block_len_count = 3, .layer_names = names,
                                    .layer_name_count = 3, .layer_indices = indices, .layer_index_count = 3};
}

static void test_missing_arrays_have_defaults(void **state)
{
    const struct kvf_vllm_layer layers[] = {{.name = "l.2", .group = 4}, {.name = "l.0", .group = 3}};
    struct kvf_vllm_arrays arrays = five();
    kvf_vllm_regions *regions = NULL;
    const struct kvf_vllm_region *items;
    size_t count;

    (void)state;
    assert_int_equal(kvf_vllm_regions_expand(&arrays, layers, 2, &regions, NULL), KVF_OK);
    items = kvf_vllm_regions_get(regions, &count);
    assert_int_equal(count, 3);
    assert_int_equal(items[0].group_index, 3);
    assert_int_equal(items[1].group_index, 0);
    assert_int_equal(items[2].group_index, 4);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(items[i].row_offset, KVF_VLLM_NO_ROW);
        assert_int_equal(items[i].shared_groups.count, 0);
    }
    kvf_vllm_regions_release(regions);
    arrays.group_indices = indices;
    arrays.shared_groups = shared;
    arrays.row_offsets = rows;
    arrays.group_index_count = arrays.shared_group_count = arrays.row_offset_count = 3;
    assert_int_equal(kvf_vllm_regions_expand(&arrays, layers, 2, &regions, NULL), KVF_OK);
    items = kvf_vllm_regions_get(regions, &count);
    assert_int_equal(items[2].group_index, 2);
    assert_int_equal(items[2].shared_groups.count, 1);
    assert_int_equal(items[0].row_offset, 0);
    assert_int_equal(items[2].row_offset, 8);
    kvf_vllm_regions_release(regions);
}

static void test_refuses_unequal_arrays(void **state)
{
    static const struct {
        const char *label, *text;
        size_t counts[8];
        int status;
    } rows_[] = {
        {"five", "Mooncake transfer regions require matching metadata lengths, got base_addrs=3, block_lens=2, "
                 "kv_block_lens=1, layer_names=0, layer_indices=3.", {3, 2, 1, 0, 3, 0, 0, 0}, KVF_ERR_INCOMPATIBLE},
        {"groups", "Mooncake transfer regions require matching group metadata lengths, got group_indices=2, "
                   "layer_names=3.", {3, 3, 3, 3, 3, 2, 0, 0}, KVF_ERR_INCOMPATIBLE},
        {"shared", "regions: 1 lists of shared groups for 3 layer names", {3, 3, 3, 3, 3, 3, 1, 0},
         KVF_ERR_INCOMPATIBLE},
        {"rows", "regions: 2 row offsets for 3 layer names", {3, 3, 3, 3, 3, 3, 3, 2}, KVF_ERR_INCOMPATIBLE},
        {"null", "regions: an array of 3 is NULL", {3, 3, 3, 3, 3, 3, 0, 0}, KVF_ERR_INVALID_ARGUMENT},
        {"many", "regions: 65537 of them, the limit is 65536", {65537, 65537, 65537, 65537, 65537, 0, 0, 0},
         KVF_ERR_LIMIT},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows_ / sizeof *rows_; i++) {
        const size_t *counts = rows_[i].counts;
        struct kvf_vllm_arrays arrays = five();
        struct kvf_error error = {0};
        kvf_vllm_regions *regions = NULL;

        arrays.base_addr_count = counts[0];
        arrays.block_len_count = counts[1];
        arrays.kv_block_len_count = counts[2];
        arrays.layer_name_count = counts[3];
        arrays.layer_index_count = counts[4];
        arrays.group_index_count = counts[5];
        arrays.shared_group_count = counts[6];
        arrays.row_offset_count = counts[7];
        if (kvf_vllm_regions_expand(&arrays, NULL, 0, &regions, &error) != (enum kvf_status)rows_[i].status
            || strcmp(error.text, rows_[i].text) != 0 || regions) {
            fail_msg("%s: %s", rows_[i].label, error.text);
        }
    }
}

static void test_refuses_what_no_region_is(void **state)
{
    char *name = malloc(KVFI_VLLM_MAX_NAME_BYTES + 1);
    struct kvf_vllm_region long_name = {name, 0, 0, 1, 1, 0, {NULL, 0}, 0};
    const struct kvf_vllm_region no_name = {NULL, 0, 0, 1, 1, 0, {NULL, 0}, 0},
                                 no_list = {"a.0", 0, 0, 1, 1, 0, {NULL, 2}, 0},
                                 many_groups = {"a.0", 0, 0, 1, 1, 0, {both, KVFI_VLLM_MAX_SHARED_GROUPS + 1}, 0},
                                 negative = {"a.0", 0, 0, -1, 1, 0, {NULL, 0}, 0};
    struct kvf_vllm_arrays arrays = five();
    kvf_vllm_regions *regions = NULL;

    (void)state;
    assert_non_null(name);
    memset(name, 'n', KVFI_VLLM_MAX_NAME_BYTES);
    name[KVFI_VLLM_MAX_NAME_BYTES] = 0;
    assert_int_equal(kvf_vllm_regions_create(&long_name, 1, &regions, NULL), KVF_ERR_LIMIT);
    name[KVFI_VLLM_MAX_NAME_BYTES - 1] = 0;
    assert_int_equal(kvf_vllm_regions_create(&long_name, 1, &regions, NULL), KVF_OK);
    kvf_vllm_regions_release(regions);
    regions = NULL;
    free(name);
    assert_int_equal(kvf_vllm_regions_create(&no_name, 1, &regions, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_regions_create(&no_list, 1, &regions, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_regions_create(&many_groups, 1, &regions, NULL), KVF_ERR_LIMIT);
    assert_int_equal(kvf_vllm_regions_create(&negative, 1, &regions, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_regions_create(NULL, 1, &regions, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_regions_create(&negative, 0, NULL, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_regions_create(&negative, KVFI_VLLM_MAX_REGIONS + 1, &regions, NULL), KVF_ERR_LIMIT);
    arrays.block_lens = (const int64_t[]){1, -2, 3};
    assert_int_equal(kvf_vllm_regions_expand(&arrays, NULL, 0, &regions, NULL), KVF_ERR_INCOMPATIBLE);
    assert_int_equal(kvf_vllm_regions_expand(NULL, NULL, 0, &regions, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_null(regions);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_all),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_missing_arrays_have_defaults),
        cmocka_unit_test(test_refuses_unequal_arrays),
        cmocka_unit_test(test_refuses_what_no_region_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
