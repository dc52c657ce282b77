/* SPDX-License-Identifier: Apache-2.0 */
/** @file walk.h  Steps over MessagePack bytes of a peer, forward, without allocating and without recursion. */
#ifndef KVFI_TRTLLM_WALK_H
#define KVFI_TRTLLM_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kvfi_trt_walk_kind {
    KVFI_WALK_NIL,
    KVFI_WALK_BOOLEAN,
    KVFI_WALK_INTEGER,
    KVFI_WALK_HUGE, /* an integer above 2^63 - 1 */
    KVFI_WALK_FLOATING,
    KVFI_WALK_TEXT,
    KVFI_WALK_BINARY,
    KVFI_WALK_ARRAY,
    KVFI_WALK_MAP,
    KVFI_WALK_EXTENSION
};

/** The head of one object, with its payload where that is not objects. */
struct kvfi_trt_walk_object {
    enum kvfi_trt_walk_kind kind;
    uint64_t number;           /* INTEGER (two's complement), HUGE */
    const unsigned char *data; /* TEXT, BINARY, EXTENSION: inside the bytes */
    uint64_t count;            /* of bytes of data, of elements, of pairs */
};

/** Where a walk stands. */
struct kvfi_trt_walk {
    const unsigned char *begin, *at, *end;
};

/** What a kind is, for messages: "a map", "an integer" ... */
const char *kvfi_trt_walk_kind_text(enum kvfi_trt_walk_kind kind);

/** Reads one head and steps over it and over its payload; false, with `at` anywhere, where the bytes end early or begin
 *  nothing. */
bool kvfi_trt_walk_next(struct kvfi_trt_walk *walk, struct kvfi_trt_walk_object *out);

/** Steps over what is inside an array or a map whose head was read; fine for any other object. */
bool kvfi_trt_walk_skip(struct kvfi_trt_walk *walk, const struct kvfi_trt_walk_object *object);

#endif
