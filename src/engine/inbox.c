/* SPDX-License-Identifier: Apache-2.0 */
/* Messages in: who says it, may it be said, and who acts on it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/jobs.h"

static bool incoming(const struct kvfi_route *route) { return route->peer == 0; }

/* Only those who connected here get an answer to what cannot be read: so two sides never answer each other for ever. */
static void unreadable(kvf_engine *engine, const struct kvfi_route *from, const struct kvf_error *error)
{
    struct kvfi_peer *peer = kvfi_peer_by_route(engine, from);
    struct kvf_error own = {.position = -1};

    kvfi_logf(&engine->log, KVF_LOG_DEBUG, "%s cannot read a message of %s: %s", engine->self,
              peer == NULL ? "an unknown peer" : peer->name, error->text);
    if (incoming(from)) {
        kvfi_send_nack(engine, from, "", "", 0, (enum kvf_status)error->status, error->text);
    } else if (peer != NULL && peer->life.state == KVFI_PEER_GREETING) {
        kvfi_fail(&own, (enum kvf_status)error->status, "%s: %.300s", peer->name, error->text);
        kvfi_peer_fail(engine, peer, KVFI_PEER_ON_REFUSE, &own);
    }
}

/* Another process answers where the peer was. */
static bool restarted(kvf_engine *engine, struct kvfi_peer *peer, uint64_t incarnation)
{
    struct kvf_error error = {.position = -1};

    if (incarnation == peer->incarnation)
        return false;
    kvfi_fail(&error, KVF_ERR_STALE, "%s was restarted", peer->name);
    kvfi_peer_fail(engine, peer, KVFI_PEER_ON_RESTART, &error);
    return true;
}

static void on_nack(kvf_engine *engine, struct kvfi_peer *peer, const struct kvfi_message *message)
{
    struct kvf_error error = {.position = -1};

    if (peer->life.state != KVFI_PEER_GREETING) {
        kvfi_writers_on_message(engine, peer, message);
        return;
    }
    kvfi_fail(&error, message->nack.status == KVF_OK ? KVF_ERR_REFUSED : (enum kvf_status)message->nack.status,
              "%s refuses: %.300s", peer->name, message->nack.text);
    kvfi_peer_fail(engine, peer, KVFI_PEER_ON_REFUSE, &error);
}

/* A peer that closes says so, lest its silence be waited for. */
static bool goodbye(kvf_engine *engine, struct kvfi_peer *peer, const struct kvfi_message *message)
{
    struct kvf_error error = {.position = -1};

    if (message->type != KVFI_MSG_NACK || message->nack.status != KVF_ERR_CLOSED || message->nack.of[0] != '\0')
        return false;
    kvfi_carriers_dispatch(engine); /* what it sent before it closed is here, and counts */
    kvfi_fail(&error, KVF_ERR_PEER_LOST, "%s has closed", peer->name);
    kvfi_peer_fail(engine, peer, KVFI_PEER_ON_LOST, &error);
    return true;
}

static void from_source(kvf_engine *engine, struct kvfi_peer *peer, struct kvfi_message *message)
{
    switch (message->type) {
    case KVFI_MSG_HELLO_ACK:
        kvfi_source_on_ack(engine, peer, message);
        break;
    case KVFI_MSG_DONE:
    case KVFI_MSG_FAILED:
    case KVFI_MSG_IN_DOUBT:
    case KVFI_MSG_QUIESCED:
        kvfi_carriers_dispatch(engine); /* what it moved before it said so is here, and counts */
        kvfi_writers_on_message(engine, peer, message);
        break;
    case KVFI_MSG_STARTED:
    case KVFI_MSG_PROGRESS:
        kvfi_writers_on_message(engine, peer, message);
        break;
    case KVFI_MSG_NACK:
        on_nack(engine, peer, message);
        break;
    default:
        kvfi_logf(&engine->log, KVF_LOG_WARN, "%s: %s is not for %s to say", engine->self,
                  kvfi_message_name(message->type), peer->name);
        break;
    }
}

static void from_sink(kvf_engine *engine, struct kvfi_peer *peer, struct kvfi_message *message)
{
    switch (message->type) {
    case KVFI_MSG_PULL:
    case KVFI_MSG_CANCEL:
    case KVFI_MSG_RELEASE:
    case KVFI_MSG_NACK:
        kvfi_sink_on_message(engine, peer, message);
        break;
    default:
        kvfi_send_nack(engine, &peer->route, kvfi_message_name(message->type), "", 0, KVF_ERR_PROTOCOL,
                       "this is for the prefill side to say");
        break;
    }
}

static void dispatch(kvf_engine *engine, const struct kvfi_route *from, struct kvfi_message *message)
{
    struct kvfi_peer *peer = kvfi_peer_by_route(engine, from);
    bool ping = message->type == KVFI_MSG_PING || message->type == KVFI_MSG_PONG;

    if (message->type == KVFI_MSG_PING)
        kvfi_peer_on_ping(engine, from, &message->ping);
    if (ping && peer != NULL && restarted(engine, peer, message->ping.incarnation))
        peer = NULL;
    if (peer != NULL)
        kvfi_peer_heard(peer);
    if (ping)
        return;
    if (peer != NULL && goodbye(engine, peer, message))
        return;
    if (message->type == KVFI_MSG_HELLO && incoming(from))
        kvfi_sink_on_hello(engine, from, message);
    else if (peer != NULL && peer->role == KVFI_PEER_SOURCE)
        from_source(engine, peer, message);
    else if (peer != NULL)
        from_sink(engine, peer, message);
    else if (incoming(from) && message->type != KVFI_MSG_NACK)
        kvfi_send_nack(engine, from, kvfi_message_name(message->type), "", 0, KVF_ERR_PROTOCOL, "say hello first");
}

static void handle(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count)
{
    kvf_engine *engine = context;
    struct kvfi_message message = {.type = KVFI_MSG_NONE};
    struct kvf_error error = {.position = -1};

    if (kvfi_wire_unpack(bytes, byte_count, &message, &error) != KVF_OK) {
        unreadable(engine, from, &error);
        return;
    }
    kvfi_logf(&engine->log, KVF_LOG_TRACE, "%s hears %s", engine->self, kvfi_message_name(message.type));
    dispatch(engine, from, &message);
    kvfi_message_fini(&message);
}

static void refuse(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count,
                   const struct kvf_error *error)
{
    (void)bytes;
    (void)byte_count;
    unreadable(context, from, error);
}

size_t kvfi_inbox_dispatch(kvf_engine *engine)
{
    static const struct kvfi_dialect dialect = {.name = "kvferry/1", .recognise = kvfi_wire_recognise,
                                                 .handle = handle, .refuse = refuse};

    return kvfi_channel_dispatch(engine->channel, &dialect, engine);
}
