/* SPDX-License-Identifier: Apache-2.0 */
/* One source rank of a pull: arm, ask, believe its words only as far as the bytes bear them out. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/jobs.h"

/* What is kept of a peer's sentence behind its name. */
enum { TEXT_ROOM = KVF_ERROR_TEXT_BYTES - KVFI_PEER_NAME_BYTES - 40 };

void kvfi_writer_link(struct kvfi_writer_job *job, struct kvfi_peer *peer)
{
    job->peer = peer;
    job->previous = NULL;
    job->next = peer->writers;
    if (peer->writers != NULL)
        peer->writers->previous = job;
    peer->writers = job;
}

void kvfi_writer_unlink(struct kvfi_writer_job *job)
{
    struct kvfi_peer *peer = job->peer;

    if (peer == NULL)
        return;
    if (job->uses_peer)
        kvfi_peer_unuse(peer);
    job->uses_peer = false;
    *(job->previous == NULL ? &peer->writers : &job->previous->next) = job->next;
    if (job->next != NULL)
        job->next->previous = job->previous;
    job->previous = job->next = NULL;
    job->peer = NULL;
}

/* ---- the machine ------------------------------------------------------------------------------------------- */

static void disarm(kvf_engine *engine, struct kvfi_writer_job *job)
{
    for (size_t i = 0; i < engine->carrier_count; i++) {
        const struct kvfi_carrier *carrier = &engine->carriers[i];
        if ((job->armed >> i & 1) != 0 && !carrier->ops->disarm(carrier->transport, job->grant))
            job->unquiet |= UINT32_C(1) << i;
    }
    job->armed = 0;
    kvfi_writer_feed(engine, job, KVFI_WRITER_ON_DISARMED, KVF_OK, job->unquiet == 0);
}

static void send_cancel(kvf_engine *engine, const struct kvfi_writer_job *job)
{
    struct kvfi_message message = {.type = KVFI_MSG_CANCEL,
                                   .note = {.transfer = job->pull->transfer, .attempt = job->pull->attempt,
                                            .writer = -1, .status = job->life.reason, .text = job->pull->text}};

    if (job->peer != NULL && job->peer->routed)
        (void)kvfi_send(engine, &job->peer->route, &message, NULL);
}

static void word_done(kvf_engine *engine, struct kvfi_writer_job *job)
{
    struct kvfi_pull_job *pull = job->pull;

    pull->bytes += job->expected_bytes;
    pull->runs += job->runs;
    pull->pieces++;
    pull->transports |= job->transport_bit;
    pthread_mutex_lock(&engine->loop.lock);
    engine->counters.bytes_received += job->expected_bytes - job->received_bytes; /* the rest was counted as it came */
    pthread_mutex_unlock(&engine->loop.lock);
    kvfi_pull_feed(engine, pull, KVFI_TRANSFER_ON_WRITER_DONE, KVF_OK, 0);
}

static void word_failed(kvf_engine *engine, struct kvfi_writer_job *job)
{
    const char *text = job->text[0] != '\0' ? job->text : kvf_strerror(job->life.reason);

    kvfi_pull_fail(engine, job->pull, job->peer, job->life.reason, "transfer \"%s\" attempt %" PRId64 ": %s",
                   job->pull->transfer, job->pull->attempt, text);
}

static void quiet(kvf_engine *engine, struct kvfi_writer_job *job)
{
    kvfi_table_remove(&engine->grants, &job->link);
    kvfi_pull_block(engine, job->pull, KVFI_BLOCK_ON_ACCESS_END);
}

void kvfi_writer_feed(kvf_engine *engine, struct kvfi_writer_job *job, int kind, enum kvf_status status, int64_t value)
{
    struct kvfi_life_event event = {.kind = kind, .status = status, .value = value};
    struct kvfi_actions actions;

    if (kvfi_writer_step(&job->life, &event, &actions) == KVFI_VIOLATION)
        kvfi_logf(&engine->log, KVF_LOG_WARN, "transfer \"%s\": %s broke the protocol (event %d)", job->pull->transfer,
                  job->peer == NULL ? "a writer" : job->peer->name, kind);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_WRITER_DO_SEND_CANCEL:
            send_cancel(engine, job);
            break;
        case KVFI_WRITER_DO_DISARM:
            disarm(engine, job);
            break;
        case KVFI_WRITER_DO_WORD_DONE:
            word_done(engine, job);
            break;
        case KVFI_WRITER_DO_WORD_FAILED:
            word_failed(engine, job);
            break;
        default:
            quiet(engine, job);
            break;
        }
    }
    if (job->life.state != KVFI_WRITER_STARTED && job->life.state != KVFI_WRITER_SAID_DONE)
        kvfi_timer_disarm(&engine->loop.timers, &job->gone);
    if (kvfi_writer_quiet(&job->life) && job->life.state != KVFI_WRITER_IDLE)
        kvfi_writer_unlink(job);
    if (job->life.state == KVFI_WRITER_IN_DOUBT && job->uses_peer) {
        kvfi_peer_unuse(job->peer);
        job->uses_peer = false;
    }
}

