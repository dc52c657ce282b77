/* SPDX-License-Identifier: Apache-2.0 */
/** @file queue.h  The events of one transport instance, from its threads to its owner. */
#ifndef KVFI_TRANSPORT_QUEUE_H
#define KVFI_TRANSPORT_QUEUE_H

#include <pthread.h>

#include "transport/transport.h"

struct kvfi_queue {
    pthread_mutex_t lock;
    struct kvfi_transport_event *events; /* a ring */
    size_t first, count, capacity;
    int fd; /* eventfd: readable while count > 0 */
    struct kvfi_log *log;
};

/** @return KVF_OK, KVF_ERR_NO_MEMORY, KVF_ERR_SYSTEM */
enum kvf_status kvfi_queue_init(struct kvfi_queue *queue, struct kvfi_log *log, struct kvf_error *error);
void kvfi_queue_fini(struct kvfi_queue *queue);

/** Copies the event in. Any thread. Without memory the event is lost, and an error is logged. */
void kvfi_queue_push(struct kvfi_queue *queue, const struct kvfi_transport_event *event);

/** Takes up to `capacity` events. Any thread. */
size_t kvfi_queue_take(struct kvfi_queue *queue, struct kvfi_transport_event *events, size_t capacity);

/** Events of each kind, pushed. `text` may be NULL. */
void kvfi_tell_connected(struct kvfi_queue *queue, uint64_t peer, enum kvf_status status, const char *text);
void kvfi_tell_peer_down(struct kvfi_queue *queue, uint64_t peer, enum kvf_status status, const char *text);
void kvfi_tell_posted(struct kvfi_queue *queue, const struct kvfi_chunk *chunk, uint64_t peer, enum kvf_status status,
                      const char *text);
void kvfi_tell_received(struct kvfi_queue *queue, uint64_t grant, int64_t bytes, bool complete);
void kvfi_tell_grant_failed(struct kvfi_queue *queue, uint64_t grant, enum kvf_status status, const char *text);
void kvfi_tell_writer_gone(struct kvfi_queue *queue, const struct kvfi_peer_identity *who);
void kvfi_tell_quiet(struct kvfi_queue *queue, uint64_t grant);

#endif
