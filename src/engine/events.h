/* SPDX-License-Identifier: Apache-2.0 */
/** @file events.h  The queue of events to the user. Room for a transfer's two last events is taken when it is
 *  accepted, so
 *  that they can never be lost. The caller holds the engine's lock.
 */
#ifndef KVFI_ENGINE_EVENTS_H
#define KVFI_ENGINE_EVENTS_H

#include <stdbool.h>

#include "kvferry/engine.h"

struct kvfi_event_node {
    struct kvfi_event_node *next;
    struct kvf_event event;
};

struct kvfi_events {
    struct kvfi_event_node *head, *tail;
    int64_t queued, reserved, capacity;
    int fd; /* readable while any is queued */
};

/** @return KVF_OK or KVF_ERR_SYSTEM */
enum kvf_status kvfi_events_init(struct kvfi_events *events, int64_t capacity, struct kvf_error *error);
void kvfi_events_fini(struct kvfi_events *events);

/** Takes one node and its room; NULL when there is no room or no memory. */
struct kvfi_event_node *kvfi_events_reserve(struct kvfi_events *events);
/** Gives a node back unused; NULL is fine. */
void kvfi_events_cancel(struct kvfi_events *events, struct kvfi_event_node *node);
/** Queues a node that was reserved. */
void kvfi_events_push(struct kvfi_events *events, struct kvfi_event_node *node);
size_t kvfi_events_take(struct kvfi_events *events, struct kvf_event *out, size_t capacity);

#endif
