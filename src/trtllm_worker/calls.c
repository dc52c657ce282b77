/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls: each is handed to the loop's thread, and its verdict waited for. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "trtllm_worker/receive.h"
#include "trtllm_worker/worker.h"

/* ---- handing over ------------------------------------------------------------------------------------------- */

struct call {
    kvfi_worker_fn fn;
    void *argument;
};

static enum kvf_status run(void *owner, void *argument, struct kvf_error *error)
{
    const struct call *call = argument;
    return call->fn(owner, call->argument, error);
}

enum kvf_status kvfi_worker_call(kvf_trtllm_worker *worker, kvfi_worker_fn fn, void *argument, struct kvf_error *error)
{
    struct call call = {fn, argument};
    return kvfi_loop_call(&worker->loop, run, &call, error);
}

static enum kvf_status check_complete(const kvf_trtllm_worker *worker, struct kvf_error *error)
{
    if (worker->self == NULL)
        return kvfi_fail(error, KVF_ERR_AGAIN, "the worker is not complete: call kvf_trtllm_worker_complete first");
    return KVF_OK;
}

static enum kvf_status check_open(const kvf_trtllm_worker *worker, struct kvf_error *error)
{
    if (worker->closed)
        return kvfi_fail(error, KVF_ERR_CLOSED, "the worker is shutting down: no new sessions");
    return check_complete(worker, error);
}

/* ---- sending ------------------------------------------------------------------------------------------------ */

static enum kvf_status run_send_open(kvf_trtllm_worker *worker, void *argument, struct kvf_error *error)
{
    enum kvf_status status = check_open(worker, error);
    return status == KVF_OK ? kvfi_senders_open(worker, argument, error) : status;
}

enum kvf_status kvf_trtllm_worker_send_open(kvf_trtllm_worker *worker, const struct kvf_trtllm_send *send,
                                            struct kvf_error *error)
{
    struct kvf_trtllm_send own;
    enum kvf_status status;

    kvf_trtllm_send_init(&own, sizeof own);
    status = kvfi_options_copy(&own, sizeof own, send, "send", error);
    if (status == KVF_OK && (own.rid < 0 || own.prompt_tokens < 0 || own.timeout_ns < 0 ||
                             (own.schedule != KVF_TRTLLM_CONTEXT_FIRST &&
                              own.schedule != KVF_TRTLLM_GENERATION_FIRST)))
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "send: rid %" PRId64 ", prompt_tokens %" PRId64 ", timeout_ns %" PRId64
                           " and schedule %d: expected 0 and up, and a schedule of 0 or 1", own.rid, own.prompt_tokens,
                           own.timeout_ns, own.schedule);
    if (status == KVF_OK)
        status = kvfi_worker_call(worker, run_send_open, &own, error);
    return status;
}

static enum kvf_status run_send_piece(kvf_trtllm_worker *worker, void *argument, struct kvf_error *error)
{
    enum kvf_status status = check_complete(worker, error);
    return status == KVF_OK ? kvfi_senders_piece(worker, argument, error) : status;
}

enum kvf_status kvf_trtllm_worker_send_piece(kvf_trtllm_worker *worker, const struct kvf_trtllm_piece *piece,
                                             struct kvf_error *error)
{
    struct kvf_trtllm_piece own;
    enum kvf_status status;

    kvf_trtllm_piece_init(&own, sizeof own);
    status = kvfi_options_copy(&own, sizeof own, piece, "piece", error);
    if (status == KVF_OK && ((own.groups == NULL && own.group_count > 0) ||
                             (own.excluded == NULL && own.excluded_count > 0)))
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "piece: an array is NULL but its count is not 0");
    if (status == KVF_OK)
        status = kvfi_worker_call(worker, run_send_piece, &own, error);
    return status;
}

struct aux_call {
    int64_t rid, slot;
};

static enum kvf_status run_send_aux(kvf_trtllm_worker *worker, void *argument, struct kvf_error *error)
{
    const struct aux_call *call = argument;
    enum kvf_status status = check_complete(worker, error);
    return status == KVF_OK ? kvfi_senders_aux(worker, call->rid, call->slot, error) : status;
}

enum kvf_status kvf_trtllm_worker_send_aux(kvf_trtllm_worker *worker, int64_t rid, int64_t slot,
                                           struct kvf_error *error)
{
    struct aux_call call = {rid, slot};
    return kvfi_worker_call(worker, run_send_aux, &call, error);
}

/* ---- receiving ---------------------------------------------------------------------------------------------- */

static enum kvf_status run_receive(kvf_trtllm_worker *worker, void *argument, struct kvf_error *error)
{
    enum kvf_status status = check_open(worker, error);
    return status == KVF_OK ? kvfi_receivers_open(worker, argument, error) : status;
}

