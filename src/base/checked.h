/* SPDX-License-Identifier: Apache-2.0 */
/** @file checked.h  Size arithmetic that says when it does not fit. All functions return true when the result fits. */
#ifndef KVFI_BASE_CHECKED_H
#define KVFI_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool kvfi_add_i64(int64_t a, int64_t b, int64_t *sum) { return !__builtin_add_overflow(a, b, sum); }
static inline bool kvfi_sub_i64(int64_t a, int64_t b, int64_t *difference)
{
    return !__builtin_sub_overflow(a, b, difference);
}
static inline bool kvfi_mul_i64(int64_t a, int64_t b, int64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}
static inline bool kvfi_add_size(size_t a, size_t b, size_t *sum) { return !__builtin_add_overflow(a, b, sum); }
static inline bool kvfi_mul_size(size_t a, size_t b, size_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

/** a * b + c, checked as a whole. */
static inline bool kvfi_mad_i64(int64_t a, int64_t b, int64_t c, int64_t *result)
{
    int64_t product;
    return kvfi_mul_i64(a, b, &product) && kvfi_add_i64(product, c, result);
}

#endif
