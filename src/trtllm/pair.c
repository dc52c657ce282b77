/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/pair.h"

#include "base/array.h"
#include "base/error.h"
#include "plan/share.h"
#include "trtllm/elect.h"
#include "trtllm/mapper.h"
#include "trtllm/mapping.h"
#include "trtllm/native.h"
#include "trtllm/translate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void destroy(struct kvf_trtllm_pair *pair)
{
    for (size_t i = 0; i < pair->view_count; i++) free(pair->views[i].error);
    free(pair->views);
    free(pair->src_bases);
    free(pair->dst_bases);
    free(pair->part_keys);
    kvf_plan_release(pair->plan);
    kvfi_share_destroy(pair->share);
    kvf_trtllm_rank_release(pair->peer);
    kvf_trtllm_rank_release(pair->self);
    free(pair);
}

kvf_trtllm_pair *kvf_trtllm_pair_acquire(const kvf_trtllm_pair *pair)
{
    kvf_trtllm_pair *own = (kvf_trtllm_pair *)pair; /* only the count is written */

    if (own) atomic_fetch_add_explicit(&own->references, 1, memory_order_relaxed);
    return own;
}

void kvf_trtllm_pair_release(kvf_trtllm_pair *pair)
{
    if (pair && atomic_fetch_sub_explicit(&pair->references, 1, memory_order_acq_rel) == 1) destroy(pair);
}

/** Lists the base addresses of a table's pools, all pool groups counted through. NULL when there is no memory. */
static uint64_t *list_bases(const struct kvf_trtllm_page_table *table)
{
    size_t pools = 0, at = 0;
    uint64_t *bases;

    for (size_t i = 0; i < table->pool_group_count; i++) pools += table->pool_groups[i].pool_count;
    bases = kvfi_alloc_array(pools, sizeof *bases);
    if (!bases) goto done;
    for (size_t i = 0; i < table->pool_group_count; i++)
        for (size_t j = 0; j < table->pool_groups[i].pool_count; j++)
            bases[at++] = table->pool_groups[i].pools[j].base_address;
done:
    return bases;
}

enum kvf_status kvfi_trt_pair_new(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, bool strict,
                                  const struct kvf_trtllm_view_pair *keys, size_t count, kvf_trtllm_pair **out,
                                  struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *own = kvf_trtllm_rank_get_spec(self), *other = kvf_trtllm_rank_get_spec(peer);
    struct kvf_trtllm_pair *pair = kvfi_alloc_zeroed(1, sizeof *pair);
    enum kvf_status status = KVF_ERR_NO_MEMORY;

    if (!pair) goto done;
    atomic_init(&pair->references, 1);
    pair->self = kvf_trtllm_rank_acquire(self);
    pair->peer = kvf_trtllm_rank_acquire(peer);
    pair->strict = strict;
    pair->state_paired = kvf_trtllm_is_state_paired(self, peer) != 0;
    pair->block_tokens = own->attention && own->attention->tokens_per_block > 0 ? own->attention->tokens_per_block : 1;
    pair->views = kvfi_alloc_zeroed(count, sizeof *pair->views);
    if (own->page_table) pair->src_bases = list_bases(own->page_table);
    if (other->page_table) pair->dst_bases = list_bases(other->page_table);
    if (!pair->views || (own->page_table && !pair->src_bases) || (other->page_table && !pair->dst_bases)) goto done;
    pair->view_count = count;
    for (size_t i = 0; i < count; i++) pair->views[i].key = keys[i];
    *out = pair;
    pair = NULL;
    status = KVF_OK;
done:
    if (status != KVF_OK) kvfi_fail_memory(error, "a pair of ranks");
    kvf_trtllm_pair_release(pair);
    return status;
}

enum kvf_status kvfi_trt_pair_judge(kvf_trtllm_pair *pair, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < pair->view_count && status == KVF_OK; i++) {
        struct kvfi_trt_pair_view *view = &pair->views[i];
        struct kvfi_trt_mapper mapper = {0};

        status = kvfi_trt_mapper_init(&mapper, pair->self, pair->peer, &view->key, error);
        if (status != KVF_OK) break;
        view->mapper = mapper.name;
        view->is_state = mapper.is_state;
        view->ring_src_slots = mapper.src.ring_slots;
        view->ring_dst_slots = mapper.dst.ring_slots;
        view->ring = (uint32_t)pair->ring_count;
        pair->ring_count += mapper.src.ring_slots > 0;
        if (mapper.name == KVF_TRTLLM_MAP_ERROR) {
            view->error = kvfi_text_copy(mapper.error ? mapper.error : "");
            if (!view->error) status = kvfi_fail_memory(error, "the views of a pair");
        }
        kvf_trtllm_view_head_factors(pair->self, pair->peer, &view->key, &view->duplicate_head_factor,
                                     &view->peer_duplicate_head_factor);
        kvfi_trt_mapper_fini(&mapper);
    }
    return status;
}

