/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of TensorRT-LLM's control messages. The bytes of the results were packed by Python's struct as "<qqqBBq". */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "trtllm/message.h"

#define FIRST "\3\0\0\0\0\0\0\0" "\0\0\0\0\0\1\0\0" "\2\0\0\0\0\0\0\0" "\1\0" "\0\0\1\0\0\0\0\0"
#define SECOND "\0\0\0\0\0\0\0\0" "\xfe\xff\xff\xff\xff\xff\xff\xff" "\0\0\0\0\0\0\0\0" "\0\2" "\0\0\0\0\0\0\0\0"

/* One message as frames. Sizes are given, for zero bytes. */
struct row {
    const char *name;
    const char *frames[6];
    size_t bytes[6]; /* 0: strlen */
    size_t count;
    const char *refusal; /* NULL: it is read */
};

static size_t frames_of(const struct row *row, struct kvfi_trtllm_frame *frames)
{
    for (size_t i = 0; i < row->count; i++)
        frames[i] = (struct kvfi_trtllm_frame){row->frames[i],
                                               row->bytes[i] != 0 ? row->bytes[i] : strlen(row->frames[i])};
    return row->count;
}

static const struct row bad[] = {
    {"nothing", {0}, {0}, 0, "a message without frames"},
    {"no prefix", {"KV_AGENT_RESULT"}, {0}, 1, "KV_AGENT_RESULT: 1 frames, expected 2 or 5"},
    {"half a tail", {"KV_AGENT_RESULT", FIRST, "", ""}, {0, 34}, 4, "KV_AGENT_RESULT: 4 frames, expected 2 or 5"},
    {"too long a tail", {"KV_AGENT_RESULT", FIRST, "", "", "", ""}, {0, 34}, 6, "6 frames, expected 2 or 5"},
    {"an empty prefix", {"KV_AGENT_RESULT", ""}, {0}, 2, "prefix has 0 bytes, expected 34"},
    {"one byte short", {"KV_AGENT_RESULT", FIRST}, {0, 33}, 2, "prefix has 33 bytes, expected 34"},
    {"one byte long", {"KV_AGENT_RESULT", FIRST}, {0, 35}, 2, "prefix has 35 bytes, expected 34"},
    {"the older text form", {"KV_AGENT_RESULT", "0"}, {0}, 2, "prefix has 1 bytes, expected 34"},
    {"negative ctx rank",
     {"KV_AGENT_RESULT", "\xff\xff\xff\xff\xff\xff\xff\xff" "\0\0\0\0\0\0\0\0" "\0\0\0\0\0\0\0\0" "\1\0"
                         "\0\0\0\0\0\0\0\0"}, {0, 34}, 2, "ctx_instance_rank is -1, expected 0 to 65535"},
    {"too high a ctx rank",
     {"KV_AGENT_RESULT", "\0\0\1\0\0\0\0\0" "\0\0\0\0\0\0\0\0" "\0\0\0\0\0\0\0\0" "\1\0" "\0\0\0\0\0\0\0\0"},
     {0, 34}, 2, "ctx_instance_rank is 65536, expected 0 to 65535"},
    {"negative slice",
     {"KV_AGENT_RESULT", "\0\0\0\0\0\0\0\0" "\0\0\0\0\0\0\0\0" "\0\0\0\0\0\0\0\x80" "\1\0" "\0\0\0\0\0\0\0\0"},
     {0, 34}, 2, "receiver_slice_id is -9223372036854775808, expected 0 or more"},
    {"is_last of 2",
     {"KV_AGENT_RESULT", "\0\0\0\0\0\0\0\0" "\0\0\0\0\0\0\0\0" "\0\0\0\0\0\0\0\0" "\2\0" "\0\0\0\0\0\0\0\0"},
     {0, 34}, 2, "is_last is 2, expected 0 or 1"},
    {"status 4",
     {"KV_AGENT_RESULT", "\0\0\0\0\0\0\0\0" "\0\0\0\0\0\0\0\0" "\0\0\0\0\0\0\0\0" "\1\4" "\0\0\0\0\0\0\0\0"},
     {0, 34}, 2, "status is 4, expected 0 to 3"},
    {"negative size",
     {"KV_AGENT_RESULT", "\0\0\0\0\0\0\0\0" "\0\0\0\0\0\0\0\0" "\0\0\0\0\0\0\0\0" "\1\0"
                         "\xff\xff\xff\xff\xff\xff\xff\xff"}, {0, 34}, 2, "transfer_size is -1, expected 0 or more"},
    {"aux with two numbers only", {"AUX_AGENT_RESULT", "0", "7"}, {0}, 3, "AUX_AGENT_RESULT: 3 frames, expected 4"},
    {"aux from no rank", {"AUX_AGENT_RESULT", "", "7", "SUCCESS"}, {0}, 4,
     "AUX_AGENT_RESULT: ctx rank is \"\" (0 bytes), expected a decimal number"},
    {"aux from a rank below 0", {"AUX_AGENT_RESULT", "-1", "7", "SUCCESS"}, {0}, 4, "ctx rank is -1, expected 0"},
    {"aux from too high a rank", {"AUX_AGENT_RESULT", "65536", "7", "SUCCESS"}, {0}, 4, "ctx rank is 65536"},
    {"aux with a word for a number", {"AUX_AGENT_RESULT", "0", "seven", "SUCCESS"}, {0}, 4, "rid is \"seven\""},
    {"aux with a status in small letters", {"AUX_AGENT_RESULT", "0", "7", "success"}, {0}, 4,
     "status is \"success\" (7 bytes), expected SUCCESS, FAILED, IN_DOUBT or FAILED_QUIESCED"},
    {"aux with part of a status", {"AUX_AGENT_RESULT", "0", "7", "SUCC"}, {0}, 4, "status is \"SUCC\""},
    {"aux with an empty status", {"AUX_AGENT_RESULT", "0", "7", ""}, {0}, 4, "status is \"\""},
    {"cancel of nothing", {"CANCEL_SESSION"}, {0}, 1, "CANCEL_SESSION: 1 frames, expected 2 or 4"},
    {"cancel with half a requester", {"CANCEL_SESSION", "7", "gen"}, {0}, 3, "3 frames, expected 2 or 4"},
    {"cancel with an empty name", {"CANCEL_SESSION", "7", "", "0"}, {0}, 4, "instance_name has 0 bytes"},
    {"cancel with a control character", {"CANCEL_SESSION", "7", "g\n", "0"}, {0}, 4, "instance_name has 2 bytes"},
    {"cancel of a negative rank", {"CANCEL_SESSION", "7", "gen", "-1"}, {0}, 4, "instance_rank is -1, expected 0"},
    {"cancel with a plus", {"CANCEL_SESSION", "+7"}, {0}, 2, "rid is \"+7\""},
    {"cancel with a blank", {"CANCEL_SESSION", " 7"}, {0}, 2, "rid is \" 7\""},
    {"cancel with a minus alone", {"CANCEL_SESSION", "-"}, {0}, 2, "rid is \"-\""},
    {"cancel with a zero byte", {"CANCEL_SESSION", "7\0"}, {0, 2}, 2, "rid is \"7\" (2 bytes)"},
    {"cancel of 2^63", {"CANCEL_SESSION", "9223372036854775808"}, {0}, 2, "rid is \"9223372036854775808\""},
    {"cancel below -2^63", {"CANCEL_SESSION", "-9223372036854775809"}, {0}, 2, "rid is \"-92233"},
    {"cancel of many digits", {"CANCEL_SESSION", "000000000000000000000000000000000000000000000000007"}, {0}, 2,
     "(51 bytes), expected a decimal number"},
    {"quiesced without a rid", {"SESSION_QUIESCED", "0"}, {0}, 2, "SESSION_QUIESCED: 2 frames, expected 3"},
    {"quiesced of a word", {"SESSION_QUIESCED", "0", "x"}, {0}, 3, "SESSION_QUIESCED: rid is \"x\""},
    {"an info request with more", {"REQUEST_INSTANCE_INFO", "x"}, {0}, 2, "2 frames, expected 1"},
    {"registration of nothing", {"REGISTER_RANK_INFO"}, {0}, 1, "REGISTER_RANK_INFO: 1 frames, expected 2"},
    {"a request for nothing", {"REQUEST_DATA"}, {0}, 1, "REQUEST_DATA: 1 frames, expected 2"},
};

