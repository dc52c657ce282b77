/* SPDX-License-Identifier: Apache-2.0 */
/* REQUEST_DATA's payload. All bytes here were made by Python's msgpack, not by this library. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <msgpack.h>

#include "trtllm/message.h"

static const char usual_hex[] =
    "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a567656e2d61ad696e7374616e63655f72616e6b"
    "03ba626c6f636b5f6964735f7065725f6c617965725f67726f75707392c41807000000000000000100000000000000ffffff"
    "ffffffffffc400aa756e697175655f726964cf0000010000000000af6473745f73746172745f746f6b656ec0a86175785f73"
    "6c6f74c0a8736c6963655f696400af626f756e63655f6473745f62617365c0";
static const char full_hex[] =
    "89ad73656e6465725f7265715f6964fbad696e7374616e63655f6e616d65a167ad696e7374616e63655f72616e6bcdffffba"
    "626c6f636b5f6964735f7065725f6c617965725f67726f75707391c501400000000000000000010000000000000002000000"
    "0000000003000000000000000400000000000000050000000000000006000000000000000700000000000000080000000000"
    "000009000000000000000a000000000000000b000000000000000c000000000000000d000000000000000e00000000000000"
    "0f00000000000000100000000000000011000000000000001200000000000000130000000000000014000000000000001500"
    "00000000000016000000000000001700000000000000180000000000000019000000000000001a000000000000001b000000"
    "000000001c000000000000001d000000000000001e000000000000001f000000000000002000000000000000210000000000"
    "0000220000000000000023000000000000002400000000000000250000000000000026000000000000002700000000000000"
    "aa756e697175655f726964d1ff7faf6473745f73746172745f746f6b656e40a86175785f736c6f74cd012ca8736c6963655f"
    "696402af626f756e63655f6473745f62617365cffffffffffffff000";
static const char least_hex[] =
    "89ad73656e6465725f7265715f696401ad696e7374616e63655f6e616d65a178ad696e7374616e63655f72616e6b00ba626c"
    "6f636b5f6964735f7065725f6c617965725f67726f75707390aa756e697175655f726964cf7fffffffffffffffaf6473745f"
    "73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964c0af626f756e63655f6473745f62617365c0";
/* Other order; keys that are text, a number, nil, an array; values of all kinds; three optional fields missing. */
static const char tolerant_hex[] =
    "8aa86175785f736c6f74050381a178930102810405aa756e697175655f72696409ad696e7374616e63655f6e616d65a36765"
    "6ea6667574757265c403000000ba626c6f636b5f6964735f7065725f6c617965725f67726f75707392c40802000000000000"
    "00c410ffffffffffffffff0400000000000000c0cb3ff80000000000009101d60561626364ad696e7374616e63655f72616e"
    "6b01ad73656e6465725f7265715f696407";

struct row {
    const char *name, *hex;
    size_t byte_count;
    const char *refusal;
};

