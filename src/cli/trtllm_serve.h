/* SPDX-License-Identifier: Apache-2.0 */
/** @file trtllm_serve.h  A stand-alone TensorRT-LLM rank that runs: its jobs, its events, its memory. */
#ifndef KVFERRY_CLI_TRTLLM_SERVE_H
#define KVFERRY_CLI_TRTLLM_SERVE_H

#include "cli/trtllm_meet.h"
#include "cli/trtllm_memory.h"
#include "cli/trtllm_spec.h"

/** What the command line says. */
struct trtllm_serve_options {
    const char *spec_path, *meet;
    int role; /* 0 context, 1 generation */
    int64_t rank, timeout_ns;
    bool has_role, native, verbose;
};

/** One request and what became of it. */
struct trtllm_job {
    struct trtllm_line line;
    size_t next_piece;
    bool started, ended, settled, lost; /* lost: its memory will never be settled */
    bool cancelled_here, timed_out;
    bool waits; /* for the worker to be complete, or for an info endpoint */
    int64_t since_ns;
    int state, status; /* of its end */
};

/** A rank that runs. */
struct trtllm_serve {
    const struct cli_command *command;
    const struct trtllm_serve_options *options;
    struct trtllm_spec spec;
    struct trtllm_memory memory;
    kvf_trtllm_rank *rank; /* with addresses of this process */
    kvf_trtllm_worker *worker;
    struct kvf_trtllm_endpoints endpoints;
    struct trtllm_meet meet;
    struct trtllm_job *jobs;
    size_t job_count;
    uint8_t **images; /* the bases of all regions */
    bool is_complete, input_ended, stopping;
    bool line_failed, damaged; /* a line could not be used; guard bytes or a check were wrong */
};

/** Takes one line: a request or what concerns one. False when it was refused, which an event has told. */
bool trtllm_serve_line(struct trtllm_serve *serve, const json_t *object, const char *where);

/** Starts what waited, now that all it needs is there. */
void trtllm_serve_resolve(struct trtllm_serve *serve);

/** Ends a job here. `by_line` = a line asked for it. */
bool trtllm_serve_cancel(struct trtllm_serve *serve, int64_t rid, bool by_line, struct kvf_error *error);

/** Takes the worker's events. */
void trtllm_serve_events(struct trtllm_serve *serve);

/** Whether every job has ended, memory included; or, when `logically`, its outcome alone. */
bool trtllm_serve_idle(const struct trtllm_serve *serve, bool logically);

/** What the jobs make of the exit code. */
int trtllm_serve_outcome(const struct trtllm_serve *serve);

/** Compares memory with the pattern of the transferred requests, and tells. */
void trtllm_serve_check(struct trtllm_serve *serve);

/** Gives the worker the sender endpoints of all ranks. */
bool trtllm_serve_complete(struct trtllm_serve *serve, char *const *senders, size_t count, struct kvf_error *error);

/** Runs until all is done. Returns an exit code. */
int trtllm_serve_run(const struct cli_command *command, const struct trtllm_serve_options *options);

#endif
