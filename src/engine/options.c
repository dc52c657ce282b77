/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bounds.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "engine/engine.h"

static const struct kvf_engine_options DEFAULTS = {
    .struct_size = sizeof(struct kvf_engine_options),
    .ranks_expected = 1,
    .directory_listen = "127.0.0.1:0",
    .host = "127.0.0.1",
    .transports = "shm,tcp",
    .tcp_streams = 2,
    .peer_timeout_ns = 2 * KVFI_SECOND,
    .connect_timeout_ns = 5 * KVFI_SECOND,
    .directory_timeout_ns = 5 * KVFI_SECOND,
    .incomplete_timeout_ns = 30 * KVFI_SECOND,
    .event_capacity = 65536,
};

void kvf_engine_options_init(struct kvf_engine_options *options, size_t size)
{
    kvfi_struct_init(options, size, &DEFAULTS, sizeof DEFAULTS);
}

/* 0 means default in every number. */
static void fill_zeroes(struct kvf_engine_options *own)
{
    int64_t *numbers[] = {&own->ranks_expected, &own->tcp_streams, &own->peer_timeout_ns, &own->connect_timeout_ns,
                          &own->directory_timeout_ns, &own->incomplete_timeout_ns, &own->event_capacity};
    const int64_t defaults[] = {DEFAULTS.ranks_expected, DEFAULTS.tcp_streams, DEFAULTS.peer_timeout_ns,
                                DEFAULTS.connect_timeout_ns, DEFAULTS.directory_timeout_ns,
                                DEFAULTS.incomplete_timeout_ns, DEFAULTS.event_capacity};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (*numbers[i] == 0)
            *numbers[i] = defaults[i];
    if (own->directory_listen == NULL || own->directory_listen[0] == '\0')
        own->directory_listen = DEFAULTS.directory_listen;
    if (own->host == NULL || own->host[0] == '\0')
        own->host = DEFAULTS.host;
    if (own->transports == NULL || own->transports[0] == '\0')
        own->transports = DEFAULTS.transports;
}

static enum kvf_status check_numbers(const struct kvf_engine_options *own, struct kvf_error *error)
{
    static const int64_t hour = 3600 * KVFI_SECOND, week = 168 * 3600 * KVFI_SECOND;
    const struct kvfi_bounds rows[] = {
        {"flags", (int64_t)own->flags, 0, KVF_ENGINE_CALLER_PROGRESS | KVF_ENGINE_CHECKSUM},
        {"rank.dp", own->rank.dp, 0, INT32_MAX},
        {"rank.pp", own->rank.pp, 0, INT32_MAX},
        {"rank.cp", own->rank.cp, 0, INT32_MAX},
        {"rank.tp", own->rank.tp, 0, INT32_MAX},
        {"ranks_expected", own->ranks_expected, 1, 65536},
        {"tcp_streams", own->tcp_streams, 1, 16},
        {"peer_timeout_ns", own->peer_timeout_ns, 100 * KVFI_MS, 600 * KVFI_SECOND},
        {"connect_timeout_ns", own->connect_timeout_ns, 10 * KVFI_MS, hour},
        {"directory_timeout_ns", own->directory_timeout_ns, 10 * KVFI_MS, hour},
        {"incomplete_timeout_ns", own->incomplete_timeout_ns, KVFI_MS, week},
        {"event_capacity", own->event_capacity, 2, 16777216},
    };

    return kvfi_check_bounds("engine option", rows, sizeof rows / sizeof rows[0], error);
}

static enum kvf_status check_texts(const struct kvf_engine_options *own, struct kvf_error *error)
{
    size_t bytes = own->instance == NULL ? 0 : strlen(own->instance);
    bool first = own->rank.pp == 0 && own->rank.cp == 0 && own->rank.tp == 0;

    if (bytes == 0 || bytes >= KVF_INSTANCE_NAME_BYTES)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                         "engine option instance has %zu bytes, expected 1 to %d", bytes, KVF_INSTANCE_NAME_BYTES - 1);
    if (own->layout == NULL)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "engine option layout is missing");
    if (own->model_fingerprint != NULL && strlen(own->model_fingerprint) >= KVFI_DIRECTORY_MODEL_BYTES)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                         "engine option model_fingerprint has %zu bytes, expected at most %d",
                         strlen(own->model_fingerprint), KVFI_DIRECTORY_MODEL_BYTES - 1);
    if ((own->directory_url == NULL || own->directory_url[0] == '\0') && !first)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                         "engine option directory_url is missing: only rank 0,0,0 embeds a directory, this is rank "
                         "%" PRId64 ",%" PRId64 ",%" PRId64, own->rank.pp, own->rank.cp, own->rank.tp);
    return KVF_OK;
}

static char *copy_or_empty(const char *text) { return kvfi_text_copy(text == NULL ? "" : text); }

enum kvf_status kvfi_settings_init(struct kvfi_settings *settings, const struct kvf_engine_options *options,
                                   struct kvf_error *error)
{
    struct kvf_engine_options own = DEFAULTS;
    enum kvf_status status;

    memset(settings, 0, sizeof *settings);
    status = kvfi_options_copy(&own, sizeof own, options, "engine options", error);
    if (status != KVF_OK)
        goto done;
    fill_zeroes(&own);
    status = check_numbers(&own, error);
    if (status == KVF_OK)
        status = check_texts(&own, error);
    if (status != KVF_OK)
        goto done;
    *settings = (struct kvfi_settings){
        .flags = own.flags, .rank = own.rank, .ranks_expected = own.ranks_expected, .tcp_streams = own.tcp_streams,
        .peer_timeout_ns = own.peer_timeout_ns, .connect_timeout_ns = own.connect_timeout_ns,
        .directory_timeout_ns = own.directory_timeout_ns, .incomplete_timeout_ns = own.incomplete_timeout_ns,
        .event_capacity = own.event_capacity, .instance = copy_or_empty(own.instance),
        .model = copy_or_empty(own.model_fingerprint), .directory_url = copy_or_empty(own.directory_url),
        .directory_listen = copy_or_empty(own.directory_listen), .host = copy_or_empty(own.host),
        .transports = copy_or_empty(own.transports), .fault_policy = copy_or_empty(own.fault_policy)};
    if (settings->instance == NULL || settings->model == NULL || settings->directory_url == NULL ||
        settings->directory_listen == NULL || settings->host == NULL || settings->transports == NULL ||
        settings->fault_policy == NULL) {
        status = kvfi_fail_memory(error, "an engine");
        kvfi_settings_fini(settings);
    }
done:
    return status;
}

void kvfi_settings_fini(struct kvfi_settings *settings)
{
    char *texts[] = {settings->instance, settings->model, settings->directory_url, settings->directory_listen,
                     settings->host, settings->transports, settings->fault_policy};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        free(texts[i]);
    memset(settings, 0, sizeof *settings);
}
