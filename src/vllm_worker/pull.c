/* SPDX-License-Identifier: Apache-2.0 */
/* A pull is taken in: read, checked in upstream's order, and its requests joined with their transfers. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "vllm_worker/produce.h"

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void refuse(kvf_vllm_worker *worker, const struct kvfi_route *from, const char *session, int64_t requests,
                   const struct kvf_error *why)
{
    bool miss = why->status == KVF_ERR_NOT_FOUND;
    const struct kvfi_vllm_reply reply = {.verdict = miss ? KVFI_VLLM_LAYOUT_MISS : KVFI_VLLM_ERROR,
                                          .err_msg = why->text};
    const struct kvfi_vllm_told told = {.kind = KVF_VLLM_EVENT_REFUSED, .status = why->status, .requests = requests,
                                        .peer = session, .text = why->text};

    worker->stats.layout_misses += miss;
    worker->stats.pulls_refused += !miss;
    kvfi_logf(&worker->log, miss ? KVF_LOG_DEBUG : KVF_LOG_WARN, "vllm producer: a pull of %s was refused: %s",
              session == NULL ? "a peer" : session, why->text);
    kvfi_vllm_sender_reply(worker, from, &reply);
    kvfi_vllm_worker_tell(worker, &told);
}

/* What is no pull: counted, logged once in a while, answered, since somebody may be waiting. */
static void refuse_malformed(kvf_vllm_worker *worker, const struct kvfi_route *from, const struct kvf_error *why)
{
    struct kvfi_vllm_sender *sender = worker->sender;
    const struct kvfi_vllm_reply reply = {.verdict = KVFI_VLLM_ERROR, .err_msg = why->text};
    int64_t now_ns = kvfi_now_ns();

    worker->stats.malformed++;
    if (sender->last_malformed_ns == 0 || now_ns - sender->last_malformed_ns >= KVFI_SECOND) {
        sender->last_malformed_ns = now_ns;
        kvfi_logf(&worker->log, KVF_LOG_WARN, "vllm producer: %" PRId64 " messages were no pulls, the last: %s",
                  worker->stats.malformed, why->text);
    }
    kvfi_vllm_sender_reply(worker, from, &reply);
}

void kvfi_vllm_sender_refuse(kvf_vllm_worker *worker, const struct kvfi_route *from, const char *what)
{
    struct kvf_error error;

    kvfi_fail(&error, KVF_ERR_PROTOCOL, "%s", what);
    refuse_malformed(worker, from, &error);
}

/* ---- bounds ---------------------------------------------------------------------------------------------------- */

/* Messages of the longest kind that may wait. */
enum { LONGEST_PULLS = 64 };

static enum kvf_status check_text(const char *what, const char *text, size_t room, struct kvf_error *error)
{
    if (strnlen(text, room) >= room)
        return kvfi_fail(error, KVF_ERR_LIMIT, "A pull's %s has %zu bytes or more, at most %zu.", what, room, room - 1);
    return KVF_OK;
}

static enum kvf_status check_texts(const struct kvfi_vllm_pull *pull, struct kvf_error *error)
{
    enum kvf_status status = check_text("remote_hostname", pull->peer.hostname, KVF_VLLM_ADDRESS_BYTES - 16, error);

    for (size_t i = 0; status == KVF_OK && i < pull->request_count; i++) {
        status = check_text("request id", pull->requests[i].d_req_id, KVF_VLLM_ID_BYTES, error);
        if (status == KVF_OK)
            status = check_text("transfer_id", pull->requests[i].transfer_id, KVF_VLLM_ID_BYTES, error);
    }
    return status;
}

/* Each pull is bounded by its message: so are all that wait together, by some of these. */
static enum kvf_status check_bytes(const kvf_vllm_worker *worker, size_t bytes, struct kvf_error *error)
{
    size_t most = LONGEST_PULLS * (size_t)worker->options.max_message_bytes, held = worker->sender->answer_bytes;

    if (bytes > most || held > most - bytes)
        return kvfi_fail(error, KVF_ERR_LIMIT, "The P side keeps %zu bytes of pulls already, and %zu more come, at "
                         "most %zu.", held, bytes, most);
    return KVF_OK;
}

