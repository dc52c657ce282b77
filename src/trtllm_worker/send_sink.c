/* SPDX-License-Identifier: Apache-2.0 */
/* One generation rank of a request: what it asked, and what it is told. Its last word of each kind is said once. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "trtllm_worker/send.h"

/* ---- words ------------------------------------------------------------------------------------------------------- */

static int64_t own_rank(const struct kvfi_send_sink *sink)
{
    return kvf_trtllm_rank_get_spec(sink->session->worker->self)->instance_rank;
}

void kvfi_send_sink_say_kv(struct kvfi_send_sink *sink, int word, bool is_last, int64_t bytes)
{
    const struct kvfi_trtllm_message message = {
        .tag = KVFI_TRTLLM_KV_AGENT_RESULT,
        .result = {.ctx_rank = own_rank(sink), .rid = sink->session->rid,
                   .slice = sink->ask.slice == KVF_TRTLLM_NONE ? 0 : sink->ask.slice, .is_last = is_last, .word = word,
                   .transfer_bytes = bytes}};

    sink->kv_said |= is_last && word != KVFI_TRTLLM_IN_DOUBT;
    kvfi_send_say(sink->session->worker->senders, sink->peer, &message);
}

void kvfi_send_sink_say_aux(struct kvfi_send_sink *sink, int word)
{
    const struct kvfi_trtllm_message message = {
        .tag = KVFI_TRTLLM_AUX_AGENT_RESULT,
        .aux = {.ctx_rank = own_rank(sink), .rid = sink->session->rid, .word = word}};

    sink->aux_said |= word != KVFI_TRTLLM_IN_DOUBT;
    kvfi_send_say(sink->session->worker->senders, sink->peer, &message);
}

static void say_failed(struct kvfi_send_sink *sink)
{
    if (!sink->kv_said)
        kvfi_send_sink_say_kv(sink, KVFI_TRTLLM_WRITE_FAILED, true, 0);
    if (sink->session->has_aux && !sink->aux_said)
        kvfi_send_sink_say_aux(sink, KVFI_TRTLLM_WRITE_FAILED);
}

/* The other kind's last word need not wait. */
void kvfi_send_sink_say_doubt(struct kvfi_send_sink *sink)
{
    if (sink->doubt_said || sink->write == NULL)
        return;
    sink->doubt_said = true;
    sink->doubt_is_aux = sink->write->is_aux;
    if (sink->doubt_is_aux) {
        kvfi_send_sink_say_aux(sink, KVFI_TRTLLM_IN_DOUBT);
        return;
    }
    kvfi_send_sink_say_kv(sink, KVFI_TRTLLM_IN_DOUBT, sink->write->is_last, 0);
    if (sink->session->has_aux && !sink->aux_said)
        kvfi_send_sink_say_aux(sink, KVFI_TRTLLM_WRITE_FAILED);
}

