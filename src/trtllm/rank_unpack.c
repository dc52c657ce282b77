/* SPDX-License-Identifier: Apache-2.0 */
/* A rank info from its bytes. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "trtllm/rank_fields.h"
#include "wire/values.h"

/** One step of the way to a value, for sentences: a key, or an item of the key above it. */
struct way {
    const struct way *up;
    const char *key; /* NULL: item `index` */
    size_t index;
};

struct unpacker {
    struct kvfi_value_reader in;
    struct kvfi_arena arena; /* what the spec points to */
    struct kvfi_trt_budget left;
    bool has_unknown;        /* some key was skipped */
    struct kvf_error *error;
};

static void write_way(const struct way *way, char *text, size_t bytes)
{
    size_t used;

    text[0] = '\0';
    if (!way) return;
    write_way(way->up, text, bytes);
    used = strlen(text);
    if (way->key) snprintf(text + used, bytes - used, "%s%s", used ? "." : "", way->key);
    else snprintf(text + used, bytes - used, "[%zu]", way->index);
}

static enum kvf_status fail(struct unpacker *unpacker, enum kvf_status status, size_t position, const struct way *way,
                            const char *what)
{
    char path[160];

    write_way(way, path, sizeof path);
    return kvfi_fail_at(unpacker->error, status, (int64_t)position, "rank info: %s%s%s", path, path[0] ? ": " : "",
                        what);
}

static enum kvf_status fail_type(struct unpacker *unpacker, const struct kvfi_value *value, const struct way *way,
                                 const char *expected)
{
    char what[160];

    snprintf(what, sizeof what, "expected %s, found %s", expected, kvfi_value_type_text(value->type));
    return fail(unpacker, KVF_ERR_PARSE, value->position, way, what);
}

static enum kvf_status fail_memory(struct unpacker *unpacker)
{
    return kvfi_fail_memory(unpacker->error, "rank info");
}

static enum kvf_status next(struct unpacker *unpacker, const struct way *way, struct kvfi_value *value)
{
    char what[96];

    if (kvfi_value_next(&unpacker->in, value)) return KVF_OK;
    snprintf(what, sizeof what, "byte %zu starts nothing that fits in the %zu bytes left", unpacker->in.at,
             unpacker->in.count - unpacker->in.at);
    return fail(unpacker, KVF_ERR_PARSE, unpacker->in.at, way, what);
}

static enum kvf_status skip(struct unpacker *unpacker, const struct way *way)
{
    struct kvfi_value value;
    enum kvfi_value_skip how = kvfi_value_skip(&unpacker->in);
    enum kvf_status status = KVF_OK;

    if (how == KVFI_VALUE_CUT) status = next(unpacker, way, &value);
    else if (how == KVFI_VALUE_TOO_DEEP)
        status = fail(unpacker, KVF_ERR_LIMIT, unpacker->in.at, way, "more than 32 arrays and maps inside each other");
    return status;
}

static enum kvf_status to_int(struct unpacker *unpacker, const struct kvfi_value *value, const struct way *way,
                              int64_t *out)
{
    if (value->type != KVFI_VALUE_UNSIGNED && value->type != KVFI_VALUE_NEGATIVE)
        return fail_type(unpacker, value, way, "an integer");
    if ((value->type == KVFI_VALUE_UNSIGNED && value->number > INT64_MAX) || (int64_t)value->number == KVF_TRTLLM_NONE)
        return fail(unpacker, KVF_ERR_PARSE, value->position, way, "an integer does not fit in 63 bits and a sign");
    *out = (int64_t)value->number;
    return KVF_OK;
}

static enum kvf_status to_text(struct unpacker *unpacker, const struct kvfi_value *value, const struct way *way,
                               const char **out)
{
    const char *text;

    if (value->type != KVFI_VALUE_STR) return fail_type(unpacker, value, way, "a text");
    if (value->count > KVF_TRTLLM_MAX_TEXT_BYTES)
        return fail(unpacker, KVF_ERR_LIMIT, value->position, way, "a text has more than 4096 bytes");
    if (value->count && memchr(value->data, 0, value->count))
        return fail(unpacker, KVF_ERR_PARSE, value->position, way, "a text has a zero byte");
    text = kvfi_arena_text(&unpacker->arena, (const char *)value->data, value->count);
    if (!text) return fail_memory(unpacker);
    *out = text;
    return KVF_OK;
}

