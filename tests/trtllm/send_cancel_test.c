/* SPDX-License-Identifier: Apache-2.0 */
/* Cancels from either side, at any time; what is in doubt; when memory may be reused. The agent does as it is told. */
#include "send_kit.h"

#include <string.h>

enum { OK = KVFI_TRTLLM_SUCCESS, FAILED = KVFI_TRTLLM_WRITE_FAILED, IN_DOUBT = KVFI_TRTLLM_IN_DOUBT,
       QUIESCED = KVFI_TRTLLM_FAILED_QUIESCED };

static struct kvf_trtllm_event ended_cancelled(struct stage *stage, int64_t rid, int by_peer)
{
    struct kvf_trtllm_event event = ctx_event(&stage->ctx, KVF_TRTLLM_EVENT_ENDED, rid);

    assert_int_equal(event.state, KVF_TRTLLM_STATE_CANCELLED);
    assert_int_equal(event.status, KVF_ERR_CANCELLED);
    assert_int_equal(event.by_peer, by_peer);
    return event;
}

/* All that is said was said, and the session can be closed. */
static void settled(struct stage *stage, int64_t rid)
{
    ctx_event(&stage->ctx, KVF_TRTLLM_EVENT_SETTLED, rid);
    assert_int_equal(ctx_status(&stage->ctx, rid).pending, 0);
    assert_int_equal(ctx_close_session(&stage->ctx, rid), KVF_OK);
    peer_silent(&stage->a);
    peer_silent(&stage->b);
    ctx_no_event(&stage->ctx);
}

static void test_cancelled_while_queued(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 1);
    ctx_send_open(&stage.ctx, 1);
    peer_ask(&stage.a, 1);
    peer_silent(&stage.a);
    assert_int_equal(ctx_close_session(&stage.ctx, 1), KVF_ERR_AGAIN);
    assert_int_equal(ctx_cancel(&stage.ctx, 1), KVF_OK);
    peer_cancelled(&stage.a, 1);
    peer_kv(&stage.a, 1, FAILED, 1);
    ended_cancelled(&stage, 1, 0);
    assert_int_equal(ctx_cancel(&stage.ctx, 1), KVF_OK); /* twice: nothing more */
    assert_int_equal(ctx_piece(&stage.ctx, 1, 0, 8, 1), KVF_ERR_CANCELLED);
    settled(&stage, 1);
    assert_int_equal(fake_count(&stage.ctx.fake), 0);
    /* A request that comes later is refused, with the session gone and with it open again. */
    peer_ask(&stage.b, 1);
    peer_kv(&stage.b, 1, FAILED, 1);
    ctx_send_open(&stage.ctx, 1);
    ended_cancelled(&stage, 1, 0);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_SETTLED, 1);
    peer_ask_aux(&stage.b, 1, 2);
    peer_kv(&stage.b, 1, FAILED, 1);
    peer_aux(&stage.b, 1, FAILED);
    stage_close(&stage);
}

/* A write that runs is not broken off: its own word follows, and memory waits for it. */
static void test_cancelled_by_us_while_writing(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 1);
    ctx_send_open(&stage.ctx, 2);
    peer_ask(&stage.a, 2);
    peer_ask(&stage.b, 2);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 2);
    assert_int_equal(ctx_piece(&stage.ctx, 2, 0, 4, 0), KVF_OK);
    fake_until(&stage.ctx.fake, 2);
    assert_int_equal(ctx_cancel(&stage.ctx, 2), KVF_OK);
    ended_cancelled(&stage, 2, 0);
    peer_cancelled(&stage.a, 2);
    peer_cancelled(&stage.b, 2);
    peer_silent(&stage.a);
    ctx_no_event(&stage.ctx);
    assert_int_equal(ctx_status(&stage.ctx, 2).is_settled, 0);
    assert_int_equal(ctx_status(&stage.ctx, 2).pending, 2);
    assert_int_equal(ctx_close_session(&stage.ctx, 2), KVF_ERR_AGAIN);
    assert_int_equal(kvf_trtllm_worker_shutdown(stage.ctx.worker, 1000000, NULL), KVF_ERR_TIMEOUT);
    fake_tell(&stage.ctx.fake, 0, KVF_TRTLLM_AGENT_DONE);
    peer_kv(&stage.a, 2, OK, 0);
    peer_kv(&stage.a, 2, FAILED, 1);
    peer_silent(&stage.a);
    ctx_no_event(&stage.ctx);
    fake_tell(&stage.ctx.fake, 1, KVF_TRTLLM_AGENT_FAILED);
    peer_kv(&stage.b, 2, FAILED, 1);
    settled(&stage, 2);
    assert_int_equal(kvf_trtllm_worker_shutdown(stage.ctx.worker, 1000000, NULL), KVF_OK);
    stage_close(&stage);
}

