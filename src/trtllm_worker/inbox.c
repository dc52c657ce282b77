/* SPDX-License-Identifier: Apache-2.0 */
/* What arrives at the self endpoint: reports of context ranks, and their cancels. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "trtllm_worker/receive.h"

/* ---- evidence ----------------------------------------------------------------------------------------------- */

/* The one who reports, when it was asked to. Anybody else who reports of a request may have written into it. */
static struct kvfi_receive_writer *reporter(struct kvfi_receive *job, int64_t rank, const char *what)
{
    struct kvfi_receive_writer *writer = kvfi_receive_writer(job, rank);

    if (writer != NULL && writer->asked) {
        job->heard = true;
        return writer;
    }
    kvfi_receive_quarantine(job, "request %" PRId64 ": %s of context rank %" PRId64 ", which was not asked", job->rid,
                            what, rank);
    return NULL;
}

/* Several DP groups were asked, and one of them runs the request. */
static bool check_group(struct kvfi_receive *job, const struct kvfi_receive_writer *writer)
{
    if (job->writing_group < 0)
        job->writing_group = writer->group;
    if (job->writing_group == writer->group)
        return true;
    kvfi_receive_quarantine(job, "request %" PRId64 ": context rank %" PRId64 " of DP group %" PRId64
                            " wrote, and group %" PRId64 " before it", job->rid, writer->rank, writer->group,
                            job->writing_group);
    return false;
}

