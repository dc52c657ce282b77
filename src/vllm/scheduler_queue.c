/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/scheduler_queue.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"

/* ---- one entry ---------------------------------------------------------------------------------------------- */

static size_t text_bytes(const char *text)
{
    return text ? strlen(text) + 1 : 0;
}

static const char *put_text(char **room, const char *text)
{
    size_t bytes = text_bytes(text);
    char *copy = *room;

    if (text == NULL) return NULL;
    memcpy(copy, text, bytes);
    *room += bytes;
    return copy;
}

static bool entry_bytes(const struct kvfi_vllm_queued *entry, size_t *ids, size_t *total)
{
    bool fits = kvfi_mul_size(entry->group_count, sizeof *entry->groups, total) &&
                kvfi_add_size(*total, sizeof *entry, total);
    size_t id_bytes = 0;

    *ids = 0;
    for (size_t i = 0; fits && i < entry->group_count; i++) fits = kvfi_add_size(*ids, entry->groups[i].count, ids);
    fits = fits && kvfi_mul_size(*ids, sizeof(int64_t), &id_bytes) && kvfi_add_size(*total, id_bytes, total);
    return fits && kvfi_add_size(*total, text_bytes(entry->name), total) &&
           kvfi_add_size(*total, text_bytes(entry->transfer_id), total) &&
           kvfi_add_size(*total, text_bytes(entry->engine_id), total) &&
           kvfi_add_size(*total, text_bytes(entry->bootstrap_addr), total);
}

static enum kvf_status copy_entry(const struct kvfi_vllm_queued *entry, struct kvfi_vllm_queued **out,
                                  struct kvf_error *error)
{
    struct kvfi_vllm_queued *copy;
    struct kvf_vllm_ids *groups;
    size_t id_count, total;
    int64_t *ids;
    char *room;

    if (!entry_bytes(entry, &id_count, &total))
        return kvfi_fail(error, KVF_ERR_LIMIT, "a request has more block ids than this machine can hold");
    copy = malloc(total);
    if (copy == NULL) return kvfi_fail_memory(error, "a request of the next step");
    groups = (struct kvf_vllm_ids *)(copy + 1);
    ids = (int64_t *)(groups + entry->group_count);
    room = (char *)(ids + id_count);
    for (size_t i = 0; i < entry->group_count; i++) {
        groups[i] = (struct kvf_vllm_ids){ids, entry->groups[i].count};
        if (groups[i].count) memcpy(ids, entry->groups[i].ids, groups[i].count * sizeof *ids);
        ids += groups[i].count;
    }
    copy->name = put_text(&room, entry->name);
    copy->transfer_id = put_text(&room, entry->transfer_id);
    copy->engine_id = put_text(&room, entry->engine_id);
    copy->bootstrap_addr = put_text(&room, entry->bootstrap_addr);
    copy->groups = groups;
    copy->group_count = entry->group_count;
    *out = copy;
    return KVF_OK;
}

/* ---- the queue ---------------------------------------------------------------------------------------------- */

/* Where `name` stands among the sorted, or would; `*found` tells which. */
static size_t find(const struct kvfi_vllm_queue *queue, const char *name, bool *found)
{
    size_t low = 0, high = queue->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(queue->entries[queue->sorted[middle]]->name, name) < 0) low = middle + 1;
        else high = middle;
    }
    *found = low < queue->count && strcmp(queue->entries[queue->sorted[low]]->name, name) == 0;
    return low;
}

enum kvf_status kvfi_vllm_queue_put(struct kvfi_vllm_queue *queue, const struct kvfi_vllm_queued *entry,
                                    struct kvf_error *error)
{
    bool found;
    size_t at = find(queue, entry->name, &found);
    struct kvfi_vllm_queued *copy = NULL;
    enum kvf_status status;

    if (!found && (!kvfi_array_grow((void **)&queue->entries, queue->count, &queue->capacity,
                                    sizeof *queue->entries) ||
                   !kvfi_array_grow((void **)&queue->sorted, queue->count, &queue->sorted_capacity,
                                    sizeof *queue->sorted)))
        return kvfi_fail_memory(error, "a request of the next step");
    status = copy_entry(entry, &copy, error);
    if (status != KVF_OK) return status;
    if (found) {
        free(queue->entries[queue->sorted[at]]);
        queue->entries[queue->sorted[at]] = copy;
        return KVF_OK;
    }
    memmove(queue->sorted + at + 1, queue->sorted + at, (queue->count - at) * sizeof *queue->sorted);
    queue->sorted[at] = queue->count;
    queue->entries[queue->count++] = copy;
    return KVF_OK;
}

void kvfi_vllm_queue_fini(struct kvfi_vllm_queue *queue)
{
    for (size_t i = 0; i < queue->count; i++) free(queue->entries[i]);
    free(queue->entries);
    free(queue->sorted);
    *queue = (struct kvfi_vllm_queue){0};
}
