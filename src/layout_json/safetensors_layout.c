/* SPDX-License-Identifier: Apache-2.0 */
/* A cache file as a layout: tokens first, K and V of each layer wherever the file has them. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "layout_json/dtypes.h"
#include "layout_json/json_cursor.h"
#include "layout_json/safetensors.h"

/* Longest block of a file's layout. With two block lengths that share no factor a plan's pattern has as many pieces as
 * both together, and plans bound that. */
#define MAX_BLOCK_TOKENS 2048

/* One tensor of the cache: which layer, K or V. */
struct part {
    int64_t layer;
    int is_value;
    const struct kvf_tensor *tensor;
};

/* Reads layers.N.k or layers.N.v, N in decimal without leading zeroes. */
static bool read_name(const char *name, struct part *out)
{
    static const char prefix[] = "layers.";
    int64_t layer = 0;
    const char *first, *at;

    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return false;
    first = at = name + sizeof prefix - 1;
    while (*at >= '0' && *at <= '9' && at - first < 10) layer = layer * 10 + (*at++ - '0');
    if (at == first || (*first == '0' && at - first > 1)) return false;
    out->layer = layer;
    out->is_value = strcmp(at, ".v") == 0;
    return out->is_value || strcmp(at, ".k") == 0;
}

static int by_layer(const void *left, const void *right)
{
    const struct part *a = left, *b = right;
    int order = (a->layer > b->layer) - (a->layer < b->layer);

    return order ? order : a->is_value - b->is_value;
}

static enum kvf_status gather(const kvf_safetensors *file, struct part **out, size_t *out_count,
                              struct kvf_error *error)
{
    struct part *parts = kvfi_alloc_zeroed(file->count, sizeof *parts);
    enum kvf_status status = KVF_OK;
    size_t count = 0;

    if (!parts) {
        status = kvfi_fail_memory(error, "safetensors layout");
        goto done;
    }
    for (size_t i = 0; i < file->count; i++) {
        parts[count].tensor = &file->tensors[i];
        count += read_name(file->tensors[i].name, &parts[count]);
    }
    if (count == 0) {
        status = kvfi_fail(error, KVF_ERR_PARSE,
                           "safetensors: none of %zu tensors is named layers.N.k or layers.N.v", file->count);
        goto done;
    }
    qsort(parts, count, sizeof *parts, by_layer);
    *out = parts;
    *out_count = count;
    parts = NULL;
done:
    free(parts);
    return status;
}

/* Parts come in the order k, v of each layer, no layer left out. */
static enum kvf_status check_layers(const struct part *parts, size_t count, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    int64_t first = parts[0].layer, last = parts[count - 1].layer;

    for (size_t i = 0; i <= count; i++) {
        int64_t layer = first + (int64_t)i / 2;
        int is_value = (int)(i % 2);

        if (i < count && parts[i].layer == layer && parts[i].is_value == is_value) continue;
        if (i == count && !is_value) break;
        status = kvfi_fail(error, KVF_ERR_PARSE, "layers.%" PRId64 ".%c: missing, the file has layers %" PRId64
                           " to %" PRId64, layer, is_value ? 'v' : 'k', first, last);
        break;
    }
    return status;
}

static enum kvf_status check_first(const struct kvf_tensor *tensor, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    const struct kvfi_dtype *dtype = kvfi_dtype_of_file(tensor->dtype);
    char shape[KVFI_SHAPE_TEXT_BYTES], names[128];

    if (tensor->dimensions != 3 || tensor->bytes == 0) {
        status = kvfi_fail(error, KVF_ERR_PARSE, "%s: shape %s, expected [tokens, kv_heads, head_dim]", tensor->name,
                           kvfi_shape_text(tensor, shape));
    } else if (!dtype->tag) {
        kvfi_dtype_names(1, names, sizeof names);
        status = kvfi_fail(error, KVF_ERR_PARSE, "%s: dtype \"%s\", expected %s", tensor->name, tensor->dtype, names);
    }
    return status;
}

