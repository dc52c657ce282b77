/* SPDX-License-Identifier: Apache-2.0 */
/** @file native.h  Pairs without upstream's limits: kvf_elect decides over all ranks of both instances, positions are
 *  tokens, and every head and section has its model-wide number.
 *
 *  What meets what is decided once for all ranks: a *form* is a set of layers of one role class, and how its bytes are
 *  counted: units, rows, entries. Every member of either instance then describes its own memory in those terms, and
 *  layouts, holdings, elections and plans follow from that alone.
 */
#ifndef KVFI_TRTLLM_NATIVE_H
#define KVFI_TRTLLM_NATIVE_H

#include "trtllm/pair.h"
#include "trtllm/translate.h"

/** Bounds on what two rank infos can make planning do. Beyond them: KVF_ERR_LIMIT. */
enum kvfi_trt_native_limit {
    KVFI_TRT_NATIVE_MAX_MEMBERS = 4096,    /**< of one instance that are derived of one info */
    KVFI_TRT_NATIVE_MAX_PLACES = 1 << 20,  /**< views, and places of views, of all members */
    KVFI_TRT_NATIVE_MAX_PAIRS = 1 << 22,   /**< pairs of views looked at */
    KVFI_TRT_NATIVE_MAX_FORMS = 512
};

/** How the bytes of a form are counted. */
enum kvfi_trt_form_kind {
    KVFI_TRT_FORM_REGION,      /**< a layer's region is one row of one unit */
    KVFI_TRT_FORM_BLOCKS,      /**< per buffer: units are heads, the whole block of a head is its row */
    KVFI_TRT_FORM_TOKENS,      /**< per buffer: units are heads, entries tokens */
    KVFI_TRT_FORM_RING,        /**< entries are the positions of a ring */
    KVFI_TRT_FORM_SECTIONS,    /**< per section: units are shards */
    KVFI_TRT_FORM_STATE_HEADS  /**< units are heads of recurrent state */
};

/** Layers of one role class that are counted alike. */
struct kvfi_trt_form {
    const struct kvfi_trt_view *views[2]; /**< of one source rank and of the destination: who set the numbers */
    int kind;                             /**< an enum kvfi_trt_form_kind */
    bool is_state;
    bool shared;                          /**< every rank holds the same: one unit */
    int64_t unit_total;
    int64_t *layers;
    size_t layer_count, layer_capacity;
    size_t ring;                          /**< RING: number among the rings */
};

/** One rank of an instance: an info, and the TP and CP rank that is meant by it. */
struct kvfi_trt_member {
    const kvf_trtllm_rank *rank;
    int64_t tp_rank, cp_rank;
};

/** A native pair in the making. Index 0 is the source instance, 1 the destination's. */
struct kvfi_trt_native {
    struct kvfi_trt_member *members[2];
    size_t counts[2];
    size_t picked[2];                     /**< the two ranks of the pair */
    bool implied;                         /**< the members were derived of the pair's two infos: layers that only one
                                               of them holds belong to ranks that are not known here */
    struct kvfi_trt_form *forms;
    size_t form_count, form_capacity;
    size_t ring_count;
};

/** A native pair from two rank infos: the TP and CP ranks beside each of them are taken to be as it is.
 *  @param out  returned to the caller (free with kvf_trtllm_pair_release) */
enum kvf_status kvfi_trt_native_create(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                       kvf_trtllm_pair **out, struct kvf_error *error);

/** Finds out how every layer that the destination has is counted. @return KVF_OK; KVF_ERR_INCOMPATIBLE naming view and
 *  numbers; KVF_ERR_OVERFLOW; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_trt_native_forms(struct kvfi_trt_native *native, struct kvf_error *error);

/** Describes the memory of one member of instance `side` in the terms of the forms. End with kvfi_trt_side_fini in any
 *  case. `name` stays borrowed. */
enum kvf_status kvfi_trt_native_side(const struct kvfi_trt_native *native, int side, size_t member, const char *name,
                                     struct kvfi_trt_side *out, struct kvf_error *error);

/** Elects, and plans what the picked source rank sends: fills the pair's share and plan, or leaves both NULL. */
enum kvf_status kvfi_trt_native_plan(const struct kvfi_trt_native *native, kvf_trtllm_pair *pair,
                                     struct kvf_error *error);

/** The form that a layer of a destination's view belongs to, or NULL. */
const struct kvfi_trt_form *kvfi_trt_native_form(const struct kvfi_trt_native *native,
                                                 const struct kvfi_trt_view *dst_view, int64_t layer);

#endif
