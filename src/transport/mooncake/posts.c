/* SPDX-License-Identifier: Apache-2.0 */
/* Peers and posts, from connect and post to their events. All with the lock held, but for the moving. */
#include "transport/mooncake/posts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"

static struct kvfi_moon_peer *find_peer(struct kvfi_transport *transport, uint64_t number)
{
    struct kvfi_moon_peer *peer = transport->peers;

    while (peer && (peer->number != number || peer->ended)) peer = peer->next;
    return peer;
}

/* ---- ends ------------------------------------------------------------------------------------------------------- */

static void free_post(struct kvfi_moon_post *post)
{
    if (post->source.destroy) post->source.destroy(post->source.context);
    free(post);
}

static void free_peer(struct kvfi_transport *transport, struct kvfi_moon_peer *peer)
{
    if (peer->watched) kvfi_moon_lane_drop(transport->engine, peer->segment, peer->watched);
    free(peer);
}

/* A peer that has ended goes once nothing is left of it. */
static void settle(struct kvfi_transport *transport, struct kvfi_moon_peer *peer)
{
    struct kvfi_moon_peer **at = &transport->peers;

    if (!peer->ended || peer->posts > 0) return;
    if (!peer->quietly) kvfi_tell_peer_down(&transport->queue, peer->number, peer->status, peer->text);
    while (*at != peer) at = &(*at)->next;
    *at = peer->next;
    free_peer(transport, peer);
}

/* Ends a post that no thread has: its source is given up, then its event goes out. */
static void finish_post(struct kvfi_transport *transport, struct kvfi_moon_post *post, enum kvf_status status,
                        int64_t bytes, const char *text)
{
    struct kvfi_transport_event event = {.kind = KVFI_TEV_POSTED, .status = status, .peer = post->peer->number,
                                         .cookie = post->cookie, .bytes = bytes};
    bool connects = post->connects;

    if (text) snprintf(event.text, sizeof event.text, "%s", text);
    post->peer->posts--;
    free_post(post);
    if (!connects) kvfi_queue_push(&transport->queue, &event);
}

static void stop_post(struct kvfi_moon_post *post, enum kvf_status status, const char *text)
{
    if (atomic_load(&post->stop)) return;
    post->stop_status = status;
    snprintf(post->stop_text, sizeof post->stop_text, "%s", text);
    atomic_store(&post->stop, true);
    eventfd_write(post->wake, 1);
}

/* Ends the posts of a peer, of one cookie unless all: those under way as soon as their requests are answered. */
static void stop_posts(struct kvfi_transport *transport, struct kvfi_moon_peer *peer, const uint64_t *cookie,
                       enum kvf_status status, const char *text)
{
    struct kvfi_moon_post **at = &transport->first;

    transport->last = NULL;
    while (*at) {
        struct kvfi_moon_post *post = *at;

        if (post->peer == peer && (!cookie || (post->cookie == *cookie && !post->connects))) {
            *at = post->next;
            finish_post(transport, post, status, 0, text);
        } else {
            transport->last = post;
            at = &post->next;
        }
    }
    for (struct kvfi_moon_post *post = transport->running; post; post = post->next) {
        if (post->peer == peer && (!cookie || (post->cookie == *cookie && !post->connects)))
            stop_post(post, status, text);
    }
}

static void end_peer(struct kvfi_transport *transport, struct kvfi_moon_peer *peer, enum kvf_status status,
                     const char *text)
{
    if (peer->ended) return;
    peer->ended = true;
    peer->status = status;
    snprintf(peer->text, sizeof peer->text, "%s", text);
    if (peer->watched) epoll_ctl(transport->epoll, EPOLL_CTL_DEL, peer->watched->fd, NULL);
    stop_posts(transport, peer, NULL, status, peer->text);
}

void kvfi_moon_posts_stop(struct kvfi_transport *transport)
{
    for (struct kvfi_moon_post *post = transport->running; post; post = post->next)
        stop_post(post, KVF_ERR_CLOSED, "closed");
}

