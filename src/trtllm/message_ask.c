/* SPDX-License-Identifier: Apache-2.0 */
/* REQUEST_DATA's payload. The reader walks the bytes forward and allocates once, after everything was looked at. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <msgpack.h>

#include "base/checked.h"
#include "base/error.h"
#include "trtllm/message.h"
#include "wire/text.h"
#include "wire/values.h"

/* ---- fields ------------------------------------------------------------------------------------------------- */

enum field { SENDER_REQ_ID, INSTANCE_NAME, INSTANCE_RANK, BLOCK_IDS, UNIQUE_RID, DST_START, AUX_SLOT, SLICE_ID,
             BOUNCE, FIELDS };

static const char *const keys[FIELDS] = {
    "sender_req_id", "instance_name", "instance_rank", "block_ids_per_layer_groups", "unique_rid", "dst_start_token",
    "aux_slot", "slice_id", "bounce_dst_base"};

/* Where each field's value begins; no bytes = not there. */
struct found {
    struct kvfi_value_reader values[FIELDS];
};

static enum kvf_status broken(const struct kvfi_value_reader *reader, struct kvf_error *error)
{
    return kvfi_fail_at(error, KVF_ERR_PROTOCOL, (int64_t)reader->at,
                        "REQUEST_DATA: byte %zu of %zu starts nothing that fits in the bytes left", reader->at,
                        reader->count);
}

/* Steps over one value; `*out` is its head. */
static enum kvf_status step_over(struct kvfi_value_reader *reader, struct kvfi_value *out, struct kvf_error *error)
{
    struct kvfi_value_reader start = *reader, head = *reader;
    enum kvfi_value_skip skip = kvfi_value_next(&head, out) ? kvfi_value_skip(reader) : KVFI_VALUE_CUT;

    if (skip == KVFI_VALUE_TOO_DEEP)
        return kvfi_fail_at(error, KVF_ERR_PROTOCOL, (int64_t)reader->at, "REQUEST_DATA: byte %zu is nested more than "
                            "%d deep", reader->at, KVFI_VALUE_SKIP_DEPTH);
    return skip == KVFI_VALUE_SKIPPED ? KVF_OK : broken(&start, error);
}

static const char *text_of(const struct kvfi_value *value)
{
    bool huge = value->type == KVFI_VALUE_UNSIGNED && value->number > INT64_MAX;
    return huge ? "above 2^63 - 1" : kvfi_value_type_text(value->type);
}

static bool is_integer(const struct kvfi_value *value)
{
    return value->type == KVFI_VALUE_NEGATIVE || (value->type == KVFI_VALUE_UNSIGNED && value->number <= INT64_MAX);
}

static enum field find_key(const struct kvfi_value *value)
{
    int field = 0;

    if (value->type != KVFI_VALUE_STR)
        return FIELDS;
    while (field < FIELDS &&
           (strlen(keys[field]) != value->count || memcmp(keys[field], value->data, value->count) != 0))
        field++;
    return (enum field)field;
}

static enum kvf_status find_values(const unsigned char *bytes, size_t byte_count, struct found *out,
                                   struct kvf_error *error)
{
    struct kvfi_value_reader reader = {.bytes = bytes, .count = byte_count};
    struct kvfi_value map, value;
    enum kvf_status status = KVF_OK;
    enum field field;

    if (!kvfi_value_next(&reader, &map))
        return broken(&reader, error);
    if (map.type != KVFI_VALUE_DICT)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "REQUEST_DATA: payload is %s, expected a map", text_of(&map));
    for (size_t i = 0; status == KVF_OK && i < map.count; i++) {
        status = step_over(&reader, &value, error);
        if (status != KVF_OK)
            break;
        field = find_key(&value);
        if (field != FIELDS && out->values[field].bytes != NULL)
            return kvfi_fail(error, KVF_ERR_PROTOCOL, "REQUEST_DATA: %s comes twice", keys[field]);
        if (field != FIELDS)
            out->values[field] = reader;
        status = step_over(&reader, &value, error);
    }
    if (status == KVF_OK && reader.at != reader.count)
        return kvfi_fail_at(error, KVF_ERR_PROTOCOL, (int64_t)reader.at,
                            "REQUEST_DATA: %zu bytes after the map's end", reader.count - reader.at);
    return status;
}

