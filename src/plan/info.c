/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "base/error.h"
#include "plan/bind.h"
#include "plan/plan.h"
#include "plan/sides.h"

void kvf_plan_get_info(const kvf_plan *plan, struct kvf_plan_info *info)
{
    *info = plan->info;
}

bool kvfi_plan_is_stateful(const struct kvf_plan *plan, bool *rings)
{
    bool state = false;

    *rings = false;
    for (size_t i = 0; i < plan->track_count; i++) {
        state = state || plan->tracks[i].state;
        *rings = *rings || plan->tracks[i].src.ring || plan->tracks[i].dst.ring;
    }
    return state || *rings;
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

enum kvf_status kvfi_binding_check_side(const kvf_binding *binding, bool is_src, void *const *address, size_t count,
                                        struct kvf_error *error)
{
    const struct kvf_layout_spec *spec = is_src ? &binding->plan->src->spec : &binding->plan->dst->spec;
    const char *name = is_src ? "source" : "destination";
    enum kvf_status status = KVF_OK;

    if (binding->flags & (is_src ? KVF_BIND_SRC_UNKNOWN : KVF_BIND_DST_UNKNOWN)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "the binding does not know the %s's block ids", name);
        goto done;
    }
    for (size_t i = 0; i < binding->bound_count; i++) {
        const struct kvfi_folded *folded = &binding->bound[i].folded;

        for (int64_t b = 0; b < folded->shape.boxes; b++) {
            int64_t memory = spec->pools[is_src ? folded->boxes[b].src_pool : folded->boxes[b].dst_pool].memory;

            if ((uint64_t)memory < count && address[memory]) continue;
            status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s memory %" PRId64 " has no address", name, memory);
            goto done;
        }
    }
done:
    return status;
}
