/* SPDX-License-Identifier: Apache-2.0 */
/** @file rules.h  Upstream's rules of pairing: which ranks meet, who sends which bytes, what is refused.
 *
 *  Texts of refusals are upstream's to the letter. All are KVF_ERR_INCOMPATIBLE; KVF_ERR_OVERFLOW where a peer's
 *  numbers do not fit.
 */
#ifndef KVFI_VLLM_RULES_H
#define KVFI_VLLM_RULES_H

#include <stdbool.h>

#include "kvferry/vllm.h"

/** A producer rank and the consumer rank that asks it. */
struct kvfi_vllm_ranks {
    int64_t tp_rank, tp_size;
    int64_t remote_tp_rank, remote_tp_size;
    bool replicated;     /**< each rank of the producer keeps all of its part more than once: MLA, or few heads */
    int64_t total_heads; /**< KV heads of the model; 0 = heads do not matter (MLA, recurrent layers) */
};

/** What goes from one payload into the other. */
struct kvfi_vllm_cut {
    bool sends; /**< false: another rank of the producer has the same bytes and sends them */
    int64_t src_offset_bytes, dst_offset_bytes, bytes;
};

/** Writes local / remote, or -(remote / local) where remote is larger. Both sizes must divide. */
enum kvf_status kvfi_vllm_tp_ratio(int64_t local, int64_t remote, int64_t *ratio, struct kvf_error *error);

/** Writes the ranks of the other engine that rank `tp_rank` of `tp_size` meets: `*count` from `*first` on. */
enum kvf_status kvfi_vllm_target_ranks(int64_t tp_rank, int64_t tp_size, int64_t other_tp_size, int64_t *first,
                                       int64_t *count, struct kvf_error *error);

/** Writes how many pulls of one transfer a producer rank answers when it meets `targets` TP ranks of a consumer. */
enum kvf_status kvfi_vllm_need_send(int64_t targets, int64_t remote_pp_size, int64_t pp_size, int64_t *need_send,
                                    struct kvf_error *error);

/** Refuses a rank that this one does not meet. */
enum kvf_status kvfi_vllm_check_paired(const struct kvfi_vllm_ranks *ranks, struct kvf_error *error);

/** Computes what one pair of regions moves per block, whose payloads are so long. */
enum kvf_status kvfi_vllm_sender_plan(const struct kvfi_vllm_ranks *ranks, int64_t local_bytes, int64_t remote_bytes,
                                      struct kvfi_vllm_cut *out, struct kvf_error *error);

/** Refuses a cut that leaves either payload. */
enum kvf_status kvfi_vllm_check_cut(const struct kvfi_vllm_cut *cut, int64_t local_bytes, int64_t remote_bytes,
                                    struct kvf_error *error);

/** Refuses pairs of regions whose payloads do not go together. */
enum kvf_status kvfi_vllm_check_lengths(const struct kvfi_vllm_ranks *ranks, const struct kvf_vllm_region *local,
                                        size_t local_count, const struct kvf_vllm_region *remote, size_t remote_count,
                                        struct kvf_error *error);

/** Whether some region of the arrays fills its row from the row's begin: its later layers have no names. */
bool kvfi_vllm_has_opaque_row(const struct kvf_vllm_arrays *arrays);

/** Whether regions that lost layers' names would have to be told apart by them. */
bool kvfi_vllm_pp_hides_layers(int64_t pp_size, int64_t remote_pp_size, bool local_has_opaque_row,
                               const struct kvf_vllm_arrays *remote);

/** Refuses to cut heads apart, or join them, where pages are padded or in 4-bit form. `local` are the regions that
 *  found their partner, before any were merged; `layers`, sorted by name, tell of each. */
enum kvf_status kvfi_vllm_check_heads(const struct kvfi_vllm_ranks *ranks, const struct kvf_vllm_region *local,
                                      size_t local_count, const struct kvf_vllm_layer *layers, size_t layer_count,
                                      struct kvf_error *error);

#endif
