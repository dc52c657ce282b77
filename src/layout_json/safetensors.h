/* SPDX-License-Identifier: Apache-2.0 */
/** @file safetensors.h  Inside of a parsed safetensors header. */
#ifndef KVFI_LAYOUT_JSON_SAFETENSORS_H
#define KVFI_LAYOUT_JSON_SAFETENSORS_H

#include "kvferry/safetensors.h"

/** Bounds of a file's header. */
enum { KVFI_SAFETENSORS_MAX_HEADER = 100 << 20, KVFI_SAFETENSORS_MAX_DIMENSIONS = 8 };

struct kvf_safetensors {
    char *names; /* all names, zero terminated, one after the other */
    struct kvf_tensor *tensors; /* by offset, then name */
    size_t count;
    int64_t file_bytes;
};

/** Writes "[353, 3, 64]". */
#define KVFI_SHAPE_TEXT_BYTES 192
const char *kvfi_shape_text(const struct kvf_tensor *tensor, char text[KVFI_SHAPE_TEXT_BYTES]);

#endif
