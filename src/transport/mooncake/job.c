/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/job.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"

/* What is under way when a job is stopped has this long to end in order. */
#define ENDING_NS (2 * KVFI_SECOND)

static void note_failure(struct kvfi_moon_job *job, uint64_t index, enum kvf_status status, const char *text)
{
    if (job->status != KVF_OK && index >= job->failed_index) return;
    job->status = status;
    job->failed_index = index;
    kvfi_fail(&job->error, status, "%s", text);
}

/* A range that is not begun again. */
static void leave(struct kvfi_moon_job *job, const struct kvfi_moon_item *item)
{
    if (!item->begun || !job->is_write) return;
    job->in_doubt++;
    if (job->ended) job->ended(job->context, item->index, KVF_MOONCAKE_IN_DOUBT);
}

void kvfi_moon_job_halt(struct kvfi_moon_job *job, enum kvf_status status, const char *text)
{
    if (status != KVF_OK) note_failure(job, UINT64_MAX, status, text);
    if (job->halted) return;
    job->halted = true;
    while (job->again_count > 0) leave(job, &job->again[--job->again_count]);
    job->ending_ns = kvfi_now_ns() + ENDING_NS;
    if (job->limit.deadline_ns < job->ending_ns) job->ending_ns = job->limit.deadline_ns;
}

void kvfi_moon_job_look(struct kvfi_moon_job *job, int64_t now_ns)
{
    char text[KVF_MOONCAKE_NAME_BYTES + 64];

    if (job->limit.stop && atomic_load(job->limit.stop)) {
        kvfi_moon_job_halt(job, KVF_ERR_CANCELLED, "stopped");
    } else if (now_ns >= job->limit.deadline_ns) {
        snprintf(text, sizeof text, "peer %s: the deadline of the transfer passed", job->segment->asked);
        kvfi_moon_job_halt(job, KVF_ERR_TIMEOUT, text);
        job->ending_ns = now_ns;
    }
}

void kvfi_moon_job_failed(struct kvfi_moon_job *job, const struct kvfi_moon_item *item, bool in_doubt,
                          enum kvf_status status, const char *format, ...)
{
    char story[256], text[KVF_ERROR_TEXT_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(story, sizeof story, format, arguments);
    va_end(arguments);
    snprintf(text, sizeof text, "peer %.160s: range %" PRIu64 ": %s", job->segment->asked, item->index, story);
    note_failure(job, item->index, status, text);
    if (in_doubt) job->in_doubt++;
    if (job->ended) job->ended(job->context, item->index, in_doubt ? KVF_MOONCAKE_IN_DOUBT : KVF_MOONCAKE_FAILED);
    if (job->stop_at_failure) kvfi_moon_job_halt(job, KVF_OK, NULL);
}

void kvfi_moon_job_done(struct kvfi_moon_job *job, const struct kvfi_moon_item *item)
{
    job->done++;
    job->bytes_done += (int64_t)item->bytes;
    if (job->ended) job->ended(job->context, item->index, KVF_MOONCAKE_DONE);
}

void kvfi_moon_job_again(struct kvfi_moon_job *job, const struct kvfi_moon_item *item)
{
    if (job->halted) leave(job, item);
    else if (kvfi_array_grow((void **)&job->again, job->again_count, &job->again_capacity, sizeof *job->again))
        job->again[job->again_count++] = *item;
    else kvfi_moon_job_failed(job, item, item->begun && job->is_write, KVF_ERR_NO_MEMORY, "no memory to send it again");
}

/* ---- what comes next -------------------------------------------------------------------------------------------- */

/* True when the range is to be moved. */
static bool admit(struct kvfi_moon_job *job, const struct kvfi_moon_item *item)
{
    if (item->bytes == 0) {
        kvfi_moon_job_done(job, item);
        return false;
    }
    if (!kvfi_moon_regions_hold(&job->engine->regions, item->local, item->bytes)) {
        kvfi_moon_job_failed(job, item, false, KVF_ERR_OUT_OF_RANGE, "the %" PRIu64 " bytes at 0x%" PRIx64
                             " are not in the registered memories", item->bytes, item->local);
        return false;
    }
    if (item->bytes - 1 > UINT64_MAX - item->remote || item->bytes > INT64_MAX) {
        kvfi_moon_job_failed(job, item, false, KVF_ERR_OUT_OF_RANGE, "%" PRIu64 " bytes at 0x%" PRIx64
                             " are past the end of all addresses", item->bytes, item->remote);
        return false;
    }
    return true;
}

static bool fetch(struct kvfi_moon_job *job)
{
    struct kvf_error error = {.text = ""};
    ssize_t count = job->over ? 0 : job->next(job->context, job->fetched, KVFI_MOON_FETCHED, &error);

    if (count < 0) kvfi_moon_job_halt(job, error.status, error.text);
    job->over = count <= 0;
    job->fetched_at = 0;
    job->fetched_count = count > 0 ? (size_t)count : 0;
    for (size_t i = 0; i < job->fetched_count; i++) job->fetched[i].index = job->next_index++;
    return job->fetched_count > 0;
}

bool kvfi_moon_job_more(struct kvfi_moon_job *job)
{
    while (!job->halted) {
        if (job->again_count > 0 || job->admitted) return true;
        if (job->fetched_at == job->fetched_count && !fetch(job)) return false;
        job->admitted = admit(job, &job->fetched[job->fetched_at]);
        if (!job->admitted) job->fetched_at++;
    }
    return false;
}

struct kvfi_moon_item kvfi_moon_job_take(struct kvfi_moon_job *job)
{
    if (job->again_count > 0) return job->again[--job->again_count];
    job->admitted = false;
    return job->fetched[job->fetched_at++];
}

enum kvf_status kvfi_moon_run(struct kvfi_moon_job *job)
{
    uint64_t operation = kvfi_moon_regions_begin(&job->engine->regions);
    char text[KVF_MOONCAKE_NAME_BYTES + 160];
    bool is_tcp, is_v2;

    job->failed_index = UINT64_MAX;
    pthread_mutex_lock(&job->engine->lock);
    is_tcp = job->segment->descriptor.is_tcp;
    is_v2 = job->segment->descriptor.version >= 2 && job->engine->options.max_version >= 2;
    snprintf(text, sizeof text, "peer %s: its protocol is \"%s\", expected \"tcp\"", job->segment->asked,
             job->segment->descriptor.protocol);
    pthread_mutex_unlock(&job->engine->lock);
    if (operation == 0) kvfi_moon_job_halt(job, KVF_ERR_NO_MEMORY, "out of memory: a transfer");
    else if (!is_tcp) kvfi_moon_job_halt(job, KVF_ERR_NOT_SUPPORTED, text);
    else if (is_v2) kvfi_moon_run_v2(job);
    else kvfi_moon_run_v1(job);
    free(job->again);
    job->again = NULL;
    if (operation != 0) kvfi_moon_regions_end(&job->engine->regions, operation);
    return job->status;
}
