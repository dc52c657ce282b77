/* SPDX-License-Identifier: Apache-2.0 */
/* One receive: its machines, its two last events, its end. */
#include "trtllm_worker/receive.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define TELL_AFTER_ALL_NS KVFI_SECOND /* after the peer cancelled: its ranks that have not reported are asked to */
#define TELL_AGAIN_NS KVFI_SECOND     /* who could not be told of the end, for want of room, is told later */

struct kvfi_receive *kvfi_receive_find(const kvf_trtllm_worker *worker, int64_t rid)
{
    struct kvfi_link *link = kvfi_table_find(&worker->receivers->jobs, &rid, sizeof rid);
    return link == NULL ? NULL : KVFI_HOLDER(link, struct kvfi_receive, link);
}

struct kvfi_receive_writer *kvfi_receive_writer(struct kvfi_receive *job, int64_t rank)
{
    for (size_t i = 0; i < job->writer_count; i++)
        if (job->writers[i].rank == rank)
            return &job->writers[i];
    return NULL;
}

void kvfi_receive_link(struct kvfi_receive_list *list, struct kvfi_receive *job)
{
    job->list = list;
    job->previous = NULL;
    job->next = list->head;
    if (job->next != NULL)
        job->next->previous = job;
    list->head = job;
}

void kvfi_receive_unlink(struct kvfi_receive *job)
{
    if (job->list == NULL)
        return;
    *(job->previous == NULL ? &job->list->head : &job->previous->next) = job->next;
    if (job->next != NULL)
        job->next->previous = job->previous;
    job->list = NULL;
    job->previous = job->next = NULL;
}

/* ---- reports ------------------------------------------------------------------------------------------------ */

static int state_of(const struct kvfi_receive *job)
{
    if (job->life.state == KVFI_TRANSFER_DONE)
        return KVF_TRTLLM_STATE_TRANSFERRED;
    if (job->life.state == KVFI_TRANSFER_FAILED)
        return job->life.reason == KVF_ERR_CANCELLED ? KVF_TRTLLM_STATE_CANCELLED : KVF_TRTLLM_STATE_ERROR;
    return job->life.state == KVFI_TRANSFER_MOVING ? KVF_TRTLLM_STATE_TRANSFERRING : KVF_TRTLLM_STATE_INIT;
}

static int reason_of(const struct kvfi_receive *job)
{
    return job->life.state == KVFI_TRANSFER_FAILED ? (int)job->life.reason : KVF_OK;
}

static void push(struct kvfi_receive *job, struct kvfi_event_node **node, int kind, const char *text)
{
    struct kvf_trtllm_event event = {.kind = kind, .direction = KVF_TRTLLM_RECEIVE, .state = state_of(job),
                                     .status = reason_of(job), .by_peer = job->by_peer, .rid = job->rid,
                                     .tokens = job->life.state == KVFI_TRANSFER_DONE ? job->prompt_tokens : 0,
                                     .bytes = job->bytes, .peers = job->asked,
                                     .started_ns = job->started_ns, .ended_ns = job->ended_ns};

    memcpy(event.peer, job->peer, sizeof event.peer);
    snprintf(event.text, sizeof event.text, "%s", text);
    kvfi_worker_event_push(job->worker, *node, &event);
    *node = NULL;
}

static void report_terminal(struct kvfi_receive *job)
{
    struct kvf_trtllm_worker_stats *stats = &job->worker->stats;

    job->ended_ns = kvfi_now_ns();
    *(job->life.state == KVFI_TRANSFER_DONE ? &stats->receives_done : &stats->receives_failed) += 1;
    stats->receives_active--;
    push(job, &job->terminal, KVF_TRTLLM_EVENT_ENDED, job->text);
}

static void report_settled(struct kvfi_receive *job)
{
    kvfi_timer_disarm(&job->worker->loop.timers, &job->settle_timer);
    kvfi_timer_disarm(&job->worker->loop.timers, &job->timer);
    job->worker->receivers->unsettled--;
    push(job, &job->settled, KVF_TRTLLM_EVENT_SETTLED, "");
    kvfi_loop_changed(&job->worker->loop);
}

void kvfi_receive_block(struct kvfi_receive *job, int kind)
{
    struct kvfi_life_event event = {.kind = kind};
    struct kvfi_actions actions;

    if (kvfi_block_step(&job->block, &event, &actions) == KVFI_VIOLATION)
        kvfi_logf(&job->worker->log, KVF_LOG_ERROR, "request %" PRId64 ": block event %d in state %d", job->rid, kind,
                  job->block.state);
    if (actions.count > 0)
        report_settled(job);
}

