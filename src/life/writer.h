/* SPDX-License-Identifier: Apache-2.0 */
/** @file writer.h  One source rank that writes for one pull, as the destination sees it.
 *
 *  A writer ends twice: with its *word* (done or failed: what the transfer waits for) and by being *quiet* (no byte of
 *  it can come any more: what the blocks wait for). A failed word may come long before quiet; done always comes with
 *  it.
 */
#ifndef KVFI_LIFE_WRITER_H
#define KVFI_LIFE_WRITER_H

#include "life/life.h"

enum kvfi_writer_state {
    KVFI_WRITER_IDLE = 0,      /* nothing armed, nothing sent */
    KVFI_WRITER_ASKED = 1,     /* armed in the transports, pull sent */
    KVFI_WRITER_STARTED = 2,   /* it named its transport and byte count */
    KVFI_WRITER_SAID_DONE = 3, /* it said done; this side's transport has not seen all bytes yet */
    KVFI_WRITER_IN_DOUBT = 4,  /* its word is failed; it may still write */
    KVFI_WRITER_DONE = 5,      /* done and quiet */
    KVFI_WRITER_FAILED = 6,    /* failed and quiet */
    KVFI_WRITER_STATES
};

enum kvfi_writer_on {
    KVFI_WRITER_ON_ASK = 0,       /* the pull goes out; value = bytes expected */
    KVFI_WRITER_ON_STARTED = 1,   /* value = enum kvfi_writer_way */
    KVFI_WRITER_ON_DONE = 2,      /* its word; value = bytes it says it wrote */
    KVFI_WRITER_ON_ARRIVED = 3,   /* this side's transport has placed all bytes of the grant */
    KVFI_WRITER_ON_FAILED = 4,    /* its word: status; it writes no more */
    KVFI_WRITER_ON_DOUBT = 5,     /* its word: status; it may still write, quiesced follows */
    KVFI_WRITER_ON_QUIESCED = 6,  /* it writes no more */
    KVFI_WRITER_ON_BAD_GRANT = 7, /* this side's transport saw a violation under the grant: status */
    KVFI_WRITER_ON_GONE = 8,      /* its data connections are gone and its remote writes are over */
    KVFI_WRITER_ON_LOST = 9,      /* the peer is lost (silent, or restarted) */
    KVFI_WRITER_ON_STOP = 10,     /* the transfer ended otherwise: status */
    KVFI_WRITER_ON_DISARMED = 11, /* answer to DISARM; value = 1 when nobody can write under the grant any more */
    KVFI_WRITER_ON_NEVER = 12,    /* asked to stop, it says that it will never write; no answer to a doubt of its own */
    KVFI_WRITER_ON_SPARED = 13,   /* one of several candidates, and another one does the writing: no word follows */
    KVFI_WRITER_EVENTS
};

/** What a writer has said of itself. The first word holds; one that denies it is a violation. */
enum kvfi_writer_said {
    KVFI_WRITER_NOTHING = 0,
    KVFI_WRITER_SAYS_DONE = 1,
    KVFI_WRITER_SAYS_FAILED = 2,  /* its writes are over, or never began */
    KVFI_WRITER_SAYS_DOUBT = 3,   /* only its own "quiesced", its end or this side's transport settles that */
    KVFI_WRITER_SAYS_NEVER = 4    /* by ON_NEVER, or taken for said by ON_SPARED */
};

/** How the bytes come; bits. */
enum kvfi_writer_way {
    KVFI_WRITER_SEEN = 1,  /* this side's transport counts them: done needs its word too */
    KVFI_WRITER_REMOTE = 2 /* the writer writes this side's memory itself: with its connection gone, so is it */
};

enum kvfi_writer_do {
    KVFI_WRITER_DO_SEND_CANCEL = 0, /* ask it to stop */
    KVFI_WRITER_DO_DISARM = 1,      /* disarm in every transport, then feed ON_DISARMED */
    KVFI_WRITER_DO_WORD_DONE = 2,   /* feed KVFI_TRANSFER_ON_WRITER_DONE */
    KVFI_WRITER_DO_WORD_FAILED = 3, /* feed KVFI_TRANSFER_ON_FAIL with `reason` */
    KVFI_WRITER_DO_QUIET = 4        /* feed KVFI_BLOCK_ON_ACCESS_END: exactly once after ASK */
};

struct kvfi_writer {
    uint8_t state;
    uint8_t said;      /* an enum kvfi_writer_said */
    bool arrived;      /* this side's transport saw all bytes */
    bool must_arrive;  /* and has to, before done counts */
    bool remote;       /* it writes this side's memory itself */
    enum kvf_status reason;
    int64_t expected_bytes;
};

void kvfi_writer_init(struct kvfi_writer *writer);
enum kvfi_verdict kvfi_writer_step(struct kvfi_writer *writer, const struct kvfi_life_event *event,
                                   struct kvfi_actions *actions);

/** True when no byte of it can come (also before it was asked). */
bool kvfi_writer_quiet(const struct kvfi_writer *writer);

#endif