/* ---- an answer ------------------------------------------------------------------------------------------------- */

/* FNV-1a. */
static uint64_t mix(uint64_t hash, uint64_t word)
{
    for (int shift = 0; shift < 64; shift += 8)
        hash = (hash ^ (word >> shift & 0xFF)) * UINT64_C(0x100000001B3);
    return hash;
}

/* Whose memory it is, from a secret start: who was started anew, or has registered anew, has got nothing yet. */
static uint64_t memory_of(const struct kvfi_vllm_sender *sender, const kvf_vllm_prepared *prepared, uint64_t layout_id)
{
    size_t count;
    const struct kvf_vllm_region *regions = kvf_vllm_regions_get(kvf_vllm_prepared_remote(prepared), &count);
    uint64_t hash = mix(sender->seed, layout_id);

    for (size_t i = 0; i < count; i++)
        hash = mix(hash, regions[i].base_addr);
    return hash;
}

/* That, the request's id and its blocks. */
static uint64_t copy_of(uint64_t hash, const struct kvfi_vllm_wanted *wanted)
{
    for (const char *at = wanted->d_req_id; *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001B3);
    for (size_t i = 0; i < wanted->group_count; i++) {
        hash = (hash ^ (wanted->groups[i].count + UINT64_C(0x9E3779B97F4A7C15))) * UINT64_C(0x100000001B3);
        for (size_t k = 0; k < wanted->groups[i].count; k++)
            hash = mix(hash, (uint64_t)wanted->groups[i].ids[k]);
    }
    return hash ^ hash >> 32;
}

/* Bytes of an answer with all that its entries hold; false when they do not fit. */
static bool measure(const struct kvfi_vllm_pull *pull, size_t *out)
{
    size_t bytes = sizeof(struct kvfi_vllm_answer), count = pull->request_count, more;
    bool fits = kvfi_mul_size(count, sizeof(struct kvfi_vllm_entry) + sizeof(char *), &more) &&
                kvfi_add_size(bytes, more, &bytes);

    for (size_t i = 0; fits && i < count; i++) {
        const struct kvfi_vllm_wanted *wanted = &pull->requests[i];

        fits = kvfi_mul_size(wanted->group_count, sizeof *wanted->groups, &more) && kvfi_add_size(bytes, more, &bytes);
        for (size_t k = 0; fits && k < wanted->group_count; k++)
            fits = kvfi_mul_size(wanted->groups[k].count, sizeof(int64_t), &more) &&
                   kvfi_add_size(bytes, more, &bytes);
        fits = fits &&
               kvfi_add_size(bytes, strlen(wanted->d_req_id) + strlen(wanted->transfer_id) + 2, &bytes);
    }
    *out = bytes;
    return fits;
}

static char *lay_text(char *at, const char *text, const char **out)
{
    size_t bytes = strlen(text) + 1;

    memcpy(at, text, bytes);
    *out = at;
    return at + bytes;
}

/* Words first, texts behind all of them. */
static void lay_entries(const struct kvfi_vllm_pull *pull, uint64_t memory, struct kvfi_vllm_answer *answer)
{
    char *at = (char *)(answer->entries + pull->request_count);

    answer->names = (const char **)(void *)at;
    at += pull->request_count * sizeof(char *);
    for (size_t i = 0; i < pull->request_count; i++) {
        const struct kvfi_vllm_wanted *wanted = &pull->requests[i];
        struct kvfi_vllm_entry *entry = &answer->entries[i];

        entry->answer = answer;
        entry->copy = copy_of(memory, wanted);
        entry->groups = (struct kvf_vllm_ids *)(void *)at;
        entry->group_count = wanted->group_count;
        at += wanted->group_count * sizeof *wanted->groups;
        for (size_t k = 0; k < wanted->group_count; k++) {
            size_t bytes = wanted->groups[k].count * sizeof(int64_t);

            entry->groups[k] = (struct kvf_vllm_ids){(int64_t *)(void *)at, wanted->groups[k].count};
            if (bytes > 0)
                memcpy(at, wanted->groups[k].ids, bytes);
            at += bytes;
        }
    }
    for (size_t i = 0; i < pull->request_count; i++) {
        at = lay_text(at, pull->requests[i].d_req_id, &answer->entries[i].d_req_id);
        at = lay_text(at, pull->requests[i].transfer_id, &answer->entries[i].transfer_id);
    }
}

