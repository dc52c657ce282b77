/* SPDX-License-Identifier: Apache-2.0 */
/** @file bytes.h  Little-endian fields by hand, in and out of bounded buffers. A field that does not fit clears `ok`,
 *  and everything after it is zero or not written. */
#ifndef KVFI_TRANSPORT_BYTES_H
#define KVFI_TRANSPORT_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct kvfi_writer {
    uint8_t *start, *at, *end;
    bool ok;
};

struct kvfi_reader {
    const uint8_t *at, *end;
    bool ok;
};

static inline struct kvfi_writer kvfi_writer_on(void *buffer, size_t bytes)
{
    return (struct kvfi_writer){.start = buffer, .at = buffer, .end = (uint8_t *)buffer + bytes, .ok = true};
}

static inline struct kvfi_reader kvfi_reader_on(const void *buffer, size_t bytes)
{
    return (struct kvfi_reader){.at = buffer, .end = (const uint8_t *)buffer + bytes, .ok = true};
}

static inline size_t kvfi_written(const struct kvfi_writer *writer)
{
    return (size_t)(writer->at - writer->start);
}

static inline void kvfi_put_uint(struct kvfi_writer *writer, uint64_t value, size_t bytes)
{
    writer->ok = writer->ok && (size_t)(writer->end - writer->at) >= bytes;
    for (size_t i = 0; writer->ok && i < bytes; i++) *writer->at++ = (uint8_t)(value >> (8 * i));
}

static inline uint64_t kvfi_get_uint(struct kvfi_reader *reader, size_t bytes)
{
    uint64_t value = 0;

    reader->ok = reader->ok && (size_t)(reader->end - reader->at) >= bytes;
    for (size_t i = 0; reader->ok && i < bytes; i++) value |= (uint64_t)*reader->at++ << (8 * i);
    return value;
}

static inline void kvfi_put_u32(struct kvfi_writer *writer, uint32_t value) { kvfi_put_uint(writer, value, 4); }
static inline void kvfi_put_u64(struct kvfi_writer *writer, uint64_t value) { kvfi_put_uint(writer, value, 8); }
static inline void kvfi_put_i64(struct kvfi_writer *writer, int64_t value)
{
    kvfi_put_uint(writer, (uint64_t)value, 8);
}
static inline uint32_t kvfi_get_u32(struct kvfi_reader *reader) { return (uint32_t)kvfi_get_uint(reader, 4); }
static inline uint64_t kvfi_get_u64(struct kvfi_reader *reader) { return kvfi_get_uint(reader, 8); }
static inline int64_t kvfi_get_i64(struct kvfi_reader *reader) { return (int64_t)kvfi_get_uint(reader, 8); }

/** A text: 2 bytes of length, then its bytes. */
static inline void kvfi_put_text(struct kvfi_writer *writer, const char *text)
{
    size_t bytes = strlen(text);

    writer->ok = writer->ok && bytes <= UINT16_MAX;
    kvfi_put_uint(writer, bytes, 2);
    writer->ok = writer->ok && (size_t)(writer->end - writer->at) >= bytes;
    if (writer->ok) memcpy(writer->at, text, bytes);
    if (writer->ok) writer->at += bytes;
}

/** Reads a text into `text` of `capacity` bytes, closing zero included. Too long or with a zero or control byte
 *  inside: not ok, and `text` is empty. */
static inline void kvfi_get_text(struct kvfi_reader *reader, char *text, size_t capacity)
{
    size_t bytes = (size_t)kvfi_get_uint(reader, 2);

    reader->ok = reader->ok && bytes < capacity && (size_t)(reader->end - reader->at) >= bytes;
    for (size_t i = 0; reader->ok && i < bytes; i++) {
        reader->ok = reader->at[i] >= 0x20 && reader->at[i] != 0x7f;
        text[i] = (char)reader->at[i];
    }
    text[reader->ok ? bytes : 0] = '\0';
    if (reader->ok) reader->at += bytes;
}

/** True when everything was read and nothing is left. */
static inline bool kvfi_read_all(const struct kvfi_reader *reader)
{
    return reader->ok && reader->at == reader->end;
}

#endif
