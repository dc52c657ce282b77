/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the side channel that are refused, with the sentence of upstream's decoder; and every cut of good ones.
 * The argument is the folder of golden files. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vllm/message_kit.h"

static const char *folder;

static void expect_refused(const char *name, const struct message_bytes *bytes, const char *text)
{
    struct kvfi_vllm_pull pull = {.request_count = 77};
    struct kvf_error error = {0};

    if (kvfi_vllm_pull_decode(bytes->data, bytes->count, &pull, &error) != KVF_ERR_PROTOCOL)
        fail_msg("%s: not refused", name);
    if (strcmp(error.text, text) != 0) fail_msg("%s: %s", name, error.text);
    assert_int_equal(pull.request_count, 77);
}

/* Each row gives one key its value, in hex, in place of a good one. */
static void refuses_values_of_other_types(void **state)
{
    static const struct {
        const char *key, *hex, *text;
    } rows[] = {
        {"remote_hostname", "03", "Expected `str`, got `int` - at `$.remote_hostname`"},
        {"remote_hostname", "c40178", "Expected `str`, got `bytes` - at `$.remote_hostname`"},
        {"remote_hostname", "c0", "Expected `str`, got `None` - at `$.remote_hostname`"},
        {"remote_hostname", "a1ff", "Invalid UTF-8 encoded string"},
        {"remote_hostname", "a3610062", "String holds a zero byte - at `$.remote_hostname`"},
        {"remote_port", "c3", "Expected `int`, got `bool` - at `$.remote_port`"},
        {"remote_port", "ca3f800000", "Expected `int`, got `float` - at `$.remote_port`"},
        {"remote_port", "a131", "Expected `int`, got `str` - at `$.remote_port`"},
        {"remote_port", "d40101", "Expected `int`, got `ext` - at `$.remote_port`"},
        {"remote_port", "cfffffffffffffffff", "Integer value out of range - at `$.remote_port`"},
        {"req_blocks", "90", "Expected `object`, got `array` - at `$.req_blocks`"},
        {"req_blocks", "810192a17490", "Expected `str`, got `int` - at `key` in `$.req_blocks`"},
        {"req_blocks", "81c092a17490", "Expected `str`, got `None` - at `key` in `$.req_blocks`"},
        {"req_blocks", "81a1ff92a17490", "Invalid UTF-8 encoded string"},
        {"req_blocks", "81a10092a17490", "String holds a zero byte - at `key` in `$.req_blocks`"},
        {"req_blocks", "81a16180", "Expected `array`, got `object` - at `$.req_blocks[...]`"},
        {"req_blocks", "81a16191a174", "Expected `array` of length 2, got 1 - at `$.req_blocks[...]`"},
        {"req_blocks", "81a16193a1749001", "Expected `array` of length 2, got 3 - at `$.req_blocks[...]`"},
        {"req_blocks", "81a161920190", "Expected `str`, got `int` - at `$.req_blocks[...][0]`"},
        {"req_blocks", "81a16192a17480", "Expected `array`, got `object` - at `$.req_blocks[...][1]`"},
        {"req_blocks", "81a16192a1749101", "Expected `array`, got `int` - at `$.req_blocks[...][1][0]`"},
        {"req_blocks", "81a16192a174919201a178", "Expected `int`, got `str` - at `$.req_blocks[...][1][0][1]`"},
        {"kv_caches_base_addr", "c0", "Expected `array`, got `None` - at `$.kv_caches_base_addr`"},
        {"kv_caches_base_addr", "9201a178", "Expected `int`, got `str` - at `$.kv_caches_base_addr[1]`"},
        {"kv_caches_base_addr", "91ff", "Integer value out of range - at `$.kv_caches_base_addr[0]`"},
        {"block_lens", "91cf8000000000000000", "Integer value out of range - at `$.block_lens[0]`"},
        {"registered_layer_names", "c0", "Expected `array`, got `None` - at `$.registered_layer_names`"},
        {"registered_layer_names", "92a16101", "Expected `str`, got `int` - at `$.registered_layer_names[1]`"},
        {"registered_shared_group_ids", "92910191c2",
         "Expected `int`, got `bool` - at `$.registered_shared_group_ids[1][0]`"},
        {"registered_row_offsets", "a178", "Expected `array`, got `str` - at `$.registered_row_offsets`"},
        {"remote_pp_size", "c0", "Expected `int`, got `None` - at `$.remote_pp_size`"},
        {"layout_id", "ff", "Integer value out of range - at `$.layout_id`"},
        {"layout_id", "c0", "Expected `int`, got `None` - at `$.layout_id`"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct message_bytes bytes;

        message_make_pull(&bytes, rows[i].key, "", 0);
        bytes.data[0]++;
        bytes.data[bytes.count++] = (unsigned char)(0xa0 | strlen(rows[i].key));
        memcpy(bytes.data + bytes.count, rows[i].key, strlen(rows[i].key));
        bytes.count += strlen(rows[i].key);
        message_add_hex(&bytes, rows[i].hex);
        expect_refused(rows[i].hex, &bytes, rows[i].text);
    }
}

static void names_the_first_missing_key(void **state)
{
    static const char *const keys[] = {"remote_hostname", "remote_port", "remote_tp_size", "remote_tp_rank",
                                       "req_blocks", "kv_caches_base_addr", "block_lens", "kv_block_lens"};
    struct message_bytes bytes;
    char text[128];

    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        message_make_pull(&bytes, keys[i], "", 0);
        (void)snprintf(text, sizeof text, "Object missing required field `%s`", keys[i]);
        expect_refused(keys[i], &bytes, text);
    }
    bytes.count = 0;
    message_add_hex(&bytes, "80");
    expect_refused("empty", &bytes, "Object missing required field `remote_hostname`");
}

