/* SPDX-License-Identifier: Apache-2.0 */
/** @file rects.h  Finds two overlapping rectangles among many. */
#ifndef KVFI_LAYOUT_RECTS_H
#define KVFI_LAYOUT_RECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

/** Half open on both axes, never empty. */
struct kvfi_rect {
    int64_t x_first, x_end;
    int64_t y_first, y_end;
    size_t owner; /**< the caller's number */
};

/** Looks for two rectangles that share a point. Cost: count log count.
 *  @param found  whether there are two; `a` and `b` are their indices then, a < b
 *  @return KVF_OK, KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_rects_overlap(const struct kvfi_rect *rects, size_t count, bool *found, size_t *a, size_t *b);

#endif
