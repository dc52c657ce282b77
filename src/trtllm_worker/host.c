/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm_worker/host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"

/* As IPv6, an IPv4 address mapped into it. */
static bool read_address(const char *endpoint, struct in6_addr *out)
{
    const char *text = endpoint + 6, *end = strrchr(endpoint, ':');
    char copy[INET6_ADDRSTRLEN + IF_NAMESIZE + 1];
    struct in_addr four;
    size_t length;

    if (strncmp(endpoint, "tcp://", 6) != 0 || end < text)
        return false;
    length = (size_t)(end - text);
    if (length >= 2 && text[0] == '[' && text[length - 1] == ']') {
        text++;
        length -= 2;
    }
    if (length >= sizeof copy)
        return false;
    memcpy(copy, text, length);
    copy[length] = '\0';
    copy[strcspn(copy, "%")] = '\0'; /* the interface of a link-local address */
    if (inet_pton(AF_INET6, copy, out) == 1)
        return true;
    if (inet_pton(AF_INET, copy, &four) != 1)
        return false;
    *out = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
    memcpy(&out->s6_addr[12], &four, sizeof four);
    return true;
}

/* Who connects to the unspecified address comes back to this host. */
static bool is_loopback(const struct in6_addr *address)
{
    struct in_addr four;

    if (IN6_IS_ADDR_LOOPBACK(address) || IN6_IS_ADDR_UNSPECIFIED(address))
        return true;
    if (!IN6_IS_ADDR_V4MAPPED(address))
        return false;
    memcpy(&four, &address->s6_addr[12], sizeof four);
    return address->s6_addr[12] == 127 || four.s_addr == htonl(INADDR_ANY);
}

static bool is_at(const struct ifaddrs *interface, const struct in6_addr *address)
{
    const struct sockaddr *own = interface->ifa_addr;
    const void *six = (const char *)own + offsetof(struct sockaddr_in6, sin6_addr);
    const void *four = (const char *)own + offsetof(struct sockaddr_in, sin_addr);

    if (own == NULL)
        return false;
    if (own->sa_family == AF_INET6)
        return memcmp(six, address, sizeof *address) == 0;
    return own->sa_family == AF_INET && IN6_IS_ADDR_V4MAPPED(address) && memcmp(four, &address->s6_addr[12], 4) == 0;
}

bool kvfi_host_is_own(const char *endpoint)
{
    struct ifaddrs *all = NULL;
    struct in6_addr address;
    bool found;

    if (!read_address(endpoint, &address))
        return false;
    found = is_loopback(&address);
    if (found || getifaddrs(&all) != 0)
        return found;
    for (const struct ifaddrs *at = all; at != NULL && !found; at = at->ifa_next)
        found = is_at(at, &address);
    freeifaddrs(all);
    return found;
}

enum kvf_status kvfi_host_check(const char *agent, const char *endpoint, struct kvf_error *error)
{
    if (kvfi_host_is_own(endpoint))
        return KVF_OK;
    return kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "agent \"%.100s\" is at %.200s, which is no address of this host: "
                     "the built-in agent reaches processes of this host alone", agent, endpoint);
}
