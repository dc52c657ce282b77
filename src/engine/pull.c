/* SPDX-License-Identifier: Apache-2.0 */
/* The pull side of a transfer: from the command to its two last events. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "engine/jobs.h"

struct kvfi_pull_job *kvfi_pull_find(kvf_engine *engine, const char *transfer, int64_t attempt)
{
    struct kvfi_link *link = kvfi_table_find(&engine->pulls, transfer, strlen(transfer));

    while (link != NULL && KVFI_HOLDER(link, struct kvfi_pull_job, link)->attempt != attempt)
        link = kvfi_table_find_next(link);
    return link == NULL ? NULL : KVFI_HOLDER(link, struct kvfi_pull_job, link);
}

/* ---- reports ----------------------------------------------------------------------------------------------- */

static void fill_event(const struct kvfi_pull_job *pull, struct kvf_event *event, int kind)
{
    event->kind = kind;
    event->attempt = pull->attempt;
    event->bytes = pull->bytes;
    event->pieces = pull->pieces;
    event->runs = pull->runs;
    event->transport = (int32_t)pull->transports;
    event->started_ns = pull->started_ns;
    event->ended_ns = kvfi_now_ns();
    memcpy(event->transfer, pull->transfer, sizeof event->transfer);
}

static void report_terminal(kvf_engine *engine, struct kvfi_pull_job *pull)
{
    struct kvfi_event_node *node = pull->terminal;
    struct kvf_event *event = kvfi_event_of(node);
    bool done = pull->life.state == KVFI_TRANSFER_DONE;

    pull->terminal = NULL;
    fill_event(pull, event, done ? KVF_EVENT_PULL_DONE : KVF_EVENT_PULL_FAILED);
    event->status = done ? KVF_OK : pull->life.reason;
    event->tokens = done ? pull->token_end : 0;
    if (!done) {
        memcpy(event->text, pull->text, sizeof event->text);
        memcpy(event->peer, pull->peer, sizeof pull->peer);
    }
    pthread_mutex_lock(&engine->loop.lock);
    *(done ? &engine->counters.pulls_done : &engine->counters.pulls_failed) += 1;
    engine->counters.pulls_active--;
    kvfi_ledger_end(&engine->ledger, false, pull->transfer, pull->attempt, event->status, pull->text);
    kvfi_events_push(&engine->events, node);
    pthread_cond_broadcast(&engine->loop.changed);
    pthread_mutex_unlock(&engine->loop.lock);
}

static void report_reusable(kvf_engine *engine, struct kvfi_pull_job *pull)
{
    struct kvfi_event_node *node = pull->reusable;
    struct kvf_event *event = kvfi_event_of(node);

    pull->reusable = NULL;
    fill_event(pull, event, KVF_EVENT_BLOCKS_REUSABLE);
    pthread_mutex_lock(&engine->loop.lock);
    engine->counters.blocks_held--;
    kvfi_events_push(&engine->events, node);
    pthread_cond_broadcast(&engine->loop.changed);
    pthread_mutex_unlock(&engine->loop.lock);
    pull->next_dead = engine->dead_pulls;
    engine->dead_pulls = pull;
}

void kvfi_pull_block(kvf_engine *engine, struct kvfi_pull_job *pull, int kind)
{
    struct kvfi_life_event event = {.kind = kind};
    struct kvfi_actions actions;

    if (kvfi_block_step(&pull->block, &event, &actions) == KVFI_VIOLATION)
        kvfi_logf(&engine->log, KVF_LOG_ERROR, "transfer \"%s\": block event %d in state %d", pull->transfer, kind,
                  pull->block.state);
    if (actions.count > 0)
        report_reusable(engine, pull);
}

/* ---- joining ----------------------------------------------------------------------------------------------- */

static bool make_writers(struct kvfi_pull_job *pull)
{
    size_t ranks = kvfi_view_ranks(pull->match->source), count = 0;

    for (size_t i = 0; i < ranks; i++)
        count += kvf_election_share(pull->match->election, i) != NULL;
    pull->writers = kvfi_alloc_zeroed(count, sizeof *pull->writers);
    if (pull->writers == NULL)
        return false;
    for (size_t i = 0; i < ranks; i++) {
        struct kvfi_writer_job *job = &pull->writers[pull->writer_count];
        if (kvf_election_share(pull->match->election, i) == NULL)
            continue;
        pull->writer_count++;
        job->pull = pull;
        job->writer = i;
        job->waiting = true;
        kvfi_writer_init(&job->life);
    }
    return true;
}

