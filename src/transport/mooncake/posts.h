/* SPDX-License-Identifier: Apache-2.0 */
/** @file posts.h  What ops.c (the transport's table) and posts.c (how peers are connected and posts moved) share.
 *
 *  A watcher waits for the ends of peers, on a connection to each that carries nothing.
 */
#ifndef KVFI_TRANSPORT_MOONCAKE_POSTS_H
#define KVFI_TRANSPORT_MOONCAKE_POSTS_H

#include "transport/mooncake/job.h"
#include "transport/posts.h"
#include "transport/watcher.h"

struct kvfi_moon_peer {
    struct kvfi_post_peer base;
    char endpoint[KVF_MOONCAKE_NAME_BYTES];
    struct kvfi_moon_segment *segment; /* once connected */
    struct kvfi_moon_lane *watched;    /* the connection that carries nothing */
};

struct kvfi_transport {
    struct kvfi_transport_config config; /* memories, timeout, log */
    bool *known;                         /* of each memory: it is registered */
    kvf_mooncake *engine;
    struct kvfi_queue queue;
    bool queue_made;
    struct kvfi_posts posts;
    bool posts_made;
    struct kvfi_watcher watcher;
};

extern const struct kvfi_posts_ops kvfi_moon_posts;

/** The watcher has heard of a peer. By its thread. */
void kvfi_moon_peer_closed(void *transport, uint64_t number);

#endif
