/* SPDX-License-Identifier: Apache-2.0 */
/** @file admission.h  What guards do at each request. All with the lock of the regions held. */
#ifndef KVFI_TRANSPORT_MOONCAKE_ADMISSION_H
#define KVFI_TRANSPORT_MOONCAKE_ADMISSION_H

#include "transport/mooncake/grids.h"
#include "transport/mooncake/guards.h"
#include "transport/mooncake/regions.h"

struct kvfi_moon_block {
    int64_t bytes;      /* that arrived since */
    uint64_t since;     /* era of its first grant: requests that are older do not count, and may not go on */
    uint32_t grants;
    bool fresh;         /* this call grants it first */
    bool asked;         /* this call asks for it */
};

/** Guards over the same blocks, as groups of one cache are: what lies at an address is looked up once for all. */
struct kvfi_moon_shape {
    struct kvfi_moon_grids grids;
    kvf_mooncake_guard **guards; /* the one that admitted last comes first */
    size_t count, capacity;
};

struct kvf_mooncake_guard {
    struct kvfi_moon_regions *regions;
    uint64_t number;    /* among the engine's, from 1 on: for messages */
    struct kvfi_moon_shape *shape;
    struct kvfi_moon_block *blocks;
    int64_t block_count;
    int64_t granted;    /* blocks that are */
    kvfi_moon_guard_news *news;
    void *context;
    bool wants_news;
};

/** Frees it, and its guards with it. NULL is fine for both. */
void kvfi_moon_shape_free(struct kvfi_moon_shape *shape);
void kvfi_moon_guard_free(kvf_mooncake_guard *guard);

/** True when all of [address, last] lies in blocks that have been granted since `era`, each by any guard. Else
 *  `refusal` (NULL is fine) says why not. */
bool kvfi_moon_admits(struct kvfi_moon_regions *regions, uint64_t address, uint64_t last, uint64_t era,
                      struct kvfi_moon_refusal *refusal);

/** Counts the bytes of a request that has ended, in every guard, and tells who asked. */
void kvfi_moon_count_arrived(struct kvfi_moon_regions *regions, const struct kvfi_moon_use *use);

/** True when a block of these, or of any guard, lies in the buffer. */
bool kvfi_moon_grids_lie_in(const struct kvfi_moon_grids *grids, const struct kvfi_moon_region *region);
bool kvfi_moon_is_guarded(const struct kvfi_moon_regions *regions, const struct kvfi_moon_region *region);

/** Tells everyone who asked for news. */
void kvfi_moon_tell_all(struct kvfi_moon_regions *regions);

static inline void kvfi_moon_use_link(struct kvfi_moon_use **list, struct kvfi_moon_use *use)
{
    use->next = *list;
    use->from = list;
    if (use->next) use->next->from = &use->next;
    *list = use;
}

static inline void kvfi_moon_use_unlink(struct kvfi_moon_use *use)
{
    *use->from = use->next;
    if (use->next) use->next->from = use->from;
}

#endif
