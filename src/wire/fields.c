/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/fields.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"

#define AT(member) offsetof(struct kvfi_message, member)
#define DAY_MS 86400000

#define INTEGER(key, member, min, max) {key, KVFI_FIELD_INTEGER, false, AT(member), 0, min, max}
#define COUNT(key, member) INTEGER(key, member, 0, INT64_MAX)
#define NUMBER(key, member, min) {key, KVFI_FIELD_NUMBER, false, AT(member), 0, min, 0}
#define NAME(key, member, min, max) {key, KVFI_FIELD_NAME, false, AT(member), 0, min, max}
#define SENTENCE(key, member) {key, KVFI_FIELD_SENTENCE, true, AT(member), 0, 0, KVFI_WIRE_MAX_TEXT}
#define HEX(key, member) {key, KVFI_FIELD_HEX, true, AT(member), 0, 0, 32}
#define STATUS(member) INTEGER("status", member, 0, 65535)

#define TRANSFER(body) \
    NAME("transfer", body.transfer, 1, KVFI_WIRE_MAX_NAME), COUNT("attempt", body.attempt)

#define HELLO_FIELDS \
    INTEGER("planner", hello.planner_version, 1, UINT32_MAX), \
    NAME("instance", hello.instance, 1, KVFI_WIRE_MAX_NAME), \
    NUMBER("incarnation", hello.incarnation, 1), \
    {"rank", KVFI_FIELD_RANK, false, AT(hello.rank), 0, 0, INT64_MAX}, \
    NAME("host", hello.host, 0, KVFI_WIRE_MAX_TEXT), \
    NAME("model", hello.model, 0, KVFI_WIRE_MAX_TEXT), \
    NAME("peer", hello.peer_instance, 0, KVFI_WIRE_MAX_NAME), \
    NUMBER("peer_incarnation", hello.peer_incarnation, 0), \
    COUNT("epoch", hello.epoch_own), \
    COUNT("peer_epoch", hello.epoch_peer), \
    HEX("digest", hello.digest_own), \
    HEX("peer_digest", hello.digest_peer), \
    HEX("plan", hello.plan)

static const struct kvfi_field hello_fields[] = {
    HELLO_FIELDS,
    {"layout", KVFI_FIELD_LAYOUT, false, AT(hello.layout), 0, 0, 0},
};

static const struct kvfi_field hello_ack_fields[] = {
    HELLO_FIELDS,
    STATUS(hello.status),
    SENTENCE("text", hello.text),
    {"layout", KVFI_FIELD_LAYOUT, true, AT(hello.layout), 0, 0, 0},
};

static const struct kvfi_field pull_fields[] = {
    TRANSFER(pull),
    NAME("from", pull.from, 1, KVFI_WIRE_MAX_NAME),
    HEX("plan", pull.plan),
    COUNT("begin", pull.token_begin),
    COUNT("end", pull.token_end),
    COUNT("tokens", pull.request_tokens),
    NUMBER("grant", pull.grant, 1),
    INTEGER("timeout_ms", pull.timeout_ms, 1, DAY_MS),
    {"transports", KVFI_FIELD_TRANSPORTS, false, AT(pull.transports), AT(pull.transport_count), 1,
     KVFI_WIRE_MAX_TRANSPORTS},
    {"groups", KVFI_FIELD_IDS, false, AT(pull.groups), AT(pull.group_count), 1, KVF_LAYOUT_MAX_GROUPS},
};

static const struct kvfi_field started_fields[] = {
    TRANSFER(started),
    COUNT("writer", started.writer),
    NAME("transport", started.transport, 0, KVFI_WIRE_MAX_NAME),
    COUNT("bytes", started.expected_bytes),
};

static const struct kvfi_field progress_fields[] = {
    TRANSFER(progress),
    COUNT("writer", progress.writer),
    COUNT("layer_first", progress.layer_first),
    COUNT("layer_end", progress.layer_end),
    COUNT("token_end", progress.token_end),
    COUNT("bytes", progress.bytes),
};

static const struct kvfi_field end_fields[] = {
    TRANSFER(end),
    COUNT("writer", end.writer),
    COUNT("bytes", end.bytes),
    COUNT("runs", end.runs),
    COUNT("chunks", end.chunks),
    STATUS(end.status),
    SENTENCE("text", end.text),
};

