/* SPDX-License-Identifier: Apache-2.0 */
/** @file trtllm_pairs.h  The rank pairs of two TensorRT-LLM instances, judged and planned: `kvferry trtllm plan`. */
#ifndef KVFERRY_CLI_TRTLLM_PAIRS_H
#define KVFERRY_CLI_TRTLLM_PAIRS_H

#include <jansson.h>
#include <stdio.h>

#include "cli/draw_map.h"
#include "cli/trtllm_ranks.h"

/** What is to be shown. */
struct trtllm_request {
    int64_t tokens; /* 0 = as many as there is room for, 1024 at most */
    int64_t dp;     /* DP group of the context that has the cache; -1 = a lone rank's own, else 0 */
    bool native;
    bool json;
    const char *blocks_path;
    json_t *blocks; /* of that file; NULL = ids 0, 1, 2 ... */
};

/** What one request costs. */
struct trtllm_cost {
    enum kvf_status status; /* of binding */
    char text[KVF_ERROR_TEXT_BYTES];
    int64_t bytes, descriptors, runs; /* descriptors: what upstream would post; -1 where there is no upstream */
};

/** One view pair of a rank pair. */
struct trtllm_view_row {
    struct kvf_trtllm_pair_view view;
    struct trtllm_cost cost;              /* of this view alone */
    int64_t first_unit, end_unit, units;  /* heads that move, of how many */
    int64_t *layers;                      /* global, ascending: what both have */
    size_t layer_count;
    char roles[256];
};

/** A planned rank pair. */
struct trtllm_plan {
    kvf_trtllm_pair *pair; /* NULL = there is none, `text` says why */
    enum kvf_status status;
    char text[KVF_ERROR_TEXT_BYTES];
    struct kvf_plan_info info; /* zero without a plan */
    struct trtllm_cost cost;
};

struct trtllm_pair_row {
    size_t src, dst;
    struct kvf_trtllm_overlap overlap; /* of the destination's DP group, as the source sees it */
    struct kvf_trtllm_verdict verdict;
    enum kvf_status status;
    bool state_paired, has_state, sends_aux, has_aux;
    char aux_text[KVF_ERROR_TEXT_BYTES]; /* why the auxiliary data do not fit, or "" */
    struct trtllm_plan upstream, native;
    struct trtllm_view_row *views;
    size_t view_count;
};

/** What one destination rank asks for. */
struct trtllm_reader_row {
    struct kvf_trtllm_overlap overlap;
    int64_t *writers;
    char blind_text[KVF_ERROR_TEXT_BYTES]; /* what it says of the context before it asks; "" = nothing */
    bool blind;                            /* upstream's does not look at this */
};

struct trtllm_pairs {
    struct trtllm_side src, dst;
    const struct trtllm_request *request;
    int64_t tokens, dp;
    struct trtllm_pair_row *rows; /* by destination, then source */
    size_t count;
    struct trtllm_reader_row *readers; /* by destination */
    kvf_trtllm_registrar **registrars; /* by source */
};

/** Judges and plans every pair that exchanges data. Takes the sides over. Returns an exit code, having printed why it
 * could not; a refused pair is none of these. */
int trtllm_pairs_init(const struct cli_command *command, const struct trtllm_request *request, struct trtllm_side *src,
                      struct trtllm_side *dst, struct trtllm_pairs *out);
void trtllm_pairs_fini(struct trtllm_pairs *pairs);

/** The first pair that nothing can be moved between; NULL when there is none. */
const struct trtllm_pair_row *trtllm_pairs_refused(const struct trtllm_pairs *pairs);

/** The plan of a pair that is shown: the native one where there is one. NULL when there is none. */
const struct trtllm_plan *trtllm_pair_plan_shown(const struct trtllm_pair_row *row);

/** Binds a request to a pair and counts. `only` = this view alone; NULL = all. */
void trtllm_pairs_cost(const struct trtllm_pairs *pairs, const struct trtllm_pair_row *row, const kvf_trtllm_pair *pair,
                       const struct kvf_trtllm_view_key *only, struct trtllm_cost *out);

/** The faces. */
void trtllm_pairs_print(const struct trtllm_pairs *pairs, FILE *out);
int trtllm_pairs_print_json(const struct cli_command *command, const struct trtllm_pairs *pairs, FILE *out);
void trtllm_pairs_draw(const struct trtllm_pairs *pairs, FILE *out);

/** Shared by the faces. */
const char *trtllm_side_name(const struct trtllm_side *side, size_t index, char *text, size_t bytes);
const char *trtllm_mapper_kind_text(int64_t kind);
void trtllm_ranges_text(const int64_t *numbers, size_t count, char *text, size_t bytes);
const struct kvf_trtllm_view *trtllm_find_view(const struct kvf_trtllm_rank_spec *rank,
                                               const struct kvf_trtllm_view_key *key);

/** Whether the file of --blocks, if there is one, has block ids of a rank. `member` is "src_blocks" or "dst_blocks". */
bool trtllm_has_blocks(const struct trtllm_request *request, const struct kvf_trtllm_rank_spec *rank,
                       const char *member);

#endif
