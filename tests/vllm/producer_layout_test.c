/* SPDX-License-Identifier: Apache-2.0 */
/* Layout ids, and the memory that a producer registers: again, asleep, awake. */
#include "producer_kit.h"

#include <stdio.h>
#include <string.h>

#define LAYER_0 "model.layers.0.self_attn"

static const struct kvf_vllm_region OWN[] = {{.layer_name = LAYER_0, .base_addr = 0x1000, .block_len = 4096,
                                              .kv_block_len = 4096, .row_offset = KVF_VLLM_NO_ROW}};
static const struct kvf_vllm_region THEIRS[] = {{.layer_name = LAYER_0, .base_addr = 0x200000, .block_len = 4096,
                                                 .kv_block_len = 4096, .row_offset = KVF_VLLM_NO_ROW}};
static const struct asker D = {.regions = THEIRS, .region_count = 1};
static const struct asker D_ID = {.regions = THEIRS, .region_count = 1, .layout_id = 0xABC};
static const struct asker D_BARE = {.layout_id = 0xABC, .bare = true};

static const struct producer_setup USUAL = {.regions = OWN, .region_count = 1};

/* One pull for a request of its own, whose reply is looked at. */
static void ask(struct producer *producer, const struct asker *asker, int verdict, const char *text,
                uint64_t layout_id)
{
    int number = (int)producer_stats(producer).pulls_received + 1;
    char ids[2][32];
    void *pull;

    snprintf(ids[0], sizeof ids[0], "p-%d", number);
    snprintf(ids[1], sizeof ids[1], "xfer-%d", number);
    producer_ready(producer, ids[0], ids[1], ONE_GROUP(1));
    pull = pull_one(producer, asker, "d-req", ids[1], ONE_GROUP(3));
    pull_expect_id(pull, verdict, verdict == KVFI_VLLM_FINISH ? "d-req" : NULL, NULL, text, layout_id);
    pull_close(pull);
    producer_drop(producer, ids[1]);
}

/* ---- layout ids ------------------------------------------------------------------------------------------------ */

static void layout_ids_are_echoed_and_kept(void **state)
{
    struct asker other = D_BARE;
    struct producer producer;

    (void)state;
    producer_open(&producer, &USUAL);
    ask(&producer, &D, KVFI_VLLM_FINISH, NULL, 0);
    ask(&producer, &D_BARE, KVFI_VLLM_LAYOUT_MISS,
        "Mooncake KV layout 0xabc from consumer-host:54321 is not cached.", 0);
    ask(&producer, &D_ID, KVFI_VLLM_FINISH, NULL, 0xABC);
    ask(&producer, &D_BARE, KVFI_VLLM_FINISH, NULL, 0xABC);
    other.port = 1;
    ask(&producer, &other, KVFI_VLLM_LAYOUT_MISS, "Mooncake KV layout 0xabc from consumer-host:1 is not cached.", 0);
    assert_int_equal(producer_stats(&producer).layout_misses, 2);
    assert_int_equal(producer_stats(&producer).pulls_refused, 0);
    assert_int_equal(producer_stats(&producer).bytes_transferred, 3 * 4096);
    producer_close(&producer);
}

/* As a producer of 0.32.0: the field is nothing to it, so a consumer never leaves its arrays out. */
static void without_layout_ids_none_is_echoed(void **state)
{
    struct producer_setup setup = USUAL;
    struct producer producer;
    struct kvf_vllm_endpoints endpoints = {.struct_size = sizeof endpoints};

    (void)state;
    setup.without_layout_ids = true;
    producer_open(&producer, &setup);
    ask(&producer, &D_ID, KVFI_VLLM_FINISH, NULL, 0);
    assert_int_equal(kvf_vllm_worker_endpoints(producer.worker, &endpoints, NULL), KVF_OK);
    assert_int_equal(endpoints.layout_id, 0);
    producer_close(&producer);
}