static void test_bad_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvfi_trtllm_frame frames[6];
        struct kvfi_trtllm_message message;
        struct kvf_error error = {.position = -1};
        enum kvf_status status = kvfi_trtllm_read(frames, frames_of(&bad[i], frames), &message, &error);
        if (status != KVF_ERR_PROTOCOL || strstr(error.text, bad[i].refusal) == NULL)
            fail_msg("%s: %d \"%s\", expected \"%s\"", bad[i].name, status, error.text, bad[i].refusal);
    }
}

static const struct row unknown[] = {
    {"a tag of another time", {"REQUEST_DATA_2", "x"}, {0}, 2, NULL},
    {"part of a tag", {"REQUEST_DAT", "x"}, {0}, 2, NULL},
    {"a tag and a zero byte", {"REQUEST_DATA\0", "x"}, {13}, 2, NULL},
    {"an empty tag", {""}, {0}, 1, NULL},
    {"small letters", {"cancel_session", "7"}, {0}, 2, NULL},
    {"the text for what is unknown", {"an unknown message"}, {0}, 1, NULL},
};

static void test_unknown_tags_are_no_error(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        struct kvfi_trtllm_frame frames[6];
        struct kvfi_trtllm_message message;
        if (kvfi_trtllm_read(frames, frames_of(&unknown[i], frames), &message, NULL) != KVF_OK ||
            message.tag != KVFI_TRTLLM_UNKNOWN)
            fail_msg("%s: tag %d", unknown[i].name, message.tag);
    }
}