/* The last piece's SUCCESS is a last word: no FAILED follows it. */
static void test_cancelled_by_peer_while_the_last_piece_is_written(void **state)
{
    struct stage stage;
    struct kvf_trtllm_event event;

    (void)state;
    stage_open(&stage, 1);
    ctx_send_open(&stage.ctx, 3);
    peer_ask(&stage.a, 3);
    peer_ask(&stage.b, 3);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 3);
    assert_int_equal(ctx_piece(&stage.ctx, 3, 0, 8, 1), KVF_OK);
    fake_until(&stage.ctx.fake, 2);
    peer_cancel(&stage.a, 3);
    event = ended_cancelled(&stage, 3, 1);
    assert_string_equal(event.peer, "gen0");
    peer_silent(&stage.a); /* not acknowledged while it writes */
    fake_tell(&stage.ctx.fake, 0, KVF_TRTLLM_AGENT_DONE);
    peer_kv(&stage.a, 3, OK, 1);
    peer_quiesced(&stage.a, 3);
    peer_cancel(&stage.b, 3);
    peer_silent(&stage.b);
    fake_tell(&stage.ctx.fake, 1, KVF_TRTLLM_AGENT_DONE);
    peer_kv(&stage.b, 3, OK, 1);
    peer_quiesced(&stage.b, 3);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_SETTLED, 3);
    /* Late and doubled cancels are acknowledged each time, with the session and without. */
    peer_cancel(&stage.a, 3);
    peer_quiesced(&stage.a, 3);
    assert_int_equal(ctx_close_session(&stage.ctx, 3), KVF_OK);
    peer_cancel(&stage.a, 3);
    peer_quiesced(&stage.a, 3);
    ctx_no_event(&stage.ctx);
    stage_close(&stage);
}

static void test_cancelled_by_peer_before_anything_is_written(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 1);
    ctx_send_open_aux(&stage.ctx, 4);
    peer_ask_aux(&stage.a, 4, 0);
    peer_ask_aux(&stage.b, 4, 1);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 4);
    peer_cancel(&stage.b, 4);
    peer_kv(&stage.b, 4, FAILED, 1);
    peer_aux(&stage.b, 4, FAILED);
    peer_quiesced(&stage.b, 4);
    peer_kv(&stage.a, 4, FAILED, 1);
    peer_aux(&stage.a, 4, FAILED);
    ended_cancelled(&stage, 4, 1);
    settled(&stage, 4);
    stage_close(&stage);
}

/* A rank that has not asked yet may cancel all the same, and one of an older version does not say who it is. */
static void test_cancelled_by_peers_that_did_not_ask_or_are_nameless(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 1);
    ctx_send_open(&stage.ctx, 5);
    peer_ask(&stage.a, 5);
    peer_silent(&stage.a);
    peer_cancel(&stage.b, 5);
    peer_quiesced(&stage.b, 5);
    peer_kv(&stage.a, 5, FAILED, 1);
    ended_cancelled(&stage, 5, 1);
    peer_ask(&stage.b, 5);
    peer_kv(&stage.b, 5, FAILED, 1);
    settled(&stage, 5);
    ctx_send_open(&stage.ctx, 6);
    peer_ask(&stage.a, 6);
    peer_silent(&stage.a);
    peer_cancel_nameless(&stage.b, 6);
    peer_kv(&stage.a, 6, FAILED, 1);
    peer_quiesced(&stage.a, 6);
    ended_cancelled(&stage, 6, 1);
    settled(&stage, 6);
    stage_close(&stage);
}

