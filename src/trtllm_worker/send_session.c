/* SPDX-License-Identifier: Apache-2.0 */
/* One rid as this rank sends it: an offer to the generation ranks that take part. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "trtllm_worker/send.h"

struct kvfi_send_session *kvfi_send_session_find(struct kvfi_senders *senders, int64_t rid)
{
    struct kvfi_link *link = kvfi_table_find(&senders->sessions, &rid, sizeof rid);

    return link == NULL ? NULL : KVFI_HOLDER(link, struct kvfi_send_session, link);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

int kvfi_send_session_state(const struct kvfi_send_session *session)
{
    bool all_asked = session->sink_count > 0 && session->asked == session->sink_count;

    switch (session->life.state) {
    case KVFI_OFFER_DONE:
        return KVF_TRTLLM_STATE_TRANSFERRED;
    case KVFI_OFFER_FAILED:
        return session->life.reason == KVF_ERR_CANCELLED ? KVF_TRTLLM_STATE_CANCELLED : KVF_TRTLLM_STATE_ERROR;
    default:
        return session->asked > 0 && session->piece_count > 0 ? KVF_TRTLLM_STATE_TRANSFERRING
               : all_asked                                    ? KVF_TRTLLM_STATE_READY
                                                              : KVF_TRTLLM_STATE_INIT;
    }
}

/* Queues a reserved event; one that was told before is fine. */
static void tell(struct kvfi_send_session *session, struct kvfi_event_node **node, int kind, const char *text)
{
    struct kvf_trtllm_event event = {
        .kind = kind, .direction = KVF_TRTLLM_SEND, .state = kvfi_send_session_state(session), .rid = session->rid,
        .status = session->life.state == KVFI_OFFER_FAILED ? (int32_t)session->life.reason : KVF_OK,
        .by_peer = session->by_peer, .tokens = session->delivered_tokens, .bytes = session->bytes,
        .peers = (int64_t)session->sink_count, .started_ns = session->started_ns,
        .ended_ns = session->ended_ns != 0 ? session->ended_ns : kvfi_now_ns()};

    if (*node == NULL)
        return;
    memcpy(event.peer, session->peer, sizeof event.peer);
    snprintf(event.text, sizeof event.text, "%s", text);
    kvfi_worker_event_push(session->worker, *node, &event);
    *node = NULL;
}

static void report_end(struct kvfi_send_session *session)
{
    struct kvf_trtllm_worker_stats *stats = &session->worker->stats;
    bool done = session->life.state == KVFI_OFFER_DONE;

    session->ended_ns = kvfi_now_ns();
    *(done ? &stats->sends_done : &stats->sends_failed) += 1;
    stats->sends_active--;
    kvfi_timer_disarm(&session->worker->loop.timers, &session->deadline);
    if (done)
        session->text[0] = session->peer[0] = '\0';
    else
        kvfi_logf(&session->worker->log, KVF_LOG_DEBUG, "send session of request %" PRId64 " ended: %.400s",
                  session->rid, session->text);
    tell(session, &session->ended, KVF_TRTLLM_EVENT_ENDED, session->text);
}

static void on_overdue(void *owner, struct kvfi_timer *timer)
{
    struct kvfi_send_session *session = KVFI_HOLDER(timer, struct kvfi_send_session, overdue);
    char text[KVF_ERROR_TEXT_BYTES];

    (void)owner;
    snprintf(text, sizeof text, "%" PRId64 " writes of request %" PRId64 " are still not over %" PRId64 " ms after its "
             "end: its memory is given up", session->block.accesses, session->rid,
             session->worker->options.settle_timeout_ns / KVFI_MS);
    kvfi_logf(&session->worker->log, KVF_LOG_ERROR, "%s", text);
    session->overdue_told = true;
    tell(session, &session->settled, KVF_TRTLLM_EVENT_OVERDUE, text);
}

static void report_settled(struct kvfi_send_session *session)
{
    kvfi_timer_disarm(&session->worker->loop.timers, &session->overdue);
    session->worker->senders->unsettled--;
    if (!session->overdue_told)
        tell(session, &session->settled, KVF_TRTLLM_EVENT_SETTLED, "");
    kvfi_loop_changed(&session->worker->loop);
}

