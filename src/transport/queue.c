/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/queue.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"

enum { FIRST_CAPACITY = 32 };

enum kvf_status kvfi_queue_init(struct kvfi_queue *queue, struct kvfi_log *log, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    *queue = (struct kvfi_queue){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .log = log};
    if (queue->fd < 0) {
        status = kvfi_fail(error, KVF_ERR_SYSTEM, "eventfd: %s", strerror(errno));
        goto done;
    }
    queue->events = kvfi_alloc_array(FIRST_CAPACITY, sizeof *queue->events);
    if (!queue->events) {
        close(queue->fd);
        status = kvfi_fail_memory(error, "an event queue");
        goto done;
    }
    queue->capacity = FIRST_CAPACITY;
    pthread_mutex_init(&queue->lock, NULL);
done:
    return status;
}

void kvfi_queue_fini(struct kvfi_queue *queue)
{
    pthread_mutex_destroy(&queue->lock);
    free(queue->events);
    close(queue->fd);
}

static bool grow(struct kvfi_queue *queue)
{
    struct kvfi_transport_event *events = kvfi_alloc_array(queue->capacity * 2, sizeof *events);

    if (!events) return false;
    for (size_t i = 0; i < queue->count; i++) events[i] = queue->events[(queue->first + i) % queue->capacity];
    free(queue->events);
    queue->events = events;
    queue->first = 0;
    queue->capacity *= 2;
    return true;
}

void kvfi_queue_push(struct kvfi_queue *queue, const struct kvfi_transport_event *event)
{
    bool room;

    pthread_mutex_lock(&queue->lock);
    room = queue->count < queue->capacity || grow(queue);
    if (room) {
        queue->events[(queue->first + queue->count++) % queue->capacity] = *event;
        if (queue->count == 1) eventfd_write(queue->fd, 1);
    }
    pthread_mutex_unlock(&queue->lock);
    if (!room) kvfi_logf(queue->log, KVF_LOG_ERROR, "out of memory: a transport event of kind %d is lost", event->kind);
}

size_t kvfi_queue_take(struct kvfi_queue *queue, struct kvfi_transport_event *events, size_t capacity)
{
    size_t taken = 0;
    eventfd_t number;

    pthread_mutex_lock(&queue->lock);
    while (taken < capacity && queue->count > 0) {
        events[taken++] = queue->events[queue->first];
        queue->first = (queue->first + 1) % queue->capacity;
        queue->count--;
    }
    if (taken > 0 && queue->count == 0) eventfd_read(queue->fd, &number);
    pthread_mutex_unlock(&queue->lock);
    return taken;
}

static void set_text(struct kvfi_transport_event *event, const char *text)
{
    if (text) snprintf(event->text, sizeof event->text, "%s", text);
}

void kvfi_tell_connected(struct kvfi_queue *queue, uint64_t peer, enum kvf_status status, const char *text)
{
    struct kvfi_transport_event event = {.kind = KVFI_TEV_CONNECTED, .status = status, .peer = peer};

    set_text(&event, text);
    kvfi_queue_push(queue, &event);
}

void kvfi_tell_peer_down(struct kvfi_queue *queue, uint64_t peer, enum kvf_status status, const char *text)
{
    struct kvfi_transport_event event = {.kind = KVFI_TEV_PEER_DOWN, .status = status, .peer = peer};

    set_text(&event, text);
    kvfi_queue_push(queue, &event);
}

void kvfi_tell_posted(struct kvfi_queue *queue, const struct kvfi_chunk *chunk, uint64_t peer, enum kvf_status status,
                      const char *text)
{
    struct kvfi_transport_event event = {.kind = KVFI_TEV_POSTED, .status = status, .peer = peer,
                                         .cookie = chunk->cookie, .grant = chunk->grant,
                                         .bytes = status == KVF_OK ? chunk->bytes : 0};

    set_text(&event, text);
    kvfi_queue_push(queue, &event);
}

void kvfi_tell_received(struct kvfi_queue *queue, uint64_t grant, int64_t bytes, bool complete)
{
    struct kvfi_transport_event event = {.kind = KVFI_TEV_RECEIVED, .grant = grant, .bytes = bytes,
                                         .complete = complete};

    kvfi_queue_push(queue, &event);
}

void kvfi_tell_grant_failed(struct kvfi_queue *queue, uint64_t grant, enum kvf_status status, const char *text)
{
    struct kvfi_transport_event event = {.kind = KVFI_TEV_GRANT_FAILED, .status = status, .grant = grant};

    set_text(&event, text);
    kvfi_queue_push(queue, &event);
}

void kvfi_tell_writer_gone(struct kvfi_queue *queue, const struct kvfi_peer_identity *who)
{
    struct kvfi_transport_event event = {.kind = KVFI_TEV_WRITER_GONE, .status = KVF_ERR_PEER_LOST, .who = *who};

    kvfi_queue_push(queue, &event);
}

void kvfi_tell_quiet(struct kvfi_queue *queue, uint64_t grant)
{
    struct kvfi_transport_event event = {.kind = KVFI_TEV_QUIET, .grant = grant};

    kvfi_queue_push(queue, &event);
}
