/* SPDX-License-Identifier: Apache-2.0 */
/** @file elect.h  Inside of elections.
 *
 *  Layers that the same ranks hold on both sides form a class and are elected once: the answer depends on a layer only
 *  through who holds it. elect.c finds the classes and gathers the answers, elect_cells.c cuts one class into cells and
 *  names the winners, elect_places.c is the destination's check of places that layers share.
 */
#ifndef KVFI_PLAN_ELECT_H
#define KVFI_PLAN_ELECT_H

#include "kvferry/plan.h"

struct kvf_election {
    struct kvf_share **shares; /* one per source as given; NULL where it has none */
    size_t source_count;
    struct kvf_skipped *skipped;
    size_t skipped_count;
    char *skipped_text; /* the roles of skipped cells */
};

/** One row of one rank's holdings. `rank` is the number in rank order, `member` that in the caller's array. */
struct kvfi_holder {
    size_t rank, member;
    const struct kvf_holding *row;
};

/** A cell and the source that sends it; source SIZE_MAX: nobody, and that is allowed. */
struct kvfi_elected {
    size_t source;
    struct kvf_cell cell;
};

/** Answers of all classes, growing; and the work that may still be done for one election. */
struct kvfi_elected_list {
    struct kvfi_elected *items;
    size_t count, capacity;
    int64_t steps_left;
};

/** Rows and layers that one election may look at: about a second, and far more than a thousand ranks on either side
 *  need. Holdings are a peer's numbers. */
#define KVFI_ELECT_MAX_STEPS (INT64_C(1) << 28)

/** Takes `steps` from what is left. @return KVF_OK, KVF_ERR_LIMIT */
enum kvf_status kvfi_elect_spend(struct kvfi_elected_list *list, size_t steps, const char *role,
                                 struct kvf_error *error);

/** Layers of one row of the destination that the same ranks hold. Everything is borrowed. */
struct kvfi_elect_class {
    const struct kvf_holding *row; /* of the destination */
    size_t rank;                   /* the destination's number in rank order */
    int64_t salt;
    const int64_t *layers;
    size_t layer_count;
    struct kvfi_holder *holders; /* source rows with the role and these layers, in rank order; reordered inside */
    size_t holder_count;
    const struct kvfi_holder *rivals; /* destination rows with the role and these layers, in rank order */
    size_t rival_count;
};

/** Elects one class and appends what it found. */
enum kvf_status kvfi_elect_class(const struct kvfi_elect_class *job, struct kvfi_elected_list *list,
                                 struct kvf_error *error);

#endif
