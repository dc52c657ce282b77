/* SPDX-License-Identifier: Apache-2.0 */
/** @file grids.h  Where the blocks of a guard lie, and which block lies at an address.
 *
 *  Grids whose extents overlap form a *stack*: they have one stride, and each has a *slot* of its own in every stride,
 *  so that the row and the slot of an address tell the block. A lookup searches the stacks, divides once, and searches
 *  the slots. Memory is for grids alone, none for blocks. Nothing here changes once it is made; any thread.
 */
#ifndef KVFI_TRANSPORT_MOONCAKE_GRIDS_H
#define KVFI_TRANSPORT_MOONCAKE_GRIDS_H

#include <stdbool.h>

#include "kvferry/mooncake.h"

enum { KVFI_MOON_MAX_GRIDS = 65536 };

struct kvfi_moon_slot {
    uint64_t offset, bytes; /* within the stride */
    uint64_t skip;          /* row of block 0 */
    size_t grid;            /* index in the caller's list */
};

struct kvfi_moon_stack {
    uint64_t base, last;    /* first and last byte of all */
    uint64_t stride;
    uint64_t last_row;
    struct kvfi_moon_slot *slots; /* by offset; the first has offset 0 and skip 0 */
    size_t slot_count;
};

struct kvfi_moon_grids {
    struct kvfi_moon_stack *stacks; /* by address, apart from each other */
    size_t stack_count;
    struct kvfi_moon_slot *slots;
    uint64_t block_count;
};

/** One block of one grid: [first, last], both included. */
struct kvfi_moon_spot {
    uint64_t first, last;
    uint64_t block;
    size_t stack, slot;
    uint64_t row;
};

/** Checks and arranges grids. `block_count` is above 0. @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the grid;
 *  KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_moon_grids_init(struct kvfi_moon_grids *grids, const struct kvf_mooncake_grid *list, size_t count,
                                     int64_t block_count, struct kvf_error *error);
void kvfi_moon_grids_fini(struct kvfi_moon_grids *grids);

/** True when the same blocks lie at the same places, however the grids were listed. */
bool kvfi_moon_grids_equal(const struct kvfi_moon_grids *a, const struct kvfi_moon_grids *b);

/** The first block that ends at `address` or behind it; false where there is none. */
bool kvfi_moon_grids_seek(const struct kvfi_moon_grids *grids, uint64_t address, struct kvfi_moon_spot *spot);
/** The next one by address; false behind the last, and `spot` is of no use any more. */
bool kvfi_moon_grids_next(const struct kvfi_moon_grids *grids, struct kvfi_moon_spot *spot);

#endif
