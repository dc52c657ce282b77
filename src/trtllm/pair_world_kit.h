/* SPDX-License-Identifier: Apache-2.0 */
/** @file pair_world_kit.h  For tests: two instances of one random model, with real memory. Every byte of every rank has
 *  a value that its coordinate in the model alone decides: what a layout says of it is not asked.
 */
#ifndef KVFI_TRTLLM_PAIR_WORLD_KIT_H
#define KVFI_TRTLLM_PAIR_WORLD_KIT_H

#include "kvferry/trtllm.h"

#include <stdbool.h>

enum {
    WORLD_LAYERS = 6,
    WORLD_RANKS = 64,
    WORLD_BLOCKS = 64,  /**< most of one list */
    WORLD_SLOTS = 64,
    WORLD_VIEWS = 4,
    WORLD_GROUPS = 3
};

/** What a view of the model is. */
enum world_kind { WORLD_KV, WORLD_KV_B, WORLD_INDEX, WORLD_CONV, WORLD_SSM, WORLD_SIDE };

/** The model. */
struct world_model {
    int layers;
    int64_t layer_ids[WORLD_LAYERS];
    int group_of[WORLD_LAYERS];      /**< 0 full, 1 window, 2 state */
    bool second_class[WORLD_LAYERS]; /**< attention layers of other head counts and roles */
    int64_t heads[2];                /**< of both classes, model-wide */
    int64_t row_bytes;               /**< of one head at one token */
    bool key_only, index, side;
    int64_t index_bytes, side_bytes; /**< per token; per layer */
    int64_t section_bytes[3];        /**< model-wide */
    int64_t ssm_bytes, ssm_head_bytes;
    int64_t prompt, window, start;   /**< tokens; start: of the receiver, 0 = all is wanted */
};

/** One instance's shape. */
struct world_shape {
    int tp, pp, cp, dp;              /**< dp: attention DP over tp, 1 = none */
    bool attention_dp;
    int64_t tokens;                  /**< per block */
    bool token_major;
    int first_layer[5];              /**< of each stage, and the end */
};

/** One rank with its memory. */
struct world_rank {
    kvf_trtllm_rank *rank;
    int tp, pp, cp, dp;
    int groups;
    int group_numbers[WORLD_GROUPS]; /**< 0 full, 1 window, 2 state */
    struct kvf_trtllm_blocks blocks[WORLD_GROUPS];
    int64_t ids[WORLD_GROUPS][WORLD_BLOCKS];
    unsigned char *memory;
    unsigned char *writes;           /**< how often each byte was written */
    size_t bytes;
};

struct world {
    uint64_t random;
    struct world_model model;
    struct world_shape shapes[2];
    struct world_rank ranks[2][WORLD_RANKS];
    int counts[2];
};

/** How alike the two instances have to be. */
enum world_manner { WORLD_STRICT, WORLD_NATIVE };

/** Makes a random world. The source's memory is filled, the destination's is not. */
void world_init(struct world *world, uint64_t seed, enum world_manner manner);
void world_fini(struct world *world);

/** The request from one rank to another. */
struct kvf_trtllm_request world_request(const struct world *world, const struct world_rank *src,
                                        const struct world_rank *dst);

/** Does what a write says. @return false when a copy leaves the memory of either rank */
bool world_move(struct world_rank *src, struct world_rank *dst, const kvf_trtllm_write *write);

/** Compares a destination rank with the model.
 *  @param text  says what is wrong. @return false when a byte is missing, wrong, or written more than once */
bool world_check(const struct world *world, const struct world_rank *dst, char *text, size_t text_bytes);

/** A random number below `count`. */
int64_t world_random(struct world *world, int64_t count);

/** Prints the shapes of a world, for failures. */
void world_describe(const struct world *world, char *text, size_t text_bytes);

#endif
