/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/object.h"

#include <string.h>

#include "base/error.h"
#include "wire/text.h"

const char *kvfi_object_kind(const msgpack_object *object)
{
    switch (object->type) {
    case MSGPACK_OBJECT_NIL: return "nil";
    case MSGPACK_OBJECT_BOOLEAN: return "a boolean";
    case MSGPACK_OBJECT_POSITIVE_INTEGER: return object->via.u64 > INT64_MAX ? "above 2^63 - 1" : "an integer";
    case MSGPACK_OBJECT_NEGATIVE_INTEGER: return "a negative integer";
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64: return "a float";
    case MSGPACK_OBJECT_STR: return "a text";
    case MSGPACK_OBJECT_ARRAY: return "an array";
    case MSGPACK_OBJECT_MAP: return "a map";
    case MSGPACK_OBJECT_BIN: return "binary";
    default: return "an extension";
    }
}

bool kvfi_object_integer(const msgpack_object *object, int64_t *out)
{
    if (object->type == MSGPACK_OBJECT_POSITIVE_INTEGER && object->via.u64 <= INT64_MAX) {
        *out = (int64_t)object->via.u64;
        return true;
    }
    if (object->type != MSGPACK_OBJECT_NEGATIVE_INTEGER) return false;
    *out = object->via.i64;
    return true;
}

bool kvfi_object_is_text(const msgpack_object *object, const char *text)
{
    return object->type == MSGPACK_OBJECT_STR && object->via.str.size == strlen(text) &&
           memcmp(object->via.str.ptr, text, object->via.str.size) == 0;
}

void kvfi_object_quote(const msgpack_object *object, char *out, size_t capacity)
{
    char raw[256];
    size_t byte_count = object->via.str.size < sizeof raw - 1 ? object->via.str.size : sizeof raw - 1;

    if (byte_count) memcpy(raw, object->via.str.ptr, byte_count);
    raw[byte_count] = '\0';
    kvfi_text_clean(raw, out, capacity);
}

enum kvf_status kvfi_object_find(const msgpack_object *map, const char *message, const char *key,
                                 const msgpack_object **out, struct kvf_error *error)
{
    const msgpack_object *found = NULL;

    for (size_t i = 0; i < map->via.map.size; i++) {
        if (!kvfi_object_is_text(&map->via.map.ptr[i].key, key)) continue;
        if (found) return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %s comes twice", message, key);
        found = &map->via.map.ptr[i].val;
    }
    *out = found;
    return KVF_OK;
}

enum kvf_status kvfi_object_text(struct kvfi_arena *arena, const msgpack_object *object,
                                 const struct kvfi_text_rule *rule, const char **out, struct kvf_error *error)
{
    const char *text;

    if (object->type != MSGPACK_OBJECT_STR)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %s is %s, expected a text", rule->message, rule->key,
                         kvfi_object_kind(object));
    if (object->via.str.size < rule->min || object->via.str.size > rule->max)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %s has %u bytes, expected %zu to %zu", rule->message, rule->key,
                         object->via.str.size, rule->min, rule->max);
    if (!kvfi_text_is_clean(object->via.str.ptr, object->via.str.size))
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %s has control characters or is not UTF-8", rule->message,
                         rule->key);
    text = kvfi_arena_text(arena, object->via.str.ptr, object->via.str.size);
    if (!text) return kvfi_fail_memory(error, "a message");
    *out = text;
    return KVF_OK;
}
