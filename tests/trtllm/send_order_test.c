/* SPDX-License-Identifier: Apache-2.0 */
/* Requests before, during and after pieces; pieces in order; who takes part. Bytes cross processes. */
#include "send_kit.h"

#include <string.h>

enum { OK = KVFI_TRTLLM_SUCCESS, FAILED = KVFI_TRTLLM_WRITE_FAILED };

static void all_there(struct stage *stage, int64_t rid)
{
    struct kvf_trtllm_event event;

    ctx_event(&stage->ctx, KVF_TRTLLM_EVENT_PIECE, rid);
    event = ctx_event(&stage->ctx, KVF_TRTLLM_EVENT_ENDED, rid);
    assert_int_equal(event.state, KVF_TRTLLM_STATE_TRANSFERRED);
    assert_int_equal(event.tokens, 8);
    assert_int_equal(event.bytes, 2 * 2 * 4 * 64); /* ranks, layers, blocks */
    ctx_event(&stage->ctx, KVF_TRTLLM_EVENT_SETTLED, rid);
    assert_int_equal(ctx_close_session(&stage->ctx, rid), KVF_OK);
    peer_has_blocks(&stage->ctx, &stage->a, 0, 4);
    peer_has_blocks(&stage->ctx, &stage->b, 0, 4);
    peer_silent(&stage->a);
    peer_silent(&stage->b);
    ctx_no_event(&stage->ctx);
}

static void test_requests_before_the_session(void **state)
{
    struct stage stage;
    struct word word;

    (void)state;
    stage_open(&stage, 0);
    peer_ask(&stage.a, 1);
    peer_ask(&stage.b, 1);
    peer_silent(&stage.a);
    peer_silent(&stage.b);
    ctx_send_open(&stage.ctx, 1);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 1);
    assert_int_equal(ctx_status(&stage.ctx, 1).state, KVF_TRTLLM_STATE_READY);
    assert_int_equal(ctx_piece(&stage.ctx, 1, 0, 8, 1), KVF_OK);
    word = peer_word(&stage.a);
    assert_int_equal(word.tag, KVFI_TRTLLM_KV_AGENT_RESULT);
    assert_int_equal(word.word, OK);
    assert_int_equal(word.is_last, 1);
    assert_int_equal(word.bytes, 2 * 4 * 64);
    peer_kv(&stage.b, 1, OK, 1);
    all_there(&stage, 1);
    assert_int_equal(ctx_stats(&stage.ctx).requests_stored, 2);
    stage_close(&stage);
}

static void test_requests_after_the_piece(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 0);
    ctx_send_open(&stage.ctx, 2);
    assert_int_equal(ctx_piece(&stage.ctx, 2, 0, 8, 1), KVF_OK);
    peer_ask(&stage.a, 2);
    peer_kv(&stage.a, 2, OK, 1);
    assert_int_equal(ctx_status(&stage.ctx, 2).asked, 1);
    assert_int_equal(ctx_status(&stage.ctx, 2).expected, 2);
    peer_ask(&stage.b, 2);
    peer_kv(&stage.b, 2, OK, 1);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 2);
    all_there(&stage, 2);
    stage_close(&stage);
}

/* One before the session, one between two pieces. */
static void test_requests_between_pieces(void **state)
{
    struct stage stage;
    struct kvf_trtllm_event event;

    (void)state;
    stage_open(&stage, 0);
    peer_ask(&stage.a, 3);
    peer_silent(&stage.a);
    ctx_send_open(&stage.ctx, 3);
    assert_int_equal(ctx_piece(&stage.ctx, 3, 0, 4, 0), KVF_OK);
    peer_kv(&stage.a, 3, OK, 0);
    peer_has_blocks(&stage.ctx, &stage.a, 0, 2);
    peer_ask(&stage.b, 3);
    peer_kv(&stage.b, 3, OK, 0);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 3);
    event = ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_PIECE, 3);
    assert_int_equal(event.piece, 0);
    assert_int_equal(event.tokens, 4);
    assert_int_equal(ctx_piece(&stage.ctx, 3, 4, 8, 1), KVF_OK);
    peer_kv(&stage.a, 3, OK, 1);
    peer_kv(&stage.b, 3, OK, 1);
    all_there(&stage, 3);
    stage_close(&stage);
}

