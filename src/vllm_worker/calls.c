/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls but for those on memory: each is handed to the loop's thread, and its verdict waited for. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "vllm_worker/calls.h"
#include "vllm_worker/events.h"
#include "vllm_worker/over.h"

/* ---- handing over ------------------------------------------------------------------------------------------- */

struct call {
    kvfi_vllm_worker_fn fn;
    void *argument;
};

static enum kvf_status run(void *owner, void *argument, struct kvf_error *error)
{
    const struct call *call = argument;
    return call->fn(owner, call->argument, error);
}

enum kvf_status kvfi_vllm_worker_call(kvf_vllm_worker *worker, kvfi_vllm_worker_fn fn, void *argument,
                                      struct kvf_error *error)
{
    struct call call = {fn, argument};
    return kvfi_loop_call(&worker->loop, run, &call, error);
}

enum kvf_status kvfi_vllm_worker_call_until_idle(kvf_vllm_worker *worker, kvfi_vllm_worker_fn fn, int64_t *left,
                                                 int64_t timeout_ns, struct kvf_error *error)
{
    struct call call = {fn, left};
    return kvfi_loop_call_until_idle(&worker->loop, run, &call, left, timeout_ns, error);
}

/* ---- one engine step ---------------------------------------------------------------------------------------- */

static enum kvf_status check_step(const kvf_vllm_worker *worker, const struct kvf_vllm_step *step,
                                  struct kvf_error *error)
{
    if (worker->closed)
        return kvfi_fail(error, KVF_ERR_CLOSED, "the worker is shutting down: nothing new begins");
    if (step->recv_count > 0 && !worker->consumes)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "step: recvs has %zu requests, but this worker is a producer "
                         "alone", step->recv_count);
    if ((step->send_count > 0 || step->not_processed_count > 0) && !worker->produces)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "step: sends has %zu requests and not_processed %zu, but "
                         "this worker is a consumer alone", step->send_count, step->not_processed_count);
    if (!worker->registered || worker->asleep || worker->changing)
        return kvfi_fail(error, KVF_ERR_AGAIN, "step: the worker %s",
                         !worker->registered ? "has no memory registered"
                         : worker->asleep    ? "is asleep"
                                             : "is about to sleep");
    return KVF_OK;
}

static enum kvf_status run_step(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    const struct kvf_vllm_step *step = argument;
    struct kvfi_vllm_recv_intake *recvs = NULL;
    struct kvfi_vllm_send_intake *sends = NULL;
    enum kvf_status status = check_step(worker, step, error);

    if (status != KVF_OK)
        return status;
    if (worker->consumes)
        status = kvfi_vllm_consumer_prepare(worker, step, &recvs, error);
    if (status != KVF_OK)
        return status;
    if (worker->produces)
        status = kvfi_vllm_sender_prepare(worker, step, &sends, error);
    if (status != KVF_OK && worker->consumes)
        kvfi_vllm_consumer_abandon(worker, recvs);
    if (status != KVF_OK)
        return status;
    if (worker->produces)
        kvfi_vllm_sender_begin(worker, sends);
    if (worker->consumes)
        kvfi_vllm_consumer_begin(worker, recvs);
    return KVF_OK;
}

enum kvf_status kvf_vllm_worker_step(kvf_vllm_worker *worker, const struct kvf_vllm_step *step,
                                     struct kvf_error *error)
{
    struct kvf_vllm_step own = {.struct_size = sizeof own};
    enum kvf_status status = kvfi_options_copy(&own, sizeof own, step, "step", error);

    if (status == KVF_OK && ((own.recvs == NULL && own.recv_count > 0) || (own.sends == NULL && own.send_count > 0) ||
                             (own.not_processed == NULL && own.not_processed_count > 0)))
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "step: an array is NULL but its count is not 0");
    return status == KVF_OK ? kvfi_vllm_worker_call(worker, run_step, &own, error) : status;
}

/* ---- what is over ------------------------------------------------------------------------------------------- */

static enum kvf_status run_collect(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    struct kvf_vllm_done *done = argument;
    struct kvfi_vllm_over_counts counts = {.text_bytes = 0};
    struct kvfi_vllm_over_lists *lists;

    if (worker->produces)
        kvfi_vllm_sender_count_over(worker, &counts);
    if (worker->consumes)
        kvfi_vllm_consumer_count_over(worker, &counts);
    if (counts.text_bytes == 0 && counts.blocks == 0)
        return KVF_OK;
    lists = kvfi_vllm_over_create(&counts);
    if (lists == NULL)
        return kvfi_fail_memory(error, "the lists of what is over");
    if (worker->produces)
        kvfi_vllm_sender_take_over(worker, lists);
    if (worker->consumes)
        kvfi_vllm_consumer_take_over(worker, lists);
    kvfi_vllm_over_give(lists, done);
    return KVF_OK;
}