enum kvf_status kvf_trtllm_worker_receive(kvf_trtllm_worker *worker, const struct kvf_trtllm_receive *receive,
                                          struct kvf_error *error)
{
    struct kvf_trtllm_receive own;
    enum kvf_status status;

    kvf_trtllm_receive_init(&own, sizeof own);
    status = kvfi_options_copy(&own, sizeof own, receive, "receive", error);
    if (status == KVF_OK)
        status = kvfi_worker_call(worker, run_receive, &own, error);
    return status;
}

/* ---- both --------------------------------------------------------------------------------------------------- */

struct session_call {
    int direction;
    int64_t rid;
    struct kvf_trtllm_status *status;
};

static enum kvf_status check_direction(int direction, struct kvf_error *error)
{
    if (direction != KVF_TRTLLM_SEND && direction != KVF_TRTLLM_RECEIVE)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "direction is %d, expected 0 (send) or 1 (receive)",
                         direction);
    return KVF_OK;
}

static enum kvf_status run_cancel(kvf_trtllm_worker *worker, void *argument, struct kvf_error *error)
{
    const struct session_call *call = argument;
    return call->direction == KVF_TRTLLM_SEND ? kvfi_senders_cancel(worker, call->rid, error)
                                              : kvfi_receivers_cancel(worker, call->rid, error);
}

enum kvf_status kvf_trtllm_worker_cancel(kvf_trtllm_worker *worker, int direction, int64_t rid,
                                         struct kvf_error *error)
{
    struct session_call call = {direction, rid, NULL};
    enum kvf_status status = check_direction(direction, error);
    return status == KVF_OK ? kvfi_worker_call(worker, run_cancel, &call, error) : status;
}

static enum kvf_status run_status(kvf_trtllm_worker *worker, void *argument, struct kvf_error *error)
{
    const struct session_call *call = argument;
    return call->direction == KVF_TRTLLM_SEND ? kvfi_senders_status(worker, call->rid, call->status, error)
                                              : kvfi_receivers_status(worker, call->rid, call->status, error);
}

enum kvf_status kvf_trtllm_worker_status(kvf_trtllm_worker *worker, int direction, int64_t rid,
                                         struct kvf_trtllm_status *out, struct kvf_error *error)
{
    struct kvf_trtllm_status own = {.struct_size = sizeof own};
    struct session_call call = {direction, rid, &own};
    enum kvf_status status = check_direction(direction, error);

    if (status == KVF_OK)
        status = kvfi_worker_call(worker, run_status, &call, error);
    return status == KVF_OK ? kvfi_struct_give(out, &own, sizeof own, "status", error) : status;
}

static enum kvf_status run_close_session(kvf_trtllm_worker *worker, void *argument, struct kvf_error *error)
{
    const struct session_call *call = argument;
    return call->direction == KVF_TRTLLM_SEND ? kvfi_senders_close_session(worker, call->rid, error)
                                              : kvfi_receivers_close_session(worker, call->rid, error);
}

enum kvf_status kvf_trtllm_worker_close_session(kvf_trtllm_worker *worker, int direction, int64_t rid,
                                                struct kvf_error *error)
{
    struct session_call call = {direction, rid, NULL};
    enum kvf_status status = check_direction(direction, error);
    return status == KVF_OK ? kvfi_worker_call(worker, run_close_session, &call, error) : status;
}

const char *kvf_trtllm_state_text(int state)
{
    static const char *const names[] = {"init", "ready", "transferring", "transferred", "error", "cancelled"};
    return state >= 0 && state < (int)(sizeof names / sizeof names[0]) ? names[state] : "unknown";
}

/* ---- who and where ------------------------------------------------------------------------------------------ */

static void copy_endpoint(char *out, const struct kvfi_worker_socket *socket)
{
    if (socket->channel != NULL)
        memcpy(out, kvfi_channel_endpoint(socket->channel), strlen(kvfi_channel_endpoint(socket->channel)) + 1);
}

enum kvf_status kvf_trtllm_worker_endpoints(const kvf_trtllm_worker *worker, struct kvf_trtllm_endpoints *out,
                                            struct kvf_error *error)
{
    struct kvf_trtllm_endpoints own;

    _Static_assert((int)KVF_TRTLLM_ENDPOINT_BYTES >= (int)KVFI_CHANNEL_ENDPOINT_BYTES, "an endpoint fits");
    memset(&own, 0, sizeof own);
    copy_endpoint(own.info, &worker->info);
    copy_endpoint(own.sender, &worker->sender);
    copy_endpoint(own.receiver, &worker->receiver);
    return kvfi_struct_give(out, &own, sizeof own, "endpoints", error);
}

