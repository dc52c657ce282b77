/* SPDX-License-Identifier: Apache-2.0 */
/** @file compare.h  Three-way comparison for sort functions: negative, zero or positive. */
#ifndef KVFI_BASE_COMPARE_H
#define KVFI_BASE_COMPARE_H

#include <stddef.h>
#include <stdint.h>

static inline int kvfi_compare_i64(int64_t a, int64_t b) { return (a > b) - (a < b); }
static inline int kvfi_compare_size(size_t a, size_t b) { return (a > b) - (a < b); }

#endif
