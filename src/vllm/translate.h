/* SPDX-License-Identifier: Apache-2.0 */
/** @file translate.h  A request's block ids as both engines have them -> the lists that regions are bound with. */
#ifndef KVFI_VLLM_TRANSLATE_H
#define KVFI_VLLM_TRANSLATE_H

#include "vllm/prepared.h"

/** The same number of ids on either side: block i of one goes to block i of the other. */
struct kvfi_vllm_blocks {
    const int64_t *src, *dst;
    size_t count;
    int64_t src_low, src_high, dst_low, dst_high; /**< smallest and largest id; unset when there are none */
};

/** A request's ids, kernel blocks, by group. */
struct kvfi_vllm_blocks_by_group {
    struct kvfi_vllm_blocks *groups;
    size_t group_count;
    int64_t *own; /**< ids that are not the caller's */
    bool any;     /**< some group has blocks */
};

/** Checks a request's lists against each other as upstream does: recurrent groups drop id 0, the producer's last ids
 *  go to the consumer's, logical ids become those of kernel blocks. Lists that need no change are borrowed.
 *  @param out  valid on success; end with kvfi_vllm_blocks_fini
 *  @return KVF_OK; KVF_ERR_IDS; KVF_ERR_OUT_OF_RANGE; KVF_ERR_LIMIT; KVF_ERR_INCOMPATIBLE; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_translate(const kvf_vllm_prepared *prepared, const struct kvf_vllm_ids *producer,
                                    size_t producer_groups, const struct kvf_vllm_ids *consumer,
                                    size_t consumer_groups, struct kvfi_vllm_blocks_by_group *out,
                                    struct kvf_error *error);
void kvfi_vllm_blocks_fini(struct kvfi_vllm_blocks_by_group *blocks);

/** Gives the blocks of one list of a prepared pair: of a group, or of several one after the other.
 *  @param own  ids that were put together, or NULL: free with free, after the last use of `out`
 *  @return KVF_OK; KVF_ERR_INCOMPATIBLE with upstream's text; KVF_ERR_NO_MEMORY; KVF_ERR_LIMIT */
enum kvf_status kvfi_vllm_blocks_of(const struct kvfi_vllm_blocks_by_group *blocks, const struct kvfi_vllm_list *list,
                                    struct kvfi_vllm_blocks *out, int64_t **own, struct kvf_error *error);

#endif
