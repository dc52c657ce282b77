/* SPDX-License-Identifier: Apache-2.0 */
/* One pull: a connection of its own to one worker, the question, and the waiting. */
#include "vllm_worker/consume.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"

#define LOOK_NS KVFI_SECOND            /* a connect that takes longer is looked into */
#define LOOK_AT_ONCE_NS (50 * KVFI_MS) /* of a worker that was lost: its sockets close one after the other */

/* ---- lists ------------------------------------------------------------------------------------------------------ */

void kvfi_vllm_fetch_link(struct kvfi_vllm_fetch_list *list, struct kvfi_vllm_fetch *fetch)
{
    kvfi_vllm_fetch_unlink(fetch);
    fetch->list = list;
    fetch->next = NULL;
    fetch->previous = list->tail;
    *(list->tail == NULL ? &list->head : &list->tail->next) = fetch;
    list->tail = fetch;
}

void kvfi_vllm_fetch_unlink(struct kvfi_vllm_fetch *fetch)
{
    struct kvfi_vllm_fetch_list *list = fetch->list;

    if (list == NULL)
        return;
    *(fetch->previous == NULL ? &list->head : &fetch->previous->next) = fetch->next;
    *(fetch->next == NULL ? &list->tail : &fetch->next->previous) = fetch->previous;
    fetch->list = NULL;
    fetch->next = fetch->previous = NULL;
}

/* ---- closing ---------------------------------------------------------------------------------------------------- */

static void hang_up(struct kvfi_vllm_fetch *fetch)
{
    struct kvfi_vllm_consumer *consumer = fetch->order->worker->consumer;

    if (fetch->route.peer == 0)
        return;
    kvfi_channel_disconnect(consumer->channel, &fetch->route);
    kvfi_table_remove(&consumer->routes, &fetch->link);
    consumer->connections--;
    fetch->place->connections--;
    fetch->route = (struct kvfi_route){0};
}

void kvfi_vllm_fetch_leave(struct kvfi_vllm_fetch *fetch, bool close)
{
    struct kvfi_vllm_order *order = fetch->order;

    kvfi_timer_disarm(&order->worker->loop.timers, &fetch->timer);
    kvfi_vllm_fetch_unlink(fetch);
    if (fetch->place != NULL)
        kvfi_vllm_place_unwatch(fetch->place, false);
    hang_up(fetch);
    if (!close || fetch->state == KVFI_VLLM_FETCH_CLOSED)
        return;
    fetch->state = KVFI_VLLM_FETCH_CLOSED;
    if (fetch->place != NULL)
        fetch->place->uses--;
    order->fetches_left--;
    kvfi_vllm_order_check(order);
}

void kvfi_vllm_fetch_feed(struct kvfi_vllm_fetch *fetch, int kind, enum kvf_status status, const char *text)
{
    struct kvfi_vllm_order *order = fetch->order;

    for (size_t i = 0; i < order->want_count; i++)
        if (order->wants[i] != NULL)
            kvfi_vllm_want_feed(order->wants[i], fetch, kind, status, text);
}

void kvfi_vllm_fetch_cut(struct kvfi_vllm_fetch *fetch, enum kvf_status status, const char *text)
{
    struct kvfi_vllm_order *order = fetch->order;

    for (size_t i = 0; i < order->want_count; i++) {
        struct kvfi_vllm_want *want = order->wants[i];
        bool asked = want != NULL && kvfi_vllm_want_writer(want, fetch)->state != KVFI_WRITER_IDLE;

        if (want != NULL)
            kvfi_vllm_want_feed(want, fetch, asked ? KVFI_WRITER_ON_FAILED : KVFI_WRITER_ON_STOP, status, text);
    }
    kvfi_vllm_fetch_leave(fetch, true);
}

/* ---- asking ----------------------------------------------------------------------------------------------------- */

