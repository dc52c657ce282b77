/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "sys/clock.h"

enum { BACKLOG = 4096 };

/* ---- names ------------------------------------------------------------------------------------------------------ */

static bool read_port(const char *text, int32_t *port)
{
    char *end;
    long number;

    if (*text < '0' || *text > '9') return false;
    errno = 0;
    number = strtol(text, &end, 10);
    if (*end != '\0' || errno != 0 || number < 1 || number > 65535) return false;
    *port = (int32_t)number;
    return true;
}

static bool is_v6(const char *host, size_t bytes)
{
    char text[INET6_ADDRSTRLEN];
    const char *scope = memchr(host, '%', bytes);
    struct in6_addr address;

    if (scope) bytes = (size_t)(scope - host);
    if (bytes >= sizeof text) return false;
    memcpy(text, host, bytes);
    text[bytes] = '\0';
    return inet_pton(AF_INET6, text, &address) == 1;
}

enum kvf_status kvfi_moon_parse_name(const char *name, struct kvfi_moon_address *out, struct kvf_error *error)
{
    const char *host = name, *host_end = name + strlen(name), *port = NULL;
    const char *colon = strchr(name, ':');
    bool good = true;

    if (name[0] == '[') {
        host = name + 1;
        host_end = strchr(name, ']');
        good = host_end != NULL && (host_end[1] == '\0' || host_end[1] == ':');
        if (good && host_end[1] == ':') port = host_end + 2;
    } else if (colon && !strchr(colon + 1, ':')) {
        host_end = colon;
        port = colon + 1;
    }
    out->port = KVFI_MOON_DEFAULT_PORT;
    good = good && host_end > host && host_end - host < KVFI_MOON_HOST_BYTES && (!port || read_port(port, &out->port));
    for (const char *at = name; good && *at; at++) good = *at > ' ' && *at < 0x7F && *at != '/' && *at != ';';
    if (good && !port && colon) good = is_v6(host, (size_t)(host_end - host));
    if (!good)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "segment name \"%.100s\": expected HOST:PORT or [V6]:PORT",
                         name);
    memcpy(out->host, host, (size_t)(host_end - host));
    out->host[host_end - host] = '\0';
    return KVF_OK;
}

void kvfi_moon_format_name(const char *host, int32_t port, char *out)
{
    snprintf(out, KVF_MOONCAKE_NAME_BYTES, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, (int)port);
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

enum kvf_status kvfi_moon_ended(const struct kvfi_moon_limit *limit)
{
    return limit->stop && atomic_load(limit->stop) ? KVF_ERR_CANCELLED : KVF_ERR_TIMEOUT;
}

struct kvfi_moon_limit kvfi_moon_within(const struct kvfi_moon_limit *limit, int64_t timeout_ns)
{
    struct kvfi_moon_limit own = *limit;
    int64_t deadline_ns = kvfi_now_ns() + timeout_ns;

    if (deadline_ns < own.deadline_ns) own.deadline_ns = deadline_ns;
    return own;
}

struct kvfi_moon_limit kvfi_moon_share(const struct kvfi_moon_limit *limit, size_t parts)
{
    return kvfi_moon_within(limit, (limit->deadline_ns - kvfi_now_ns()) / (int64_t)parts);
}

enum kvf_status kvfi_moon_wait(int fd, short events, const struct kvfi_moon_limit *limit)
{
    struct pollfd waits[2] = {{.fd = fd, .events = events}, {.fd = limit->wake_fd, .events = POLLIN}};

    for (;;) {
        int64_t left_ns = limit->deadline_ns - kvfi_now_ns();
        struct timespec left = {.tv_sec = left_ns / KVFI_SECOND, .tv_nsec = left_ns % KVFI_SECOND};

        if (limit->stop && atomic_load(limit->stop)) return KVF_ERR_CANCELLED;
        if (left_ns <= 0) return KVF_ERR_TIMEOUT;
        if (ppoll(waits, 2, &left, NULL) > 0 && waits[0].revents != 0) return KVF_OK;
    }
}

/* ---- sockets ---------------------------------------------------------------------------------------------------- */

static enum kvf_status error_as(struct kvf_error *error, enum kvf_status status)
{
    if (error) error->status = (int32_t)status;
    return status;
}

static enum kvf_status bound_port(int fd, int32_t *port)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;

    if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) return KVF_ERR_SYSTEM;
    *port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                : ((struct sockaddr_in *)&address)->sin_port);
    return KVF_OK;
}

enum kvf_status kvfi_moon_listen(struct kvfi_resolver *resolver, const char *host, int32_t port, int64_t timeout_ns,
                                 int *out, int32_t *out_port, struct kvf_error *error)
{
    struct kvfi_addresses found;
    enum kvf_status status =
        kvfi_resolve(resolver, host, kvfi_now_ns() + timeout_ns, NULL, -1, &found, error);
    int fd = -1, on = 1;

    if (status == KVF_ERR_UNREACHABLE) status = error_as(error, KVF_ERR_INVALID_ARGUMENT);
    if (status != KVF_OK) goto done;
    kvfi_address_set_port(&found.list[0], port);
    fd = socket(found.list[0].address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* A port is taken again at once after a restart; two listeners on one port are refused all the same. */
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, (const struct sockaddr *)&found.list[0].address, found.list[0].bytes) != 0 ||
        listen(fd, BACKLOG) != 0 || bound_port(fd, out_port) != KVF_OK) {
        status = errno == EADDRINUSE ? KVF_ERR_ADDRESS_IN_USE
                 : errno == EADDRNOTAVAIL ? KVF_ERR_INVALID_ARGUMENT : KVF_ERR_SYSTEM;
        kvfi_fail(error, status, "mooncake: listening on %s port %d: %s", host, (int)port, strerror(errno));
        goto done;
    }
    *out = fd;
    fd = -1;
