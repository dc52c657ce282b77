/* SPDX-License-Identifier: Apache-2.0 */
/** @file resolve.h  Host names to addresses, for as long as one likes to wait.
 *
 *  The system's resolver cannot be broken off, so that no caller asks it. Names are looked up by threads that nobody
 *  waits for: whoever has waited long enough goes, and the thread ends by itself, whenever that is. It touches nothing
 *  but what it shares with its resolver. One thread asks for one name; others that want the same name wait for the same
 *  answer. A name that hangs thus holds up nobody who wants another one, until KVFI_RESOLVE_THREADS of them do.
 *  Numbers need no thread.
 */
#ifndef KVFI_SYS_RESOLVE_H
#define KVFI_SYS_RESOLVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "kvferry/status.h"

enum {
    KVFI_RESOLVE_ADDRESSES = 16,  /* of one name; more are left out */
    KVFI_RESOLVE_THREADS = 32,    /* of one resolver */
    KVFI_RESOLVE_WAITING = 1024   /* names that wait for a thread */
};

/** Addresses of streams, the best one first. The port is 0 until it is set. */
struct kvfi_address {
    struct sockaddr_storage address;
    socklen_t bytes;
};
struct kvfi_addresses {
    size_t count;
    struct kvfi_address list[KVFI_RESOLVE_ADDRESSES];
};

void kvfi_address_set_port(struct kvfi_address *address, int32_t port);

/** Reads a numeric address, which never blocks.
 *  @return KVF_OK; KVF_ERR_NOT_FOUND: it is a name; KVF_ERR_NO_MEMORY; without a text */
enum kvf_status kvfi_resolve_number(const char *host, struct kvfi_addresses *out);

/** Look-ups of one owner. */
struct kvfi_resolver;

/** @return KVF_OK or KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_resolver_create(struct kvfi_resolver **out, struct kvf_error *error);
/** Ends what was started, KVF_ERR_CANCELLED, and waits for nothing. No call may be under way. NULL is fine. */
void kvfi_resolver_destroy(struct kvfi_resolver *resolver);

/** A look-up that is waited for elsewhere: whoever starts it keeps it until `done`. */
struct kvfi_lookup {
    struct kvfi_lookup *next;
    /** Exactly once. `found` is NULL unless the status is KVF_OK, and `text` says why. By a thread of the resolver, or
     *  by whoever destroys it (KVF_ERR_CANCELLED): must be short, and not call the resolver. */
    void (*done)(struct kvfi_lookup *lookup, enum kvf_status status, const struct kvfi_addresses *found,
                 const char *text);
};

/** Starts one. Numbers take a thread here, too.
 *  @return KVF_OK: `done` follows; KVF_ERR_LIMIT: too many names wait; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM: no thread */
enum kvf_status kvfi_resolve_start(struct kvfi_resolver *resolver, const char *host, struct kvfi_lookup *lookup,
                                   struct kvf_error *error);

/** Looks up and waits, until a deadline of the monotonic clock or until `*stop` is set (NULL: nobody does).
 *  @param wake_fd  readable once `stop` is set; -1 = none
 *  @return KVF_OK; KVF_ERR_UNREACHABLE: no such host, or nobody knows; KVF_ERR_TIMEOUT; KVF_ERR_CANCELLED; and as
 *          kvfi_resolve_start. `error` names the host */
enum kvf_status kvfi_resolve(struct kvfi_resolver *resolver, const char *host, int64_t deadline_ns,
                             const atomic_bool *stop, int wake_fd, struct kvfi_addresses *out,
                             struct kvf_error *error);

/** How long opening may take to look up the host to listen on. */
#define KVFI_RESOLVE_LISTEN_NS INT64_C(10000000000)

/** The same for once, without a resolver of one's own. */
enum kvf_status kvfi_resolve_once(const char *host, int64_t timeout_ns, struct kvfi_addresses *out,
                                  struct kvf_error *error);

#endif