/* ---- connecting ------------------------------------------------------------------------------------------------- */

static enum kvf_status reach(struct kvfi_transport *transport, const struct kvfi_moon_peer *peer,
                             const struct kvfi_moon_limit *limit, struct kvfi_moon_segment **segment,
                             struct kvfi_moon_lane **lane, struct kvf_error *error)
{
    enum kvf_status status = kvfi_moon_open_segment(transport->engine, peer->endpoint, limit, segment, error);

    if (status == KVF_OK) status = kvfi_moon_lane_take(transport->engine, *segment, true, true, limit, lane, error);
    return status;
}

/* One thread has it; the lock is not held. */
static void connect_peer(struct kvfi_transport *transport, struct kvfi_moon_post *post)
{
    const struct kvfi_moon_limit limit = {.deadline_ns = kvfi_now_ns() + transport->config.connect_timeout_ns,
                                          .stop = &post->stop, .wake_fd = post->wake};
    struct kvfi_moon_peer *peer = post->peer;
    struct kvfi_moon_segment *segment = NULL;
    struct kvfi_moon_lane *lane = NULL;
    struct kvf_error error = {.text = ""};
    enum kvf_status status = reach(transport, peer, &limit, &segment, &lane, &error);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = peer->number};

    pthread_mutex_lock(&transport->lock);
    peer->segment = segment;
    peer->watched = lane;
    if (!peer->ended) {
        if (lane) epoll_ctl(transport->epoll, EPOLL_CTL_ADD, lane->fd, &event);
        kvfi_tell_connected(&transport->queue, peer->number, status, status == KVF_OK ? NULL : error.text);
        peer->quietly = status != KVF_OK;
        if (status != KVF_OK) end_peer(transport, peer, status, error.text);
    }
    pthread_mutex_unlock(&transport->lock);
}

/* ---- moving ----------------------------------------------------------------------------------------------------- */

/* The ranges of a post, checked against what was announced. */
struct given {
    const struct kvfi_range_source *source;
    int64_t left;
    int64_t range; /* number of the next one */
    struct kvf_error bad; /* once there is a text: what is wrong with that one */
};

/* True when the range may follow; else `bad` says why not. */
static bool fits(struct given *given, const struct kvfi_range *range)
{
    if (range->bytes < 0)
        kvfi_fail(&given->bad, KVF_ERR_INVALID_ARGUMENT, "range %" PRId64 " has %" PRId64 " bytes", given->range,
                  range->bytes);
    else if (range->bytes > given->left)
        kvfi_fail(&given->bad, KVF_ERR_INVALID_ARGUMENT, "range %" PRId64 " has %" PRId64 " bytes, only %" PRId64
                  " of the %" PRId64 " announced are left", given->range, range->bytes, given->left,
                  given->source->bytes);
    return given->bad.text[0] == '\0';
}

/* Those before a bad one are moved; the call after them fails. */
static ssize_t next_given(void *context, struct kvfi_moon_item *out, size_t capacity, struct kvf_error *error)
{
    struct given *given = context;
    struct kvfi_range ranges[KVFI_MOON_FETCHED];
    size_t count = 0, taken = 0;

    if (capacity > KVFI_MOON_FETCHED) capacity = KVFI_MOON_FETCHED;
    if (!given->bad.text[0]) {
        count = given->source->next(given->source->context, ranges, capacity);
        if (count == 0 && given->left > 0)
            kvfi_fail(&given->bad, KVF_ERR_INVALID_ARGUMENT, "%" PRId64 " ranges came, %" PRId64 " bytes short of the %"
                      PRId64 " announced", given->range, given->left, given->source->bytes);
    }
    for (; taken < count && taken < capacity && fits(given, &ranges[taken]); taken++) {
        out[taken] = (struct kvfi_moon_item){.local = ranges[taken].src_address, .remote = ranges[taken].dst_address,
                                             .bytes = (uint64_t)ranges[taken].bytes};
        given->left -= ranges[taken].bytes;
        given->range++;
    }
    if (taken > 0 || !given->bad.text[0]) return (ssize_t)taken;
    *error = given->bad;
    return -1;
}