/* ---- memory that is given up -------------------------------------------------------------------------------- */

static void close_admission(kvf_trtllm_worker *worker, const char *text)
{
    struct kvfi_receivers *all = worker->receivers;

    kvfi_logf(&worker->log, KVF_LOG_ERROR, "receiver ownership admission is quarantined: %s", text);
    if (!all->quarantined)
        snprintf(all->quarantine, sizeof all->quarantine, "%s", text);
    all->quarantined = true;
}

static void give_up(struct kvfi_receive *job, int kind, const char *text)
{
    close_admission(job->worker, text);
    job->given_up = true;
    kvfi_receive_block(job, KVFI_BLOCK_ON_QUARANTINE);
    kvfi_timer_disarm(&job->worker->loop.timers, &job->settle_timer);
    kvfi_receive_fail(job, NULL, KVF_ERR_IN_DOUBT, "%s", text);
    push(job, &job->settled, kind, text);
}

void kvfi_receive_quarantine(struct kvfi_receive *job, const char *format, ...)
{
    char text[KVF_ERROR_TEXT_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (job->block.state == KVFI_BLOCK_REUSABLE || job->given_up)
        close_admission(job->worker, text); /* too late for its memory */
    else
        give_up(job, KVF_TRTLLM_EVENT_QUARANTINED, text);
}

static void on_overdue(void *owner, struct kvfi_timer *timer)
{
    struct kvfi_receive *job = KVFI_HOLDER(timer, struct kvfi_receive, settle_timer);
    kvf_trtllm_worker *worker = owner;
    char text[KVF_ERROR_TEXT_BYTES];

    if (job->block.state == KVFI_BLOCK_REUSABLE || job->given_up)
        return;
    snprintf(text, sizeof text, "request %" PRId64 ": its memory was not settled within %" PRId64
             " ms after its end", job->rid, worker->options.settle_timeout_ns / KVFI_MS);
    give_up(job, KVF_TRTLLM_EVENT_OVERDUE, text);
}

/* ---- writers ------------------------------------------------------------------------------------------------ */

static bool is_quiet(const struct kvfi_receive *job, const struct kvfi_receive_writer *writer)
{
    return kvfi_writer_quiet(&writer->kv) && (!job->needs_aux || kvfi_writer_quiet(&writer->aux));
}

/* Those of other DP groups than the one that has written, once it has said all: the request never runs there. */
static void spare_others(struct kvfi_receive *job)
{
    if (job->group_count < 2 || job->writing_group < 0)
        return;
    for (size_t i = 0; i < job->writer_count; i++)
        if (job->writers[i].group == job->writing_group && !is_quiet(job, &job->writers[i]))
            return;
    for (size_t i = 0; i < job->writer_count; i++) {
        struct kvfi_receive_writer *writer = &job->writers[i];
        if (writer->group == job->writing_group || !writer->asked)
            continue;
        kvfi_receive_writer_feed(job, writer, false, KVFI_WRITER_ON_SPARED, KVF_OK);
        if (job->needs_aux)
            kvfi_receive_writer_feed(job, writer, true, KVFI_WRITER_ON_SPARED, KVF_OK);
    }
}

static void deny(struct kvfi_receive *job, const struct kvfi_receive_writer *writer, bool is_aux)
{
    kvfi_receive_quarantine(job, "request %" PRId64 ": context rank %" PRId64 " contradicts what it reported of its "
                            "%s before", job->rid, writer->rank, is_aux ? "auxiliary data" : "cache blocks");
}

void kvfi_receive_writer_feed(struct kvfi_receive *job, struct kvfi_receive_writer *writer, bool is_aux, int kind,
                              enum kvf_status status)
{
    struct kvfi_writer *life = is_aux ? &writer->aux : &writer->kv;
    struct kvfi_life_event event = {.kind = kind, .status = status};
    struct kvfi_actions actions;

    if (job->given_up && kind != KVFI_WRITER_ON_STOP)
        return; /* no evidence counts any more */
    if (kvfi_writer_step(life, &event, &actions) == KVFI_VIOLATION)
        deny(job, writer, is_aux);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_WRITER_DO_SEND_CANCEL:
            if (!job->mute)
                kvfi_receive_notify(job, writer);
            break;
        case KVFI_WRITER_DO_WORD_DONE:
            kvfi_receive_feed(job, KVFI_TRANSFER_ON_WRITER_DONE, KVF_OK, 0);
            break;
        case KVFI_WRITER_DO_WORD_FAILED:
            kvfi_receive_fail(job, writer, life->reason, "KV transfer failed for request %" PRId64
                              ": context rank %" PRId64, job->rid, writer->rank);
            break;
        case KVFI_WRITER_DO_QUIET:
            kvfi_receive_block(job, KVFI_BLOCK_ON_ACCESS_END);
            break;
        default: /* DISARM: nothing of this side stands between a peer and this memory */
            break;
        }
    }
    if (kvfi_transfer_ended(&job->life) && kind != KVFI_WRITER_ON_SPARED)
        spare_others(job);
}

