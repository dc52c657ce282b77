/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a worker and closing it. */
#include "vllm_worker/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "transport/mooncake/engine.h"
#include "vllm_worker/events.h"
#include "vllm_worker/options.h"

#define FORGIVEN_NS KVFI_SECOND

/* A producer alone listens for nobody: its memory is not to be read or written from outside. */
static enum kvf_status open_engine(kvf_vllm_worker *worker, struct kvf_error *error)
{
    struct kvf_mooncake_options options;

    kvf_mooncake_options_init(&options, sizeof options);
    options.host = worker->options.host;
    options.rpc_port = worker->options.rpc_port;
    options.data_port = worker->options.data_port;
    options.initiator_only = !worker->consumes;
    snprintf(worker->engine_host, sizeof worker->engine_host, "%s", worker->options.host);
    return kvfi_moon_open(&options, &worker->log, &worker->engine, error);
}

static enum kvf_status open_registry(kvf_vllm_worker *worker, struct kvf_error *error)
{
    struct kvfi_vllm_registry_options options = {.register_attempts = worker->options.register_attempts,
                                                 .connector_timeout_ns = worker->options.connector_timeout_ns,
                                                 .log = &worker->log};

    if (!worker->consumes && worker->options.bootstrap_url == NULL)
        return KVF_OK;
    return kvfi_vllm_registry_create(&worker->loop, &options, &worker->registry, error);
}

/* What has arrived counts before any deadline does. */
static void before_timers(void *owner)
{
    kvf_vllm_worker *worker = owner;

    if (worker->produces)
        kvfi_vllm_sender_look(worker);
    if (worker->consumes)
        kvfi_vllm_consumer_look(worker);
}

/* This process was stopped, or starved: what came meanwhile is still on its way to this thread. */
static void forgive(void *owner, int64_t late_ns)
{
    kvf_vllm_worker *worker = owner;

    (void)late_ns;
    worker->forgiven_until_ns = kvfi_now_ns() + FORGIVEN_NS;
}

static enum kvf_status open_parts(kvf_vllm_worker *worker, struct kvf_error *error)
{
    static const struct kvfi_loop_hooks hooks = {.before_timers = before_timers, .stood_still = forgive,
                                                 .patience_ns = KVFI_SECOND, .name = "worker"};
    enum kvf_status status = kvfi_loop_init(&worker->loop, worker, &hooks, error);

    if (status == KVF_OK)
        status = kvfi_vllm_events_create(worker->options.event_capacity, &worker->events, error);
    if (status == KVF_OK)
        status = open_engine(worker, error);
    if (status == KVF_OK)
        status = open_registry(worker, error);
    if (status == KVF_OK && worker->produces)
        status = kvfi_vllm_sender_create(worker, &worker->sender, error);
    if (status == KVF_OK && worker->consumes)
        status = kvfi_vllm_consumer_create(worker, &worker->consumer, error);
    if (status == KVF_OK)
        status = kvfi_loop_start(&worker->loop, error);
    return status;
}

enum kvf_status kvfi_vllm_worker_open(const struct kvf_vllm_worker_options *options,
                                      const struct kvfi_vllm_writer *writer, kvf_vllm_worker **out,
                                      struct kvf_error *error)
{
    struct kvf_vllm_worker_options own;
    kvf_vllm_worker *worker;
    void *copies;
    enum kvf_status status = kvfi_vllm_worker_options_copy(options, &own, &copies, error);

    if (status != KVF_OK)
        return status;
    worker = kvfi_alloc_zeroed(1, sizeof *worker);
    if (worker == NULL) {
        free(copies);
        return kvfi_fail_memory(error, "a worker");
    }
    worker->options = own;
    worker->copies = copies;
    worker->produces = (own.role & KVF_VLLM_PRODUCER) != 0;
    worker->consumes = (own.role & KVF_VLLM_CONSUMER) != 0;
    if (writer != NULL)
        worker->writer = *writer;
    kvfi_log_init(&worker->log, &own.log);
    status = open_parts(worker, error);
    if (status != KVF_OK)
        kvf_vllm_worker_close(worker);
    else
        *out = worker;
    return status;
}

enum kvf_status kvf_vllm_worker_open(const struct kvf_vllm_worker_options *options, kvf_vllm_worker **out,
                                     struct kvf_error *error)
{
    return kvfi_vllm_worker_open(options, NULL, out, error);
}

void kvf_vllm_worker_close(kvf_vllm_worker *worker)
{
    if (worker == NULL)
        return;
    kvfi_loop_stop(&worker->loop);
    if (worker->loop.initialised)
        kvfi_loop_drop_commands(&worker->loop);
    kvfi_vllm_sender_destroy(worker, worker->sender); /* ends its writes first */
    kvfi_vllm_consumer_destroy(worker, worker->consumer);
    kvfi_vllm_registry_destroy(worker->registry);
    kvf_mooncake_close(worker->engine);
    kvfi_vllm_events_destroy(worker->events);
    kvfi_loop_fini(&worker->loop);
    kvf_vllm_regions_release(worker->regions);
    kvfi_vllm_record_fini(&worker->record);
    free(worker->memory);
    free(worker->copies);
    kvfi_log_fini(&worker->log);
    free(worker);
}

int64_t kvfi_vllm_worker_connections_from(kvf_vllm_worker *worker, const char *address)
{
    struct kvfi_moon_server *server = worker->engine->server;
    return server == NULL ? -1 : kvfi_moon_server_count_from(server, address);
}

int64_t kvfi_vllm_worker_connections_unknown(kvf_vllm_worker *worker,
                                             bool (*is_known)(void *context, const uint8_t bytes[16]), void *context)
{
    struct kvfi_moon_server *server = worker->engine->server;
    return server == NULL ? -1 : kvfi_moon_server_count_unknown(server, is_known, context);
}

int64_t kvfi_vllm_worker_refused(const kvf_vllm_worker *worker)
{
    struct kvfi_moon_server *server = worker->engine->server;
    return server == NULL ? 0 : kvfi_moon_refusals_count(&server->refusals);
}
