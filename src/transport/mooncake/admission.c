/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/admission.h"

#include <stdlib.h>

void kvfi_moon_guard_free(kvf_mooncake_guard *guard)
{
    if (!guard) return;
    kvfi_moon_grids_fini(&guard->grids);
    free(guard->blocks);
    free(guard);
}

/* ---- may it begin ----------------------------------------------------------------------------------------------- */

static bool is_granted(const kvf_mooncake_guard *guard, const struct kvfi_moon_spot *spot, uint64_t era)
{
    const struct kvfi_moon_block *block = &guard->blocks[spot->block];

    return block->grants > 0 && block->since <= era;
}

/* How far granted blocks of this guard reach without a gap: `*reached` is their last byte, or `last` where they go on.
 * False when there is none at `address`. */
static bool reach(const kvf_mooncake_guard *guard, uint64_t address, uint64_t last, uint64_t era, uint64_t *reached)
{
    struct kvfi_moon_spot spot;

    if (guard->granted == 0 || !kvfi_moon_grids_seek(&guard->grids, address, &spot) || spot.first > address ||
        !is_granted(guard, &spot, era))
        return false;
    while (spot.last < last) {
        *reached = spot.last;
        if (!kvfi_moon_grids_next(&guard->grids, &spot) || spot.first != *reached + 1 ||
            !is_granted(guard, &spot, era))
            return true;
    }
    *reached = last;
    return true;
}

static bool reach_any(struct kvfi_moon_regions *regions, uint64_t address, uint64_t last, uint64_t era,
                      uint64_t *reached)
{
    for (size_t i = 0; i < regions->guard_count; i++) {
        size_t index = (regions->last_guard + i) % regions->guard_count;

        if (!reach(regions->guards[index], address, last, era, reached)) continue;
        regions->last_guard = index;
        return true;
    }
    return false;
}

/* Nothing is granted at `address`: names a block that lies there. */
static void explain(const struct kvfi_moon_regions *regions, uint64_t address, struct kvfi_moon_refusal *refusal)
{
    struct kvfi_moon_spot spot;

    *refusal = (struct kvfi_moon_refusal){.reason = KVFI_MOON_NO_BLOCK, .at = address};
    for (size_t i = 0; i < regions->guard_count; i++) {
        const kvf_mooncake_guard *guard = regions->guards[i];

        if (!kvfi_moon_grids_seek(&guard->grids, address, &spot) || spot.first > address) continue;
        refusal->reason = KVFI_MOON_NOT_GRANTED;
        refusal->guard = guard->number;
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

static bool count_in(kvf_mooncake_guard *guard, uint64_t address, uint64_t last, uint64_t era)
{
    struct kvfi_moon_spot spot;
    bool counted = false;

    if (guard->granted == 0 || !kvfi_moon_grids_seek(&guard->grids, address, &spot)) return false;
    while (spot.first <= last) {
        if (is_granted(guard, &spot, era)) {
            uint64_t first = spot.first > address ? spot.first : address, end = spot.last < last ? spot.last : last;

            guard->blocks[spot.block].bytes += (int64_t)(end - first) + 1;
            counted = true;
        }
        if (!kvfi_moon_grids_next(&guard->grids, &spot)) break;
    }
    return counted;
}

void kvfi_moon_count_arrived(struct kvfi_moon_regions *regions, const struct kvfi_moon_use *use)
{
    for (size_t i = 0; i < regions->guard_count; i++)
        if (count_in(regions->guards[i], use->address, use->address + (use->bytes - 1), use->era))
            tell(regions->guards[i]);
}

void kvfi_moon_tell_all(struct kvfi_moon_regions *regions)
{
    for (size_t i = 0; i < regions->guard_count; i++) tell(regions->guards[i]);
}

/* ---- what is guarded -------------------------------------------------------------------------------------------- */

bool kvfi_moon_guard_lies_in(const kvf_mooncake_guard *guard, const struct kvfi_moon_region *region)
{
    struct kvfi_moon_spot spot;

    return kvfi_moon_grids_seek(&guard->grids, region->address, &spot) &&
           spot.first <= region->address + (region->bytes - 1);
}

bool kvfi_moon_is_guarded(const struct kvfi_moon_regions *regions, const struct kvfi_moon_region *region)
{
    for (size_t i = 0; i < regions->guard_count; i++)
        if (kvfi_moon_guard_lies_in(regions->guards[i], region)) return true;
    return false;
}
