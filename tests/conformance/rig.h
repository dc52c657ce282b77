/* SPDX-License-Identifier: Apache-2.0 */
/** @file rig.h  A source and a destination instance of the transport under test, and waiting for their events. */
#ifndef KVFT_CONFORMANCE_RIG_H
#define KVFT_CONFORMANCE_RIG_H

#include "kit.h"

/** The transport under test: one row of the table in conformance_test.c. */
struct subject {
    const char *name;      /* of the row */
    const char *transport; /* what kvfi_transport_find takes */
    const char *policy;    /* fault_policy; NULL = none */
    bool with_fd;          /* memories have a descriptor */
    bool other_process;    /* works between processes */
    bool checksum;
};

extern const struct subject *subject;

enum { RIG_EVENTS = 512 };

struct rig {
    const struct kvfi_transport_ops *ops;
    struct kit *kit;
    struct kvfi_transport *src, *dst;
    struct kvfi_peer_identity src_who, dst_who;
    struct kvfi_transport_event src_events[RIG_EVENTS], dst_events[RIG_EVENTS];
    size_t src_count, dst_count;
    uint64_t peer;
    int64_t received_bytes;
};

/** What each side is opened with. `policy` NULL = the subject's. */
struct kvfi_transport *rig_open(const struct rig *rig, bool is_src, const char *policy);

/** Opens both sides on a kit, without connecting. */
void rig_init(struct rig *rig, struct kit *kit);
/** The same and connects. */
void rig_init_connected(struct rig *rig, struct kit *kit);
void rig_fini(struct rig *rig);

/** What nearly every case begins and ends with: a kit of this shape and both sides connected; all of it freed. */
void rig_begin(struct rig *rig, struct kit *kit, const struct kit_shape *shape);
void rig_end(struct rig *rig, struct kit *kit);

void rig_connect(struct rig *rig);

/** Takes events of both sides, waiting for one at most until `deadline_ns`. False when the deadline passed. */
bool rig_pump(struct rig *rig, int64_t deadline_ns);

/** Waits for an event of this kind and, where it is not 0, grant (or cookie, or peer); fails the test after 10 s.
 *  The event is taken out. */
struct kvfi_transport_event rig_await_src(struct rig *rig, int kind, uint64_t number);
struct kvfi_transport_event rig_await_dst(struct rig *rig, int kind, uint64_t number);

/** Waits until a grant is complete, and adds up its bytes. */
int64_t rig_await_complete(struct rig *rig, uint64_t grant);

/** Arms all of the kit for the rig's source. */
void rig_arm(struct rig *rig, uint64_t grant);
void rig_arm_as(struct rig *rig, uint64_t grant, const struct kvfi_peer_identity *writer, int64_t bytes);

/** A chunk of the kit, with its binding: destroy that after POSTED. */
struct kvfi_chunk rig_chunk(const struct rig *rig, uint64_t grant, uint32_t index, bool last, int64_t layer_first,
                            int64_t layer_end, int64_t token_begin, int64_t token_end);
struct kvfi_chunk rig_whole_chunk(const struct rig *rig, uint64_t grant);

/** Posts; fails the test when the call is refused. */
void rig_post(struct rig *rig, const struct kvfi_chunk *chunk);

/** Posts, waits for POSTED with this status, destroys the binding. */
struct kvfi_transport_event rig_post_and_await(struct rig *rig, struct kvfi_chunk *chunk, enum kvf_status status);

#endif