static enum kvf_status check_alike(const struct part *parts, size_t count, struct kvf_error *error)
{
    const struct kvf_tensor *first = parts[0].tensor;
    char found[KVFI_SHAPE_TEXT_BYTES], expected[KVFI_SHAPE_TEXT_BYTES];
    enum kvf_status status = check_first(first, error);

    for (size_t i = 1; i < count && status == KVF_OK; i++) {
        const struct kvf_tensor *tensor = parts[i].tensor;

        if (strcmp(tensor->dtype, first->dtype) != 0) {
            status = kvfi_fail(error, KVF_ERR_PARSE, "%s: dtype \"%s\", expected \"%s\" as in %s", tensor->name,
                               tensor->dtype, first->dtype, first->name);
        } else if (tensor->dimensions != first->dimensions ||
                   memcmp(tensor->shape, first->shape, sizeof first->shape) != 0) {
            status = kvfi_fail(error, KVF_ERR_PARSE, "%s: shape %s, expected %s as in %s", tensor->name,
                               kvfi_shape_text(tensor, found), kvfi_shape_text(first, expected), first->name);
        }
    }
    return status;
}

/* The longest block that divides the tokens: all of them where they are few. */
static int64_t choose_block(int64_t tokens)
{
    int64_t block = tokens < MAX_BLOCK_TOKENS ? tokens : MAX_BLOCK_TOKENS;

    while (tokens % block != 0) block--;
    return block;
}

static enum kvf_status make_layout(const kvf_safetensors *file, const struct part *parts, size_t count,
                                   kvf_layout **out, struct kvf_error *error)
{
    const struct kvf_tensor *first = parts[0].tensor;
    int64_t tokens = first->shape[0], heads = first->shape[1], row_bytes = first->bytes / tokens / heads;
    int64_t block = choose_block(tokens);
    struct kvf_pool pool = {.slot_stride_bytes = block * heads * row_bytes, .slots = tokens / block};
    struct kvf_group group = {.tokens_per_block = block, .stripes = 1};
    struct kvf_place *places = kvfi_alloc_zeroed(count, sizeof *places);
    struct kvf_view views[2];
    struct kvf_layout_spec spec;
    enum kvf_status status;

    if (!places) {
        status = kvfi_fail_memory(error, "safetensors layout");
        goto done;
    }
    for (size_t i = 0; i < count; i++) {
        places[(size_t)parts[i].is_value * (count / 2) + i / 2] =
            (struct kvf_place){.layer = parts[i].layer, .offset_bytes = parts[i].tensor->offset_bytes};
    }
    for (size_t i = 0; i < 2; i++) {
        views[i] = (struct kvf_view){
            .role = i ? "v" : "k", .tag = kvfi_dtype_of_file(first->dtype)->tag, .row_bytes = row_bytes,
            .byte_count = row_bytes, .unit_total = heads, .unit_count = heads, .unit_stride_bytes = row_bytes,
            .entry_stride_bytes = heads * row_bytes, .entries = block, .slots_per_block = 1,
            .places = places + i * (count / 2), .place_count = count / 2};
    }
    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = &file->file_bytes;
    spec.memory_count = 1;
    spec.pools = &pool;
    spec.pool_count = 1;
    spec.groups = &group;
    spec.group_count = 1;
    spec.views = views;
    spec.view_count = 2;
    status = kvf_layout_create(&spec, out, error);
done:
    free(places);
    return status;
}

enum kvf_status kvf_safetensors_layout(const kvf_safetensors *file, kvf_layout **out, int64_t *tokens,
                                       struct kvf_error *error)
{
    struct part *parts = NULL;
    size_t count = 0;
    enum kvf_status status = gather(file, &parts, &count, error);

    if (status == KVF_OK) status = check_layers(parts, count, error);
    if (status == KVF_OK) status = check_alike(parts, count, error);
    if (status == KVF_OK) status = make_layout(file, parts, count, out, error);
    if (status == KVF_OK) *tokens = parts[0].tensor->shape[0];
    free(parts);
    return status;
}
