/* SPDX-License-Identifier: Apache-2.0 */
/* All with the lock held, but for connecting and moving. */
#include "transport/posts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"

static struct kvfi_post *of(struct kvfi_crew_item *item)
{
    return (struct kvfi_post *)item;
}

/* ---- ends ------------------------------------------------------------------------------------------------------- */

static void free_post(struct kvfi_post *post)
{
    if (post->source.destroy) post->source.destroy(post->source.context);
    free(post);
}

/* A peer that has ended goes once nothing is left of it. */
static void settle(struct kvfi_posts *posts, struct kvfi_post_peer *peer)
{
    struct kvfi_post_peer **at = &posts->peers;

    if (!peer->ended || peer->lane.queued > 0 || peer->lane.running > 0) return;
    if (!peer->quietly) kvfi_tell_peer_down(posts->queue, peer->number, peer->status, peer->text);
    while (*at != peer) at = &(*at)->next;
    *at = peer->next;
    posts->ops->free_peer(posts->owner, peer);
}

/* Ends a post that no thread has: its source is given up, then its event goes out. */
static void finish_post(struct kvfi_posts *posts, struct kvfi_post *post, enum kvf_status status, int64_t bytes,
                        const char *text)
{
    struct kvfi_transport_event event = {.kind = KVFI_TEV_POSTED, .status = status, .peer = post->peer->number,
                                         .cookie = post->cookie, .bytes = bytes};
    bool connects = post->connects;

    if (status != KVF_OK) snprintf(event.text, sizeof event.text, "%s", text);
    free_post(post);
    if (!connects) kvfi_queue_push(posts->queue, &event);
}

static void stop_post(struct kvfi_post *post, enum kvf_status status, const char *text)
{
    if (atomic_load(&post->item.stop)) return;
    post->stop_status = status;
    snprintf(post->stop_text, sizeof post->stop_text, "%s", text);
    kvfi_crew_stop(&post->item);
}

static bool is_meant(const struct kvfi_post *post, const uint64_t *cookie)
{
    return !cookie || (post->cookie == *cookie && !post->connects);
}

/* Ends the posts of a peer, of one cookie unless all: those under way as soon as they can stop. */
static void stop_posts(struct kvfi_posts *posts, struct kvfi_post_peer *peer, const uint64_t *cookie,
                       enum kvf_status status, const char *text)
{
    struct kvfi_crew_item *next;

    for (struct kvfi_crew_item *item = peer->lane.first; item; item = next) {
        next = item->next;
        if (!is_meant(of(item), cookie)) continue;
        kvfi_crew_drop(&posts->crew, item);
        finish_post(posts, of(item), status, 0, text);
    }
    for (struct kvfi_crew_item *item = posts->crew.running; item; item = item->next)
        if (item->lane == &peer->lane && is_meant(of(item), cookie)) stop_post(of(item), status, text);
}

void kvfi_posts_end(struct kvfi_posts *posts, struct kvfi_post_peer *peer, enum kvf_status status, const char *text)
{
    if (!peer->ended) {
        peer->ended = true;
        peer->status = status;
        snprintf(peer->text, sizeof peer->text, "%s", text);
        if (peer->connected && posts->ops->unwatch) posts->ops->unwatch(posts->owner, peer);
        stop_posts(posts, peer, NULL, status, peer->text);
    }
    settle(posts, peer);
}

/* ---- the threads ------------------------------------------------------------------------------------------------ */

static void connected(struct kvfi_posts *posts, struct kvfi_post *post)
{
    struct kvfi_post_peer *peer = post->peer;
    const struct kvf_error error = post->error;
    enum kvf_status status = post->status;

    finish_post(posts, post, KVF_OK, 0, NULL);
    if (!peer->ended) {
        kvfi_tell_connected(posts->queue, peer->number, status, status == KVF_OK ? NULL : error.text);
        peer->connected = status == KVF_OK;
        peer->quietly = status != KVF_OK;
        if (peer->connected && posts->ops->watch) posts->ops->watch(posts->owner, peer);
    }
    if (status != KVF_OK) kvfi_posts_end(posts, peer, status, error.text);
    else settle(posts, peer);
}