static void move_ranges(struct kvfi_transport *transport, struct kvfi_moon_post *post, struct kvfi_moon_job *job)
{
    struct given given = {.source = &post->source, .left = post->source.bytes, .bad = {.text = ""}};

    memset(job, 0, sizeof *job);
    job->engine = transport->engine;
    job->segment = post->peer->segment;
    job->is_write = job->stop_at_failure = true;
    job->limit = (struct kvfi_moon_limit){.deadline_ns = INT64_MAX / 2, .stop = &post->stop, .wake_fd = post->wake};
    job->next = next_given;
    job->context = &given;
    kvfi_moon_run(job);
    /* A peer that was connected and no longer takes connections is gone. */
    if (job->status == KVF_ERR_UNREACHABLE) job->status = KVF_ERR_PEER_LOST;
}

static void moved(struct kvfi_transport *transport, struct kvfi_moon_post *post, const struct kvfi_moon_job *job)
{
    struct kvfi_moon_peer *peer = post->peer;
    enum kvf_status status = job->status;
    char text[KVF_ERROR_TEXT_BYTES] = "";

    if (status != KVF_OK) snprintf(text, sizeof text, "%s", job->error.text);
    if (status != KVF_OK && atomic_load(&post->stop)) {
        status = post->stop_status;
        snprintf(text, sizeof text, "%s", post->stop_text);
    }
    finish_post(transport, post, status, job->bytes_done, status == KVF_OK ? NULL : text);
    if (status == KVF_ERR_PEER_LOST) end_peer(transport, peer, status, text);
    settle(transport, peer);
}

/* ---- the threads ------------------------------------------------------------------------------------------------ */

static void begin(struct kvfi_transport *transport, struct kvfi_moon_post *post, int wake)
{
    eventfd_t ignored;

    eventfd_read(wake, &ignored);
    transport->first = post->next;
    if (!transport->first) transport->last = NULL;
    post->next = transport->running;
    transport->running = post;
    post->wake = wake;
}

static void end(struct kvfi_transport *transport, struct kvfi_moon_post *post)
{
    struct kvfi_moon_post **at = &transport->running;

    while (*at != post) at = &(*at)->next;
    *at = post->next;
}

void *kvfi_moon_post_thread(void *argument)
{
    struct kvfi_moon_poster *poster = argument;
    struct kvfi_transport *transport = poster->owner;
    struct kvfi_moon_job job;

    pthread_mutex_lock(&transport->lock);
    while (!transport->stopping) {
        struct kvfi_moon_post *post = transport->first;
        struct kvfi_moon_peer *peer;

        if (!post) {
            pthread_cond_wait(&transport->changed, &transport->lock);
            continue;
        }
        peer = post->peer;
        begin(transport, post, poster->wake);
        pthread_mutex_unlock(&transport->lock);
        if (post->connects) connect_peer(transport, post);
        else move_ranges(transport, post, &job);
        pthread_mutex_lock(&transport->lock);
        end(transport, post);
        if (post->connects) {
            finish_post(transport, post, KVF_OK, 0, NULL);
            settle(transport, peer);
        } else {
            moved(transport, post, &job);
        }
    }
    pthread_mutex_unlock(&transport->lock);
    return NULL;
}

void *kvfi_moon_watch_thread(void *argument)
{
    struct kvfi_transport *transport = argument;
    bool stopping = false;

    while (!stopping) {
        struct epoll_event events[16];
        int count = epoll_wait(transport->epoll, events, 16, -1);

        pthread_mutex_lock(&transport->lock);
        for (int i = 0; i < count; i++) {
            struct kvfi_moon_peer *peer = events[i].data.u64 != 0 ? find_peer(transport, events[i].data.u64) : NULL;
            char text[KVF_MOONCAKE_NAME_BYTES + 48];

            if (!peer) continue;
            snprintf(text, sizeof text, "peer %.100s closed its connections", peer->endpoint);
            end_peer(transport, peer, KVF_ERR_PEER_LOST, text);
            settle(transport, peer);
        }
        stopping = transport->stopping;
        pthread_mutex_unlock(&transport->lock);
    }
    return NULL;
}

