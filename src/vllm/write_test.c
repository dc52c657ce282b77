/* SPDX-License-Identifier: Apache-2.0 */
/* A request's block ids: what they become, what is refused, and which memory is touched. */
#include "vllm/pair_kit.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { P = 0x100000, D = 0x800000 };

/** One layer of 64-byte blocks in group 0, and one of padded blocks in group 1; both whole. */
static void build(struct pair_kit *kit)
{
    pair_kit_init(kit);
    kit->spec.group_count = 2;
    pair_kit_region(&kit->local, 0, P, 64, 64);
    pair_kit_region(&kit->remote, 0, D, 64, 64);
    pair_kit_region(&kit->local, 1, 2 * P, 64, 48);
    pair_kit_group(&kit->local, 1, 0, NULL);
    pair_kit_region(&kit->remote, 1, 2 * D, 96, 48);
    pair_kit_group(&kit->remote, 1, 0, NULL);
}

static void test_runs_in_upstreams_order(void **state)
{
    static const struct kvf_vllm_descriptor wanted[] = {
        {P + 640, D + 320, 128}, {P + 768, D + 512, 64}, {P + 1280, D + 576, 64},
        {2 * P + 64, 2 * D + 96, 48}, {2 * P + 128, 2 * D + 192, 48},
    };
    const struct kvf_vllm_ids producer[] = {KIT_LIST(10, 11, 12, 20), KIT_LIST(9, 1, 2)};
    const struct kvf_vllm_ids consumer[] = {KIT_LIST(5, 6, 8, 9), KIT_LIST(1, 2)};
    kvf_vllm_prepared *prepared;
    struct pair_kit kit;

    (void)state;
    build(&kit);
    prepared = pair_kit_pair(&kit);
    pair_kit_expect(prepared, producer, consumer, 2, wanted, 5);
    kvf_vllm_prepared_release(prepared);
}

static void test_ids_may_repeat(void **state)
{
    static const struct kvf_vllm_descriptor wanted[] = {
        {P + 320, D + 64, 64}, {P + 320, D + 128, 128}, {P + 384, D + 128, 64},
    };
    const struct kvf_vllm_ids producer[] = {KIT_LIST(5, 5, 6, 6), {NULL, 0}};
    const struct kvf_vllm_ids consumer[] = {KIT_LIST(1, 2, 3, 2), {NULL, 0}};
    kvf_vllm_prepared *prepared;
    struct pair_kit kit;

    (void)state;
    build(&kit);
    prepared = pair_kit_pair(&kit);
    pair_kit_expect(prepared, producer, consumer, 2, wanted, 3);
    kvf_vllm_prepared_release(prepared);
}

/* Logical ids become kernel blocks, those of recurrent groups stay; id 0 of a recurrent group holds nothing. */
static void test_kernel_blocks_and_null_blocks(void **state)
{
    static const struct kvf_vllm_descriptor wanted[] = {
        {P + 4 * 64, D + 10 * 64, 128}, {P + 14 * 64, D + 2 * 64, 128},
        {2 * P + 5 * 64, 2 * D + 96, 48}, {2 * P + 3 * 64, 2 * D + 4 * 96, 48},
    };
    const struct kvf_vllm_ids producer[] = {KIT_LIST(2, 7), KIT_LIST(0, 9, 5, 0, 3)};
    const struct kvf_vllm_ids consumer[] = {KIT_LIST(5, 1), KIT_LIST(0, 1, 4)};
    kvf_vllm_prepared *prepared;
    struct pair_kit kit;

    (void)state;
    build(&kit);
    kit.spec.kernel_blocks_per_block = 2;
    kit.kinds[1] = KVF_VLLM_MAMBA;
    prepared = pair_kit_pair(&kit);
    pair_kit_expect(prepared, producer, consumer, 2, wanted, 4);
    kvf_vllm_prepared_release(prepared);
}

static void test_shared_groups_in_their_order(void **state)
{
    static const int64_t order[] = {1, 0};
    static const struct kvf_vllm_descriptor wanted[] = {
        {P + 7 * 64, D + 9 * 64, 64}, {P + 64, D + 4 * 64, 128},
    };
    const struct kvf_vllm_ids producer[] = {KIT_LIST(1, 2), KIT_LIST(7), KIT_LIST(50)};
    const struct kvf_vllm_ids consumer[] = {KIT_LIST(4, 5), KIT_LIST(9), KIT_LIST(60)};
    kvf_vllm_prepared *prepared;
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    kit.spec.group_count = 3;
    pair_kit_region(&kit.local, 0, P, 64, 64);
    pair_kit_group(&kit.local, KVF_VLLM_SHARED_GROUP, 2, order);
    pair_kit_region(&kit.remote, 0, D, 64, 64);
    pair_kit_group(&kit.remote, KVF_VLLM_SHARED_GROUP, 2, order);
    prepared = pair_kit_pair(&kit);
    pair_kit_expect(prepared, producer, consumer, 3, wanted, 2);
    kvf_vllm_prepared_release(prepared);
}

