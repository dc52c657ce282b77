/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/direct/message.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"

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

static void put_verdict(struct kvfi_writer *writer, const struct kvfi_direct_message *message)
{
    kvfi_put_u32(writer, message->status);
    kvfi_put_text(writer, message->text);
}

static void get_verdict(struct kvfi_reader *reader, struct kvfi_direct_message *message)
{
    message->status = kvfi_get_u32(reader);
    kvfi_get_text(reader, message->text, sizeof message->text);
}

static void put_chunk_name(struct kvfi_writer *writer, const struct kvfi_direct_message *message)
{
    kvfi_put_u64(writer, message->head.grant);
    kvfi_put_u32(writer, message->head.index);
}

static void get_chunk_name(struct kvfi_reader *reader, struct kvfi_direct_message *message)
{
    message->head.grant = kvfi_get_u64(reader);
    message->head.index = kvfi_get_u32(reader);
}

static void put_welcome(struct kvfi_writer *writer, const struct kvfi_direct_message *message)
{
    put_verdict(writer, message);
    put_identity(writer, &message->self);
    kvfi_put_u32(writer, message->memory_count);
    kvfi_put_u64(writer, message->probe_address);
}

static void put_memories(struct kvfi_writer *writer, const struct kvfi_direct_message *message)
{
    kvfi_put_u32(writer, message->memory_first);
    kvfi_put_u32(writer, message->memory_count);
    for (uint32_t i = 0; i < message->memory_count; i++) {
        kvfi_put_u64(writer, message->memories[i].address);
        kvfi_put_i64(writer, message->memories[i].bytes);
        kvfi_put_u32(writer, message->memories[i].has_fd);
    }
}

size_t kvfi_direct_pack(const struct kvfi_direct_message *message, uint8_t *buffer)
{
    struct kvfi_writer writer = kvfi_writer_on(buffer, KVFI_DIRECT_PACKET_BYTES);

    kvfi_put_u32(&writer, message->kind);
    if (message->kind == KVFI_DIRECT_HELLO || message->kind == KVFI_DIRECT_WELCOME) {
        kvfi_put_u64(&writer, KVFI_DIRECT_MAGIC);
        kvfi_put_u32(&writer, KVFI_DIRECT_VERSION);
    }
    switch (message->kind) {
    case KVFI_DIRECT_HELLO:
        put_identity(&writer, &message->self);
        put_identity(&writer, &message->expected);
        break;
    case KVFI_DIRECT_WELCOME: put_welcome(&writer, message); break;
    case KVFI_DIRECT_MEMORIES: put_memories(&writer, message); break;
    case KVFI_DIRECT_PROBE: kvfi_put_u64(&writer, message->nonce); break;
    case KVFI_DIRECT_PROBED: put_verdict(&writer, message); break;
    case KVFI_DIRECT_OPEN: kvfi_put_chunk_head(&writer, &message->head); break;
    case KVFI_DIRECT_OPENED:
    case KVFI_DIRECT_ACK:
        put_chunk_name(&writer, message);
        put_verdict(&writer, message);
        break;
    case KVFI_DIRECT_PLACED:
    case KVFI_DIRECT_ABORT: put_chunk_name(&writer, message); break;
    case KVFI_DIRECT_REVOKE: kvfi_put_u64(&writer, message->head.grant); break;
    default: break;
    }
    return kvfi_written(&writer);
}

static void get_welcome(struct kvfi_reader *reader, struct kvfi_direct_message *message)
{
    get_verdict(reader, message);
    get_identity(reader, &message->self);
    message->memory_count = kvfi_get_u32(reader);
    message->probe_address = kvfi_get_u64(reader);
    reader->ok = reader->ok && message->memory_count <= KVFI_DIRECT_MAX_MEMORIES;
}

static void get_memories(struct kvfi_reader *reader, struct kvfi_direct_message *message)
{
    message->memory_first = kvfi_get_u32(reader);
    message->memory_count = kvfi_get_u32(reader);
    reader->ok = reader->ok && message->memory_count <= KVFI_DIRECT_BATCH;
    for (uint32_t i = 0; reader->ok && i < message->memory_count; i++) {
        message->memories[i].address = kvfi_get_u64(reader);
        message->memories[i].bytes = kvfi_get_i64(reader);
        message->memories[i].has_fd = kvfi_get_u32(reader);
        reader->ok = reader->ok && message->memories[i].bytes >= 0 && message->memories[i].has_fd <= 1;
    }
}

