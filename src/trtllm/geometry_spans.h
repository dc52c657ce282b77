/* SPDX-License-Identifier: Apache-2.0 */
/** @file geometry_spans.h  A view's buffer entries gathered by layer: how the geometry is worked out. */
#ifndef KVFI_TRTLLM_GEOMETRY_SPANS_H
#define KVFI_TRTLLM_GEOMETRY_SPANS_H

#include "trtllm/geometry.h"

/** One entry, and its number in the view. */
struct kvfi_trt_span {
    int64_t local_layer, offset, size;
    size_t index;
};

/** The entries of one layer: which spans, where they start, what they sum to, the number of the first that was listed.
 *  `gap` is the number of the span that does not start where the one before it ends, or 0. */
struct kvfi_trt_layer_spans {
    int64_t local_layer, start, total;
    size_t begin, end, gap, first;
};

/** Gathers by layer, spans by offset. Both arrays have room for all entries. @return number of layers */
size_t kvfi_trt_gather(const struct kvf_trtllm_view *view, struct kvfi_trt_span *spans,
                       struct kvfi_trt_layer_spans *layers);

/** kvfi_trt_view_check on what was gathered, in any order of the layers. */
enum kvf_status kvfi_trt_spans_check(const struct kvfi_trt_view *view, const struct kvfi_trt_span *spans,
                                     const struct kvfi_trt_layer_spans *layers, size_t layer_count,
                                     struct kvf_error *error);

#endif
