/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "transport/mooncake/json.h"
#include "transport/mooncake/listed.h"

static enum kvf_status limit_of(int64_t timeout_ns, struct kvfi_moon_limit *limit, struct kvf_error *error)
{
    int64_t now_ns = kvfi_now_ns();

    if (timeout_ns <= 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "timeout_ns is %" PRId64 ", expected more than 0",
                         timeout_ns);
    *limit = (struct kvfi_moon_limit){.wake_fd = -1, .deadline_ns = timeout_ns > INT64_MAX / 2 - now_ns
                                                                        ? INT64_MAX / 2 : now_ns + timeout_ns};
    return KVF_OK;
}

const char *kvf_mooncake_segment_name(const kvf_mooncake *engine)
{
    return engine->name;
}

int32_t kvf_mooncake_rpc_port(const kvf_mooncake *engine)
{
    return engine->rpc_port;
}

int32_t kvf_mooncake_data_port(const kvf_mooncake *engine)
{
    return engine->data_port;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

enum kvf_status kvf_mooncake_register(kvf_mooncake *engine, const struct kvf_mooncake_buffer *buffers, size_t count,
                                      struct kvf_error *error)
{
    return kvfi_moon_regions_add(&engine->regions, buffers, count, error);
}

enum kvf_status kvf_mooncake_unregister(kvf_mooncake *engine, const uint64_t *addresses, size_t count,
                                        int64_t timeout_ns, struct kvf_error *error)
{
    struct kvfi_moon_region **removed = kvfi_alloc_zeroed(count, sizeof *removed);
    struct kvfi_moon_limit limit = {.wake_fd = -1};
    enum kvf_status status = limit_of(timeout_ns, &limit, error);

    if (status == KVF_OK && !removed) status = kvfi_fail_memory(error, "a list of buffers");
    if (status == KVF_OK) status = kvfi_moon_regions_remove(&engine->regions, addresses, count, removed, error);
    if (status != KVF_OK) goto done;
    while (!kvfi_moon_regions_await(&engine->regions, removed, count, limit.deadline_ns)) {
        if (engine->server) kvfi_moon_server_revoke(engine->server);
        limit.deadline_ns = kvfi_now_ns() + KVFI_SECOND;
    }
    kvfi_moon_regions_drop(removed, count);
done:
    free(removed);
    return status;
}

/* ---- peers ------------------------------------------------------------------------------------------------------ */

enum kvf_status kvf_mooncake_open_segment(kvf_mooncake *engine, const char *name, int64_t timeout_ns, int64_t *segment,
                                          struct kvf_error *error)
{
    struct kvfi_moon_limit limit = {.wake_fd = -1};
    enum kvf_status status = limit_of(timeout_ns, &limit, error);

    return status == KVF_OK ? kvfi_moon_open_segment(engine, name, &limit, segment, error) : status;
}

enum kvf_status kvf_mooncake_refresh_segment(kvf_mooncake *engine, int64_t segment, int64_t timeout_ns,
                                             struct kvf_error *error)
{
    struct kvfi_moon_segment *found = kvfi_moon_acquire_segment(engine, segment, error);
    struct kvfi_moon_limit limit = {.wake_fd = -1};
    enum kvf_status status = found ? limit_of(timeout_ns, &limit, error) : KVF_ERR_NOT_FOUND;

    if (status == KVF_OK) status = kvfi_moon_refresh(engine, found, &limit, error);
    kvfi_moon_release_segment(engine, found);
    return status;
}

enum kvf_status kvf_mooncake_get_segment_info(kvf_mooncake *engine, int64_t number,
                                              struct kvf_mooncake_segment_info *out, struct kvf_error *error)
{
    struct kvfi_moon_segment *segment;
    struct kvf_mooncake_segment_info info;
    const struct kvfi_moon_descriptor *descriptor;
    size_t size = out->struct_size;

    if (size < sizeof size || size > sizeof info)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "struct_size is %zu, expected at most %zu", size,
                         sizeof info);
    segment = kvfi_moon_acquire_segment(engine, number, error);
    if (!segment) return KVF_ERR_NOT_FOUND;
    memset(&info, 0, sizeof info);
    info.struct_size = size;
    descriptor = &segment->descriptor;
    pthread_mutex_lock(&engine->lock);
    memcpy(info.asked_name, segment->asked, sizeof info.asked_name);
    memcpy(info.name, descriptor->name, sizeof info.name);
    memcpy(info.protocol, descriptor->protocol, sizeof info.protocol);
    memcpy(info.data_host, descriptor->data_host, sizeof info.data_host);
    memcpy(info.timestamp, descriptor->timestamp, sizeof info.timestamp);
    info.is_tcp = descriptor->is_tcp;
    info.data_port_published = descriptor->data_port > 0;
    info.data_port = descriptor->data_port > 0 ? descriptor->data_port : segment->address.port + 1;
    info.version = descriptor->version;
    info.buffer_count = (int64_t)descriptor->buffer_count;
    info.fetches = segment->fetches;
    pthread_mutex_unlock(&engine->lock);
    kvfi_moon_release_segment(engine, segment);
    memcpy(out, &info, size);
    return KVF_OK;
}

