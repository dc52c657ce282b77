/* SPDX-License-Identifier: Apache-2.0 */
/** @file bounds.h  Numbers that callers hand in, and their bounds. */
#ifndef KVFI_BASE_BOUNDS_H
#define KVFI_BASE_BOUNDS_H

#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

/** One number: `low` to `high` are good. */
struct kvfi_bounds {
    const char *name;
    int64_t value, low, high;
};

/** Looks at numbers in turn.
 *  @param what  said before the name of a number that is out of its bounds; NULL = nothing
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the first that is out, its value and its bounds */
enum kvf_status kvfi_check_bounds(const char *what, const struct kvfi_bounds *rows, size_t count,
                                  struct kvf_error *error);

#endif
