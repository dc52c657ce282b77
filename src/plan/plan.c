/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "plan/plan.h"

void kvf_plan_options_init(struct kvf_plan_options *options, size_t size)
{
    kvfi_struct_init(options, size, NULL, 0);
}

struct kvf_plan *kvfi_plan_new(const kvf_layout *src, const kvf_layout *dst, uint64_t flags)
{
    struct kvf_plan *plan = kvfi_alloc_zeroed(1, sizeof *plan);

    if (plan) {
        atomic_init(&plan->references, 1);
        plan->src = kvf_layout_acquire(src);
        plan->dst = kvf_layout_acquire(dst);
        plan->flags = flags;
    }
    return plan;
}

kvf_plan *kvf_plan_acquire(const kvf_plan *plan)
{
    kvf_plan *own = (kvf_plan *)plan; /* only the count is written */

    if (own) atomic_fetch_add_explicit(&own->references, 1, memory_order_relaxed);
    return own;
}

static void destroy(struct kvf_plan *plan)
{
    for (size_t t = 0; t < plan->track_count; t++) {
        struct kvfi_track *track = &plan->tracks[t];

        for (int64_t s = 0; s < track->key.shapes; s++) free(track->shapes[s].boxes);
        free(track->shapes);
        free(track->aliases);
        free(track->patches);
    }
    free(plan->tracks);
    free(plan->dst_limit);
    free(plan->src_limit);
    kvf_layout_release(plan->dst);
    kvf_layout_release(plan->src);
    free(plan);
}

void kvf_plan_release(kvf_plan *plan)
{
    if (plan && atomic_fetch_sub_explicit(&plan->references, 1, memory_order_acq_rel) == 1) destroy(plan);
}

/** What the tracks of a plan have taken so far. */
struct spent {
    int64_t steps, patch_shapes;
};

/** Makes the boxes of each of the period's shapes. */
static enum kvf_status fill_shapes(struct kvf_plan *plan, struct kvfi_track *track, struct spent *spent,
                                   struct kvf_error *error)
{
    struct kvf_shape *shapes = NULL;
    size_t count = 0;
    enum kvf_status status = kvfi_period_shapes(track, &shapes, &count, &spent->steps, error);

    if (status) goto done;
    if (spent->steps > KVFI_PLAN_MAX_STEPS) {
        status = kvfi_fail(error, KVF_ERR_LIMIT,
                           "groups %" PRId64 " and %" PRId64 ": the periods of all groups have more than %d runs of "
                           "positions", track->key.src_group, track->key.dst_group, KVFI_PLAN_MAX_STEPS);
        goto done;
    }
    if (!kvfi_mad_i64((int64_t)count, track->key.patches, spent->patch_shapes, &spent->patch_shapes) ||
        spent->patch_shapes > KVFI_PLAN_MAX_PATCH_SHAPES) {
        status = kvfi_fail(
            error, KVF_ERR_LIMIT,
            "groups %" PRId64 " and %" PRId64 ": %zu shapes of %" PRId64 " patches are more than %d boxes",
            track->key.src_group, track->key.dst_group, count, track->key.patches, KVFI_PLAN_MAX_PATCH_SHAPES);
        goto done;
    }
    track->shapes = kvfi_alloc_zeroed(count, sizeof *track->shapes);
    if (!track->shapes) {
        status = kvfi_fail_memory(error, "the shapes of a plan");
        goto done;
    }
    for (size_t i = 0; i < count && !status; i++) {
        status = kvfi_boxes_make(plan, track, &shapes[i], &track->shapes[i], error);
        if (!status) track->key.shapes++;
    }
done:
    free(shapes);
    return status;
}

/** Lowers a group's limit to the ids that a pool has slots for. */
static void lower_limit(int64_t *limit, const struct kvf_pool *pool, int64_t slots_per_block)
{
    int64_t ids = pool->slots / slots_per_block;

    if (*limit < 0 || ids < *limit) *limit = ids;
}

static enum kvf_status fill_limits(struct kvf_plan *plan, struct kvf_error *error)
{
    const struct kvf_layout_spec *src = &plan->src->spec, *dst = &plan->dst->spec;
    enum kvf_status status = KVF_OK;

    plan->src_limit = kvfi_alloc_array(src->group_count, sizeof *plan->src_limit);
    plan->dst_limit = kvfi_alloc_array(dst->group_count, sizeof *plan->dst_limit);
    if (!plan->src_limit || !plan->dst_limit) {
        status = kvfi_fail_memory(error, "the limits of a plan");
        goto done;
    }
    for (size_t i = 0; i < src->group_count; i++) plan->src_limit[i] = -1;
    for (size_t i = 0; i < dst->group_count; i++) plan->dst_limit[i] = -1;
    for (size_t t = 0; t < plan->track_count; t++) {
        const struct kvfi_track *track = &plan->tracks[t];

        for (int64_t i = 0; i < track->key.patches; i++) {
            const struct kvf_patch *patch = &track->patches[i];

            lower_limit(&plan->src_limit[track->key.src_group], &src->pools[patch->src_pool],
                        track->key.src_slots_per_block);
            lower_limit(&plan->dst_limit[track->key.dst_group], &dst->pools[patch->dst_pool],
                        track->key.dst_slots_per_block);
        }
    }
done:
    return status;
}

