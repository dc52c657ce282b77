/* SPDX-License-Identifier: Apache-2.0 */
/* The consumer half as a whole: made, turned, freed. */
#include "vllm_worker/consume.h"

#include <stdlib.h>
#include <sys/resource.h>

#include "base/array.h"
#include "base/error.h"

/* ---- what has ended --------------------------------------------------------------------------------------------- */

void kvfi_vllm_order_check(struct kvfi_vllm_order *order)
{
    struct kvfi_vllm_consumer *consumer = order->worker->consumer;

    if (order->ended || order->wants_left > 0 || order->fetches_left > 0)
        return;
    order->ended = true;
    order->next = consumer->ended;
    consumer->ended = order;
}

void kvfi_vllm_order_free(struct kvfi_vllm_order *order)
{
    if (order->remote != NULL)
        order->remote->uses--;
    kvfi_vllm_engine_release(order->engine);
    free(order->bootstrap);
    free(order->wants);
    free(order->fetches);
    free(order->writers);
    free(order);
}

/* The first of those that wait for a connection and may have one now. */
static struct kvfi_vllm_fetch *next_in_queue(const struct kvfi_vllm_consumer *consumer)
{
    struct kvfi_vllm_fetch *fetch = consumer->queue.head;

    if (consumer->connections >= consumer->most_connections)
        return NULL;
    while (fetch != NULL && !kvfi_vllm_fetch_may_connect(fetch))
        fetch = fetch->next;
    return fetch;
}

/* Connections got free: those that wait for one have their turn. */
static void serve_queue(struct kvfi_vllm_consumer *consumer)
{
    struct kvfi_vllm_fetch *fetch;

    while ((fetch = next_in_queue(consumer)) != NULL) {
        kvfi_vllm_fetch_connect(fetch);
        if (fetch->list == &consumer->queue)
            return; /* not even now */
    }
}

void kvfi_vllm_consume_sweep(kvf_vllm_worker *worker)
{
    struct kvfi_vllm_consumer *consumer = worker->consumer;

    serve_queue(consumer);
    while (consumer->ended != NULL) {
        struct kvfi_vllm_order *order = consumer->ended;

        consumer->ended = order->next;
        kvfi_vllm_order_free(order);
    }
}

/* ---- made and freed --------------------------------------------------------------------------------------------- */

void kvfi_vllm_consumer_look(kvf_vllm_worker *worker)
{
    kvfi_channel_dispatch(worker->consumer->channel, &kvfi_vllm_consumer_dialect, worker);
}

static void on_ready(void *owner, struct kvfi_watch *watch)
{
    (void)watch;
    kvfi_vllm_consumer_look(owner);
}

/* Half of the process's descriptors are left to others. */
static size_t most_connections(void)
{
    struct rlimit files;
    size_t most = KVFI_VLLM_MAX_FETCHES;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 2 / KVFI_VLLM_FETCH_FDS < most)
        most = (size_t)(files.rlim_cur / 2 / KVFI_VLLM_FETCH_FDS);
    return most < KVFI_VLLM_MIN_FETCHES ? KVFI_VLLM_MIN_FETCHES : most;
}

static enum kvf_status open_channel(kvf_vllm_worker *worker, struct kvfi_vllm_consumer *consumer,
                                    struct kvf_error *error)
{
    struct kvfi_channel_options options = {.connect_only = true,
                                           .watch_links = true,
                                           .max_message_bytes = worker->options.max_message_bytes,
                                           .log = &worker->log};
    enum kvf_status status = kvfi_channel_open(&options, &consumer->channel, error);

    if (status != KVF_OK)
        return status;
    consumer->watch = (struct kvfi_watch){.fd = kvfi_channel_fd(consumer->channel), .ready = on_ready};
    return kvfi_loop_watch(&worker->loop, &consumer->watch, error);
}

enum kvf_status kvfi_vllm_consumer_create(kvf_vllm_worker *worker, struct kvfi_vllm_consumer **out,
                                          struct kvf_error *error)
{
    struct kvfi_vllm_consumer *consumer = kvfi_alloc_zeroed(1, sizeof *consumer);
    enum kvf_status status;

