/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/bounds.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "sys/clock.h"

/* Texts of notifies that wait, all together. */
#define MAX_NOTE_BYTES (INT64_C(64) << 20)

/* ---- options ---------------------------------------------------------------------------------------------------- */

static void set_defaults(struct kvf_mooncake_options *options)
{
    *options = (struct kvf_mooncake_options){.struct_size = sizeof *options, .host = "127.0.0.1", .max_version = 2,
                                             .lanes = 2, .max_lanes = 16, .max_connections = 16384,
                                             .max_handshakes = 1024, .max_notifies = 4096,
                                             .max_handshake_bytes = KVFI_MOON_MAX_HANDSHAKE,
                                             .connect_timeout_ns = 5 * KVFI_SECOND,
                                             .handshake_timeout_ns = 5 * KVFI_SECOND,
                                             .progress_timeout_ns = 30 * KVFI_SECOND};
}

void kvf_mooncake_options_init(struct kvf_mooncake_options *options, size_t size)
{
    struct kvf_mooncake_options defaults;

    set_defaults(&defaults);
    kvfi_struct_init(options, size, &defaults, sizeof defaults);
}

static enum kvf_status check_options(const struct kvf_mooncake_options *options, struct kvf_error *error)
{
    const struct kvfi_bounds numbers[] = {
        {"rpc_port", options->rpc_port, 0, 65535}, {"data_port", options->data_port, 0, 65535},
        {"initiator_only", options->initiator_only, 0, 1}, {"hide_buffers", options->hide_buffers, 0, 1},
        {"max_version", options->max_version, 1, 2}, {"data_threads", options->data_threads, 0, KVFI_MOON_MAX_THREADS},
        {"lanes", options->lanes, 1, 16}, {"max_lanes", options->max_lanes, 1, 256},
        {"max_connections", options->max_connections, 1, 1048576},
        {"max_handshakes", options->max_handshakes, 1, 65536}, {"max_notifies", options->max_notifies, 0, 16777216},
        {"max_handshake_bytes", options->max_handshake_bytes, 1024, 134217728},
        {"connect_timeout_ns", options->connect_timeout_ns, 1, 86400 * KVFI_SECOND},
        {"handshake_timeout_ns", options->handshake_timeout_ns, 1, 86400 * KVFI_SECOND},
        {"progress_timeout_ns", options->progress_timeout_ns, KVFI_MS, 86400 * KVFI_SECOND}};
    const char *published = options->publish_host ? options->publish_host : options->host;
    struct kvfi_moon_address address;
    char name[KVF_MOONCAKE_NAME_BYTES];
    enum kvf_status status = kvfi_check_bounds("option", numbers, sizeof numbers / sizeof numbers[0], error);

    if (status != KVF_OK || options->initiator_only) return status;
    if (!options->host || strlen(published) >= KVFI_MOON_HOST_BYTES)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "option host: expected less than %d bytes",
                         KVFI_MOON_HOST_BYTES);
    kvfi_moon_format_name(published, 1, name);
    if (published[0] == '[' || kvfi_moon_parse_name(name, &address, NULL) != KVF_OK)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "option %s: \"%s\", expected a host without port or brackets",
                         options->publish_host ? "publish_host" : "host", published);
    if (strcmp(published, "0.0.0.0") == 0 || strcmp(published, "::") == 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "option host: peers cannot reach \"%s\"; with it, "
                         "publish_host must name an address of this host", published);
    return KVF_OK;
}

/* ---- answers at the desk ---------------------------------------------------------------------------------------- */

static char *answer_text(const char *text, size_t *bytes)
{
    *bytes = strlen(text);
    return kvfi_text_copy(text);
}

static char *answer_metadata(kvf_mooncake *engine, size_t *bytes)
{
    struct kvfi_moon_descriptor descriptor = {.protocol = "tcp", .data_port = engine->data_port, .version = 2};
    enum kvf_status status = KVF_OK;
    char *text = NULL;

    memcpy(descriptor.name, engine->name, sizeof descriptor.name);
    memcpy(descriptor.timestamp, engine->timestamp, sizeof descriptor.timestamp);
    snprintf(descriptor.data_host, sizeof descriptor.data_host, "%s", engine->publish_host);
    if (!engine->options.hide_buffers)
        status = kvfi_moon_regions_list(&engine->regions, &descriptor.buffers, &descriptor.buffer_count, NULL);
    if (status == KVF_OK) status = kvfi_moon_descriptor_print(&descriptor, &text, bytes, NULL);
    if (status == KVF_OK && *bytes >= KVFI_MOON_TEXT_BYTES) {
        /* No peer with default limits could read it. They can do without the list. */
        if (!engine->told_too_long)
            kvfi_logf(engine->log, KVF_LOG_WARN, "mooncake: a descriptor of %zu buffers is longer than %d bytes, it is "
                      "published without them", descriptor.buffer_count, KVFI_MOON_TEXT_BYTES);
        engine->told_too_long = true;
        free(text);
        text = NULL;
        descriptor.buffer_count = 0;
        kvfi_moon_descriptor_print(&descriptor, &text, bytes, NULL);
    }
    kvfi_moon_descriptor_fini(&descriptor);
    return text;
}

