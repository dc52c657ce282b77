/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers that go on while their callers do other things. */
#include "transport/mooncake/batches.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "sys/clock.h"
#include "transport/mooncake/json.h"
#include "transport/mooncake/listed.h"

struct kvf_mooncake_batch {
    struct kvfi_crew_item item;        /* first */
    kvf_mooncake *engine;
    struct kvfi_moon_segment *segment; /* until it has ended */
    struct kvfi_moon_listed listed;
    struct kvf_mooncake_range *ranges; /* of `listed` */
    char *notify;                      /* what is sent at the end; NULL: nothing */
    size_t notify_bytes;
    int64_t deadline_ns;
    pthread_cond_t changed;            /* it has ended */
    int event_fd;                      /* -1: nobody asked for it yet */
    atomic_bool has_ended;             /* what follows, and all of `listed`, stays as it is */
    enum kvf_status status;
    struct kvf_error error;
};

static kvf_mooncake_batch *of(struct kvfi_crew_item *item)
{
    return (kvf_mooncake_batch *)item;
}

/* ---- ends, with the lock held ------------------------------------------------------------------------------------ */

/* Whoever waits may free it as soon as the lock is given up. */
static void settle(kvf_mooncake_batch *batch)
{
    kvfi_moon_release_segment(batch->engine, batch->segment);
    batch->segment = NULL;
    atomic_store_explicit(&batch->has_ended, true, memory_order_release);
    if (batch->event_fd >= 0) eventfd_write(batch->event_fd, 1);
    pthread_cond_broadcast(&batch->changed);
}

static void ended(void *owner, struct kvfi_crew_item *item)
{
    (void)owner;
    settle(of(item));
}

static void end_with(kvf_mooncake_batch *batch, enum kvf_status status, const char *what)
{
    char text[KVF_MOONCAKE_NAME_BYTES + 96];

    snprintf(text, sizeof text, "peer %s: %s", batch->segment->asked, what);
    batch->status = kvfi_moon_end_listed(&batch->listed, status, text, &batch->error);
}

static void expired(void *owner, struct kvfi_crew_item *item)
{
    (void)owner;
    end_with(of(item), KVF_ERR_TIMEOUT, "the deadline of the batch passed before it began");
    settle(of(item));
}

/* ---- by a thread of the crew ------------------------------------------------------------------------------------- */

static void run(void *owner, struct kvfi_crew_item *item)
{
    kvf_mooncake_batch *batch = of(item);
    const struct kvfi_moon_limit limit = {.deadline_ns = batch->deadline_ns, .stop = &item->stop,
                                          .wake_fd = item->wake_fd};

    (void)owner;
    batch->status = kvfi_moon_move_listed(batch->engine, batch->segment, &batch->listed, &limit, &batch->error);
    if (batch->status == KVF_OK && batch->notify)
        batch->status = kvfi_moon_send_notify(batch->engine, batch->segment, batch->notify, batch->notify_bytes,
                                              &limit, &batch->error);
    /* Some of what was stopped fails in ways of its own. */
    if (batch->status != KVF_OK && atomic_load(&item->stop))
        end_with(batch, KVF_ERR_CANCELLED, "the batch was cancelled");
}

static const struct kvfi_crew_rules RULES = {.max_threads = KVFI_MOON_BATCH_THREADS,
                                             .lane_items = KVFI_MOON_PEER_BATCHES, .run = run, .ended = ended,
                                             .expired = expired};

void kvfi_moon_batches_init(struct kvfi_moon_batches *batches)
{
    pthread_mutex_init(&batches->lock, NULL);
    kvfi_crew_init(&batches->crew, &RULES, &batches->lock, batches);
}

void kvfi_moon_batches_fini(struct kvfi_moon_batches *batches)
{
    kvfi_crew_fini(&batches->crew);
    pthread_mutex_destroy(&batches->lock);
}

/* ---- making one -------------------------------------------------------------------------------------------------- */

static void set_defaults(struct kvf_mooncake_batch_spec *spec)
{
    *spec = (struct kvf_mooncake_batch_spec){.struct_size = sizeof *spec, .operation = KVF_MOONCAKE_WRITE,
                                             .timeout_ns = 60 * KVFI_SECOND};
}

