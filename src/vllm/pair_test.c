/* SPDX-License-Identifier: Apache-2.0 */
/* From regions to descriptors, with the numbers of upstream's own tests. */
#include "vllm/pair_kit.h"

#include <stdlib.h>

#include "vllm/translate.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* build_transfer_params_separates_prefill_pp_layers */
static void test_build_transfer_params_separates_prefill_pp_layers(void **state)
{
    static const struct kvf_vllm_descriptor wanted[2][2] = {
        {{0x1000 + 2560, 0xA000 + 5120, 512}, {0x2000 + 2560, 0xB000 + 5120, 512}},
        {{0x3000 + 2560, 0xC000 + 5120, 512}, {0x4000 + 2560, 0xD000 + 5120, 512}},
    };
    const struct kvf_vllm_ids producer = KIT_LIST(10, 11), consumer = KIT_LIST(20, 21);

    (void)state;
    for (int64_t stage = 0; stage < 2; stage++) {
        struct pair_kit kit;
        kvf_vllm_prepared *prepared;
        const struct kvf_vllm_region *local, *remote;
        size_t count;

        pair_kit_init(&kit);
        kit.spec.total_kv_heads = 4;
        kit.spec.pp_size = 2;
        for (int64_t i = 0; i < 4; i++)
            pair_kit_region(&kit.remote, i, 0xA000 + (uint64_t)i * 0x1000, 256, 256);
        for (int64_t i = 2 * stage; i < 2 * stage + 2; i++)
            pair_kit_region(&kit.local, i, 0x1000 + (uint64_t)i * 0x1000, 256, 256);
        prepared = pair_kit_pair(&kit);
        local = kvf_vllm_regions_get(kvf_vllm_prepared_local(prepared), &count);
        assert_int_equal(count, 2);
        remote = kvf_vllm_regions_get(kvf_vllm_prepared_remote(prepared), &count);
        assert_int_equal(count, 2);
        for (int64_t i = 0; i < 2; i++) {
            assert_int_equal(local[i].layer_index, 2 * stage + i);
            assert_int_equal(remote[i].layer_index, 2 * stage + i);
        }
        pair_kit_expect(prepared, &producer, &consumer, 1, wanted[stage], 2);
        kvf_vllm_prepared_release(prepared);
    }
}

/* block_ids_for_region_flattens_shared_groups */
static void test_block_ids_for_region_flattens_shared_groups(void **state)
{
    static const int64_t both[] = {0, 1}, first[] = {10, 11}, second[] = {12}, third[] = {99}, flat[] = {10, 11, 12};
    struct kvfi_vllm_blocks groups[] = {{first, first, 2, 10, 11, 10, 11}, {second, second, 1, 12, 12, 12, 12},
                                        {third, third, 1, 99, 99, 99, 99}};
    const struct {
        size_t group_count;
        struct kvfi_vllm_list list;
        const int64_t *ids;
        size_t count;
    } rows[] = {
        {2, {0, {NULL, 0}}, first, 2},
        {2, {1, {NULL, 0}}, second, 1},
        {2, {KVF_VLLM_SHARED_GROUP, {both, 2}}, flat, 3},
        {3, {KVF_VLLM_SHARED_GROUP, {both, 2}}, flat, 3},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kvfi_vllm_blocks_by_group all = {.groups = groups, .group_count = rows[i].group_count};
        struct kvfi_vllm_blocks found = {.count = 0};
        int64_t *own = NULL;

        assert_int_equal(kvfi_vllm_blocks_of(&all, &rows[i].list, &found, &own, NULL), KVF_OK);
        assert_int_equal(found.count, rows[i].count);
        assert_memory_equal(found.src, rows[i].ids, rows[i].count * sizeof(int64_t));
        assert_memory_equal(found.dst, rows[i].ids, rows[i].count * sizeof(int64_t));
        assert_int_equal(found.src_low, rows[i].ids[0]);
        assert_int_equal(found.dst_high, rows[i].ids[rows[i].count - 1]);
        free(own);
    }
}

