/* SPDX-License-Identifier: Apache-2.0 */
/* REQUEST_DATA and CANCEL_SESSION, at whatever time they come. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "trtllm_worker/send.h"

/* ---- rids for which nothing is written any more ------------------------------------------------------------------ */

struct kvfi_send_fence *kvfi_send_fence_find(struct kvfi_senders *senders, int64_t rid)
{
    struct kvfi_link *link = kvfi_table_find(&senders->fences, &rid, sizeof rid);

    return link == NULL ? NULL : KVFI_HOLDER(link, struct kvfi_send_fence, link);
}

void kvfi_send_fence_remove(struct kvfi_senders *senders, struct kvfi_send_fence *fence)
{
    *(fence->previous == NULL ? &senders->oldest_fence : &fence->previous->next) = fence->next;
    *(fence->next == NULL ? &senders->newest_fence : &fence->next->previous) = fence->previous;
    kvfi_table_remove(&senders->fences, &fence->link);
    free(fence);
}

static void arm_age(struct kvfi_senders *senders)
{
    int64_t due_ns = INT64_MAX;

    if (senders->oldest_request != NULL)
        due_ns = senders->oldest_request->due_ns;
    if (senders->oldest_fence != NULL && senders->oldest_fence->due_ns < due_ns)
        due_ns = senders->oldest_fence->due_ns;
    if (due_ns != INT64_MAX && (!senders->age.armed || senders->age.due_ns > due_ns))
        kvfi_timer_arm(&senders->worker->loop.timers, &senders->age, due_ns);
}

bool kvfi_send_fence_add(struct kvfi_senders *senders, int64_t rid, bool cancelled, bool by_peer, const char *peer)
{
    const struct kvf_trtllm_worker_options *options = &senders->worker->options;
    struct kvfi_send_fence *fence = kvfi_send_fence_find(senders, rid);

    if (fence != NULL) {
        fence->cancelled |= cancelled;
        return true;
    }
    if ((int64_t)senders->fences.count >= options->max_requests || (fence = calloc(1, sizeof *fence)) == NULL)
        return false;
    fence->rid = rid;
    fence->due_ns = kvfi_deadline_after(KVFI_SEND_FENCE_AGES * options->stale_request_ns);
    fence->cancelled = cancelled;
    fence->by_peer = by_peer;
    snprintf(fence->peer, sizeof fence->peer, "%s", peer);
    fence->previous = senders->newest_fence;
    *(fence->previous == NULL ? &senders->oldest_fence : &fence->previous->next) = fence;
    senders->newest_fence = fence;
    kvfi_table_insert(&senders->fences, &fence->link, &fence->rid, sizeof fence->rid);
    arm_age(senders);
    return true;
}

/* ---- requests that wait for their session ------------------------------------------------------------------------ */

void kvfi_send_request_destroy(struct kvfi_senders *senders, struct kvfi_send_request *request)
{
    *(request->previous == NULL ? &senders->oldest_request : &request->previous->next) = request->next;
    *(request->next == NULL ? &senders->newest_request : &request->next->previous) = request->previous;
    kvfi_table_remove(&senders->requests, &request->link);
    senders->stored_bytes -= request->bytes;
    request->peer->stored_bytes -= request->bytes;
    request->peer->stored--;
    request->peer->uses--;
    kvfi_trtllm_ask_fini(&request->ask);
    free(request);
}

static struct kvfi_send_request *find_request(struct kvfi_senders *senders, int64_t rid,
                                              const struct kvfi_send_peer *peer)
{
    struct kvfi_link *link = kvfi_table_find(&senders->requests, &rid, sizeof rid);

    while (link != NULL && peer != NULL && KVFI_HOLDER(link, struct kvfi_send_request, link)->peer != peer)
        link = kvfi_table_find_next(link);
    return link == NULL ? NULL : KVFI_HOLDER(link, struct kvfi_send_request, link);
}

