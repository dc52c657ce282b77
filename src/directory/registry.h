/* SPDX-License-Identifier: Apache-2.0 */
/** @file registry.h  Who is registered: instances, their ranks, leases and epochs. In memory, one thread at a time.
 *
 *  Time is an argument (nanoseconds of one monotonic clock), so that leases can be tested without waiting.
 */
#ifndef KVFI_DIRECTORY_REGISTRY_H
#define KVFI_DIRECTORY_REGISTRY_H

#include <stdbool.h>

#include "directory/client.h"
#include "kvferry/layout.h"

/** What a rank says of itself. Borrowed for the call. */
struct kvfi_registry_claim {
    const char *instance;
    const char *model;
    uint64_t incarnation;
    struct kvf_rank rank;
    int64_t ranks_expected;
    const char *channel;
    const char *holdings; /* JSON text, checked by the caller */
};

/** A registered rank. */
struct kvfi_registry_rank {
    struct kvf_rank rank;
    uint64_t incarnation;
    char *channel;
    char *holdings;
    int64_t expires_ns;
};

/** A registered instance: at least one rank, in the order pp, cp, tp. */
struct kvfi_registry_instance {
    char name[KVFI_DIRECTORY_INSTANCE_BYTES];
    char model[KVFI_DIRECTORY_MODEL_BYTES];
    int64_t ranks_expected;
    int64_t epoch;
    int64_t answer_bytes; /* what its ranks take at most in the answer to a query */
    struct kvfi_registry_rank *ranks;
    size_t rank_count, rank_capacity;
};

struct kvfi_registry {
    struct kvfi_registry_instance **instances; /* by name */
    size_t instance_count, instance_capacity;
    int64_t rank_count, max_ranks;
    int64_t text_bytes, max_text_bytes; /* of channels and holdings */
    int64_t max_answer_bytes;           /* of one instance: more than a client reads could never be asked for */
    int64_t lease_ns;
    int64_t last_epoch;
    int64_t next_expiry_ns; /* no lease ends before */
    int64_t expired;        /* leases so far */
};

/** @param first_epoch  epochs rise from here; taken from the wall clock, they also rise across restarts */
void kvfi_registry_init(struct kvfi_registry *registry, int64_t lease_ns, int64_t max_ranks, int64_t first_epoch);
void kvfi_registry_fini(struct kvfi_registry *registry);

/** Forgets what has expired by `now_ns`. To be called before each of the functions below. */
void kvfi_registry_expire(struct kvfi_registry *registry, int64_t now_ns);

/** Registers a rank. The same claim again only renews the lease; another incarnation or content takes the rank's place
 *  and raises the epoch.
 *  @return KVF_OK; KVF_ERR_EXISTS (contradicts the other ranks of the instance, both values named); KVF_ERR_LIMIT
 *          (registry full, or the instance longer than an answer may be); KVF_ERR_NO_MEMORY. On failure nothing
 *          changed */
enum kvf_status kvfi_registry_register(struct kvfi_registry *registry, const struct kvfi_registry_claim *claim,
                                       int64_t now_ns, const struct kvfi_registry_instance **out,
                                       struct kvf_error *error);

/** Names a registration. */
struct kvfi_registry_key {
    const char *instance;
    uint64_t incarnation;
    struct kvf_rank rank; /* pp, cp, tp count */
};

/** Renews a lease. @return KVF_OK; KVF_ERR_NOT_FOUND; KVF_ERR_STALE (another incarnation has the rank) */
enum kvf_status kvfi_registry_renew(struct kvfi_registry *registry, const struct kvfi_registry_key *key,
                                    int64_t now_ns, const struct kvfi_registry_instance **out,
                                    struct kvf_error *error);

/** Ends a registration. @return as renew */
enum kvf_status kvfi_registry_withdraw(struct kvfi_registry *registry, const struct kvfi_registry_key *key,
                                       struct kvf_error *error);

/** Finds an instance; NULL when there is none. */
const struct kvfi_registry_instance *kvfi_registry_find(const struct kvfi_registry *registry, const char *name);

#endif
