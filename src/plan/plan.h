/* SPDX-License-Identifier: Apache-2.0 */
/** @file plan.h  Inside of plans: tracks, their shapes and boxes, and the steps that make them.
 *
 *      compat.c, patch.c   two layouts and a share -> patches in tracks
 *      comb.c              positions -> combs (the walk), for one period at planning and for a range at binding
 *      box.c, fold.c       patches and a shape -> boxes
 *      bind.c, cursor.c    boxes and block ids -> block runs -> moves
 */
#ifndef KVFI_PLAN_PLAN_H
#define KVFI_PLAN_PLAN_H

#include <stdatomic.h>
#include <stdbool.h>

#include "kvferry/plan.h"
#include "layout/layout.h"

/** Bounds on what a peer's numbers can make this side do. Beyond them: KVF_ERR_LIMIT. */
enum kvfi_plan_limit {
    KVFI_PLAN_MAX_PATCHES = 1 << 20,
    KVFI_PLAN_MAX_PAIRS = 1 << 24,         /**< view pairs (times share cells) looked at */
    KVFI_PLAN_MAX_PATCH_SHAPES = 1 << 22,  /**< patches times shapes, of all tracks */
    KVFI_PLAN_MAX_PERIOD_COMBS = 4096,
    KVFI_PLAN_MAX_PERIOD_STEPS = 1 << 20,  /**< steps of the walk over one track's period */
    KVFI_PLAN_MAX_STEPS = 1 << 23,         /**< steps of the walks over the periods of all tracks */
    KVFI_BIND_MAX_STEPS = 1 << 24,         /**< steps of the walks over one range, of all tracks */
    KVFI_BIND_MAX_SHAPES = 4096            /**< shapes of one track in one binding */
};

/** How positions reach slots on one side of a track. All numbers are in entries. */
struct kvfi_side {
    int64_t entries;         /**< per slot */
    int64_t block_entries;   /**< per block id */
    int64_t slots_per_block;
    int64_t ring;            /**< 0 = none */
    int64_t stripes, stripe; /**< 1, 0 = none */
    int64_t stripe_entries;  /**< 0 with stripes > 1 = contiguous */
    int64_t start, length;   /**< contiguous: the positions owned; known at binding only */
};

/** A shape with its boxes, which are made once. */
struct kvfi_folded {
    struct kvf_shape shape; /**< shape.boxes counts `boxes` */
    struct kvf_box *boxes;
    int64_t comb_bytes;     /**< bytes that one comb moves, over all boxes */
};

/** Patches that see the same combs. */
struct kvfi_track {
    struct kvf_track key;
    bool state;
    struct kvfi_side src, dst;
    int64_t grain;              /**< entries; 1 for state and rings */
    struct kvf_patch *patches;  /**< key.patches of them, sorted */
    struct kvf_patch *aliases;  /**< left out: equal to a patch in all but layer. Restricting needs them */
    size_t alias_count;
    struct kvfi_folded *shapes; /**< key.shapes of them: one period's, in the order of their first combs */
};

struct kvf_plan {
    atomic_int references;
    kvf_layout *src, *dst;
    uint64_t flags;
    struct kvfi_track *tracks;
    size_t track_count;
    int64_t *src_limit, *dst_limit; /**< per group: ids must lie below; -1 = no track uses the group */
    struct kvf_plan_info info;
};

/** A patch with the key of its track. */
struct kvfi_joint {
    struct kvf_track key; /**< patches and shapes are 0 here */
    struct kvf_patch patch;
    const char *dst_role;
};

/** Refuses two views that cannot be joined in `layer` (section "compatibility" of the layout model). Places are those
 *  of the layer. */
enum kvf_status kvfi_compat(const kvf_layout *src, const struct kvf_view *src_view, const struct kvf_place *src_place,
                            const kvf_layout *dst, const struct kvf_view *dst_view, const struct kvf_place *dst_place,
                            uint64_t flags, struct kvf_error *error);

/** Checks all pairs of views and gathers their patches within the share (NULL = everything), sorted by track, then
 *  place.
 *  @param out  returned to the caller (free with free) */
enum kvf_status kvfi_patches_gather(const kvf_layout *src, const kvf_layout *dst, const kvf_share *share,
                                    uint64_t flags, struct kvfi_joint **out, size_t *count, struct kvf_error *error);

/** Turns sorted joints into the plan's tracks: patches and aliases, without sides and shapes. Refuses two patches that
 *  share one place at the destination only. */
enum kvf_status kvfi_tracks_make(struct kvf_plan *plan, const struct kvfi_joint *joints, size_t count,
                                 struct kvf_error *error);

/** Order of joints: by track key, then destination place, source place and layer. For qsort. */
int kvfi_joints_order(const void *left, const void *right);

/** Makes an empty plan that holds both layouts; NULL when there is no memory. */
struct kvf_plan *kvfi_plan_new(const kvf_layout *src, const kvf_layout *dst, uint64_t flags);

/** Gives the plan's tracks their sides, shapes, boxes, and the plan its limits and sizes. */
enum kvf_status kvfi_plan_finish(struct kvf_plan *plan, struct kvf_error *error);

/** Drops count-1 loops, then joins loops with the run and with each other, without changing the order of bytes. */
void kvfi_loops_fold(struct kvf_loop *loops, int64_t *loop_count, int64_t *run_bytes);

/** Sorts loops by destination stride, then source stride, both descending. */
void kvfi_loops_sort(struct kvf_loop *loops, int64_t loop_count);

/** Bytes of one expansion of a box: run times loop counts. Returns false when they do not fit. */
bool kvfi_box_bytes(const struct kvf_box *box, int64_t *bytes);

/** Makes the boxes of a shape for a track's patches. Fills `folded` (free its boxes with free) on success. */
enum kvf_status kvfi_boxes_make(const struct kvf_plan *plan, const struct kvfi_track *track,
                                const struct kvf_shape *shape, struct kvfi_folded *folded, struct kvf_error *error);

/** True when some track is state or a ring: what KVF_BIND_NO_STATE leaves out. `*rings`: some track is a ring. */
bool kvfi_plan_is_stateful(const struct kvf_plan *plan, bool *rings);

/** Greatest common divisor, and least common multiple (INT64_MAX when it does not fit) of positive numbers. */
int64_t kvfi_gcd(int64_t a, int64_t b);
int64_t kvfi_lcm(int64_t a, int64_t b);

/** Makes the shapes of one period, and adds the steps that took to `*steps`.
 *  @param out  returned to the caller (free with free) */
enum kvf_status kvfi_period_shapes(const struct kvfi_track *track, struct kvf_shape **out, size_t *count,
                                   int64_t *steps, struct kvf_error *error);

/** Sets both sides and the grain of a track from its key and groups. */
void kvfi_track_sides(struct kvfi_track *track, const struct kvf_group *src, const struct kvf_group *dst);

/** True when the two are the same shape. */
bool kvfi_shape_equal(const struct kvf_shape *a, const struct kvf_shape *b);

#endif
