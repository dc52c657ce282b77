/* SPDX-License-Identifier: Apache-2.0 */
/* A safetensors file: 8 bytes of header length (little-endian), a JSON object, then the data without gaps. */
#include "layout_json/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "layout_json/dtypes.h"
#include "layout_json/json_cursor.h"

#define LENGTH_BYTES 8
#define METADATA "__metadata__"

static const struct kvfi_json_limits limits = {
    .max_bytes = KVFI_SAFETENSORS_MAX_HEADER, .max_depth = 8, .max_containers = 1310720, .max_values = 6291456};

const char *kvfi_shape_text(const struct kvf_tensor *tensor, char text[KVFI_SHAPE_TEXT_BYTES])
{
    int used = snprintf(text, KVFI_SHAPE_TEXT_BYTES, "[");

    for (int64_t i = 0; i < tensor->dimensions; i++) {
        used += snprintf(text + used, (size_t)(KVFI_SHAPE_TEXT_BYTES - used), "%s%" PRId64, i ? ", " : "",
                         tensor->shape[i]);
    }
    snprintf(text + used, (size_t)(KVFI_SHAPE_TEXT_BYTES - used), "]");
    return text;
}

/* ---- the frame -------------------------------------------------------------------------------------------------- */

/* Finds the header's text in the first bytes of the file. */
static enum kvf_status open_header(const unsigned char *file, size_t bytes, int64_t file_bytes, size_t *header_bytes,
                                   struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    uint64_t length = 0;

    if (file_bytes < 0 || (uint64_t)file_bytes < bytes) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "safetensors: file_bytes is %" PRId64 ", expected at least the %zu bytes given", file_bytes,
                           bytes);
        goto done;
    }
    if (bytes < LENGTH_BYTES) {
        status = kvfi_fail_at(error, KVF_ERR_PARSE, (int64_t)bytes,
                              "safetensors: %zu bytes, expected at least the %d of the header's length", bytes,
                              LENGTH_BYTES);
        goto done;
    }
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) length = length << 8 | file[i];
    if (length > (uint64_t)file_bytes - LENGTH_BYTES) {
        status = kvfi_fail_at(error, KVF_ERR_PARSE, 0,
                              "safetensors: the header is %" PRIu64 " bytes long, the file has %" PRId64
                              " after its length", length, file_bytes - LENGTH_BYTES);
    } else if (length > KVFI_SAFETENSORS_MAX_HEADER) {
        status = kvfi_fail_at(error, KVF_ERR_LIMIT, 0,
                              "safetensors: the header is %" PRIu64 " bytes long, at most %d are read", length,
                              (int)KVFI_SAFETENSORS_MAX_HEADER);
    } else if (length > bytes - LENGTH_BYTES) {
        status = kvfi_fail_at(error, KVF_ERR_PARSE, (int64_t)bytes,
                              "safetensors: truncated header: %" PRIu64 " bytes expected, %zu are there", length,
                              bytes - LENGTH_BYTES);
    } else {
        *header_bytes = (size_t)length;
    }
done:
    return status;
}

/* ---- one tensor ------------------------------------------------------------------------------------------------- */

static enum kvf_status read_shape(const struct kvfi_cursor *up, struct kvf_tensor *out)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, "shape");
    size_t count = 0;
    enum kvf_status status = kvfi_json_array(&at, 0, KVFI_SAFETENSORS_MAX_DIMENSIONS, &count);

    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, i);

        status = kvfi_json_int(&item, 0, INT64_MAX, &out->shape[i]);
    }
    out->dimensions = (int64_t)count;
    return status;
}

static enum kvf_status read_dtype(const struct kvfi_cursor *up, const struct kvfi_dtype **out)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, "dtype");
    const char *text = json_string_value(at.value);
    enum kvf_status status = KVF_OK;

    *out = text ? kvfi_dtype_of_file(text) : NULL;
    if (!*out) status = kvfi_cursor_expected(&at, "a dtype such as \"F16\"");
    return status;
}

/* Bytes that shape and dtype ask for. */
static bool measure(const struct kvf_tensor *tensor, int64_t bits, int64_t *bytes)
{
    int64_t product = bits;
    bool ok = true, empty = false;

    for (int64_t i = 0; i < tensor->dimensions; i++) empty = empty || tensor->shape[i] == 0;
    for (int64_t i = 0; i < tensor->dimensions && ok && !empty; i++) {
        ok = kvfi_mul_i64(product, tensor->shape[i], &product);
    }
    *bytes = empty ? 0 : product / 8;
    return ok && (empty || product % 8 == 0);
}

