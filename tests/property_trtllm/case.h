/* SPDX-License-Identifier: Apache-2.0 */
/** @file case.h  One random case: a model, two instances of TensorRT-LLM's shape, a request.
 *
 *  generate.c draws the case, table.c lays out each rank's page table, oracle.c says which byte of which rank holds
 *  which coordinate of the model, check.c lets the library move a request and compares. Nothing but check.c knows
 *  the library's planning: page tables and coordinates come from the drawn numbers alone.
 */
#ifndef PROPERTY_TRTLLM_CASE_H
#define PROPERTY_TRTLLM_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/trtllm.h"
#include "seeds.h"

enum {
    MOST_PARTS = 8,
    MOST_LAYERS = 8,
    MOST_RANKS = 16, /* of one DP group */
    MOST_GROUPS = 3, /* full attention, sliding window, state */
    MOST_VIEWS = 5,  /* of one group */
    MOST_ENTRIES = 3 * MOST_LAYERS,
    MOST_POOLS = 15, /* of one rank */
    MOST_BLOCKS = 112,
    MOST_STAGES = 4,
    SECTIONS = 3
};

enum part_kind { KV, SIDE, RING, CONV, SSM, STATE_SIDE };

/** What the model keeps of a layer, in numbers of the whole model. */
struct part {
    enum part_kind kind;
    const char *roles[2];
    size_t role_count;
    int64_t heads;              /* KV; 1 and key-only: every rank has the one latent */
    int64_t buffers;            /* KV: 2, key-only and SIDE: 1 */
    int64_t eighths;            /* KV, SIDE, RING: of a byte, per token and head */
    int64_t ring[2];            /* RING: positions that a block of the source, of the destination holds */
    int64_t sections[SECTIONS]; /* CONV: bytes */
    int64_t bytes;              /* SSM, STATE_SIDE: of one layer */
    int64_t head_bytes;         /* SSM */
};

struct layer {
    bool is_state;
    int64_t group;  /* 0 full attention, 1 window, 2 state */
    int64_t global; /* its number on every rank */
    bool has[MOST_PARTS];
};

struct pool {
    int64_t group, index;    /* pool group, pool in it */
    uint64_t base;
    int64_t slot, slots, stride, layer_stride;
    int64_t layer_count;     /* by layers: how many; else 0 */
    int64_t bytes;           /* that its slots and layers reach */
    uint64_t *tags;          /* source: coordinate of each byte; destination: the one that is due there. 0 = none */
    uint8_t *must;           /* destination: 1 = has to be written, 2 = may be */
    uint8_t *written;        /* destination: how often it was */
};

/** One part of the layers of one group, as it lies in a pool. */
struct placed {
    size_t part, pool;       /* pool: index into rank.pools */
    size_t layer_count;
    size_t layers[MOST_LAYERS];       /* of the case, in physical order */
    int64_t offsets[MOST_LAYERS];
    int64_t layer_bytes;
};

struct rank {
    int64_t tp, pp, cp, number;
    size_t group_count;
    int64_t group_kind[MOST_GROUPS];  /* number of the group in the model */
    int64_t pool_group[MOST_GROUPS], pool_group_count;
    size_t view_count[MOST_GROUPS];
    struct placed placed[MOST_GROUPS][MOST_VIEWS];
    size_t pool_count;
    struct pool pools[MOST_POOLS];
    int64_t ids[MOST_GROUPS][MOST_BLOCKS];
    struct kvf_trtllm_blocks blocks[MOST_GROUPS];
    kvf_trtllm_rank *info;
};

struct side {
    bool is_source;
    const char *name;
    int64_t tp, pp, cp, dp_rank;
    bool attention_dp, nhd;
    int64_t tokens_per_block;
    int64_t stage_end[MOST_STAGES];   /* layers before the end of each stage */
    int64_t group_order[MOST_GROUPS];
    bool held[2][MOST_BLOCKS]; /* blocks of the prompt, by group of the model */
    bool has_state;
    size_t rank_count;                /* of the request's DP group */
    struct rank ranks[MOST_RANKS];
};

struct prop_case {
    uint64_t seed;
    struct draw draw;
    bool is_native;                   /* any shapes; else only what upstream takes */
    size_t part_count, layer_count;
    struct part parts[MOST_PARTS];
    struct layer layers[MOST_LAYERS];
    bool is_key_only;
    bool has_thirds;                  /* numbers of heads and ranks that threes divide: native only */
    int64_t head_dim, element_eighths;
    struct side src, dst;
    int64_t prompt;
    int64_t start;                    /* tokens before it are not wanted; KVF_TRTLLM_NONE = all are */
    int64_t cuts[4];                  /* ends of the chunks, the last one the prompt */
    size_t cut_count;
    int64_t excluded;                 /* part that is left out, -1 none */
    bool has_gaps;                    /* the destination has holes anywhere */
    int64_t elections[2];             /* rank pairs where the two ways differ, and where they are the same */
    int64_t mapped[KVF_TRTLLM_MAP_STATE_HEADS + 1]; /* view pairs that were sent, by mapper */
    int spoil;                        /* 0, or what is made wrong in the expectation, to see that it is noticed */
};

/** Draws the case of a seed. */
void case_generate(struct prop_case *c, uint64_t seed, bool is_native);

/** Lays out all ranks of a side, draws their block ids and makes their infos. False, said on stderr: refused. */
bool side_build(struct prop_case *c, struct side *side);

void side_fini(struct side *side);

/** Bytes of one layer of a part on one rank. */
int64_t part_bytes(const struct side *side, const struct part *part);

/** TP ranks of one DP group; heads of one rank; the rank's recurrent-state size and number. */
int64_t side_tp(const struct side *side);
int64_t rank_heads(const struct side *side, const struct part *part);
void rank_state(const struct side *side, const struct rank *rank, int64_t *size, int64_t *number);

/** Fills tags, and of a destination what has to be written. */
void oracle_fill(const struct prop_case *c, struct side *side);

/** Moves the request and compares. False: something was wrong, said on stderr. `*bytes`: how many were due. */
bool check_case(struct prop_case *c, int64_t *bytes);

/** Compares upstream's elections with those of whole instances, on the ranks that check_case made. False: said on
 *  stderr. */
bool check_elections(struct prop_case *c);

#endif
