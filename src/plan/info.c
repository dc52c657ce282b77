/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan.h"

void kvf_plan_get_info(const kvf_plan *plan, struct kvf_plan_info *info)
{
    *info = plan->info;
}

enum kvf_status kvf_plan_track(const kvf_plan *plan, size_t track, struct kvf_track *out)
{
    if (track >= plan->track_count) return KVF_ERR_OUT_OF_RANGE;
    *out = plan->tracks[track].key;
    return KVF_OK;
}

enum kvf_status kvf_plan_patch(const kvf_plan *plan, size_t track, size_t patch, struct kvf_patch *out)
{
    if (track >= plan->track_count || patch >= (size_t)plan->tracks[track].key.patches) return KVF_ERR_OUT_OF_RANGE;
    *out = plan->tracks[track].patches[patch];
    return KVF_OK;
}

enum kvf_status kvf_plan_shape(const kvf_plan *plan, size_t track, size_t shape, struct kvf_shape *out)
{
    if (track >= plan->track_count || shape >= (size_t)plan->tracks[track].key.shapes) return KVF_ERR_OUT_OF_RANGE;
    *out = plan->tracks[track].shapes[shape].shape;
    return KVF_OK;
}

enum kvf_status kvf_plan_box(const kvf_plan *plan, size_t track, size_t shape, size_t box, struct kvf_box *out)
{
    const struct kvfi_folded *folded;

    if (track >= plan->track_count || shape >= (size_t)plan->tracks[track].key.shapes) return KVF_ERR_OUT_OF_RANGE;
    folded = &plan->tracks[track].shapes[shape];
    if (box >= (size_t)folded->shape.boxes) return KVF_ERR_OUT_OF_RANGE;
    *out = folded->boxes[box];
    return KVF_OK;
}