/* ---- asking ------------------------------------------------------------------------------------------------ */

static void make_request(const struct kvfi_pull_job *pull, struct kvf_bind_request *request)
{
    kvf_bind_request_init(request, sizeof *request);
    request->flags = KVF_BIND_SRC_UNKNOWN | KVF_BIND_RING_TAIL;
    request->token_begin = pull->token_begin;
    request->token_end = pull->token_end;
    request->request_tokens = pull->request_tokens;
    request->dst = pull->groups;
    request->dst_count = pull->group_count;
}

/* What this writer will write: bytes and runs. */
static enum kvf_status measure(struct kvfi_writer_job *job, const struct kvf_bind_request *request,
                               struct kvf_error *error)
{
    struct kvfi_plans *plans = job->peer->plans;
    kvf_binding *binding = NULL;
    struct kvf_binding_info info;
    enum kvf_status status;

    if (plans == NULL || job->peer->match == NULL ||
        strcmp(job->pull->match->source->digest, job->peer->match->source->digest) != 0 ||
        strcmp(job->pull->match->destination->digest, job->peer->match->destination->digest) != 0)
        return kvfi_fail(error, KVF_ERR_STALE, "%s: its instance has changed meanwhile", job->peer->name);
    status = kvf_bind(plans->plan, request, &binding, error);
    if (status != KVF_OK)
        return status;
    kvf_binding_get_info(binding, &info);
    kvf_binding_destroy(binding);
    job->expected_bytes = info.bytes;
    job->runs = info.runs;
    return KVF_OK;
}

static enum kvf_status arm(kvf_engine *engine, struct kvfi_writer_job *job, const struct kvf_bind_request *request,
                           struct kvf_error *error)
{
    struct kvfi_arm arm = {.grant = job->grant, .plan = job->peer->plans->plan, .request = request,
                           .bytes = job->expected_bytes, .writer = {.incarnation = job->peer->incarnation}};

    snprintf(arm.writer.name, sizeof arm.writer.name, "%s", job->peer->name);
    for (size_t i = 0; i < engine->carrier_count; i++) {
        const struct kvfi_carrier *carrier = &engine->carriers[i];
        if (carrier->ops->arm(carrier->transport, &arm, error) == KVF_OK)
            job->armed |= UINT32_C(1) << i;
        else
            kvfi_logf(&engine->log, KVF_LOG_WARN, "%s: transport %s cannot be armed: %s", engine->self,
                      carrier->ops->name, error->text);
    }
    return job->armed == 0 ? (enum kvf_status)error->status : KVF_OK;
}

static enum kvf_status send_pull(kvf_engine *engine, struct kvfi_writer_job *job, struct kvf_error *error)
{
    const struct kvfi_pull_job *pull = job->pull;
    struct kvfi_wire_transport wishes[KVFI_MAX_TRANSPORTS];
    int64_t left_ms = (pull->life.deadline_ns - kvfi_now_ns()) / KVFI_MS;
    struct kvfi_message message = {
        .type = KVFI_MSG_PULL,
        .pull = {.transfer = pull->transfer, .attempt = pull->attempt, .from = pull->from,
                 .token_begin = pull->token_begin, .token_end = pull->token_end,
                 .request_tokens = pull->request_tokens, .groups = pull->groups, .group_count = pull->group_count,
                 .grant = job->grant, .timeout_ms = left_ms < 1 ? 1 : left_ms, .transports = wishes}};

    memcpy(message.pull.plan, job->peer->plans->fingerprint, KVF_FINGERPRINT_TEXT_BYTES);
    for (size_t i = 0; i < engine->carrier_count; i++)
        if ((job->armed >> i & 1) != 0 || job->expected_bytes == 0)
            wishes[message.pull.transport_count++] =
                (struct kvfi_wire_transport){engine->carriers[i].name, engine->carriers[i].endpoint};
    return kvfi_send(engine, &job->peer->route, &message, error);
}

