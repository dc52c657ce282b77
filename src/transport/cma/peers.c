/* SPDX-License-Identifier: Apache-2.0 */
/* Peers and posts, from connect and post to their events. All with the lock held, but for the copying. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/array.h"
#include "base/error.h"
#include "transport/cma/inside.h"

static struct kvfi_cma_peer *find_peer(struct kvfi_transport *transport, uint64_t number)
{
    struct kvfi_cma_peer *peer = transport->peers;

    while (peer && (peer->number != number || peer->ended)) peer = peer->next;
    return peer;
}

/* ---- ends ---------------------------------------------------------------------------------------------------- */

static void free_post(struct kvfi_cma_post *post)
{
    if (post->source.destroy) post->source.destroy(post->source.context);
    free(post);
}

/* A closed pidfd is watched no longer. */
static void release_process(struct kvfi_transport *transport, struct kvfi_cma_process *process)
{
    struct kvfi_cma_process **at = &transport->processes;

    if (--process->users > 0) return;
    while (*at != process) at = &(*at)->next;
    *at = process->next;
    kvfi_cma_process_close(process->fd);
    free(process);
}

static void free_peer(struct kvfi_transport *transport, struct kvfi_cma_peer *peer)
{
    if (peer->process) release_process(transport, peer->process);
    free(peer);
}

/* A peer that has ended goes once nothing is left of it. */
static void settle(struct kvfi_transport *transport, struct kvfi_cma_peer *peer)
{
    struct kvfi_cma_peer **at = &transport->peers;

    if (!peer->ended || peer->posts > 0) return;
    if (!peer->disconnected) kvfi_tell_peer_down(&transport->queue, peer->number, peer->status, peer->text);
    while (*at != peer) at = &(*at)->next;
    *at = peer->next;
    free_peer(transport, peer);
}

/* Ends a post that no data thread has: its source is given up, then its event goes out. */
static void finish_post(struct kvfi_transport *transport, struct kvfi_cma_post *post, enum kvf_status status,
                        int64_t bytes, const char *text)
{
    struct kvfi_transport_event event = {.kind = KVFI_TEV_POSTED, .status = status, .peer = post->peer->number,
                                         .cookie = post->cookie, .bytes = bytes};

    if (text) snprintf(event.text, sizeof event.text, "%s", text);
    post->peer->posts--;
    free_post(post);
    kvfi_queue_push(&transport->queue, &event);
}

/* Ends the posts of a peer, of one cookie unless all: those that are copied, before their next batch. */
static void stop_posts(struct kvfi_transport *transport, struct kvfi_cma_peer *peer, const uint64_t *cookie,
                       enum kvf_status status, const char *text)
{
    struct kvfi_cma_post **at = &transport->first;

    transport->last = NULL;
    while (*at) {
        struct kvfi_cma_post *post = *at;

        if (post->peer == peer && (!cookie || post->cookie == *cookie)) {
            *at = post->next;
            finish_post(transport, post, status, 0, text);
        } else {
            transport->last = post;
            at = &post->next;
        }
    }
    for (struct kvfi_cma_post *post = transport->copying; post; post = post->next) {
        if (post->peer != peer || (cookie && post->cookie != *cookie) || atomic_load(&post->stop)) continue;
        post->stop_status = status;
        snprintf(post->stop_text, sizeof post->stop_text, "%s", text);
        atomic_store(&post->stop, true);
    }
}

static void end_peer(struct kvfi_transport *transport, struct kvfi_cma_peer *peer, enum kvf_status status,
                     const char *text)
{
    if (peer->ended) return;
    peer->ended = true;
    peer->status = status;
    snprintf(peer->text, sizeof peer->text, "%s", text);
    stop_posts(transport, peer, NULL, status, peer->text);
}

/* ---- the data threads ---------------------------------------------------------------------------------------- */

static void begin_copying(struct kvfi_transport *transport, struct kvfi_cma_post *post)
{
    transport->first = post->next;
    if (!transport->first) transport->last = NULL;
    post->next = transport->copying;
    transport->copying = post;
}

static void end_copying(struct kvfi_transport *transport, struct kvfi_cma_post *post)
{
    struct kvfi_cma_post **at = &transport->copying;

    while (*at != post) at = &(*at)->next;
    *at = post->next;
}

