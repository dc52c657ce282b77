/* SPDX-License-Identifier: Apache-2.0 */
/* Generation ranks that registered here, or tried to, and what is said to them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "trtllm_worker/host.h"
#include "trtllm_worker/send.h"

/* ---- finding --------------------------------------------------------------------------------------------------- */

enum { RANK_BYTES = 24, MAX_NAME_BYTES = KVF_TRTLLM_AGENT_NAME_BYTES - RANK_BYTES };

/* Name, a zero byte, rank: no two ranks have one key. `key` has room for the longest; returns its length. */
static size_t make_key(char *key, const char *name, size_t name_bytes, int64_t rank)
{
    memcpy(key, name, name_bytes);
    key[name_bytes] = '\0';
    return name_bytes + 1 + (size_t)snprintf(key + name_bytes + 1, RANK_BYTES - 1, "%" PRId64, rank);
}

struct kvfi_send_peer *kvfi_send_peer_find(struct kvfi_senders *senders, const char *name, size_t name_bytes,
                                           int64_t rank)
{
    char key[KVF_TRTLLM_AGENT_NAME_BYTES];
    struct kvfi_link *link = NULL;

    if (name_bytes <= MAX_NAME_BYTES)
        link = kvfi_table_find(&senders->peers, key, make_key(key, name, name_bytes, rank));
    return link == NULL ? NULL : KVFI_HOLDER(link, struct kvfi_send_peer, link);
}

/* Not needed by anything: refused, or not heard of for long. */
static bool may_forget(const struct kvfi_send_peer *peer, int64_t before_ns)
{
    return peer->uses == 0 && peer->word_count == 0 && (!peer->accepted || peer->used_ns < before_ns);
}

static bool make_room(struct kvfi_senders *senders)
{
    const struct kvf_trtllm_worker_options *options = &senders->worker->options;
    int64_t before_ns = kvfi_now_ns() - KVFI_SEND_FENCE_AGES * options->stale_request_ns;

    if ((int64_t)senders->peers.count < options->max_peers)
        return true;
    for (size_t i = 0; i < senders->peers.bucket_count; i++) {
        struct kvfi_link *link = senders->peers.buckets[i];
        for (; link != NULL; link = link->next) {
            struct kvfi_send_peer *peer = KVFI_HOLDER(link, struct kvfi_send_peer, link);
            if (!may_forget(peer, before_ns))
                continue;
            kvfi_send_peer_destroy(senders, peer);
            return true;
        }
    }
    return false;
}

static struct kvfi_send_peer *make_peer(struct kvfi_senders *senders, const char *name, int64_t rank)
{
    struct kvfi_send_peer *peer = NULL;

    if (strlen(name) > MAX_NAME_BYTES || !make_room(senders) || (peer = calloc(1, sizeof *peer)) == NULL)
        return NULL;
    peer->name = peer->key;
    peer->rank = rank;
    kvfi_agent_name(peer->agent, name, rank);
    kvfi_table_insert(&senders->peers, &peer->link, peer->key, make_key(peer->key, name, strlen(name), rank));
    return peer;
}

void kvfi_send_peer_destroy(struct kvfi_senders *senders, struct kvfi_send_peer *peer)
{
    kvf_trtllm_worker *worker = senders->worker;

    if (peer->connected)
        kvfi_channel_disconnect(worker->sender.channel, &peer->route);
    if (peer->loaded)
        worker->agent.invalidate(worker->agent.context, peer->agent);
    if (peer->accepted)
        (void)kvf_trtllm_registrar_unregister(worker->registrar, peer->name, peer->rank, NULL);
    for (struct kvfi_send_peer **at = &senders->waiting; *at != NULL; at = &(*at)->next_waiting)
        if (*at == peer) {
            *at = peer->next_waiting;
            break;
        }
    while (peer->words_head != NULL) {
        struct kvfi_send_word *word = peer->words_head;
        peer->words_head = word->next;
        free(word);
    }
    kvfi_table_remove(&senders->peers, &peer->link);
    free(peer);
}

/* ---- words ----------------------------------------------------------------------------------------------------- */

static void pack(struct kvfi_trtllm_packed *packed, const struct kvfi_trtllm_message *message)
{
    switch (message->tag) {
    case KVFI_TRTLLM_KV_AGENT_RESULT:
        kvfi_trtllm_pack_result(packed, &message->result);
        break;
    case KVFI_TRTLLM_AUX_AGENT_RESULT:
        kvfi_trtllm_pack_aux(packed, &message->aux);
        break;
    case KVFI_TRTLLM_CANCEL_SESSION:
        kvfi_trtllm_pack_cancel(packed, &message->cancel);
        break;
    default:
        kvfi_trtllm_pack_quiesced(packed, &message->quiesced);
        break;
    }
}