static void count_layers(struct kvf_plan_info *info, const struct kvf_patch *patches, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int64_t layer = patches[i].layer;

        if (info->layer_end == 0 || layer < info->layer_min) info->layer_min = layer;
        if (layer >= info->layer_end) info->layer_end = layer + 1;
    }
}

static void count_boxes(struct kvf_plan_info *info, const struct kvfi_folded *folded)
{
    int64_t bytes = folded->shape.boxes * (int64_t)sizeof *folded->boxes + (int64_t)sizeof *folded;

    info->boxes += folded->shape.boxes;
    info->plan_bytes += bytes;
    for (int64_t i = 0; i < folded->shape.boxes; i++) {
        int64_t run = folded->boxes[i].run_bytes;

        if (info->shortest_run_bytes == 0 || run < info->shortest_run_bytes) info->shortest_run_bytes = run;
    }
}

static void fill_info(struct kvf_plan *plan)
{
    struct kvf_plan_info *info = &plan->info;
    size_t groups = plan->src->spec.group_count + plan->dst->spec.group_count;

    *info = (struct kvf_plan_info){.tracks = (int64_t)plan->track_count, .grain_tokens = 1};
    info->plan_bytes = (int64_t)(sizeof *plan + plan->track_count * sizeof *plan->tracks + groups * sizeof(int64_t));
    for (size_t t = 0; t < plan->track_count; t++) {
        const struct kvfi_track *track = &plan->tracks[t];
        size_t patches = (size_t)track->key.patches;

        info->patches += track->key.patches;
        info->shapes += track->key.shapes;
        info->plan_bytes += (int64_t)((patches + track->alias_count) * sizeof *track->patches);
        count_layers(info, track->patches, patches);
        count_layers(info, track->aliases, track->alias_count);
        for (int64_t s = 0; s < track->key.shapes; s++) count_boxes(info, &track->shapes[s]);
        if (!track->state && !track->src.ring && !track->dst.ring)
            info->grain_tokens = kvfi_lcm(info->grain_tokens, track->grain * track->key.tokens_per_entry);
    }
}

enum kvf_status kvfi_plan_finish(struct kvf_plan *plan, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct spent spent = {0, 0};

    for (size_t t = 0; t < plan->track_count && !status; t++) {
        struct kvfi_track *track = &plan->tracks[t];

        kvfi_track_sides(track, &plan->src->spec.groups[track->key.src_group],
                         &plan->dst->spec.groups[track->key.dst_group]);
        status = fill_shapes(plan, track, &spent, error);
    }
    if (!status) status = fill_limits(plan, error);
    if (!status) fill_info(plan);
    return status;
}

enum kvf_status kvf_plan_create(const kvf_layout *src, const kvf_layout *dst, const kvf_share *share,
                                const struct kvf_plan_options *options, kvf_plan **out, struct kvf_error *error)
{
    const uint64_t known = KVF_PLAN_BRIDGE_GAPS | KVF_PLAN_PROMOTE_ROW | KVF_PLAN_DIVISIBLE_BLOCKS;
    struct kvf_plan_options own = {.struct_size = sizeof own};
    struct kvfi_joint *joints = NULL;
    kvf_plan *plan = NULL;
    enum kvf_status status;
    size_t count = 0;

    if (!src || !dst || !out) return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "plan: a layout or the result is NULL");
    status = kvfi_options_copy(&own, sizeof own, options, "plan options", error);
    if (status) goto done;
    if (own.flags & ~known) {
        status = kvfi_fail(error, KVF_ERR_NEWER_OPTION,
                           "plan options: flags 0x%" PRIx64 ", this library knows 0x%" PRIx64, own.flags, known);
        goto done;
    }
    status = kvfi_patches_gather(src, dst, share, own.flags, &joints, &count, error);
    if (status) goto done;
    plan = kvfi_plan_new(src, dst, own.flags);
    status = plan ? kvfi_tracks_make(plan, joints, count, error) : kvfi_fail_memory(error, "a plan");
    if (!status) status = kvfi_plan_finish(plan, error);
    if (status) goto done;
    *out = plan;
    plan = NULL;
done:
    kvf_plan_release(plan);
    free(joints);
    return status;
}
