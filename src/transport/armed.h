/* SPDX-License-Identifier: Apache-2.0 */
/** @file armed.h  What a destination armed, and what has come of it: shared by the transports.
 *
 *  The table may be used by any number of threads. A *grant* and its chunks are guarded by the table's lock, except
 *  that a chunk's binding is immutable once it is there. Grants are counted: the table has one reference until disarm.
 */
#ifndef KVFI_TRANSPORT_ARMED_H
#define KVFI_TRANSPORT_ARMED_H

#include <pthread.h>

#include "transport/bytes.h"
#include "transport/transport.h"

/** What a writer says of a chunk: all that crosses the wire of it. */
struct kvfi_chunk_head {
    uint64_t grant;
    uint32_t index, last;
    int64_t layer_first, layer_end;
    int64_t token_begin, token_end;
    uint64_t bind_flags;
    int64_t bytes;
};

#define KVFI_CHUNK_HEAD_BYTES 64 /* packed */

struct kvfi_chunk_head kvfi_chunk_head_of(const struct kvfi_chunk *chunk);
void kvfi_put_chunk_head(struct kvfi_writer *writer, const struct kvfi_chunk_head *head);
struct kvfi_chunk_head kvfi_get_chunk_head(struct kvfi_reader *reader);
bool kvfi_chunk_head_equal(const struct kvfi_chunk_head *a, const struct kvfi_chunk_head *b);

enum kvfi_arrival_state {
    KVFI_ARRIVAL_OPEN = 0,
    KVFI_ARRIVAL_PLACED = 1
};

/** A chunk at the destination. Lives as long as its grant. */
struct kvfi_arrival {
    struct kvfi_grant *grant;
    struct kvfi_chunk_head head;
    int state;                /* enum kvfi_arrival_state */
    kvf_binding *binding;     /* made by kvfi_arrival_bind */
    uint64_t generation;      /* tcp: of the connections that bring it */
    struct kvfi_span { int64_t begin, end; } *spans; /* tcp: bytes that came, sorted, none touching */
    size_t span_count, span_capacity;
    int64_t placed_bytes;     /* tcp: sum of what has been placed of the spans */
};

struct kvfi_area { int64_t layer_first, layer_end, begin, end; };

struct kvfi_grant {
    struct kvfi_armed *table;
    struct kvfi_grant *next; /* in its bucket */
    uint64_t number;
    int64_t references;
    struct kvfi_peer_identity writer;
    kvf_plan *plan;
    struct kvf_bind_request request; /* with copies of the destination's lists */
    int64_t bytes, placed_bytes;
    bool has_state;      /* the plan moves state or rings: at most one chunk per layer may */
    bool dead;           /* disarmed or failed: nothing opens any more */
    bool complete;
    bool quiet_wanted;   /* disarm returned false: tell when open_count reaches 0 */
    int64_t open_count;  /* arrivals that a remote writer may be writing */
    int64_t placing;     /* threads of this side that are placing bytes */
    uint32_t last_index; /* of the chunk marked last; UINT32_MAX = not seen */
    uint32_t placed_chunks;
    struct kvfi_arrival **arrivals; /* by chunk index */
    size_t arrival_capacity;
    struct kvfi_area *areas, *state_areas; /* what is covered: never twice */
    size_t area_count, area_capacity, state_area_count, state_area_capacity;
};

struct kvfi_restricted { /* a plan restricted to some layers, kept for the next transfers of the pair */
    kvf_plan *whole, *part;
    int64_t layer_first, layer_end;
    uint64_t used;
};

enum { KVFI_ARMED_BUCKETS = 1024, KVFI_ARMED_PLANS = 256 };

struct kvfi_armed {
    pthread_mutex_t lock;
    pthread_cond_t placed; /* some grant's `placing` fell to 0 */
    struct kvfi_grant *buckets[KVFI_ARMED_BUCKETS];
    struct kvfi_restricted plans[KVFI_ARMED_PLANS];
    uint64_t clock;
};

void kvfi_armed_init(struct kvfi_armed *table);
/** All grants must have been released by others. */
void kvfi_armed_fini(struct kvfi_armed *table);

/** Adds a grant. @return KVF_OK; KVF_ERR_EXISTS; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_armed_add(struct kvfi_armed *table, const struct kvfi_arm *arm, struct kvf_error *error);

/** Takes a grant out of the table, and marks it dead; the table's reference passes to the caller. NULL when unknown.
 *  Waits until no thread of this side is placing under it. */
struct kvfi_grant *kvfi_armed_remove(struct kvfi_armed *table, uint64_t number);

void kvfi_grant_acquire(struct kvfi_grant *grant);
void kvfi_grant_release(struct kvfi_grant *grant);

/** Opens a chunk that `writer` announces, or finds it again. On success the caller holds a reference on
 *  (*out)->grant.
 *  @return KVF_OK; KVF_ERR_REFUSED (not armed, another writer's, disarmed); KVF_ERR_PROTOCOL: a violation,
 *  `*out_failed` is true when the grant has failed by it now; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_armed_open(struct kvfi_armed *table, const struct kvfi_chunk_head *head,
                                const struct kvfi_peer_identity *writer, struct kvfi_arrival **out, bool *out_failed,
                                struct kvf_error *error);

/** Checks the writer's byte count, and with `need_binding` makes the arrival's binding, unless all that is done
 * already.
 *  @return KVF_OK; KVF_ERR_PROTOCOL and what kvf_bind returns: the caller fails the grant */
enum kvf_status kvfi_arrival_bind(struct kvfi_arrival *arrival, bool need_binding, struct kvf_error *error);

/** Marks a grant failed and waits until no thread of this side is placing under it (the caller must not be). Returns
 *  true the first time, when it was not dead already: the caller tells GRANT_FAILED. */
bool kvfi_grant_fail(struct kvfi_grant *grant);

/** What placing a chunk brought about. */
struct kvfi_placed {
    bool tell;      /* RECEIVED is due: the grant lives, and the chunk was not placed before */
    bool complete;  /* that was all of the grant */
    bool short_of;  /* the last chunk is there and bytes are missing: a violation */
};

struct kvfi_placed kvfi_arrival_place(struct kvfi_arrival *arrival);

/** Counts remote writers: `begin` at opening, `end` once they stopped. `end` returns true when a QUIET is due. */
void kvfi_grant_begin_write(struct kvfi_grant *grant);
bool kvfi_grant_end_write(struct kvfi_grant *grant);
/** After kvfi_armed_remove: true when nobody writes; else a QUIET will be due. */
bool kvfi_grant_is_quiet(struct kvfi_grant *grant);

/** Brackets the placing of bytes by a thread of this side; false = dead, do not place. */
bool kvfi_grant_begin_place(struct kvfi_grant *grant);
void kvfi_grant_end_place(struct kvfi_grant *grant);

#endif
