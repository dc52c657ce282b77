/* SPDX-License-Identifier: Apache-2.0 */
/* What may be written of a consumer's memory, block by block, and what must. tests/oracle/arrive_vllm_test.py holds it
 * against upstream's answers. */
#include "vllm/extent.h"

#include <stdio.h>
#include <string.h>

#include "vllm/region_kit.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { BASE = 0x10000 };

/* "GROUP: BLOCKS blocks, PAYLOAD bytes; ADDRESS/STRIDE/BYTES ... | ... *", addresses from BASE on, one part a sheet, a
 * star at the one that counts; a line per set. */
static void print(const struct kvfi_vllm_extent *extent, char *out, size_t capacity)
{
    size_t at = 0;

    out[0] = '\0';
    for (size_t i = 0; i < extent->set_count && at < capacity; i++) {
        const struct kvfi_vllm_set *set = &extent->sets[i];

        at += (size_t)snprintf(out + at, capacity - at, "%s%d: %d blocks, %d bytes;", i > 0 ? "\n" : "",
                               (int)set->group, (int)set->block_count, (int)set->payload_bytes);
        for (size_t k = 0; k < set->sheet_count && at < capacity; k++) {
            if (k > 0) at += (size_t)snprintf(out + at, capacity - at, " |");
            for (size_t m = 0; m < set->sheets[k].grid_count && at < capacity; m++)
                at += (size_t)snprintf(out + at, capacity - at, " %d/%d/%d",
                                       (int)set->sheets[k].grids[m].address - BASE,
                                       (int)set->sheets[k].grids[m].stride_bytes,
                                       (int)set->sheets[k].grids[m].block_bytes);
            if (k == set->counting) at += (size_t)snprintf(out + at, capacity - at, " *");
        }
    }
}

static struct kvf_vllm_region region(int64_t base, int64_t stride, int64_t bytes, int64_t group, int64_t row)
{
    return (struct kvf_vllm_region){.layer_name = "layer", .base_addr = (uint64_t)(BASE + base), .block_len = stride,
                                    .kv_block_len = bytes, .group_index = group, .row_offset = row};
}