static void test_cancel_of_an_unknown_rid_is_remembered(void **state)
{
    struct stage stage;
    struct kvf_trtllm_event event;

    (void)state;
    stage_open(&stage, 1);
    peer_ask_aux(&stage.a, 7, 1); /* waits for its session */
    peer_cancel(&stage.b, 7);     /* never asked */
    peer_quiesced(&stage.b, 7);
    peer_kv(&stage.a, 7, FAILED, 1); /* the request is refused with it */
    peer_aux(&stage.a, 7, FAILED);
    peer_ask(&stage.b, 7);
    peer_kv(&stage.b, 7, FAILED, 1);
    ctx_send_open(&stage.ctx, 7);
    event = ended_cancelled(&stage, 7, 1);
    assert_string_equal(event.peer, "gen1");
    assert_int_equal(ctx_piece(&stage.ctx, 7, 0, 8, 1), KVF_ERR_CANCELLED);
    settled(&stage, 7);
    ctx_send_open(&stage.ctx, 7); /* it stays so */
    ended_cancelled(&stage, 7, 1);
    settled(&stage, 7);
    assert_int_equal(fake_count(&stage.ctx.fake), 0);
    stage_close(&stage);
}

/* IN_DOUBT, then the same write is known to be over: told once, and the outcome stays what it was. */
static void test_in_doubt_then_over(void **state)
{
    static const int ends[] = {KVF_TRTLLM_AGENT_DONE, KVF_TRTLLM_AGENT_FAILED};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct stage stage;
        struct kvf_trtllm_event event;
        stage_open(&stage, 1);
        ctx_send_open(&stage.ctx, 8);
        peer_ask(&stage.a, 8);
        peer_silent(&stage.a);
        assert_int_equal(ctx_piece(&stage.ctx, 8, 0, 4, 0), KVF_OK);
        fake_tell(&stage.ctx.fake, 0, KVF_TRTLLM_AGENT_IN_DOUBT);
        peer_kv(&stage.a, 8, IN_DOUBT, 0);
        event = ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, 8);
        assert_int_equal(event.state, KVF_TRTLLM_STATE_ERROR);
        assert_int_equal(event.status, KVF_ERR_IN_DOUBT);
        assert_string_equal(event.peer, "gen0");
        peer_cancel(&stage.a, 8); /* cannot be acknowledged yet */
        peer_silent(&stage.a);
        assert_int_equal(ctx_status(&stage.ctx, 8).in_doubt, 1);
        assert_int_equal(ctx_close_session(&stage.ctx, 8), KVF_ERR_AGAIN);
        fake_tell(&stage.ctx.fake, 0, ends[i]);
        peer_kv(&stage.a, 8, QUIESCED, 1);
        peer_quiesced(&stage.a, 8);
        assert_int_equal(ctx_status(&stage.ctx, 8).state, KVF_TRTLLM_STATE_ERROR);
        settled(&stage, 8);
        stage_close(&stage);
    }
}

/* Cancelled first, then in doubt. */
static void test_in_doubt_after_a_cancel(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 1);
    ctx_send_open_aux(&stage.ctx, 9);
    peer_ask_aux(&stage.a, 9, 0);
    peer_silent(&stage.a);
    assert_int_equal(ctx_piece(&stage.ctx, 9, 0, 8, 1), KVF_OK);
    assert_int_equal(ctx_cancel(&stage.ctx, 9), KVF_OK);
    ended_cancelled(&stage, 9, 0);
    peer_cancelled(&stage.a, 9);
    fake_tell(&stage.ctx.fake, 0, KVF_TRTLLM_AGENT_IN_DOUBT);
    peer_kv(&stage.a, 9, IN_DOUBT, 1);
    peer_aux(&stage.a, 9, FAILED);
    ctx_no_event(&stage.ctx);
    fake_tell(&stage.ctx.fake, 0, KVF_TRTLLM_AGENT_DONE);
    peer_kv(&stage.a, 9, QUIESCED, 1);
    settled(&stage, 9);
    stage_close(&stage);
}