static void test_pieces_that_wait_go_in_order_and_the_last_may_be_empty(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 0);
    ctx_send_open(&stage.ctx, 4);
    assert_int_equal(ctx_piece(&stage.ctx, 4, 0, 2, 0), KVF_OK);
    assert_int_equal(ctx_piece(&stage.ctx, 4, 2, 6, 0), KVF_OK);
    assert_int_equal(ctx_piece(&stage.ctx, 4, 6, 8, 0), KVF_OK);
    assert_int_equal(ctx_piece(&stage.ctx, 4, 8, 8, 1), KVF_OK);
    peer_ask(&stage.b, 4);
    for (int i = 0; i < 4; i++) peer_kv(&stage.b, 4, OK, i == 3);
    peer_ask(&stage.a, 4);
    for (int i = 0; i < 4; i++) peer_kv(&stage.a, 4, OK, i == 3);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 4);
    for (int i = 0; i < 3; i++) assert_int_equal(ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_PIECE, 4).piece, i);
    all_there(&stage, 4);
    stage_close(&stage);
}

static void test_a_request_that_comes_twice_is_served_once(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 1);
    peer_ask(&stage.a, 5);
    peer_ask(&stage.a, 5);
    peer_silent(&stage.a);
    ctx_send_open(&stage.ctx, 5);
    peer_ask(&stage.a, 5);
    assert_int_equal(ctx_piece(&stage.ctx, 5, 0, 8, 1), KVF_OK);
    peer_ask(&stage.a, 5);
    peer_silent(&stage.a);
    fake_until(&stage.ctx.fake, 1);
    fake_finish_all(&stage.ctx.fake);
    peer_kv(&stage.a, 5, OK, 1);
    peer_ask(&stage.a, 5);
    peer_silent(&stage.a);
    assert_int_equal(fake_count(&stage.ctx.fake), 1);
    assert_int_equal(ctx_status(&stage.ctx, 5).asked, 1);
    peer_ask(&stage.b, 5);
    fake_until(&stage.ctx.fake, 2);
    fake_finish_all(&stage.ctx.fake);
    peer_kv(&stage.b, 5, OK, 1);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 5);
    all_there(&stage, 5);
    peer_ask(&stage.a, 5); /* after the end: stored, for a session that may come */
    peer_silent(&stage.a);
    stage_close(&stage);
}

/* Only one write of a request to one rank is out, so a FAILED never stands beside a write. */
static void test_one_write_at_a_time_per_request_and_rank(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 1);
    ctx_send_open(&stage.ctx, 6);
    peer_ask(&stage.a, 6);
    peer_ask(&stage.b, 6);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 6);
    assert_int_equal(ctx_piece(&stage.ctx, 6, 0, 4, 0), KVF_OK);
    assert_int_equal(ctx_piece(&stage.ctx, 6, 4, 8, 1), KVF_OK);
    assert_int_equal(fake_count(&stage.ctx.fake), 2);
    fake_tell(&stage.ctx.fake, 1, KVF_TRTLLM_AGENT_DONE);
    fake_until(&stage.ctx.fake, 3);
    assert_string_equal(stage.ctx.fake.writes[2].name, stage.ctx.fake.writes[1].name);
    fake_tell(&stage.ctx.fake, 2, KVF_TRTLLM_AGENT_DONE);
    fake_tell(&stage.ctx.fake, 0, KVF_TRTLLM_AGENT_DONE);
    fake_until(&stage.ctx.fake, 4);
    fake_finish_all(&stage.ctx.fake);
    for (int i = 0; i < 2; i++) {
        peer_kv(&stage.a, 6, OK, i);
        peer_kv(&stage.b, 6, OK, i);
    }
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_PIECE, 6);
    all_there(&stage, 6);
    stage_close(&stage);
}

