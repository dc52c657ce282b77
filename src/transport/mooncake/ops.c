/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/mooncake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "transport/mooncake/posts.h"

enum { MAX_LANES = 64 };

/* The owner fills regions after open, before it tells anyone the endpoint and before it posts. Called by its thread. */
static void know_memories(struct kvfi_transport *transport)
{
    struct kvf_error error;

    for (size_t i = 0; i < transport->config.memory_count; i++) {
        const struct kvfi_memory_region *memory = &transport->config.memories[i];
        const struct kvf_mooncake_buffer buffer = {(uint64_t)(uintptr_t)memory->address,
                                                   memory->bytes > 0 ? (uint64_t)memory->bytes : 0};

        if (transport->known[i] || !memory->address || memory->bytes <= 0) continue;
        transport->known[i] = true;
        if (kvf_mooncake_register(transport->engine, &buffer, 1, &error) != KVF_OK)
            kvfi_logf(transport->config.log, KVF_LOG_ERROR, "mooncake: memory %zu: %s", i, error.text);
    }
}

/* ---- open and close --------------------------------------------------------------------------------------------- */

static void moon_close(struct kvfi_transport *transport)
{
    if (!transport) return;
    kvfi_watcher_stop(&transport->watcher);
    if (transport->posts_made) kvfi_posts_fini(&transport->posts);
    kvfi_watcher_close(&transport->watcher);
    kvf_mooncake_close(transport->engine);
    if (transport->queue_made) kvfi_queue_fini(&transport->queue);
    free(transport->known);
    free(transport);
}

static enum kvf_status open_engine(struct kvfi_transport *transport, const struct kvfi_transport_config *config,
                                   struct kvf_error *error)
{
    struct kvf_mooncake_options options;

    kvf_mooncake_options_init(&options, sizeof options);
    options.host = config->host;
    options.lanes = config->streams < 1 ? 1 : config->streams > 16 ? 16 : (int32_t)config->streams;
    options.max_lanes = MAX_LANES;
    if (config->connect_timeout_ns > 0) options.connect_timeout_ns = config->connect_timeout_ns;
    return kvfi_moon_open(&options, config->log, &transport->engine, error);
}

static enum kvf_status moon_open(const struct kvfi_transport_config *config, struct kvfi_transport **out,
                                 struct kvf_error *error)
{
    struct kvfi_transport *transport = kvfi_alloc_zeroed(1, sizeof *transport);
    enum kvf_status status;

    if (!transport) return kvfi_fail_memory(error, "a transport");
    transport->config = *config;
    transport->config.host = transport->config.self = transport->config.fault_policy = NULL;
    transport->watcher.epoll = transport->watcher.wake = -1;
    transport->known = kvfi_alloc_zeroed(config->memory_count, sizeof *transport->known);
    status = transport->known ? kvfi_queue_init(&transport->queue, config->log, error)
                              : kvfi_fail_memory(error, "a list of memories");
    transport->queue_made = status == KVF_OK;
    if (status == KVF_OK) status = open_engine(transport, config, error);
    if (status == KVF_OK)
        status = kvfi_posts_init(&transport->posts, &kvfi_moon_posts, transport, &transport->queue, error);
    transport->posts_made = status == KVF_OK;
    if (status == KVF_OK)
        status = kvfi_watcher_open(&transport->watcher, "mooncake", transport, kvfi_moon_peer_closed, error);
    if (status == KVF_OK) {
        know_memories(transport);
        *out = transport;
    } else {
        moon_close(transport);
    }
    return status;
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static void moon_endpoint(struct kvfi_transport *transport, char *text)
{
    know_memories(transport);
    snprintf(text, KVFI_ENDPOINT_BYTES, "%s", kvf_mooncake_segment_name(transport->engine));
}

static int moon_event_fd(struct kvfi_transport *transport)
{
    return transport->queue.fd;
}

static size_t moon_events(struct kvfi_transport *transport, struct kvfi_transport_event *events, size_t capacity)
{
    return kvfi_queue_take(&transport->queue, events, capacity);
}

/* Names that other programs guess a port for are none of an endpoint. */
static enum kvf_status moon_probe(struct kvfi_transport *transport, const char *endpoint, struct kvf_error *error)
{
    struct kvfi_moon_address address;
    char name[KVF_MOONCAKE_NAME_BYTES];
    enum kvf_status status = kvfi_moon_parse_name(endpoint, &address, error);

    (void)transport;
    if (status != KVF_OK) return status;
    kvfi_moon_format_name(address.host, address.port, name);
    if (strcmp(name, endpoint) != 0)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "endpoint \"%.100s\": expected HOST:PORT", endpoint);
    return status;
}

static enum kvf_status moon_connect(struct kvfi_transport *transport, const char *endpoint,
                                    const struct kvfi_peer_identity *expected, uint64_t *number,
                                    struct kvf_error *error)
{
    enum kvf_status status = moon_probe(transport, endpoint, error);
    struct kvfi_moon_peer *peer;

    (void)expected; /* a segment is its address */
    if (status != KVF_OK) return status;
    peer = kvfi_alloc_zeroed(1, sizeof *peer);
    if (!peer) return kvfi_fail_memory(error, "a peer");
    snprintf(peer->endpoint, sizeof peer->endpoint, "%s", endpoint);
    pthread_mutex_lock(&transport->posts.lock);
    status = kvfi_posts_add(&transport->posts, &peer->base, number, error);
    pthread_mutex_unlock(&transport->posts.lock);
    if (status != KVF_OK) free(peer);
    return status;
}

static void moon_disconnect(struct kvfi_transport *transport, uint64_t peer)
{
    kvfi_posts_disconnect(&transport->posts, peer);
}

static enum kvf_status moon_post_ranges(struct kvfi_transport *transport, uint64_t peer,
                                        const struct kvfi_range_source *source, uint64_t cookie,
                                        struct kvf_error *error)
{
    know_memories(transport);
    return kvfi_posts_post(&transport->posts, peer, source, cookie, error);
}

static void moon_abort(struct kvfi_transport *transport, uint64_t peer, uint64_t cookie)
{
    kvfi_posts_abort(&transport->posts, peer, cookie);
}

const struct kvfi_transport_ops kvfi_mooncake_ops = {
    .struct_size = sizeof(struct kvfi_transport_ops),
    .version = 1,
    .name = "mooncake",
    .bit = 16,
    .caps = KVFI_CAP_RANGES | KVFI_CAP_REMOTE_WRITES,
    .open = moon_open,
    .close = moon_close,
    .endpoint = moon_endpoint,
    .event_fd = moon_event_fd,
    .events = moon_events,
    .arm = kvfi_no_arm,
    .disarm = kvfi_nothing_armed,
    .probe = moon_probe,
    .connect = moon_connect,
    .disconnect = moon_disconnect,
    .post_chunk = kvfi_no_chunks,
    .abort = moon_abort,
    .post_ranges = moon_post_ranges,
};