#define EMPTY {NULL, 0}
#define LISTS(...) {__VA_ARGS__}

static void test_refusals(void **state)
{
    static const int64_t missing[] = {0, 5};
    const struct {
        const char *name;
        struct kvf_vllm_ids producer[3], consumer[3];
        size_t producer_groups, consumer_groups;
        int64_t group;      /**< of the second region; -2 = shared by none, -3 = shared by a group that is not there */
        enum kvf_status status;
        const char *text;   /**< NULL = taken */
        bool nothing;       /**< taken, and there is nothing to copy */
    } rows[] = {
        {"no groups wanted", LISTS(KIT_LIST(1)), LISTS(EMPTY), 1, 0, 1, KVF_OK, NULL, true},
        {"empty groups wanted", LISTS(KIT_LIST(1)), LISTS(EMPTY, EMPTY, EMPTY), 1, 3, 1, KVF_OK, NULL, true},
        {"other groups", LISTS(KIT_LIST(1)), LISTS(KIT_LIST(1), EMPTY), 1, 2, 1, KVF_ERR_IDS,
         "KV group count mismatch", false},
        {"too few", LISTS(KIT_LIST(1), KIT_LIST(2)), LISTS(EMPTY, KIT_LIST(1, 2)), 2, 2, 1, KVF_ERR_IDS,
         "P num blocks less than D", false},
        {"fine", LISTS(KIT_LIST(1), KIT_LIST(2, 3)), LISTS(EMPTY, KIT_LIST(1, 2)), 2, 2, 1, KVF_OK, NULL, false},
        {"below 0 at the consumer", LISTS(KIT_LIST(1), KIT_LIST(2)), LISTS(KIT_LIST(-1), EMPTY), 2, 2, 1, KVF_ERR_IDS,
         "KV group 0: block id -1 of the consumer, expected 0 or more", false},
        {"below 0 at the producer", LISTS(KIT_LIST(1), KIT_LIST(-2)), LISTS(EMPTY, KIT_LIST(9)), 2, 2, 1, KVF_ERR_IDS,
         "KV group 1: block id -2 of the producer, expected 0 or more", false},
        {"below 0, but not moved", LISTS(KIT_LIST(-1, 1), EMPTY), LISTS(KIT_LIST(9), EMPTY), 2, 2, 1, KVF_OK, NULL,
         false},
        {"past the end", LISTS(KIT_LIST(1), KIT_LIST(2)), LISTS(KIT_LIST(INT64_MAX / 64), EMPTY), 2, 2, 1,
         KVF_ERR_OUT_OF_RANGE, "layer model.layers.0.self_attn: block 144115188075855871 of the consumer, at 0x800000 "
         "+ 144115188075855871 * 64, lies past the end of all addresses", false},
        {"no id at all", LISTS(KIT_LIST(1), KIT_LIST(2)), LISTS(KIT_LIST(INT64_MAX), EMPTY), 2, 2, 1,
         KVF_ERR_OUT_OF_RANGE,
         "KV group 0: block id 9223372036854775807 lies past the end of all addresses", false},
        {"a group that is not there", LISTS(KIT_LIST(1), KIT_LIST(2)), LISTS(KIT_LIST(1), EMPTY), 2, 2, 7,
         KVF_ERR_INCOMPATIBLE, "Transfer region references a missing KV group.", false},
        {"shared by none", LISTS(KIT_LIST(1), KIT_LIST(2)), LISTS(KIT_LIST(1), EMPTY), 2, 2, -2, KVF_ERR_INCOMPATIBLE,
         "Shared packed region is missing its group ids.", false},
        {"shared by one that is not there", LISTS(KIT_LIST(1), KIT_LIST(2)), LISTS(KIT_LIST(1), EMPTY), 2, 2, -3,
         KVF_ERR_INCOMPATIBLE, "Transfer region references a missing KV group.", false},
        {"more groups than are transferred", LISTS(KIT_LIST(1), EMPTY, EMPTY), LISTS(KIT_LIST(1), EMPTY, EMPTY), 3, 3,
         1, KVF_ERR_INCOMPATIBLE, "block ids of 3 KV groups, this producer transfers 2", false},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvf_vllm_write *write = (kvf_vllm_write *)&rows;
        struct kvf_error error = {.text = ""};
        kvf_vllm_prepared *prepared;
        enum kvf_status status;
        struct pair_kit kit;

        build(&kit);
        if (rows[i].group < 0) {
            pair_kit_group(&kit.local, KVF_VLLM_SHARED_GROUP, rows[i].group == -3 ? 2 : 0, missing);
            pair_kit_group(&kit.remote, KVF_VLLM_SHARED_GROUP, rows[i].group == -3 ? 2 : 0, missing);
        } else {
            pair_kit_group(&kit.local, rows[i].group, 0, NULL);
            pair_kit_group(&kit.remote, rows[i].group, 0, NULL);
        }
        prepared = pair_kit_pair(&kit);
        status = kvf_vllm_write_create(prepared, rows[i].producer, rows[i].producer_groups, rows[i].consumer,
                                       rows[i].consumer_groups, &write, &error);
        if (status != rows[i].status || (rows[i].text && strcmp(rows[i].text, error.text) != 0))
            fail_msg("%s: %s (%s)", rows[i].name, kvf_status_name(status), error.text);
        if (status) assert_ptr_equal(write, &rows);
        else if (rows[i].nothing) assert_null(write);
        else kvf_vllm_write_destroy(write);
        kvf_vllm_prepared_release(prepared);
    }
}

