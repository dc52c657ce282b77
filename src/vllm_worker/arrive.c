/* SPDX-License-Identifier: Apache-2.0 */
/* What of a consumer's memory peers may write, and whether they did: blocks are granted before their request is asked
 * for anywhere, counted when all who were asked have said that it is finished, and taken back when it is settled.
 *
 * A writer of data protocol 1 says that it is finished when it has sent all; its bytes may come later. Those that wait,
 * for bytes or for quiet, are looked at when a guard tells news, at most once in PAUSE_NS. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "vllm_worker/consume.h"

#define PAUSE_NS (2 * KVFI_MS)
#define LOOK_NS (5 * KVFI_SECOND) /* a connection that does not close so long is told of */

/* ---- those that wait -------------------------------------------------------------------------------------------- */

static void wait_for_news(struct kvfi_vllm_want *want)
{
    struct kvfi_vllm_consumer *consumer = want->worker->consumer;

    if (want->waits)
        return;
    want->waits = true;
    want->previous_waiting = NULL;
    want->next_waiting = consumer->waiting;
    if (consumer->waiting != NULL)
        consumer->waiting->previous_waiting = want;
    consumer->waiting = want;
}

static void stop_waiting(struct kvfi_vllm_want *want)
{
    struct kvfi_vllm_consumer *consumer = want->worker->consumer;

    kvfi_timer_disarm(&want->worker->loop.timers, &want->arrive_timer);
    if (!want->waits)
        return;
    want->waits = false;
    *(want->previous_waiting == NULL ? &consumer->waiting : &want->previous_waiting->next_waiting) = want->next_waiting;
    if (want->next_waiting != NULL)
        want->next_waiting->previous_waiting = want->previous_waiting;
}

/* ---- granting --------------------------------------------------------------------------------------------------- */

void kvfi_vllm_order_grant(struct kvfi_vllm_order *order, const struct kvfi_vllm_fetch *fetch)
{
    struct kvfi_vllm_gates *gates = order->worker->consumer->gates;
    struct kvf_error error;

    for (size_t i = 0; gates != NULL && i < order->want_count; i++) {
        struct kvfi_vllm_want *want = order->wants[i];
        enum kvf_status status;

        if (want == NULL || want->pass != NULL || kvfi_vllm_writer_over(kvfi_vllm_want_writer(want, fetch)))
            continue;
        status = kvfi_vllm_pass_grant(gates, want->groups, want->group_count, &want->pass, &error);
        if (status != KVF_OK)
            kvfi_vllm_want_fail(want, status, error.text);
    }
}

/* ---- taking back ------------------------------------------------------------------------------------------------ */

bool kvfi_vllm_want_take_back(struct kvfi_vllm_want *want)
{
    if (kvfi_vllm_pass_revoke(want->pass))
        return true;
    want->is_over = true;
    wait_for_news(want);
    kvfi_timer_arm(&want->worker->loop.timers, &want->arrive_timer, kvfi_now_ns() + LOOK_NS);
    kvfi_vllm_gates_ask_news(want->pass->gates);
    return kvfi_vllm_pass_revoke(want->pass);
}

/* ---- counting --------------------------------------------------------------------------------------------------- */

/* Whom it was asked of. */
static void name_producers(const struct kvfi_vllm_order *order, char *text, size_t capacity)
{
    if (order->fetch_count == 1)
        snprintf(text, capacity, "%.120s", order->fetches[0].address);
    else
        snprintf(text, capacity, "%.120s and %zu more", order->fetches[0].address, order->fetch_count - 1);
}

/* The deadline has passed. */
static void fail_short(struct kvfi_vllm_want *want)
{
    kvf_vllm_worker *worker = want->worker;
    char producers[160], text[KVF_ERROR_TEXT_BYTES];
    struct kvfi_vllm_arrived arrived;

    kvfi_vllm_pass_count(want->pass, &arrived);
    name_producers(want->order, producers, sizeof producers);
    snprintf(text, sizeof text, "transfer incomplete: %s said that request %.60s is finished, but of %" PRId64 " bytes "
             "%" PRId64 " arrived within %" PRId64 " ms; block %" PRId64 " has %" PRId64 " of %" PRId64 " bytes in the "
             "layers that go with %.60s", producers, want->d_req_id, arrived.expected, arrived.found,
             worker->options.arrival_timeout_ns / KVFI_MS, arrived.block, arrived.block_found, arrived.block_bytes,
             arrived.layer_name == NULL ? "" : arrived.layer_name);
    worker->stats.short_arrivals++;
    kvfi_vllm_want_fail(want, KVF_ERR_INCOMPLETE_TRANSFER, text);
}

void kvfi_vllm_want_check_arrival(struct kvfi_vllm_want *want)
{
    kvf_vllm_worker *worker = want->worker;

    if (kvfi_vllm_pass_has_arrived(want->pass)) {
        kvfi_vllm_want_step(want, KVFI_TRANSFER_ON_WRITER_DONE, 0);
        return;
    }
    wait_for_news(want);
    kvfi_timer_arm(&worker->loop.timers, &want->arrive_timer,
                   kvfi_deadline_after(worker->options.arrival_timeout_ns));
    kvfi_vllm_gates_ask_news(want->pass->gates);
    if (!kvfi_vllm_pass_has_arrived(want->pass))
        return;
    stop_waiting(want);
    worker->stats.late_arrivals++;
    kvfi_vllm_want_step(want, KVFI_TRANSFER_ON_WRITER_DONE, 0);
}