static void copied(struct kvfi_transport *transport, struct kvfi_cma_post *post, int64_t bytes,
                   const struct kvf_error *error)
{
    enum kvf_status status = error ? (enum kvf_status)error->status : KVF_OK;
    struct kvfi_cma_peer *peer = post->peer;
    char text[KVF_ERROR_TEXT_BYTES] = "";
    bool whole = !error && bytes == post->source.bytes;

    end_copying(transport, post);
    if (error) {
        memcpy(text, error->text, sizeof text);
    } else if (!whole) {
        status = post->stop_status;
        snprintf(text, sizeof text, "%s", post->stop_text);
    }
    finish_post(transport, post, status, bytes, whole ? NULL : text);
    if (status == KVF_ERR_PEER_LOST) end_peer(transport, peer, status, text);
    settle(transport, peer);
}

void *kvfi_cma_data_thread(void *argument)
{
    struct kvfi_transport *transport = argument;

    pthread_mutex_lock(&transport->lock);
    while (!transport->stopping) {
        struct kvfi_cma_post *post = transport->first;
        enum kvf_status status;
        struct kvf_error error;
        int64_t bytes;

        if (!post) {
            pthread_cond_wait(&transport->changed, &transport->lock);
            continue;
        }
        begin_copying(transport, post);
        pthread_mutex_unlock(&transport->lock);
        status = kvfi_cma_copy(transport, post, &bytes, &error);
        pthread_mutex_lock(&transport->lock);
        copied(transport, post, bytes, status == KVF_OK ? NULL : &error);
    }
    pthread_mutex_unlock(&transport->lock);
    return NULL;
}

/* ---- the watcher ---------------------------------------------------------------------------------------------- */

static void on_death(struct kvfi_transport *transport, uint64_t number)
{
    struct kvfi_cma_process *process = transport->processes;
    struct kvfi_cma_peer *next;
    char text[64];

    while (process && process->number != number) process = process->next;
    if (!process) return;
    process->dead = true;
    epoll_ctl(transport->epoll, EPOLL_CTL_DEL, process->fd, NULL);
    snprintf(text, sizeof text, "process %ld has ended", (long)process->pid);
    process->users++; /* the last of its peers may go below */
    for (struct kvfi_cma_peer *peer = transport->peers; peer; peer = next) {
        next = peer->next;
        if (peer->process != process || peer->ended) continue;
        end_peer(transport, peer, KVF_ERR_PEER_LOST, text);
        settle(transport, peer);
    }
    release_process(transport, process);
}

void *kvfi_cma_watcher_thread(void *argument)
{
    struct kvfi_transport *transport = argument;
    bool stopping = false;

    while (!stopping) {
        struct epoll_event events[16];
        int count = epoll_wait(transport->epoll, events, 16, -1);

        pthread_mutex_lock(&transport->lock);
        for (int i = 0; i < count; i++)
            if (events[i].data.u64 != 0) on_death(transport, events[i].data.u64);
        stopping = transport->stopping;
        pthread_mutex_unlock(&transport->lock);
    }
    return NULL;
}

/* ---- what the owner asks --------------------------------------------------------------------------------------- */

/* One that lives keeps its pid: of two peers with one pid, the second is in the first one's process. */
static struct kvfi_cma_process *find_process(struct kvfi_transport *transport, pid_t pid)
{
    struct kvfi_cma_process *process = transport->processes;

    while (process && (process->pid != pid || process->dead || kvfi_cma_process_is_dead(process->fd)))
        process = process->next;
    return process;
}

/* Takes `*fd` when it is the first peer of this process. */
static enum kvf_status watch_process(struct kvfi_transport *transport, struct kvfi_cma_peer *peer, int *fd,
                                     struct kvf_error *error)
{
    struct kvfi_cma_process *process = find_process(transport, peer->pid);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = transport->next_process + 1};

    if (!process) {
        process = kvfi_alloc_zeroed(1, sizeof *process);
        if (!process) return kvfi_fail_memory(error, "a process");
        if (epoll_ctl(transport->epoll, EPOLL_CTL_ADD, *fd, &event) != 0) {
            free(process);
            return kvfi_fail(error, KVF_ERR_SYSTEM, "cma: process %ld cannot be watched: %s", (long)peer->pid,
                             strerror(errno));
        }
        process->number = ++transport->next_process;
        process->pid = peer->pid;
        process->fd = *fd;
        process->next = transport->processes;
        transport->processes = process;
        *fd = -1;
    }
    process->users++;
    peer->process = process;
    peer->pidfd = process->fd;
    return KVF_OK;
}

