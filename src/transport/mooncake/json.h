/* SPDX-License-Identifier: Apache-2.0 */
/** @file json.h  Reading JSON that a peer sent, front to back, without building it; and writing texts.
 *
 *  Addresses are unsigned 64-bit integers, which libjansson cannot hold, and a descriptor may list many thousands: so
 *  the text is walked once and each number is read exactly. Nothing here allocates. Depth is bounded.
 *
 *  A reader is at the place of one value. Each function that takes a value moves it behind that value; after a failure
 *  the reader has failed for good, and every function returns false.
 */
#ifndef KVFI_TRANSPORT_MOONCAKE_JSON_H
#define KVFI_TRANSPORT_MOONCAKE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KVFI_MOON_JSON_DEPTH = 64 };

enum kvfi_moon_json_kind {
    KVFI_MOON_JSON_NONE = 0, /* no value is there */
    KVFI_MOON_JSON_OBJECT,
    KVFI_MOON_JSON_ARRAY,
    KVFI_MOON_JSON_TEXT,
    KVFI_MOON_JSON_NUMBER,
    KVFI_MOON_JSON_WORD      /* true, false, null */
};

struct kvfi_moon_json {
    const char *begin, *at, *end;
    const char *wrong;  /* NULL, or what was expected at `at` */
    int depth;
    bool first;         /* just behind the opening bracket */
};

void kvfi_moon_json_init(struct kvfi_moon_json *json, const void *text, size_t bytes);

/** What the next value is, by its first character. */
enum kvfi_moon_json_kind kvfi_moon_json_next(struct kvfi_moon_json *json);

/** Enter an object or array. */
bool kvfi_moon_json_enter(struct kvfi_moon_json *json, char bracket);
/** Inside an object: moves to the value of the next key; false at the closing bracket, which is passed. Keys that do
 *  not fit into `key` (`capacity` with the closing zero, above 0) are cut; NULL reads none. */
bool kvfi_moon_json_key(struct kvfi_moon_json *json, char *key, size_t capacity);
/** Inside an array: moves to the next item; false at the closing bracket, which is passed. */
bool kvfi_moon_json_item(struct kvfi_moon_json *json);

/** Passes any value. */
bool kvfi_moon_json_skip(struct kvfi_moon_json *json);

/** Reads a whole number of 0 up to 2^64 - 1. */
bool kvfi_moon_json_u64(struct kvfi_moon_json *json, uint64_t *number);
/** Reads a text as UTF-8 with a closing zero; fails where it has more than `capacity` - 1 bytes, holds a zero, or is
 *  not UTF-8. `text` NULL: only measures. `*bytes` becomes its length. */
bool kvfi_moon_json_text(struct kvfi_moon_json *json, char *text, size_t capacity, size_t *bytes);

/** Writes the text quoted and in ASCII, as the reference's writer does: \uXXXX for all that is not. `out` NULL only
 *  measures. The text is valid UTF-8. @return the bytes written or needed */
size_t kvfi_moon_json_quote(const char *text, char *out);
/** True when the text is valid UTF-8. */
bool kvfi_moon_is_utf8(const char *text);

#endif
