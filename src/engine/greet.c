/* SPDX-License-Identifier: Apache-2.0 */
/* The pull side's first contact: hello to a source rank, and what its answer must be. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/jobs.h"

enum { MAX_RELEASES = 65536 };

static void set_match(struct kvfi_peer *peer, struct kvfi_match *match, size_t index)
{
    struct kvfi_match *old = peer->match;

    peer->match = kvfi_match_acquire(match);
    peer->index = index;
    kvfi_match_release(old);
}

static bool same_epochs(const struct kvfi_match *a, const struct kvfi_match *b)
{
    return a == b || (a->source->answer.instance->epoch == b->source->answer.instance->epoch &&
                      a->destination->answer.instance->epoch == b->destination->answer.instance->epoch);
}

/* Another process has taken the place of the one that is being greeted; all that waits for it goes on waiting. */
static void greet_anew(kvf_engine *engine, struct kvfi_peer *peer)
{
    if (!peer->resolve.pending)
        kvfi_source_greet(engine, peer, true);
}

struct kvfi_peer *kvfi_source_need(kvf_engine *engine, struct kvfi_match *match, size_t index)
{
    const struct kvfi_directory_rank *rank = kvfi_view_rank(match->source, index);
    const char *instance = match->source->answer.instance->instance;
    struct kvfi_peer *peer = kvfi_peer_find(engine, KVFI_PEER_SOURCE, instance, &rank->rank);
    struct kvf_error error = {.position = -1};

    if (peer == NULL)
        peer = kvfi_peer_create(engine, KVFI_PEER_SOURCE, instance, &rank->rank);
    if (peer == NULL)
        return NULL;
    if (peer->life.state == KVFI_PEER_GREETING && peer->incarnation != rank->incarnation) {
        greet_anew(engine, peer);
        return peer;
    }
    if (peer->incarnation != 0 && peer->incarnation != rank->incarnation) {
        kvfi_fail(&error, KVF_ERR_STALE, "%s was restarted", peer->name);
        kvfi_peer_fail(engine, peer, KVFI_PEER_ON_RESTART, &error);
    } else if (peer->match != NULL && !same_epochs(peer->match, match)) {
        kvfi_peer_feed(engine, peer, KVFI_PEER_ON_EPOCH, KVF_OK);
    }
    if (peer->life.state != KVFI_PEER_GREETING && peer->life.state != KVFI_PEER_READY)
        set_match(peer, match, index);
    peer->incarnation = rank->incarnation;
    return peer;
}

/* ---- hello ------------------------------------------------------------------------------------------------- */

static void send_hello(kvf_engine *engine, struct kvfi_peer *peer)
{
    const struct kvfi_directory_instance *own = peer->match->destination->answer.instance;
    const struct kvfi_directory_instance *other = peer->match->source->answer.instance;
    const struct kvfi_directory_rank *rank = &other->ranks[peer->index];
    struct kvfi_message message = {
        .type = KVFI_MSG_HELLO,
        .hello = {.planner_version = KVF_PLANNER_VERSION, .instance = engine->settings.instance,
                  .incarnation = engine->incarnation, .rank = engine->settings.rank, .host = engine->host_identity,
                  .model = engine->settings.model, .peer_instance = peer->instance,
                  .peer_incarnation = rank->incarnation, .epoch_own = own->epoch, .epoch_peer = other->epoch,
                  .layout = engine->layout}};
    struct kvf_error error;
    enum kvf_status status = KVF_OK;

    memcpy(message.hello.digest_own, peer->match->destination->digest, KVF_FINGERPRINT_TEXT_BYTES);
    memcpy(message.hello.digest_peer, peer->match->source->digest, KVF_FINGERPRINT_TEXT_BYTES);
    peer->incarnation = rank->incarnation;
    if (!peer->routed)
        status = kvfi_channel_connect(engine->channel, rank->channel, &peer->route, &error);
    if (status == KVF_OK) {
        peer->routed = true;
        status = kvfi_send(engine, &peer->route, &message, &error);
    }
    peer->greeted_ns = kvfi_now_ns();
    if (status != KVF_OK)
        kvfi_peer_fail(engine, peer, KVFI_PEER_ON_FAIL, &error);
    else
        kvfi_timer_arm(&engine->loop.timers, &peer->timer, peer->greeted_ns + engine->settings.connect_timeout_ns);
}

