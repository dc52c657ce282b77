/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/posts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"

enum { POST_THREADS = 128, PEER_POSTS = 4 };

static struct kvfi_moon_peer *moon(struct kvfi_post_peer *peer)
{
    return (struct kvfi_moon_peer *)peer;
}

/* ---- peers ------------------------------------------------------------------------------------------------------ */

static enum kvf_status connect_peer(void *owner, struct kvfi_post_peer *base, const struct kvfi_post *post,
                                    struct kvf_error *error)
{
    struct kvfi_transport *transport = owner;
    struct kvfi_moon_peer *peer = moon(base);
    const struct kvfi_moon_limit limit = {.deadline_ns = kvfi_now_ns() + transport->config.connect_timeout_ns,
                                          .stop = &post->item.stop, .wake_fd = post->item.wake_fd};
    enum kvf_status status = kvfi_moon_acquire_named(transport->engine, peer->endpoint, &limit, &peer->segment, error);

    if (status == KVF_OK)
        status = kvfi_moon_lane_take(transport->engine, peer->segment, true, true, &limit, &peer->watched, error);
    return status;
}

static void watch_peer(void *owner, struct kvfi_post_peer *peer)
{
    struct kvfi_transport *transport = owner;
    struct kvf_error error;

    if (kvfi_watcher_add(&transport->watcher, moon(peer)->watched->fd, peer->number, &error) != KVF_OK)
        kvfi_logf(transport->config.log, KVF_LOG_WARN, "mooncake: peer %s: %s", moon(peer)->endpoint, error.text);
}

static void unwatch_peer(void *owner, struct kvfi_post_peer *peer)
{
    struct kvfi_transport *transport = owner;

    kvfi_watcher_remove(&transport->watcher, moon(peer)->watched->fd);
}

static void free_peer(void *owner, struct kvfi_post_peer *base)
{
    struct kvfi_transport *transport = owner;
    struct kvfi_moon_peer *peer = moon(base);

    if (peer->watched) kvfi_moon_lane_drop(transport->engine, peer->segment, peer->watched);
    kvfi_moon_release_segment(transport->engine, peer->segment);
    free(peer);
}

void kvfi_moon_peer_closed(void *owner, uint64_t number)
{
    struct kvfi_transport *transport = owner;
    struct kvfi_post_peer *peer;
    char text[KVF_MOONCAKE_NAME_BYTES + 48];

    pthread_mutex_lock(&transport->posts.lock);
    peer = kvfi_posts_find(&transport->posts, number);
    if (peer) {
        snprintf(text, sizeof text, "peer %.100s closed its connections", moon(peer)->endpoint);
        kvfi_posts_end(&transport->posts, peer, KVF_ERR_PEER_LOST, text);
    }
    pthread_mutex_unlock(&transport->posts.lock);
}

/* ---- moving ----------------------------------------------------------------------------------------------------- */

/* The ranges of a post, checked against what was announced. */
struct given {
    const struct kvfi_post *post;
    int64_t left;
    int64_t range; /* number of the next one */
    struct kvf_error bad; /* once there is a text: what is wrong with that one */
};

/* Those before a bad one are moved; the call after them fails. */
static ssize_t next_given(void *context, struct kvfi_moon_item *out, size_t capacity, struct kvf_error *error)
{
    struct given *given = context;
    const struct kvfi_range_source *source = &given->post->source;
    struct kvfi_range ranges[KVFI_MOON_FETCHED];
    size_t count = 0, taken = 0;

    if (capacity > KVFI_MOON_FETCHED) capacity = KVFI_MOON_FETCHED;
    if (!given->bad.text[0]) {
        count = source->next(source->context, ranges, capacity);
        if (count == 0) (void)kvfi_post_check_end(given->post, given->range, given->left, &given->bad);
    }
    for (; taken < count && taken < capacity; taken++) {
        if (kvfi_post_check(given->post, given->range, given->left, &ranges[taken], &given->bad) != KVF_OK) break;
        out[taken] = (struct kvfi_moon_item){.local = ranges[taken].src_address, .remote = ranges[taken].dst_address,
                                             .bytes = (uint64_t)ranges[taken].bytes};
        given->left -= ranges[taken].bytes;
        given->range++;
    }
    if (taken > 0 || !given->bad.text[0]) return (ssize_t)taken;
    *error = given->bad;
    return -1;
}

static enum kvf_status move_ranges(void *owner, struct kvfi_post *post, int64_t *bytes, struct kvf_error *error)
{
    struct kvfi_transport *transport = owner;
    struct given given = {.post = post, .left = post->source.bytes, .bad = {.text = ""}};
    struct kvfi_moon_job job;

    memset(&job, 0, sizeof job);
    job.engine = transport->engine;
    job.segment = moon(post->peer)->segment;
    job.is_write = job.stop_at_failure = true;
    job.wire = transport->config.wire;
    job.limit = (struct kvfi_moon_limit){.deadline_ns = INT64_MAX / 2, .stop = &post->item.stop,
                                         .wake_fd = post->item.wake_fd};
    job.next = next_given;
    job.context = &given;
    kvfi_moon_run(&job);
    *bytes = job.bytes_done;
    *error = job.error;
    /* A peer that was connected and no longer takes connections is gone. */
    return job.status == KVF_ERR_UNREACHABLE ? KVF_ERR_PEER_LOST : job.status;
}

const struct kvfi_posts_ops kvfi_moon_posts = {
    .name = "mooncake",
    .max_threads = POST_THREADS,
    .peer_threads = PEER_POSTS,
    .connect = connect_peer,
    .move = move_ranges,
    .watch = watch_peer,
    .unwatch = unwatch_peer,
    .free_peer = free_peer,
};