/* A submit that may have begun and of which nothing more is heard: its memory is never told reusable. */
static void test_in_doubt_for_ever(void **state)
{
    struct stage stage;
    struct kvf_trtllm_event event;

    (void)state;
    stage_init(&stage, 1);
    stage.ctx.options.settle_timeout_ns = 20000000;
    stage_start(&stage);
    ctx_send_open(&stage.ctx, 10);
    peer_ask(&stage.a, 10);
    peer_silent(&stage.a);
    fake_next_submit(&stage.ctx.fake, KVF_ERR_IN_DOUBT);
    assert_int_equal(ctx_piece(&stage.ctx, 10, 0, 8, 1), KVF_OK);
    peer_kv(&stage.a, 10, IN_DOUBT, 1);
    event = ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, 10);
    assert_int_equal(event.status, KVF_ERR_IN_DOUBT);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_OVERDUE, 10);
    assert_int_equal(ctx_status(&stage.ctx, 10).is_quarantined, 1);
    assert_int_equal(ctx_status(&stage.ctx, 10).is_settled, 0);
    assert_int_equal(ctx_close_session(&stage.ctx, 10), KVF_ERR_AGAIN);
    assert_int_equal(ctx_stats(&stage.ctx).unsettled, 1);
    stage_close(&stage);
}

/* What was given up stays so, whatever is heard later; its rank is told all the same, and the session can be closed. */
static void test_late_end_of_what_was_given_up(void **state)
{
    struct stage stage;

    (void)state;
    stage_init(&stage, 1);
    stage.ctx.options.settle_timeout_ns = 20000000;
    stage_start(&stage);
    ctx_send_open(&stage.ctx, 10);
    peer_ask(&stage.a, 10);
    peer_silent(&stage.a);
    assert_int_equal(ctx_piece(&stage.ctx, 10, 0, 8, 1), KVF_OK);
    fake_tell(&stage.ctx.fake, 0, KVF_TRTLLM_AGENT_IN_DOUBT);
    peer_kv(&stage.a, 10, IN_DOUBT, 1);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, 10);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_OVERDUE, 10);
    assert_int_equal(ctx_close_session(&stage.ctx, 10), KVF_ERR_AGAIN);
    fake_tell(&stage.ctx.fake, 0, KVF_TRTLLM_AGENT_DONE);
    peer_kv(&stage.a, 10, QUIESCED, 1);
    ctx_no_event(&stage.ctx);
    assert_int_equal(ctx_status(&stage.ctx, 10).is_quarantined, 1);
    assert_int_equal(ctx_status(&stage.ctx, 10).is_settled, 0);
    assert_int_equal(ctx_status(&stage.ctx, 10).status, KVF_ERR_IN_DOUBT);
    assert_int_equal(ctx_close_session(&stage.ctx, 10), KVF_OK);
    stage_close(&stage);
}

static void test_shutdown_waits_for_writes(void **state)
{
    struct stage stage;
    struct kvf_trtllm_send send;
    struct kvf_error error = {0};

    (void)state;
    stage_open(&stage, 1);
    ctx_send_open(&stage.ctx, 11);
    peer_ask(&stage.a, 11);
    peer_silent(&stage.a);
    assert_int_equal(ctx_piece(&stage.ctx, 11, 0, 8, 1), KVF_OK);
    assert_int_equal(kvf_trtllm_worker_shutdown(stage.ctx.worker, 0, &error), KVF_ERR_TIMEOUT);
    kvf_trtllm_send_init(&send, sizeof send);
    send.rid = 12;
    send.prompt_tokens = 8;
    assert_int_equal(kvf_trtllm_worker_send_open(stage.ctx.worker, &send, &error), KVF_ERR_CLOSED);
    assert_int_equal(ctx_cancel(&stage.ctx, 11), KVF_OK);
    assert_int_equal(kvf_trtllm_worker_shutdown(stage.ctx.worker, 1000000, &error), KVF_ERR_TIMEOUT);
    fake_tell(&stage.ctx.fake, 0, KVF_TRTLLM_AGENT_DONE);
    assert_int_equal(kvf_trtllm_worker_shutdown(stage.ctx.worker, INT64_C(10000000000), &error), KVF_OK);
    stage_close(&stage);
}

