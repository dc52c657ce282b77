/* SPDX-License-Identifier: Apache-2.0 */
/* The first look at a message: types, texts and numbers, in the order of the bytes, so that of several faults the one
 * is told that upstream's decoder tells. */
#include "vllm/message_walk.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "wire/text.h"

enum { MAX_DEPTH = 4, ANY_KEY = -1 };

/* Where the walk is: a path such as $.req_blocks[...][1][0]. */
struct walk {
    struct kvfi_value_reader reader;
    struct kvfi_vllm_need need; /* of the value that is walked */
    const char *key;            /* NULL: the message itself */
    bool is_at_key;             /* at the key of a member of what the path names */
    size_t depth;
    int64_t steps[MAX_DEPTH];   /* indices, or ANY_KEY */
    struct kvf_error *error;
};

/* ---- refusals ----------------------------------------------------------------------------------------------- */

static enum kvf_status fail_cut(struct walk *walk)
{
    const struct kvfi_value_reader *reader = &walk->reader;

    if (reader->at < reader->count && reader->bytes[reader->at] == 0xc1)
        return kvfi_fail_at(walk->error, KVF_ERR_PROTOCOL, (int64_t)reader->at,
                            "MessagePack data is malformed: invalid opcode '\\xc1' (byte %zu)", reader->at);
    return kvfi_fail_at(walk->error, KVF_ERR_PROTOCOL, (int64_t)reader->at, "Input data was truncated");
}

static const char *path_text(const struct walk *walk, char *out, size_t capacity)
{
    size_t used = (size_t)snprintf(out, capacity, "%s`$%s%s", walk->is_at_key ? "`key` in " : "", walk->key ? "." : "",
                                   walk->key ? walk->key : "");

    for (size_t i = 0; i < walk->depth && used < capacity; i++)
        used += (size_t)(walk->steps[i] == ANY_KEY ? snprintf(out + used, capacity - used, "[...]")
                                                   : snprintf(out + used, capacity - used, "[%" PRId64 "]",
                                                              walk->steps[i]));
    if (used < capacity) (void)snprintf(out + used, capacity - used, "`");
    return out;
}

/* ` - at ...`, which upstream leaves out for the message itself. */
static enum kvf_status fail_here(struct walk *walk, const char *what)
{
    bool is_whole = walk->key == NULL && !walk->is_at_key;
    char path[160];

    return kvfi_fail_at(walk->error, KVF_ERR_PROTOCOL, (int64_t)walk->reader.at, "%s%s%s", what,
                        is_whole ? "" : " - at ", is_whole ? "" : path_text(walk, path, sizeof path));
}

static const char *type_text(const struct walk *walk, enum kvfi_value_type type)
{
    static const char *const texts[] = {"None", "bool", "int", "int", "float", "str", "bytes", "array", "object",
                                        "ext"};

    /* Upstream's decoder has two words for nil; this is where it uses the other. */
    return type == KVFI_VALUE_NIL && walk->is_at_key && walk->key == NULL ? "null" : texts[type];
}

static enum kvf_status fail_type(struct walk *walk, const char *expected, const struct kvfi_value *value)
{
    char what[80];

    (void)snprintf(what, sizeof what, "Expected `%s`, got `%s`", expected, type_text(walk, value->type));
    return fail_here(walk, what);
}

/* ---- single values ------------------------------------------------------------------------------------------ */

static enum kvf_status take_int(struct walk *walk, bool is_unsigned)
{
    struct kvfi_value value;

    if (!kvfi_value_next(&walk->reader, &value)) return fail_cut(walk);
    if (value.type != KVFI_VALUE_UNSIGNED && value.type != KVFI_VALUE_NEGATIVE) return fail_type(walk, "int", &value);
    if (is_unsigned ? value.type == KVFI_VALUE_NEGATIVE
                    : value.type == KVFI_VALUE_UNSIGNED && value.number > INT64_MAX)
        return fail_here(walk, "Integer value out of range");
    walk->need.numbers++;
    return KVF_OK;
}

static enum kvf_status take_verdict(struct walk *walk, uint64_t last)
{
    struct kvfi_value value;
    char what[80];

    if (!kvfi_value_next(&walk->reader, &value)) return fail_cut(walk);
    if (value.type != KVFI_VALUE_UNSIGNED && value.type != KVFI_VALUE_NEGATIVE) return fail_type(walk, "int", &value);
    if (value.type == KVFI_VALUE_UNSIGNED && value.number <= last) return KVF_OK;
    if (value.type == KVFI_VALUE_NEGATIVE)
        (void)snprintf(what, sizeof what, "Invalid enum value %" PRId64, (int64_t)value.number);
    else
        (void)snprintf(what, sizeof what, "Invalid enum value %" PRIu64, value.number);
    return fail_here(walk, what);
}

