/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/listen.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "sys/resolve.h"

#define HOST_BYTES 256
#define BACKLOG 512

/** Cuts "HOST:PORT" or "[ADDRESS]:PORT" in two. */
static enum kvf_status split_address(const char *listen, char host[HOST_BYTES], char port[8], struct kvf_error *error)
{
    const char *colon = strrchr(listen, ':');
    size_t host_bytes = colon ? (size_t)(colon - listen) : 0;
    size_t port_bytes = colon ? strlen(colon + 1) : 0;
    const char *start = listen;

    if (host_bytes > 2 && listen[0] == '[' && listen[host_bytes - 1] == ']') {
        start++;
        host_bytes -= 2;
    } else if (memchr(listen, ':', host_bytes)) {
        host_bytes = 0;
    }
    if (host_bytes == 0 || host_bytes >= HOST_BYTES || port_bytes == 0 || port_bytes > 5 ||
        strspn(colon + 1, "0123456789") != port_bytes || strtol(colon + 1, NULL, 10) > 65535)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                         "directory: address \"%.100s\" is not HOST:PORT or [IPV6]:PORT with a port of 0 to 65535",
                         listen);
    memcpy(host, start, host_bytes);
    host[host_bytes] = '\0';
    memcpy(port, colon + 1, port_bytes + 1);
    return KVF_OK;
}

static int try_address(const struct kvfi_address *address)
{
    int fd = socket(address->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1, zero = 0, cause;

    if (fd < 0) return -1;
    if (address->address.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        bind(fd, (const struct sockaddr *)&address->address, address->bytes) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

static int bound_port(int fd)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    in_port_t port;

    if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) return -1;
    if (address.ss_family == AF_INET6) port = ((struct sockaddr_in6 *)&address)->sin6_port;
    else port = ((struct sockaddr_in *)&address)->sin_port;
    return ntohs(port);
}

enum kvf_status kvfi_listen(const char *listen, int *fd, char url[KVFI_LISTEN_URL_BYTES], struct kvf_error *error)
{
    struct kvfi_addresses found;
    struct kvf_error own;
    char host[HOST_BYTES], port[8];
    int opened = -1;
    enum kvf_status status = split_address(listen, host, port, error);

    if (status != KVF_OK) return status;
    status = kvfi_resolve_once(host, KVFI_RESOLVE_LISTEN_NS, &found, &own);
    if (status != KVF_OK)
        return kvfi_fail(error, status == KVF_ERR_UNREACHABLE ? KVF_ERR_INVALID_ARGUMENT : status,
                         "directory: %.300s", own.text);
    for (size_t i = 0; i < found.count && opened < 0; i++) {
        kvfi_address_set_port(&found.list[i], (int32_t)strtol(port, NULL, 10));
        opened = try_address(&found.list[i]);
    }
    if (opened < 0 && errno == EADDRINUSE)
        status = kvfi_fail(error, KVF_ERR_ADDRESS_IN_USE, "directory: address %.200s is in use", listen);
    else if (opened < 0)
        status = kvfi_fail(error, KVF_ERR_SYSTEM, "directory: cannot listen on %.200s: %s", listen, strerror(errno));
    if (status != KVF_OK) return status;
    snprintf(url, KVFI_LISTEN_URL_BYTES, strchr(host, ':') ? "http://[%s]:%d" : "http://%s:%d", host,
             bound_port(opened));
    *fd = opened;
    return KVF_OK;
}
