/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm_worker/events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"

enum { TEXTS = 4 };

struct kvfi_vllm_event_node {
    struct kvfi_vllm_event_node *next;
    int32_t kind, status;
    int64_t requests, bytes, descriptors, started_ns, ended_ns;
    uint16_t text_bytes[TEXTS]; /* req_id, transfer_id, peer, text: one after the other, without closing zeros */
    char texts[];
};

static const size_t ROOM[TEXTS] = {KVF_VLLM_ID_BYTES, KVF_VLLM_ID_BYTES, KVF_VLLM_ADDRESS_BYTES,
                                   KVF_ERROR_TEXT_BYTES};

enum kvf_status kvfi_vllm_events_create(int64_t capacity, struct kvfi_vllm_events **out, struct kvf_error *error)
{
    struct kvfi_vllm_events *events = kvfi_alloc_zeroed(1, sizeof *events);

    if (events == NULL)
        return kvfi_fail_memory(error, "a queue of events");
    events->capacity = capacity;
    events->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (events->fd < 0) {
        free(events);
        return kvfi_fail(error, KVF_ERR_SYSTEM, "eventfd: %s", strerror(errno));
    }
    *out = events;
    return KVF_OK;
}

static struct kvfi_vllm_event_node *take_first(struct kvfi_vllm_events *events)
{
    struct kvfi_vllm_event_node *node = events->head;
    eventfd_t ignored;

    if (node == NULL)
        return NULL;
    events->head = node->next;
    if (--events->count == 0)
        eventfd_read(events->fd, &ignored);
    return node;
}

void kvfi_vllm_events_destroy(struct kvfi_vllm_events *events)
{
    struct kvfi_vllm_event_node *node;

    if (events == NULL)
        return;
    while ((node = take_first(events)) != NULL)
        free(node);
    close(events->fd);
    free(events);
}

static void give(const struct kvfi_vllm_event_node *node, struct kvf_vllm_event *out)
{
    char *texts[TEXTS] = {out->req_id, out->transfer_id, out->peer, out->text};
    const char *from = node->texts;

    memset(out, 0, sizeof *out);
    out->kind = node->kind;
    out->status = node->status;
    out->requests = node->requests;
    out->bytes = node->bytes;
    out->descriptors = node->descriptors;
    out->started_ns = node->started_ns;
    out->ended_ns = node->ended_ns;
    for (int i = 0; i < TEXTS; i++) {
        memcpy(texts[i], from, node->text_bytes[i]);
        from += node->text_bytes[i];
    }
}

size_t kvfi_vllm_events_take(struct kvfi_vllm_events *events, struct kvf_vllm_event *out, size_t capacity)
{
    size_t count = 0;

    for (; count < capacity && events->head != NULL; count++) {
        struct kvfi_vllm_event_node *node = take_first(events);

        give(node, &out[count]);
        free(node);
    }
    return count;
}

static struct kvfi_vllm_event_node *make(const struct kvfi_vllm_told *told)
{
    const char *texts[TEXTS] = {told->req_id, told->transfer_id, told->peer, told->text};
    size_t bytes[TEXTS], all = 0;
    struct kvfi_vllm_event_node *node;

    for (int i = 0; i < TEXTS; i++) {
        bytes[i] = texts[i] == NULL ? 0 : strnlen(texts[i], ROOM[i] - 1);
        all += bytes[i];
    }
    node = kvfi_alloc_zeroed(1, sizeof *node + all);
    if (node == NULL)
        return NULL;
    node->kind = told->kind;
    node->status = (int32_t)told->status;
    node->requests = told->requests;
    node->bytes = told->bytes;
    node->descriptors = told->descriptors;
    node->started_ns = told->started_ns;
    node->ended_ns = told->ended_ns;
    all = 0;
    for (int i = 0; i < TEXTS; i++) {
        if (bytes[i] > 0)
            memcpy(node->texts + all, texts[i], bytes[i]);
        node->text_bytes[i] = (uint16_t)bytes[i];
        all += bytes[i];
    }
    return node;
}

void kvfi_vllm_worker_tell(kvf_vllm_worker *worker, const struct kvfi_vllm_told *told)
{
    struct kvfi_vllm_events *events = worker->events;
    struct kvfi_vllm_event_node *node = make(told);

    if (node == NULL)
        return;
    pthread_mutex_lock(&worker->loop.lock);
    if (events->count >= events->capacity)
        free(take_first(events));
    *(events->head == NULL ? &events->head : &events->tail->next) = node;
    events->tail = node;
    if (events->count++ == 0)
        eventfd_write(events->fd, 1);
    pthread_cond_broadcast(&worker->loop.changed);
    pthread_mutex_unlock(&worker->loop.lock);
}
