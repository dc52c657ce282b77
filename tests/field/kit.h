/* SPDX-License-Identifier: Apache-2.0 */
/** @file kit.h  A tiny cache whose every element tells where it belongs, and a naive reader of it.
 *
 *  2 layers, 4 heads, rows of 16 bytes, blocks of 16 tokens, K and V, unless a case says otherwise: one head of one
 *  block is 256 bytes. The kit computes addresses and owners by itself, from the description of a worker; only the move
 *  itself goes through the library. Destinations are filled with 0xA5 and must keep it wherever nothing belongs.
 */
#ifndef FIELD_KIT_H
#define FIELD_KIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/layout.h"
#include "kvferry/plan.h"

enum { GUARD = 0xA5, MOST_IDS = 80, MOST_WORKERS = 16 };

/** How to deal blocks among stripes. */
enum dealing { NOT_DEALT, BY_BLOCK, CONTIGUOUS };

/** One rank. Set the first part, then call worker_open. */
struct worker {
    struct kvf_rank rank;
    int64_t layer_first, layers;
    int64_t heads, head_first, head_count; /* model-wide, and held here */
    int64_t row_bytes, tokens_per_block, blocks;
    bool latent;          /* one part "mla" instead of K and V */
    bool tokens_first[2]; /* of K and of V */
    bool apart;           /* K and V in memories of their own instead of side by side in a slot */
    int64_t padding_bytes; /* after each slot */
    enum dealing dealing;
    int64_t stripes, stripe;
    int64_t ids[MOST_IDS];
    size_t id_count;
    int64_t id_first;

    unsigned char *memory[2];
    int64_t memory_bytes[2], slot_bytes;
    kvf_layout *layout;
    kvf_holdings *holdings;
};

/** The tiny cache on TP rank `tp` of `tp_count`, with ids 0, 1, 2, ... */
struct worker tiny(int64_t heads, int64_t tp_count, int64_t tp, int64_t blocks);

/** Sets the ids of a worker. */
void worker_ids(struct worker *worker, size_t count, const int64_t *ids);

/** Makes memory (guard bytes), layout and holdings. The test fails when the layout is refused. */
void worker_open(struct worker *worker);
void worker_close(struct worker *worker);

/** Where a row lies; part 0 = K, 1 = V. */
unsigned char *worker_row(const struct worker *worker, int part, int64_t layer, int64_t slot, int64_t head,
                          int64_t token_in_block);

/** Slot that holds a token of a request of `tokens`, counted naively; -1 when it is not here. */
int64_t worker_slot(const struct worker *worker, int64_t token, int64_t tokens);

/** Writes the marks of tokens [0, end of the last block) of a request of `tokens`. */
void worker_fill(struct worker *worker, int64_t tokens);

/** Checks that tokens [begin, end) of a request lie in the worker's memory and that all else is guard bytes. */
void worker_check(const struct worker *worker, int64_t begin, int64_t end, int64_t tokens, const char *name);

/** What one pull moved. */
struct pull {
    int64_t begin, end, tokens;
    uint64_t flags;
    /* results */
    int64_t bytes, runs, valid_tokens, first_missing;
    int64_t longest_run, source_end; /* end of the last source byte read */
    int64_t bytes_from[MOST_WORKERS]; /* -1: that rank has no share */
    struct kvf_error error;
};

/** Elects, plans, binds and copies what `dst[destination]` needs from all of `src`; the caller sets begin, end, tokens
 *  and flags. `only` is one source, or -1 for all. Returns the first refusal. */
enum kvf_status pull(struct pull *pull, const struct worker *src, size_t src_count, const struct worker *dst,
                     size_t dst_count, size_t destination, int only);

/** Opens `count` TP ranks of a tiny cache, fills them when `filled`. */
void instance_open(struct worker *workers, int64_t heads, int64_t count, int64_t blocks, int64_t tokens, bool filled);
void instance_close(struct worker *workers, size_t count);

#endif
