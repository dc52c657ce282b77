/* SPDX-License-Identifier: Apache-2.0 */
/** @file rules.h  The rules that a peer is judged by, in groups that upstream evaluates together.
 *
 *  Each gives KVF_OK or the first rule that is broken, with upstream's text in `error`; KVF_ERR_NO_MEMORY and
 *  KVF_ERR_LIMIT say that a rule could not be evaluated. *Local* in the texts is self.
 */
#ifndef KVFI_TRTLLM_RULES_H
#define KVFI_TRTLLM_RULES_H

#include "trtllm/geometry.h"

/** How to judge. */
struct kvfi_trt_judge {
    bool strict;      /**< also refuse what upstream refuses only because its mappers cannot do it */
    bool skip_ranks;  /**< leave out what concerns two ranks that exchange nothing (head counts of the two) */
};

/** Protocol versions are equal. @return KVF_ERR_VERSION otherwise */
enum kvf_status kvfi_trt_rule_version(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                      struct kvf_error *error);

/** Replay, and draft layers in the unified cache: count, type, cut. */
enum kvf_status kvfi_trt_rule_drafts(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                     struct kvf_error *error);

/** The soft rules: latent or not, context parallelism, element size, sub-byte heads, tokens per block, head size, heads
 *  of a latent cache. The text is the reason, as upstream logs it. */
enum kvf_status kvfi_trt_rule_attention(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                        const struct kvfi_trt_judge *judge, struct kvf_error *error);

/** Whether a tokens-per-block mismatch was accepted that is worth a warning; the warning goes into `text`. */
bool kvfi_trt_warns_of_tokens(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, char *text, size_t text_bytes);

/** Roles of REPLICATED views of one cache kind cover the same of the common layers on both sides. */
enum kvf_status kvfi_trt_rule_coverage(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, int64_t cache,
                                       struct kvf_error *error);

/** Every paged, not replicated view of self that shares layers with the peer has a partner; both publish head counts
 *  and even entries. */
enum kvf_status kvfi_trt_rule_views(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                    struct kvf_error *error);

/** Sizes of recurrent state agree once they are summed over TP; its replicated roles too. */
enum kvf_status kvfi_trt_rule_state(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                    struct kvf_error *error);

#endif
