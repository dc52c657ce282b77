/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/cma/cma.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "transport/cma/inside.h"

static void cma_close(struct kvfi_transport *transport)
{
    if (!transport) return;
    kvfi_watcher_stop(&transport->watcher);
    if (transport->posts_made) kvfi_posts_fini(&transport->posts);
    kvfi_watcher_close(&transport->watcher);
    if (transport->queue_made) kvfi_queue_fini(&transport->queue);
    free(transport);
}

static const struct kvfi_posts_ops POSTS = {
    .name = "cma",
    .max_threads = KVFI_CMA_THREADS,
    .peer_threads = KVFI_CMA_THREADS,
    .stays_busy = true,
    .move = kvfi_cma_copy,
    .free_peer = kvfi_cma_free_peer,
};

static enum kvf_status cma_open(const struct kvfi_transport_config *config, struct kvfi_transport **out,
                                struct kvf_error *error)
{
    struct kvfi_transport *transport = kvfi_alloc_zeroed(1, sizeof *transport);
    enum kvf_status status;

    if (!transport) return kvfi_fail_memory(error, "a transport");
    transport->config = *config;
    transport->config.host = transport->config.self = transport->config.fault_policy = NULL;
    transport->watcher.epoll = transport->watcher.wake = -1;
    status = kvfi_queue_init(&transport->queue, config->log, error);
    transport->queue_made = status == KVF_OK;
    if (status == KVF_OK) status = kvfi_posts_init(&transport->posts, &POSTS, transport, &transport->queue, error);
    transport->posts_made = status == KVF_OK;
    if (status == KVF_OK) status = kvfi_watcher_open(&transport->watcher, "cma", transport, kvfi_cma_on_death, error);
    if (status == KVF_OK) *out = transport;
    else cma_close(transport);
    return status;
}

static void cma_disconnect(struct kvfi_transport *transport, uint64_t peer)
{
    kvfi_posts_disconnect(&transport->posts, peer);
}

static enum kvf_status cma_post_ranges(struct kvfi_transport *transport, uint64_t peer,
                                       const struct kvfi_range_source *source, uint64_t cookie,
                                       struct kvf_error *error)
{
    return kvfi_posts_post(&transport->posts, peer, source, cookie, error);
}

static void cma_abort(struct kvfi_transport *transport, uint64_t peer, uint64_t cookie)
{
    kvfi_posts_abort(&transport->posts, peer, cookie);
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
    .disconnect = cma_disconnect,
    .post_chunk = kvfi_no_chunks,
    .abort = cma_abort,
    .post_ranges = cma_post_ranges,
};
