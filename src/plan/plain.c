/* SPDX-License-Identifier: Apache-2.0 */
#include "base/array.h"
#include "base/error.h"
#include "plan/bind.h"

static bool is_plain_side(const struct kvfi_side *side, const struct kvfi_ids *ids)
{
    return side->slots_per_block == 1 && !side->ring && side->stripes <= 1 && !ids->every && !ids->mirror;
}

/** Whether the ordinals [first, end) all have a block. Looks at every id, without a branch each. */
static bool has_all(const struct kvfi_ids *ids, int64_t first, int64_t end)
{
    uint64_t signs = 0;

    if (first < ids->first || end > ids->end) return false;
    for (int64_t i = first; i < end; i++) signs |= (uint64_t)ids->ids[i - ids->first];
    return signs >> 63 == 0;
}

bool kvfi_walk_is_plain(const struct kvfi_walk *walk)
{
    int64_t entries = walk->src.entries, first, end;

    if (entries != walk->dst.entries || walk->position >= walk->end || walk->position % entries != 0 ||
        walk->end % entries != 0 || !is_plain_side(&walk->src, &walk->src_ids) ||
        !is_plain_side(&walk->dst, &walk->dst_ids))
        return false;
    first = walk->position / entries;
    end = walk->end / entries;
    return end - first <= walk->max_steps - walk->steps && has_all(&walk->src_ids, first, end) &&
           has_all(&walk->dst_ids, first, end);
}

/** Blocks from `i` on that follow each other on both sides. */
static int64_t count_adjacent(const int64_t *src, const int64_t *dst, int64_t i, int64_t count)
{
    int64_t j = i + 1;

    while (j < count && src[j - 1] == src[j] - 1 && dst[j - 1] == dst[j] - 1) j++;
    return j - i;
}

enum kvf_status kvfi_collector_add_plain(struct kvfi_collector *collector, const struct kvfi_walk *walk,
                                         struct kvf_error *error)
{
    int64_t entries = walk->src.entries, first = walk->position / entries, count = walk->end / entries - first;
    const int64_t *src = walk->src_ids.ids + (first - walk->src_ids.first);
    const int64_t *dst = walk->dst_ids.ids + (first - walk->dst_ids.first);
    struct kvfi_comb comb = {.src_slot = src[0], .dst_slot = dst[0],
                             .shape = {.m = 1, .src_step = 1, .dst_step = 1, .n = entries, .whole = 1}};
    enum kvf_status status = kvfi_collector_add(collector, &comb, error);
    struct kvfi_bound *bound;
    int64_t run;

    if (status) goto done;
    bound = &collector->bound[collector->last];
    bound->run_count = 0;
    for (int64_t i = 0; i < count; i += run) {
        run = count_adjacent(src, dst, i, count);
        if (!kvfi_array_grow((void **)&bound->runs, bound->run_count, &bound->run_capacity, sizeof *bound->runs)) {
            status = kvfi_fail_memory(error, "the block runs of a binding");
            goto done;
        }
        bound->runs[bound->run_count++] = (struct kvfi_block_run){
            .src_slot = src[i], .dst_slot = dst[i], .first = i, .src_slot_step = run > 1, .dst_slot_step = run > 1};
        if (src[i + run - 1] > bound->src_slot_max) bound->src_slot_max = src[i + run - 1];
        if (dst[i + run - 1] > bound->dst_slot_max) bound->dst_slot_max = dst[i + run - 1];
    }
    bound->combs = count;
done:
    return status;
}