/* ---- the end ------------------------------------------------------------------------------------------------ */

static void tell_again(struct kvfi_receive *job)
{
    for (size_t i = 0; i < job->writer_count; i++)
        if (job->writers[i].asked && !job->writers[i].notified && !is_quiet(job, &job->writers[i])) {
            kvfi_timer_arm(&job->worker->loop.timers, &job->timer, kvfi_now_ns() + TELL_AGAIN_NS);
            return;
        }
}

static void tell_after_all(struct kvfi_receive *job)
{
    job->mute = false;
    for (size_t i = 0; i < job->writer_count; i++)
        if (!is_quiet(job, &job->writers[i]))
            kvfi_receive_notify(job, &job->writers[i]);
    tell_again(job);
}

static void expire_text(struct kvfi_receive *job)
{
    const struct kvfi_receive_writer *late = NULL;
    int64_t ms = job->timeout_ns / KVFI_MS;

    for (size_t i = 0; late == NULL && i < job->writer_count; i++)
        if (!is_quiet(job, &job->writers[i]))
            late = &job->writers[i];
    if (job->instance == NULL && job->list != NULL)
        snprintf(job->text, sizeof job->text, "KV transfer timed out for request %" PRId64 " after %" PRId64
                 " ms: context peer at '%.300s' has not said who it is", job->rid, ms,
                 KVFI_HOLDER(job->list, struct kvfi_contact, waiting)->endpoint);
    else if (late == NULL)
        snprintf(job->text, sizeof job->text, "KV transfer timed out for request %" PRId64 " after %" PRId64 " ms",
                 job->rid, ms);
    else
        snprintf(job->text, sizeof job->text, "KV transfer timed out for request %" PRId64 " after %" PRId64
                 " ms: context rank %" PRId64 " has not reported%s", job->rid, ms, late->rank,
                 job->heard ? "" : ", nor has any other");
}

static void on_timer(void *owner, struct kvfi_timer *timer)
{
    struct kvfi_receive *job = KVFI_HOLDER(timer, struct kvfi_receive, timer);

    (void)owner;
    if (kvfi_transfer_ended(&job->life)) {
        tell_after_all(job);
        return;
    }
    expire_text(job);
    kvfi_receive_feed(job, KVFI_TRANSFER_ON_TIME, KVF_OK, 0);
}

static void end_blocks(struct kvfi_receive *job)
{
    kvf_trtllm_worker *worker = job->worker;

    kvfi_timer_disarm(&worker->loop.timers, &job->timer);
    if (job->instance == NULL)
        kvfi_receive_unlink(job); /* from those that wait */
    else if (reason_of(job) == KVF_ERR_EXPIRED && !job->heard && job->instance->contact != NULL)
        job->instance->contact->is_suspect = true;
    spare_others(job);
    kvfi_receive_block(job, KVFI_BLOCK_ON_OWNER_ENDED);
    if (job->block.state == KVFI_BLOCK_REUSABLE || job->given_up)
        return;
    if (worker->options.settle_timeout_ns > 0)
        kvfi_timer_arm(&worker->loop.timers, &job->settle_timer,
                       kvfi_deadline_after(worker->options.settle_timeout_ns));
    if (job->mute)
        kvfi_timer_arm(&worker->loop.timers, &job->timer, kvfi_now_ns() + TELL_AFTER_ALL_NS);
    else
        tell_again(job);
}

