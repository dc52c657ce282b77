/* SPDX-License-Identifier: Apache-2.0 */
/** @file dtypes.h  Element types: their names here and in safetensors files. */
#ifndef KVFI_LAYOUT_JSON_DTYPES_H
#define KVFI_LAYOUT_JSON_DTYPES_H

#include <stddef.h>
#include <stdint.h>

struct kvfi_dtype {
    const char *tag;  /**< name in tags and recipes, NULL when caches do not come in it */
    const char *file; /**< name in safetensors files */
    int64_t bits;
};

/** The types, and how many. */
extern const struct kvfi_dtype kvfi_dtypes[];
extern const size_t kvfi_dtype_count;

/** Finds by name; NULL when there is none. */
const struct kvfi_dtype *kvfi_dtype_of_tag(const char *tag);
const struct kvfi_dtype *kvfi_dtype_of_file(const char *file);

/** Writes the names of the types that caches come in: `"f16", "bf16", ...` as tags or as files name them. */
void kvfi_dtype_names(int as_files, char *text, size_t bytes);

#endif