void kvfi_writer_ask(kvf_engine *engine, struct kvfi_writer_job *job)
{
    struct kvfi_pull_job *pull = job->pull;
    struct kvf_bind_request request;
    struct kvf_error error = {.position = -1};
    enum kvf_status status;

    make_request(pull, &request);
    status = measure(job, &request, &error);
    if (status != KVF_OK) {
        kvfi_pull_fail(engine, pull, job->peer, status, "transfer \"%s\" attempt %" PRId64 ": %s", pull->transfer,
                       pull->attempt, error.text);
        return;
    }
    job->grant = kvfi_random_u64();
    if (job->expected_bytes > 0)
        status = arm(engine, job, &request, &error);
    kvfi_table_insert(&engine->grants, &job->link, &job->grant, sizeof job->grant);
    kvfi_pull_block(engine, pull, KVFI_BLOCK_ON_ACCESS_BEGIN);
    job->uses_peer = true;
    kvfi_peer_use(engine, job->peer);
    kvfi_writer_feed(engine, job, KVFI_WRITER_ON_ASK, KVF_OK, job->expected_bytes);
    if (status == KVF_OK)
        status = send_pull(engine, job, &error);
    if (status != KVF_OK) {
        memcpy(job->text, error.text, sizeof job->text);
        kvfi_writer_feed(engine, job, KVFI_WRITER_ON_FAILED, status, 0);
    }
}

/* ---- its peer ---------------------------------------------------------------------------------------------- */

void kvfi_writers_peer_lost(kvf_engine *engine, struct kvfi_peer *peer)
{
    struct kvfi_writer_job *job = peer->writers;

    while (job != NULL) {
        if (job->life.state == KVFI_WRITER_IN_DOUBT || kvfi_transfer_ended(&job->pull->life)) {
            job = job->next;
            continue;
        }
        job->waiting = false;
        memcpy(job->text, peer->error.text, sizeof job->text);
        kvfi_writer_feed(engine, job, KVFI_WRITER_ON_LOST, KVF_ERR_PEER_LOST, 0);
        job = peer->writers;
    }
}

static struct kvfi_writer_job *find(struct kvfi_pull_job *pull, const struct kvfi_peer *peer)
{
    for (size_t i = 0; pull != NULL && i < pull->writer_count; i++)
        if (pull->writers[i].peer == peer)
            return &pull->writers[i];
    return NULL;
}

static void on_started(kvf_engine *engine, struct kvfi_writer_job *job, const struct kvfi_msg_started *started)
{
    size_t i = 0;
    int64_t way;

    while (i < engine->carrier_count &&
           ((job->armed >> i & 1) == 0 || strcmp(engine->carriers[i].name, started->transport) != 0))
        i++;
    if (job->life.state != KVFI_WRITER_ASKED)
        return;
    if (i == engine->carrier_count || started->expected_bytes != job->expected_bytes) {
        snprintf(job->text, sizeof job->text, "%s will send %" PRId64 " bytes over \"%.32s\", expected %" PRId64
                 " bytes over a transport that was wished for", job->peer->name, started->expected_bytes,
                 started->transport, job->expected_bytes);
        kvfi_writer_feed(engine, job, KVFI_WRITER_ON_BAD_GRANT, KVF_ERR_PROTOCOL, 0);
        return;
    }
    job->transport_bit = engine->carriers[i].ops->bit;
    way = KVFI_WRITER_SEEN; /* every transport counts what it placed, or what it was told is placed */
    if ((engine->carriers[i].ops->caps & KVFI_CAP_REMOTE_WRITES) != 0)
        way |= KVFI_WRITER_REMOTE;
    kvfi_writer_feed(engine, job, KVFI_WRITER_ON_STARTED, KVF_OK, way);
}

static void on_end(kvf_engine *engine, struct kvfi_writer_job *job, const struct kvfi_message *message)
{
    enum kvf_status status = message->end.status == KVF_OK ? KVF_ERR_INTERNAL : (enum kvf_status)message->end.status;

    if (message->type == KVFI_MSG_DONE) {
        if (message->end.bytes != job->expected_bytes)
            snprintf(job->text, sizeof job->text, "%s says it is done with %" PRId64 " bytes, expected %" PRId64,
                     job->peer->name, message->end.bytes, job->expected_bytes);
        else if (job->life.state == KVFI_WRITER_ASKED)
            snprintf(job->text, sizeof job->text, "%s says it is done, but never started", job->peer->name);
        kvfi_writer_feed(engine, job, KVFI_WRITER_ON_DONE, KVF_OK, message->end.bytes);
        return;
    }
    if (!kvfi_transfer_ended(&job->pull->life))
        snprintf(job->text, sizeof job->text, "%s: %.*s", job->peer->name, TEXT_ROOM,
                 message->end.text[0] != '\0' ? message->end.text : kvf_strerror((int)status));
    kvfi_writer_feed(engine, job, message->type == KVFI_MSG_FAILED ? KVFI_WRITER_ON_FAILED : KVFI_WRITER_ON_DOUBT,
                     status,
                     0);
}

static void on_nack(kvf_engine *engine, struct kvfi_writer_job *job, const struct kvfi_msg_nack *nack)
{
    if (strcmp(nack->of, "pull") != 0)
        return;
    snprintf(job->text, sizeof job->text, "%s refuses the pull: %.*s", job->peer->name, TEXT_ROOM, nack->text);
    kvfi_writer_feed(engine, job, KVFI_WRITER_ON_FAILED,
                     nack->status == KVF_OK ? KVF_ERR_REFUSED : (enum kvf_status)nack->status, 0);
}

