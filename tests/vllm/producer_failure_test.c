/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong between a producer and those who pull from it: the state that stays, what the consumer sees, and when
 * the blocks are free. */
#include "producer_kit.h"

#define LAYER_0 "model.layers.0.self_attn"
#define LAYER_1 "model.layers.1.self_attn"

static const struct kvf_vllm_region OWN[] = {{.layer_name = LAYER_0, .layer_index = 0, .base_addr = 0x1000,
                                              .block_len = 4096, .kv_block_len = 4096,
                                              .row_offset = KVF_VLLM_NO_ROW}};
static const struct kvf_vllm_region THEIRS[] = {{.layer_name = LAYER_0, .layer_index = 0, .base_addr = 0x200000,
                                                 .block_len = 4096, .kv_block_len = 4096,
                                                 .row_offset = KVF_VLLM_NO_ROW}};
static const struct asker D = {.regions = THEIRS, .region_count = 1};

static void open_usual(struct producer *producer, int64_t abort_ms)
{
    producer_open(producer, &(struct producer_setup){.regions = OWN, .region_count = 1, .abort_ms = abort_ms});
}

/* A pull that cannot be is answered by ERROR as a whole; the request stays as it was, until another pull or expiry. */
static void refused_pulls_change_nothing(void **state)
{
    static const struct kvf_vllm_region longer[] = {
        {.layer_name = LAYER_0, .base_addr = 0x200000, .block_len = 8192, .kv_block_len = 8192, .row_offset = -1}};
    static const struct kvf_vllm_region other[] = {
        {.layer_name = LAYER_1, .layer_index = 1, .base_addr = 0x200000, .block_len = 4096, .kv_block_len = 4096,
         .row_offset = -1}};
    static const struct kvf_vllm_region opaque[] = {
        {.layer_name = LAYER_0, .base_addr = 0x200000, .block_len = 4096, .kv_block_len = 4096, .row_offset = 0}};
    const struct {
        struct asker asker;
        const char *text;
    } rows[] = {
        {{.regions = THEIRS, .region_count = 1, .tp_size = 2, .tp_rank = 0},
         "This D tp_rank 0 is not paired with P tp_rank 1; expected one of [1]."},
        {{.regions = THEIRS, .region_count = 1, .tp_size = 4, .tp_rank = 1},
         "This D tp_rank 1 is not paired with P tp_rank 1; expected one of [2, 3]."},
        {{.regions = other, .region_count = 1, .tp_size = 2, .tp_rank = 1},
         "Mooncake producer registered layer has no matching consumer occurrence: model.layers.0.self_attn "
         "occurrence 0."},
        {{.regions = longer, .region_count = 1, .tp_size = 2, .tp_rank = 1},
         "Mooncake KV region length mismatch for homogeneous TP at region 0: local=4096, remote=8192."},
        {{.regions = opaque, .region_count = 1, .tp_size = 2, .tp_rank = 1, .pp_size = 2},
         "Mooncake non-page-contiguous packed regions keep only the first layer name, so they cannot be aligned across "
         "PP sizes 1 and 2."},
    };
    const struct asker good = {.regions = THEIRS, .region_count = 1, .tp_size = 2, .tp_rank = 1};
    struct producer producer;
    void *pull;

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1, .tp_size = 2, .tp_rank = 1});
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1, 2));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        pull = pull_one(&producer, &rows[i].asker, "d-req", "xfer", ONE_GROUP(3, 4));
        pull_expect(pull, KVFI_VLLM_ERROR, NULL, NULL, rows[i].text);
        pull_close(pull);
        assert_int_equal(producer_event(&producer, KVF_VLLM_EVENT_REFUSED).requests, 1);
    }
    assert_int_equal(producer_stats(&producer).pulls_refused, 5);
    assert_int_equal(fake_call_count(&producer), 0);
    assert_string_equal(producer_finished(&producer, 0), "");
    pull = pull_one(&producer, &good, "d-req", "xfer", ONE_GROUP(3, 4));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    pull_close(pull);
    assert_string_equal(producer_finished(&producer, 1), "p-req");
    producer_close(&producer);
}

