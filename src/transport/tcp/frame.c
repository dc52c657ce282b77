/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/frame.h"

#include <inttypes.h>

#include "base/error.h"

_Static_assert(KVFI_FRAME_DATA_BYTES == 88, "DATA bodies start with 88 bytes");

/* A frame is written with a body length of 0 first; it is put in when the body is known. */
static struct kvfi_writer start_frame(uint8_t *buffer, size_t capacity, uint32_t kind, uint32_t flags)
{
    struct kvfi_writer writer = kvfi_writer_on(buffer, capacity);

    kvfi_put_u32(&writer, KVFI_FRAME_MAGIC);
    kvfi_put_uint(&writer, kind, 2);
    kvfi_put_uint(&writer, flags, 2);
    kvfi_put_u64(&writer, 0);
    return writer;
}

static size_t end_frame(struct kvfi_writer *writer, uint64_t payload_bytes)
{
    size_t bytes = kvfi_written(writer);
    struct kvfi_writer length = kvfi_writer_on(writer->start + 8, 8);

    kvfi_put_u64(&length, bytes - KVFI_FRAME_HEAD_BYTES + payload_bytes);
    return bytes;
}

static void put_identity(struct kvfi_writer *writer, const struct kvfi_peer_identity *who)
{
    kvfi_put_text(writer, who->name);
    kvfi_put_u64(writer, who->incarnation);
}

static void get_identity(struct kvfi_reader *reader, struct kvfi_peer_identity *who)
{
    kvfi_get_text(reader, who->name, sizeof who->name);
    who->incarnation = kvfi_get_u64(reader);
}

size_t kvfi_frame_pack_hello(const struct kvfi_frame_hello *hello, uint8_t *buffer)
{
    struct kvfi_writer writer =
        start_frame(buffer, KVFI_FRAME_HEAD_BYTES + KVFI_FRAME_MAX_CONTROL, KVFI_FRAME_HELLO, 0);

    kvfi_put_u32(&writer, hello->version);
    put_identity(&writer, &hello->self);
    put_identity(&writer, &hello->expected);
    kvfi_put_u64(&writer, hello->session);
    kvfi_put_u64(&writer, hello->generation);
    kvfi_put_u32(&writer, hello->stream);
    kvfi_put_u32(&writer, hello->streams);
    return end_frame(&writer, 0);
}

size_t kvfi_frame_pack_welcome(const struct kvfi_frame_welcome *welcome, uint8_t *buffer)
{
    struct kvfi_writer writer =
        start_frame(buffer, KVFI_FRAME_HEAD_BYTES + KVFI_FRAME_MAX_CONTROL, KVFI_FRAME_WELCOME, 0);

    kvfi_put_u32(&writer, welcome->version);
    kvfi_put_u32(&writer, welcome->status);
    kvfi_put_text(&writer, welcome->text);
    put_identity(&writer, &welcome->self);
    return end_frame(&writer, 0);
}

size_t kvfi_frame_pack_data(const struct kvfi_frame_data *data, bool checksum, uint8_t *buffer)
{
    struct kvfi_writer writer = start_frame(buffer, KVFI_FRAME_HEAD_BYTES + KVFI_FRAME_DATA_BYTES, KVFI_FRAME_DATA,
                                            checksum ? KVFI_FRAME_CHECKSUM : 0);

    kvfi_put_chunk_head(&writer, &data->chunk);
    kvfi_put_u64(&writer, data->generation);
    kvfi_put_i64(&writer, data->offset_bytes);
    kvfi_put_u64(&writer, data->checksum);
    return end_frame(&writer, (uint64_t)data->bytes);
}

size_t kvfi_frame_pack_ack(const struct kvfi_frame_ack *ack, uint8_t *buffer)
{
    struct kvfi_writer writer = start_frame(buffer, KVFI_FRAME_HEAD_BYTES + KVFI_FRAME_MAX_CONTROL, KVFI_FRAME_ACK, 0);

    kvfi_put_u64(&writer, ack->grant);
    kvfi_put_u32(&writer, ack->index);
    kvfi_put_u32(&writer, ack->status);
    kvfi_put_text(&writer, ack->text);
    return end_frame(&writer, 0);
}

enum kvf_status kvfi_frame_parse_head(const uint8_t *buffer, struct kvfi_frame_head *head, struct kvf_error *error)
{
    struct kvfi_reader reader = kvfi_reader_on(buffer, KVFI_FRAME_HEAD_BYTES);
    uint32_t magic = kvfi_get_u32(&reader);
    enum kvf_status status = KVF_OK;
    bool is_data;

    head->kind = (uint32_t)kvfi_get_uint(&reader, 2);
    head->flags = (uint32_t)kvfi_get_uint(&reader, 2);
    head->body_bytes = kvfi_get_u64(&reader);
    is_data = head->kind == KVFI_FRAME_DATA;
    if (magic != KVFI_FRAME_MAGIC)
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "frame starts with 0x%08" PRIx32 ", expected 0x%08" PRIx32, magic,
                           KVFI_FRAME_MAGIC);
    else if (head->kind < KVFI_FRAME_HELLO || head->kind > KVFI_FRAME_ACK ||
             (head->flags & ~(uint32_t)(is_data ? KVFI_FRAME_CHECKSUM : 0)) != 0)
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "frame of kind %" PRIu32 " with flags 0x%" PRIx32 " is not known",
                           head->kind, head->flags);
    else if (is_data ? head->body_bytes < KVFI_FRAME_DATA_BYTES ||
                           head->body_bytes > KVFI_FRAME_DATA_BYTES + KVFI_FRAME_MAX_PAYLOAD
                     : head->body_bytes > KVFI_FRAME_MAX_CONTROL)
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "frame of kind %" PRIu32 " with %" PRIu64 " bytes, at most %d",
                           head->kind, head->body_bytes,
                           is_data ? KVFI_FRAME_DATA_BYTES + KVFI_FRAME_MAX_PAYLOAD : KVFI_FRAME_MAX_CONTROL);
    return status;
}

