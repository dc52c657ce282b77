/* SPDX-License-Identifier: Apache-2.0 */
/* A native pair's blocks are paired by tokens. */
#include "trtllm/write.h"

#include "base/error.h"
#include "plan/plan.h"

#include <inttypes.h>

/** Which groups a binding is about. */
enum which { FULL, WINDOWED };

static const struct kvf_trtllm_page_table *table_of(const kvf_trtllm_rank *rank)
{
    return kvf_trtllm_rank_get_spec(rank)->page_table;
}

/** True when a group of the peer keeps a window of the prompt only, or is sent from one that does. */
static bool is_windowed(const struct kvf_trtllm_write *write, int64_t group)
{
    const kvf_trtllm_pair *pair = write->pair;
    bool windowed = table_of(pair->peer)->groups[group].sliding_window_size != KVF_TRTLLM_NONE;

    for (size_t i = 0; i < pair->view_count && !windowed; i++)
        windowed = pair->views[i].key.peer.group == group &&
                   table_of(pair->self)->groups[pair->views[i].key.self.group].sliding_window_size != KVF_TRTLLM_NONE;
    return windowed;
}

static bool is_state(const kvf_trtllm_rank *rank, size_t group)
{
    return table_of(rank)->groups[group].cache == KVF_TRTLLM_STATE;
}

/** Fills the lists of the peer's groups of one kind, the others are not wanted; and all of self's.
 *  Returns whether there are such groups. */
static bool fill_lists(struct kvfi_trt_lists *lists, const struct kvf_trtllm_write *write,
                       const struct kvfi_trt_asked *asked, enum which which)
{
    const kvf_trtllm_pair *pair = write->pair;
    bool any = false;

    for (size_t i = 0; i < table_of(pair->self)->group_count; i++) {
        const struct kvf_trtllm_blocks *from = &asked->request.src[i];

        lists->src[i] = (struct kvf_id_list){from->ids, from->count, 0};
    }
    for (size_t i = 0; i < table_of(pair->peer)->group_count; i++) {
        const struct kvf_trtllm_blocks *from = &asked->request.dst[i];
        bool state = is_state(pair->peer, i), wanted = state || is_windowed(write, (int64_t)i) == (which == WINDOWED);

        lists->dst[i] = wanted && (from->count || !state) ? (struct kvf_id_list){from->ids, from->count, 0}
                                                          : kvfi_trt_no_ids(state);
        any = any || (wanted && !state);
    }
    return any;
}

static int64_t floor_to(int64_t token, int64_t grain) { return token - token % grain; }

static enum kvf_status check_rings(const struct kvf_trtllm_write *write, const struct kvfi_trt_asked *asked,
                                   bool *rings, struct kvf_error *error)
{
    const kvf_trtllm_pair *pair = write->pair;
    enum kvf_status status = KVF_OK;

    *rings = false;
    for (size_t i = 0; i < pair->view_count; i++)
        *rings = *rings || (asked->mask[i] && pair->views[i].mapper == KVF_TRTLLM_MAP_RING);
    if (*rings && (kvf_trtllm_rank_get_spec(pair->self)->cp_size > 1 ||
                   kvf_trtllm_rank_get_spec(pair->peer)->cp_size > 1))
        status = kvfi_fail(error, KVF_ERR_NOT_SUPPORTED,
                           "rings of unlike length do not move under context parallelism");
    return status;
}

/** Binds blocks, state and rings of one plan. A window's older blocks may be gone at the source, whatever the block
 *  sizes; anywhere else a block that is wanted must be there. */
static enum kvf_status bind_plan(struct kvf_trtllm_write *write, const struct kvfi_trt_asked *asked,
                                 const kvf_plan *plan, struct kvfi_trt_lists *lists, struct kvf_error *error)
{
    const struct kvf_trtllm_request *request = &asked->request;
    int64_t begin = request->token_begin, end = request->token_end;
    uint64_t holes = request->by_holes ? KVF_BIND_SKIP_HOLES : 0;
    bool rings, full, last = asked->last && !request->is_early;
    struct kvf_plan_info info;
    enum kvf_status status = check_rings(write, asked, &rings, error);

    if (status != KVF_OK) goto done;
    kvf_plan_get_info(plan, &info);
    if (request->dst_start_token != KVF_TRTLLM_NONE && request->dst_start_token > begin)
        begin = request->dst_start_token < end ? request->dst_start_token : end;
    begin = floor_to(begin, info.grain_tokens);
    if (!asked->last) end = floor_to(end, info.grain_tokens);
    if (fill_lists(lists, write, asked, WINDOWED))
        status = kvfi_trt_write_add(write, plan, lists, KVF_BIND_SKIP_HOLES | KVF_BIND_NO_STATE, begin, end,
                                    request->prompt_tokens, error);
    full = fill_lists(lists, write, asked, FULL);
    if (status == KVF_OK && (full || (last && !rings)))
        status = kvfi_trt_write_add(write, plan, lists, holes | (last && !rings ? 0 : KVF_BIND_NO_STATE), begin, end,
                                    request->prompt_tokens, error);
    if (status == KVF_OK && last && rings) status = kvfi_trt_write_rings(write, asked, plan, lists, 0, error);
done:
    return status;
}

enum kvf_status kvfi_trt_bind_native(struct kvf_trtllm_write *write, const struct kvfi_trt_asked *asked,
                                     struct kvf_error *error)
{
    const kvf_trtllm_pair *pair = write->pair;
    struct kvfi_trt_lists lists = {0};
    const kvf_plan *plan = pair->plan;
    kvf_plan *own = NULL;
    enum kvf_status status = KVF_OK;

    if (!plan) goto done;
    if (!asked->as_planned) {
        status = kvfi_trt_write_subplan(write, asked, &own, error);
        plan = own;
    }
    if (status != KVF_OK || !plan) goto done;
    status = kvfi_trt_lists_init(&lists, pair, error);
    if (status == KVF_OK) status = bind_plan(write, asked, plan, &lists, error);
done:
    kvfi_trt_lists_fini(&lists);
    kvf_plan_release(own);
    return status;
}
