/* SPDX-License-Identifier: Apache-2.0 */
/* The writes of a sink, one after the other, and the share of the agent that a peer may use. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "trtllm_worker/send.h"

/* ---- waiting for the peer's other writes ------------------------------------------------------------------------- */

static void enqueue(struct kvfi_send_sink *sink)
{
    struct kvfi_send_peer *peer = sink->peer;

    if (sink->queued)
        return;
    sink->queued = true;
    sink->next_queued = NULL;
    if (peer->queue_tail == NULL)
        peer->queue_head = sink;
    else
        peer->queue_tail->next_queued = sink;
    peer->queue_tail = sink;
}

void kvfi_send_unqueue(struct kvfi_send_sink *sink)
{
    struct kvfi_send_sink *previous = NULL, *at = sink->queued ? sink->peer->queue_head : NULL;

    for (; at != NULL && at != sink; at = at->next_queued)
        previous = at;
    if (at == NULL)
        return;
    *(previous == NULL ? &sink->peer->queue_head : &previous->next_queued) = sink->next_queued;
    if (sink->peer->queue_tail == sink)
        sink->peer->queue_tail = previous;
    sink->queued = false;
}

/* Goes on with the sinks that wait for this peer. */
static void pump_peer(struct kvfi_send_peer *peer)
{
    while (peer->queue_head != NULL && peer->writes_out < KVFI_SEND_PEER_WRITES) {
        struct kvfi_send_sink *sink = peer->queue_head;
        kvfi_send_unqueue(sink);
        kvfi_send_pump(sink);
    }
}

/* ---- writes ------------------------------------------------------------------------------------------------------ */

void kvfi_send_write_destroy(struct kvfi_senders *senders, struct kvfi_send_write *write)
{
    if (write->link.linked)
        write->sink->peer->writes_out--;
    kvfi_table_remove(&senders->writes, &write->link);
    kvf_trtllm_cursor_destroy(write->cursor);
    kvf_trtllm_write_destroy(write->bound);
    free(write->copies);
    write->sink->write = NULL;
    free(write);
}

static size_t next_of_cursor(void *source, struct kvf_trtllm_fragment *out, size_t capacity)
{
    struct kvfi_send_write *write = source;

    return kvf_trtllm_cursor_next(write->cursor, out, capacity);
}

static size_t next_of_copies(void *source, struct kvf_trtllm_fragment *out, size_t capacity)
{
    struct kvfi_send_write *write = source;
    size_t count = write->copy_count - write->copy_at < capacity ? write->copy_count - write->copy_at : capacity;

    if (count > 0)
        memcpy(out, write->copies + write->copy_at, count * sizeof *out);
    write->copy_at += count;
    return count;
}

static enum kvf_status bind_piece(struct kvfi_send_write *write, const struct kvfi_send_piece *piece,
                                  struct kvf_error *error)
{
    const struct kvfi_send_sink *sink = write->sink;
    const struct kvf_trtllm_rank_spec *self = kvf_trtllm_rank_get_spec(sink->session->worker->self);
    struct kvf_trtllm_request request;
    enum kvf_status status;

    kvf_trtllm_request_init(&request, sizeof request);
    request.prompt_tokens = sink->session->prompt_tokens;
    /* The holes of its tables say what a piece holds. Its tokens matter under context parallelism alone, where there is
     * nothing but the whole prompt. */
    if (self->cp_size > 1 || sink->peer->cp_size > 1) {
        request.token_begin = piece->token_begin;
        request.token_end = piece->token_end;
    }
    request.src = piece->groups;
    request.src_count = piece->group_count;
    request.dst = sink->ask.groups;
    request.dst_count = sink->ask.group_count;
    request.dst_start_token = sink->ask.dst_start_token;
    request.excluded = piece->excluded;
    request.excluded_count = piece->excluded_count;
    request.by_holes = sink->session->piece_count > 1 || !piece->is_last;
    request.is_early = !piece->is_last;
    write->is_last = piece->is_last;
    status = kvf_trtllm_pair_bind(sink->pair, &request, &write->bound, error);
    if (status != KVF_OK)
        return status;
    write->bytes = kvf_trtllm_write_bytes(write->bound);
    return write->bytes == 0 ? KVF_OK : kvf_trtllm_cursor_create(write->bound, &write->cursor, error);
}