static enum kvf_status to_enum(struct unpacker *unpacker, const struct kvfi_value *value, const struct way *way,
                               const char *const *words, int64_t *out)
{
    if (value->type != KVFI_VALUE_STR) return to_int(unpacker, value, way, out);
    for (int64_t i = 0; words[i]; i++) {
        if (strlen(words[i]) == value->count && strncasecmp(words[i], (const char *)value->data, value->count) == 0) {
            *out = i;
            return KVF_OK;
        }
    }
    return fail(unpacker, KVF_ERR_PARSE, value->position, way, "a text that is no kind");
}

/* Bytes of one element; only whole eighths of a byte are sizes of something. */
static enum kvf_status to_eighths(struct unpacker *unpacker, const struct kvfi_value *value, const struct way *way,
                                  int64_t *out)
{
    double eighths = value->type == KVFI_VALUE_UNSIGNED ? (double)value->number * 8 : value->real * 8;

    if (value->type != KVFI_VALUE_UNSIGNED && value->type != KVFI_VALUE_FLOAT)
        return fail_type(unpacker, value, way, "a size in bytes");
    if (!(eighths >= 1) || eighths > 9007199254740992.0 || eighths != (double)(int64_t)eighths)
        return fail(unpacker, KVF_ERR_PARSE, value->position, way, "not a positive number of eighths of a byte");
    *out = (int64_t)eighths;
    return KVF_OK;
}

/* The number of a list's items, taken from its limit before anything is allocated for it. */
static enum kvf_status take_items(struct unpacker *unpacker, const struct kvfi_trt_field *field, size_t position,
                                  const struct way *way, size_t count)
{
    size_t own = field->limit;
    size_t *left = field->limit ? &own : (size_t *)((char *)&unpacker->left + field->budget);
    char what[96];

    if (count > *left) {
        snprintf(what, sizeof what, "%zu items, at most %zu are left of what is allowed", count, *left);
        return fail(unpacker, KVF_ERR_LIMIT, position, way, what);
    }
    *left -= count;
    return KVF_OK;
}

static enum kvf_status read_int_item(struct unpacker *unpacker, const struct way *way, int64_t *out)
{
    struct kvfi_value value;
    enum kvf_status status = next(unpacker, way, &value);

    return status == KVF_OK ? to_int(unpacker, &value, way, out) : status;
}

static enum kvf_status read_entry(struct unpacker *unpacker, const struct way *way, struct kvf_trtllm_entry *out)
{
    struct kvfi_value value;
    enum kvf_status status = next(unpacker, way, &value);

    if (status == KVF_OK && (value.type != KVFI_VALUE_ARRAY || value.count != 3))
        status = fail(unpacker, KVF_ERR_PARSE, value.position, way, "expected an array of layer, offset and size");
    if (status == KVF_OK) status = read_int_item(unpacker, way, &out->local_layer);
    if (status == KVF_OK) status = read_int_item(unpacker, way, &out->offset_bytes);
    if (status == KVF_OK) status = read_int_item(unpacker, way, &out->size_bytes);
    return status;
}

static enum kvf_status read_address(struct unpacker *unpacker, const struct kvfi_value *value,
                                    const struct way *way, uint64_t *out)
{
    if (value->type != KVFI_VALUE_UNSIGNED) return fail_type(unpacker, value, way, "an address");
    *out = value->number;
    return KVF_OK;
}

static enum kvf_status read_map(struct unpacker *unpacker, const struct kvfi_trt_map *map,
                                const struct kvfi_value *head, const struct way *way, void *object);

