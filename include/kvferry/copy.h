/* SPDX-License-Identifier: Apache-2.0 */
/** @file copy.h  Executes a binding between memories of this process: direct copy, pack, unpack. */
#ifndef KVFERRY_COPY_H
#define KVFERRY_COPY_H

#include "kvferry/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Copies everything a binding moves, in one pass, from the source's memories to the destination's.
 *  @param src_base  address of each source memory, by memory index; the arrays are borrowed for the call
 *  @param dst_base  the same for the destination; no byte of the two may be the same memory
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT, with nothing copied, when a memory index has no base, or when the binding
 *          was made with KVF_BIND_SRC_UNKNOWN or KVF_BIND_DST_UNKNOWN; KVF_ERR_NO_MEMORY
 *  Any thread; takes as long as the copy. Kernels are chosen by the CPU's features. */
KVF_API enum kvf_status kvf_copy(const kvf_binding *binding, void *const *src_base, size_t src_count,
                                 void *const *dst_base, size_t dst_count, struct kvf_error *error);

/** Packs (source to stream) or unpacks (stream to destination) a binding, resumable at any byte. One thread at a
 *  time. */
typedef struct kvf_packer kvf_packer;

/** Which side of a binding a packer works on. */
enum kvf_packer_side {
    KVF_PACK = 0,  /**< reads source memories, writes the stream */
    KVF_UNPACK = 1 /**< reads the stream, writes destination memories */
};

/** @param base  address of each memory of that side; the array is copied, the memory borrowed until destroy
 *  @param out   returned to the caller (free with kvf_packer_destroy); the binding must outlive it
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT for another side, when a memory index has no base, or when the binding does
 *          not know that side's block ids (the other side's may be unknown); KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_packer_create(const kvf_binding *binding, int side, void *const *base, size_t base_count,
                                          kvf_packer **out, struct kvf_error *error);
KVF_API void kvf_packer_destroy(kvf_packer *packer);

/** Goes to packed byte `offset_bytes`. @return KVF_OK, KVF_ERR_OUT_OF_RANGE */
KVF_API enum kvf_status kvf_packer_seek(kvf_packer *packer, int64_t offset_bytes);

/** Packs up to `bytes` bytes from here into `stream`, or unpacks `bytes` from it. Returns the bytes done: fewer only at
 *  the end of the binding. */
KVF_API int64_t kvf_packer_run(kvf_packer *packer, void *stream, int64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