static void drop_writers(kvf_engine *engine, struct kvfi_pull_job *pull)
{
    for (size_t i = 0; i < pull->writer_count; i++) {
        kvfi_timer_disarm(&engine->loop.timers, &pull->writers[i].gone);
        kvfi_writer_unlink(&pull->writers[i]);
    }
    free(pull->writers);
    pull->writers = NULL;
    pull->writer_count = 0;
}

/* Every source rank is greeted: those with a share are waited for, the others get a release. */
static void need_peers(kvf_engine *engine, struct kvfi_pull_job *pull)
{
    struct kvfi_match *match = kvfi_match_acquire(pull->match);
    size_t ranks = kvfi_view_ranks(match->source), writer = 0;

    for (size_t i = 0; i < ranks; i++) {
        struct kvfi_peer *peer = kvfi_source_need(engine, match, i);
        bool share = kvf_election_share(match->election, i) != NULL;
        if (share && peer != NULL)
            kvfi_writer_link(&pull->writers[writer], peer);
        writer += share;
        if (share && peer == NULL)
            kvfi_pull_fail(engine, pull, NULL, KVF_ERR_NO_MEMORY, "out of memory for a peer");
        if (!share && peer != NULL)
            kvfi_peer_feed(engine, peer, KVFI_PEER_ON_NEED, KVF_OK);
    }
    for (size_t i = 0; pull->match == match && i < pull->writer_count && !kvfi_transfer_ended(&pull->life); i++)
        if (pull->writers[i].peer != NULL)
            kvfi_peer_feed(engine, pull->writers[i].peer, KVFI_PEER_ON_NEED, KVF_OK);
    kvfi_match_release(match);
}

static void check_joined(kvf_engine *engine, struct kvfi_pull_job *pull)
{
    for (size_t i = 0; i < pull->writer_count; i++)
        if (pull->writers[i].waiting)
            return;
    kvfi_pull_feed(engine, pull, KVFI_TRANSFER_ON_JOINED, KVF_OK, (int64_t)pull->writer_count);
}

void kvfi_pull_join(kvf_engine *engine, struct kvfi_pull_job *pull, struct kvfi_match *match)
{
    struct kvfi_match *old = pull->match;

    drop_writers(engine, pull);
    pull->match = kvfi_match_acquire(match);
    kvfi_match_release(old);
    if (!make_writers(pull)) {
        kvfi_pull_fail(engine, pull, NULL, KVF_ERR_NO_MEMORY, "out of memory for the writers of transfer \"%s\"",
                       pull->transfer);
        return;
    }
    need_peers(engine, pull);
    if (!kvfi_transfer_ended(&pull->life) && pull->match == match)
        check_joined(engine, pull);
}

void kvfi_writers_peer_ready(kvf_engine *engine, struct kvfi_peer *peer)
{
    struct kvfi_writer_job *job = peer->writers;

    while (job != NULL) {
        if (!job->waiting) {
            job = job->next;
            continue;
        }
        job->waiting = false;
        check_joined(engine, job->pull);
        job = peer->writers; /* the list may have changed */
    }
}

void kvfi_writers_peer_failed(kvf_engine *engine, struct kvfi_peer *peer)
{
    struct kvfi_writer_job *job = peer->writers;

    while (job != NULL) {
        if (!job->waiting) {
            job = job->next;
            continue;
        }
        job->waiting = false;
        kvfi_pull_fail(engine, job->pull, peer, peer->life.reason, "%s", peer->error.text);
        job = peer->writers;
    }
}

void kvfi_writers_rematch(kvf_engine *engine, struct kvfi_peer *peer)
{
    struct kvfi_writer_job *job = peer->writers;

    while (job != NULL && peer->match != NULL) {
        if (job->waiting && job->pull->match != peer->match) {
            kvfi_pull_join(engine, job->pull, peer->match);
            job = peer->writers;
        } else {
            job = job->next;
        }
    }
}

/* ---- the end ----------------------------------------------------------------------------------------------- */