static enum kvf_status read_item(struct unpacker *unpacker, const struct kvfi_trt_field *field, const struct way *way,
                                 void *out)
{
    struct kvfi_value value;
    enum kvf_status status;

    if (field->kind == KVFI_TRT_ENTRIES) return read_entry(unpacker, way, out);
    status = next(unpacker, way, &value);
    if (status != KVF_OK) return status;
    if (field->kind == KVFI_TRT_TEXTS) return to_text(unpacker, &value, way, out);
    if (field->kind == KVFI_TRT_ADDRESSES) return read_address(unpacker, &value, way, out);
    if (field->kind == KVFI_TRT_MAPS) return read_map(unpacker, field->map, &value, way, out);
    return to_int(unpacker, &value, way, out);
}

static size_t item_bytes(const struct kvfi_trt_field *field)
{
    switch (field->kind) {
    case KVFI_TRT_TEXTS: return sizeof(const char *);
    case KVFI_TRT_ENTRIES: return sizeof(struct kvf_trtllm_entry);
    case KVFI_TRT_MAPS: return field->map->bytes;
    default: return sizeof(int64_t);
    }
}

static enum kvf_status read_list(struct unpacker *unpacker, const struct kvfi_trt_field *field,
                                 const struct kvfi_value *head, const struct way *way, char *object)
{
    size_t bytes = item_bytes(field);
    enum kvf_status status = KVF_OK;
    char *items = NULL;

    if (head->type != KVFI_VALUE_ARRAY) return fail_type(unpacker, head, way, "an array");
    status = take_items(unpacker, field, head->position, way, head->count);
    if (status != KVF_OK) goto done;
    items = kvfi_arena_take(&unpacker->arena, head->count, bytes);
    if (!items) status = fail_memory(unpacker);
    for (size_t i = 0; i < head->count && status == KVF_OK; i++) {
        struct way item = {.up = way, .index = i};

        status = read_item(unpacker, field, &item, items + i * bytes);
    }
    memcpy(object + field->offset, &items, sizeof items);
    memcpy(object + field->count_offset, &head->count, sizeof head->count);
done:
    return status;
}

static enum kvf_status read_bytes(struct unpacker *unpacker, const struct kvfi_trt_field *field,
                                  const struct kvfi_value *value, const struct way *way, char *object)
{
    if (value->type != KVFI_VALUE_BIN) return fail_type(unpacker, value, way, "bytes");
    memcpy(object + field->offset, &value->data, sizeof value->data);
    memcpy(object + field->count_offset, &value->count, sizeof value->count);
    return KVF_OK;
}

static enum kvf_status read_inner(struct unpacker *unpacker, const struct kvfi_trt_field *field,
                                  const struct kvfi_value *value, const struct way *way, char *object)
{
    void *inner = kvfi_arena_take(&unpacker->arena, 1, field->map->bytes);

    if (!inner) return fail_memory(unpacker);
    memcpy(object + field->offset, &inner, sizeof inner);
    return read_map(unpacker, field->map, value, way, inner);
}

static enum kvf_status read_flag(struct unpacker *unpacker, const struct kvfi_value *value, const struct way *way,
                                 int64_t *out)
{
    if (value->type != KVFI_VALUE_BOOL) return fail_type(unpacker, value, way, "true or false");
    *out = (int64_t)value->number;
    return KVF_OK;
}

static bool may_be_nil(enum kvfi_trt_kind kind)
{
    return kind == KVFI_TRT_INT_OR_NIL || kind == KVFI_TRT_FLAG_OR_NIL || kind == KVFI_TRT_TEXT_OR_NIL ||
           kind == KVFI_TRT_INTS_OR_NIL || kind == KVFI_TRT_MAP_OR_NIL;
}

