/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/peers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/jobs.h"
#include "engine/links.h"

enum { MAX_SOURCE_PEERS = 65536 };
#define RECENT_NS (50 * KVFI_MS) /* no process is replaced by another within this */

/* Silence counts as loss after three quarters of the timeout, looked at every eighth, so that it is noticed within
 * it. */
static int64_t silence_ns(const kvf_engine *engine) { return engine->settings.peer_timeout_ns / 4 * 3; }
static int64_t ping_ns(const kvf_engine *engine) { return engine->settings.peer_timeout_ns / 8; }

static void on_timer(void *owner, struct kvfi_timer *timer);

/* ---- records ----------------------------------------------------------------------------------------------- */

static bool idle(const struct kvfi_peer *peer)
{
    return peer->writers == NULL && peer->sinks == NULL && peer->requests == NULL && peer->active == 0 &&
           !peer->resolve.pending && peer->life.state != KVFI_PEER_GREETING;
}

/* Makes room for one more; the one least recently made goes first. */
static bool make_room(kvf_engine *engine, int role)
{
    struct kvfi_peer *oldest = NULL;
    size_t limit = role == KVFI_PEER_SINK ? KVFI_MAX_SINK_PEERS : MAX_SOURCE_PEERS;
    size_t count = role == KVFI_PEER_SINK ? engine->sink_peer_count : engine->peer_count - engine->sink_peer_count;

    if (count < limit)
        return true;
    for (struct kvfi_peer *peer = engine->peers; peer != NULL; peer = peer->next)
        if (peer->role == role && idle(peer))
            oldest = peer;
    if (oldest != NULL)
        kvfi_peer_destroy(engine, oldest);
    return oldest != NULL;
}

static void count_peers(kvf_engine *engine)
{
    int64_t plans = 0;

    for (const struct kvfi_peer *peer = engine->peers; peer != NULL; peer = peer->next)
        plans += peer->plans != NULL;
    pthread_mutex_lock(&engine->loop.lock);
    engine->counters.peers = (int64_t)engine->peer_count;
    engine->counters.plans_cached = plans;
    pthread_mutex_unlock(&engine->loop.lock);
}

struct kvfi_peer *kvfi_peer_create(kvf_engine *engine, int role, const char *instance, const struct kvf_rank *rank)
{
    struct kvfi_peer *peer;

    if (!make_room(engine, role))
        return NULL;
    peer = calloc(1, sizeof *peer);
    if (peer == NULL)
        return NULL;
    peer->role = role;
    peer->rank = *rank;
    snprintf(peer->instance, sizeof peer->instance, "%s", instance);
    kvfi_peer_name(peer->name, instance, rank);
    kvfi_peer_init(&peer->life);
    peer->timer.fire = on_timer;
    peer->next = engine->peers;
    if (engine->peers != NULL)
        engine->peers->previous = peer;
    engine->peers = peer;
    engine->peer_count++;
    engine->sink_peer_count += role == KVFI_PEER_SINK;
    count_peers(engine);
    return peer;
}

struct kvfi_peer *kvfi_peer_find(kvf_engine *engine, int role, const char *instance, const struct kvf_rank *rank)
{
    struct kvfi_peer *peer = engine->peers;

    while (peer != NULL && !(peer->role == role && peer->rank.pp == rank->pp && peer->rank.cp == rank->cp &&
                             peer->rank.tp == rank->tp && strcmp(peer->instance, instance) == 0))
        peer = peer->next;
    return peer;
}

struct kvfi_peer *kvfi_peer_by_route(kvf_engine *engine, const struct kvfi_route *route)
{
    struct kvfi_peer *peer = engine->peers;

    while (peer != NULL && !(peer->routed && kvfi_route_equal(&peer->route, route)))
        peer = peer->next;
    return peer;
}

static void drop_route(kvf_engine *engine, struct kvfi_peer *peer)
{
    if (peer->routed && peer->role == KVFI_PEER_SOURCE)
        kvfi_channel_disconnect(engine->channel, &peer->route);
    peer->routed = false;
}

static void forget_agreement(kvf_engine *engine, struct kvfi_peer *peer)
{
    kvfi_plans_release(peer->plans);
    peer->plans = NULL;
    kvf_layout_release(peer->layout);
    peer->layout = NULL;
    kvfi_match_release(peer->match);
    peer->match = NULL;
    count_peers(engine);
}

