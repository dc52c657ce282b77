/* SPDX-License-Identifier: Apache-2.0 */
/** @file address.h  Names of segments, and TCP sockets with deadlines. */
#ifndef KVFI_TRANSPORT_MOONCAKE_ADDRESS_H
#define KVFI_TRANSPORT_MOONCAKE_ADDRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/uio.h>

#include "kvferry/mooncake.h"
#include "sys/resolve.h"

enum { KVFI_MOON_DEFAULT_PORT = 12001, KVFI_MOON_HOST_BYTES = 256 };

/** Where a segment's engine answers handshakes. */
struct kvfi_moon_address {
    char host[KVFI_MOON_HOST_BYTES]; /* without brackets */
    int32_t port;
};

/** Reads "HOST:PORT", "[V6]:PORT", "HOST", "V6". @return KVF_OK; KVF_ERR_INVALID_ARGUMENT quoting the text */
enum kvf_status kvfi_moon_parse_name(const char *name, struct kvfi_moon_address *out, struct kvf_error *error);
/** Writes "HOST:PORT" or "[V6]:PORT", KVF_MOONCAKE_NAME_BYTES at most. */
void kvfi_moon_format_name(const char *host, int32_t port, char *out);

/** What ends a wait. */
struct kvfi_moon_limit {
    int64_t deadline_ns;     /* of the monotonic clock */
    const atomic_bool *stop; /* NULL, or set to end it early: KVF_ERR_CANCELLED */
    int wake_fd;             /* readable once `stop` is set; -1 = none */
};

/** The same, or so long from now, whichever is first. */
struct kvfi_moon_limit kvfi_moon_within(const struct kvfi_moon_limit *limit, int64_t timeout_ns);

/** For the first of `parts` things that share the time of a limit. */
struct kvfi_moon_limit kvfi_moon_share(const struct kvfi_moon_limit *limit, size_t parts);

/** What a wait ended with that this limit ended: KVF_ERR_CANCELLED or KVF_ERR_TIMEOUT. */
enum kvf_status kvfi_moon_ended(const struct kvfi_moon_limit *limit);

/** Waits until `events` (or an error) are on the socket.
 *  @return KVF_OK; KVF_ERR_TIMEOUT; KVF_ERR_CANCELLED; without a text */
enum kvf_status kvfi_moon_wait(int fd, short events, const struct kvfi_moon_limit *limit);

/** Binds and listens, not blocking, close-on-exec; `port` 0 = any. `*bound_port` becomes the port.
 *  @param timeout_ns  for looking up the host
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT: host; KVF_ERR_ADDRESS_IN_USE; KVF_ERR_SYSTEM; and as kvfi_resolve */
enum kvf_status kvfi_moon_listen(struct kvfi_resolver *resolver, const char *host, int32_t port, int64_t timeout_ns,
                                 int *fd, int32_t *bound_port, struct kvf_error *error);

/** Connects, trying all addresses of the host; the socket does not block, has no delay and keep-alive.
 *  @return KVF_OK; KVF_ERR_UNREACHABLE; KVF_ERR_TIMEOUT; KVF_ERR_CANCELLED; KVF_ERR_SYSTEM; and as kvfi_resolve */
enum kvf_status kvfi_moon_connect(struct kvfi_resolver *resolver, const char *host, int32_t port,
                                  const struct kvfi_moon_limit *limit, int *fd, struct kvf_error *error);

/** What the data sockets of both roles have. */
void kvfi_moon_set_options(int fd, int64_t progress_timeout_ns);

/** Sends all, or receives exactly so many bytes. `*done` counts what moved.
 *  @return KVF_OK; KVF_ERR_PEER_LOST: end or reset; KVF_ERR_TIMEOUT; KVF_ERR_CANCELLED */
enum kvf_status kvfi_moon_send_all(int fd, const void *bytes, size_t count, const struct kvfi_moon_limit *limit,
                                   size_t *done);
enum kvf_status kvfi_moon_recv_all(int fd, void *bytes, size_t count, const struct kvfi_moon_limit *limit,
                                   size_t *done);

#endif
