/* SPDX-License-Identifier: Apache-2.0 */
/** @file message.h  The messages between two direct transports: one packet each on a Unix socket. `docs/wire.md` lists
 *  the fields. Parsing bounds every length, and needs nothing but the bytes. */
#ifndef KVFI_TRANSPORT_DIRECT_MESSAGE_H
#define KVFI_TRANSPORT_DIRECT_MESSAGE_H

#include "transport/armed.h"

#define KVFI_DIRECT_MAGIC UINT64_C(0x316d68732d66766b) /* "kvf-shm1" */

enum {
    KVFI_DIRECT_VERSION = 1,
    KVFI_DIRECT_PACKET_BYTES = 4096,  /* no message is longer */
    KVFI_DIRECT_BATCH = 64,           /* memories per MEMORIES message: as many descriptors go with it */
    KVFI_DIRECT_MAX_MEMORIES = 65536
};

enum kvfi_direct_kind {
    KVFI_DIRECT_HELLO = 1,    /* source: who it is, whom it expects */
    KVFI_DIRECT_WELCOME = 2,  /* destination: who it is, or why not; how many memories follow */
    KVFI_DIRECT_MEMORIES = 3, /* destination: some of its memories, their descriptors beside */
    KVFI_DIRECT_PROBE = 4,    /* source: has written this nonce to the probe page across processes */
    KVFI_DIRECT_PROBED = 5,   /* destination: found it there, or not */
    KVFI_DIRECT_OPEN = 6,     /* source: wants to write this chunk */
    KVFI_DIRECT_OPENED = 7,   /* destination: may, or may not */
    KVFI_DIRECT_PLACED = 8,   /* source: has written it */
    KVFI_DIRECT_ACK = 9,      /* destination: counts it, or does not */
    KVFI_DIRECT_ABORT = 10,   /* source: has stopped writing it */
    KVFI_DIRECT_REVOKE = 11   /* destination: stop writing under this grant */
};

/** Any message. Which fields count depends on the kind. */
struct kvfi_direct_message {
    uint32_t kind;
    uint32_t version;                    /* HELLO, WELCOME */
    struct kvfi_peer_identity self;      /* HELLO, WELCOME */
    struct kvfi_peer_identity expected;  /* HELLO */
    uint32_t status;                     /* WELCOME, PROBED, OPENED, ACK: an enum kvf_status */
    char text[KVF_ERROR_TEXT_BYTES];     /* the same: empty with KVF_OK */
    uint32_t memory_count;               /* WELCOME: of all; MEMORIES: of this message */
    uint32_t memory_first;               /* MEMORIES */
    uint64_t probe_address;              /* WELCOME */
    uint64_t nonce;                      /* PROBE */
    struct kvfi_chunk_head head;         /* OPEN; OPENED, PLACED, ACK, ABORT: grant and index; REVOKE: grant */
    struct {
        uint64_t address;
        int64_t bytes;
        uint32_t has_fd;
    } memories[KVFI_DIRECT_BATCH];       /* MEMORIES */
};

/** Writes a message into `buffer` of KVFI_DIRECT_PACKET_BYTES. Returns its bytes; a message of this side always fits.
 */
size_t kvfi_direct_pack(const struct kvfi_direct_message *message, uint8_t *buffer);

/** Reads a packet. @return KVF_OK; KVF_ERR_PROTOCOL; KVF_ERR_VERSION naming both versions (HELLO and WELCOME: `kind`
 *  and `version` are filled then) */
enum kvf_status kvfi_direct_parse(const void *packet, size_t bytes, struct kvfi_direct_message *message,
                                  struct kvf_error *error);

/** What an endpoint's text says. */
struct kvfi_direct_endpoint {
    char boot[40];    /* id of the running kernel */
    uint64_t netns;   /* inode of the network namespace: abstract sockets live in it */
    int64_t pid;
    char name[80];    /* of the abstract socket */
};

/** Reads an endpoint's text that starts with `scheme` ("shm", "loop"). @return KVF_OK, KVF_ERR_PARSE */
enum kvf_status kvfi_direct_endpoint_parse(const char *text, const char *scheme, struct kvfi_direct_endpoint *endpoint,
                                           struct kvf_error *error);
void kvfi_direct_endpoint_format(const struct kvfi_direct_endpoint *endpoint, const char *scheme, char *text);

#endif
