/* SPDX-License-Identifier: Apache-2.0 */
/* 256 MiB in runs of 256 bytes: sixteen runs a block, blocks shuffled on both sides, destination stride twice the
 * run. A pull through kvferry against what one would write by hand for the same runs: a bare streaming copy, a numpy
 * loop over shared memory, a raw TCP socket. All in one run, in turns, so that they see the same machine. */
#include "pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUN_BYTES = 256, RUNS_PER_BLOCK = 16, MAX_REPETITIONS = 99, TCP_STREAMS = 2 };

/* What is measured, in this order within each round. */
enum way { STREAMING, MEMCPY, TCP_GATHER, TCP_GATHER_1M, TCP_VECTORED, KVF_SHM, KVF_TCP, NUMPY, WAYS };
static const char *const way_names[WAYS] = {"streaming copy", "memcpy loop", "raw tcp, gather-send-scatter, 256 KiB",
                                            "raw tcp, gather-send-scatter, 1 MiB", "raw tcp, writev-readv",
                                            "kvferry shm", "kvferry tcp", "numpy loop"};

struct bench {
    struct bench_runs runs;
    struct bench_memory src, dst;
    int64_t *src_ids, *dst_ids;
    int64_t repetitions;
    struct bench_pair *shm, *tcp;
    double seconds[WAYS][MAX_REPETITIONS];
};

static void open_pairs(struct bench *bench)
{
    int64_t blocks = bench->runs.blocks;
    kvf_layout *src = bench_pair_layout(blocks, RUNS_PER_BLOCK, RUN_BYTES, RUN_BYTES);
    kvf_layout *dst = bench_pair_layout(blocks, RUNS_PER_BLOCK, RUN_BYTES, 2 * RUN_BYTES);
    struct bench_pair_options options = {
        .transports = "shm", .src_layout = src, .dst_layout = dst, .src = &bench->src, .dst = &bench->dst,
        .request_tokens = blocks * RUNS_PER_BLOCK,
        .src_ids = {.ids = bench->src_ids, .count = (size_t)blocks},
        .dst_ids = {.ids = bench->dst_ids, .count = (size_t)blocks}};

    bench->shm = bench_pair_fork(&options);
    options.transports = "tcp";
    bench->tcp = bench_pair_fork(&options);
    bench_pair_start(bench->shm);
    bench_pair_start(bench->tcp);
    kvf_layout_release(src);
    kvf_layout_release(dst);
}

/* The ids for the numpy process, in memory that it inherits. */
static struct bench_memory share_ids(const struct bench *bench)
{
    size_t bytes = (size_t)bench->runs.blocks * sizeof(int64_t);
    struct bench_memory memory = bench_memory_create((int64_t)(2 * bytes));
    memcpy(memory.address, bench->src_ids, bytes);
    memcpy(memory.address + bytes, bench->dst_ids, bytes);
    return memory;
}

static void measure_numpy(struct bench *bench, const char *script)
{
    char command[1024];
    struct bench_memory ids = share_ids(bench);

    snprintf(command, sizeof(command), "exec /usr/bin/python3 %s %d %d %d %lld %d %d %d %d %lld", script, bench->src.fd,
             bench->dst.fd, ids.fd, (long long)bench->runs.blocks, RUNS_PER_BLOCK, RUN_BYTES, RUN_BYTES, 2 * RUN_BYTES,
             (long long)bench->repetitions);
    fflush(NULL);
    FILE *lines = popen(command, "r");
    for (int64_t i = 0; i < bench->repetitions; i++) {
        if (lines == NULL || fscanf(lines, "%lf", &bench->seconds[NUMPY][i]) != 1) {
            bench_fail("the numpy loop failed");
        }
    }
    pclose(lines);
    bench_memory_destroy(&ids);
}

static double measure(struct bench *bench, enum way way)
{
    const struct bench_runs *runs = &bench->runs;
    char *dst = bench->dst.address;
    const char *src = bench->src.address;
    int64_t started_ns = bench_now_ns();

    switch (way) {
    case STREAMING:
        bench_copy_streaming(runs, dst, src);
        break;
    case MEMCPY:
        bench_copy_memcpy(runs, dst, src);
        break;
    case TCP_GATHER:
        return bench_tcp_gather(runs, dst, src, 262144);
    case TCP_GATHER_1M:
        return bench_tcp_gather(runs, dst, src, 1048576);
    case TCP_VECTORED:
        return bench_tcp_vectored(runs, dst, src);
    case KVF_SHM:
        return bench_pair_pull(bench->shm, NULL);
    case KVF_TCP:
        return bench_pair_pull(bench->tcp, NULL);
    default:
        break;
    }
    return (double)(bench_now_ns() - started_ns) / 1e9;
}

