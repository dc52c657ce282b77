/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that were found by attacking a producer, one test each. */
#include "producer_kit.h"

#include <stdio.h>
#include <string.h>
#include <zmq.h>

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

/* ---- what peers make a producer keep ---------------------------------------------------------------------------- */

/* Pulls that wait are bounded by their bytes together, not only by how many there are. */
static void waiting_pulls_take_bounded_memory(void **state)
{
    enum { IDS = 900, MOST = 64 };
    static int64_t numbers[IDS];
    const struct kvf_vllm_ids group = {numbers, IDS};
    struct producer producer;
    void *pulls[MOST] = {NULL}, *good;
    int taken = 0;

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1, .message_bytes = 2048});
    for (; taken < MOST && producer_stats(&producer).pulls_refused == 0; taken++) {
        pulls[taken] = pull_one(&producer, &D, "d-req", "never", &group, 1);
        producer_took(&producer, taken + 1);
    }
    assert_in_range(taken, 8, MOST - 1); /* 64 times 2 KiB, with more than 7 KiB each */
    for (int i = 0; i < taken; i++) pull_close(pulls[i]);
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    good = pull_one(&producer, &D, "d-good", "xfer", ONE_GROUP(3));
    pull_expect(good, KVFI_VLLM_FINISH, "d-good", NULL, NULL);
    pull_close(good);
    producer_drop(&producer, "never"); /* their room is given back */
    good = pull_one(&producer, &D, "d-req", "other", &group, 1);
    producer_took(&producer, taken + 2);
    assert_int_equal(producer_stats(&producer).pulls_refused, 1);
    pull_close(good);
    producer_close(&producer);
}

/* Ids and hosts are bounded, as they are on this side. */
static void longest_texts_of_pulls(void **state)
{
    static char text[KVF_VLLM_ID_BYTES + 1];
    struct asker asker = D;
    struct producer producer;
    void *pull;

    (void)state;
    memset(text, 'x', KVF_VLLM_ID_BYTES - 1);
    producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1});
    producer_ready(&producer, "p-req", text, ONE_GROUP(1));
    pull = pull_one(&producer, &D, text, text, ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, text, NULL, NULL);
    pull_close(pull);
    text[KVF_VLLM_ID_BYTES - 1] = 'x';
    for (int i = 0; i < 3; i++) {
        asker.host = i == 2 ? text : NULL;
        pull = pull_one(&producer, &asker, i == 0 ? text : "d-req", i == 1 ? text : "xfer", ONE_GROUP(3));
        pull_expect(pull, KVFI_VLLM_ERROR, NULL, NULL,
                    i == 0   ? "A pull's request id has 512 bytes or more, at most 511."
                    : i == 1 ? "A pull's transfer_id has 512 bytes or more, at most 511."
                             : "A pull's remote_hostname has 496 bytes or more, at most 495.");
        pull_close(pull);
    }
    producer_close(&producer);
}

/* ---- a consumer that was started anew -------------------------------------------------------------------------- */

static const struct kvf_vllm_region HALVES[] = {{.layer_name = LAYER_0, .base_addr = 0x200000, .block_len = 2048,
                                                 .kv_block_len = 2048, .row_offset = KVF_VLLM_NO_ROW}};
static const struct kvf_vllm_region MOVED[] = {{.layer_name = LAYER_0, .base_addr = 0x300000, .block_len = 2048,
                                                .kv_block_len = 2048, .row_offset = KVF_VLLM_NO_ROW}};

/* What was placed in the memory of the process before is not in the memory of the one that has its address now. */
static void restarted_consumer_is_not_told_of_old_bytes(void **state)
{
    struct asker other, rank = {.regions = HALVES, .region_count = 1, .tp_size = 2, .layout_id = 0xA};
    struct producer producer;
    void *pull;

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1});
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    for (size_t i = 0; i < 4; i++) { /* twice the same, then registered anew, then at other addresses */
        rank.layout_id = i < 2 ? 0xA : 0xB;
        rank.regions = i < 3 ? HALVES : MOVED;
        rank.bare = i == 1;
        pull = pull_one(&producer, &rank, "d-req", "xfer", ONE_GROUP(3));
        pull_expect_id(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL, rank.layout_id);
        pull_close(pull);
        assert_int_equal(fake_call_count(&producer), i < 2 ? 1 : i);
        assert_string_equal(producer_finished(&producer, 0), ""); /* it is one rank all the same */
    }
    other = rank;
    other.tp_rank = 1;
    pull = pull_one(&producer, &other, "d-req", "xfer", ONE_GROUP(3));
    pull_expect_id(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL, 0xB);
    pull_close(pull);
    assert_string_equal(producer_finished(&producer, 1), "p-req");
    rank.layout_id = 0xC; /* too late, and not told otherwise */
    pull = pull_one(&producer, &rank, "d-req", "xfer", ONE_GROUP(3));
    pull_expect_id(pull, KVFI_VLLM_FINISH, NULL, "d-req", "Transfer xfer was sent already, to all that were expected.",
                   0xC);
    pull_close(pull);
    producer_close(&producer);
}

/* ---- errors while bytes are still being written ------------------------------------------------------------------ */

