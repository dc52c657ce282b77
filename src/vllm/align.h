/* SPDX-License-Identifier: Apache-2.0 */
/** @file align.h  Which of the consumer's regions a producer's region goes to. */
#ifndef KVFI_VLLM_ALIGN_H
#define KVFI_VLLM_ALIGN_H

#include <stdbool.h>

#include "kvferry/vllm.h"

/** Regions in pairs: local[i] goes to remote[i]. Names and shared groups point into the two lists they are from. */
struct kvfi_vllm_pairs {
    struct kvf_vllm_region *local, *remote;
    size_t count;
};

/** Pairs the k-th region of a name with the peer's k-th of that name, in the order of `local`; regions that only the
 *  peer has are left out. @param allow_partial  names that the peer does not have at all are left out as well
 *  @param out  valid on success, borrows from both lists; end with kvfi_vllm_pairs_fini
 *  @return KVF_OK; KVF_ERR_INCOMPATIBLE with upstream's text; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_align(const kvf_vllm_regions *local, const kvf_vllm_regions *remote, bool allow_partial,
                                struct kvfi_vllm_pairs *out, struct kvf_error *error);

/** Frees what an alignment made. Zeroed is fine. */
void kvfi_vllm_pairs_fini(struct kvfi_vllm_pairs *pairs);

#endif
