/* SPDX-License-Identifier: Apache-2.0 */
/* Whom a receive asks, and the asking. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "trtllm_worker/receive.h"

/* ---- the writers: of one DP group, or of each when nobody knows which one runs the prefill -------------------- */

static enum kvf_status add_group(struct kvfi_receive *job, const kvf_trtllm_rank *context, int64_t dp_rank,
                                 int64_t *ranks, size_t capacity, struct kvf_error *error)
{
    struct kvf_trtllm_overlap overlap;
    enum kvf_status status = kvf_trtllm_registrar_overlap(job->worker->registrar, context, dp_rank, &overlap, ranks,
                                                          capacity, error);

    if (status != KVF_OK)
        return status;
    if (overlap.rank_count > capacity)
        return kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "DP group %" PRId64 " has %zu ranks, its instance %zu", dp_rank,
                         overlap.rank_count, capacity);
    for (size_t i = 0; i < overlap.rank_count; i++) {
        if (ranks[i] < 0 || (uint64_t)ranks[i] >= capacity)
            return kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "DP group %" PRId64 " has rank %" PRId64
                             ", its instance %zu ranks", dp_rank, ranks[i], capacity);
        if (job->writer_count == capacity || kvfi_receive_writer(job, ranks[i]) != NULL)
            continue;
        job->writers[job->writer_count++] = (struct kvfi_receive_writer){.rank = ranks[i],
                                                                         .group = job->group_count};
    }
    if (job->group_count == 0)
        job->expected = (int64_t)overlap.rank_count;
    else if (job->expected != (int64_t)overlap.rank_count)
        return kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "DP group %" PRId64 " has %zu writers, others have %" PRId64,
                         dp_rank, overlap.rank_count, job->expected);
    job->group_count++;
    return KVF_OK;
}

static enum kvf_status find_writers(struct kvfi_receive *job, const struct kvfi_instance *instance,
                                    struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(instance->rank);
    int64_t first = job->ctx_dp_rank, end = first + 1;
    int64_t *ranks = kvfi_alloc_zeroed(instance->count, sizeof *ranks);
    enum kvf_status status = KVF_OK;

    job->writers = kvfi_alloc_zeroed(instance->count, sizeof *job->writers);
    if (job->ctx_dp_rank == KVF_TRTLLM_NONE) {
        first = 0;
        end = spec->dp_size;
    }
    if (ranks == NULL || job->writers == NULL)
        status = kvfi_fail_memory(error, "the writers of a request");
    else if (first >= spec->dp_size)
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "request %" PRId64 ": ctx_dp_rank is %" PRId64
                           ", instance \"%s\" has %" PRId64 " DP groups", job->rid, first, spec->instance_name,
                           spec->dp_size);
    for (int64_t dp = first; status == KVF_OK && dp < end; dp++)
        status = add_group(job, instance->rank, dp, ranks, instance->count, error);
    free(ranks);
    return status;
}

/* ---- asking ------------------------------------------------------------------------------------------------- */

static void begin(struct kvfi_receive *job, struct kvfi_receive_writer *writer, bool is_aux)
{
    struct kvfi_writer *life = is_aux ? &writer->aux : &writer->kv;
    struct kvfi_life_event ask = {.kind = KVFI_WRITER_ON_ASK};
    struct kvfi_life_event started = {.kind = KVFI_WRITER_ON_STARTED, .value = KVFI_WRITER_REMOTE};
    struct kvfi_actions actions;

    kvfi_receive_block(job, KVFI_BLOCK_ON_ACCESS_BEGIN);
    kvfi_writer_step(life, &ask, &actions);
    /* there is no such message here: from now on it may write */
    kvfi_writer_step(life, &started, &actions);
}

/* A message leaves whole or not at all, and no answer is looked at before this returns: so it counts as asked when it
 * has left. */
static enum kvf_status ask(struct kvfi_receive *job, struct kvfi_receive_writer *writer, struct kvf_error *error)
{
    struct kvfi_trtllm_packed message;
    enum kvf_status status;

    kvfi_trtllm_pack_payload(&message, KVFI_TRTLLM_REQUEST_DATA, job->payload, job->payload_bytes);
    status = kvfi_worker_send(&job->worker->receiver, &job->instance->routes[writer->rank], &message, error);
    if (status != KVF_OK)
        return status;
    job->worker->stats.requests_sent++;
    job->asked++;
    writer->asked = true;
    begin(job, writer, false);
    if (job->needs_aux)
        begin(job, writer, true);
    return KVF_OK;
}

void kvfi_receive_ask(struct kvfi_receive *job)
{
    struct kvf_error error;

    for (size_t i = 0; i < job->writer_count && !kvfi_transfer_ended(&job->life); i++) {
        enum kvf_status status = ask(job, &job->writers[i], &error);
        if (status != KVF_OK)
            kvfi_receive_fail(job, &job->writers[i], status, "request %" PRId64 ": context rank %" PRId64
                              " could not be asked, after %" PRId64 " of %zu: %s", job->rid, job->writers[i].rank,
                              job->asked, job->writer_count, error.text);
    }
    free(job->payload);
    job->payload = NULL;
}

void kvfi_receive_publish(struct kvfi_receive *job, struct kvfi_instance *instance)
{
    struct kvf_error error;
    enum kvf_status status;

    kvfi_receive_unlink(job);
    job->instance = instance;
    kvfi_receive_link(&instance->active, job);
    status = find_writers(job, instance, &error);
    if (status != KVF_OK)
        kvfi_receive_fail(job, NULL, status, "%s", error.text);
    else
        kvfi_receive_feed(job, KVFI_TRANSFER_ON_JOINED, KVF_OK, job->expected * (job->needs_aux ? 2 : 1));
}

void kvfi_receive_notify(struct kvfi_receive *job, struct kvfi_receive_writer *writer)
{
    const struct kvf_trtllm_rank_spec *self = kvf_trtllm_rank_get_spec(job->worker->self);
    struct kvfi_trtllm_cancel cancel = {.rid = job->rid, .has_requester = true, .instance_name = self->instance_name,
                                        .name_bytes = strlen(self->instance_name),
                                        .instance_rank = self->instance_rank};
    struct kvfi_trtllm_packed message;
    struct kvf_error error;

    if (!writer->asked || writer->notified)
        return;
    kvfi_trtllm_pack_cancel(&message, &cancel);
    if (kvfi_worker_send(&job->worker->receiver, &job->instance->routes[writer->rank], &message, &error) == KVF_OK) {
        writer->notified = true;
        job->worker->stats.cancels_sent++;
    } else {
        kvfi_logf(&job->worker->log, KVF_LOG_DEBUG, "request %" PRId64 ": context rank %" PRId64
                  " is not told of the end yet: %s", job->rid, writer->rank, error.text);
    }
}
