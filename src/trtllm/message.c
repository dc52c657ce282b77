/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/message.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "wire/text.h"

static const char *const tag_texts[KVFI_TRTLLM_TAGS] = {
    "an unknown message", "REQUEST_INSTANCE_INFO", "REGISTER_RANK_INFO", "REQUEST_DATA", "KV_AGENT_RESULT",
    "AUX_AGENT_RESULT", "CANCEL_SESSION", "SESSION_QUIESCED", "TERMINATION"};

static const char *const word_texts[KVFI_TRTLLM_WORDS] = {"SUCCESS", "FAILED", "IN_DOUBT", "FAILED_QUIESCED"};

const char *kvfi_trtllm_tag_text(int tag)
{
    return tag_texts[tag > 0 && tag < KVFI_TRTLLM_TAGS ? tag : KVFI_TRTLLM_UNKNOWN];
}

const char *kvfi_trtllm_word_text(int word)
{
    return word >= 0 && word < KVFI_TRTLLM_WORDS ? word_texts[word] : "an unknown word";
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

static bool frame_is(const struct kvfi_trtllm_frame *frame, const char *text)
{
    return frame->byte_count == strlen(text) && memcmp(frame->bytes, text, frame->byte_count) == 0;
}

static int find_tag(const struct kvfi_trtllm_frame *frame)
{
    int tag = KVFI_TRTLLM_TAGS - 1;

    while (tag > 0 && !frame_is(frame, tag_texts[tag]))
        tag--;
    return tag;
}

/* A clean, short copy of a frame for a message. */
static const char *quote(const struct kvfi_trtllm_frame *frame, char *out, size_t capacity)
{
    char raw[40];
    size_t count = frame->byte_count < sizeof raw - 1 ? frame->byte_count : sizeof raw - 1;

    if (count > 0)
        memcpy(raw, frame->bytes, count);
    raw[count] = '\0';
    kvfi_text_clean(raw, out, capacity);
    return out;
}

/* Decimal digits with an optional minus; no sign, blank or zero byte beside. */
static bool parse_decimal(const char *text, size_t count, int64_t *out)
{
    size_t at = count > 0 && text[0] == '-' ? 1 : 0;
    int64_t value = 0;

    if (at == count || count > 20)
        return false;
    for (size_t i = at; i < count; i++) {
        int digit = text[i] - '0';
        if (digit < 0 || digit > 9 || __builtin_mul_overflow(value, (int64_t)10, &value) ||
            __builtin_sub_overflow(value, (int64_t)digit, &value))
            return false;
    }
    if (at == 0 && value == INT64_MIN)
        return false;
    *out = at == 1 ? value : -value;
    return true;
}

static enum kvf_status read_decimal(const struct kvfi_trtllm_frame *frame, const char *message, const char *field,
                                    int64_t min, int64_t *out, struct kvf_error *error)
{
    char text[48];

    if (!parse_decimal(frame->bytes, frame->byte_count, out))
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %s is \"%s\" (%zu bytes), expected a decimal number", message,
                         field, quote(frame, text, sizeof text), frame->byte_count);
    if (*out < min)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %s is %" PRId64 ", expected %" PRId64 " or more", message, field,
                         *out, min);
    return KVF_OK;
}

static enum kvf_status expect_frames(int tag, size_t count, size_t one, size_t other, struct kvf_error *error)
{
    if (count == one || count == other)
        return KVF_OK;
    if (one == other)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %zu frames, expected %zu", tag_texts[tag], count, one);
    return kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: %zu frames, expected %zu or %zu", tag_texts[tag], count, one, other);
}

static int64_t little_i64(const unsigned char *bytes)
{
    uint64_t value = 0;

    for (int i = 7; i >= 0; i--)
        value = value << 8 | bytes[i];
    return (int64_t)value;
}

static enum kvf_status read_result(const struct kvfi_trtllm_frame *frames, size_t count,
                                   struct kvfi_trtllm_result *out, struct kvf_error *error)
{
    const unsigned char *bytes = frames[1].bytes;

