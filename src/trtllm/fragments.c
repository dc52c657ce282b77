/* SPDX-License-Identifier: Apache-2.0 */
/* A write as upstream's mappers would list it. Everything comes from the plan and the binding: a view pair's patches
 * are the regions, a binding's combs the pairs of blocks, in order. What upstream joins (layers of a run) is joined
 * here, what it cuts stays cut. */
#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "plan/bind.h"
#include "trtllm/translate.h"
#include "trtllm/write.h"

#include <stdlib.h>

/** Where fragments go. */
struct list {
    struct kvf_trtllm_fragment *out;
    size_t capacity, count; /**< count goes on past the capacity */
};

/** What upstream does with one view pair. */
struct manner {
    bool join_layers;   /**< regions that follow one another on both sides are one */
    bool layers_outer;  /**< a region's blocks, then the next region's; else all regions of a block */
    bool join_entries;  /**< neighbouring positions are one fragment */
    bool parts_outer;   /**< a part's layers, then the next part's */
};

static struct manner manner_of(int32_t mapper)
{
    bool whole = mapper == KVF_TRTLLM_MAP_INTACT || mapper == KVF_TRTLLM_MAP_REPLICATED;

    return (struct manner){.join_layers = whole, .layers_outer = whole, .join_entries = mapper == KVF_TRTLLM_MAP_RING,
                           .parts_outer = mapper == KVF_TRTLLM_MAP_STATE_SECTIONS};
}

static int order_patches(const void *left, const void *right)
{
    const struct kvf_patch *a = left, *b = right;

    if (a->src_offset_bytes != b->src_offset_bytes) return a->src_offset_bytes > b->src_offset_bytes ? 1 : -1;
    if (a->dst_offset_bytes != b->dst_offset_bytes) return a->dst_offset_bytes > b->dst_offset_bytes ? 1 : -1;
    return (a->layer > b->layer) - (a->layer < b->layer);
}

/** Lists a track's patches in the order they lie at the source, layers that share a place each for itself.
 *  Returns NULL when there is no memory. */
static struct kvf_patch *list_patches(const struct kvfi_track *track, const struct manner *manner, size_t *count)
{
    size_t patches = (size_t)track->key.patches, all = patches + track->alias_count, kept = 0;
    struct kvf_patch *list = kvfi_alloc_array(all, sizeof *list);

    if (!list) goto done;
    for (size_t i = 0; i < all; i++) list[i] = i < patches ? track->patches[i] : track->aliases[i - patches];
    qsort(list, all, sizeof *list, order_patches);
    for (size_t i = 0; i < all; i++) {
        struct kvf_patch *last = kept > 0 ? &list[kept - 1] : NULL;

        if (manner->join_layers && last && list[i].src_offset_bytes - last->src_offset_bytes == last->row_bytes &&
            list[i].dst_offset_bytes - last->dst_offset_bytes == last->row_bytes)
            last->row_bytes += list[i].row_bytes;
        else
            list[kept++] = list[i];
    }
    *count = kept;
done:
    return list;
}

/** One comb of a binding: entries of a pair of slots. */
struct comb {
    int64_t src_slot, src_entry, dst_slot, dst_entry, entries;
};

/** Adds what one patch moves of one comb. */
static void add_patch(struct list *list, const struct kvf_trtllm_write *write, const struct kvf_patch *patch,
                      const struct comb *comb, bool join_entries)
{
    const struct kvf_pool *src = &write->pair->plan->src->spec.pools[patch->src_pool];
    const struct kvf_pool *dst = &write->pair->plan->dst->spec.pools[patch->dst_pool];
    int64_t bytes = patch->units * patch->row_bytes, steps = comb->entries;

    if (join_entries) {
        bytes *= steps;
        steps = 1;
    }
    for (int64_t i = 0; i < steps; i++, list->count++) {
        if (list->count >= list->capacity) continue;
        list->out[list->count] = (struct kvf_trtllm_fragment){
            write->pair->src_bases[src->memory] +
                (uint64_t)(comb->src_slot * src->slot_stride_bytes + patch->src_offset_bytes +
                           (comb->src_entry + i) * patch->src_entry_stride_bytes),
            write->pair->dst_bases[dst->memory] +
                (uint64_t)(comb->dst_slot * dst->slot_stride_bytes + patch->dst_offset_bytes +
                           (comb->dst_entry + i) * patch->dst_entry_stride_bytes),
            bytes};
    }
}

/** Goes through the combs of one shape: patches [first, end) of each. */
static void add_combs(struct list *list, const struct kvf_trtllm_write *write, const struct kvfi_bound *bound,
                      const struct kvf_patch *patches, size_t count, bool join_entries)
{
    for (size_t r = 0; r < bound->run_count; r++) {
        const struct kvfi_block_run *run = &bound->runs[r];
        int64_t combs = kvfi_run_combs(bound, r);

        for (int64_t i = 0; i < combs; i++) {
            const struct comb comb = {run->src_slot + i * run->src_slot_step, run->src_entry + i * run->src_entry_step,
                                      run->dst_slot + i * run->dst_slot_step, run->dst_entry + i * run->dst_entry_step,
                                      bound->folded.shape.m * bound->folded.shape.n};

            for (size_t p = 0; p < count; p++)
                add_patch(list, write, &patches[p], &comb, join_entries);
        }
    }
}

