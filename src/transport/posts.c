/* SPDX-License-Identifier: Apache-2.0 */
/* All with the lock held, but for connecting and moving. */
#include "transport/posts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/thread.h"

/* ---- whose turn it is ------------------------------------------------------------------------------------------- */

static void *post_thread(void *thread);

/* Returns 0, or the number of an error. */
static int add_thread(struct kvfi_posts *posts)
{
    struct kvfi_post_thread *thread = &posts->threads[posts->thread_count];
    int failure;

    thread->posts = posts;
    thread->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (thread->wake_fd < 0) return errno;
    failure = kvfi_thread_start(&thread->thread, post_thread, thread);
    if (failure == 0) posts->thread_count++;
    else close(thread->wake_fd);
    return failure;
}

/* A thread for what nobody would take: `spare` threads are about to look by themselves. */
static void find_thread(struct kvfi_posts *posts, size_t spare)
{
    if (posts->stopping || posts->ready_count <= spare) return;
    if (posts->ready_count <= posts->idle_threads + spare) {
        pthread_cond_signal(&posts->changed);
    } else if (posts->thread_count < posts->ops->max_threads) {
        (void)add_thread(posts); /* where there can be no more, those there are take it later */
    }
}

/* With threads getting scarce each peer has one, so that those which stand still leave some to the others. */
static bool may_run(const struct kvfi_posts *posts, const struct kvfi_post_peer *peer)
{
    bool plenty = posts->ops->stays_busy || posts->running_count < posts->ops->max_threads / 2;

    return peer->queued > 0 && (peer->running == 0 || (plenty && peer->running < posts->peer_threads));
}

static void make_ready(struct kvfi_posts *posts, struct kvfi_post_peer *peer, size_t spare)
{
    if (peer->is_ready || !may_run(posts, peer)) return;
    peer->is_ready = true;
    peer->next_ready = NULL;
    *(posts->ready_first ? &posts->ready_last->next_ready : &posts->ready_first) = peer;
    posts->ready_last = peer;
    posts->ready_count++;
    find_thread(posts, spare);
}

static void remove_ready(struct kvfi_posts *posts, struct kvfi_post_peer *peer)
{
    struct kvfi_post_peer *before = NULL;

    if (!peer->is_ready) return;
    for (struct kvfi_post_peer *at = posts->ready_first; at != peer; at = at->next_ready) before = at;
    *(before ? &before->next_ready : &posts->ready_first) = peer->next_ready;
    if (posts->ready_last == peer) posts->ready_last = before;
    peer->is_ready = false;
    posts->ready_count--;
}

static void queue_post(struct kvfi_posts *posts, struct kvfi_post *post)
{
    struct kvfi_post_peer *peer = post->peer;

    post->wake_fd = -1;
    *(peer->first ? &peer->last->next : &peer->first) = post;
    peer->last = post;
    peer->queued++;
    make_ready(posts, peer, 0);
}

/* Takes the next post of the peer whose turn it is; its other posts may follow. */
static struct kvfi_post *begin_post(struct kvfi_posts *posts, int wake_fd)
{
    struct kvfi_post_peer *peer = posts->ready_first;
    struct kvfi_post *post = peer->first;
    eventfd_t ignored;

    eventfd_read(wake_fd, &ignored);
    remove_ready(posts, peer);
    peer->first = post->next;
    if (!peer->first) peer->last = NULL;
    peer->queued--;
    peer->running++;
    post->wake_fd = wake_fd;
    post->next = posts->running;
    posts->running = post;
    posts->running_count++;
    make_ready(posts, peer, 0);
    return post;
}

static void leave_running(struct kvfi_posts *posts, struct kvfi_post *post)
{
    struct kvfi_post **at = &posts->running;

    while (*at != post) at = &(*at)->next;
    *at = post->next;
    posts->running_count--;
    post->peer->running--;
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

    if (!peer->ended || peer->queued > 0 || peer->running > 0) return;
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
    if (atomic_load(&post->stop)) return;
    post->stop_status = status;
    snprintf(post->stop_text, sizeof post->stop_text, "%s", text);
    atomic_store(&post->stop, true);
    eventfd_write(post->wake_fd, 1);
}

static bool is_meant(const struct kvfi_post *post, const uint64_t *cookie)
{
    return !cookie || (post->cookie == *cookie && !post->connects);
}

/* Ends the posts of a peer, of one cookie unless all: those under way as soon as they can stop. */
static void stop_posts(struct kvfi_posts *posts, struct kvfi_post_peer *peer, const uint64_t *cookie,
                       enum kvf_status status, const char *text)
{
    struct kvfi_post **at = &peer->first;

