/* SPDX-License-Identifier: Apache-2.0 */
#include "layout_json/instance.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"

void kvf_instance_destroy(kvf_instance *instance)
{
    if (!instance) return;
    for (size_t i = 0; i < instance->rank_count; i++) {
        kvf_holdings_release(instance->ranks[i].holdings);
        kvf_layout_release(instance->ranks[i].layout);
    }
    free(instance->ranks);
    free(instance->model_fingerprint);
    free(instance->model_name);
    free(instance);
}

size_t kvf_instance_rank_count(const kvf_instance *instance)
{
    return instance->rank_count;
}

struct kvf_rank kvf_instance_rank(const kvf_instance *instance, size_t index)
{
    return index < instance->rank_count ? instance->ranks[index].rank
                                        : (struct kvf_rank){.dp = -1, .pp = -1, .cp = -1, .tp = -1};
}

const kvf_layout *kvf_instance_layout(const kvf_instance *instance, size_t index)
{
    return index < instance->rank_count ? instance->ranks[index].layout : NULL;
}

const kvf_holdings *kvf_instance_holdings(const kvf_instance *instance, size_t index)
{
    return index < instance->rank_count ? instance->ranks[index].holdings : NULL;
}

enum kvf_status kvf_instance_find(const kvf_instance *instance, int64_t pp, int64_t cp, int64_t tp, size_t *index,
                                  struct kvf_error *error)
{
    const struct kvfi_grid *grid = &instance->grid;
    enum kvf_status status = KVF_OK;

    if (pp < 0 || pp >= grid->pp || cp < 0 || cp >= grid->cp || tp < 0 || tp >= grid->tp) {
        status = kvfi_fail(error, KVF_ERR_NOT_FOUND,
                           "rank pp %" PRId64 " cp %" PRId64 " tp %" PRId64 ": the grid has pp %" PRId64
                           " cp %" PRId64 " tp %" PRId64, pp, cp, tp, grid->pp, grid->cp, grid->tp);
    } else {
        *index = (size_t)((pp * grid->cp + cp) * grid->tp + tp);
    }
    return status;
}

const char *kvf_instance_model_name(const kvf_instance *instance)
{
    return instance->model_name;
}

const char *kvf_instance_model_fingerprint(const kvf_instance *instance)
{
    return instance->model_fingerprint;
}

void kvf_instance_grid(const kvf_instance *instance, int64_t *pp, int64_t *cp, int64_t *tp)
{
    *pp = instance->grid.pp;
    *cp = instance->grid.cp;
    *tp = instance->grid.tp;
}