/* build_transfer_params_sends_packed_region_once */
static void test_build_transfer_params_sends_packed_region_once(void **state)
{
    static const int64_t both[] = {0, 1};
    const struct kvf_vllm_ids producer[] = {KIT_LIST(10, 11), KIT_LIST(12)};
    const struct kvf_vllm_ids consumer[] = {KIT_LIST(20, 21), KIT_LIST(22)};

    (void)state;
    for (size_t groups = 1; groups <= 2; groups++) {
        struct kvf_vllm_descriptor wanted = {0x1000 + 2560, 0xA000 + 5120, groups == 1 ? 512 : 768};
        struct pair_kit kit;
        kvf_vllm_prepared *prepared;

        pair_kit_init(&kit);
        kit.spec.is_mla = 1;
        kit.spec.group_count = groups;
        pair_kit_region(&kit.local, 0, 0x1000, 256, 256);
        pair_kit_region(&kit.remote, 0, 0xA000, 256, 256);
        for (int side = 0; side < 2; side++) {
            struct pair_kit_side *to = side ? &kit.remote : &kit.local;

            pair_kit_row(to, 0);
            if (groups == 2) pair_kit_group(to, KVF_VLLM_SHARED_GROUP, 2, both);
        }
        prepared = pair_kit_pair(&kit);
        pair_kit_expect(prepared, producer, consumer, groups, &wanted, 1);
        kvf_vllm_prepared_release(prepared);
    }
}

enum { P = 0x100000, D = 0x800000 };

/* packed_hetero_pp_keeps_shared_layers */
static void test_packed_hetero_pp_keeps_shared_layers(void **state)
{
    static const struct kvf_vllm_descriptor wanted[] = {
        {P + 10 * 2048, D + 2048 + 10 * 4096, 2048},
        {P + 11 * 2048, D + 2048 + 11 * 4096, 2048},
    };
    const struct kvf_vllm_ids ids = KIT_LIST(10, 11);
    const struct kvf_vllm_region *local, *remote;
    kvf_vllm_prepared *prepared;
    struct pair_kit kit;
    size_t count;

    (void)state;
    pair_kit_init(&kit);
    kit.spec.is_mla = 1;
    kit.spec.pp_size = 2;
    for (int64_t i = 0; i < 4; i++) {
        pair_kit_region(&kit.remote, i, D + (uint64_t)i * 1024, 4096, 1024);
        pair_kit_row(&kit.remote, i * 1024);
        if (i < 2) continue;
        pair_kit_region(&kit.local, i, P + (uint64_t)(i - 2) * 1024, 2048, 1024);
        pair_kit_row(&kit.local, (i - 2) * 1024);
    }
    prepared = pair_kit_pair(&kit);
    local = kvf_vllm_regions_get(kvf_vllm_prepared_local(prepared), &count);
    assert_int_equal(count, 1);
    remote = kvf_vllm_regions_get(kvf_vllm_prepared_remote(prepared), &count);
    assert_int_equal(count, 1);
    assert_int_equal(local->layer_index, 2);
    assert_int_equal(local->block_len, 2048);
    assert_int_equal(local->kv_block_len, 2048);
    assert_int_equal(remote->block_len, 4096);
    assert_int_equal(remote->kv_block_len, 2048);
    assert_int_equal(remote->base_addr, D + 2048);
    pair_kit_expect(prepared, &ids, &ids, 1, wanted, 2);
    kvf_vllm_prepared_release(prepared);
}

/* packed_matching_layers_coalesce_to_one_copy */
static void test_packed_matching_layers_coalesce_to_one_copy(void **state)
{
    static const struct kvf_vllm_descriptor wanted = {P + 20480, D + 40960, 4096};
    const struct kvf_vllm_ids producer = KIT_LIST(10, 11), consumer = KIT_LIST(20, 21);
    const struct kvf_vllm_region *local;
    kvf_vllm_prepared *prepared;
    struct pair_kit kit;
    size_t count;

    (void)state;
    pair_kit_init(&kit);
    kit.spec.is_mla = 1;
    for (int64_t i = 0; i < 2; i++) {
        pair_kit_region(&kit.local, i, P + (uint64_t)i * 1024, 2048, 1024);
        pair_kit_row(&kit.local, i * 1024);
        pair_kit_region(&kit.remote, i, D + (uint64_t)i * 1024, 2048, 1024);
        pair_kit_row(&kit.remote, i * 1024);
    }
    prepared = pair_kit_pair(&kit);
    local = kvf_vllm_regions_get(kvf_vllm_prepared_local(prepared), &count);
    assert_int_equal(count, 1);
    assert_int_equal(local->block_len, 2048);
    assert_int_equal(local->kv_block_len, 2048);
    pair_kit_expect(prepared, &producer, &consumer, 1, &wanted, 1);
    kvf_vllm_prepared_release(prepared);
}