/* The head of a field's value; false when it is not there. The bytes were walked once: it can be read. */
static bool value_of(const struct found *found, enum field field, struct kvfi_value *out)
{
    struct kvfi_value_reader reader = found->values[field];

    return reader.bytes != NULL && kvfi_value_next(&reader, out);
}

static enum kvf_status missing(enum field field, struct kvf_error *error)
{
    return kvfi_fail(error, KVF_ERR_PROTOCOL, "REQUEST_DATA: %s is missing", keys[field]);
}

static enum kvf_status read_integer(const struct found *found, enum field field, int64_t min, int64_t max,
                                    int64_t *out, struct kvf_error *error)
{
    struct kvfi_value value;

    if (!value_of(found, field, &value))
        return missing(field, error);
    if (!is_integer(&value))
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "REQUEST_DATA: %s is %s, expected an integer", keys[field],
                         text_of(&value));
    if ((int64_t)value.number < min || (int64_t)value.number > max)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "REQUEST_DATA: %s is %" PRId64 ", expected %" PRId64 " to %" PRId64,
                         keys[field], (int64_t)value.number, min, max);
    *out = (int64_t)value.number;
    return KVF_OK;
}

/* A field that may be missing or nil. */
static enum kvf_status read_optional(const struct found *found, enum field field, int64_t *out,
                                     struct kvf_error *error)
{
    struct kvfi_value value;

    *out = KVF_TRTLLM_NONE;
    if (!value_of(found, field, &value) || value.type == KVFI_VALUE_NIL)
        return KVF_OK;
    return read_integer(found, field, 0, INT64_MAX, out, error);
}

static enum kvf_status read_bounce(const struct found *found, struct kvfi_trtllm_ask *ask, struct kvf_error *error)
{
    struct kvfi_value value;

    if (!value_of(found, BOUNCE, &value) || value.type == KVFI_VALUE_NIL)
        return KVF_OK;
    if (value.type != KVFI_VALUE_UNSIGNED)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "REQUEST_DATA: %s is %s, expected an address or nil", keys[BOUNCE],
                         text_of(&value));
    ask->has_bounce = true;
    ask->bounce_base = value.number;
    return KVF_OK;
}

static enum kvf_status check_name(const struct found *found, struct kvfi_value *out, struct kvf_error *error)
{
    if (!value_of(found, INSTANCE_NAME, out))
        return missing(INSTANCE_NAME, error);
    if (out->type != KVFI_VALUE_STR)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "REQUEST_DATA: instance_name is %s, expected a text",
                         text_of(out));
    if (out->count == 0 || out->count > KVF_TRTLLM_MAX_TEXT_BYTES)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "REQUEST_DATA: instance_name has %zu bytes, expected 1 to %d",
                         out->count, KVF_TRTLLM_MAX_TEXT_BYTES);
    if (!kvfi_text_is_clean((const char *)out->data, out->count))
        return kvfi_fail(error, KVF_ERR_PROTOCOL,
                         "REQUEST_DATA: instance_name has control characters or is not UTF-8");
    return KVF_OK;
}

/* ---- block ids ---------------------------------------------------------------------------------------------- */

/* Looks at all arrays of ids and adds up how many there are. */
static enum kvf_status check_groups(const struct found *found, size_t *group_count, size_t *id_count,
                                    struct kvf_error *error)
{
    struct kvfi_value_reader reader = found->values[BLOCK_IDS];
    struct kvfi_value list, ids;

