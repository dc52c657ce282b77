/* SPDX-License-Identifier: Apache-2.0 */
#include "copy/kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define KERNEL_TARGET __attribute__((target("avx2,avx512f,avx512bw,avx512vl")))
#define LINE_INLINE static inline __attribute__((always_inline)) KERNEL_TARGET

LINE_INLINE void copy_line(char *dst, const char *src)
{
    _mm512_storeu_si512(dst, _mm512_loadu_si512(src));
}

LINE_INLINE void stream_line(char *dst, const char *src)
{
    _mm512_stream_si512((void *)dst, _mm512_loadu_si512(src));
}

LINE_INLINE void copy_below_line(char *dst, const char *src, int64_t bytes)
{
    __mmask64 mask = ((__mmask64)1 << bytes) - 1;

    _mm512_mask_storeu_epi8(dst, mask, _mm512_maskz_loadu_epi8(mask, src));
}

LINE_INLINE void prefetch_line(const char *src)
{
    _mm_prefetch(src, _MM_HINT_T0);
}

#include "copy/kernel_body.h"

static void fence(void)
{
    _mm_sfence();
}

const struct kvfi_kernels kvfi_kernels_avx512 = {"avx512", copy_tiles, stream_tiles, fence};

#else

typedef int kernel_avx512_needs_x86;

#endif