/** Elects as upstream does, and marks what the plan holds. */
static void elect_views(kvf_trtllm_pair *pair)
{
    for (size_t i = 0; i < pair->view_count; i++) {
        struct kvfi_trt_pair_view *view = &pair->views[i];

        view->elected = kvf_trtllm_should_send_pool(pair->self, pair->peer, &view->key.self,
                                                    view->duplicate_head_factor) != 0;
        view->planned = view->elected && view->mapper != KVF_TRTLLM_MAP_ERROR &&
                        (!view->is_state || pair->state_paired);
    }
}

/** A strict pair whose views are judged and elected; not planned. */
static enum kvf_status create_judged(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, kvf_trtllm_pair **out,
                                     struct kvf_error *error)
{
    struct kvf_trtllm_view_pair *keys = NULL;
    kvf_trtllm_pair *pair = NULL;
    enum kvf_status status;
    size_t count = 0;

    status = kvfi_trt_map_views(self, peer, false, &keys, &count, error);
    if (status == KVF_OK) status = kvfi_trt_pair_new(self, peer, true, keys, count, &pair, error);
    if (status == KVF_OK) status = kvfi_trt_pair_judge(pair, error);
    if (status != KVF_OK) goto done;
    elect_views(pair);
    *out = pair;
    pair = NULL;
done:
    kvf_trtllm_pair_release(pair);
    free(keys);
    return status;
}

enum kvf_status kvfi_trt_pair_create(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, bool strict,
                                     kvf_trtllm_pair **out, struct kvf_error *error)
{
    kvf_trtllm_pair *pair = NULL;
    enum kvf_status status;

    if (!strict) {
        status = kvfi_trt_native_create(self, peer, &pair, error);
    } else {
        status = create_judged(self, peer, &pair, error);
        if (status == KVF_OK) status = kvfi_trt_strict_plan(pair, error);
    }
    if (status != KVF_OK) goto done;
    *out = pair;
    pair = NULL;
done:
    kvf_trtllm_pair_release(pair);
    return status;
}

enum kvf_status kvfi_trt_pair_create_view(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, size_t index,
                                          kvf_trtllm_pair **out, struct kvf_error *error)
{
    kvf_trtllm_pair *pair = NULL;
    enum kvf_status status = create_judged(self, peer, &pair, error);

    if (status != KVF_OK) goto done;
    if (index >= pair->view_count) {
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "view pair %zu of %zu", index, pair->view_count);
        goto done;
    }
    for (size_t i = 0; i < pair->view_count; i++) {
        pair->views[i].elected = i == index;
        pair->views[i].planned = i == index && pair->views[i].mapper != KVF_TRTLLM_MAP_ERROR;
    }
    status = kvfi_trt_strict_plan(pair, error);
    if (status != KVF_OK) goto done;
    *out = pair;
    pair = NULL;
done:
    kvf_trtllm_pair_release(pair);
    return status;
}

size_t kvf_trtllm_pair_view_count(const kvf_trtllm_pair *pair)
{
    return pair->view_count;
}

enum kvf_status kvf_trtllm_pair_view(const kvf_trtllm_pair *pair, size_t index, struct kvf_trtllm_pair_view *out)
{
    const struct kvfi_trt_pair_view *view;

    if (index >= pair->view_count) return KVF_ERR_OUT_OF_RANGE;
    view = &pair->views[index];
    *out = (struct kvf_trtllm_pair_view){.key = view->key, .elected = view->elected, .mapper = view->mapper,
                                         .duplicate_head_factor = view->duplicate_head_factor,
                                         .peer_duplicate_head_factor = view->peer_duplicate_head_factor,
                                         .ring_src_slots = view->ring_src_slots,
                                         .ring_dst_slots = view->ring_dst_slots};
    if (view->mapper == KVF_TRTLLM_MAP_ERROR) kvfi_fail(&out->error, KVF_ERR_INCOMPATIBLE, "%s", view->error);
    return KVF_OK;
}

const kvf_plan *kvf_trtllm_pair_plan(const kvf_trtllm_pair *pair)
{
    return pair->plan;
}
