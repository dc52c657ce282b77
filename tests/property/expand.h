/* SPDX-License-Identifier: Apache-2.0 */
/** @file expand.h  Moves, expanded byte by byte into places of the ranks' maps. */
#ifndef PROPERTY_EXPAND_H
#define PROPERTY_EXPAND_H

#include "case.h"

enum { UNKNOWN = -2 };

/** Packed bytes in wire order: where each comes from and goes to in the ranks' maps, UNKNOWN where that is not
 *  known. */
struct packed {
    int32_t *src, *dst;
    int64_t count, capacity;
    int64_t moves, runs;
};

void packed_fini(struct packed *packed);

/** Makes room for `count` more bytes. */
void packed_reserve(struct packed *packed, int64_t count);

/** Appends one move; `src` or `dst` NULL: that side is not known. False: an address outside a memory. */
bool packed_add(struct packed *packed, const struct kvf_move *move, const struct rank *src, const struct rank *dst);

/** Bytes that a move carries. */
int64_t move_bytes(const struct kvf_move *move);

/** Expands what a cursor still has. False: wrong, and said so. */
bool packed_walk(struct packed *packed, kvf_cursor *cursor, const struct rank *src, const struct rank *dst);

#endif
