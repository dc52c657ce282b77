/* SPDX-License-Identifier: Apache-2.0 */
/* The source side of a transfer: from the command to its two last events. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "engine/jobs.h"

struct kvfi_offer_job *kvfi_offer_find(kvf_engine *engine, const char *transfer, int64_t attempt)
{
    struct kvfi_link *link = kvfi_table_find(&engine->offers, transfer, strlen(transfer));

    while (link != NULL && KVFI_HOLDER(link, struct kvfi_offer_job, link)->attempt != attempt)
        link = kvfi_table_find_next(link);
    return link == NULL ? NULL : KVFI_HOLDER(link, struct kvfi_offer_job, link);
}

/* ---- reports ----------------------------------------------------------------------------------------------- */

static void fill_event(const struct kvfi_offer_job *offer, struct kvf_event *event, int kind)
{
    event->kind = kind;
    event->is_offer = 1;
    event->attempt = offer->attempt;
    event->bytes = offer->bytes;
    event->pieces = offer->pieces;
    event->runs = offer->runs;
    event->started_ns = offer->started_ns;
    event->ended_ns = kvfi_now_ns();
    memcpy(event->transfer, offer->transfer, sizeof event->transfer);
}

static void report_terminal(kvf_engine *engine, struct kvfi_offer_job *offer)
{
    struct kvfi_event_node *node = offer->terminal;
    struct kvf_event *event = kvfi_event_of(node);
    bool done = offer->life.state == KVFI_OFFER_DONE;

    offer->terminal = NULL;
    fill_event(offer, event, done ? KVF_EVENT_OFFER_DONE : KVF_EVENT_OFFER_FAILED);
    event->status = done ? KVF_OK : offer->life.reason;
    if (!done) {
        memcpy(event->text, offer->text, sizeof event->text);
        memcpy(event->peer, offer->peer, sizeof offer->peer);
    }
    pthread_mutex_lock(&engine->loop.lock);
    *(done ? &engine->counters.offers_done : &engine->counters.offers_failed) += 1;
    engine->counters.offers_active--;
    kvfi_ledger_end(&engine->ledger, true, offer->transfer, offer->attempt, event->status, offer->text);
    kvfi_events_push(&engine->events, node);
    pthread_cond_broadcast(&engine->loop.changed);
    pthread_mutex_unlock(&engine->loop.lock);
}

static void report_reusable(kvf_engine *engine, struct kvfi_offer_job *offer)
{
    struct kvfi_event_node *node = offer->reusable;
    struct kvf_event *event = kvfi_event_of(node);

    offer->reusable = NULL;
    fill_event(offer, event, KVF_EVENT_BLOCKS_REUSABLE);
    pthread_mutex_lock(&engine->loop.lock);
    engine->counters.blocks_held--;
    kvfi_events_push(&engine->events, node);
    pthread_cond_broadcast(&engine->loop.changed);
    pthread_mutex_unlock(&engine->loop.lock);
    offer->next_dead = engine->dead_offers;
    engine->dead_offers = offer;
}

void kvfi_offer_block(kvf_engine *engine, struct kvfi_offer_job *offer, int kind)
{
    struct kvfi_life_event event = {.kind = kind};
    struct kvfi_actions actions;

    if (kvfi_block_step(&offer->block, &event, &actions) == KVFI_VIOLATION)
        kvfi_logf(&engine->log, KVF_LOG_ERROR, "transfer \"%s\": block event %d in state %d", offer->transfer, kind,
                  offer->block.state);
    if (actions.count > 0)
        report_reusable(engine, offer);
}

/* ---- the machine ------------------------------------------------------------------------------------------- */

void kvfi_offer_feed(kvf_engine *engine, struct kvfi_offer_job *offer, int kind, enum kvf_status status, int64_t value)
{
    struct kvfi_life_event event = {.kind = kind, .status = status, .value = value, .now_ns = kvfi_now_ns()};
    struct kvfi_actions actions;

    kvfi_offer_step(&offer->life, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_OFFER_DO_REPORT_DONE:
        case KVFI_OFFER_DO_REPORT_FAILED:
            report_terminal(engine, offer);
            break;
        case KVFI_OFFER_DO_STOP_SINKS:
            for (size_t s = 0; s < offer->sink_count; s++)
                kvfi_sink_feed(engine, &offer->sinks[s], KVFI_SINK_ON_STOP, offer->life.reason, 0);
            break;
        default:
            kvfi_timer_disarm(&engine->loop.timers, &offer->timer);
            kvfi_offer_block(engine, offer, KVFI_BLOCK_ON_OWNER_ENDED);
            break;
        }
    }
}

static void expire_text(struct kvfi_offer_job *offer)
{
    int64_t ms = offer->timeout_ns / KVFI_MS;
    const char *missing = "";

    for (size_t i = 0; i < offer->sink_count && missing[0] == '\0'; i++)
        if (!kvfi_sink_ended(&offer->sinks[i].life) && offer->sinks[i].peer != NULL)
            missing = offer->sinks[i].peer->name;
    if (offer->life.state == KVFI_OFFER_WAITING)
        snprintf(offer->text, sizeof offer->text, "transfer \"%s\" attempt %" PRId64 " expired after %" PRId64
                 " ms: nobody pulled it", offer->transfer, offer->attempt, ms);
    else
        snprintf(offer->text, sizeof offer->text, "transfer \"%s\" attempt %" PRId64 " expired after %" PRId64
                 " ms: %" PRId64 " of %" PRId64 " ranks of instance \"%.100s\" had ended%s%.100s", offer->transfer,
                 offer->attempt, ms, offer->life.sinks_ended, offer->life.sinks, offer->puller,
                 missing[0] == '\0' ? "" : ", not ", missing);
}

