/* SPDX-License-Identifier: Apache-2.0 */
/** @file events.h  The queue of a worker's events: kept as short as their texts are, given out as fixed records. The
 *  caller holds the loop's lock. */
#ifndef KVFI_VLLM_WORKER_EVENTS_H
#define KVFI_VLLM_WORKER_EVENTS_H

#include "vllm_worker/worker.h"

struct kvfi_vllm_event_node;

struct kvfi_vllm_events {
    struct kvfi_vllm_event_node *head, *tail;
    int64_t count, capacity;
    int fd; /* readable while any is queued */
};

/** @return KVF_OK; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
enum kvf_status kvfi_vllm_events_create(int64_t capacity, struct kvfi_vllm_events **out, struct kvf_error *error);
void kvfi_vllm_events_destroy(struct kvfi_vllm_events *events);
/** Takes up to `capacity`, oldest first. */
size_t kvfi_vllm_events_take(struct kvfi_vllm_events *events, struct kvf_vllm_event *out, size_t capacity);

#endif
