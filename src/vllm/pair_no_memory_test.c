/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of a producer, a pair and a write refused in turn: a status, no output, nothing lost. */
#include "vllm/pair_kit.h"

#include <string.h>

#include "base/no_memory_kit.h"

/** Shared groups, kernel blocks and two shapes. */
static void build(struct pair_kit *kit)
{
    static const int64_t both[] = {0, 1};
    static const struct kvf_vllm_layer layers[] = {
        {.name = "model.layers.0.self_attn", .kind = KVF_VLLM_ATTENTION},
        {.name = "model.layers.1.self_attn", .kind = KVF_VLLM_ATTENTION}};

    pair_kit_init(kit);
    kit->spec.group_count = 2;
    kit->spec.kernel_blocks_per_block = 2;
    kit->spec.layers = layers;
    kit->spec.layer_count = 2;
    kit->spec.max_prepared = 1;
    for (int64_t i = 0; i < 2; i++) {
        pair_kit_region(&kit->local, i, 0x10000, 64 << i, 64);
        pair_kit_region(&kit->remote, i, 0x20000, 64, 64);
    }
    pair_kit_group(&kit->local, KVF_VLLM_SHARED_GROUP, 2, both);
    pair_kit_group(&kit->remote, KVF_VLLM_SHARED_GROUP, 2, both);
    kit->peer.layout_id = 5;
    pair_kit_arrays(kit);
}

/** Does it all. Returns the first status that is not KVF_OK. */
static enum kvf_status do_all(const struct pair_kit *kit, struct kvf_error *error)
{
    static const struct kvf_vllm_storage apart[] = {{0x10000, 4096}, {0x11000, 4096}};
    const struct kvf_vllm_ids ids[] = {KIT_LIST(1, 2, 60), KIT_LIST(7)};
    kvf_vllm_producer *producer = NULL;
    kvf_vllm_prepared *prepared = NULL;
    kvf_vllm_write *write = NULL;
    enum kvf_status status = kvf_vllm_producer_create(&kit->spec, &producer, error);

    assert_true((status == KVF_OK) == (producer != NULL));
    if (status) goto done;
    status = kvf_vllm_prepare(producer, &kit->peer, &prepared, error);
    assert_true((status == KVF_OK) == (prepared != NULL));
    if (status) goto done;
    status = kvf_vllm_write_create(prepared, ids, 2, ids, 2, &write, error);
    assert_true((status == KVF_OK) == (write != NULL));
    if (status) goto done;
    status = kvf_vllm_write_check(write, 0, apart, 2, error);
    if (status == KVF_ERR_OUT_OF_RANGE) status = KVF_OK;
done:
    kvf_vllm_write_destroy(write);
    kvf_vllm_prepared_release(prepared);
    kvf_vllm_producer_destroy(producer);
    return status;
}

static void test_every_allocation(void **state)
{
    long allocations = 0;
    bool refused = true;
    struct pair_kit kit;

    (void)state;
    build(&kit);
    while (refused) {
        struct kvf_error error = {0};
        enum kvf_status status;

        no_memory_once(allocations++);
        status = do_all(&kit, &error);
        refused = no_memory_end();
        /* what is only remembered may be lost without harm */
        if (status != KVF_OK) {
            assert_true(refused);
            assert_int_equal(status, KVF_ERR_NO_MEMORY);
            assert_int_equal(strncmp(error.text, "out of memory for ", 18), 0);
        }
    }
    assert_true(allocations > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation)};

    return cmocka_run_group_tests_name("no memory for pairs", tests, NULL, NULL);
}