/* Consumers of earlier generations: the keys that each sent. */
static void answers_consumers_of_earlier_levels(void **state)
{
    static const struct {
        const char *name, *without, *text; /* NULL: it is taken */
    } rows[] = {
        {"first bootstrap version: fields 1 to 6, flat block lists", "flat",
         "Expected `array`, got `int` - at `$.req_blocks[...][1][0]`"},
        {"hetero-TP: fields 1 to 7", "kv_block_lens", "Object missing required field `kv_block_lens`"},
        {"hybrid groups: nested lists, 1 to 8", NULL, NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct message_bytes bytes;
        struct kvfi_vllm_pull pull;

        message_make_pull(&bytes, rows[i].without, "", 0);
        if (i == 0) message_make_pull(&bytes, NULL, "aa 7265715f626c6f636b73 81a16192a174920708", 1);
        if (rows[i].text) {
            expect_refused(rows[i].name, &bytes, rows[i].text);
            continue;
        }
        if (kvfi_vllm_pull_decode(bytes.data, bytes.count, &pull, NULL) != KVF_OK) fail_msg("%s", rows[i].name);
        assert_int_equal(pull.peer.pp_size, 1);
        assert_int_equal(pull.peer.regions.layer_name_count, 0);
        kvfi_vllm_pull_fini(&pull);
    }
}

static void refuses_what_is_no_message(void **state)
{
    static const struct {
        const char *name, *hex, *text;
    } rows[] = {
        {"nothing", "", "Input data was truncated"},
        {"nil", "c0", "Expected `object`, got `None`"},
        {"text", "a178", "Expected `object`, got `str`"},
        {"array", "9101", "Expected `object`, got `array`"},
        {"byte that starts nothing", "c1", "MessagePack data is malformed: invalid opcode '\\xc1' (byte 0)"},
        {"such a value", "81a178c1", "MessagePack data is malformed: invalid opcode '\\xc1' (byte 3)"},
        {"integer key", "810102", "Expected `str`, got `int` - at `key` in `$`"},
        {"nil key", "81c002", "Expected `str`, got `null` - at `key` in `$`"},
        {"bytes key", "81c4017802", "Expected `str`, got `bytes` - at `key` in `$`"},
        {"map of 2^32 - 1", "dfffffffff", "Input data was truncated"},
        {"array of 2^32 - 1", "81aa626c6f636b5f6c656e73ddffffffff", "Input data was truncated"},
        {"text of 2^32 - 1", "81af72656d6f74655f686f73746e616d65dbffffffff61", "Input data was truncated"},
        {"unknown array of 2^32 - 1", "81a178ddffffffff", "Input data was truncated"},
    };
    struct message_bytes bytes;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bytes.count = 0;
        message_add_hex(&bytes, rows[i].hex);
        expect_refused(rows[i].name, &bytes, rows[i].text);
    }
    message_make_pull(&bytes, NULL, "01", 0);
    expect_refused("bytes after it", &bytes, "MessagePack data is malformed: trailing characters (byte 135)");
    bytes.count = 0;
    message_add_hex(&bytes, "81a178");
    memset(bytes.data + bytes.count, 0x91, 4000);
    bytes.count += 4000;
    expect_refused("nested", &bytes, "maximum recursion depth exceeded while deserializing an object");
}

