/* SPDX-License-Identifier: Apache-2.0 */
/** @file fence.h  Request ids that are remembered for a while, so many at most. Loop's thread only. */
#ifndef KVFI_TRTLLM_WORKER_FENCE_H
#define KVFI_TRTLLM_WORKER_FENCE_H

#include "sys/table.h"

struct kvfi_fence_entry;

struct kvfi_fence {
    struct kvfi_table table; /* by rid */
    struct kvfi_fence_entry *oldest, *newest;
    size_t count, capacity;
    int64_t lifetime_ns;
};

/** @return false without memory */
bool kvfi_fence_init(struct kvfi_fence *fence, size_t capacity, int64_t lifetime_ns);
void kvfi_fence_fini(struct kvfi_fence *fence);

/** Remembers a rid from now on; one that is known stays as it is. False when there is no room, or no memory. */
bool kvfi_fence_add(struct kvfi_fence *fence, int64_t rid, int64_t now_ns);
bool kvfi_fence_has(struct kvfi_fence *fence, int64_t rid, int64_t now_ns);
/** Forgets it; says whether it was known. */
bool kvfi_fence_take(struct kvfi_fence *fence, int64_t rid, int64_t now_ns);

#endif
