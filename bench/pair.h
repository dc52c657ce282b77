/* SPDX-License-Identifier: Apache-2.0 */
/** @file pair.h  A prefill engine in a child process and a decode engine in this one, pulling the same blocks again
 *  and again. */
#ifndef KVF_BENCH_PAIR_H
#define KVF_BENCH_PAIR_H

#include "bench.h"
#include "kvferry/kvferry.h"

/** Both sides: each with one memory. */
struct bench_pair_options {
    const char *transports; /* "shm" or "tcp" */
    const kvf_layout *src_layout, *dst_layout;
    const struct bench_memory *src, *dst;
    int64_t request_tokens;
    struct kvf_id_list src_ids, dst_ids;
};

struct bench_pair;

/** A layout of one memory with one layer of "k": `slots` blocks of `tokens_per_block` rows of `row_bytes`, the rows
 *  `stride_bytes` apart. Free it with kvf_layout_release; ends the benchmark on failure. */
kvf_layout *bench_pair_layout(int64_t slots, int64_t tokens_per_block, int64_t row_bytes, int64_t stride_bytes);

/** Forks the prefill side, which opens its engine: fork all pairs of a program before the first is started, while this
 *  process has one thread. Then start opens the decode side here. The options' ids and memories are borrowed until
 *  close. */
struct bench_pair *bench_pair_fork(const struct bench_pair_options *options);
void bench_pair_start(struct bench_pair *pair);
void bench_pair_close(struct bench_pair *pair);

/** One transfer: the offer stands before the clock starts. Returns the seconds from the pull to PULL_DONE, and when
 *  `event` is not NULL the event. Ends the benchmark when the pull fails or another transport was used. */
double bench_pair_pull(struct bench_pair *pair, struct kvf_event *event);

/** CPU time that the child process has used so far, and its resident bytes. */
int64_t bench_pair_child_cpu_ns(struct bench_pair *pair);
int64_t bench_pair_child_resident_bytes(struct bench_pair *pair);

#endif
