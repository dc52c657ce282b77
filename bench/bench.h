/* SPDX-License-Identifier: Apache-2.0 */
/** @file bench.h  What the benchmarks share: time, placement of the CPUs, samples, memories, and the bare copies that
 *  kvferry is compared with. */
#ifndef KVF_BENCH_BENCH_H
#define KVF_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Nanoseconds of the monotonic clock. */
int64_t bench_now_ns(void);

/** Ends the benchmark with one line on standard error. */
void bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/** Round trip of a cache line between two CPUs in nanoseconds; 0 when there is one CPU only. It tells where the host
 *  has placed them, on which every figure of two processes depends. */
double bench_pingpong_ns(void);

/** "one-cpu", "smt" (below 45 ns), "near" (below 200 ns), "far". */
const char *bench_placement(double pingpong_ns);

/** Best, median and worst of some durations. */
struct bench_samples {
    double best_s, median_s, worst_s;
};

/** Sorts `seconds` in place. */
struct bench_samples bench_summary(double *seconds, size_t count);

/** Prints one line of JSON: the rate of one way to move `bytes`; the ratio of ours to another, the aim, and whether the
 *  medians meet it. */
void bench_print_way(const char *bench, const char *way, double bytes, struct bench_samples samples);
void bench_print_ratio(const char *bench, const char *name, struct bench_samples ours, struct bench_samples other,
                       double aim);

/** The numbers 0 .. count-1 in an order that only the seed decides: free with free(). */
int64_t *bench_shuffled(size_t count, uint64_t seed);

/** Shareable memory with every page touched. */
struct bench_memory {
    char *address;
    int64_t bytes;
    int fd;
};

struct bench_memory bench_memory_create(int64_t bytes);
void bench_memory_destroy(struct bench_memory *memory);

/** Resident bytes of this process, and its CPU time in nanoseconds. */
int64_t bench_resident_bytes(void);
int64_t bench_cpu_ns(void);

/** Runs of equal length in shuffled blocks on both sides. */
struct bench_runs {
    int64_t blocks, runs_per_block, run_bytes;
    int64_t src_slot_bytes, src_stride_bytes; /* between blocks, between the runs of a block */
    int64_t dst_slot_bytes, dst_stride_bytes;
    const int64_t *src_ids, *dst_ids;
};

static inline const char *bench_src_run(const struct bench_runs *runs, const char *src, int64_t block, int64_t run)
{
    return src + runs->src_ids[block] * runs->src_slot_bytes + run * runs->src_stride_bytes;
}

static inline char *bench_dst_run(const struct bench_runs *runs, char *dst, int64_t block, int64_t run)
{
    return dst + runs->dst_ids[block] * runs->dst_slot_bytes + run * runs->dst_stride_bytes;
}

/** Copies all runs in one thread: with streaming stores and prefetch where the CPU has AVX2 or AVX-512, one fence at
 *  the end; with memcpy. */
void bench_copy_streaming(const struct bench_runs *runs, char *dst, const char *src);
void bench_copy_memcpy(const struct bench_runs *runs, char *dst, const char *src);

/** Name of what bench_copy_streaming uses: "avx512", "avx2", "memcpy". */
const char *bench_streaming_name(void);

/** Moves all runs over one raw loopback TCP socket with cubic congestion control, a thread at each end, and returns the
 *  seconds from the first byte sent to the last one placed. Gather: runs are packed into a staging buffer, sent,
 *  received into another, scattered. Vectored: writev and readv straight from and to the runs. */
double bench_tcp_gather(const struct bench_runs *runs, char *dst, const char *src, int64_t staging_bytes);
double bench_tcp_vectored(const struct bench_runs *runs, char *dst, const char *src);

/** Fills the source with bytes that depend on their place; says whether the destination holds the same runs; sets the
 *  destination to zero. */
void bench_fill(const struct bench_runs *runs, char *src);
bool bench_equal(const struct bench_runs *runs, const char *dst, const char *src);

/** Value of an option `--NAME N` (an integer of at least 1), or `fallback`. Ends the benchmark when it is malformed. */
int64_t bench_option(int argc, char **argv, const char *name, int64_t fallback);

#endif
