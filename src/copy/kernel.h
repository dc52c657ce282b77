/* SPDX-License-Identifier: Apache-2.0 */
/** @file kernel.h  Run kernels: they copy strided runs, and are chosen by the CPU's features. */
#ifndef KVFI_COPY_KERNEL_H
#define KVFI_COPY_KERNEL_H

#include <stddef.h>
#include <stdint.h>

/** `rows` times `columns` runs of `run_bytes`; every count is at least 1. Source and destination must not overlap. */
struct kvfi_tile {
    const char *src;
    char *dst;
    int64_t rows, src_row_stride, dst_row_stride;
    int64_t columns, src_stride, dst_stride;
    int64_t run_bytes;
};

/** Copies tiles in order: each row by row, run by run. */
typedef void (*kvfi_tiles_fn)(const struct kvfi_tile *tiles, size_t count);

/** One kernel set. `copy` leaves the destination in the caches. `stream` writes past them, with prefetch of the source:
 *  faster for megabytes, and its stores are ordered before later ones only after `fence`. */
struct kvfi_kernels {
    const char *name;
    kvfi_tiles_fn copy;
    kvfi_tiles_fn stream;
    void (*fence)(void);
};

/** Number of kernel sets of this build that this CPU can run, and set number `index`: plain C first, best last. */
size_t kvfi_kernels_count(void);
const struct kvfi_kernels *kvfi_kernels_at(size_t index);

/** The best set for this CPU. */
const struct kvfi_kernels *kvfi_kernels_best(void);

/** The sets by name; the last two are absent where the compiler does not target x86-64. */
extern const struct kvfi_kernels kvfi_kernels_plain;
#if defined(__x86_64__)
extern const struct kvfi_kernels kvfi_kernels_avx2;
extern const struct kvfi_kernels kvfi_kernels_avx512;
#endif

#endif
