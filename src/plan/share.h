/* SPDX-License-Identifier: Apache-2.0 */
/** @file share.h  What one source rank sends to one destination rank, as sorted cells. */
#ifndef KVFI_PLAN_SHARE_H
#define KVFI_PLAN_SHARE_H

#include "kvferry/plan.h"

/** Immutable. Cells are sorted by role (bytes), layer, unit_first, byte_first; roles point into `text`. */
struct kvf_share {
    struct kvf_cell *cells;
    size_t count;
    char *text; /**< every distinct role once, each zero terminated */
};

/** Copies and sorts cells. Those that touch are not merged: the caller has done so.
 *  @param out  returned to the caller (free with kvfi_share_destroy)
 *  @return KVF_OK, KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_share_create(const struct kvf_cell *cells, size_t count, struct kvf_share **out,
                                  struct kvf_error *error);

void kvfi_share_destroy(struct kvf_share *share);

/** Finds the cells of one role and layer by binary search: `*count` of them from the returned one on; 0 when none. */
const struct kvf_cell *kvfi_share_find(const struct kvf_share *share, const char *role, int64_t layer, size_t *count);

#endif
