/* SPDX-License-Identifier: Apache-2.0 */
/** @file offer.h  The source side of a transfer: the offer as a whole, and one sink per destination rank. */
#ifndef KVFI_LIFE_OFFER_H
#define KVFI_LIFE_OFFER_H

#include "life/life.h"

/* ---- the offer ------------------------------------------------------------------------------------------- */

enum kvfi_offer_state {
    KVFI_OFFER_WAITING = 0, /* offered; nobody pulls yet, so the number of destination ranks is not known */
    KVFI_OFFER_SERVING = 1, /* the pulling instance is known */
    KVFI_OFFER_DONE = 2,
    KVFI_OFFER_FAILED = 3,
    KVFI_OFFER_STATES
};

enum kvfi_offer_on {
    KVFI_OFFER_ON_SINKS = 0,       /* the pulling instance is known: value = its ranks */
    KVFI_OFFER_ON_SINK_DONE = 1,   /* a destination rank ended well, or released */
    KVFI_OFFER_ON_SINK_FAILED = 2, /* a destination rank ended badly: status */
    KVFI_OFFER_ON_CANCEL = 3,
    KVFI_OFFER_ON_SUPERSEDE = 4,
    KVFI_OFFER_ON_TIME = 5, /* now_ns passed; ends it when the deadline is reached */
    KVFI_OFFER_ON_FAIL = 6, /* something local ended it: status */
    KVFI_OFFER_EVENTS
};

enum kvfi_offer_do {
    KVFI_OFFER_DO_REPORT_DONE = 0, /* the terminal event, exactly one of these two */
    KVFI_OFFER_DO_REPORT_FAILED = 1,
    KVFI_OFFER_DO_STOP_SINKS = 2, /* feed KVFI_SINK_ON_STOP to each sink */
    KVFI_OFFER_DO_END_BLOCKS = 3  /* feed KVFI_BLOCK_ON_OWNER_ENDED to the blocks */
};

struct kvfi_offer_life {
    uint8_t state;
    enum kvf_status reason; /* of FAILED; while serving: of the first sink that failed */
    int64_t sinks, sinks_ended;
    int64_t deadline_ns;
};

void kvfi_offer_init(struct kvfi_offer_life *offer, int64_t deadline_ns);
enum kvfi_verdict kvfi_offer_step(struct kvfi_offer_life *offer, const struct kvfi_life_event *event,
                                  struct kvfi_actions *actions);

/** True once the terminal event was reported. */
bool kvfi_offer_ended(const struct kvfi_offer_life *offer);

/* ---- one destination rank -------------------------------------------------------------------------------- */

enum kvfi_sink_state {
    KVFI_SINK_IDLE = 0,       /* nothing heard of it */
    KVFI_SINK_CONNECTING = 1, /* it pulls; a transport is being connected */
    KVFI_SINK_SENDING = 2,    /* chunks are posted as they become ready */
    KVFI_SINK_FLUSHING = 3,   /* the last chunk is posted */
    KVFI_SINK_DRAINING = 4,   /* it failed; posts are still out */
    KVFI_SINK_DONE = 5,
    KVFI_SINK_FAILED = 6,
    KVFI_SINK_STATES
};

enum kvfi_sink_on {
    KVFI_SINK_ON_PULL = 0,      /* pull and offer are both here; value = bytes to send */
    KVFI_SINK_ON_CONNECTED = 1, /* a transport stands */
    KVFI_SINK_ON_FAIL = 2,      /* no transport, no binding, connection broken ...: status */
    KVFI_SINK_ON_POST = 3,      /* a chunk was posted; value = 1 for the last one */
    KVFI_SINK_ON_POSTED = 4,    /* a chunk's end: status */
    KVFI_SINK_ON_RELEASE = 5,   /* it needs nothing; status = why (KVF_OK: it is well) */
    KVFI_SINK_ON_CANCEL = 6,    /* the destination asked to stop: status = why */
    KVFI_SINK_ON_LOST = 7,      /* the peer is lost */
    KVFI_SINK_ON_STOP = 8,      /* the offer ended otherwise: status */
    KVFI_SINK_EVENTS
};

enum kvfi_sink_do {
    KVFI_SINK_DO_CONNECT = 0,       /* connect the next transport of the wish list */
    KVFI_SINK_DO_READ_BEGIN = 1,    /* feed KVFI_BLOCK_ON_ACCESS_BEGIN to the blocks */
    KVFI_SINK_DO_READ_END = 2,      /* feed KVFI_BLOCK_ON_ACCESS_END to the blocks */
    KVFI_SINK_DO_SEND_STARTED = 3,  /* name transport and bytes, then post what is ready */
    KVFI_SINK_DO_ABORT = 4,         /* abort the grant's posts */
    KVFI_SINK_DO_SEND_DONE = 5,     /* its one word: done, */
    KVFI_SINK_DO_SEND_FAILED = 6,   /* failed (this side is quiet), */
    KVFI_SINK_DO_SEND_IN_DOUBT = 7, /* or in doubt (posts are out; quiesced follows) */
    KVFI_SINK_DO_SEND_QUIESCED = 8,
    KVFI_SINK_DO_END_DONE = 9,      /* feed KVFI_OFFER_ON_SINK_DONE */
    KVFI_SINK_DO_END_FAILED = 10    /* feed KVFI_OFFER_ON_SINK_FAILED with `reason` */
};

struct kvfi_sink {
    uint8_t state;
    enum kvf_status reason;
    int64_t posts_out; /* posted, no POSTED yet */
};

void kvfi_sink_init(struct kvfi_sink *sink);
enum kvfi_verdict kvfi_sink_step(struct kvfi_sink *sink, const struct kvfi_life_event *event,
                                 struct kvfi_actions *actions);

/** True when it has ended and no post is out. */
bool kvfi_sink_ended(const struct kvfi_sink *sink);

#endif