/* A rank whose writes hang holds up nobody else, and its own requests no more than its share. */
static void test_a_slow_rank_delays_no_other(void **state)
{
    enum { REQUESTS = 40 };
    struct stage stage;
    int slow = 0;

    (void)state;
    stage_open(&stage, 1);
    for (int64_t rid = 0; rid < REQUESTS; rid++) {
        ctx_send_open(&stage.ctx, rid);
        assert_int_equal(ctx_piece(&stage.ctx, rid, 0, 8, 1), KVF_OK);
        peer_ask(&stage.a, rid);
    }
    peer_silent(&stage.a);
    slow = fake_count(&stage.ctx.fake);
    assert_true(slow > 0 && slow < REQUESTS);
    for (int64_t rid = 0; rid < REQUESTS; rid++) {
        int count = fake_count(&stage.ctx.fake);
        peer_ask(&stage.b, rid);
        fake_until(&stage.ctx.fake, count + 1);
        fake_tell(&stage.ctx.fake, count, KVF_TRTLLM_AGENT_DONE);
        peer_kv(&stage.b, rid, OK, 1);
    }
    for (int done = 0; done < REQUESTS; done++) { /* now the slow one's, one by one: as one ends, the next begins */
        int oldest = 0, out = 0;
        fake_until(&stage.ctx.fake, REQUESTS + (slow + done < REQUESTS ? slow + done : REQUESTS));
        for (int i = fake_count(&stage.ctx.fake) - 1; i >= 0; i--)
            if (stage.ctx.fake.writes[i].is_out) out++, oldest = i;
        assert_true(out <= slow);
        fake_tell(&stage.ctx.fake, oldest, KVF_TRTLLM_AGENT_DONE);
        peer_kv(&stage.a, done, OK, 1);
    }
    assert_int_equal(fake_count(&stage.ctx.fake), 2 * REQUESTS);
    peer_silent(&stage.a);
    stage_close(&stage);
}

/* Attention DP: the ranks of another group ask as well, and nobody answers until their requests are stale. */
static void test_leftover_requests_expire(void **state)
{
    struct stage stage;

    (void)state;
    peer_init(&stage.a, "gen", 0, 0);
    peer_init(&stage.b, "gen", 1, 0);
    ctx_init(&stage.ctx, 1);
    assert_true(stage.ctx.options.stale_request_ns == INT64_C(120000000000));
    stage.ctx.options.stale_request_ns = 50000000;
    ctx_open(&stage.ctx);
    peer_open(&stage.a, &stage.ctx);
    peer_open(&stage.b, &stage.ctx);
    peer_register(&stage.a);
    peer_ask(&stage.a, 7);
    peer_ask(&stage.a, 8);
    for (int i = 0; i < 2000 && ctx_stats(&stage.ctx).requests_expired < 2; i++)
        peer_silent(&stage.a);
    assert_int_equal(ctx_stats(&stage.ctx).requests_expired, 2);
    ctx_send_open(&stage.ctx, 7);
    assert_int_equal(ctx_status(&stage.ctx, 7).asked, 0);
    stage_close(&stage);
}