static void patience_over(void *owner, struct kvfi_timer *timer)
{
    kvfi_vllm_answer_give_up(owner, KVFI_HOLDER(timer, struct kvfi_vllm_answer, patience), KVF_ERR_TIMEOUT,
                             "Timeout waiting for P side ready.");
}

static enum kvf_status make_answer(kvf_vllm_worker *worker, const struct kvfi_vllm_pull *pull,
                                   const struct kvfi_route *from, kvf_vllm_prepared *prepared,
                                   struct kvfi_vllm_answer **out, struct kvf_error *error)
{
    struct kvfi_vllm_sender *sender = worker->sender;
    struct kvfi_vllm_answer *answer;
    bool fits;
    size_t bytes;
    enum kvf_status status;

    fits = measure(pull, &bytes);
    status = fits ? check_bytes(worker, bytes, error) : KVF_OK;
    if (status != KVF_OK)
        return status;
    answer = fits ? kvfi_alloc_zeroed(1, bytes) : NULL;
    if (answer == NULL)
        return kvfi_fail_memory(error, "a pull");
    answer->bytes = bytes;
    answer->puller = kvfi_vllm_puller_get(sender, &pull->peer);
    if (answer->puller == NULL) {
        free(answer);
        return kvfi_fail_memory(error, "a consumer rank");
    }
    lay_entries(pull, memory_of(sender, prepared, pull->peer.layout_id), answer);
    answer->from = *from;
    answer->prepared = prepared;
    answer->layout_id = pull->peer.layout_id;
    answer->patience.fire = patience_over;
    answer->left = answer->entry_count = pull->request_count;
    answer->next = sender->answers;
    if (sender->answers != NULL)
        sender->answers->previous = answer;
    sender->answers = answer;
    sender->answer_count++;
    sender->answer_bytes += bytes;
    *out = answer;
    return KVF_OK;
}

/* ---- joining --------------------------------------------------------------------------------------------------- */

static enum kvf_status find_or_make(kvf_vllm_worker *worker, const char *transfer_id,
                                    struct kvfi_vllm_transfer **out, struct kvf_error *error)
{
    struct kvfi_vllm_sender *sender = worker->sender;
    int64_t tracked = sender->unknown + sender->known + sender->ready;

    *out = kvfi_vllm_transfer_find(sender, transfer_id);
    if (*out != NULL)
        return KVF_OK;
    if (tracked >= worker->options.max_transfers)
        return kvfi_fail(error, KVF_ERR_LIMIT, "The P side tracks %" PRId64 " transfers already, at most %" PRId64 ".",
                         tracked, worker->options.max_transfers);
    *out = kvfi_vllm_transfer_make(transfer_id, "", NULL, 0);
    if (*out == NULL)
        return kvfi_fail_memory(error, "a transfer");
    kvfi_vllm_transfer_put(sender, *out, KVFI_VLLM_UNKNOWN);
    return KVF_OK;
}

/* On failure the answer is still to be freed, and nothing is due. */
static enum kvf_status join(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; status == KVF_OK && i < answer->entry_count; i++) {
        struct kvfi_vllm_entry *entry = &answer->entries[i];
        struct kvfi_vllm_transfer *transfer;

        status = find_or_make(worker, entry->transfer_id, &transfer, error);
        if (status != KVF_OK)
            continue;
        entry->transfer = transfer;
        kvfi_vllm_entry_link(&transfer->waiting, entry);
    }
    for (size_t i = 0; status == KVF_OK && i < answer->entry_count; i++) {
        struct kvfi_vllm_entry *entry = &answer->entries[i];

        if (entry->transfer->state == KVFI_VLLM_READY)
            kvfi_vllm_entry_due(worker->sender, entry, KVFI_VLLM_NO_CAUSE);
        else if (entry->transfer->state == KVFI_VLLM_OVER)
            kvfi_vllm_entry_due(worker->sender, entry, entry->transfer->cause);
    }
    return status;
}