done:
    if (fd >= 0) close(fd);
    return status;
}

void kvfi_moon_set_options(int fd, int64_t progress_timeout_ns)
{
    int on = 1, idle_s = 30, interval_s = 10, count = 3;
    unsigned user_ms = (unsigned)(progress_timeout_ns / KVFI_MS);

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* A default that paces, such as bbr, halves what a fast network gives. Where cubic is missing it stays. */
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof user_ms);
}

/* One address; 0, or errno. ETIMEDOUT: the limit's deadline; ECANCELED: its stop. */
static int connect_one(const struct kvfi_address *address, const struct kvfi_moon_limit *limit, int *out)
{
    int fd = socket(address->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t bytes = sizeof(int);
    int failure = fd < 0 || connect(fd, (const struct sockaddr *)&address->address, address->bytes) != 0 ? errno : 0;

    if (failure == EINPROGRESS) {
        enum kvf_status status = kvfi_moon_wait(fd, POLLOUT, limit);

        failure = status == KVF_ERR_CANCELLED ? ECANCELED : status == KVF_ERR_TIMEOUT ? ETIMEDOUT : 0;
        if (failure == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &bytes) != 0) failure = errno;
    }
    if (failure == 0) *out = fd;
    else if (fd >= 0) close(fd);
    return failure;
}

/* Tries one after the other: one that is silent takes its share of the time that is left, not that of the others. */
static int connect_any(struct kvfi_addresses *addresses, int32_t port, const struct kvfi_moon_limit *limit, int *out)
{
    int failure = EADDRNOTAVAIL;

    for (size_t i = 0; i < addresses->count; i++) {
        const struct kvfi_moon_limit own = kvfi_moon_share(limit, addresses->count - i);

        kvfi_address_set_port(&addresses->list[i], port);
        failure = connect_one(&addresses->list[i], &own, out);
        if (failure == 0 || failure == ECANCELED || kvfi_now_ns() >= limit->deadline_ns) break;
    }
    return failure;
}

enum kvf_status kvfi_moon_connect(struct kvfi_resolver *resolver, const char *host, int32_t port,
                                  const struct kvfi_moon_limit *limit, int *out, struct kvf_error *error)
{
    struct kvfi_addresses found;
    enum kvf_status status =
        kvfi_resolve(resolver, host, limit->deadline_ns, limit->stop, limit->wake_fd, &found, error);
    int failure;

    if (status != KVF_OK) return status;
    failure = connect_any(&found, port, limit, out);
    if (failure != 0) {
        status = failure == ECANCELED ? KVF_ERR_CANCELLED
                 : failure == EMFILE || failure == ENFILE || failure == ENOBUFS || failure == ENOMEM ||
                   failure == EADDRNOTAVAIL ? KVF_ERR_SYSTEM
                 : failure == ETIMEDOUT ? KVF_ERR_TIMEOUT : KVF_ERR_UNREACHABLE;
        return kvfi_fail(error, status, "connecting to %s port %d: %s", host, (int)port, strerror(failure));
    }
    kvfi_moon_set_options(*out, INT64_C(120) * KVFI_SECOND);
    return KVF_OK;
}

enum kvf_status kvfi_moon_send_all(int fd, const void *bytes, size_t count, const struct kvfi_moon_limit *limit,
                                   size_t *done)
{
    enum kvf_status status = KVF_OK;

    *done = 0;
    while (status == KVF_OK && *done < count) {
        ssize_t sent = send(fd, (const char *)bytes + *done, count - *done, MSG_NOSIGNAL);

        if (sent >= 0) *done += (size_t)sent;
        else if (errno == EAGAIN) status = kvfi_moon_wait(fd, POLLOUT, limit);
        else if (errno != EINTR) status = KVF_ERR_PEER_LOST;
    }
    return status;
}

enum kvf_status kvfi_moon_recv_all(int fd, void *bytes, size_t count, const struct kvfi_moon_limit *limit,
                                   size_t *done)
{
    enum kvf_status status = KVF_OK;

    *done = 0;
    while (status == KVF_OK && *done < count) {
        ssize_t got = recv(fd, (char *)bytes + *done, count - *done, 0);

        if (got > 0) *done += (size_t)got;
        else if (got == 0) status = KVF_ERR_PEER_LOST;
        else if (errno == EAGAIN) status = kvfi_moon_wait(fd, POLLIN, limit);
        else if (errno != EINTR) status = KVF_ERR_PEER_LOST;
    }
    return status;
}
