/* SPDX-License-Identifier: Apache-2.0 */
/* Peers: who uses them, and their descriptors, fetched once, and again after a connect that failed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "transport/mooncake/engine.h"

/* Descriptors of the kept ones, all together: a peer's may be long. */
#define MAX_KEPT_BYTES (INT64_C(64) << 20)

enum kvf_status kvfi_moon_engine_ask(kvf_mooncake *engine, const struct kvfi_moon_address *address, uint8_t type,
                                     const char *text, size_t bytes, const struct kvfi_moon_limit *limit, char **reply,
                                     size_t *reply_bytes, struct kvf_error *error)
{
    const struct kvfi_moon_question question = {.resolver = engine->resolver, .host = address->host,
                                                .port = address->port, .type = type, .text = text, .bytes = bytes,
                                                .connect_timeout_ns = engine->options.connect_timeout_ns,
                                                .answer_timeout_ns = engine->options.progress_timeout_ns,
                                                .max_bytes = engine->options.max_handshake_bytes};

    return kvfi_moon_ask(&question, limit, reply, reply_bytes, error);
}

static enum kvf_status fetch(kvf_mooncake *engine, const struct kvfi_moon_segment *segment,
                             const struct kvfi_moon_limit *limit, struct kvfi_moon_descriptor *out,
                             struct kvf_error *error)
{
    char *reply = NULL;
    size_t bytes = 0;
    struct kvf_error own;
    enum kvf_status status =
        kvfi_moon_engine_ask(engine, &segment->address, KVFI_MOON_METADATA, "{}\n", 3, limit, &reply, &bytes, &own);

    memset(out, 0, sizeof *out);
    if (status == KVF_ERR_NOT_SUPPORTED) status = own.status = KVF_ERR_PEER_LOST;
    if (status == KVF_OK) status = kvfi_moon_descriptor_parse(reply, bytes, out, &own);
    for (size_t i = 0; status == KVF_OK && i < out->buffer_count; i++) {
        if (out->buffers[i].address == 0 || out->buffers[i].bytes == 0)
            status = kvfi_fail(&own, KVF_ERR_PARSE, "descriptor: buffer %zu has address or length 0", i);
    }
    free(reply);
    if (status == KVF_OK) return KVF_OK;
    kvfi_moon_descriptor_fini(out);
    return kvfi_fail(error, status, "peer %s: %s", segment->asked, own.text);
}

/* Fetches, or waits for the thread that does. The lock is held. */
static enum kvf_status fetch_locked(kvf_mooncake *engine, struct kvfi_moon_segment *segment,
                                    const struct kvfi_moon_limit *limit, struct kvf_error *error)
{
    struct kvfi_moon_descriptor descriptor;
    int64_t before = segment->fetches;
    enum kvf_status status;

    while (segment->fetching) {
        if (!kvfi_moon_pause(engine, limit))
            return kvfi_fail(error, kvfi_moon_ended(limit), "peer %s: its descriptor did not come", segment->asked);
    }
    if (segment->fetches > before) return KVF_OK;
    segment->fetching = true;
    pthread_mutex_unlock(&engine->lock);
    status = fetch(engine, segment, limit, &descriptor, error);
    pthread_mutex_lock(&engine->lock);
    segment->fetching = false;
    if (status == KVF_OK) {
        kvfi_moon_descriptor_fini(&segment->descriptor);
        segment->descriptor = descriptor;
        segment->fetches++;
        segment->run = 0;
        segment->suspect = false;
    }
    pthread_cond_broadcast(&engine->changed);
    return status;
}

enum kvf_status kvfi_moon_refresh(kvf_mooncake *engine, struct kvfi_moon_segment *segment,
                                  const struct kvfi_moon_limit *limit, struct kvf_error *error)
{
    enum kvf_status status;

    pthread_mutex_lock(&engine->lock);
    status = fetch_locked(engine, segment, limit, error);
    pthread_mutex_unlock(&engine->lock);
    return status;
}

/* ---- which there are, with the lock held ------------------------------------------------------------------------- */

static int64_t bytes_of(const struct kvfi_moon_segment *segment)
{
    return (int64_t)(sizeof *segment + segment->descriptor.buffer_count * sizeof *segment->descriptor.buffers);
}