static void read_back(const struct kvfi_trtllm_packed *packed, struct kvfi_trtllm_message *message)
{
    struct kvf_error error = {.position = -1};

    if (kvfi_trtllm_read(packed->frames, packed->count, message, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static void assert_frame(const struct kvfi_trtllm_frame *frame, const void *bytes, size_t byte_count)
{
    assert_int_equal(frame->byte_count, byte_count);
    assert_memory_equal(frame->bytes, bytes, byte_count);
}

static void test_results(void **state)
{
    static const struct {
        const char *bytes;
        struct kvfi_trtllm_result result;
    } golden[] = {
        {FIRST, {.ctx_rank = 3, .rid = INT64_C(1) << 40, .slice = 2, .is_last = true, .transfer_bytes = 65536}},
        {SECOND, {.ctx_rank = 0, .rid = -2, .slice = 0, .word = KVFI_TRTLLM_IN_DOUBT}},
    };
    struct kvfi_trtllm_packed packed;
    struct kvfi_trtllm_message message;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        kvfi_trtllm_pack_result(&packed, &golden[i].result);
        assert_int_equal(packed.count, 2);
        assert_frame(&packed.frames[0], "KV_AGENT_RESULT", 15);
        assert_frame(&packed.frames[1], golden[i].bytes, 34);
        read_back(&packed, &message);
        assert_int_equal(message.tag, KVFI_TRTLLM_KV_AGENT_RESULT);
        assert_int_equal(message.result.ctx_rank, golden[i].result.ctx_rank);
        assert_int_equal(message.result.rid, golden[i].result.rid);
        assert_int_equal(message.result.slice, golden[i].result.slice);
        assert_int_equal(message.result.is_last, golden[i].result.is_last);
        assert_int_equal(message.result.word, golden[i].result.word);
        assert_int_equal(message.result.transfer_bytes, golden[i].result.transfer_bytes);
        assert_false(message.result.is_bounced);
    }
}

static void test_bounce_tail_is_recognised(void **state)
{
    const struct row row = {"", {"KV_AGENT_RESULT", FIRST, "12345678", "12345678", "12345678"}, {0, 34}, 5, NULL};
    struct kvfi_trtllm_frame frames[6];
    struct kvfi_trtllm_message message;

    (void)state;
    assert_int_equal(kvfi_trtllm_read(frames, frames_of(&row, frames), &message, NULL), KVF_OK);
    assert_true(message.result.is_bounced);
    assert_int_equal(message.result.rid, INT64_C(1) << 40);
}

static void test_texts(void **state)
{
    struct kvfi_trtllm_packed packed;
    struct kvfi_trtllm_message message;

    (void)state;
    for (int word = 0; word < KVFI_TRTLLM_WORDS; word++) {
        static const char *const texts[] = {"SUCCESS", "FAILED", "IN_DOUBT", "FAILED_QUIESCED"};
        kvfi_trtllm_pack_aux(&packed, &(struct kvfi_trtllm_aux_result){.ctx_rank = 12, .rid = INT64_MAX, .word = word});
        assert_int_equal(packed.count, 4);
        assert_frame(&packed.frames[0], "AUX_AGENT_RESULT", 16);
        assert_frame(&packed.frames[1], "12", 2);
        assert_frame(&packed.frames[2], "9223372036854775807", 19);
        assert_frame(&packed.frames[3], texts[word], strlen(texts[word]));
        read_back(&packed, &message);
        assert_int_equal(message.aux.word, word);
        assert_int_equal(message.aux.rid, INT64_MAX);
    }
    kvfi_trtllm_pack_cancel(&packed, &(struct kvfi_trtllm_cancel){.rid = INT64_MIN});
    assert_int_equal(packed.count, 2);
    assert_frame(&packed.frames[1], "-9223372036854775808", 20);
    read_back(&packed, &message);
    assert_int_equal(message.cancel.rid, INT64_MIN);
    assert_false(message.cancel.has_requester);
    kvfi_trtllm_pack_cancel(&packed, &(struct kvfi_trtllm_cancel){.rid = 5, .has_requester = true,
                                                                  .instance_name = "gen-b", .name_bytes = 5,
                                                                  .instance_rank = 7});
    assert_int_equal(packed.count, 4);
    assert_frame(&packed.frames[2], "gen-b", 5);
    assert_frame(&packed.frames[3], "7", 1);
    read_back(&packed, &message);
    assert_true(message.cancel.has_requester);
    assert_int_equal(message.cancel.instance_rank, 7);
    kvfi_trtllm_pack_quiesced(&packed, &(struct kvfi_trtllm_quiesced){.ctx_rank = 65535, .rid = 0});
    assert_int_equal(packed.count, 3);
    assert_frame(&packed.frames[1], "65535", 5);
    assert_frame(&packed.frames[2], "0", 1);
    read_back(&packed, &message);
    assert_int_equal(message.quiesced.ctx_rank, 65535);
}

static void test_payloads(void **state)
{
    struct kvfi_trtllm_packed packed;
    struct kvfi_trtllm_message message;

    (void)state;
    kvfi_trtllm_pack_payload(&packed, KVFI_TRTLLM_REGISTER_RANK_INFO, "\x80", 1);
    read_back(&packed, &message);
    assert_int_equal(message.tag, KVFI_TRTLLM_REGISTER_RANK_INFO);
    assert_frame(&message.payload, "\x80", 1);
    kvfi_trtllm_pack_tag(&packed, KVFI_TRTLLM_REQUEST_INSTANCE_INFO);
    assert_int_equal(packed.count, 1);
    read_back(&packed, &message);
    assert_int_equal(message.tag, KVFI_TRTLLM_REQUEST_INSTANCE_INFO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_messages), cmocka_unit_test(test_unknown_tags_are_no_error),
        cmocka_unit_test(test_results),      cmocka_unit_test(test_bounce_tail_is_recognised),
        cmocka_unit_test(test_texts),        cmocka_unit_test(test_payloads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
