/* SPDX-License-Identifier: Apache-2.0 */
/** @file memo.h  What was prepared for which peer: bounded in number and in bytes, the least recently used goes. */
#ifndef KVFI_VLLM_MEMO_H
#define KVFI_VLLM_MEMO_H

#include "vllm/key.h"

struct kvfi_vllm_entry;

/** Prepared pairs by key. One thread at a time. */
struct kvfi_vllm_memo {
    struct kvfi_vllm_entry **buckets;        /**< chains; a power of two of them */
    size_t bucket_count;
    struct kvfi_vllm_entry *newest, *oldest; /**< in order of use */
    size_t count, most;
    size_t bytes, most_bytes;                /**< of keys and what they stand for */
};

/** @return KVF_OK, KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_memo_init(struct kvfi_vllm_memo *memo, size_t most, size_t most_bytes,
                                    struct kvf_error *error);
void kvfi_vllm_memo_fini(struct kvfi_vllm_memo *memo);

/** What is there under a key, now the most recently used: borrowed until the next change; NULL when nothing is. */
kvf_vllm_prepared *kvfi_vllm_memo_find(struct kvfi_vllm_memo *memo, const struct kvfi_vllm_key *key);

/** Remembers `prepared` (acquired) under a key, in place of what is there, and forgets the least recently used that are
 *  too many. What is too large to be kept beside others, or finds no memory, is not remembered: it costs time alone. */
void kvfi_vllm_memo_put(struct kvfi_vllm_memo *memo, const struct kvfi_vllm_key *key, kvf_vllm_prepared *prepared);

#endif