/* Only one of the ranks that hold the same data sends it; the others say that they are done. */
static enum kvf_status bind_aux(struct kvfi_send_write *write, struct kvf_error *error)
{
    const struct kvfi_send_sink *sink = write->sink;
    const kvf_trtllm_rank *self = sink->session->worker->self, *peer = NULL;
    enum kvf_status status = kvf_trtllm_registrar_find(sink->session->worker->registrar, sink->peer->name,
                                                       sink->peer->rank, &peer, error);

    write->is_aux = write->is_last = true;
    if (status != KVF_OK || !kvf_trtllm_should_send_aux(self, peer))
        return status;
    write->copies = kvfi_alloc_zeroed(KVF_TRTLLM_MAX_AUX, sizeof *write->copies);
    if (write->copies == NULL)
        return kvfi_fail_memory(error, "auxiliary data");
    status = kvf_trtllm_aux_fragments(self, peer, sink->session->aux_slot, sink->ask.aux_slot, write->copies,
                                      KVF_TRTLLM_MAX_AUX, &write->copy_count, error);
    for (size_t i = 0; status == KVF_OK && i < write->copy_count; i++)
        write->bytes += write->copies[i].bytes;
    return status;
}

static int64_t device_of(const struct kvfi_send_write *write)
{
    const kvf_trtllm_rank *peer = NULL;

    if (write->is_aux || kvf_trtllm_registrar_find(write->sink->session->worker->registrar, write->sink->peer->name,
                                                   write->sink->peer->rank, &peer, NULL) != KVF_OK)
        return 0;
    return kvf_trtllm_rank_get_spec(peer)->device_id;
}

static enum kvf_status submit(struct kvfi_send_write *write, struct kvf_error *error)
{
    kvf_trtllm_worker *worker = write->sink->session->worker;
    const struct kvf_trtllm_agent_write job = {.cookie = write->cookie, .name = write->sink->peer->agent,
                                               .device_id = device_of(write), .is_aux = write->is_aux,
                                               .bytes = write->bytes, .source = write,
                                               .next = write->is_aux ? next_of_copies : next_of_cursor};

    return kvfi_worker_submit(worker, &job, error);
}

/* ---- words of writes --------------------------------------------------------------------------------------------- */

static void say_success(struct kvfi_send_sink *sink, const struct kvfi_send_write *write)
{
    if (write->is_aux)
        kvfi_send_sink_say_aux(sink, KVFI_TRTLLM_SUCCESS);
    else
        kvfi_send_sink_say_kv(sink, KVFI_TRTLLM_SUCCESS, write->is_last, write->bytes);
}

/* Placed: its word, what it counts for, and the machine's turn. The write is freed. */
static void placed(struct kvfi_send_sink *sink, struct kvfi_send_write *write)
{
    struct kvfi_send_session *session = sink->session;
    bool is_aux = write->is_aux;

    say_success(sink, write);
    sink->peer->failing = false;
    session->bytes += write->bytes;
    session->worker->stats.bytes_sent += write->bytes;
    kvfi_send_write_destroy(session->worker->senders, write);
    if (!is_aux && !kvfi_offer_ended(&session->life))
        kvfi_send_session_delivered(session, sink->next_piece - 1);
    kvfi_send_sink_feed(sink, KVFI_SINK_ON_POSTED, KVF_OK, 0);
}

static void doubt(struct kvfi_send_sink *sink, const char *text)
{
    struct kvf_error error = {.position = -1};

    kvfi_fail(&error, KVF_ERR_IN_DOUBT, "nobody knows whether a write is over: %.300s", text);
    sink->in_doubt = true;
    if (sink->life.state == KVFI_SINK_DRAINING)
        kvfi_send_sink_say_doubt(sink); /* it was cancelled before; the machine says no more about it */
    kvfi_send_sink_fail(sink, &error);
}

/* ---- posting ----------------------------------------------------------------------------------------------------- */

static bool aux_is_next(const struct kvfi_send_sink *sink)
{
    const struct kvfi_send_session *session = sink->session;

    return sink->next_piece == session->piece_count && session->last_handed && session->has_aux &&
           session->aux_slot != KVF_TRTLLM_NONE;
}

