/* SPDX-License-Identifier: Apache-2.0 */
/** @file case.h  One random case: a model, two vLLM engines that keep it in their own ways, a request.
 *
 *  generate.c draws the case, engine.c lays out and registers the ranks' tensors, coordinates.c says which bytes of
 *  which tensor hold which coordinate of the model, check.c lets the library move the request and compares. Only
 *  check.c knows the library's planning.
 */
#ifndef PROPERTY_VLLM_CASE_H
#define PROPERTY_VLLM_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/vllm.h"
#include "seeds.h"

enum {
    MOST_LAYERS = 6,
    MOST_GROUPS = 3,
    MOST_TP = 8,
    MOST_PP = 3,
    MOST_RANKS = MOST_TP * MOST_PP,
    MOST_IDS = 8,
    BLOCKS = 32 /* logical, of each rank: more than all ids of a request */
};

/** What the model keeps, in numbers of the whole model. */
struct model {
    bool is_mla;
    int64_t heads, head_size, element_bytes;
    int64_t block_tokens;            /* of a kernel block */
    int64_t kernel_blocks_per_block;
    int64_t layers, groups;
    int64_t group_of[MOST_LAYERS];
    bool recurrent[MOST_GROUPS];
    int64_t state_bytes;             /* of one layer and all heads */
    char names[MOST_LAYERS][40];
};

/** One layer's cache on one rank. */
struct piece {
    bool here;
    int64_t storage;
    struct kvf_vllm_placed placed;
};

struct rank {
    int64_t tp, pp;
    struct kvf_vllm_storage storages[MOST_LAYERS]; /* real memory */
    size_t storage_count;
    uint8_t *written[MOST_LAYERS];                 /* per byte of a storage: how often */
    struct piece pieces[MOST_LAYERS];
    kvf_vllm_registration *registration;
    kvf_vllm_producer *producer;
    int64_t pulls, pulls_expected;                 /* of a producer */
};

struct engine {
    const char *name;
    int64_t tp, pp;
    int64_t stage_end[MOST_PP];    /* layers before it are of this stage or one before */
    int physical;
    bool apart;                    /* an allocation per layer */
    bool overlaid;                 /* layers of all groups in the same places */
    int64_t padding_bytes;         /* of a page */
    struct rank ranks[MOST_RANKS]; /* by stage, then TP rank */
    size_t rank_count;
    int64_t ids[MOST_GROUPS][MOST_IDS];
    size_t id_count[MOST_GROUPS];  /* ids that hold something: null blocks are put in between when asking */
};

struct prop_case {
    uint64_t seed;
    struct draw draw;
    struct model model;
    struct engine src, dst;
    bool repeats;                  /* a wanted byte may be written more than once, upstream does so */
    int spoil;                     /* which expectation is made wrong, 0 = none */
    int64_t bytes, merged, cut, idle, refused;
};

/** Draws a case, without memory. */
void case_generate(struct prop_case *c, uint64_t seed);

/** Makes the ranks' memory, fills the source's with coordinates, registers all. Returns false when that is refused,
 *  with the reason printed. */
bool engine_init(struct prop_case *c, struct engine *engine);
void engine_fini(struct engine *engine);

/** The rank's share of the heads, or of a state. */
int64_t heads_of(const struct model *model, const struct engine *engine);
int64_t first_head(const struct model *model, const struct engine *engine, const struct rank *rank);
int64_t state_bytes_of(const struct model *model, const struct engine *engine);

/** Calls `visit` for every byte that a block of a layer holds on a rank: where it is, and the value of its coordinate
 *  for block number `number` of the request. Stops when it returns false. */
typedef bool (*visitor)(void *context, uint8_t *byte, uint8_t *written, uint8_t value);
bool visit_block(const struct prop_case *c, const struct engine *engine, const struct rank *rank, int64_t layer,
                 int64_t id, int64_t number, visitor visit, void *context);

/** Moves the request from all ranks of the source to all of the destination, and compares. */
bool check_case(struct prop_case *c);

#endif
