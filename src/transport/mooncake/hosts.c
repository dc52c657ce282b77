/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/hosts.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/array.h"

static void map_v4(const struct in_addr *address, uint8_t out[16])
{
    memset(out, 0, 10);
    memset(out + 10, 0xFF, 2);
    memcpy(out + 12, address, 4);
}

static bool origin_of(int fd, uint8_t out[16])
{
    struct sockaddr_storage peer;
    socklen_t bytes = sizeof peer;

    if (getpeername(fd, (struct sockaddr *)&peer, &bytes) != 0) return false;
    if (peer.ss_family == AF_INET) map_v4(&((const struct sockaddr_in *)(const void *)&peer)->sin_addr, out);
    else if (peer.ss_family == AF_INET6)
        memcpy(out, &((const struct sockaddr_in6 *)(const void *)&peer)->sin6_addr, 16);
    else return false;
    return true;
}

void kvfi_moon_hosts_init(struct kvfi_moon_hosts *hosts)
{
    memset(hosts, 0, sizeof *hosts);
    pthread_mutex_init(&hosts->lock, NULL);
}

void kvfi_moon_hosts_fini(struct kvfi_moon_hosts *hosts)
{
    free(hosts->list);
    pthread_mutex_destroy(&hosts->lock);
}

/* The place of an address, or a free one, or a new one; NULL without memory. The lock is held. */
static struct kvfi_moon_count *place_of(struct kvfi_moon_hosts *hosts, const uint8_t bytes[16])
{
    struct kvfi_moon_count *free_one = NULL;

    for (size_t i = 0; i < hosts->count; i++) {
        if (hosts->list[i].count == 0) free_one = &hosts->list[i];
        else if (memcmp(hosts->list[i].bytes, bytes, 16) == 0) return &hosts->list[i];
    }
    if (!free_one &&
        kvfi_array_grow((void **)&hosts->list, hosts->count, &hosts->capacity, sizeof *hosts->list)) {
        free_one = &hosts->list[hosts->count++];
        free_one->count = 0;
    }
    if (free_one) memcpy(free_one->bytes, bytes, 16);
    return free_one;
}

void kvfi_moon_hosts_add(struct kvfi_moon_hosts *hosts, int fd, struct kvfi_moon_origin *origin)
{
    struct kvfi_moon_count *place;

    pthread_mutex_lock(&hosts->lock);
    place = origin_of(fd, origin->bytes) ? place_of(hosts, origin->bytes) : NULL;
    origin->known = place != NULL;
    if (place) place->count++;
    else hosts->unknown++;
    pthread_mutex_unlock(&hosts->lock);
}

void kvfi_moon_hosts_remove(struct kvfi_moon_hosts *hosts, const struct kvfi_moon_origin *origin)
{
    pthread_mutex_lock(&hosts->lock);
    if (origin->known) place_of(hosts, origin->bytes)->count--;
    else hosts->unknown--;
    pthread_mutex_unlock(&hosts->lock);
}

bool kvfi_moon_host_parse(const char *address, uint8_t out[16])
{
    struct in_addr v4;

    if (inet_pton(AF_INET, address, &v4) != 1) return inet_pton(AF_INET6, address, out) == 1;
    map_v4(&v4, out);
    return true;
}

int64_t kvfi_moon_hosts_count(struct kvfi_moon_hosts *hosts, const char *address)
{
    uint8_t bytes[16];
    int64_t count = 0;

    if (!kvfi_moon_host_parse(address, bytes)) return -1;
    pthread_mutex_lock(&hosts->lock);
    for (size_t i = 0; i < hosts->count; i++) {
        if (memcmp(hosts->list[i].bytes, bytes, 16) == 0) count += hosts->list[i].count;
    }
    if (hosts->unknown > 0) count = -1;
    pthread_mutex_unlock(&hosts->lock);
    return count;
}

int64_t kvfi_moon_hosts_count_unknown(struct kvfi_moon_hosts *hosts,
                                      bool (*is_known)(void *context, const uint8_t bytes[16]), void *context)
{
    int64_t count = 0;

    pthread_mutex_lock(&hosts->lock);
    for (size_t i = 0; i < hosts->count; i++) {
        if (hosts->list[i].count > 0 && !is_known(context, hosts->list[i].bytes)) count += hosts->list[i].count;
    }
    if (hosts->unknown > 0) count = -1;
    pthread_mutex_unlock(&hosts->lock);
    return count;
}