/* Those that it still asks for. */
static size_t gather(const struct kvfi_vllm_fetch *fetch, struct kvfi_vllm_wanted *wanted)
{
    const struct kvfi_vllm_order *order = fetch->order;
    size_t count = 0;

    for (size_t i = 0; i < order->want_count; i++) {
        const struct kvfi_vllm_want *want = order->wants[i];

        if (want == NULL || kvfi_vllm_writer_over(kvfi_vllm_want_writer(want, fetch)))
            continue;
        wanted[count++] = (struct kvfi_vllm_wanted){.d_req_id = want->d_req_id, .transfer_id = want->transfer_id,
                                                    .groups = want->groups, .group_count = want->group_count};
    }
    return count;
}

static enum kvf_status send_pull(struct kvfi_vllm_fetch *fetch, size_t *count, struct kvf_error *error)
{
    kvf_vllm_worker *worker = fetch->order->worker;
    struct kvfi_vllm_wanted *wanted = kvfi_alloc_array(fetch->order->want_count, sizeof *wanted);
    unsigned char *bytes = NULL;
    size_t byte_count = 0;
    enum kvf_status status = KVF_OK;

    if (wanted == NULL)
        return kvfi_fail_memory(error, "a pull");
    *count = gather(fetch, wanted);
    fetch->with_arrays = fetch->must_have_arrays || worker->layout_id == 0 ||
                         fetch->place->acknowledged != worker->layout_id;
    status = kvfi_vllm_pull_encode(&worker->consumer->asker, wanted, *count, fetch->with_arrays, &bytes, &byte_count,
                                   error);
    if (status == KVF_OK)
        status = kvfi_channel_send(worker->consumer->channel, &fetch->route, bytes, byte_count, error);
    free(bytes);
    free(wanted);
    return status;
}

void kvfi_vllm_fetch_wait(struct kvfi_vllm_fetch *fetch)
{
    const struct kvf_vllm_worker_options *options = &fetch->order->worker->options;
    int64_t due_ns = kvfi_deadline_after(options->abort_request_timeout_ns);

    if (due_ns < INT64_MAX - options->receive_slack_ns)
        due_ns += options->receive_slack_ns;
    kvfi_timer_arm(&fetch->order->worker->loop.timers, &fetch->timer, due_ns);
}

/* The connection stands. A message leaves whole or not at all, and no answer is looked at before this returns. */
static void ask(struct kvfi_vllm_fetch *fetch)
{
    struct kvfi_vllm_order *order = fetch->order;
    kvf_vllm_worker *worker = order->worker;
    char text[KVF_ERROR_TEXT_BYTES];
    struct kvf_error error;
    size_t count = 0;
    struct kvfi_vllm_told told = {.kind = KVF_VLLM_EVENT_ASKED, .peer = fetch->address, .started_ns = kvfi_now_ns()};
    enum kvf_status status;

    kvfi_vllm_order_grant(order, fetch);
    if (fetch->state != KVFI_VLLM_FETCH_CONNECTS)
        return; /* none of its wants is left */
    status = send_pull(fetch, &count, &error);
    told.requests = (int64_t)count;
    if (status != KVF_OK) {
        snprintf(text, sizeof text, "transfer failed: %.300s cannot be asked: %.120s", fetch->address, error.text);
        kvfi_vllm_fetch_cut(fetch, status, text);
        return;
    }
    kvfi_vllm_fetch_unlink(fetch);
    kvfi_vllm_place_unwatch(fetch->place, false);
    worker->stats.pulls_sent++;
    kvfi_vllm_worker_tell(worker, &told);
    fetch->state = KVFI_VLLM_FETCH_ASKED;
    kvfi_vllm_fetch_wait(fetch);
    for (size_t i = 0; i < order->want_count; i++)
        if (order->wants[i] != NULL)
            kvfi_vllm_want_asked(order->wants[i], fetch);
}

/* ---- connecting ------------------------------------------------------------------------------------------------- */

static void arm_connecting(struct kvfi_vllm_fetch *fetch)
{
    kvf_vllm_worker *worker = fetch->order->worker;

    kvfi_timer_arm(&worker->loop.timers, &fetch->timer,
                   kvfi_deadline_after(worker->options.connector_timeout_ns));
}