/* NULL: no memory. */
static struct kvfi_moon_segment *add_segment(struct kvfi_moon_segments *all, const char *name,
                                             const struct kvfi_moon_address *address)
{
    struct kvfi_moon_segment *segment = kvfi_alloc_zeroed(1, sizeof *segment);

    if (!segment) return NULL;
    snprintf(segment->asked, sizeof segment->asked, "%s", name);
    segment->address = *address;
    segment->number = ++all->last_number;
    kvfi_table_insert(&all->by_name, &segment->by_name, segment->asked, strlen(segment->asked));
    kvfi_table_insert(&all->by_number, &segment->by_number, &segment->number, sizeof segment->number);
    segment->next = all->first;
    if (all->first) all->first->previous = segment;
    all->first = segment;
    all->count++;
    return segment;
}

/* Nobody finds it any more. */
static void hide_segment(struct kvfi_moon_segments *all, struct kvfi_moon_segment *segment)
{
    kvfi_table_remove(&all->by_name, &segment->by_name);
    kvfi_table_remove(&all->by_number, &segment->by_number);
}

static void free_segment(struct kvfi_moon_segments *all, struct kvfi_moon_segment *segment)
{
    hide_segment(all, segment);
    *(segment->previous ? &segment->previous->next : &all->first) = segment->next;
    if (segment->next) segment->next->previous = segment->previous;
    if (all->reaped == segment) all->reaped = segment->previous;
    all->count--;
    while (segment->idle) {
        struct kvfi_moon_lane *lane = segment->idle;

        segment->idle = lane->next;
        kvfi_moon_lane_free(lane);
    }
    kvfi_moon_descriptor_fini(&segment->descriptor);
    free(segment);
}

static bool is_unused(const struct kvfi_moon_segment *segment)
{
    return segment->uses == 0 && segment->opens == 0;
}

static void unkeep(struct kvfi_moon_segments *all, struct kvfi_moon_segment *segment)
{
    *(segment->previous_kept ? &segment->previous_kept->next_kept : &all->first_kept) = segment->next_kept;
    *(segment->next_kept ? &segment->next_kept->previous_kept : &all->last_kept) = segment->previous_kept;
    segment->next_kept = segment->previous_kept = NULL;
    all->kept_count--;
    all->kept_bytes -= bytes_of(segment);
}

static void keep(struct kvfi_moon_segments *all, struct kvfi_moon_segment *segment)
{
    segment->previous_kept = all->last_kept;
    *(all->last_kept ? &all->last_kept->next_kept : &all->first_kept) = segment;
    all->last_kept = segment;
    all->kept_count++;
    all->kept_bytes += bytes_of(segment);
    while (all->kept_count > KVFI_MOON_KEPT || all->kept_bytes > MAX_KEPT_BYTES) {
        struct kvfi_moon_segment *eldest = all->first_kept;

        unkeep(all, eldest);
        free_segment(all, eldest);
    }
}

/* One that is hidden, or never got its descriptor, is of no use to anybody later. */
static void release(struct kvfi_moon_segments *all, struct kvfi_moon_segment *segment)
{
    segment->uses--;
    if (!is_unused(segment)) return;
    if (segment->by_name.linked && segment->fetches > 0) keep(all, segment);
    else free_segment(all, segment);
}

static struct kvfi_moon_segment *numbered(struct kvfi_moon_segments *all, int64_t number)
{
    struct kvfi_link *link = kvfi_table_find(&all->by_number, &number, sizeof number);
    struct kvfi_moon_segment *segment = link ? KVFI_HOLDER(link, struct kvfi_moon_segment, by_number) : NULL;

    return segment && segment->opens > 0 ? segment : NULL;
}

/* The segment of that name, used once more; made when there is none. */
static enum kvf_status use_named(struct kvfi_moon_segments *all, const char *name,
                                 const struct kvfi_moon_address *address, struct kvfi_moon_segment **out,
                                 struct kvf_error *error)
{
    struct kvfi_link *link = kvfi_table_find(&all->by_name, name, strlen(name));
    struct kvfi_moon_segment *segment = link ? KVFI_HOLDER(link, struct kvfi_moon_segment, by_name) : NULL;