    peer->last = NULL;
    while (*at) {
        struct kvfi_post *post = *at;

        if (is_meant(post, cookie)) {
            *at = post->next;
            peer->queued--;
            finish_post(posts, post, status, 0, text);
        } else {
            peer->last = post;
            at = &post->next;
        }
    }
    if (peer->queued == 0) remove_ready(posts, peer);
    for (struct kvfi_post *post = posts->running; post; post = post->next)
        if (post->peer == peer && is_meant(post, cookie)) stop_post(post, status, text);
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

static void connected(struct kvfi_posts *posts, struct kvfi_post *post, enum kvf_status status, const char *text)
{
    struct kvfi_post_peer *peer = post->peer;

    finish_post(posts, post, KVF_OK, 0, NULL);
    if (!peer->ended) {
        kvfi_tell_connected(posts->queue, peer->number, status, status == KVF_OK ? NULL : text);
        peer->connected = status == KVF_OK;
        peer->quietly = status != KVF_OK;
        if (peer->connected && posts->ops->watch) posts->ops->watch(posts->owner, peer);
    }
    if (status != KVF_OK) kvfi_posts_end(posts, peer, status, text);
    else settle(posts, peer);
}

/* Who was asked to stop and did not come to the end says why it was asked. */
static void moved(struct kvfi_posts *posts, struct kvfi_post *post, enum kvf_status status, int64_t bytes,
                  const char *text)
{
    struct kvfi_post_peer *peer = post->peer;
    char why[KVF_ERROR_TEXT_BYTES];
    bool whole = status == KVF_OK && bytes == post->source.bytes;

    snprintf(why, sizeof why, "%s", text);
    if (!whole && atomic_load(&post->stop)) {
        status = post->stop_status;
        snprintf(why, sizeof why, "%s", post->stop_text);
    }
    finish_post(posts, post, status, bytes, why);
    if (status == KVF_ERR_PEER_LOST) kvfi_posts_end(posts, peer, status, why);
    else settle(posts, peer);
}

static void run_post(struct kvfi_posts *posts, int wake_fd)
{
    struct kvfi_post *post = begin_post(posts, wake_fd);
    struct kvf_error error = {.text = ""};
    enum kvf_status status;
    int64_t bytes = 0;

    pthread_mutex_unlock(&posts->lock);
    status = post->connects ? posts->ops->connect(posts->owner, post->peer, post, &error)
                            : posts->ops->move(posts->owner, post, &bytes, &error);
    pthread_mutex_lock(&posts->lock);
    leave_running(posts, post);
    make_ready(posts, post->peer, 1);
    if (post->connects) connected(posts, post, status, error.text);
    else moved(posts, post, status, bytes, error.text);
}

static void *post_thread(void *argument)
{
    struct kvfi_post_thread *thread = argument;
    struct kvfi_posts *posts = thread->posts;

    pthread_mutex_lock(&posts->lock);
    while (!posts->stopping) {
        if (posts->ready_first) {
            run_post(posts, thread->wake_fd);
        } else {
            posts->idle_threads++;
            pthread_cond_wait(&posts->changed, &posts->lock);
            posts->idle_threads--;
        }
    }
    pthread_mutex_unlock(&posts->lock);
    return NULL;
}

/* ---- init and fini ---------------------------------------------------------------------------------------------- */

enum kvf_status kvfi_posts_init(struct kvfi_posts *posts, const struct kvfi_posts_ops *ops, void *owner,
                                struct kvfi_queue *queue, struct kvf_error *error)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int failure;

    memset(posts, 0, sizeof *posts);
    posts->ops = ops;
    posts->owner = owner;
    posts->queue = queue;
    posts->peer_threads = ops->peer_threads;
    if (processors > 0 && processors < posts->peer_threads) posts->peer_threads = processors;
    pthread_mutex_init(&posts->lock, NULL);
    pthread_cond_init(&posts->changed, NULL);
    failure = add_thread(posts);
    if (failure == 0) return KVF_OK;
    pthread_cond_destroy(&posts->changed);
    pthread_mutex_destroy(&posts->lock);
    return kvfi_fail(error, KVF_ERR_SYSTEM, "%s: cannot start a thread: %s", ops->name, strerror(failure));
}

static void drop_peer(struct kvfi_posts *posts, struct kvfi_post_peer *peer)
{
    while (peer->first) {
        struct kvfi_post *post = peer->first;

        peer->first = post->next;
        free_post(post);
    }
    posts->ops->free_peer(posts->owner, peer);
}

void kvfi_posts_fini(struct kvfi_posts *posts)
{
    pthread_mutex_lock(&posts->lock);
    posts->stopping = true;
    for (struct kvfi_post *post = posts->running; post; post = post->next) stop_post(post, KVF_ERR_CLOSED, "closed");
    pthread_cond_broadcast(&posts->changed);
    pthread_mutex_unlock(&posts->lock);
    for (size_t i = 0; i < posts->thread_count; i++) {
        pthread_join(posts->threads[i].thread, NULL);
        close(posts->threads[i].wake_fd);
    }
    while (posts->peers) {
        struct kvfi_post_peer *peer = posts->peers;

        posts->peers = peer->next;
        drop_peer(posts, peer);
    }
    pthread_cond_destroy(&posts->changed);
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
    atomic_init(&post->stop, false);
    post->peer = peer;
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
        queue_post(posts, post);
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
        queue_post(posts, post);
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