static const struct row bad[] = {
    {"an empty payload",
     "",
     0, "byte 0 of 0"},
    {"a list",
     "9101",
     2, "payload is an array, expected a map"},
    {"an empty map",
     "80",
     1, "sender_req_id is missing"},
    {"no type",
     "c1",
     1, "byte 0 of 1"},
    {"cut in a value",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964"
     "c0af626f756e63655f6473745f62617365",
     152, "starts nothing that fits"},
    {"cut in a key",
     "89ad73656e",
     5, "starts nothing that fits"},
    {"bytes after the end",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964"
     "c0af626f756e63655f6473745f62617365c000",
     154, "1 bytes after the map's end"},
    {"no name",
     "88ad73656e6465725f7265715f696407ad696e7374616e63655f72616e6b01ba626c6f636b5f6964735f706572"
     "5f6c617965725f67726f75707391c4080200000000000000aa756e697175655f72696409af6473745f73746172"
     "745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964c0af626f756e63655f6473745f62617365c0",
     135, "instance_name is missing"},
    {"no rank",
     "88ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656eba626c6f636b5f6964735f"
     "7065725f6c617965725f67726f75707391c4080200000000000000aa756e697175655f72696409af6473745f73"
     "746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964c0af626f756e63655f6473745f6261"
     "7365c0",
     138, "instance_rank is missing"},
    {"no rid",
     "88ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000af6473"
     "745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964c0af626f756e63655f647374"
     "5f62617365c0",
     141, "unique_rid is missing"},
    {"no ids",
     "88ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01aa756e697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a873"
     "6c6963655f6964c0af626f756e63655f6473745f62617365c0",
     115, "block_ids_per_layer_groups is missing"},
    {"nil rid",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f726964c0af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964"
     "c0af626f756e63655f6473745f62617365c0",
     153, "unique_rid is nil, expected an integer"},
    {"text rid",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f726964a139af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f69"
     "64c0af626f756e63655f6473745f62617365c0",
     154, "unique_rid is a text, expected an integer"},
    {"rid of 2^63",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f726964cf8000000000000000af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8"
     "736c6963655f6964c0af626f756e63655f6473745f62617365c0",
     161, "unique_rid is above 2^63 - 1, expected an integer"},
    {"least rid",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f726964d38000000000000000af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8"
     "736c6963655f6964c0af626f756e63655f6473745f62617365c0",
     161, "unique_rid is -9223372036854775808"},
    {"boolean request id",
     "89ad73656e6465725f7265715f6964c3ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964"
     "c0af626f756e63655f6473745f62617365c0",
     153, "sender_req_id is true or false"},
    {"float rank",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6bcb3ff0000000000000ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c408020000"
     "0000000000aa756e697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8"
     "736c6963655f6964c0af626f756e63655f6473745f62617365c0",
     161, "instance_rank is a fraction"},
    {"negative rank",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6bffba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964"
     "c0af626f756e63655f6473745f62617365c0",
     153, "instance_rank is -1, expected 0 to 65535"},
    {"rank too high",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6bce00010000ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c40802000000000000"
     "00aa756e697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963"
     "655f6964c0af626f756e63655f6473745f62617365c0",
     157, "instance_rank is 65536, expected 0 to 65535"},
    {"name is binary",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65c40367656ead696e7374616e63655f"
     "72616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa75"
     "6e697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f69"
     "64c0af626f756e63655f6473745f62617365c0",
     154, "instance_name is bytes, expected a text"},
    {"empty name",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a0ad696e7374616e63655f72616e6b"
     "01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e697175"
     "655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964c0af62"
     "6f756e63655f6473745f62617365c0",
     150, "instance_name has 0 bytes, expected 1 to 4096"},
    {"name with a line end",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a3610a62ad696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964"
     "c0af626f756e63655f6473745f62617365c0",
     153, "instance_name has control characters"},
    {"name that is not UTF-8",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a3fffefdad696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964"
     "c0af626f756e63655f6473745f62617365c0",
     153, "instance_name has control characters or is not UTF-8"},
    {"ids are binary",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f757073c4080100000000000000aa756e69"
     "7175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964c0"
     "af626f756e63655f6473745f62617365c0",
     152, "block_ids_per_layer_groups is bytes, expected an array"},
    {"ids are a map",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707380aa756e697175655f72696409af"
     "6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964c0af626f756e63655f64"
     "73745f62617365c0",
     143, "block_ids_per_layer_groups is a map, expected an array"},
    {"a group is a list",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707392c40801000000000000009101aa"
     "756e697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f"
     "6964c0af626f756e63655f6473745f62617365c0",
     155, "block_ids_per_layer_groups[1] is an array, expected bytes"},
    {"a group is nil",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c0aa756e697175655f72696409"
     "af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964c0af626f756e63655f"
     "6473745f62617365c0",
     144, "block_ids_per_layer_groups[0] is nil, expected bytes"},
    {"a group of 7 bytes",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c40731323334353637aa756e69"
     "7175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964c0"
     "af626f756e63655f6473745f62617365c0",
     152, "block_ids_per_layer_groups[0] has 7 bytes"},
    {"negative start",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656effa86175785f736c6f74c0a8736c6963655f6964"
     "c0af626f756e63655f6473745f62617365c0",
     153, "dst_start_token is -1, expected 0 to"},
    {"text start",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ea130a86175785f736c6f74c0a8736c6963655f69"
     "64c0af626f756e63655f6473745f62617365c0",
     154, "dst_start_token is a text"},
    {"negative aux slot",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74ffa8736c6963655f6964"
     "c0af626f756e63655f6473745f62617365c0",
     153, "aux_slot is -1"},
    {"slice is a list",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964"
     "90af626f756e63655f6473745f62617365c0",
     153, "slice_id is an array"},
    {"negative slice",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964"
     "ffaf626f756e63655f6473745f62617365c0",
     153, "slice_id is -1"},
    {"negative bounce address",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964"
     "c0af626f756e63655f6473745f62617365ff",
     153, "bounce_dst_base is a negative integer"},
    {"bounce is a text",
     "89ad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964"
     "c0af626f756e63655f6473745f62617365a178",
     154, "bounce_dst_base is a text"},
    {"rid twice",
     "8aad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964"
     "c0af626f756e63655f6473745f62617365c0aa756e697175655f72696409",
     165, "unique_rid comes twice"},
    {"ids twice",
     "8aad73656e6465725f7265715f696407ad696e7374616e63655f6e616d65a367656ead696e7374616e63655f72"
     "616e6b01ba626c6f636b5f6964735f7065725f6c617965725f67726f75707391c4080200000000000000aa756e"
     "697175655f72696409af6473745f73746172745f746f6b656ec0a86175785f736c6f74c0a8736c6963655f6964"
     "c0af626f756e63655f6473745f62617365c0ba626c6f636b5f6964735f7065725f6c617965725f67726f757073"
     "90",
     181, "block_ids_per_layer_groups comes twice"},
    {"a map said to be huge",
     "dfffffffffa16101",
     8, "starts nothing that fits"},
    {"a list said to be huge",
     "81a161ddffffffff",
     8, "starts nothing that fits"},
    {"binary said to be huge",
     "81a161c6ffffffff3132",
     10, "starts nothing that fits"},
};