enum kvf_status kvf_mooncake_get_segment_buffers(kvf_mooncake *engine, int64_t number, int64_t first,
                                                 struct kvf_mooncake_buffer *out, size_t capacity, size_t *count,
                                                 struct kvf_error *error)
{
    struct kvfi_moon_segment *segment = kvfi_moon_acquire_segment(engine, number, error);
    size_t given = 0;

    if (!segment) return KVF_ERR_NOT_FOUND;
    pthread_mutex_lock(&engine->lock);
    while (first >= 0 && given < capacity && (uint64_t)first + given < segment->descriptor.buffer_count) {
        out[given] = segment->descriptor.buffers[(size_t)first + given];
        given++;
    }
    pthread_mutex_unlock(&engine->lock);
    kvfi_moon_release_segment(engine, segment);
    *count = given;
    return KVF_OK;
}

enum kvf_status kvf_mooncake_probe(kvf_mooncake *engine, const char *name, int64_t timeout_ns, struct kvf_error *error)
{
    struct kvfi_moon_address address;
    struct kvfi_moon_limit limit = {.wake_fd = -1};
    enum kvf_status status = limit_of(timeout_ns, &limit, error);
    char *reply = NULL;
    size_t bytes;

    if (status == KVF_OK) status = kvfi_moon_parse_name(name, &address, error);
    if (status == KVF_OK)
        status = kvfi_moon_engine_ask(engine, &address, KVFI_MOON_PROBE, "{}\n", 3, &limit, &reply, &bytes, error);
    if (status == KVF_OK && !kvfi_moon_is_json(reply, bytes))
        status = kvfi_fail(error, KVF_ERR_PARSE, "peer %s: its answer to a probe is not JSON", name);
    free(reply);
    return status;
}

/* ---- transfers -------------------------------------------------------------------------------------------------- */

static enum kvf_status transfer(kvf_mooncake *engine, int64_t number, bool is_write,
                                const struct kvf_mooncake_range *ranges, size_t count, uint64_t flags,
                                int64_t timeout_ns, uint8_t *outcomes, struct kvf_error *error)
{
    struct kvfi_moon_listed listed = {.is_write = is_write, .flags = flags, .ranges = ranges, .count = count,
                                      .outcomes = outcomes};
    struct kvfi_moon_limit limit = {.wake_fd = -1};
    struct kvfi_moon_segment *segment = kvfi_moon_acquire_segment(engine, number, error);
    enum kvf_status status;

    if (!segment) return KVF_ERR_NOT_FOUND;
    status = kvfi_moon_check_flags(flags, error);
    if (status == KVF_OK) status = limit_of(timeout_ns, &limit, error);
    if (status != KVF_OK) goto done;
    if (outcomes) memset(outcomes, KVF_MOONCAKE_FAILED, count);
    status = kvfi_moon_move_listed(engine, segment, &listed, &limit, error);
done:
    kvfi_moon_release_segment(engine, segment);
    return status;
}

enum kvf_status kvf_mooncake_write(kvf_mooncake *engine, int64_t segment, const struct kvf_mooncake_range *ranges,
                                   size_t count, uint64_t flags, int64_t timeout_ns, uint8_t *outcomes,
                                   struct kvf_error *error)
{
    return transfer(engine, segment, true, ranges, count, flags, timeout_ns, outcomes, error);
}

