/* SPDX-License-Identifier: Apache-2.0 */
/** @file trtllm_spec.h  What `kvferry trtllm worker` is told: the SPEC, and lines that ask for something. */
#ifndef KVFERRY_CLI_TRTLLM_SPEC_H
#define KVFERRY_CLI_TRTLLM_SPEC_H

#include "cli/json_take.h"
#include "cli/trtllm_ranks.h"
#include "kvferry/trtllm_worker.h"

/** A SPEC. JSON values are borrowed from `root`. */
struct trtllm_spec {
    json_t *root;
    kvf_trtllm_rank *rank; /* as written: addresses are not used */
    char host[64];
    int64_t port; /* of the info endpoint; 0 = any */
    char *fill_path, *dump_path; /* NULL = none */
    bool paints, checks;
    const json_t *kv_heads, *requests; /* requests: NULL = standard input */
};

/** Reads a SPEC for `role` (0 context, 1 generation). `rank` picks one of several, -1 = there must be one. Returns an
 * exit code, having printed what is wrong. */
int trtllm_spec_read(const struct cli_command *command, const char *path, int role, int64_t rank,
                     struct trtllm_spec *out);
void trtllm_spec_fini(struct trtllm_spec *spec);

/** What a line asks for. */
enum trtllm_line_kind {
    TRTLLM_LINE_REQUEST,
    TRTLLM_LINE_CANCEL,
    TRTLLM_LINE_SEND,
    TRTLLM_LINE_DUMP,
    TRTLLM_LINE_COMPLETE
};

/** A piece of a request: tokens [begin, end). */
struct trtllm_span {
    int64_t begin, end;
};

/** A line, owned. */
struct trtllm_line {
    int kind; /* enum trtllm_line_kind */
    int64_t rid;
    char *file; /* DUMP */
    char **endpoints; /* COMPLETE */
    size_t endpoint_count;
    /* REQUEST */
    int schedule; /* enum kvf_trtllm_schedule */
    int64_t prompt_tokens, timeout_ns, aux_slot, ctx_dp_rank, start_token, sender_req_id;
    struct kvf_trtllm_blocks *groups;
    size_t group_count;
    struct trtllm_span *pieces;
    size_t piece_count;
    bool hold;
    json_t *aux; /* NULL = the pattern */
    char *info, *from;
};

/** Takes a line apart. `where` names it in messages: "requests[3]", "line 3". False with `take->text` when it is wrong;
 * the line's rid is set all the same when it has one, else -1. */
bool trtllm_line_take(const json_t *object, const char *where, int role, struct trtllm_line *out,
                      struct json_take *take);
void trtllm_line_fini(struct trtllm_line *line);

#endif