/* Exactly as large as the payload, so that a read past its end is seen. */
static unsigned char *from_hex(const char *hex, size_t *byte_count)
{
    size_t count = strlen(hex) / 2;
    unsigned char *bytes = malloc(count > 0 ? count : 1);

    for (size_t i = 0; i < count; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};
        bytes[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    *byte_count = count;
    return bytes;
}

static void decode(const char *hex, struct kvfi_trtllm_ask *out)
{
    struct kvf_error error = {.position = -1};
    size_t byte_count;
    unsigned char *bytes = from_hex(hex, &byte_count);

    if (kvfi_trtllm_ask_decode(bytes, byte_count, out, &error) != KVF_OK)
        fail_msg("%s", error.text);
    free(bytes);
}

static void test_usual(void **state)
{
    struct kvfi_trtllm_ask ask;

    (void)state;
    decode(usual_hex, &ask);
    assert_int_equal(ask.sender_req_id, 7);
    assert_string_equal(ask.instance_name, "gen-a");
    assert_int_equal(ask.instance_rank, 3);
    assert_int_equal(ask.group_count, 2);
    assert_int_equal(ask.groups[0].count, 3);
    assert_int_equal(ask.groups[0].ids[0], 7);
    assert_int_equal(ask.groups[0].ids[2], -1);
    assert_int_equal(ask.groups[1].count, 0);
    assert_int_equal(ask.rid, INT64_C(1) << 40);
    assert_int_equal(ask.dst_start_token, KVF_TRTLLM_NONE);
    assert_int_equal(ask.aux_slot, KVF_TRTLLM_NONE);
    assert_int_equal(ask.slice, 0);
    assert_false(ask.has_bounce);
    kvfi_trtllm_ask_fini(&ask);
}

static void test_all_fields(void **state)
{
    struct kvfi_trtllm_ask ask;

    (void)state;
    decode(full_hex, &ask);
    assert_int_equal(ask.sender_req_id, -5);
    assert_int_equal(ask.instance_rank, 65535);
    assert_int_equal(ask.groups[0].count, 40);
    assert_int_equal(ask.groups[0].ids[39], 39);
    assert_int_equal(ask.rid, -129);
    assert_int_equal(ask.dst_start_token, 64);
    assert_int_equal(ask.aux_slot, 300);
    assert_int_equal(ask.slice, 2);
    assert_true(ask.has_bounce);
    assert_true(ask.bounce_base == UINT64_MAX - 4095);
    kvfi_trtllm_ask_fini(&ask);
}

static void test_tolerant(void **state)
{
    struct kvfi_trtllm_ask ask;

    (void)state;
    decode(tolerant_hex, &ask);
    assert_int_equal(ask.sender_req_id, 7);
    assert_string_equal(ask.instance_name, "gen");
    assert_int_equal(ask.groups[1].ids[0], -1);
    assert_int_equal(ask.groups[1].ids[1], 4);
    assert_int_equal(ask.aux_slot, 5);
    assert_int_equal(ask.slice, KVF_TRTLLM_NONE);
    kvfi_trtllm_ask_fini(&ask);
}

static void test_encode_gives_the_same_bytes(void **state)
{
    const char *const all[] = {usual_hex, full_hex, least_hex};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct kvfi_trtllm_ask ask;
        size_t expected_count, byte_count;
        unsigned char *expected = from_hex(all[i], &expected_count), *bytes;
        decode(all[i], &ask);
        assert_int_equal(kvfi_trtllm_ask_encode(&ask, &bytes, &byte_count, NULL), KVF_OK);
        assert_int_equal(byte_count, expected_count);
        assert_memory_equal(bytes, expected, byte_count);
        free(bytes);
        free(expected);
        kvfi_trtllm_ask_fini(&ask);
    }
}

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvfi_trtllm_ask ask = {.rid = 77};
        struct kvf_error error = {.position = -1};
        size_t byte_count;
        unsigned char *bytes = from_hex(bad[i].hex, &byte_count);
        enum kvf_status status = kvfi_trtllm_ask_decode(bytes, byte_count, &ask, &error);
        assert_int_equal(byte_count, bad[i].byte_count);
        if (status != KVF_ERR_PROTOCOL || strstr(error.text, bad[i].refusal) == NULL || ask.rid != 77)
            fail_msg("%s: %d \"%s\", expected \"%s\"", bad[i].name, status, error.text, bad[i].refusal);
        free(bytes);
    }
}

