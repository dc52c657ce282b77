/* SPDX-License-Identifier: Apache-2.0 */
/* Rings of unlike length move by position: the last block of each side's group, and the positions before the end of the
 * prompt that both rings retain. */
#include "trtllm/write.h"

/** A ring pair's lists: the last id of each side's group, or nothing when either is a hole. */
static void fill_ring(struct kvfi_trt_lists *lists, const kvf_trtllm_pair *pair, const struct kvfi_trt_asked *asked,
                      const struct kvfi_trt_pair_view *view, bool wanted)
{
    const struct kvf_trtllm_blocks *src = &asked->request.src[view->key.self.group];
    const struct kvf_trtllm_blocks *dst = &asked->request.dst[view->key.peer.group];
    struct kvf_id_list *to_src = &lists->src[lists->src_count - pair->ring_count + view->ring];
    struct kvf_id_list *to_dst = &lists->dst[lists->dst_count - pair->ring_count + view->ring];

    *to_src = kvfi_trt_no_ids(false);
    *to_dst = kvfi_trt_no_ids(false);
    if (!wanted || dst->count == 0 || dst->ids[dst->count - 1] < 0) return;
    *to_dst = (struct kvf_id_list){&dst->ids[dst->count - 1], 1, 0};
    if (src->count > 0 && src->ids[src->count - 1] >= 0)
        *to_src = (struct kvf_id_list){&src->ids[src->count - 1], 1, 0};
}

enum kvf_status kvfi_trt_write_rings(struct kvf_trtllm_write *write, const struct kvfi_trt_asked *asked,
                                     const kvf_plan *plan, struct kvfi_trt_lists *lists, uint64_t flags,
                                     struct kvf_error *error)
{
    const kvf_trtllm_pair *pair = write->pair;
    int64_t prompt = asked->request.prompt_tokens;

    for (size_t i = 0; i < pair->view_count; i++)
        if (pair->views[i].mapper == KVF_TRTLLM_MAP_RING)
            fill_ring(lists, pair, asked, &pair->views[i], asked->mask[i]);
    return kvfi_trt_write_add(write, plan, lists, flags | KVF_BIND_ONLY_STATE | KVF_BIND_RING_TAIL, 0, prompt, prompt,
                              error);
}
