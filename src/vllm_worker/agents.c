/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of producers: what registries say of them, kept for a while, asked again where there is a reason to. */
#include "vllm_worker/consume.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"

#define PAUSE_NS KVFI_SECOND         /* between two questions for the same reason */
#define PATIENCE_NS KVFI_SECOND      /* with a complete engine that is merely old */
#define MORE_PATIENCE_NS (5 * KVFI_SECOND)

/* ---- what is known ---------------------------------------------------------------------------------------------- */

static void set_engine(struct kvfi_vllm_remote *remote, const struct kvfi_vllm_engine *engine)
{
    struct kvfi_vllm_consumer *consumer = remote->worker->consumer;

    consumer->engines += (engine != NULL) - (remote->engine != NULL);
    kvfi_vllm_engine_release(remote->engine);
    remote->engine = engine == NULL ? NULL : kvfi_vllm_engine_acquire(engine);
}

static bool is_same(const struct kvfi_vllm_engine *a, const struct kvfi_vllm_engine *b)
{
    if (a->worker_count != b->worker_count)
        return false;
    for (size_t i = 0; i < a->worker_count; i++)
        if (a->workers[i].tp_rank != b->workers[i].tp_rank || a->workers[i].pp_rank != b->workers[i].pp_rank ||
            strcmp(a->workers[i].address, b->workers[i].address) != 0)
            return false;
    return true;
}

static bool set_bootstrap(struct kvfi_vllm_remote *remote, const char *bootstrap)
{
    char *copy;

    if (remote->bootstrap != NULL && strcmp(remote->bootstrap, bootstrap) == 0)
        return true;
    copy = kvfi_text_copy(bootstrap);
    if (copy == NULL)
        return false;
    free(remote->bootstrap);
    remote->bootstrap = copy;
    return true;
}

/* An engine of an answer. Without memory for it, it is asked for when it is needed. */
static void learn_one(kvf_vllm_worker *worker, const struct kvfi_vllm_engine *engine, const char *bootstrap)
{
    struct kvfi_table *table = &worker->consumer->remotes;
    struct kvfi_vllm_remote *remote;
    struct kvf_error error;

    if (table->count >= KVFI_VLLM_MAX_REMOTES &&
        kvfi_table_find(table, engine->engine_id, strlen(engine->engine_id)) == NULL)
        return; /* what nobody asked for drives nothing out */
    if (kvfi_vllm_remote_get(worker, engine->engine_id, &remote, &error) != KVF_OK)
        return;
    remote->known_ns = remote->asked_ns = kvfi_now_ns();
    if (remote->engine != NULL && is_same(remote->engine, engine))
        return;
    kvfi_logf(&worker->log, KVF_LOG_INFO, "engine %s at %s: TP size %" PRId64 ", PP size %" PRId64 ", %zu workers%s",
              engine->engine_id, bootstrap, engine->tp_size, engine->pp_size, engine->worker_count,
              engine->is_complete ? "" : ", not complete");
    for (size_t i = 0; i < engine->worker_count; i++)
        kvfi_vllm_place_renew(worker, engine->workers[i].address);
    set_engine(remote, engine);
    if (!remote->is_asking && !set_bootstrap(remote, bootstrap))
        set_engine(remote, NULL);
}

/* Another engine has the place of this one in its registry: it was restarted. */
static bool is_replaced(const struct kvfi_vllm_remote *remote, const struct kvfi_vllm_topology *topology)
{
    for (size_t i = 0; i < topology->engine_count; i++)
        if (topology->engines[i]->dp_rank == remote->engine->dp_rank)
            return true;
    return false;
}

/* Engines of this registry that it does not name any more. One that works is kept: a registry that was restarted has
 * forgotten it, and it will not register again. */