/* No cut of a good payload is read, and none is read past its end. */
static void test_every_cut(void **state)
{
    const char *const all[] = {usual_hex, full_hex, tolerant_hex};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        size_t whole;
        unsigned char *bytes = from_hex(all[i], &whole);
        for (size_t cut = 0; cut < whole; cut++) {
            struct kvfi_trtllm_ask ask;
            unsigned char *part = malloc(cut > 0 ? cut : 1);
            memcpy(part, bytes, cut);
            assert_int_equal(kvfi_trtllm_ask_decode(part, cut, &ask, NULL), KVF_ERR_PROTOCOL);
            free(part);
        }
        free(bytes);
    }
}

/* An unknown key may hold a nest; one that no peer means is refused, and never recursed into. */
static enum kvf_status decode_nest(size_t depth, struct kvf_error *error)
{
    size_t tail_count;
    unsigned char *tail = from_hex(least_hex, &tail_count);
    unsigned char *bytes = malloc(1 + 2 + depth + 1 + tail_count - 1);
    struct kvfi_trtllm_ask ask;
    enum kvf_status status;

    bytes[0] = 0x8a;
    bytes[1] = 0xa1;
    bytes[2] = 'z';
    memset(bytes + 3, 0x91, depth);
    bytes[3 + depth] = 0xc0;
    memcpy(bytes + 4 + depth, tail + 1, tail_count - 1);
    status = kvfi_trtllm_ask_decode(bytes, 3 + depth + tail_count, &ask, error);
    if (status == KVF_OK) {
        assert_string_equal(ask.instance_name, "x");
        kvfi_trtllm_ask_fini(&ask);
    }
    free(bytes);
    free(tail);
    return status;
}

