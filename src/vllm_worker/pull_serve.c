/* SPDX-License-Identifier: Apache-2.0 */
/* The side channel: opened with the first registration, told to the registry, read. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/error.h"
#include "vllm_worker/calls.h"
#include "vllm_worker/produce.h"

enum { CLOSED, REGISTERING, SERVING, FAILED };

enum { FEW_PULLS = 4096 };

/* ---- reading --------------------------------------------------------------------------------------------------- */

static void handle(void *context, const struct kvfi_route *from, const struct kvfi_frame *frames, size_t count)
{
    kvfi_vllm_sender_handle(context, from, frames, count);
}

static void refuse(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count,
                   const struct kvf_error *error)
{
    (void)bytes;
    (void)byte_count;
    kvfi_vllm_sender_refuse(context, from, error->text);
}

static const struct kvfi_dialect PULLS = {.name = "vllm pull", .handle_frames = handle, .refuse = refuse};

void kvfi_vllm_sender_look(kvf_vllm_worker *worker)
{
    if (worker->sender->channel != NULL)
        kvfi_channel_dispatch(worker->sender->channel, &PULLS, worker);
}

static void ready(void *owner, struct kvfi_watch *watch)
{
    (void)watch;
    kvfi_vllm_sender_look(owner);
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* Each pull that waits is a connection. */
static void note_descriptors(kvf_vllm_worker *worker)
{
    int64_t wanted = worker->options.max_pulls < FEW_PULLS ? worker->options.max_pulls : FEW_PULLS;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < (rlim_t)wanted)
        kvfi_logf(&worker->log, KVF_LOG_WARN, "vllm producer: this process may open %llu descriptors (ulimit -n), and "
                  "each pull that waits needs one: with fewer than %" PRId64 ", pulls may wait to be accepted",
                  (unsigned long long)limit.rlim_cur, wanted);
}

static enum kvf_status open_channel(kvf_vllm_worker *worker, struct kvf_error *error)
{
    struct kvfi_vllm_sender *sender = worker->sender;
    const struct kvfi_channel_options options = {.host = worker->options.host, .port = worker->options.side_port,
                                                 .max_message_bytes = worker->options.max_message_bytes,
                                                 .log = &worker->log};
    enum kvf_status status = kvfi_channel_open(&options, &sender->channel, error);

    if (status != KVF_OK)
        return status;
    note_descriptors(worker);
    sender->watch = (struct kvfi_watch){.fd = kvfi_channel_fd(sender->channel), .ready = ready};
    status = kvfi_loop_watch(&worker->loop, &sender->watch, error);
    if (status != KVF_OK) {
        kvfi_channel_close(sender->channel, 0);
        sender->channel = NULL;
        sender->watch.fd = -1;
    }
    return status;
}

static void close_channel(kvf_vllm_worker *worker)
{
    struct kvfi_vllm_sender *sender = worker->sender;

    if (sender->channel == NULL)
        return;
    kvfi_loop_unwatch(&worker->loop, &sender->watch);
    sender->watch.fd = -1;
    kvfi_channel_close(sender->channel, 0);
    sender->channel = NULL;
    sender->serve_state = CLOSED;
}

static void registered(void *context, enum kvf_status status, const char *text)
{
    kvf_vllm_worker *worker = context;

    worker->sender->serve_state = status == KVF_OK ? SERVING : FAILED;
    if (status != KVF_OK)
        kvfi_fail(&worker->sender->serve_error, status, "%s", text);
    else
        kvfi_logf(&worker->log, KVF_LOG_INFO, "vllm producer: engine %s, dp %" PRId64 " tp %" PRId64 " pp %" PRId64
                  ", answers pulls at %s, as %s knows", worker->options.engine_id, worker->options.dp_rank,
                  worker->options.tp_rank, worker->options.pp_rank, kvfi_channel_endpoint(worker->sender->channel),
                  worker->options.bootstrap_url);
    kvfi_loop_changed(&worker->loop);
}

static enum kvf_status run_open(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    const struct kvf_vllm_worker_options *options = &worker->options;
    struct kvfi_vllm_claim claim = {.engine_id = options->engine_id, .dp_rank = options->dp_rank,
                                    .tp_rank = options->tp_rank, .pp_rank = options->pp_rank};
    enum kvf_status status = open_channel(worker, error);

    (void)argument;
    if (status != KVF_OK)
        return status;
    worker->sender->serve_state = options->bootstrap_url == NULL ? SERVING : REGISTERING;
    if (options->bootstrap_url == NULL)
        return KVF_OK;
    claim.address = kvfi_channel_endpoint(worker->sender->channel);
    status = kvfi_vllm_registry_register(worker->registry, options->bootstrap_url, &claim, registered, worker, error);
    if (status != KVF_OK)
        close_channel(worker);
    return status;
}

/* Says whether it is to be waited for. */
static enum kvf_status run_look(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    const struct kvfi_vllm_sender *sender = worker->sender;

    *(int64_t *)argument = sender->serve_state == REGISTERING;
    if (sender->serve_state == FAILED)
        return kvfi_fail(error, sender->serve_error.status, "%s", sender->serve_error.text);
    return KVF_OK;
}

static enum kvf_status run_close(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    (void)argument;
    (void)error;
    if (worker->registry != NULL)
        kvfi_vllm_registry_forget(worker->registry, worker);
    close_channel(worker);
    return KVF_OK;
}

enum kvf_status kvfi_vllm_sender_serve(kvf_vllm_worker *worker, struct kvf_error *error)
{
    int64_t left = 0, limit_ns = kvfi_vllm_start_deadline_ns(worker->options.register_attempts,
                                                             worker->options.connector_timeout_ns);
    enum kvf_status status = kvfi_vllm_worker_call(worker, run_open, NULL, error);

    if (status != KVF_OK)
        return status;
    status = kvfi_vllm_worker_call_until_idle(worker, run_look, &left, limit_ns, error);
    if (status == KVF_OK && left > 0)
        status = kvfi_fail(error, KVF_ERR_TIMEOUT, "Mooncake sender listener did not become ready within %" PRId64
                           "s.", limit_ns / KVFI_SECOND);
    if (status != KVF_OK)
        kvfi_vllm_worker_call(worker, run_close, NULL, NULL);
    return status;
}

bool kvfi_vllm_sender_serves(const kvf_vllm_worker *worker) { return worker->sender->serve_state == SERVING; }

void kvfi_vllm_sender_address(const kvf_vllm_worker *worker, char *out)
{
    const struct kvfi_channel *channel = worker->sender->channel;

    snprintf(out, KVF_VLLM_ADDRESS_BYTES, "%s", channel == NULL ? "" : kvfi_channel_endpoint(channel));
}