static enum kvf_status send_now(struct kvfi_senders *senders, struct kvfi_send_peer *peer,
                                const struct kvfi_trtllm_message *message, struct kvf_error *error)
{
    struct kvfi_channel *channel = senders->worker->sender.channel;
    struct kvfi_trtllm_packed packed;
    struct kvfi_frame frames[KVFI_TRTLLM_MAX_FRAMES];
    enum kvf_status status = KVF_OK;

    if (!peer->connected)
        status = kvfi_channel_connect(channel, peer->endpoint, &peer->route, error);
    peer->connected = status == KVF_OK;
    if (status != KVF_OK)
        return status;
    pack(&packed, message);
    for (size_t i = 0; i < packed.count; i++)
        frames[i] = (struct kvfi_frame){packed.frames[i].bytes, packed.frames[i].byte_count};
    return kvfi_channel_send_frames(channel, &peer->route, frames, packed.count, error);
}

static bool may_wait(enum kvf_status status)
{
    return status == KVF_ERR_AGAIN || status == KVF_ERR_NO_MEMORY || status == KVF_ERR_LIMIT;
}

static void complain(struct kvfi_senders *senders, struct kvfi_send_peer *peer,
                     const struct kvfi_trtllm_message *message, const char *why)
{
    if (!peer->complained)
        kvfi_logf(&senders->worker->log, KVF_LOG_ERROR, "%s to %s at %s is lost, and so is what else it cannot be "
                  "told: %.200s", kvfi_trtllm_tag_text(message->tag), peer->agent, peer->endpoint, why);
    peer->complained = true;
}

static void keep(struct kvfi_senders *senders, struct kvfi_send_peer *peer, const struct kvfi_trtllm_message *message)
{
    struct kvfi_send_word *word = peer->word_count < KVFI_SEND_PEER_WORDS ? malloc(sizeof *word) : NULL;

    if (word == NULL) {
        complain(senders, peer, message, "too many words wait for it already");
        return;
    }
    *word = (struct kvfi_send_word){.message = *message};
    if (peer->words_tail == NULL)
        peer->words_head = word;
    else
        peer->words_tail->next = word;
    peer->words_tail = word;
    peer->word_count++;
    if (!peer->in_waiting) {
        peer->in_waiting = true;
        peer->next_waiting = senders->waiting;
        senders->waiting = peer;
    }
    if (!senders->retry.armed)
        kvfi_timer_arm(&senders->worker->loop.timers, &senders->retry, kvfi_now_ns() + KVFI_SEND_RETRY_NS);
}

void kvfi_send_say(struct kvfi_senders *senders, struct kvfi_send_peer *peer,
                   const struct kvfi_trtllm_message *message)
{
    struct kvf_error error = {.position = -1};
    enum kvf_status status = KVF_ERR_AGAIN;

    if (peer->endpoint[0] == '\0')
        return;
    if (peer->words_head == NULL)
        status = send_now(senders, peer, message, &error);
    if (may_wait(status))
        keep(senders, peer, message);
    else if (status != KVF_OK)
        complain(senders, peer, message, error.text);
}

/* Returns true when none is left. */
static bool retry_peer(struct kvfi_senders *senders, struct kvfi_send_peer *peer)
{
    struct kvf_error error = {.position = -1};

    while (peer->words_head != NULL) {
        struct kvfi_send_word *word = peer->words_head;
        enum kvf_status status = send_now(senders, peer, &word->message, &error);
        if (may_wait(status))
            return false;
        if (status != KVF_OK)
            complain(senders, peer, &word->message, error.text);
        peer->words_head = word->next;
        peer->word_count--;
        free(word);
    }
    peer->words_tail = NULL;
    return true;
}

void kvfi_send_retry(struct kvfi_senders *senders)
{
    struct kvfi_send_peer **at = &senders->waiting;

    while (*at != NULL) {
        struct kvfi_send_peer *peer = *at;
        if (!retry_peer(senders, peer)) {
            at = &peer->next_waiting;
            continue;
        }
        *at = peer->next_waiting;
        peer->in_waiting = false;
    }
    if (senders->waiting != NULL)
        kvfi_timer_arm(&senders->worker->loop.timers, &senders->retry, kvfi_now_ns() + KVFI_SEND_RETRY_NS);
}

static int64_t own_rank(const struct kvfi_senders *senders)
{
    return kvf_trtllm_rank_get_spec(senders->worker->self)->instance_rank;
}