static void test_deep_nest(void **state)
{
    struct kvf_error error;

    (void)state;
    assert_int_equal(decode_nest(32, NULL), KVF_OK);
    assert_int_equal(decode_nest(33, &error), KVF_ERR_PROTOCOL);
    assert_non_null(strstr(error.text, "nested more than 32 deep"));
    assert_int_equal(decode_nest(1000000, NULL), KVF_ERR_PROTOCOL);
}

static void test_limits(void **state)
{
    static const struct kvf_trtllm_blocks groups[KVF_TRTLLM_MAX_GROUPS + 1];
    struct kvfi_trtllm_ask ask = {.instance_name = "gen", .groups = groups, .group_count = KVF_TRTLLM_MAX_GROUPS + 1,
                                  .dst_start_token = KVF_TRTLLM_NONE, .aux_slot = KVF_TRTLLM_NONE,
                                  .slice = KVF_TRTLLM_NONE};
    struct kvf_trtllm_blocks huge = {.count = SIZE_MAX};
    struct kvf_error error = {.position = -1};
    unsigned char *bytes = calloc(1, KVFI_TRTLLM_MAX_REQUEST_BYTES + 1);
    size_t byte_count = 0;
    msgpack_sbuffer buffer;
    msgpack_packer packer;

    (void)state;
    assert_int_equal(kvfi_trtllm_ask_decode(bytes, KVFI_TRTLLM_MAX_REQUEST_BYTES + 1, &ask, &error), KVF_ERR_LIMIT);
    free(bytes);
    assert_int_equal(kvfi_trtllm_ask_encode(&ask, &bytes, &byte_count, &error), KVF_ERR_LIMIT);
    ask.groups = &huge;
    ask.group_count = 1;
    assert_int_equal(kvfi_trtllm_ask_encode(&ask, &bytes, &byte_count, &error), KVF_ERR_LIMIT);
    assert_int_equal(byte_count, 0);
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, 5);
    for (size_t i = 0; i < 4; i++) {
        static const char *const keys[] = {"sender_req_id", "instance_rank", "unique_rid", "slice_id"};
        msgpack_pack_str_with_body(&packer, keys[i], strlen(keys[i]));
        msgpack_pack_int(&packer, 1);
    }
    msgpack_pack_str_with_body(&packer, "instance_name", 13);
    msgpack_pack_str_with_body(&packer, "g", 1);
    buffer.data[0] = (char)0x86;
    msgpack_pack_str_with_body(&packer, "block_ids_per_layer_groups", 26);
    msgpack_pack_array(&packer, KVF_TRTLLM_MAX_GROUPS + 1);
    for (size_t i = 0; i <= KVF_TRTLLM_MAX_GROUPS; i++)
        msgpack_pack_bin(&packer, 0);
    assert_int_equal(kvfi_trtllm_ask_decode(buffer.data, buffer.size, &ask, &error), KVF_ERR_LIMIT);
    assert_non_null(strstr(error.text, "1025 groups, at most 1024"));
    msgpack_sbuffer_destroy(&buffer);
}

static void test_what_may_not_be_sent(void **state)
{
    const struct kvfi_trtllm_ask good = {.instance_name = "gen", .dst_start_token = KVF_TRTLLM_NONE,
                                         .aux_slot = KVF_TRTLLM_NONE, .slice = KVF_TRTLLM_NONE};
    struct kvfi_trtllm_ask ask = good;
    struct kvf_error error = {.position = -1};
    unsigned char *bytes;
    size_t byte_count;

    (void)state;
    ask.instance_name = "";
    assert_int_equal(kvfi_trtllm_ask_encode(&ask, &bytes, &byte_count, &error), KVF_ERR_INVALID_ARGUMENT);
    ask = good;
    ask.rid = KVF_TRTLLM_NONE;
    assert_int_equal(kvfi_trtllm_ask_encode(&ask, &bytes, &byte_count, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "unique_rid is not set"));
    ask = good;
    ask.instance_rank = -1;
    assert_int_equal(kvfi_trtllm_ask_encode(&ask, &bytes, &byte_count, &error), KVF_ERR_INVALID_ARGUMENT);
}

