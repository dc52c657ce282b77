/* SPDX-License-Identifier: Apache-2.0 */
/** @file pipe.h  Requests of protocol 2 on one connection, many under way: sent in one go, answered in order. */
#ifndef KVFI_TRANSPORT_MOONCAKE_PIPE_H
#define KVFI_TRANSPORT_MOONCAKE_PIPE_H

#include "transport/mooncake/frame.h"
#include "transport/mooncake/job.h"

enum {
    KVFI_MOON_DEPTH = 512,             /* requests under way */
    KVFI_MOON_PIPE_STAGE = 65536
};

struct kvfi_moon_pipe {
    struct kvfi_moon_item items[KVFI_MOON_DEPTH];          /* a ring, of requests not yet answered */
    uint8_t heads[KVFI_MOON_DEPTH][KVFI_MOON_HEADER_BYTES]; /* their headers */
    size_t first, count;
    size_t sent;                       /* of `count`, those of which all bytes went out */
    uint64_t sent_bytes;               /* of the one after them */
    uint64_t unsent, outstanding;      /* payload bytes of those not yet sent, and of all */
    bool blocked;                      /* the socket takes no more for now */
    bool send_failed;                  /* for good; answers may still come */
    size_t early;                      /* of writes: answers that came before all was sent, 0 or 1 */
    bool answered;                     /* an answer has come since the transfer took the connection */
    uint8_t status[KVFI_MOON_STATUS_BYTES];
    size_t status_bytes;
    char *body;                        /* of reads: where the payload of the first goes */
    uint64_t body_left;
    int64_t deadline_ns;               /* something must move until then */
    char stage[KVFI_MOON_PIPE_STAGE];
};

/** How an exchange on a connection went. */
enum kvfi_moon_flow {
    KVFI_MOON_FLOWS,
    KVFI_MOON_REFUSED,      /* the peer rejected the first request, and reads no more */
    KVFI_MOON_LOST,         /* end or reset */
    KVFI_MOON_NONSENSE      /* what came is no answer */
};

/** Prepares a connection for a transfer. */
void kvfi_moon_pipe_begin(struct kvfi_moon_pipe *pipe);
/** Adds a request; there is room. */
void kvfi_moon_pipe_add(struct kvfi_moon_pipe *pipe, const struct kvfi_moon_item *item, bool is_write);
/** Removes the last request where nothing of it was sent: false otherwise. */
bool kvfi_moon_pipe_take_back(struct kvfi_moon_pipe *pipe, struct kvfi_moon_item *item);
/** Sends until the socket takes no more. True when bytes went out. */
bool kvfi_moon_pipe_send(struct kvfi_moon_pipe *pipe, int fd, struct kvfi_moon_job *job);
/** Takes what has come. `*moved`: bytes came in. */
enum kvfi_moon_flow kvfi_moon_pipe_receive(struct kvfi_moon_pipe *pipe, int fd, struct kvfi_moon_job *job, bool *moved);

#endif