static void finds_blocks(void **state)
{
    const int64_t both[] = {0, 1};
    const struct {
        const char *name;
        struct kvf_vllm_region regions[4];
        struct kvf_vllm_storage memory[2];
        const char *expected;
    } rows[] = {
        {"layers one after the other: the next one tells how many blocks there are",
         {region(0, 64, 64, 0, -1), region(640, 64, 64, 0, -1)}, {{BASE, 1280}},
         "0: 10 blocks, 128 bytes; 0/64/64 640/64/64 *"},
        {"the same, padded: nothing is written behind a payload",
         {region(0, 64, 48, 0, -1), region(640, 64, 48, 0, -1)}, {{BASE, 1280}},
         "0: 10 blocks, 96 bytes; 0/64/48 640/64/48 *"},
        {"allocations of their own, the shorter one counts", {region(0, 64, 64, 0, -1), region(4096, 64, 64, 0, -1)},
         {{BASE, 640}, {BASE + 4096, 512}}, "0: 8 blocks, 128 bytes; 0/64/64 4096/64/64 *"},
        {"layers in a row that is padded: all of the row may come, payloads must",
         {region(0, 256, 64, 0, 0), region(64, 256, 64, 0, 64)}, {{BASE, 1024}},
         "0: 4 blocks, 128 bytes; 0/256/256 | 0/256/128 *"},
        {"layers in a row that is full", {region(0, 128, 64, 0, 0), region(64, 128, 64, 0, 64)}, {{BASE, 1024}},
         "0: 8 blocks, 128 bytes; 0/128/128 *"},
        {"padding between layers of a row: it may come along",
         {region(16, 256, 32, 0, -1), region(80, 256, 32, 0, -1), region(144, 256, 32, 0, -1)}, {{BASE, 1024}},
         "0: 4 blocks, 96 bytes; 16/256/160 | 16/256/32 80/256/32 144/256/32 *"},
        {"two groups in one row: each may fill it, in its own blocks",
         {region(0, 128, 64, 0, 0), region(64, 128, 64, 1, 64)}, {{BASE, 1024}},
         "0: 8 blocks, 64 bytes; 0/128/128 | 0/128/64 *\n1: 8 blocks, 64 bytes; 64/128/64 *"},
        {"an opaque row", {region(0, 128, 128, 0, 0)}, {{BASE, 1024}}, "0: 8 blocks, 128 bytes; 0/128/128 *"},
        {"two layers with one cache: its bytes must come once", {region(0, 64, 64, 0, -1), region(0, 64, 64, 0, -1)},
         {{BASE, 640}}, "0: 10 blocks, 64 bytes; 0/64/64 *"},
        {"a shared region and one of a group", {region(0, 64, 64, -1, 0), region(640, 64, 64, 1, -1)}, {{BASE, 1280}},
         "-1: 20 blocks, 64 bytes; 0/64/64 *\n1: 10 blocks, 64 bytes; 640/64/64 *"},
        {"arrays that lie in each other: sheets", {region(0, 64, 64, 0, -1), region(0, 32, 32, 0, -1)}, {{BASE, 640}},
         "0: 10 blocks, 32 bytes; 0/32/32 * | 0/64/64"},
        {"not in memory, without bytes", {region(0, 64, 0, 0, -1), region(4096, 64, 64, 1, -1)}, {{BASE, 640}},
         "0: 0 blocks, 0 bytes;\n1: 0 blocks, 0 bytes;"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kvf_vllm_region items[4];
        size_t count = 0, memory_count = rows[i].memory[1].bytes > 0 ? 2 : 1;
        struct kvfi_vllm_extent extent;
        kvf_vllm_regions *regions;
        struct kvf_error error;
        char found[1024];

        for (; count < 4 && rows[i].regions[count].layer_name; count++) {
            items[count] = rows[i].regions[count];
            if (items[count].group_index < 0) items[count].shared_groups = (struct kvf_vllm_ids){both, 2};
        }
        regions = region_kit_list(items, count);
        if (kvfi_vllm_extent_init(&extent, regions, rows[i].memory, memory_count, &error) != KVF_OK)
            fail_msg("%s: %s", rows[i].name, error.text);
        print(&extent, found, sizeof found);
        if (strcmp(found, rows[i].expected) != 0)
            fail_msg("%s: found\n%s\nexpected\n%s", rows[i].name, found, rows[i].expected);
        kvfi_vllm_extent_fini(&extent);
        kvf_vllm_regions_release(regions);
    }
}

static void refuses_blocks_that_overlap(void **state)
{
    struct kvf_vllm_region item = region(0, 32, 64, 0, -1);
    const struct kvf_vllm_storage memory = {BASE, 640};
    kvf_vllm_regions *regions = region_kit_list(&item, 1);
    struct kvfi_vllm_extent extent;
    struct kvf_error error;

    (void)state;
    assert_int_equal(kvfi_vllm_extent_init(&extent, regions, &memory, 1, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "regions: layer has 64 bytes a block, every 32 bytes: its blocks overlap");
    kvf_vllm_regions_release(regions);
}

/* More lists of groups than there can be guards. */
static void refuses_too_many_lists(void **state)
{
    static struct kvf_vllm_region items[KVFI_VLLM_MAX_SETS + 1];
    const struct kvf_vllm_storage memory = {BASE, 640};
    struct kvfi_vllm_extent extent;
    kvf_vllm_regions *regions;
    struct kvf_error error;

    (void)state;
    for (size_t i = 0; i < COUNT(items); i++) items[i] = region(0, 64, 64, (int64_t)i, -1);
    regions = region_kit_list(items, COUNT(items));
    assert_int_equal(kvfi_vllm_extent_init(&extent, regions, &memory, 1, &error), KVF_ERR_LIMIT);
    kvf_vllm_regions_release(regions);
}

static void lists_blocks(void **state)
{
    static const int32_t kinds[] = {KVF_VLLM_ATTENTION, KVF_VLLM_MAMBA};
    static const int64_t turned[] = {1, 0}, ids[2][3] = {{0, 5, 2}, {0, 0, 9}};
    const struct kvf_vllm_ids groups[] = {{ids[0], 3}, {ids[1], 3}};
    const struct kvfi_vllm_id_facts facts = {kinds, 2, 2}, nothing = {NULL, 0, 1};
    const struct {
        const char *name;
        struct kvfi_vllm_set set;
        const struct kvfi_vllm_id_facts *facts;
        size_t group_count;
        const char *expected;
    } rows[] = {
        {"kernel blocks", {.group = 0, .block_count = 12}, &facts, 2, " 0 1 10 11 4 5"},
        {"recurrent: ids as they are, 0 is none", {.group = 1, .block_count = 10}, &facts, 2, " 9"},
        {"shared, in the order of its groups", {.group = -1, .groups = {turned, 2}, .block_count = 12}, &facts, 2,
         " 9 0 1 10 11 4 5"},
        {"shared by whom is not known: by all", {.group = -1, .block_count = 12}, &facts, 2, " 0 1 10 11 4 5 9"},
        {"a group that the request does not have", {.group = 1, .block_count = 10}, &facts, 1, ""},
        {"what the group keeps is not known", {.group = 1, .block_count = 10}, &nothing, 2, " 0 0 9"},
        {"past the end", {.group = 0, .block_count = 10}, &facts, 2, "group 0: block id 5, expected 0 to 4: layer "
                                                                      "layer has 5 blocks in the memory that is "
                                                                      "registered"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kvfi_vllm_set set = rows[i].set;
        int64_t blocks[16];
        struct kvf_error error;
        size_t counted = 0, count = 0, at = 0;
        char found[512] = "";

        set.sheet_count = 1;
        set.layer_name = "layer";
        if (kvfi_vllm_extent_blocks(&set, rows[i].facts, groups, rows[i].group_count, NULL, &counted, &error) !=
            KVF_OK) {
            assert_int_equal(error.status, KVF_ERR_OUT_OF_RANGE);
            snprintf(found, sizeof found, "%.400s", error.text);
        } else {
            assert_in_range(counted, 0, COUNT(blocks));
            assert_int_equal(kvfi_vllm_extent_blocks(&set, rows[i].facts, groups, rows[i].group_count, blocks, &count,
                                                     &error), KVF_OK);
            assert_int_equal(count, counted);
            for (size_t k = 0; k < count; k++)
                at += (size_t)snprintf(found + at, sizeof found - at, " %d", (int)blocks[k]);
        }
        if (strcmp(found, rows[i].expected) != 0)
            fail_msg("%s: found \"%s\", expected \"%s\"", rows[i].name, found, rows[i].expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_blocks),
        cmocka_unit_test(refuses_blocks_that_overlap),
        cmocka_unit_test(refuses_too_many_lists),
        cmocka_unit_test(lists_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
