/* SPDX-License-Identifier: Apache-2.0 */
/* The frames of tcp and the messages of shm: their exact bytes, read back, and what is refused.
 *
 *     frames_test FOLDER [--write]     FOLDER/NAME.hex holds each one's bytes; --write makes the files anew */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "transport/direct/message.h"
#include "transport/tcp/frame.h"

static const char *folder;
static bool write_files;

enum { LINE_BYTES = 32, MAX_BYTES = 4096 };

static const struct kvfi_chunk_head chunk = {.grant = 0x1122334455667788, .index = 3, .last = 1, .layer_first = 2,
                                             .layer_end = 5, .token_begin = 16, .token_end = 353, .bind_flags = 2,
                                             .bytes = 1000000};
static const struct kvfi_peer_identity source = {"p/pp0.cp0.tp1", 0xa1a2a3a4a5a6a7a8};
static const struct kvfi_peer_identity destination = {"d/pp0.cp0.tp0", 0xb1b2b3b4b5b6b7b8};

/* ---- samples ---------------------------------------------------------------------------------------------------- */

static size_t tcp_hello(uint8_t *buffer)
{
    struct kvfi_frame_hello hello = {.version = 1, .self = source, .expected = destination, .session = 77,
                                     .generation = 2, .stream = 1, .streams = 4};

    return kvfi_frame_pack_hello(&hello, buffer);
}

static size_t tcp_welcome(uint8_t *buffer)
{
    struct kvfi_frame_welcome welcome = {.version = 1, .status = KVF_ERR_STALE, .text = "expected another incarnation",
                                         .self = destination};

    return kvfi_frame_pack_welcome(&welcome, buffer);
}

static size_t tcp_data(uint8_t *buffer)
{
    struct kvfi_frame_data data = {.chunk = chunk, .generation = 2, .offset_bytes = 262144,
                                   .checksum = 0x0102030405060708, .bytes = 8};
    size_t bytes = kvfi_frame_pack_data(&data, true, buffer);

    memcpy(buffer + bytes, "payload!", 8);
    return bytes + 8;
}

static size_t tcp_ack(uint8_t *buffer)
{
    struct kvfi_frame_ack ack = {.grant = chunk.grant, .index = 3, .status = KVF_ERR_REFUSED, .text = "not armed"};

    return kvfi_frame_pack_ack(&ack, buffer);
}

static size_t shm_message(uint32_t kind, uint8_t *buffer)
{
    struct kvfi_direct_message message = {.kind = kind, .self = source, .expected = destination,
                                          .status = KVF_ERR_REFUSED, .text = "because", .memory_count = 2,
                                          .memory_first = 64, .probe_address = 0x7f0011223344, .nonce = 99,
                                          .head = chunk};

    message.memories[0].address = 0x7f0000001000;
    message.memories[0].bytes = 65536;
    message.memories[0].has_fd = 1;
    message.memories[1].address = 0x7f0000100000;
    message.memories[1].bytes = 4096;
    return kvfi_direct_pack(&message, buffer);
}

static const char *const shm_names[] = {"",     "hello",  "welcome", "memories", "probe", "probed",
                                        "open", "opened", "placed",  "ack",      "abort", "revoke"};

/* ---- files ------------------------------------------------------------------------------------------------------ */

static void check_file(const char *name, const uint8_t *bytes, size_t count)
{
    uint8_t expected[MAX_BYTES];
    size_t expected_count = 0;
    char path[512];
    unsigned value;
    FILE *file;

    snprintf(path, sizeof path, "%s/%s.hex", folder, name);
    file = fopen(path, write_files ? "w" : "r");
    if (!file) fail_msg("%s cannot be opened", path);
    for (size_t i = 0; write_files && i < count; i++)
        fprintf(file, "%02x%s", bytes[i], (i + 1) % LINE_BYTES == 0 || i + 1 == count ? "\n" : "");
    while (!write_files && expected_count < MAX_BYTES && fscanf(file, "%2x", &value) == 1)
        expected[expected_count++] = (uint8_t)value;
    fclose(file);
    if (write_files) return;
    if (expected_count != count || memcmp(expected, bytes, count) != 0) fail_msg("%s: other bytes", path);
}

static void bytes_are_as_in_the_files(void **state)
{
    uint8_t buffer[MAX_BYTES];

    (void)state;
    check_file("tcp_hello", buffer, tcp_hello(buffer));
    check_file("tcp_welcome", buffer, tcp_welcome(buffer));
    check_file("tcp_data", buffer, tcp_data(buffer));
    check_file("tcp_ack", buffer, tcp_ack(buffer));
    for (uint32_t kind = KVFI_DIRECT_HELLO; kind <= KVFI_DIRECT_REVOKE; kind++) {
        char name[64];

        snprintf(name, sizeof name, "shm_%s", shm_names[kind]);
        check_file(name, buffer, shm_message(kind, buffer));
    }
}

/* ---- reading back ----------------------------------------------------------------------------------------------- */

