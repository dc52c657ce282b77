/* SPDX-License-Identifier: Apache-2.0 */
/* The bare copies in one process that kvferry is compared with. */
#include "bench.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

void bench_copy_memcpy(const struct bench_runs *runs, char *dst, const char *src)
{
    for (int64_t block = 0; block < runs->blocks; block++) {
        for (int64_t run = 0; run < runs->runs_per_block; run++) {
            memcpy(bench_dst_run(runs, dst, block, run), bench_src_run(runs, src, block, run), (size_t)runs->run_bytes);
        }
    }
}

#if defined(__x86_64__)
/* Fetches the runs of a later block, so that its first bytes are there when its turn comes. */
static inline void prefetch_block(const struct bench_runs *runs, const char *src, int64_t block)
{
    if (block < runs->blocks) {
        for (int64_t run = 0; run < runs->runs_per_block; run++) {
            const char *from = bench_src_run(runs, src, block, run);
            for (int64_t byte = 0; byte < runs->run_bytes; byte += 64) {
                __builtin_prefetch(from + byte, 0, 0);
            }
        }
    }
}

__attribute__((target("avx512f"))) static void stream_avx512(const struct bench_runs *runs, char *dst, const char *src)
{
    for (int64_t block = 0; block < runs->blocks; block++) {
        prefetch_block(runs, src, block + 1);
        for (int64_t run = 0; run < runs->runs_per_block; run++) {
            const char *from = bench_src_run(runs, src, block, run);
            char *to = bench_dst_run(runs, dst, block, run);
            for (int64_t byte = 0; byte < runs->run_bytes; byte += 64) {
                _mm512_stream_si512((void *)(to + byte), _mm512_loadu_si512(from + byte));
            }
        }
    }
    _mm_sfence();
}

__attribute__((target("avx2"))) static void stream_avx2(const struct bench_runs *runs, char *dst, const char *src)
{
    for (int64_t block = 0; block < runs->blocks; block++) {
        prefetch_block(runs, src, block + 1);
        for (int64_t run = 0; run < runs->runs_per_block; run++) {
            const char *from = bench_src_run(runs, src, block, run);
            char *to = bench_dst_run(runs, dst, block, run);
            for (int64_t byte = 0; byte < runs->run_bytes; byte += 32) {
                _mm256_stream_si256((void *)(to + byte), _mm256_loadu_si256((const void *)(from + byte)));
            }
        }
    }
    _mm_sfence();
}
#endif

const char *bench_streaming_name(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        return "avx512";
    }
    if (__builtin_cpu_supports("avx2")) {
        return "avx2";
    }
#endif
    return "memcpy";
}

void bench_copy_streaming(const struct bench_runs *runs, char *dst, const char *src)
{
#if defined(__x86_64__)
    bool aligned = (uintptr_t)dst % 64 == 0 && runs->run_bytes % 64 == 0 && runs->dst_slot_bytes % 64 == 0 &&
                   runs->dst_stride_bytes % 64 == 0;
    if (aligned && __builtin_cpu_supports("avx512f")) {
        stream_avx512(runs, dst, src);
        return;
    }
    if (aligned && __builtin_cpu_supports("avx2")) {
        stream_avx2(runs, dst, src);
        return;
    }
#endif
    bench_copy_memcpy(runs, dst, src);
}

void bench_fill(const struct bench_runs *runs, char *src)
{
    for (int64_t block = 0; block < runs->blocks; block++) {
        for (int64_t run = 0; run < runs->runs_per_block; run++) {
            char *to = (char *)bench_src_run(runs, src, block, run);
            uint64_t state = (uint64_t)(block * runs->runs_per_block + run) * UINT64_C(0x9E3779B97F4A7C15);
            for (int64_t byte = 0; byte + 8 <= runs->run_bytes; byte += 8) {
                state = state * UINT64_C(6364136223846793005) + 1;
                memcpy(to + byte, &state, sizeof(state));
            }
        }
    }
}

bool bench_equal(const struct bench_runs *runs, const char *dst, const char *src)
{
    for (int64_t block = 0; block < runs->blocks; block++) {
        for (int64_t run = 0; run < runs->runs_per_block; run++) {
            const char *to = bench_dst_run(runs, (char *)dst, block, run);
            if (memcmp(to, bench_src_run(runs, src, block, run), (size_t)runs->run_bytes) != 0) {
                return false;
            }
        }
    }
    return true;
}
