/* SPDX-License-Identifier: Apache-2.0 */
/** @file batches.h  The threads of an engine that make its batches. */
#ifndef KVFI_TRANSPORT_MOONCAKE_BATCHES_H
#define KVFI_TRANSPORT_MOONCAKE_BATCHES_H

#include "sys/crew.h"

/* With these, 159 peers that stall hold up nobody else's batches: see sys/crew.h. */
enum { KVFI_MOON_BATCH_THREADS = 256, KVFI_MOON_PEER_BATCHES = 4 };

struct kvfi_moon_batches {
    pthread_mutex_t lock;   /* of the crew, and of how batches end; taken before the engine's */
    struct kvfi_crew crew;
};

/** Starts no thread. */
void kvfi_moon_batches_init(struct kvfi_moon_batches *batches);
/** Stops what is under way, and waits for it. */
void kvfi_moon_batches_fini(struct kvfi_moon_batches *batches);

#endif
