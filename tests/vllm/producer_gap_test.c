/* SPDX-License-Identifier: Apache-2.0 */
/* Gaps that upstream's producer is known to have, by the numbers that docs/vllm.md gives them: here they are closed. */
#include "producer_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYER_0 "model.layers.0.self_attn"

static const struct kvf_vllm_region OWN[] = {{.layer_name = LAYER_0, .base_addr = 0x1000, .block_len = 4096,
                                              .kv_block_len = 4096, .row_offset = KVF_VLLM_NO_ROW}};
static const struct kvf_vllm_region THEIRS[] = {{.layer_name = LAYER_0, .base_addr = 0x200000, .block_len = 4096,
                                                 .kv_block_len = 4096, .row_offset = KVF_VLLM_NO_ROW}};
static const struct kvf_vllm_region HALVES[] = {{.layer_name = LAYER_0, .base_addr = 0x200000, .block_len = 2048,
                                                 .kv_block_len = 2048, .row_offset = KVF_VLLM_NO_ROW}};
static const struct asker D = {.regions = THEIRS, .region_count = 1};

static void open_usual(struct producer *producer, int64_t abort_ms)
{
    producer_open(producer, &(struct producer_setup){.regions = OWN, .region_count = 1, .abort_ms = abort_ms});
}

/* ---- 16.1: blocks are not free while they are read ------------------------------------------------------------- */

/* The time is over while a write is out: the request ends after it, and not as expired. */
static void gap_16_1_expiry_waits_for_writes(void **state)
{
    struct producer producer;
    void *pull;

    (void)state;
    open_usual(&producer, 500);
    fake_hold(&producer, "");
    pull = pull_one(&producer, &D, "d-req", "xfer", ONE_GROUP(3));
    producer_took(&producer, 1);
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    fake_running(&producer, 1);
    producer_ready(&producer, "p-idle", "xfer-idle", ONE_GROUP(2));
    assert_string_equal(producer_finished(&producer, 1), "p-idle"); /* due later than the other one */
    fake_hold(&producer, NULL);
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    assert_string_equal(producer_finished(&producer, 1), "p-req");
    assert_int_equal(producer_stats(&producer).expired_reqs, 1);
    pull_close(pull);
    producer_close(&producer);
}

/* One that fails while its time is over expires right after. */
static void gap_16_1_expiry_after_a_failed_write(void **state)
{
    struct producer producer;
    void *pull;

    (void)state;
    open_usual(&producer, 500);
    fake_hold(&producer, "");
    fake_return(&producer, -1);
    pull = pull_one(&producer, &D, "d-req", "xfer", ONE_GROUP(3));
    producer_took(&producer, 1);
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    fake_running(&producer, 1);
    producer_ready(&producer, "p-idle", "xfer-idle", ONE_GROUP(2));
    assert_string_equal(producer_finished(&producer, 1), "p-idle");
    fake_hold(&producer, NULL);
    pull_expect(pull, KVFI_VLLM_FINISH, NULL, "d-req", "Mooncake transfer engine returned -1");
    assert_string_equal(producer_finished(&producer, 1), "p-req");
    assert_int_equal(producer_stats(&producer).expired_reqs, 2);
    pull_close(pull);
    producer_close(&producer);
}

/* An aborted request that is being written is over when the write is, and its consumer hears of a failure. */
static void gap_16_1_abort_waits_for_writes(void **state)
{
    struct producer producer;
    void *pull;

    (void)state;
    open_usual(&producer, 0);
    fake_hold(&producer, "");
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    pull = pull_one(&producer, &D, "d-req", "xfer", ONE_GROUP(3));
    fake_running(&producer, 1);
    producer_drop(&producer, "xfer");
    assert_string_equal(producer_finished(&producer, 0), "");
    fake_hold(&producer, NULL);
    pull_expect(pull, KVFI_VLLM_FINISH, NULL, "d-req", "Transfer xfer was aborted on the P side.");
    assert_string_equal(producer_finished(&producer, 1), "p-req");
    pull_close(pull);
    producer_close(&producer);
}

