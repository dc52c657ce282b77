/* SPDX-License-Identifier: Apache-2.0 */
/** @file rank_fields.h  The maps of an encoded rank info, one table each. Packing and unpacking both walk them: a new
 *  field is one row. */
#ifndef KVFI_TRTLLM_RANK_FIELDS_H
#define KVFI_TRTLLM_RANK_FIELDS_H

#include <stddef.h>
#include <stdint.h>

#include "trtllm/rank.h"

/** What a value is on the wire, and in memory at the row's offset. */
enum kvfi_trt_kind {
    KVFI_TRT_INT,           /**< int64_t */
    KVFI_TRT_INT_OR_NIL,    /**< int64_t, nil is KVF_TRTLLM_NONE */
    KVFI_TRT_FLAG,          /**< true or false, int64_t */
    KVFI_TRT_FLAG_OR_NIL,
    KVFI_TRT_ENUM,          /**< int64_t; read from a number or from one of `words` in any case */
    KVFI_TRT_ADDRESS,       /**< uint64_t */
    KVFI_TRT_EIGHTHS,       /**< bytes, whole or with eighths; int64_t in eighths */
    KVFI_TRT_TEXT,          /**< const char * */
    KVFI_TRT_TEXT_OR_NIL,   /**< nil is NULL */
    KVFI_TRT_BYTES,         /**< const void *, and size_t at the row's count */
    KVFI_TRT_INTS,          /**< const int64_t *, likewise */
    KVFI_TRT_INTS_OR_NIL,
    KVFI_TRT_ADDRESSES,     /**< const uint64_t * */
    KVFI_TRT_TEXTS,         /**< const char *const * */
    KVFI_TRT_ENTRIES,       /**< [layer, offset, size]s, const struct kvf_trtllm_entry * */
    KVFI_TRT_MAP_OR_NIL,    /**< a map of the row's table; nil is NULL */
    KVFI_TRT_MAPS           /**< an array of them */
};

enum kvfi_trt_row {
    KVFI_TRT_REQUIRED = 1,
    KVFI_TRT_PAGED_ONLY = 2, /**< written for groups of this cache kind only */
    KVFI_TRT_STATE_ONLY = 4
};

struct kvfi_trt_map;

struct kvfi_trt_field {
    const char *name;
    enum kvfi_trt_kind kind;
    unsigned flags;                 /**< enum kvfi_trt_row */
    unsigned key;                   /**< enum kvf_trtllm_key of the newest keys, else 0 */
    size_t offset, count_offset;    /**< in the map's struct */
    size_t limit;                   /**< of a list's items; 0: shared, as in `budget` */
    size_t budget;                  /**< offset in struct kvfi_trt_budget */
    const struct kvfi_trt_map *map; /**< of MAP and MAPS */
    const char *const *words;       /**< of ENUM */
};

/** `complete` runs after the fields of a map were read; bit i of `seen` tells that row i was there. */
struct kvfi_trt_map {
    const struct kvfi_trt_field *fields;
    size_t field_count;
    size_t bytes;         /**< of the struct */
    const void *defaults; /**< the struct before its fields are read */
    void (*complete)(void *object, uint32_t seen);
};

/** The whole rank info: struct kvf_trtllm_rank_spec. */
extern const struct kvfi_trt_map kvfi_trt_rank_map;

/** The table of a layer group: its struct decides which rows are written. */
extern const struct kvfi_trt_map kvfi_trt_group_map;

/** True when encoding the rank's values, and nothing kept, gives exactly these bytes. Allocates nothing. */
bool kvfi_trt_rank_spells(const struct kvf_trtllm_rank *rank, const void *bytes, size_t byte_count);

#endif