static void wait_in_queue(struct kvfi_vllm_fetch *fetch)
{
    struct kvfi_vllm_consumer *consumer = fetch->order->worker->consumer;

    if (!consumer->told_of_limit)
        kvfi_logf(&fetch->order->worker->log, KVF_LOG_WARN, "%zu pulls are out, at most %zu by the process's limit of "
                  "descriptors (ulimit -n), the last quarter at workers that have none: further ones wait",
                  consumer->connections, consumer->most_connections);
    consumer->told_of_limit = true;
    fetch->state = KVFI_VLLM_FETCH_WAITS;
    kvfi_vllm_fetch_link(&consumer->queue, fetch);
    kvfi_vllm_fetch_wait(fetch);
}

bool kvfi_vllm_fetch_may_connect(const struct kvfi_vllm_fetch *fetch)
{
    const struct kvfi_vllm_consumer *consumer = fetch->order->worker->consumer;
    size_t most = consumer->most_connections, last = most / 4;

    return consumer->connections < most && (consumer->connections < most - last || fetch->place->connections == 0);
}

void kvfi_vllm_fetch_connect(struct kvfi_vllm_fetch *fetch)
{
    struct kvfi_vllm_consumer *consumer = fetch->order->worker->consumer;
    char text[KVF_ERROR_TEXT_BYTES];
    struct kvf_error error;
    enum kvf_status status = KVF_ERR_LIMIT;

    if (kvfi_vllm_fetch_may_connect(fetch))
        status = kvfi_channel_connect(consumer->channel, fetch->place->endpoint, &fetch->route, &error);
    if (status == KVF_ERR_LIMIT && consumer->connections > 0) {
        wait_in_queue(fetch);
        return;
    }
    if (status != KVF_OK) {
        snprintf(text, sizeof text, "transfer failed: %.300s: %.150s", fetch->address, error.text);
        kvfi_vllm_fetch_cut(fetch, status, text);
        return;
    }
    kvfi_vllm_fetch_link(&fetch->place->connecting, fetch);
    kvfi_vllm_place_watch(fetch->place, LOOK_NS);
    fetch->state = KVFI_VLLM_FETCH_CONNECTS;
    consumer->connections++;
    fetch->place->connections++;
    kvfi_table_insert(&consumer->routes, &fetch->link, &fetch->route.peer, sizeof fetch->route.peer);
    arm_connecting(fetch);
}

/* ---- what does not come ----------------------------------------------------------------------------------------- */

void kvfi_vllm_fetch_cannot_reach(struct kvfi_vllm_fetch *fetch, const char *why)
{
    char text[KVF_ERROR_TEXT_BYTES];

    fetch->order->remote->is_suspect = true;
    fetch->place->looked_up_ns = 0;
    fetch->place->acknowledged = 0;
    snprintf(text, sizeof text, "transfer failed: %.300s %.150s", fetch->address, why);
    kvfi_vllm_fetch_cut(fetch, KVF_ERR_UNREACHABLE, text);
}

static void cannot_reach(struct kvfi_vllm_fetch *fetch)
{
    kvf_vllm_worker *worker = fetch->order->worker;
    char why[128];

    if (fetch->list == &worker->consumer->queue)
        snprintf(why, sizeof why, "was not asked: %zu connections are in use", worker->consumer->connections);
    else
        snprintf(why, sizeof why, "%s within %" PRId64 " ms",
                 fetch->state == KVFI_VLLM_FETCH_WAITS ? "was not looked up" : "cannot be reached",
                 worker->options.connector_timeout_ns / KVFI_MS);
    kvfi_vllm_fetch_cannot_reach(fetch, why);
}

static void give_up(struct kvfi_vllm_fetch *fetch)
{
    const struct kvf_vllm_worker_options *options = &fetch->order->worker->options;
    char text[KVF_ERROR_TEXT_BYTES];

    fetch->order->remote->is_suspect = true;
    fetch->state = KVFI_VLLM_FETCH_LATE;
    snprintf(text, sizeof text, "transfer failed: Resource temporarily unavailable: no answer of %.300s within %" PRId64
             " ms", fetch->address, (options->abort_request_timeout_ns + options->receive_slack_ns) / KVFI_MS);
    kvfi_vllm_fetch_feed(fetch, KVFI_WRITER_ON_STOP, KVF_ERR_TIMEOUT, text);
}

