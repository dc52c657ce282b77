/* SPDX-License-Identifier: Apache-2.0 */
/* The offer side's first contact: a destination rank says hello; everything is checked before anything is agreed. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/jobs.h"

/* ---- the answer -------------------------------------------------------------------------------------------- */

static void send_ack(kvf_engine *engine, const struct kvfi_route *to, const struct kvfi_msg_hello *hello,
                     const struct kvfi_peer *peer, enum kvf_status status, const char *text)
{
    struct kvfi_message message = {
        .type = KVFI_MSG_HELLO_ACK,
        .hello = {.planner_version = KVF_PLANNER_VERSION, .instance = engine->settings.instance,
                  .incarnation = engine->incarnation, .rank = engine->settings.rank, .host = engine->host_identity,
                  .model = engine->settings.model, .peer_instance = hello->instance,
                  .peer_incarnation = hello->incarnation, .status = status, .text = text}};

    if (peer != NULL && peer->match != NULL) {
        message.hello.epoch_own = peer->match->source->answer.instance->epoch;
        message.hello.epoch_peer = peer->match->destination->answer.instance->epoch;
        memcpy(message.hello.digest_own, peer->match->source->digest, KVF_FINGERPRINT_TEXT_BYTES);
        memcpy(message.hello.digest_peer, peer->match->destination->digest, KVF_FINGERPRINT_TEXT_BYTES);
    }
    if (status == KVF_OK)
        message.hello.layout = engine->layout;
    if (status == KVF_OK && peer != NULL && peer->plans != NULL)
        memcpy(message.hello.plan, peer->plans->fingerprint, KVF_FINGERPRINT_TEXT_BYTES);
    (void)kvfi_send(engine, to, &message, NULL);
}

void kvfi_sink_answer(kvf_engine *engine, struct kvfi_peer *peer)
{
    bool ready = peer->life.state == KVFI_PEER_READY;

    if (peer->hello.type != KVFI_MSG_HELLO)
        return;
    send_ack(engine, &peer->route, &peer->hello.hello, peer, ready ? KVF_OK : (enum kvf_status)peer->error.status,
             ready ? "" : peer->error.text);
    kvfi_message_fini(&peer->hello);
}

/* ---- the checks -------------------------------------------------------------------------------------------- */

/* What can be told without the directory. */
static enum kvf_status check_hello(kvf_engine *engine, const struct kvfi_peer *peer, const struct kvfi_msg_hello *hello,
                                   struct kvf_error *error)
{
    if (hello->planner_version != KVF_PLANNER_VERSION)
        return kvfi_fail(error, KVF_ERR_VERSION, "%s has planner version %" PRId64 ", %s has %d", peer->name,
                         hello->planner_version, engine->self, KVF_PLANNER_VERSION);
    if (hello->model[0] != '\0' && engine->settings.model[0] != '\0' &&
        strcmp(hello->model, engine->settings.model) != 0)
        return kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s has model \"%s\", %s has \"%s\"", peer->name, hello->model,
                         engine->self, engine->settings.model);
    if (hello->layout == NULL)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: its hello has no layout", peer->name);
    return KVF_OK;
}

static enum kvf_status check_digests(const struct kvfi_peer *peer, const struct kvfi_msg_hello *hello,
                                     struct kvf_error *error)
{
    const char *own = peer->match->source->digest, *other = peer->match->destination->digest;

    if (strcmp(hello->digest_own, other) != 0)
        return kvfi_fail(error, KVF_ERR_STALE, "holdings of instance \"%s\" have digest %s at %s, %s here",
                         peer->instance, hello->digest_own, peer->name, other);
    if (strcmp(hello->digest_peer, own) != 0)
        return kvfi_fail(error, KVF_ERR_STALE, "holdings of this instance have digest %s at %s, %s here",
                         hello->digest_peer, peer->name, own);
    return KVF_OK;
}

static enum kvf_status make_plans(kvf_engine *engine, struct kvfi_peer *peer, struct kvf_error *error)
{
    size_t own = kvfi_view_find(peer->match->source, &engine->settings.rank);
    const kvf_share *share;
    struct kvfi_plans *plans = NULL;
    enum kvf_status status = KVF_OK;

    if (own == kvfi_view_ranks(peer->match->source) ||
        kvfi_view_rank(peer->match->source, own)->incarnation != engine->incarnation)
        return kvfi_fail(error, KVF_ERR_STALE, "%s is not what the directory lists under this name", engine->self);
    share = kvf_election_share(peer->match->election, own);
    if (share != NULL)
        status = kvfi_plans_create(engine->layout, peer->hello.hello.layout, share, &plans, error);
    if (status != KVF_OK)
        return status;
    kvfi_plans_release(peer->plans);
    peer->plans = plans;
    kvf_layout_release(peer->layout);
    peer->layout = kvf_layout_acquire(peer->hello.hello.layout);
    return KVF_OK;
}