void kvfi_send_session_block(struct kvfi_send_session *session, int kind)
{
    struct kvfi_life_event event = {.kind = kind};
    struct kvfi_actions actions;
    int64_t settle_ns = session->worker->options.settle_timeout_ns;

    if (kvfi_block_step(&session->block, &event, &actions) == KVFI_VIOLATION)
        kvfi_logf(&session->worker->log, KVF_LOG_ERROR, "request %" PRId64 ": block event %d in state %d", session->rid,
                  kind, session->block.state);
    if (actions.count > 0)
        report_settled(session);
    else if (kind == KVFI_BLOCK_ON_OWNER_ENDED && settle_ns > 0)
        kvfi_timer_arm(&session->worker->loop.timers, &session->overdue, kvfi_deadline_after(settle_ns));
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

void kvfi_send_session_feed(struct kvfi_send_session *session, int kind, enum kvf_status status, int64_t value)
{
    struct kvfi_life_event event = {.kind = kind, .status = status, .value = value};
    struct kvfi_actions actions;

    kvfi_offer_step(&session->life, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_OFFER_DO_REPORT_DONE:
        case KVFI_OFFER_DO_REPORT_FAILED:
            report_end(session);
            break;
        case KVFI_OFFER_DO_STOP_SINKS:
            for (size_t s = 0; s < session->sink_count; s++)
                kvfi_send_sink_feed(&session->sinks[s], KVFI_SINK_ON_STOP, session->life.reason, 0);
            break;
        default:
            kvfi_send_session_block(session, KVFI_BLOCK_ON_OWNER_ENDED);
            break;
        }
    }
}

/* Ends it with a sentence, unless it has ended. */
static void fail(struct kvfi_send_session *session, int kind, enum kvf_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void fail(struct kvfi_send_session *session, int kind, enum kvf_status status, const char *format, ...)
{
    va_list arguments;

    if (kvfi_offer_ended(&session->life))
        return;
    va_start(arguments, format);
    vsnprintf(session->text, sizeof session->text, format, arguments);
    va_end(arguments);
    kvfi_send_session_feed(session, kind, status, 0);
}

static void on_deadline(void *owner, struct kvfi_timer *timer)
{
    struct kvfi_send_session *session = KVFI_HOLDER(timer, struct kvfi_send_session, deadline);
    char text[KVF_ERROR_TEXT_BYTES];

    (void)owner;
    snprintf(text, sizeof text, "request %" PRId64 " is not sent after %" PRId64 " ms: %zu of %zu ranks asked%s, %"
             PRId64 " of %zu pieces are delivered", session->rid, session->timeout_ns / KVFI_MS,
             session->asked, session->sink_count,
             session->sink_count == 0 ? " (how many must is not known before the first)" : "",
             session->delivered_pieces, session->piece_count);
    kvfi_logf(&session->worker->log, KVF_LOG_INFO, "%s", text);
    tell(session, &session->timed_out, KVF_TRTLLM_EVENT_TIMEOUT, text);
}

/* ---- who takes part ---------------------------------------------------------------------------------------------- */

static bool is_among(const int64_t *ranks, size_t count, int64_t rank)
{
    size_t i = 0;

    while (i < count && ranks[i] != rank)
        i++;
    return i < count;
}

/* The ranks that this rank's bytes concern, of the group that `peer` is in. */
static enum kvf_status list_ranks(kvf_trtllm_worker *worker, const struct kvfi_send_peer *peer, int64_t **ranks,
                                  size_t *count, struct kvf_error *error)
{
    const kvf_trtllm_rank *rank = NULL;
    struct kvf_trtllm_overlap overlap;
    enum kvf_status status = kvf_trtllm_registrar_find(worker->registrar, peer->name, peer->rank, &rank, error);

    if (status == KVF_OK)
        status = kvf_trtllm_registrar_overlap(worker->registrar, rank, peer->dp_rank, &overlap, NULL, 0, error);
    if (status != KVF_OK)
        return status;
    *count = overlap.rank_count;
    *ranks = kvfi_alloc_zeroed(overlap.rank_count, sizeof **ranks);
    if (*ranks == NULL)
        return kvfi_fail_memory(error, "the receivers of a request");
    return kvf_trtllm_registrar_overlap(worker->registrar, rank, peer->dp_rank, &overlap, *ranks, *count, error);
}

/* The first that asks says which ranks there are. */
static enum kvf_status make_sinks(struct kvfi_send_session *session, const struct kvfi_send_peer *peer,
                                  struct kvf_error *error)
{
    int64_t *ranks = NULL;
    size_t count = 0;
    enum kvf_status status = list_ranks(session->worker, peer, &ranks, &count, error);

    if (status == KVF_OK && !is_among(ranks, count, peer->rank))
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "it exchanges no data with this rank: %zu other ranks do",
                           count);
    if (status != KVF_OK)
        goto done;
    session->sinks = kvfi_alloc_zeroed(count, sizeof *session->sinks);
    if (session->sinks == NULL) {
        status = kvfi_fail_memory(error, "the receivers of a request");
        goto done;
    }
    session->sink_count = count;
    for (size_t i = 0; i < count; i++) {
        session->sinks[i].session = session;
        session->sinks[i].rank = ranks[i];
        kvfi_sink_init(&session->sinks[i].life);
    }
    snprintf(session->instance, sizeof session->instance, "%s", peer->name);
    kvfi_send_session_feed(session, KVFI_OFFER_ON_SINKS, KVF_OK, (int64_t)count);
done:
    free(ranks);
    return status;
}

