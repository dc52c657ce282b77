/* SPDX-License-Identifier: Apache-2.0 */
/** @file json_take.h  Values out of JSON objects, with a sentence that names the place when one is wrong. */
#ifndef KVFERRY_CLI_JSON_TAKE_H
#define KVFERRY_CLI_JSON_TAKE_H

#include <jansson.h>

#include "cli/cli.h"

/** Where the values are taken from, and the first thing that was wrong. */
struct json_take {
    char path[128];                  /* of the object, such as "requests[2]"; "" = the root */
    char text[KVF_ERROR_TEXT_BYTES]; /* "" = all well so far */
};

/** Takes a path below `up`. */
struct json_take json_take_below(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Notes what is wrong with a member, unless something was before. Returns false. */
bool json_take_wrong(struct json_take *take, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** Says which member of an object is not among `known` (ends with NULL), naming the nearest one. */
bool json_take_known(struct json_take *take, const json_t *object, const char *const *known);

/** Each leaves `*out` alone when the member is absent or null; false when it is something else than wanted. */
bool json_take_int(struct json_take *take, const json_t *object, const char *key, int64_t low, int64_t high,
                   int64_t *out);
bool json_take_bool(struct json_take *take, const json_t *object, const char *key, bool *out);
/** Borrowed from the object. */
bool json_take_text(struct json_take *take, const json_t *object, const char *key, const char **out);
/** Which of the words (ends with NULL). */
bool json_take_word(struct json_take *take, const json_t *object, const char *key, const char *const *words, int *out);
/** Seconds, above zero; fractions allowed. */
bool json_take_seconds(struct json_take *take, const json_t *object, const char *key, int64_t *out_ns);

/** True when a member is there and not null. */
bool json_take_has(const json_t *object, const char *key);

#endif