void kvfi_peer_destroy(kvf_engine *engine, struct kvfi_peer *peer)
{
    kvfi_timer_disarm(&engine->loop.timers, &peer->timer);
    kvfi_resolve_cancel(engine, &peer->resolve);
    kvfi_source_flush_releases(engine, peer, false);
    kvfi_links_close(engine, peer);
    drop_route(engine, peer);
    *(peer->previous == NULL ? &engine->peers : &peer->previous->next) = peer->next;
    if (peer->next != NULL)
        peer->next->previous = peer->previous;
    engine->peer_count--;
    engine->sink_peer_count -= peer->role == KVFI_PEER_SINK;
    kvfi_message_fini(&peer->hello);
    forget_agreement(engine, peer);
    free(peer);
}

void kvfi_peers_fini(kvf_engine *engine)
{
    while (engine->peers != NULL)
        kvfi_peer_destroy(engine, engine->peers);
}

/* ---- the machine ------------------------------------------------------------------------------------------- */

static void wake(kvf_engine *engine, struct kvfi_peer *peer)
{
    kvfi_timer_disarm(&engine->loop.timers, &peer->timer);
    peer->heard_ns = kvfi_now_ns();
    if (peer->active > 0)
        kvfi_timer_arm(&engine->loop.timers, &peer->timer, peer->heard_ns + ping_ns(engine));
    count_peers(engine);
    if (peer->role == KVFI_PEER_SINK) {
        kvfi_sink_answer(engine, peer);
    } else {
        kvfi_writers_peer_ready(engine, peer);
        kvfi_source_flush_releases(engine, peer, true);
    }
}

static void fail_waiting(kvf_engine *engine, struct kvfi_peer *peer)
{
    kvfi_timer_disarm(&engine->loop.timers, &peer->timer);
    if (peer->role == KVFI_PEER_SINK) {
        kvfi_sink_answer(engine, peer);
        return;
    }
    kvfi_resolve_cancel(engine, &peer->resolve);
    peer->silent = false;
    drop_route(engine, peer);
    kvfi_source_flush_releases(engine, peer, false);
    kvfi_writers_peer_failed(engine, peer);
}

static void fail_active(kvf_engine *engine, struct kvfi_peer *peer)
{
    kvfi_timer_disarm(&engine->loop.timers, &peer->timer);
    if (peer->role == KVFI_PEER_SINK) {
        kvfi_sinks_peer_lost(engine, peer);
        kvfi_requests_drop_peer(engine, peer);
        kvfi_links_close(engine, peer);
    } else {
        kvfi_writers_peer_lost(engine, peer);
        kvfi_source_flush_releases(engine, peer, false);
        drop_route(engine, peer);
    }
}

void kvfi_peer_feed(kvf_engine *engine, struct kvfi_peer *peer, int kind, enum kvf_status status)
{
    struct kvfi_life_event event = {.kind = kind, .status = status};
    struct kvfi_actions actions;

    kvfi_peer_step(&peer->life, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_PEER_DO_GREET:
        case KVFI_PEER_DO_GREET_AGAIN:
            if (peer->role == KVFI_PEER_SINK)
                kvfi_sink_check(engine, peer, actions.items[i] == KVFI_PEER_DO_GREET_AGAIN);
            else
                kvfi_source_greet(engine, peer, actions.items[i] == KVFI_PEER_DO_GREET_AGAIN);
            break;
        case KVFI_PEER_DO_WAKE:
            wake(engine, peer);
            break;
        case KVFI_PEER_DO_FAIL_WAITING:
            fail_waiting(engine, peer);
            break;
        case KVFI_PEER_DO_FAIL_ACTIVE:
            fail_active(engine, peer);
            break;
        default:
            forget_agreement(engine, peer);
            break;
        }
    }
}

void kvfi_peer_fail(kvf_engine *engine, struct kvfi_peer *peer, int kind, const struct kvf_error *error)
{
    peer->error = *error;
    if (kind == KVFI_PEER_ON_REFUSE)
        kvfi_logf(&engine->log, KVF_LOG_WARN, "%s refuses %s: %s", engine->self, peer->name, error->text);
    if (kind == KVFI_PEER_ON_LOST && (peer->life.state == KVFI_PEER_READY || peer->life.state == KVFI_PEER_GREETING)) {
        kvfi_logf(&engine->log, peer->active > 0 ? KVF_LOG_WARN : KVF_LOG_INFO, "%s lost %s: %s", engine->self,
                  peer->name, error->text);
        if (peer->active > 0)
            kvfi_report_peer_lost(engine, peer);
    }
    kvfi_peer_feed(engine, peer, kind, (enum kvf_status)error->status);
}

