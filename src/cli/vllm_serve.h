/* SPDX-License-Identifier: Apache-2.0 */
/** @file vllm_serve.h  A stand-alone vLLM rank that runs: its requests, its events, its memory. */
#ifndef KVFERRY_CLI_VLLM_SERVE_H
#define KVFERRY_CLI_VLLM_SERVE_H

#include "cli/vllm_memory.h"
#include "cli/vllm_spec.h"

/** What the command line says. */
struct vllm_serve_options {
    const char *spec_path;
    int role; /* an enum kvf_vllm_role; 0 = not said */
    int64_t rank, timeout_ns;
    bool verbose;
};

/** One request and what became of it. */
struct vllm_job {
    struct vllm_line line;
    int64_t due_ns;
    bool announced; /* producer: the worker knows it, its blocks may come later */
    bool begun, over, failed;
};

/** A rank that runs. */
struct vllm_serve {
    const struct cli_command *command;
    const struct vllm_serve_options *options;
    struct vllm_spec spec;
    struct kvf_vllm_config config; /* of vLLM's variables and extra_config */
    struct vllm_memory memory;
    kvf_vllm_regions *regions; /* with addresses of this process */
    kvf_directory *directory;  /* NULL = none here */
    kvf_vllm_worker *worker;
    struct vllm_job *jobs;
    size_t job_count;
    bool input_ended, stopping;
    bool line_failed, damaged; /* a line could not be used; guard bytes or a check were wrong */
};

/** Takes one line: a request or what concerns one. */
void vllm_serve_line(struct vllm_serve *serve, json_t *object, const char *where);

/** Gives the worker all requests that are due, in one step. */
void vllm_serve_step(struct vllm_serve *serve);

/** When the next request is due; INT64_MAX = none waits. */
int64_t vllm_serve_next_due(const struct vllm_serve *serve);

/** Takes what the worker tells. */
void vllm_serve_events(struct vllm_serve *serve);

/** How many requests are not over. */
size_t vllm_serve_unfinished(const struct vllm_serve *serve);

/** Makes a call that may block for long; a signal ends the process meanwhile. Returns what it returns. */
int vllm_serve_interruptible(struct vllm_serve *serve, int signal_fd, int (*call)(struct vllm_serve *serve));

/** Lets a consumer wait for its producer, if endpoint.wait_s says so, and finds out the engine's id if nobody said it.
 *  Returns an exit code. */
int vllm_serve_await(struct vllm_serve *serve, int signal_fd);

/** Compares memory with what the producers beside the pull would have sent, and tells. */
void vllm_serve_check(struct vllm_serve *serve);

/** Runs until all is done. Returns an exit code. */
int vllm_serve_run(const struct cli_command *command, const struct vllm_serve_options *options);

#endif