static void get_body(struct kvfi_reader *reader, struct kvfi_direct_message *message)
{
    switch (message->kind) {
    case KVFI_DIRECT_HELLO:
        get_identity(reader, &message->self);
        get_identity(reader, &message->expected);
        break;
    case KVFI_DIRECT_WELCOME: get_welcome(reader, message); break;
    case KVFI_DIRECT_MEMORIES: get_memories(reader, message); break;
    case KVFI_DIRECT_PROBE: message->nonce = kvfi_get_u64(reader); break;
    case KVFI_DIRECT_PROBED: get_verdict(reader, message); break;
    case KVFI_DIRECT_OPEN: message->head = kvfi_get_chunk_head(reader); break;
    case KVFI_DIRECT_OPENED:
    case KVFI_DIRECT_ACK:
        get_chunk_name(reader, message);
        get_verdict(reader, message);
        break;
    case KVFI_DIRECT_PLACED:
    case KVFI_DIRECT_ABORT: get_chunk_name(reader, message); break;
    case KVFI_DIRECT_REVOKE: message->head.grant = kvfi_get_u64(reader); break;
    default: reader->ok = false; break;
    }
}

enum kvf_status kvfi_direct_parse(const void *packet, size_t bytes, struct kvfi_direct_message *message,
                                  struct kvf_error *error)
{
    struct kvfi_reader reader = kvfi_reader_on(packet, bytes);
    enum kvf_status status = KVF_OK;

    memset(message, 0, offsetof(struct kvfi_direct_message, memories));
    message->kind = kvfi_get_u32(&reader);
    if (message->kind == KVFI_DIRECT_HELLO || message->kind == KVFI_DIRECT_WELCOME) {
        reader.ok = kvfi_get_u64(&reader) == KVFI_DIRECT_MAGIC && reader.ok;
        message->version = kvfi_get_u32(&reader);
        if (reader.ok && message->version != KVFI_DIRECT_VERSION) {
            status = kvfi_fail(error, KVF_ERR_VERSION, "shm protocol version %" PRIu32 ", this side speaks %d",
                               message->version, KVFI_DIRECT_VERSION);
            goto done;
        }
    }
    get_body(&reader, message);
    if (!kvfi_read_all(&reader))
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "shm message of kind %" PRIu32 " and %zu bytes does not parse",
                           message->kind, bytes);
done:
    return status;
}

/* ---- endpoints -------------------------------------------------------------------------------------------------- */

void kvfi_direct_endpoint_format(const struct kvfi_direct_endpoint *endpoint, const char *scheme, char *text)
{
    snprintf(text, KVFI_ENDPOINT_BYTES, "%s:boot=%s;netns=%" PRIu64 ";pid=%" PRId64 ";name=%s", scheme, endpoint->boot,
             endpoint->netns, endpoint->pid, endpoint->name);
}

/* Takes "key=value" up to the next ';' or the end. False when the key is another or the value does not fit. */
static bool take_field(const char **at, const char *key, char *value, size_t capacity)
{
    size_t key_bytes = strlen(key);
    size_t bytes;
    bool ok = strncmp(*at, key, key_bytes) == 0 && (*at)[key_bytes] == '=';

    if (!ok) goto done;
    *at += key_bytes + 1;
    bytes = strcspn(*at, ";");
    ok = bytes > 0 && bytes < capacity;
    if (!ok) goto done;
    memcpy(value, *at, bytes);
    value[bytes] = '\0';
    *at += bytes;
    if (**at == ';') ++*at;
done:
    return ok;
}

static bool take_number(const char **at, const char *key, uint64_t *number)
{
    char text[21];
    int used = 0;

    return take_field(at, key, text, sizeof text) && strspn(text, "0123456789") == strlen(text) &&
           sscanf(text, "%" SCNu64 "%n", number, &used) == 1 && text[used] == '\0';
}

enum kvf_status kvfi_direct_endpoint_parse(const char *text, const char *scheme, struct kvfi_direct_endpoint *endpoint,
                                           struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t scheme_bytes = strlen(scheme);
    const char *at = text + scheme_bytes + 1;
    uint64_t pid = 0;
    bool ok = strncmp(text, scheme, scheme_bytes) == 0 && text[scheme_bytes] == ':' &&
              take_field(&at, "boot", endpoint->boot, sizeof endpoint->boot) &&
              take_number(&at, "netns", &endpoint->netns) && take_number(&at, "pid", &pid) && pid <= INT32_MAX &&
              take_field(&at, "name", endpoint->name, sizeof endpoint->name) && *at == '\0';

    if (!ok) status = kvfi_fail(error, KVF_ERR_PARSE, "\"%.200s\" is no %s endpoint", text, scheme);
    endpoint->pid = (int64_t)pid;
    return status;
}