/* A message cut anywhere is refused without a byte being read past its end. */
static void refuses_every_cut(void **state)
{
    static const char *const names[] = {"pull_all_keys", "pull_release_only", "pull_layout_id", "reply_continue",
                                        "reply_layout_id"};
    struct message_bytes bytes;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        message_load(folder, names[i], &bytes);
        for (size_t count = 0; count < bytes.count; count++) {
            unsigned char *exact = malloc(count + !count);
            struct kvfi_vllm_pull pull;
            struct kvfi_vllm_reply reply;
            enum kvf_status status;

            assert_non_null(exact);
            memcpy(exact, bytes.data, count);
            status = names[i][0] == 'p' ? kvfi_vllm_pull_decode(exact, count, &pull, NULL)
                                        : kvfi_vllm_reply_decode(exact, count, true, &reply, NULL);
            if (status != KVF_ERR_PROTOCOL) fail_msg("%s cut at %zu: %d", names[i], count, (int)status);
            free(exact);
        }
    }
}

/* ---- how much memory ---------------------------------------------------------------------------------------- */

/* The densest of messages: what is one byte there becomes sixteen here. */
static void keeps_memory_in_bounds(void **state)
{
    static const struct {
        const char *name, *key;
        unsigned char item;
        const char *before; /* of the array, within the value */
    } rows[] = {
        {"empty lists", "registered_shared_group_ids", 0x90, ""},
        {"small numbers", "registered_row_offsets", 0x01, ""},
        {"empty names", "registered_layer_names", 0xa0, ""},
        {"empty groups of a request", "req_blocks", 0x90, "81a092a0"},
    };
    enum { ITEMS = 100000 };
    unsigned char *bytes = malloc(ITEMS + 512);

    (void)state;
    assert_non_null(bytes);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct message_bytes start;
        struct kvfi_vllm_pull pull;
        size_t count;

        message_make_pull(&start, rows[i].key, "", 0);
        start.data[0]++;
        start.data[start.count++] = (unsigned char)(0xa0 | strlen(rows[i].key));
        memcpy(start.data + start.count, rows[i].key, strlen(rows[i].key));
        start.count += strlen(rows[i].key);
        message_add_hex(&start, rows[i].before);
        message_add_hex(&start, "dd000186a0");
        memcpy(bytes, start.data, start.count);
        memset(bytes + start.count, rows[i].item, ITEMS);
        count = start.count + ITEMS;
        if (kvfi_vllm_pull_decode(bytes, count, &pull, NULL) != KVF_OK) fail_msg("%s", rows[i].name);
        assert_in_range(malloc_usable_size(pull.memory), count, KVFI_VLLM_MEMORY_PER_BYTE * count + 512);
        kvfi_vllm_pull_fini(&pull);
    }
    free(bytes);
}

static void refuses_more_than_any_message(void **state)
{
    static const unsigned char byte = 0x80;
    struct kvfi_vllm_pull pull;

    (void)state;
    assert_int_equal(kvfi_vllm_pull_decode(&byte, (size_t)KVFI_VLLM_MAX_MESSAGE_BYTES + 1, &pull, NULL),
                     KVF_ERR_LIMIT);
}

/* ---- replies ------------------------------------------------------------------------------------------------ */