static int64_t bytes_of(const struct kvfi_trtllm_ask *ask)
{
    int64_t bytes = (int64_t)sizeof(struct kvfi_send_request) + (int64_t)strlen(ask->instance_name);

    for (size_t i = 0; i < ask->group_count; i++)
        bytes += (int64_t)(sizeof(struct kvf_trtllm_blocks) + sizeof(int64_t) * ask->groups[i].count);
    return bytes;
}

/* A rank may have at most as much as it leaves free, so no rank fills the table alone, whatever the others have. */
static bool has_share(const struct kvfi_senders *senders, const struct kvfi_send_peer *peer, int64_t bytes)
{
    int64_t free_count = senders->worker->options.max_requests - (int64_t)senders->requests.count;
    int64_t free_bytes = KVFI_SEND_STORED_BYTES - senders->stored_bytes;

    return free_count > 0 && peer->stored < free_count && bytes <= free_bytes - peer->stored_bytes;
}

static void link_request(struct kvfi_senders *senders, struct kvfi_send_request *request)
{
    request->peer->uses++;
    request->peer->stored++;
    request->peer->stored_bytes += request->bytes;
    senders->stored_bytes += request->bytes;
    request->previous = senders->newest_request;
    *(request->previous == NULL ? &senders->oldest_request : &request->previous->next) = request;
    senders->newest_request = request;
    kvfi_table_insert(&senders->requests, &request->link, &request->rid, sizeof request->rid);
}

/* Takes the ask, or refuses it. Asked again, the later one counts: the rank may have given the earlier one's blocks to
 * others since. */
static void store(struct kvfi_senders *senders, struct kvfi_send_peer *peer, struct kvfi_trtllm_ask *ask)
{
    kvf_trtllm_worker *worker = senders->worker;
    struct kvfi_send_request *request = find_request(senders, ask->rid, peer);
    int64_t bytes = bytes_of(ask);

    if (request != NULL)
        kvfi_send_request_destroy(senders, request);
    request = has_share(senders, peer, bytes) ? calloc(1, sizeof *request) : NULL;
    if (request == NULL) {
        kvfi_logf(&worker->log, kvfi_send_once(&peer->warned), "request %" PRId64 " of %s is refused: %" PRId64
                  " requests of it wait for their sessions already, %zu of all ranks", ask->rid, peer->agent,
                  peer->stored, senders->requests.count);
        kvfi_send_refuse(senders, peer, ask);
        kvfi_trtllm_ask_fini(ask);
        return;
    }
    request->peer = peer;
    request->bytes = bytes;
    request->due_ns = kvfi_deadline_after(worker->options.stale_request_ns);
    request->ask = *ask;
    request->rid = ask->rid;
    *ask = (struct kvfi_trtllm_ask){0};
    link_request(senders, request);
    worker->stats.requests_stored++;
    arm_age(senders);
}

void kvfi_send_take_requests(struct kvfi_senders *senders, struct kvfi_send_session *session)
{
    struct kvfi_send_request *request;

    while ((request = find_request(senders, session->rid, NULL)) != NULL) {
        struct kvfi_send_peer *peer = request->peer;
        struct kvfi_trtllm_ask ask = request->ask;
        request->ask = (struct kvfi_trtllm_ask){0};
        kvfi_send_request_destroy(senders, request);
        kvfi_send_session_ask(session, peer, &ask);
    }
}

static void refuse_request(struct kvfi_senders *senders, struct kvfi_send_request *request)
{
    struct kvfi_send_peer *peer = request->peer;

    kvfi_send_refuse(senders, peer, &request->ask);
    kvfi_send_request_destroy(senders, request);
}

void kvfi_send_drop_requests(struct kvfi_senders *senders, int64_t rid)
{
    struct kvfi_send_request *request;

    while ((request = find_request(senders, rid, NULL)) != NULL)
        refuse_request(senders, request);
}

void kvfi_send_drop_peer_requests(struct kvfi_senders *senders, struct kvfi_send_peer *peer)
{
    struct kvfi_send_request *request = senders->oldest_request, *next;

    for (; request != NULL; request = next) {
        next = request->next;
        if (request->peer == peer)
            refuse_request(senders, request);
    }
}

