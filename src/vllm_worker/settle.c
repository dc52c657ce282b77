/* SPDX-License-Identifier: Apache-2.0 */
/* Wants: how one fails, and when its blocks are its own again. */
#include "vllm_worker/consume.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"

/* ---- the end -------------------------------------------------------------------------------------------------- */

static void tell(const struct kvfi_vllm_want *want, int kind, enum kvf_status status, const char *text)
{
    struct kvfi_vllm_told told = {.kind = kind, .status = status, .started_ns = want->started_ns,
                                  .ended_ns = kvfi_now_ns(), .req_id = want->d_req_id,
                                  .transfer_id = want->transfer_id, .text = text};

    kvfi_vllm_worker_tell(want->worker, &told);
}

static void tell_settled(const struct kvfi_vllm_want *want)
{
    char text[KVF_ERROR_TEXT_BYTES] = "";

    if (want->given_up)
        snprintf(text, sizeof text, "%s%" PRId64 " ms (settle_timeout) after it failed, a peer that was asked for it "
                 "has neither answered nor gone%s", want->pass == NULL ? "not proven: " : "",
                 want->worker->options.settle_timeout_ns / KVFI_MS,
                 want->pass == NULL ? "" : ": what it still writes is refused");
    tell(want, KVF_VLLM_EVENT_SETTLED, want->given_up && want->pass == NULL ? KVF_ERR_IN_DOUBT : KVF_OK, text);
    if (want->given_up)
        kvfi_logf(&want->worker->log, KVF_LOG_WARN, "request %s: %s", want->d_req_id, text);
}

void kvfi_vllm_want_conclude(struct kvfi_vllm_want *want)
{
    kvf_vllm_worker *worker = want->worker;
    struct kvfi_vllm_order *order = want->order;

    if (want->is_counted)
        worker->consumer->unsettled--;
    if (want->failed_ns != 0) {
        tell_settled(want);
    } else {
        worker->stats.requests_received++;
        tell(want, KVF_VLLM_EVENT_RECEIVED, KVF_OK, "");
    }
    kvfi_vllm_want_fini_arrival(want);
    kvfi_table_remove(&worker->consumer->wants, &want->link);
    order->wants[want->index] = NULL;
    order->wants_left--;
    want->order = NULL;
    kvfi_vllm_order_check(order);
    kvfi_vllm_over_add(want);
    kvfi_loop_changed(&worker->loop);
}

/* Nobody is to write into its blocks any more. */
static void finish(struct kvfi_vllm_want *want)
{
    kvfi_timer_disarm(&want->worker->loop.timers, &want->settle_timer);
    if (kvfi_vllm_want_take_back(want))
        kvfi_vllm_want_conclude(want);
}

static void block_step(struct kvfi_vllm_want *want, int kind)
{
    struct kvfi_life_event event = {.kind = kind};
    struct kvfi_actions actions;

    if (kvfi_block_step(&want->block, &event, &actions) == KVFI_VIOLATION)
        kvfi_logf(&want->worker->log, KVF_LOG_ERROR, "request %s: block event %d in state %d", want->d_req_id, kind,
                  want->block.state);
    if (actions.count > 0)
        finish(want);
}

/* ---- failing -------------------------------------------------------------------------------------------------- */

static void report_failed(struct kvfi_vllm_want *want, const char *text)
{
    want->failed_ns = kvfi_now_ns();
    want->worker->stats.failed_recvs++;
    tell(want, KVF_VLLM_EVENT_FAILED, want->life.reason, text);
    kvfi_logf(&want->worker->log, KVF_LOG_WARN, "request %s (transfer %s) failed: %s", want->d_req_id,
              want->transfer_id, text);
}

/* Those that were asked are in doubt from now on, those that were not never will be asked. */
static void stop_writers(struct kvfi_vllm_want *want)
{
    struct kvfi_vllm_order *order = want->order;

    for (size_t i = 0; i < order->fetch_count; i++) {
        struct kvfi_vllm_fetch *fetch = &order->fetches[i];

        kvfi_vllm_want_feed(want, fetch, KVFI_WRITER_ON_STOP, want->life.reason, "");
        /* it said that it does nothing until it is asked again, and will not be */
        if (fetch->state <= KVFI_VLLM_FETCH_CONNECTS)
            kvfi_vllm_want_feed(want, fetch, KVFI_WRITER_ON_FAILED, want->life.reason, "");
    }
}

static void end_block(struct kvfi_vllm_want *want)
{
    kvf_vllm_worker *worker = want->worker;

    if (want->block.accesses > 0) {
        want->is_counted = true;
        worker->consumer->unsettled++;
        if (worker->options.settle_timeout_ns > 0)
            kvfi_timer_arm(&worker->loop.timers, &want->settle_timer,
                           kvfi_deadline_after(worker->options.settle_timeout_ns));
    }
    block_step(want, KVFI_BLOCK_ON_OWNER_ENDED);
}