static void forget_gone(kvf_vllm_worker *worker, const struct kvfi_vllm_topology *topology, const char *bootstrap)
{
    struct kvfi_table *table = &worker->consumer->remotes;

    for (size_t i = 0; i < table->bucket_count; i++)
        for (struct kvfi_link *link = table->buckets[i]; link != NULL; link = link->next) {
            struct kvfi_vllm_remote *remote = KVFI_HOLDER(link, struct kvfi_vllm_remote, link);

            if (remote->engine == NULL || remote->bootstrap == NULL || strcmp(remote->bootstrap, bootstrap) != 0 ||
                kvfi_vllm_topology_find(topology, remote->engine_id) != NULL ||
                !(remote->is_suspect || is_replaced(remote, topology)))
                continue;
            kvfi_logf(&worker->log, KVF_LOG_INFO, "engine %s is gone from %s", remote->engine_id, bootstrap);
            set_engine(remote, NULL);
        }
}

/* ---- those that wait -------------------------------------------------------------------------------------------- */

static void go_on(struct kvfi_vllm_remote *remote, enum kvf_status status, const char *cause)
{
    struct kvfi_vllm_order *order = remote->waiting;
    struct kvf_error error;

    remote->waiting = remote->waiting_tail = NULL;
    kvfi_timer_disarm(&remote->worker->loop.timers, &remote->patience);
    while (order != NULL) {
        struct kvfi_vllm_order *next = order->next;

        order->next = NULL;
        if (remote->engine != NULL) {
            order->engine = kvfi_vllm_engine_acquire(remote->engine);
            kvfi_vllm_order_ask(order);
        } else {
            kvfi_fail(&error, status == KVF_OK ? KVF_ERR_NOT_FOUND : status, "remote engine_id %s not found from "
                      "bootstrap server %s%s%s", remote->engine_id, order->bootstrap, cause[0] == '\0' ? "" : ": ",
                      cause);
            kvfi_vllm_order_fail(order, (enum kvf_status)error.status, error.text);
        }
        kvfi_vllm_order_check(order);
        order = next;
    }
}

static void on_answer(void *context, enum kvf_status status, const struct kvfi_vllm_topology *topology,
                      const char *text)
{
    struct kvfi_vllm_remote *remote = context;
    kvf_vllm_worker *worker = remote->worker;
    bool was_suspect = remote->is_suspect;

    remote->is_asking = false;
    remote->uses++; /* it stays */
    if (status == KVF_OK) {
        for (size_t i = 0; i < topology->engine_count; i++)
            learn_one(worker, topology->engines[i], remote->bootstrap);
        forget_gone(worker, topology, remote->bootstrap);
        remote->is_suspect = was_suspect && remote->engine != NULL &&
                             kvfi_vllm_topology_find(topology, remote->engine_id) == NULL;
    } else {
        kvfi_logf(&worker->log, KVF_LOG_WARN, "bootstrap server %s: %s", remote->bootstrap, text);
    }
    go_on(remote, status, text);
    remote->uses--;
    kvfi_vllm_consume_sweep(worker);
}

/* The registry does not answer, but there is something to go on with. */
static void on_patience(void *owner, struct kvfi_timer *timer)
{
    go_on(KVFI_HOLDER(timer, struct kvfi_vllm_remote, patience), KVF_OK, "");
    kvfi_vllm_consume_sweep(owner);
}

/* ---- asking ----------------------------------------------------------------------------------------------------- */

/* Whether the registry is to be asked before it is used. */
static bool must_ask(const struct kvfi_vllm_remote *remote, int64_t now_ns)
{
    int64_t refresh_ns = remote->worker->options.topology_refresh_ns;
    int64_t since_ns = now_ns - remote->asked_ns;

    if (remote->engine == NULL)
        return true;
    if (remote->is_suspect || !remote->engine->is_complete)
        return since_ns >= (refresh_ns < PAUSE_NS ? refresh_ns : PAUSE_NS);
    return since_ns >= refresh_ns;
}

