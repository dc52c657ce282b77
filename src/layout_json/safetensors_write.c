/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "layout_json/dtypes.h"
#include "layout_json/json_cursor.h"
#include "layout_json/safetensors.h"

#define LENGTH_BYTES 8
#define MAX_LINE_BYTES 256 /* of one tensor: its five numbers take 20 digits each */

struct shape {
    const struct kvfi_dtype *dtype;
    int64_t layer_first, layer_end, tokens, kv_heads, head_dim;
    int64_t tensor_bytes;
};

static enum kvf_status check_number(const char *name, int64_t value, int64_t min, int64_t max, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (value < min || value > max) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s: expected %" PRId64 " to %" PRId64 ", found %" PRId64,
                           name, min, max, value);
    }
    return status;
}

/* Most layers of a header: its text stays far below what a reader takes. */
#define MAX_LAYERS 65536

static enum kvf_status check_shape(const char *dtype, struct shape *s, int64_t *data_bytes, struct kvf_error *error)
{
    char names[128], quoted[KVFI_QUOTE_BYTES];
    enum kvf_status status;

    s->dtype = kvfi_dtype_of_file(dtype);
    if (!s->dtype || !s->dtype->tag) {
        kvfi_dtype_names(1, names, sizeof names);
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "dtype: expected %s, found %s", names,
                           kvfi_json_quote(dtype, quoted));
        goto done;
    }
    status = check_number("layer_first", s->layer_first, 0, 999999999, error);
    if (status == KVF_OK) {
        status = check_number("layer_end", s->layer_end, s->layer_first + 1, s->layer_first + MAX_LAYERS, error);
    }
    if (status == KVF_OK) status = check_number("tokens", s->tokens, 1, INT64_MAX, error);
    if (status == KVF_OK) status = check_number("kv_heads", s->kv_heads, 1, INT64_MAX, error);
    if (status == KVF_OK) status = check_number("head_dim", s->head_dim, 1, INT64_MAX, error);
    if (status != KVF_OK) goto done;
    if (!kvfi_mul_i64(s->tokens, s->kv_heads, &s->tensor_bytes) ||
        !kvfi_mul_i64(s->tensor_bytes, s->head_dim, &s->tensor_bytes) ||
        !kvfi_mul_i64(s->tensor_bytes, s->dtype->bits / 8, &s->tensor_bytes) ||
        !kvfi_mul_i64(s->tensor_bytes, 2 * (s->layer_end - s->layer_first), data_bytes) ||
        *data_bytes > INT64_MAX - KVFI_SAFETENSORS_MAX_HEADER) {
        status = kvfi_fail(error, KVF_ERR_OVERFLOW,
                           "cache of %" PRId64 " layers, %" PRId64 " tokens, %" PRId64 " heads, %" PRId64
                           " dimensions: its bytes do not fit in 64 bits", s->layer_end - s->layer_first, s->tokens,
                           s->kv_heads, s->head_dim);
    }
done:
    return status;
}

/* Writes the JSON; returns its bytes. The room was made for the longest lines. */
static size_t write_text(const struct shape *s, char *text, size_t room)
{
    size_t used = 0;
    int64_t offset = 0;

    for (int64_t i = 2 * s->layer_first; i < 2 * s->layer_end; i++) {
        used += (size_t)snprintf(text + used, room - used,
                                 "%c\"layers.%" PRId64 ".%c\":{\"dtype\":\"%s\",\"shape\":[%" PRId64 ",%" PRId64
                                 ",%" PRId64 "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", offset ? ',' : '{', i / 2,
                                 i % 2 ? 'v' : 'k', s->dtype->file, s->tokens, s->kv_heads, s->head_dim, offset,
                                 offset + s->tensor_bytes);
        offset += s->tensor_bytes;
    }
    text[used++] = '}';
    while (used % 8 != 0) text[used++] = ' '; /* so that the data is aligned */
    return used;
}

enum kvf_status kvf_safetensors_header(const char *dtype, int64_t layer_first, int64_t layer_end, int64_t tokens,
                                       int64_t kv_heads, int64_t head_dim, char **out_header, size_t *header_bytes,
                                       int64_t *file_bytes, struct kvf_error *error)
{
    struct shape s = {.layer_first = layer_first, .layer_end = layer_end, .tokens = tokens, .kv_heads = kv_heads,
                      .head_dim = head_dim};
    int64_t data_bytes = 0;
    size_t room, text_bytes;
    char *header;
    enum kvf_status status = check_shape(dtype, &s, &data_bytes, error);

    if (status != KVF_OK) goto done;
    room = (size_t)(layer_end - layer_first) * 2 * MAX_LINE_BYTES + 16;
    header = kvfi_alloc_array(room + LENGTH_BYTES, 1);
    if (!header) {
        status = kvfi_fail_memory(error, "safetensors header");
        goto done;
    }
    text_bytes = write_text(&s, header + LENGTH_BYTES, room);
    for (int i = 0; i < LENGTH_BYTES; i++) header[i] = (char)(text_bytes >> (8 * i) & 0xff);
    *out_header = header;
    *header_bytes = LENGTH_BYTES + text_bytes;
    *file_bytes = (int64_t)*header_bytes + data_bytes;
done:
    return status;
}