static void on_due(void *owner, struct kvfi_timer *timer)
{
    kvf_vllm_worker *worker = owner;
    struct kvfi_vllm_want *want = KVFI_HOLDER(timer, struct kvfi_vllm_want, arrive_timer);

    if (want->is_over) {
        kvfi_logf(&worker->log, KVF_LOG_WARN, "request %s: a peer's write into its blocks is broken off, and has not "
                  "ended", want->d_req_id);
        kvfi_timer_arm(&worker->loop.timers, timer, kvfi_now_ns() + LOOK_NS);
    } else if (kvfi_now_ns() < worker->forgiven_until_ns) {
        kvfi_timer_arm(&worker->loop.timers, timer, worker->forgiven_until_ns);
    } else {
        stop_waiting(want);
        if (kvfi_vllm_pass_has_arrived(want->pass))
            kvfi_vllm_want_step(want, KVFI_TRANSFER_ON_WRITER_DONE, 0);
        else
            fail_short(want);
    }
    kvfi_vllm_consume_sweep(worker);
}

/* ---- news ------------------------------------------------------------------------------------------------------- */

static void look_at(struct kvfi_vllm_want *want)
{
    if (want->is_over) {
        if (!kvfi_vllm_pass_revoke(want->pass))
            return;
        stop_waiting(want);
        kvfi_vllm_want_conclude(want);
    } else if (kvfi_vllm_pass_has_arrived(want->pass)) {
        stop_waiting(want);
        want->worker->stats.late_arrivals++;
        kvfi_vllm_want_step(want, KVFI_TRANSFER_ON_WRITER_DONE, 0);
    }
}

static void look_at_all(kvf_vllm_worker *worker)
{
    struct kvfi_vllm_want *want = worker->consumer->waiting;

    while (want != NULL) {
        struct kvfi_vllm_want *next = want->next_waiting; /* one that is looked at may end */

        look_at(want);
        want = next;
    }
    kvfi_vllm_consume_sweep(worker);
}

/* Called by a data thread. */
static void on_news(void *context)
{
    const struct kvfi_vllm_consumer *consumer = context;

    eventfd_write(consumer->news.fd, 1);
}

/* Whoever still waits then asks again after a pause, so that a busy peer is not looked at for each of its requests. */
static void on_told(void *owner, struct kvfi_watch *watch)
{
    kvf_vllm_worker *worker = owner;
    eventfd_t ignored;

    eventfd_read(watch->fd, &ignored);
    look_at_all(worker);
    if (worker->consumer->waiting != NULL && !worker->consumer->news_timer.armed)
        kvfi_timer_arm(&worker->loop.timers, &worker->consumer->news_timer, kvfi_now_ns() + PAUSE_NS);
}

static void on_pause_over(void *owner, struct kvfi_timer *timer)
{
    kvf_vllm_worker *worker = owner;

    (void)timer;
    if (worker->consumer->gates != NULL)
        kvfi_vllm_gates_ask_news(worker->consumer->gates);
    look_at_all(worker);
}

/* ---- made and freed --------------------------------------------------------------------------------------------- */

void kvfi_vllm_want_init_arrival(struct kvfi_vllm_want *want) { want->arrive_timer.fire = on_due; }

void kvfi_vllm_want_fini_arrival(struct kvfi_vllm_want *want)
{
    stop_waiting(want);
    kvfi_vllm_pass_free(want->pass);
    want->pass = NULL;
}

enum kvf_status kvfi_vllm_arrivals_open(kvf_vllm_worker *worker, struct kvfi_vllm_consumer *consumer,
                                        struct kvf_error *error)
{
    consumer->news_timer.fire = on_pause_over;
    consumer->news = (struct kvfi_watch){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = on_told};
    if (consumer->news.fd < 0)
        return kvfi_fail(error, KVF_ERR_SYSTEM, "eventfd: %s", strerror(errno));
    return kvfi_loop_watch(&worker->loop, &consumer->news, error);
}

void kvfi_vllm_arrivals_close(kvf_vllm_worker *worker, struct kvfi_vllm_consumer *consumer)
{
    kvfi_timer_disarm(&worker->loop.timers, &consumer->news_timer);
    kvfi_vllm_gates_close(consumer->gates);
    consumer->gates = NULL;
    if (consumer->news.fd < 0)
        return;
    kvfi_loop_unwatch(&worker->loop, &consumer->news);
    close(consumer->news.fd);
}

enum kvf_status kvfi_vllm_consumer_guard(kvf_vllm_worker *worker, const kvf_vllm_regions *regions,
                                         const struct kvf_vllm_storage *memory, size_t memory_count,
                                         struct kvfi_vllm_gates **out, struct kvf_error *error)
{
    const struct kvfi_vllm_id_facts facts = {.group_kinds = worker->options.group_kinds,
                                             .group_count = worker->options.group_count,
                                             .kernel_blocks_per_block = worker->options.kernel_blocks_per_block};

    *out = NULL;
    if (!worker->options.check_grants)
        return KVF_OK;
    return kvfi_vllm_gates_open(worker->engine, regions, memory, memory_count, &facts, on_news, worker->consumer, out,
                                error);
}