static enum kvf_status read_field(struct unpacker *unpacker, const struct kvfi_trt_field *field, const struct way *way,
                                  char *object)
{
    void *place = object + field->offset;
    struct kvfi_value value;
    enum kvf_status status = next(unpacker, way, &value);

    if (status != KVF_OK || (value.type == KVFI_VALUE_NIL && may_be_nil(field->kind))) return status;
    switch (field->kind) {
    case KVFI_TRT_INT:
    case KVFI_TRT_INT_OR_NIL: return to_int(unpacker, &value, way, place);
    case KVFI_TRT_FLAG:
    case KVFI_TRT_FLAG_OR_NIL: return read_flag(unpacker, &value, way, place);
    case KVFI_TRT_ENUM: return to_enum(unpacker, &value, way, field->words, place);
    case KVFI_TRT_ADDRESS: return read_address(unpacker, &value, way, place);
    case KVFI_TRT_EIGHTHS: return to_eighths(unpacker, &value, way, place);
    case KVFI_TRT_TEXT:
    case KVFI_TRT_TEXT_OR_NIL: return to_text(unpacker, &value, way, place);
    case KVFI_TRT_BYTES: return read_bytes(unpacker, field, &value, way, object);
    case KVFI_TRT_MAP_OR_NIL: return read_inner(unpacker, field, &value, way, object);
    default: return read_list(unpacker, field, &value, way, object);
    }
}

static const struct kvfi_trt_field *find_field(const struct kvfi_trt_map *map, const struct kvfi_value *key)
{
    for (size_t i = 0; i < map->field_count && key->type == KVFI_VALUE_STR; i++) {
        const struct kvfi_trt_field *field = &map->fields[i];

        if (strlen(field->name) == key->count && memcmp(field->name, key->data, key->count) == 0) return field;
    }
    return NULL;
}

/* Reads a key. One that is itself an array or a map is skipped whole, as a key that nobody knows. */
static enum kvf_status read_key(struct unpacker *unpacker, const struct way *way, struct kvfi_value *key)
{
    enum kvf_status status = next(unpacker, way, key);

    if (status == KVF_OK && (key->type == KVFI_VALUE_ARRAY || key->type == KVFI_VALUE_DICT)) {
        unpacker->in.at = key->position;
        status = skip(unpacker, way);
    }
    return status;
}

static enum kvf_status read_pair(struct unpacker *unpacker, const struct kvfi_trt_map *map, const struct way *way,
                                 uint32_t *seen, void *object)
{
    const struct kvfi_trt_field *field;
    struct way inside = {.up = way};
    struct kvfi_value key;
    enum kvf_status status = read_key(unpacker, way, &key);

    if (status != KVF_OK) goto done;
    field = find_field(map, &key);
    if (!field) {
        unpacker->has_unknown = true;
        status = skip(unpacker, way);
        goto done;
    }
    inside.key = field->name;
    if (*seen >> (field - map->fields) & 1) {
        status = fail(unpacker, KVF_ERR_PARSE, key.position, &inside, "the key is there twice");
        goto done;
    }
    *seen |= (uint32_t)1 << (field - map->fields);
    status = read_field(unpacker, field, &inside, object);
done:
    return status;
}

/* No recursion without an end: tables nest six deep. */
static enum kvf_status read_map(struct unpacker *unpacker, const struct kvfi_trt_map *map,
                                const struct kvfi_value *head, const struct way *way, void *object)
{
    uint32_t seen = 0;
    enum kvf_status status = KVF_OK;

    if (head->type != KVFI_VALUE_DICT) return fail_type(unpacker, head, way, "a map");
    memcpy(object, map->defaults, map->bytes);
    for (size_t i = 0; i < head->count && status == KVF_OK; i++)
        status = read_pair(unpacker, map, way, &seen, object);
    for (size_t i = 0; i < map->field_count && status == KVF_OK; i++) {
        struct way inside = {.up = way, .key = map->fields[i].name};

        if ((map->fields[i].flags & KVFI_TRT_REQUIRED) && !(seen >> i & 1))
            status = fail(unpacker, KVF_ERR_PARSE, head->position, &inside, "the key is missing");
    }
    if (status == KVF_OK && map->complete) map->complete(object, seen);
    return status;
}

