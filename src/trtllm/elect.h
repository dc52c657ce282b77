/* SPDX-License-Identifier: Apache-2.0 */
/** @file elect.h  Numbers of the grid that several parts need. */
#ifndef KVFI_TRTLLM_ELECT_H
#define KVFI_TRTLLM_ELECT_H

#include "kvferry/trtllm.h"

#include <stdbool.h>

/** TP ranks of one DP group: tp_size / dp_size under attention DP, else tp_size. At least 1. */
int64_t kvfi_trt_group_tp(const struct kvf_trtllm_rank_spec *rank);

/** Size and rank of the grid that recurrent state is cut over: 1 and 0 under attention DP, TP by CP otherwise. */
void kvfi_trt_state_tp(const struct kvf_trtllm_rank_spec *rank, int64_t *size, int64_t *number);

/** Whether a rank's cache is key-only. */
bool kvfi_trt_key_only(const struct kvf_trtllm_rank_spec *rank);

/** Duplication factors of the two rank-wide head counts. */
void kvfi_trt_rank_factors(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_rank_spec *peer,
                           int64_t *duplicates, int64_t *peer_duplicates);

/** Whether the state ranks of the two are paired; whether self sends a view of this cache and mapper kind to peer. */
bool kvfi_trt_state_paired(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_rank_spec *peer);
bool kvfi_trt_sends(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_rank_spec *peer, int64_t cache,
                    int64_t mapper, int64_t duplicate_head_factor);

/** A run of ranks along one axis. */
struct kvfi_trt_run {
    int64_t start, count;
};

/** Which ranks of `peer_size` meet rank `rank` of `self_size`. Sizes of which neither divides the other are taken as
 *  upstream takes them: the run may pass the end. */
struct kvfi_trt_run kvfi_trt_meet(int64_t self_size, int64_t peer_size, int64_t rank);

/** As kvf_trtllm_get_overlap; with `whole_group` all TP and CP ranks of the peer's DP group. */
enum kvf_status kvfi_trt_overlap(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, int64_t peer_dp_rank,
                                 bool whole_group, struct kvf_trtllm_overlap *out, int64_t *ranks, size_t capacity,
                                 struct kvf_error *error);

/** How many pipeline stages of the peer hold layers that self's own stage holds, by position, and the first of them
 *  (unwritten when there are none). They are consecutive. */
int64_t kvfi_trt_overlapping_stages(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_rank_spec *peer,
                                    int64_t *first);

/** Flat rank in an instance of tp by cp by pp ranks: the one place that knows the order. */
int64_t kvfi_trt_flat_rank(int64_t pp_rank, int64_t tp_rank, int64_t cp_rank, int64_t tp_size, int64_t cp_size);

#endif
