/* SPDX-License-Identifier: Apache-2.0 */
/* The transports of an engine, in the order its options wish for them. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/setup.h"

static const char *const NAMES[] = {"shm", "tcp", "loop"};

static const char *known_name(const char *text, size_t bytes)
{
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++)
        if (strlen(NAMES[i]) == bytes && memcmp(NAMES[i], text, bytes) == 0)
            return NAMES[i];
    return NULL;
}

/* The faults that the policy has for this transport, NULL for none: "FAULTS" is for all, "NAME:FAULTS" for one. */
static const char *faults_for(const kvf_engine *engine, const char *name)
{
    const char *policy = engine->settings.fault_policy, *colon = strchr(policy, ':');

    if (policy[0] == '\0')
        return NULL;
    if (colon == NULL)
        return policy;
    return known_name(policy, (size_t)(colon - policy)) == name ? colon + 1 : NULL;
}

static enum kvf_status open_carrier(kvf_engine *engine, const char *name, struct kvf_error *error)
{
    const char *faults = faults_for(engine, name);
    char policy[KVF_ERROR_TEXT_BYTES], wrapper[32];
    struct kvfi_transport_config config = {
        .host = engine->settings.host, .self = engine->self, .incarnation = engine->incarnation,
        .streams = engine->settings.tcp_streams, .connect_timeout_ns = engine->settings.connect_timeout_ns,
        .checksum = (engine->settings.flags & KVF_ENGINE_CHECKSUM) != 0, .memories = engine->memories,
        .memory_count = engine->memory_count, .log = &engine->log};
    struct kvfi_carrier carrier = {.name = name};
    enum kvf_status status;

    if (faults != NULL) {
        snprintf(wrapper, sizeof wrapper, "fault:%s", name);
        snprintf(policy, sizeof policy, "%s:%s", name, faults);
        config.fault_policy = policy;
    }
    carrier.ops = kvfi_transport_find(faults == NULL ? name : wrapper);
    if (carrier.ops == NULL || engine->carrier_count == KVFI_MAX_TRANSPORTS)
        return kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "this build has no transport \"%s\"", name);
    status = carrier.ops->open(&config, &carrier.transport, error);
    if (status != KVF_OK)
        return status;
    carrier.ops->endpoint(carrier.transport, carrier.endpoint);
    engine->carriers[engine->carrier_count++] = carrier;
    return KVF_OK;
}

enum kvf_status kvfi_carriers_open(kvf_engine *engine, struct kvf_error *error)
{
    const char *at = engine->settings.transports;
    struct kvf_error own = {.position = -1};

    kvfi_fail(&own, KVF_ERR_INVALID_ARGUMENT, "engine option transports is empty");
    while (*at != '\0') {
        size_t bytes = strcspn(at, ",");
        const char *name = known_name(at, bytes);
        if (name == NULL)
            return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                             "engine option transports names \"%.*s\", known are shm, tcp, loop",
                             (int)(bytes > 32 ? 32 : bytes), at);
        for (size_t i = 0; i < engine->carrier_count; i++)
            if (engine->carriers[i].name == name)
                return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "engine option transports names \"%s\" twice", name);
        if (open_carrier(engine, name, &own) != KVF_OK)
            kvfi_logf(&engine->log, KVF_LOG_WARN, "%s cannot open transport %s: %s", engine->self, name, own.text);
        at += bytes + (at[bytes] == ',');
    }
    if (engine->carrier_count == 0)
        return kvfi_fail(error, (enum kvf_status)own.status, "%s", own.text);
    return KVF_OK;
}

void kvfi_carriers_close(kvf_engine *engine)
{
    for (size_t i = 0; i < engine->carrier_count; i++)
        engine->carriers[i].ops->close(engine->carriers[i].transport);
    engine->carrier_count = 0;
}