    if (segment && is_unused(segment)) unkeep(all, segment);
    if (!segment && all->count - all->kept_count >= KVFI_MOON_MAX_SEGMENTS)
        return kvfi_fail(error, KVF_ERR_LIMIT, "segment \"%s\": %d others are open", name, KVFI_MOON_MAX_SEGMENTS);
    if (!segment) segment = add_segment(all, name, address);
    if (!segment) return kvfi_fail_memory(error, "a segment");
    segment->uses++;
    *out = segment;
    return KVF_OK;
}

/* ---- uses and opens ---------------------------------------------------------------------------------------------- */

static enum kvf_status not_open(int64_t number, struct kvf_error *error)
{
    return kvfi_fail(error, KVF_ERR_NOT_FOUND, "segment %lld is not open", (long long)number);
}

struct kvfi_moon_segment *kvfi_moon_acquire_segment(kvf_mooncake *engine, int64_t number, struct kvf_error *error)
{
    struct kvfi_moon_segment *segment;

    pthread_mutex_lock(&engine->lock);
    segment = numbered(&engine->segments, number);
    if (segment) segment->uses++;
    pthread_mutex_unlock(&engine->lock);
    if (!segment) not_open(number, error);
    return segment;
}

enum kvf_status kvfi_moon_acquire_named(kvf_mooncake *engine, const char *name, const struct kvfi_moon_limit *limit,
                                        struct kvfi_moon_segment **out, struct kvf_error *error)
{
    struct kvfi_moon_address address;
    struct kvfi_moon_segment *segment = NULL;
    enum kvf_status status = kvfi_moon_parse_name(name, &address, error);

    if (status != KVF_OK) return status;
    pthread_mutex_lock(&engine->lock);
    status = use_named(&engine->segments, name, &address, &segment, error);
    if (status == KVF_OK && segment->fetches == 0) {
        status = fetch_locked(engine, segment, limit, error);
        if (status != KVF_OK) release(&engine->segments, segment);
    }
    pthread_mutex_unlock(&engine->lock);
    if (status == KVF_OK) *out = segment;
    return status;
}

void kvfi_moon_release_segment(kvf_mooncake *engine, struct kvfi_moon_segment *segment)
{
    if (!segment) return;
    pthread_mutex_lock(&engine->lock);
    release(&engine->segments, segment);
    pthread_mutex_unlock(&engine->lock);
}

enum kvf_status kvfi_moon_open_segment(kvf_mooncake *engine, const char *name, const struct kvfi_moon_limit *limit,
                                       int64_t *number, struct kvf_error *error)
{
    struct kvfi_moon_segment *segment;
    enum kvf_status status;

    do {
        status = kvfi_moon_acquire_named(engine, name, limit, &segment, error);
        if (status != KVF_OK) return status;
        pthread_mutex_lock(&engine->lock);
        /* Closed by others meanwhile: its number is over. */
        if (!segment->by_name.linked) status = KVF_ERR_AGAIN;
        else segment->opens++;
        *number = status == KVF_OK ? segment->number : *number;
        release(&engine->segments, segment);
        pthread_mutex_unlock(&engine->lock);
    } while (status == KVF_ERR_AGAIN);
    return KVF_OK;
}

enum kvf_status kvf_mooncake_close_segment(kvf_mooncake *engine, int64_t number, struct kvf_error *error)
{
    struct kvfi_moon_segment *segment;

    pthread_mutex_lock(&engine->lock);
    segment = numbered(&engine->segments, number);
    if (segment && --segment->opens == 0) {
        hide_segment(&engine->segments, segment);
        if (segment->uses == 0) free_segment(&engine->segments, segment);
    }
    pthread_mutex_unlock(&engine->lock);
    return segment ? KVF_OK : not_open(number, error);
}

/* ---- init and fini ----------------------------------------------------------------------------------------------- */

enum kvf_status kvfi_moon_segments_init(kvf_mooncake *engine, struct kvf_error *error)
{
    if (!kvfi_table_init(&engine->segments.by_name)) return kvfi_fail_memory(error, "a table of segments");
    if (kvfi_table_init(&engine->segments.by_number)) return KVF_OK;
    kvfi_table_fini(&engine->segments.by_name);
    return kvfi_fail_memory(error, "a table of segments");
}

void kvfi_moon_segments_fini(kvf_mooncake *engine)
{
    while (engine->segments.first) free_segment(&engine->segments, engine->segments.first);
    kvfi_table_fini(&engine->segments.by_name);
    kvfi_table_fini(&engine->segments.by_number);
}
