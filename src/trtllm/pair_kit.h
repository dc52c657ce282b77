/* SPDX-License-Identifier: Apache-2.0 */
/** @file pair_kit.h  For tests: two ranks, their pair, one request, and what it moves as text.
 *
 *      struct pair_kit kit;
 *      pair_kit_init(&kit);                       both as rank_kit_init has them: "self" and "peer"
 *      rank_kit_pt(&kit.self, 1024, 2, 2, 2, 0, 1);
 *      ...
 *      pair_kit_make(&kit, true);
 *      pair_kit_ids(&kit, 0, 0, KIT_BLOCKS(7, 1), KIT_BLOCKS(2, 4));
 *      assert_string_equal(pair_kit_moves(&kit), "1000>2000+512 1512>2512+512");
 */
#ifndef KVFI_TRTLLM_PAIR_KIT_H
#define KVFI_TRTLLM_PAIR_KIT_H

#include "trtllm/pair.h"
#include "trtllm/rank_kit.h"

#define KIT_BLOCKS(...) \
    ((struct kvf_trtllm_blocks){(const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / 8})

/** Offsets of layers for pair_kit_view. */
#define KIT_OFFSETS(...) ((const int64_t[]){__VA_ARGS__, -1})

enum { PAIR_KIT_TEXT = 1 << 16 };

struct pair_kit {
    struct rank_kit self, peer;
    kvf_trtllm_rank *ranks[2];
    kvf_trtllm_pair *pair;
    struct kvf_trtllm_blocks src[RANK_KIT_GROUPS], dst[RANK_KIT_GROUPS];
    struct kvf_trtllm_request request;
    char text[PAIR_KIT_TEXT];
};

void pair_kit_init(struct pair_kit *kit);

/** Adds a paged group of one view to a rank, with 8 slots of 4096 bytes: layer i has `buffers` equal buffers from
 *  offsets[i] on (the list ends with -1). */
void pair_kit_view(struct rank_kit *kit, int64_t kind, int64_t heads, int64_t tokens, int64_t layer_bytes,
                   int64_t buffers, const int64_t *offsets);

/** Makes the ranks, and a request with the block lists that were set. */
void pair_kit_make_ranks(struct pair_kit *kit);

/** Makes ranks and pair; empty block lists. The test fails when one is refused. */
void pair_kit_make(struct pair_kit *kit, bool strict);

/** The same for one view pair alone, elected or not. */
void pair_kit_make_view(struct pair_kit *kit, size_t view);

/** Makes the ranks, and has their pair refused with this status and text. */
void pair_kit_refused(struct pair_kit *kit, bool strict, int status, const char *text);

/** Sets the block lists of a group of self and of one of the peer; their ids stay borrowed. */
void pair_kit_ids(struct pair_kit *kit, size_t src_group, size_t dst_group, struct kvf_trtllm_blocks src,
                  struct kvf_trtllm_blocks dst);

/** Binds the request. A strict pair: upstream's list of fragments, "src>dst+bytes ...", after checking that the cursor
 *  moves the same bytes. A native one: the cursor's copies. A refusal: its text. Borrowed until the next call. */
const char *pair_kit_moves(struct pair_kit *kit);

/** The mapper of a view pair. */
int pair_kit_mapper(const struct pair_kit *kit, size_t view);

/** Releases ranks and pair. */
void pair_kit_fini(struct pair_kit *kit);

#endif
