/* SPDX-License-Identifier: Apache-2.0 */
/** @file vllm_pairs.h  The rank pairs of two vLLM engines, judged and planned: `kvferry vllm plan`. */
#ifndef KVFERRY_CLI_VLLM_PAIRS_H
#define KVFERRY_CLI_VLLM_PAIRS_H

#include <stdio.h>

#include "cli/draw_map.h"
#include "cli/vllm_terms.h"

/** The ranks of one engine that are given. */
struct vllm_side {
    struct vllm_keep keep;
    json_t **roots; /* of the files that the ranks borrow from */
    size_t root_count;
    struct vllm_rank *ranks;
    size_t count;
    const char *path;
    bool is_producer;
};

/** Reads ranks from a file ("-" = standard input) or a folder of files: one rank, a list, {"ranks": [...]}, or a SPEC
 *  or stored case, whose `member` ("producer" or "pull") it is. Returns an exit code, having printed what is wrong. */
int vllm_side_read(const struct cli_command *command, const char *path, const char *member, struct vllm_side *out);
void vllm_side_fini(struct vllm_side *side);

/** What is to be shown. */
struct vllm_plan_request {
    int64_t blocks; /* of the request that is made up, where the files have none */
    bool json;
};

/** What one request comes to between two ranks. */
struct vllm_cost {
    char name[64];
    int64_t blocks; /* that the consumer wants, of all groups */
    enum kvf_status status;
    char text[KVF_ERROR_TEXT_BYTES];
    int64_t bytes, descriptors;
};

/** One region pair after merging, and what moves of each block. */
struct vllm_move {
    struct kvf_vllm_region local, remote;
    int64_t src_offset, dst_offset, bytes; /* of a block as kernels address it; bytes 0 = nothing is sent */
    bool folds;                            /* adjacent blocks go in one descriptor */
    size_t layers;                         /* regions of the producer that were merged into it */
};

struct vllm_pair_row {
    size_t producer, consumer;
    enum kvf_status status;
    char text[KVF_ERROR_TEXT_BYTES]; /* upstream's, when it is refused */
    kvf_vllm_prepared *prepared;     /* NULL = refused */
    bool falls_short;                /* nobody checks that what is sent fills the consumer's blocks, and it does not */
    bool misplaces;                  /* vLLM's producer would write heads into wrong layers, kvferry's does not */
    struct kvf_vllm_prepared_info info;
    size_t local_regions, remote_regions, met; /* before merging; met = the same layer on both sides */
    struct vllm_move *moves;
    size_t move_count;
    struct vllm_cost *costs;
    size_t cost_count;
};

struct vllm_pairs {
    struct vllm_side producers, consumers;
    const struct vllm_plan_request *request;
    struct vllm_pair_row *rows; /* by consumer, then producer */
    size_t count;
};

/** Judges and plans every pair of which the consumer asks the producer; a lone pair in any case, and one where the
 *  sizes do not divide. Takes the sides over.
 *  Returns an exit code, having printed why it could not; a refused pair is none of these. */
int vllm_pairs_init(const struct cli_command *command, const struct vllm_plan_request *request,
                    struct vllm_side *producers, struct vllm_side *consumers, struct vllm_pairs *out);
void vllm_pairs_fini(struct vllm_pairs *pairs);

/** Whether a consumer rank asks a producer rank. */
bool vllm_asks(const struct vllm_rank *consumer, const struct vllm_rank *producer);

/** The first pair that is refused, or whose request is; NULL when there is none. `text` says why. */
const struct vllm_pair_row *vllm_pairs_refused(const struct vllm_pairs *pairs, const char **text);

/** Fills a row's moves. False without memory. */
bool vllm_pair_moves(const struct vllm_rank *producer, struct vllm_pair_row *row);

/** Fills a row's costs: of the requests that both files name, else of two that are made up. False without memory. */
bool vllm_pair_costs(const struct vllm_pairs *pairs, struct vllm_pair_row *row);

/** A plain sentence on what to change for one of upstream's texts; "" when there is none. */
const char *vllm_advice(const char *text);

/** What to know of a pair that is accepted; "" when there is nothing. */
const char *vllm_warning(const struct vllm_pair_row *row);

/** "TP 1, PP 0". */
const char *vllm_rank_name(const struct vllm_rank *rank, char *text, size_t bytes);

/** The faces. */
void vllm_pairs_print(const struct vllm_pairs *pairs, FILE *out);
int vllm_pairs_print_json(const struct cli_command *command, const struct vllm_pairs *pairs, FILE *out);
void vllm_pairs_draw(const struct vllm_pairs *pairs, FILE *out);

#endif
