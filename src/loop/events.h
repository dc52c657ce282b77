/* SPDX-License-Identifier: Apache-2.0 */
/** @file events.h  The queue of events to the user, records of one size. Room for those that must not be lost is taken
 *  when the work is accepted that they will tell of. The caller holds a lock, such as the loop's.
 */
#ifndef KVFI_LOOP_EVENTS_H
#define KVFI_LOOP_EVENTS_H

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

struct kvfi_event_node {
    struct kvfi_event_node *next;
    alignas(max_align_t) unsigned char record[]; /* zeroed when reserved, to be filled before the push */
};

struct kvfi_events {
    struct kvfi_event_node *head, *tail;
    int64_t queued, reserved, capacity;
    size_t record_bytes;
    int fd; /* readable while any is queued */
};

/** At most `capacity` records are queued and reserved at any time. @return KVF_OK or KVF_ERR_SYSTEM */
enum kvf_status kvfi_events_init(struct kvfi_events *events, int64_t capacity, size_t record_bytes,
                                 struct kvf_error *error);
void kvfi_events_fini(struct kvfi_events *events);

/** Takes one node and its room; NULL when there is no room or no memory. */
struct kvfi_event_node *kvfi_events_reserve(struct kvfi_events *events);
/** Gives a node back unused; NULL is fine. */
void kvfi_events_cancel(struct kvfi_events *events, struct kvfi_event_node *node);
/** Queues a node that was reserved. */
void kvfi_events_push(struct kvfi_events *events, struct kvfi_event_node *node);
/** Copies up to `capacity` records into `out`, an array of them, oldest first. */
size_t kvfi_events_take(struct kvfi_events *events, void *out, size_t capacity);

#endif