static void refuses_replies(void **state)
{
    static const struct {
        const char *name, *hex;
        bool layout_ids;
        const char *text; /* NULL: it is taken */
    } rows[] = {
        {"LAYOUT_MISS to who sent no layout id", "81a673746174757303", false, "Invalid enum value 3 - at `$.status`"},
        {"LAYOUT_MISS to who sent one", "81a673746174757303", true, NULL},
        {"4", "81a673746174757304", true, "Invalid enum value 4 - at `$.status`"},
        {"-1", "81a6737461747573ff", true, "Invalid enum value -1 - at `$.status`"},
        {"2^64 - 1", "81a6737461747573cfffffffffffffffff", true,
         "Invalid enum value 18446744073709551615 - at `$.status`"},
        {"true", "81a6737461747573c3", true, "Expected `int`, got `bool` - at `$.status`"},
        {"nil", "81a6737461747573c0", true, "Expected `int`, got `None` - at `$.status`"},
        {"none", "80", true, "Object missing required field `status`"},
        {"ok_reqs a number", "82a673746174757300a76f6b5f7265717303", true,
         "Expected `array | null`, got `int` - at `$.ok_reqs`"},
        {"err_reqs of numbers", "82a673746174757300a86572725f726571739101", true,
         "Expected `str`, got `int` - at `$.err_reqs[0]`"},
        {"err_msg an array", "82a673746174757302a76572725f6d736790", true,
         "Expected `str | null`, got `array` - at `$.err_msg`"},
        {"layout_id below 0", "82a673746174757300a96c61796f75745f6964ff", true,
         "Integer value out of range - at `$.layout_id`"},
        {"bytes after it", "81a67374617475730000", true,
         "MessagePack data is malformed: trailing characters (byte 9)"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct message_bytes bytes = {.count = 0};
        struct kvfi_vllm_reply reply = {0};
        struct kvf_error error = {0};
        enum kvf_status status;

        message_add_hex(&bytes, rows[i].hex);
        status = kvfi_vllm_reply_decode(bytes.data, bytes.count, rows[i].layout_ids, &reply, &error);
        if (status != (rows[i].text ? KVF_ERR_PROTOCOL : KVF_OK)) fail_msg("%s: %d", rows[i].name, (int)status);
        if (rows[i].text && strcmp(error.text, rows[i].text) != 0) fail_msg("%s: %s", rows[i].name, error.text);
        kvfi_vllm_reply_fini(&reply);
    }
}

/* ---- what is not sent --------------------------------------------------------------------------------------- */

static void does_not_send_what_peers_refuse(void **state)
{
    static const char *const bad = "\xff", *const good = "a";
    const char *const good_and_bad[] = {good, bad};
    const struct kvfi_vllm_wanted wanted[] = {{bad, good, NULL, 0}, {good, bad, NULL, 0}, {good, NULL, NULL, 0}};
    const struct kvfi_vllm_reply replies[] = {
        {.verdict = 4}, {.verdict = -1}, {.ok_reqs = &bad, .ok_count = 1}, {.err_reqs = &bad, .err_count = 1}};
    struct kvf_vllm_peer peer = message_peer_all();
    struct kvfi_vllm_asker asker = {0};
    unsigned char *out = NULL;
    size_t count;

    (void)state;
    peer.hostname = bad;
    assert_int_equal(kvfi_vllm_asker_init(&asker, &peer, NULL), KVF_ERR_INVALID_ARGUMENT);
    peer.hostname = NULL;
    assert_int_equal(kvfi_vllm_asker_init(&asker, &peer, NULL), KVF_ERR_INVALID_ARGUMENT);
    for (int i = 0; i < 9; i++) {
        peer = message_peer_all();
        if (i == 0) peer.regions.base_addr_count = 1;
        if (i == 1) peer.regions.block_len_count = 1;
        if (i == 2) peer.regions.kv_block_len_count = 0;
        if (i == 3) peer.regions.layer_name_count = 0;
        if (i == 4) peer.regions.layer_index_count = 1;
        if (i == 5) peer.regions.group_index_count = 1;
        if (i == 6) peer.regions.shared_group_count = 1;
        if (i == 7) peer.regions.row_offset_count = 1;
        if (i == 8) peer.regions.layer_names = good_and_bad;
        if (kvfi_vllm_asker_init(&asker, &peer, NULL) != KVF_ERR_INVALID_ARGUMENT) fail_msg("row %d", i);
    }
    assert_null(asker.bytes);
    peer = message_peer_all();
    assert_int_equal(kvfi_vllm_asker_init(&asker, &peer, NULL), KVF_OK);
    assert_int_equal(kvfi_vllm_pull_encode(&asker, NULL, 0, false, &out, &count, NULL), KVF_ERR_INVALID_ARGUMENT);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(kvfi_vllm_pull_encode(&asker, &wanted[i], 1, true, &out, &count, NULL),
                         KVF_ERR_INVALID_ARGUMENT);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(kvfi_vllm_reply_encode(&replies[i], &out, &count, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_null(out);
    kvfi_vllm_asker_fini(&asker);
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_values_of_other_types),
        cmocka_unit_test(names_the_first_missing_key),
        cmocka_unit_test(answers_consumers_of_earlier_levels),
        cmocka_unit_test(refuses_what_is_no_message),
        cmocka_unit_test(refuses_every_cut),
        cmocka_unit_test(keeps_memory_in_bounds),
        cmocka_unit_test(refuses_more_than_any_message),
        cmocka_unit_test(refuses_replies),
        cmocka_unit_test(does_not_send_what_peers_refuse),
    };

    if (count != 2) return 2;
    folder = arguments[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
