/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <msgpack.h>

#include "base/error.h"
#include "wire/arena.h"
#include "wire/fields.h"
#include "wire/layout.h"
#include "wire/lists.h"
#include "wire/object.h"
#include "wire/scan.h"
#include "wire/text.h"

/** What one unpacked message owns. */
struct owned {
    struct kvfi_arena arena;
    kvf_layout *layout;
};

static enum kvf_status unpack_integer(const msgpack_object *object, const struct kvfi_field *field, const char *message,
                                      void *place, struct kvf_error *error)
{
    int64_t value;

    if (!kvfi_object_integer(object, &value))
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %s is %s, expected an integer", message, field->key,
                         kvfi_object_kind(object));
    if (value < field->min || value > field->max)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %s is %" PRId64 ", expected %" PRId64 " to %" PRId64, message,
                         field->key, value, field->min, field->max);
    memcpy(place, &value, sizeof value);
    return KVF_OK;
}

static enum kvf_status unpack_number(const msgpack_object *object, const struct kvfi_field *field, const char *message,
                                     void *place, struct kvf_error *error)
{
    if (object->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %s is %s, expected an integer of 0 or more", message, field->key,
                         kvfi_object_kind(object));
    if (object->via.u64 < (uint64_t)field->min)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %s is %" PRIu64 ", expected %" PRId64 " or more", message,
                         field->key, object->via.u64, field->min);
    memcpy(place, &object->via.u64, sizeof object->via.u64);
    return KVF_OK;
}

static enum kvf_status unpack_text(struct kvfi_arena *arena, const msgpack_object *object,
                                   const struct kvfi_field *field, const char *message, void *place,
                                   struct kvf_error *error)
{
    struct kvfi_text_rule rule = {.message = message, .key = field->key, .min = (size_t)field->min,
                                  .max = (size_t)field->max};
    const char *text;
    enum kvf_status status = kvfi_object_text(arena, object, &rule, &text, error);

    if (status == KVF_OK) memcpy(place, &text, sizeof text);
    return status;
}

static enum kvf_status unpack_hex(const msgpack_object *object, const struct kvfi_field *field, const char *message,
                                  char *place, struct kvf_error *error)
{
    char text[KVF_FINGERPRINT_TEXT_BYTES] = "";

    if (object->type == MSGPACK_OBJECT_STR && object->via.str.size == 32) memcpy(text, object->via.str.ptr, 32);
    if (object->type != MSGPACK_OBJECT_STR || (object->via.str.size != 0 && strspn(text, "0123456789abcdef") != 32))
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %s is not 32 lower-case hex digits", message, field->key);
    memcpy(place, text, sizeof text);
    return KVF_OK;
}

static enum kvf_status unpack_rank(const msgpack_object *object, const char *message, struct kvf_rank *place,
                                   struct kvf_error *error)
{
    int64_t numbers[5];

    if (object->type != MSGPACK_OBJECT_ARRAY || object->via.array.size != 5)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: rank is not an array of dp, pp, cp, tp, salt", message);
    for (size_t i = 0; i < 5; i++)
        if (!kvfi_object_integer(&object->via.array.ptr[i], &numbers[i]) || numbers[i] < 0)
            return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: rank number %zu is not an integer of 0 or more", message, i);
    *place = (struct kvf_rank){numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
    return KVF_OK;
}

static enum kvf_status unpack_layout(struct owned *owned, const msgpack_object *object, struct kvfi_message *message,
                                     struct kvf_error *error)
{
    enum kvf_status status = kvfi_layout_unpack(object, &owned->layout, error);

    if (status == KVF_OK) message->hello.layout = owned->layout;
    return status;
}

static enum kvf_status unpack_field(struct owned *owned, const msgpack_object *object, const struct kvfi_field *field,
                                    struct kvfi_message *message, struct kvf_error *error)
{
    unsigned char *place = (unsigned char *)message + field->offset;
    const char *name = kvfi_message_name(message->type);