/* Requests of groups that do not run the prefill are left over by design: nobody waits for an answer to them. */
void kvfi_send_age(struct kvfi_senders *senders, int64_t now_ns)
{
    while (senders->oldest_request != NULL && senders->oldest_request->due_ns <= now_ns) {
        senders->worker->stats.requests_expired++;
        kvfi_send_request_destroy(senders, senders->oldest_request);
    }
    while (senders->oldest_fence != NULL && senders->oldest_fence->due_ns <= now_ns)
        kvfi_send_fence_remove(senders, senders->oldest_fence);
    arm_age(senders);
}

static bool is_same(const struct kvfi_trtllm_ask *a, const struct kvfi_trtllm_ask *b)
{
    bool same = a->group_count == b->group_count && a->aux_slot == b->aux_slot && a->slice == b->slice &&
                a->dst_start_token == b->dst_start_token;

    for (size_t i = 0; same && i < a->group_count; i++) {
        size_t count = a->groups[i].count;
        same = count == b->groups[i].count &&
               (count == 0 || memcmp(a->groups[i].ids, b->groups[i].ids, count * sizeof(int64_t)) == 0);
    }
    return same;
}

void kvfi_send_ask_again(struct kvfi_send_sink *sink, const struct kvfi_trtllm_ask *ask)
{
    struct kvfi_send_session *session = sink->session;
    struct kvf_error error = {.position = -1};

    if (is_same(&sink->ask, ask)) {
        kvfi_logf(&session->worker->log, KVF_LOG_DEBUG, "request %" PRId64 " of %s came twice", session->rid,
                  sink->peer->agent);
    } else if (kvfi_sink_ended(&sink->life)) {
        kvfi_send_refuse(session->worker->senders, sink->peer, ask);
    } else {
        kvfi_fail(&error, KVF_ERR_STALE, "generation rank %s asks anew, and for other blocks", sink->peer->agent);
        kvfi_send_sink_fail(sink, &error);
    }
}

/* ---- REQUEST_DATA ------------------------------------------------------------------------------------------------ */

/* Answers over the connection that the request came on: all that is known of its sender. */
static void answer_stranger(struct kvfi_senders *senders, const struct kvfi_route *from, int64_t rid, int64_t slice)
{
    kvf_trtllm_worker *worker = senders->worker;
    const struct kvfi_trtllm_result result = {
        .ctx_rank = kvf_trtllm_rank_get_spec(worker->self)->instance_rank, .rid = rid,
        .slice = slice == KVF_TRTLLM_NONE ? 0 : slice, .is_last = true, .word = KVFI_TRTLLM_WRITE_FAILED};
    struct kvfi_trtllm_packed packed;
    struct kvfi_frame frames[2];

    kvfi_trtllm_pack_result(&packed, &result);
    for (size_t i = 0; i < 2; i++)
        frames[i] = (struct kvfi_frame){packed.frames[i].bytes, packed.frames[i].byte_count};
    (void)kvfi_channel_send_frames(worker->sender.channel, from, frames, 2, NULL);
}

/* A payload that is no request: who waits for it is told as far as it says who that is. */
static void refuse_payload(struct kvfi_senders *senders, const struct kvfi_route *from,
                           const struct kvfi_trtllm_frame *payload, const struct kvf_error *error)
{
    struct kvfi_trtllm_ask ask = {.rid = KVF_TRTLLM_NONE, .slice = KVF_TRTLLM_NONE, .aux_slot = KVF_TRTLLM_NONE};
    struct kvfi_send_peer *peer = NULL;
    char name[KVF_TRTLLM_AGENT_NAME_BYTES];
    int64_t rank = -1;

    senders->worker->stats.malformed++;
    if (kvfi_trtllm_ask_peek(payload->bytes, payload->byte_count, &ask.rid, &ask.slice, name, sizeof name, &rank))
        peer = kvfi_send_peer_find(senders, name, strlen(name), rank);
    kvfi_logf(&senders->worker->log, kvfi_send_once(peer == NULL ? &senders->warned_stranger : &peer->warned),
              "a request of %s is refused: %.400s", peer == NULL ? "an unknown rank" : peer->agent, error->text);
    if (peer != NULL)
        kvfi_send_refuse(senders, peer, &ask);
    else if (ask.rid != KVF_TRTLLM_NONE)
        answer_stranger(senders, from, ask.rid, ask.slice);
}

