/* SPDX-License-Identifier: Apache-2.0 */
/* What destination ranks ask for: pulls, releases and cancels; and what waits here for its offer. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/jobs.h"

/* ---- waiting ----------------------------------------------------------------------------------------------- */

static const char *transfer_of(const struct kvfi_message *message)
{
    return message->type == KVFI_MSG_PULL ? message->pull.transfer : message->note.transfer;
}

static int64_t attempt_of(const struct kvfi_message *message)
{
    return message->type == KVFI_MSG_PULL ? message->pull.attempt : message->note.attempt;
}

static void destroy_request(kvf_engine *engine, struct kvfi_request *request)
{
    struct kvfi_peer *peer = request->peer;

    kvfi_timer_disarm(&engine->loop.timers, &request->timer);
    kvfi_table_remove(&engine->requests, &request->link);
    *(request->previous == NULL ? &peer->requests : &request->previous->next) = request->next;
    if (request->next != NULL)
        request->next->previous = request->previous;
    kvfi_peer_unuse(peer);
    engine->request_bytes -= request->bytes;
    kvfi_message_fini(&request->message);
    free(request);
}

/* The destination's own deadline is a little later, so that it hears why. */
static void on_deadline(void *owner, struct kvfi_timer *timer)
{
    kvf_engine *engine = owner;
    struct kvfi_request *request = KVFI_HOLDER(timer, struct kvfi_request, timer);
    char text[KVF_ERROR_TEXT_BYTES];

    if (request->message.type == KVFI_MSG_PULL) {
        snprintf(text, sizeof text, "transfer \"%s\" attempt %" PRId64 " was never offered at %s",
                 request->message.pull.transfer, request->message.pull.attempt, engine->self);
        kvfi_send_failed(engine, request->peer, request->message.pull.transfer, request->message.pull.attempt,
                         KVF_ERR_EXPIRED, text);
    }
    destroy_request(engine, request);
}

static int64_t memory_of(const struct kvfi_message *message)
{
    size_t bytes = sizeof(struct kvfi_request);

    for (size_t i = 0; message->type == KVFI_MSG_PULL && i < message->pull.group_count; i++)
        bytes += sizeof(struct kvf_id_list) + message->pull.groups[i].count * sizeof(int64_t);
    return (int64_t)bytes;
}

static int64_t wait_of(const struct kvfi_message *message)
{
    int64_t wait, margin;

    if (message->type != KVFI_MSG_PULL)
        return KVFI_RELEASE_WAIT_NS;
    wait = message->pull.timeout_ms * KVFI_MS;
    margin = wait / 5;
    return wait - (margin > KVFI_SECOND / 2 ? KVFI_SECOND / 2 : margin);
}

void kvfi_request_park(kvf_engine *engine, struct kvfi_peer *peer, struct kvfi_message *message)
{
    struct kvfi_request *request = NULL;
    int64_t bytes = memory_of(message);

    if (engine->requests.count < KVFI_MAX_REQUESTS && engine->request_bytes + bytes <= KVFI_MAX_REQUEST_BYTES)
        request = calloc(1, sizeof *request);
    if (request == NULL) {
        kvfi_send_nack(engine, &peer->route, kvfi_message_name(message->type), transfer_of(message),
                       attempt_of(message), KVF_ERR_AGAIN, "too many pulls wait for their offers here");
        return;
    }
    request->peer = peer;
    request->bytes = bytes;
    request->message = *message;
    memset(message, 0, sizeof *message);
    request->next = peer->requests;
    if (peer->requests != NULL)
        peer->requests->previous = request;
    peer->requests = request;
    engine->request_bytes += bytes;
    kvfi_table_insert(&engine->requests, &request->link, transfer_of(&request->message),
                      strlen(transfer_of(&request->message)));
    kvfi_peer_use(engine, peer);
    request->timer.fire = on_deadline;
    kvfi_timer_arm(&engine->loop.timers, &request->timer, kvfi_now_ns() + wait_of(&request->message));
}

static struct kvfi_request *find_request(kvf_engine *engine, const struct kvfi_peer *peer, const char *transfer,
                                         int64_t attempt)
{
    struct kvfi_link *link = kvfi_table_find(&engine->requests, transfer, strlen(transfer));

    for (; link != NULL; link = kvfi_table_find_next(link)) {
        struct kvfi_request *request = KVFI_HOLDER(link, struct kvfi_request, link);
        if ((peer == NULL || request->peer == peer) && attempt_of(&request->message) == attempt)
            return request;
    }
    return NULL;
}

bool kvfi_request_known(kvf_engine *engine, const struct kvfi_peer *peer, const char *transfer, int64_t attempt)
{
    return find_request(engine, peer, transfer, attempt) != NULL;
}

