/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>

#define KERNEL_TARGET
/* By force: a function that only fetches has no effect in gcc's eyes, and a call of it would be dropped. */
#define LINE_INLINE static inline __attribute__((always_inline))

LINE_INLINE void copy_line(char *dst, const char *src)
{
    __builtin_memcpy(dst, src, 64);
}

LINE_INLINE void stream_line(char *dst, const char *src)
{
    __builtin_memcpy(dst, src, 64);
}

LINE_INLINE void copy_below_line(char *dst, const char *src, int64_t bytes)
{
    __builtin_memcpy(dst, src, (size_t)bytes);
}

LINE_INLINE void prefetch_line(const char *src)
{
    __builtin_prefetch(src, 0, 0);
}

#include "copy/kernel_body.h"

static void no_fence(void)
{
}

const struct kvfi_kernels kvfi_kernels_plain = {"plain", copy_tiles, stream_tiles, no_fence};
