/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of planning pairs and binding requests refused in turn: a status, no output, nothing lost. */
#include "trtllm/pair_kit.h"

#include <string.h>

#include "base/no_memory_kit.h"

static const int64_t ids[] = {5, 6, 2, 1, 7, 9};
static kvf_trtllm_rank *beside; /* the source's other rank */

/** Heads cut, state sections cut, a ring of unlike length, one view left out by the request. */
static void build(struct pair_kit *kit)
{
    pair_kit_init(kit);
    for (int side = 0; side < 2; side++) {
        struct rank_kit *to = side ? &kit->peer : &kit->self;
        size_t view;

        to->spec.tp_size = side ? 1 : 2;
        to->attention.kv_heads_per_rank = side ? 4 : 2;
        rank_kit_pt(to, side ? 2048 : 1024, side ? 1 : 2, side ? 4 : 2, 2, 0, 1);
        view = rank_kit_view(to, 0, KVF_TRTLLM_REPLICATED, (int64_t)rank_kit_pool(to, 0, 0x90000, 64, 128));
        rank_kit_role(to, 0, view, "mla_hp_tail");
        rank_kit_entry(to, 0, view, 0, 0, side ? 48 : 64);
        to->views[0][view].ring_slot_bytes = 8;
        rank_kit_side(to, 4);
        to->pools[1][2].slot_bytes = to->pools[1][2].slot_stride_bytes = 8;
    }
    pair_kit_ids(kit, 0, 0, (struct kvf_trtllm_blocks){ids, 3}, (struct kvf_trtllm_blocks){ids + 3, 3});
    pair_kit_ids(kit, 1, 1, (struct kvf_trtllm_blocks){ids, 1}, (struct kvf_trtllm_blocks){ids + 1, 1});
}

/** Plans, binds, lists and walks. Returns the first status that is not KVF_OK. */
static enum kvf_status do_all(struct pair_kit *kit, int manner, struct kvf_error *error)
{
    const struct kvf_trtllm_view_key side = {1, 2};
    kvf_trtllm_pair *pair = NULL;
    kvf_trtllm_write *write = NULL;
    kvf_trtllm_cursor *cursor = NULL;
    enum kvf_status status;
    size_t count = 0;

    if (manner == 2)
        status = kvf_trtllm_pair_native((const kvf_trtllm_rank *const[]){kit->ranks[0], beside}, 2,
                                        (const kvf_trtllm_rank *const[]){kit->ranks[1]}, 1, 0, 0, &pair, error);
    else
        status = kvfi_trt_pair_create(kit->ranks[0], kit->ranks[1], manner == 0, &pair, error);
    assert_true((status == KVF_OK) == (pair != NULL));
    if (status) goto done;
    kit->request.prompt_tokens = 46;
    kit->request.excluded = &side;
    for (kit->request.excluded_count = 0; kit->request.excluded_count < 2; kit->request.excluded_count++) {
        kvf_trtllm_write_destroy(write);
        write = NULL;
        status = kvf_trtllm_pair_bind(pair, &kit->request, &write, error);
        assert_true((status == KVF_OK) == (write != NULL));
        if (status) goto done;
    }
    assert_true(kvf_trtllm_write_bytes(write) > 0);
    status = manner == 0 ? kvf_trtllm_write_fragments(write, NULL, 0, &count, error) : KVF_OK;
    assert_true(status != KVF_OK || manner != 0 || count > 10);
    if (status) goto done;
    status = kvf_trtllm_cursor_create(write, &cursor, error);
    assert_true((status == KVF_OK) == (cursor != NULL));
done:
    kvf_trtllm_cursor_destroy(cursor);
    kvf_trtllm_write_destroy(write);
    kvf_trtllm_pair_release(pair);
    return status;
}

static void check_manner(int manner)
{
    long allocations = 0;
    bool refused = true;
    struct pair_kit kit;

    build(&kit);
    pair_kit_make_ranks(&kit);
    kit.self.spec.tp_rank = 1;
    beside = rank_kit_make(&kit.self);
    while (refused) {
        struct kvf_error error = {0};
        enum kvf_status status;

        no_memory_once(allocations++);
        status = do_all(&kit, manner, &error);
        refused = no_memory_end();
        /* giving memory back may fail without harm */
        if (status != KVF_OK) {
            if (status != KVF_ERR_NO_MEMORY) fail_msg("%ld allocations: %s", allocations - 1, error.text);
            assert_true(error.status == KVF_OK || strstr(error.text, "out of memory"));
        }
    }
    assert_true(allocations > 60);
    kvf_trtllm_rank_release(beside);
    pair_kit_fini(&kit);
}

static void test_strict(void **state)
{
    (void)state;
    check_manner(0);
}

static void test_native_pair(void **state)
{
    (void)state;
    check_manner(1);
}

static void test_native_instances(void **state)
{
    (void)state;
    check_manner(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_strict), cmocka_unit_test(test_native_pair),
                                       cmocka_unit_test(test_native_instances)};

    return cmocka_run_group_tests_name("pairs without memory", tests, NULL, NULL);
}