static const struct kvfi_field note_fields[] = {
    TRANSFER(note),
    INTEGER("writer", note.writer, -1, INT64_MAX),
    STATUS(note.status),
    SENTENCE("text", note.text),
};

static const struct kvfi_field nack_fields[] = {
    NAME("of", nack.of, 0, 31),
    NAME("transfer", nack.transfer, 0, KVFI_WIRE_MAX_NAME),
    COUNT("attempt", nack.attempt),
    STATUS(nack.status),
    SENTENCE("text", nack.text),
};

static const struct kvfi_field ping_fields[] = {
    NUMBER("sequence", ping.sequence, 0),
    NUMBER("incarnation", ping.incarnation, 0),
};

#define TYPE(name, table) {name, table, sizeof table / sizeof table[0]}

static const struct {
    const char *name;
    const struct kvfi_field *fields;
    size_t field_count;
} types[KVFI_MSG_TYPES] = {
    [KVFI_MSG_NONE] = {"none", NULL, 0},
    [KVFI_MSG_HELLO] = TYPE("hello", hello_fields),
    [KVFI_MSG_HELLO_ACK] = TYPE("hello_ack", hello_ack_fields),
    [KVFI_MSG_PULL] = TYPE("pull", pull_fields),
    [KVFI_MSG_STARTED] = TYPE("started", started_fields),
    [KVFI_MSG_PROGRESS] = TYPE("progress", progress_fields),
    [KVFI_MSG_DONE] = TYPE("done", end_fields),
    [KVFI_MSG_FAILED] = TYPE("failed", end_fields),
    [KVFI_MSG_IN_DOUBT] = TYPE("in_doubt", end_fields),
    [KVFI_MSG_CANCEL] = TYPE("cancel", note_fields),
    [KVFI_MSG_QUIESCED] = TYPE("quiesced", note_fields),
    [KVFI_MSG_RELEASE] = TYPE("release", note_fields),
    [KVFI_MSG_NACK] = TYPE("nack", nack_fields),
    [KVFI_MSG_PING] = TYPE("ping", ping_fields),
    [KVFI_MSG_PONG] = TYPE("pong", ping_fields),
};

const char *kvfi_message_name(enum kvfi_message_type type)
{
    return (unsigned)type < KVFI_MSG_TYPES ? types[type].name : "unknown";
}

const struct kvfi_field *kvfi_message_fields(enum kvfi_message_type type, size_t *count)
{
    bool known = (unsigned)type < KVFI_MSG_TYPES;

    *count = known ? types[type].field_count : 0;
    return known ? types[type].fields : NULL;
}

enum kvfi_message_type kvfi_message_find(const char *name, size_t name_bytes)
{
    enum kvfi_message_type found = KVFI_MSG_NONE;

    for (int type = KVFI_MSG_HELLO; type < KVFI_MSG_TYPES; type++)
        if (strlen(types[type].name) == name_bytes && memcmp(types[type].name, name, name_bytes) == 0)
            found = (enum kvfi_message_type)type;
    return found;
}

static enum kvf_status check_pull(const struct kvfi_msg_pull *pull, enum kvf_status status, struct kvf_error *error)
{
    if (pull->token_begin > pull->token_end || pull->token_end > pull->request_tokens)
        return kvfi_fail(error, status,
                         "pull: range [%" PRId64 ", %" PRId64 ") does not lie in the %" PRId64 " tokens of the request",
                         pull->token_begin, pull->token_end, pull->request_tokens);
    return KVF_OK;
}

enum kvf_status kvfi_message_check(const struct kvfi_message *message, enum kvf_status status,
                                   struct kvf_error *error)
{
    switch (message->type) {
    case KVFI_MSG_PULL:
        return check_pull(&message->pull, status, error);
    case KVFI_MSG_PROGRESS:
        if (message->progress.layer_first > message->progress.layer_end)
            return kvfi_fail(error, status, "progress: layers [%" PRId64 ", %" PRId64 ") end before they begin",
                             message->progress.layer_first, message->progress.layer_end);
        return KVF_OK;
    case KVFI_MSG_HELLO_ACK:
        if (message->hello.status == KVF_OK && !message->hello.layout)
            return kvfi_fail(error, status, "hello_ack: layout is missing from an accepting answer");
        return KVF_OK;
    default:
        return KVF_OK;
    }
}
