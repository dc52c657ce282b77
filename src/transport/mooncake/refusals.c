/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/refusals.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

#include "sys/clock.h"
#include "transport/mooncake/address.h"

enum { REASON_BYTES = 160 };

void kvfi_moon_refusals_init(struct kvfi_moon_refusals *refusals, struct kvfi_log *log)
{
    *refusals = (struct kvfi_moon_refusals){.log = log};
    pthread_mutex_init(&refusals->lock, NULL);
    refusals->since_ns = kvfi_now_ns() - KVFI_MOON_REFUSAL_LINES * KVFI_SECOND;
}

void kvfi_moon_refusals_fini(struct kvfi_moon_refusals *refusals)
{
    pthread_mutex_destroy(&refusals->lock);
}

/* Takes a line that was earned. `*untold` becomes how many refusals before it had none. */
static bool take_line(struct kvfi_moon_refusals *refusals, int64_t *untold)
{
    int64_t now_ns = kvfi_now_ns(), oldest_ns = now_ns - KVFI_MOON_REFUSAL_LINES * KVFI_SECOND;
    bool taken;

    pthread_mutex_lock(&refusals->lock);
    if (refusals->since_ns < oldest_ns) refusals->since_ns = oldest_ns;
    taken = refusals->since_ns + KVFI_SECOND <= now_ns;
    *untold = refusals->untold;
    refusals->since_ns += taken ? KVFI_SECOND : 0;
    refusals->untold = taken ? 0 : refusals->untold + 1;
    refusals->count++;
    pthread_mutex_unlock(&refusals->lock);
    return taken;
}

static void print_peer(int fd, char out[KVF_MOONCAKE_NAME_BYTES])
{
    union {
        struct sockaddr_storage any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address = {.any = {.ss_family = AF_UNSPEC}};
    socklen_t bytes = sizeof address;
    char host[INET6_ADDRSTRLEN];

    snprintf(out, KVF_MOONCAKE_NAME_BYTES, "a peer that is gone");
    if (getpeername(fd, (struct sockaddr *)&address, &bytes) != 0) return;
    if (address.any.ss_family == AF_INET && inet_ntop(AF_INET, &address.v4.sin_addr, host, sizeof host))
        kvfi_moon_format_name(host, ntohs(address.v4.sin_port), out);
    if (address.any.ss_family == AF_INET6 && inet_ntop(AF_INET6, &address.v6.sin6_addr, host, sizeof host))
        kvfi_moon_format_name(host, ntohs(address.v6.sin6_port), out);
}

static void print_reason(const struct kvfi_moon_refusal *refusal, char out[REASON_BYTES])
{
    switch (refusal->reason) {
    case KVFI_MOON_NO_READS:
        snprintf(out, REASON_BYTES, "the memory is guarded, and nobody reads it");
        break;
    case KVFI_MOON_NO_BLOCK:
        snprintf(out, REASON_BYTES, "the memory is guarded, and no block lies at 0x%" PRIx64, refusal->at);
        break;
    case KVFI_MOON_NOT_GRANTED:
        snprintf(out, REASON_BYTES, "block %" PRIu64 " of guard %" PRIu64 ", at 0x%" PRIx64 ", is not granted",
                 refusal->block, refusal->guard, refusal->at);
        break;
    default:
        snprintf(out, REASON_BYTES, "they lie in no registered buffer");
        break;
    }
}

void kvfi_moon_refusals_tell(struct kvfi_moon_refusals *refusals, int fd, const uint8_t head[KVFI_MOON_HEADER_BYTES],
                             const struct kvfi_moon_refusal *refusal)
{
    struct kvfi_moon_header header;
    char peer[KVF_MOONCAKE_NAME_BYTES], reason[REASON_BYTES], more[64] = "";
    int64_t untold;

    if (!take_line(refusals, &untold)) return;
    if (untold > 0) snprintf(more, sizeof more, " (after %" PRId64 " that were not told)", untold);
    print_peer(fd, peer);
    if (!refusal || !kvfi_moon_parse_header(head, &header)) {
        kvfi_logf(refusals->log, KVF_LOG_WARN, "mooncake: %s: a request is refused: opcode 0x%02x, expected 0x00, "
                  "0x01, 0x80 or 0x81%s", peer, head[16], more);
        return;
    }
    print_reason(refusal, reason);
    kvfi_logf(refusals->log, KVF_LOG_WARN, "mooncake: %s: a %s of %" PRIu64 " bytes at 0x%" PRIx64 " is refused: %s%s",
              peer, kvfi_moon_is_write(header.opcode) ? "write" : "read", header.bytes, header.address, reason, more);
}

int64_t kvfi_moon_refusals_count(struct kvfi_moon_refusals *refusals)
{
    int64_t count;

    pthread_mutex_lock(&refusals->lock);
    count = refusals->count;
    pthread_mutex_unlock(&refusals->lock);
    return count;
}