/* One round unmeasured (connections, page tables), each checked byte by byte; then the measured rounds. */
static void measure_all(struct bench *bench)
{
    for (int way = 0; way < NUMPY; way++) {
        memset(bench->dst.address, 0, (size_t)bench->dst.bytes);
        double seconds = measure(bench, way);
        if (!bench_equal(&bench->runs, bench->dst.address, bench->src.address)) {
            bench_fail("%s: the bytes are not the same", way_names[way]);
        }
        if (way == KVF_SHM || way == KVF_TCP) {
            printf("{\"bench\": \"transfer\", \"way\": \"%s, first pull with its connections\", \"seconds\": %.4f}\n",
                   way_names[way], seconds);
        }
    }
    for (int64_t round = 0; round < bench->repetitions; round++) {
        for (int way = 0; way < NUMPY; way++) {
            bench->seconds[way][round] = measure(bench, way);
        }
    }
}

static void report(struct bench *bench)
{
    struct bench_samples samples[WAYS];
    double bytes = (double)(bench->runs.blocks * RUNS_PER_BLOCK * RUN_BYTES);

    for (int way = 0; way < WAYS; way++) {
        samples[way] = bench_summary(bench->seconds[way], (size_t)bench->repetitions);
        bench_print_way("transfer", way_names[way], bytes, samples[way]);
    }
    struct bench_samples raw = samples[TCP_GATHER];
    for (int way = TCP_GATHER_1M; way <= TCP_VECTORED; way++) {
        raw = samples[way].median_s < raw.median_s ? samples[way] : raw;
    }
    bench_print_ratio("transfer", "shm against the streaming copy", samples[KVF_SHM], samples[STREAMING], 0.6);
    bench_print_ratio("transfer", "shm against the numpy loop", samples[KVF_SHM], samples[NUMPY], 1.0);
    bench_print_ratio("transfer", "tcp against the best raw tcp", samples[KVF_TCP], raw, 0.6);
}

int main(int argc, char **argv)
{
    static struct bench bench;
    int64_t mib = bench_option(argc, argv, "mib", 256);
    int64_t blocks = mib * 1048576 / (RUN_BYTES * RUNS_PER_BLOCK);

    bench.repetitions = bench_option(argc, argv, "repetitions", 7);
    if (bench.repetitions > MAX_REPETITIONS) {
        bench_fail("at most %d repetitions", MAX_REPETITIONS);
    }
    bench.src_ids = bench_shuffled((size_t)blocks, 1);
    bench.dst_ids = bench_shuffled((size_t)blocks, 2);
    bench.runs = (struct bench_runs){.blocks = blocks, .runs_per_block = RUNS_PER_BLOCK, .run_bytes = RUN_BYTES,
                                     .src_slot_bytes = RUNS_PER_BLOCK * RUN_BYTES, .src_stride_bytes = RUN_BYTES,
                                     .dst_slot_bytes = RUNS_PER_BLOCK * 2 * RUN_BYTES,
                                     .dst_stride_bytes = 2 * RUN_BYTES,
                                     .src_ids = bench.src_ids, .dst_ids = bench.dst_ids};
    bench.src = bench_memory_create(blocks * bench.runs.src_slot_bytes);
    bench.dst = bench_memory_create(blocks * bench.runs.dst_slot_bytes);
    bench_fill(&bench.runs, bench.src.address);

    double before_ns = bench_pingpong_ns();
    open_pairs(&bench);
    measure_all(&bench);
    measure_numpy(&bench, BENCH_NUMPY_SCRIPT);
    double after_ns = bench_pingpong_ns();
    printf("{\"bench\": \"transfer\", \"mib\": %lld, \"repetitions\": %lld, \"streaming\": \"%s\", "
           "\"pingpong_ns\": [%.0f, %.0f], \"placement\": [\"%s\", \"%s\"]}\n",
           (long long)mib, (long long)bench.repetitions, bench_streaming_name(), before_ns, after_ns,
           bench_placement(before_ns), bench_placement(after_ns));
    report(&bench);
    bench_pair_close(bench.shm);
    bench_pair_close(bench.tcp);
    bench_memory_destroy(&bench.src);
    bench_memory_destroy(&bench.dst);
    free(bench.src_ids);
    free(bench.dst_ids);
    return 0;
}