    if (reader.bytes == NULL)
        return missing(BLOCK_IDS, error);
    if (!kvfi_value_next(&reader, &list))
        return broken(&reader, error);
    if (list.type != KVFI_VALUE_ARRAY)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "REQUEST_DATA: %s is %s, expected an array", keys[BLOCK_IDS],
                         text_of(&list));
    if (list.count > KVF_TRTLLM_MAX_GROUPS)
        return kvfi_fail(error, KVF_ERR_LIMIT, "REQUEST_DATA: %s has %zu groups, at most %d are taken",
                         keys[BLOCK_IDS], list.count, KVF_TRTLLM_MAX_GROUPS);
    *id_count = 0;
    for (size_t i = 0; i < list.count; i++) {
        if (!kvfi_value_next(&reader, &ids))
            return broken(&reader, error);
        if (ids.type != KVFI_VALUE_BIN)
            return kvfi_fail(error, KVF_ERR_PROTOCOL, "REQUEST_DATA: %s[%zu] is %s, expected bytes",
                             keys[BLOCK_IDS], i, text_of(&ids));
        if (ids.count % 8 != 0)
            return kvfi_fail(error, KVF_ERR_PROTOCOL, "REQUEST_DATA: %s[%zu] has %zu bytes, which is no number of "
                             "8-byte ids", keys[BLOCK_IDS], i, ids.count);
        *id_count += ids.count / 8;
    }
    *group_count = list.count;
    return KVF_OK;
}

static void copy_groups(const struct found *found, size_t group_count, struct kvf_trtllm_blocks *groups, int64_t *ids)
{
    struct kvfi_value_reader reader = found->values[BLOCK_IDS];
    struct kvfi_value value;

    if (!kvfi_value_next(&reader, &value))
        return;
    for (size_t i = 0; i < group_count && kvfi_value_next(&reader, &value); i++) {
        groups[i] = (struct kvf_trtllm_blocks){.ids = ids, .count = value.count / 8};
        for (size_t b = 0; b < groups[i].count; b++) {
            uint64_t id = 0;
            for (int k = 7; k >= 0; k--)
                id = id << 8 | value.data[8 * b + (size_t)k];
            *ids++ = (int64_t)id;
        }
    }
}

/* ---- decoding ----------------------------------------------------------------------------------------------- */

static enum kvf_status read_numbers(const struct found *found, struct kvfi_trtllm_ask *ask, struct kvf_error *error)
{
    enum kvf_status status = read_integer(found, SENDER_REQ_ID, INT64_MIN, INT64_MAX, &ask->sender_req_id, error);

    if (status == KVF_OK)
        status = read_integer(found, INSTANCE_RANK, 0, KVF_TRTLLM_MAX_RANKS - 1, &ask->instance_rank, error);
    if (status == KVF_OK)
        status = read_integer(found, UNIQUE_RID, INT64_MIN + 1, INT64_MAX, &ask->rid, error);
    if (status == KVF_OK)
        status = read_optional(found, DST_START, &ask->dst_start_token, error);
    if (status == KVF_OK)
        status = read_optional(found, AUX_SLOT, &ask->aux_slot, error);
    if (status == KVF_OK)
        status = read_optional(found, SLICE_ID, &ask->slice, error);
    return status == KVF_OK ? read_bounce(found, ask, error) : status;
}

/* One block of memory: groups, ids, name. The counts are bounded by the bytes that are there. */
static enum kvf_status fill(const struct found *found, const struct kvfi_value *name, size_t id_count,
                            struct kvfi_trtllm_ask *ask, struct kvf_error *error)
{
    size_t groups_bytes = ask->group_count * sizeof(struct kvf_trtllm_blocks);
    size_t ids_bytes = id_count * sizeof(int64_t);
    unsigned char *memory = malloc(groups_bytes + ids_bytes + (size_t)name->count + 1);
    char *text;

    if (memory == NULL)
        return kvfi_fail_memory(error, "a request for data");
    text = (char *)memory + groups_bytes + ids_bytes;
    memcpy(text, name->data, (size_t)name->count);
    text[name->count] = '\0';
    copy_groups(found, ask->group_count, (struct kvf_trtllm_blocks *)memory, (int64_t *)(memory + groups_bytes));
    ask->memory = memory;
    ask->groups = (const struct kvf_trtllm_blocks *)memory;
    ask->instance_name = text;
    return KVF_OK;
}