static void on_resolved(kvf_engine *engine, struct kvfi_resolve *resolve, struct kvfi_match *match,
                        const struct kvf_error *error)
{
    struct kvfi_peer *peer = KVFI_HOLDER(resolve, struct kvfi_peer, resolve);
    struct kvf_error gone = {.position = -1}, mute = peer->error;
    bool silent = peer->silent;
    size_t index;

    peer->silent = false;
    if (match == NULL) {
        kvfi_peer_fail(engine, peer, KVFI_PEER_ON_FAIL, silent ? &mute : error);
        return;
    }
    index = kvfi_view_find(match->source, &peer->rank);
    if (silent && index < kvfi_view_ranks(match->source) &&
        kvfi_view_rank(match->source, index)->incarnation == peer->incarnation) {
        kvfi_peer_fail(engine, peer, KVFI_PEER_ON_FAIL, &mute);
        return;
    }
    if (index == kvfi_view_ranks(match->source)) {
        kvfi_fail(&gone, KVF_ERR_STALE, "%s is not registered any more", peer->name);
        kvfi_peer_fail(engine, peer, KVFI_PEER_ON_FAIL, &gone);
        return;
    }
    if (peer->routed && kvfi_view_rank(match->source, index)->incarnation != peer->incarnation) {
        kvfi_channel_disconnect(engine->channel, &peer->route);
        peer->routed = false;
    }
    set_match(peer, match, index);
    send_hello(engine, peer);
    if (peer->life.state == KVFI_PEER_GREETING)
        kvfi_writers_rematch(engine, peer);
}

void kvfi_source_greet(kvf_engine *engine, struct kvfi_peer *peer, bool again)
{
    struct kvfi_resolve *resolve = &peer->resolve;

    if (!again) {
        send_hello(engine, peer);
        return;
    }
    kvfi_timer_disarm(&engine->loop.timers, &peer->timer);
    snprintf(resolve->source, sizeof resolve->source, "%s", peer->instance);
    snprintf(resolve->destination, sizeof resolve->destination, "%s", engine->settings.instance);
    resolve->rank = engine->settings.rank;
    resolve->incarnation = engine->incarnation;
    resolve->check_places = true;
    resolve->done = on_resolved;
    kvfi_resolve_begin(engine, resolve, true,
                       kvfi_now_ns() + (peer->silent ? 0 : engine->settings.incomplete_timeout_ns));
}

void kvfi_source_silent(kvf_engine *engine, struct kvfi_peer *peer, const struct kvf_error *error)
{
    peer->error = *error;
    peer->silent = true;
    kvfi_source_greet(engine, peer, true);
}

void kvfi_sources_review(kvf_engine *engine, const struct kvfi_instance *instance)
{
    for (struct kvfi_peer *peer = engine->peers; peer != NULL; peer = peer->next) {
        size_t index;
        if (peer->role != KVFI_PEER_SOURCE || peer->life.state != KVFI_PEER_GREETING ||
            strcmp(peer->instance, instance->name) != 0)
            continue;
        index = kvfi_view_find(instance->view, &peer->rank);
        if (index < kvfi_view_ranks(instance->view) &&
            kvfi_view_rank(instance->view, index)->incarnation != peer->incarnation)
            greet_anew(engine, peer);
    }
}

void kvfi_sources_confirm(kvf_engine *engine)
{
    for (struct kvfi_peer *peer = engine->peers; peer != NULL; peer = peer->next) {
        struct kvfi_instance *instance;
        if (peer->role != KVFI_PEER_SOURCE || peer->life.state != KVFI_PEER_GREETING || peer->resolve.pending)
            continue;
        instance = kvfi_instance_get(engine, peer->instance);
        if (instance != NULL && instance->last.status == KVF_ERR_DIRECTORY &&
            kvfi_now_ns() - instance->asked_ns >= KVFI_ASK_AGAIN_NS)
            kvfi_instance_ask(engine, instance);
    }
}

/* ---- hello_ack --------------------------------------------------------------------------------------------- */

/* Which event a refusal by the other side is: some pass by themselves and are not remembered. */
static int refusal_kind(enum kvf_status status)
{
    switch (status) {
    case KVF_ERR_STALE:
        return KVFI_PEER_ON_STALE;
    case KVF_ERR_DIRECTORY:
    case KVF_ERR_INCOMPLETE:
    case KVF_ERR_NOT_FOUND:
    case KVF_ERR_NO_MEMORY:
    case KVF_ERR_LIMIT:
    case KVF_ERR_AGAIN:
    case KVF_ERR_CLOSED:
        return KVFI_PEER_ON_FAIL;
    default:
        return KVFI_PEER_ON_REFUSE;
    }
}

