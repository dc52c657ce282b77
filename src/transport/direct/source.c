/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "transport/direct/direct.h"

enum kvf_status kvfi_direct_probe(struct kvfi_transport *transport, const char *text, struct kvf_error *error)
{
    const char *scheme = transport->scheme->name;
    struct kvfi_direct_endpoint endpoint;
    enum kvf_status status = kvfi_direct_endpoint_parse(text, scheme, &endpoint, error);

    if (status != KVF_OK) goto done;
    if (strcmp(endpoint.boot, transport->here.boot) != 0)
        status = kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "%s: another host (boot id %s there, %s here)", scheme,
                           endpoint.boot, transport->here.boot);
    else if (endpoint.netns != transport->here.netns)
        status = kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "%s: another network namespace (%" PRIu64 " there, %" PRIu64
                           " here)", scheme, endpoint.netns, transport->here.netns);
    else if (transport->scheme->same_process && endpoint.pid != transport->here.pid)
        status = kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "%s: another process (%" PRId64 " there, %" PRId64 " here)",
                           scheme, endpoint.pid, transport->here.pid);
done:
    return status;
}

static struct kvfi_link *find_peer(struct kvfi_transport *transport, uint64_t peer)
{
    struct kvfi_link *link = transport->links;

    while (link && (!link->outgoing || link->peer != peer || link->state == KVFI_LINK_DYING)) link = link->next;
    return link;
}

static enum kvf_status start_link(struct kvfi_transport *transport, const struct kvfi_direct_endpoint *endpoint,
                                  const struct kvfi_peer_identity *expected, uint64_t *peer, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvfi_link *link = NULL;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0) {
        status = kvfi_fail(error, KVF_ERR_SYSTEM, "socket: %s", strerror(errno));
        goto done;
    }
    link = kvfi_link_create(transport, fd, true);
    if (!link) {
        close(fd);
        status = kvfi_fail_memory(error, "a connection");
        goto done;
    }
    link->who = *expected;
    link->peer = ++transport->next_peer;
    link->endpoint_pid = endpoint->pid;
    snprintf(link->endpoint_name, sizeof link->endpoint_name, "%s", endpoint->name);
    link->deadline_ns = kvfi_now_ns() + transport->config.connect_timeout_ns;
    status = kvfi_greeting_start(transport, link, error);
    if (status != KVF_OK) {
        kvfi_link_bury(transport, link);
        goto done;
    }
    *peer = link->peer;
done:
    return status;
}

enum kvf_status kvfi_direct_connect(struct kvfi_transport *transport, const char *text,
                                    const struct kvfi_peer_identity *expected, uint64_t *peer, struct kvf_error *error)
{
    struct kvfi_direct_endpoint endpoint;
    enum kvf_status status = kvfi_direct_endpoint_parse(text, transport->scheme->name, &endpoint, error);

    if (status != KVF_OK) goto done;
    pthread_mutex_lock(&transport->lock);
    status = start_link(transport, &endpoint, expected, peer, error);
    pthread_mutex_unlock(&transport->lock);
    kvfi_direct_wake(transport);
done:
    return status;
}

/* ---- jobs ------------------------------------------------------------------------------------------------------- */

static struct kvfi_job *find_job(struct kvfi_link *link, uint64_t grant, uint32_t index)
{
    struct kvfi_job *job = link->jobs;

    while (job && (job->chunk.grant != grant || job->chunk.index != index)) job = job->next;
    return job;
}

static void unlink_job(struct kvfi_link *link, struct kvfi_job *job)
{
    struct kvfi_job *previous = NULL;

    for (struct kvfi_job *at = link->jobs; at != job; at = at->next) previous = at;
    if (previous) previous->next = job->next;
    else link->jobs = job->next;
    if (link->last_job == job) link->last_job = previous;
}

static void unqueue_job(struct kvfi_transport *transport, struct kvfi_job *job)
{
    struct kvfi_job *previous = NULL;

    for (struct kvfi_job *at = transport->queue_first; at != job; at = at->queue_next) previous = at;
    if (previous) previous->queue_next = job->queue_next;
    else transport->queue_first = job->queue_next;
    if (transport->queue_last == job) transport->queue_last = previous;
}