    if (consumer == NULL)
        return kvfi_fail_memory(error, "the consumer half");
    *out = consumer; /* what is there is destroyed with the worker */
    consumer->watch.fd = consumer->news.fd = -1;
    consumer->most_connections = most_connections();
    if (!kvfi_table_init(&consumer->wants) || !kvfi_table_init(&consumer->remotes) ||
        !kvfi_table_init(&consumer->places) || !kvfi_table_init(&consumer->routes))
        return kvfi_fail_memory(error, "the consumer half");
    status = kvfi_vllm_lookup_create(&worker->loop, kvfi_vllm_consumer_on_looked_up, &consumer->lookup, error);
    if (status == KVF_OK)
        status = kvfi_vllm_arrivals_open(worker, consumer, error);
    if (status == KVF_OK)
        status = open_channel(worker, consumer, error);
    return status;
}

/* All wants of a table, with their orders and fetches; nothing is told any more. */
static void free_wants(kvf_vllm_worker *worker, struct kvfi_vllm_consumer *consumer)
{
    struct kvfi_link *link;

    while ((link = kvfi_table_any(&consumer->wants)) != NULL) {
        struct kvfi_vllm_want *want = KVFI_HOLDER(link, struct kvfi_vllm_want, link);
        struct kvfi_vllm_order *order = want->order;

        kvfi_timer_disarm(&worker->loop.timers, &want->settle_timer);
        kvfi_vllm_want_fini_arrival(want);
        kvfi_table_remove(&consumer->wants, link);
        order->wants[want->index] = NULL;
        order->wants_left--;
        free(want);
        if (order->wants_left > 0)
            continue;
        for (size_t i = 0; i < order->fetch_count; i++)
            kvfi_vllm_fetch_leave(&order->fetches[i], true);
        kvfi_vllm_order_check(order);
    }
}

static void free_tables(kvf_vllm_worker *worker, struct kvfi_vllm_consumer *consumer)
{
    struct kvfi_link *link;

    while (consumer->remotes.buckets != NULL && (link = kvfi_table_any(&consumer->remotes)) != NULL)
        kvfi_vllm_remote_destroy(worker, KVFI_HOLDER(link, struct kvfi_vllm_remote, link));
    while (consumer->places.buckets != NULL && (link = kvfi_table_any(&consumer->places)) != NULL)
        kvfi_vllm_place_destroy(worker, KVFI_HOLDER(link, struct kvfi_vllm_place, link));
    kvfi_table_fini(&consumer->wants);
    kvfi_table_fini(&consumer->remotes);
    kvfi_table_fini(&consumer->places);
    kvfi_table_fini(&consumer->routes);
}

void kvfi_vllm_consumer_destroy(kvf_vllm_worker *worker, struct kvfi_vllm_consumer *consumer)
{
    if (consumer == NULL)
        return;
    kvfi_vllm_lookup_destroy(consumer->lookup);
    if (consumer->wants.buckets != NULL) {
        free_wants(worker, consumer);
        kvfi_vllm_over_clear(worker);
        kvfi_vllm_consume_sweep(worker);
    }
    free_tables(worker, consumer);
    kvfi_vllm_arrivals_close(worker, consumer);
    if (consumer->watch.fd >= 0)
        kvfi_loop_unwatch(&worker->loop, &consumer->watch);
    kvfi_channel_close(consumer->channel, 0);
    kvfi_vllm_asker_fini(&consumer->asker);
    free(consumer);
    worker->consumer = NULL;
}

/* ---- what the shell asks ---------------------------------------------------------------------------------------- */

struct kvfi_vllm_gates *kvfi_vllm_consumer_on_registered(kvf_vllm_worker *worker, struct kvfi_vllm_gates *gates)
{
    struct kvfi_vllm_consumer *consumer = worker->consumer;
    struct kvfi_vllm_gates *old = consumer->gates;

    consumer->gates = gates;
    if (consumer->asker_made)
        kvfi_vllm_asker_fini(&consumer->asker);
    consumer->asker_made = false; /* and with another layout id nothing is acknowledged */
    return old;
}

int64_t kvfi_vllm_consumer_busy(const kvf_vllm_worker *worker) { return (int64_t)worker->consumer->wants.count; }

void kvfi_vllm_consumer_gauge(const kvf_vllm_worker *worker, struct kvf_vllm_worker_stats *stats)
{
    stats->unsettled = worker->consumer->unsettled;
    stats->engines = worker->consumer->engines;
    stats->ignored_ids = worker->consumer->ignored_ids;
    stats->refused_accesses = kvfi_vllm_worker_refused(worker);
}
