/* SPDX-License-Identifier: Apache-2.0 */
/** @file transfer.h  The pull side of a transfer: from the call to its one terminal event. */
#ifndef KVFI_LIFE_TRANSFER_H
#define KVFI_LIFE_TRANSFER_H

#include "life/life.h"

enum kvfi_transfer_state {
    KVFI_TRANSFER_RESOLVING = 0, /* the directory is asked who the source is; election */
    KVFI_TRANSFER_JOINING = 1,   /* hello with every source rank that has a share */
    KVFI_TRANSFER_MOVING = 2,    /* every writer was asked */
    KVFI_TRANSFER_DONE = 3,
    KVFI_TRANSFER_FAILED = 4,
    KVFI_TRANSFER_STATES
};

enum kvfi_transfer_on {
    KVFI_TRANSFER_ON_RESOLVED = 0,    /* the election is known */
    KVFI_TRANSFER_ON_JOINED = 1,      /* all peers are ready; value = number of writers */
    KVFI_TRANSFER_ON_WRITER_DONE = 2, /* a writer said its terminal word: done */
    KVFI_TRANSFER_ON_FAIL = 3,        /* something ended it: status (a writer, a peer, the directory, a binding) */
    KVFI_TRANSFER_ON_CANCEL = 4,
    KVFI_TRANSFER_ON_SUPERSEDE = 5,
    KVFI_TRANSFER_ON_TIME = 6,        /* now_ns passed; ends it when the deadline is reached */
    KVFI_TRANSFER_EVENTS
};

enum kvfi_transfer_do {
    KVFI_TRANSFER_DO_JOIN = 0,         /* say hello to the source ranks */
    KVFI_TRANSFER_DO_ASK = 1,          /* arm and send the pulls */
    KVFI_TRANSFER_DO_STOP_WRITERS = 2, /* feed KVFI_WRITER_ON_STOP to each writer */
    KVFI_TRANSFER_DO_REPORT_DONE = 3,  /* the terminal event, exactly one of these two */
    KVFI_TRANSFER_DO_REPORT_FAILED = 4,
    KVFI_TRANSFER_DO_END_BLOCKS = 5    /* feed KVFI_BLOCK_ON_OWNER_ENDED to the blocks */
};

struct kvfi_transfer {
    uint8_t state;
    enum kvf_status reason; /* of FAILED */
    int64_t writers, writers_done;
    int64_t deadline_ns;
};

void kvfi_transfer_init(struct kvfi_transfer *transfer, int64_t deadline_ns);
enum kvfi_verdict kvfi_transfer_step(struct kvfi_transfer *transfer, const struct kvfi_life_event *event,
                                     struct kvfi_actions *actions);

/** True once the terminal event was reported. */
bool kvfi_transfer_ended(const struct kvfi_transfer *transfer);

#endif
