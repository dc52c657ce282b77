/* SPDX-License-Identifier: Apache-2.0 */
/** @file register.h  A rank's tensors, looked at one by one. */
#ifndef KVFI_VLLM_REGISTER_H
#define KVFI_VLLM_REGISTER_H

#include <stdbool.h>

#include "kvferry/vllm.h"

/** The one number among the dotted parts of a layer's name. @return KVF_OK; KVF_ERR_LAYOUT (none or several) */
enum kvf_status kvfi_vllm_layer_index(const char *name, int64_t *index, struct kvf_error *error);

/** What one tensor is to registration. */
struct kvfi_vllm_view {
    uint64_t address;        /**< of its first element */
    uint64_t storage_address;
    int64_t block_stride;    /**< bytes from one block to the next */
    int64_t block_bytes;     /**< of one block's elements; 0 when they are not contiguous in order */
    bool is_packed;          /**< blocks are rows of the whole allocation, and do not name their heads */
    bool is_dense;           /**< a block's elements fill one span without a gap, in any order */
    bool are_heads_dense;    /**< every head's part of a block does */
    int64_t head_count;      /**< 1 unless the rank is 2 or more */
    int64_t head_stride;     /**< bytes from one head to the next */
};

/** Checks that a tensor lies in its allocation, and describes it for a layer that keeps `layer->kind`.
 *  @return KVF_OK; KVF_ERR_LAYOUT; KVF_ERR_OVERFLOW; KVF_ERR_INVALID_ARGUMENT */
enum kvf_status kvfi_vllm_view_init(struct kvfi_vllm_view *view, const struct kvf_vllm_register *spec,
                                    const struct kvf_vllm_tensor *tensor, const struct kvf_vllm_layer *layer,
                                    struct kvf_error *error);

#endif
