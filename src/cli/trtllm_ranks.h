/* SPDX-License-Identifier: Apache-2.0 */
/** @file trtllm_ranks.h  Rank infos of TensorRT-LLM from files: JSON or the MessagePack bytes of a live server. */
#ifndef KVFERRY_CLI_TRTLLM_RANKS_H
#define KVFERRY_CLI_TRTLLM_RANKS_H

#include "cli/cli.h"
#include "kvferry/trtllm.h"

/** The ranks of one side of a transfer, by instance rank. */
struct trtllm_side {
    kvf_trtllm_rank **ranks;
    size_t count;
};

/** Reads a file, or every file of a folder. A file holds one rank, a list of them, {"ranks": [...]}, an object whose
 * member `member` ("src", "dst") is one of these, or one rank as MessagePack. All ranks must be of one instance.
 * Returns an exit code, having printed what is wrong. */
int trtllm_side_read(const struct cli_command *command, const char *path, const char *member, struct trtllm_side *out);
void trtllm_side_fini(struct trtllm_side *side);

/** Shorthand for kvf_trtllm_rank_get_spec of rank number `index`. */
const struct kvf_trtllm_rank_spec *trtllm_side_spec(const struct trtllm_side *side, size_t index);

/** TP ranks of one DP group, and the rank in it. */
int64_t trtllm_group_tp_size(const struct kvf_trtllm_rank_spec *rank);
int64_t trtllm_group_tp_rank(const struct kvf_trtllm_rank_spec *rank);

/** Ranks that recurrent state is cut over, and the number among them. */
void trtllm_state_ranks(const struct kvf_trtllm_rank_spec *rank, int64_t *size, int64_t *number);

/** Blocks of a paged group that a rank holds of so many tokens. */
int64_t trtllm_block_count(const struct kvf_trtllm_rank_spec *rank, int64_t tokens);

/** Bytes of one slot of an auxiliary buffer; 0 when the rank has no such buffer. */
int64_t trtllm_aux_item(const struct kvf_trtllm_rank_spec *rank, int64_t buffer);

/** Joins roles with '+', sorted: "key+value"; "" when there are none. Returns `text`. */
const char *trtllm_role_text(const struct kvf_trtllm_view *view, char *text, size_t bytes);

#endif
