/* SPDX-License-Identifier: Apache-2.0 */
/* The body of a kernel set, included once by each kernel_*.c. It expects:
 *   KERNEL_TARGET             attribute of every function, or nothing
 *   copy_line(dst, src)       copies 64 bytes, any alignment
 *   stream_line(dst, src)     copies 64 bytes past the caches, dst on a 64-byte boundary
 *   copy_below_line(dst, src, bytes)  copies 0 to 63 bytes
 *   prefetch_line(src)        starts loading a line; any address, also a bad one
 * and defines copy_tiles and stream_tiles. Run lengths that caches hold are written out, so that each gets its own loop
 * without a call or a branch on the length. */
#include <stdbool.h>
#include <string.h>

#include "copy/kernel.h"

#define KERNEL_INLINE static inline __attribute__((always_inline)) KERNEL_TARGET

enum {
    AHEAD_BYTES = 2048,    /* how far the prefetch runs before the copy */
    AHEAD_MAX_RUNS = 24,
    AHEAD_RUN_BYTES = 1024 /* of a longer run only the head is prefetched: the CPU sees the rest coming */
};

/* Walks the runs of the tiles some way before the copy does. */
struct ahead {
    const struct kvfi_tile *tile, *end;
    const char *row, *at;
    int64_t rows_left, columns_left;
};

KERNEL_INLINE void ahead_enter(struct ahead *ahead)
{
    if (ahead->tile == ahead->end) return;
    ahead->row = ahead->at = ahead->tile->src;
    ahead->rows_left = ahead->tile->rows;
    ahead->columns_left = ahead->tile->columns;
}

KERNEL_INLINE void ahead_step(struct ahead *ahead, int64_t run_bytes)
{
    int64_t bytes = run_bytes < AHEAD_RUN_BYTES ? run_bytes : AHEAD_RUN_BYTES;

    if (ahead->tile == ahead->end) return;
    for (int64_t i = 0; i < bytes; i += 64) prefetch_line(ahead->at + i);
    if (--ahead->columns_left > 0) {
        ahead->at += ahead->tile->src_stride;
    } else if (--ahead->rows_left > 0) {
        ahead->row += ahead->tile->src_row_stride;
        ahead->at = ahead->row;
        ahead->columns_left = ahead->tile->columns;
    } else {
        ahead->tile++;
        ahead_enter(ahead);
    }
}

KERNEL_INLINE void ahead_start(struct ahead *ahead, const struct kvfi_tile *tiles, size_t count)
{
    int64_t runs = AHEAD_BYTES / tiles->run_bytes;

    ahead->tile = tiles;
    ahead->end = tiles + count;
    ahead_enter(ahead);
    runs = runs < 2 ? 2 : runs > AHEAD_MAX_RUNS ? AHEAD_MAX_RUNS : runs;
    for (int64_t i = 0; i < runs; i++) ahead_step(ahead, tiles->run_bytes);
}

KERNEL_INLINE void copy_run(char *dst, const char *src, int64_t bytes)
{
    if (bytes <= 1024) {
        for (; bytes >= 64; bytes -= 64, dst += 64, src += 64) copy_line(dst, src);
        copy_below_line(dst, src, bytes);
    } else {
        memcpy(dst, src, (size_t)bytes);
    }
}

KERNEL_INLINE void stream_run(char *dst, const char *src, int64_t bytes)
{
    int64_t head = (int64_t)(-(uintptr_t)dst & 63);

    if (head > bytes) head = bytes;
    if (head > 0) {
        copy_below_line(dst, src, head);
        dst += head;
        src += head;
        bytes -= head;
    }
    for (; bytes >= 256; bytes -= 256, dst += 256, src += 256) {
        stream_line(dst, src);
        stream_line(dst + 64, src + 64);
        stream_line(dst + 128, src + 128);
        stream_line(dst + 192, src + 192);
    }
    for (; bytes >= 64; bytes -= 64, dst += 64, src += 64) stream_line(dst, src);
    copy_below_line(dst, src, bytes);
}

