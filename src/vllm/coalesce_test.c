/* SPDX-License-Identifier: Apache-2.0 */
/* Neighbours in a row: which merge, how far, and which become whole rows. */
#include "vllm/region_kit.h"

#include <string.h>

#include "vllm/coalesce.h"

/* Regions of one side in one row, and the peer's at `shift` more. */
struct sides {
    struct kvf_vllm_region local[8], remote[8];
    struct kvfi_vllm_pairs pairs;
};

static void fill(struct sides *sides, const struct kvf_vllm_region *local, size_t count, uint64_t shift)
{
    for (size_t i = 0; i < count; i++) {
        sides->local[i] = sides->remote[i] = local[i];
        sides->remote[i].base_addr += shift;
    }
    sides->pairs = (struct kvfi_vllm_pairs){sides->local, sides->remote, count};
}

static void check(const struct sides *sides, size_t i, uint64_t base, uint64_t remote_base, int64_t kv, int64_t row)
{
    assert_true(i < sides->pairs.count);
    assert_true(sides->local[i].base_addr == base);
    assert_true(sides->remote[i].base_addr == remote_base);
    assert_int_equal(sides->local[i].kv_block_len, kv);
    assert_int_equal(sides->remote[i].kv_block_len, kv);
    assert_int_equal(sides->local[i].row_offset, row);
}

static void test_coalesce_promotes_padding_only_for_a_full_row(void **state)
{
    const struct kvf_vllm_region local[] = {region_kit(0, 2560, 1024), region_kit(1024, 2560, 1024)};
    struct sides sides;

    (void)state;
    fill(&sides, local, 2, 100);
    kvfi_vllm_coalesce(&sides.pairs, true);
    assert_int_equal(sides.pairs.count, 1);
    check(&sides, 0, 0, 100, 2560, 0);
    fill(&sides, local, 2, 100);
    kvfi_vllm_coalesce(&sides.pairs, false);
    assert_int_equal(sides.pairs.count, 1);
    check(&sides, 0, 0, 100, 2048, 0);
}

static void test_coalesce_spans_padding_between_pages(void **state)
{
    const struct kvf_vllm_region local[] = {region_kit(0, 2560, 1000), region_kit(1024, 2560, 1000)};
    struct sides sides;

    (void)state;
    fill(&sides, local, 2, 5000);
    kvfi_vllm_coalesce(&sides.pairs, false);
    assert_int_equal(sides.pairs.count, 1);
    check(&sides, 0, 0, 5000, 2024, 0);
}

static void test_coalesce_promotes_each_group_that_starts_at_row_zero(void **state)
{
    static const char *const names[] = {"group-0", "group-1"};
    struct kvf_vllm_region local[4];
    struct sides sides;

    (void)state;
    for (int i = 0; i < 4; i++) {
        local[i] = region_kit_named(names[i / 2], i / 2, i % 2 ? 1024 : 0, 4096, 1000);
        local[i].group_index = i / 2;
    }
    fill(&sides, local, 4, 8000);
    kvfi_vllm_coalesce(&sides.pairs, true);
    assert_int_equal(sides.pairs.count, 2);
    for (int i = 0; i < 2; i++) {
        check(&sides, (size_t)i, 0, 8000, 4096, 0);
        assert_int_equal(sides.local[i].group_index, i);
        assert_int_equal(sides.remote[i].group_index, i);
        assert_string_equal(sides.local[i].layer_name, names[i]);
    }
}

static void test_coalesce_does_not_promote_a_mid_row_run(void **state)
{
    const struct kvf_vllm_region local[] = {region_kit_named("layer", 2, 1024, 4096, 1000),
                                            region_kit_named("layer", 2, 2048, 4096, 1000)};
    struct sides sides;

    (void)state;
    fill(&sides, local, 2, 9000);
    kvfi_vllm_coalesce(&sides.pairs, true);
    assert_int_equal(sides.pairs.count, 1);
    check(&sides, 0, 1024, 10024, 2024, 1024);
}

static void test_coalesce_keeps_a_run_inside_its_starting_row(void **state)
{
    const struct kvf_vllm_region local[] = {region_kit(0, 2500, 1000), region_kit(1000, 2500, 1000),
                                            region_kit(2000, 2500, 1000)};
    struct sides sides;

    (void)state;
    fill(&sides, local, 3, 0);
    kvfi_vllm_coalesce(&sides.pairs, false);
    assert_int_equal(sides.pairs.count, 2);
    check(&sides, 0, 0, 0, 2000, 0);
    check(&sides, 1, 2000, 2000, 1000, 2000);
}

