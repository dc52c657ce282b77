/* SPDX-License-Identifier: Apache-2.0 */
/** @file write.h  Inside of writes: the bindings that one request of a pair comes to. */
#ifndef KVFI_TRTLLM_WRITE_H
#define KVFI_TRTLLM_WRITE_H

#include "trtllm/pair.h"

struct kvf_trtllm_write {
    kvf_trtllm_pair *pair;
    bool *mask;                        /**< by view pair: elected and not excluded */
    kvf_binding **bindings;
    size_t binding_count, binding_capacity;
    int64_t bytes;
};

/** A request, checked against its pair, with defaults filled in. */
struct kvfi_trt_asked {
    struct kvf_trtllm_request request; /**< token_end is set */
    bool last;                         /**< the chunk reaches the end of the prompt */
    bool partial;                      /**< the chunk is not the whole prompt */
    const bool *mask;                  /**< the write's */
    bool as_planned;                   /**< nothing that is planned was excluded */
};

/** Id lists of all groups of both sides, ready for kvf_bind. */
struct kvfi_trt_lists {
    struct kvf_id_list *src, *dst; /**< layer groups, then ring groups */
    size_t src_count, dst_count;
};

/** Makes lists of nothing but holes: for layer groups by their cache kind, then `ring_count` rings. */
enum kvf_status kvfi_trt_lists_init(struct kvfi_trt_lists *lists, const kvf_trtllm_pair *pair,
                                    struct kvf_error *error);
void kvfi_trt_lists_fini(struct kvfi_trt_lists *lists);

/** A list of nothing but holes, however far one looks; for state, of one. */
struct kvf_id_list kvfi_trt_no_ids(bool is_state);

/** Plans anew what `asked` leaves of the pair's plan, for a request that excludes views.
 *  @param out  returned to the caller (free with kvf_plan_release); NULL when nothing is left */
enum kvf_status kvfi_trt_write_subplan(const struct kvf_trtllm_write *write, const struct kvfi_trt_asked *asked,
                                       kvf_plan **out, struct kvf_error *error);

/** Binds one of a write's plans to lists and a token range, and adds what it moves to the write.
 *  @return as kvf_bind */
enum kvf_status kvfi_trt_write_add(struct kvf_trtllm_write *write, const kvf_plan *plan,
                                   const struct kvfi_trt_lists *lists, uint64_t flags, int64_t token_begin,
                                   int64_t token_end, int64_t request_tokens, struct kvf_error *error);

/** Adds the ring pairs that `asked` leaves, each with the last block of its groups and the positions before the end of
 *  the prompt that both rings retain; and, where there are any, all of the state too. Lists hold the state's ids.
 *  `flags` go to kvf_bind. */
enum kvf_status kvfi_trt_write_rings(struct kvf_trtllm_write *write, const struct kvfi_trt_asked *asked,
                                     const kvf_plan *plan, struct kvfi_trt_lists *lists, uint64_t flags,
                                     struct kvf_error *error);

/** Binds a strict pair as upstream pairs block tables; binds a native one by tokens. */
enum kvf_status kvfi_trt_bind_strict(struct kvf_trtllm_write *write, const struct kvfi_trt_asked *asked,
                                     struct kvf_error *error);
enum kvf_status kvfi_trt_bind_native(struct kvf_trtllm_write *write, const struct kvfi_trt_asked *asked,
                                     struct kvf_error *error);

#endif
