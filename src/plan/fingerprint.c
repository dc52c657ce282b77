/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/error.h"
#include "plan/canonical.h"

static void put_numbers(struct kvfi_canonical *out, const int64_t *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) kvfi_canonical_i64(out, numbers[i]);
}

static void put_patch(struct kvfi_canonical *out, const struct kvf_patch *patch)
{
    const int64_t numbers[] = {patch->layer, patch->src_pool, patch->src_offset_bytes, patch->dst_pool,
                               patch->dst_offset_bytes, patch->units, patch->src_unit_stride_bytes,
                               patch->dst_unit_stride_bytes, patch->src_entry_stride_bytes,
                               patch->dst_entry_stride_bytes, patch->row_bytes};

    put_numbers(out, numbers, sizeof numbers / sizeof *numbers);
}

static void put_box(struct kvfi_canonical *out, const struct kvf_box *box)
{
    const int64_t numbers[] = {box->src_pool, box->src_offset_bytes, box->src_entry_stride_bytes, box->dst_pool,
                               box->dst_offset_bytes, box->dst_entry_stride_bytes, box->run_bytes, box->loop_count};

    put_numbers(out, numbers, sizeof numbers / sizeof *numbers);
    for (int64_t i = 0; i < box->loop_count; i++) {
        const int64_t loop[] = {box->loops[i].count, box->loops[i].src_stride_bytes, box->loops[i].dst_stride_bytes};

        put_numbers(out, loop, 3);
    }
}

static void put_shape(struct kvfi_canonical *out, const struct kvfi_folded *folded)
{
    const struct kvf_shape *shape = &folded->shape;
    const int64_t numbers[] = {shape->m, shape->src_step, shape->dst_step, shape->n, shape->whole, shape->boxes};

    put_numbers(out, numbers, sizeof numbers / sizeof *numbers);
    for (int64_t i = 0; i < shape->boxes; i++) put_box(out, &folded->boxes[i]);
}

static void put_track(struct kvfi_canonical *out, const struct kvfi_track *track)
{
    const struct kvf_track *key = &track->key;
    const int64_t numbers[] = {key->src_group, key->dst_group, key->tokens_per_entry, key->src_slots_per_block,
                               key->dst_slots_per_block, key->src_entries, key->dst_entries, key->patches};

    put_numbers(out, numbers, sizeof numbers / sizeof *numbers);
    for (int64_t i = 0; i < key->patches; i++) put_patch(out, &track->patches[i]);
    kvfi_canonical_i64(out, key->shapes);
    for (int64_t i = 0; i < key->shapes; i++) put_shape(out, &track->shapes[i]);
}

bool kvfi_plan_canonical(const kvf_plan *plan, struct kvfi_canonical *out)
{
    kvfi_canonical_raw(out, "KVFP", 4);
    kvfi_canonical_u32(out, KVF_PLANNER_VERSION);
    kvfi_canonical_i64(out, (int64_t)plan->track_count);
    for (size_t i = 0; i < plan->track_count; i++) put_track(out, &plan->tracks[i]);
    return !out->failed;
}

enum kvf_status kvf_plan_fingerprint(const kvf_plan *plan, char text[KVF_FINGERPRINT_TEXT_BYTES])
{
    struct kvfi_canonical out = {0};
    bool ok = kvfi_plan_canonical(plan, &out);

    if (ok) kvfi_fingerprint_text(out.bytes, out.count, text);
    free(out.bytes);
    return ok ? KVF_OK : KVF_ERR_NO_MEMORY;
}
