/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/resolve.h"
#include "sys/thread.h"
#include "transport/tcp/inside.h"

void kvfi_tcp_know_memories(struct kvfi_transport *transport)
{
    for (size_t i = 0; !transport->own_known && i < transport->config.memory_count; i++)
        transport->own_address[i] = transport->config.memories[i].address;
    transport->own_known = true;
}

/* ---- open ------------------------------------------------------------------------------------------------------- */

static enum kvf_status name_listener(struct kvfi_transport *transport, struct kvf_error *error)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    char host[200], port[8];
    enum kvf_status status = KVF_OK;

    if (getsockname(transport->listener, (struct sockaddr *)&address, &bytes) != 0 ||
        getnameinfo((struct sockaddr *)&address, bytes, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        status = kvfi_fail(error, KVF_ERR_SYSTEM, "tcp: the listener has no name: %s", strerror(errno));
        goto done;
    }
    snprintf(transport->endpoint, sizeof transport->endpoint, strchr(host, ':') ? "tcp:[%s]:%s" : "tcp:%s:%s", host,
             port);
done:
    return status;
}

static enum kvf_status listen_here(struct kvfi_transport *transport, struct kvf_error *error)
{
    struct kvfi_addresses found;
    struct kvf_error own;
    enum kvf_status status = kvfi_resolve_once(transport->host, KVFI_RESOLVE_LISTEN_NS, &found, &own);

    if (status != KVF_OK)
        return kvfi_fail(error, status == KVF_ERR_UNREACHABLE ? KVF_ERR_INVALID_ARGUMENT : status, "tcp: %s", own.text);
    transport->listener = socket(found.list[0].address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (transport->listener < 0 ||
        bind(transport->listener, (const struct sockaddr *)&found.list[0].address, found.list[0].bytes) != 0 ||
        listen(transport->listener, 512) != 0)
        return kvfi_fail(error, errno == EADDRINUSE ? KVF_ERR_ADDRESS_IN_USE : KVF_ERR_SYSTEM,
                         "tcp: listening on %s: %s", transport->host, strerror(errno));
    return name_listener(transport, error);
}

static enum kvf_status make_thread(struct kvfi_transport *transport, size_t index, struct kvf_error *error)
{
    struct kvfi_thread *thread = &transport->threads[index];
    struct epoll_event on_wake = {.events = EPOLLIN, .data.ptr = &thread->wake};
    struct epoll_event on_listener = {.events = EPOLLIN, .data.ptr = &transport->listener};
    enum kvf_status status = KVF_OK;

    thread->owner = transport;
    thread->index = index;
    thread->epoll = epoll_create1(EPOLL_CLOEXEC);
    thread->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    thread->buffer = malloc(KVFI_CONN_PENDING_BYTES + KVFI_STAGE_BYTES);
    if (!thread->buffer)
        status = kvfi_fail_memory(error, "a receive buffer");
    else if (thread->epoll < 0 || thread->wake < 0 ||
             epoll_ctl(thread->epoll, EPOLL_CTL_ADD, thread->wake, &on_wake) != 0 ||
             (index == 0 && epoll_ctl(thread->epoll, EPOLL_CTL_ADD, transport->listener, &on_listener) != 0))
        status = kvfi_fail(error, KVF_ERR_SYSTEM, "tcp: epoll: %s", strerror(errno));
    return status;
}

/* As many threads as streams can use, and half of the processors at most: the other side has its own. */
static size_t wanted_threads(const struct kvfi_transport_config *config)
{
    long half = sysconf(_SC_NPROCESSORS_ONLN) / 2;
    int64_t wanted = config->streams < half ? config->streams : half;

    return wanted < 1 ? 1 : wanted > KVFI_TCP_MAX_THREADS ? KVFI_TCP_MAX_THREADS : (size_t)wanted;
}

static enum kvf_status start_threads(struct kvfi_transport *transport, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    int failure = 0;

    for (size_t i = 0; i < transport->thread_count; i++) transport->threads[i].epoll = transport->threads[i].wake = -1;
    for (size_t i = 0; status == KVF_OK && i < transport->thread_count; i++) status = make_thread(transport, i, error);
    if (status != KVF_OK) goto done;
    for (size_t i = 0; failure == 0 && i < transport->thread_count; i++) {
        failure = kvfi_thread_start(&transport->threads[i].thread, kvfi_tcp_thread, &transport->threads[i]);
        transport->threads[i].started = failure == 0;
    }
    if (failure != 0) status = kvfi_fail(error, KVF_ERR_SYSTEM, "tcp: thread: %s", strerror(failure));
done:
    return status;
}

/* ---- close ------------------------------------------------------------------------------------------------------ */

static void stop_threads(struct kvfi_transport *transport)
{
    pthread_mutex_lock(&transport->lock);
    transport->stopping = true;
    pthread_mutex_unlock(&transport->lock);
    for (size_t i = 0; i < transport->thread_count; i++) {
        if (transport->threads[i].started) kvfi_tcp_wake(&transport->threads[i]);
    }
    for (size_t i = 0; i < transport->thread_count; i++) {
        struct kvfi_thread *thread = &transport->threads[i];

        if (thread->started) pthread_join(thread->thread, NULL);
        if (thread->epoll >= 0) close(thread->epoll);
        if (thread->wake >= 0) close(thread->wake);
        free(thread->buffer);
    }
}

static void free_sessions(struct kvfi_transport *transport)
{
    while (transport->sessions) {
        struct kvfi_session *session = transport->sessions;

        transport->sessions = session->next;
        while (session->posts) {
            struct kvfi_post *post = session->posts;

            session->posts = post->next;
            free(post);
        }
        free(session);
    }
}

static void tcp_close(struct kvfi_transport *transport)
{
    if (!transport) return;
    stop_threads(transport);
    free_sessions(transport);
    while (transport->stages) {
        struct kvfi_stage *stage = transport->stages;

        transport->stages = stage->next;
        free(stage);
    }
    if (transport->listener >= 0) close(transport->listener);
    free(transport->own_address);
    kvfi_armed_fini(&transport->armed);
    if (transport->queue_made) kvfi_queue_fini(&transport->queue);
    pthread_mutex_destroy(&transport->lock);
    free(transport);
}

static enum kvf_status tcp_open(const struct kvfi_transport_config *config, struct kvfi_transport **out,
                                struct kvf_error *error)
{
    struct kvfi_transport *transport = kvfi_alloc_zeroed(1, sizeof *transport);
    enum kvf_status status = KVF_OK;