void kvfi_send_refuse(struct kvfi_senders *senders, struct kvfi_send_peer *peer, const struct kvfi_trtllm_ask *ask)
{
    struct kvfi_trtllm_message message = {
        .tag = KVFI_TRTLLM_KV_AGENT_RESULT,
        .result = {.ctx_rank = own_rank(senders), .rid = ask->rid, .is_last = true,
                   .slice = ask->slice == KVF_TRTLLM_NONE ? 0 : ask->slice, .word = KVFI_TRTLLM_WRITE_FAILED}};

    kvfi_send_say(senders, peer, &message);
    if (ask->aux_slot == KVF_TRTLLM_NONE)
        return;
    message = (struct kvfi_trtllm_message){.tag = KVFI_TRTLLM_AUX_AGENT_RESULT,
                                           .aux = {.ctx_rank = own_rank(senders), .rid = ask->rid,
                                                   .word = KVFI_TRTLLM_WRITE_FAILED}};
    kvfi_send_say(senders, peer, &message);
}

void kvfi_send_acknowledge(struct kvfi_senders *senders, struct kvfi_send_peer *peer, int64_t rid)
{
    const struct kvfi_trtllm_message message = {.tag = KVFI_TRTLLM_SESSION_QUIESCED,
                                                .quiesced = {.ctx_rank = own_rank(senders), .rid = rid}};

    senders->worker->stats.quiesced_sent++;
    kvfi_send_say(senders, peer, &message);
}

/* ---- registrations --------------------------------------------------------------------------------------------- */

/* Whom a broken or refused rank info is from: read as far as it can be, so that its requests can be answered. */
struct sender_of {
    char name[KVF_TRTLLM_AGENT_NAME_BYTES];
    char endpoint[KVFI_CHANNEL_ENDPOINT_BYTES];
    int64_t rank;
};

static bool look(const struct kvfi_trtllm_frame *payload, struct sender_of *out)
{
    int64_t rank = -1;
    bool found = kvfi_trtllm_peek_rank(payload->bytes, payload->byte_count, out->name, sizeof out->name, &rank,
                                       out->endpoint, sizeof out->endpoint);

    out->rank = rank;
    return found;
}

/* What is under way for a peer that is not what it was: nothing more is written to addresses of its past. */
static void break_off(struct kvfi_senders *senders, struct kvfi_send_peer *peer, const char *why)
{
    struct kvf_error error = {.position = -1};

    kvfi_fail(&error, KVF_ERR_STALE, "generation rank %s %s", peer->agent, why);
    kvfi_send_drop_peer_requests(senders, peer);
    /* ends change no list: a sink stays in it until the user closes its session */
    for (struct kvfi_send_sink *sink = peer->sinks; sink != NULL; sink = sink->next_of_peer)
        kvfi_send_sink_fail(sink, &error);
}

static void set_endpoint(struct kvfi_senders *senders, struct kvfi_send_peer *peer, const char *endpoint)
{
    if (strcmp(peer->endpoint, endpoint) == 0)
        return;
    if (peer->connected)
        kvfi_channel_disconnect(senders->worker->sender.channel, &peer->route);
    peer->connected = peer->complained = false;
    snprintf(peer->endpoint, sizeof peer->endpoint, "%s", endpoint);
}

/* Keeps who was refused, and why: its requests are answered. */
static void refuse(struct kvfi_senders *senders, const struct kvfi_trtllm_frame *payload, const struct kvf_error *error)
{
    kvf_trtllm_worker *worker = senders->worker;
    struct sender_of from = {.name = ""};
    struct kvfi_send_peer *peer = NULL;

    worker->stats.registrations_refused++;
    if (look(payload, &from))
        peer = kvfi_send_peer_find(senders, from.name, strlen(from.name), from.rank);
    if (from.name[0] != '\0' && from.endpoint[0] != '\0' && peer == NULL)
        peer = make_peer(senders, from.name, from.rank);
    kvfi_logf(&worker->log, peer == NULL                              ? kvfi_send_once(&senders->warned_rank)
                            : strcmp(peer->cause, error->text) == 0 ? KVF_LOG_DEBUG
                                                                     : KVF_LOG_WARN,
              "generation rank %s is refused: %.400s", peer == NULL ? "(unknown)" : peer->agent, error->text);
    if (peer == NULL)
        return;
    if (peer->accepted) {
        peer->accepted = false;
        (void)kvf_trtllm_registrar_unregister(worker->registrar, peer->name, peer->rank, NULL);
        break_off(senders, peer, "registered anew, and is refused now");
    }
    set_endpoint(senders, peer, from.endpoint);
    snprintf(peer->cause, sizeof peer->cause, "%s", error->text);
}