/* Nothing of it is being written any more. */
static void say_quiet(struct kvfi_send_sink *sink)
{
    if (sink->doubt_said && !sink->doubt_is_aux && !sink->kv_said)
        kvfi_send_sink_say_kv(sink, KVFI_TRTLLM_FAILED_QUIESCED, true, 0);
    if (sink->doubt_said && sink->doubt_is_aux && !sink->aux_said)
        kvfi_send_sink_say_aux(sink, KVFI_TRTLLM_FAILED_QUIESCED);
    say_failed(sink);
    if (sink->acknowledge)
        kvfi_send_acknowledge(sink->session->worker->senders, sink->peer, sink->session->rid);
    sink->acknowledge = false;
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

/* Ends the session, unless it has ended, because of this sink. */
static void end_session(struct kvfi_send_sink *sink)
{
    struct kvfi_send_session *session = sink->session;

    if (!kvfi_offer_ended(&session->life)) {
        snprintf(session->text, sizeof session->text, "request %" PRId64 " to rank %" PRId64 " of instance \"%.100s\": "
                 "%.300s", session->rid, sink->rank, session->instance, sink->text);
        if (sink->peer != NULL)
            memcpy(session->peer, sink->peer->agent, sizeof session->peer);
    }
    /* One rank without its bytes is enough: the others' would be of no use. */
    kvfi_send_session_feed(session, KVFI_OFFER_ON_FAIL, sink->life.reason, 0);
}

static void act(struct kvfi_send_sink *sink, int action)
{
    switch (action) {
    case KVFI_SINK_DO_READ_BEGIN:
        kvfi_send_session_block(sink->session, KVFI_BLOCK_ON_ACCESS_BEGIN);
        break;
    case KVFI_SINK_DO_READ_END:
        kvfi_send_session_block(sink->session, KVFI_BLOCK_ON_ACCESS_END);
        break;
    case KVFI_SINK_DO_SEND_IN_DOUBT:
        /* A write that merely outlives its session is not in doubt: its own word follows. */
        if (sink->in_doubt)
            kvfi_send_sink_say_doubt(sink);
        break;
    case KVFI_SINK_DO_SEND_FAILED:
    case KVFI_SINK_DO_SEND_QUIESCED:
        say_quiet(sink);
        break;
    case KVFI_SINK_DO_END_DONE:
        kvfi_send_session_feed(sink->session, KVFI_OFFER_ON_SINK_DONE, KVF_OK, 0);
        break;
    case KVFI_SINK_DO_END_FAILED:
        end_session(sink);
        break;
    default: /* connecting needs nothing, writes are not broken off, and the last SUCCESS is said with the last write */
        break;
    }
}

void kvfi_send_sink_feed(struct kvfi_send_sink *sink, int kind, enum kvf_status status, int64_t value)
{
    struct kvfi_life_event event = {.kind = kind, .status = status, .value = value};
    struct kvfi_actions actions;

    if (kind == KVFI_SINK_ON_STOP && !kvfi_sink_ended(&sink->life) && sink->text[0] == '\0')
        memcpy(sink->text, sink->session->text, sizeof sink->text);
    if (kvfi_sink_step(&sink->life, &event, &actions) == KVFI_VIOLATION)
        kvfi_logf(&sink->session->worker->log, KVF_LOG_ERROR, "request %" PRId64 ", rank %" PRId64 ": event %d in "
                  "state %d", sink->session->rid, sink->rank, kind, sink->life.state);
    for (uint32_t i = 0; i < actions.count; i++)
        act(sink, actions.items[i]);
    if (kvfi_sink_ended(&sink->life))
        kvfi_send_unqueue(sink);
}

void kvfi_send_sink_fail(struct kvfi_send_sink *sink, const struct kvf_error *error)
{
    if (kvfi_sink_ended(&sink->life) || sink->life.state == KVFI_SINK_DRAINING)
        return;
    memcpy(sink->text, error->text, sizeof sink->text);
    kvfi_send_sink_feed(sink, KVFI_SINK_ON_FAIL, (enum kvf_status)error->status, 0);
    end_session(sink); /* also when a write of it is still out */
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

static void link_sink(struct kvfi_send_sink *sink, struct kvfi_send_peer *peer)
{
    sink->peer = peer;
    sink->previous_of_peer = NULL;
    sink->next_of_peer = peer->sinks;
    if (peer->sinks != NULL)
        peer->sinks->previous_of_peer = sink;
    peer->sinks = sink;
    peer->uses++;
}

static void unlink_sink(struct kvfi_send_sink *sink)
{
    struct kvfi_send_peer *peer = sink->peer;

    if (peer == NULL)
        return;
    kvfi_send_unqueue(sink);
    *(sink->previous_of_peer == NULL ? &peer->sinks : &sink->previous_of_peer->next_of_peer) = sink->next_of_peer;
    if (sink->next_of_peer != NULL)
        sink->next_of_peer->previous_of_peer = sink->previous_of_peer;
    sink->previous_of_peer = sink->next_of_peer = NULL;
    sink->peer = NULL;
    peer->uses--;
}

static enum kvf_status prepare(struct kvfi_send_sink *sink, struct kvf_error *error)
{
    struct kvfi_send_peer *peer = sink->peer;

    if (sink->session->has_aux && sink->ask.aux_slot == KVF_TRTLLM_NONE)
        return kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "it asks without a slot for auxiliary data, which a "
                         "generation-first request has");
    return kvf_trtllm_registrar_pair(sink->session->worker->registrar, peer->name, peer->rank, &sink->pair, error);
}

void kvfi_send_sink_begin(struct kvfi_send_sink *sink, struct kvfi_send_peer *peer, struct kvfi_trtllm_ask *ask)
{
    struct kvf_error error = {.position = -1};

    sink->ask = *ask;
    *ask = (struct kvfi_trtllm_ask){0};
    link_sink(sink, peer);
    if (prepare(sink, &error) != KVF_OK) {
        say_failed(sink);
        kvfi_send_sink_fail(sink, &error);
        return;
    }
    kvfi_send_sink_feed(sink, KVFI_SINK_ON_PULL, KVF_OK, 1);
    kvfi_send_sink_feed(sink, KVFI_SINK_ON_CONNECTED, KVF_OK, 0);
    kvfi_send_pump(sink);
}

void kvfi_send_sink_fini(struct kvfi_send_sink *sink)
{
    if (sink->write != NULL)
        kvfi_send_write_destroy(sink->session->worker->senders, sink->write);
    unlink_sink(sink);
    kvf_trtllm_pair_release(sink->pair);
    kvfi_trtllm_ask_fini(&sink->ask);
}
