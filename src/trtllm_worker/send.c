/* SPDX-License-Identifier: Apache-2.0 */
/* The sending half as the worker calls it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "trtllm_worker/send.h"

/* ---- life and death ---------------------------------------------------------------------------------------------- */

static void on_age(void *owner, struct kvfi_timer *timer)
{
    (void)owner;
    kvfi_send_age(KVFI_HOLDER(timer, struct kvfi_senders, age), kvfi_now_ns());
}

static void on_retry(void *owner, struct kvfi_timer *timer)
{
    (void)owner;
    kvfi_send_retry(KVFI_HOLDER(timer, struct kvfi_senders, retry));
}

enum kvf_status kvfi_senders_create(kvf_trtllm_worker *worker, struct kvfi_senders **out, struct kvf_error *error)
{
    struct kvfi_senders *senders = calloc(1, sizeof *senders);
    bool made = false;

    if (senders != NULL) {
        struct kvfi_table *tables[] = {&senders->peers, &senders->sessions, &senders->requests, &senders->fences,
                                       &senders->writes};
        made = true;
        for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
            made &= kvfi_table_init(tables[i]);
        senders->worker = worker;
        senders->age.fire = on_age;
        senders->retry.fire = on_retry;
    }
    if (!made) {
        kvfi_senders_destroy(worker, senders);
        return kvfi_fail_memory(error, "the sending half of a worker");
    }
    *out = senders;
    return KVF_OK;
}

void kvfi_senders_destroy(kvf_trtllm_worker *worker, struct kvfi_senders *senders)
{
    struct kvfi_link *link;

    if (senders == NULL)
        return;
    kvfi_timer_disarm(&worker->loop.timers, &senders->age);
    kvfi_timer_disarm(&worker->loop.timers, &senders->retry);
    while ((link = kvfi_table_any(&senders->sessions)) != NULL)
        kvfi_send_session_destroy(KVFI_HOLDER(link, struct kvfi_send_session, link));
    while (senders->oldest_request != NULL)
        kvfi_send_request_destroy(senders, senders->oldest_request);
    while (senders->oldest_fence != NULL)
        kvfi_send_fence_remove(senders, senders->oldest_fence);
    while ((link = kvfi_table_any(&senders->peers)) != NULL)
        kvfi_send_peer_destroy(senders, KVFI_HOLDER(link, struct kvfi_send_peer, link));
    kvfi_table_fini(&senders->peers);
    kvfi_table_fini(&senders->sessions);
    kvfi_table_fini(&senders->requests);
    kvfi_table_fini(&senders->fences);
    kvfi_table_fini(&senders->writes);
    free(senders);
}

int64_t kvfi_senders_unsettled(const kvf_trtllm_worker *worker)
{
    return worker->senders == NULL ? 0 : worker->senders->unsettled;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void dispatch(struct kvfi_senders *senders, const struct kvfi_route *from,
                     const struct kvfi_trtllm_message *message)
{
    switch (message->tag) {
    case KVFI_TRTLLM_REGISTER_RANK_INFO:
        kvfi_send_register(senders, &message->payload);
        break;
    case KVFI_TRTLLM_REQUEST_DATA:
        kvfi_send_on_request(senders, from, &message->payload);
        break;
    case KVFI_TRTLLM_CANCEL_SESSION:
        kvfi_send_on_cancel(senders, &message->cancel);
        break;
    default: /* what a later version says, or what is meant for others */
        kvfi_logf(&senders->worker->log, KVF_LOG_DEBUG, "the sender endpoint takes no %s",
                  kvfi_trtllm_tag_text(message->tag));
        break;
    }
}

void kvfi_senders_handle(kvf_trtllm_worker *worker, const struct kvfi_route *from, const struct kvfi_frame *frames,
                         size_t count)
{
    struct kvfi_trtllm_frame copies[KVFI_CHANNEL_FRAMES];
    struct kvfi_trtllm_message message;
    struct kvf_error error = {.position = -1};

    if (count > KVFI_CHANNEL_FRAMES)
        return;
    for (size_t i = 0; i < count; i++)
        copies[i] = (struct kvfi_trtllm_frame){frames[i].bytes, frames[i].byte_count};
    if (kvfi_trtllm_read(copies, count, &message, &error) == KVF_OK) {
        dispatch(worker->senders, from, &message);
        return;
    }
    worker->stats.malformed++;
    kvfi_logf(&worker->log, kvfi_send_once(&worker->senders->warned_frames), "message at the sender endpoint: %.400s",
              error.text);
}

void kvfi_senders_on_agent(kvf_trtllm_worker *worker, const struct kvf_trtllm_agent_event *event)
{
    struct kvfi_link *link = kvfi_table_find(&worker->senders->writes, &event->cookie, sizeof event->cookie);

    if (link != NULL)
        kvfi_send_on_write(worker->senders, KVFI_HOLDER(link, struct kvfi_send_write, link), event);
    else
        kvfi_logf(&worker->log, KVF_LOG_ERROR, "the agent tells of write %" PRIu64 ", which is not out", event->cookie);
}

/* ---- status ------------------------------------------------------------------------------------------------------ */

enum kvf_status kvfi_senders_status(kvf_trtllm_worker *worker, int64_t rid, struct kvf_trtllm_status *out,
                                    struct kvf_error *error)
{
    const struct kvfi_send_session *session = kvfi_send_session_find(worker->senders, rid);

    if (session == NULL)
        return kvfi_fail(error, KVF_ERR_NOT_FOUND, "request %" PRId64 " has no send session", rid);
    out->state = kvfi_send_session_state(session);
    out->status = session->life.state == KVFI_OFFER_FAILED ? (int32_t)session->life.reason : KVF_OK;
    out->is_settled = session->block.state == KVFI_BLOCK_REUSABLE && !session->overdue_told;
    out->is_quarantined = session->overdue_told;
    out->by_peer = session->by_peer;
    out->expected = (int64_t)session->sink_count;
    out->asked = (int64_t)session->asked;
    out->pending = out->in_doubt = 0;
    for (size_t i = 0; i < session->sink_count; i++) {
        const struct kvfi_send_sink *sink = &session->sinks[i];
        out->pending += sink->peer != NULL && (!sink->kv_said || (session->has_aux && !sink->aux_said));
        out->in_doubt += sink->in_doubt && sink->write != NULL;
    }
    out->pieces = (int64_t)session->piece_count;
    out->tokens = session->delivered_tokens;
    out->bytes = session->bytes;
    memcpy(out->peer, session->peer, sizeof out->peer);
    memcpy(out->text, session->text, sizeof out->text);
    return KVF_OK;
}
