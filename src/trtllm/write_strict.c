/* SPDX-License-Identifier: Apache-2.0 */
/* Upstream's pairing of block tables: by ordinal, a hole on either side leaves the ordinal out. */
#include "trtllm/write.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "trtllm/translate.h"

#include <inttypes.h>
#include <stdlib.h>

/** Which ordinals take part. */
struct range {
    int64_t stripes, stripe;  /**< receiver's context parallelism; 1, 0 = none */
    int64_t first, end;       /**< ordinals of the sender, without stripes */
    int64_t wanted;           /**< ordinals of the receiver before it are not wanted */
};

static const struct kvf_trtllm_rank_spec *spec_of(const kvf_trtllm_rank *rank)
{
    return kvf_trtllm_rank_get_spec(rank);
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t round_up(int64_t tokens, int64_t block) { return tokens / block + (tokens % block != 0); }

/** Chunks hold the blocks that are complete at their end; the last one all that is left. */
static enum kvf_status find_range(struct range *range, const kvf_trtllm_pair *pair,
                                  const struct kvfi_trt_asked *asked, struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *self = spec_of(pair->self), *peer = spec_of(pair->peer);
    const struct kvf_trtllm_request *request = &asked->request;
    int64_t block = self->page_table->tokens_per_block > 0 ? self->page_table->tokens_per_block : 1;
    enum kvf_status status = KVF_OK;

    *range = (struct range){.stripes = 1, .first = request->token_begin / block,
                            .end = asked->last ? INT64_MAX : request->token_end / block};
    if (request->dst_start_token != KVF_TRTLLM_NONE) range->wanted = request->dst_start_token / block;
    if (asked->partial && (self->cp_size > 1 || peer->cp_size > 1)) {
        status = kvfi_fail(error, KVF_ERR_NOT_SUPPORTED,
                           "enable_pipelined_transfer is not supported with context parallelism (sender cp_size=%"
                           PRId64 ", receiver cp_size=%" PRId64 ")", self->cp_size, peer->cp_size);
        goto done;
    }
    if (peer->cp_size > 1 && self->cp_size == 1) {
        range->stripes = peer->cp_size;
        range->stripe = peer->cp_rank;
    } else {
        range->first = larger(range->first, range->wanted);
    }
done:
    return status;
}

static bool has_first(const struct kvf_trtllm_blocks *blocks)
{
    return blocks->count > 0 && blocks->ids[0] >= 0;
}

/** Pairs one group of each side. `*left`: an ordinal is left. */
static enum kvf_status pair_tables(const struct range *range, const struct kvf_trtllm_blocks *src,
                                   const struct kvf_trtllm_blocks *dst, bool *left, struct kvf_error *error)
{
    int64_t count = round_up(larger((int64_t)src->count - range->stripe, 0), range->stripes);
    int64_t first = range->stripes > 1 ? range->wanted : range->first, end = smaller(count, range->end);
    enum kvf_status status = KVF_OK;

    *left = false;
    if (count != (int64_t)dst->count)
        status = kvfi_fail(error, KVF_ERR_IDS,
                           "positional block tables differ in length: src=%" PRId64 " dst=%zu; both sides must span "
                           "the same prompt", count, dst->count);
    for (int64_t i = first; i < end && status == KVF_OK && !*left; i++)
        *left = src->ids[i * range->stripes + range->stripe] >= 0 && dst->ids[i] >= 0;
    return status;
}

/** Goes through the views in mapping order as upstream does, and refuses what it would refuse first. */
static enum kvf_status check_views(const kvf_trtllm_pair *pair, const struct kvfi_trt_asked *asked,
                                   const struct range *range, struct kvf_error *error)
{
    const struct kvf_trtllm_view_pair *last = NULL;
    enum kvf_status status = KVF_OK;
    bool last_left = false;

    for (size_t i = 0; i < pair->view_count && status == KVF_OK; i++) {
        const struct kvfi_trt_pair_view *view = &pair->views[i];
        const struct kvf_trtllm_blocks *src = &asked->request.src[view->key.self.group];
        const struct kvf_trtllm_blocks *dst = &asked->request.dst[view->key.peer.group];
        bool left = false;

        if (!asked->mask[i]) continue;
        if (view->mapper == KVF_TRTLLM_MAP_RING) {
            if (range->stripes > 1 || spec_of(pair->self)->cp_size > 1)
                status = kvfi_fail(error, KVF_ERR_NOT_SUPPORTED,
                                   "group %" PRId64 " view %" PRId64 ": rings of unlike length do not move under "
                                   "context parallelism", view->key.self.group, view->key.self.view);
        } else if (view->is_state) {
            left = asked->last && pair->state_paired && has_first(src) && has_first(dst);
        } else {
            bool same = last && last->self.group == view->key.self.group && last->peer.group == view->key.peer.group;

            left = same && last_left;
            if (!same) status = pair_tables(range, src, dst, &left, error);
            last = &view->key;
            last_left = left;
        }
        if (status == KVF_OK && left && view->error)
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s", view->error);
    }
    return status;
}

/** Fills the lists of one side's layer groups. Returns the most ids that a paged group has. */
static int64_t fill_lists(struct kvf_id_list *lists, const kvf_trtllm_rank *rank,
                          const struct kvf_trtllm_blocks *blocks, int64_t first)
{
    const struct kvf_trtllm_page_table *table = spec_of(rank)->page_table;
    int64_t most = 0;

    for (size_t i = 0; i < table->group_count; i++) {
        const struct kvf_trtllm_blocks *from = &blocks[i];

        if (table->groups[i].cache == KVF_TRTLLM_STATE) {
            if (has_first(from)) lists[i] = (struct kvf_id_list){from->ids, 1, 0};
        } else {
            int64_t skipped = smaller(first, (int64_t)from->count);

            lists[i] = (struct kvf_id_list){from->count ? from->ids + skipped : NULL, from->count - (size_t)skipped,
                                            skipped};
            most = larger(most, (int64_t)from->count);
        }
    }
    return most;
}

/** Binds blocks, state and rings of one plan. */
static enum kvf_status bind_plan(struct kvf_trtllm_write *write, const struct kvfi_trt_asked *asked,
                                 const kvf_plan *plan, struct kvfi_trt_lists *lists, const struct range *range,
                                 struct kvf_error *error)
{
    const kvf_trtllm_pair *pair = write->pair;
    const uint64_t flags = KVF_BIND_SKIP_HOLES | KVF_BIND_PARTIAL;
    int64_t ordinals = fill_lists(lists->src, pair->self, asked->request.src, 0), begin = 0, end = 0;
    bool rings = false;
    enum kvf_status status = KVF_OK;

    fill_lists(lists->dst, pair->peer, asked->request.dst, range->stripes > 1 ? range->wanted : 0);
    for (size_t i = 0; i < pair->view_count; i++)
        rings = rings || (asked->mask[i] && pair->views[i].mapper == KVF_TRTLLM_MAP_RING);
    ordinals = smaller(ordinals, range->end);
    if (range->first < ordinals &&
        (!kvfi_mul_i64(ordinals, pair->block_tokens, &end) ||
         !kvfi_mul_i64(range->first, pair->block_tokens, &begin))) {
        status = kvfi_fail(error, KVF_ERR_OVERFLOW, "%" PRId64 " blocks of %" PRId64 " tokens do not fit", ordinals,
                           pair->block_tokens);
        goto done;
    }
    status = kvfi_trt_write_add(write, plan, lists, flags | (asked->last && !rings ? 0 : KVF_BIND_NO_STATE), begin,
                                end, end, error);
    if (status == KVF_OK && asked->last && rings)
        status = kvfi_trt_write_rings(write, asked, plan, lists, flags, error);
done:
    return status;
}

enum kvf_status kvfi_trt_bind_strict(struct kvf_trtllm_write *write, const struct kvfi_trt_asked *asked,
                                     struct kvf_error *error)
{
    const kvf_trtllm_pair *pair = write->pair;
    struct kvfi_trt_lists lists = {0};
    kvf_plan *own = NULL;
    const kvf_plan *plan = pair->plan;
    enum kvf_status status = KVF_OK;
    struct range range;

    if (pair->view_count == 0) goto done;
    status = find_range(&range, pair, asked, error);
    if (status == KVF_OK) status = check_views(pair, asked, &range, error);
    if (status == KVF_OK && !asked->as_planned) {
        status = kvfi_trt_write_subplan(write, asked, &own, error);
        plan = own;
    }
    if (status != KVF_OK || !plan) goto done;
    status = kvfi_trt_lists_init(&lists, pair, error);
    if (status == KVF_OK) status = bind_plan(write, asked, plan, &lists, &range, error);
done:
    kvfi_trt_lists_fini(&lists);
    kvf_plan_release(own);
    return status;
}