static enum kvf_status take_str(struct walk *walk, bool or_nil)
{
    struct kvfi_value value;

    if (!kvfi_value_next(&walk->reader, &value)) return fail_cut(walk);
    if (or_nil && value.type == KVFI_VALUE_NIL) return KVF_OK;
    if (value.type != KVFI_VALUE_STR) return fail_type(walk, or_nil ? "str | null" : "str", &value);
    if (!kvfi_text_is_utf8((const char *)value.data, value.count))
        return kvfi_fail_at(walk->error, KVF_ERR_PROTOCOL, (int64_t)value.position, "Invalid UTF-8 encoded string");
    if (memchr(value.data, '\0', value.count) != NULL) return fail_here(walk, "String holds a zero byte");
    walk->need.chars += value.count + 1;
    return KVF_OK;
}

/* The head of an array of any length; a nil that is allowed counts as an empty one. */
static enum kvf_status take_array(struct walk *walk, bool or_nil, size_t *count)
{
    struct kvfi_value value;

    *count = 0;
    if (!kvfi_value_next(&walk->reader, &value)) return fail_cut(walk);
    if (or_nil && value.type == KVFI_VALUE_NIL) return KVF_OK;
    if (value.type != KVFI_VALUE_ARRAY) return fail_type(walk, or_nil ? "array | null" : "array", &value);
    *count = value.count;
    return KVF_OK;
}

static enum kvf_status skip_one(struct walk *walk)
{
    enum kvfi_value_skip skip = kvfi_value_skip(&walk->reader);

    if (skip == KVFI_VALUE_TOO_DEEP)
        return kvfi_fail_at(walk->error, KVF_ERR_PROTOCOL, (int64_t)walk->reader.at,
                            "maximum recursion depth exceeded while deserializing an object");
    return skip == KVFI_VALUE_SKIPPED ? KVF_OK : fail_cut(walk);
}

/* ---- arrays ------------------------------------------------------------------------------------------------- */

static enum kvf_status take_ints(struct walk *walk, bool is_unsigned)
{
    struct kvfi_value_reader *reader = &walk->reader;
    size_t count, depth = walk->depth;
    int64_t number;
    enum kvf_status status = take_array(walk, false, &count);

    walk->depth++;
    for (size_t i = 0; status == KVF_OK && i < count; i++) {
        size_t plain = kvfi_value_plain_int(reader->bytes + reader->at, reader->count - reader->at, &number);

        reader->at += plain;
        walk->need.numbers += plain != 0;
        walk->steps[depth] = (int64_t)i;
        if (plain == 0) status = take_int(walk, is_unsigned);
    }
    walk->depth = depth;
    return status;
}

static enum kvf_status take_strs(struct walk *walk, bool or_nil)
{
    size_t count, depth = walk->depth;
    enum kvf_status status = take_array(walk, or_nil, &count);

    walk->need.strs += count;
    walk->depth++;
    for (size_t i = 0; status == KVF_OK && i < count; i++) {
        walk->steps[depth] = (int64_t)i;
        status = take_str(walk, false);
    }
    walk->depth = depth;
    return status;
}

static enum kvf_status take_lists(struct walk *walk)
{
    size_t count, depth = walk->depth;
    enum kvf_status status = take_array(walk, false, &count);

    walk->need.lists += count;
    walk->depth++;
    for (size_t i = 0; status == KVF_OK && i < count; i++) {
        walk->steps[depth] = (int64_t)i;
        status = take_ints(walk, false);
    }
    walk->depth = depth;
    return status;
}

/* (transfer id, block ids per group): an array of two. */
static enum kvf_status take_request(struct walk *walk)
{
    size_t count;
    enum kvf_status status = take_array(walk, false, &count);
    char what[80];

    if (status == KVF_OK && count != 2) {
        (void)snprintf(what, sizeof what, "Expected `array` of length 2, got %zu", count);
        return fail_here(walk, what);
    }
    walk->depth = 2;
    if (status == KVF_OK) {
        walk->steps[1] = 0;
        status = take_str(walk, false);
    }
    if (status == KVF_OK) {
        walk->steps[1] = 1;
        status = take_lists(walk);
    }
    walk->depth = 0;
    return status;
}

static enum kvf_status take_requests(struct walk *walk)
{
    struct kvfi_value map;
    enum kvf_status status = KVF_OK;

