/* SPDX-License-Identifier: Apache-2.0 */
/** @file pair.h  A rank pair: what each view pair comes to, the two layouts and the plan.
 *
 *      pair.c          view pairs, elections, mappers; which of them the plan holds
 *      translate*.c    page tables and mappers -> layouts (strict: upstream's pairing)
 *      native*.c       members of both instances -> holdings, election, layouts (true tokens, any pairing)
 *      write*.c        a request -> bindings of the plan, and their copies
 *      fragments.c     a write -> upstream's list
 */
#ifndef KVFI_TRTLLM_PAIR_H
#define KVFI_TRTLLM_PAIR_H

#include <stdatomic.h>
#include <stdbool.h>

#include "trtllm/geometry.h"

/** One view pair. */
struct kvfi_trt_pair_view {
    struct kvf_trtllm_view_pair key;
    int64_t duplicate_head_factor, peer_duplicate_head_factor;
    int64_t ring_src_slots, ring_dst_slots; /**< 0 = no ring to ring */
    int32_t mapper;                         /**< an enum kvf_trtllm_mapper_name */
    uint32_t ring;                          /**< number among the ring pairs */
    bool elected, is_state;
    bool planned;                           /**< in the plan: elected, its mapper can be built, its ranks are paired */
    char *error;                            /**< MAP_ERROR: what upstream says; or why it is not planned though
                                                 upstream could: refused when it is to be sent; else NULL */
};

struct kvf_trtllm_pair {
    atomic_int references;
    kvf_trtllm_rank *self, *peer;
    bool strict;
    bool state_paired;
    int64_t block_tokens;                   /**< strict: tokens that a block ordinal counts for in the plan */
    struct kvfi_trt_pair_view *views;       /**< in mapping order */
    size_t view_count;
    size_t ring_count;
    uint64_t *src_bases, *dst_bases;        /**< of the pools in page table order: the plan's memories */
    struct kvf_share *share;                /**< native: what the election gave this pair */
    kvf_plan *plan;                         /**< NULL when nothing is sent */
    struct kvf_trtllm_view_key *part_keys;  /**< by view of the plan's source layout: self's view it is a part of */
    size_t part_count;
};

/** Plans a pair from two rank infos, registered or not. Strict: upstream's mapping, elections and ordinals. Not strict:
 *  kvf_elect over the TP and CP siblings that each of the two infos implies, in the layers that both hold.
 *  @param out  returned to the caller (free with kvf_trtllm_pair_release)
 *  @return as kvf_trtllm_registrar_pair */
enum kvf_status kvfi_trt_pair_create(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, bool strict,
                                     kvf_trtllm_pair **out, struct kvf_error *error);

/** A strict pair of one mapped view pair alone, elected or not: number `index` of the mapping. */
enum kvf_status kvfi_trt_pair_create_view(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, size_t index,
                                          kvf_trtllm_pair **out, struct kvf_error *error);

/** Makes a pair of these view pairs, with nothing judged or planned yet. */
enum kvf_status kvfi_trt_pair_new(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, bool strict,
                                  const struct kvf_trtllm_view_pair *keys, size_t count, kvf_trtllm_pair **out,
                                  struct kvf_error *error);

/** Asks for every view pair's mapper and factors. */
enum kvf_status kvfi_trt_pair_judge(kvf_trtllm_pair *pair, struct kvf_error *error);

#endif
