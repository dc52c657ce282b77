/* SPDX-License-Identifier: Apache-2.0 */
/** @file far.h  The two ends of posts of ranges: memory here, filled by position, and memory of another process, which
 *  this one can look at; and sources of ranges that watch how they are used. */
#ifndef KVFT_CONFORMANCE_FAR_H
#define KVFT_CONFORMANCE_FAR_H

#include <stdatomic.h>
#include <sys/types.h>

#include "rig.h"

enum { FAR_GUARD = 0x5A };

/** A source half here, connected to a destination half in a child process. */
struct far {
    const struct kvfi_transport_ops *ops;
    struct kvfi_transport *transport; /* here */
    struct kvfi_memory_region near;   /* registered here; its byte at i is far_byte(i) */
    uint64_t address;                 /* where the child has its memory; a page that nobody may touch is on each side */
    int64_t bytes;                    /* of both memories */
    unsigned char *view;              /* the child's memory, seen from here */
    int memfd;
    pid_t child;
    uint64_t peer;
    char endpoint[KVFI_ENDPOINT_BYTES];
    struct kvfi_transport_event events[256];
    size_t event_count;
};

/** What the source's memory has at `offset`. */
unsigned char far_byte(int64_t offset);

/** Forks the child, opens both sides with `bytes` of memory each, connects. */
void far_init(struct far *far, int64_t bytes);
/** The same without connecting. */
void far_init_apart(struct far *far, int64_t bytes);
void far_connect(struct far *far);
/** Closes what is open and ends the child. */
void far_fini(struct far *far);
/** Kills the child and waits for its end. */
void far_kill(struct far *far);

/** Fills the child's memory with FAR_GUARD. */
void far_wipe(struct far *far);

/** Waits for an event of this kind and number (cookie or peer); fails the test after 20 s. It is taken out. */
struct kvfi_transport_event far_await(struct far *far, int kind, uint64_t number);

/** A source over an array, as a post takes it. It lives until the test looks at its counts. */
struct feed {
    const struct kvfi_range *ranges;
    size_t count, at;
    size_t most;            /* gives so many at once; 0 = as many as are asked for */
    int64_t endless_bytes;  /* above 0: gives the last range again and again, until so many bytes are given */
    atomic_int_fast64_t given;
    atomic_int destroyed;
    struct kvfi_range_source source;
};

/** Prepares it with the sum of all ranges as its bytes. */
void feed_init(struct feed *feed, const struct kvfi_range *ranges, size_t count);

/** Posts; fails the test when the call is refused. */
void far_post(struct far *far, struct feed *feed, uint64_t cookie);
/** Posts, waits for its event, checks the status, that the source was given up once and before that. */
struct kvfi_transport_event far_post_and_await(struct far *far, struct feed *feed, enum kvf_status status);

/** A range by offsets into both memories. */
struct kvfi_range far_range(const struct far *far, int64_t src_offset, int64_t dst_offset, int64_t bytes);
/** Checks that these ranges are there, and (with `exactly`) nothing else. */
void far_check(const struct far *far, const struct kvfi_range *ranges, size_t count, bool exactly);

#endif