static enum kvf_status run_rank(kvf_trtllm_worker *worker, void *argument, struct kvf_error *error)
{
    enum kvf_status status = check_complete(worker, error);
    if (status == KVF_OK)
        *(kvf_trtllm_rank **)argument = kvf_trtllm_rank_acquire(worker->self);
    return status;
}

enum kvf_status kvf_trtllm_worker_rank(kvf_trtllm_worker *worker, kvf_trtllm_rank **out, struct kvf_error *error)
{
    return kvfi_worker_call(worker, run_rank, out, error);
}

static enum kvf_status run_stats(kvf_trtllm_worker *worker, void *argument, struct kvf_error *error)
{
    struct kvf_trtllm_worker_stats *out = argument;

    (void)error;
    *out = worker->stats;
    kvfi_receivers_gauge(worker, out);
    out->unsettled += kvfi_senders_unsettled(worker);
    return KVF_OK;
}

enum kvf_status kvf_trtllm_worker_get_stats(kvf_trtllm_worker *worker, struct kvf_trtllm_worker_stats *stats,
                                            struct kvf_error *error)
{
    struct kvf_trtllm_worker_stats own;
    enum kvf_status status = kvfi_worker_call(worker, run_stats, &own, error);
    return status == KVF_OK ? kvfi_struct_give(stats, &own, sizeof own, "stats", error) : status;
}

/* ---- events ------------------------------------------------------------------------------------------------- */

struct kvfi_event_node *kvfi_worker_event_reserve(kvf_trtllm_worker *worker)
{
    struct kvfi_event_node *node;

    pthread_mutex_lock(&worker->loop.lock);
    node = kvfi_events_reserve(&worker->events);
    pthread_mutex_unlock(&worker->loop.lock);
    return node;
}

void kvfi_worker_event_cancel(kvf_trtllm_worker *worker, struct kvfi_event_node *node)
{
    pthread_mutex_lock(&worker->loop.lock);
    kvfi_events_cancel(&worker->events, node);
    pthread_mutex_unlock(&worker->loop.lock);
}

void kvfi_worker_event_push(kvf_trtllm_worker *worker, struct kvfi_event_node *node,
                            const struct kvf_trtllm_event *event)
{
    memcpy(node->record, event, sizeof *event);
    pthread_mutex_lock(&worker->loop.lock);
    kvfi_events_push(&worker->events, node);
    pthread_cond_broadcast(&worker->loop.changed);
    pthread_mutex_unlock(&worker->loop.lock);
}

size_t kvf_trtllm_worker_poll(kvf_trtllm_worker *worker, struct kvf_trtllm_event *events, size_t capacity)
{
    size_t count;

    pthread_mutex_lock(&worker->loop.lock);
    count = kvfi_events_take(&worker->events, events, capacity);
    pthread_mutex_unlock(&worker->loop.lock);
    return count;
}

size_t kvf_trtllm_worker_wait(kvf_trtllm_worker *worker, struct kvf_trtllm_event *events, size_t capacity,
                              int64_t timeout_ns)
{
    int64_t deadline = kvfi_deadline_after(timeout_ns);
    size_t count;

    pthread_mutex_lock(&worker->loop.lock);
    while ((count = kvfi_events_take(&worker->events, events, capacity)) == 0 && capacity > 0 &&
           kvfi_now_ns() < deadline)
        kvfi_loop_wait(&worker->loop, deadline);
    pthread_mutex_unlock(&worker->loop.lock);
    return count;
}

int kvf_trtllm_worker_event_fd(const kvf_trtllm_worker *worker) { return worker->events.fd; }

/* ---- shutting down ------------------------------------------------------------------------------------------ */

static enum kvf_status run_shutdown(void *owner, void *argument, struct kvf_error *error)
{
    kvf_trtllm_worker *worker = owner;

    (void)error;
    worker->closed = true;
    *(int64_t *)argument = kvfi_receivers_unsettled(worker) + kvfi_senders_unsettled(worker);
    return KVF_OK;
}

enum kvf_status kvf_trtllm_worker_shutdown(kvf_trtllm_worker *worker, int64_t timeout_ns, struct kvf_error *error)
{
    int64_t left = 0;
    enum kvf_status status = kvfi_loop_call_until_idle(&worker->loop, run_shutdown, &left, &left, timeout_ns, error);

    if (status == KVF_OK && left > 0)
        status = kvfi_fail(error, KVF_ERR_TIMEOUT, "%" PRId64 " sessions hold memory that is not settled", left);
    return status;
}