void kvf_mooncake_batch_spec_init(struct kvf_mooncake_batch_spec *spec, size_t size)
{
    struct kvf_mooncake_batch_spec defaults;

    set_defaults(&defaults);
    kvfi_struct_init(spec, size, &defaults, sizeof defaults);
}

static enum kvf_status check_spec(const struct kvf_mooncake_batch_spec *spec, struct kvf_error *error)
{
    if (spec->operation != KVF_MOONCAKE_WRITE && spec->operation != KVF_MOONCAKE_READ)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "operation is %d, expected %d or %d", (int)spec->operation,
                         (int)KVF_MOONCAKE_WRITE, (int)KVF_MOONCAKE_READ);
    if (spec->timeout_ns <= 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "timeout_ns is %" PRId64 ", expected more than 0",
                         spec->timeout_ns);
    if (!spec->ranges && spec->range_count > 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "ranges is NULL, expected %zu of them", spec->range_count);
    if (!spec->notify_name != !spec->notify_message)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "notify_%s is NULL, expected both or none",
                         spec->notify_name ? "message" : "name");
    if (spec->notify_name && !(kvfi_moon_is_utf8(spec->notify_name) && kvfi_moon_is_utf8(spec->notify_message)))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "a notify of texts that are not UTF-8");
    return kvfi_moon_check_flags(spec->flags, error);
}

static void free_batch(kvf_mooncake_batch *batch)
{
    if (batch->event_fd >= 0) close(batch->event_fd);
    pthread_cond_destroy(&batch->changed);
    kvfi_moon_release_segment(batch->engine, batch->segment);
    free(batch->notify);
    free(batch->listed.outcomes);
    free(batch->ranges);
    free(batch);
}

static void make_condition(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static enum kvf_status make_batch(kvf_mooncake *engine, const struct kvf_mooncake_batch_spec *spec,
                                  kvf_mooncake_batch **out, struct kvf_error *error)
{
    kvf_mooncake_batch *batch = kvfi_alloc_zeroed(1, sizeof *batch);
    enum kvf_status status = KVF_OK;

    if (!batch) return kvfi_fail_memory(error, "a batch");
    batch->engine = engine;
    batch->event_fd = -1;
    make_condition(&batch->changed);
    batch->deadline_ns = batch->item.deadline_ns = kvfi_deadline_after(spec->timeout_ns);
    batch->segment = kvfi_moon_acquire_segment(engine, spec->segment, error);
    if (!batch->segment) {
        status = KVF_ERR_NOT_FOUND;
        goto done;
    }
    batch->ranges = kvfi_alloc_array(spec->range_count, sizeof *batch->ranges);
    batch->listed.outcomes = kvfi_alloc_zeroed(spec->range_count, 1);
    if (spec->range_count > 0 && !(batch->ranges && batch->listed.outcomes)) {
        status = kvfi_fail_memory(error, "the ranges of a batch");
        goto done;
    }
    if (spec->range_count > 0) memcpy(batch->ranges, spec->ranges, spec->range_count * sizeof *batch->ranges);
    batch->listed.is_write = spec->operation == KVF_MOONCAKE_WRITE;
    batch->listed.flags = spec->flags;
    batch->listed.ranges = batch->ranges;
    batch->listed.count = spec->range_count;
    if (spec->notify_name)
        status = kvfi_moon_notify_print(spec->notify_name, spec->notify_message, &batch->notify, &batch->notify_bytes,
                                        error);
done:
    if (status == KVF_OK) *out = batch;
    else free_batch(batch);
    return status;
}

enum kvf_status kvf_mooncake_submit(kvf_mooncake *engine, const struct kvf_mooncake_batch_spec *given,
                                    kvf_mooncake_batch **out, struct kvf_error *error)
{
    struct kvfi_moon_batches *batches = &engine->batches;
    struct kvf_mooncake_batch_spec spec;
    kvf_mooncake_batch *batch = NULL;
    enum kvf_status status;
    int failure;

    set_defaults(&spec);
    status = kvfi_options_copy(&spec, sizeof spec, given, "kvf_mooncake_batch_spec", error);
    if (status == KVF_OK) status = check_spec(&spec, error);
    if (status == KVF_OK) status = make_batch(engine, &spec, &batch, error);
    if (status != KVF_OK) return status;
    pthread_mutex_lock(&batches->lock);
    failure = kvfi_crew_push(&batches->crew, &batch->segment->batches, &batch->item);
    pthread_mutex_unlock(&batches->lock);
    if (failure == 0) {
        *out = batch;
        return KVF_OK;
    }
    free_batch(batch);
    return failure == ENOMEM ? kvfi_fail_memory(error, "a thread for batches")
                             : kvfi_fail(error, KVF_ERR_SYSTEM, "mooncake: cannot start a thread for batches: %s",
                                         strerror(failure));
}

/* ---- looking at one ---------------------------------------------------------------------------------------------- */

static bool has_ended(const kvf_mooncake_batch *batch)
{
    return atomic_load_explicit(&batch->has_ended, memory_order_acquire);
}

enum kvf_status kvf_mooncake_batch_get_progress(kvf_mooncake_batch *batch, struct kvf_mooncake_progress *out,
                                                struct kvf_error *error)
{
    struct kvf_mooncake_progress now = {.struct_size = out->struct_size};

    if (now.struct_size < sizeof now.struct_size || now.struct_size > sizeof now)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "struct_size is %zu, expected at most %zu", now.struct_size,
                         sizeof now);
    now.ended = has_ended(batch);
    now.status = now.ended ? batch->status : KVF_ERR_AGAIN;
    now.range_count = (int64_t)batch->listed.count;
    now.done = atomic_load_explicit(&batch->listed.done, memory_order_relaxed);
    now.failed = atomic_load_explicit(&batch->listed.failed, memory_order_relaxed);
    now.in_doubt = atomic_load_explicit(&batch->listed.in_doubt, memory_order_relaxed);
    now.done_bytes = atomic_load_explicit(&batch->listed.done_bytes, memory_order_relaxed);
    memcpy(out, &now, now.struct_size);
    return KVF_OK;
}