static bool same_track(const struct kvf_track *a, const struct kvf_track *b)
{
    return a->src_group == b->src_group && a->dst_group == b->dst_group &&
           a->tokens_per_entry == b->tokens_per_entry && a->src_entries == b->src_entries &&
           a->dst_entries == b->dst_entries;
}

/** Fragments that the patches give: checked before they are counted one by one. */
static bool few_enough(const struct kvfi_bound *bound, size_t patches, size_t *count)
{
    const int64_t most = INT64_C(1) << 31;
    int64_t entries = bound->folded.shape.m * bound->folded.shape.n, sum;

    return kvfi_mul_i64(bound->combs, entries, &sum) && kvfi_mad_i64(sum, (int64_t)patches, (int64_t)*count, &sum) &&
           sum < most;
}

/** Adds one track's patches wherever a binding of the write holds its combs. */
static enum kvf_status add_track(struct list *list, const struct kvf_trtllm_write *write,
                                 const struct kvfi_track *track, const struct manner *manner, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t count = 0;
    struct kvf_patch *patches = list_patches(track, manner, &count);

    if (!patches) {
        status = kvfi_fail_memory(error, "a list of fragments");
        goto done;
    }
    for (size_t b = 0; b < write->binding_count; b++) {
        for (size_t i = 0; i < write->bindings[b]->bound_count; i++) {
            const struct kvfi_bound *bound = &write->bindings[b]->bound[i];

            if (!same_track(&bound->track->key, &track->key)) continue;
            if (!few_enough(bound, count, &list->count)) {
                status = kvfi_fail(error, KVF_ERR_LIMIT, "a list of more than 2^31 fragments");
                goto done;
            }
            for (size_t p = 0; p < count && manner->layers_outer; p++)
                add_combs(list, write, bound, &patches[p], 1, manner->join_entries);
            if (!manner->layers_outer) add_combs(list, write, bound, patches, count, manner->join_entries);
        }
    }
done:
    free(patches);
    return status;
}

/** Adds the parts that are marked. */
static enum kvf_status add_parts(struct list *list, const struct kvf_trtllm_write *write, const bool *parts,
                                 const struct manner *manner, struct kvf_error *error)
{
    kvf_plan *plan = NULL;
    enum kvf_status status = kvfi_trt_subplan(write->pair, parts, &plan, error);

    for (size_t t = 0; plan && t < plan->track_count && status == KVF_OK; t++)
        status = add_track(list, write, &plan->tracks[t], manner, error);
    kvf_plan_release(plan);
    return status;
}

static bool is_part_of(const kvf_trtllm_pair *pair, size_t part, const struct kvfi_trt_pair_view *view)
{
    return pair->part_keys[part].group == view->key.self.group && pair->part_keys[part].view == view->key.self.view;
}

static enum kvf_status add_view(struct list *list, const struct kvf_trtllm_write *write,
                                const struct kvfi_trt_pair_view *view, bool *parts, struct kvf_error *error)
{
    const kvf_trtllm_pair *pair = write->pair;
    const struct manner manner = manner_of(view->mapper);
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < pair->part_count; i++) parts[i] = !manner.parts_outer && is_part_of(pair, i, view);
    if (!manner.parts_outer) status = add_parts(list, write, parts, &manner, error);
    for (size_t i = 0; i < pair->part_count && manner.parts_outer && status == KVF_OK; i++) {
        if (!is_part_of(pair, i, view)) continue;
        parts[i] = true;
        status = add_parts(list, write, parts, &manner, error);
        parts[i] = false;
    }
    return status;
}

enum kvf_status kvf_trtllm_write_fragments(const kvf_trtllm_write *write, struct kvf_trtllm_fragment *out,
                                           size_t capacity, size_t *count, struct kvf_error *error)
{
    struct list list = {out, capacity, 0};
    const kvf_trtllm_pair *pair;
    enum kvf_status status = KVF_OK;
    bool *parts = NULL;

    if (!write || !count || (capacity && !out))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "fragments: the write or the result is NULL");
    pair = write->pair;
    if (!pair->strict)
        return kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "no mapper of upstream's makes what a native pair moves");
    parts = kvfi_alloc_zeroed(pair->part_count, sizeof *parts);
    if (!parts) {
        status = kvfi_fail_memory(error, "a list of fragments");
        goto done;
    }
    for (size_t i = 0; i < pair->view_count && write->binding_count && status == KVF_OK; i++)
        if (pair->views[i].planned && write->mask[i])
            status = add_view(&list, write, &pair->views[i], parts, error);
    if (status == KVF_OK) *count = list.count;
done:
    free(parts);
    return status;
}
