/* SPDX-License-Identifier: Apache-2.0 */
/** @file refusals.h  Lines about refused requests: 16 at once, then one a second. Any thread. */
#ifndef KVFI_TRANSPORT_MOONCAKE_REFUSALS_H
#define KVFI_TRANSPORT_MOONCAKE_REFUSALS_H

#include "sys/log.h"
#include "transport/mooncake/frame.h"
#include "transport/mooncake/regions.h"

enum { KVFI_MOON_REFUSAL_LINES = 16 };

struct kvfi_moon_refusals {
    struct kvfi_log *log;
    pthread_mutex_t lock;
    int64_t since_ns;  /* lines are earned from then on, one a second */
    int64_t untold;    /* refusals without a line since the last one */
    int64_t count;     /* of all, lines or not */
};

void kvfi_moon_refusals_init(struct kvfi_moon_refusals *refusals, struct kvfi_log *log);
void kvfi_moon_refusals_fini(struct kvfi_moon_refusals *refusals);

/** Tells of a request of the peer of this socket. `refusal` NULL: its header is none. */
void kvfi_moon_refusals_tell(struct kvfi_moon_refusals *refusals, int fd, const uint8_t head[KVFI_MOON_HEADER_BYTES],
                             const struct kvfi_moon_refusal *refusal);

/** How many there were. */
int64_t kvfi_moon_refusals_count(struct kvfi_moon_refusals *refusals);

#endif