int64_t kvfi_moon_note_bytes(const struct kvfi_moon_note *note)
{
    return (int64_t)(strlen(note->notification.name) + strlen(note->notification.message) + sizeof *note);
}

/* Appends a notify, unless too many wait. */
static bool keep_note(kvf_mooncake *engine, char *name, char *message)
{
    struct kvfi_moon_note *note = kvfi_alloc_zeroed(1, sizeof *note);
    bool kept = false;
    int64_t bytes;

    if (!note) return false;
    note->notification = (struct kvf_mooncake_notification){name, message};
    bytes = kvfi_moon_note_bytes(note);
    pthread_mutex_lock(&engine->lock);
    kept = engine->note_count < engine->options.max_notifies && bytes <= MAX_NOTE_BYTES - engine->note_bytes;
    if (kept) {
        *(engine->last_note ? &engine->last_note->next : &engine->first_note) = note;
        engine->last_note = note;
        engine->note_count++;
        engine->note_bytes += bytes;
        pthread_cond_broadcast(&engine->changed);
    }
    pthread_mutex_unlock(&engine->lock);
    if (!kept) free(note);
    return kept;
}

static char *answer_notify(kvf_mooncake *engine, const char *text, size_t bytes, size_t *reply_bytes)
{
    char *name, *message;

    if (kvfi_moon_notify_parse(text, bytes, &name, &message, NULL) != KVF_OK) return NULL;
    if (keep_note(engine, name, message))
        return answer_text("{\"name\":\"\",\"notify_msg\":\"success\"}\n", reply_bytes);
    free(name);
    free(message);
    return answer_text("{\"name\":\"\",\"notify_msg\":\"\"}\n", reply_bytes); /* the sender takes it as rejected */
}

static char *answer(void *context, uint8_t type, const char *text, size_t bytes, size_t *reply_bytes)
{
    static const char no_rdma[] = "{\"local_gid\":\"\",\"local_lid\":0,\"local_nic_path\":\"\",\"payload\":\"\","
                                  "\"peer_nic_path\":\"\",\"qp_num\":[],"
                                  "\"reply_msg\":\"this engine has no RDMA, only TCP\"}\n";
    kvf_mooncake *engine = context;

    if (!kvfi_moon_is_json(text, bytes)) return NULL;
    if (type == KVFI_MOON_METADATA) return answer_metadata(engine, reply_bytes);
    if (type == KVFI_MOON_NOTIFY) return answer_notify(engine, text, bytes, reply_bytes);
    if (type == KVFI_MOON_PROBE) return answer_text("{\"status\":\"success\"}\n", reply_bytes);
    return answer_text(no_rdma, reply_bytes);
}

static void close_revoked(void *context)
{
    const kvf_mooncake *engine = context;

    if (engine->server) kvfi_moon_server_revoke(engine->server);
}

/* ---- open ------------------------------------------------------------------------------------------------------- */

static void note_time(kvf_mooncake *engine)
{
    struct timespec now;
    struct tm local;
    size_t used;

    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    used = strftime(engine->timestamp, sizeof engine->timestamp, "%Y-%m-%d %H:%M:%S", &local);
    snprintf(engine->timestamp + used, sizeof engine->timestamp - used, ".%06ld", now.tv_nsec / 1000);
}

/* Data first: peers may connect as soon as they have the answer of a handshake. */
static enum kvf_status open_data(kvf_mooncake *engine, struct kvf_error *error)
{
    long half = sysconf(_SC_NPROCESSORS_ONLN) / 2;
    int32_t threads = engine->options.data_threads > 0 ? engine->options.data_threads
                      : half < 1 ? 1 : half > 4 ? 4 : (int32_t)half;
    struct kvfi_moon_serving serving = {.listener = -1, .threads = threads,
                                        .max_connections = engine->options.max_connections,
                                        .progress_timeout_ns = engine->options.progress_timeout_ns,
                                        .regions = &engine->regions, .log = engine->log};
    enum kvf_status status =
        kvfi_moon_listen(engine->resolver, engine->host, engine->options.data_port, engine->options.connect_timeout_ns,
                         &serving.listener, &engine->data_port, error);

    if (status == KVF_OK) status = kvfi_moon_server_open(&serving, &engine->server, error);
    if (status != KVF_OK && serving.listener >= 0) close(serving.listener);
    return status;
}

static enum kvf_status open_desk(kvf_mooncake *engine, struct kvf_error *error)
{
    struct kvfi_moon_desk_rules rules = {.listener = -1, .max_clients = engine->options.max_handshakes,
                                         .max_bytes = engine->options.max_handshake_bytes,
                                         .timeout_ns = engine->options.handshake_timeout_ns, .log = engine->log,
                                         .answer = answer, .context = engine};
    enum kvf_status status =
        kvfi_moon_listen(engine->resolver, engine->host, engine->options.rpc_port, engine->options.connect_timeout_ns,
                         &rules.listener, &engine->rpc_port, error);

