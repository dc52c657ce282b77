/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of safetensors files. The input is the header, its last byte how many bytes of data are said to follow. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kvferry/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const kvf_safetensors *file, int64_t file_bytes)
{
    struct kvf_tensor tensor, found;
    kvf_layout *layout;
    int64_t tokens;

    for (size_t i = 0; i < kvf_safetensors_count(file); i++) {
        if (kvf_safetensors_tensor(file, i, &tensor) != KVF_OK) abort();
        if (tensor.offset_bytes < 8 || tensor.bytes < 0 || tensor.bytes > file_bytes - tensor.offset_bytes) abort();
        if (i < 64 && kvf_safetensors_find(file, tensor.name, &found) != KVF_OK) abort();
    }
    if (kvf_safetensors_layout(file, &layout, &tokens, NULL) == KVF_OK) {
        if (tokens < 1) abort();
        kvf_layout_release(layout);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t header_bytes = size > 0 ? size - 1 : 0;
    int64_t file_bytes = (int64_t)header_bytes + (size > 0 ? data[size - 1] * 16 : 0);
    kvf_safetensors *file;
    struct kvf_error error;

    if (kvf_safetensors_parse(data, header_bytes, file_bytes, &file, &error) == KVF_OK) {
        walk(file, file_bytes);
        kvf_safetensors_destroy(file);
    } else if (error.text[0] == '\0' || strchr(error.text, '\n')) {
        abort();
    }
    return 0;
}
