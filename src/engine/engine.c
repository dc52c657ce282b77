/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing; what a caller asks of the engine as a whole. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "engine/jobs.h"
#include "engine/setup.h"

/* ---- freeing ----------------------------------------------------------------------------------------------- */

static void free_jobs(kvf_engine *engine)
{
    struct kvfi_link *link;

    while ((link = kvfi_table_any(&engine->pulls)) != NULL) {
        struct kvfi_pull_job *pull = KVFI_HOLDER(link, struct kvfi_pull_job, link);
        kvfi_events_cancel(&engine->events, pull->terminal);
        kvfi_events_cancel(&engine->events, pull->reusable);
        kvfi_pull_destroy(engine, pull);
    }
    while ((link = kvfi_table_any(&engine->offers)) != NULL) {
        struct kvfi_offer_job *offer = KVFI_HOLDER(link, struct kvfi_offer_job, link);
        kvfi_events_cancel(&engine->events, offer->terminal);
        kvfi_events_cancel(&engine->events, offer->reusable);
        kvfi_offer_destroy(engine, offer);
    }
}

/* Frees whatever there is of an engine whose thread does not run. */
static void destroy(kvf_engine *engine)
{
    kvfi_peers_goodbye(engine);
    kvfi_carriers_close(engine); /* first: after this nobody touches registered memory */
    kvfi_loop_drop_commands(&engine->loop);
    if (engine->pulls.buckets != NULL)
        free_jobs(engine);
    for (struct kvfi_peer *peer = engine->peers; peer != NULL; peer = peer->next)
        kvfi_requests_drop_peer(engine, peer);
    kvfi_peers_fini(engine);
    kvfi_instances_fini(engine);
    kvfi_unsent_fini(engine);
    kvfi_directory_client_close(engine->client);
    kvfi_channel_close(engine->channel, 100);
    kvf_directory_close(engine->directory);
    kvfi_table_fini(&engine->pulls);
    kvfi_table_fini(&engine->offers);
    kvfi_table_fini(&engine->grants);
    kvfi_table_fini(&engine->requests);
    kvfi_ledger_fini(&engine->ledger);
    kvfi_events_fini(&engine->events);
    kvfi_buffer_fini(&engine->buffer);
    kvf_holdings_release(engine->holdings);
    kvf_layout_release(engine->layout);
    free(engine->layers);
    free(engine->memories);
    free(engine->memory_registered);
    kvfi_settings_fini(&engine->settings);
    kvfi_loop_fini(&engine->loop);
    kvfi_log_fini(&engine->log);
    free(engine);
}

/* ---- opening ----------------------------------------------------------------------------------------------- */

enum kvf_status kvf_engine_open(const struct kvf_engine_options *options, kvf_engine **out, struct kvf_error *error)
{
    struct kvfi_settings settings;
    enum kvf_status status = kvfi_settings_init(&settings, options, error);
    kvf_engine *engine;

    if (status != KVF_OK)
        return status;
    engine = calloc(1, sizeof *engine);
    if (engine == NULL) {
        kvfi_settings_fini(&settings);
        return kvfi_fail_memory(error, "an engine");
    }
    engine->settings = settings;
    engine->events.fd = -1;
    kvfi_log_init(&engine->log, kvfi_options_log(options));
    status = kvfi_engine_setup(engine, options->layout, error);
    if (status == KVF_OK && (engine->settings.flags & KVF_ENGINE_CALLER_PROGRESS) == 0)
        status = kvfi_loop_start(&engine->loop, error);
    if (status == KVF_OK)
        *out = engine;
    else
        destroy(engine);
    return status;
}

/* ---- the calls --------------------------------------------------------------------------------------------- */

enum kvf_status kvf_engine_register_memory(kvf_engine *engine, int64_t index, void *address, int64_t bytes, int fd,
                                           struct kvf_error *error)
{
    int64_t needed, count = (int64_t)engine->memory_count;
    enum kvf_status status = KVF_OK;

    pthread_mutex_lock(&engine->loop.lock);
    if (index < 0 || index >= count) {
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "memory %" PRId64 ": the layout has %" PRId64, index, count);
        goto done;
    }
    needed = kvf_layout_get_spec(engine->layout)->memory_bytes[index];
    if (engine->announced || engine->announcing)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "memory %" PRId64 ": register it before announcing", index);
    else if (engine->memory_registered[index])
        status = kvfi_fail(error, KVF_ERR_EXISTS, "memory %" PRId64 " is registered already", index);
    else if (bytes < 0 || bytes < needed)
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "memory %" PRId64 " has %" PRId64 " bytes, the layout needs %"
                           PRId64, index, bytes, needed);
    else if (address == NULL)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "memory %" PRId64 ": the address is NULL", index);
    if (status != KVF_OK)
        goto done;
    engine->memories[index] = (struct kvfi_memory_region){.address = address, .bytes = bytes, .fd = fd};
    engine->memory_registered[index] = true;
done:
    pthread_mutex_unlock(&engine->loop.lock);
    return status;
}

static enum kvf_status check_announce(const kvf_engine *engine, struct kvf_error *error)
{
    if (engine->announced || engine->announcing)
        return kvfi_fail(error, KVF_ERR_EXISTS, "%s is announced already", engine->self);
    for (size_t i = 0; i < engine->memory_count; i++)
        if (!engine->memory_registered[i])
            return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "memory %zu of %zu is not registered", i,
                             engine->memory_count);
    return KVF_OK;
}

