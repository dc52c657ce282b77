/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/scan.h"

#include "base/error.h"
#include "wire/messages.h"

/** One object's head: what it takes itself, and how many objects follow inside it. */
struct head {
    uint64_t bytes;    /* head and payload, without the objects inside */
    uint64_t children;
    bool container;
};

static uint64_t big_endian(const unsigned char *bytes, size_t count)
{
    uint64_t value = 0;

    for (size_t i = 0; i < count; i++) value = value << 8 | bytes[i];
    return value;
}

static struct head payload_of(uint64_t payload_bytes, uint64_t head_bytes)
{
    return (struct head){.bytes = head_bytes + payload_bytes};
}

static struct head container_of(uint64_t children, uint64_t head_bytes)
{
    return (struct head){.bytes = head_bytes, .children = children, .container = true};
}

/** Bytes of the length field after the first byte, for the types 0xc4 to 0xdf that have one. */
static size_t length_bytes(unsigned char first)
{
    switch (first) {
    case 0xc4: case 0xc7: case 0xd9: return 1;
    case 0xc5: case 0xc8: case 0xda: case 0xdc: case 0xde: return 2;
    case 0xc6: case 0xc9: case 0xdb: case 0xdd: case 0xdf: return 4;
    default: return 0;
    }
}

static struct head long_head(unsigned char first, uint64_t length, size_t field_bytes)
{
    switch (first) {
    case 0xdc: case 0xdd: return container_of(length, 1 + field_bytes);
    case 0xde: case 0xdf: return container_of(2 * length, 1 + field_bytes);
    case 0xc7: case 0xc8: case 0xc9: return payload_of(length, 2 + field_bytes);
    default: return payload_of(length, 1 + field_bytes);
    }
}

/** The head of the object at `bytes`; false for the one byte that is no type, or when its length field is cut off. */
static bool read_head(const unsigned char *bytes, size_t left, struct head *out)
{
    static const uint8_t fixed[] = {/* 0xca */ 5, 9, 2, 3, 5, 9, 2, 3, 5, 9, /* 0xd4 */ 3, 4, 6, 10, 18};
    unsigned char first = bytes[0];
    size_t field_bytes = length_bytes(first);

    if (first == 0xc1 || field_bytes >= left) return false;
    if (first < 0x80 || first >= 0xe0 || first == 0xc0 || first == 0xc2 || first == 0xc3) *out = payload_of(0, 1);
    else if (first < 0x90) *out = container_of(2 * (uint64_t)(first & 0x0f), 1);
    else if (first < 0xa0) *out = container_of(first & 0x0f, 1);
    else if (first < 0xc0) *out = payload_of(first & 0x1f, 1);
    else if (field_bytes) *out = long_head(first, big_endian(bytes + 1, field_bytes), field_bytes);
    else *out = payload_of(0, fixed[first - 0xca]);
    return true;
}

enum kvf_status kvfi_wire_scan(const void *bytes, size_t byte_count, struct kvf_error *error)
{
    const unsigned char *data = bytes;
    uint64_t open[KVFI_WIRE_MAX_DEPTH + 1] = {1}; /* objects still to come, per level */
    size_t depth = 0, at = 0;

    if (byte_count > KVFI_WIRE_MAX_BYTES)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "message has %zu bytes, at most %d are taken", byte_count,
                         KVFI_WIRE_MAX_BYTES);
    for (;;) {
        struct head head;

        while (depth > 0 && open[depth] == 0) depth--;
        if (open[depth] == 0) break;
        open[depth]--;
        if (at == byte_count)
            return kvfi_fail_at(error, KVF_ERR_PROTOCOL, (int64_t)at, "message ends after %zu bytes, in the middle",
                                at);
        if (!read_head(data + at, byte_count - at, &head) || head.bytes > byte_count - at ||
            head.children > byte_count - at - head.bytes)
            return kvfi_fail_at(error, KVF_ERR_PROTOCOL, (int64_t)at,
                                "message byte %zu (0x%02x) starts nothing that fits in the %zu bytes left", at,
                                data[at], byte_count - at);
        if (head.container && depth == KVFI_WIRE_MAX_DEPTH)
            return kvfi_fail_at(error, KVF_ERR_PROTOCOL, (int64_t)at, "message is nested more than %d deep",
                                KVFI_WIRE_MAX_DEPTH);
        at += (size_t)head.bytes;
        if (head.container) open[++depth] = head.children;
    }
    if (at < byte_count)
        return kvfi_fail_at(error, KVF_ERR_PROTOCOL, (int64_t)at, "message has %zu bytes after its end",
                            byte_count - at);
    return KVF_OK;
}