static void say(struct kvfi_transport *transport, struct kvfi_job *job, uint32_t kind)
{
    struct kvfi_direct_message message = {.kind = kind};

    message.head = kvfi_chunk_head_of(&job->chunk);
    kvfi_link_send(transport, job->link, &message, NULL, 0);
}

/* Ends a job that no copy thread has: its event goes out, and after it the binding is the owner's again. */
static void finish_job(struct kvfi_transport *transport, struct kvfi_job *job, enum kvf_status status, const char *text)
{
    unlink_job(job->link, job);
    kvfi_tell_posted(&transport->queue, &job->chunk, job->link->peer, status, text);
    free(job);
}

/* Ends a job, now or at the copy thread's next piece. With `tell_peer` the destination learns that it stopped. */
static void stop_job(struct kvfi_transport *transport, struct kvfi_job *job, bool tell_peer, enum kvf_status status,
                     const char *text)
{
    if (job->state == KVFI_JOB_COPYING) {
        if (!atomic_load(&job->stop)) {
            job->stop_status = status;
            snprintf(job->stop_text, sizeof job->stop_text, "%s", text);
            atomic_store(&job->stop, true);
        }
    } else {
        if (job->state == KVFI_JOB_QUEUED) unqueue_job(transport, job);
        if (tell_peer) say(transport, job, KVFI_DIRECT_ABORT);
        finish_job(transport, job, status, text);
    }
}

/* The owner has registered its memories by the first post. */
static void know_own_memories(struct kvfi_transport *transport)
{
    for (size_t i = 0; !transport->own_known && i < transport->config.memory_count; i++) {
        transport->own_address[i] = transport->config.memories[i].address;
        transport->own_bytes[i] = transport->config.memories[i].bytes;
    }
    transport->own_known = true;
}

enum kvf_status kvfi_direct_post_chunk(struct kvfi_transport *transport, uint64_t peer, const struct kvfi_chunk *chunk,
                                       struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvfi_job *job = kvfi_alloc_zeroed(1, sizeof *job);
    struct kvfi_link *link;

    if (!job) return kvfi_fail_memory(error, "a posted chunk");
    pthread_mutex_lock(&transport->lock);
    link = find_peer(transport, peer);
    if (!link || link->state != KVFI_LINK_READY) {
        status =
            kvfi_fail(error, KVF_ERR_CLOSED, "%s: peer %" PRIu64 " is not connected", transport->scheme->name, peer);
        free(job);
        goto done;
    }
    know_own_memories(transport);
    job->link = link;
    job->chunk = *chunk;
    job->state = KVFI_JOB_ASKED;
    if (link->last_job) link->last_job->next = job;
    else link->jobs = job;
    link->last_job = job;
    say(transport, job, KVFI_DIRECT_OPEN);
done:
    pthread_mutex_unlock(&transport->lock);
    return status;
}

void kvfi_direct_abort(struct kvfi_transport *transport, uint64_t peer, uint64_t grant)
{
    struct kvfi_link *link;
    struct kvfi_job *next;

    pthread_mutex_lock(&transport->lock);
    link = find_peer(transport, peer);
    for (struct kvfi_job *job = link ? link->jobs : NULL; job; job = next) {
        next = job->next;
        if (job->chunk.grant == grant && job->state != KVFI_JOB_COPIED)
            stop_job(transport, job, true, KVF_ERR_CANCELLED, "aborted");
    }
    pthread_mutex_unlock(&transport->lock);
}

void kvfi_direct_disconnect(struct kvfi_transport *transport, uint64_t peer)
{
    struct kvfi_link *link;

    pthread_mutex_lock(&transport->lock);
    link = find_peer(transport, peer);
    if (link) {
        link->disconnected = true;
        kvfi_source_end(transport, link, KVF_ERR_CANCELLED, "disconnected");
    }
    pthread_mutex_unlock(&transport->lock);
    kvfi_direct_wake(transport);
}

/* ---- the end of a link ------------------------------------------------------------------------------------------ */

void kvfi_source_settle(struct kvfi_transport *transport, struct kvfi_link *link)
{
    if (link->state != KVFI_LINK_DYING || link->copying > 0) return;
    if (!link->disconnected) {
        if (link->greeted) kvfi_tell_peer_down(&transport->queue, link->peer, link->end_status, link->end_text);
        else kvfi_tell_connected(&transport->queue, link->peer, link->end_status, link->end_text);
    }
    kvfi_link_bury(transport, link);
}