    switch (field->kind) {
    case KVFI_FIELD_INTEGER: return unpack_integer(object, field, name, place, error);
    case KVFI_FIELD_NUMBER: return unpack_number(object, field, name, place, error);
    case KVFI_FIELD_NAME:
    case KVFI_FIELD_SENTENCE: return unpack_text(&owned->arena, object, field, name, place, error);
    case KVFI_FIELD_HEX: return unpack_hex(object, field, name, (char *)place, error);
    case KVFI_FIELD_RANK: return unpack_rank(object, name, &message->hello.rank, error);
    case KVFI_FIELD_LAYOUT: return unpack_layout(owned, object, message, error);
    case KVFI_FIELD_IDS:
        return kvfi_groups_unpack(&owned->arena, object, &message->pull.groups, &message->pull.group_count, error);
    default:
        return kvfi_transports_unpack(&owned->arena, object, &message->pull.transports,
                                      &message->pull.transport_count, error);
    }
}

static void set_absent(const struct kvfi_field *field, struct kvfi_message *message)
{
    const char *empty = "";

    if (field->kind == KVFI_FIELD_SENTENCE || field->kind == KVFI_FIELD_NAME)
        memcpy((unsigned char *)message + field->offset, &empty, sizeof empty);
}

static enum kvf_status unpack_fields(struct owned *owned, const msgpack_object *map, struct kvfi_message *message,
                                     struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t field_count;
    const struct kvfi_field *fields = kvfi_message_fields(message->type, &field_count);
    const char *name = kvfi_message_name(message->type);

    for (size_t i = 0; i < field_count && status == KVF_OK; i++) {
        const msgpack_object *object;

        status = kvfi_object_find(map, name, fields[i].key, &object, error);
        if (status != KVF_OK) break;
        if (object) status = unpack_field(owned, object, &fields[i], message, error);
        else if (fields[i].optional) set_absent(&fields[i], message);
        else status = kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %s is missing", name, fields[i].key);
    }
    return status == KVF_OK ? kvfi_message_check(message, KVF_ERR_PROTOCOL, error) : status;
}

/** The version stands first, so that it can be judged before anything else is. */
static enum kvf_status check_version(const msgpack_object *map, struct kvf_error *error)
{
    int64_t version;

    if (map->type != MSGPACK_OBJECT_MAP)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "message is %s, expected a map", kvfi_object_kind(map));
    if (map->via.map.size == 0 || !kvfi_object_is_text(&map->via.map.ptr[0].key, "v") ||
        !kvfi_object_integer(&map->via.map.ptr[0].val, &version))
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "message does not begin with its version");
    if (version != KVF_PROTOCOL_VERSION)
        return kvfi_fail(error, KVF_ERR_VERSION, "message has protocol version %" PRId64 ", this side speaks %d",
                         version, KVF_PROTOCOL_VERSION);
    return KVF_OK;
}

static enum kvf_status find_type(const msgpack_object *map, enum kvfi_message_type *out, struct kvf_error *error)
{
    const msgpack_object *object;
    enum kvf_status status = kvfi_object_find(map, "message", "t", &object, error);
    char name[64];

    if (status != KVF_OK) return status;
    if (!object || object->type != MSGPACK_OBJECT_STR)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "message has no type name under \"t\"");
    *out = kvfi_message_find(object->via.str.ptr, object->via.str.size);
    if (*out != KVFI_MSG_NONE) return KVF_OK;
    kvfi_object_quote(object, name, sizeof name);
    return kvfi_fail(error, KVF_ERR_PROTOCOL, "message type \"%s\" is not known", name);
}

static enum kvf_status unpack_map(const msgpack_object *map, struct kvfi_message *out, struct kvf_error *error)
{
    struct kvfi_message message = {.type = KVFI_MSG_NONE};
    struct owned *owned = NULL;
    enum kvf_status status = check_version(map, error);

    if (status == KVF_OK) status = find_type(map, &message.type, error);
    if (status != KVF_OK) goto done;
    owned = calloc(1, sizeof *owned);
    if (!owned) {
        status = kvfi_fail_memory(error, "a message");
        goto done;
    }
    message.owned = owned;
    status = unpack_fields(owned, map, &message, error);
    if (status == KVF_OK) *out = message;
    else kvfi_message_fini(&message);
done:
    return status;
}

enum kvf_status kvfi_wire_unpack(const void *bytes, size_t byte_count, struct kvfi_message *out,
                                 struct kvf_error *error)
{
    msgpack_unpacked unpacked;
    size_t used = 0;
    enum kvf_status status = kvfi_wire_scan(bytes, byte_count, error);

    msgpack_unpacked_init(&unpacked);
    if (status != KVF_OK) goto done;
    switch (msgpack_unpack_next(&unpacked, bytes, byte_count, &used)) {
    case MSGPACK_UNPACK_SUCCESS: status = unpack_map(&unpacked.data, out, error); break;
    case MSGPACK_UNPACK_NOMEM_ERROR: status = kvfi_fail_memory(error, "a message"); break;
    default: status = kvfi_fail(error, KVF_ERR_PROTOCOL, "message does not parse after byte %zu", used); break;
    }
done:
    msgpack_unpacked_destroy(&unpacked);
    return status;
}

void kvfi_message_fini(struct kvfi_message *message)
{
    struct owned *owned = message ? message->owned : NULL;

    if (owned) {
        kvf_layout_release(owned->layout);
        kvfi_arena_fini(&owned->arena);
        free(owned);
    }
    if (message) *message = (struct kvfi_message){.type = KVFI_MSG_NONE};
}

bool kvfi_wire_recognise(const void *bytes, size_t byte_count)
{
    const unsigned char *data = bytes;
    size_t head = 0;

    if (byte_count == 0) return false;
    if (data[0] >= 0x81 && data[0] < 0x90) head = 1;
    else if (data[0] == 0xde) head = 3;
    else if (data[0] == 0xdf) head = 5;
    return head > 0 && byte_count > head + 2 && data[head] == 0xa1 && data[head + 1] == 'v';
}
