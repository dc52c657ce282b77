/* SPDX-License-Identifier: Apache-2.0 */
/** @file message_walk.h  Maps of the side channel: walked once to check and count, then copied into one allocation. */
#ifndef KVFI_VLLM_MESSAGE_WALK_H
#define KVFI_VLLM_MESSAGE_WALK_H

#include "vllm/message.h"
#include "wire/values.h"

/** What a key's value must be. */
enum kvfi_vllm_shape {
    KVFI_VLLM_INT,          /**< of int64_t */
    KVFI_VLLM_UINT,         /**< of uint64_t */
    KVFI_VLLM_STR,
    KVFI_VLLM_STR_OR_NIL,
    KVFI_VLLM_INTS,
    KVFI_VLLM_UINTS,
    KVFI_VLLM_STRS,
    KVFI_VLLM_STRS_OR_NIL,
    KVFI_VLLM_LISTS,        /**< arrays of integers */
    KVFI_VLLM_VERDICT,      /**< an enum kvfi_vllm_verdict */
    KVFI_VLLM_OLD_VERDICT,  /**< the same without LAYOUT_MISS */
    KVFI_VLLM_REQUESTS,     /**< a map: text to (text, arrays of integers) */
    KVFI_VLLM_ANYTHING      /**< is skipped; only where it is is told */
};

struct kvfi_vllm_key {
    const char *name;
    enum kvfi_vllm_shape shape;
    bool is_required;
};

/** How much of what a value takes once it is copied. */
struct kvfi_vllm_need {
    size_t requests, lists, strs, numbers, chars;
};

/** Where a key's value begins (`start.bytes` NULL = it is absent), and what it needs. */
struct kvfi_vllm_found {
    struct kvfi_value_reader start;
    struct kvfi_vllm_need need;
};

/** Walks a message that must be one map with these keys. Fills one entry of `found`, which is zeroed by the caller, for
 *  each. After it nothing that is read again can be broken. @return KVF_OK; KVF_ERR_PROTOCOL; KVF_ERR_LIMIT */
enum kvf_status kvfi_vllm_walk(const void *bytes, size_t byte_count, const struct kvfi_vllm_key *keys, size_t key_count,
                               struct kvfi_vllm_found *found, struct kvf_error *error);

/** Room for all values of a message. */
struct kvfi_vllm_store {
    void *memory;
    struct kvfi_vllm_wanted *requests;
    struct kvf_vllm_ids *lists;
    const char **strs;
    int64_t *numbers;
    char *chars;
};

/** Makes room for what was found. @return KVF_OK; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_store_init(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found, size_t count,
                                     struct kvf_error *error);

/** Values by shape. An absent one is `absent`, NULL, or nothing with `*count` 0. */
int64_t kvfi_vllm_get_int(const struct kvfi_vllm_found *found, int64_t absent);
const char *kvfi_vllm_get_str(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found);
const int64_t *kvfi_vllm_get_ints(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found, size_t *count);
const char *const *kvfi_vllm_get_strs(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found,
                                      size_t *count);
const struct kvf_vllm_ids *kvfi_vllm_get_lists(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found,
                                               size_t *count);
/** Each key once: the place of the first, the value of the last. @return KVF_OK; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_get_requests(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found,
                                       const struct kvfi_vllm_wanted **out, size_t *count, struct kvf_error *error);

#endif