/* A payload that is shorter at the consumer: told with the first request that would move it, as upstream does. */
static void test_a_cut_that_leaves_the_payload(void **state)
{
    const struct kvf_vllm_ids ids = KIT_LIST(1), none = {NULL, 0};
    kvf_vllm_prepared *prepared;
    kvf_vllm_write *write;
    struct kvf_error error;
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    kit.spec.is_mla = 1;
    kit.spec.tp_size = 2;
    pair_kit_region(&kit.local, 0, P, 64, 64);
    pair_kit_region(&kit.remote, 0, D, 64, 60);
    prepared = pair_kit_pair(&kit);
    assert_int_equal(kvf_vllm_write_create(prepared, &ids, 1, &none, 1, &write, &error), KVF_OK);
    assert_null(write);
    assert_int_equal(kvf_vllm_write_create(prepared, &ids, 1, &ids, 1, &write, &error), KVF_ERR_INCOMPATIBLE);
    assert_string_equal(error.text, "Destination transfer region exceeds remote KV block size.");
    kvf_vllm_prepared_release(prepared);
}

/* Kernel blocks without end are refused before anything is allocated for them. */
static void test_limits(void **state)
{
    const struct kvf_vllm_ids ids[] = {KIT_LIST(1, 2, 3), {NULL, 0}};
    kvf_vllm_prepared *prepared;
    kvf_vllm_write *write;
    struct kvf_error error;
    struct pair_kit kit;

    (void)state;
    build(&kit);
    kit.spec.kernel_blocks_per_block = INT64_C(1) << 62;
    prepared = pair_kit_pair(&kit);
    assert_int_equal(kvf_vllm_write_create(prepared, ids, 2, ids, 2, &write, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text,
                        "KV group 0: 3 blocks of 4611686018427387904 kernel blocks, at most 16777216");
    kvf_vllm_prepared_release(prepared);
}

/* Blocks that lie on each other at the consumer are not this side's to judge; nothing is joined then. */
static void test_payloads_longer_than_a_block(void **state)
{
    static const struct kvf_vllm_descriptor wanted[] = {
        {P + 64, D + 32 + 64, 64}, {P + 128, D + 32 + 96, 64}, {P + 192, D + 32 + 128, 64},
    };
    const struct kvf_vllm_ids ids = KIT_LIST(1, 2, 3);
    kvf_vllm_prepared *prepared;
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    kit.spec.tp_size = 2;
    kit.spec.tp_rank = 1;
    kit.spec.layers = (const struct kvf_vllm_layer[]){{.name = "model.layers.0.self_attn", .kind = KVF_VLLM_ATTENTION}};
    kit.spec.layer_count = 1;
    pair_kit_region(&kit.local, 0, P, 64, 64);
    pair_kit_region(&kit.remote, 0, D, 32, 128);
    prepared = pair_kit_pair(&kit);
    pair_kit_expect(prepared, &ids, &ids, 1, wanted, 3);
    kvf_vllm_prepared_release(prepared);
}

static void test_any_capacity_gives_the_same(void **state)
{
    struct kvf_vllm_descriptor all[300], some[300];
    int64_t src[100], dst[100];
    struct kvf_vllm_ids producer[2] = {{src, 100}, {src, 100}}, consumer[2] = {{dst, 100}, {dst, 100}};
    kvf_vllm_prepared *prepared;
    struct pair_kit kit;

    (void)state;
    for (int i = 0; i < 100; i++) {
        src[i] = i / 3 * 7 + i % 3;
        dst[i] = i / 5 * 9 + i % 5;
    }
    build(&kit);
    prepared = pair_kit_pair(&kit);
    for (size_t capacity = 1; capacity < 300; capacity += 13) {
        kvf_vllm_write *write = NULL;
        size_t count = 0, step;

        assert_int_equal(kvf_vllm_write_create(prepared, producer, 2, consumer, 2, &write, NULL), KVF_OK);
        while ((step = kvf_vllm_write_next(write, (capacity == 1 ? all : some) + count, capacity)) > 0) {
            assert_true(step <= capacity);
            count += step;
        }
        assert_int_equal(count, kvf_vllm_write_count(write));
        assert_int_equal(kvf_vllm_write_next(write, some, 0), 0);
        kvf_vllm_write_destroy(write);
        if (capacity > 1) assert_memory_equal(all, some, count * sizeof *all);
    }
    assert_int_equal(kvf_vllm_write_next(NULL, all, 1), 0);
    kvf_vllm_prepared_release(prepared);
}

static void test_memory_that_may_be_touched(void **state)
{
    static const struct {
        const char *name;
        int side;
        struct kvf_vllm_storage memory[3];
        size_t count;
        const char *text; /**< NULL = all inside */
    } rows[] = {
        {"one memory", 0, {{P, 2 * P}}, 1, NULL},
        {"one for each region", 0, {{2 * P, 3 * 64 + 48}, {P, 704}}, 2, NULL},
        {"a byte too few at the end", 0, {{2 * P, 3 * 64 + 47}, {P, 704}}, 2,
         "layer model.layers.1.self_attn: block 3 of the producer, 48 bytes at 0x2000c0, lies in no memory; the "
         "nearest has 239 bytes at 0x200000"},
        {"a byte too few at the begin", 0, {{2 * P, 4 * 64}, {P + 65, 800}}, 2,
         "layer model.layers.0.self_attn: block 1 of the producer, 64 bytes at 0x100040, lies in no memory; the "
         "nearest has 800 bytes at 0x100041"},
        {"blocks apart", 0, {{2 * P, 4 * 64}, {P + 64, 64}, {P + 640, 64}}, 3, NULL},
        {"one of them in a gap", 0, {{2 * P, 4 * 64}, {P + 64, 64}, {P + 641, 64}}, 3,
         "layer model.layers.0.self_attn: block 10 of the producer, 64 bytes at 0x100280, lies in no memory; the "
         "nearest has 64 bytes at 0x100281"},
        {"one that reaches over shorter ones behind it", 0, {{P + 128, 4}, {P, 704}, {2 * P, 4 * 64}}, 3, NULL},
        {"halves that meet", 0, {{2 * P, 4 * 64}, {P, 64 + 32}, {P + 64 + 32, 704}}, 3,
         "layer model.layers.0.self_attn: block 1 of the producer, 64 bytes at 0x100040, lies in no memory; the "
         "nearest has 96 bytes at 0x100000"},
        {"none", 0, {{0, 0}}, 0, "layer model.layers.0.self_attn: block 1 of the producer, 64 bytes at 0x100040, lies "
         "in no memory: there is none"},
        {"the other side", 1, {{D, 1 << 20}, {2 * D, 1 << 20}}, 2, NULL},
        {"the other side, elsewhere", 1, {{P, 1 << 20}, {2 * D, 1 << 20}}, 2,
         "layer model.layers.0.self_attn: block 7 of the consumer, 64 bytes at 0x8001c0, lies in no memory; the "
         "nearest has 1048576 bytes at 0x100000"},
        {"nonsense", 0, {{P, -1}, {UINT64_MAX, 4}}, 2,
         "layer model.layers.0.self_attn: block 1 of the producer, 64 bytes at 0x100040, lies in no memory; the "
         "nearest has -1 bytes at 0x100000"},
    };
    const struct kvf_vllm_ids producer[] = {KIT_LIST(1, 10), KIT_LIST(3)}, consumer[] = {KIT_LIST(7, 4), KIT_LIST(2)};
    kvf_vllm_prepared *prepared;
    kvf_vllm_write *write = NULL;
    struct kvf_error error;
    struct pair_kit kit;

    (void)state;
    build(&kit);
    prepared = pair_kit_pair(&kit);
    assert_int_equal(kvf_vllm_write_create(prepared, producer, 2, consumer, 2, &write, NULL), KVF_OK);
    for (size_t i = 0; i < COUNT(rows); i++) {
        enum kvf_status status;

        error.text[0] = 0;
        status = kvf_vllm_write_check(write, rows[i].side, rows[i].memory, rows[i].count, &error);
        if (status != (rows[i].text ? KVF_ERR_OUT_OF_RANGE : KVF_OK) ||
            (rows[i].text && strcmp(rows[i].text, error.text) != 0))
            fail_msg("%s: %s (%s)", rows[i].name, kvf_status_name(status), error.text);
    }
    assert_int_equal(kvf_vllm_write_check(write, 2, rows[0].memory, 1, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_write_check(NULL, 0, NULL, 0, &error), KVF_OK);
    kvf_vllm_write_destroy(write);
    kvf_vllm_prepared_release(prepared);
}

/* As many memories as blocks, each block in another one: looking through all for each would take minutes. */
static void test_many_memories(void **state)
{
    enum { MANY = 1 << 18 };
    struct kvf_vllm_storage *memory = malloc(MANY * sizeof *memory);
    int64_t *src = malloc(MANY * sizeof *src), *dst = malloc(MANY * sizeof *dst);
    const struct kvf_vllm_ids producer = {src, MANY}, consumer = {dst, MANY};
    kvf_vllm_prepared *prepared;
    kvf_vllm_write *write = NULL;
    struct pair_kit kit;

    (void)state;
    assert_true(memory && src && dst);
    for (int64_t i = 0; i < MANY; i++) {
        int64_t block = (i * 5 + 3) % MANY;

        src[i] = i;
        dst[i] = 2 * block;
        memory[i] = (struct kvf_vllm_storage){D + (uint64_t)block * 128, 64};
    }
    pair_kit_init(&kit);
    pair_kit_region(&kit.local, 0, P, 64, 64);
    pair_kit_region(&kit.remote, 0, D, 64, 64);
    prepared = pair_kit_pair(&kit);
    assert_int_equal(kvf_vllm_write_create(prepared, &producer, 1, &consumer, 1, &write, NULL), KVF_OK);
    assert_int_equal(kvf_vllm_write_check(write, 1, memory, MANY, NULL), KVF_OK);
    memory[MANY / 2].bytes--;
    assert_int_equal(kvf_vllm_write_check(write, 1, memory, MANY, NULL), KVF_ERR_OUT_OF_RANGE);
    kvf_vllm_write_destroy(write);
    kvf_vllm_prepared_release(prepared);
    free(dst);
    free(src);
    free(memory);
}

/* Regions at the very end of all addresses: the last byte may be used, none after it. */
static void test_the_end_of_all_addresses(void **state)
{
    const struct kvf_vllm_ids ids = KIT_LIST(2), next = KIT_LIST(3);
    struct kvf_vllm_descriptor found;
    kvf_vllm_prepared *prepared;
    kvf_vllm_write *write = NULL;
    struct kvf_error error;
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    pair_kit_region(&kit.local, 0, P, 64, 64);
    pair_kit_region(&kit.remote, 0, UINT64_MAX - 3 * 64, 64, 64);
    prepared = pair_kit_pair(&kit);
    assert_int_equal(kvf_vllm_write_create(prepared, &ids, 1, &ids, 1, &write, &error), KVF_OK);
    assert_int_equal(kvf_vllm_write_next(write, &found, 1), 1);
    assert_true(found.dst_address == UINT64_MAX - 64);
    kvf_vllm_write_destroy(write);
    assert_int_equal(kvf_vllm_write_create(prepared, &next, 1, &next, 1, &write, &error), KVF_ERR_OUT_OF_RANGE);
    kvf_vllm_prepared_release(prepared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_in_upstreams_order), cmocka_unit_test(test_ids_may_repeat),
        cmocka_unit_test(test_kernel_blocks_and_null_blocks), cmocka_unit_test(test_shared_groups_in_their_order),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_a_cut_that_leaves_the_payload),
        cmocka_unit_test(test_limits), cmocka_unit_test(test_payloads_longer_than_a_block),
        cmocka_unit_test(test_any_capacity_gives_the_same), cmocka_unit_test(test_memory_that_may_be_touched),
        cmocka_unit_test(test_many_memories),
        cmocka_unit_test(test_the_end_of_all_addresses),
    };

    return cmocka_run_group_tests_name("write", tests, NULL, NULL);
}
