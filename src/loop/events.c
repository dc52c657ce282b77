/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"

enum kvf_status kvfi_events_init(struct kvfi_events *events, int64_t capacity, size_t record_bytes,
                                 struct kvf_error *error)
{
    *events = (struct kvfi_events){.capacity = capacity, .record_bytes = record_bytes,
                                   .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (events->fd < 0)
        return kvfi_fail(error, KVF_ERR_SYSTEM, "eventfd: %s", strerror(errno));
    return KVF_OK;
}

void kvfi_events_fini(struct kvfi_events *events)
{
    while (events->head != NULL) {
        struct kvfi_event_node *node = events->head;
        events->head = node->next;
        free(node);
    }
    if (events->fd >= 0)
        close(events->fd);
    events->fd = -1;
}

struct kvfi_event_node *kvfi_events_reserve(struct kvfi_events *events)
{
    struct kvfi_event_node *node = NULL;

    if (events->queued + events->reserved < events->capacity)
        node = calloc(1, sizeof *node + events->record_bytes);
    if (node != NULL)
        events->reserved++;
    return node;
}

void kvfi_events_cancel(struct kvfi_events *events, struct kvfi_event_node *node)
{
    if (node != NULL)
        events->reserved--;
    free(node);
}

void kvfi_events_push(struct kvfi_events *events, struct kvfi_event_node *node)
{
    uint64_t one = 1;

    node->next = NULL;
    if (events->head == NULL) {
        events->head = node;
        if (write(events->fd, &one, sizeof one) < 0) {
            /* the counter cannot be full: it is reset whenever the queue runs empty */
        }
    } else {
        events->tail->next = node;
    }
    events->tail = node;
    events->reserved--;
    events->queued++;
}

size_t kvfi_events_take(struct kvfi_events *events, void *out, size_t capacity)
{
    unsigned char *at = out;
    size_t count = 0;
    uint64_t value;

    while (count < capacity && events->head != NULL) {
        struct kvfi_event_node *node = events->head;
        events->head = node->next;
        memcpy(at, node->record, events->record_bytes);
        at += events->record_bytes;
        count++;
        events->queued--;
        free(node);
    }
    if (count > 0 && events->head == NULL && read(events->fd, &value, sizeof value) < 0) {
        /* nothing to reset */
    }
    return count;
}