enum kvf_status kvf_mooncake_read(kvf_mooncake *engine, int64_t segment, const struct kvf_mooncake_range *ranges,
                                  size_t count, uint64_t flags, int64_t timeout_ns, uint8_t *outcomes,
                                  struct kvf_error *error)
{
    return transfer(engine, segment, false, ranges, count, flags, timeout_ns, outcomes, error);
}

/* ---- notifies --------------------------------------------------------------------------------------------------- */

/* Where a peer says that it is. */
static enum kvf_status address_of(kvf_mooncake *engine, const struct kvfi_moon_segment *segment,
                                  struct kvfi_moon_address *out, struct kvf_error *error)
{
    char name[KVF_MOONCAKE_NAME_BYTES];

    pthread_mutex_lock(&engine->lock);
    memcpy(name, segment->descriptor.name[0] ? segment->descriptor.name : segment->asked, sizeof name);
    pthread_mutex_unlock(&engine->lock);
    return kvfi_moon_parse_name(name, out, error);
}

static enum kvf_status notified(const struct kvfi_moon_address *address, const char *reply, size_t bytes,
                                struct kvf_error *error)
{
    char *name, *message;
    enum kvf_status status = kvfi_moon_notify_parse(reply, bytes, &name, &message, error);

    if (status != KVF_OK) return status;
    if (!message[0])
        status = kvfi_fail(error, KVF_ERR_REFUSED, "handshake with %s port %d: the notify was rejected", address->host,
                           (int)address->port);
    free(name);
    free(message);
    return status;
}

enum kvf_status kvfi_moon_send_notify(kvf_mooncake *engine, const struct kvfi_moon_segment *segment, const char *text,
                                      size_t bytes, const struct kvfi_moon_limit *limit, struct kvf_error *error)
{
    struct kvfi_moon_address address;
    char *reply = NULL;
    size_t reply_bytes;
    enum kvf_status status = address_of(engine, segment, &address, error);

    if (status == KVF_OK)
        status = kvfi_moon_engine_ask(engine, &address, KVFI_MOON_NOTIFY, text, bytes, limit, &reply, &reply_bytes,
                                      error);
    if (status == KVF_OK) status = notified(&address, reply, reply_bytes, error);
    free(reply);
    return status;
}

enum kvf_status kvf_mooncake_notify(kvf_mooncake *engine, int64_t number, const char *name, const char *message,
                                    int64_t timeout_ns, struct kvf_error *error)
{
    struct kvfi_moon_segment *segment = kvfi_moon_acquire_segment(engine, number, error);
    struct kvfi_moon_limit limit = {.wake_fd = -1};
    char *text = NULL;
    enum kvf_status status;
    size_t bytes;

    if (!segment) return KVF_ERR_NOT_FOUND;
    status = kvfi_moon_is_utf8(name) && kvfi_moon_is_utf8(message)
                 ? limit_of(timeout_ns, &limit, error)
                 : kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "a notify of texts that are not UTF-8");
    if (status == KVF_OK) status = kvfi_moon_notify_print(name, message, &text, &bytes, error);
    if (status == KVF_OK) status = kvfi_moon_send_notify(engine, segment, text, bytes, &limit, error);
    free(text);
    kvfi_moon_release_segment(engine, segment);
    return status;
}

enum kvf_status kvf_mooncake_take_notification(kvf_mooncake *engine, int64_t timeout_ns,
                                               struct kvf_mooncake_notification **out, struct kvf_error *error)
{
    struct kvfi_moon_limit limit = {.wake_fd = -1, .deadline_ns = 0};
    struct kvfi_moon_note *note;

    if (timeout_ns > 0) limit_of(timeout_ns, &limit, NULL);
    pthread_mutex_lock(&engine->lock);
    while (!engine->first_note && kvfi_moon_pause(engine, &limit)) {}
    note = engine->first_note;
    if (note) {
        engine->first_note = note->next;
        if (!note->next) engine->last_note = NULL;
        engine->note_count--;
        engine->note_bytes -= kvfi_moon_note_bytes(note);
    }
    pthread_mutex_unlock(&engine->lock);
    if (!note) return kvfi_fail(error, KVF_ERR_AGAIN, "no notify has come");
    *out = &note->notification;
    return KVF_OK;
}

void kvf_mooncake_free_notification(struct kvf_mooncake_notification *notification)
{
    if (!notification) return;
    free(notification->name);
    free(notification->message);
    free((char *)notification - offsetof(struct kvfi_moon_note, notification));
}