static enum kvf_status check_identity(kvf_engine *engine, const struct kvfi_peer *peer,
                                      const struct kvfi_msg_hello *ack,
                                      struct kvf_error *error)
{
    if (ack->planner_version != KVF_PLANNER_VERSION)
        return kvfi_fail(error, KVF_ERR_VERSION, "%s has planner version %" PRId64 ", this side has %d", peer->name,
                         ack->planner_version, KVF_PLANNER_VERSION);
    if (strcmp(ack->instance, peer->instance) != 0 || ack->incarnation != peer->incarnation)
        return kvfi_fail(error, KVF_ERR_STALE, "%s: \"%s\" incarnation %016" PRIx64 " answers, expected %016" PRIx64,
                         peer->name, ack->instance, ack->incarnation, peer->incarnation);
    if (ack->rank.pp != peer->rank.pp || ack->rank.cp != peer->rank.cp || ack->rank.tp != peer->rank.tp)
        return kvfi_fail(error, KVF_ERR_STALE, "%s: rank %" PRId64 ",%" PRId64 ",%" PRId64 " answers", peer->name,
                         ack->rank.pp, ack->rank.cp, ack->rank.tp);
    if (ack->model[0] != '\0' && engine->settings.model[0] != '\0' && strcmp(ack->model, engine->settings.model) != 0)
        return kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s has model \"%s\", this side has \"%s\"", peer->name,
                         ack->model, engine->settings.model);
    if (strcmp(ack->digest_own, peer->match->source->digest) != 0 ||
        strcmp(ack->digest_peer, peer->match->destination->digest) != 0)
        return kvfi_fail(error, KVF_ERR_STALE, "%s: digests of the holdings are %s and %s there, %s and %s here",
                         peer->name, ack->digest_own, ack->digest_peer, peer->match->source->digest,
                         peer->match->destination->digest);
    return KVF_OK;
}

static enum kvf_status make_plans(kvf_engine *engine, struct kvfi_peer *peer, const struct kvfi_msg_hello *ack,
                                  struct kvf_error *error)
{
    const kvf_share *share = kvf_election_share(peer->match->election, peer->index);
    struct kvfi_plans *plans = NULL;
    enum kvf_status status = KVF_OK;

    if (ack->layout == NULL)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: its answer has no layout", peer->name);
    if (share != NULL)
        status = kvfi_plans_create(ack->layout, engine->layout, share, &plans, error);
    if (status == KVF_OK && strcmp(plans == NULL ? "" : plans->fingerprint, ack->plan) != 0)
        status = kvfi_fail(error, KVF_ERR_PLAN_MISMATCH,
                           "%s: plan %s there, %s here (planner versions %" PRId64 " and %d)", peer->name,
                           ack->plan[0] == '\0' ? "none" : ack->plan, plans == NULL ? "none" : plans->fingerprint,
                           ack->planner_version, KVF_PLANNER_VERSION);
    if (status != KVF_OK) {
        kvfi_plans_release(plans);
        return status;
    }
    kvfi_plans_release(peer->plans);
    peer->plans = plans;
    kvf_layout_release(peer->layout);
    peer->layout = kvf_layout_acquire(ack->layout);
    return KVF_OK;
}

void kvfi_source_on_ack(kvf_engine *engine, struct kvfi_peer *peer, struct kvfi_message *message)
{
    const struct kvfi_msg_hello *ack = &message->hello;
    struct kvf_error error = {.position = -1};
    enum kvf_status status;

    if (peer->life.state != KVFI_PEER_GREETING || (peer->resolve.pending && !peer->silent))
        return;
    kvfi_resolve_cancel(engine, &peer->resolve); /* late, but here */
    peer->silent = false;
    if (ack->status != KVF_OK) {
        status = kvfi_fail(&error, (enum kvf_status)ack->status, "%s refuses: %s", peer->name, ack->text);
        kvfi_peer_fail(engine, peer, refusal_kind(status), &error);
        return;
    }
    status = check_identity(engine, peer, ack, &error);
    if (status == KVF_OK)
        status = make_plans(engine, peer, ack, &error);
    if (status != KVF_OK)
        kvfi_peer_fail(engine, peer, refusal_kind(status), &error);
    else
        kvfi_peer_feed(engine, peer, KVFI_PEER_ON_ACCEPT, KVF_OK);
}

/* ---- releases ---------------------------------------------------------------------------------------------- */

void kvfi_source_release(kvf_engine *engine, struct kvfi_peer *peer, const char *transfer, int64_t attempt,
                         enum kvf_status status)
{
    struct kvfi_release *release;

    if (peer->release_count >= MAX_RELEASES || peer->life.state == KVFI_PEER_REFUSED ||
        peer->life.state == KVFI_PEER_LOST)
        return;
    release = calloc(1, sizeof *release);
    if (release == NULL)
        return;
    snprintf(release->transfer, sizeof release->transfer, "%s", transfer);
    release->attempt = attempt;
    release->status = status;
    release->next = peer->releases;
    peer->releases = release;
    peer->release_count++;
    if (peer->life.state == KVFI_PEER_READY)
        kvfi_source_flush_releases(engine, peer, true);
}

void kvfi_source_flush_releases(kvf_engine *engine, struct kvfi_peer *peer, bool send)
{
    while (peer->releases != NULL) {
        struct kvfi_release *release = peer->releases;
        struct kvfi_message message = {.type = KVFI_MSG_RELEASE,
                                       .note = {.transfer = release->transfer, .attempt = release->attempt,
                                                .writer = -1, .status = release->status, .text = ""}};
        peer->releases = release->next;
        peer->release_count--;
        if (send)
            (void)kvfi_send(engine, &peer->route, &message, NULL);
        free(release);
    }
}
