/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/coalesce.h"

#include "vllm/regions.h"

/* Ends of regions, where no sum of a peer's numbers can overflow. */
typedef __int128 address;

static address end_of(const struct kvf_vllm_region *region, int64_t bytes)
{
    return (address)region->base_addr + bytes;
}

/* Whether `next` goes on where `last` ended, inside the row that `first` began. */
static bool is_adjacent(const struct kvf_vllm_region *first, const struct kvf_vllm_region *last,
                        const struct kvf_vllm_region *next)
{
    return last->group_index == next->group_index && last->block_len == next->block_len
           && kvfi_vllm_ids_equal(&last->shared_groups, &next->shared_groups)
           && end_of(last, last->kv_block_len) <= (address)next->base_addr
           && end_of(next, next->kv_block_len) <= end_of(first, first->block_len);
}

/* Merges a side's regions [first, end) into region number `into`. The sum fits: a run stays inside its row. */
static void merge(struct kvf_vllm_region *items, size_t first, size_t end, size_t into)
{
    const struct kvf_vllm_region last = items[end - 1];

    items[into] = items[first];
    if (end - first > 1) {
        items[into].kv_block_len = (int64_t)(end_of(&last, last.kv_block_len) - (address)items[into].base_addr);
    }
}

static void promote(struct kvf_vllm_region *local, struct kvf_vllm_region *remote)
{
    if (local->row_offset == 0 && remote->row_offset == 0 && local->block_len == remote->block_len
        && local->kv_block_len <= local->block_len && remote->kv_block_len <= remote->block_len) {
        local->kv_block_len = local->block_len;
        remote->kv_block_len = remote->block_len;
    }
}

void kvfi_vllm_coalesce(struct kvfi_vllm_pairs *pairs, bool promote_full_row)
{
    struct kvf_vllm_region *local = pairs->local, *remote = pairs->remote;
    size_t merged = 0, end;

    for (size_t first = 0; first < pairs->count; first = end) {
        for (end = first + 1; end < pairs->count; end++) {
            if (!is_adjacent(&local[first], &local[end - 1], &local[end])
                || !is_adjacent(&remote[first], &remote[end - 1], &remote[end])) {
                break;
            }
        }
        merge(local, first, end, merged);
        merge(remote, first, end, merged);
        if (promote_full_row) promote(&local[merged], &remote[merged]);
        merged++;
    }
    pairs->count = merged;
}
