/* SPDX-License-Identifier: Apache-2.0 */
/** @file comb.h  The walk: which entries of which slot pairs hold the same positions, as combs in position order. */
#ifndef KVFI_PLAN_COMB_H
#define KVFI_PLAN_COMB_H

#include "plan/plan.h"

/** Block ids of one side as the walk sees them: ordinals [first, end). */
struct kvfi_ids {
    const int64_t *ids;
    int64_t first, end;
    bool every;  /**< no list: every block is there, slots are ordinals */
    bool mirror; /**< the list tells holes only, slots are ordinals */
};

/** A comb: a shape, placed in a pair of slots. */
struct kvfi_comb {
    int64_t src_slot, src_entry, dst_slot, dst_entry;
    struct kvf_shape shape; /**< shape.boxes is 0 here */
};

/** A run of positions that one slot holds on either side. Ordinals count slots, not blocks. */
struct kvfi_atom {
    int64_t src_ordinal, src_slot, src_entry;
    int64_t dst_ordinal, dst_slot, dst_entry;
    int64_t n;
};

/** A walk over [position, end) of one track that has positions. Fill the first block of fields, zero the rest. */
struct kvfi_walk {
    const struct kvfi_track *track; /**< names the groups in errors */
    struct kvfi_side src, dst;
    struct kvfi_ids src_ids, dst_ids;
    int64_t position, end;          /**< in entries */
    int64_t max_steps;
    bool partial;                   /**< a destination list that ends early is no error */
    bool skip_holes;                /**< a destination block without a source block is no error */

    int64_t steps;
    int64_t missing_count;          /**< runs skipped because the destination's list ended */
    int64_t first_missing;          /**< position in entries of the first of them */
    bool ahead;                     /**< `atom` was taken and belongs to the next comb */
    struct kvfi_atom atom;
};

/** Gives the next comb. @return KVF_OK; KVF_ERR_NOT_FOUND at the end (error untouched); KVF_ERR_IDS, KVF_ERR_LIMIT */
enum kvf_status kvfi_walk_next(struct kvfi_walk *walk, struct kvfi_comb *comb, struct kvf_error *error);

#endif
