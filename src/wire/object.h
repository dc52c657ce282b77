/* SPDX-License-Identifier: Apache-2.0 */
/** @file object.h  Reads single MessagePack objects, with refusals that say what was there instead. */
#ifndef KVFI_WIRE_OBJECT_H
#define KVFI_WIRE_OBJECT_H

#include <stdbool.h>

#include <msgpack.h>

#include "kvferry/status.h"
#include "wire/arena.h"

/** What the object is, for messages: "a map", "an integer", ... */
const char *kvfi_object_kind(const msgpack_object *object);

/** Reads an integer; false when it is none or does not fit. */
bool kvfi_object_integer(const msgpack_object *object, int64_t *out);

bool kvfi_object_is_text(const msgpack_object *object, const char *text);

/** Copies a text object into `out`, cleaned, for quoting it in a message. */
void kvfi_object_quote(const msgpack_object *object, char *out, size_t capacity);

/** Finds the value of a key in a map; `*out` is NULL when it is not there. A key that comes twice is refused. */
enum kvf_status kvfi_object_find(const msgpack_object *map, const char *message, const char *key,
                                 const msgpack_object **out, struct kvf_error *error);

/** Names and bounds of a text. */
struct kvfi_text_rule {
    const char *message, *key;
    size_t min, max; /* bytes */
};

/** Copies a clean text into the arena. */
enum kvf_status kvfi_object_text(struct kvfi_arena *arena, const msgpack_object *object,
                                 const struct kvfi_text_rule *rule, const char **out, struct kvf_error *error);

#endif
