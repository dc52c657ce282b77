/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/admission.h"

#include <stdlib.h>

void kvfi_moon_guard_free(kvf_mooncake_guard *guard)
{
    if (!guard) return;
    free(guard->blocks);
    free(guard);
}

void kvfi_moon_shape_free(struct kvfi_moon_shape *shape)
{
    if (!shape) return;
    for (size_t i = 0; i < shape->count; i++) kvfi_moon_guard_free(shape->guards[i]);
    kvfi_moon_grids_fini(&shape->grids);
    free(shape->guards);
    free(shape);
}

/* ---- may it begin ----------------------------------------------------------------------------------------------- */

static bool is_granted(const kvf_mooncake_guard *guard, const struct kvfi_moon_spot *spot, uint64_t era)
{
    const struct kvfi_moon_block *block = &guard->blocks[spot->block];

    return block->grants > 0 && block->since <= era;
}

/* How far granted blocks of this guard reach without a gap from `spot` on: `*reached` is their last byte, or `last`
 * where they go on. False when that one is not granted. */
static bool reach(const kvf_mooncake_guard *guard, struct kvfi_moon_spot spot, uint64_t last, uint64_t era,
                  uint64_t *reached)
{
    if (!is_granted(guard, &spot, era)) return false;
    while (spot.last < last) {
        *reached = spot.last;
        if (!kvfi_moon_grids_next(&guard->shape->grids, &spot) || spot.first != *reached + 1 ||
            !is_granted(guard, &spot, era))
            return true;
    }
    *reached = last;
    return true;
}

static bool find_spot(const struct kvfi_moon_shape *shape, uint64_t address, struct kvfi_moon_spot *spot)
{
    return kvfi_moon_grids_seek(&shape->grids, address, spot) && spot->first <= address;
}

static bool reach_shape(struct kvfi_moon_shape *shape, uint64_t address, uint64_t last, uint64_t era,
                        uint64_t *reached)
{
    struct kvfi_moon_spot spot;
    bool found = find_spot(shape, address, &spot);

    for (size_t i = 0; found && i < shape->count; i++) {
        kvf_mooncake_guard *guard = shape->guards[i];

        if (!reach(guard, spot, last, era, reached)) continue;
        shape->guards[i] = shape->guards[0];
        shape->guards[0] = guard;
        return true;
    }
    return false;
}

static bool reach_any(struct kvfi_moon_regions *regions, uint64_t address, uint64_t last, uint64_t era,
                      uint64_t *reached)
{
    for (size_t i = 0; i < regions->shape_count; i++) {
        struct kvfi_moon_shape *shape = regions->shapes[i];

        if (!reach_shape(shape, address, last, era, reached)) continue;
        regions->shapes[i] = regions->shapes[0];
        regions->shapes[0] = shape;
        return true;
    }
    return false;
}

/* Nothing is granted at `address`: names a block that lies there. */
static void explain(const struct kvfi_moon_regions *regions, uint64_t address, struct kvfi_moon_refusal *refusal)
{
    struct kvfi_moon_spot spot;

    *refusal = (struct kvfi_moon_refusal){.reason = KVFI_MOON_NO_BLOCK, .at = address};
    for (size_t i = 0; i < regions->shape_count; i++) {
        if (!find_spot(regions->shapes[i], address, &spot)) continue;
        refusal->reason = KVFI_MOON_NOT_GRANTED;
        refusal->guard = regions->shapes[i]->guards[0]->number;
        refusal->block = spot.block;
        break;
    }
}

bool kvfi_moon_admits(struct kvfi_moon_regions *regions, uint64_t address, uint64_t last, uint64_t era,
                      struct kvfi_moon_refusal *refusal)
{
    uint64_t reached;

    while (reach_any(regions, address, last, era, &reached)) {
        if (reached == last) return true;
        address = reached + 1;
    }
    if (refusal) explain(regions, address, refusal);
    return false;
}

/* ---- what arrived ----------------------------------------------------------------------------------------------- */

static void tell(kvf_mooncake_guard *guard)
{
    if (!guard->wants_news) return;
    guard->wants_news = false;
    if (guard->news) guard->news(guard->context);
}

static void count_in(const struct kvfi_moon_shape *shape, uint64_t address, uint64_t last, uint64_t era)
{
    struct kvfi_moon_spot spot;
    bool more = kvfi_moon_grids_seek(&shape->grids, address, &spot);

    while (more && spot.first <= last) {
        uint64_t first = spot.first > address ? spot.first : address, end = spot.last < last ? spot.last : last;

        for (size_t i = 0; i < shape->count; i++) {
            if (!is_granted(shape->guards[i], &spot, era)) continue;
            shape->guards[i]->blocks[spot.block].bytes += (int64_t)(end - first) + 1;
            tell(shape->guards[i]);
        }
        more = kvfi_moon_grids_next(&shape->grids, &spot);
    }
}

void kvfi_moon_count_arrived(struct kvfi_moon_regions *regions, const struct kvfi_moon_use *use)
{
    for (size_t i = 0; i < regions->shape_count; i++)
        count_in(regions->shapes[i], use->address, use->address + (use->bytes - 1), use->era);
}

void kvfi_moon_tell_all(struct kvfi_moon_regions *regions)
{
    for (size_t i = 0; i < regions->shape_count; i++)
        for (size_t j = 0; j < regions->shapes[i]->count; j++) tell(regions->shapes[i]->guards[j]);
}

/* ---- what is guarded -------------------------------------------------------------------------------------------- */

bool kvfi_moon_grids_lie_in(const struct kvfi_moon_grids *grids, const struct kvfi_moon_region *region)
{
    struct kvfi_moon_spot spot;

    return kvfi_moon_grids_seek(grids, region->address, &spot) && spot.first <= region->address + (region->bytes - 1);
}

bool kvfi_moon_is_guarded(const struct kvfi_moon_regions *regions, const struct kvfi_moon_region *region)
{
    for (size_t i = 0; i < regions->shape_count; i++)
        if (kvfi_moon_grids_lie_in(&regions->shapes[i]->grids, region)) return true;
    return false;
}