void kvfi_writers_on_message(kvf_engine *engine, struct kvfi_peer *peer, const struct kvfi_message *message)
{
    /* all these bodies begin with transfer, attempt, writer, except nack */
    bool nack = message->type == KVFI_MSG_NACK;
    const char *transfer = nack ? message->nack.transfer : message->end.transfer;
    int64_t attempt = nack ? message->nack.attempt : message->end.attempt;
    struct kvfi_writer_job *job = find(kvfi_pull_find(engine, transfer, attempt), peer);

    if (job == NULL)
        return; /* late: the pull has ended */
    if (!nack && message->end.writer != (int64_t)job->writer) {
        kvfi_logf(&engine->log, KVF_LOG_WARN, "transfer \"%s\": %s calls itself writer %" PRId64 ", expected %zu",
                  transfer, peer->name, message->end.writer, job->writer);
        return;
    }
    switch (message->type) {
    case KVFI_MSG_STARTED:
        on_started(engine, job, &message->started);
        break;
    case KVFI_MSG_DONE:
    case KVFI_MSG_FAILED:
    case KVFI_MSG_IN_DOUBT:
        on_end(engine, job, message);
        break;
    case KVFI_MSG_QUIESCED:
        kvfi_writer_feed(engine, job, KVFI_WRITER_ON_QUIESCED, KVF_OK, 0);
        break;
    case KVFI_MSG_NACK:
        on_nack(engine, job, &message->nack);
        break;
    default: /* progress: counted by this side's own transport */
        break;
    }
}

/* ---- its transport ----------------------------------------------------------------------------------------- */

static void on_word_missing(void *owner, struct kvfi_timer *timer)
{
    kvf_engine *engine = owner;
    struct kvfi_writer_job *job = KVFI_HOLDER(timer, struct kvfi_writer_job, gone);

    snprintf(job->text, sizeof job->text, "%s: its data connection is gone", job->peer->name);
    kvfi_writer_feed(engine, job, KVFI_WRITER_ON_GONE, KVF_ERR_PEER_LOST, 0);
}

/* A worker that is done says so on the channel and may close at once: its word can come after the end of the
 * connection. */
static void on_gone(kvf_engine *engine, size_t carrier, const struct kvfi_peer_identity *who)
{
    uint32_t bit = engine->carriers[carrier].ops->bit;
    int64_t due_ns = kvfi_now_ns() + engine->settings.peer_timeout_ns / 2;

    for (struct kvfi_peer *peer = engine->peers; peer != NULL; peer = peer->next) {
        if (peer->role != KVFI_PEER_SOURCE || peer->incarnation != who->incarnation ||
            strcmp(peer->name, who->name) != 0)
            continue;
        for (struct kvfi_writer_job *job = peer->writers; job != NULL; job = job->next) {
            if (!job->life.remote || job->transport_bit != bit || job->life.state == KVFI_WRITER_IN_DOUBT ||
                job->gone.armed)
                continue;
            job->gone.fire = on_word_missing;
            kvfi_timer_arm(&engine->loop.timers, &job->gone, due_ns);
        }
    }
}

void kvfi_writers_on_event(kvf_engine *engine, size_t carrier, const struct kvfi_transport_event *event)
{
    struct kvfi_link *link = kvfi_table_find(&engine->grants, &event->grant, sizeof event->grant);
    struct kvfi_writer_job *job = link == NULL ? NULL : KVFI_HOLDER(link, struct kvfi_writer_job, link);

    if (event->kind == KVFI_TEV_WRITER_GONE) {
        on_gone(engine, carrier, &event->who);
        return;
    }
    if (job == NULL)
        return;
    switch (event->kind) {
    case KVFI_TEV_RECEIVED:
        job->received_bytes += event->bytes;
        pthread_mutex_lock(&engine->loop.lock);
        engine->counters.bytes_received += event->bytes;
        pthread_mutex_unlock(&engine->loop.lock);
        if (event->complete)
            kvfi_writer_feed(engine, job, KVFI_WRITER_ON_ARRIVED, KVF_OK, 0);
        break;
    case KVFI_TEV_GRANT_FAILED:
        snprintf(job->text, sizeof job->text, "%s", event->text);
        kvfi_writer_feed(engine, job, KVFI_WRITER_ON_BAD_GRANT, event->status, 0);
        break;
    case KVFI_TEV_QUIET:
        job->unquiet &= ~(UINT32_C(1) << carrier);
        if (job->unquiet == 0)
            kvfi_writer_feed(engine, job, KVFI_WRITER_ON_DISARMED, KVF_OK, 1);
        break;
    default:
        break;
    }
}
