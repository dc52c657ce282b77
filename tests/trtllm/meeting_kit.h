/* SPDX-License-Identifier: Apache-2.0 */
/** @file meeting_kit.h  For tests: whole instances of workers that move real bytes. Each rank's pools hold a pattern of
 *  coordinates: which layer, K or V, head, block of the prompt and byte; so that a byte at a wrong place is seen.
 */
#ifndef TESTS_TRTLLM_MEETING_KIT_H
#define TESTS_TRTLLM_MEETING_KIT_H

#include "trtllm/rank_kit.h"

#include "kvferry/trtllm_worker.h"

enum {
    MEETING_RANKS = 4,
    MEETING_HEADS = 8,        /* of the model */
    MEETING_LAYERS = 2,
    MEETING_BLOCKS = 64,      /* slots of each pool */
    MEETING_BLOCK_TOKENS = 2,
    MEETING_HEAD_BYTES = 8,   /* of one head in one block, K or V */
    MEETING_AUX_SLOTS = 16,
    MEETING_AUX_BYTES = 24
};

struct meeting_rank {
    kvf_trtllm_worker *worker;
    struct kvf_trtllm_endpoints ends;
    unsigned char *pools[MEETING_LAYERS]; /* of this rank's own layers */
    unsigned char *aux;
    int64_t heads, first_head, first_layer, layers;
};

/** An instance of TP `tp` or, with attention DP, of `tp` DP groups; `pp` stages. */
struct meeting_side {
    struct meeting_rank ranks[MEETING_RANKS];
    size_t count;
    int64_t tp, pp;
    bool dp;
    const char *name;
    struct kvf_trtllm_worker_options options; /* changed before meeting_open */
};

void meeting_init(struct meeting_side *side, const char *name, int64_t tp, int64_t pp, bool dp);
void meeting_open(struct meeting_side *side);
void meeting_close(struct meeting_side *side);

/** Writes the pattern of prompt block `ordinal` of request `rid` into block `id` of all ranks (of one DP group). */
void meeting_fill(struct meeting_side *side, int64_t rid, int64_t ordinal, int64_t id);
/** Fails the test unless block `id` holds it on all ranks (bytes of 0 where it is absent: `ordinal` -1). */
void meeting_check(struct meeting_side *side, int64_t rid, int64_t ordinal, int64_t id);

/** Sends blocks [begin, end) of a prompt of `blocks` blocks from ids `ids` on ranks [first, first + count). */
void meeting_send_open(struct meeting_side *side, size_t first, size_t count, int64_t rid, int64_t blocks,
                       int schedule);
void meeting_send(struct meeting_side *side, size_t first, size_t count, int64_t rid, const int64_t *ids,
                  int64_t blocks, int64_t begin, int64_t end, int is_last);
/** Receives into ids on all ranks. `dp_rank` KVF_TRTLLM_NONE asks all groups. */
void meeting_receive(struct meeting_side *side, int64_t rid, const char *info, const int64_t *ids, int64_t blocks,
                     int64_t dp_rank, int64_t aux_slot);

/** The next event of a rank: fails the test unless it is of this kind, direction and rid. */
struct kvf_trtllm_event meeting_event(struct meeting_rank *rank, int kind, int direction, int64_t rid);
/** ENDED as transferred, then SETTLED, on ranks [first, first + count); PIECE and READY are skipped. Closes it. */
void meeting_done(struct meeting_side *side, size_t first, size_t count, int direction, int64_t rid);

#endif