/* A refused request still says whom to answer. */
static void test_peek(void **state)
{
    int64_t rid = -1, slice = -1, rank = -1;
    char name[64];
    size_t byte_count;
    unsigned char *bytes = from_hex(usual_hex, &byte_count);

    (void)state;
    assert_true(kvfi_trtllm_ask_peek(bytes, byte_count, &rid, &slice, name, sizeof name, &rank));
    assert_int_equal(rid, INT64_C(1) << 40);
    assert_int_equal(slice, 0);
    assert_int_equal(rank, 3);
    assert_string_equal(name, "gen-a");
    assert_true(kvfi_trtllm_ask_peek(bytes, byte_count - 1, &rid, &slice, name, sizeof name, &rank));
    assert_false(kvfi_trtllm_ask_peek(bytes, 60, &rid, &slice, name, sizeof name, &rank));
    assert_false(kvfi_trtllm_ask_peek(bytes, byte_count, &rid, &slice, name, 5, &rank));
    assert_string_equal(name, "");
    free(bytes);
}

/* Who a rank info is from, whatever the rest of it is. */
static void test_peek_rank(void **state)
{
#define NAME "\xadinstance_name\xa3gen"
#define RANK "\xadinstance_rank\x07"
#define WHERE "\xadself_endpoint\xa5tcp:/"
#define ROW(name, bytes, complete, instance, endpoint) {name, bytes, sizeof(bytes) - 1, complete, instance, endpoint}
    static const struct {
        const char *name, *bytes;
        size_t byte_count;
        bool complete;
        const char *instance, *endpoint;
    } rows[] = {
        ROW("all three", "\x84" NAME "\x01\x02" RANK WHERE, true, "gen", "tcp:/"),
        ROW("nested values between", "\x84" NAME "\xa1x\x92\x81\x01\x02\x90" RANK WHERE, true, "gen", "tcp:/"),
        ROW("broken behind", "\x84" NAME RANK WHERE "\xc1", true, "gen", "tcp:/"),
        ROW("cut in the endpoint", "\x83" NAME RANK "\xadself_endpoint\xa5tcp:", false, "gen", ""),
        ROW("a negative rank", "\x83" NAME "\xadinstance_rank\xff" WHERE, false, "gen", "tcp:/"),
        ROW("a name that does not fit", "\x83\xadinstance_name\xa9ggggggggg" RANK WHERE, false, "", "tcp:/"),
        ROW("a control character", "\x83\xadinstance_name\xa1\n" RANK WHERE, false, "", "tcp:/"),
        ROW("not a map", "\x93\x01\x02\x03", false, "", ""),
        ROW("nothing", "", false, "", ""),
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned char *bytes = malloc(rows[i].byte_count > 0 ? rows[i].byte_count : 1);
        char name[8] = "old", endpoint[8] = "old";
        int64_t rank = 7;
        memcpy(bytes, rows[i].bytes, rows[i].byte_count);
        bool complete = kvfi_trtllm_peek_rank(bytes, rows[i].byte_count, name, sizeof name, &rank, endpoint,
                                              sizeof endpoint);
        free(bytes);
        if (complete != rows[i].complete || strcmp(name, rows[i].instance) != 0 ||
            strcmp(endpoint, rows[i].endpoint) != 0 || (complete && rank != 7))
            fail_msg("%s: %d \"%s\" %d \"%s\"", rows[i].name, complete, name, (int)rank, endpoint);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_usual),
        cmocka_unit_test(test_all_fields),
        cmocka_unit_test(test_tolerant),
        cmocka_unit_test(test_encode_gives_the_same_bytes),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_deep_nest),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_what_may_not_be_sent),
        cmocka_unit_test(test_peek),
        cmocka_unit_test(test_peek_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
