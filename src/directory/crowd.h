/* SPDX-License-Identifier: Apache-2.0 */
/** @file crowd.h  Who is connected to a directory, in the order in which they last began or ended a request.
 *
 *  A client that sends a byte now and then never falls silent, so silence alone bounds nothing. Here the one that has
 *  been getting nowhere for longest goes when its place, or the memory it holds, is needed. One thread at a time.
 */
#ifndef KVFI_DIRECTORY_CROWD_H
#define KVFI_DIRECTORY_CROWD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvfi_guest {
    struct kvfi_guest *older, *newer;
    int fd;
    int64_t since_ns;   /* of its last request's beginning or end, or of its coming */
    int64_t held_bytes; /* of its request and of the answer to it */
    bool dismissed;     /* its connection is shut down; it has not left yet */
};

struct kvfi_crowd {
    struct kvfi_guest *oldest, *newest; /* those not dismissed */
    size_t count, limit;
};

/** Takes in one that has connected, and dismisses the oldest when there are more than `limit`.
 *  @return the guest, valid until kvfi_crowd_leave; NULL without memory */
struct kvfi_guest *kvfi_crowd_enter(struct kvfi_crowd *crowd, int fd, int64_t now_ns);

/** Its connection ends; the descriptor is still open. NULL is fine. */
void kvfi_crowd_leave(struct kvfi_crowd *crowd, struct kvfi_guest *guest);

/** It began or ended a request: it is the newest. NULL is fine. */
void kvfi_crowd_renew(struct kvfi_crowd *crowd, struct kvfi_guest *guest, int64_t now_ns);

/** Dismisses the oldest of those that hold memory since before `before_ns`, if there is one. */
void kvfi_crowd_free_memory(struct kvfi_crowd *crowd, int64_t before_ns);

#endif
