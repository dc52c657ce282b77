/* SPDX-License-Identifier: Apache-2.0 */
/* One destination rank of an offer: bind, connect, say started, and one last word. chunks.c posts. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "engine/jobs.h"
#include "engine/links.h"
#include "plan/plan.h"

static void link_sink(struct kvfi_sink_job *sink, struct kvfi_peer *peer)
{
    sink->peer = peer;
    sink->previous = NULL;
    sink->next = peer->sinks;
    if (peer->sinks != NULL)
        peer->sinks->previous = sink;
    peer->sinks = sink;
}

void kvfi_sink_unlink(struct kvfi_sink_job *sink)
{
    struct kvfi_peer *peer = sink->peer;

    if (peer == NULL)
        return;
    if (sink->uses_peer)
        kvfi_peer_unuse(peer);
    sink->uses_peer = false;
    *(sink->previous == NULL ? &peer->sinks : &sink->previous->next) = sink->next;
    if (sink->next != NULL)
        sink->next->previous = sink->previous;
    sink->previous = sink->next = NULL;
    sink->peer = NULL;
}

/* ---- words ------------------------------------------------------------------------------------------------- */

int64_t kvfi_own_number(const kvf_engine *engine, const struct kvfi_peer *peer)
{
    return peer->match == NULL ? 0 : (int64_t)kvfi_view_find(peer->match->source, &engine->settings.rank);
}

void kvfi_send_failed(kvf_engine *engine, struct kvfi_peer *peer, const char *transfer, int64_t attempt,
                      enum kvf_status status, const char *text)
{
    struct kvfi_message message = {.type = KVFI_MSG_FAILED,
                                   .end = {.transfer = transfer, .attempt = attempt, .status = status, .text = text,
                                           .writer = kvfi_own_number(engine, peer)}};

    if (peer->routed)
        (void)kvfi_send(engine, &peer->route, &message, NULL);
}

void kvfi_send_quiesced(kvf_engine *engine, struct kvfi_peer *peer, const char *transfer, int64_t attempt,
                        enum kvf_status status, const char *text)
{
    struct kvfi_message message = {.type = KVFI_MSG_QUIESCED,
                                   .note = {.transfer = transfer, .attempt = attempt, .status = status, .text = text,
                                            .writer = kvfi_own_number(engine, peer)}};

    if (peer->routed)
        (void)kvfi_send(engine, &peer->route, &message, NULL);
}

static void send_end(kvf_engine *engine, const struct kvfi_sink_job *sink, enum kvfi_message_type type)
{
    struct kvfi_message message = {
        .type = type,
        .end = {.transfer = sink->offer->transfer, .attempt = sink->offer->attempt,
                .writer = kvfi_own_number(engine, sink->peer), .bytes = sink->placed_bytes, .runs = sink->placed_runs,
                .chunks = sink->chunks, .status = type == KVFI_MSG_DONE ? KVF_OK : sink->life.reason,
                .text = type == KVFI_MSG_DONE ? "" : sink->text}};

    if (sink->peer->routed)
        (void)kvfi_send(engine, &sink->peer->route, &message, NULL);
}

static void send_started(kvf_engine *engine, struct kvfi_sink_job *sink)
{
    struct kvfi_message message = {
        .type = KVFI_MSG_STARTED,
        .started = {.transfer = sink->offer->transfer, .attempt = sink->offer->attempt,
                    .writer = kvfi_own_number(engine, sink->peer), .transport = engine->carriers[sink->carrier].name,
                    .expected_bytes = sink->expected_bytes}};
    struct kvf_error error;

    if (kvfi_send(engine, &sink->peer->route, &message, &error) != KVF_OK)
        kvfi_sink_fail(engine, sink, &error);
}

/* ---- the machine ------------------------------------------------------------------------------------------- */

static void end_done(kvf_engine *engine, struct kvfi_sink_job *sink)
{
    struct kvfi_offer_job *offer = sink->offer;

    offer->bytes += sink->placed_bytes;
    offer->runs += sink->placed_runs;
    offer->pieces += sink->message.type == KVFI_MSG_PULL;
    kvfi_offer_feed(engine, offer, KVFI_OFFER_ON_SINK_DONE, KVF_OK, 0);
}

static void end_failed(kvf_engine *engine, struct kvfi_sink_job *sink)
{
    struct kvfi_offer_job *offer = sink->offer;

    if (!kvfi_offer_ended(&offer->life) && offer->life.reason == KVF_OK) {
        snprintf(offer->text, sizeof offer->text, "transfer \"%s\" attempt %" PRId64 ": %.*s", offer->transfer,
                 offer->attempt, (int)(sizeof offer->text - KVF_TRANSFER_ID_BYTES - 64), sink->text);
        if (sink->peer != NULL)
            snprintf(offer->peer, sizeof offer->peer, "%s", sink->peer->name);
    }
    kvfi_offer_feed(engine, offer, KVFI_OFFER_ON_SINK_FAILED, sink->life.reason, 0);
}