/* Reads where the tensor lies: offsets in the data, which starts at `data_first` in the file. */
static enum kvf_status read_range(const struct kvfi_cursor *up, int64_t data_first, int64_t data_bytes,
                                  struct kvf_tensor *out)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, "data_offsets");
    int64_t range[2] = {0, 0};
    enum kvf_status status = KVF_OK;

    if (!json_is_array(at.value) || json_array_size(at.value) != 2) {
        status = kvfi_cursor_expected(&at, "an array [begin, end]");
        goto done;
    }
    for (size_t i = 0; i < 2; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, i);

        status = kvfi_json_int(&item, i ? range[0] : 0, INT64_MAX, &range[i]);
        if (status != KVF_OK) goto done;
    }
    if (range[1] > data_bytes) {
        status = kvfi_cursor_fail(&at, KVF_ERR_PARSE, "end at %" PRId64 ", the file has %" PRId64 " bytes of data",
                                  range[1], data_bytes);
        goto done;
    }
    out->offset_bytes = data_first + range[0];
    out->bytes = range[1] - range[0];
done:
    return status;
}

static enum kvf_status read_tensor(const struct kvfi_cursor *at, int64_t data_first, int64_t data_bytes,
                                   struct kvf_tensor *out)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets", NULL};
    const struct kvfi_dtype *dtype = NULL;
    char shape[KVFI_SHAPE_TEXT_BYTES];
    int64_t bytes = 0;
    enum kvf_status status = kvfi_json_object(at, keys);

    if (status == KVF_OK) status = read_dtype(at, &dtype);
    if (status == KVF_OK) status = read_shape(at, out);
    if (status == KVF_OK) status = read_range(at, data_first, data_bytes, out);
    if (status != KVF_OK) goto done;
    out->dtype = dtype->file;
    if (!measure(out, dtype->bits, &bytes)) {
        status = kvfi_cursor_fail(at, KVF_ERR_PARSE, "shape %s of %s is no whole number of bytes below 2^60",
                                  kvfi_shape_text(out, shape), dtype->file);
    } else if (bytes != out->bytes) {
        status = kvfi_cursor_fail(at, KVF_ERR_PARSE, "shape %s of %s is %" PRId64 " bytes, data_offsets span %" PRId64,
                                  kvfi_shape_text(out, shape), dtype->file, bytes, out->bytes);
    }
done:
    return status;
}

/* ---- the header ------------------------------------------------------------------------------------------------- */

/* Metadata is for people: it has to be an object of texts, and is dropped. */
static enum kvf_status check_metadata(const struct kvfi_cursor *at)
{
    enum kvf_status status = KVF_OK;
    const char *key;
    json_t *value;

    if (!json_is_object(at->value)) {
        status = kvfi_cursor_expected(at, "an object");
        goto done;
    }
    json_object_foreach(at->value, key, value) {
        struct kvfi_cursor member = kvfi_cursor_key(at, key);

        if (!json_is_string(value)) {
            status = kvfi_cursor_expected(&member, "a text");
            goto done;
        }
    }
done:
    return status;
}

static int by_offset(const void *left, const void *right)
{
    const struct kvf_tensor *a = left, *b = right;
    int order = (a->offset_bytes > b->offset_bytes) - (a->offset_bytes < b->offset_bytes);

    if (order == 0) order = (a->bytes > b->bytes) - (a->bytes < b->bytes);
    return order ? order : strcmp(a->name, b->name);
}

/* The data has to be covered once, from its first byte to its last. */
static enum kvf_status check_cover(kvf_safetensors *file, int64_t data_first, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    char name[KVFI_QUOTE_BYTES], before[KVFI_QUOTE_BYTES];
    int64_t end = data_first;

    qsort(file->tensors, file->count, sizeof *file->tensors, by_offset);
    for (size_t i = 0; i < file->count; i++) {
        const struct kvf_tensor *tensor = &file->tensors[i];

        if (tensor->offset_bytes < end) {
            status = kvfi_fail(error, KVF_ERR_PARSE, "tensor %s: starts at byte %" PRId64 " of the data, inside of %s, "
                               "which ends at %" PRId64, kvfi_json_quote(tensor->name, name),
                               tensor->offset_bytes - data_first, kvfi_json_quote(tensor[-1].name, before),
                               end - data_first);
            goto done;
        }
        if (tensor->offset_bytes > end) {
            status = kvfi_fail(error, KVF_ERR_PARSE, "tensor %s: starts at byte %" PRId64 " of the data, bytes %" PRId64
                               " to there belong to no tensor", kvfi_json_quote(tensor->name, name),
                               tensor->offset_bytes - data_first, end - data_first);
            goto done;
        }
        end += tensor->bytes;
    }
    if (end != file->file_bytes) {
        status = kvfi_fail(error, KVF_ERR_PARSE, "safetensors: the tensors end at byte %" PRId64
                           " of the file, which has %" PRId64, end, file->file_bytes);
    }
done:
    return status;
}

