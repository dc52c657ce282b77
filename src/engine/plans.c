/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/plans.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "engine/engine.h"

enum kvf_status kvfi_plans_create(const kvf_layout *source, const kvf_layout *destination, const kvf_share *share,
                                  struct kvfi_plans **out, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvfi_plans *plans = calloc(1, sizeof *plans);

    if (plans == NULL)
        return kvfi_fail_memory(error, "a plan");
    plans->references = 1;
    status = kvf_plan_create(source, destination, share, NULL, &plans->plan, error);
    if (status == KVF_OK) {
        kvf_plan_get_info(plans->plan, &plans->info);
        status = kvf_plan_fingerprint(plans->plan, plans->fingerprint);
        if (status != KVF_OK)
            kvfi_fail_memory(error, "a plan's fingerprint");
    }
    if (status != KVF_OK)
        kvfi_plans_release(plans);
    else
        *out = plans;
    return status;
}

struct kvfi_plans *kvfi_plans_acquire(struct kvfi_plans *plans)
{
    plans->references++;
    return plans;
}

void kvfi_plans_release(struct kvfi_plans *plans)
{
    if (plans == NULL || --plans->references > 0)
        return;
    for (size_t i = 0; i < plans->restricted_count; i++)
        kvf_plan_release(plans->restricted[i].plan);
    free(plans->restricted);
    kvf_plan_release(plans->plan);
    free(plans);
}

static struct kvfi_restricted *slot_for(struct kvfi_plans *plans)
{
    struct kvfi_restricted *slot;

    if (plans->restricted == NULL)
        plans->restricted = kvfi_alloc_zeroed(KVFI_MAX_RESTRICTED, sizeof *plans->restricted);
    if (plans->restricted == NULL)
        return NULL;
    slot = &plans->restricted[plans->restricted_next];
    plans->restricted_next = (plans->restricted_next + 1) % KVFI_MAX_RESTRICTED;
    if (plans->restricted_count < KVFI_MAX_RESTRICTED)
        plans->restricted_count++;
    kvf_plan_release(slot->plan);
    slot->plan = NULL;
    return slot;
}

enum kvf_status kvfi_plans_restrict(struct kvfi_plans *plans, int64_t layer_first, int64_t layer_end, kvf_plan **out,
                                    struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvfi_restricted *slot;
    kvf_plan *plan;

    if (layer_first <= plans->info.layer_min && layer_end >= plans->info.layer_end) {
        *out = kvf_plan_acquire(plans->plan);
        return KVF_OK;
    }
    for (size_t i = 0; i < plans->restricted_count; i++) {
        slot = &plans->restricted[i];
        if (slot->plan != NULL && slot->layer_first == layer_first && slot->layer_end == layer_end) {
            *out = kvf_plan_acquire(slot->plan);
            return KVF_OK;
        }
    }
    status = kvf_plan_restrict(plans->plan, layer_first, layer_end, &plan, error);
    if (status != KVF_OK)
        return status;
    slot = slot_for(plans);
    if (slot != NULL)
        *slot = (struct kvfi_restricted){layer_first, layer_end, kvf_plan_acquire(plan)};
    *out = plan;
    return KVF_OK;
}