static enum kvf_status find_sink(struct kvfi_send_session *session, const struct kvfi_send_peer *peer,
                                 struct kvfi_send_sink **out, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (kvfi_offer_ended(&session->life))
        return kvfi_fail(error, KVF_ERR_REFUSED, "its send session has ended: %.300s",
                         session->life.state == KVFI_OFFER_DONE ? "all is delivered" : session->text);
    if (session->sinks == NULL)
        status = make_sinks(session, peer, error);
    else if (strcmp(session->instance, peer->name) != 0)
        return kvfi_fail(error, KVF_ERR_EXISTS, "it is asked for by instance \"%.200s\" already", session->instance);
    if (status != KVF_OK)
        return status;
    for (size_t i = 0; i < session->sink_count; i++)
        if (session->sinks[i].rank == peer->rank) {
            *out = &session->sinks[i];
            return KVF_OK;
        }
    return kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "it exchanges no data with this rank: %zu other ranks do",
                     session->sink_count);
}

static void ready_when_all_asked(struct kvfi_send_session *session)
{
    if (session->asked == session->sink_count)
        tell(session, &session->ready, KVF_TRTLLM_EVENT_READY, "");
}

static struct kvfi_send_sink *find_asked(struct kvfi_send_session *session, const struct kvfi_send_peer *peer)
{
    for (size_t i = 0; i < session->sink_count; i++) {
        struct kvfi_send_sink *sink = &session->sinks[i];
        if (sink->rank == peer->rank && strcmp(session->instance, peer->name) == 0 && sink->ask.memory != NULL)
            return sink;
    }
    return NULL;
}

void kvfi_send_session_ask(struct kvfi_send_session *session, struct kvfi_send_peer *peer,
                           struct kvfi_trtllm_ask *ask)
{
    struct kvfi_senders *senders = session->worker->senders;
    struct kvfi_send_sink *sink = find_asked(session, peer);
    struct kvf_error error = {.position = -1};

    if (sink != NULL) {
        kvfi_send_ask_again(sink, ask);
        goto done;
    }
    if (find_sink(session, peer, &sink, &error) != KVF_OK) {
        kvfi_logf(&session->worker->log, kvfi_send_once(&peer->warned), "request %" PRId64 " of %s is refused: %.300s",
                  session->rid, peer->agent, error.text);
        kvfi_send_refuse(senders, peer, ask);
        goto done;
    }
    session->asked++;
    ready_when_all_asked(session);
    kvfi_send_sink_begin(sink, peer, ask);
done:
    kvfi_trtllm_ask_fini(ask);
}

void kvfi_send_session_delivered(struct kvfi_send_session *session, size_t piece)
{
    struct kvfi_send_piece *of = &session->pieces[piece];
    struct kvf_trtllm_event event = {
        .kind = KVF_TRTLLM_EVENT_PIECE, .direction = KVF_TRTLLM_SEND, .rid = session->rid, .piece = (int64_t)piece,
        .state = kvfi_send_session_state(session), .tokens = of->token_end, .peers = (int64_t)session->sink_count,
        .started_ns = session->started_ns, .ended_ns = kvfi_now_ns()};

    of->delivered++;
    if (of->delivered < (int64_t)session->sink_count)
        return;
    /* Each rank gets its pieces in order, so pieces are complete in order too. */
    session->delivered_pieces++;
    session->delivered_tokens = of->token_end;
    if (of->event == NULL)
        return;
    event.bytes = session->bytes;
    kvfi_worker_event_push(session->worker, of->event, &event);
    of->event = NULL;
}

/* ---- cancelling -------------------------------------------------------------------------------------------------- */

