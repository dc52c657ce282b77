/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/trtllm.h"

enum kvf_trtllm_outcome kvf_trtllm_agree(const uint32_t *votes, size_t rank_count, int *may_retire)
{
    uint32_t any = 0, all = rank_count > 0 ? ~UINT32_C(0) : 0;
    enum kvf_trtllm_outcome outcome = KVF_TRTLLM_PENDING;

    for (size_t i = 0; i < rank_count; i++) {
        any |= votes[i];
        all &= votes[i];
    }
    if (any & KVF_TRTLLM_VOTE_CANCELLED)
        outcome = KVF_TRTLLM_CANCELLED;
    else if (any & KVF_TRTLLM_VOTE_FAILED)
        outcome = KVF_TRTLLM_FAILED;
    else if (all & KVF_TRTLLM_VOTE_COMPLETED)
        outcome = KVF_TRTLLM_COMPLETED;
    *may_retire = outcome == KVF_TRTLLM_COMPLETED ||
                  (outcome != KVF_TRTLLM_PENDING && (all & KVF_TRTLLM_VOTE_QUIESCED) != 0);
    return outcome;
}