static void too_many_blocks_and_other_groups(void **state)
{
    const struct kvf_vllm_ids two[] = {IDS(1), IDS(2)};
    struct producer producer;
    void *pull;

    (void)state;
    open_usual(&producer, 0);
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1, 2));
    pull = pull_one(&producer, &D, "d-req", "xfer", ONE_GROUP(3, 4, 5));
    pull_expect(pull, KVFI_VLLM_FINISH, NULL, "d-req", "P num blocks less than D");
    pull_close(pull);
    pull = pull_one(&producer, &D, "d-req", "xfer", two, 2);
    pull_expect(pull, KVFI_VLLM_FINISH, NULL, "d-req", "KV group count mismatch");
    pull_close(pull);
    assert_int_equal(producer_stats(&producer).transfers_tracked, 1);
    pull = pull_one(&producer, &D, "d-req", "xfer", ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    pull_close(pull);
    assert_string_equal(producer_finished(&producer, 1), "p-req");
    producer_close(&producer);
}

/* All that was ready together fails together; what failed before is told first; nothing is counted as sent. */
static void failed_write_fails_its_batch(void **state)
{
    const struct kvf_vllm_ids one = IDS(3), many = IDS(3, 4, 5);
    const struct kvfi_vllm_wanted wanted[] = {{"d-a", "xfer-a", &one, 1}, {"d-b", "xfer-b", &one, 1}};
    const struct kvfi_vllm_wanted mixed[] = {{"d-a", "xfer-a", &many, 1}, {"d-b", "xfer-b", &one, 1}};
    struct producer producer;
    struct kvf_vllm_event event;
    void *pull;

    (void)state;
    open_usual(&producer, 0);
    producer_ready(&producer, "p-a", "xfer-a", ONE_GROUP(1));
    producer_ready(&producer, "p-b", "xfer-b", ONE_GROUP(2));
    fake_return(&producer, -1);
    pull = pull_send(&producer, &D, wanted, 2);
    pull_expect(pull, KVFI_VLLM_FINISH, NULL, "d-a,d-b", "Mooncake transfer engine returned -1");
    pull_close(pull);
    event = producer_event(&producer, KVF_VLLM_EVENT_SEND_FAILED);
    assert_int_equal(event.status, KVF_ERR_PEER_LOST);
    assert_string_equal(event.text, "the fake engine was told to fail");
    pull = pull_send(&producer, &D, mixed, 2);
    pull_expect(pull, KVFI_VLLM_FINISH, NULL, "d-a,d-b",
                "P num blocks less than D; Mooncake transfer engine returned -1");
    pull_close(pull);
    assert_int_equal(producer_stats(&producer).failed_transfers, 2);
    assert_int_equal(producer_stats(&producer).transfers, 0);
    assert_int_equal(producer_stats(&producer).transfers_tracked, 2);
    fake_return(&producer, 0);
    pull = pull_send(&producer, &D, wanted, 2);
    pull_expect(pull, KVFI_VLLM_FINISH, "d-a,d-b", NULL, NULL);
    pull_close(pull);
    assert_string_equal(producer_finished(&producer, 2), "p-a,p-b");
    assert_int_equal(producer_stats(&producer).transfers, 1);
    assert_int_equal(producer_stats(&producer).bytes_transferred, 8192);
    assert_int_equal(producer_stats(&producer).descriptors, 2);
    producer_close(&producer);
}

