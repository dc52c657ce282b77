/* SPDX-License-Identifier: Apache-2.0 */
/** @file mapper_kinds.h  The mappers that cut: each fills the part of a kvfi_trt_mapper that is its own, or says in
 *  upstream's words why it cannot be built (KVF_ERR_INCOMPATIBLE). Sizes, heads and layers are filled already. */
#ifndef KVFI_TRTLLM_MAPPER_KINDS_H
#define KVFI_TRTLLM_MAPPER_KINDS_H

#include "trtllm/mapper.h"

enum kvf_status kvfi_trt_plan_hnd(struct kvfi_trt_mapper *mapper, const struct kvf_trtllm_rank_spec *self,
                                  const struct kvf_trtllm_rank_spec *peer, struct kvf_error *error);
enum kvf_status kvfi_trt_plan_nhd(struct kvfi_trt_mapper *mapper, const struct kvf_trtllm_rank_spec *self,
                                  const struct kvf_trtllm_rank_spec *peer, struct kvf_error *error);
enum kvf_status kvfi_trt_plan_sections(struct kvfi_trt_mapper *mapper, const struct kvf_trtllm_rank_spec *self,
                                       const struct kvf_trtllm_rank_spec *peer, struct kvf_error *error);
enum kvf_status kvfi_trt_plan_state_heads(struct kvfi_trt_mapper *mapper, const struct kvf_trtllm_rank_spec *self,
                                          const struct kvf_trtllm_rank_spec *peer, struct kvf_error *error);

/** The first head of `count * size` that falls to rank `rank` of `ranks`, within a rank of `count` heads. */
int64_t kvfi_trt_inner_head(int64_t count, int64_t size, int64_t rank, int64_t ranks);

#endif