static void on_timer(void *owner, struct kvfi_timer *timer)
{
    struct kvfi_vllm_fetch *fetch = KVFI_HOLDER(timer, struct kvfi_vllm_fetch, timer);
    kvf_vllm_worker *worker = owner;

    if (kvfi_now_ns() < worker->forgiven_until_ns) {
        kvfi_timer_arm(&worker->loop.timers, timer, worker->forgiven_until_ns);
        return;
    }
    if (fetch->state == KVFI_VLLM_FETCH_ASKED)
        give_up(fetch);
    else
        cannot_reach(fetch);
    kvfi_vllm_consume_sweep(owner);
}

/* Its answer would go to a connection that is no more. */
static void lose(struct kvfi_vllm_fetch *fetch)
{
    char text[KVF_ERROR_TEXT_BYTES];

    snprintf(text, sizeof text, "transfer failed: the connection to %.300s broke before it had answered",
             fetch->address);
    fetch->order->remote->is_suspect = true;
    fetch->place->acknowledged = 0; /* who comes back there may be another one */
    kvfi_vllm_fetch_leave(fetch, false);
    fetch->state = KVFI_VLLM_FETCH_LOST;
    fetch->place->silent_refusals = 0; /* those before say nothing of this one */
    kvfi_vllm_fetch_link(&fetch->place->lost, fetch);
    kvfi_vllm_fetch_feed(fetch, KVFI_WRITER_ON_STOP, KVF_ERR_PEER_LOST, text);
    if (fetch->state == KVFI_VLLM_FETCH_LOST)
        kvfi_vllm_place_watch(fetch->place, LOOK_AT_ONCE_NS);
}

/* ---- from the channel ------------------------------------------------------------------------------------------- */

static struct kvfi_vllm_fetch *find(const kvf_vllm_worker *worker, const struct kvfi_route *route)
{
    struct kvfi_link *link = kvfi_table_find(&worker->consumer->routes, &route->peer, sizeof route->peer);

    return link == NULL ? NULL : KVFI_HOLDER(link, struct kvfi_vllm_fetch, link);
}

static void on_link(void *context, const struct kvfi_route *to, bool up)
{
    struct kvfi_vllm_fetch *fetch = find(context, to);

    if (fetch == NULL)
        return;
    if (up && fetch->state == KVFI_VLLM_FETCH_CONNECTS)
        ask(fetch);
    else if (!up && fetch->state > KVFI_VLLM_FETCH_CONNECTS)
        lose(fetch);
    kvfi_vllm_consume_sweep(context);
}

static void on_message(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count)
{
    struct kvfi_vllm_fetch *fetch = find(context, from);

    if (fetch == NULL)
        return;
    kvfi_vllm_fetch_answer(fetch, bytes, byte_count);
    kvfi_vllm_consume_sweep(context);
}

static void on_refusal(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count,
                       const struct kvf_error *error)
{
    struct kvfi_vllm_fetch *fetch = find(context, from);

    (void)bytes;
    (void)byte_count;
    if (fetch == NULL)
        return;
    kvfi_vllm_fetch_garbage(fetch, error->text);
    kvfi_vllm_consume_sweep(context);
}

const struct kvfi_dialect kvfi_vllm_consumer_dialect = {
    .name = "vllm consumer", .handle = on_message, .refuse = on_refusal, .link = on_link};

/* ---- beginning -------------------------------------------------------------------------------------------------- */

void kvfi_vllm_fetch_begin(struct kvfi_vllm_fetch *fetch)
{
    struct kvf_error error;
    enum kvf_status status;

    if (fetch->state == KVFI_VLLM_FETCH_CLOSED)
        return; /* its wants have failed meanwhile */
    fetch->timer.fire = on_timer;
    status = kvfi_vllm_place_get(fetch->order->worker, fetch->address, &fetch->place, &error);
    if (status != KVF_OK) {
        kvfi_vllm_fetch_cut(fetch, status, error.text);
        return;
    }
    fetch->place->uses++;
    arm_connecting(fetch);
    if (kvfi_vllm_place_resolve(fetch))
        kvfi_vllm_fetch_connect(fetch);
}