/* Each group of a generation instance with attention DP receives from this rank alone: one rank is expected. */
static void test_one_group_is_expected(void **state)
{
    struct stage stage;
    struct kvf_trtllm_event event;

    (void)state;
    peer_init(&stage.a, "gen", 0, 0);
    peer_init(&stage.b, "gen", 1, 0);
    for (int i = 0; i < 2; i++) {
        struct peer *peer = i == 0 ? &stage.a : &stage.b;
        struct memory memory = peer->memory;
        rank_kit_init(&peer->kit, "gen");
        peer->kit.spec.tp_size = peer->kit.spec.dp_size = 2;
        peer->kit.spec.instance_rank = peer->kit.spec.tp_rank = peer->kit.spec.dp_rank = i;
        peer->kit.attention = (struct kvf_trtllm_attention){.kv_heads_per_rank = 8, .tokens_per_block = 2,
                                                            .dims_per_head = 2, .element_eighths = 16,
                                                            .enable_attention_dp = 1};
        rank_kit_pv(&peer->kit, KVF_TRTLLM_INDEXED, 2, 8, 8);
        peer->kit.pools[0][0].base_address = (uint64_t)(uintptr_t)memory.bytes;
        peer->kit.pools[0][1].base_address = (uint64_t)(uintptr_t)memory.bytes;
    }
    ctx_init(&stage.ctx, 1);
    ctx_open(&stage.ctx);
    peer_open(&stage.a, &stage.ctx);
    peer_open(&stage.b, &stage.ctx);
    peer_register(&stage.a);
    peer_register(&stage.b);
    ctx_send_open(&stage.ctx, 9);
    assert_int_equal(ctx_piece(&stage.ctx, 9, 0, 8, 1), KVF_OK);
    peer_ask(&stage.b, 9);
    event = ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 9);
    assert_int_equal(event.peers, 1);
    fake_until(&stage.ctx.fake, 1);
    peer_ask(&stage.a, 9); /* the other group: it is not this request's */
    peer_kv(&stage.a, 9, FAILED, 1);
    fake_tell(&stage.ctx.fake, 0, KVF_TRTLLM_AGENT_FAILED);
    peer_kv(&stage.b, 9, FAILED, 1);
    event = ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, 9);
    assert_int_equal(event.state, KVF_TRTLLM_STATE_ERROR);
    assert_int_equal(event.status, KVF_ERR_PEER_LOST);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_SETTLED, 9);
    stage_close(&stage);
}

/* A bounce region that is offered is not used: bytes go in place, and the result has no tail. */
static void test_a_bounce_region_is_left_alone(void **state)
{
    struct stage stage;
    struct kvf_trtllm_blocks groups[1];
    struct kvfi_trtllm_ask ask;

    (void)state;
    stage_open(&stage, 0);
    ctx_send_open(&stage.ctx, 10);
    assert_int_equal(ctx_piece(&stage.ctx, 10, 0, 8, 1), KVF_OK);
    peer_ask_init(&stage.a, &ask, groups, 10);
    ask.has_bounce = true;
    ask.bounce_base = (uint64_t)(uintptr_t)stage.a.memory.bytes + 4096;
    peer_ask_for(&stage.a, &ask);
    peer_kv(&stage.a, 10, OK, 1);
    peer_has_blocks(&stage.ctx, &stage.a, 0, 4);
    for (size_t i = 4096; i < 6144; i++) assert_int_equal(stage.a.memory.bytes[i], 0xee);
    stage_close(&stage);
}

/* Polling with nothing to do returns at once. */
static void test_idle_rank(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 1);
    for (int i = 0; i < 1000; i++) ctx_no_event(&stage.ctx);
    assert_int_equal(kvf_trtllm_worker_shutdown(stage.ctx.worker, 0, NULL), KVF_OK);
    stage_close(&stage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_before_the_session),
        cmocka_unit_test(test_requests_after_the_piece),
        cmocka_unit_test(test_requests_between_pieces),
        cmocka_unit_test(test_pieces_that_wait_go_in_order_and_the_last_may_be_empty),
        cmocka_unit_test(test_a_request_that_comes_twice_is_served_once),
        cmocka_unit_test(test_one_write_at_a_time_per_request_and_rank),
        cmocka_unit_test(test_a_slow_rank_delays_no_other),
        cmocka_unit_test(test_leftover_requests_expire),
        cmocka_unit_test(test_one_group_is_expected),
        cmocka_unit_test(test_a_bounce_region_is_left_alone),
        cmocka_unit_test(test_idle_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