/* Source ranks that were never asked are told that nothing will be. */
static void release_sources(kvf_engine *engine, struct kvfi_pull_job *pull)
{
    size_t ranks = pull->match == NULL ? 0 : kvfi_view_ranks(pull->match->source), writer = 0;
    enum kvf_status status = pull->life.state == KVFI_TRANSFER_FAILED ? pull->life.reason : KVF_OK;

    if (pull->released)
        return;
    pull->released = true;
    for (size_t i = 0; i < ranks; i++) {
        bool share = kvf_election_share(pull->match->election, i) != NULL;
        const struct kvfi_directory_rank *rank = kvfi_view_rank(pull->match->source, i);
        struct kvfi_peer *peer;
        bool asked = share && writer < pull->writer_count && pull->writers[writer].grant != 0;
        writer += share;
        if (asked)
            continue;
        peer = kvfi_peer_find(engine, KVFI_PEER_SOURCE, pull->from, &rank->rank);
        if (peer != NULL)
            kvfi_source_release(engine, peer, pull->transfer, pull->attempt, share ? status : KVF_OK);
    }
}

static void expire_text(const struct kvfi_pull_job *pull, char *text, size_t text_bytes)
{
    const struct kvfi_writer_job *late = NULL;
    int64_t ms = pull->timeout_ns / KVFI_MS;

    for (size_t i = 0; late == NULL && i < pull->writer_count; i++)
        if (pull->writers[i].waiting || pull->writers[i].life.state < KVFI_WRITER_DONE)
            late = &pull->writers[i];
    if (late == NULL || late->peer == NULL)
        snprintf(text, text_bytes, "transfer \"%s\" attempt %" PRId64 " expired after %" PRId64
                 " ms while the directory was asked for instance \"%s\"", pull->transfer, pull->attempt, ms,
                 pull->from);
    else if (late->waiting)
        snprintf(text, text_bytes, "transfer \"%s\" attempt %" PRId64 " expired after %" PRId64
                 " ms: %s has not answered hello", pull->transfer, pull->attempt, ms, late->peer->name);
    else if (late->life.state == KVFI_WRITER_ASKED)
        snprintf(text, text_bytes, "transfer \"%s\" attempt %" PRId64 " expired after %" PRId64
                 " ms: %s has not begun to send; it may never have been offered there", pull->transfer, pull->attempt,
                 ms,
                 late->peer->name);
    else
        snprintf(text, text_bytes, "transfer \"%s\" attempt %" PRId64 " expired after %" PRId64
                 " ms: %" PRId64 " of %" PRId64 " bytes of %s had come", pull->transfer, pull->attempt, ms,
                 late->received_bytes, late->expected_bytes, late->peer->name);
}

static void on_deadline(void *owner, struct kvfi_timer *timer)
{
    kvf_engine *engine = owner;
    struct kvfi_pull_job *pull = KVFI_HOLDER(timer, struct kvfi_pull_job, timer);

    if (!kvfi_transfer_ended(&pull->life))
        expire_text(pull, pull->text, sizeof pull->text);
    kvfi_pull_feed(engine, pull, KVFI_TRANSFER_ON_TIME, KVF_OK, 0);
}

void kvfi_pull_fail(kvf_engine *engine, struct kvfi_pull_job *pull, const struct kvfi_peer *peer,
                    enum kvf_status status, const char *format, ...)
{
    va_list arguments;

    if (kvfi_transfer_ended(&pull->life))
        return;
    va_start(arguments, format);
    vsnprintf(pull->text, sizeof pull->text, format, arguments);
    va_end(arguments);
    if (peer != NULL)
        snprintf(pull->peer, sizeof pull->peer, "%s", peer->name);
    kvfi_pull_feed(engine, pull, KVFI_TRANSFER_ON_FAIL, status, 0);
}

/* ---- the machine ------------------------------------------------------------------------------------------- */

static void ask_all(kvf_engine *engine, struct kvfi_pull_job *pull)
{
    for (size_t i = 0; i < pull->writer_count && !kvfi_transfer_ended(&pull->life); i++)
        kvfi_writer_ask(engine, &pull->writers[i]);
    if (!kvfi_transfer_ended(&pull->life))
        release_sources(engine, pull);
}

static void end_blocks(kvf_engine *engine, struct kvfi_pull_job *pull)
{
    kvfi_timer_disarm(&engine->loop.timers, &pull->timer);
    kvfi_resolve_cancel(engine, &pull->resolve);
    for (size_t i = 0; i < pull->writer_count; i++)
        pull->writers[i].waiting = false;
    if (pull->life.state == KVFI_TRANSFER_FAILED || pull->writer_count == 0)
        release_sources(engine, pull);
    kvfi_pull_block(engine, pull, KVFI_BLOCK_ON_OWNER_ENDED);
}