/* A version that is another one is all that may be said of the rest. */
static enum kvf_status check_version(struct unpacker *unpacker, const struct kvfi_value *version)
{
    const struct way way = {.key = "protocol_version"};
    int64_t number = 0;
    enum kvf_status status = to_int(unpacker, version, &way, &number);

    if (status == KVF_OK && number != KVF_TRTLLM_PROTOCOL_VERSION)
        status = kvfi_fail_at(unpacker->error, KVF_ERR_VERSION, (int64_t)version->position,
                              "rank info: protocol version %lld, this library speaks protocol version %d",
                              (long long)number, KVF_TRTLLM_PROTOCOL_VERSION);
    return status;
}

/* A first walk over the outer map, understanding nothing but the version, then back to the start. */
static enum kvf_status look_for_version(struct unpacker *unpacker)
{
    static const char name[] = "protocol_version";
    struct kvfi_value head, key, value;
    enum kvf_status status = next(unpacker, NULL, &head);

    if (status == KVF_OK && head.type != KVFI_VALUE_DICT) status = fail_type(unpacker, &head, NULL, "a map");
    for (size_t i = 0; status == KVF_OK && i < head.count; i++) {
        status = read_key(unpacker, NULL, &key);
        if (status == KVF_OK && key.type == KVFI_VALUE_STR && key.count == sizeof name - 1 &&
            memcmp(key.data, name, key.count) == 0) {
            size_t at = unpacker->in.at;

            status = next(unpacker, NULL, &value);
            if (status == KVF_OK) status = check_version(unpacker, &value);
            unpacker->in.at = at;
        }
        if (status == KVF_OK) status = skip(unpacker, NULL);
    }
    if (status == KVF_OK && unpacker->in.at < unpacker->in.count)
        status = fail(unpacker, KVF_ERR_PARSE, unpacker->in.at, NULL, "bytes after its end");
    unpacker->in.at = 0;
    return status;
}

/* Bytes that encoding would spell otherwise are kept: keys in another order, left out where they are nil. */
static enum kvf_status keep_bytes(struct kvf_trtllm_rank *rank, const void *bytes, size_t byte_count,
                                  struct kvf_error *error)
{
    void *copy;

    if (kvfi_trt_rank_spells(rank, bytes, byte_count)) return KVF_OK;
    copy = kvfi_arena_take(&rank->arena, byte_count, 1);
    if (!copy) return kvfi_fail_memory(error, "rank info");
    rank->bytes = memcpy(copy, bytes, byte_count);
    rank->byte_count = byte_count;
    return KVF_OK;
}

enum kvf_status kvf_trtllm_rank_decode(const void *bytes, size_t byte_count, kvf_trtllm_rank **out,
                                       struct kvf_error *error)
{
    struct unpacker unpacker = {.in = {bytes, 0, byte_count}, .left = kvfi_trt_budget_full(), .error = error};
    struct kvf_trtllm_rank_spec spec;
    struct kvf_trtllm_rank *rank = NULL;
    struct kvfi_value head;
    enum kvf_status status = KVF_OK;

    if (!out || (!bytes && byte_count))
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "rank info: %s is missing", out ? "bytes" : "out");
    else if (byte_count > KVF_TRTLLM_MAX_RANK_BYTES)
        status = kvfi_fail(error, KVF_ERR_LIMIT, "rank info: %zu bytes, at most %d are taken", byte_count,
                           KVF_TRTLLM_MAX_RANK_BYTES);
    if (status == KVF_OK) status = look_for_version(&unpacker);
    if (status == KVF_OK) status = next(&unpacker, NULL, &head);
    if (status == KVF_OK) status = read_map(&unpacker, &kvfi_trt_rank_map, &head, NULL, &spec);
    if (status == KVF_OK) status = kvf_trtllm_rank_create(&spec, &rank, error);
    if (status == KVF_OK && !unpacker.has_unknown) status = keep_bytes(rank, bytes, byte_count, error);
    if (status != KVF_OK) goto done;
    *out = rank;
    rank = NULL;
done:
    kvf_trtllm_rank_release(rank);
    kvfi_arena_fini(&unpacker.arena);
    return status;
}
