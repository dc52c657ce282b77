/* SPDX-License-Identifier: Apache-2.0 */
/* A generation rank against a context whose ranks say what the test has them say: outcome and memory, case by case. */
#include "receiver_scene.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sys/clock.h"

/* ---- success ------------------------------------------------------------------------------------------------ */

static void test_context_first(void **unused)
{
    static const int order[] = {KVFI_TRTLLM_REGISTER_RANK_INFO, KVFI_TRTLLM_REQUEST_DATA};
    struct scene scene;
    struct kvf_trtllm_status status;
    (void)unused;
    begin_asked(&scene, 1);
    assert_memory_equal(scene.ctx.order, order, sizeof order);
    assert_string_equal(scene.ctx.ask.instance_name, "gen");
    assert_int_equal(scene.ctx.ask.rid, 1);
    assert_int_equal(scene.ctx.ask.sender_req_id, 1);
    assert_int_equal(scene.ctx.ask.slice, 0);
    assert_int_equal(scene.ctx.ask.aux_slot, KVF_TRTLLM_NONE);
    assert_int_equal(scene.ctx.ask.group_count, 1);
    assert_int_equal(scene.ctx.ask.groups[0].count, 4);
    assert_false(scene.ctx.ask.has_bounce);
    status = gen_status(&scene.gen, 1);
    assert_int_equal(status.state, KVF_TRTLLM_STATE_TRANSFERRING);
    assert_int_equal(status.pending, 1);
    script_result(&scene.ctx, 0, 1, true, OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
    settled(&scene, 1);
    end(&scene);
}

static void test_pieces_before_the_last_end_nothing(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked(&scene, 2);
    script_result(&scene.ctx, 0, 1, false, OK);
    script_result(&scene.ctx, 0, 1, false, OK);
    script_result(&scene.ctx, 1, 1, false, OK);
    script_result(&scene.ctx, 0, 1, true, OK);
    script_sync(&scene.ctx);
    gen_no_event(&scene.gen);
    script_result(&scene.ctx, 1, 1, true, OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
    settled(&scene, 1);
    end(&scene);
}

static void test_generation_first_needs_auxiliary_data(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked_aux(&scene, 2);
    assert_int_equal(scene.ctx.ask.aux_slot, 3);
    script_result(&scene.ctx, 0, 1, true, OK);
    script_result(&scene.ctx, 1, 1, true, OK);
    script_aux(&scene.ctx, 1, 1, OK);
    script_sync(&scene.ctx);
    gen_no_event(&scene.gen);
    assert_int_equal(gen_status(&scene.gen, 1).pending, 1);
    script_aux(&scene.ctx, 0, 1, OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
    settled(&scene, 1);
    end(&scene);
}

/* ---- cancelling --------------------------------------------------------------------------------------------- */

static void test_cancel_before_publication(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_tp(&scene, 1);
    scene.ctx.mute = true;
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    script_until(&scene.ctx, &scene.ctx.asked, 1);
    assert_int_equal(kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL), KVF_OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_CANCELLED, KVF_ERR_CANCELLED, "cancelled by its user");
    settled(&scene, 1);
    script_sync(&scene.ctx);
    assert_int_equal(scene.ctx.order_count, 0);
    assert_int_equal(gen_stats(&scene.gen).requests_sent, 0);
    end(&scene);
}

static void test_cancel_after_publication(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked_aux(&scene, 2);
    for (int i = 0; i < 3; i++)
        assert_int_equal(kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL), KVF_OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_CANCELLED, KVF_ERR_CANCELLED, "cancelled by its user");
    script_until(&scene.ctx, &scene.ctx.cancelled[0], 1);
    script_until(&scene.ctx, &scene.ctx.cancelled[1], 1);
    assert_string_equal(scene.ctx.cancel_name, "gen");
    is_kept(&scene, 1);
    /* both writers finish what was running; the auxiliary data is settled last */
    script_result(&scene.ctx, 0, 1, true, OK);
    script_result(&scene.ctx, 1, 1, true, OK);
    script_aux(&scene.ctx, 0, 1, FAILED);
    is_kept(&scene, 1);
    assert_int_equal(gen_status(&scene.gen, 1).pending, 1);
    script_aux(&scene.ctx, 1, 1, OK);
    gen_event(&scene.gen, KVF_TRTLLM_EVENT_SETTLED, 1);
    assert_int_equal(gen_status(&scene.gen, 1).state, KVF_TRTLLM_STATE_CANCELLED);
    /* doubled words after the release change nothing */
    script_result(&scene.ctx, 0, 1, true, OK);
    script_aux(&scene.ctx, 1, 1, OK);
    script_sync(&scene.ctx);
    gen_no_event(&scene.gen);
    assert_int_equal(scene.ctx.cancelled[0], 1);
    assert_int_equal(gen_close_session(&scene.gen, 1), KVF_OK);
    script_result(&scene.ctx, 0, 1, true, OK);
    script_sync(&scene.ctx);
    gen_receive(&scene.gen, 2, scene.ctx.endpoint); /* admission is open */
    end(&scene);
}

static void test_cancel_is_acknowledged(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked_aux(&scene, 2);
    script_quiesced(&scene.ctx, 0, 1); /* nobody asked for it: it counts for nothing */
    script_sync(&scene.ctx);
    assert_int_equal(gen_status(&scene.gen, 1).pending, 4);
    kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL);
    ended(&scene, 1, KVF_TRTLLM_STATE_CANCELLED, KVF_ERR_CANCELLED, "");
    script_quiesced(&scene.ctx, 0, 1);
    is_kept(&scene, 1);
    script_quiesced(&scene.ctx, 1, 1);
    settled(&scene, 1);
    end(&scene);
}