/* Who was asked to stop and did not come to the end says why it was asked. */
static void moved(struct kvfi_posts *posts, struct kvfi_post *post)
{
    struct kvfi_post_peer *peer = post->peer;
    enum kvf_status status = post->status;
    char why[KVF_ERROR_TEXT_BYTES];
    bool whole = status == KVF_OK && post->bytes == post->source.bytes;

    snprintf(why, sizeof why, "%s", post->error.text);
    if (!whole && atomic_load(&post->item.stop)) {
        status = post->stop_status;
        snprintf(why, sizeof why, "%s", post->stop_text);
    }
    finish_post(posts, post, status, post->bytes, why);
    if (status == KVF_ERR_PEER_LOST) kvfi_posts_end(posts, peer, status, why);
    else settle(posts, peer);
}

static void run_post(void *owner, struct kvfi_crew_item *item)
{
    struct kvfi_posts *posts = owner;
    struct kvfi_post *post = of(item);

    post->error = (struct kvf_error){.text = ""};
    post->status = post->connects ? posts->ops->connect(posts->owner, post->peer, post, &post->error)
                                  : posts->ops->move(posts->owner, post, &post->bytes, &post->error);
}

static void post_ended(void *owner, struct kvfi_crew_item *item)
{
    struct kvfi_post *post = of(item);

    if (post->connects) connected(owner, post);
    else moved(owner, post);
}

/* ---- init and fini ---------------------------------------------------------------------------------------------- */

enum kvf_status kvfi_posts_init(struct kvfi_posts *posts, const struct kvfi_posts_ops *ops, void *owner,
                                struct kvfi_queue *queue, struct kvf_error *error)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t side_by_side = processors > 0 && processors < ops->peer_threads ? processors : ops->peer_threads;
    int failure;

    memset(posts, 0, sizeof *posts);
    posts->ops = ops;
    posts->owner = owner;
    posts->queue = queue;
    posts->rules = (struct kvfi_crew_rules){.max_threads = ops->max_threads, .lane_items = (size_t)side_by_side,
                                            .stays_busy = ops->stays_busy, .run = run_post, .ended = post_ended};
    pthread_mutex_init(&posts->lock, NULL);
    kvfi_crew_init(&posts->crew, &posts->rules, &posts->lock, posts);
    pthread_mutex_lock(&posts->lock);
    failure = kvfi_crew_start(&posts->crew);
    pthread_mutex_unlock(&posts->lock);
    if (failure == 0) return KVF_OK;
    kvfi_crew_fini(&posts->crew);
    pthread_mutex_destroy(&posts->lock);
    if (failure == ENOMEM) return kvfi_fail_memory(error, "a thread that posts");
    return kvfi_fail(error, KVF_ERR_SYSTEM, "%s: cannot start a thread: %s", ops->name, strerror(failure));
}

static void drop_peer(struct kvfi_posts *posts, struct kvfi_post_peer *peer)
{
    while (peer->lane.first) {
        struct kvfi_crew_item *item = peer->lane.first;

        kvfi_crew_drop(&posts->crew, item);
        free_post(of(item));
    }
    posts->ops->free_peer(posts->owner, peer);
}

void kvfi_posts_fini(struct kvfi_posts *posts)
{
    kvfi_crew_fini(&posts->crew);
    while (posts->peers) {
        struct kvfi_post_peer *peer = posts->peers;

        posts->peers = peer->next;
        drop_peer(posts, peer);
    }
    pthread_mutex_destroy(&posts->lock);
}

/* ---- what a source gives ---------------------------------------------------------------------------------------- */

enum kvf_status kvfi_post_check(const struct kvfi_post *post, int64_t number, int64_t left,
                                const struct kvfi_range *range, struct kvf_error *error)
{
    if (range->bytes < 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "range %" PRId64 " has %" PRId64 " bytes", number,
                         range->bytes);
    if (range->bytes > left)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "range %" PRId64 " has %" PRId64 " bytes, only %" PRId64
                         " of the %" PRId64 " announced are left", number, range->bytes, left, post->source.bytes);
    return KVF_OK;
}