enum kvf_status kvfi_trtllm_ask_decode(const void *bytes, size_t byte_count, struct kvfi_trtllm_ask *out,
                                       struct kvf_error *error)
{
    struct kvfi_trtllm_ask ask = {0};
    struct found found = {0};
    struct kvfi_value name;
    size_t id_count = 0;
    enum kvf_status status;

    if (byte_count > KVFI_TRTLLM_MAX_REQUEST_BYTES)
        return kvfi_fail(error, KVF_ERR_LIMIT, "REQUEST_DATA: payload has %zu bytes, at most %d are taken", byte_count,
                         KVFI_TRTLLM_MAX_REQUEST_BYTES);
    status = find_values(bytes, byte_count, &found, error);
    if (status == KVF_OK)
        status = read_numbers(&found, &ask, error);
    if (status == KVF_OK)
        status = check_name(&found, &name, error);
    if (status == KVF_OK)
        status = check_groups(&found, &ask.group_count, &id_count, error);
    if (status == KVF_OK)
        status = fill(&found, &name, id_count, &ask, error);
    if (status == KVF_OK)
        *out = ask;
    return status;
}

bool kvfi_trtllm_ask_peek(const void *bytes, size_t byte_count, int64_t *rid, int64_t *slice, char *name,
                          size_t name_capacity, int64_t *instance_rank)
{
    struct found found = {0};
    struct kvfi_value text;
    bool complete = true;

    name[0] = '\0';
    if (byte_count > KVFI_TRTLLM_MAX_REQUEST_BYTES)
        return false;
    (void)find_values(bytes, byte_count, &found, NULL); /* what stands before the fault counts */
    complete &= read_integer(&found, UNIQUE_RID, INT64_MIN + 1, INT64_MAX, rid, NULL) == KVF_OK;
    complete &= read_integer(&found, INSTANCE_RANK, 0, KVF_TRTLLM_MAX_RANKS - 1, instance_rank, NULL) == KVF_OK;
    (void)read_optional(&found, SLICE_ID, slice, NULL);
    if (check_name(&found, &text, NULL) != KVF_OK || text.count >= name_capacity)
        return false;
    memcpy(name, text.data, (size_t)text.count);
    name[text.count] = '\0';
    return complete;
}

void kvfi_trtllm_ask_fini(struct kvfi_trtllm_ask *ask)
{
    free(ask->memory);
    *ask = (struct kvfi_trtllm_ask){0};
}

/* ---- encoding ----------------------------------------------------------------------------------------------- */

static void pack_key(msgpack_packer *packer, enum field field)
{
    msgpack_pack_str_with_body(packer, keys[field], strlen(keys[field]));
}

static void pack_optional(msgpack_packer *packer, enum field field, int64_t value)
{
    pack_key(packer, field);
    if (value == KVF_TRTLLM_NONE)
        msgpack_pack_nil(packer);
    else
        msgpack_pack_int64(packer, value);
}

static void pack_ids(msgpack_packer *packer, const struct kvf_trtllm_blocks *group)
{
    msgpack_pack_bin(packer, 8 * group->count);
    for (size_t i = 0; i < group->count; i++) {
        unsigned char bytes[8];
        for (int k = 0; k < 8; k++)
            bytes[k] = (unsigned char)((uint64_t)group->ids[i] >> (8 * k));
        msgpack_pack_bin_body(packer, bytes, sizeof bytes);
    }
}

