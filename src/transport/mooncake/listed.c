/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/listed.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"

enum kvf_status kvfi_moon_check_flags(uint64_t flags, struct kvf_error *error)
{
    if ((flags & ~(uint64_t)KVF_MOONCAKE_STOP_AT_FAILURE) == 0) return KVF_OK;
    return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "flags 0x%" PRIx64 " are not known", flags);
}

static ssize_t next_listed(void *context, struct kvfi_moon_item *out, size_t capacity, struct kvf_error *error)
{
    struct kvfi_moon_listed *listed = context;
    size_t given = 0;

    (void)error;
    for (; given < capacity && listed->at < listed->count; listed->at++) {
        const struct kvf_mooncake_range *range = &listed->ranges[listed->at];

        out[given++] = (struct kvfi_moon_item){.local = range->local, .remote = range->remote, .bytes = range->bytes};
    }
    return (ssize_t)given;
}

/* One thread alone adds. */
static void add(_Atomic int64_t *number, int64_t more)
{
    atomic_store_explicit(number, atomic_load_explicit(number, memory_order_relaxed) + more, memory_order_relaxed);
}

static void note_outcome(void *context, uint64_t index, enum kvf_mooncake_outcome outcome)
{
    struct kvfi_moon_listed *listed = context;

    if (listed->outcomes) listed->outcomes[index] = (uint8_t)outcome;
    add(outcome == KVF_MOONCAKE_DONE ? &listed->done
        : outcome == KVF_MOONCAKE_IN_DOUBT ? &listed->in_doubt : &listed->failed, 1);
    if (outcome == KVF_MOONCAKE_DONE) add(&listed->done_bytes, (int64_t)listed->ranges[index].bytes);
}

enum kvf_status kvfi_moon_end_listed(struct kvfi_moon_listed *listed, enum kvf_status status, const char *text,
                                     struct kvf_error *error)
{
    int64_t done = atomic_load_explicit(&listed->done, memory_order_relaxed);
    int64_t in_doubt = atomic_load_explicit(&listed->in_doubt, memory_order_relaxed);
    int64_t failed = (int64_t)listed->count - done - in_doubt;

    atomic_store_explicit(&listed->failed, failed, memory_order_relaxed);
    return kvfi_fail(error, status, "%.380s (of %zu ranges: %" PRId64 " done, %" PRId64 " failed, %" PRId64
                     " in doubt)", text, listed->count, done, failed, in_doubt);
}

enum kvf_status kvfi_moon_move_listed(kvf_mooncake *engine, struct kvfi_moon_segment *segment,
                                      struct kvfi_moon_listed *listed, const struct kvfi_moon_limit *limit,
                                      struct kvf_error *error)
{
    struct kvfi_moon_job *job = kvfi_alloc_zeroed(1, sizeof *job);
    enum kvf_status status;

    if (!job) return kvfi_moon_end_listed(listed, KVF_ERR_NO_MEMORY, "out of memory for a transfer", error);
    job->engine = engine;
    job->segment = segment;
    job->is_write = listed->is_write;
    job->stop_at_failure = (listed->flags & KVF_MOONCAKE_STOP_AT_FAILURE) != 0;
    job->limit = *limit;
    job->next = next_listed;
    job->ended = note_outcome;
    job->context = listed;
    status = kvfi_moon_run(job);
    if (status != KVF_OK) kvfi_moon_end_listed(listed, status, job->error.text, error);
    free(job);
    return status;
}
