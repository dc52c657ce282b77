/* SPDX-License-Identifier: Apache-2.0 */
#include "layout_json/dtypes.h"

#include <string.h>

#include "layout_json/json_names.h"

const struct kvfi_dtype kvfi_dtypes[] = {
    {"f16", "F16", 16},
    {"bf16", "BF16", 16},
    {"f32", "F32", 32},
    {"fp8_e4m3", "F8_E4M3", 8},
    {"fp8_e5m2", "F8_E5M2", 8},
    {"i8", "I8", 8},
    {"u8", "U8", 8},
    {NULL, "BOOL", 8},
    {NULL, "F4", 4},
    {NULL, "F6_E2M3", 6},
    {NULL, "F6_E3M2", 6},
    {NULL, "F8_E8M0", 8},
    {NULL, "I16", 16},
    {NULL, "U16", 16},
    {NULL, "I32", 32},
    {NULL, "U32", 32},
    {NULL, "I64", 64},
    {NULL, "U64", 64},
    {NULL, "F64", 64},
    {NULL, "C64", 64},
};
const size_t kvfi_dtype_count = sizeof kvfi_dtypes / sizeof kvfi_dtypes[0];

const struct kvfi_dtype *kvfi_dtype_of_tag(const char *tag)
{
    const struct kvfi_dtype *found = NULL;

    for (size_t i = 0; i < kvfi_dtype_count && !found; i++) {
        if (kvfi_dtypes[i].tag && strcmp(kvfi_dtypes[i].tag, tag) == 0) found = &kvfi_dtypes[i];
    }
    return found;
}

const struct kvfi_dtype *kvfi_dtype_of_file(const char *file)
{
    const struct kvfi_dtype *found = NULL;

    for (size_t i = 0; i < kvfi_dtype_count && !found; i++) {
        if (strcmp(kvfi_dtypes[i].file, file) == 0) found = &kvfi_dtypes[i];
    }
    return found;
}

void kvfi_dtype_names(int as_files, char *text, size_t bytes)
{
    const char *names[8];
    size_t count = 0;

    for (size_t i = 0; i < kvfi_dtype_count && count < 7; i++) {
        if (kvfi_dtypes[i].tag) names[count++] = as_files ? kvfi_dtypes[i].file : kvfi_dtypes[i].tag;
    }
    names[count] = NULL;
    kvfi_names_join(names, text, bytes);
}
