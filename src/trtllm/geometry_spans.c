/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/geometry_spans.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/compare.h"
#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>

#define ROLE_TEXT_BYTES 200

static int compare_spans(const void *a, const void *b)
{
    const struct kvfi_trt_span *x = a, *y = b;
    int order = kvfi_compare_i64(x->local_layer, y->local_layer);

    if (order == 0) order = kvfi_compare_i64(x->offset, y->offset);
    return order ? order : kvfi_compare_size(x->index, y->index);
}

/* Sums a layer's spans and looks for the first gap. A sum that does not fit counts as a gap. */
static void close_layer(struct kvfi_trt_layer_spans *layer, const struct kvfi_trt_span *spans)
{
    layer->local_layer = spans[layer->begin].local_layer;
    layer->start = spans[layer->begin].offset;
    layer->total = spans[layer->begin].size;
    layer->first = spans[layer->begin].index;
    layer->gap = 0;
    for (size_t i = layer->begin + 1; i < layer->end; i++) {
        int64_t end;
        bool fits = kvfi_add_i64(spans[i - 1].offset, spans[i - 1].size, &end)
                    && kvfi_add_i64(layer->total, spans[i].size, &layer->total);

        if ((!fits || end != spans[i].offset) && layer->gap == 0) layer->gap = i;
        if (spans[i].index < layer->first) layer->first = spans[i].index;
    }
}

size_t kvfi_trt_gather(const struct kvf_trtllm_view *view, struct kvfi_trt_span *spans,
                       struct kvfi_trt_layer_spans *layers)
{
    size_t count = 0;
    bool sorted = true;

    for (size_t i = 0; i < view->entry_count; i++) {
        spans[i].local_layer = view->entries[i].local_layer;
        spans[i].offset = view->entries[i].offset_bytes;
        spans[i].size = view->entries[i].size_bytes;
        spans[i].index = i;
        if (i > 0 && compare_spans(&spans[i - 1], &spans[i]) > 0) sorted = false;
    }
    if (!sorted) qsort(spans, view->entry_count, sizeof *spans, compare_spans);
    for (size_t i = 0; i < view->entry_count; count++) {
        struct kvfi_trt_layer_spans *layer = &layers[count];

        layer->begin = i;
        while (i < view->entry_count && spans[i].local_layer == spans[layer->begin].local_layer) i++;
        layer->end = i;
        close_layer(layer, spans);
    }
    return count;
}

/* Of the layers that have a gap the one whose entries come first, or NULL. */
static const struct kvfi_trt_layer_spans *first_gap(const struct kvfi_trt_layer_spans *layers, size_t count)
{
    const struct kvfi_trt_layer_spans *found = NULL;

    for (size_t i = 0; i < count; i++) {
        if (layers[i].gap != 0 && (!found || layers[i].first < found->first)) found = &layers[i];
    }
    return found;
}

enum kvf_status kvfi_trt_spans_check(const struct kvfi_trt_view *view, const struct kvfi_trt_span *spans,
                                     const struct kvfi_trt_layer_spans *layers, size_t layer_count,
                                     struct kvf_error *error)
{
    const struct kvfi_trt_layer_spans *gap = first_gap(layers, layer_count);
    enum kvf_status status = KVF_ERR_INCOMPATIBLE;
    char roles[ROLE_TEXT_BYTES];
    size_t unlike = 1;

    while (unlike < layer_count && layers[unlike].total == layers[0].total) unlike++;
    if (error) kvfi_trt_view_role_text(view, roles, sizeof roles);
    if (layer_count == 0) {
        if (!error) goto done;
        kvfi_fail(error, status, "PoolView(pool_idx=%" PRId64 ", role=%s) has no buffer entries; per-layer byte ranges"
                  " are undefined", view->spec->pool, roles);
    } else if (gap) {
        const struct kvfi_trt_span *before = &spans[gap->gap - 1];

        if (!error) goto done;
        kvfi_fail(error, status, "PoolView(pool_idx=%" PRId64 ", role=%s) layer %" PRId64 " buffers are not"
                  " contiguous: [%" PRId64 ", %" PRId64 ") is followed by offset %" PRId64, view->spec->pool, roles,
                  gap->local_layer, before->offset, (int64_t)((uint64_t)before->offset + (uint64_t)before->size),
                  spans[gap->gap].offset);
    } else if (unlike < layer_count) {
        if (!error) goto done;
        kvfi_fail(error, status, "PoolView(pool_idx=%" PRId64 ", role=%s) per-layer region sizes are not uniform: [%"
                  PRId64 ", %" PRId64 "]", view->spec->pool, roles, layers[0].total, layers[unlike].total);
    } else if (view->spec->bytes_per_layer != KVF_TRTLLM_NONE && view->spec->bytes_per_layer != layers[0].total) {
        if (!error) goto done;
        kvfi_fail(error, status, "PoolView(pool_idx=%" PRId64 ", role=%s) declares bytes_per_layer=%" PRId64
                  " but buffer entries sum to %" PRId64 " per layer", view->spec->pool, roles,
                  view->spec->bytes_per_layer, layers[0].total);
    } else {
        status = KVF_OK;
    }
done:
    return status;
}

enum kvf_status kvfi_trt_view_check(const struct kvfi_trt_view *view, struct kvf_error *error)
{
    size_t count = view->spec->entry_count;
    struct kvfi_trt_layer_spans *layers = NULL;
    struct kvfi_trt_span *spans = NULL;
    enum kvf_status status = KVF_OK;

    if (view->sound) goto done;
    spans = kvfi_alloc_array(count, sizeof *spans);
    layers = kvfi_alloc_array(count, sizeof *layers);
    if (!spans || !layers) {
        status = kvfi_fail_memory(error, "the entries of a view");
        goto done;
    }
    status = kvfi_trt_spans_check(view, spans, layers, kvfi_trt_gather(view->spec, spans, layers), error);
done:
    free(layers);
    free(spans);
    return status;
}