static void ask(struct kvfi_vllm_remote *remote, const char *bootstrap)
{
    kvf_vllm_worker *worker = remote->worker;
    struct kvf_error error;
    enum kvf_status status;

    if (!set_bootstrap(remote, bootstrap))
        status = kvfi_fail_memory(&error, "a question to a bootstrap server");
    else
        status = kvfi_vllm_registry_query(worker->registry, bootstrap, on_answer, remote, &error);
    remote->asked_ns = kvfi_now_ns();
    if (status != KVF_OK) {
        go_on(remote, status, error.text);
        return;
    }
    remote->is_asking = true;
    if (remote->engine != NULL)
        kvfi_timer_arm(&worker->loop.timers, &remote->patience,
                       remote->asked_ns + (remote->engine->is_complete && !remote->is_suspect ? PATIENCE_NS
                                                                                              : MORE_PATIENCE_NS));
}

void kvfi_vllm_remote_need(struct kvfi_vllm_order *order)
{
    struct kvfi_vllm_remote *remote = order->remote;
    int64_t now_ns = kvfi_now_ns();

    remote->used_ns = now_ns;
    *(remote->waiting_tail == NULL ? &remote->waiting : &remote->waiting_tail->next) = order;
    remote->waiting_tail = order;
    if (remote->is_asking && (remote->engine == NULL || remote->patience.armed))
        return; /* wait with the others */
    if (remote->is_asking || !must_ask(remote, now_ns))
        go_on(remote, KVF_OK, "");
    else
        ask(remote, order->bootstrap);
}

/* ---- keeping them ----------------------------------------------------------------------------------------------- */

void kvfi_vllm_remote_destroy(kvf_vllm_worker *worker, struct kvfi_vllm_remote *remote)
{
    if (worker->registry != NULL)
        kvfi_vllm_registry_forget(worker->registry, remote);
    kvfi_timer_disarm(&worker->loop.timers, &remote->patience);
    kvfi_table_remove(&worker->consumer->remotes, &remote->link);
    set_engine(remote, NULL);
    free(remote->bootstrap);
    free(remote->engine_id);
    free(remote);
}

/* The one that was not used for longest makes room. */
static bool make_room(kvf_vllm_worker *worker)
{
    struct kvfi_table *table = &worker->consumer->remotes;
    struct kvfi_vllm_remote *oldest = NULL;

    if (table->count < KVFI_VLLM_MAX_REMOTES)
        return true;
    for (size_t i = 0; i < table->bucket_count; i++)
        for (struct kvfi_link *link = table->buckets[i]; link != NULL; link = link->next) {
            struct kvfi_vllm_remote *remote = KVFI_HOLDER(link, struct kvfi_vllm_remote, link);

            if (remote->uses == 0 && !remote->is_asking && (oldest == NULL || remote->used_ns < oldest->used_ns))
                oldest = remote;
        }
    if (oldest != NULL)
        kvfi_vllm_remote_destroy(worker, oldest);
    return oldest != NULL;
}

enum kvf_status kvfi_vllm_remote_get(kvf_vllm_worker *worker, const char *engine_id, struct kvfi_vllm_remote **out,
                                     struct kvf_error *error)
{
    struct kvfi_table *table = &worker->consumer->remotes;
    struct kvfi_link *link = kvfi_table_find(table, engine_id, strlen(engine_id));
    struct kvfi_vllm_remote *remote;

    if (link != NULL) {
        *out = KVFI_HOLDER(link, struct kvfi_vllm_remote, link);
        return KVF_OK;
    }
    if (!make_room(worker))
        return kvfi_fail(error, KVF_ERR_LIMIT, "%zu remote engines are in use, at most %d", table->count,
                         KVFI_VLLM_MAX_REMOTES);
    remote = kvfi_alloc_zeroed(1, sizeof *remote);
    if (remote != NULL)
        remote->engine_id = kvfi_text_copy(engine_id);
    if (remote == NULL || remote->engine_id == NULL) {
        free(remote);
        return kvfi_fail_memory(error, "a remote engine");
    }
    remote->worker = worker;
    remote->used_ns = kvfi_now_ns();
    remote->patience.fire = on_patience;
    kvfi_table_insert(table, &remote->link, remote->engine_id, strlen(remote->engine_id));
    *out = remote;
    return KVF_OK;
}