static void test_context_cancels(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked(&scene, 2);
    script_cancel(&scene.ctx, 1);
    assert_int_equal(gen_event(&scene.gen, KVF_TRTLLM_EVENT_ENDED, 1).by_peer, 1);
    assert_int_equal(gen_status(&scene.gen, 1).state, KVF_TRTLLM_STATE_CANCELLED);
    script_result(&scene.ctx, 0, 1, true, FAILED);
    is_kept(&scene, 1);
    assert_int_equal(scene.ctx.cancelled[0] + scene.ctx.cancelled[1], 0); /* no echo */
    /* the one that has not reported after a while is asked to */
    script_until(&scene.ctx, &scene.ctx.cancelled[1], 1);
    assert_int_equal(scene.ctx.cancelled[0], 0);
    script_quiesced(&scene.ctx, 1, 1);
    settled(&scene, 1);
    end(&scene);
}

static void test_context_cancels_first(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_tp(&scene, 1);
    script_cancel(&scene.ctx, 7);
    script_sync(&scene.ctx);
    gen_receive(&scene.gen, 7, scene.ctx.endpoint);
    assert_int_equal(gen_event(&scene.gen, KVF_TRTLLM_EVENT_ENDED, 7).by_peer, 1);
    settled(&scene, 7);
    assert_int_equal(scene.ctx.order_count, 0);
    /* a cancel that comes after the session was closed is late, and no memory of the next one of this id */
    script_cancel(&scene.ctx, 7);
    script_sync(&scene.ctx);
    gen_receive(&scene.gen, 7, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    end(&scene);
}

static void test_remembered_cancels_are_bounded(void **unused)
{
    struct scene scene;
    (void)unused;
    gen_init(&scene.gen, "gen");
    scene.gen.options.max_requests = 2;
    gen_open(&scene.gen);
    script_init(&scene.ctx, "ctx", 1);
    script_open(&scene.ctx, &scene.gen);
    for (int64_t rid = 1; rid < 5; rid++)
        script_cancel(&scene.ctx, rid);
    script_sync(&scene.ctx);
    for (int64_t rid = 1; rid < 3; rid++) { /* the first two are kept */
        gen_receive(&scene.gen, rid, scene.ctx.endpoint);
        gen_event(&scene.gen, KVF_TRTLLM_EVENT_ENDED, rid);
        settled(&scene, rid);
    }
    gen_receive(&scene.gen, 4, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    end(&scene);
}

/* Only those that got a request are waited for, and the receive can never succeed. The second rank's address takes
 * connections and never reads, so at some point no more can be queued for it. */
static void test_partial_fan_out(void **unused)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t address_bytes = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct kvf_trtllm_event event = {0};
    struct scene scene;
    char endpoint[64];
    int64_t rid = 0;
    (void)unused;
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &address_bytes), 0);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    begin_tp(&scene, 2);
    script_describe_with(&scene.ctx, 1, endpoint);
    while (kvf_trtllm_worker_poll(scene.gen.worker, &event, 1) == 0) {
        gen_receive(&scene.gen, ++rid, scene.ctx.endpoint);
        script_until(&scene.ctx, &scene.ctx.requested[0], (int)rid);
        assert_true(rid < 100000);
    }
    assert_int_equal(event.kind, KVF_TRTLLM_EVENT_ENDED);
    assert_int_equal(event.rid, rid);
    assert_int_equal(event.status, KVF_ERR_AGAIN);
    has_text(event.text, "context rank 1 could not be asked, after 1 of 2");
    assert_int_equal(gen_status(&scene.gen, rid).asked, 1);
    is_kept(&scene, rid);
    script_until(&scene.ctx, &scene.ctx.cancelled[0], 1);
    script_result(&scene.ctx, 0, rid, true, OK);
    gen_event(&scene.gen, KVF_TRTLLM_EVENT_SETTLED, rid);
    assert_int_equal(gen_status(&scene.gen, rid).state, KVF_TRTLLM_STATE_ERROR);
    close(listener);
    end(&scene);
}

