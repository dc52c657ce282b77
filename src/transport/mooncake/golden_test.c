/* SPDX-License-Identifier: Apache-2.0 */
/* Every frame of the protocol to exactly the bytes in tests/golden/mooncake/NAME.hex, and back. The files were made by
 * hand from the protocol's description; tests/mooncake holds its own peer to the same ones.
 *
 *     golden_test FOLDER */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/mooncake/descriptor.h"
#include "transport/mooncake/frame.h"

enum { MAX_BYTES = 1024 };

static size_t read_golden(const char *folder, const char *name, uint8_t bytes[MAX_BYTES])
{
    char path[512];
    FILE *file;
    size_t count = 0;
    unsigned value;

    snprintf(path, sizeof path, "%s/%s.hex", folder, name);
    file = fopen(path, "r");
    if (!file) fail_msg("no file %s", path);
    while (count < MAX_BYTES && fscanf(file, "%2x", &value) == 1) bytes[count++] = (uint8_t)value;
    fclose(file);
    return count;
}

static void assert_frame(void **state, const char *name, uint8_t type, const char *text, size_t text_bytes)
{
    uint8_t golden[MAX_BYTES], prefix[KVFI_MOON_PREFIX_BYTES];
    size_t count = read_golden(*state, name, golden);

    kvfi_moon_pack_prefix(type, text_bytes, prefix);
    if (count != sizeof prefix + text_bytes || memcmp(golden, prefix, sizeof prefix) != 0 ||
        memcmp(golden + sizeof prefix, text, text_bytes) != 0)
        fail_msg("%s: not the %zu bytes of its file", name, count);
    assert_int_equal(kvfi_moon_parse_length(golden, KVFI_MOON_MAX_HANDSHAKE), text_bytes + 1);
}

static void test_probe(void **state)
{
    assert_frame(state, "probe_request", KVFI_MOON_PROBE, "{}\n", 3);
    assert_frame(state, "probe_reply", KVFI_MOON_PROBE, "{\"status\":\"success\"}\n", 21);
}

static void test_notify(void **state)
{
    static const struct { const char *file, *name, *message; } rows[] = {
        {"notify_request", "agentA", "kv-42 done"}, {"notify_reply", "", "success"}, {"notify_rejected", "", ""}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *text, *name, *message;
        size_t bytes;

        assert_int_equal(kvfi_moon_notify_print(rows[i].name, rows[i].message, &text, &bytes, NULL), KVF_OK);
        assert_frame(state, rows[i].file, KVFI_MOON_NOTIFY, text, bytes);
        assert_int_equal(kvfi_moon_notify_parse(text, bytes, &name, &message, NULL), KVF_OK);
        assert_string_equal(name, rows[i].name);
        assert_string_equal(message, rows[i].message);
        free(message);
        free(name);
        free(text);
    }
}

static void test_metadata(void **state)
{
    uint8_t golden[MAX_BYTES];
    size_t count = read_golden(*state, "metadata_reply", golden), bytes;
    struct kvfi_moon_descriptor read;
    char *text;

    assert_frame(state, "metadata_request", KVFI_MOON_METADATA, "{}\n", 3);
    assert_int_equal(kvfi_moon_descriptor_parse((const char *)golden + KVFI_MOON_PREFIX_BYTES,
                                                count - KVFI_MOON_PREFIX_BYTES, &read, NULL), KVF_OK);
    assert_string_equal(read.name, "192.0.2.7:15321");
    assert_int_equal(read.buffers[0].address, UINT64_C(140200000004096));
    assert_int_equal(kvfi_moon_descriptor_print(&read, &text, &bytes, NULL), KVF_OK);
    assert_frame(state, "metadata_reply", KVFI_MOON_METADATA, text, bytes);
    free(text);
    kvfi_moon_descriptor_fini(&read);
}

static void test_headers(void **state)
{
    static const struct { const char *file; uint8_t opcode; } rows[] = {
        {"read_1", KVFI_MOON_READ_1}, {"write_1", KVFI_MOON_WRITE_1}, {"read_2", KVFI_MOON_READ_2},
        {"write_2", KVFI_MOON_WRITE_2}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct kvfi_moon_header header = {65536, UINT64_C(0x7f1234560000), rows[i].opcode};
        uint8_t golden[MAX_BYTES], packed[KVFI_MOON_HEADER_BYTES];
        struct kvfi_moon_header read;

        assert_int_equal(read_golden(*state, rows[i].file, golden), sizeof packed);
        kvfi_moon_pack_header(&header, packed);
        assert_memory_equal(packed, golden, sizeof packed);
        assert_true(kvfi_moon_parse_header(golden, &read));
        assert_int_equal(read.bytes, header.bytes);
        assert_int_equal(read.address, header.address);
        assert_int_equal(read.opcode, header.opcode);
    }
}

static void test_statuses(void **state)
{
    static const struct { const char *file; uint32_t code; } rows[] = {{"status_accepted", KVFI_MOON_ACCEPTED},
                                                                       {"status_rejected", KVFI_MOON_REJECTED}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t golden[MAX_BYTES], packed[KVFI_MOON_STATUS_BYTES];
        uint32_t code = 9;

        assert_int_equal(read_golden(*state, rows[i].file, golden), sizeof packed);
        kvfi_moon_pack_status(rows[i].code, packed);
        assert_memory_equal(packed, golden, sizeof packed);
        assert_true(kvfi_moon_parse_status(golden, &code));
        assert_int_equal(code, rows[i].code);
    }
}

int main(int argc, char **argv)
{
    char *folder = argc > 1 ? argv[1] : ".";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_probe, folder), cmocka_unit_test_prestate(test_notify, folder),
        cmocka_unit_test_prestate(test_metadata, folder), cmocka_unit_test_prestate(test_headers, folder),
        cmocka_unit_test_prestate(test_statuses, folder)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
