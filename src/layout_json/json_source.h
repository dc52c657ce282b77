/* SPDX-License-Identifier: Apache-2.0 */
/** @file json_source.h  JSON text that may be hostile: bounded before it is parsed. */
#ifndef KVFI_LAYOUT_JSON_SOURCE_H
#define KVFI_LAYOUT_JSON_SOURCE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

/** Bounds that hold before the first allocation. */
struct kvfi_json_limits {
    size_t max_bytes;      /**< of text */
    size_t max_depth;      /**< of arrays and objects inside each other */
    size_t max_containers; /**< arrays and objects in all */
    size_t max_values;     /**< members and items in all */
    bool takes_duplicates; /**< of several members with one name the last counts; else they are refused */
    bool takes_zeros;      /**< texts may hold \u0000; else they are refused */
};

/** The limits of layout files: they leave room for the largest layout spelled out. */
extern const struct kvfi_json_limits kvfi_layout_json_limits;

/** A text and what errors call it. All pointers are borrowed while it is in use. */
struct kvfi_json_source {
    const char *name; /**< "layout file" */
    const char *text;
    size_t text_bytes;
    int64_t text_position;   /**< byte offset of the text in the whole input: added to error->position */
    struct kvf_error *error; /**< the caller's; may be NULL */
};

/** Checks the bounds, then parses.
 *  @param out  a new reference (json_decref)
 *  @return KVF_OK; KVF_ERR_LIMIT; KVF_ERR_PARSE with line, column and error->position; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_json_load(const struct kvfi_json_source *source, const struct kvfi_json_limits *limits,
                               json_t **out);

#endif