void kvfi_source_end(struct kvfi_transport *transport, struct kvfi_link *link, enum kvf_status status, const char *text)
{
    struct kvfi_job *next;

    if (link->state == KVFI_LINK_DYING) return;
    link->greeted = link->state == KVFI_LINK_READY;
    link->state = KVFI_LINK_DYING;
    link->deadline_ns = 0;
    link->end_status = status;
    snprintf(link->end_text, sizeof link->end_text, "%s", text);
    for (struct kvfi_job *job = link->jobs; job; job = next) {
        next = job->next;
        stop_job(transport, job, false, status, text);
    }
    kvfi_source_settle(transport, link);
}

/* ---- what the destination says ---------------------------------------------------------------------------------- */

static void opened(struct kvfi_transport *transport, struct kvfi_job *job, const struct kvfi_direct_message *message)
{
    if (job->state != KVFI_JOB_ASKED) return;
    if (message->status != KVF_OK) {
        finish_job(transport, job, KVF_ERR_REFUSED, message->text);
        return;
    }
    job->state = KVFI_JOB_QUEUED;
    job->queue_next = NULL;
    if (transport->queue_first) transport->queue_last->queue_next = job;
    else transport->queue_first = job;
    transport->queue_last = job;
    pthread_cond_broadcast(&transport->changed);
}

static void acknowledged(struct kvfi_transport *transport, struct kvfi_job *job,
                         const struct kvfi_direct_message *message)
{
    if (message->status != KVF_OK) stop_job(transport, job, true, KVF_ERR_REFUSED, message->text);
    else if (job->state == KVFI_JOB_COPIED) finish_job(transport, job, KVF_OK, NULL);
}

static void revoked(struct kvfi_transport *transport, struct kvfi_link *link, uint64_t grant)
{
    struct kvfi_job *next;

    for (struct kvfi_job *job = link->jobs; job; job = next) {
        next = job->next;
        if (job->chunk.grant == grant && job->state != KVFI_JOB_COPIED)
            stop_job(transport, job, true, KVF_ERR_REFUSED, "the destination withdrew the grant");
    }
}

void kvfi_source_message(struct kvfi_transport *transport, struct kvfi_link *link,
                         const struct kvfi_direct_message *message, int *fds, size_t fd_count)
{
    struct kvfi_job *job;

    if (link->state != KVFI_LINK_READY) {
        kvfi_greeting_message(transport, link, message, fds, fd_count);
        return;
    }
    job = find_job(link, message->head.grant, message->head.index);
    switch (message->kind) {
    case KVFI_DIRECT_OPENED:
        if (job) opened(transport, job, message);
        break;
    case KVFI_DIRECT_ACK:
        if (job) acknowledged(transport, job, message);
        break;
    case KVFI_DIRECT_REVOKE: revoked(transport, link, message->head.grant); break;
    default: kvfi_source_end(transport, link, KVF_ERR_PROTOCOL, "unexpected message"); break;
    }
    for (size_t i = 0; i < fd_count; i++) close(fds[i]);
}

void kvfi_source_copied(struct kvfi_transport *transport, struct kvfi_job *job)
{
    struct kvfi_link *link = job->link;

    link->copying--;
    if (link->state == KVFI_LINK_DYING) {
        finish_job(transport, job, link->end_status, link->end_text);
        kvfi_source_settle(transport, link);
    } else if (atomic_load(&job->stop)) {
        say(transport, job, KVFI_DIRECT_ABORT);
        finish_job(transport, job, job->stop_status, job->stop_text);
    } else if (job->status == KVF_ERR_PEER_LOST) {
        char text[KVF_ERROR_TEXT_BYTES];

        memcpy(text, job->text, sizeof text);
        finish_job(transport, job, KVF_ERR_PEER_LOST, text);
        kvfi_source_end(transport, link, KVF_ERR_PEER_LOST, text);
    } else if (job->status != KVF_OK) {
        say(transport, job, KVFI_DIRECT_ABORT);
        finish_job(transport, job, job->status, job->text);
    } else {
        job->state = KVFI_JOB_COPIED;
        say(transport, job, KVFI_DIRECT_PLACED);
    }
}
