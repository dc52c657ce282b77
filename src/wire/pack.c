/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <msgpack.h>

#include "base/error.h"
#include "wire/fields.h"
#include "wire/layout.h"
#include "wire/text.h"

/** Where msgpack-c writes: a buffer that stops growing at the longest message. */
struct sink {
    struct kvfi_buffer *buffer;
    enum kvf_status status;
};

static int write_bytes(void *context, const char *bytes, size_t byte_count)
{
    struct sink *sink = context;
    struct kvfi_buffer *buffer = sink->buffer;

    if (sink->status != KVF_OK) return -1;
    if (byte_count > KVFI_WIRE_MAX_BYTES - buffer->count) {
        sink->status = KVF_ERR_LIMIT;
        return -1;
    }
    if (buffer->count + byte_count > buffer->capacity) {
        size_t capacity = buffer->capacity ? buffer->capacity : 512;
        unsigned char *grown;

        while (capacity < buffer->count + byte_count) capacity *= 2;
        grown = realloc(buffer->bytes, capacity);
        if (!grown) {
            sink->status = KVF_ERR_NO_MEMORY;
            return -1;
        }
        buffer->bytes = grown;
        buffer->capacity = capacity;
    }
    memcpy(buffer->bytes + buffer->count, bytes, byte_count);
    buffer->count += byte_count;
    return 0;
}

void kvfi_buffer_fini(struct kvfi_buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (struct kvfi_buffer){0};
}

static void pack_text(msgpack_packer *packer, const char *text, size_t byte_count)
{
    msgpack_pack_str(packer, byte_count);
    msgpack_pack_str_body(packer, text, byte_count);
}

static void pack_key(msgpack_packer *packer, const char *key)
{
    pack_text(packer, key, strlen(key));
}

static const char *text_at(const void *place)
{
    const char *text;

    memcpy(&text, place, sizeof text);
    return text ? text : "";
}

static enum kvf_status pack_name(msgpack_packer *packer, const char *text, int64_t min, int64_t max,
                                 const char *message, const char *key, struct kvf_error *error)
{
    size_t byte_count = strlen(text);

    if (byte_count < (size_t)min || byte_count > (size_t)max)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                         "%s: %s has %zu bytes, expected %" PRId64 " to %" PRId64, message, key, byte_count, min, max);
    if (!kvfi_text_is_clean(text, byte_count))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s: %s has control characters or is not UTF-8", message,
                         key);
    pack_text(packer, text, byte_count);
    return KVF_OK;
}

static void pack_sentence(msgpack_packer *packer, const char *text)
{
    char clean[KVFI_WIRE_MAX_TEXT + 1];

    pack_text(packer, clean, kvfi_text_clean(text, clean, sizeof clean));
}

static enum kvf_status pack_hex(msgpack_packer *packer, const char *text, const char *message, const char *key,
                                struct kvf_error *error)
{
    size_t byte_count = strnlen(text, KVF_FINGERPRINT_TEXT_BYTES);

    if (byte_count != 0 && (byte_count != 32 || strspn(text, "0123456789abcdef") != 32))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s: %s is not 32 lower-case hex digits", message, key);
    pack_text(packer, text, byte_count);
    return KVF_OK;
}

static enum kvf_status pack_rank(msgpack_packer *packer, const struct kvf_rank *rank, const char *message,
                                 struct kvf_error *error)
{
    const int64_t numbers[] = {rank->dp, rank->pp, rank->cp, rank->tp, rank->salt};

    msgpack_pack_array(packer, 5);
    for (size_t i = 0; i < 5; i++) {
        if (numbers[i] < 0)
            return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s: rank number %zu is %" PRId64 ", expected 0 or more",
                             message, i, numbers[i]);
        msgpack_pack_int64(packer, numbers[i]);
    }
    return KVF_OK;
}

/** Each id as its difference from the one before (the first from 0): runs take one byte a block. */
static enum kvf_status pack_group(msgpack_packer *packer, const struct kvf_id_list *list, size_t group,
                                  struct kvf_error *error)
{
    int64_t before = 0;

    if (list->first < 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                         "pull: group %zu begins at block %" PRId64 ", expected 0 or more", group, list->first);
    if (list->count > KVFI_WIRE_MAX_BYTES)
        return kvfi_fail(error, KVF_ERR_LIMIT, "pull: group %zu has %zu ids, a message takes fewer than %d", group,
                         list->count, KVFI_WIRE_MAX_BYTES);
    msgpack_pack_map(packer, 2);
    pack_key(packer, "first");
    msgpack_pack_int64(packer, list->first);
    pack_key(packer, "ids");
    msgpack_pack_array(packer, list->count);
    for (size_t i = 0; i < list->count; i++) {
        if (list->ids[i] < -1 || list->ids[i] == INT64_MAX)
            return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                             "pull: group %zu id %zu is %" PRId64 ", expected -1 or more, and less than 2^63 - 1",
                             group, i, list->ids[i]);
        msgpack_pack_int64(packer, list->ids[i] - before);
        before = list->ids[i];
    }
    return KVF_OK;
}

static enum kvf_status pack_groups(msgpack_packer *packer, const struct kvf_id_list *groups, size_t count,
                                   struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    msgpack_pack_array(packer, count);
    for (size_t i = 0; i < count && status == KVF_OK; i++) status = pack_group(packer, &groups[i], i, error);
    return status;
}