enum kvf_status kvfi_cma_connect(struct kvfi_transport *transport, const char *endpoint,
                                 const struct kvfi_peer_identity *expected, uint64_t *out, struct kvf_error *error)
{
    struct kvfi_cma_peer *peer = kvfi_alloc_zeroed(1, sizeof *peer);
    enum kvf_status status;
    int fd = -1;

    (void)expected; /* the other process says nothing of itself */
    if (!peer) return kvfi_fail_memory(error, "a peer");
    peer->pidfd = -1;
    status = kvfi_cma_endpoint_parse(endpoint, &peer->pid, error);
    if (status == KVF_OK) status = kvfi_cma_process_open(peer->pid, &fd, error);
    if (status != KVF_OK) goto done;
    pthread_mutex_lock(&transport->lock);
    if (fd >= 0) status = watch_process(transport, peer, &fd, error);
    if (status == KVF_OK) {
        *out = peer->number = ++transport->next_peer;
        peer->next = transport->peers;
        transport->peers = peer;
        kvfi_tell_connected(&transport->queue, peer->number, KVF_OK, NULL);
        peer = NULL;
    }
    pthread_mutex_unlock(&transport->lock);
done:
    kvfi_cma_process_close(fd);
    free(peer); /* not in any process yet */
    return status;
}

void kvfi_cma_disconnect(struct kvfi_transport *transport, uint64_t number)
{
    struct kvfi_cma_peer *peer;

    pthread_mutex_lock(&transport->lock);
    peer = find_peer(transport, number);
    if (peer) {
        peer->disconnected = true;
        end_peer(transport, peer, KVF_ERR_CANCELLED, "disconnected");
        settle(transport, peer);
    }
    pthread_mutex_unlock(&transport->lock);
}

enum kvf_status kvfi_cma_post_ranges(struct kvfi_transport *transport, uint64_t number,
                                     const struct kvfi_range_source *source, uint64_t cookie, struct kvf_error *error)
{
    struct kvfi_cma_post *post = kvfi_alloc_zeroed(1, sizeof *post);
    enum kvf_status status = KVF_OK;

    if (!post) return kvfi_fail_memory(error, "a post");
    atomic_init(&post->stop, false);
    pthread_mutex_lock(&transport->lock);
    post->peer = find_peer(transport, number);
    if (source->bytes < 0)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "cma: a post of %" PRId64 " bytes", source->bytes);
    else if (!post->peer)
        status = kvfi_fail(error, KVF_ERR_CLOSED, "cma: peer %" PRIu64 " is not connected", number);
    if (status == KVF_OK) {
        post->source = *source;
        post->cookie = cookie;
        post->peer->posts++;
        *(transport->first ? &transport->last->next : &transport->first) = post;
        transport->last = post;
        post = NULL;
        pthread_cond_signal(&transport->changed);
    }
    pthread_mutex_unlock(&transport->lock);
    free(post);
    return status;
}

void kvfi_cma_abort(struct kvfi_transport *transport, uint64_t number, uint64_t cookie)
{
    struct kvfi_cma_peer *peer;

    pthread_mutex_lock(&transport->lock);
    peer = find_peer(transport, number);
    if (peer) stop_posts(transport, peer, &cookie, KVF_ERR_CANCELLED, "aborted");
    pthread_mutex_unlock(&transport->lock);
}

void kvfi_cma_peers_fini(struct kvfi_transport *transport)
{
    while (transport->first) {
        struct kvfi_cma_post *post = transport->first;

        transport->first = post->next;
        free_post(post);
    }
    while (transport->peers) {
        struct kvfi_cma_peer *peer = transport->peers;

        transport->peers = peer->next;
        free_peer(transport, peer);
    }
}
