/* SPDX-License-Identifier: Apache-2.0 */
/** @file walk.h  Walks the nested loops of one move in wire order and hands out tiles; can stop and start at any
 *  byte. */
#ifndef KVFI_COPY_WALK_H
#define KVFI_COPY_WALK_H

#include <stdbool.h>

#include "copy/kernel.h"
#include "kvferry/plan.h"

/** A position in a nest. Addresses are numbers, so that one may also stand for memory of another process. */
struct kvfi_walk {
    uint64_t src, dst;         /**< addresses of the nest's first byte */
    int64_t run_bytes;
    int64_t loop_count;
    struct kvf_loop loops[5];  /**< outermost first; every count at least 1 */
    int64_t index[5];          /**< step of each loop */
    int64_t in_run_bytes;      /**< bytes of the current run that are done */
    int64_t left_bytes;        /**< bytes of the nest that are not done; 0 = the walk is over */
};

/** Starts at the beginning of a move, with these addresses of its first byte. */
void kvfi_walk_start(struct kvfi_walk *walk, const struct kvf_move *move, uint64_t src, uint64_t dst);

/** Joins loops whose steps continue one another on both sides. Only at the beginning of a walk. */
void kvfi_walk_fold(struct kvfi_walk *walk);

/** Passes over `bytes` bytes, at most those left. */
void kvfi_walk_skip(struct kvfi_walk *walk, int64_t bytes);

/** Hands out the longest tile that starts here and has at most `max_bytes` (above 0) bytes: whole rows of whole runs,
 *  part of a row, or a part of a run. Returns its bytes; 0 when the walk is over. */
int64_t kvfi_walk_take(struct kvfi_walk *walk, int64_t max_bytes, struct kvfi_tile *tile);

#endif