static void tcp_frames_are_read_back(void **state)
{
    uint8_t buffer[MAX_BYTES];
    const uint8_t *body = buffer + KVFI_FRAME_HEAD_BYTES;
    struct kvfi_frame_head head;
    struct kvfi_frame_hello hello;
    struct kvfi_frame_welcome welcome;
    struct kvfi_frame_data data;
    struct kvfi_frame_ack ack;
    struct kvf_error error;

    (void)state;
    size_t whole = tcp_hello(buffer);

    assert_int_equal(kvfi_frame_parse_head(buffer, &head, &error), KVF_OK);
    assert_int_equal(head.body_bytes, whole - KVFI_FRAME_HEAD_BYTES);
    assert_int_equal(kvfi_frame_parse_hello(body, head.body_bytes, &hello, &error), KVF_OK);
    assert_string_equal(hello.expected.name, destination.name);
    assert_true(hello.generation == 2 && hello.stream == 1 && hello.streams == 4 && hello.session == 77);
    tcp_welcome(buffer);
    assert_int_equal(kvfi_frame_parse_head(buffer, &head, &error), KVF_OK);
    assert_int_equal(kvfi_frame_parse_welcome(body, head.body_bytes, &welcome, &error), KVF_OK);
    assert_string_equal(welcome.text, "expected another incarnation");
    tcp_data(buffer);
    assert_int_equal(kvfi_frame_parse_head(buffer, &head, &error), KVF_OK);
    assert_int_equal(kvfi_frame_parse_data(&head, body, &data, &error), KVF_OK);
    assert_true(kvfi_chunk_head_equal(&data.chunk, &chunk) && data.offset_bytes == 262144 && data.bytes == 8);
    assert_true(data.checksum == 0x0102030405060708 && head.flags == KVFI_FRAME_CHECKSUM);
    tcp_ack(buffer);
    assert_int_equal(kvfi_frame_parse_head(buffer, &head, &error), KVF_OK);
    assert_int_equal(kvfi_frame_parse_ack(body, head.body_bytes, &ack, &error), KVF_OK);
    assert_true(ack.grant == chunk.grant && ack.index == 3 && ack.status == KVF_ERR_REFUSED);
}

/* Every message of shm, whole; and no shorter or longer packet parses. */
static void shm_messages_are_read_back(void **state)
{
    struct kvfi_direct_message message;
    uint8_t buffer[MAX_BYTES];
    struct kvf_error error;

    (void)state;
    for (uint32_t kind = KVFI_DIRECT_HELLO; kind <= KVFI_DIRECT_REVOKE; kind++) {
        size_t bytes = shm_message(kind, buffer);

        assert_int_equal(kvfi_direct_parse(buffer, bytes, &message, &error), KVF_OK);
        assert_int_equal(message.kind, kind);
        if (kind == KVFI_DIRECT_OPEN) assert_true(kvfi_chunk_head_equal(&message.head, &chunk));
        if (kind == KVFI_DIRECT_MEMORIES) assert_true(message.memories[1].bytes == 4096 && message.memory_first == 64);
        for (size_t cut = 0; cut < bytes; cut++)
            assert_int_equal(kvfi_direct_parse(buffer, cut, &message, &error), KVF_ERR_PROTOCOL);
        assert_int_equal(kvfi_direct_parse(buffer, bytes + 1, &message, &error), KVF_ERR_PROTOCOL);
    }
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

static void tcp_heads_are_refused(void **state)
{
    static const struct { const char *name; size_t at; uint64_t value; size_t bytes; const char *text; } rows[] = {
        {"magic", 0, 0x20544547, 4, "frame starts with 0x20544547, expected 0x3154566b"},
        {"kind 0", 4, 0, 2, "frame of kind 0 with flags 0x0 is not known"},
        {"kind 5", 4, 5, 2, "frame of kind 5 with flags 0x0 is not known"},
        {"flags", 6, 8, 2, "frame of kind 1 with flags 0x8 is not known"},
        {"2^63", 8, UINT64_C(1) << 63, 8, "frame of kind 1 with 9223372036854775808 bytes, at most 1024"},
        {"1025", 8, 1025, 8, "frame of kind 1 with 1025 bytes, at most 1024"},
    };
    uint8_t buffer[MAX_BYTES];
    struct kvfi_frame_head head;
    struct kvf_error error;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tcp_hello(buffer);
        for (size_t b = 0; b < rows[i].bytes; b++) buffer[rows[i].at + b] = (uint8_t)(rows[i].value >> (8 * b));
        assert_int_equal(kvfi_frame_parse_head(buffer, &head, &error), KVF_ERR_PROTOCOL);
        if (strcmp(error.text, rows[i].text) != 0) fail_msg("%s: \"%s\"", rows[i].name, error.text);
    }
    tcp_data(buffer);
    buffer[8] = 87;
    assert_int_equal(kvfi_frame_parse_head(buffer, &head, &error), KVF_ERR_PROTOCOL);
    memset(buffer + 8, 0, 8);
    buffer[10] = 0x10;
    buffer[8] = 89;
    assert_int_equal(kvfi_frame_parse_head(buffer, &head, &error), KVF_ERR_PROTOCOL);
    assert_string_equal(error.text, "frame of kind 3 with 1048665 bytes, at most 1048664");
}

