/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm_worker/fence.h"

#include <stdlib.h>

struct kvfi_fence_entry {
    struct kvfi_link link;
    struct kvfi_fence_entry *previous, *next; /* by age */
    int64_t rid, until_ns;
};

bool kvfi_fence_init(struct kvfi_fence *fence, size_t capacity, int64_t lifetime_ns)
{
    *fence = (struct kvfi_fence){.capacity = capacity, .lifetime_ns = lifetime_ns};
    return kvfi_table_init(&fence->table);
}

static void drop(struct kvfi_fence *fence, struct kvfi_fence_entry *entry)
{
    *(entry->previous == NULL ? &fence->oldest : &entry->previous->next) = entry->next;
    *(entry->next == NULL ? &fence->newest : &entry->next->previous) = entry->previous;
    kvfi_table_remove(&fence->table, &entry->link);
    fence->count--;
    free(entry);
}

void kvfi_fence_fini(struct kvfi_fence *fence)
{
    while (fence->oldest != NULL)
        drop(fence, fence->oldest);
    kvfi_table_fini(&fence->table);
}

static struct kvfi_fence_entry *find(struct kvfi_fence *fence, int64_t rid, int64_t now_ns)
{
    struct kvfi_link *link;

    while (fence->oldest != NULL && fence->oldest->until_ns <= now_ns)
        drop(fence, fence->oldest);
    link = kvfi_table_find(&fence->table, &rid, sizeof rid);
    return link == NULL ? NULL : KVFI_HOLDER(link, struct kvfi_fence_entry, link);
}

bool kvfi_fence_add(struct kvfi_fence *fence, int64_t rid, int64_t now_ns)
{
    struct kvfi_fence_entry *entry;

    if (find(fence, rid, now_ns) != NULL)
        return true;
    if (fence->count == fence->capacity)
        return false;
    entry = calloc(1, sizeof *entry);
    if (entry == NULL)
        return false;
    entry->rid = rid;
    entry->until_ns = now_ns > INT64_MAX - fence->lifetime_ns ? INT64_MAX : now_ns + fence->lifetime_ns;
    entry->previous = fence->newest;
    *(fence->newest == NULL ? &fence->oldest : &fence->newest->next) = entry;
    fence->newest = entry;
    kvfi_table_insert(&fence->table, &entry->link, &entry->rid, sizeof entry->rid);
    fence->count++;
    return true;
}

bool kvfi_fence_has(struct kvfi_fence *fence, int64_t rid, int64_t now_ns) { return find(fence, rid, now_ns) != NULL; }

bool kvfi_fence_take(struct kvfi_fence *fence, int64_t rid, int64_t now_ns)
{
    struct kvfi_fence_entry *entry = find(fence, rid, now_ns);

    if (entry != NULL)
        drop(fence, entry);
    return entry != NULL;
}
