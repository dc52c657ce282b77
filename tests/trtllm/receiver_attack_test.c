/* SPDX-License-Identifier: Apache-2.0 */
/* Words that come too late, ranks that cannot be told, processes of other hosts, and closing at any time. */
#include "receiver_scene.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "sys/clock.h"

/* ---- one rid, used again ----------------------------------------------------------------------------------------- */

/* What is said of a receive that is closed changes nothing, neither then nor for the next one of that rid. */
static void test_late_words_of_a_closed_receive(void **unused)
{
    struct scene scene;
    int64_t dropped;
    (void)unused;
    begin_asked(&scene, 2);
    kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL);
    ended(&scene, 1, KVF_TRTLLM_STATE_CANCELLED, KVF_ERR_CANCELLED, "");
    script_result(&scene.ctx, 0, 1, true, FAILED);
    script_result(&scene.ctx, 1, 1, true, FAILED);
    settled(&scene, 1);
    dropped = gen_stats(&scene.gen).results_dropped;
    script_result(&scene.ctx, 0, 1, true, FAILED);
    script_aux(&scene.ctx, 1, 1, FAILED);
    script_quiesced(&scene.ctx, 0, 1);
    script_cancel(&scene.ctx, 1);
    script_sync(&scene.ctx);
    gen_no_event(&scene.gen);
    assert_true(gen_stats(&scene.gen).results_dropped >= dropped + 2);
    gen_receive(&scene.gen, 1, scene.ctx.endpoint); /* not born cancelled either */
    script_requested(&scene.ctx, 2, 2);
    script_quiesced(&scene.ctx, 0, 1); /* of the cancel before: it says nothing of this request */
    script_quiesced(&scene.ctx, 1, 1);
    script_sync(&scene.ctx);
    gen_no_event(&scene.gen);
    assert_int_equal(gen_status(&scene.gen, 1).pending, 2);
    script_result(&scene.ctx, 0, 1, true, OK);
    script_result(&scene.ctx, 1, 1, true, OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
    settled(&scene, 1);
    end(&scene);
}

/* An acknowledgement of the receive before, while nobody was asked for this one yet. */
static void test_late_acknowledgement_before_publication(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_tp(&scene, 1);
    scene.ctx.mute = true;
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    script_until(&scene.ctx, &scene.ctx.asked, 1);
    script_quiesced(&scene.ctx, 0, 1);
    script_sync(&scene.ctx);
    gen_no_event(&scene.gen);
    script_answer(&scene.ctx);
    script_requested(&scene.ctx, 1, 1);
    script_result(&scene.ctx, 0, 1, true, OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
    settled(&scene, 1);
    end(&scene);
}

/* ---- ranks that cannot be told ----------------------------------------------------------------------------------- */

struct reader {
    int64_t cancelled; /* rid; -1 none yet */
};

static void read_message(void *context, const struct kvfi_route *from, const struct kvfi_frame *frames, size_t count)
{
    struct reader *reader = context;
    struct kvfi_trtllm_frame copies[KVFI_CHANNEL_FRAMES];
    struct kvfi_trtllm_message message;

    (void)from;
    for (size_t i = 0; i < count; i++)
        copies[i] = (struct kvfi_trtllm_frame){frames[i].bytes, frames[i].byte_count};
    if (kvfi_trtllm_read(copies, count, &message, NULL) == KVF_OK && message.tag == KVFI_TRTLLM_CANCEL_SESSION &&
        reader->cancelled < 0)
        reader->cancelled = message.cancel.rid;
}

/* Rank 1 cannot be reached, and its queue is full when a request that it got is cancelled: it is told once it is there,
 * or its word, and with it the memory, would be waited for in vain. */
static void test_a_cancel_that_cannot_leave_is_told_later(void **unused)
{
    static const struct kvfi_dialect dialect = {.name = "test", .handle_frames = read_message};
    struct kvfi_channel_options options = {.max_message_bytes = 1 << 24};
    struct reader reader = {.cancelled = -1};
    struct kvfi_channel *late = NULL;
    struct kvf_trtllm_event event = {0};
    char endpoint[KVFI_CHANNEL_ENDPOINT_BYTES];
    int64_t rid = 0, deadline;
    struct scene scene;
    (void)unused;
    assert_int_equal(kvfi_channel_open(&options, &late, NULL), KVF_OK);
    snprintf(endpoint, sizeof endpoint, "%s", kvfi_channel_endpoint(late));
    kvfi_channel_close(late, 0);
    begin_tp(&scene, 2);
    script_describe_with(&scene.ctx, 1, endpoint);
    while (kvf_trtllm_worker_poll(scene.gen.worker, &event, 1) == 0) {
        gen_receive(&scene.gen, ++rid, scene.ctx.endpoint);
        script_until(&scene.ctx, &scene.ctx.requested[0], (int)rid);
        assert_true(rid < 100000);
    }
    assert_int_equal(event.status, KVF_ERR_AGAIN); /* the last one: no more can be queued for rank 1 */
    assert_true(rid > 1);
    assert_int_equal(kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL), KVF_OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_CANCELLED, KVF_ERR_CANCELLED, "");
    script_result(&scene.ctx, 0, 1, true, FAILED);
    script_sync(&scene.ctx);
    options.port = (int)strtol(strrchr(endpoint, ':') + 1, NULL, 10);
    assert_int_equal(kvfi_channel_open(&options, &late, NULL), KVF_OK);
    deadline = kvfi_now_ns() + 15 * KVFI_SECOND;
    while (reader.cancelled < 0 && kvfi_now_ns() < deadline) {
        struct pollfd ready = {.fd = kvfi_channel_fd(late), .events = POLLIN};
        poll(&ready, 1, 100);
        kvfi_channel_dispatch(late, &dialect, &reader);
    }
    assert_int_equal(reader.cancelled, 1);
    script_quiesced(&scene.ctx, 1, 1);
    settled(&scene, 1);
    kvfi_channel_close(late, 0);
    end(&scene);
}