/* ---- failures ----------------------------------------------------------------------------------------------- */

static void test_one_of_two_writers_fails(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked(&scene, 2);
    script_result(&scene.ctx, 1, 1, true, FAILED);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_REFUSED,
          "KV transfer failed for request 1 slice=0 peer_rank=1 is_last_slice=True (reported by remote agent)");
    assert_string_equal(gen_status(&scene.gen, 1).peer, "ctx1");
    is_kept(&scene, 1);
    script_until(&scene.ctx, &scene.ctx.cancelled[0], 1);
    assert_int_equal(scene.ctx.cancelled[1], 0); /* that one has said its last */
    script_result(&scene.ctx, 0, 1, true, OK);
    settled(&scene, 1);
    end(&scene);
}

static void test_auxiliary_data_fails(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked_aux(&scene, 1);
    script_result(&scene.ctx, 0, 1, true, OK);
    script_aux(&scene.ctx, 0, 1, FAILED);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_REFUSED, "Session 1 aux transfer failed");
    settled(&scene, 1);
    end(&scene);
}

static void test_deadline_settles_nothing(void **unused)
{
    struct scene scene;
    struct gen_receive one;
    (void)unused;
    begin_tp(&scene, 1);
    gen_receive_init(&one, 1, scene.ctx.endpoint);
    one.receive.timeout_ns = 200 * KVFI_MS;
    assert_int_equal(kvf_trtllm_worker_receive(scene.gen.worker, &one.receive, NULL), KVF_OK);
    script_requested(&scene.ctx, 1, 1);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_EXPIRED, "KV transfer timed out for request 1 after 200 ms");
    is_kept(&scene, 1);
    script_until(&scene.ctx, &scene.ctx.cancelled[0], 1);
    script_result(&scene.ctx, 0, 1, true, OK);
    settled(&scene, 1);
    /* nothing was heard of that context when it should have been: it is asked again who it is */
    gen_receive(&scene.gen, 2, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 2);
    assert_int_equal(scene.ctx.asked, 2);
    end(&scene);
}

static void test_in_doubt_then_done(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked(&scene, 1);
    script_result(&scene.ctx, 0, 1, false, DOUBT);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_IN_DOUBT, "KV transfer quiescence is unproven");
    assert_int_equal(gen_status(&scene.gen, 1).in_doubt, 1);
    script_result(&scene.ctx, 0, 1, true, FAILED); /* of another piece */
    script_quiesced(&scene.ctx, 0, 1);             /* does not settle a doubt */
    script_result(&scene.ctx, 0, 1, false, DOUBT);
    is_kept(&scene, 1);
    script_result(&scene.ctx, 0, 1, true, QUIESCED);
    gen_event(&scene.gen, KVF_TRTLLM_EVENT_SETTLED, 1);
    script_result(&scene.ctx, 0, 1, true, QUIESCED);
    script_sync(&scene.ctx);
    gen_no_event(&scene.gen);
    assert_int_equal(gen_status(&scene.gen, 1).status, KVF_ERR_IN_DOUBT);
    assert_int_equal(gen_close_session(&scene.gen, 1), KVF_OK);
    end(&scene);
}

