/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm_worker/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "kvferry/vllm_config.h"
#include "wire/text.h"

#define DEFAULT_PORT 8998

static const struct kvf_vllm_deployment DEFAULTS = {
    .struct_size = sizeof(struct kvf_vllm_deployment),
    .tp_size = 1,
    .pp_size = 1,
    .nodes_within_dp = 1,
    .dp_master_ip = "127.0.0.1",
};

void kvf_vllm_deployment_init(struct kvf_vllm_deployment *deployment, size_t size)
{
    kvfi_struct_init(deployment, size, &DEFAULTS, sizeof DEFAULTS);
}

/* ---- texts ---- */

static enum kvf_status refuse(const char *address, const char *why, struct kvf_error *error)
{
    char quoted[101];

    kvfi_text_clean(address, quoted, sizeof quoted);
    return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                     "bootstrap_server_address must specify a host and port: \"%s\" %s", quoted, why);
}

/** A port of 1 to 65535 in decimal digits, or 0. */
static int32_t port_of(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    long value = digits > 0 && digits < 10 && text[digits] == '\0' ? strtol(text, NULL, 10) : 0;

    return value >= 1 && value <= 65535 ? (int32_t)value : 0;
}

/* Cuts "HOST:PORT" or "[IPV6]:PORT" in two; brackets go. */
static enum kvf_status split_host_port(const char *address, char *host, size_t host_bytes, int32_t *port,
                                       struct kvf_error *error)
{
    const char *start = address, *end, *digits;
    size_t bytes;

    if (address[0] == '[') {
        start++;
        end = strrchr(address, ']');
        if (!end) return refuse(address, "has no closing bracket", error);
        if (end[1] != ':') return refuse(address, "has no port after the bracket", error);
        digits = end + 2;
    } else {
        end = strchr(address, ':');
        if (!end) return refuse(address, "has no port", error);
        if (strchr(end + 1, ':'))
            return refuse(address, "has more than one colon: an IPv6 address needs brackets", error);
        digits = end + 1;
    }
    bytes = (size_t)(end - start);
    if (bytes == 0) return refuse(address, "has no host", error);
    if (bytes >= host_bytes || strcspn(start, " /?#@[]\\\"") < bytes || !kvfi_text_is_clean(start, bytes))
        return refuse(address, "has no name or address of a host", error);
    if (!port_of(digits)) return refuse(address, "has no port of 1 to 65535 in digits", error);
    memcpy(host, start, bytes);
    host[bytes] = '\0';
    *port = port_of(digits);
    return KVF_OK;
}

void kvfi_vllm_join_host_port(const char *scheme, const char *host, int32_t port, char *out, size_t out_bytes)
{
    const char *separator = scheme[0] ? "://" : "";
    bool is_ipv6 = strchr(host, ':') && host[0] != '[';

    snprintf(out, out_bytes, is_ipv6 ? "%s%s[%s]:%d" : "%s%s%s:%d", scheme, separator, host, (int)port);
}

/* ---- who, and where ---- */

/** What the caller's struct says, whatever size it knows. */
static struct kvf_vllm_deployment own_deployment(const struct kvf_vllm_deployment *given)
{
    struct kvf_vllm_deployment own = DEFAULTS;

    if (given) kvfi_options_copy(&own, sizeof own, given, "deployment", NULL);
    return own;
}

int32_t kvf_vllm_launches_bootstrap(const struct kvf_vllm_config *config,
                                    const struct kvf_vllm_deployment *deployment)
{
    const struct kvf_vllm_deployment own = own_deployment(deployment);

    if (config && config->has_bootstrap_server_address) return 0;
    if (own.tp_rank != 0 || own.pp_rank != 0) return 0;
    return (own.local_engines_only ? own.dp_rank_local : own.dp_index) == 0;
}

enum kvf_status kvf_vllm_bootstrap_address(const struct kvf_vllm_config *config,
                                           const struct kvf_vllm_deployment *deployment, char *host,
                                           size_t host_bytes, int32_t *port, struct kvf_error *error)
{
    const struct kvf_vllm_deployment own = own_deployment(deployment);
    const char *name = "dp_master_ip", *found = own.dp_master_ip;
    size_t bytes;

    if (config && config->has_bootstrap_server_address)
        return split_host_port(config->bootstrap_server_address, host, host_bytes, port, error);
    if (own.local_engines_only) {
        found = "127.0.0.1";
    } else if (own.nodes_within_dp > 1) {
        name = "master_addr";
        found = own.master_addr;
    }
    bytes = found ? strlen(found) : 0;
    if (bytes == 0 || bytes >= host_bytes)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "deployment: %s has %zu bytes, expected 1 to %zu", name,
                         bytes, host_bytes - 1);
    memcpy(host, found, bytes + 1);
    *port = config ? (int32_t)config->bootstrap_port : DEFAULT_PORT;
    return KVF_OK;
}

/* ---- this machine ---- */

/** The address that a datagram to `peer` would come from. */
static bool address_towards(const struct sockaddr *peer, socklen_t peer_bytes, char *out, size_t out_bytes)
{
    struct sockaddr_storage own;
    socklen_t own_bytes = sizeof own;
    int fd = socket(peer->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const void *number = peer->sa_family == AF_INET ? (const void *)&((struct sockaddr_in *)(void *)&own)->sin_addr
                                                    : (const void *)&((struct sockaddr_in6 *)(void *)&own)->sin6_addr;
    bool is_found = fd >= 0 && connect(fd, peer, peer_bytes) == 0 &&
                    getsockname(fd, (struct sockaddr *)&own, &own_bytes) == 0 &&
                    inet_ntop(peer->sa_family, number, out, (socklen_t)out_bytes) != NULL;

    if (fd >= 0) close(fd);
    return is_found;
}

void kvfi_vllm_own_address(char *out, size_t out_bytes)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(80)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(80)};

    inet_pton(AF_INET, "8.8.8.8", &four.sin_addr);
    inet_pton(AF_INET6, "2001:4860:4860::8888", &six.sin6_addr);
    if (!address_towards((struct sockaddr *)&four, sizeof four, out, out_bytes) &&
        !address_towards((struct sockaddr *)&six, sizeof six, out, out_bytes))
        snprintf(out, out_bytes, "127.0.0.1");
}