/* Runs `body` with `dst` and `src` at each run of `tile`. */
#define FOR_EACH_RUN(tile, body) \
    do { \
        char *dst_row = (tile)->dst; \
        const char *src_row = (tile)->src; \
        for (int64_t row = (tile)->rows; row > 0; row--) { \
            char *dst = dst_row; \
            const char *src = src_row; \
            for (int64_t column = (tile)->columns; column > 0; column--) { \
                body; \
                dst += dst_stride; \
                src += src_stride; \
            } \
            dst_row += (tile)->dst_row_stride; \
            src_row += (tile)->src_row_stride; \
        } \
    } while (0)

#define SMALL_CASE(bytes) \
    case bytes: FOR_EACH_RUN(tile, __builtin_memcpy(dst, src, bytes)); break

#define LINES_CASE(bytes) \
    case bytes: \
        FOR_EACH_RUN(tile, ahead_step(&ahead, bytes); \
                     for (int64_t i = 0; i < (bytes); i += 64) copy_line(dst + i, src + i)); \
        break

/* Runs shorter than a line. */
KERNEL_INLINE void small_tile(const struct kvfi_tile *tile)
{
    const int64_t dst_stride = tile->dst_stride, src_stride = tile->src_stride, bytes = tile->run_bytes;

    switch (bytes) {
    SMALL_CASE(1);
    SMALL_CASE(2);
    SMALL_CASE(4);
    SMALL_CASE(8);
    SMALL_CASE(16);
    SMALL_CASE(32);
    default: FOR_EACH_RUN(tile, copy_below_line(dst, src, bytes)); break;
    }
}

/* After a tile of short runs, which are copied without prefetch (it would cost more than the run): the walk ahead
 * goes on with the next tile. */
KERNEL_INLINE void ahead_catch_up(struct ahead *ahead, const struct kvfi_tile *tile)
{
    if (ahead->tile > tile || ahead->tile == ahead->end) return;
    ahead->tile = tile + 1;
    ahead_enter(ahead);
    ahead_step(ahead, AHEAD_RUN_BYTES);
}

KERNEL_TARGET static void copy_tiles(const struct kvfi_tile *tiles, size_t count)
{
    struct ahead ahead = {0};

    ahead_start(&ahead, tiles, count);
    for (const struct kvfi_tile *tile = tiles; tile < tiles + count; tile++) {
        const int64_t dst_stride = tile->dst_stride, src_stride = tile->src_stride, bytes = tile->run_bytes;

        if (bytes < 64) {
            small_tile(tile);
            ahead_catch_up(&ahead, tile);
            continue;
        }
        switch (bytes) {
        LINES_CASE(64);
        LINES_CASE(128);
        LINES_CASE(256);
        LINES_CASE(512);
        default: FOR_EACH_RUN(tile, ahead_step(&ahead, bytes); copy_run(dst, src, bytes)); break;
        }
    }
}

/* A run of a whole number of lines whose destination is on a line. */
#define STREAM_CASE(bytes) \
    case bytes: \
        FOR_EACH_RUN(tile, ahead_step(&ahead, bytes); \
                     for (int64_t i = 0; i < (bytes); i += 64) stream_line(dst + i, src + i)); \
        break

KERNEL_TARGET static void stream_tiles(const struct kvfi_tile *tiles, size_t count)
{
    struct ahead ahead = {0};

    ahead_start(&ahead, tiles, count);
    for (const struct kvfi_tile *tile = tiles; tile < tiles + count; tile++) {
        const int64_t dst_stride = tile->dst_stride, src_stride = tile->src_stride, bytes = tile->run_bytes;
        const uintptr_t low_bits = (uintptr_t)tile->dst | (uintptr_t)dst_stride | (uintptr_t)tile->dst_row_stride;

        if (bytes < 64) {
            small_tile(tile);
            ahead_catch_up(&ahead, tile);
            continue;
        }
        switch ((low_bits & 63) == 0 ? bytes : 0) {
        STREAM_CASE(64);
        STREAM_CASE(128);
        STREAM_CASE(256);
        STREAM_CASE(512);
        default: FOR_EACH_RUN(tile, ahead_step(&ahead, bytes); stream_run(dst, src, bytes)); break;
        }
    }
}
