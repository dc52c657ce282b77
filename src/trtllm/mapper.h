/* SPDX-License-Identifier: Apache-2.0 */
/** @file mapper.h  The mapper that upstream would build for a view pair, as numbers: what each side's regions are and
 *  which bytes of them go where. Nothing is mapped here; the translation to layouts and plans reads it.
 */
#ifndef KVFI_TRTLLM_MAPPER_H
#define KVFI_TRTLLM_MAPPER_H

#include "trtllm/geometry.h"

/** A layer that both views hold: where its region starts in a slot of each side. */
struct kvfi_trt_common {
    int64_t global_layer, src_start, dst_start;
};

/** A section of convolution state: where its common part starts in a layer's region of each side, and its bytes. */
struct kvfi_trt_cut {
    int64_t src_offset, dst_offset, bytes;
};

/** One side of a mapper. */
struct kvfi_trt_mapper_side {
    const struct kvfi_trt_view *view;
    int64_t layer_bytes;   /**< one layer's region */
    int64_t buffers;       /**< equal buffers in it: K and V, scales, one */
    int64_t heads;         /**< HND, NHD: the view's; STATE_HEADS: bytes per layer by bytes per head; else 0 */
    int64_t ring_slots;    /**< RING: positions of the ring; else 0 */
    int64_t shift_bytes;   /**< into: HND, each buffer; NHD, each token of each buffer; STATE_HEADS, a region */
};

/** One mapper. By name:
 *  INTACT, REPLICATED, STATE_MATCH: layer_bytes of self go over whole.
 *  HND: of each buffer (layer_bytes / buffers), copy_bytes at each side's shift_bytes; a head is unit_bytes.
 *  NHD: of each token of each buffer (`tokens` of heads * unit_bytes), copy_bytes at each side's shift_bytes.
 *  RING: position p is slot p % ring_slots, unit_bytes long.
 *  STATE_SECTIONS: the cuts. STATE_HEADS: copy_bytes at each side's shift_bytes, once per layer.
 *  ERROR: `error` only, and the views. */
struct kvfi_trt_mapper {
    int32_t name;                    /**< an enum kvf_trtllm_mapper_name */
    bool is_state;                   /**< of a state group */
    struct kvfi_trt_mapper_side src, dst; /**< self and peer */
    struct kvfi_trt_common *layers;  /**< common layers in self's physical order */
    size_t layer_count;
    int64_t tokens;                  /**< NHD: tokens per block */
    int64_t unit_bytes, copy_bytes;
    struct kvfi_trt_cut *cuts;       /**< STATE_SECTIONS */
    size_t cut_count;
    char *error;                     /**< ERROR: what upstream says when it builds the mapper */
};

/** Works out the mapper of a view pair; neither rank need be registered. A mapper that cannot be built is KVF_OK with
 *  the name ERROR. @param pair  keys of views that exist
 *  @param out  filled on success; end with kvfi_trt_mapper_fini
 *  @return KVF_OK; KVF_ERR_OUT_OF_RANGE (no such view); KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_trt_mapper_init(struct kvfi_trt_mapper *out, const kvf_trtllm_rank *self,
                                     const kvf_trtllm_rank *peer, const struct kvf_trtllm_view_pair *pair,
                                     struct kvf_error *error);

/** Ends what kvfi_trt_mapper_init filled; a zeroed one is fine. */
void kvfi_trt_mapper_fini(struct kvfi_trt_mapper *mapper);

#endif