static void gap_16_1_shutdown_waits_for_writes(void **state)
{
    const struct kvf_vllm_ids ids = IDS(3);
    const struct kvfi_vllm_wanted wanted[] = {{"d-a", "xfer-a", &ids, 1}, {"d-b", "xfer-b", &ids, 1}};
    struct producer producer;
    struct kvf_error error = {.text = ""};
    void *pull, *waiting, *late;

    (void)state;
    open_usual(&producer, 0);
    fake_hold(&producer, "");
    producer_ready(&producer, "p-a", "xfer-a", ONE_GROUP(1));
    pull = pull_send(&producer, &D, wanted, 2);
    waiting = pull_one(&producer, &D, "d-c", "xfer-c", ONE_GROUP(4));
    producer_took(&producer, 2);
    fake_running(&producer, 1);
    assert_int_equal(kvf_vllm_worker_shutdown(producer.worker, 50 * KVFI_MS, &error), KVF_ERR_TIMEOUT);
    pull_expect(waiting, KVFI_VLLM_FINISH, NULL, "d-c", "The P side shuts down.");
    late = pull_one(&producer, &D, "d-d", "xfer-a", ONE_GROUP(4));
    pull_expect(late, KVFI_VLLM_ERROR, NULL, NULL, "The P side shuts down.");
    fake_hold(&producer, NULL);
    assert_int_equal(kvf_vllm_worker_shutdown(producer.worker, 20 * KVFI_SECOND, &error), KVF_OK);
    pull_expect(pull, KVFI_VLLM_CONTINUE, "d-a", NULL, NULL);
    pull_expect(pull, KVFI_VLLM_FINISH, NULL, "d-b", "Transfer xfer-b is not sent any more: the P side shuts down.");
    assert_string_equal(producer_finished(&producer, 1), "p-a");
    pull_close(pull);
    pull_close(waiting);
    pull_close(late);
    producer_close(&producer);
}

/* ---- 16.2: nobody hangs ---------------------------------------------------------------------------------------- */

static void gap_16_2_aborted_request_is_answered_at_once(void **state)
{
    struct producer producer;
    void *early, *late, *later;

    (void)state;
    open_usual(&producer, 0);
    early = pull_one(&producer, &D, "d-1", "xfer", ONE_GROUP(3));
    producer_took(&producer, 1);
    producer_drop(&producer, "xfer"); /* before any step told of it: no error either */
    pull_expect(early, KVFI_VLLM_FINISH, NULL, "d-1", "Transfer xfer was aborted on the P side.");
    late = pull_one(&producer, &D, "d-2", "xfer", ONE_GROUP(3));
    pull_expect(late, KVFI_VLLM_FINISH, NULL, "d-2", "Transfer xfer was aborted on the P side.");
    producer_drop(&producer, "never-heard-of");
    later = pull_one(&producer, &D, "d-3", "never-heard-of", ONE_GROUP(3));
    pull_expect(later, KVFI_VLLM_FINISH, NULL, "d-3", "Transfer never-heard-of was aborted on the P side.");
    assert_int_equal(producer_stats(&producer).transfers_tracked, 0);
    pull_close(early);
    pull_close(late);
    pull_close(later);
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1)); /* the id is used anew */
    early = pull_one(&producer, &D, "d-4", "xfer", ONE_GROUP(3));
    pull_expect(early, KVFI_VLLM_FINISH, "d-4", NULL, NULL);
    pull_close(early);
    producer_close(&producer);
}

/* What a pull alone knows of goes with the last pull that waits for it. */
static void gap_16_2_placeholders_of_early_pulls_expire(void **state)
{
    struct producer producer;
    void *pulls[2];

    (void)state;
    open_usual(&producer, 1000);
    for (int i = 0; i < 2; i++) pulls[i] = pull_one(&producer, &D, i == 0 ? "d-0" : "d-1", "xfer", ONE_GROUP(3));
    producer_took(&producer, 2);
    assert_int_equal(producer_stats(&producer).placeholders, 1);
    for (int i = 0; i < 2; i++)
        pull_expect(pulls[i], KVFI_VLLM_FINISH, NULL, i == 0 ? "d-0" : "d-1", "Timeout waiting for P side ready.");
    assert_int_equal(producer_stats(&producer).placeholders, 0);
    assert_int_equal(producer_stats(&producer).transfers_tracked, 0);
    producer_ready(&producer, "p-req", "known", NULL, 0); /* known to the scheduler: stays */
    pull_close(pulls[0]);
    pulls[0] = pull_one(&producer, &D, "d-2", "known", ONE_GROUP(3));
    pull_expect(pulls[0], KVFI_VLLM_FINISH, NULL, "d-2", "Timeout waiting for P side ready.");
    assert_int_equal(producer_stats(&producer).placeholders, 1);
    pull_close(pulls[0]);
    pull_close(pulls[1]);
    producer_close(&producer);
}

