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
/* The loops below are written for one length of run, as one would by hand: with a length known to the compiler all
 * loads and stores of a run stand in a row, which is worth a tenth. */
enum { AHEAD_RUNS = 16, STREAM_RUN_BYTES = 256 };

/* Fetches the run that comes AHEAD_RUNS runs later, so that it is there when its turn comes. Inlined by force: gcc
 * takes a function that only fetches for one without effect, and drops its calls. */
__attribute__((always_inline)) static inline void prefetch_ahead(const struct bench_runs *runs, const char *src,
                                                                 int64_t block, int64_t run)
{
    run += AHEAD_RUNS;
    if (run >= runs->runs_per_block) {
        run -= runs->runs_per_block;
        block++;
    }
    if (block < runs->blocks) {
        const char *from = bench_src_run(runs, src, block, run);
        for (int64_t byte = 0; byte < STREAM_RUN_BYTES; byte += 64) {
            __builtin_prefetch(from + byte, 0, 3);
        }
    }
}

__attribute__((target("avx512f"))) static void stream_avx512(const struct bench_runs *given, char *dst, const char *src)
{
    const struct bench_runs own = *given, *runs = &own; /* no store can change it, so it stays in registers */

    for (int64_t block = 0; block < runs->blocks; block++) {
        for (int64_t run = 0; run < runs->runs_per_block; run++) {
            const char *from = bench_src_run(runs, src, block, run);
            char *to = bench_dst_run(runs, dst, block, run);
            prefetch_ahead(runs, src, block, run);
#pragma GCC unroll 8
            for (int64_t byte = 0; byte < STREAM_RUN_BYTES; byte += 64) {
                _mm512_stream_si512((void *)(to + byte), _mm512_loadu_si512(from + byte));
            }
        }
    }
    _mm_sfence();
}

__attribute__((target("avx2"))) static void stream_avx2(const struct bench_runs *given, char *dst, const char *src)
{
    const struct bench_runs own = *given, *runs = &own; /* no store can change it, so it stays in registers */

    for (int64_t block = 0; block < runs->blocks; block++) {
        for (int64_t run = 0; run < runs->runs_per_block; run++) {
            const char *from = bench_src_run(runs, src, block, run);
            char *to = bench_dst_run(runs, dst, block, run);
            prefetch_ahead(runs, src, block, run);
#pragma GCC unroll 8
            for (int64_t byte = 0; byte < STREAM_RUN_BYTES; byte += 32) {
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
    bool aligned = (uintptr_t)dst % 64 == 0 && runs->run_bytes == STREAM_RUN_BYTES && runs->dst_slot_bytes % 64 == 0 &&
                   runs->dst_stride_bytes % 64 == 0 && runs->runs_per_block >= AHEAD_RUNS;
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
