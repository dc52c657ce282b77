/* SPDX-License-Identifier: Apache-2.0 */
/** @file hosts.h  Where data connections come from: how many from each address. Any thread. */
#ifndef KVFI_TRANSPORT_MOONCAKE_HOSTS_H
#define KVFI_TRANSPORT_MOONCAKE_HOSTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvfi_moon_origin {
    uint8_t bytes[16]; /* an IPv6 address, or an IPv4 one mapped into it */
    bool known;        /* it is counted */
};

struct kvfi_moon_hosts {
    pthread_mutex_t lock;
    struct kvfi_moon_count {
        uint8_t bytes[16];
        int64_t count; /* 0: this place is free */
    } *list;
    size_t count, capacity;
    int64_t unknown; /* connections whose address is not counted */
};

void kvfi_moon_hosts_init(struct kvfi_moon_hosts *hosts);
void kvfi_moon_hosts_fini(struct kvfi_moon_hosts *hosts);

/** A connection has come, and has ended. */
void kvfi_moon_hosts_add(struct kvfi_moon_hosts *hosts, int fd, struct kvfi_moon_origin *origin);
void kvfi_moon_hosts_remove(struct kvfi_moon_hosts *hosts, const struct kvfi_moon_origin *origin);

/** Connections from a numeric address; -1: not known, as that is no such address, or some could not be counted. */
int64_t kvfi_moon_hosts_count(struct kvfi_moon_hosts *hosts, const char *address);
/** Connections from addresses that `is_known` does not know; it may not call these functions. -1: some could not be
 *  counted. */
int64_t kvfi_moon_hosts_count_unknown(struct kvfi_moon_hosts *hosts,
                                      bool (*is_known)(void *context, const uint8_t bytes[16]), void *context);
/** A numeric address, as origins have it. Returns false when it is none. */
bool kvfi_moon_host_parse(const char *address, uint8_t out[16]);

#endif