static void act(kvf_engine *engine, struct kvfi_sink_job *sink, int action)
{
    const struct kvfi_carrier *carrier = &engine->carriers[sink->carrier];

    switch (action) {
    case KVFI_SINK_DO_CONNECT:
        kvfi_sink_connect(engine, sink);
        break;
    case KVFI_SINK_DO_READ_BEGIN:
        kvfi_offer_block(engine, sink->offer, KVFI_BLOCK_ON_ACCESS_BEGIN);
        break;
    case KVFI_SINK_DO_READ_END:
        kvfi_offer_block(engine, sink->offer, KVFI_BLOCK_ON_ACCESS_END);
        break;
    case KVFI_SINK_DO_SEND_STARTED:
        send_started(engine, sink);
        kvfi_sink_pump(engine, sink);
        break;
    case KVFI_SINK_DO_ABORT:
        carrier->ops->abort(carrier->transport, sink->link_number, sink->message.pull.grant);
        break;
    case KVFI_SINK_DO_SEND_DONE:
        send_end(engine, sink, KVFI_MSG_DONE);
        break;
    case KVFI_SINK_DO_SEND_FAILED:
        send_end(engine, sink, KVFI_MSG_FAILED);
        break;
    case KVFI_SINK_DO_SEND_IN_DOUBT:
        send_end(engine, sink, KVFI_MSG_IN_DOUBT);
        break;
    case KVFI_SINK_DO_SEND_QUIESCED:
        if (sink->peer != NULL)
            kvfi_send_quiesced(engine, sink->peer, sink->offer->transfer, sink->offer->attempt, sink->life.reason,
                               sink->text);
        break;
    case KVFI_SINK_DO_END_DONE:
        end_done(engine, sink);
        break;
    default:
        end_failed(engine, sink);
        break;
    }
}

void kvfi_sink_feed(kvf_engine *engine, struct kvfi_sink_job *sink, int kind, enum kvf_status status, int64_t value)
{
    struct kvfi_life_event event = {.kind = kind, .status = status, .value = value};
    struct kvfi_actions actions;

    if (kind == KVFI_SINK_ON_STOP && !kvfi_sink_ended(&sink->life) && sink->text[0] == '\0')
        snprintf(sink->text, sizeof sink->text, "%s", sink->offer->text);
    kvfi_sink_step(&sink->life, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++)
        act(engine, sink, actions.items[i]);
    if (kvfi_sink_ended(&sink->life))
        kvfi_sink_unlink(sink);
}

void kvfi_sink_fail(kvf_engine *engine, struct kvfi_sink_job *sink, const struct kvf_error *error)
{
    if (kvfi_sink_ended(&sink->life) || sink->life.state == KVFI_SINK_DRAINING)
        return;
    memcpy(sink->text, error->text, sizeof sink->text);
    kvfi_sink_feed(engine, sink, KVFI_SINK_ON_FAIL, (enum kvf_status)error->status, 0);
}

/* ---- beginning --------------------------------------------------------------------------------------------- */

static enum kvf_status prepare(kvf_engine *engine, struct kvfi_sink_job *sink, struct kvf_error *error)
{
    const struct kvfi_msg_pull *pull = &sink->message.pull;
    const struct kvfi_offer_job *offer = sink->offer;
    struct kvf_bind_request request;
    enum kvf_status status;
    bool rings;

    if (pull->request_tokens != offer->request_tokens)
        return kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "the offer at %s has %" PRId64
                         " tokens, the pull asks for a request of %" PRId64, engine->self, offer->request_tokens,
                         pull->request_tokens);
    kvf_bind_request_init(&request, sizeof request);
    request.flags = KVF_BIND_RING_TAIL;
    request.token_begin = pull->token_begin;
    request.token_end = pull->token_end;
    request.request_tokens = pull->request_tokens;
    request.src = offer->groups;
    request.src_count = offer->group_count;
    request.dst = pull->groups;
    request.dst_count = pull->group_count;
    status = kvf_bind(sink->plans->plan, &request, &sink->whole, error);
    if (status != KVF_OK)
        return status;
    sink->expected_bytes = kvf_binding_bytes(sink->whole);
    sink->has_state = kvfi_plan_is_stateful(sink->plans->plan, &rings);
    sink->has_tails = rings || (sink->has_state && pull->token_begin == pull->token_end);
    sink->sent = kvfi_alloc_array(engine->layer_count, sizeof *sink->sent);
    sink->tail_sent = kvfi_alloc_zeroed(engine->layer_count, sizeof *sink->tail_sent);
    if (sink->sent == NULL || sink->tail_sent == NULL)
        return kvfi_fail_memory(error, "a transfer");
    for (size_t i = 0; i < engine->layer_count; i++)
        sink->sent[i] = pull->token_begin;
    return KVF_OK;
}

