/* SPDX-License-Identifier: Apache-2.0 */
/** @file mapping.h  Which view of self goes to which view of the peer. */
#ifndef KVFI_TRTLLM_MAPPING_H
#define KVFI_TRTLLM_MAPPING_H

#include "trtllm/geometry.h"

/** Pairs the views as kvf_trtllm_get_pool_mapping does. With `any_kind` a paged INDEXED view may meet a paged NHD one
 *  (not strict); all other unlike kinds are refused all the same.
 *  @param pairs  returned to the caller (free() it); NULL when `count` is 0 */
enum kvf_status kvfi_trt_map_views(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, bool any_kind,
                                   struct kvf_trtllm_view_pair **pairs, size_t *count, struct kvf_error *error);

/** The peer's view for one view of self, or NULL: the group (of the same cache kind) of the first of its layers that
 *  the peer knows, and in it the first view of equal roles with a common layer. */
const struct kvfi_trt_view *kvfi_trt_partner(const struct kvfi_trt_view *view, const struct kvfi_trt_geometry *peer);

#endif