static void step(struct kvfi_vllm_want *want, const struct kvfi_life_event *event, const char *text)
{
    struct kvfi_actions actions;

    kvfi_transfer_step(&want->life, event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_TRANSFER_DO_REPORT_FAILED:
            report_failed(want, text);
            break;
        case KVFI_TRANSFER_DO_STOP_WRITERS:
            stop_writers(want);
            break;
        case KVFI_TRANSFER_DO_END_BLOCKS: /* always the last */
            end_block(want);
            break;
        default: /* JOIN and ASK are done for the order as a whole; done is told when the blocks are settled */
            break;
        }
    }
}

void kvfi_vllm_want_step(struct kvfi_vllm_want *want, int kind, int64_t value)
{
    struct kvfi_life_event event = {.kind = kind, .value = value, .now_ns = kvfi_now_ns()};

    step(want, &event, "");
}

void kvfi_vllm_want_fail(struct kvfi_vllm_want *want, enum kvf_status status, const char *text)
{
    struct kvfi_life_event event = {.kind = KVFI_TRANSFER_ON_FAIL, .status = status};

    step(want, &event, text);
}

void kvfi_vllm_order_fail(struct kvfi_vllm_order *order, enum kvf_status status, const char *text)
{
    for (size_t i = 0; i < order->want_count; i++)
        if (order->wants[i] != NULL)
            kvfi_vllm_want_fail(order->wants[i], status, text);
}

/* ---- writers -------------------------------------------------------------------------------------------------- */

void kvfi_vllm_want_asked(struct kvfi_vllm_want *want, struct kvfi_vllm_fetch *fetch)
{
    struct kvfi_writer *writer = kvfi_vllm_want_writer(want, fetch);
    struct kvfi_life_event ask = {.kind = KVFI_WRITER_ON_ASK};
    struct kvfi_life_event started = {.kind = KVFI_WRITER_ON_STARTED, .value = KVFI_WRITER_REMOTE};
    struct kvfi_actions actions;

    if (writer->state != KVFI_WRITER_IDLE)
        return; /* asked once more, with arrays */
    block_step(want, KVFI_BLOCK_ON_ACCESS_BEGIN);
    kvfi_writer_step(writer, &ask, &actions);
    /* nobody says when a worker begins: from now on it may write */
    kvfi_writer_step(writer, &started, &actions);
}

/* A worker said that it is finished. With the last of them the bytes are counted, if they are. */
static void writer_done(struct kvfi_vllm_want *want)
{
    bool must_arrive = want->must_arrive;

    kvfi_vllm_want_step(want, KVFI_TRANSFER_ON_WRITER_DONE, 0);
    if (must_arrive && want->life.state == KVFI_TRANSFER_MOVING && want->life.writers_done == want->life.writers - 1)
        kvfi_vllm_want_check_arrival(want);
}

void kvfi_vllm_want_feed(struct kvfi_vllm_want *want, struct kvfi_vllm_fetch *fetch, int kind, enum kvf_status status,
                         const char *text)
{
    struct kvfi_writer *writer = kvfi_vllm_want_writer(want, fetch);
    struct kvfi_life_event event = {.kind = kind, .status = status};
    struct kvfi_actions actions;

    if (kvfi_vllm_writer_over(writer))
        return;
    kvfi_writer_step(writer, &event, &actions);
    if (kvfi_vllm_writer_over(writer) && --fetch->owed == 0)
        kvfi_vllm_fetch_leave(fetch, true);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_WRITER_DO_QUIET: /* ends a want that has failed; then it is the last */
            block_step(want, KVFI_BLOCK_ON_ACCESS_END);
            break;
        case KVFI_WRITER_DO_WORD_DONE:
            writer_done(want);
            break;
        case KVFI_WRITER_DO_WORD_FAILED:
            kvfi_vllm_want_fail(want, writer->reason, text);
            break;
        default: /* the protocol knows no cancel, and nothing of this side stands between a peer and the memory */
            break;
        }
    }
}

/* ---- memory that is given back without proof ------------------------------------------------------------------- */

static void on_overdue(void *owner, struct kvfi_timer *timer)
{
    kvf_vllm_worker *worker = owner;
    struct kvfi_vllm_want *want = KVFI_HOLDER(timer, struct kvfi_vllm_want, settle_timer);
    struct kvfi_vllm_order *order = want->order;
    size_t left = 0;

    want->given_up = true;
    for (size_t i = 0; i < order->fetch_count; i++)
        left += !kvfi_vllm_writer_over(kvfi_vllm_want_writer(want, &order->fetches[i]));
    for (size_t i = 0; left > 0; i++) { /* with the last one the want is over */
        if (kvfi_vllm_writer_over(kvfi_vllm_want_writer(want, &order->fetches[i])))
            continue;
        left--;
        kvfi_vllm_want_feed(want, &order->fetches[i], KVFI_WRITER_ON_GONE, KVF_ERR_IN_DOUBT, "");
    }
    kvfi_vllm_consume_sweep(worker);
}

void kvfi_vllm_want_init(struct kvfi_vllm_want *want, kvf_vllm_worker *worker)
{
    want->worker = worker;
    want->started_ns = kvfi_now_ns();
    want->settle_timer.fire = on_overdue;
    kvfi_vllm_want_init_arrival(want);
    kvfi_transfer_init(&want->life, INT64_MAX);
    kvfi_block_init(&want->block);
}