enum kvf_status kvf_vllm_worker_collect(kvf_vllm_worker *worker, struct kvf_vllm_done *done, struct kvf_error *error)
{
    struct kvf_vllm_done own = {.struct_size = sizeof own};
    enum kvf_status status = kvfi_struct_check(done->struct_size, sizeof own, "done", error);

    if (status == KVF_OK)
        status = kvfi_vllm_worker_call(worker, run_collect, &own, error);
    return status == KVF_OK ? kvfi_struct_give(done, &own, sizeof own, "done", error) : status;
}

/* ---- who and where ------------------------------------------------------------------------------------------ */

static enum kvf_status run_endpoints(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    struct kvf_vllm_endpoints *out = argument;

    (void)error;
    if (worker->produces)
        kvfi_vllm_sender_address(worker, out->side_channel);
    snprintf(out->segment, sizeof out->segment, "%s", kvf_mooncake_segment_name(worker->engine));
    out->rpc_port = kvf_mooncake_rpc_port(worker->engine);
    out->data_port = kvf_mooncake_data_port(worker->engine);
    out->layout_id = worker->layout_id;
    return KVF_OK;
}

enum kvf_status kvf_vllm_worker_endpoints(kvf_vllm_worker *worker, struct kvf_vllm_endpoints *out,
                                          struct kvf_error *error)
{
    struct kvf_vllm_endpoints own;
    enum kvf_status status;

    memset(&own, 0, sizeof own);
    status = kvfi_vllm_worker_call(worker, run_endpoints, &own, error);
    return status == KVF_OK ? kvfi_struct_give(out, &own, sizeof own, "endpoints", error) : status;
}

static enum kvf_status run_stats(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    struct kvf_vllm_worker_stats *out = argument;

    (void)error;
    *out = worker->stats;
    if (worker->registry != NULL) {
        out->queries = kvfi_vllm_registry_queries(worker->registry);
        out->registrations = kvfi_vllm_registry_registrations(worker->registry);
    }
    if (worker->produces)
        kvfi_vllm_sender_gauge(worker, out);
    if (worker->consumes)
        kvfi_vllm_consumer_gauge(worker, out);
    return KVF_OK;
}

enum kvf_status kvf_vllm_worker_get_stats(kvf_vllm_worker *worker, struct kvf_vllm_worker_stats *stats,
                                          struct kvf_error *error)
{
    struct kvf_vllm_worker_stats own;
    enum kvf_status status = kvfi_vllm_worker_call(worker, run_stats, &own, error);

    return status == KVF_OK ? kvfi_struct_give(stats, &own, sizeof own, "stats", error) : status;
}

/* ---- events ------------------------------------------------------------------------------------------------- */

size_t kvf_vllm_worker_poll(kvf_vllm_worker *worker, struct kvf_vllm_event *events, size_t capacity)
{
    return kvf_vllm_worker_wait(worker, events, capacity, 0);
}

size_t kvf_vllm_worker_wait(kvf_vllm_worker *worker, struct kvf_vllm_event *events, size_t capacity,
                            int64_t timeout_ns)
{
    int64_t deadline = kvfi_deadline_after(timeout_ns);
    size_t count;

    pthread_mutex_lock(&worker->loop.lock);
    while ((count = kvfi_vllm_events_take(worker->events, events, capacity)) == 0 && capacity > 0 &&
           kvfi_now_ns() < deadline)
        kvfi_loop_wait(&worker->loop, deadline);
    pthread_mutex_unlock(&worker->loop.lock);
    return count;
}

int kvf_vllm_worker_event_fd(const kvf_vllm_worker *worker) { return worker->events->fd; }

/* ---- shutting down ------------------------------------------------------------------------------------------ */

int64_t kvfi_vllm_worker_busy(const kvf_vllm_worker *worker)
{
    return (worker->produces ? kvfi_vllm_sender_busy(worker) : 0) +
           (worker->consumes ? kvfi_vllm_consumer_busy(worker) : 0);
}

static enum kvf_status run_shutdown(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    (void)error;
    if (!worker->closed && worker->produces)
        kvfi_vllm_sender_refuse_all(worker);
    worker->closed = true;
    *(int64_t *)argument = kvfi_vllm_worker_busy(worker);
    return KVF_OK;
}

enum kvf_status kvf_vllm_worker_shutdown(kvf_vllm_worker *worker, int64_t timeout_ns, struct kvf_error *error)
{
    int64_t left = 0;
    enum kvf_status status = kvfi_vllm_worker_call_until_idle(worker, run_shutdown, &left, timeout_ns, error);

    if (status == KVF_OK && left > 0)
        status = kvfi_fail(error, KVF_ERR_TIMEOUT, "%" PRId64 " writes and requests are still out", left);
    return status;
}
