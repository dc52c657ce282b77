/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "plan/plan.h"

/** Adds the patches of the wanted layers. */
static void keep_layers(struct kvfi_joint *joints, size_t *count, const struct kvfi_track *track,
                        const struct kvf_patch *patches, size_t patch_count, int64_t layer_first, int64_t layer_end)
{
    for (size_t i = 0; i < patch_count; i++) {
        struct kvfi_joint *joint = &joints[*count];

        if (patches[i].layer < layer_first || patches[i].layer >= layer_end) continue;
        *joint = (struct kvfi_joint){.key = track->key, .patch = patches[i], .dst_role = ""};
        joint->key.patches = 0;
        joint->key.shapes = 0;
        (*count)++;
    }
}

enum kvf_status kvf_plan_restrict(const kvf_plan *plan, int64_t layer_first, int64_t layer_end, kvf_plan **out,
                                  struct kvf_error *error)
{
    struct kvfi_joint *joints = NULL;
    kvf_plan *restricted = NULL;
    enum kvf_status status = KVF_OK;
    size_t count = 0;

    if (!plan || !out) return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "plan: the plan or the result is NULL");
    for (size_t t = 0; t < plan->track_count; t++)
        count += (size_t)plan->tracks[t].key.patches + plan->tracks[t].alias_count;
    joints = kvfi_alloc_array(count, sizeof *joints);
    restricted = kvfi_plan_new(plan->src, plan->dst, plan->flags);
    if (!joints || !restricted) {
        status = kvfi_fail_memory(error, "a plan");
        goto done;
    }
    count = 0;
    for (size_t t = 0; t < plan->track_count; t++) {
        const struct kvfi_track *track = &plan->tracks[t];

        keep_layers(joints, &count, track, track->patches, (size_t)track->key.patches, layer_first, layer_end);
        keep_layers(joints, &count, track, track->aliases, track->alias_count, layer_first, layer_end);
    }
    if (count) qsort(joints, count, sizeof *joints, kvfi_joints_order);
    status = kvfi_tracks_make(restricted, joints, count, error);
    if (!status) status = kvfi_plan_finish(restricted, error);
    if (status) goto done;
    *out = restricted;
    restricted = NULL;
done:
    kvf_plan_release(restricted);
    free(joints);
    return status;
}