/* Peers that wait are told first that it is cancelled, so that the FAILED that follows is no error to them. */
static void tell_cancel(struct kvfi_send_session *session)
{
    const struct kvfi_trtllm_message message = {.tag = KVFI_TRTLLM_CANCEL_SESSION, .cancel = {.rid = session->rid}};

    for (size_t i = 0; i < session->sink_count; i++) {
        struct kvfi_send_sink *sink = &session->sinks[i];
        if (sink->peer == NULL)
            continue;
        session->worker->stats.cancels_sent++;
        kvfi_send_say(session->worker->senders, sink->peer, &message);
    }
}

/* Marks who waits for an acknowledgement; those that are quiet already get it at once. */
static void acknowledge(struct kvfi_send_session *session, struct kvfi_send_peer *by)
{
    bool takes_part = false;

    for (size_t i = 0; i < session->sink_count; i++) {
        struct kvfi_send_sink *sink = &session->sinks[i];
        if (sink->peer == NULL || (by != NULL && by != sink->peer))
            continue;
        takes_part = true;
        sink->acknowledge = true;
        if (kvfi_sink_ended(&sink->life))
            kvfi_send_sink_feed(sink, KVFI_SINK_ON_CANCEL, KVF_ERR_CANCELLED, 0);
    }
    if (by != NULL && !takes_part)
        kvfi_send_acknowledge(session->worker->senders, by, session->rid);
}

void kvfi_send_session_cancel(struct kvfi_send_session *session, struct kvfi_send_peer *by)
{
    const char *who = by == NULL ? "its peer" : by->agent;

    if (!kvfi_offer_ended(&session->life)) {
        session->by_peer = true;
        if (by != NULL)
            memcpy(session->peer, by->agent, sizeof session->peer);
        acknowledge(session, by);
        fail(session, KVFI_OFFER_ON_CANCEL, KVF_ERR_CANCELLED, "request %" PRId64 " is cancelled by %s", session->rid,
             who);
    } else {
        acknowledge(session, by);
    }
}

enum kvf_status kvfi_senders_cancel(kvf_trtllm_worker *worker, int64_t rid, struct kvf_error *error)
{
    struct kvfi_send_session *session = kvfi_send_session_find(worker->senders, rid);

    if (session == NULL)
        return kvfi_fail(error, KVF_ERR_NOT_FOUND, "request %" PRId64 " has no send session", rid);
    if (!kvfi_offer_ended(&session->life))
        tell_cancel(session);
    fail(session, KVFI_OFFER_ON_CANCEL, KVF_ERR_CANCELLED, "request %" PRId64 " is cancelled", rid);
    return KVF_OK;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static enum kvf_status reserve_events(struct kvfi_send_session *session, struct kvf_error *error)
{
    struct kvfi_event_node **nodes[] = {&session->ended, &session->settled, &session->ready, &session->timed_out};

    for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++) {
        *nodes[i] = kvfi_worker_event_reserve(session->worker);
        if (*nodes[i] == NULL)
            return kvfi_fail(error, KVF_ERR_AGAIN, "no room for the events of request %" PRId64 ": take events first",
                             session->rid);
    }
    return KVF_OK;
}

static enum kvf_status check_open(kvf_trtllm_worker *worker, const struct kvf_trtllm_send *send,
                                  struct kvf_error *error)
{
    struct kvfi_senders *senders = worker->senders;

    if (send->rid < 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "rid is %" PRId64 ", expected 0 or more", send->rid);
    if (send->schedule != KVF_TRTLLM_CONTEXT_FIRST && send->schedule != KVF_TRTLLM_GENERATION_FIRST)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "schedule is %d, expected 0 or 1", send->schedule);
    if (send->prompt_tokens < 1)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "prompt_tokens is %" PRId64 ", expected 1 or more",
                         send->prompt_tokens);
    if (send->timeout_ns < 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "timeout_ns is %" PRId64 ", expected 0 or more",
                         send->timeout_ns);
    if (kvfi_send_session_find(senders, send->rid) != NULL)
        return kvfi_fail(error, KVF_ERR_EXISTS, "request %" PRId64 " has a send session already", send->rid);
    if ((int64_t)senders->sessions.count >= worker->options.max_sessions)
        return kvfi_fail(error, KVF_ERR_LIMIT, "%zu send sessions are open, at most %" PRId64 " are allowed",
                         senders->sessions.count, worker->options.max_sessions);
    return KVF_OK;
}

