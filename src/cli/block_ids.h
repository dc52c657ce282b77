/* SPDX-License-Identifier: Apache-2.0 */
/** @file block_ids.h  How many blocks a request takes on a rank, and which ones. */
#ifndef KVFERRY_CLI_BLOCK_IDS_H
#define KVFERRY_CLI_BLOCK_IDS_H

#include "cli/cli.h"

/** Blocks that `tokens` tokens take in a group on this rank; for state 1. */
int64_t block_count_for(const struct kvf_group *group, int64_t tokens);

/** Block ids that a group has room for: slots of its views' pools, over slots per block; 0 when no view uses it. */
int64_t block_capacity(const struct kvf_layout_spec *spec, size_t group);

/** Most tokens of one request that every group of the layout has room for; `limit` at most. */
int64_t block_tokens_capacity(const struct kvf_layout_spec *spec, int64_t limit);

/** Id lists, one per group. */
struct block_lists {
    struct kvf_id_list *groups; /* each `ids` is owned */
    size_t count;
};

/** Makes lists 0, 1, 2 ... for each group. Returns false when there is no memory. */
bool block_lists_in_order(const struct kvf_layout_spec *spec, int64_t tokens, struct block_lists *out);

/** Makes lists in an order shuffled from `seed`, ids drawn from all that the pools have; no two groups that share a
 * pool get one slot. Returns an exit code, having printed what is wrong ("has room for ..."). */
int block_lists_shuffled(const struct cli_command *command, const struct kvf_layout_spec *spec, int64_t tokens,
                         uint64_t seed, struct block_lists *out);

/** Frees what the lists own. */
void block_lists_fini(struct block_lists *lists);

/** A small random generator for shuffles that can be repeated (splitmix64). */
uint64_t block_random(uint64_t *state);

#endif
