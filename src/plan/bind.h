/* SPDX-License-Identifier: Apache-2.0 */
/** @file bind.h  Inside of bindings: the plan's boxes and runs of blocks. */
#ifndef KVFI_PLAN_BIND_H
#define KVFI_PLAN_BIND_H

#include "plan/comb.h"
#include "plan/plan.h"

/** Combs of one shape at a constant step. How many: up to the next run's `first`. 64 bytes. */
struct kvfi_block_run {
    int64_t src_slot, src_entry, dst_slot, dst_entry; /**< of the first comb */
    int64_t src_entry_step, dst_entry_step;
    int64_t first;                                    /**< combs of this shape before this run */
    uint8_t src_slot_step, dst_slot_step;             /**< 0 or 1 */
};

/** A shape of one track in a binding. */
struct kvfi_bound {
    const struct kvfi_track *track;
    struct kvfi_folded folded;
    bool owns_boxes; /**< the shape is not among the plan's: its boxes were made for this binding */
    struct kvfi_block_run *runs;
    size_t run_count, run_capacity;
    int64_t combs;
    int64_t src_slot_max, dst_slot_max;
    int64_t first_byte; /**< packed bytes before this shape */
};

struct kvf_binding {
    kvf_plan *plan;
    uint64_t flags;           /**< of the request */
    struct kvfi_bound *bound; /**< in wire order: tracks by key, shapes by their first comb */
    size_t bound_count;
    struct kvf_binding_info info; /**< all but `runs` */
    _Atomic int64_t runs;         /**< counted when first asked for; -1 until then */
};

/** Combs in run number `index`. */
static inline int64_t kvfi_run_combs(const struct kvfi_bound *bound, size_t index)
{
    return (index + 1 < bound->run_count ? bound->runs[index + 1].first : bound->combs) - bound->runs[index].first;
}

/** Checks the ids of one list that a range can reach: ordinals below `needed`. `limit`: ids must lie below it; -1 =
 *  they tell holes only. `repeats`: an id may stand there twice. `side` names it ("source", "destination").
 *  @return KVF_OK, KVF_ERR_IDS, KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_ids_check(const struct kvf_id_list *list, int64_t needed, int64_t limit, bool repeats,
                               const char *side, size_t group, struct kvf_error *error);

/** Finds the first id that stands in the list a second time; holes (below 0) do not count. [low, high] holds all other
 *  ids. `*index` becomes its place, or `count` when there is none. Linear in ids that lie near each other.
 *  @return KVF_OK, KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_ids_find_repeat(const int64_t *ids, size_t count, int64_t low, int64_t high, size_t *index);

/** Turns a request's token range into the entries of a walk, whose sides and ids are set: whole grains, or within both
 *  rings; with KVF_BIND_RING_TAIL their last positions.
 *  @return KVF_OK, KVF_ERR_OUT_OF_RANGE, KVF_ERR_OVERFLOW, KVF_ERR_IDS */
enum kvf_status kvfi_range_set(const struct kvf_bind_request *request, struct kvfi_walk *walk, struct kvf_error *error);

/** Collects one track's combs into shapes and block runs. */
struct kvfi_collector {
    const struct kvf_plan *plan;
    const struct kvfi_track *track;
    struct kvfi_bound *bound; /**< grows: all shapes of the binding, those of this track from `first_bound` on */
    size_t count, capacity;
    size_t first_bound;
    size_t last;     /**< shape of the comb before */
    int64_t patch_shapes; /**< shapes times the patches of their tracks, of all tracks */
    uint32_t *table; /**< open addressing over this track's shapes: number in the track + 1, 0 = free */
    size_t table_size;
};

/** Begins another track. */
void kvfi_collector_track(struct kvfi_collector *collector, const struct kvfi_track *track);

/** Adds the next comb of the track. @return KVF_OK, KVF_ERR_LIMIT, KVF_ERR_NO_MEMORY, KVF_ERR_OVERFLOW */
enum kvf_status kvfi_collector_add(struct kvfi_collector *collector, const struct kvfi_comb *comb,
                                   struct kvf_error *error);

/** True when a walk meets whole slots alone, each with its block: equal slots of one block id each, neither ring nor
 *  stripe, ids of both sides at hand and no hole among them. */
bool kvfi_walk_is_plain(const struct kvfi_walk *walk);

/** Adds all of such a walk: what the walk would find comb by comb, for the price of comparing neighbours. Ids that
 *  repeat (KVF_BIND_ANY_IDS) end a run. @return KVF_OK, KVF_ERR_LIMIT, KVF_ERR_NO_MEMORY, KVF_ERR_OVERFLOW */
enum kvf_status kvfi_collector_add_plain(struct kvfi_collector *collector, const struct kvfi_walk *walk,
                                         struct kvf_error *error);

/** Frees shapes and runs. */
void kvfi_bound_free(struct kvfi_bound *bound, size_t count);

#endif