static void test_settling_has_a_deadline_if_wished(void **unused)
{
    struct scene scene;
    struct gen_receive one;
    struct kvf_error error = {0};
    (void)unused;
    gen_init(&scene.gen, "gen");
    scene.gen.options.settle_timeout_ns = 100 * KVFI_MS;
    scene.gen.options.log.level = KVF_LOG_OFF;
    gen_open(&scene.gen);
    script_init(&scene.ctx, "ctx", 1);
    script_open(&scene.ctx, &scene.gen);
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    script_result(&scene.ctx, 0, 1, false, DOUBT);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_IN_DOUBT, "unproven");
    script_result(&scene.ctx, 0, 1, true, FAILED); /* moves no deadline */
    has_text(gen_event(&scene.gen, KVF_TRTLLM_EVENT_OVERDUE, 1).text, "not settled within 100 ms");
    script_result(&scene.ctx, 0, 1, true, QUIESCED); /* too late to be believed */
    is_kept(&scene, 1);
    assert_int_equal(gen_status(&scene.gen, 1).is_quarantined, 1);
    gen_receive_init(&one, 2, scene.ctx.endpoint);
    assert_int_equal(kvf_trtllm_worker_receive(scene.gen.worker, &one.receive, &error), KVF_ERR_IN_DOUBT);
    end(&scene);
}

/* ---- the worker as a whole --------------------------------------------------------------------------------------- */

static void test_shutdown_waits_for_memory(void **unused)
{
    struct scene scene;
    struct gen_receive one;
    struct kvf_error error = {0};
    (void)unused;
    begin_asked(&scene, 1);
    assert_int_equal(kvf_trtllm_worker_shutdown(scene.gen.worker, KVFI_MS, &error), KVF_ERR_TIMEOUT);
    has_text(error.text, "1 sessions hold memory");
    gen_receive_init(&one, 2, scene.ctx.endpoint);
    assert_int_equal(kvf_trtllm_worker_receive(scene.gen.worker, &one.receive, &error), KVF_ERR_CLOSED);
    kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL);
    assert_int_equal(kvf_trtllm_worker_shutdown(scene.gen.worker, KVFI_MS, &error), KVF_ERR_TIMEOUT);
    script_quiesced(&scene.ctx, 0, 1);
    assert_int_equal(kvf_trtllm_worker_shutdown(scene.gen.worker, 10 * KVFI_SECOND, &error), KVF_OK);
    end(&scene);
}