void kvfi_pull_feed(kvf_engine *engine, struct kvfi_pull_job *pull, int kind, enum kvf_status status, int64_t value)
{
    struct kvfi_life_event event = {.kind = kind, .status = status, .value = value, .now_ns = kvfi_now_ns()};
    struct kvfi_actions actions;

    kvfi_transfer_step(&pull->life, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_TRANSFER_DO_ASK:
            ask_all(engine, pull);
            break;
        case KVFI_TRANSFER_DO_STOP_WRITERS:
            for (size_t w = 0; w < pull->writer_count; w++)
                kvfi_writer_feed(engine, &pull->writers[w], KVFI_WRITER_ON_STOP, pull->life.reason, 0);
            break;
        case KVFI_TRANSFER_DO_REPORT_DONE:
        case KVFI_TRANSFER_DO_REPORT_FAILED:
            report_terminal(engine, pull);
            break;
        case KVFI_TRANSFER_DO_END_BLOCKS:
            end_blocks(engine, pull);
            break;
        default: /* JOIN: on_resolved goes on */
            break;
        }
    }
}

static void on_resolved(kvf_engine *engine, struct kvfi_resolve *resolve, struct kvfi_match *match,
                        const struct kvf_error *error)
{
    struct kvfi_pull_job *pull = KVFI_HOLDER(resolve, struct kvfi_pull_job, resolve);

    if (match == NULL) {
        kvfi_pull_fail(engine, pull, NULL, (enum kvf_status)error->status, "%s", error->text);
        return;
    }
    kvfi_pull_feed(engine, pull, KVFI_TRANSFER_ON_RESOLVED, KVF_OK, 0);
    kvfi_pull_join(engine, pull, match);
}

static void supersede(kvf_engine *engine, const struct kvfi_pull_job *by)
{
    struct kvfi_link *link = kvfi_table_find(&engine->pulls, by->transfer, strlen(by->transfer));

    while (link != NULL) {
        struct kvfi_pull_job *pull = KVFI_HOLDER(link, struct kvfi_pull_job, link);
        link = kvfi_table_find_next(link);
        if (pull->attempt >= by->attempt || kvfi_transfer_ended(&pull->life))
            continue;
        snprintf(pull->text, sizeof pull->text, "transfer \"%s\" attempt %" PRId64 " is superseded by attempt %" PRId64,
                 pull->transfer, pull->attempt, by->attempt);
        kvfi_pull_feed(engine, pull, KVFI_TRANSFER_ON_SUPERSEDE, KVF_OK, 0);
    }
}

void kvfi_pull_begin(kvf_engine *engine, struct kvfi_pull_job *pull)
{
    struct kvfi_resolve *resolve = &pull->resolve;
    int64_t deadline = pull->started_ns + pull->timeout_ns, incomplete;

    supersede(engine, pull);
    kvfi_transfer_init(&pull->life, deadline);
    kvfi_block_init(&pull->block);
    kvfi_table_insert(&engine->pulls, &pull->link, pull->transfer, strlen(pull->transfer));
    pull->timer.fire = on_deadline;
    kvfi_timer_arm(&engine->loop.timers, &pull->timer, deadline);
    snprintf(resolve->source, sizeof resolve->source, "%s", pull->from);
    snprintf(resolve->destination, sizeof resolve->destination, "%s", engine->settings.instance);
    resolve->rank = engine->settings.rank;
    resolve->incarnation = engine->incarnation;
    resolve->check_places = true;
    resolve->await_source = (pull->flags & KVF_PULL_AWAIT_INSTANCE) != 0;
    resolve->done = on_resolved;
    incomplete = pull->started_ns + engine->settings.incomplete_timeout_ns;
    kvfi_resolve_begin(engine, resolve, !kvfi_source_alive(engine, pull->from),
                       incomplete < deadline ? incomplete : deadline);
}

void kvfi_pull_destroy(kvf_engine *engine, struct kvfi_pull_job *pull)
{
    if (pull == NULL)
        return;
    kvfi_timer_disarm(&engine->loop.timers, &pull->timer);
    kvfi_resolve_cancel(engine, &pull->resolve);
    kvfi_table_remove(&engine->pulls, &pull->link);
    for (size_t i = 0; i < pull->writer_count; i++)
        kvfi_table_remove(&engine->grants, &pull->writers[i].link);
    drop_writers(engine, pull);
    kvfi_match_release(pull->match);
    free(pull->groups);
    free(pull);
}