    if (!kvfi_value_next(&walk->reader, &map)) return fail_cut(walk);
    if (map.type != KVFI_VALUE_DICT) return fail_type(walk, "object", &map);
    walk->need.requests += map.count;
    for (size_t i = 0; status == KVF_OK && i < map.count; i++) {
        walk->is_at_key = true;
        status = take_str(walk, false);
        walk->is_at_key = false;
        if (status != KVF_OK) break;
        walk->steps[0] = ANY_KEY;
        walk->depth = 1;
        status = take_request(walk);
        walk->depth = 0;
    }
    return status;
}

static enum kvf_status take(struct walk *walk, enum kvfi_vllm_shape shape)
{
    switch (shape) {
    case KVFI_VLLM_INT: return take_int(walk, false);
    case KVFI_VLLM_UINT: return take_int(walk, true);
    case KVFI_VLLM_STR: return take_str(walk, false);
    case KVFI_VLLM_STR_OR_NIL: return take_str(walk, true);
    case KVFI_VLLM_INTS: return take_ints(walk, false);
    case KVFI_VLLM_UINTS: return take_ints(walk, true);
    case KVFI_VLLM_STRS: return take_strs(walk, false);
    case KVFI_VLLM_STRS_OR_NIL: return take_strs(walk, true);
    case KVFI_VLLM_LISTS: return take_lists(walk);
    case KVFI_VLLM_VERDICT: return take_verdict(walk, KVFI_VLLM_LAYOUT_MISS);
    case KVFI_VLLM_OLD_VERDICT: return take_verdict(walk, KVFI_VLLM_ERROR);
    case KVFI_VLLM_REQUESTS: return take_requests(walk);
    case KVFI_VLLM_ANYTHING: break;
    }
    return skip_one(walk);
}

/* ---- the map ------------------------------------------------------------------------------------------------ */

static size_t find_key(const struct kvfi_value *value, const struct kvfi_vllm_key *keys, size_t key_count)
{
    size_t i = 0;

    while (i < key_count &&
           (strlen(keys[i].name) != value->count || memcmp(keys[i].name, value->data, value->count) != 0))
        i++;
    return i;
}

static enum kvf_status take_member(struct walk *walk, const struct kvfi_vllm_key *keys, size_t key_count,
                                   struct kvfi_vllm_found *found)
{
    struct kvfi_value key;
    enum kvf_status status;
    size_t i;

    walk->is_at_key = true;
    if (!kvfi_value_next(&walk->reader, &key)) return fail_cut(walk);
    if (key.type != KVFI_VALUE_STR) return fail_type(walk, "str", &key);
    walk->is_at_key = false;
    i = find_key(&key, keys, key_count);
    if (i == key_count) return skip_one(walk);
    found[i].start = walk->reader;
    walk->need = (struct kvfi_vllm_need){0};
    walk->key = keys[i].name;
    status = take(walk, keys[i].shape);
    walk->key = NULL;
    found[i].need = walk->need;
    return status;
}

enum kvf_status kvfi_vllm_walk(const void *bytes, size_t byte_count, const struct kvfi_vllm_key *keys, size_t key_count,
                               struct kvfi_vllm_found *found, struct kvf_error *error)
{
    struct walk walk = {.reader = {.bytes = bytes, .count = byte_count}, .error = error};
    enum kvf_status status = KVF_OK;
    struct kvfi_value map;

    if (byte_count > KVFI_VLLM_MAX_MESSAGE_BYTES)
        return kvfi_fail(error, KVF_ERR_LIMIT, "a message of the side channel has %zu bytes, at most %d are taken",
                         byte_count, KVFI_VLLM_MAX_MESSAGE_BYTES);
    if (!kvfi_value_next(&walk.reader, &map)) return fail_cut(&walk);
    if (map.type != KVFI_VALUE_DICT) return fail_type(&walk, "object", &map);
    for (size_t i = 0; status == KVF_OK && i < map.count; i++) status = take_member(&walk, keys, key_count, found);
    for (size_t i = 0; status == KVF_OK && i < key_count; i++)
        if (keys[i].is_required && found[i].start.bytes == NULL)
            status = kvfi_fail(error, KVF_ERR_PROTOCOL, "Object missing required field `%s`", keys[i].name);
    if (status == KVF_OK && walk.reader.at != byte_count)
        status = kvfi_fail_at(error, KVF_ERR_PROTOCOL, (int64_t)walk.reader.at,
                              "MessagePack data is malformed: trailing characters (byte %zu)", walk.reader.at);
    return status;
}