/* A rank that pulls again is not told of an end while what it pulled first is being written: by that word its blocks
 * would be free. */
static void repeated_pull_hears_no_error_while_written(void **state)
{
    enum { ABORT, LATE_ABORT, TIMEOUT, SHUTDOWN, ENDS };
    static const char *const texts[ENDS] = {"Transfer xfer was aborted on the P side.",
                                            "Transfer xfer was aborted on the P side."};
    struct producer producer;
    void *pulls[2];

    (void)state;
    for (int end = 0; end < ENDS; end++) {
        producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1,
                                                          .abort_ms = end == TIMEOUT ? 200 : 0});
        fake_hold(&producer, "");
        producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
        pulls[0] = pull_one(&producer, &D, "d-req", "xfer", ONE_GROUP(3));
        fake_running(&producer, 1);
        if (end == LATE_ABORT) producer_drop(&producer, "xfer");
        pulls[1] = pull_one(&producer, &D, "d-req", "xfer", ONE_GROUP(3));
        producer_took(&producer, 2);
        if (end == ABORT) producer_drop(&producer, "xfer");
        if (end == SHUTDOWN)
            assert_int_equal(kvf_vllm_worker_shutdown(producer.worker, 0, NULL), KVF_ERR_TIMEOUT);
        if (end == TIMEOUT) zmq_poll(NULL, 0, 500);
        pull_silent(pulls[1]);
        assert_string_equal(producer_finished(&producer, 0), "");
        fake_hold(&producer, NULL);
        for (int i = 0; i < 2; i++) {
            pull_expect(pulls[i], KVFI_VLLM_FINISH, texts[end] ? NULL : "d-req", texts[end] ? "d-req" : NULL,
                        texts[end]);
            pull_close(pulls[i]);
        }
        assert_string_equal(producer_finished(&producer, 1), "p-req");
        assert_int_equal(fake_call_count(&producer), 1);
        assert_int_equal(producer_stats(&producer).pulls_waiting, 0);
        producer_close(&producer);
    }
}

/* ---- sleep ----------------------------------------------------------------------------------------------------- */

struct sleeper {
    struct producer *producer;
    pthread_t thread;
    enum kvf_status status;
    int64_t took_ns;
};

static void *sleep_now(void *argument)
{
    struct sleeper *sleeper = argument;
    int64_t began_ns = kvfi_now_ns();

    sleeper->status = kvf_vllm_worker_sleep(sleeper->producer->worker, 10 * KVFI_SECOND, NULL);
    sleeper->took_ns = kvfi_now_ns() - began_ns;
    return NULL;
}

/* Waits until the worker takes no steps any more. */
static void sleeper_begin(struct sleeper *sleeper, struct producer *producer)
{
    struct kvf_vllm_step step = {.struct_size = sizeof step};

    *sleeper = (struct sleeper){.producer = producer};
    assert_int_equal(pthread_create(&sleeper->thread, NULL, sleep_now, sleeper), 0);
    while (kvf_vllm_worker_step(producer->worker, &step, NULL) == KVF_OK) { }
}

static void sleeper_end(struct sleeper *sleeper)
{
    pthread_join(sleeper->thread, NULL);
    assert_int_equal(sleeper->status, KVF_OK);
    assert_true(sleeper->took_ns < 5 * KVFI_SECOND);
}

/* Who wants to sleep sends what it has offered, instead of keeping the pulls that would end its waiting. */
static void sleep_waits_for_pulls_and_serves_them(void **state)
{
    const struct kvf_vllm_ids none = {NULL, 0};
    struct sleeper sleeper;
    struct producer producer;
    void *pull;

    (void)state;
    for (int released = 0; released < 2; released++) { /* with bytes, and without */
        producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1});
        producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
        sleeper_begin(&sleeper, &producer);
        pull = released ? pull_one(&producer, &D, "d-req", "xfer", &none, 1)
                        : pull_one(&producer, &D, "d-req", "xfer", ONE_GROUP(3));
        pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
        pull_close(pull);
        sleeper_end(&sleeper);
        assert_string_equal(producer_finished(&producer, 1), "p-req");
        assert_int_equal(fake_call_count(&producer), released ? 0 : 1);
        producer_close(&producer);
    }
}

/* It hears of requests that expire, too. */
static void sleep_waits_for_expiry(void **state)
{
    struct sleeper sleeper;
    struct producer producer;

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1, .abort_ms = 300});
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    sleeper_begin(&sleeper, &producer);
    sleeper_end(&sleeper);
    assert_string_equal(producer_finished(&producer, 1), "p-req");
    producer_close(&producer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_of_peers_do_not_refuse_steps),
        cmocka_unit_test(known_requests_become_ready_at_the_limit),
        cmocka_unit_test(waiting_pulls_take_bounded_memory),
        cmocka_unit_test(longest_texts_of_pulls),
        cmocka_unit_test(restarted_consumer_is_not_told_of_old_bytes),
        cmocka_unit_test(repeated_pull_hears_no_error_while_written),
        cmocka_unit_test(sleep_waits_for_pulls_and_serves_them),
        cmocka_unit_test(sleep_waits_for_expiry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