static void stop_writers(struct kvfi_receive *job)
{
    for (size_t i = 0; i < job->writer_count; i++) {
        if (!job->writers[i].asked)
            continue;
        kvfi_receive_writer_feed(job, &job->writers[i], false, KVFI_WRITER_ON_STOP, job->life.reason);
        if (job->needs_aux)
            kvfi_receive_writer_feed(job, &job->writers[i], true, KVFI_WRITER_ON_STOP, job->life.reason);
    }
}

void kvfi_receive_feed(struct kvfi_receive *job, int kind, enum kvf_status status, int64_t value)
{
    struct kvfi_life_event event = {.kind = kind, .status = status, .value = value, .now_ns = kvfi_now_ns()};
    struct kvfi_actions actions;

    kvfi_transfer_step(&job->life, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_TRANSFER_DO_ASK:
            kvfi_receive_ask(job);
            break;
        case KVFI_TRANSFER_DO_STOP_WRITERS:
            stop_writers(job);
            break;
        case KVFI_TRANSFER_DO_REPORT_DONE:
        case KVFI_TRANSFER_DO_REPORT_FAILED:
            report_terminal(job);
            break;
        case KVFI_TRANSFER_DO_END_BLOCKS:
            end_blocks(job);
            break;
        default: /* JOIN: the contact goes on */
            break;
        }
    }
}

void kvfi_receive_fail(struct kvfi_receive *job, const struct kvfi_receive_writer *writer, enum kvf_status status,
                       const char *format, ...)
{
    va_list arguments;

    if (kvfi_transfer_ended(&job->life))
        return;
    if (job->text[0] == '\0') {
        va_start(arguments, format);
        vsnprintf(job->text, sizeof job->text, format, arguments);
        va_end(arguments);
    }
    if (writer != NULL && job->instance != NULL)
        kvfi_agent_name(job->peer, kvf_trtllm_rank_get_spec(job->instance->rank)->instance_name, writer->rank);
    kvfi_receive_feed(job, KVFI_TRANSFER_ON_FAIL, status, 0);
}

void kvfi_receive_cancel(struct kvfi_receive *job, bool by_peer)
{
    if (kvfi_transfer_ended(&job->life)) {
        if (!by_peer && job->mute)
            tell_after_all(job);
        return;
    }
    job->by_peer = job->mute = by_peer;
    snprintf(job->text, sizeof job->text, "request %" PRId64 " was cancelled by %s", job->rid,
             by_peer ? "the context" : "its user");
    kvfi_receive_feed(job, KVFI_TRANSFER_ON_CANCEL, KVF_OK, 0);
}

/* ---- calls -------------------------------------------------------------------------------------------------- */

static enum kvf_status find(const kvf_trtllm_worker *worker, int64_t rid, struct kvfi_receive **out,
                            struct kvf_error *error)
{
    *out = kvfi_receive_find(worker, rid);
    if (*out == NULL)
        return kvfi_fail(error, KVF_ERR_NOT_FOUND, "there is no receive session of rid %" PRId64, rid);
    return KVF_OK;
}

enum kvf_status kvfi_receivers_cancel(kvf_trtllm_worker *worker, int64_t rid, struct kvf_error *error)
{
    struct kvfi_receive *job;
    enum kvf_status status = find(worker, rid, &job, error);

    if (status == KVF_OK)
        kvfi_receive_cancel(job, false);
    return status;
}

static void count_writer(const struct kvfi_writer *life, struct kvf_trtllm_status *out)
{
    if (life->state == KVFI_WRITER_IDLE || kvfi_writer_quiet(life))
        return;
    out->pending++;
    out->in_doubt += life->said == KVFI_WRITER_SAYS_DOUBT;
}

enum kvf_status kvfi_receivers_status(kvf_trtllm_worker *worker, int64_t rid, struct kvf_trtllm_status *out,
                                      struct kvf_error *error)
{
    struct kvfi_receive *job;
    enum kvf_status status = find(worker, rid, &job, error);

    if (status != KVF_OK)
        return status;
    out->state = state_of(job);
    out->status = reason_of(job);
    out->is_settled = job->block.state == KVFI_BLOCK_REUSABLE;
    out->is_quarantined = job->given_up;
    out->by_peer = job->by_peer;
    out->expected = job->expected;
    out->asked = job->asked;
    for (size_t i = 0; i < job->writer_count; i++) {
        count_writer(&job->writers[i].kv, out);
        count_writer(&job->writers[i].aux, out);
    }
    out->tokens = job->life.state == KVFI_TRANSFER_DONE ? job->prompt_tokens : 0;
    out->bytes = job->bytes;
    memcpy(out->peer, job->peer, sizeof out->peer);
    memcpy(out->text, job->text, sizeof out->text);
    return KVF_OK;
}