static enum kvf_status pack_transports(msgpack_packer *packer, const struct kvfi_wire_transport *transports,
                                       size_t count, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    msgpack_pack_array(packer, count);
    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        msgpack_pack_map(packer, 2);
        pack_key(packer, "name");
        status = pack_name(packer, text_at(&transports[i].name), 1, KVFI_WIRE_MAX_NAME, "pull", "transport name",
                           error);
        if (status != KVF_OK) break;
        pack_key(packer, "endpoint");
        status = pack_name(packer, text_at(&transports[i].endpoint), 0, KVFI_WIRE_MAX_ENDPOINT, "pull",
                           "transport endpoint", error);
    }
    return status;
}

static enum kvf_status pack_integer(msgpack_packer *packer, int64_t value, const struct kvfi_field *field,
                                    const char *message, struct kvf_error *error)
{
    if (value < field->min || value > field->max)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                         "%s: %s is %" PRId64 ", expected %" PRId64 " to %" PRId64, message, field->key, value,
                         field->min, field->max);
    msgpack_pack_int64(packer, value);
    return KVF_OK;
}

static enum kvf_status pack_number(msgpack_packer *packer, uint64_t value, const struct kvfi_field *field,
                                   const char *message, struct kvf_error *error)
{
    if (value < (uint64_t)field->min)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s: %s is %" PRIu64 ", expected %" PRId64 " or more",
                         message, field->key, value, field->min);
    msgpack_pack_uint64(packer, value);
    return KVF_OK;
}

static enum kvf_status pack_list(msgpack_packer *packer, const struct kvfi_message *message,
                                 const struct kvfi_field *field, struct kvf_error *error)
{
    const unsigned char *place = (const unsigned char *)message + field->offset;
    const void *items;
    size_t count;

    memcpy(&items, place, sizeof items);
    memcpy(&count, (const unsigned char *)message + field->count_offset, sizeof count);
    if (count < (size_t)field->min || count > (size_t)field->max)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s: %s has %zu entries, expected %" PRId64 " to %" PRId64,
                         kvfi_message_name(message->type), field->key, count, field->min, field->max);
    return field->kind == KVFI_FIELD_IDS ? pack_groups(packer, items, count, error)
                                         : pack_transports(packer, items, count, error);
}

static enum kvf_status pack_field(msgpack_packer *packer, const struct kvfi_message *message,
                                  const struct kvfi_field *field, struct kvf_error *error)
{
    const unsigned char *place = (const unsigned char *)message + field->offset;
    const char *name = kvfi_message_name(message->type);
    int64_t integer;
    uint64_t number;

    switch (field->kind) {
    case KVFI_FIELD_INTEGER:
        memcpy(&integer, place, sizeof integer);
        return pack_integer(packer, integer, field, name, error);
    case KVFI_FIELD_NUMBER:
        memcpy(&number, place, sizeof number);
        return pack_number(packer, number, field, name, error);
    case KVFI_FIELD_NAME:
        return pack_name(packer, text_at(place), field->min, field->max, name, field->key, error);
    case KVFI_FIELD_SENTENCE:
        pack_sentence(packer, text_at(place));
        return KVF_OK;
    case KVFI_FIELD_HEX:
        return pack_hex(packer, (const char *)place, name, field->key, error);
    case KVFI_FIELD_RANK:
        return pack_rank(packer, &message->hello.rank, name, error);
    case KVFI_FIELD_LAYOUT:
        return kvfi_layout_pack(message->hello.layout, packer, error);
    default:
        return pack_list(packer, message, field, error);
    }
}

static bool is_left_out(const struct kvfi_message *message, const struct kvfi_field *field)
{
    return field->kind == KVFI_FIELD_LAYOUT && field->optional && !message->hello.layout;
}

static enum kvf_status pack_fields(msgpack_packer *packer, const struct kvfi_message *message, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t field_count, sent = 2;
    const struct kvfi_field *fields = kvfi_message_fields(message->type, &field_count);
    const char *name = kvfi_message_name(message->type);

    for (size_t i = 0; i < field_count; i++) sent += !is_left_out(message, &fields[i]);
    msgpack_pack_map(packer, sent);
    pack_key(packer, "v");
    msgpack_pack_int64(packer, KVF_PROTOCOL_VERSION);
    pack_key(packer, "t");
    pack_text(packer, name, strlen(name));
    for (size_t i = 0; i < field_count && status == KVF_OK; i++) {
        if (is_left_out(message, &fields[i])) continue;
        pack_key(packer, fields[i].key);
        status = pack_field(packer, message, &fields[i], error);
    }
    return status;
}

enum kvf_status kvfi_wire_pack(const struct kvfi_message *message, struct kvfi_buffer *buffer, struct kvf_error *error)
{
    struct sink sink = {.buffer = buffer, .status = KVF_OK};
    msgpack_packer packer;
    size_t field_count;
    enum kvf_status status;

    buffer->count = 0;
    if (!kvfi_message_fields(message->type, &field_count)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "message type %d is not known", (int)message->type);
        goto done;
    }
    if (message->type == KVFI_MSG_HELLO && !message->hello.layout) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "hello: layout is missing");
        goto done;
    }
    status = kvfi_message_check(message, KVF_ERR_INVALID_ARGUMENT, error);
    if (status != KVF_OK) goto done;
    msgpack_packer_init(&packer, &sink, write_bytes);
    status = pack_fields(&packer, message, error);
    if (status == KVF_OK && sink.status == KVF_ERR_LIMIT)
        status = kvfi_fail(error, KVF_ERR_LIMIT, "%s: message is longer than %d bytes",
                           kvfi_message_name(message->type), KVFI_WIRE_MAX_BYTES);
    else if (status == KVF_OK && sink.status != KVF_OK)
        status = kvfi_fail_memory(error, "a message");
done:
    if (status != KVF_OK) buffer->count = 0;
    return status;
}