/* ---- elsewhere --------------------------------------------------------------------------------------------------- */

/* A process number of another host says nothing: the end of whatever process has it here settles no memory. */
static void test_a_context_of_another_host_is_not_watched(void **unused)
{
    struct scene scene;
    char text[65536] = "";
    size_t count = 0;
    int fds[2];
    (void)unused;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    gen_init(&scene.gen, "gen");
    scene.gen.options.log = (struct kvf_log_sink){.fd = fds[1], .level = KVF_LOG_DEBUG};
    gen_open(&scene.gen);
    script_init(&scene.ctx, "ctx", 2);
    snprintf(text, sizeof text, "kvferry-cma/1 pid=%d", (int)getpid());
    scene.ctx.kit.spec.transfer_engine_info = text;
    scene.ctx.kit.spec.transfer_engine_info_bytes = strlen(text);
    script_open(&scene.ctx, &scene.gen);
    script_describe_with(&scene.ctx, 0, "tcp://192.0.2.1:5000");
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    script_until(&scene.ctx, &scene.ctx.requested[1], 1);
    while (strstr(text, "no address of this host") == NULL) {
        ssize_t got = read(fds[0], text + count, sizeof text - 1 - count);
        if (got <= 0)
            fail_msg("the log says only: %s", text);
        count += (size_t)got;
        text[count] = '\0';
    }
    assert_non_null(strstr(text, "ctx0 cannot be watched"));
    end(&scene);
    close(fds[0]);
    close(fds[1]);
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */

static void at_silence(struct scene *scene)
{
    scene->ctx.mute = true;
    gen_receive_aux(&scene->gen, 1, scene->ctx.endpoint, KVF_TRTLLM_NONE);
    script_until(&scene->ctx, &scene->ctx.asked, 1);
}

static void at_asked(struct scene *scene)
{
    gen_receive_aux(&scene->gen, 1, scene->ctx.endpoint, KVF_TRTLLM_NONE);
    script_requested(&scene->ctx, 2, 1);
}

static void at_half(struct scene *scene)
{
    at_asked(scene);
    script_result(&scene->ctx, 1, 1, true, OK);
    script_sync(&scene->ctx);
}

static void at_cancelled(struct scene *scene)
{
    at_half(scene);
    assert_int_equal(kvf_trtllm_worker_cancel(scene->gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL), KVF_OK);
}

static void at_cancelled_by_context(struct scene *scene)
{
    at_half(scene);
    script_cancel(&scene->ctx, 1);
}

static void at_doubt(struct scene *scene)
{
    at_asked(scene);
    script_result(&scene->ctx, 0, 1, true, DOUBT);
}

static void at_quarantine(struct scene *scene)
{
    at_half(scene);
    script_result(&scene->ctx, 0, 1, true, OK);
}

static void at_replaced(struct scene *scene)
{
    at_asked(scene);
    scene->ctx.kit.spec.instance_name = "new";
    script_describe(&scene->ctx);
    script_until(&scene->ctx, &scene->ctx.registered[0], 2);
}

static void at_done(struct scene *scene)
{
    at_half(scene);
    script_aux(&scene->ctx, 1, 1, OK);
}

static void at_shutdown(struct scene *scene)
{
    at_asked(scene);
    assert_int_equal(kvf_trtllm_worker_shutdown(scene->gen.worker, 0, NULL), KVF_ERR_TIMEOUT);
}

static void test_closed_in_every_state(void **unused)
{
    static void (*const reach[])(struct scene *scene) = {
        at_silence, at_asked,      at_half,     at_cancelled, at_cancelled_by_context,
        at_doubt,   at_quarantine, at_replaced, at_done,      at_shutdown};
    (void)unused;
    for (size_t i = 0; i < 2 * sizeof reach / sizeof reach[0]; i++) {
        struct scene scene;
        int64_t began;
        gen_init(&scene.gen, "gen");
        scene.gen.options.peer_refresh_ns = 5 * KVFI_MS;
        scene.gen.options.log.level = KVF_LOG_OFF;
        gen_open(&scene.gen);
        script_init_dp(&scene.ctx, "ctx", 2, 1);
        script_open(&scene.ctx, &scene.gen);
        reach[i / 2](&scene);
        if (i % 2 == 0)
            script_sync(&scene.ctx); /* else while messages are on their way */
        began = kvfi_now_ns();
        gen_close(&scene.gen);
        assert_true(kvfi_now_ns() - began < 5 * KVFI_SECOND);
        script_close(&scene.ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_words_of_a_closed_receive),
        cmocka_unit_test(test_late_acknowledgement_before_publication),
        cmocka_unit_test(test_a_cancel_that_cannot_leave_is_told_later),
        cmocka_unit_test(test_a_context_of_another_host_is_not_watched),
        cmocka_unit_test(test_closed_in_every_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
