/* SPDX-License-Identifier: Apache-2.0 */
/** @file values.h  MessagePack one value at a time: read without a tree, so that a count in hostile bytes allocates
 *  nothing, and written in the shortest forms. */
#ifndef KVFI_WIRE_VALUES_H
#define KVFI_WIRE_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kvfi_value_type {
    KVFI_VALUE_NIL,
    KVFI_VALUE_BOOL,
    KVFI_VALUE_UNSIGNED, /**< integers of at least 0 */
    KVFI_VALUE_NEGATIVE,
    KVFI_VALUE_FLOAT,
    KVFI_VALUE_STR,
    KVFI_VALUE_BIN,
    KVFI_VALUE_ARRAY,
    KVFI_VALUE_DICT,
    KVFI_VALUE_EXT
};

/** "a text", "an integer": for sentences. */
const char *kvfi_value_type_text(enum kvfi_value_type type);

/** One value, or the head of an array or map whose members follow. */
struct kvfi_value {
    enum kvfi_value_type type;
    size_t position;           /**< of its first byte */
    uint64_t number;           /**< BOOL, UNSIGNED; the bits of NEGATIVE as int64_t */
    double real;               /**< FLOAT */
    const unsigned char *data; /**< STR, BIN, EXT: borrowed */
    size_t count;              /**< bytes of those, items of an ARRAY, pairs of a DICT */
};

struct kvfi_value_reader {
    const unsigned char *bytes;
    size_t at, count;
};

/** Reads the next value. Its payload, and one byte for each member of a container, are there. @return false: they are
 *  not, or the byte starts nothing; the reader stays where it is then. */
bool kvfi_value_next(struct kvfi_value_reader *reader, struct kvfi_value *out);

/** The common integers without a struct, for long arrays of them: those of at least 0 that fit int64_t. Returns how
 *  many bytes it takes, or 0 when something else, or not all of it, is there: read that with kvfi_value_next. */
static inline size_t kvfi_value_plain_int(const unsigned char *bytes, size_t left, int64_t *out)
{
    uint64_t number;

    if (left > 0 && bytes[0] < 0x80) {
        *out = bytes[0];
        return 1;
    }
    if (left > 2 && bytes[0] == 0xcd) {
        *out = bytes[1] << 8 | bytes[2];
        return 3;
    }
    if (left > 1 && bytes[0] == 0xcc) {
        *out = bytes[1];
        return 2;
    }
    if (left > 4 && bytes[0] == 0xce) {
        *out = (int64_t)((uint32_t)bytes[1] << 24 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 8 | bytes[4]);
        return 5;
    }
    if (left < 9 || bytes[0] != 0xcf || bytes[1] >= 0x80) return 0;
    number = 0;
    for (size_t i = 1; i < 9; i++) number = number << 8 | bytes[i];
    *out = (int64_t)number;
    return 9;
}

/** How a value was skipped. */
enum kvfi_value_skip { KVFI_VALUE_SKIPPED, KVFI_VALUE_CUT, KVFI_VALUE_TOO_DEEP };

/** Most containers inside each other that are skipped. */
enum { KVFI_VALUE_SKIP_DEPTH = 32 };

/** Skips one value with all that is in it; the reader stands at what is wrong when that fails. Does not recurse. */
enum kvfi_value_skip kvfi_value_skip(struct kvfi_value_reader *reader);

/** Counts what is written; stores it as far as `out` goes; compares it with `same_as` (which has `capacity` bytes). */
struct kvfi_value_writer {
    unsigned char *out;
    const unsigned char *same_as;
    size_t capacity, used;
    bool differs;
};

void kvfi_value_put_nil(struct kvfi_value_writer *writer);
void kvfi_value_put_bool(struct kvfi_value_writer *writer, bool value);
void kvfi_value_put_unsigned(struct kvfi_value_writer *writer, uint64_t number);
void kvfi_value_put_int(struct kvfi_value_writer *writer, int64_t number);
/** As put_int for each of them, but quicker. */
void kvfi_value_put_ints(struct kvfi_value_writer *writer, const int64_t *numbers, size_t count);
void kvfi_value_put_double(struct kvfi_value_writer *writer, double number);
void kvfi_value_put_text(struct kvfi_value_writer *writer, const char *text);
void kvfi_value_put_bin(struct kvfi_value_writer *writer, const void *bytes, size_t count);
void kvfi_value_put_array(struct kvfi_value_writer *writer, size_t count);
void kvfi_value_put_map(struct kvfi_value_writer *writer, size_t count);

#endif