bool kvfi_request_drop(kvf_engine *engine, struct kvfi_peer *peer, const char *transfer, int64_t attempt)
{
    struct kvfi_request *request = find_request(engine, peer, transfer, attempt);

    if (request != NULL)
        destroy_request(engine, request);
    return request != NULL;
}

void kvfi_requests_drop_peer(kvf_engine *engine, struct kvfi_peer *peer)
{
    while (peer->requests != NULL)
        destroy_request(engine, peer->requests);
}

/* ---- pull and release meet their offer --------------------------------------------------------------------- */

static void nack(kvf_engine *engine, struct kvfi_peer *peer, const struct kvfi_message *message,
                 const struct kvf_error *error)
{
    kvfi_send_nack(engine, &peer->route, kvfi_message_name(message->type), transfer_of(message), attempt_of(message),
                   (enum kvf_status)error->status, error->text);
}

static void release_sink(kvf_engine *engine, struct kvfi_sink_job *sink, const struct kvfi_peer *peer,
                         const struct kvfi_msg_note *note)
{
    if (note->status != KVF_OK && !kvfi_sink_ended(&sink->life))
        snprintf(sink->text, sizeof sink->text, "%s needs it no more: %s", peer->name,
                 note->text[0] != '\0' ? note->text : kvf_strerror((int)note->status));
    kvfi_sink_feed(engine, sink, KVFI_SINK_ON_RELEASE, (enum kvf_status)note->status, 0);
}

/* The message is taken or dropped. */
static void attach(kvf_engine *engine, struct kvfi_offer_job *offer, struct kvfi_peer *peer,
                   struct kvfi_message *message)
{
    struct kvf_error error = {.position = -1};
    struct kvfi_sink_job *sink = kvfi_offer_sink(engine, offer, peer, &error);

    if (sink != NULL && message->type == KVFI_MSG_RELEASE) {
        release_sink(engine, sink, peer, &message->note);
        return;
    }
    if (sink != NULL && sink->life.state != KVFI_SINK_IDLE)
        kvfi_fail(&error, KVF_ERR_EXISTS, "transfer \"%s\" attempt %" PRId64 " is pulled by %s already",
                  offer->transfer, offer->attempt, peer->name);
    else if (sink != NULL && peer->plans == NULL)
        kvfi_fail(&error, KVF_ERR_PLAN_MISMATCH, "%s has no share for %s", engine->self, peer->name);
    if (error.status != KVF_OK)
        nack(engine, peer, message, &error);
    else
        kvfi_sink_begin(engine, sink, peer, message);
}

void kvfi_requests_match(kvf_engine *engine, struct kvfi_offer_job *offer)
{
    struct kvfi_request *request;

    while (!kvfi_offer_ended(&offer->life) &&
           (request = find_request(engine, NULL, offer->transfer, offer->attempt)) != NULL) {
        struct kvfi_peer *peer = request->peer;
        struct kvfi_message message = request->message;
        memset(&request->message, 0, sizeof request->message);
        kvfi_table_remove(&engine->requests, &request->link); /* its key is in the message */
        peer->active++;                                       /* stays in use while it changes hands */
        destroy_request(engine, request);
        attach(engine, offer, peer, &message);
        kvfi_peer_unuse(peer);
        kvfi_message_fini(&message);
    }
}

/* An offer of this id that has ended, or a higher attempt: the reason why a pull cannot be served; KVF_OK otherwise. */
static enum kvf_status look_up(kvf_engine *engine, const char *transfer, int64_t attempt, bool *lower,
                               struct kvf_error *error)
{
    struct kvfi_ledger_entry *entry;
    enum kvf_status status = KVF_OK;

    pthread_mutex_lock(&engine->loop.lock);
    entry = kvfi_ledger_find(&engine->ledger, true, transfer);
    *lower = entry != NULL && entry->attempt < attempt;
    if (entry != NULL && entry->attempt > attempt)
        status = kvfi_fail(error, KVF_ERR_SUPERSEDED, "transfer \"%s\" attempt %" PRId64
                           " is superseded by attempt %" PRId64 " at %s", transfer, attempt, entry->attempt,
                           engine->self);
    else if (entry != NULL && entry->attempt == attempt && entry->ended)
        status = kvfi_fail(error, entry->status == KVF_OK ? KVF_ERR_REFUSED : entry->status,
                           "transfer \"%s\" attempt %" PRId64 " has ended at %s: %s", transfer, attempt, engine->self,
                           entry->status == KVF_OK ? "done" : entry->text);
    pthread_mutex_unlock(&engine->loop.lock);
    return status;
}

