/* SPDX-License-Identifier: Apache-2.0 */
/** @file frame.h  The frames of the Mooncake engine, as bytes: of the handshake, of data requests, of their status.
 *
 *  Handshake: length (8 bytes, little endian, of all that follows), type (1 byte), JSON text and a newline.
 *  Request: size (8), address (8), opcode (1), seven bytes that are 0 when sent and not looked at when read.
 *  Status, of protocol 2 alone: code (4), "VTCM" (4).
 */
#ifndef KVFI_TRANSPORT_MOONCAKE_FRAME_H
#define KVFI_TRANSPORT_MOONCAKE_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kvfi_moon_type {
    KVFI_MOON_SETUP = 0,    /* RDMA queue pairs: refused */
    KVFI_MOON_METADATA = 1,
    KVFI_MOON_NOTIFY = 2,
    KVFI_MOON_PROBE = 3
};

enum {
    KVFI_MOON_PREFIX_BYTES = 9, /* length and type */
    KVFI_MOON_LENGTH_BYTES = 8,
    KVFI_MOON_HEADER_BYTES = 24,
    KVFI_MOON_STATUS_BYTES = 8,
    KVFI_MOON_MAX_HANDSHAKE = 1048576 /* the reference's own limit */
};

/** Writes length and type of a frame with so many bytes of text. */
void kvfi_moon_pack_prefix(uint8_t type, size_t text_bytes, uint8_t out[KVFI_MOON_PREFIX_BYTES]);
/** The length of a frame, type included: 1 up to `max`, or 0 where it is not. */
size_t kvfi_moon_parse_length(const uint8_t in[KVFI_MOON_LENGTH_BYTES], size_t max);

enum kvfi_moon_opcode { KVFI_MOON_READ_1 = 0x00, KVFI_MOON_WRITE_1 = 0x01, KVFI_MOON_READ_2 = 0x80,
                        KVFI_MOON_WRITE_2 = 0x81 };

struct kvfi_moon_header {
    uint64_t bytes, address;
    uint8_t opcode; /* one of the four */
};

static inline bool kvfi_moon_is_write(uint8_t opcode) { return (opcode & 1) != 0; }
static inline bool kvfi_moon_is_v2(uint8_t opcode) { return (opcode & 0x80) != 0; }

void kvfi_moon_pack_header(const struct kvfi_moon_header *header, uint8_t out[KVFI_MOON_HEADER_BYTES]);
/** False where the opcode is none of the four: then nothing is written. */
bool kvfi_moon_parse_header(const uint8_t in[KVFI_MOON_HEADER_BYTES], struct kvfi_moon_header *header);

enum { KVFI_MOON_ACCEPTED = 0, KVFI_MOON_REJECTED = 1 };

void kvfi_moon_pack_status(uint32_t code, uint8_t out[KVFI_MOON_STATUS_BYTES]);
/** False where the magic is wrong: who sent it does not speak protocol 2. */
bool kvfi_moon_parse_status(const uint8_t in[KVFI_MOON_STATUS_BYTES], uint32_t *code);

#endif
