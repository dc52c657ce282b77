/* SPDX-License-Identifier: Apache-2.0 */
/** @file regions.h  Registered buffers, sorted by address, and who uses them. Any thread. */
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
    atomic_bool revoked;  /* requests that still touch it must end */
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
};

enum kvf_status kvfi_moon_regions_init(struct kvfi_moon_regions *regions, struct kvf_error *error);
/** Frees all. Nobody uses any. */
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

/** Finds the buffer in which all of [address, address + bytes) lies, and uses it; NULL when there is none, when it
 *  wraps, or has no bytes. */
struct kvfi_moon_region *kvfi_moon_regions_use(struct kvfi_moon_regions *regions, uint64_t address, uint64_t bytes);
void kvfi_moon_regions_release(struct kvfi_moon_regions *regions, struct kvfi_moon_region *region);

/** True when all of it lies in buffers: one, or several that touch. */
bool kvfi_moon_regions_hold(struct kvfi_moon_regions *regions, uint64_t address, uint64_t bytes);

/** A transfer of this side begins and ends. 0: no memory. */
uint64_t kvfi_moon_regions_begin(struct kvfi_moon_regions *regions);
void kvfi_moon_regions_end(struct kvfi_moon_regions *regions, uint64_t operation);

/** Copies the list, in the order of registration. @param out returned to the caller (free) */
enum kvf_status kvfi_moon_regions_list(struct kvfi_moon_regions *regions, struct kvf_mooncake_buffer **out,
                                       size_t *count, struct kvf_error *error);

#endif