static void supersede_lower(kvf_engine *engine, const char *transfer, int64_t attempt)
{
    struct kvfi_link *link = kvfi_table_find(&engine->offers, transfer, strlen(transfer));

    while (link != NULL) {
        struct kvfi_offer_job *offer = KVFI_HOLDER(link, struct kvfi_offer_job, link);
        link = kvfi_table_find_next(link);
        if (offer->attempt >= attempt || kvfi_offer_ended(&offer->life))
            continue;
        snprintf(offer->text, sizeof offer->text, "transfer \"%s\" attempt %" PRId64 " is superseded: attempt %" PRId64
                 " is pulled", transfer, offer->attempt, attempt);
        kvfi_offer_feed(engine, offer, KVFI_OFFER_ON_SUPERSEDE, KVF_OK, 0);
    }
}

static enum kvf_status check_pull(const kvf_engine *engine, const struct kvfi_peer *peer,
                                  const struct kvfi_msg_pull *pull, struct kvf_error *error)
{
    if (strcmp(pull->from, engine->settings.instance) != 0)
        return kvfi_fail(error, KVF_ERR_REFUSED, "the pull is meant for instance \"%s\", this is %s", pull->from,
                         engine->self);
    if (peer->plans == NULL)
        return kvfi_fail(error, KVF_ERR_PLAN_MISMATCH, "%s has no share for %s", engine->self, peer->name);
    if (strcmp(pull->plan, peer->plans->fingerprint) != 0)
        return kvfi_fail(error, KVF_ERR_PLAN_MISMATCH, "plan %s at %s, %s at %s", pull->plan, peer->name,
                         peer->plans->fingerprint, engine->self);
    return KVF_OK;
}

static void on_request(kvf_engine *engine, struct kvfi_peer *peer, struct kvfi_message *message)
{
    const char *transfer = transfer_of(message);
    int64_t attempt = attempt_of(message);
    struct kvfi_offer_job *offer = kvfi_offer_find(engine, transfer, attempt);
    struct kvf_error error = {.position = -1};
    enum kvf_status status = KVF_OK;
    bool lower = false;

    if (message->type == KVFI_MSG_PULL)
        status = check_pull(engine, peer, &message->pull, &error);
    if (status != KVF_OK) {
        nack(engine, peer, message, &error);
        return;
    }
    if (offer != NULL && !kvfi_offer_ended(&offer->life)) {
        attach(engine, offer, peer, message);
        return;
    }
    status = look_up(engine, transfer, attempt, &lower, &error);
    if (status != KVF_OK) {
        if (message->type == KVFI_MSG_PULL)
            kvfi_send_failed(engine, peer, transfer, attempt, status, error.text);
    } else if (kvfi_request_known(engine, peer, transfer, attempt)) {
        kvfi_fail(&error, KVF_ERR_EXISTS, "transfer \"%s\" attempt %" PRId64 " is asked for by %s already", transfer,
                  attempt, peer->name);
        nack(engine, peer, message, &error);
    } else {
        if (lower && message->type == KVFI_MSG_PULL)
            supersede_lower(engine, transfer, attempt);
        kvfi_request_park(engine, peer, message);
    }
}

/* Whatever is known of the transfer, the answer says that nothing is written (any more). */
static void on_cancel(kvf_engine *engine, struct kvfi_peer *peer, const struct kvfi_msg_note *note)
{
    struct kvfi_offer_job *offer = kvfi_offer_find(engine, note->transfer, note->attempt);
    struct kvfi_sink_job *sink = NULL;
    enum kvf_status status = note->status == KVF_OK ? KVF_ERR_CANCELLED : (enum kvf_status)note->status;

    if (offer != NULL && peer->index < offer->sink_count && strcmp(offer->puller, peer->instance) == 0)
        sink = &offer->sinks[peer->index];
    if (sink == NULL || sink->peer != peer) {
        (void)kvfi_request_drop(engine, peer, note->transfer, note->attempt);
        kvfi_send_quiesced(engine, peer, note->transfer, note->attempt, status, "");
        return;
    }
    if (sink->life.state != KVFI_SINK_DRAINING)
        snprintf(sink->text, sizeof sink->text, "%s ended it: %s", peer->name,
                 note->text[0] != '\0' ? note->text : kvf_strerror((int)status));
    kvfi_sink_feed(engine, sink, KVFI_SINK_ON_CANCEL, status, 0);
}

void kvfi_sink_on_message(kvf_engine *engine, struct kvfi_peer *peer, struct kvfi_message *message)
{
    struct kvf_error error = {.position = -1};

    if (message->type == KVFI_MSG_CANCEL) {
        on_cancel(engine, peer, &message->note);
        return;
    }
    if (message->type == KVFI_MSG_NACK) {
        kvfi_logf(&engine->log, KVF_LOG_WARN, "%s refuses a %s of %s: %s", peer->name, message->nack.of, engine->self,
                  message->nack.text);
        return;
    }
    if (peer->life.state != KVFI_PEER_READY) {
        kvfi_fail(&error, KVF_ERR_PROTOCOL, "%s has not agreed with %s: say hello first", peer->name, engine->self);
        nack(engine, peer, message, &error);
        return;
    }
    on_request(engine, peer, message);
}