static void tcp_bodies_are_refused(void **state)
{
    static const struct { const char *name; int64_t offset, chunk_bytes, bytes; } data_rows[] = {
        {"before the chunk", -1, 100, 10}, {"past its end", 95, 100, 10}, {"far past it", INT64_MAX, 100, 10},
        {"a chunk of negative bytes", 0, -5, 10}, {"nothing of something", 0, 100, 0}};
    uint8_t buffer[MAX_BYTES];
    const uint8_t *body = buffer + KVFI_FRAME_HEAD_BYTES;
    struct kvfi_frame_head head;
    struct kvfi_frame_hello hello;
    struct kvf_error error;

    (void)state;
    for (size_t i = 0; i < sizeof data_rows / sizeof data_rows[0]; i++) {
        struct kvfi_frame_data data = {
            .chunk = chunk, .offset_bytes = data_rows[i].offset, .bytes = data_rows[i].bytes};

        data.chunk.bytes = data_rows[i].chunk_bytes;
        kvfi_frame_pack_data(&data, false, buffer);
        assert_int_equal(kvfi_frame_parse_head(buffer, &head, &error), KVF_OK);
        if (kvfi_frame_parse_data(&head, body, &data, &error) != KVF_ERR_PROTOCOL) fail_msg("%s", data_rows[i].name);
    }
    size_t bytes = tcp_hello(buffer) - KVFI_FRAME_HEAD_BYTES;

    for (size_t cut = 0; cut < bytes; cut++)
        assert_int_equal(kvfi_frame_parse_hello(body, cut, &hello, &error), KVF_ERR_PROTOCOL);
    buffer[KVFI_FRAME_HEAD_BYTES] = 9;
    assert_int_equal(kvfi_frame_parse_hello(body, bytes, &hello, &error), KVF_ERR_VERSION);
    assert_string_equal(error.text, "tcp data protocol version 9, this side speaks 1");
    tcp_hello(buffer);
    buffer[KVFI_FRAME_HEAD_BYTES + bytes - 4] = 17; /* streams */
    assert_int_equal(kvfi_frame_parse_hello(body, bytes, &hello, &error), KVF_ERR_PROTOCOL);
    buffer[KVFI_FRAME_HEAD_BYTES + bytes - 4] = 1; /* stream 1 of 1 */
    assert_int_equal(kvfi_frame_parse_hello(body, bytes, &hello, &error), KVF_ERR_PROTOCOL);
}

static void shm_versions_are_told(void **state)
{
    struct kvfi_direct_message message;
    uint8_t buffer[MAX_BYTES];
    struct kvf_error error;
    size_t bytes = shm_message(KVFI_DIRECT_HELLO, buffer);

    (void)state;
    buffer[12] = 7;
    assert_int_equal(kvfi_direct_parse(buffer, bytes, &message, &error), KVF_ERR_VERSION);
    assert_string_equal(error.text, "shm protocol version 7, this side speaks 1");
    buffer[4] ^= 1;
    assert_int_equal(kvfi_direct_parse(buffer, bytes, &message, &error), KVF_ERR_PROTOCOL);
}

static void endpoints(void **state)
{
    static const struct { const char *text, *host; unsigned port; } rows[] = {
        {"tcp:127.0.0.1:80", "127.0.0.1", 80}, {"tcp:[::1]:65535", "::1", 65535}, {"tcp:host:1", "host", 1},
        {"tcp:127.0.0.1:0", NULL, 0}, {"tcp:127.0.0.1:65536", NULL, 0}, {"tcp::80", NULL, 0}, {"tcp:[]:80", NULL, 0},
        {"tcp:[::1:80", NULL, 0}, {"tcp:a:b", NULL, 0}, {"udp:a:1", NULL, 0}, {"", NULL, 0}};
    struct kvf_error error;
    char host[256];
    uint16_t port;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        enum kvf_status status = kvfi_tcp_endpoint_parse(rows[i].text, host, &port, &error);

        assert_int_equal(status, rows[i].host ? KVF_OK : KVF_ERR_PARSE);
        if (!rows[i].host) continue;
        assert_string_equal(host, rows[i].host);
        assert_int_equal(port, rows[i].port);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_as_in_the_files), cmocka_unit_test(tcp_frames_are_read_back),
        cmocka_unit_test(shm_messages_are_read_back), cmocka_unit_test(tcp_heads_are_refused),
        cmocka_unit_test(tcp_bodies_are_refused), cmocka_unit_test(shm_versions_are_told),
        cmocka_unit_test(endpoints),
    };

    folder = argc > 1 ? argv[1] : ".";
    write_files = argc > 2 && strcmp(argv[2], "--write") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
