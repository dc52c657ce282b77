/* SPDX-License-Identifier: Apache-2.0 */
/** @file regions.h  Registered buffers, sorted by address, who uses them, and the guards over them. Any thread. */
#ifndef KVFI_TRANSPORT_MOONCAKE_REGIONS_H
#define KVFI_TRANSPORT_MOONCAKE_REGIONS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "kvferry/mooncake.h"

/** One buffer. It is freed once it is unregistered and unused. */
struct kvfi_moon_region {
    uint64_t address, bytes;
    int64_t uses;         /* requests of peers that touch it */
    uint64_t serial;      /* order of registration */
    bool gone;            /* unregistered */
    bool guarded;         /* peers write there what is granted, and read nothing */
    atomic_bool revoked;  /* requests that still touch it must end */
    struct kvfi_moon_use *under_way; /* those requests, unless it is guarded */
};

/** One request of a peer. It lives with whoever serves it and does not move while it is under way. */
struct kvfi_moon_use {
    struct kvfi_moon_region *region;    /* NULL: none is under way */
    uint64_t address, bytes;
    uint64_t era;                       /* of the grants, when it began */
    struct kvfi_moon_use *next, **from; /* in one of the lists */
    bool condemned;                     /* no longer granted: revokes wait for its end */
    atomic_bool revoked;                /* its connection must be closed */
};

/** Why a request is refused. */
enum kvfi_moon_reason {
    KVFI_MOON_NO_BUFFER = 1,   /* all of it lies in no registered buffer, or it is empty, or wraps */
    KVFI_MOON_NO_READS = 2,    /* the buffer is guarded */
    KVFI_MOON_NO_BLOCK = 3,    /* the buffer is guarded, and no block of a guard lies at `at` */
    KVFI_MOON_NOT_GRANTED = 4  /* nor is the block that lies at `at` granted */
};

struct kvfi_moon_refusal {
    enum kvfi_moon_reason reason;
    uint64_t at;              /* the first address that may not be written */
    uint64_t guard, block;    /* NOT_GRANTED: one that lies there */
};

struct kvfi_moon_regions {
    pthread_mutex_t lock;
    pthread_cond_t changed;            /* a use or an operation has ended */
    struct kvfi_moon_region **sorted;
    size_t count, capacity;
    uint64_t next_serial;
    /* Transfers of this side that go on: each began at a number; one that began later sees the registry as it is. */
    uint64_t next_operation;
    uint64_t *operations;
    size_t operation_count, operation_capacity;
    struct kvfi_moon_shape **shapes;     /* of guards; the one that admitted last comes first */
    size_t shape_count, shape_capacity, guard_count;
    uint64_t next_guard;
    uint64_t era;                        /* counts grants of blocks that had none */
    struct kvfi_moon_use *guarded;       /* requests under way in guarded buffers, */
    struct kvfi_moon_use *condemned;     /* but those that are condemned are here */
    /* Closes the connections of revoked requests, soon. Set before anything is registered. Called without the lock. */
    void (*close_revoked)(void *context);
    void *context;
};

enum kvf_status kvfi_moon_regions_init(struct kvfi_moon_regions *regions, struct kvf_error *error);
/** Frees all, guards included. Nobody uses any. */
void kvfi_moon_regions_fini(struct kvfi_moon_regions *regions);

/** As kvf_mooncake_register. */
enum kvf_status kvfi_moon_regions_add(struct kvfi_moon_regions *regions, const struct kvf_mooncake_buffer *buffers,
                                      size_t count, struct kvf_error *error);

/** Takes these out: no request finds them any more. `out` has room for `count`; each is then handed to
 *  kvfi_moon_regions_settle. @return KVF_OK; KVF_ERR_NOT_FOUND, nothing changed */
enum kvf_status kvfi_moon_regions_remove(struct kvfi_moon_regions *regions, const uint64_t *addresses, size_t count,
                                         struct kvfi_moon_region **out, struct kvf_error *error);
/** Waits until nothing touches them, or the deadline passes: false. Then sets `revoked` on those in use. */
bool kvfi_moon_regions_await(struct kvfi_moon_regions *regions, struct kvfi_moon_region **removed, size_t count,
                             int64_t deadline_ns);
/** Frees removed ones. Nothing touches them. */
void kvfi_moon_regions_drop(struct kvfi_moon_region **removed, size_t count);

/** Begins a request: finds the buffer in which all of [address, address + bytes) lies, and uses it. `use` must stay
 *  where it is until its end. @return false: it may not be, `refusal` says why, and `use` is not under way */
bool kvfi_moon_regions_use(struct kvfi_moon_regions *regions, bool is_write, uint64_t address, uint64_t bytes,
                           struct kvfi_moon_use *use, struct kvfi_moon_refusal *refusal);
/** Ends it. `arrived`: all its bytes were written, which counts them where they are granted. Nothing happens when it is
 *  not under way. */
void kvfi_moon_regions_release(struct kvfi_moon_regions *regions, struct kvfi_moon_use *use, bool arrived);
/** True when its connection must be closed. */
static inline bool kvfi_moon_use_is_revoked(const struct kvfi_moon_use *use)
{
    return use->region && (atomic_load(&use->revoked) || atomic_load(&use->region->revoked));
}

/** True when all of it lies in buffers: one, or several that touch. */
bool kvfi_moon_regions_hold(struct kvfi_moon_regions *regions, uint64_t address, uint64_t bytes);

/** A transfer of this side begins and ends. 0: no memory. */
uint64_t kvfi_moon_regions_begin(struct kvfi_moon_regions *regions);
void kvfi_moon_regions_end(struct kvfi_moon_regions *regions, uint64_t operation);

/** Copies the list, in the order of registration. @param out returned to the caller (free) */
enum kvf_status kvfi_moon_regions_list(struct kvfi_moon_regions *regions, struct kvf_mooncake_buffer **out,
                                       size_t *count, struct kvf_error *error);

#endif