/* Born cancelled: who asked or asks later is refused. */
static void end_fenced(struct kvfi_send_session *session, const struct kvfi_send_fence *fence)
{
    session->by_peer = fence->by_peer;
    memcpy(session->peer, fence->peer, sizeof session->peer);
    fail(session, KVFI_OFFER_ON_CANCEL, KVF_ERR_CANCELLED, "request %" PRId64 " was cancelled%s%s before it had a "
         "session", session->rid, fence->by_peer ? " by " : "", !fence->by_peer ? "" :
         fence->peer[0] == '\0' ? "its peer" : fence->peer);
    kvfi_send_drop_requests(session->worker->senders, session->rid);
}

enum kvf_status kvfi_senders_open(kvf_trtllm_worker *worker, const struct kvf_trtllm_send *send,
                                  struct kvf_error *error)
{
    struct kvfi_senders *senders = worker->senders;
    struct kvfi_send_fence *fence;
    struct kvfi_send_session *session = NULL;
    enum kvf_status status = check_open(worker, send, error);

    if (status != KVF_OK)
        return status;
    session = calloc(1, sizeof *session);
    if (session == NULL)
        return kvfi_fail_memory(error, "a send session");
    session->worker = worker;
    session->rid = send->rid;
    session->prompt_tokens = send->prompt_tokens;
    session->timeout_ns = send->timeout_ns != 0 ? send->timeout_ns : worker->options.transfer_timeout_ns;
    session->has_aux = send->schedule == KVF_TRTLLM_GENERATION_FIRST;
    session->aux_slot = KVF_TRTLLM_NONE;
    session->deadline.fire = on_deadline;
    session->overdue.fire = on_overdue;
    status = reserve_events(session, error);
    if (status != KVF_OK) {
        kvfi_send_session_destroy(session);
        return status;
    }
    kvfi_offer_init(&session->life, INT64_MAX);
    kvfi_block_init(&session->block);
    session->started_ns = kvfi_now_ns();
    kvfi_table_insert(&senders->sessions, &session->link, &session->rid, sizeof session->rid);
    senders->unsettled++;
    worker->stats.sends_active++;
    fence = kvfi_send_fence_find(senders, session->rid);
    if (fence != NULL && fence->cancelled) {
        end_fenced(session, fence);
        return KVF_OK;
    }
    if (fence != NULL)
        kvfi_send_fence_remove(senders, fence);
    kvfi_send_take_requests(senders, session);
    return KVF_OK;
}

enum kvf_status kvfi_senders_close_session(kvf_trtllm_worker *worker, int64_t rid, struct kvf_error *error)
{
    struct kvfi_senders *senders = worker->senders;
    struct kvfi_send_session *session = kvfi_send_session_find(senders, rid);

    if (session == NULL)
        return kvfi_fail(error, KVF_ERR_NOT_FOUND, "request %" PRId64 " has no send session", rid);
    if (!kvfi_offer_ended(&session->life))
        return kvfi_fail(error, KVF_ERR_AGAIN, "request %" PRId64 " is not delivered yet (%zu of %zu ranks asked, %"
                         PRId64 " of %zu pieces are delivered): cancel it and wait for SETTLED", rid, session->asked,
                         session->sink_count, session->delivered_pieces, session->piece_count);
    if (session->block.state != KVFI_BLOCK_REUSABLE)
        return kvfi_fail(error, KVF_ERR_AGAIN, "request %" PRId64 " has ended, but %" PRId64 " ranks are still written "
                         "to: wait for SETTLED", rid, session->block.accesses);
    if (session->life.state == KVFI_OFFER_FAILED &&
        !kvfi_send_fence_add(senders, rid, session->life.reason == KVF_ERR_CANCELLED, session->by_peer, session->peer))
        kvfi_logf(&worker->log, KVF_LOG_WARN, "%zu cancelled requests are remembered already: request %" PRId64
                  " will be taken for a new one", senders->fences.count, rid);
    kvfi_send_session_destroy(session);
    return KVF_OK;
}

void kvfi_send_session_destroy(struct kvfi_send_session *session)
{
    kvf_trtllm_worker *worker = session->worker;
    struct kvfi_event_node *nodes[] = {session->ended, session->settled, session->ready, session->timed_out};

    kvfi_timer_disarm(&worker->loop.timers, &session->deadline);
    kvfi_timer_disarm(&worker->loop.timers, &session->overdue);
    kvfi_table_remove(&worker->senders->sessions, &session->link);
    for (size_t i = 0; i < session->sink_count; i++)
        kvfi_send_sink_fini(&session->sinks[i]);
    free(session->sinks);
    kvfi_send_pieces_fini(session);
    for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++)
        kvfi_worker_event_cancel(worker, nodes[i]);
    free(session);
}
