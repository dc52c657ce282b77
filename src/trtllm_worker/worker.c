/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a worker and closing it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "trtllm_worker/agent.h"
#include "trtllm_worker/options.h"
#include "trtllm_worker/receive.h"
#include "trtllm_worker/worker.h"

enum {
    MAX_MESSAGE_BYTES = KVF_TRTLLM_MAX_RANK_BYTES + 65536,
    MAX_AGENT_BYTES = 1048576,
    AGENT_EVENTS = 32, /* taken at once */
};

/* ---- messages ----------------------------------------------------------------------------------------------- */

enum kvf_status kvfi_worker_send(struct kvfi_worker_socket *socket, const struct kvfi_route *to,
                                 const struct kvfi_trtllm_packed *message, struct kvf_error *error)
{
    struct kvfi_frame frames[KVFI_TRTLLM_MAX_FRAMES];

    for (size_t i = 0; i < message->count; i++)
        frames[i] = (struct kvfi_frame){message->frames[i].bytes, message->frames[i].byte_count};
    return kvfi_channel_send_frames(socket->channel, to, frames, message->count, error);
}

enum kvf_status kvfi_worker_read(const struct kvfi_frame *frames, size_t count, struct kvfi_trtllm_message *out,
                                 struct kvf_error *error)
{
    struct kvfi_trtllm_frame own[KVFI_CHANNEL_FRAMES];

    if (count > KVFI_CHANNEL_FRAMES)
        count = KVFI_CHANNEL_FRAMES;
    for (size_t i = 0; i < count; i++)
        own[i] = (struct kvfi_trtllm_frame){frames[i].bytes, frames[i].byte_count};
    return kvfi_trtllm_read(own, count, out, error);
}

/* ---- sockets ------------------------------------------------------------------------------------------------ */

static void refuse(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count,
                   const struct kvf_error *error)
{
    kvf_trtllm_worker *worker = context;

    (void)from;
    (void)bytes;
    (void)byte_count;
    (void)error;
    worker->stats.malformed++;
}

static void handle_sender(void *context, const struct kvfi_route *from, const struct kvfi_frame *frames, size_t count)
{
    kvfi_senders_handle(context, from, frames, count);
}

static void handle_receiver(void *context, const struct kvfi_route *from, const struct kvfi_frame *frames,
                            size_t count)
{
    kvfi_receivers_handle(context, from, frames, count);
}

static void handle_info(void *context, const struct kvfi_route *from, const struct kvfi_frame *frames, size_t count)
{
    kvfi_worker_answer_info(context, from, frames, count);
}

static const struct kvfi_dialect INFO = {.name = "trtllm info", .handle_frames = handle_info, .refuse = refuse};
static const struct kvfi_dialect SENDER = {.name = "trtllm sender", .handle_frames = handle_sender, .refuse = refuse};
static const struct kvfi_dialect RECEIVER = {.name = "trtllm receiver", .handle_frames = handle_receiver,
                                             .refuse = refuse};

static void info_ready(void *owner, struct kvfi_watch *watch)
{
    kvf_trtllm_worker *worker = owner;
    (void)watch;
    kvfi_channel_dispatch(worker->info.channel, &INFO, worker);
}

/* Rank 0 may be complete, and tell of all ranks' endpoints, a moment before this rank is: what comes in between waits
 * in the socket, which is watched from then on. */
static void sender_ready(void *owner, struct kvfi_watch *watch)
{
    kvf_trtllm_worker *worker = owner;
    (void)watch;
    if (worker->self == NULL)
        return;
    kvfi_channel_dispatch(worker->sender.channel, &SENDER, worker);
}

static void receiver_ready(void *owner, struct kvfi_watch *watch)
{
    kvf_trtllm_worker *worker = owner;
    (void)watch;
    kvfi_channel_dispatch(worker->receiver.channel, &RECEIVER, worker);
}

/* What has arrived counts before any deadline does. */
static void before_timers(void *owner)
{
    kvf_trtllm_worker *worker = owner;

    sender_ready(worker, NULL);
    receiver_ready(worker, NULL);
}

static enum kvf_status open_socket(kvf_trtllm_worker *worker, struct kvfi_worker_socket *socket, int port,
                                   int64_t max_message_bytes, void (*ready)(void *, struct kvfi_watch *),
                                   struct kvf_error *error)
{
    struct kvfi_channel_options options = {.host = worker->host, .port = port, .max_message_bytes = max_message_bytes,
                                           .log = &worker->log};
    enum kvf_status status = kvfi_channel_open(&options, &socket->channel, error);