    if (!transport) return kvfi_fail_memory(error, "a transport");
    transport->config = *config;
    transport->listener = -1;
    snprintf(transport->self, sizeof transport->self, "%s", config->self);
    snprintf(transport->host, sizeof transport->host, "%s", config->host ? config->host : "127.0.0.1");
    pthread_mutex_init(&transport->lock, NULL);
    kvfi_armed_init(&transport->armed);
    status = kvfi_queue_init(&transport->queue, config->log, error);
    transport->queue_made = status == KVF_OK;
    if (status == KVF_OK) {
        transport->own_address = kvfi_alloc_zeroed(config->memory_count, sizeof *transport->own_address);
        if (!transport->own_address) status = kvfi_fail_memory(error, "a transport");
    }
    if (status == KVF_OK) status = listen_here(transport, error);
    if (status == KVF_OK) {
        transport->thread_count = wanted_threads(config);
        status = start_threads(transport, error);
    }
    if (status == KVF_OK) *out = transport;
    else tcp_close(transport);
    return status;
}

/* ---- the rest of the table -------------------------------------------------------------------------------------- */

static void tcp_endpoint(struct kvfi_transport *transport, char *text)
{
    snprintf(text, KVFI_ENDPOINT_BYTES, "%s", transport->endpoint);
}

static int tcp_event_fd(struct kvfi_transport *transport)
{
    return transport->queue.fd;
}

static size_t tcp_events(struct kvfi_transport *transport, struct kvfi_transport_event *events, size_t capacity)
{
    return kvfi_queue_take(&transport->queue, events, capacity);
}

static enum kvf_status tcp_arm(struct kvfi_transport *transport, const struct kvfi_arm *arm, struct kvf_error *error)
{
    pthread_mutex_lock(&transport->lock);
    kvfi_tcp_know_memories(transport);
    pthread_mutex_unlock(&transport->lock);
    return kvfi_armed_add(&transport->armed, arm, error);
}

static bool tcp_disarm(struct kvfi_transport *transport, uint64_t number)
{
    struct kvfi_grant *grant = kvfi_armed_remove(&transport->armed, number);

    if (grant) kvfi_grant_release(grant);
    return true;
}

const struct kvfi_transport_ops kvfi_tcp_ops = {
    .struct_size = sizeof(struct kvfi_transport_ops),
    .version = 1,
    .name = "tcp",
    .bit = 4,
    .caps = KVFI_CAP_BOXES | KVFI_CAP_LOCAL_QUIET,
    .open = tcp_open,
    .close = tcp_close,
    .endpoint = tcp_endpoint,
    .event_fd = tcp_event_fd,
    .events = tcp_events,
    .arm = tcp_arm,
    .disarm = tcp_disarm,
    .probe = kvfi_tcp_probe,
    .connect = kvfi_tcp_connect,
    .disconnect = kvfi_tcp_disconnect,
    .post_chunk = kvfi_tcp_post_chunk,
    .abort = kvfi_tcp_abort,
    .post_ranges = kvfi_no_ranges,
};
