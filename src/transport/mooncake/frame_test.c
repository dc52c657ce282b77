/* SPDX-License-Identifier: Apache-2.0 */
/* What frames and texts of other engines mean. golden_test.c has the bytes of each frame. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "transport/mooncake/descriptor.h"
#include "transport/mooncake/frame.h"

static void test_lengths(void **state)
{
    static const struct { uint8_t bytes[8]; size_t length; } rows[] = {
        {{0}, 0}, {{1}, 1}, {{0, 0, 16}, 1048576}, {{1, 0, 16}, 0}, {{0, 0, 0, 0, 0, 0, 0, 0x80}, 0},
        {{255, 255, 255, 255, 255, 255, 255, 255}, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(kvfi_moon_parse_length(rows[i].bytes, 1048576), rows[i].length);
}

static void test_headers(void **state)
{
    static const struct { struct kvfi_moon_header header; uint8_t bytes[24]; } rows[] = {
        {{65536, UINT64_C(0x7f1234560000), KVFI_MOON_WRITE_2},
         {0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x56, 0x34, 0x12, 0x7f, 0, 0, 0x81}},
        {{16, UINT64_C(0x7f1234560000), KVFI_MOON_READ_1},
         {16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x56, 0x34, 0x12, 0x7f, 0, 0, 0}}};
    static const uint8_t foreign[] = {0x02, 0x03, 0x40, 0x7f, 0x82, 0x83, 0xc0, 0xff};
    struct kvfi_moon_header read;
    uint8_t bytes[24];

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        kvfi_moon_pack_header(&rows[i].header, bytes);
        assert_memory_equal(bytes, rows[i].bytes, 24);
        memset(bytes + 17, 0xEE, 7); /* what the other engine leaves there */
        assert_true(kvfi_moon_parse_header(bytes, &read));
        assert_int_equal(read.bytes, rows[i].header.bytes);
        assert_int_equal(read.address, rows[i].header.address);
        assert_int_equal(read.opcode, rows[i].header.opcode);
    }
    for (size_t i = 0; i < sizeof foreign; i++) {
        bytes[16] = foreign[i];
        assert_false(kvfi_moon_parse_header(bytes, &read));
    }
}

static void test_statuses(void **state)
{
    static const uint8_t accepted[] = {0, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d};
    static const uint8_t rejected[] = {1, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d};
    static const uint8_t other[] = {0, 0, 0, 0, 0x4d, 0x43, 0x54, 0x56};
    uint8_t bytes[8];
    uint32_t code = 9;

    (void)state;
    kvfi_moon_pack_status(KVFI_MOON_ACCEPTED, bytes);
    assert_memory_equal(bytes, accepted, 8);
    assert_true(kvfi_moon_parse_status(bytes, &code));
    assert_int_equal(code, 0);
    kvfi_moon_pack_status(KVFI_MOON_REJECTED, bytes);
    assert_memory_equal(bytes, rejected, 8);
    assert_true(kvfi_moon_parse_status(bytes, &code));
    assert_int_equal(code, 1);
    assert_false(kvfi_moon_parse_status(other, &code));
}

/* ---- descriptors ------------------------------------------------------------------------------------------------ */

static const char example[] =
    "{\"buffers\":[{\"addr\":140200000004096,\"length\":1048576,\"name\":\"192.0.2.7:15321\"}],"
    "\"name\":\"192.0.2.7:15321\",\"protocol\":\"tcp\",\"rdma_server_name\":\"\",\"tcp_data_host\":\"192.0.2.7\","
    "\"tcp_data_port\":16044,\"tcp_proto_version\":2,\"timestamp\":\"2026-08-22 09:15:02.123456\"}\n";

static void test_descriptor(void **state)
{
    struct kvfi_moon_descriptor read;
    struct kvf_error error;
    char *text;
    size_t bytes;

    (void)state;
    assert_int_equal(kvfi_moon_descriptor_parse(example, sizeof example - 1, &read, &error), KVF_OK);
    assert_string_equal(read.name, "192.0.2.7:15321");
    assert_true(read.is_tcp);
    assert_int_equal(read.data_port, 16044);
    assert_int_equal(read.version, 2);
    assert_int_equal(read.buffer_count, 1);
    assert_int_equal(read.buffers[0].address, UINT64_C(140200000004096));
    assert_int_equal(kvfi_moon_descriptor_print(&read, &text, &bytes, &error), KVF_OK);
    assert_int_equal(bytes, sizeof example - 1);
    assert_memory_equal(text, example, bytes);
    free(text);
    read.buffer_count = 0;
    assert_int_equal(kvfi_moon_descriptor_print(&read, &text, &bytes, &error), KVF_OK);
    assert_memory_equal(text, "{\"buffers\":[],\"name\":", 21);
    free(text);
    kvfi_moon_descriptor_fini(&read);
}