void kvfi_sink_begin(kvf_engine *engine, struct kvfi_sink_job *sink, struct kvfi_peer *peer,
                     struct kvfi_message *message)
{
    struct kvf_error error = {.position = -1};
    enum kvf_status status;

    sink->message = *message;
    memset(message, 0, sizeof *message);
    sink->plans = kvfi_plans_acquire(peer->plans);
    link_sink(sink, peer);
    status = prepare(engine, sink, &error);
    if (status != KVF_OK) {
        kvfi_send_failed(engine, peer, sink->offer->transfer, sink->offer->attempt, status, error.text);
        kvfi_sink_fail(engine, sink, &error);
        return;
    }
    sink->uses_peer = true;
    kvfi_peer_use(engine, peer);
    kvfi_sink_feed(engine, sink, KVFI_SINK_ON_PULL, KVF_OK, sink->expected_bytes);
}

/* ---- transports -------------------------------------------------------------------------------------------- */

static size_t find_carrier(const kvf_engine *engine, const char *name)
{
    size_t i = 0;

    while (i < engine->carrier_count && strcmp(engine->carriers[i].name, name) != 0)
        i++;
    return i;
}

static void warn_fallback(kvf_engine *engine, struct kvfi_sink_job *sink, size_t carrier, const char *cause)
{
    if (!sink->peer->warned[carrier])
        kvfi_logf(&engine->log, KVF_LOG_WARN, "%s cannot use transport %s to %s: %s", engine->self,
                  engine->carriers[carrier].name, sink->peer->name, cause);
    sink->peer->warned[carrier] = true;
}

void kvfi_sink_connect(kvf_engine *engine, struct kvfi_sink_job *sink)
{
    const struct kvfi_msg_pull *pull = &sink->message.pull;
    struct kvf_error error = {.position = -1}, last;
    int state = KVFI_DATA_FAILED;

    kvfi_fail(&last, KVF_ERR_UNREACHABLE, "%s offers none of the transports that %s wishes", engine->self,
              sink->peer->name);
    for (; sink->wish < pull->transport_count; sink->wish++) {
        sink->carrier = find_carrier(engine, pull->transports[sink->wish].name);
        if (sink->carrier == engine->carrier_count)
            continue;
        state = kvfi_link_want(engine, sink->peer, sink->carrier, pull->transports[sink->wish].endpoint, &error);
        if (state != KVFI_DATA_FAILED)
            break;
        warn_fallback(engine, sink, sink->carrier, error.text);
        kvfi_fail(&last, KVF_ERR_UNREACHABLE, "%s cannot reach %s: %.300s", engine->self, sink->peer->name,
                  error.text);
    }
    if (sink->wish == pull->transport_count) {
        sink->carrier = 0;
        kvfi_links_retry(engine, sink->peer);
        kvfi_sink_fail(engine, sink, &last);
    } else if (state == KVFI_DATA_UP) {
        sink->link_number = sink->peer->links[sink->carrier].number;
        kvfi_sink_feed(engine, sink, KVFI_SINK_ON_CONNECTED, KVF_OK, 0);
    }
}

void kvfi_sinks_on_link(kvf_engine *engine, struct kvfi_peer *peer, size_t carrier)
{
    struct kvfi_sink_job *sink = peer->sinks, *next;

    for (; sink != NULL; sink = next) {
        next = sink->next;
        if (sink->life.state != KVFI_SINK_CONNECTING || sink->carrier != carrier)
            continue;
        kvfi_sink_connect(engine, sink);
        next = sink->peer == NULL ? peer->sinks : next; /* it ended, and its offer may have taken others along */
    }
}

void kvfi_sinks_on_link_down(kvf_engine *engine, struct kvfi_peer *peer, size_t carrier, const struct kvf_error *error)
{
    struct kvfi_sink_job *sink = peer->sinks;

    while (sink != NULL) {
        if (sink->life.state != KVFI_SINK_SENDING || sink->carrier != carrier) {
            sink = sink->next;
            continue;
        }
        kvfi_sink_fail(engine, sink, error);
        sink = peer->sinks;
    }
}

void kvfi_sinks_peer_lost(kvf_engine *engine, struct kvfi_peer *peer)
{
    struct kvfi_sink_job *sink = peer->sinks;

    while (sink != NULL) {
        if (sink->life.state == KVFI_SINK_DRAINING) {
            sink = sink->next;
            continue;
        }
        memcpy(sink->text, peer->error.text, sizeof sink->text);
        kvfi_sink_feed(engine, sink, KVFI_SINK_ON_LOST, KVF_ERR_PEER_LOST, 0);
        sink = peer->sinks;
    }
}
