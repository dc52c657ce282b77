/* SPDX-License-Identifier: Apache-2.0 */
/** @file waiting.h  The processes of vllm-waiting. Each is told what to do by lines, and answers each with one. */
#ifndef KVF_BENCH_VLLM_WAITING_H
#define KVF_BENCH_VLLM_WAITING_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum { WAITING_LAYERS = 80, WAITING_IDS = 64, WAITING_BLOCK_BYTES = 32, WAITING_SLOTS = 128, LINE_BYTES = 1024 };

/** One end of a conversation by lines. */
struct lines {
    FILE *in, *out;
};

struct child {
    pid_t pid;
    struct lines lines;
};

/** Starts a process that does `run`. It ends with `end`, or with this one. */
struct child start(void (*run)(struct lines *lines, int64_t number), int64_t number);
void end(struct child *child);

void say(struct lines *lines, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool hear(struct lines *lines, char line[LINE_BYTES]); /* false: the other end is gone */

/** The next answer, and the answer to a line: until the next call. */
const char *answer_of(struct child *child);
const char *ask(struct child *child, const char *line);

/** A socket of libzmq that does not linger. */
void *open_socket(void *context, int type);

/** A bare ROUTER. It says where it is, then answers
 *    memory N            waits for N messages in all        -> resident bytes */
void run_bare(struct lines *lines, int64_t number);

/** A producer's worker with so many descriptors (0 = as many as this process). It says where its side channel is, then
 *  answers
 *    ready PREFIX COUNT  requests PREFIX0, ... are ready    -> ok
 *    memory N            waits until N pulls wait           -> resident bytes, threads, how many do
 *    finished N          waits until N requests are over    -> ok */
void run_worker(struct lines *lines, int64_t number);

/** A consumer with a layout id, or without one (0). It says its number, then answers
 *    greet N BYTES ENDPOINT           N connections that say so many bytes once (0: as a pull)  -> ok
 *    pull N FIRST PREFIX ENDPOINT     N pulls of PREFIX(FIRST), ..., a connection each          -> ok
 *    answers                          waits until each is answered; closes them                 -> how many well
 *    close                            closes them                                               -> ok
 *    latency N FIRST PREFIX ENDPOINT  N pulls, one after the other  -> p50, p99, worst in microseconds */
void run_consumer(struct lines *lines, int64_t number);

#endif