static enum kvf_status allocate(json_t *root, kvf_safetensors *file, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t bytes = 0;
    const char *key;
    json_t *value;

    json_object_foreach(root, key, value) {
        (void)value;
        bytes += strlen(key) + 1;
    }
    file->names = kvfi_alloc_array(bytes, 1);
    file->tensors = kvfi_alloc_zeroed(json_object_size(root), sizeof *file->tensors);
    if (!file->names || !file->tensors) status = kvfi_fail_memory(error, "safetensors header");
    return status;
}

static enum kvf_status read_header(const struct kvfi_cursor *root, int64_t data_first, kvf_safetensors *file)
{
    struct kvf_error *error = root->source->error;
    enum kvf_status status;
    const char *key;
    char *name;
    json_t *value;

    if (!json_is_object(root->value)) {
        status = kvfi_cursor_expected(root, "an object");
        goto done;
    }
    status = allocate(root->value, file, error);
    if (status != KVF_OK) goto done;
    name = file->names;
    json_object_foreach(root->value, key, value) {
        struct kvfi_cursor at = kvfi_cursor_key(root, key);
        struct kvf_tensor *tensor = &file->tensors[file->count];

        (void)value;
        if (strcmp(key, METADATA) == 0) {
            status = check_metadata(&at);
            if (status != KVF_OK) goto done;
            continue;
        }
        status = read_tensor(&at, data_first, file->file_bytes - data_first, tensor);
        if (status != KVF_OK) goto done;
        tensor->name = name;
        memcpy(name, key, strlen(key) + 1);
        name += strlen(key) + 1;
        file->count++;
    }
    status = check_cover(file, data_first, error);
done:
    return status;
}

enum kvf_status kvf_safetensors_parse(const void *file, size_t bytes, int64_t file_bytes, kvf_safetensors **out,
                                      struct kvf_error *error)
{
    struct kvfi_json_source source = {.name = "safetensors header", .text_position = LENGTH_BYTES, .error = error};
    kvf_safetensors *parsed = NULL;
    struct kvfi_cursor root;
    json_t *json = NULL;
    enum kvf_status status = open_header(file, bytes, file_bytes, &source.text_bytes, error);

    if (status != KVF_OK) goto done;
    source.text = (const char *)file + LENGTH_BYTES;
    status = kvfi_json_load(&source, &limits, &json);
    if (status != KVF_OK) goto done;
    parsed = kvfi_alloc_zeroed(1, sizeof *parsed);
    if (!parsed) {
        status = kvfi_fail_memory(error, source.name);
        goto done;
    }
    parsed->file_bytes = file_bytes;
    root = kvfi_cursor_root(&source, json);
    status = read_header(&root, (int64_t)source.text_bytes + LENGTH_BYTES, parsed);
    if (status != KVF_OK) goto done;
    *out = parsed;
    parsed = NULL;
done:
    kvf_safetensors_destroy(parsed);
    json_decref(json);
    return status;
}

void kvf_safetensors_destroy(kvf_safetensors *file)
{
    if (!file) return;
    free(file->tensors);
    free(file->names);
    free(file);
}

size_t kvf_safetensors_count(const kvf_safetensors *file)
{
    return file->count;
}

enum kvf_status kvf_safetensors_tensor(const kvf_safetensors *file, size_t index, struct kvf_tensor *out)
{
    if (index >= file->count) return KVF_ERR_NOT_FOUND;
    *out = file->tensors[index];
    return KVF_OK;
}

enum kvf_status kvf_safetensors_find(const kvf_safetensors *file, const char *name, struct kvf_tensor *out)
{
    enum kvf_status status = KVF_ERR_NOT_FOUND;

    for (size_t i = 0; i < file->count && status != KVF_OK; i++) {
        if (strcmp(file->tensors[i].name, name) == 0) {
            *out = file->tensors[i];
            status = KVF_OK;
        }
    }
    return status;
}
