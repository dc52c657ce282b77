/* SPDX-License-Identifier: Apache-2.0 */
/* Ten thousand transfers through one pair of engines: how long each takes, how the resident size of both processes
 * grows, and what CPU time two idle engines use. */
#include "pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BLOCKS = 4, BLOCK_TOKENS = 16, ROW_BYTES = 256, BLOCK_BYTES = BLOCK_TOKENS * ROW_BYTES, IDLE_SECONDS = 3 };

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void run(const char *transport, int64_t transfers)
{
    static const int64_t ids[BLOCKS] = {3, 1, 0, 2};
    kvf_layout *layout = bench_pair_layout(BLOCKS, BLOCK_TOKENS, ROW_BYTES, ROW_BYTES);
    struct bench_memory src = bench_memory_create(BLOCKS * BLOCK_BYTES);
    struct bench_memory dst = bench_memory_create(BLOCKS * BLOCK_BYTES);
    struct bench_pair_options options = {
        .transports = transport, .src_layout = layout, .dst_layout = layout, .src = &src, .dst = &dst,
        .request_tokens = BLOCKS * BLOCK_TOKENS, .src_ids = {.ids = ids, .count = BLOCKS},
        .dst_ids = {.ids = ids, .count = BLOCKS}};
    struct bench_pair *pair = bench_pair_fork(&options);
    double *seconds = calloc((size_t)transfers, sizeof(*seconds));
    int64_t warm = transfers / 10, before = 0, child_before = 0;

    bench_pair_start(pair);
    for (int64_t i = 0; seconds != NULL && i < transfers + warm; i++) {
        if (i == warm) {
            before = bench_resident_bytes();
            child_before = bench_pair_child_resident_bytes(pair);
        }
        double took = bench_pair_pull(pair, NULL);
        if (i >= warm) {
            seconds[i - warm] = took;
        }
    }
    int64_t grown = bench_resident_bytes() - before, child_grown = bench_pair_child_resident_bytes(pair) - child_before;
    struct bench_samples samples = bench_summary(seconds, (size_t)transfers);
    printf("{\"bench\": \"many\", \"transport\": \"%s\", \"transfers\": %lld, \"median_us\": %.0f, \"best_us\": %.0f, "
           "\"decode_grew_kib\": %lld, \"prefill_grew_kib\": %lld, \"aim_kib\": 1024, \"met\": %s}\n", transport,
           (long long)transfers, samples.median_s * 1e6, samples.best_s * 1e6, (long long)grown / 1024,
           (long long)child_grown / 1024, larger(grown, child_grown) <= 1048576 ? "true" : "false");

    int64_t cpu_ns = bench_cpu_ns(), child_cpu_ns = bench_pair_child_cpu_ns(pair);
    nanosleep(&(struct timespec){.tv_sec = IDLE_SECONDS}, NULL);
    child_cpu_ns = bench_pair_child_cpu_ns(pair) - child_cpu_ns;
    cpu_ns = bench_cpu_ns() - cpu_ns;
    printf("{\"bench\": \"idle\", \"transport\": \"%s\", \"seconds\": %d, \"decode_cpu_percent\": %.3f, "
           "\"prefill_cpu_percent\": %.3f}\n", transport, IDLE_SECONDS, (double)cpu_ns / IDLE_SECONDS / 1e7,
           (double)child_cpu_ns / IDLE_SECONDS / 1e7);
    bench_pair_close(pair);
    bench_memory_destroy(&src);
    bench_memory_destroy(&dst);
    kvf_layout_release(layout);
    free(seconds);
}

int main(int argc, char **argv)
{
    int64_t transfers = bench_option(argc, argv, "transfers", 10000);
    run("shm", transfers);
    run("tcp", transfers);
    return 0;
}
