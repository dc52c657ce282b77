/* SPDX-License-Identifier: Apache-2.0 */
/** @file rank_json.h  Words that the JSON of a rank info reads and writes. */
#ifndef KVFI_TRTLLM_RANK_JSON_H
#define KVFI_TRTLLM_RANK_JSON_H

#include "kvferry/trtllm.h"
#include "layout_json/json_cursor.h"
#include "wire/arena.h"

/** By enum kvf_trtllm_cache, by enum kvf_trtllm_mapper, by bit of enum kvf_trtllm_key; each ends in NULL. */
extern const char *const kvfi_trt_cache_words[];
extern const char *const kvfi_trt_mapper_words[];
extern const char *const kvfi_trt_key_words[];

/** Reading into an arena that the values are borrowed from. */
struct kvfi_trt_json {
    struct kvfi_arena *arena;
    struct kvf_error *error;
};

/** Room for `count` elements in the arena, at `*out`. @return KVF_OK or KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_trt_json_take(struct kvfi_trt_json *json, size_t count, size_t element_bytes, void **out);

/** A member that is an integer or null: KVF_TRTLLM_NONE when it is null or not there. */
enum kvf_status kvfi_trt_json_optional(const struct kvfi_cursor *up, const char *key, int64_t *out);

/** An address: an integer of at least 0, or a text "0x..." where it does not fit in one. */
enum kvf_status kvfi_trt_json_address(const struct kvfi_cursor *at, uint64_t *out);

/** A member that is an array of integers of at least `min`. */
enum kvf_status kvfi_trt_json_integers(struct kvfi_trt_json *json, const struct kvfi_cursor *at, int64_t min,
                                       size_t max_count, const int64_t **out, size_t *count);

/** A member that is an array of texts. */
enum kvf_status kvfi_trt_json_texts(struct kvfi_trt_json *json, const struct kvfi_cursor *at, size_t max_count,
                                    const char *const **out, size_t *count);

/** The page table below `at`. */
enum kvf_status kvfi_trt_json_table(struct kvfi_trt_json *json, const struct kvfi_cursor *at,
                                    const struct kvf_trtllm_page_table **out);

#endif