/* Waits until it has ended, or the deadline. */
static void await_end(kvf_mooncake_batch *batch, int64_t deadline_ns)
{
    const struct timespec until = {.tv_sec = deadline_ns / KVFI_SECOND, .tv_nsec = deadline_ns % KVFI_SECOND};
    int failure = 0;

    pthread_mutex_lock(&batch->engine->batches.lock);
    while (!has_ended(batch) && failure == 0)
        failure = pthread_cond_timedwait(&batch->changed, &batch->engine->batches.lock, &until);
    pthread_mutex_unlock(&batch->engine->batches.lock);
}

enum kvf_status kvf_mooncake_batch_wait(kvf_mooncake_batch *batch, int64_t timeout_ns, uint8_t *outcomes,
                                        struct kvf_error *error)
{
    if (timeout_ns > 0 && !has_ended(batch)) await_end(batch, kvfi_deadline_after(timeout_ns));
    if (!has_ended(batch)) return kvfi_fail(error, KVF_ERR_AGAIN, "the batch has not ended");
    if (outcomes && batch->listed.count > 0) memcpy(outcomes, batch->listed.outcomes, batch->listed.count);
    if (batch->status != KVF_OK && error) *error = batch->error;
    return batch->status;
}

int kvf_mooncake_batch_event_fd(kvf_mooncake_batch *batch)
{
    int fd;

    pthread_mutex_lock(&batch->engine->batches.lock);
    if (batch->event_fd < 0) batch->event_fd = eventfd(has_ended(batch), EFD_CLOEXEC | EFD_NONBLOCK);
    fd = batch->event_fd;
    pthread_mutex_unlock(&batch->engine->batches.lock);
    return fd;
}

/* ---- ending one -------------------------------------------------------------------------------------------------- */

void kvf_mooncake_batch_cancel(kvf_mooncake_batch *batch)
{
    struct kvfi_moon_batches *batches = &batch->engine->batches;

    pthread_mutex_lock(&batches->lock);
    if (batch->item.state == KVFI_CREW_QUEUED) {
        kvfi_crew_drop(&batches->crew, &batch->item);
        end_with(batch, KVF_ERR_CANCELLED, "the batch was cancelled before it began");
        settle(batch);
    } else if (batch->item.state == KVFI_CREW_RUNNING) {
        kvfi_crew_stop(&batch->item);
    }
    pthread_mutex_unlock(&batches->lock);
}

void kvf_mooncake_batch_free(kvf_mooncake_batch *batch)
{
    if (!batch) return;
    if (!has_ended(batch)) kvf_mooncake_batch_cancel(batch);
    await_end(batch, INT64_MAX);
    free_batch(batch);
}
