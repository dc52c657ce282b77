/* SPDX-License-Identifier: Apache-2.0 */
/* Peers: their descriptors, fetched once, and again after a connect that failed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "transport/mooncake/engine.h"

enum { MAX_SEGMENTS = 65536 };

enum kvf_status kvfi_moon_engine_ask(kvf_mooncake *engine, const struct kvfi_moon_address *address, uint8_t type,
                                     const char *text, size_t bytes, const struct kvfi_moon_limit *limit, char **reply,
                                     size_t *reply_bytes, struct kvf_error *error)
{
    const struct kvfi_moon_question question = {.host = address->host, .port = address->port, .type = type,
                                                .text = text, .bytes = bytes,
                                                .connect_timeout_ns = engine->options.connect_timeout_ns,
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
            return kvfi_fail(error, KVF_ERR_TIMEOUT, "peer %s: its descriptor did not come", segment->asked);
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

struct kvfi_moon_segment *kvfi_moon_find_segment(kvf_mooncake *engine, int64_t number, struct kvf_error *error)
{
    struct kvfi_moon_segment *segment;

    pthread_mutex_lock(&engine->lock);
    segment = engine->segments;
    while (segment && (segment->number != number || segment->fetches == 0)) segment = segment->next;
    pthread_mutex_unlock(&engine->lock);
    if (!segment) kvfi_fail(error, KVF_ERR_NOT_FOUND, "segment %lld is not open", (long long)number);
    return segment;
}

/* The segment of that name, made when there is none. The lock is held. NULL: no memory, or too many. */
static struct kvfi_moon_segment *named(kvf_mooncake *engine, const char *name, const struct kvfi_moon_address *address)
{
    struct kvfi_moon_segment *segment = engine->segments;

    while (segment && strcmp(segment->asked, name) != 0) segment = segment->next;
    if (segment || engine->segment_count >= MAX_SEGMENTS) return segment;
    segment = kvfi_alloc_zeroed(1, sizeof *segment);
    if (!segment) return NULL;
    snprintf(segment->asked, sizeof segment->asked, "%s", name);
    segment->address = *address;
    segment->number = ++engine->segment_count;
    segment->next = engine->segments;
    engine->segments = segment;
    return segment;
}

enum kvf_status kvfi_moon_open_segment(kvf_mooncake *engine, const char *name, const struct kvfi_moon_limit *limit,
                                       struct kvfi_moon_segment **out, struct kvf_error *error)
{
    struct kvfi_moon_address address;
    struct kvfi_moon_segment *segment;
    enum kvf_status status = kvfi_moon_parse_name(name, &address, error);

    if (status != KVF_OK) return status;
    pthread_mutex_lock(&engine->lock);
    segment = named(engine, name, &address);
    if (!segment) status = kvfi_fail(error, KVF_ERR_LIMIT, "segment \"%s\": out of memory, or %d are open", name,
                                     MAX_SEGMENTS);
    else if (segment->fetches == 0) status = fetch_locked(engine, segment, limit, error);
    pthread_mutex_unlock(&engine->lock);
    if (status == KVF_OK) *out = segment;
    return status;
}

void kvfi_moon_segments_fini(kvf_mooncake *engine)
{
    while (engine->segments) {
        struct kvfi_moon_segment *segment = engine->segments;

        engine->segments = segment->next;
        while (segment->idle) {
            struct kvfi_moon_lane *lane = segment->idle;

            segment->idle = lane->next;
            kvfi_moon_lane_free(lane);
        }
        kvfi_moon_descriptor_fini(&segment->descriptor);
        free(segment);
    }
}
