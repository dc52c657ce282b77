/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/cma/cma.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "transport/cma/inside.h"

static void cma_close(struct kvfi_transport *transport)
{
    if (!transport) return;
    pthread_mutex_lock(&transport->lock);
    transport->stopping = true;
    for (struct kvfi_cma_post *post = transport->copying; post; post = post->next) {
        post->stop_status = KVF_ERR_CLOSED;
        atomic_store(&post->stop, true);
    }
    pthread_cond_broadcast(&transport->changed);
    pthread_mutex_unlock(&transport->lock);
    if (transport->wake >= 0) eventfd_write(transport->wake, 1);
    if (transport->watcher_started) pthread_join(transport->watcher, NULL);
    for (size_t i = 0; i < transport->thread_count; i++) pthread_join(transport->threads[i], NULL);
    kvfi_cma_peers_fini(transport);
    if (transport->epoll >= 0) close(transport->epoll);
    if (transport->wake >= 0) close(transport->wake);
    if (transport->queue_made) kvfi_queue_fini(&transport->queue);
    pthread_cond_destroy(&transport->changed);
    pthread_mutex_destroy(&transport->lock);
    free(transport);
}

static enum kvf_status open_descriptors(struct kvfi_transport *transport, struct kvf_error *error)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0};

    transport->epoll = epoll_create1(EPOLL_CLOEXEC);
    transport->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (transport->epoll < 0 || transport->wake < 0 ||
        epoll_ctl(transport->epoll, EPOLL_CTL_ADD, transport->wake, &event) != 0)
        return kvfi_fail(error, KVF_ERR_SYSTEM, "cma: epoll, eventfd: %s", strerror(errno));
    return KVF_OK;
}

static enum kvf_status start_threads(struct kvfi_transport *transport, struct kvf_error *error)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    size_t wanted = processors < 1 ? 1 : processors > KVFI_CMA_THREADS ? KVFI_CMA_THREADS : (size_t)processors;
    int failure = pthread_create(&transport->watcher, NULL, kvfi_cma_watcher_thread, transport);

    transport->watcher_started = failure == 0;
    while (failure == 0 && transport->thread_count < wanted) {
        failure = pthread_create(&transport->threads[transport->thread_count], NULL, kvfi_cma_data_thread, transport);
        if (failure == 0) transport->thread_count++;
    }
    if (failure != 0) return kvfi_fail(error, KVF_ERR_SYSTEM, "cma: cannot start a thread: %s", strerror(failure));
    return KVF_OK;
}

static enum kvf_status cma_open(const struct kvfi_transport_config *config, struct kvfi_transport **out,
                                struct kvf_error *error)
{
    struct kvfi_transport *transport = kvfi_alloc_zeroed(1, sizeof *transport);
    enum kvf_status status;

    if (!transport) return kvfi_fail_memory(error, "a transport");
    transport->config = *config;
    transport->config.host = transport->config.self = transport->config.fault_policy = NULL;
    transport->epoll = transport->wake = -1;
    pthread_mutex_init(&transport->lock, NULL);
    pthread_cond_init(&transport->changed, NULL);
    status = kvfi_queue_init(&transport->queue, config->log, error);
    transport->queue_made = status == KVF_OK;
    if (status == KVF_OK) status = open_descriptors(transport, error);
    if (status == KVF_OK) status = start_threads(transport, error);
    if (status == KVF_OK) *out = transport;
    else cma_close(transport);
    return status;
}

static void cma_endpoint(struct kvfi_transport *transport, char *text)
{
    (void)transport;
    kvfi_cma_endpoint_format(text);
}

static int cma_event_fd(struct kvfi_transport *transport)
{
    return transport->queue.fd;
}

static size_t cma_events(struct kvfi_transport *transport, struct kvfi_transport_event *events, size_t capacity)
{
    return kvfi_queue_take(&transport->queue, events, capacity);
}

static enum kvf_status cma_probe(struct kvfi_transport *transport, const char *endpoint, struct kvf_error *error)
{
    enum kvf_status status;
    int pidfd = -1;
    pid_t pid;

    (void)transport;
    status = kvfi_cma_endpoint_parse(endpoint, &pid, error);
    if (status == KVF_OK) status = kvfi_cma_process_open(pid, &pidfd, error);
    kvfi_cma_process_close(pidfd);
    return status;
}

const struct kvfi_transport_ops kvfi_cma_ops = {
    .struct_size = sizeof(struct kvfi_transport_ops),
    .version = 1,
    .name = "cma",
    .bit = 8,
    .caps = KVFI_CAP_RANGES | KVFI_CAP_REMOTE_WRITES,
    .open = cma_open,
    .close = cma_close,
    .endpoint = cma_endpoint,
    .event_fd = cma_event_fd,
    .events = cma_events,
    .arm = kvfi_no_arm,
    .disarm = kvfi_nothing_armed,
    .probe = cma_probe,
    .connect = kvfi_cma_connect,
    .disconnect = kvfi_cma_disconnect,
    .post_chunk = kvfi_no_chunks,
    .abort = kvfi_cma_abort,
    .post_ranges = kvfi_cma_post_ranges,
};