/* ---- silence ----------------------------------------------------------------------------------------------- */

void kvfi_peer_heard(struct kvfi_peer *peer) { peer->heard_ns = kvfi_now_ns(); }

void kvfi_peer_use(kvf_engine *engine, struct kvfi_peer *peer)
{
    if (peer->active++ > 0 || peer->timer.armed || peer->life.state != KVFI_PEER_READY)
        return;
    kvfi_peer_heard(peer);
    kvfi_timer_arm(&engine->loop.timers, &peer->timer, peer->heard_ns + ping_ns(engine));
}

void kvfi_peer_unuse(struct kvfi_peer *peer) { peer->active--; }

bool kvfi_source_alive(kvf_engine *engine, const char *instance)
{
    int64_t now = kvfi_now_ns();

    for (const struct kvfi_peer *peer = engine->peers; peer != NULL; peer = peer->next)
        if (peer->role == KVFI_PEER_SOURCE && peer->life.state == KVFI_PEER_READY &&
            (peer->active > 0 || now - peer->heard_ns < RECENT_NS) && strcmp(peer->instance, instance) == 0)
            return true;
    return false;
}

void kvfi_peers_goodbye(kvf_engine *engine)
{
    for (struct kvfi_peer *peer = engine->peers; peer != NULL; peer = peer->next)
        if (peer->routed && peer->life.state == KVFI_PEER_READY)
            kvfi_send_nack(engine, &peer->route, "", "", 0, KVF_ERR_CLOSED, "this engine closes");
}

void kvfi_peers_forgive(kvf_engine *engine)
{
    int64_t now = kvfi_now_ns();

    for (struct kvfi_peer *peer = engine->peers; peer != NULL; peer = peer->next)
        peer->heard_ns = now;
}

static void ping(kvf_engine *engine, struct kvfi_peer *peer, int64_t now)
{
    struct kvfi_message message = {.type = KVFI_MSG_PING,
                                   .ping = {.sequence = ++engine->ping_sequence, .incarnation = engine->incarnation}};

    (void)kvfi_send(engine, &peer->route, &message, NULL);
    peer->pinged_ns = now;
    kvfi_timer_arm(&engine->loop.timers, &peer->timer, now + ping_ns(engine));
}

static void on_timer(void *owner, struct kvfi_timer *timer)
{
    kvf_engine *engine = owner;
    struct kvfi_peer *peer = KVFI_HOLDER(timer, struct kvfi_peer, timer);
    int64_t now = kvfi_now_ns();
    struct kvf_error error = {.position = -1};

    if (peer->life.state == KVFI_PEER_GREETING) {
        kvfi_fail(&error, KVF_ERR_UNREACHABLE, "%s does not answer at %s within %" PRId64 " ms", peer->name,
                  peer->match == NULL ? "its endpoint" : kvfi_view_rank(peer->match->source, peer->index)->channel,
                  engine->settings.connect_timeout_ns / KVFI_MS);
        kvfi_source_silent(engine, peer, &error);
    } else if (peer->life.state == KVFI_PEER_READY && peer->active > 0) {
        if (now - peer->heard_ns <= silence_ns(engine)) {
            ping(engine, peer, now);
            return;
        }
        kvfi_fail(&error, KVF_ERR_PEER_LOST, "%s is lost: nothing heard of it for %" PRId64 " ms", peer->name,
                  (now - peer->heard_ns) / KVFI_MS);
        kvfi_peer_fail(engine, peer, KVFI_PEER_ON_LOST, &error);
    }
}

void kvfi_peer_on_ping(kvf_engine *engine, const struct kvfi_route *from, const struct kvfi_msg_ping *ping)
{
    struct kvfi_message message = {.type = KVFI_MSG_PONG,
                                   .ping = {.sequence = ping->sequence, .incarnation = engine->incarnation}};

    (void)kvfi_send(engine, from, &message, NULL);
}
