/* SPDX-License-Identifier: Apache-2.0 */
/** @file gates.h  The guards of a consumer's memory: one for each sheet of each set of regions (vllm/extent.h).
 *
 *  They stand from one registration to the next, asleep or awake. A *pass* is what one request was granted.
 */
#ifndef KVFI_VLLM_WORKER_GATES_H
#define KVFI_VLLM_WORKER_GATES_H

#include <stdbool.h>

#include "kvferry/mooncake.h"
#include "transport/mooncake/guards.h"
#include "vllm/extent.h"

struct kvfi_vllm_gate {
    kvf_mooncake_guard *guards[KVFI_VLLM_MAX_SHEETS];
};

struct kvfi_vllm_gates {
    struct kvfi_vllm_extent extent;
    struct kvfi_vllm_gate *gates; /* one per set */
    struct kvfi_vllm_id_facts facts; /* borrowed from who opened them */
};

/** Opens guards over the blocks of `regions`; nothing is granted. Any thread.
 *  @param memory  sorted by address
 *  @param facts   what it points to is borrowed
 *  @param news    told of news of every guard that is asked for them
 *  @param out     free with kvfi_vllm_gates_close
 *  @return as kvfi_vllm_extent_init, kvf_mooncake_guard_open */
enum kvf_status kvfi_vllm_gates_open(kvf_mooncake *engine, const kvf_vllm_regions *regions,
                                     const struct kvf_vllm_storage *memory, size_t memory_count,
                                     const struct kvfi_vllm_id_facts *facts, kvfi_moon_guard_news *news, void *context,
                                     struct kvfi_vllm_gates **out, struct kvf_error *error);
/** Waits until no peer writes there. NULL is fine. The engine is open. */
void kvfi_vllm_gates_close(struct kvfi_vllm_gates *gates);
/** Asks all for news. */
void kvfi_vllm_gates_ask_news(struct kvfi_vllm_gates *gates);

/** What was granted for a request. */
struct kvfi_vllm_pass {
    struct kvfi_vllm_gates *gates;
    struct kvfi_vllm_pass_list {
        int64_t *blocks;
        size_t count;
        size_t first;       /* of those whose bytes are waited for */
        size_t full;        /* blocks from `first` on that have all bytes */
    } *lists;               /* one per set */
    size_t guards_granted;  /* in the order of sets and sheets */
    bool revoked;
};

/** Bytes of a pass. */
struct kvfi_vllm_arrived {
    int64_t expected, found;
    int64_t blocks;          /* that must have come */
    const char *layer_name;  /* of the first set that is short, NULL = none, and its first block that is */
    int64_t block, block_bytes, block_found;
};

/** Grants a request's blocks. Also when it fails `*out` goes to kvfi_vllm_pass_revoke and _free: a part may be granted.
 *  @return KVF_OK; KVF_ERR_OUT_OF_RANGE, KVF_ERR_LIMIT, KVF_ERR_OVERFLOW; KVF_ERR_NO_MEMORY, `*out` may be NULL then */
enum kvf_status kvfi_vllm_pass_grant(struct kvfi_vllm_gates *gates, const struct kvf_vllm_ids *groups,
                                     size_t group_count, struct kvfi_vllm_pass **out, struct kvf_error *error);
/** Takes it back. True once no peer writes there any more; else it is called again, after news. NULL is fine. */
bool kvfi_vllm_pass_revoke(struct kvfi_vllm_pass *pass);
/** True when every block has the bytes that it must have. Goes on where it was short the last time. */
bool kvfi_vllm_pass_has_arrived(struct kvfi_vllm_pass *pass);
/** How much came, block by block; surplus bytes of one do not count for another. */
void kvfi_vllm_pass_count(const struct kvfi_vllm_pass *pass, struct kvfi_vllm_arrived *out);
void kvfi_vllm_pass_free(struct kvfi_vllm_pass *pass);

#endif