/* A pull of nothing is answered as upstream does: it waits for nothing, and has nothing to report. */
static void finish_empty(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer)
{
    const struct kvfi_vllm_reply reply = {.verdict = KVFI_VLLM_FINISH, .layout_id = answer->layout_id};

    kvfi_vllm_sender_reply(worker, &answer->from, &reply);
    kvfi_vllm_answer_free(worker, answer);
}

static enum kvf_status check_room(const kvf_vllm_worker *worker, struct kvf_error *error)
{
    if (worker->closed)
        return kvfi_fail(error, KVF_ERR_CLOSED, "The P side shuts down.");
    if (worker->sender->producer == NULL)
        return kvfi_fail(error, KVF_ERR_AGAIN, "The P side has no memory registered.");
    if (worker->sender->answer_count >= worker->options.max_pulls)
        return kvfi_fail(error, KVF_ERR_LIMIT, "The P side answers %" PRId64 " pulls already, at most %" PRId64 ".",
                         worker->sender->answer_count, worker->options.max_pulls);
    return KVF_OK;
}

static enum kvf_status accept_pull(kvf_vllm_worker *worker, const struct kvfi_route *from,
                                   const struct kvfi_vllm_pull *pull, struct kvf_error *error)
{
    kvf_vllm_prepared *prepared = NULL;
    struct kvfi_vllm_answer *answer = NULL;
    struct kvfi_vllm_told told = {.kind = KVF_VLLM_EVENT_PULL, .requests = (int64_t)pull->request_count,
                                  .started_ns = kvfi_now_ns()};
    enum kvf_status status = check_room(worker, error);

    if (status == KVF_OK)
        status = check_texts(pull, error);
    if (status == KVF_OK)
        status = kvf_vllm_prepare(worker->sender->producer, &pull->peer, &prepared, error);
    if (status == KVF_OK)
        status = make_answer(worker, pull, from, prepared, &answer, error);
    if (status != KVF_OK) {
        kvf_vllm_prepared_release(answer == NULL ? prepared : NULL);
        return status;
    }
    told.peer = answer->puller->session;
    if (pull->request_count == 1)
        told.transfer_id = pull->requests[0].transfer_id;
    status = join(worker, answer, error);
    if (status != KVF_OK) {
        kvfi_vllm_answer_free(worker, answer);
        return status;
    }
    kvfi_vllm_worker_tell(worker, &told);
    if (pull->request_count == 0) {
        finish_empty(worker, answer);
        return KVF_OK;
    }
    kvfi_vllm_answer_wait(worker, answer);
    kvfi_vllm_rounds_run(worker);
    return KVF_OK;
}

/* ---- what came ------------------------------------------------------------------------------------------------- */

static void note_replay(kvf_vllm_worker *worker, const struct kvfi_vllm_pull *pull)
{
    if (pull->replay.is_named)
        kvfi_logf(&worker->log, KVF_LOG_WARN, "vllm producer: a pull of %s asks for prefix replay for %" PRId64
                  " requests, which is not done: its consumer may fail them", pull->peer.hostname,
                  pull->replay.requests);
}

void kvfi_vllm_sender_handle(kvf_vllm_worker *worker, const struct kvfi_route *from, const struct kvfi_frame *frames,
                             size_t count)
{
    struct kvfi_vllm_pull pull = {.memory = NULL};
    char session[KVF_VLLM_ADDRESS_BYTES];
    struct kvf_error error;
    enum kvf_status status;

    worker->stats.pulls_received++;
    if (count != 1)
        status = kvfi_fail(&error, KVF_ERR_PROTOCOL, "A pull is one frame, this message has %zu.", count);
    else
        status = kvfi_vllm_pull_decode(frames[0].bytes, frames[0].byte_count, &pull, &error);
    if (status != KVF_OK) {
        worker->stats.pulls_received--;
        refuse_malformed(worker, from, &error);
        return;
    }
    if (!worker->options.layout_ids)
        pull.peer.layout_id = 0; /* as a P that does not know them: never echoed */
    note_replay(worker, &pull);
    status = accept_pull(worker, from, &pull, &error);
    if (status != KVF_OK) {
        kvfi_vllm_session_format(pull.peer.hostname, pull.peer.port, session);
        refuse(worker, from, session, (int64_t)pull.request_count, &error);
    }
    kvfi_vllm_pull_fini(&pull);
}