enum kvf_status kvf_engine_announce(kvf_engine *engine, struct kvf_error *error)
{
    struct kvfi_command *command = calloc(1, sizeof *command);
    int64_t deadline = kvfi_deadline_after(engine->settings.directory_timeout_ns + KVFI_SECOND);
    enum kvf_status status;

    if (command == NULL)
        return kvfi_fail_memory(error, "a command");
    pthread_mutex_lock(&engine->loop.lock);
    status = check_announce(engine, error);
    if (status != KVF_OK) {
        free(command);
        goto done;
    }
    command->kind = KVFI_COMMAND_ANNOUNCE;
    engine->announcing = true;
    engine->announce_error = (struct kvf_error){.position = -1};
    kvfi_command_post(engine, command);
    while (engine->announcing && kvfi_now_ns() < deadline)
        kvfi_loop_wait(&engine->loop, deadline);
    if (engine->announcing) {
        engine->announcing = false;
        status = kvfi_fail(error, KVF_ERR_DIRECTORY, "the directory at %s did not answer", engine->directory_url);
    } else if (!engine->announced) {
        status = kvfi_fail(error, (enum kvf_status)engine->announce_error.status, "%s", engine->announce_error.text);
    }
done:
    pthread_mutex_unlock(&engine->loop.lock);
    return status;
}

const char *kvf_engine_directory_url(const kvf_engine *engine) { return engine->directory_url; }

int kvf_engine_event_fd(const kvf_engine *engine) { return engine->events.fd; }

size_t kvf_engine_poll(kvf_engine *engine, struct kvf_event *events, size_t capacity)
{
    size_t count;

    pthread_mutex_lock(&engine->loop.lock);
    count = kvfi_events_take(&engine->events, events, capacity);
    pthread_mutex_unlock(&engine->loop.lock);
    return count;
}

size_t kvf_engine_wait(kvf_engine *engine, struct kvf_event *events, size_t capacity, int64_t timeout_ns)
{
    int64_t deadline = kvfi_deadline_after(timeout_ns);
    size_t count;

    pthread_mutex_lock(&engine->loop.lock);
    while ((count = kvfi_events_take(&engine->events, events, capacity)) == 0 && capacity > 0 &&
           kvfi_now_ns() < deadline)
        kvfi_loop_wait(&engine->loop, deadline);
    pthread_mutex_unlock(&engine->loop.lock);
    return count;
}

void kvf_engine_progress(kvf_engine *engine)
{
    kvfi_loop_progress(&engine->loop);
}

enum kvf_status kvf_engine_get_stats(kvf_engine *engine, struct kvf_engine_stats *stats)
{
    struct kvf_engine_stats own = {.struct_size = sizeof own};

    pthread_mutex_lock(&engine->loop.lock);
    own.bytes_received = engine->counters.bytes_received;
    own.bytes_sent = engine->counters.bytes_sent;
    own.pulls_active = engine->counters.pulls_active;
    own.pulls_done = engine->counters.pulls_done;
    own.pulls_failed = engine->counters.pulls_failed;
    own.offers_active = engine->counters.offers_active;
    own.offers_done = engine->counters.offers_done;
    own.offers_failed = engine->counters.offers_failed;
    own.peers = engine->counters.peers;
    own.plans_cached = engine->counters.plans_cached;
    pthread_mutex_unlock(&engine->loop.lock);
    return kvfi_struct_give(stats, &own, sizeof own, "engine statistics", NULL);
}

enum kvf_status kvf_engine_drain(kvf_engine *engine, int64_t timeout_ns, struct kvf_error *error)
{
    int64_t deadline = kvfi_deadline_after(timeout_ns);
    enum kvf_status status = KVF_OK;

    pthread_mutex_lock(&engine->loop.lock);
    engine->draining = true;
    while (engine->counters.blocks_held > 0 && kvfi_now_ns() < deadline)
        kvfi_loop_wait(&engine->loop, deadline);
    if (engine->counters.blocks_held > 0)
        status = kvfi_fail(error, KVF_ERR_TIMEOUT, "%" PRId64 " offers and pulls are left after %" PRId64 " ms",
                           engine->counters.blocks_held, timeout_ns / KVFI_MS);
    pthread_mutex_unlock(&engine->loop.lock);
    return status;
}

static void end_work(kvf_engine *engine)
{
    struct kvfi_command *command = calloc(1, sizeof *command);
    int64_t deadline = kvfi_deadline_after(engine->settings.peer_timeout_ns);

    if (command == NULL)
        return;
    command->kind = KVFI_COMMAND_END;
    pthread_mutex_lock(&engine->loop.lock);
    engine->draining = true;
    kvfi_command_post(engine, command);
    while ((engine->counters.blocks_held > 0 || (engine->announced && !engine->withdrawn)) && kvfi_now_ns() < deadline)
        kvfi_loop_wait(&engine->loop, deadline);
    pthread_mutex_unlock(&engine->loop.lock);
}

void kvf_engine_close(kvf_engine *engine)
{
    if (engine == NULL)
        return;
    end_work(engine);
    kvfi_loop_stop(&engine->loop);
    destroy(engine);
}