enum kvf_status kvfi_post_check_end(const struct kvfi_post *post, int64_t number, int64_t left,
                                    struct kvf_error *error)
{
    if (left == 0) return KVF_OK;
    return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%" PRId64 " ranges came, %" PRId64 " bytes short of the %"
                     PRId64 " announced", number, left, post->source.bytes);
}

/* ---- what the owner asks ---------------------------------------------------------------------------------------- */

static struct kvfi_post *new_post(struct kvfi_post_peer *peer, struct kvf_error *error)
{
    struct kvfi_post *post = kvfi_alloc_zeroed(1, sizeof *post);

    if (!post) {
        kvfi_fail_memory(error, "a post");
        return NULL;
    }
    post->peer = peer;
    post->stop_status = KVF_ERR_CLOSED; /* of a stop that nobody asked for */
    snprintf(post->stop_text, sizeof post->stop_text, "closed");
    return post;
}

struct kvfi_post_peer *kvfi_posts_find(struct kvfi_posts *posts, uint64_t number)
{
    struct kvfi_post_peer *peer = posts->peers;

    while (peer && (peer->number != number || peer->ended)) peer = peer->next;
    return peer;
}

enum kvf_status kvfi_posts_add(struct kvfi_posts *posts, struct kvfi_post_peer *peer, uint64_t *number,
                               struct kvf_error *error)
{
    struct kvfi_post *post = posts->ops->connect ? new_post(peer, error) : NULL;

    if (posts->ops->connect && !post) return KVF_ERR_NO_MEMORY;
    *number = peer->number = ++posts->next_peer;
    peer->next = posts->peers;
    posts->peers = peer;
    if (post) {
        post->connects = true;
        (void)kvfi_crew_push(&posts->crew, &peer->lane, &post->item); /* there is a thread */
    } else {
        peer->connected = true;
        kvfi_tell_connected(posts->queue, peer->number, KVF_OK, NULL);
    }
    return KVF_OK;
}

void kvfi_posts_disconnect(struct kvfi_posts *posts, uint64_t number)
{
    struct kvfi_post_peer *peer;

    pthread_mutex_lock(&posts->lock);
    peer = kvfi_posts_find(posts, number);
    if (peer) {
        peer->quietly = true;
        kvfi_posts_end(posts, peer, KVF_ERR_CANCELLED, "disconnected");
    }
    pthread_mutex_unlock(&posts->lock);
}

enum kvf_status kvfi_posts_post(struct kvfi_posts *posts, uint64_t number, const struct kvfi_range_source *source,
                                uint64_t cookie, struct kvf_error *error)
{
    struct kvfi_post *post = new_post(NULL, error);
    enum kvf_status status = KVF_OK;

    if (!post) return KVF_ERR_NO_MEMORY;
    pthread_mutex_lock(&posts->lock);
    post->peer = kvfi_posts_find(posts, number);
    if (source->bytes < 0)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s: a post of %" PRId64 " bytes", posts->ops->name,
                           source->bytes);
    else if (!post->peer || !post->peer->connected)
        status = kvfi_fail(error, KVF_ERR_CLOSED, "%s: peer %" PRIu64 " is not connected", posts->ops->name, number);
    if (status == KVF_OK) {
        post->source = *source;
        post->cookie = cookie;
        (void)kvfi_crew_push(&posts->crew, &post->peer->lane, &post->item); /* there is a thread */
        post = NULL;
    }
    pthread_mutex_unlock(&posts->lock);
    free(post);
    return status;
}

void kvfi_posts_abort(struct kvfi_posts *posts, uint64_t number, uint64_t cookie)
{
    struct kvfi_post_peer *peer;

    pthread_mutex_lock(&posts->lock);
    peer = kvfi_posts_find(posts, number);
    if (peer) stop_posts(posts, peer, &cookie, KVF_ERR_CANCELLED, "aborted");
    pthread_mutex_unlock(&posts->lock);
}