static void test_other_descriptors(void **state)
{
    static const struct { const char *text; enum kvf_status status; int tcp, port, version; size_t buffers; } rows[] = {
        {"{}", KVF_OK, 0, 0, 1, 0},
        {" { \"protocol\" : \"tcp\" , \"tcp_data_port\" : 7 } trailing", KVF_OK, 1, 7, 1, 0},
        {"{\"protocol\":[\"rdma\",\"tcp\"],\"tcp_proto_version\":99}", KVF_OK, 1, 0, 99, 0},
        {"{\"protocol\":\"rdma\",\"devices\":[{\"gid\":[[1,-2.5e3]]}],\"x\":null,\"y\":true}", KVF_OK, 0, 0, 1, 0},
        {"{\"buffers\":[{\"addr\":18446744073709547520,\"length\":18446744073709551615,\"rkey\":[1]}]}", KVF_OK, 0, 0,
         1, 1},
        {"{\"buffers\":[{\"addr\":1,\"length\":2}],\"buffers\":[]}", KVF_OK, 0, 0, 1, 0},
        {"{\"buffers\":7}", KVF_OK, 0, 0, 1, 0},
        {"", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"null", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"[]", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"buffers\":[{\"addr\":18446744073709551616}]}", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"buffers\":[{\"addr\":-1}]}", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"buffers\":[{\"addr\":1.0}]}", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"buffers\":[{\"addr\":\"1\"}]}", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"buffers\":[1]}", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"tcp_data_port\":65536}", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"tcp_proto_version\":\"2\"}", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"name\":[]}", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"name\":\"\\ud800\"}", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"name\":\"\\u0000\"}", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"name\":\"\xff\"}", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"name\":\"x}", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"a\":1", KVF_ERR_PARSE, 0, 0, 0, 0},
        {"{\"a\":1,}", KVF_ERR_PARSE, 0, 0, 0, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvfi_moon_descriptor read;
        struct kvf_error error = {.text = ""};
        enum kvf_status status = kvfi_moon_descriptor_parse(rows[i].text, strlen(rows[i].text), &read, &error);

        if (status != rows[i].status) fail_msg("%s: %s", rows[i].text, error.text);
        if (status == KVF_OK) {
            assert_int_equal(read.is_tcp, rows[i].tcp);
            assert_int_equal(read.data_port, rows[i].port);
            assert_int_equal(read.version, rows[i].version);
            assert_int_equal(read.buffer_count, rows[i].buffers);
        }
        kvfi_moon_descriptor_fini(&read);
    }
}

static void test_depth(void **state)
{
    char *text = malloc(4096);
    struct kvfi_moon_descriptor read;

    (void)state;
    assert_non_null(text);
    for (size_t depth = 60; depth <= 1100; depth += 520) {
        size_t at = 0;

        memcpy(text, "{\"x\":", 5);
        at = 5;
        memset(text + at, '[', depth);
        memset(text + at + depth, ']', depth);
        text[at + 2 * depth] = '}';
        assert_int_equal(kvfi_moon_descriptor_parse(text, at + 2 * depth + 1, &read, NULL),
                         depth <= 60 ? KVF_OK : KVF_ERR_PARSE);
        kvfi_moon_descriptor_fini(&read);
    }
    free(text);
}

static void test_notify(void **state)
{
    static const char quoted[] = "{\"name\":\"a\\\"\\\\\\n\",\"notify_msg\":\"\\u00fc\\ud83d\\ude00\\u0001\"}\n";
    char *text, *name, *message;
    size_t bytes;

    (void)state;
    assert_int_equal(kvfi_moon_notify_print("a\"\\\n", "\xC3\xBC\xF0\x9F\x98\x80\x01", &text, &bytes, NULL), KVF_OK);
    assert_int_equal(bytes, sizeof quoted - 1);
    assert_memory_equal(text, quoted, bytes);
    assert_int_equal(kvfi_moon_notify_parse(text, bytes, &name, &message, NULL), KVF_OK);
    assert_string_equal(name, "a\"\\\n");
    assert_string_equal(message, "\xC3\xBC\xF0\x9F\x98\x80\x01");
    free(name);
    free(message);
    free(text);
    assert_int_equal(kvfi_moon_notify_parse("7", 1, &name, &message, NULL), KVF_ERR_PARSE);
    assert_int_equal(kvfi_moon_notify_parse("{\"name\":{}}", 11, &name, &message, NULL), KVF_ERR_PARSE);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths), cmocka_unit_test(test_headers),
        cmocka_unit_test(test_statuses), cmocka_unit_test(test_descriptor), cmocka_unit_test(test_other_descriptors),
        cmocka_unit_test(test_depth), cmocka_unit_test(test_notify)};

    return cmocka_run_group_tests_name("mooncake frames", tests, NULL, NULL);
}
