/* SPDX-License-Identifier: Apache-2.0 */
/** @file case.h  One random case of the property test: a model, two instances, a request.
 *
 *  generate.c draws the case, storage.c lays out each rank's memory, oracle.c says from the layout's formula alone
 *  which byte of which rank holds which coordinate, check.c and pair.c compare what the library moves with that.
 */
#ifndef PROPERTY_CASE_H
#define PROPERTY_CASE_H

#include <stdbool.h>
#include <stdint.h>

#include "kvferry/plan.h"
#include "seeds.h"

enum {
    MOST_ROLES = 6,
    MOST_LAYERS = 4,
    MOST_UNITS = 8,
    MOST_POSITIONS = 128,
    MOST_ROW_BYTES = 16,
    MOST_GROUPS = 3,
    MOST_RANKS = 12,
    MOST_VIEWS = 32,
    MOST_POOLS = 64,
    MOST_BLOCKS = 96,
    MOST_TP = 4,
    MOST_MEMORY = 1 << 17 /* bytes of all memories of one rank */
};

/** What the model has, the same on both sides. */
struct role {
    const char *name, *tag;
    int64_t row_bytes, units;
    int64_t tokens_per_entry; /* 0 = state */
    int64_t taps;             /* of state */
    bool replicated;          /* every TP rank holds all units */
    bool has[MOST_LAYERS];
    bool src_lacks; /* only the destination wants it, as an optional part */
    bool dst_lacks;
};

/** One id space of one side. */
struct group {
    int64_t tokens_per_block, ring, stripes, stripe_tokens;
};

struct rank {
    struct kvf_rank rank;
    int64_t memory_bytes[MOST_POOLS];
    struct kvf_pool pools[MOST_POOLS];
    struct kvf_group groups[MOST_GROUPS];
    struct kvf_view views[MOST_VIEWS];
    struct kvf_place places[MOST_VIEWS][MOST_LAYERS];
    struct kvf_layout_spec spec;
    int64_t view_role[MOST_VIEWS];  /* index into roles */
    int64_t blocks[MOST_GROUPS];    /* ids are below this */
    int64_t ids[MOST_GROUPS][MOST_BLOCKS];
    struct kvf_id_list lists[MOST_GROUPS];
    int64_t memory_start[MOST_POOLS]; /* of each memory in the map */
    int64_t bytes;                    /* of all memories */
    int32_t *map;                     /* coordinate that each byte holds, -1 none */
    kvf_layout *layout;
    kvf_holdings *holdings;
};

struct side {
    size_t group_count;
    struct group groups[MOST_GROUPS];
    int64_t group_of[MOST_ROLES][MOST_LAYERS];
    int64_t slots_per_block[MOST_ROLES][MOST_GROUPS];
    int64_t tp, pp, cp;
    int64_t stage_of[MOST_LAYERS];
    int64_t unit_first[MOST_ROLES][MOST_TP], unit_count[MOST_ROLES][MOST_TP];
    bool aliased; /* the last layer lies where the first one does */
    size_t rank_count;
    struct rank ranks[MOST_RANKS];
};

struct prop_case {
    uint64_t seed;
    struct draw draw;
    size_t role_count, layer_count;
    struct role roles[MOST_ROLES];
    int64_t layers[MOST_LAYERS];
    struct side src, dst;
    int64_t token_begin, token_end, request_tokens;
    int64_t grain; /* in tokens, of all roles */
    bool ring;     /* some role has a ring on one side */
    bool partial;  /* the destination's lists end early, and binding is told so */
    size_t destination;
    int spoil; /* 0, or what is made wrong in the expectation, to see that it is noticed: see check.c */
};

/** Draws the case of a seed, memory and ids included. False: too large, to be passed over. */
bool case_generate(struct prop_case *c, uint64_t seed);
void case_fini(struct prop_case *c);

/** Lays out one rank's memory at random. Views, groups and blocks are set already; fills pools, strides and places. */
bool storage_generate(struct prop_case *c, const struct side *side, struct rank *rank);

/* ---- the oracle: from the formulas of the layout model, position by position ---- */

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/** Whether a rank's group owns a position (in entries of `c` tokens), and where: the local position. */
bool oracle_local(const struct kvf_group *group, int64_t request_tokens, int64_t tokens_per_entry, int64_t position,
                  int64_t *local);

/** Positions [first, end) of a role and layer that a range moves, in entries, rounded as the model says. */
void oracle_range(const struct prop_case *c, size_t role, size_t layer, int64_t token_begin, int64_t token_end,
                  int64_t *first, int64_t *end);

/** Grain of a role and layer in entries: 1 with a ring or for state. */
int64_t oracle_grain(const struct prop_case *c, size_t role, size_t layer);

/** Writes into `map` (rank->bytes long) the coordinate that each byte in the range holds, -1 elsewhere. Blocks that are
 *  holes hold nothing. */
void oracle_map(const struct prop_case *c, const struct side *side, const struct rank *rank, int64_t token_begin,
                int64_t token_end, int32_t *map);

/** Plans, binds and expands everything for the case's destination. False: wrong, and said so on stderr. */
bool check_case(struct prop_case *c, int64_t *moved_bytes, bool *limited);

#endif
