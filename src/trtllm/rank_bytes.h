/* SPDX-License-Identifier: Apache-2.0 */
/** @file rank_bytes.h  MessagePack one value at a time: read without a tree, so that a count in hostile bytes allocates
 *  nothing, and written in the shortest forms. */
#ifndef KVFI_TRTLLM_RANK_BYTES_H
#define KVFI_TRTLLM_RANK_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kvfi_trt_type {
    KVFI_TRT_NIL,
    KVFI_TRT_BOOL,
    KVFI_TRT_UNSIGNED, /**< integers of at least 0 */
    KVFI_TRT_NEGATIVE,
    KVFI_TRT_FLOAT,
    KVFI_TRT_STR,
    KVFI_TRT_BIN,
    KVFI_TRT_ARRAY,
    KVFI_TRT_DICT,
    KVFI_TRT_EXT
};

/** "a text", "an integer": for sentences. */
const char *kvfi_trt_type_text(enum kvfi_trt_type type);

/** One value, or the head of an array or map whose members follow. */
struct kvfi_trt_value {
    enum kvfi_trt_type type;
    size_t position;           /**< of its first byte */
    uint64_t number;           /**< BOOL, UNSIGNED; the bits of NEGATIVE as int64_t */
    double real;               /**< FLOAT */
    const unsigned char *data; /**< STR, BIN, EXT: borrowed */
    size_t count;              /**< bytes of those, items of an ARRAY, pairs of a DICT */
};

struct kvfi_trt_reader {
    const unsigned char *bytes;
    size_t at, count;
};

/** Reads the next value. Its payload, and one byte for each member of a container, are there. @return false: they are
 *  not, or the byte starts nothing; the reader stays where it is then. */
bool kvfi_trt_next(struct kvfi_trt_reader *reader, struct kvfi_trt_value *out);

/** How a value was skipped. */
enum kvfi_trt_skip { KVFI_TRT_SKIPPED, KVFI_TRT_CUT, KVFI_TRT_TOO_DEEP };

/** Most containers inside each other that are skipped. */
enum { KVFI_TRT_SKIP_DEPTH = 32 };

/** Skips one value with all that is in it; the reader stands at what is wrong when that fails. Does not recurse. */
enum kvfi_trt_skip kvfi_trt_skip(struct kvfi_trt_reader *reader);

/** Counts what is written; stores it as far as `out` goes; compares it with `same_as` (which has `capacity` bytes). */
struct kvfi_trt_writer {
    unsigned char *out;
    const unsigned char *same_as;
    size_t capacity, used;
    bool differs;
};

void kvfi_trt_put_nil(struct kvfi_trt_writer *writer);
void kvfi_trt_put_bool(struct kvfi_trt_writer *writer, bool value);
void kvfi_trt_put_unsigned(struct kvfi_trt_writer *writer, uint64_t number);
void kvfi_trt_put_int(struct kvfi_trt_writer *writer, int64_t number);
void kvfi_trt_put_double(struct kvfi_trt_writer *writer, double number);
void kvfi_trt_put_text(struct kvfi_trt_writer *writer, const char *text);
void kvfi_trt_put_bin(struct kvfi_trt_writer *writer, const void *bytes, size_t count);
void kvfi_trt_put_array(struct kvfi_trt_writer *writer, size_t count);
void kvfi_trt_put_map(struct kvfi_trt_writer *writer, size_t count);

#endif