static enum kvf_status check_read(const struct kvfi_reader *reader, const char *name, size_t bytes,
                                  struct kvf_error *error)
{
    return kvfi_read_all(reader) ? KVF_OK
                                 : kvfi_fail(error, KVF_ERR_PROTOCOL, "%s of %zu bytes does not parse", name, bytes);
}

/* The version comes first, so that it is told whatever the rest looks like. */
static enum kvf_status check_version(const struct kvfi_reader *reader, uint32_t version, struct kvf_error *error)
{
    return !reader->ok || version == KVFI_FRAME_VERSION
               ? KVF_OK
               : kvfi_fail(error, KVF_ERR_VERSION, "tcp data protocol version %" PRIu32 ", this side speaks %d",
                           version, KVFI_FRAME_VERSION);
}

enum kvf_status kvfi_frame_parse_hello(const uint8_t *body, size_t bytes, struct kvfi_frame_hello *hello,
                                       struct kvf_error *error)
{
    struct kvfi_reader reader = kvfi_reader_on(body, bytes);
    enum kvf_status status;

    memset(hello, 0, sizeof *hello);
    hello->version = kvfi_get_u32(&reader);
    status = check_version(&reader, hello->version, error);
    if (status != KVF_OK) goto done;
    get_identity(&reader, &hello->self);
    get_identity(&reader, &hello->expected);
    hello->session = kvfi_get_u64(&reader);
    hello->generation = kvfi_get_u64(&reader);
    hello->stream = kvfi_get_u32(&reader);
    hello->streams = kvfi_get_u32(&reader);
    reader.ok = reader.ok && hello->stream < hello->streams && hello->streams <= KVFI_MAX_STREAMS;
    status = check_read(&reader, "hello", bytes, error);
done:
    return status;
}

enum kvf_status kvfi_frame_parse_welcome(const uint8_t *body, size_t bytes, struct kvfi_frame_welcome *welcome,
                                         struct kvf_error *error)
{
    struct kvfi_reader reader = kvfi_reader_on(body, bytes);
    enum kvf_status status;

    memset(welcome, 0, sizeof *welcome);
    welcome->version = kvfi_get_u32(&reader);
    status = check_version(&reader, welcome->version, error);
    if (status != KVF_OK) goto done;
    welcome->status = kvfi_get_u32(&reader);
    kvfi_get_text(&reader, welcome->text, sizeof welcome->text);
    get_identity(&reader, &welcome->self);
    status = check_read(&reader, "welcome", bytes, error);
done:
    return status;
}

enum kvf_status kvfi_frame_parse_ack(const uint8_t *body, size_t bytes, struct kvfi_frame_ack *ack,
                                     struct kvf_error *error)
{
    struct kvfi_reader reader = kvfi_reader_on(body, bytes);

    memset(ack, 0, sizeof *ack);
    ack->grant = kvfi_get_u64(&reader);
    ack->index = kvfi_get_u32(&reader);
    ack->status = kvfi_get_u32(&reader);
    kvfi_get_text(&reader, ack->text, sizeof ack->text);
    return check_read(&reader, "ack", bytes, error);
}

enum kvf_status kvfi_frame_parse_data(const struct kvfi_frame_head *head, const uint8_t *body,
                                      struct kvfi_frame_data *data, struct kvf_error *error)
{
    struct kvfi_reader reader = kvfi_reader_on(body, KVFI_FRAME_DATA_BYTES);
    enum kvf_status status = KVF_OK;

    data->chunk = kvfi_get_chunk_head(&reader);
    data->generation = kvfi_get_u64(&reader);
    data->offset_bytes = kvfi_get_i64(&reader);
    data->checksum = kvfi_get_u64(&reader);
    data->bytes = (int64_t)(head->body_bytes - KVFI_FRAME_DATA_BYTES);
    if (data->offset_bytes < 0 || data->chunk.bytes < 0 || data->offset_bytes > data->chunk.bytes ||
        data->bytes > data->chunk.bytes - data->offset_bytes || (data->bytes == 0 && data->chunk.bytes > 0))
        status =
            kvfi_fail(error, KVF_ERR_PROTOCOL, "a frame of %" PRId64 " bytes at %" PRId64 " of a chunk of %" PRId64,
                      data->bytes, data->offset_bytes, data->chunk.bytes);
    return status;
}

enum kvf_status kvfi_tcp_endpoint_parse(const char *text, char host[256], uint16_t *port, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    const char *start = text + 4;
    const char *colon = strncmp(text, "tcp:", 4) == 0 ? strrchr(start, ':') : NULL;
    const char *end = colon;
    uint32_t number = 0;
    bool ok = colon != NULL && colon[1] != '\0' && strlen(colon + 1) <= 5;

    if (ok && *start == '[') {
        start++;
        end--;
        ok = end > start && *end == ']';
    }
    ok = ok && end > start && end - start < 256;
    for (const char *at = ok ? colon + 1 : text; ok && *at; at++) {
        ok = *at >= '0' && *at <= '9';
        number = number * 10 + (uint32_t)(*at - '0');
    }
    ok = ok && number > 0 && number <= UINT16_MAX;
    if (!ok) {
        status = kvfi_fail(error, KVF_ERR_PARSE, "\"%.200s\" is no tcp endpoint", text);
        goto done;
    }
    memcpy(host, start, (size_t)(end - start));
    host[end - start] = '\0';
    *port = (uint16_t)number;
done:
    return status;
}