    if (frames[1].byte_count != KVFI_TRTLLM_RESULT_BYTES)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "KV_AGENT_RESULT: prefix has %zu bytes, expected %d",
                         frames[1].byte_count, KVFI_TRTLLM_RESULT_BYTES);
    *out = (struct kvfi_trtllm_result){.ctx_rank = little_i64(bytes), .rid = little_i64(bytes + 8),
                                       .slice = little_i64(bytes + 16), .is_last = bytes[24] == 1, .word = bytes[25],
                                       .is_bounced = count > 2, .transfer_bytes = little_i64(bytes + 26)};
    if (out->ctx_rank < 0 || out->ctx_rank >= KVF_TRTLLM_MAX_RANKS)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "KV_AGENT_RESULT: ctx_instance_rank is %" PRId64
                         ", expected 0 to %d", out->ctx_rank, KVF_TRTLLM_MAX_RANKS - 1);
    if (out->slice < 0)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "KV_AGENT_RESULT: receiver_slice_id is %" PRId64
                         ", expected 0 or more", out->slice);
    if (bytes[24] > 1)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "KV_AGENT_RESULT: is_last is %u, expected 0 or 1", bytes[24]);
    if (out->word >= KVFI_TRTLLM_WORDS)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "KV_AGENT_RESULT: status is %d, expected 0 to %d", out->word,
                         KVFI_TRTLLM_WORDS - 1);
    if (out->transfer_bytes < 0)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "KV_AGENT_RESULT: transfer_size is %" PRId64 ", expected 0 or more",
                         out->transfer_bytes);
    return KVF_OK;
}

static enum kvf_status read_ctx_rank(const struct kvfi_trtllm_frame *frame, const char *message, int64_t *out,
                                     struct kvf_error *error)
{
    enum kvf_status status = read_decimal(frame, message, "ctx rank", 0, out, error);

    if (status == KVF_OK && *out >= KVF_TRTLLM_MAX_RANKS)
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "%s: ctx rank is %" PRId64 ", expected at most %d", message, *out,
                           KVF_TRTLLM_MAX_RANKS - 1);
    return status;
}

static enum kvf_status read_aux(const struct kvfi_trtllm_frame *frames, struct kvfi_trtllm_aux_result *out,
                                struct kvf_error *error)
{
    char text[48];
    enum kvf_status status = read_ctx_rank(&frames[1], "AUX_AGENT_RESULT", &out->ctx_rank, error);

    if (status == KVF_OK)
        status = read_decimal(&frames[2], "AUX_AGENT_RESULT", "rid", INT64_MIN, &out->rid, error);
    if (status != KVF_OK)
        return status;
    for (out->word = 0; out->word < KVFI_TRTLLM_WORDS; out->word++)
        if (frame_is(&frames[3], word_texts[out->word]))
            return KVF_OK;
    return kvfi_fail(error, KVF_ERR_PROTOCOL, "AUX_AGENT_RESULT: status is \"%s\" (%zu bytes), expected SUCCESS, "
                     "FAILED, IN_DOUBT or FAILED_QUIESCED", quote(&frames[3], text, sizeof text), frames[3].byte_count);
}

static enum kvf_status read_cancel(const struct kvfi_trtllm_frame *frames, size_t count,
                                   struct kvfi_trtllm_cancel *out, struct kvf_error *error)
{
    enum kvf_status status = read_decimal(&frames[1], "CANCEL_SESSION", "rid", INT64_MIN, &out->rid, error);

    out->has_requester = count == 4;
    if (status != KVF_OK || !out->has_requester)
        return status;
    out->instance_name = frames[2].bytes;
    out->name_bytes = frames[2].byte_count;
    if (out->name_bytes == 0 || out->name_bytes > KVF_TRTLLM_MAX_TEXT_BYTES ||
        !kvfi_text_is_clean(out->instance_name, out->name_bytes))
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "CANCEL_SESSION: instance_name has %zu bytes, expected 1 to %d bytes "
                         "of text", out->name_bytes, KVF_TRTLLM_MAX_TEXT_BYTES);
    return read_decimal(&frames[3], "CANCEL_SESSION", "instance_rank", 0, &out->instance_rank, error);
}

static enum kvf_status read_quiesced(const struct kvfi_trtllm_frame *frames, struct kvfi_trtllm_quiesced *out,
                                     struct kvf_error *error)
{
    enum kvf_status status = read_ctx_rank(&frames[1], "SESSION_QUIESCED", &out->ctx_rank, error);

    return status == KVF_OK ? read_decimal(&frames[2], "SESSION_QUIESCED", "rid", INT64_MIN, &out->rid, error) : status;
}

static enum kvf_status read_tagged(const struct kvfi_trtllm_frame *frames, size_t count,
                                   struct kvfi_trtllm_message *message, struct kvf_error *error)
{
    static const uint8_t expected[KVFI_TRTLLM_TAGS][2] = {{0, 0}, {1, 1}, {2, 2}, {2, 2}, {2, 5},
                                                          {4, 4}, {2, 4}, {3, 3}, {1, 1}};
    enum kvf_status status =
        expect_frames(message->tag, count, expected[message->tag][0], expected[message->tag][1], error);

