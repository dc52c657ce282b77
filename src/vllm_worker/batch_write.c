/* SPDX-License-Identifier: Apache-2.0 */
/* One batch over the Mooncake transfer engine. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "transport/mooncake/job.h"
#include "vllm_worker/batch.h"

/* ---- where it may go ----------------------------------------------------------------------------------------- */

/* Copies what the peer publishes. NULL with a count of 0: nothing, so nothing can be checked. */
static enum kvf_status copy_buffers(kvf_mooncake *engine, const struct kvfi_moon_segment *segment,
                                    struct kvf_vllm_storage **out, size_t *count, struct kvf_error *error)
{
    const struct kvfi_moon_descriptor *descriptor = &segment->descriptor;
    struct kvf_vllm_storage *list = NULL;

    pthread_mutex_lock(&engine->lock);
    *count = descriptor->buffer_count;
    if (*count > 0)
        list = kvfi_alloc_array(*count, sizeof *list);
    for (size_t i = 0; list != NULL && i < *count; i++)
        list[i] = (struct kvf_vllm_storage){
            descriptor->buffers[i].address,
            descriptor->buffers[i].bytes > INT64_MAX ? INT64_MAX : (int64_t)descriptor->buffers[i].bytes};
    pthread_mutex_unlock(&engine->lock);
    *out = list;
    return *count > 0 && list == NULL ? kvfi_fail_memory(error, "the peer's buffers") : KVF_OK;
}

static enum kvf_status check_once(kvf_mooncake *engine, const struct kvfi_moon_segment *segment,
                                  const struct kvfi_vllm_batch *batch, struct kvf_error *error)
{
    struct kvf_vllm_storage *list;
    size_t count;
    struct kvf_error own;
    enum kvf_status status = copy_buffers(engine, segment, &list, &count, error);

    if (status != KVF_OK)
        return status;
    for (size_t i = 0; status == KVF_OK && count > 0 && i < batch->write_count; i++)
        if (batch->writes[i] != NULL)
            status = kvf_vllm_write_check(batch->writes[i], 1, list, count, &own);
    free(list);
    if (status != KVF_OK)
        kvfi_fail(error, status, "peer %s: not in the memory that it publishes: %s", batch->session, own.text);
    return status;
}

/* What was fetched may be of before the peer registered anew. */
static enum kvf_status check_destination(kvf_mooncake *engine, struct kvfi_moon_segment *segment,
                                         const struct kvfi_moon_limit *limit, const struct kvfi_vllm_batch *batch,
                                         struct kvf_error *error)
{
    enum kvf_status status = check_once(engine, segment, batch, error);

    if (status != KVF_ERR_OUT_OF_RANGE)
        return status;
    status = kvfi_moon_refresh(engine, segment, limit, error);
    return status == KVF_OK ? check_once(engine, segment, batch, error) : status;
}

/* ---- what goes ----------------------------------------------------------------------------------------------- */

struct source {
    const struct kvfi_vllm_batch *batch;
    size_t at;
};

static ssize_t next_ranges(void *context, struct kvfi_moon_item *out, size_t capacity, struct kvf_error *error)
{
    struct source *source = context;
    struct kvf_vllm_descriptor list[KVFI_MOON_FETCHED];
    size_t count = 0;

    (void)error;
    if (capacity > KVFI_MOON_FETCHED)
        capacity = KVFI_MOON_FETCHED;
    while (count == 0 && source->at < source->batch->write_count) {
        kvf_vllm_write *write = source->batch->writes[source->at];

        if (write != NULL)
            count = kvf_vllm_write_next(write, list, capacity);
        if (count == 0)
            source->at++;
    }
    for (size_t i = 0; i < count; i++)
        out[i] = (struct kvfi_moon_item){.local = list[i].src_address, .remote = list[i].dst_address,
                                         .bytes = (uint64_t)list[i].bytes};
    return (ssize_t)count;
}

static enum kvf_status move(kvf_mooncake *engine, struct kvfi_moon_segment *segment,
                            const struct kvfi_moon_limit *limit, const struct kvfi_vllm_batch *batch,
                            struct kvf_error *error)
{
    struct source source = {batch, 0};
    struct kvfi_moon_job *job = kvfi_alloc_zeroed(1, sizeof *job);
    enum kvf_status status;

    if (job == NULL)
        return kvfi_fail_memory(error, "a transfer");
    job->engine = engine;
    job->segment = segment;
    job->is_write = job->stop_at_failure = true;
    job->limit = *limit;
    job->next = next_ranges;
    job->context = &source;
    status = kvfi_moon_run(job);
    if (status != KVF_OK)
        *error = job->error;
    else if (job->bytes_done != batch->bytes || job->done != batch->descriptors)
        status = kvfi_fail(error, KVF_ERR_INTERNAL, "peer %s: %" PRId64 " bytes in %" PRId64 " descriptors were written"
                           ", expected %" PRId64 " in %" PRId64, batch->session, job->bytes_done, job->done,
                           batch->bytes, batch->descriptors);
    free(job);
    return status;
}

int kvfi_vllm_engine_write(void *engine, struct kvfi_vllm_batch *batch, struct kvf_error *reason)
{
    const struct kvfi_moon_limit limit = {.deadline_ns = kvfi_deadline_after(batch->timeout_ns),
                                          .stop = &batch->item.stop, .wake_fd = batch->item.wake_fd};
    struct kvfi_moon_segment *segment = NULL;
    enum kvf_status status = kvfi_moon_acquire_named(engine, batch->session, &limit, &segment, reason);

    if (status == KVF_OK)
        status = check_destination(engine, segment, &limit, batch, reason);
    if (status == KVF_OK)
        status = move(engine, segment, &limit, batch, reason);
    kvfi_moon_release_segment(engine, segment);
    return status == KVF_OK ? 0 : KVFI_VLLM_WRITE_FAILED;
}
