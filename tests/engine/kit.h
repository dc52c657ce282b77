/* SPDX-License-Identifier: Apache-2.0 */
/** @file kit.h  Whole instances of engines in one process, with an oracle that knows what byte belongs where. It uses
 *  the
 *  public headers only, and computes addresses from the layout by the formula of layout.h, apart from the planner.
 */
#ifndef TESTS_ENGINE_KIT_H
#define TESTS_ENGINE_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kvferry/kvferry.h"

#define MS INT64_C(1000000)
#define SECOND INT64_C(1000000000)

enum { KIT_MAX_RANKS = 8, KIT_MAX_BLOCKS = 512, KIT_GUARD = 0xEE };

struct kit_rank {
    const kvf_layout *layout;
    kvf_engine *engine;
    kvf_memory **memories;
    size_t memory_count;
};

struct kit_side {
    char name[64];
    kvf_instance *instance;
    struct kit_rank ranks[KIT_MAX_RANKS];
    size_t rank_count;
    int64_t blocks, tokens_per_block;
};

/** What a test may change of each engine's options. */
typedef void (*kit_tweak)(struct kvf_engine_options *options, size_t rank);

/** A small plain recipe: 4 layers, 4 heads of 16 bytes, blocks of 16 tokens, 64 blocks, heads first, K and V in one
 *  pool. */
struct kvf_instance_recipe kit_recipe(void);

/** Parses the recipe, allocates and guards the memories; no engine yet. */
void kit_layouts(struct kit_side *side, const char *name, const struct kvf_instance_recipe *recipe);
/** Opens and announces the engine of one rank. `directory` NULL: it embeds one. */
void kit_engine(struct kit_side *side, size_t rank, const char *directory, const char *transports, kit_tweak tweak);
/** Both, for all ranks. */
void kit_open(struct kit_side *side, const char *name, const struct kvf_instance_recipe *recipe, const char *directory,
              const char *transports, kit_tweak tweak);
/** Closes engines and frees. */
void kit_close(struct kit_side *side);
const char *kit_directory(const struct kit_side *side);

/** Block ids of a request: `count` of them, shuffled, none shared with another request of the same `count`. */
void kit_ids(const struct kit_side *side, int64_t request, int64_t count, int64_t *ids);
int64_t kit_blocks(const struct kit_side *side, int64_t tokens);

/** Writes the oracle's bytes of a request into a rank's blocks. */
void kit_fill(struct kit_side *side, size_t rank, int64_t request, const int64_t *ids, int64_t count);
/** Sets all memory of a rank to the guard byte. */
void kit_guard(struct kit_side *side, size_t rank);

/** One request's blocks that a check looks at. */
struct kit_moved {
    int64_t request, count;
    const int64_t *ids;
    int64_t token_begin, token_end;
};
/** True when every byte of the rank is right: inside the ranges the oracle's, past the last token of a ragged block the
 *  oracle's or the guard, everywhere else the guard. Prints the first wrong one. */
bool kit_check(const struct kit_side *side, size_t rank, const struct kit_moved *moved, size_t moved_count);

/** Offers on one rank, pulls on one rank; fails the test unless the call returns `expected`. */
void kit_offer(struct kit_side *side, size_t rank, const char *transfer, int64_t attempt, int64_t tokens,
               int64_t ready_tokens, const int64_t *ids, int64_t count, int64_t timeout_ns, enum kvf_status expected);
void kit_pull(struct kit_side *side, size_t rank, const char *from, const char *transfer, int64_t attempt,
              int64_t begin, int64_t tokens, const int64_t *ids, int64_t count, int64_t timeout_ns,
              enum kvf_status expected);

/** Waits for the next event of a kind on a rank; events of other kinds that come before it are dropped unless `strict`.
 *  Fails the test after 20 s. */
struct kvf_event kit_wait(struct kit_side *side, size_t rank, int kind);
/** The same, with any kind of terminal event of this transfer, PEER_LOST skipped. */
struct kvf_event kit_terminal(struct kit_side *side, size_t rank, const char *transfer);

int64_t kit_now_ns(void);

#endif