static void gap_16_2_expired_request_is_answered(void **state)
{
    struct producer producer;
    void *pull;

    (void)state;
    open_usual(&producer, 150);
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    assert_string_equal(producer_finished(&producer, 1), "p-req");
    pull = pull_one(&producer, &D, "d-req", "xfer", ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, NULL, "d-req", "Transfer xfer expired on the P side.");
    pull_close(pull);
    assert_int_equal(fake_call_count(&producer), 0);
    producer_close(&producer);
}

/* One who comes after all that were expected is answered, too. */
static void gap_16_2_late_comer_is_answered(void **state)
{
    struct asker other = D;
    struct producer producer;
    void *pull;

    (void)state;
    open_usual(&producer, 0);
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    pull = pull_one(&producer, &D, "d-req", "xfer", ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    pull_close(pull);
    assert_string_equal(producer_finished(&producer, 1), "p-req");
    other.port = 60000;
    pull = pull_one(&producer, &other, "d-req", "xfer", ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, NULL, "d-req",
                "Transfer xfer was sent already, to all that were expected.");
    pull_close(pull);
    producer_close(&producer);
}

/* Another request under a transfer id that is in use: the first one's blocks are given back. */
static void gap_16_2_request_that_is_replaced(void **state)
{
    struct producer producer;
    void *pull;

    (void)state;
    open_usual(&producer, 0);
    fake_hold(&producer, "");
    producer_ready(&producer, "p-old", "xfer", ONE_GROUP(1));
    pull = pull_one(&producer, &D, "d-old", "xfer", ONE_GROUP(3));
    fake_running(&producer, 1);
    producer_ready(&producer, "p-new", "xfer", ONE_GROUP(2));
    assert_string_equal(producer_finished(&producer, 0), "");
    fake_hold(&producer, NULL);
    pull_expect(pull, KVFI_VLLM_FINISH, NULL, "d-old", "Transfer xfer belongs to another request by now.");
    pull_close(pull);
    assert_string_equal(producer_finished(&producer, 1), "p-old");
    pull = pull_one(&producer, &D, "d-new", "xfer", ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-new", NULL, NULL);
    pull_close(pull);
    assert_string_equal(producer_finished(&producer, 1), "p-new");
    producer_close(&producer);
}

/* ---- 16.4: descriptors ------------------------------------------------------------------------------------------ */

/* Layers that share a row on both sides, in adjacent blocks: one descriptor, not one for each layer and block. */
static void gap_16_4_rows_go_as_one(void **state)
{
    static const struct kvf_vllm_region rows[] = {
        {.layer_name = LAYER_0, .base_addr = 0x1000, .block_len = 4096, .kv_block_len = 2048, .row_offset = 0},
        {.layer_name = "model.layers.1.self_attn", .layer_index = 1, .base_addr = 0x1800, .block_len = 4096,
         .kv_block_len = 2048, .row_offset = 2048}};
    struct kvf_vllm_region theirs[] = {rows[0], rows[1]};
    const struct asker asker = {.regions = theirs, .region_count = 2};
    const struct fake_call *call;
    struct producer producer;
    void *pull;

    (void)state;
    theirs[0].base_addr = 0x200000;
    theirs[1].base_addr = 0x200800;
    producer_open(&producer, &(struct producer_setup){.regions = rows, .region_count = 2});
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1, 2, 3, 4, 5, 6, 7, 8));
    pull = pull_one(&producer, &asker, "d-req", "xfer", ONE_GROUP(10, 11, 12, 13, 14, 15, 16, 17));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    call = fake_call(&producer, 0);
    assert_int_equal(call->count, 1);
    assert_int_equal(call->list[0].src_address, 0x1000 + 4096);
    assert_int_equal(call->list[0].dst_address, 0x200000 + 10 * 4096);
    assert_int_equal(call->list[0].bytes, 8 * 4096);
    pull_close(pull);
    producer_close(&producer);
}

/* ---- 16.5: nobody waits for others ----------------------------------------------------------------------------- */

enum { PEERS = 8, WAITING = 10000 };