static void dispatch(struct kvfi_senders *senders, struct kvfi_send_peer *peer, struct kvfi_trtllm_ask *ask)
{
    struct kvfi_send_session *session = kvfi_send_session_find(senders, ask->rid);

    peer->used_ns = kvfi_now_ns();
    if (session != NULL) {
        kvfi_send_session_ask(session, peer, ask);
    } else if (kvfi_send_fence_find(senders, ask->rid) != NULL) {
        kvfi_send_refuse(senders, peer, ask);
        kvfi_trtllm_ask_fini(ask);
    } else {
        store(senders, peer, ask);
    }
}

void kvfi_send_on_request(struct kvfi_senders *senders, const struct kvfi_route *from,
                          const struct kvfi_trtllm_frame *payload)
{
    struct kvfi_send_peer *peer;
    struct kvfi_trtllm_ask ask;
    struct kvf_error error = {.position = -1};

    if (kvfi_trtllm_ask_decode(payload->bytes, payload->byte_count, &ask, &error) != KVF_OK) {
        refuse_payload(senders, from, payload, &error);
        return;
    }
    senders->worker->stats.requests_received++;
    peer = kvfi_send_peer_find(senders, ask.instance_name, strlen(ask.instance_name), ask.instance_rank);
    if (peer != NULL && peer->accepted) {
        dispatch(senders, peer, &ask);
        return;
    }
    kvfi_logf(&senders->worker->log, kvfi_send_once(peer == NULL ? &senders->warned_stranger : &peer->warned),
              "request %" PRId64 " of rank %" PRId64 " of instance \"%.100s\" is refused: %.250s", ask.rid,
              ask.instance_rank, ask.instance_name,
              peer == NULL ? "it is not registered here" : peer->cause);
    if (peer != NULL)
        kvfi_send_refuse(senders, peer, &ask);
    else
        answer_stranger(senders, from, ask.rid, ask.slice);
    kvfi_trtllm_ask_fini(&ask);
}

/* ---- CANCEL_SESSION ---------------------------------------------------------------------------------------------- */

/* No session: what was asked is refused and acknowledged, and a session that is opened later is born cancelled. Each
 * rank's requests came before its cancel on one connection, so nothing of it can follow. */
static void cancel_unknown(struct kvfi_senders *senders, int64_t rid, struct kvfi_send_peer *by)
{
    struct kvfi_send_request *request;

    if (!kvfi_send_fence_add(senders, rid, true, true, by == NULL ? "" : by->agent))
        kvfi_logf(&senders->worker->log, KVF_LOG_WARN, "%zu cancelled requests are remembered already: a session of "
                  "request %" PRId64 " will not know that it was cancelled", senders->fences.count, rid);
    while ((request = find_request(senders, rid, NULL)) != NULL) {
        struct kvfi_send_peer *peer = request->peer;
        bool told = by == NULL;
        refuse_request(senders, request);
        if (told)
            kvfi_send_acknowledge(senders, peer, rid);
    }
    if (by != NULL)
        kvfi_send_acknowledge(senders, by, rid);
}

void kvfi_send_on_cancel(struct kvfi_senders *senders, const struct kvfi_trtllm_cancel *cancel)
{
    struct kvfi_send_session *session = kvfi_send_session_find(senders, cancel->rid);
    struct kvfi_send_peer *by = NULL;

    senders->worker->stats.cancels_received++;
    if (cancel->has_requester)
        by = kvfi_send_peer_find(senders, cancel->instance_name, cancel->name_bytes, cancel->instance_rank);
    if (session != NULL)
        kvfi_send_session_cancel(session, by);
    else
        cancel_unknown(senders, cancel->rid, by);
}
