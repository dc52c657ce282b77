/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation that a worker's thread makes while it registers ranks, takes their requests and sends is refused in
 * turn: it gives no end but those that are known, leaks nothing, and what comes later works. */
#include "send_kit.h"

#include <poll.h>

#include "base/no_memory_kit.h"
#include "sys/clock.h"

enum { OK = KVFI_TRTLLM_SUCCESS, MOST = 2000 };

/* Waits until the worker took so many registrations and requests; what it could not even read is not waited for. */
static void handled(struct ctx *ctx, int64_t registrations, int64_t requests)
{
    int64_t deadline = kvfi_now_ns() + 100 * KVFI_MS;
    struct kvf_trtllm_worker_stats stats;

    do {
        stats = ctx_stats(ctx);
        if (stats.registered + stats.registrations_refused >= registrations &&
            stats.requests_received + stats.malformed >= requests)
            return;
        poll(NULL, 0, 1);
    } while (kvfi_now_ns() < deadline);
}

static int open_session(struct ctx *ctx, int64_t rid)
{
    struct kvf_trtllm_send send;

    kvf_trtllm_send_init(&send, sizeof send);
    send.rid = rid;
    send.prompt_tokens = 8;
    send.schedule = KVF_TRTLLM_GENERATION_FIRST;
    return (int)kvf_trtllm_worker_send_open(ctx->worker, &send, NULL);
}

static void known(int status)
{
    if (status != KVF_OK && status != KVF_ERR_NO_MEMORY && status != KVF_ERR_AGAIN && status != KVF_ERR_NOT_FOUND &&
        status != KVF_ERR_INVALID_ARGUMENT && status != KVF_ERR_EXISTS && status != KVF_ERR_INCOMPATIBLE)
        fail_msg("status %d", status);
}

/* All of a request, with refusals somewhere in it. */
static bool send_one(struct stage *stage, long allowed)
{
    int opened;

    no_memory_from(allowed);
    peer_register(&stage->a);
    peer_ask_aux(&stage->a, 1, 0);
    handled(&stage->ctx, 1, 1);
    opened = open_session(&stage->ctx, 1);
    known(opened);
    known(ctx_piece(&stage->ctx, 1, 0, 4, 0));
    peer_register(&stage->b);
    peer_ask_aux(&stage->b, 1, 1);
    handled(&stage->ctx, 2, 2);
    fake_finish_all(&stage->ctx.fake);
    known(ctx_piece(&stage->ctx, 1, 4, 8, 1));
    known((int)kvf_trtllm_worker_send_aux(stage->ctx.worker, 1, 2, NULL));
    fake_finish_all(&stage->ctx.fake);
    peer_cancel(&stage->a, 1);
    peer_cancel(&stage->b, 2);
    peer_ask(&stage->b, 3);
    handled(&stage->ctx, 2, 3);
    no_memory_end();
    if (opened == KVF_OK) ctx_cancel(&stage->ctx, 1);
    return no_memory_refused();
}

static void settle(struct stage *stage)
{
    struct kvf_trtllm_event event;
    bool ended = false;

    if (ctx_stats(&stage->ctx).sends_done + ctx_stats(&stage->ctx).sends_failed == 0) return; /* it was never opened */
    do {
        fake_finish_all(&stage->ctx.fake);
        if (kvf_trtllm_worker_wait(stage->ctx.worker, &event, 1, KVFI_MS) != 1) continue;
        if (event.kind == KVF_TRTLLM_EVENT_SETTLED) break;
        assert_false(ended && event.kind == KVF_TRTLLM_EVENT_ENDED);
        ended |= event.kind == KVF_TRTLLM_EVENT_ENDED;
    } while (true);
    assert_true(ended);
    assert_int_equal(ctx_close_session(&stage->ctx, 1), KVF_OK);
}

/* With memory again everything works. */
static void send_well(struct stage *stage)
{
    struct kvf_trtllm_event event;

    peer_register(&stage->a);
    peer_register(&stage->b);
    peer_catch_up(&stage->a);
    peer_catch_up(&stage->b);
    stage->a.head = stage->a.tail;
    stage->b.head = stage->b.tail;
    ctx_send_open(&stage->ctx, 4);
    peer_ask(&stage->a, 4);
    peer_ask(&stage->b, 4);
    ctx_event(&stage->ctx, KVF_TRTLLM_EVENT_READY, 4);
    assert_int_equal(ctx_piece(&stage->ctx, 4, 0, 8, 1), KVF_OK);
    do {
        fake_finish_all(&stage->ctx.fake);
    } while (kvf_trtllm_worker_wait(stage->ctx.worker, &event, 1, KVFI_MS) != 1);
    assert_int_equal(event.kind, KVF_TRTLLM_EVENT_PIECE);
    event = ctx_event(&stage->ctx, KVF_TRTLLM_EVENT_ENDED, 4);
    assert_int_equal(event.state, KVF_TRTLLM_STATE_TRANSFERRED);
    ctx_event(&stage->ctx, KVF_TRTLLM_EVENT_SETTLED, 4);
    peer_has_blocks(&stage->ctx, &stage->a, 0, 4);
    peer_has_blocks(&stage->ctx, &stage->b, 0, 4);
}

static void test_refused_allocations(void **state)
{
    bool again = true;
    long allowed = 0;

    (void)state;
    for (; again; allowed++) {
        struct stage stage;

        assert_true(allowed < MOST);
        stage_init(&stage, 1);
        ctx_open(&stage.ctx);
        peer_open(&stage.a, &stage.ctx);
        peer_open(&stage.b, &stage.ctx);
        again = send_one(&stage, allowed);
        settle(&stage);
        send_well(&stage);
        stage_close(&stage);
    }
    print_message("%ld allocations\n", allowed);
    assert_true(allowed > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused_allocations)};

    no_memory_spare_thread();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