/* An id whose pull was refused is not kept. */
static void refused_layouts_are_not_kept(void **state)
{
    static const struct kvf_vllm_region wrong[] = {{.layer_name = LAYER_0, .base_addr = 0x200000, .block_len = 100,
                                                    .kv_block_len = 100, .row_offset = KVF_VLLM_NO_ROW}};
    const struct asker refused = {.regions = wrong, .region_count = 1, .layout_id = 0xABC};
    struct producer producer;

    (void)state;
    producer_open(&producer, &USUAL);
    ask(&producer, &refused, KVFI_VLLM_ERROR,
        "Mooncake KV region length mismatch for homogeneous TP at region 0: local=4096, remote=100.", 0);
    producer_close(&producer);
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static enum kvf_status register_again(struct producer *producer, struct kvf_error *error)
{
    return kvf_vllm_worker_register(producer->worker, &producer->memory, 1, producer->regions, 0, error);
}

/* Another registration draws another id, forgets what was prepared, and answers those that waited with the old one. */
static void registering_again(void **state)
{
    struct kvf_vllm_endpoints before = {.struct_size = sizeof before}, after = before;
    struct kvf_error error = {.text = ""};
    struct producer producer;
    void *waiting;

    (void)state;
    producer_open(&producer, &USUAL);
    assert_int_equal(kvf_vllm_worker_endpoints(producer.worker, &before, NULL), KVF_OK);
    assert_true(before.layout_id != 0);
    ask(&producer, &D_ID, KVFI_VLLM_FINISH, NULL, 0xABC);
    waiting = pull_one(&producer, &D, "d-wait", "later", ONE_GROUP(3));
    producer_took(&producer, 2);
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    assert_int_equal(register_again(&producer, &error), KVF_ERR_AGAIN); /* its blocks are in the memory */
    pull_silent(waiting);
    producer_drop(&producer, "xfer");
    assert_string_equal(producer_finished(&producer, 0), "p-1,p-req");
    assert_int_equal(register_again(&producer, &error), KVF_OK);
    pull_expect(waiting, KVFI_VLLM_FINISH, NULL, "d-wait", "The P side registered its memory anew.");
    pull_close(waiting);
    assert_int_equal(kvf_vllm_worker_endpoints(producer.worker, &after, NULL), KVF_OK);
    assert_true(after.layout_id != 0 && after.layout_id != before.layout_id);
    assert_string_equal(after.side_channel, before.side_channel);
    ask(&producer, &D_BARE, KVFI_VLLM_LAYOUT_MISS,
        "Mooncake KV layout 0xabc from consumer-host:54321 is not cached.", 0);
    ask(&producer, &D_ID, KVFI_VLLM_FINISH, NULL, 0xABC);
    producer_close(&producer);
}

/* What cannot be registered leaves the worker as it was. */
static void registering_what_cannot_be(void **state)
{
    const struct kvf_vllm_storage overlap[] = {{0x1000, 64 * 4096}, {0x3000, 4096}}, small[] = {{0x1000, 4095}},
                                  elsewhere[] = {{0x9000000, 4096}}, wrap[] = {{UINT64_MAX - 10, 4096}};
    struct kvf_error error = {.text = ""};
    struct producer producer;

    (void)state;
    producer_open(&producer, &USUAL);
    assert_int_equal(kvf_vllm_worker_register(producer.worker, overlap, 2, producer.regions, 0, &error),
                     KVF_ERR_EXISTS);
    assert_int_equal(kvf_vllm_worker_register(producer.worker, small, 1, producer.regions, 0, &error),
                     KVF_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, LAYER_0));
    assert_int_equal(kvf_vllm_worker_register(producer.worker, elsewhere, 1, producer.regions, 0, &error),
                     KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_worker_register(producer.worker, wrap, 1, producer.regions, 0, &error),
                     KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_worker_register(producer.worker, NULL, 0, NULL, 0, &error), KVF_ERR_INVALID_ARGUMENT);
    ask(&producer, &D, KVFI_VLLM_FINISH, NULL, 0);
    producer_close(&producer);
}