/* Posts a bound write; what was empty is placed at once. */
static void post(struct kvfi_send_sink *sink, struct kvfi_send_write *write)
{
    struct kvfi_senders *senders = sink->session->worker->senders;
    bool ends_it = write->is_last && (write->is_aux || !sink->session->has_aux);
    struct kvf_error error = {.position = -1};
    enum kvf_status status = KVF_OK;

    if (write->bytes == 0) {
        kvfi_send_sink_feed(sink, KVFI_SINK_ON_POST, KVF_OK, ends_it);
        placed(sink, write);
        return;
    }
    write->cookie = ++senders->last_cookie;
    kvfi_table_insert(&senders->writes, &write->link, &write->cookie, sizeof write->cookie);
    sink->peer->writes_out++;
    status = submit(write, &error);
    if (status == KVF_OK || status == KVF_ERR_IN_DOUBT)
        kvfi_send_sink_feed(sink, KVFI_SINK_ON_POST, KVF_OK, ends_it);
    if (status == KVF_ERR_IN_DOUBT)
        doubt(sink, error.text);
    if (status == KVF_OK || status == KVF_ERR_IN_DOUBT)
        return;
    kvfi_send_write_destroy(senders, write);
    kvfi_send_sink_fail(sink, &error);
}

/* Binds and posts the next one. */
static void post_next(struct kvfi_send_sink *sink)
{
    struct kvfi_senders *senders = sink->session->worker->senders;
    struct kvf_error error = {.position = -1};
    struct kvfi_send_write *write = calloc(1, sizeof *write);
    enum kvf_status status;

    if (write == NULL) {
        kvfi_fail_memory(&error, "a write");
        kvfi_send_sink_fail(sink, &error);
        return;
    }
    write->sink = sink;
    sink->write = write;
    if (sink->next_piece < sink->session->piece_count)
        status = bind_piece(write, &sink->session->pieces[sink->next_piece++], &error);
    else
        status = bind_aux(write, &error);
    if (status == KVF_OK) {
        post(sink, write);
        return;
    }
    kvfi_send_write_destroy(senders, write);
    kvfi_send_sink_fail(sink, &error);
}

void kvfi_send_pump(struct kvfi_send_sink *sink)
{
    while (sink->life.state == KVFI_SINK_SENDING && sink->write == NULL && !sink->queued &&
           (sink->next_piece < sink->session->piece_count || aux_is_next(sink))) {
        if (sink->peer->writes_out >= KVFI_SEND_PEER_WRITES) {
            enqueue(sink);
            return;
        }
        post_next(sink);
    }
}

/* ---- the agent's words ------------------------------------------------------------------------------------------- */

static void log_failure(const struct kvfi_send_write *write, const struct kvf_trtllm_agent_event *event)
{
    const struct kvfi_send_sink *sink = write->sink;

    kvfi_logf(&sink->session->worker->log, kvfi_send_once(&sink->peer->failing), "%s of request %" PRId64
              ", piece %zu, to %s at %s, %" PRId64 " bytes, %s: %.200s", write->is_aux ? "auxiliary data" : "blocks",
              sink->session->rid, sink->next_piece - 1, sink->peer->agent, sink->peer->endpoint, write->bytes,
              event->kind == KVF_TRTLLM_AGENT_FAILED ? "failed" : "in doubt", event->text);
}

void kvfi_send_on_write(struct kvfi_senders *senders, struct kvfi_send_write *write,
                        const struct kvf_trtllm_agent_event *event)
{
    struct kvfi_send_sink *sink = write->sink;
    struct kvfi_send_peer *peer = sink->peer;

    if (event->kind != KVF_TRTLLM_AGENT_DONE)
        log_failure(write, event);
    if (event->kind == KVF_TRTLLM_AGENT_IN_DOUBT) {
        doubt(sink, event->text);
        return;
    }
    if (event->kind == KVF_TRTLLM_AGENT_DONE && !sink->in_doubt) {
        placed(sink, write);
    } else {
        enum kvf_status status = event->status == KVF_OK ? KVF_ERR_PEER_LOST : (enum kvf_status)event->status;
        if (sink->text[0] == '\0')
            snprintf(sink->text, sizeof sink->text, "%s",
                     event->text[0] == '\0' ? "a write failed" : event->text);
        kvfi_send_write_destroy(senders, write);
        kvfi_send_sink_feed(sink, KVFI_SINK_ON_POSTED, status, 0);
    }
    kvfi_send_pump(sink);
    pump_peer(peer);
}