/* ---- what the owner asks ---------------------------------------------------------------------------------------- */

static void queue_post(struct kvfi_transport *transport, struct kvfi_moon_post *post)
{
    post->wake = -1;
    post->peer->posts++;
    *(transport->first ? &transport->last->next : &transport->first) = post;
    transport->last = post;
    pthread_cond_signal(&transport->changed);
}

enum kvf_status kvfi_moon_peer_connect(struct kvfi_transport *transport, const char *endpoint, uint64_t *out,
                                       struct kvf_error *error)
{
    struct kvfi_moon_peer *peer = kvfi_alloc_zeroed(1, sizeof *peer);
    struct kvfi_moon_post *post = kvfi_alloc_zeroed(1, sizeof *post);

    if (!peer || !post) {
        free(peer);
        free(post);
        return kvfi_fail_memory(error, "a peer");
    }
    snprintf(peer->endpoint, sizeof peer->endpoint, "%s", endpoint);
    post->connects = true;
    post->peer = peer;
    atomic_init(&post->stop, false);
    pthread_mutex_lock(&transport->lock);
    *out = peer->number = ++transport->next_peer;
    peer->next = transport->peers;
    transport->peers = peer;
    queue_post(transport, post);
    pthread_mutex_unlock(&transport->lock);
    return KVF_OK;
}

void kvfi_moon_peer_disconnect(struct kvfi_transport *transport, uint64_t number)
{
    struct kvfi_moon_peer *peer;

    pthread_mutex_lock(&transport->lock);
    peer = find_peer(transport, number);
    if (peer) {
        peer->quietly = true;
        end_peer(transport, peer, KVF_ERR_CANCELLED, "disconnected");
        settle(transport, peer);
    }
    pthread_mutex_unlock(&transport->lock);
}

enum kvf_status kvfi_moon_post_ranges(struct kvfi_transport *transport, uint64_t number,
                                      const struct kvfi_range_source *source, uint64_t cookie, struct kvf_error *error)
{
    struct kvfi_moon_post *post = kvfi_alloc_zeroed(1, sizeof *post);
    enum kvf_status status = KVF_OK;

    if (!post) return kvfi_fail_memory(error, "a post");
    atomic_init(&post->stop, false);
    pthread_mutex_lock(&transport->lock);
    post->peer = find_peer(transport, number);
    if (source->bytes < 0)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "mooncake: a post of %" PRId64 " bytes", source->bytes);
    else if (!post->peer || !post->peer->watched)
        status = kvfi_fail(error, KVF_ERR_CLOSED, "mooncake: peer %" PRIu64 " is not connected", number);
    if (status == KVF_OK) {
        post->source = *source;
        post->cookie = cookie;
        queue_post(transport, post);
        post = NULL;
    }
    pthread_mutex_unlock(&transport->lock);
    free(post);
    return status;
}

void kvfi_moon_post_abort(struct kvfi_transport *transport, uint64_t number, uint64_t cookie)
{
    struct kvfi_moon_peer *peer;

    pthread_mutex_lock(&transport->lock);
    peer = find_peer(transport, number);
    if (peer) stop_posts(transport, peer, &cookie, KVF_ERR_CANCELLED, "aborted");
    pthread_mutex_unlock(&transport->lock);
}

void kvfi_moon_posts_fini(struct kvfi_transport *transport)
{
    while (transport->first) {
        struct kvfi_moon_post *post = transport->first;

        transport->first = post->next;
        free_post(post);
    }
    while (transport->peers) {
        struct kvfi_moon_peer *peer = transport->peers;

        transport->peers = peer->next;
        free_peer(transport, peer);
    }
}