static void pack_ask(msgpack_packer *packer, const struct kvfi_trtllm_ask *ask)
{
    msgpack_pack_map(packer, FIELDS);
    pack_optional(packer, SENDER_REQ_ID, ask->sender_req_id);
    pack_key(packer, INSTANCE_NAME);
    msgpack_pack_str_with_body(packer, ask->instance_name, strlen(ask->instance_name));
    pack_optional(packer, INSTANCE_RANK, ask->instance_rank);
    pack_key(packer, BLOCK_IDS);
    msgpack_pack_array(packer, ask->group_count);
    for (size_t i = 0; i < ask->group_count; i++)
        pack_ids(packer, &ask->groups[i]);
    pack_optional(packer, UNIQUE_RID, ask->rid);
    pack_optional(packer, DST_START, ask->dst_start_token);
    pack_optional(packer, AUX_SLOT, ask->aux_slot);
    pack_optional(packer, SLICE_ID, ask->slice);
    pack_key(packer, BOUNCE);
    if (ask->has_bounce)
        msgpack_pack_uint64(packer, ask->bounce_base);
    else
        msgpack_pack_nil(packer);
}

/* The bytes of all ids, and some for the rest: what a peer would refuse is not sent. */
static enum kvf_status check_ask(const struct kvfi_trtllm_ask *ask, struct kvf_error *error)
{
    size_t name_bytes = strlen(ask->instance_name), ids = 0;

    if (name_bytes == 0 || name_bytes > KVF_TRTLLM_MAX_TEXT_BYTES ||
        !kvfi_text_is_clean(ask->instance_name, name_bytes))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "REQUEST_DATA: instance_name has %zu bytes, expected 1 to %d "
                         "bytes of text", name_bytes, KVF_TRTLLM_MAX_TEXT_BYTES);
    if (ask->sender_req_id == KVF_TRTLLM_NONE || ask->rid == KVF_TRTLLM_NONE)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "REQUEST_DATA: %s is not set",
                         ask->rid == KVF_TRTLLM_NONE ? "unique_rid" : "sender_req_id");
    if (ask->instance_rank < 0 || ask->instance_rank >= KVF_TRTLLM_MAX_RANKS)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "REQUEST_DATA: instance_rank is %" PRId64
                         ", expected 0 to %d", ask->instance_rank, KVF_TRTLLM_MAX_RANKS - 1);
    if (ask->group_count > KVF_TRTLLM_MAX_GROUPS)
        return kvfi_fail(error, KVF_ERR_LIMIT, "REQUEST_DATA: %zu groups, at most %d are taken", ask->group_count,
                         KVF_TRTLLM_MAX_GROUPS);
    for (size_t i = 0; i < ask->group_count; i++)
        if (!kvfi_add_size(ids, ask->groups[i].count, &ids) || ids > KVFI_TRTLLM_MAX_REQUEST_BYTES / 8 - 4096)
            return kvfi_fail(error, KVF_ERR_LIMIT, "REQUEST_DATA: more than %d block ids",
                             KVFI_TRTLLM_MAX_REQUEST_BYTES / 8 - 4096);
    return KVF_OK;
}

/* Room for the whole map, made before the packer begins: it says nothing of a write that failed in between. */
struct sink {
    unsigned char *bytes;
    size_t count, capacity;
};

static int write_bytes(void *context, const char *bytes, size_t byte_count)
{
    struct sink *sink = context;

    if (byte_count > sink->capacity - sink->count)
        return -1;
    memcpy(sink->bytes + sink->count, bytes, byte_count);
    sink->count += byte_count;
    return 0;
}

enum kvf_status kvfi_trtllm_ask_encode(const struct kvfi_trtllm_ask *ask, unsigned char **out, size_t *byte_count,
                                       struct kvf_error *error)
{
    enum kvf_status status = check_ask(ask, error);
    struct sink sink = {.capacity = 512};
    msgpack_packer packer;

    if (status != KVF_OK)
        return status;
    sink.capacity += strlen(ask->instance_name);
    for (size_t i = 0; i < ask->group_count; i++)
        sink.capacity += 5 + 8 * ask->groups[i].count;
    sink.bytes = malloc(sink.capacity);
    if (sink.bytes == NULL)
        return kvfi_fail_memory(error, "a request for data");
    msgpack_packer_init(&packer, &sink, write_bytes);
    pack_ask(&packer, ask);
    *out = sink.bytes;
    *byte_count = sink.count;
    return KVF_OK;
}