/* A pull that comes while the worker sleeps waits; layout ids stay. */
static void sleep_and_wake(void **state)
{
    struct kvf_vllm_endpoints before = {.struct_size = sizeof before}, after = before;
    const struct kvf_vllm_send send = {"p-req", "xfer", ONE_GROUP(1)};
    const struct kvf_vllm_step step = {.struct_size = sizeof step, .sends = &send, .send_count = 1};
    struct kvf_error error = {.text = ""};
    struct producer producer;
    void *pull;

    (void)state;
    producer_open(&producer, &USUAL);
    ask(&producer, &D_ID, KVFI_VLLM_FINISH, NULL, 0xABC);
    assert_int_equal(kvf_vllm_worker_endpoints(producer.worker, &before, NULL), KVF_OK);
    assert_int_equal(kvf_vllm_worker_wake(producer.worker, &error), KVF_ERR_INVALID_ARGUMENT);
    producer_ready(&producer, "p-held", "xfer-held", ONE_GROUP(1));
    assert_int_equal(kvf_vllm_worker_sleep(producer.worker, KVFI_MS, &error), KVF_ERR_AGAIN);
    producer_drop(&producer, "xfer-held");
    assert_int_equal(kvf_vllm_worker_sleep(producer.worker, KVFI_SECOND, &error), KVF_OK);
    assert_int_equal(kvf_vllm_worker_sleep(producer.worker, KVFI_SECOND, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_worker_step(producer.worker, &step, &error), KVF_ERR_AGAIN);
    pull = pull_one(&producer, &D_BARE, "d-req", "xfer", ONE_GROUP(3));
    producer_took(&producer, 2);
    pull_silent(pull);
    assert_int_equal(kvf_vllm_worker_wake(producer.worker, &error), KVF_OK);
    assert_int_equal(kvf_vllm_worker_step(producer.worker, &step, &error), KVF_OK);
    pull_expect_id(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL, 0xABC);
    pull_close(pull);
    assert_int_equal(kvf_vllm_worker_endpoints(producer.worker, &after, NULL), KVF_OK);
    assert_int_equal(before.layout_id, after.layout_id);
    producer_close(&producer);
}

/* ---- options, steps -------------------------------------------------------------------------------------------- */

static void options_are_checked(void **state)
{
    const struct {
        const char *name;
        struct kvf_vllm_worker_options options;
    } rows[] = {
        {"role", {.role = 0}},
        {"role", {.role = 4}},
        {"tp_rank", {.role = 1, .tp_rank = 1}},
        {"pp_rank", {.role = 1, .pp_rank = -1}},
        {"is_mla", {.role = 1, .is_mla = 2}},
        {"group_kinds", {.role = 1, .group_count = 1}},
        {"layers", {.role = 1, .layer_count = 1}},
        {"side_port", {.role = 1, .side_port = 65536}},
        {"max_pulls", {.role = 1, .max_pulls = -1}},
        {"abort_request_timeout_ns", {.role = 1, .abort_request_timeout_ns = -1}},
        {"engine_id", {.role = 1, .bootstrap_url = "http://127.0.0.1:1"}},
        {"host", {.role = 1, .host = ""}},
        {"host", {.role = 1, .host = "0.0.0.0"}},
        {"host", {.role = 3, .host = "::"}},
    };
    struct kvf_error error = {.text = ""};
    kvf_vllm_worker *worker = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_vllm_worker_options options = rows[i].options;

        options.struct_size = sizeof options;
        assert_int_equal(kvf_vllm_worker_open(&options, &worker, &error), KVF_ERR_INVALID_ARGUMENT);
        if (strstr(error.text, rows[i].name) == NULL) fail_msg("\"%s\" does not name %s", error.text, rows[i].name);
    }
    assert_int_equal(kvf_vllm_worker_open(NULL, &worker, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_null(worker);
}

/* A step is taken as a whole or not at all. */
static void steps_are_checked(void **state)
{
    static char long_id[KVF_VLLM_ID_BYTES + 1];
    const struct kvf_vllm_ids negative[] = {IDS(1, -1)}, fine[] = {IDS(1)}, two[] = {IDS(1), IDS(2)};
    const struct kvf_vllm_recv recv = {"d", "x", "e", "http://127.0.0.1:1", fine, 1};
    const struct {
        struct kvf_vllm_send send;
        enum kvf_status status;
    } rows[] = {
        {{"", "x", fine, 1}, KVF_ERR_INVALID_ARGUMENT},     {{"p", "", fine, 1}, KVF_ERR_INVALID_ARGUMENT},
        {{NULL, "x", fine, 1}, KVF_ERR_INVALID_ARGUMENT},   {{"p", long_id, fine, 1}, KVF_ERR_INVALID_ARGUMENT},
        {{"p", "x", NULL, 1}, KVF_ERR_INVALID_ARGUMENT},    {{"p", "x", negative, 1}, KVF_ERR_IDS},
        {{"p", "x", two, 2}, KVF_ERR_IDS},
    };
    struct kvf_vllm_step step = {.struct_size = sizeof step};
    struct kvf_error error = {.text = ""};
    const char *empty = "";
    struct producer producer;

    (void)state;
    memset(long_id, 'x', sizeof long_id - 1);
    producer_open(&producer, &USUAL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct kvf_vllm_send both[] = {{"p-good", "x-good", fine, 1}, rows[i].send};

        step.sends = both;
        step.send_count = 2;
        assert_int_equal(kvf_vllm_worker_step(producer.worker, &step, &error), rows[i].status);
    }
    step = (struct kvf_vllm_step){.struct_size = sizeof step, .not_processed = &empty, .not_processed_count = 1};
    assert_int_equal(kvf_vllm_worker_step(producer.worker, &step, &error), KVF_ERR_INVALID_ARGUMENT);
    step = (struct kvf_vllm_step){.struct_size = sizeof step, .recvs = &recv, .recv_count = 1};
    assert_int_equal(kvf_vllm_worker_step(producer.worker, &step, &error), KVF_ERR_INVALID_ARGUMENT);
    step = (struct kvf_vllm_step){.struct_size = sizeof step, .send_count = 1};
    assert_int_equal(kvf_vllm_worker_step(producer.worker, &step, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(producer_stats(&producer).transfers_tracked, 0);
    assert_int_equal(kvf_vllm_worker_shutdown(producer.worker, 0, &error), KVF_OK);
    step = (struct kvf_vllm_step){.struct_size = sizeof step};
    assert_int_equal(kvf_vllm_worker_step(producer.worker, &step, &error), KVF_ERR_CLOSED);
    producer_close(&producer);
}

static void unregistered_workers_take_nothing(void **state)
{
    struct producer_setup setup = USUAL;
    struct kvf_vllm_step step = {.struct_size = sizeof step};
    struct kvf_error error = {.text = ""};
    struct producer producer;

    (void)state;
    setup.unregistered = true;
    producer_open(&producer, &setup);
    assert_string_equal(producer.address, "");
    assert_int_equal(kvf_vllm_worker_step(producer.worker, &step, &error), KVF_ERR_AGAIN);
    assert_int_equal(kvf_vllm_worker_sleep(producer.worker, 0, &error), KVF_ERR_INVALID_ARGUMENT);
    producer_close(&producer);
}

/* The events of one request, in their order. */
static void events_tell_a_request_s_life(void **state)
{
    static const int kinds[] = {KVF_VLLM_EVENT_PULL, KVF_VLLM_EVENT_SENT, KVF_VLLM_EVENT_RELEASED};
    struct producer producer;
    void *pull;

    (void)state;
    producer_open(&producer, &USUAL);
    pull = pull_one(&producer, &D, "d-req", "xfer", ONE_GROUP(3, 4));
    producer_took(&producer, 1);
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1, 2));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    for (size_t i = 0; i < 3; i++) {
        struct kvf_vllm_event event;

        assert_int_equal(kvf_vllm_worker_wait(producer.worker, &event, 1, 20 * KVFI_SECOND), 1);
        assert_int_equal(event.kind, kinds[i]);
        assert_string_equal(event.transfer_id, "xfer");
        assert_string_equal(event.req_id, i == 0 ? "" : "p-req");
        assert_string_equal(event.peer, i == 2 ? "" : "consumer-host:54321");
        assert_int_equal(event.bytes, i == 1 ? 8192 : 0);
        assert_int_equal(event.descriptors, i == 1);
    }
    pull_close(pull);
    producer_close(&producer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_ids_are_echoed_and_kept),
        cmocka_unit_test(without_layout_ids_none_is_echoed),
        cmocka_unit_test(refused_layouts_are_not_kept),
        cmocka_unit_test(registering_again),
        cmocka_unit_test(registering_what_cannot_be),
        cmocka_unit_test(sleep_and_wake),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(steps_are_checked),
        cmocka_unit_test(unregistered_workers_take_nothing),
        cmocka_unit_test(events_tell_a_request_s_life),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