    if (status != KVF_OK)
        return status;
    switch (message->tag) {
    case KVFI_TRTLLM_REGISTER_RANK_INFO:
    case KVFI_TRTLLM_REQUEST_DATA:
        message->payload = frames[1];
        return KVF_OK;
    case KVFI_TRTLLM_KV_AGENT_RESULT:
        return read_result(frames, count, &message->result, error);
    case KVFI_TRTLLM_AUX_AGENT_RESULT:
        return read_aux(frames, &message->aux, error);
    case KVFI_TRTLLM_CANCEL_SESSION:
        return read_cancel(frames, count, &message->cancel, error);
    case KVFI_TRTLLM_SESSION_QUIESCED:
        return read_quiesced(frames, &message->quiesced, error);
    default:
        return KVF_OK;
    }
}

enum kvf_status kvfi_trtllm_read(const struct kvfi_trtllm_frame *frames, size_t count,
                                 struct kvfi_trtllm_message *out, struct kvf_error *error)
{
    struct kvfi_trtllm_message message = {.tag = KVFI_TRTLLM_UNKNOWN};
    enum kvf_status status = KVF_OK;

    out->tag = KVFI_TRTLLM_UNKNOWN;
    if (count == 0)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "a message without frames");
    message.tag = find_tag(&frames[0]);
    out->tag = message.tag;
    if (message.tag != KVFI_TRTLLM_UNKNOWN)
        status = read_tagged(frames, count, &message, error);
    if (status == KVF_OK)
        *out = message;
    return status;
}

/* ---- packing ------------------------------------------------------------------------------------------------ */

static void add(struct kvfi_trtllm_packed *out, const void *bytes, size_t byte_count)
{
    out->frames[out->count++] = (struct kvfi_trtllm_frame){bytes, byte_count};
}

/* Room: two numbers of at most 20 characters, or one prefix. */
static void add_decimal(struct kvfi_trtllm_packed *out, size_t offset, int64_t value)
{
    int count = snprintf(out->room + offset, sizeof out->room - offset, "%" PRId64, value);

    add(out, out->room + offset, (size_t)count);
}

void kvfi_trtllm_pack_tag(struct kvfi_trtllm_packed *out, int tag)
{
    const char *text = kvfi_trtllm_tag_text(tag);

    out->count = 0;
    add(out, text, strlen(text));
}

void kvfi_trtllm_pack_payload(struct kvfi_trtllm_packed *out, int tag, const void *bytes, size_t byte_count)
{
    kvfi_trtllm_pack_tag(out, tag);
    add(out, bytes, byte_count);
}

static void put_i64(char *bytes, int64_t value)
{
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)((uint64_t)value >> (8 * i) & 0xff);
}

void kvfi_trtllm_pack_result(struct kvfi_trtllm_packed *out, const struct kvfi_trtllm_result *result)
{
    kvfi_trtllm_pack_tag(out, KVFI_TRTLLM_KV_AGENT_RESULT);
    put_i64(out->room, result->ctx_rank);
    put_i64(out->room + 8, result->rid);
    put_i64(out->room + 16, result->slice);
    out->room[24] = result->is_last ? 1 : 0;
    out->room[25] = (char)result->word;
    put_i64(out->room + 26, result->transfer_bytes);
    add(out, out->room, KVFI_TRTLLM_RESULT_BYTES);
}

void kvfi_trtllm_pack_aux(struct kvfi_trtllm_packed *out, const struct kvfi_trtllm_aux_result *aux)
{
    const char *word = kvfi_trtllm_word_text(aux->word);

    kvfi_trtllm_pack_tag(out, KVFI_TRTLLM_AUX_AGENT_RESULT);
    add_decimal(out, 0, aux->ctx_rank);
    add_decimal(out, 32, aux->rid);
    add(out, word, strlen(word));
}

void kvfi_trtllm_pack_cancel(struct kvfi_trtllm_packed *out, const struct kvfi_trtllm_cancel *cancel)
{
    kvfi_trtllm_pack_tag(out, KVFI_TRTLLM_CANCEL_SESSION);
    add_decimal(out, 0, cancel->rid);
    if (cancel->has_requester) {
        add(out, cancel->instance_name, cancel->name_bytes);
        add_decimal(out, 32, cancel->instance_rank);
    }
}

void kvfi_trtllm_pack_quiesced(struct kvfi_trtllm_packed *out, const struct kvfi_trtllm_quiesced *quiesced)
{
    kvfi_trtllm_pack_tag(out, KVFI_TRTLLM_SESSION_QUIESCED);
    add_decimal(out, 0, quiesced->ctx_rank);
    add_decimal(out, 32, quiesced->rid);
}
