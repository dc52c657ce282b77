/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that were found by attacking a producer, one test each. */
#include "producer_kit.h"

#include <stdio.h>
#include <string.h>

#define LAYER_0 "model.layers.0.self_attn"

static const struct kvf_vllm_region OWN[] = {{.layer_name = LAYER_0, .base_addr = 0x1000, .block_len = 4096,
                                              .kv_block_len = 4096, .row_offset = KVF_VLLM_NO_ROW}};
static const struct kvf_vllm_region THEIRS[] = {{.layer_name = LAYER_0, .base_addr = 0x200000, .block_len = 4096,
                                                 .kv_block_len = 4096, .row_offset = KVF_VLLM_NO_ROW}};
static const struct asker D = {.regions = THEIRS, .region_count = 1};

/* ---- max_transfers --------------------------------------------------------------------------------------------- */

static enum kvf_status try_ready(struct producer *producer, const char *p_req_id, const char *transfer_id, bool ready)
{
    const struct kvf_vllm_ids group = IDS(1);
    const struct kvf_vllm_send send = {p_req_id, transfer_id, &group, ready ? 1 : 0};
    const struct kvf_vllm_step step = {.struct_size = sizeof step, .sends = &send, .send_count = 1};

    return kvf_vllm_worker_step(producer->worker, &step, NULL);
}

/* Ids that peers made up take all the room there is: steps go on. */
static void ids_of_peers_do_not_refuse_steps(void **state)
{
    const struct kvf_vllm_ids group = IDS(3);
    const struct kvfi_vllm_wanted wanted[] = {{"d-0", "u-0", &group, 1}, {"d-1", "u-1", &group, 1}};
    struct producer producer;
    void *strange, *pull;

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1, .max_transfers = 2});
    strange = pull_send(&producer, &D, wanted, 2);
    producer_took(&producer, 1);
    assert_int_equal(try_ready(&producer, "p-0", "xfer-0", true), KVF_OK);
    assert_int_equal(try_ready(&producer, "p-1", "xfer-1", true), KVF_OK);
    assert_int_equal(try_ready(&producer, "p-2", "xfer-2", true), KVF_ERR_LIMIT);
    pull = pull_one(&producer, &D, "d-req", "xfer-0", ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    pull_close(pull);
    pull_close(strange);
    producer_close(&producer);
}

/* A request that is known already becomes ready, however many there are. */
static void known_requests_become_ready_at_the_limit(void **state)
{
    struct producer producer;

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1, .max_transfers = 2});
    assert_int_equal(try_ready(&producer, "p-0", "xfer-0", false), KVF_OK);
    assert_int_equal(try_ready(&producer, "p-1", "xfer-1", false), KVF_OK);
    assert_int_equal(try_ready(&producer, "p-2", "xfer-2", false), KVF_ERR_LIMIT);
    assert_int_equal(try_ready(&producer, "p-0", "xfer-0", true), KVF_OK);
    assert_int_equal(try_ready(&producer, "p-1", "xfer-1", true), KVF_OK);
    producer_close(&producer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_of_peers_do_not_refuse_steps),
        cmocka_unit_test(known_requests_become_ready_at_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