/* Two regions that would merge, but for one thing. */
static void test_what_separates_two_regions(void **state)
{
    static const int64_t groups[] = {0, 1};
    static const struct {
        const char *label;
        int side; /* 0 both, 1 the producer's second region, 2 the consumer's, is as told */
        uint64_t base;
        int64_t block_len, kv, group;
        size_t shared;
        size_t merged;
    } rows[] = {
        {"none", 1, 1000, 4096, 1000, 0, 0, 1},
        {"overlap", 1, 999, 4096, 1000, 0, 0, 2},
        {"overlap at the peer", 2, 999, 4096, 1000, 0, 0, 2},
        {"other row length", 1, 1000, 4095, 1000, 0, 0, 2},
        {"group", 1, 1000, 4096, 1000, 1, 0, 2},
        {"shared groups", 2, 1000, 4096, 1000, 0, 2, 2},
        {"shared groups of both", 0, 1000, 4096, 1000, 0, 2, 2},
        {"up to the row's end", 1, 3096, 4096, 1000, 0, 0, 1},
        {"past the row's end", 1, 3097, 4096, 1000, 0, 0, 2},
        {"past all addresses", 2, UINT64_MAX, 4096, INT64_MAX, 0, 0, 2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct kvf_vllm_region same[] = {region_kit(0, 4096, 1000), region_kit(1000, 4096, 1000)};
        struct kvf_vllm_region other = region_kit(rows[i].base, rows[i].block_len, rows[i].kv);
        struct sides sides;

        other.group_index = rows[i].group;
        other.shared_groups = (struct kvf_vllm_ids){groups, rows[i].shared};
        fill(&sides, same, 2, 0);
        if (rows[i].side != 2) sides.local[1] = other;
        if (rows[i].side != 1) sides.remote[1] = other;
        kvfi_vllm_coalesce(&sides.pairs, false);
        if (sides.pairs.count != rows[i].merged) fail_msg("%s: %zu regions", rows[i].label, sides.pairs.count);
    }
}

/* One pair that would become a whole row, but for one thing. */
static void test_what_is_not_promoted(void **state)
{
    static const struct {
        const char *label;
        int64_t row, block_len, kv;
        bool promoted;
    } rows[] = {
        {"none", 0, 4096, 1000, true},
        {"whole already", 0, 4096, 4096, true},
        {"not the row's begin", 8, 4096, 1000, false},
        {"no row", KVF_VLLM_NO_ROW, 4096, 1000, false},
        {"other row length", 0, 4097, 1000, false},
        {"more than a row", 0, 4096, 5000, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int side = 0; side < 2; side++) {
            const struct kvf_vllm_region whole = region_kit(0, 4096, 1000);
            struct sides sides;
            struct kvf_vllm_region *changed = side ? sides.remote : sides.local;

            fill(&sides, &whole, 1, 0);
            changed->row_offset = rows[i].row;
            changed->block_len = rows[i].block_len;
            changed->kv_block_len = rows[i].kv;
            kvfi_vllm_coalesce(&sides.pairs, true);
            if ((sides.local->kv_block_len == 4096 && sides.remote->kv_block_len == 4096) != rows[i].promoted
                || changed->kv_block_len != (rows[i].promoted ? 4096 : rows[i].kv)) {
                fail_msg("%s, side %d", rows[i].label, side);
            }
        }
    }
}

static void test_nothing_to_merge(void **state)
{
    struct sides sides;

    (void)state;
    fill(&sides, NULL, 0, 0);
    kvfi_vllm_coalesce(&sides.pairs, true);
    assert_int_equal(sides.pairs.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coalesce_promotes_padding_only_for_a_full_row),
        cmocka_unit_test(test_coalesce_spans_padding_between_pages),
        cmocka_unit_test(test_coalesce_promotes_each_group_that_starts_at_row_zero),
        cmocka_unit_test(test_coalesce_does_not_promote_a_mid_row_run),
        cmocka_unit_test(test_coalesce_keeps_a_run_inside_its_starting_row),
        cmocka_unit_test(test_what_separates_two_regions),
        cmocka_unit_test(test_what_is_not_promoted),
        cmocka_unit_test(test_nothing_to_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
