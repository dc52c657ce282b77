/* SPDX-License-Identifier: Apache-2.0 */
/** @file frame.h  Frames on a data connection: a fixed head, then a body whose length the head tells and the kind
 *  bounds. `docs/wire.md` lists the fields. Parsing needs nothing but the bytes. */
#ifndef KVFI_TRANSPORT_TCP_FRAME_H
#define KVFI_TRANSPORT_TCP_FRAME_H

#include "transport/armed.h"

#define KVFI_FRAME_MAGIC UINT32_C(0x3154566b) /* "kVT1" */

enum {
    KVFI_FRAME_VERSION = 1,
    KVFI_FRAME_HEAD_BYTES = 16,
    KVFI_FRAME_DATA_BYTES = KVFI_CHUNK_HEAD_BYTES + 24, /* of a DATA body, before the payload */
    KVFI_FRAME_MAX_PAYLOAD = 1 << 20,
    KVFI_FRAME_MAX_CONTROL = 1024,                      /* of the body of any other frame */
    KVFI_MAX_STREAMS = 16
};

enum kvfi_frame_kind {
    KVFI_FRAME_HELLO = 1,   /* source: version, who it is, whom it expects, which stream of which session */
    KVFI_FRAME_WELCOME = 2, /* destination: version, who it is, or why not */
    KVFI_FRAME_DATA = 3,    /* source: a piece of the packed bytes of a chunk */
    KVFI_FRAME_ACK = 4      /* destination: a chunk is placed, or refused */
};

struct kvfi_frame_head {
    uint32_t kind;
    uint32_t flags;      /* DATA: KVFI_FRAME_CHECKSUM */
    uint64_t body_bytes;
};

enum { KVFI_FRAME_CHECKSUM = 1 };

struct kvfi_frame_hello {
    uint32_t version;
    struct kvfi_peer_identity self, expected;
    uint64_t session;    /* number that all streams of one connect share */
    uint64_t generation; /* rises with each reconnect: older connections and their frames count no more */
    uint32_t stream, streams;
};

struct kvfi_frame_welcome {
    uint32_t version;
    uint32_t status;
    char text[KVF_ERROR_TEXT_BYTES];
    struct kvfi_peer_identity self;
};

struct kvfi_frame_data {
    struct kvfi_chunk_head chunk;
    uint64_t generation;
    int64_t offset_bytes; /* of the payload in the chunk's packed bytes */
    uint64_t checksum;    /* XXH3-64 of the payload, with KVFI_FRAME_CHECKSUM; else 0 */
    int64_t bytes;        /* of the payload: not on the wire, from the head */
};

struct kvfi_frame_ack {
    uint64_t grant;
    uint32_t index;
    uint32_t status;
    char text[KVF_ERROR_TEXT_BYTES];
};

/** Each writes a whole frame (DATA: without payload) and returns its bytes. Buffers: HEAD + MAX_CONTROL, and HEAD +
 *  DATA. */
size_t kvfi_frame_pack_hello(const struct kvfi_frame_hello *hello, uint8_t *buffer);
size_t kvfi_frame_pack_welcome(const struct kvfi_frame_welcome *welcome, uint8_t *buffer);
size_t kvfi_frame_pack_data(const struct kvfi_frame_data *data, bool checksum, uint8_t *buffer);
size_t kvfi_frame_pack_ack(const struct kvfi_frame_ack *ack, uint8_t *buffer);

/** Reads a head of KVFI_FRAME_HEAD_BYTES and bounds the body by its kind. @return KVF_OK, KVF_ERR_PROTOCOL */
enum kvf_status kvfi_frame_parse_head(const uint8_t *buffer, struct kvfi_frame_head *head, struct kvf_error *error);

/** Read a body of exactly `bytes` bytes. @return KVF_OK; KVF_ERR_PROTOCOL; KVF_ERR_VERSION naming both versions */
enum kvf_status kvfi_frame_parse_hello(const uint8_t *body, size_t bytes, struct kvfi_frame_hello *hello,
                                       struct kvf_error *error);
enum kvf_status kvfi_frame_parse_welcome(const uint8_t *body, size_t bytes, struct kvfi_frame_welcome *welcome,
                                         struct kvf_error *error);
enum kvf_status kvfi_frame_parse_ack(const uint8_t *body, size_t bytes, struct kvfi_frame_ack *ack,
                                     struct kvf_error *error);

/** Reads the first KVFI_FRAME_DATA_BYTES of a DATA body; the payload must lie inside the chunk. @return KVF_OK,
 *  KVF_ERR_PROTOCOL */
enum kvf_status kvfi_frame_parse_data(const struct kvfi_frame_head *head, const uint8_t *body,
                                      struct kvfi_frame_data *data, struct kvf_error *error);

/** "tcp:HOST:PORT", the host in brackets when it has colons. @return KVF_OK, KVF_ERR_PARSE */
enum kvf_status kvfi_tcp_endpoint_parse(const char *text, char host[256], uint16_t *port, struct kvf_error *error);

#endif