static void on_deadline(void *owner, struct kvfi_timer *timer)
{
    kvf_engine *engine = owner;
    struct kvfi_offer_job *offer = KVFI_HOLDER(timer, struct kvfi_offer_job, timer);

    if (!kvfi_offer_ended(&offer->life))
        expire_text(offer);
    kvfi_offer_feed(engine, offer, KVFI_OFFER_ON_TIME, KVF_OK, 0);
}

static void supersede(kvf_engine *engine, const struct kvfi_offer_job *by)
{
    struct kvfi_link *link = kvfi_table_find(&engine->offers, by->transfer, strlen(by->transfer));

    while (link != NULL) {
        struct kvfi_offer_job *offer = KVFI_HOLDER(link, struct kvfi_offer_job, link);
        link = kvfi_table_find_next(link);
        if (offer->attempt >= by->attempt || kvfi_offer_ended(&offer->life))
            continue;
        snprintf(offer->text, sizeof offer->text,
                 "transfer \"%s\" attempt %" PRId64 " is superseded by attempt %" PRId64, offer->transfer,
                 offer->attempt, by->attempt);
        kvfi_offer_feed(engine, offer, KVFI_OFFER_ON_SUPERSEDE, KVF_OK, 0);
    }
}

void kvfi_offer_begin(kvf_engine *engine, struct kvfi_offer_job *offer)
{
    int64_t deadline = offer->started_ns + offer->timeout_ns;

    supersede(engine, offer);
    kvfi_offer_init(&offer->life, deadline);
    kvfi_block_init(&offer->block);
    kvfi_table_insert(&engine->offers, &offer->link, offer->transfer, strlen(offer->transfer));
    offer->timer.fire = on_deadline;
    kvfi_timer_arm(&engine->loop.timers, &offer->timer, deadline);
    kvfi_requests_match(engine, offer);
}

void kvfi_offer_ready(kvf_engine *engine, struct kvfi_offer_job *offer, int64_t layer_first, int64_t layer_end,
                      int64_t ready_tokens)
{
    for (size_t i = 0; i < engine->layer_count; i++)
        if (engine->layers[i] >= layer_first && engine->layers[i] < layer_end && offer->ready[i] < ready_tokens)
            offer->ready[i] = ready_tokens;
    for (size_t s = 0; s < offer->sink_count && !kvfi_offer_ended(&offer->life); s++)
        kvfi_sink_pump(engine, &offer->sinks[s]);
}

/* ---- its sinks --------------------------------------------------------------------------------------------- */

static enum kvf_status make_sinks(kvf_engine *engine, struct kvfi_offer_job *offer, const struct kvfi_peer *peer,
                                  struct kvf_error *error)
{
    size_t count = kvfi_view_ranks(peer->match->destination);

    offer->sinks = kvfi_alloc_zeroed(count, sizeof *offer->sinks);
    if (offer->sinks == NULL)
        return kvfi_fail_memory(error, "the destinations of an offer");
    offer->sink_count = count;
    snprintf(offer->puller, sizeof offer->puller, "%s", peer->instance);
    for (size_t i = 0; i < count; i++) {
        offer->sinks[i].offer = offer;
        kvfi_sink_init(&offer->sinks[i].life);
    }
    kvfi_offer_feed(engine, offer, KVFI_OFFER_ON_SINKS, KVF_OK, (int64_t)count);
    return KVF_OK;
}

struct kvfi_sink_job *kvfi_offer_sink(kvf_engine *engine, struct kvfi_offer_job *offer, struct kvfi_peer *peer,
                                      struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (peer->match == NULL)
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "%s has not said hello", peer->name);
    else if (offer->sinks == NULL)
        status = make_sinks(engine, offer, peer, error);
    else if (strcmp(offer->puller, peer->instance) != 0)
        status = kvfi_fail(error, KVF_ERR_EXISTS, "transfer \"%s\" attempt %" PRId64
                           " is pulled by instance \"%s\" already", offer->transfer, offer->attempt, offer->puller);
    if (status == KVF_OK && peer->index >= offer->sink_count)
        status = kvfi_fail(error, KVF_ERR_STALE, "%s is rank number %zu, instance \"%s\" had %zu ranks when transfer "
                           "\"%s\" began", peer->name, peer->index, offer->puller, offer->sink_count, offer->transfer);
    return status == KVF_OK ? &offer->sinks[peer->index] : NULL;
}

void kvfi_offer_destroy(kvf_engine *engine, struct kvfi_offer_job *offer)
{
    if (offer == NULL)
        return;
    kvfi_timer_disarm(&engine->loop.timers, &offer->timer);
    kvfi_table_remove(&engine->offers, &offer->link);
    for (size_t i = 0; i < offer->sink_count; i++) {
        struct kvfi_sink_job *sink = &offer->sinks[i];
        kvfi_sink_unlink(sink);
        kvfi_message_fini(&sink->message);
        kvfi_plans_release(sink->plans);
        kvf_binding_destroy(sink->whole);
        free(sink->sent);
        free(sink->tail_sent);
        while (sink->posts != NULL) {
            struct kvfi_post *post = sink->posts;
            sink->posts = post->next;
            kvf_binding_destroy(post->binding);
            free(post);
        }
    }
    free(offer->sinks);
    free(offer->ready);
    free(offer->groups);
    free(offer);
}
