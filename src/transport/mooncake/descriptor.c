/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/descriptor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "transport/mooncake/json.h"

enum { KEY_BYTES = 24 };

static enum kvf_status explain(const struct kvfi_moon_json *json, const char *object, struct kvf_error *error)
{
    return kvfi_fail_at(error, KVF_ERR_PARSE, json->at - json->begin, "%s: expected %s at byte %td of %td", object,
                        json->wrong ? json->wrong : "something else", json->at - json->begin,
                        json->end - json->begin);
}

static bool refuse(struct kvfi_moon_json *json, const char *expected)
{
    if (!json->wrong) json->wrong = expected;
    return false;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static bool read_number(struct kvfi_moon_json *json, uint64_t max, const char *expected, int32_t *out)
{
    uint64_t number;

    if (!kvfi_moon_json_u64(json, &number)) return false;
    if (number > max) return refuse(json, expected);
    *out = (int32_t)number;
    return true;
}

static void add_protocol(struct kvfi_moon_descriptor *out, const char *protocol)
{
    size_t used = strlen(out->protocol);

    if (strcmp(protocol, "tcp") == 0) out->is_tcp = true;
    snprintf(out->protocol + used, sizeof out->protocol - used, "%s%s", used > 0 ? "," : "", protocol);
}

static bool read_protocol(struct kvfi_moon_json *json, struct kvfi_moon_descriptor *out)
{
    char protocol[KVF_MOONCAKE_PROTOCOL_BYTES];
    size_t bytes;

    out->protocol[0] = '\0';
    out->is_tcp = false;
    if (kvfi_moon_json_next(json) != KVFI_MOON_JSON_ARRAY) {
        if (!kvfi_moon_json_text(json, protocol, sizeof protocol, &bytes)) return false;
        add_protocol(out, protocol);
        return true;
    }
    if (!kvfi_moon_json_enter(json, '[')) return false;
    while (kvfi_moon_json_item(json)) {
        if (!kvfi_moon_json_text(json, protocol, sizeof protocol, &bytes)) return false;
        add_protocol(out, protocol);
    }
    return !json->wrong;
}

static bool read_buffer(struct kvfi_moon_json *json, struct kvf_mooncake_buffer *buffer)
{
    char key[KEY_BYTES];

    *buffer = (struct kvf_mooncake_buffer){0, 0};
    if (!kvfi_moon_json_enter(json, '{')) return false;
    while (kvfi_moon_json_key(json, key, sizeof key)) {
        bool read = strcmp(key, "addr") == 0 ? kvfi_moon_json_u64(json, &buffer->address)
                    : strcmp(key, "length") == 0 ? kvfi_moon_json_u64(json, &buffer->bytes) : kvfi_moon_json_skip(json);

        if (!read) return false;
    }
    return !json->wrong;
}

static bool read_buffers(struct kvfi_moon_json *json, struct kvfi_moon_descriptor *out, bool *no_memory)
{
    out->buffer_count = 0;
    if (kvfi_moon_json_next(json) != KVFI_MOON_JSON_ARRAY) return kvfi_moon_json_skip(json);
    if (!kvfi_moon_json_enter(json, '[')) return false;
    while (kvfi_moon_json_item(json)) {
        if (!kvfi_array_grow((void **)&out->buffers, out->buffer_count, &out->buffer_capacity, sizeof *out->buffers)) {
            *no_memory = true;
            return refuse(json, "less");
        }
        if (!read_buffer(json, &out->buffers[out->buffer_count])) return false;
        out->buffer_count++;
    }
    return !json->wrong;
}

static bool read_member(struct kvfi_moon_json *json, const char *key, struct kvfi_moon_descriptor *out, bool *no_memory)
{
    size_t bytes;

    if (strcmp(key, "name") == 0) return kvfi_moon_json_text(json, out->name, sizeof out->name, &bytes);
    if (strcmp(key, "protocol") == 0) return read_protocol(json, out);
    if (strcmp(key, "tcp_data_host") == 0)
        return kvfi_moon_json_text(json, out->data_host, sizeof out->data_host, &bytes);
    if (strcmp(key, "timestamp") == 0) return kvfi_moon_json_text(json, out->timestamp, sizeof out->timestamp, &bytes);
    if (strcmp(key, "tcp_data_port") == 0) return read_number(json, 65535, "a port below 65536", &out->data_port);
    if (strcmp(key, "tcp_proto_version") == 0)
        return read_number(json, INT32_MAX, "a version below 2^31", &out->version);
    if (strcmp(key, "buffers") == 0) return read_buffers(json, out, no_memory);
    return kvfi_moon_json_skip(json);
}

enum kvf_status kvfi_moon_descriptor_parse(const char *text, size_t bytes, struct kvfi_moon_descriptor *out,
                                           struct kvf_error *error)
{
    struct kvfi_moon_json json;
    bool no_memory = false;
    char key[KEY_BYTES];

    memset(out, 0, sizeof *out);
    out->version = 1;
    kvfi_moon_json_init(&json, text, bytes);
    if (kvfi_moon_json_enter(&json, '{')) {
        while (kvfi_moon_json_key(&json, key, sizeof key) && read_member(&json, key, out, &no_memory)) {}
    }
    if (no_memory) return kvfi_fail_memory(error, "the buffers of a descriptor");
    if (json.wrong) return explain(&json, "descriptor", error);
    if (out->version < 1) out->version = 1;
    return KVF_OK;
}

void kvfi_moon_descriptor_fini(struct kvfi_moon_descriptor *descriptor)
{
    free(descriptor->buffers);
    descriptor->buffers = NULL;
    descriptor->buffer_count = descriptor->buffer_capacity = 0;
}

bool kvfi_moon_is_json(const char *text, size_t bytes)
{
    struct kvfi_moon_json json;

    kvfi_moon_json_init(&json, text, bytes);
    return kvfi_moon_json_skip(&json);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

/* A text that grows; `broken` once there is no memory. */
struct writer {
    char *text;
    size_t bytes, capacity;
    bool broken;
};

static char *reserve(struct writer *writer, size_t more)
{
    size_t needed, capacity = writer->capacity > 0 ? writer->capacity : 512;
    char *text;

    if (writer->broken || __builtin_add_overflow(writer->bytes, more, &needed)) goto broken;
    if (needed <= writer->capacity) return writer->text + writer->bytes;
    while (capacity < needed) {
        if (__builtin_mul_overflow(capacity, (size_t)2, &capacity)) goto broken;
    }
    text = realloc(writer->text, capacity);
    if (!text) goto broken;
    writer->text = text;
    writer->capacity = capacity;
    return text + writer->bytes;
broken:
    writer->broken = true;
    return NULL;
}

static void put(struct writer *writer, const char *text)
{
    size_t bytes = strlen(text);
    char *at = reserve(writer, bytes);

    if (at) memcpy(at, text, bytes);
    if (at) writer->bytes += bytes;
}

static void put_text(struct writer *writer, const char *text)
{
    char *at = reserve(writer, kvfi_moon_json_quote(text, NULL));

    if (at) writer->bytes += kvfi_moon_json_quote(text, at);
}

static void put_number(struct writer *writer, uint64_t number)
{
    char digits[24];

    snprintf(digits, sizeof digits, "%" PRIu64, number);
    put(writer, digits);
}

static enum kvf_status finish(struct writer *writer, const char *object, char **out, size_t *bytes,
                              struct kvf_error *error)
{
    put(writer, "\n");
    if (writer->broken) {
        free(writer->text);
        return kvfi_fail_memory(error, object);
    }
    *out = writer->text;
    *bytes = writer->bytes;
    return KVF_OK;
}

enum kvf_status kvfi_moon_descriptor_print(const struct kvfi_moon_descriptor *descriptor, char **out, size_t *bytes,
                                           struct kvf_error *error)
{
    struct writer writer = {0};

    put(&writer, "{\"buffers\":[");
    for (size_t i = 0; i < descriptor->buffer_count; i++) {
        put(&writer, i > 0 ? ",{\"addr\":" : "{\"addr\":");
        put_number(&writer, descriptor->buffers[i].address);
        put(&writer, ",\"length\":");
        put_number(&writer, descriptor->buffers[i].bytes);
        put(&writer, ",\"name\":");
        put_text(&writer, descriptor->name);
        put(&writer, "}");
    }
    put(&writer, "],\"name\":");
    put_text(&writer, descriptor->name);
    put(&writer, ",\"protocol\":");
    put_text(&writer, descriptor->protocol);
    put(&writer, ",\"rdma_server_name\":\"\",\"tcp_data_host\":");
    put_text(&writer, descriptor->data_host);
    put(&writer, ",\"tcp_data_port\":");
    put_number(&writer, (uint64_t)descriptor->data_port);
    put(&writer, ",\"tcp_proto_version\":");
    put_number(&writer, (uint64_t)descriptor->version);
    put(&writer, ",\"timestamp\":");
    put_text(&writer, descriptor->timestamp);
    put(&writer, "}");
    return finish(&writer, "a descriptor", out, bytes, error);
}

/* ---- notifies --------------------------------------------------------------------------------------------------- */

/* Reads a text of any length into memory of its own, in place of what is there. */
static bool read_own_text(struct kvfi_moon_json *json, char **out, bool *no_memory)
{
    struct kvfi_moon_json measure = *json;
    size_t bytes;

    if (!kvfi_moon_json_text(&measure, NULL, 0, &bytes)) {
        *json = measure;
        return false;
    }
    free(*out);
    *out = malloc(bytes + 1);
    *no_memory = !*out;
    return *out && kvfi_moon_json_text(json, *out, bytes + 1, &bytes);
}

enum kvf_status kvfi_moon_notify_parse(const char *text, size_t bytes, char **name, char **message,
                                       struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvfi_moon_json json;
    bool no_memory = false, read = true;
    char key[KEY_BYTES];

    *name = *message = NULL;
    kvfi_moon_json_init(&json, text, bytes);
    if (kvfi_moon_json_enter(&json, '{')) {
        while (read && kvfi_moon_json_key(&json, key, sizeof key))
            read = strcmp(key, "name") == 0 ? read_own_text(&json, name, &no_memory)
                   : strcmp(key, "notify_msg") == 0 ? read_own_text(&json, message, &no_memory)
                                                    : kvfi_moon_json_skip(&json);
    }
    if (json.wrong) status = explain(&json, "notify", error);
    if (status == KVF_OK && !*name) no_memory = !(*name = kvfi_text_copy("")) || no_memory;
    if (status == KVF_OK && !*message) no_memory = !(*message = kvfi_text_copy("")) || no_memory;
    if (status == KVF_OK && no_memory) status = kvfi_fail_memory(error, "a notify");
    if (status != KVF_OK) {
        free(*name);
        free(*message);
        *name = *message = NULL;
    }
    return status;
}

enum kvf_status kvfi_moon_notify_print(const char *name, const char *message, char **out, size_t *bytes,
                                       struct kvf_error *error)
{
    struct writer writer = {0};

    put(&writer, "{\"name\":");
    put_text(&writer, name);
    put(&writer, ",\"notify_msg\":");
    put_text(&writer, message);
    put(&writer, "}");
    return finish(&writer, "a notify", out, bytes, error);
}
