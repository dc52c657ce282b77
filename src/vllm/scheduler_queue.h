/* SPDX-License-Identifier: Apache-2.0 */
/** @file scheduler_queue.h  What a scheduler half will tell with the next step: entries by name, in the order in which
 *  each came first; a later one of the same name takes its place. */
#ifndef KVFI_VLLM_SCHEDULER_QUEUE_H
#define KVFI_VLLM_SCHEDULER_QUEUE_H

#include "kvferry/vllm.h"

/** One request, or one transfer id. Texts may be NULL. Of a queue's own ones all is in one allocation. */
struct kvfi_vllm_queued {
    const char *name;
    const char *transfer_id, *engine_id, *bootstrap_addr;
    const struct kvf_vllm_ids *groups;
    size_t group_count;
};

/** Zeroed, it is empty. */
struct kvfi_vllm_queue {
    struct kvfi_vllm_queued **entries;
    size_t count, capacity;
    size_t *sorted;               /* indices of entries, by name */
    size_t sorted_capacity;
};

/** Puts a copy of `entry`. @return KVF_OK; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY: nothing changed */
enum kvf_status kvfi_vllm_queue_put(struct kvfi_vllm_queue *queue, const struct kvfi_vllm_queued *entry,
                                    struct kvf_error *error);

/** Frees all; the queue is empty then. */
void kvfi_vllm_queue_fini(struct kvfi_vllm_queue *queue);

#endif