    if (status == KVF_OK) kvfi_moon_format_name(engine->publish_host, engine->rpc_port, engine->name);
    if (status == KVF_OK) status = kvfi_moon_desk_open(&rules, &engine->desk, error);
    if (status != KVF_OK && rules.listener >= 0) close(rules.listener);
    return status;
}

static enum kvf_status make_locks(kvf_mooncake *engine, struct kvf_error *error)
{
    pthread_condattr_t monotonic;
    int failure;

    pthread_mutex_init(&engine->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    failure = pthread_cond_init(&engine->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    engine->lock_made = failure == 0;
    if (failure != 0) return kvfi_fail(error, KVF_ERR_SYSTEM, "mooncake: condition: %s", strerror(failure));
    kvfi_moon_batches_init(&engine->batches);
    return KVF_OK;
}

enum kvf_status kvfi_moon_open(const struct kvf_mooncake_options *given, struct kvfi_log *log, kvf_mooncake **out,
                               struct kvf_error *error)
{
    kvf_mooncake *engine = kvfi_alloc_zeroed(1, sizeof *engine);
    struct kvf_mooncake_options *options;
    enum kvf_status status;

    if (!engine) return kvfi_fail_memory(error, "a Mooncake engine");
    options = &engine->options;
    set_defaults(options);
    status = kvfi_options_copy(options, sizeof *options, given, "kvf_mooncake_options", error);
    if (status == KVF_OK) status = check_options(options, error);
    if (status != KVF_OK) goto done;
    if (!options->host) options->host = "";
    engine->host = kvfi_text_copy(options->host);
    engine->publish_host = kvfi_text_copy(options->publish_host ? options->publish_host : options->host);
    options->host = options->publish_host = NULL;
    if (!engine->host || !engine->publish_host) {
        status = kvfi_fail_memory(error, "a host name");
        goto done;
    }
    engine->log = log;
    if (!log) {
        kvfi_log_init(&engine->own_log, &options->log);
        engine->own_log_made = true;
        engine->log = &engine->own_log;
    }
    note_time(engine);
    status = make_locks(engine, error);
    if (status == KVF_OK) status = kvfi_resolver_create(&engine->resolver, error);
    if (status == KVF_OK) status = kvfi_moon_segments_init(engine, error);
    engine->segments_made = status == KVF_OK;
    if (status == KVF_OK) status = kvfi_moon_regions_init(&engine->regions, error);
    engine->regions_made = status == KVF_OK;
    engine->regions.close_revoked = close_revoked;
    engine->regions.context = engine;
    if (status == KVF_OK && !options->initiator_only) status = open_data(engine, error);
    if (status == KVF_OK && !options->initiator_only) status = open_desk(engine, error);
done:
    if (status == KVF_OK) *out = engine;
    else kvf_mooncake_close(engine);
    return status;
}

enum kvf_status kvf_mooncake_open(const struct kvf_mooncake_options *options, kvf_mooncake **out,
                                  struct kvf_error *error)
{
    return kvfi_moon_open(options, NULL, out, error);
}

void kvf_mooncake_close(kvf_mooncake *engine)
{
    if (!engine) return;
    if (engine->lock_made) kvfi_moon_batches_fini(&engine->batches);
    kvfi_moon_desk_close(engine->desk);
    kvfi_moon_server_close(engine->server);
    kvfi_resolver_destroy(engine->resolver);
    if (engine->segments_made) kvfi_moon_segments_fini(engine);
    while (engine->first_note) {
        struct kvfi_moon_note *note = engine->first_note;

        engine->first_note = note->next;
        free(note->notification.name);
        free(note->notification.message);
        free(note);
    }
    if (engine->regions_made) kvfi_moon_regions_fini(&engine->regions);
    if (engine->lock_made) {
        pthread_cond_destroy(&engine->changed);
        pthread_mutex_destroy(&engine->lock);
    }
    if (engine->own_log_made) kvfi_log_fini(&engine->own_log);
    free(engine->host);
    free(engine->publish_host);
    free(engine);
}

bool kvfi_moon_pause(kvf_mooncake *engine, const struct kvfi_moon_limit *limit)
{
    int64_t now_ns = kvfi_now_ns(), until_ns = limit->deadline_ns;
    struct timespec until;

    if (now_ns >= until_ns || (limit->stop && atomic_load(limit->stop))) return false;
    if (limit->stop && until_ns > now_ns + 100 * KVFI_MS) until_ns = now_ns + 100 * KVFI_MS;
    until = (struct timespec){.tv_sec = until_ns / KVFI_SECOND, .tv_nsec = until_ns % KVFI_SECOND};
    pthread_cond_timedwait(&engine->changed, &engine->lock, &until);
    return true;
}