/* The same rank info as before changes nothing: what is under way goes on. */
static bool is_known(struct kvfi_senders *senders, const struct kvf_trtllm_rank_spec *spec,
                     const struct kvfi_trtllm_frame *payload)
{
    struct kvfi_send_peer *peer =
        kvfi_send_peer_find(senders, spec->instance_name, strlen(spec->instance_name), spec->instance_rank);
    const kvf_trtllm_rank *known;
    unsigned char *bytes = NULL;
    size_t byte_count = 0;
    bool same = false;

    if (peer == NULL || !peer->accepted ||
        kvf_trtllm_registrar_find(senders->worker->registrar, peer->name, peer->rank, &known, NULL) != KVF_OK)
        return false;
    bytes = malloc(payload->byte_count);
    if (bytes != NULL &&
        kvf_trtllm_rank_encode(known, bytes, payload->byte_count, &byte_count, NULL) == KVF_OK)
        same = byte_count == payload->byte_count && memcmp(bytes, payload->bytes, byte_count) == 0;
    free(bytes);
    if (same)
        peer->used_ns = kvfi_now_ns();
    return same;
}

/* The agent knows ranks by name and rank written one after the other, so "gen1" rank 2 reads as "gen" rank 12: one of
 * them at a time, or writes to one would go to the other's process. */
static enum kvf_status check_agent_name(struct kvfi_senders *senders, const struct kvf_trtllm_rank_spec *spec,
                                        struct kvf_error *error)
{
    char agent[KVF_TRTLLM_AGENT_NAME_BYTES];
    size_t length, digits = 1;
    int64_t rank = 0, unit = 1;

    kvfi_agent_name(agent, spec->instance_name, spec->instance_rank);
    length = strlen(agent);
    for (; digits < length && digits <= 18 && agent[length - digits] >= '0' && agent[length - digits] <= '9';
         digits++) {
        const struct kvfi_send_peer *other;
        rank += unit * (agent[length - digits] - '0');
        unit *= 10;
        if (length - digits == strlen(spec->instance_name) || (digits > 1 && agent[length - digits] == '0'))
            continue;
        other = kvfi_send_peer_find(senders, agent, length - digits, rank);
        if (other != NULL && other->loaded)
            return kvfi_fail(error, KVF_ERR_EXISTS, "agent name \"%.150s\" is that of rank %" PRId64 " of instance "
                             "\"%.150s\" already", agent, other->rank, other->name);
    }
    return KVF_OK;
}

static enum kvf_status accept(struct kvfi_senders *senders, const kvf_trtllm_rank *rank, struct kvf_error *error)
{
    kvf_trtllm_worker *worker = senders->worker;
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(rank);
    struct kvf_trtllm_verdict verdict = {.struct_size = sizeof verdict};
    struct kvfi_send_peer *peer =
        kvfi_send_peer_find(senders, spec->instance_name, strlen(spec->instance_name), spec->instance_rank);
    enum kvf_status status;

    if (strlen(spec->instance_name) > MAX_NAME_BYTES)
        return kvfi_fail(error, KVF_ERR_LIMIT, "instance name has %zu bytes, at most %d are taken",
                         strlen(spec->instance_name), MAX_NAME_BYTES);
    status = check_agent_name(senders, spec, error);
    if (status == KVF_OK && worker->own_agent != NULL)
        status = kvfi_host_check(spec->instance_name, spec->self_endpoint, error);
    if (status != KVF_OK)
        return status;
    if (peer != NULL && peer->accepted)
        break_off(senders, peer, "registered anew with another rank info");
    if (peer == NULL)
        peer = make_peer(senders, spec->instance_name, spec->instance_rank);
    if (peer == NULL)
        return kvfi_fail(error, KVF_ERR_LIMIT, "%zu generation ranks are registered, at most %" PRId64 " are taken",
                         senders->peers.count, worker->options.max_peers);
    status = kvf_trtllm_registrar_register(worker->registrar, rank, &verdict, error);
    if (status != KVF_OK)
        return status;
    status = worker->agent.load(worker->agent.context, peer->agent, spec->transfer_engine_info,
                                spec->transfer_engine_info_bytes, error);
    if (status != KVF_OK) {
        (void)kvf_trtllm_registrar_unregister(worker->registrar, peer->name, peer->rank, NULL);
        peer->accepted = false;
        return status;
    }
    set_endpoint(senders, peer, spec->self_endpoint);
    peer->accepted = peer->loaded = true;
    peer->complained = false;
    peer->cause[0] = '\0';
    peer->dp_rank = spec->dp_rank;
    peer->cp_size = spec->cp_size;
    peer->used_ns = kvfi_now_ns();
    worker->stats.registered++;
    return KVF_OK;
}

void kvfi_send_register(struct kvfi_senders *senders, const struct kvfi_trtllm_frame *payload)
{
    struct kvf_error error = {.position = -1};
    kvf_trtllm_rank *rank = NULL;
    enum kvf_status status = kvf_trtllm_rank_decode(payload->bytes, payload->byte_count, &rank, &error);

    if (status == KVF_OK && is_known(senders, kvf_trtllm_rank_get_spec(rank), payload))
        goto done;
    if (status == KVF_OK)
        status = accept(senders, rank, &error);
    if (status != KVF_OK)
        refuse(senders, payload, &error);
done:
    kvf_trtllm_rank_release(rank);
}