/* Ten thousand pulls of eight peers wait; one that is ready is answered. */
static void gap_16_5_waiting_pulls_hold_up_nobody(void **state)
{
    struct producer producer;
    char ids[2][32];
    void *sockets[PEERS], *pull;

    (void)state;
    open_usual(&producer, 0);
    producer_ready(&producer, "p-req", "ready", ONE_GROUP(1));
    for (int i = 0; i < PEERS; i++) {
        struct asker asker = D;
        struct kvfi_vllm_asker encoded;
        kvf_vllm_regions *regions;
        struct kvf_vllm_peer peer;

        asker.port = 1000 + i;
        kvf_vllm_peer_init(&peer, sizeof peer);
        peer.hostname = "consumer-host";
        peer.port = asker.port;
        assert_int_equal(kvf_vllm_regions_create(THEIRS, 1, &regions, NULL), KVF_OK);
        kvf_vllm_regions_arrays(regions, &peer.regions);
        assert_int_equal(kvfi_vllm_asker_init(&encoded, &peer, NULL), KVF_OK);
        for (int k = 0; k < WAITING / PEERS; k++) {
            const struct kvf_vllm_ids group = IDS(3, 4);
            const struct kvfi_vllm_wanted wanted = {ids[0], ids[1], &group, 1};
            struct kvfi_frame frame;
            unsigned char *bytes;

            snprintf(ids[0], sizeof ids[0], "d-%d-%d", i, k);
            snprintf(ids[1], sizeof ids[1], "xfer-%d-%d", i, k);
            assert_int_equal(kvfi_vllm_pull_encode(&encoded, &wanted, 1, true, &bytes, &frame.byte_count, NULL),
                             KVF_OK);
            frame.bytes = bytes;
            if (k == 0) sockets[i] = pull_raw(&producer, &frame, 1);
            else pull_again(sockets[i], &frame);
            free(bytes);
        }
        kvfi_vllm_asker_fini(&encoded);
        kvf_vllm_regions_release(regions);
    }
    producer_took(&producer, WAITING);
    assert_int_equal(producer_stats(&producer).pulls_waiting, WAITING);
    assert_int_equal(producer_stats(&producer).placeholders, WAITING);
    pull = pull_one(&producer, &D, "d-req", "ready", ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    pull_close(pull);
    for (int i = 0; i < PEERS; i++) pull_silent(sockets[i]);
    producer_ready(&producer, "p-last", "xfer-7-1249", ONE_GROUP(1, 2));
    pull_expect(sockets[7], KVFI_VLLM_FINISH, "d-7-1249", NULL, NULL);
    for (int i = 0; i < PEERS; i++) pull_close(sockets[i]);
    producer_close(&producer);
}

/* Peers that take no bytes keep their own writes waiting, and no others'. */
static void gap_16_5_slow_peer_holds_up_itself_alone(void **state)
{
    enum { SLOW = 20 };
    struct asker fast = D;
    struct producer producer;
    char ids[2][32];
    void *slow[SLOW], *pull;

    (void)state;
    open_usual(&producer, 0);
    fake_hold(&producer, "consumer-host:54321");
    for (int i = 0; i < SLOW; i++) {
        snprintf(ids[0], sizeof ids[0], "p-%d", i);
        snprintf(ids[1], sizeof ids[1], "xfer-%d", i);
        producer_ready(&producer, ids[0], ids[1], ONE_GROUP(1));
        slow[i] = pull_one(&producer, &D, "d-slow", ids[1], ONE_GROUP(3));
    }
    producer_took(&producer, SLOW);
    fake_running(&producer, KVFI_VLLM_PEER_WRITES); /* the others of this peer wait for these */
    fast.port = 60000;
    producer_ready(&producer, "p-fast", "xfer-fast", ONE_GROUP(1));
    pull = pull_one(&producer, &fast, "d-fast", "xfer-fast", ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-fast", NULL, NULL);
    pull_close(pull);
    fake_hold(&producer, NULL);
    for (int i = 0; i < SLOW; i++) {
        pull_expect(slow[i], KVFI_VLLM_FINISH, "d-slow", NULL, NULL);
        pull_close(slow[i]);
    }
    producer_close(&producer);
}

/* ---- 16.6: who pulled ------------------------------------------------------------------------------------------ */

/* A consumer rank that pulls twice is counted once, and written once. */
static void gap_16_6_repeated_pull_counts_once(void **state)
{
    struct asker rank[2] = {{.regions = HALVES, .region_count = 1, .tp_size = 2, .tp_rank = 0, .port = 1},
                            {.regions = HALVES, .region_count = 1, .tp_size = 2, .tp_rank = 1, .port = 2}};
    struct producer producer;
    void *pull;

    (void)state;
    open_usual(&producer, 0);
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    for (int i = 0; i < 3; i++) {
        pull = pull_one(&producer, &rank[0], "d-req", "xfer", ONE_GROUP(3));
        pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
        pull_close(pull);
        assert_string_equal(producer_finished(&producer, 0), "");
    }
    assert_int_equal(fake_call_count(&producer), 1);
    assert_int_equal(producer_stats(&producer).pulls_repeated, 2);
    pull = pull_one(&producer, &rank[0], "d-req", "xfer", ONE_GROUP(4)); /* other blocks: they are written, too */
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    pull_close(pull);
    assert_int_equal(fake_call_count(&producer), 2);
    assert_string_equal(producer_finished(&producer, 0), "");
    pull = pull_one(&producer, &rank[1], "d-req", "xfer", ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    pull_close(pull);
    assert_string_equal(producer_finished(&producer, 1), "p-req");
    pull = pull_one(&producer, &rank[1], "d-req", "xfer", ONE_GROUP(3)); /* after the end: the bytes are there */
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    pull_close(pull);
    assert_int_equal(fake_call_count(&producer), 3);
    producer_close(&producer);
}

/* The same while the first one is being written, or waits. */
static void gap_16_6_repeated_pull_while_written(void **state)
{
    struct producer producer;
    void *pulls[4];

    (void)state;
    open_usual(&producer, 0);
    fake_hold(&producer, "");
    for (int i = 0; i < 4; i++) {
        pulls[i] = pull_one(&producer, &D, "d-req", "xfer", ONE_GROUP(3));
        if (i == 1) producer_took(&producer, 2);
        if (i == 1) producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    }
    producer_took(&producer, 4);
    fake_running(&producer, 1);
    fake_hold(&producer, NULL);
    for (int i = 0; i < 4; i++) {
        pull_expect(pulls[i], KVFI_VLLM_FINISH, "d-req", NULL, NULL);
        pull_close(pulls[i]);
    }
    assert_int_equal(fake_call_count(&producer), 1);
    assert_int_equal(producer_stats(&producer).pulls_repeated, 3);
    assert_string_equal(producer_finished(&producer, 1), "p-req");
    producer_close(&producer);
}

/* When the first one fails the next one is written. */
static void gap_16_6_repeated_pull_after_failure(void **state)
{
    struct producer producer;
    void *pulls[2];

    (void)state;
    open_usual(&producer, 0);
    fake_hold(&producer, "");
    fake_return(&producer, -1);
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    for (int i = 0; i < 2; i++) {
        pulls[i] = pull_one(&producer, &D, "d-req", "xfer", ONE_GROUP(3));
        producer_took(&producer, i + 1);
    }
    fake_running(&producer, 1);
    fake_hold(&producer, NULL);
    pull_expect(pulls[0], KVFI_VLLM_FINISH, NULL, "d-req", "Mooncake transfer engine returned -1");
    pull_expect(pulls[1], KVFI_VLLM_FINISH, NULL, "d-req", "Mooncake transfer engine returned -1");
    assert_int_equal(fake_call_count(&producer), 2);
    assert_int_equal(producer_stats(&producer).transfers_tracked, 1);
    pull_close(pulls[0]);
    pull_close(pulls[1]);
    producer_close(&producer);
}

/* ---- 16.11: IPv6 ----------------------------------------------------------------------------------------------- */

static void gap_16_11_side_channel_on_ipv6(void **state)
{
    struct asker asker = D;
    struct producer producer;
    void *pull;

    (void)state;
    producer_open(&producer, &(struct producer_setup){.host = "::1", .regions = OWN, .region_count = 1});
    assert_int_equal(strncmp(producer.address, "tcp://[::1]:", 12), 0);
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    asker.host = "fd00::7";
    pull = pull_one(&producer, &asker, "d-req", "xfer", ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    assert_string_equal(fake_call(&producer, 0)->session, "[fd00::7]:54321");
    pull_close(pull);
    producer_close(&producer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gap_16_1_expiry_waits_for_writes),
        cmocka_unit_test(gap_16_1_expiry_after_a_failed_write),
        cmocka_unit_test(gap_16_1_abort_waits_for_writes),
        cmocka_unit_test(gap_16_1_shutdown_waits_for_writes),
        cmocka_unit_test(gap_16_2_aborted_request_is_answered_at_once),
        cmocka_unit_test(gap_16_2_placeholders_of_early_pulls_expire),
        cmocka_unit_test(gap_16_2_expired_request_is_answered),
        cmocka_unit_test(gap_16_2_late_comer_is_answered),
        cmocka_unit_test(gap_16_2_request_that_is_replaced),
        cmocka_unit_test(gap_16_4_rows_go_as_one),
        cmocka_unit_test(gap_16_5_waiting_pulls_hold_up_nobody),
        cmocka_unit_test(gap_16_5_slow_peer_holds_up_itself_alone),
        cmocka_unit_test(gap_16_6_repeated_pull_counts_once),
        cmocka_unit_test(gap_16_6_repeated_pull_while_written),
        cmocka_unit_test(gap_16_6_repeated_pull_after_failure),
        cmocka_unit_test(gap_16_11_side_channel_on_ipv6),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