static void test_garbage_stops_nothing(void **unused)
{
    static const struct {
        const char *tag, *payload;
        size_t frames;
    } rows[] = {
        {"KV_AGENT_RESULT", "short", 2},  {"KV_AGENT_RESULT", "", 1},      {"AUX_AGENT_RESULT", "x", 2},
        {"CANCEL_SESSION", "12a", 2},     {"CANCEL_SESSION", "", 2},       {"SESSION_QUIESCED", "0", 2},
        {"TERMINATION", "", 1},           {"NOBODY_KNOWS", "this", 2},     {"", "", 2},
        {"REQUEST_DATA", "not here", 2},  {"REGISTER_RANK_INFO", "no", 2}, {"REQUEST_INSTANCE_INFO", "", 1},
    };
    struct scene scene;
    (void)unused;
    begin_asked(&scene, 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvfi_frame frames[] = {{rows[i].tag, strlen(rows[i].tag)}, {rows[i].payload, strlen(rows[i].payload)}};
        script_frames(&scene.ctx, frames, rows[i].frames);
    }
    script_sync(&scene.ctx);
    assert_true(gen_stats(&scene.gen).malformed >= 10);
    gen_no_event(&scene.gen);
    script_result(&scene.ctx, 0, 1, true, OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
    settled(&scene, 1);
    end(&scene);
}

static void test_idle_rank_returns_at_once(void **unused)
{
    struct scene scene;
    struct kvf_trtllm_event event;
    int64_t before;
    (void)unused;
    begin_tp(&scene, 1);
    before = kvfi_now_ns();
    for (int i = 0; i < 1000; i++)
        assert_int_equal(kvf_trtllm_worker_wait(scene.gen.worker, &event, 1, 0), 0);
    assert_true(kvfi_now_ns() - before < 5 * KVFI_SECOND);
    assert_int_equal(kvf_trtllm_worker_shutdown(scene.gen.worker, 0, NULL), KVF_OK);
    end(&scene);
}

/* ---- what is refused before anything happens ------------------------------------------------------------------- */

static void few_ids(struct gen_receive *one) { one->groups[0].count = 3; }
static void no_groups(struct gen_receive *one) { one->receive.group_count = 0; }
static void far_id(struct gen_receive *one) { one->ids[2] = 8; }
static void negative_id(struct gen_receive *one) { one->ids[1] = -2; }
static void negative_rid(struct gen_receive *one) { one->receive.rid = -1; }
static void negative_prompt(struct gen_receive *one) { one->receive.prompt_tokens = -8; }
static void no_endpoint(struct gen_receive *one) { one->receive.info_endpoint = NULL; }
static void odd_schedule(struct gen_receive *one) { one->receive.schedule = 2; }
static void stray_slot(struct gen_receive *one) { one->receive.aux_slot = 0; }
static void no_slot(struct gen_receive *one) { one->receive.schedule = KVF_TRTLLM_GENERATION_FIRST; }
static void twice(struct gen_receive *one) { one->receive.rid = 100; }

static void far_slot(struct gen_receive *one)
{
    one->receive.schedule = KVF_TRTLLM_GENERATION_FIRST;
    one->receive.aux_slot = 8;
}

static const struct {
    const char *name;
    void (*spoil)(struct gen_receive *one);
    int status;
    const char *text;
} REFUSED[] = {
    {"too few ids", few_ids, KVF_ERR_IDS, "group 0 has 3 block ids, expected 4"},
    {"no groups", no_groups, KVF_ERR_IDS, "block ids of 0 layer groups, this rank has 1"},
    {"an id beyond the pool", far_id, KVF_ERR_IDS, "group 0, id 2 is 8, expected -1 to 7"},
    {"a negative id", negative_id, KVF_ERR_IDS, "group 0, id 1 is -2"},
    {"a negative rid", negative_rid, KVF_ERR_INVALID_ARGUMENT, "rid is -1"},
    {"a negative prompt", negative_prompt, KVF_ERR_INVALID_ARGUMENT, "prompt_tokens is -8"},
    {"no endpoint", no_endpoint, KVF_ERR_INVALID_ARGUMENT, "ctx_info_endpoint is required"},
    {"an unknown schedule", odd_schedule, KVF_ERR_INVALID_ARGUMENT, "schedule is 2"},
    {"a slot for context-first", stray_slot, KVF_ERR_INVALID_ARGUMENT, "takes no auxiliary slot"},
    {"no slot for generation-first", no_slot, KVF_ERR_INVALID_ARGUMENT, "takes an auxiliary slot"},
    {"a slot beyond the buffers", far_slot, KVF_ERR_OUT_OF_RANGE, "auxiliary slot 8, buffer 0 has 8"},
    {"a rid that is received already", twice, KVF_ERR_EXISTS, "rid 100 has a receive session already"},
};

static void test_refused_calls(void **unused)
{
    struct scene scene;
    struct kvf_trtllm_status status = {.struct_size = sizeof status};
    (void)unused;
    begin_tp(&scene, 1);
    gen_receive(&scene.gen, 100, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    for (size_t i = 0; i < sizeof REFUSED / sizeof REFUSED[0]; i++) {
        struct gen_receive one;
        struct kvf_error error = {0};
        gen_receive_init(&one, 1, scene.ctx.endpoint);
        REFUSED[i].spoil(&one);
        if ((int)kvf_trtllm_worker_receive(scene.gen.worker, &one.receive, &error) != REFUSED[i].status)
            fail_msg("%s: status %d, \"%s\"", REFUSED[i].name, error.status, error.text);
        has_text(error.text, REFUSED[i].text);
    }
    assert_int_equal(kvf_trtllm_worker_status(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, &status, NULL),
                     KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL), KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_trtllm_worker_cancel(scene.gen.worker, 2, 100, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(gen_close_session(&scene.gen, 1), KVF_ERR_NOT_FOUND);
    assert_int_equal(gen_close_session(&scene.gen, 100), KVF_ERR_AGAIN);
    assert_int_equal(gen_stats(&scene.gen).requests_sent, 1);
    end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context_first),
        cmocka_unit_test(test_pieces_before_the_last_end_nothing),
        cmocka_unit_test(test_generation_first_needs_auxiliary_data),
        cmocka_unit_test(test_cancel_before_publication),
        cmocka_unit_test(test_cancel_after_publication),
        cmocka_unit_test(test_cancel_is_acknowledged),
        cmocka_unit_test(test_context_cancels),
        cmocka_unit_test(test_context_cancels_first),
        cmocka_unit_test(test_remembered_cancels_are_bounded),
        cmocka_unit_test(test_partial_fan_out),
        cmocka_unit_test(test_one_of_two_writers_fails),
        cmocka_unit_test(test_auxiliary_data_fails),
        cmocka_unit_test(test_deadline_settles_nothing),
        cmocka_unit_test(test_in_doubt_then_done),
        cmocka_unit_test(test_settling_has_a_deadline_if_wished),
        cmocka_unit_test(test_shutdown_waits_for_memory),
        cmocka_unit_test(test_garbage_stops_nothing),
        cmocka_unit_test(test_idle_rank_returns_at_once),
        cmocka_unit_test(test_refused_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