    if (status != KVF_OK)
        return status;
    socket->watch = (struct kvfi_watch){.fd = kvfi_channel_fd(socket->channel), .ready = ready};
    return socket == &worker->sender ? KVF_OK : kvfi_loop_watch(&worker->loop, &socket->watch, error);
}

static enum kvf_status open_sockets(kvf_trtllm_worker *worker, struct kvf_error *error)
{
    enum kvf_status status = open_socket(worker, &worker->sender, 0, MAX_MESSAGE_BYTES, sender_ready, error);

    if (status == KVF_OK)
        status = open_socket(worker, &worker->receiver, 0, MAX_MESSAGE_BYTES, receiver_ready, error);
    if (status == KVF_OK && worker->options.serve_info)
        status = open_socket(worker, &worker->info, worker->options.info_port, 65536, info_ready, error);
    return status;
}

/* ---- the agent ---------------------------------------------------------------------------------------------- */

void kvfi_agent_name(char name[KVF_TRTLLM_AGENT_NAME_BYTES], const char *instance_name, int64_t instance_rank)
{
    snprintf(name, KVF_TRTLLM_AGENT_NAME_BYTES, "%s%" PRId64, instance_name, instance_rank);
}

static void poll_agent(kvf_trtllm_worker *worker)
{
    struct kvf_trtllm_agent_event events[AGENT_EVENTS];
    size_t count = worker->agent.poll(worker->agent.context, events, AGENT_EVENTS);

    for (size_t i = 0; i < count && i < AGENT_EVENTS; i++) {
        struct kvf_trtllm_agent_event *event = &events[i];
        event->name[sizeof event->name - 1] = '\0';
        event->text[sizeof event->text - 1] = '\0';
        if (event->kind == KVF_TRTLLM_AGENT_GONE) {
            kvfi_receivers_on_gone(worker, event->name);
            continue;
        }
        if (event->kind == KVF_TRTLLM_AGENT_DONE || event->kind == KVF_TRTLLM_AGENT_FAILED)
            worker->writes_out--;
        kvfi_senders_on_agent(worker, event);
    }
}

static void agent_ready(void *owner, struct kvfi_watch *watch)
{
    (void)watch;
    poll_agent(owner);
}

static void agent_due(void *owner, struct kvfi_timer *timer)
{
    kvf_trtllm_worker *worker = owner;

    poll_agent(worker);
    if (worker->writes_out > 0)
        kvfi_timer_arm(&worker->loop.timers, timer, kvfi_now_ns() + KVFI_MS);
}

enum kvf_status kvfi_worker_submit(kvf_trtllm_worker *worker, const struct kvf_trtllm_agent_write *write,
                                   struct kvf_error *error)
{
    enum kvf_status status = worker->agent.submit(worker->agent.context, write, error);

    if (status != KVF_OK)
        return status;
    worker->writes_out++;
    if (worker->agent_watch.fd < 0 && !worker->agent_timer.armed)
        kvfi_timer_arm(&worker->loop.timers, &worker->agent_timer, kvfi_now_ns() + KVFI_MS);
    return KVF_OK;
}

static enum kvf_status describe_agent(kvf_trtllm_worker *worker, struct kvf_error *error)
{
    size_t bytes = 0, again = 0;
    enum kvf_status status = worker->agent.describe(worker->agent.context, NULL, 0, &bytes, error);

    if (status != KVF_OK && status != KVF_ERR_LIMIT)
        return status;
    if (bytes > MAX_AGENT_BYTES)
        return kvfi_fail(error, KVF_ERR_LIMIT, "the agent describes itself in %zu bytes, at most %d are taken", bytes,
                         MAX_AGENT_BYTES);
    worker->agent_info = malloc(bytes + 1);
    if (worker->agent_info == NULL)
        return kvfi_fail_memory(error, "the agent's description");
    status = worker->agent.describe(worker->agent.context, worker->agent_info, bytes, &again, error);
    if (status == KVF_OK && again != bytes)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "the agent described itself in %zu bytes, then in %zu", bytes, again);
    worker->agent_info_bytes = bytes;
    return status;
}

