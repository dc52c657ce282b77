/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "plan/bind.h"

enum { FIRST_TABLE_SIZE = 16 };

void kvfi_bound_free(struct kvfi_bound *bound, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bound[i].owns_boxes) free(bound[i].folded.boxes);
        free(bound[i].runs);
    }
    free(bound);
}

void kvfi_collector_track(struct kvfi_collector *collector, const struct kvfi_track *track)
{
    collector->track = track;
    collector->first_bound = collector->count;
    collector->last = collector->count;
    free(collector->table);
    collector->table = NULL;
    collector->table_size = 0;
}

static uint64_t hash_shape(const struct kvf_shape *shape)
{
    const uint64_t prime = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t hash = (uint64_t)shape->m;

    hash = (hash ^ (hash >> 29)) * prime + (uint64_t)shape->n;
    hash = (hash ^ (hash >> 29)) * prime + (uint64_t)shape->src_step;
    hash = (hash ^ (hash >> 29)) * prime + (uint64_t)shape->dst_step;
    return (hash ^ (hash >> 29)) * prime >> 32;
}

/** The table's place for a shape: where it is, or where it would be. */
static uint32_t *find_place(const struct kvfi_collector *collector, const struct kvf_shape *shape)
{
    size_t mask = collector->table_size - 1, at = hash_shape(shape) & mask;

    while (collector->table[at] &&
           !kvfi_shape_equal(&collector->bound[collector->first_bound + collector->table[at] - 1].folded.shape, shape))
        at = (at + 1) & mask;
    return &collector->table[at];
}

/** Doubles the table when half of it is taken. */
static bool grow_table(struct kvfi_collector *collector)
{
    size_t shapes = collector->count - collector->first_bound;
    size_t size = collector->table_size ? collector->table_size * 2 : FIRST_TABLE_SIZE;
    uint32_t *table = collector->table;
    bool ok = true;

    if (collector->table_size && shapes * 2 < collector->table_size) goto done;
    table = kvfi_alloc_zeroed(size, sizeof *table);
    ok = table != NULL;
    if (!ok) goto done;
    free(collector->table);
    collector->table = table;
    collector->table_size = size;
    for (size_t i = 0; i < shapes; i++)
        *find_place(collector, &collector->bound[collector->first_bound + i].folded.shape) = (uint32_t)i + 1;
done:
    return ok;
}

/** Takes the plan's boxes for a shape, or makes them when the period does not have it. */
static enum kvf_status fill_boxes(const struct kvfi_collector *collector, struct kvfi_bound *bound,
                                  const struct kvf_shape *shape, struct kvf_error *error)
{
    const struct kvfi_track *track = collector->track;
    enum kvf_status status = KVF_OK;

    for (int64_t i = 0; i < track->key.shapes; i++) {
        if (!kvfi_shape_equal(&track->shapes[i].shape, shape)) continue;
        bound->folded = track->shapes[i];
        goto done;
    }
    status = kvfi_boxes_make(collector->plan, track, shape, &bound->folded, error);
    bound->owns_boxes = status == KVF_OK;
done:
    return status;
}

/** Adds a shape to the track's. */
static enum kvf_status add_shape(struct kvfi_collector *collector, const struct kvf_shape *shape,
                                 struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvfi_bound *bound;
    int64_t shapes = (int64_t)(collector->count - collector->first_bound);

    collector->patch_shapes += collector->track->key.patches;
    if (shapes >= KVFI_BIND_MAX_SHAPES || collector->patch_shapes > KVFI_PLAN_MAX_PATCH_SHAPES) {
        status = kvfi_fail(error, KVF_ERR_LIMIT,
                           "groups %" PRId64 " and %" PRId64 ": the range has more than %" PRId64 " shapes of %" PRId64
                           " patches",
                           collector->track->key.src_group, collector->track->key.dst_group, shapes,
                           collector->track->key.patches);
        goto done;
    }
    if (!kvfi_array_grow((void **)&collector->bound, collector->count, &collector->capacity,
                         sizeof *collector->bound) ||
        !grow_table(collector)) {
        status = kvfi_fail_memory(error, "the shapes of a binding");
        goto done;
    }
    bound = &collector->bound[collector->count];
    *bound = (struct kvfi_bound){.track = collector->track};
    status = fill_boxes(collector, bound, shape, error);
    if (status) goto done;
    *find_place(collector, shape) = (uint32_t)shapes + 1;
    collector->last = collector->count++;
done:
    return status;
}

/** True when the comb goes on with the last run; the run's first two combs fix its step. */
static bool extends(const struct kvfi_bound *bound, struct kvfi_block_run *run, const struct kvfi_comb *comb)
{
    int64_t steps = bound->combs - run->first - 1;
    int64_t src_slot = comb->src_slot - run->src_slot, src_entry = comb->src_entry - run->src_entry;
    int64_t dst_slot = comb->dst_slot - run->dst_slot, dst_entry = comb->dst_entry - run->dst_entry;
    bool joined;

    if (steps == 0) {
        joined = (src_slot == 0 || src_slot == 1) && (dst_slot == 0 || dst_slot == 1);
        if (joined) {
            run->src_slot_step = (uint8_t)src_slot;
            run->dst_slot_step = (uint8_t)dst_slot;
            run->src_entry_step = src_entry;
            run->dst_entry_step = dst_entry;
        }
    } else {
        joined = src_slot == (run->src_slot_step ? steps + 1 : 0) && dst_slot == (run->dst_slot_step ? steps + 1 : 0) &&
                 src_entry - steps * run->src_entry_step == run->src_entry_step &&
                 dst_entry - steps * run->dst_entry_step == run->dst_entry_step;
    }
    return joined;
}

static bool add_to_runs(struct kvfi_bound *bound, const struct kvfi_comb *comb)
{
    bool ok = true;

    if (bound->run_count == 0 || !extends(bound, &bound->runs[bound->run_count - 1], comb)) {
        ok = kvfi_array_grow((void **)&bound->runs, bound->run_count, &bound->run_capacity, sizeof *bound->runs);
        if (!ok) goto done;
        bound->runs[bound->run_count++] = (struct kvfi_block_run){.src_slot = comb->src_slot,
                                                                  .src_entry = comb->src_entry,
                                                                  .dst_slot = comb->dst_slot,
                                                                  .dst_entry = comb->dst_entry,
                                                                  .first = bound->combs};
    }
    bound->combs++;
    if (comb->src_slot > bound->src_slot_max) bound->src_slot_max = comb->src_slot;
    if (comb->dst_slot > bound->dst_slot_max) bound->dst_slot_max = comb->dst_slot;
done:
    return ok;
}

enum kvf_status kvfi_collector_add(struct kvfi_collector *collector, const struct kvfi_comb *comb,
                                   struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    uint32_t number;

    if (collector->last < collector->count &&
        kvfi_shape_equal(&collector->bound[collector->last].folded.shape, &comb->shape))
        goto add;
    number = collector->table ? *find_place(collector, &comb->shape) : 0;
    if (number) collector->last = collector->first_bound + number - 1;
    else status = add_shape(collector, &comb->shape, error);
    if (status) goto done;
add:
    if (!add_to_runs(&collector->bound[collector->last], comb))
        status = kvfi_fail_memory(error, "the block runs of a binding");
done:
    return status;
}