static int failure_kind(enum kvf_status status)
{
    switch (status) {
    case KVF_ERR_STALE:
        return KVFI_PEER_ON_STALE;
    case KVF_ERR_DIRECTORY:
    case KVF_ERR_INCOMPLETE:
    case KVF_ERR_NOT_FOUND:
    case KVF_ERR_NO_MEMORY:
        return KVFI_PEER_ON_FAIL;
    default:
        return KVFI_PEER_ON_REFUSE;
    }
}

static void on_resolved(kvf_engine *engine, struct kvfi_resolve *resolve, struct kvfi_match *match,
                        const struct kvf_error *error)
{
    struct kvfi_peer *peer = KVFI_HOLDER(resolve, struct kvfi_peer, resolve);
    struct kvf_error own = *error;
    enum kvf_status status = (enum kvf_status)error->status;

    if (match != NULL) {
        kvfi_match_acquire(match);
        kvfi_match_release(peer->match);
        peer->match = match;
        peer->index = match->destination_index;
        status = check_digests(peer, &peer->hello.hello, &own);
        if (status == KVF_OK)
            status = make_plans(engine, peer, &own);
    }
    if (status == KVF_OK)
        kvfi_peer_feed(engine, peer, KVFI_PEER_ON_ACCEPT, KVF_OK);
    else
        kvfi_peer_fail(engine, peer, failure_kind(status), &own);
}

void kvfi_sink_check(kvf_engine *engine, struct kvfi_peer *peer, bool again)
{
    struct kvfi_resolve *resolve = &peer->resolve;
    struct kvf_error error = {.position = -1};
    enum kvf_status status = check_hello(engine, peer, &peer->hello.hello, &error);

    if (status != KVF_OK) {
        kvfi_resolve_cancel(engine, resolve);
        kvfi_peer_fail(engine, peer, failure_kind(status), &error);
        return;
    }
    snprintf(resolve->source, sizeof resolve->source, "%s", engine->settings.instance);
    snprintf(resolve->destination, sizeof resolve->destination, "%s", peer->instance);
    resolve->rank = peer->rank;
    resolve->incarnation = peer->incarnation;
    resolve->check_places = false;
    resolve->done = on_resolved;
    kvfi_resolve_begin(engine, resolve, again, kvfi_now_ns() + engine->settings.connect_timeout_ns / 2);
}

/* ---- hello ------------------------------------------------------------------------------------------------- */

static struct kvfi_peer *peer_for(kvf_engine *engine, const struct kvfi_msg_hello *hello)
{
    struct kvfi_peer *peer = kvfi_peer_find(engine, KVFI_PEER_SINK, hello->instance, &hello->rank);
    struct kvf_error error = {.position = -1};

    if (peer == NULL)
        return kvfi_peer_create(engine, KVFI_PEER_SINK, hello->instance, &hello->rank);
    if (peer->incarnation != hello->incarnation) {
        kvfi_fail(&error, KVF_ERR_STALE, "%s was restarted", peer->name);
        kvfi_message_fini(&peer->hello);
        kvfi_resolve_cancel(engine, &peer->resolve);
        kvfi_peer_fail(engine, peer, KVFI_PEER_ON_RESTART, &error);
    }
    return peer;
}

/* A hello is checked anew each time: what the peer knew when it last said it may have changed. */
void kvfi_sink_on_hello(kvf_engine *engine, const struct kvfi_route *from, struct kvfi_message *message)
{
    const struct kvfi_msg_hello *hello = &message->hello;
    struct kvfi_peer *peer, *other;
    struct kvf_error error;

    if (strcmp(hello->peer_instance, engine->settings.instance) != 0 ||
        (hello->peer_incarnation != 0 && hello->peer_incarnation != engine->incarnation)) {
        kvfi_fail(&error, KVF_ERR_STALE, "hello is meant for \"%s\" incarnation %016" PRIx64 ", this is %s incarnation "
                  "%016" PRIx64, hello->peer_instance, hello->peer_incarnation, engine->self, engine->incarnation);
        send_ack(engine, from, hello, NULL, KVF_ERR_STALE, error.text);
        return;
    }
    peer = peer_for(engine, hello);
    if (peer == NULL) {
        send_ack(engine, from, hello, NULL, KVF_ERR_LIMIT, "too many peers at once");
        return;
    }
    other = kvfi_peer_by_route(engine, from);
    if (other != NULL && other != peer)
        other->routed = false; /* one connection speaks for one rank: the last it named */
    peer->incarnation = hello->incarnation;
    peer->route = *from;
    peer->routed = true;
    kvfi_message_fini(&peer->hello);
    peer->hello = *message;
    memset(message, 0, sizeof *message);
    kvfi_peer_heard(peer);
    if (peer->life.state == KVFI_PEER_GREETING) {
        kvfi_sink_check(engine, peer, false);
        return;
    }
    kvfi_peer_feed(engine, peer, KVFI_PEER_ON_EPOCH, KVF_OK);
    kvfi_peer_feed(engine, peer, KVFI_PEER_ON_NEED, KVF_OK);
}
