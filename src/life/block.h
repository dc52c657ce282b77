/* SPDX-License-Identifier: Apache-2.0 */
/** @file block.h  The blocks of one offer or one pull, as a whole: when may they be reused? Freeing asks nothing else.
 *
 *  An *access* is a writer that was asked (pull) or a destination that reads (offer). The *owner* is the transfer or
 *  the
 *  offer. The blocks are reusable once the owner has ended and no access is left.
 */
#ifndef KVFI_LIFE_BLOCK_H
#define KVFI_LIFE_BLOCK_H

#include "life/life.h"

enum kvfi_block_state {
    KVFI_BLOCK_HELD = 0,     /* offered or pulled; nobody touches them */
    KVFI_BLOCK_ACCESSED = 1, /* being read, or written */
    KVFI_BLOCK_IN_DOUBT = 2, /* the owner ended; an access is left */
    KVFI_BLOCK_REUSABLE = 3,
    KVFI_BLOCK_QUARANTINED = 4, /* what was said about them cannot be believed: never reusable */
    KVFI_BLOCK_STATES
};

enum kvfi_block_on {
    KVFI_BLOCK_ON_ACCESS_BEGIN = 0,
    KVFI_BLOCK_ON_ACCESS_END = 1,
    KVFI_BLOCK_ON_OWNER_ENDED = 2,
    KVFI_BLOCK_ON_QUARANTINE = 3, /* a violation of those that may touch them: nothing proves them idle any more */
    KVFI_BLOCK_EVENTS
};

enum kvfi_block_do {
    KVFI_BLOCK_DO_REPORT_REUSABLE = 0 /* exactly once */
};

struct kvfi_block {
    uint8_t state;
    int64_t accesses;
};

void kvfi_block_init(struct kvfi_block *block);
enum kvfi_verdict kvfi_block_step(struct kvfi_block *block, const struct kvfi_life_event *event,
                                  struct kvfi_actions *actions);

#endif