static void destroy(kvf_trtllm_worker *worker, struct kvfi_receive *job)
{
    struct kvfi_instance *instance = job->instance;

    kvfi_timer_disarm(&worker->loop.timers, &job->timer);
    kvfi_timer_disarm(&worker->loop.timers, &job->settle_timer);
    kvfi_receive_unlink(job);
    kvfi_table_remove(&worker->receivers->jobs, &job->link);
    kvfi_worker_event_cancel(worker, job->terminal);
    kvfi_worker_event_cancel(worker, job->settled);
    free(job->payload);
    free(job->writers);
    free(job);
    if (instance != NULL)
        kvfi_instance_bury(worker, instance);
}

enum kvf_status kvfi_receivers_close_session(kvf_trtllm_worker *worker, int64_t rid, struct kvf_error *error)
{
    struct kvfi_receive *job;
    enum kvf_status status = find(worker, rid, &job, error);

    if (status != KVF_OK)
        return status;
    if (!kvfi_transfer_ended(&job->life))
        return kvfi_fail(error, KVF_ERR_AGAIN, "request %" PRId64 " has not ended: cancel it first", rid);
    if (job->block.state != KVFI_BLOCK_REUSABLE)
        return kvfi_fail(error, KVF_ERR_AGAIN, "the memory of request %" PRId64 " is not settled: %s", rid,
                         job->given_up ? "it never will be" : "reports of context ranks are still owed");
    kvfi_fence_add(&worker->receivers->closed, rid, kvfi_now_ns());
    destroy(worker, job);
    return KVF_OK;
}

void kvfi_receive_init(struct kvfi_receive *job, kvf_trtllm_worker *worker)
{
    job->worker = worker;
    job->writing_group = -1;
    job->started_ns = kvfi_now_ns();
    job->timer.fire = on_timer;
    job->settle_timer.fire = on_overdue;
    kvfi_transfer_init(&job->life, kvfi_deadline_after(job->timeout_ns));
    kvfi_block_init(&job->block);
}

/* ---- all of them -------------------------------------------------------------------------------------------- */

enum kvf_status kvfi_receivers_create(kvf_trtllm_worker *worker, struct kvfi_receivers **out, struct kvf_error *error)
{
    const struct kvf_trtllm_worker_options *options = &worker->options;
    struct kvfi_receivers *all = calloc(1, sizeof *all);

    if (all == NULL)
        return kvfi_fail_memory(error, "the receiving half");
    *out = all; /* what is there is destroyed with the worker */
    if (!kvfi_table_init(&all->jobs) || !kvfi_table_init(&all->contacts) ||
        !kvfi_fence_init(&all->cancelled, (size_t)options->max_requests, options->stale_request_ns) ||
        !kvfi_fence_init(&all->closed, (size_t)options->max_requests, options->stale_request_ns))
        return kvfi_fail_memory(error, "the receiving half");
    return KVF_OK;
}

void kvfi_receivers_destroy(kvf_trtllm_worker *worker, struct kvfi_receivers *receivers)
{
    struct kvfi_link *link;

    if (receivers == NULL)
        return;
    while (receivers->jobs.buckets != NULL && (link = kvfi_table_any(&receivers->jobs)) != NULL)
        destroy(worker, KVFI_HOLDER(link, struct kvfi_receive, link));
    while (receivers->contacts.buckets != NULL && (link = kvfi_table_any(&receivers->contacts)) != NULL)
        kvfi_contact_destroy(worker, KVFI_HOLDER(link, struct kvfi_contact, link));
    kvfi_fence_fini(&receivers->cancelled);
    kvfi_fence_fini(&receivers->closed);
    kvfi_table_fini(&receivers->jobs);
    kvfi_table_fini(&receivers->contacts);
    free(receivers);
}

int64_t kvfi_receivers_unsettled(const kvf_trtllm_worker *worker) { return worker->receivers->unsettled; }

void kvfi_receivers_gauge(const kvf_trtllm_worker *worker, struct kvf_trtllm_worker_stats *out)
{
    out->incompatible = worker->receivers->incompatible;
    out->unsettled += worker->receivers->unsettled;
}
