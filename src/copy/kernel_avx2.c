/* SPDX-License-Identifier: Apache-2.0 */
#include "copy/kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define KERNEL_TARGET __attribute__((target("avx2")))
#define LINE_INLINE static inline __attribute__((always_inline)) KERNEL_TARGET

LINE_INLINE void copy_line(char *dst, const char *src)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)src);
    __m256i high = _mm256_loadu_si256((const __m256i *)(src + 32));

    _mm256_storeu_si256((__m256i *)dst, low);
    _mm256_storeu_si256((__m256i *)(dst + 32), high);
}

LINE_INLINE void stream_line(char *dst, const char *src)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)src);
    __m256i high = _mm256_loadu_si256((const __m256i *)(src + 32));

    _mm256_stream_si256((__m256i *)dst, low);
    _mm256_stream_si256((__m256i *)(dst + 32), high);
}

LINE_INLINE void copy_below_line(char *dst, const char *src, int64_t bytes)
{
    if (bytes & 32) {
        _mm256_storeu_si256((__m256i *)dst, _mm256_loadu_si256((const __m256i *)src));
        dst += 32;
        src += 32;
    }
    if (bytes & 16) {
        _mm_storeu_si128((__m128i *)dst, _mm_loadu_si128((const __m128i *)src));
        dst += 16;
        src += 16;
    }
    if (bytes & 8) {
        __builtin_memcpy(dst, src, 8);
        dst += 8;
        src += 8;
    }
    if (bytes & 4) {
        __builtin_memcpy(dst, src, 4);
        dst += 4;
        src += 4;
    }
    if (bytes & 2) {
        __builtin_memcpy(dst, src, 2);
        dst += 2;
        src += 2;
    }
    if (bytes & 1) *dst = *src;
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

const struct kvfi_kernels kvfi_kernels_avx2 = {"avx2", copy_tiles, stream_tiles, fence};

#else

typedef int kernel_avx2_needs_x86;

#endif
