/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "plan/plan.h"

static bool same_key(const struct kvf_track *a, const struct kvf_track *b)
{
    return a->src_group == b->src_group && a->dst_group == b->dst_group &&
           a->tokens_per_entry == b->tokens_per_entry && a->src_slots_per_block == b->src_slots_per_block &&
           a->dst_slots_per_block == b->dst_slots_per_block && a->src_entries == b->src_entries &&
           a->dst_entries == b->dst_entries;
}

static bool same_place(const struct kvf_patch *a, const struct kvf_patch *b)
{
    return a->dst_pool == b->dst_pool && a->dst_offset_bytes == b->dst_offset_bytes;
}

/** Equal in all but layer, and known to have one destination place. */
static bool is_alias(const struct kvf_patch *a, const struct kvf_patch *b)
{
    return a->src_pool == b->src_pool && a->src_offset_bytes == b->src_offset_bytes && a->units == b->units &&
           a->src_unit_stride_bytes == b->src_unit_stride_bytes &&
           a->dst_unit_stride_bytes == b->dst_unit_stride_bytes &&
           a->src_entry_stride_bytes == b->src_entry_stride_bytes &&
           a->dst_entry_stride_bytes == b->dst_entry_stride_bytes && a->row_bytes == b->row_bytes;
}

static enum kvf_status fail_shared(const struct kvfi_joint *a, const struct kvfi_joint *b, struct kvf_error *error)
{
    const char *text = "share one place at the destination but not at the source";
    const struct kvfi_joint *low = a->patch.layer <= b->patch.layer ? a : b, *high = low == a ? b : a;

    return strcmp(a->dst_role, b->dst_role) == 0
               ? kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "layers %" PRId64 " and %" PRId64 " %s", low->patch.layer,
                           high->patch.layer, text)
               : kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s layer %" PRId64 " and %s layer %" PRId64 " %s",
                           low->dst_role, low->patch.layer, high->dst_role, high->patch.layer, text);
}

static int order_places(const void *left, const void *right)
{
    const struct kvfi_joint *a = *(const struct kvfi_joint *const *)left;
    const struct kvfi_joint *b = *(const struct kvfi_joint *const *)right;
    const int64_t x[3] = {a->key.dst_group, a->patch.dst_pool, a->patch.dst_offset_bytes};
    const int64_t y[3] = {b->key.dst_group, b->patch.dst_pool, b->patch.dst_offset_bytes};
    int order = 0;

    for (int i = 0; i < 3 && !order; i++) order = (x[i] > y[i]) - (x[i] < y[i]);
    return order ? order : (a > b) - (a < b);
}

/** Refuses patches of two tracks that write one place. */
static enum kvf_status check_across_tracks(const struct kvfi_joint *joints, size_t count, struct kvf_error *error)
{
    const struct kvfi_joint **sorted = kvfi_alloc_array(count, sizeof *sorted);
    enum kvf_status status = KVF_OK;

    if (!sorted) {
        status = kvfi_fail_memory(error, "the places of a plan");
        goto done;
    }
    for (size_t i = 0; i < count; i++) sorted[i] = &joints[i];
    qsort(sorted, count, sizeof *sorted, order_places);
    for (size_t i = 1; i < count && !status; i++) {
        const struct kvfi_joint *a = sorted[i - 1], *b = sorted[i];

        if (a->key.dst_group == b->key.dst_group && same_place(&a->patch, &b->patch) && !same_key(&a->key, &b->key))
            status = fail_shared(a, b, error);
    }
done:
    free(sorted);
    return status;
}

/** Fills one track from its joints: patches, and apart from them the aliases that the plan leaves out. */
static enum kvf_status fill_track(struct kvfi_track *track, const struct kvfi_joint *joints, size_t count,
                                  struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t aliases = 0;

    for (size_t i = 1; i < count; i++) aliases += same_place(&joints[i - 1].patch, &joints[i].patch);
    track->key = joints[0].key;
    track->patches = kvfi_alloc_array(count - aliases, sizeof *track->patches);
    track->aliases = aliases ? kvfi_alloc_array(aliases, sizeof *track->aliases) : NULL;
    if (!track->patches || (aliases && !track->aliases)) {
        status = kvfi_fail_memory(error, "the patches of a plan");
        goto done;
    }
    for (size_t i = 0; i < count && !status; i++) {
        if (i == 0 || !same_place(&joints[i - 1].patch, &joints[i].patch))
            track->patches[track->key.patches++] = joints[i].patch;
        else if (is_alias(&joints[i - 1].patch, &joints[i].patch))
            track->aliases[track->alias_count++] = joints[i].patch;
        else
            status = fail_shared(&joints[i - 1], &joints[i], error);
    }
done:
    return status;
}

enum kvf_status kvfi_tracks_make(struct kvf_plan *plan, const struct kvfi_joint *joints, size_t count,
                                 struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t tracks = count > 0, first = 0;

    for (size_t i = 1; i < count; i++) tracks += !same_key(&joints[i - 1].key, &joints[i].key);
    plan->tracks = kvfi_alloc_zeroed(tracks, sizeof *plan->tracks);
    if (!plan->tracks) {
        status = kvfi_fail_memory(error, "the tracks of a plan");
        goto done;
    }
    plan->track_count = tracks;
    for (size_t t = 0; t < tracks && !status; t++) {
        size_t end = first + 1;

        while (end < count && same_key(&joints[first].key, &joints[end].key)) end++;
        status = fill_track(&plan->tracks[t], &joints[first], end - first, error);
        first = end;
    }
    if (!status && tracks > 1) status = check_across_tracks(joints, count, error);
done:
    return status;
}