static enum kvf_status open_agent(kvf_trtllm_worker *worker, const struct kvf_trtllm_agent *given,
                                  struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (given != NULL)
        memcpy(&worker->agent, given,
               given->struct_size < sizeof worker->agent ? given->struct_size : sizeof worker->agent);
    else
        status = kvfi_agent_open(worker->given, &worker->log, &worker->agent, &worker->own_agent, error);
    if (status == KVF_OK)
        status = describe_agent(worker, error);
    worker->agent_timer.fire = agent_due;
    worker->agent_watch = (struct kvfi_watch){.fd = -1, .ready = agent_ready};
    if (status == KVF_OK && worker->agent.fd != NULL)
        worker->agent_watch.fd = worker->agent.fd(worker->agent.context);
    if (status == KVF_OK && worker->agent_watch.fd < 0 && worker->agent.watch != NULL)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "the agent watches without a descriptor to tell by");
    if (status == KVF_OK && worker->agent_watch.fd >= 0)
        status = kvfi_loop_watch(&worker->loop, &worker->agent_watch, error);
    return status;
}

/* ---- opening and closing ------------------------------------------------------------------------------------ */

static enum kvf_status open_parts(kvf_trtllm_worker *worker, struct kvf_error *error)
{
    static const struct kvfi_loop_hooks hooks = {.before_timers = before_timers, .name = "worker"};
    enum kvf_status status = kvfi_loop_init(&worker->loop, worker, &hooks, error);

    if (status == KVF_OK)
        status = kvfi_events_init(&worker->events, worker->options.event_capacity, sizeof(struct kvf_trtllm_event),
                                  error);
    if (status == KVF_OK)
        status = open_agent(worker, worker->options.agent, error);
    if (status == KVF_OK)
        status = open_sockets(worker, error);
    if (status == KVF_OK)
        status = kvfi_receivers_create(worker, &worker->receivers, error);
    if (status == KVF_OK)
        status = kvfi_senders_create(worker, &worker->senders, error);
    if (status == KVF_OK)
        status = kvfi_loop_start(&worker->loop, error);
    return status;
}

enum kvf_status kvf_trtllm_worker_open(const struct kvf_trtllm_worker_options *options, kvf_trtllm_worker **out,
                                       struct kvf_error *error)
{
    struct kvf_trtllm_worker_options own;
    kvf_trtllm_worker *worker;
    enum kvf_status status = kvfi_worker_options_copy(options, &own, error);

    if (status != KVF_OK)
        return status;
    worker = calloc(1, sizeof *worker);
    if (worker == NULL)
        return kvfi_fail_memory(error, "a worker");
    worker->options = own;
    worker->events.fd = -1;
    kvfi_log_init(&worker->log, &own.log);
    worker->given = kvf_trtllm_rank_acquire(own.rank);
    worker->host = kvfi_text_copy(own.host);
    status = worker->host == NULL ? kvfi_fail_memory(error, "a worker's host") : open_parts(worker, error);
    worker->options.rank = NULL;
    worker->options.host = NULL;
    worker->options.agent = NULL;
    if (status != KVF_OK)
        kvf_trtllm_worker_close(worker);
    else
        *out = worker;
    return status;
}

static void close_socket(struct kvfi_worker_socket *socket, int flush_ms)
{
    kvfi_channel_close(socket->channel, flush_ms);
    socket->channel = NULL;
}

void kvf_trtllm_worker_close(kvf_trtllm_worker *worker)
{
    if (worker == NULL)
        return;
    kvfi_loop_stop(&worker->loop);
    if (worker->loop.initialised)
        kvfi_loop_drop_commands(&worker->loop);
    kvfi_agent_stop(worker->own_agent); /* writes read what senders hold */
    kvfi_senders_destroy(worker, worker->senders);
    kvfi_receivers_destroy(worker, worker->receivers);
    kvfi_agent_close(worker->own_agent); /* senders made it forget their peers */
    close_socket(&worker->info, 100);
    close_socket(&worker->sender, 300);
    close_socket(&worker->receiver, 300);
    kvfi_events_fini(&worker->events);
    kvfi_loop_fini(&worker->loop);
    kvf_trtllm_registrar_destroy(worker->registrar);
    kvf_trtllm_rank_release(worker->self);
    kvf_trtllm_rank_release(worker->given);
    free(worker->self_bytes);
    free(worker->agent_info);
    free(worker->askers);
    free(worker->host);
    kvfi_log_fini(&worker->log);
    free(worker);
}
