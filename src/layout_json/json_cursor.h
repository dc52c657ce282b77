/* SPDX-License-Identifier: Apache-2.0 */
/** @file json_cursor.h  Reading typed values out of parsed JSON, with errors that name the path and its position.
 *
 *  A cursor is a value and the way to it; it lives on the stack, below the cursor it came from. Nothing here allocates.
 *  All functions take the error from the cursor's source.
 */
#ifndef KVFI_LAYOUT_JSON_CURSOR_H
#define KVFI_LAYOUT_JSON_CURSOR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"
#include "layout_json/json_source.h"

struct kvfi_cursor {
    const struct kvfi_cursor *up; /**< NULL for the root */
    const struct kvfi_json_source *source;
    const char *key; /**< name in `up`, or NULL when this is item `index` of it */
    size_t index;
    json_t *value; /**< borrowed; NULL when `up` has no such key */
};

/** A cursor at the whole document, at a member of an object (there or not), at an item of an array. */
struct kvfi_cursor kvfi_cursor_root(const struct kvfi_json_source *source, json_t *root);
struct kvfi_cursor kvfi_cursor_key(const struct kvfi_cursor *up, const char *key);
struct kvfi_cursor kvfi_cursor_item(const struct kvfi_cursor *up, size_t index);

/** "path: sentence" into the source's error, with the value's byte position when it can be found. Returns `status`. */
enum kvf_status kvfi_cursor_fail(const struct kvfi_cursor *at, enum kvf_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** The failure of a value that is not what was due: `path: expected EXPECTED, found FOUND`, or that it is missing. */
enum kvf_status kvfi_cursor_expected(const struct kvfi_cursor *at, const char *expected);

/** Checks that the value is an object whose keys are all in `known` (ends in NULL). A "comment" text is always fine. */
enum kvf_status kvfi_json_object(const struct kvfi_cursor *at, const char *const *known);

/** Checks that the value is an array of `min_count` to `max_count` items. */
enum kvf_status kvfi_json_array(const struct kvfi_cursor *at, size_t min_count, size_t max_count, size_t *count);

/** Reads an integer of [min, max]; `_or` takes the default when the key is not there. */
enum kvf_status kvfi_json_int(const struct kvfi_cursor *at, int64_t min, int64_t max, int64_t *out);
enum kvf_status kvfi_json_key_int(const struct kvfi_cursor *up, const char *key, int64_t min, int64_t max,
                                  int64_t *out);
enum kvf_status kvfi_json_key_int_or(const struct kvfi_cursor *up, const char *key, int64_t min, int64_t max,
                                     int64_t otherwise, int64_t *out);

/** Reads true or false, false when the key is not there. */
enum kvf_status kvfi_json_key_bool(const struct kvfi_cursor *up, const char *key, bool *out);

/** Reads a text of `min_bytes` to `max_bytes`: borrowed from the JSON value. `_or` as above. */
enum kvf_status kvfi_json_key_text(const struct kvfi_cursor *up, const char *key, size_t min_bytes, size_t max_bytes,
                                   const char **out);
enum kvf_status kvfi_json_key_text_or(const struct kvfi_cursor *up, const char *key, size_t max_bytes,
                                      const char *otherwise, const char **out);

/** Reads one of the words in `words` (ends in NULL): its index. */
enum kvf_status kvfi_json_key_word(const struct kvfi_cursor *up, const char *key, const char *const *words,
                                   size_t *out);

/** True when the object has the key. */
bool kvfi_json_has(const struct kvfi_cursor *at, const char *key);

/** Refuses the second key when the first is there: `path: "second" does not go with "first"`. */
enum kvf_status kvfi_json_not_both(const struct kvfi_cursor *at, const char *first, const char *second);

/** Byte offset of the cursor's value in its text, -1 when it cannot be found. */
int64_t kvfi_json_locate(const struct kvfi_cursor *at);

/** Copies a hostile text for an error, in quotes: without control characters, cut to a few words. */
#define KVFI_QUOTE_BYTES 72
const char *kvfi_json_quote(const char *text, char quoted[KVFI_QUOTE_BYTES]);

#endif