/* Heads cut out of a payload: one descriptor a block, the producer's last ids. */
static void test_cut_payloads_move_block_by_block(void **state)
{
    static const struct kvf_vllm_descriptor wanted[] = {
        {P + 4 * 1024 + 512, D + 7 * 512, 512}, {P + 5 * 1024 + 512, D + 8 * 512, 512},
        {P + 0x10000 + 4 * 1024 + 512, D + 0x10000 + 7 * 512, 512},
        {P + 0x10000 + 5 * 1024 + 512, D + 0x10000 + 8 * 512, 512},
    };
    const struct kvf_vllm_ids producer = KIT_LIST(3, 4, 5), consumer = KIT_LIST(7, 8);
    struct kvf_vllm_prepared_info info = {.struct_size = sizeof info};
    kvf_vllm_prepared *prepared;
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    kit.peer.tp_size = 2;
    kit.peer.tp_rank = 1;
    kit.peer.pp_size = 3;
    for (int64_t i = 0; i < 2; i++) {
        pair_kit_region(&kit.local, i, P + (uint64_t)i * 0x10000, 1024, 1024);
        pair_kit_region(&kit.remote, i, D + (uint64_t)i * 0x10000, 512, 512);
    }
    kit.spec.layers = (const struct kvf_vllm_layer[]){
        {.name = "model.layers.1.self_attn", .kind = KVF_VLLM_ATTENTION},
        {.name = "model.layers.0.self_attn", .kind = KVF_VLLM_ATTENTION}};
    kit.spec.layer_count = 2;
    prepared = pair_kit_pair(&kit);
    pair_kit_expect(prepared, &producer, &consumer, 1, wanted, 4);
    assert_int_equal(kvf_vllm_prepared_get_info(prepared, &info, NULL), KVF_OK);
    assert_int_equal(info.pairs, 2);
    assert_int_equal(info.plans, 1);
    assert_int_equal(info.sends, 1);
    assert_int_equal(info.pulls_expected, 6);
    assert_int_equal(info.src_offset_bytes, 512);
    assert_int_equal(info.dst_offset_bytes, 0);
    assert_int_equal(info.bytes_per_block, 512);
    assert_non_null(kvf_vllm_prepared_plan(prepared, 0));
    assert_ptr_equal(kvf_vllm_prepared_plan(prepared, 0), kvf_vllm_prepared_plan(prepared, 1));
    assert_null(kvf_vllm_prepared_plan(prepared, 2));
    kvf_vllm_prepared_release(prepared);
}

/* A rank whose bytes another one sends: the pull is answered, nothing is written. */
static void test_a_rank_that_does_not_send(void **state)
{
    const struct kvf_vllm_ids ids = KIT_LIST(1, 2);
    struct kvf_vllm_prepared_info info = {.struct_size = sizeof info};
    kvf_vllm_write *write = (kvf_vllm_write *)&info; /* must become NULL */
    kvf_vllm_prepared *prepared;
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    kit.spec.is_mla = 1;
    kit.spec.tp_size = 2;
    kit.spec.tp_rank = 1;
    pair_kit_region(&kit.local, 0, P, 64, 64);
    pair_kit_region(&kit.remote, 0, D, 64, 64);
    prepared = pair_kit_pair(&kit);
    assert_int_equal(kvf_vllm_prepared_get_info(prepared, &info, NULL), KVF_OK);
    assert_int_equal(info.sends, 0);
    assert_int_equal(info.plans, 0);
    assert_int_equal(info.pairs, 1);
    assert_null(kvf_vllm_prepared_plan(prepared, 0));
    assert_int_equal(kvf_vllm_write_create(prepared, &ids, 1, &ids, 1, &write, NULL), KVF_OK);
    assert_null(write);
    assert_int_equal(kvf_vllm_write_count(write), 0);
    assert_int_equal(kvf_vllm_write_bytes(write), 0);
    kvf_vllm_prepared_release(prepared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_build_transfer_params_separates_prefill_pp_layers),
        cmocka_unit_test(test_block_ids_for_region_flattens_shared_groups),
        cmocka_unit_test(test_build_transfer_params_sends_packed_region_once),
        cmocka_unit_test(test_packed_hetero_pp_keeps_shared_layers),
        cmocka_unit_test(test_packed_matching_layers_coalesce_to_one_copy),
        cmocka_unit_test(test_cut_payloads_move_block_by_block),
        cmocka_unit_test(test_a_rank_that_does_not_send),
    };

    return cmocka_run_group_tests_name("pair", tests, NULL, NULL);
}