/* One rank that fails ends it for all: a sibling's running write still says its own word. */
static void test_one_rank_fails(void **state)
{
    struct stage stage;
    struct kvf_trtllm_event event;

    (void)state;
    stage_open(&stage, 1);
    ctx_send_open(&stage.ctx, 11);
    peer_ask(&stage.a, 11);
    peer_ask(&stage.b, 11);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 11);
    assert_int_equal(ctx_piece(&stage.ctx, 11, 0, 8, 1), KVF_OK);
    fake_until(&stage.ctx.fake, 2);
    fake_tell(&stage.ctx.fake, 0, KVF_TRTLLM_AGENT_FAILED);
    peer_kv(&stage.a, 11, FAILED, 1);
    event = ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, 11);
    assert_int_equal(event.status, KVF_ERR_PEER_LOST);
    assert_non_null(strstr(event.text, "as the test has it"));
    ctx_no_event(&stage.ctx);
    fake_tell(&stage.ctx.fake, 1, KVF_TRTLLM_AGENT_DONE);
    peer_kv(&stage.b, 11, OK, 1);
    settled(&stage, 11);
    stage_close(&stage);
}

/* A submit that never began: FAILED, and the memory is free at once. */
static void test_submit_refused(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 1);
    ctx_send_open(&stage.ctx, 12);
    peer_ask(&stage.a, 12);
    peer_silent(&stage.a);
    fake_next_submit(&stage.ctx.fake, KVF_ERR_UNREACHABLE);
    assert_int_equal(ctx_piece(&stage.ctx, 12, 0, 8, 1), KVF_OK);
    peer_kv(&stage.a, 12, FAILED, 1);
    assert_int_equal(ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, 12).status, KVF_ERR_UNREACHABLE);
    settled(&stage, 12);
    stage_close(&stage);
}

/* Time says so and ends nothing. */
static void test_timeout_is_no_end(void **state)
{
    struct kvf_trtllm_send send;
    struct stage stage;
    struct kvf_trtllm_event event;

    (void)state;
    stage_open(&stage, 1);
    kvf_trtllm_send_init(&send, sizeof send);
    send.prompt_tokens = 8;
    send.timeout_ns = 20000000;
    for (send.rid = 13; send.rid < 15; send.rid++) {
        assert_int_equal(kvf_trtllm_worker_send_open(stage.ctx.worker, &send, NULL), KVF_OK);
        peer_ask(&stage.a, send.rid);
        peer_silent(&stage.a);
        assert_int_equal(ctx_piece(&stage.ctx, send.rid, 0, 8, 1), KVF_OK);
        event = ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_TIMEOUT, send.rid);
        assert_non_null(strstr(event.text, "1 of 2 ranks asked"));
        assert_int_equal(event.state, KVF_TRTLLM_STATE_TRANSFERRING);
    }
    fake_finish_all(&stage.ctx.fake);
    peer_kv(&stage.a, 13, OK, 1);
    peer_kv(&stage.a, 14, OK, 1);
    peer_ask(&stage.b, 13); /* one goes on, */
    fake_until(&stage.ctx.fake, 3);
    fake_finish_all(&stage.ctx.fake);
    peer_kv(&stage.b, 13, OK, 1);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 13);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_PIECE, 13);
    assert_int_equal(ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, 13).state, KVF_TRTLLM_STATE_TRANSFERRED);
    settled(&stage, 13);
    assert_int_equal(ctx_cancel(&stage.ctx, 14), KVF_OK); /* the other is cancelled */
    ended_cancelled(&stage, 14, 0);
    peer_cancelled(&stage.a, 14);
    settled(&stage, 14);
    stage_close(&stage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancelled_while_queued),
        cmocka_unit_test(test_cancelled_by_us_while_writing),
        cmocka_unit_test(test_cancelled_by_peer_while_the_last_piece_is_written),
        cmocka_unit_test(test_cancelled_by_peer_before_anything_is_written),
        cmocka_unit_test(test_cancelled_by_peers_that_did_not_ask_or_are_nameless),
        cmocka_unit_test(test_cancel_of_an_unknown_rid_is_remembered),
        cmocka_unit_test(test_in_doubt_then_over),
        cmocka_unit_test(test_in_doubt_after_a_cancel),
        cmocka_unit_test(test_in_doubt_for_ever),
        cmocka_unit_test(test_late_end_of_what_was_given_up),
        cmocka_unit_test(test_shutdown_waits_for_writes),
        cmocka_unit_test(test_one_rank_fails),
        cmocka_unit_test(test_submit_refused),
        cmocka_unit_test(test_timeout_is_no_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