static void consumer_that_dies_leaves_blocks_until_expiry(void **state)
{
    const struct kvf_vllm_region halves[] = {region_of(LAYER_0, 0, 0x200000, 2048, 0)};
    const struct asker first = {.regions = halves, .region_count = 1, .tp_size = 2};
    struct producer producer;
    struct kvf_vllm_event event;
    void *pull;

    (void)state;
    open_usual(&producer, 1000);
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    pull = pull_one(&producer, &first, "d-req", "xfer", ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    pull_close(pull); /* its other rank never comes */
    event = producer_event(&producer, KVF_VLLM_EVENT_EXPIRED);
    assert_string_equal(event.req_id, "p-req");
    assert_int_equal(event.requests, 1);
    assert_string_equal(producer_finished(&producer, 1), "p-req");
    assert_int_equal(producer_stats(&producer).expired_reqs, 1);
    producer_close(&producer);
}

/* A consumer that gave its request up asks for nothing: that is counted, and nothing is written. */
static void release_only_pulls(void **state)
{
    const struct kvf_vllm_ids empty = {NULL, 0};
    struct producer producer;
    void *pull;

    (void)state;
    open_usual(&producer, 0);
    producer_ready(&producer, "p-1", "xfer-1", ONE_GROUP(1, 2));
    pull = pull_one(&producer, &D, "d-1", "xfer-1", NULL, 0);
    pull_expect(pull, KVFI_VLLM_FINISH, "d-1", NULL, NULL);
    pull_close(pull);
    pull = pull_one(&producer, &D, "d-2", "xfer-2", &empty, 1); /* before it is ready */
    producer_took(&producer, 2);
    pull_silent(pull);
    producer_ready(&producer, "p-2", "xfer-2", ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-2", NULL, NULL);
    pull_close(pull);
    assert_string_equal(producer_finished(&producer, 2), "p-1,p-2");
    assert_int_equal(fake_call_count(&producer), 0);
    producer_close(&producer);
}

/* A pull of nothing waits for nothing. */
static void pull_without_requests(void **state)
{
    struct producer producer;
    void *pull;

    (void)state;
    open_usual(&producer, 0);
    pull = pull_send(&producer, &D, NULL, 0);
    pull_expect(pull, KVFI_VLLM_FINISH, NULL, NULL, NULL);
    pull_close(pull);
    assert_int_equal(producer_stats(&producer).pulls_waiting, 0);
    producer_close(&producer);
}

/* One reply for each time that something became ready, the last one says so. */
static void replies_follow_readiness(void **state)
{
    const struct kvf_vllm_ids ids[] = {IDS(3), IDS(4), IDS(5)};
    const struct kvfi_vllm_wanted wanted[] = {{"d-a", "xfer-a", &ids[0], 1}, {"d-b", "xfer-b", &ids[1], 1},
                                              {"d-c", "xfer-c", &ids[2], 1}};
    struct kvf_vllm_send sends[] = {{"p-a", "xfer-a", ids, 1}, {"p-c", "xfer-c", ids, 1}};
    const struct kvf_vllm_step step = {.struct_size = sizeof step, .sends = sends, .send_count = 2};
    struct asker asker = D;
    struct producer producer;
    void *pull;

    (void)state;
    asker.layout_id = 77;
    open_usual(&producer, 1500);
    producer_ready(&producer, "p-b", "xfer-b", ONE_GROUP(1));
    pull = pull_send(&producer, &asker, wanted, 3);
    pull_expect_id(pull, KVFI_VLLM_CONTINUE, "d-b", NULL, NULL, 77);
    pull_silent(pull);
    assert_int_equal(kvf_vllm_worker_step(producer.worker, &step, NULL), KVF_OK); /* both together: one write */
    pull_expect_id(pull, KVFI_VLLM_FINISH, "d-a,d-c", NULL, NULL, 77);
    assert_int_equal(fake_call(&producer, 1)->count, 2);
    pull_close(pull);
    pull = pull_send(&producer, &asker, wanted, 1); /* written already */
    pull_expect_id(pull, KVFI_VLLM_FINISH, "d-a", NULL, NULL, 77);
    pull_close(pull);
    pull = pull_one(&producer, &asker, "d-d", "xfer-d", ONE_GROUP(6));
    pull_expect_id(pull, KVFI_VLLM_FINISH, NULL, "d-d", "Timeout waiting for P side ready.", 77);
    pull_close(pull);
    producer_close(&producer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_pulls_change_nothing),
        cmocka_unit_test(too_many_blocks_and_other_groups),
        cmocka_unit_test(failed_write_fails_its_batch),
        cmocka_unit_test(consumer_that_dies_leaves_blocks_until_expiry),
        cmocka_unit_test(release_only_pulls),
        cmocka_unit_test(pull_without_requests),
        cmocka_unit_test(replies_follow_readiness),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
