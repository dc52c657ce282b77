/* SPDX-License-Identifier: Apache-2.0 */
/** @file plans.h  The plan of one pair of ranks, with the restricted plans made of it. Counted: what runs keeps its
 *  own. */
#ifndef KVFI_ENGINE_PLANS_H
#define KVFI_ENGINE_PLANS_H

#include "kvferry/plan.h"

struct kvfi_restricted {
    int64_t layer_first, layer_end;
    kvf_plan *plan;
};

struct kvfi_plans {
    int references;
    kvf_plan *plan;
    struct kvf_plan_info info;
    char fingerprint[KVF_FINGERPRINT_TEXT_BYTES];
    struct kvfi_restricted *restricted;
    size_t restricted_count, restricted_next; /* the next one to be replaced once there are KVFI_MAX_RESTRICTED */
};

/** Plans. @param out  free with kvfi_plans_release */
enum kvf_status kvfi_plans_create(const kvf_layout *source, const kvf_layout *destination, const kvf_share *share,
                                  struct kvfi_plans **out, struct kvf_error *error);
struct kvfi_plans *kvfi_plans_acquire(struct kvfi_plans *plans);
void kvfi_plans_release(struct kvfi_plans *plans);

/** The plan of a layer range, made once: `*out` is acquired. */
enum kvf_status kvfi_plans_restrict(struct kvfi_plans *plans, int64_t layer_first, int64_t layer_end, kvf_plan **out,
                                    struct kvf_error *error);

#endif