/* Why the request ends, when this word is what ends it. */
static void explain(struct kvfi_receive *job, const struct kvfi_writer *life, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void explain(struct kvfi_receive *job, const struct kvfi_writer *life, const char *format, ...)
{
    va_list arguments;

    if (kvfi_transfer_ended(&job->life) || kvfi_writer_quiet(life) || life->state == KVFI_WRITER_IN_DOUBT)
        return;
    va_start(arguments, format);
    vsnprintf(job->text, sizeof job->text, format, arguments);
    va_end(arguments);
}

/* ---- words -------------------------------------------------------------------------------------------------- */

static void on_word(struct kvfi_receive *job, struct kvfi_receive_writer *writer, bool is_aux, int word)
{
    int kind = word == KVFI_TRTLLM_SUCCESS        ? KVFI_WRITER_ON_DONE
               : word == KVFI_TRTLLM_WRITE_FAILED ? KVFI_WRITER_ON_FAILED
               : word == KVFI_TRTLLM_IN_DOUBT     ? KVFI_WRITER_ON_DOUBT
                                                  : KVFI_WRITER_ON_QUIESCED;
    enum kvf_status status = word == KVFI_TRTLLM_SUCCESS ? KVF_OK
                             : word == KVFI_TRTLLM_IN_DOUBT ? KVF_ERR_IN_DOUBT : KVF_ERR_REFUSED;

    if (kind == KVFI_WRITER_ON_QUIESCED && (is_aux ? &writer->aux : &writer->kv)->state != KVFI_WRITER_IN_DOUBT)
        kind = KVFI_WRITER_ON_FAILED; /* no doubt was told: then it is a failure like any other */
    if ((word == KVFI_TRTLLM_SUCCESS || word == KVFI_TRTLLM_IN_DOUBT) && !check_group(job, writer))
        return;
    kvfi_receive_writer_feed(job, writer, is_aux, kind, status);
}

/* A piece before the last: that it was written contradicts a last word that was said before. */
static void on_piece(struct kvfi_receive *job, const struct kvfi_receive_writer *writer)
{
    if (check_group(job, writer) && kvfi_writer_quiet(&writer->kv) && writer->kv.said != KVFI_WRITER_NOTHING)
        kvfi_receive_quarantine(job, "request %" PRId64 ": context rank %" PRId64 " wrote a piece after its last word",
                                job->rid, writer->rank);
}

static void on_result(kvf_trtllm_worker *worker, const struct kvfi_trtllm_result *result)
{
    struct kvfi_receive *job = kvfi_receive_find(worker, result->rid);
    struct kvfi_receive_writer *writer;

    if (job == NULL) {
        worker->stats.results_dropped++;
        return;
    }
    writer = reporter(job, result->ctx_rank, "a result");
    if (writer == NULL)
        return;
    if (result->slice != 0 || result->is_bounced) {
        kvfi_receive_quarantine(job, "request %" PRId64 ": context rank %" PRId64 " reports of %s, which was never "
                                "asked for", job->rid, writer->rank,
                                result->slice != 0 ? "another piece" : "a bounce region");
        return;
    }
    if (result->word == KVFI_TRTLLM_SUCCESS && result->transfer_bytes > 0 && !kvfi_transfer_ended(&job->life) &&
        !kvfi_add_i64(job->bytes, result->transfer_bytes, &job->bytes))
        job->bytes = INT64_MAX;
    if (result->word == KVFI_TRTLLM_SUCCESS && !result->is_last) {
        on_piece(job, writer);
        return;
    }
    if (result->word == KVFI_TRTLLM_IN_DOUBT)
        explain(job, &writer->kv, "KV transfer quiescence is unproven for request %" PRId64 ": context rank %" PRId64
                " does not know whether its write is over", job->rid, writer->rank);
    else if (result->word != KVFI_TRTLLM_SUCCESS)
        explain(job, &writer->kv, "KV transfer failed for request %" PRId64 " slice=%" PRId64 " peer_rank=%" PRId64
                " is_last_slice=%s (reported by remote agent)", job->rid, result->slice, writer->rank,
                result->is_last ? "True" : "False");
    on_word(job, writer, false, result->word);
}

static void on_aux(kvf_trtllm_worker *worker, const struct kvfi_trtllm_aux_result *result)
{
    struct kvfi_receive *job = kvfi_receive_find(worker, result->rid);
    struct kvfi_receive_writer *writer;

    if (job == NULL) {
        worker->stats.results_dropped++;
        return;
    }
    writer = reporter(job, result->ctx_rank, "an auxiliary result");
    if (writer == NULL)
        return;
    if (!job->needs_aux) {
        if (result->word == KVFI_TRTLLM_SUCCESS || result->word == KVFI_TRTLLM_IN_DOUBT)
            kvfi_receive_quarantine(job, "request %" PRId64 ": context rank %" PRId64
                                    " wrote auxiliary data, which was never asked for", job->rid, writer->rank);
        return;
    }
    if (result->word != KVFI_TRTLLM_SUCCESS)
        explain(job, &writer->aux, "Session %" PRId64 " aux transfer failed: context rank %" PRId64 " reports %s",
                job->rid, writer->rank, kvfi_trtllm_word_text(result->word));
    on_word(job, writer, true, result->word);
}

static void on_quiesced(kvf_trtllm_worker *worker, const struct kvfi_trtllm_quiesced *quiesced)
{
    struct kvfi_receive *job = kvfi_receive_find(worker, quiesced->rid);
    struct kvfi_receive_writer *writer;

    worker->stats.quiesced_received++;
    if (job == NULL || job->asked == 0)
        return; /* of an earlier receive of this rid: nobody was asked for this one yet */
    writer = reporter(job, quiesced->ctx_rank, "an acknowledgement");
    if (writer == NULL)
        return;
    kvfi_receive_writer_feed(job, writer, false, KVFI_WRITER_ON_NEVER, KVF_OK);
    if (job->needs_aux)
        kvfi_receive_writer_feed(job, writer, true, KVFI_WRITER_ON_NEVER, KVF_OK);
}

static void on_cancel(kvf_trtllm_worker *worker, int64_t rid)
{
    struct kvfi_receivers *all = worker->receivers;
    struct kvfi_receive *job = kvfi_receive_find(worker, rid);
    int64_t now = kvfi_now_ns();

    worker->stats.cancels_received++;
    if (job != NULL)
        kvfi_receive_cancel(job, true);
    else if (!kvfi_fence_has(&all->closed, rid, now) && !kvfi_fence_add(&all->cancelled, rid, now))
        kvfi_logf(&worker->log, KVF_LOG_WARN, "a cancel of the unknown rid %" PRId64 " is not remembered: there are %zu"
                  " already", rid, all->cancelled.count);
}

void kvfi_receivers_handle(kvf_trtllm_worker *worker, const struct kvfi_route *from, const struct kvfi_frame *frames,
                           size_t count)
{
    struct kvfi_trtllm_message message;
    struct kvf_error error;

    if (from->peer != 0) {
        if (!kvfi_contact_answer(worker, from, frames, count))
            worker->stats.malformed++; /* context ranks never answer where they are asked */
        return;
    }
    if (kvfi_worker_read(frames, count, &message, &error) != KVF_OK) {
        worker->stats.malformed++;
        kvfi_logf(&worker->log, KVF_LOG_DEBUG, "at the self endpoint: %s", error.text);
        return;
    }
    switch (message.tag) {
    case KVFI_TRTLLM_KV_AGENT_RESULT:
        worker->stats.results_received++;
        on_result(worker, &message.result);
        break;
    case KVFI_TRTLLM_AUX_AGENT_RESULT:
        worker->stats.results_received++;
        on_aux(worker, &message.aux);
        break;
    case KVFI_TRTLLM_CANCEL_SESSION:
        on_cancel(worker, message.cancel.rid);
        break;
    case KVFI_TRTLLM_SESSION_QUIESCED:
        on_quiesced(worker, &message.quiesced);
        break;
    default: /* unknown, or not for this endpoint */
        worker->stats.malformed++;
        break;
    }
}
