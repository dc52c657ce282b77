/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the side channel that upstream's encoder would make: read, and made again, byte for byte. The argument is
 * the folder of golden files. */
#include <stdlib.h>
#include <string.h>

#include "vllm/message_kit.h"

static const char *folder;

static const uint64_t LAYOUT_ID_VALUE = 0x1122334455667789;

static struct kvfi_vllm_pull decode(const struct message_bytes *bytes)
{
    struct kvfi_vllm_pull pull = {0};
    struct kvf_error error = {0};

    if (kvfi_vllm_pull_decode(bytes->data, bytes->count, &pull, &error) != KVF_OK) fail_msg("%s", error.text);
    return pull;
}

/* A decoded pull encoded again: the same bytes, if they were in upstream's form. */
static void expect_again(const char *name, const struct kvfi_vllm_pull *pull, const struct message_bytes *bytes,
                         bool with_arrays)
{
    struct kvfi_vllm_asker asker = {0};
    unsigned char *out = NULL;
    size_t count = 0;

    assert_int_equal(kvfi_vllm_asker_init(&asker, &pull->peer, NULL), KVF_OK);
    assert_int_equal(kvfi_vllm_pull_encode(&asker, pull->requests, pull->request_count, with_arrays, &out, &count,
                                           NULL), KVF_OK);
    if (count != bytes->count || memcmp(out, bytes->data, count) != 0) fail_msg("%s: other bytes", name);
    free(out);
    kvfi_vllm_asker_fini(&asker);
}

static void reads_and_writes_golden_pulls(void **state)
{
    static const struct {
        const char *name;
        size_t bytes;
        bool with_arrays;
    } rows[] = {{"pull_consumer", 243, true}, {"pull_all_keys", 391, true}, {"pull_release_only", 316, true},
                {"pull_layout_id", 262, true}, {"pull_without_arrays", 177, false}};
    struct message_bytes bytes;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvfi_vllm_pull pull;

        message_load(folder, rows[i].name, &bytes);
        assert_int_equal(bytes.count, rows[i].bytes);
        pull = decode(&bytes);
        assert_false(pull.replay.is_named);
        expect_again(rows[i].name, &pull, &bytes, rows[i].with_arrays);
        kvfi_vllm_pull_fini(&pull);
    }
}

/* From structs, not from what was decoded: the layout once, then each of its pulls. */
static void writes_pulls_of_one_asker(void **state)
{
    static const int64_t ids[] = {100, 101}, first[] = {300, 301}, second[] = {7};
    static const struct kvf_vllm_ids group = {ids, 2}, groups[] = {{first, 2}, {second, 1}};
    static const struct kvfi_vllm_wanted one = {"d-req-1", "xfer-req-1", &group, 1}, two = {"d1", "xfer-1", groups, 2};
    static const struct kvfi_vllm_wanted none = {"d1", "x1", NULL, 0};
    struct {
        const char *name;
        struct kvf_vllm_peer peer;
        uint64_t layout_id;
        const struct kvfi_vllm_wanted *wanted;
        bool with_arrays;
    } rows[] = {
        {"pull_consumer", message_peer_consumer(), 0, &one, true},
        {"pull_all_keys", message_peer_all(), 0, &two, true},
        {"pull_release_only", message_peer_shared(), 0, &none, true},
        {"pull_layout_id", message_peer_consumer(), LAYOUT_ID_VALUE, &one, true},
        {"pull_without_arrays", message_peer_consumer(), LAYOUT_ID_VALUE, &one, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvfi_vllm_pull pull = {.peer = rows[i].peer, .requests = rows[i].wanted, .request_count = 1};
        struct message_bytes bytes;

        message_load(folder, rows[i].name, &bytes);
        pull.peer.layout_id = rows[i].layout_id;
        expect_again(rows[i].name, &pull, &bytes, rows[i].with_arrays);
    }
}

static void reads_every_field(void **state)
{
    struct message_bytes bytes;
    struct kvfi_vllm_pull pull;

    (void)state;
    message_load(folder, "pull_all_keys", &bytes);
    pull = decode(&bytes);
    assert_int_equal(pull.peer.struct_size, sizeof pull.peer);
    assert_string_equal(pull.peer.hostname, "10.0.0.7");
    assert_int_equal(pull.peer.port, 15002);
    assert_int_equal(pull.peer.tp_size, 2);
    assert_int_equal(pull.peer.tp_rank, 1);
    assert_int_equal(pull.peer.pp_size, 2);
    assert_int_equal(pull.peer.layout_id, 0);
    assert_int_equal(pull.peer.regions.base_addr_count, 2);
    assert_true(pull.peer.regions.base_addrs[1] == 0x7f5a40004000);
    assert_int_equal(pull.peer.regions.block_lens[1], 32768);
    assert_int_equal(pull.peer.regions.kv_block_lens[0], 16384);
    assert_string_equal(pull.peer.regions.layer_names[1], "model.layers.1.self_attn");
    assert_int_equal(pull.peer.regions.layer_indices[1], 1);
    assert_int_equal(pull.peer.regions.group_indices[1], 1);
    assert_int_equal(pull.peer.regions.shared_group_count, 2);
    assert_int_equal(pull.peer.regions.shared_groups[1].ids[0], 1);
    assert_int_equal(pull.peer.regions.row_offsets[0], -1);
    assert_int_equal(pull.request_count, 1);
    assert_string_equal(pull.requests[0].d_req_id, "d1");
    assert_string_equal(pull.requests[0].transfer_id, "xfer-1");
    assert_int_equal(pull.requests[0].group_count, 2);
    assert_int_equal(pull.requests[0].groups[0].count, 2);
    assert_int_equal(pull.requests[0].groups[0].ids[1], 301);
    assert_int_equal(pull.requests[0].groups[1].ids[0], 7);
    kvfi_vllm_pull_fini(&pull);
    assert_null(pull.memory);
}

/* ---- tolerance ---------------------------------------------------------------------------------------------- */

static void knows_any_order_and_skips_unknown_keys(void **state)
{
    /* "x": {"y": [1.5, bytes, ext, nil]}, then the required key that was left out */
    static const char extra[] = "a178 81a179 94cb3ff8000000000000 c401ff d40102 c0"
                                "ab 72656d6f74655f706f7274 cd3039";
    struct message_bytes bytes;
    struct kvfi_vllm_pull pull;

    (void)state;
    message_make_pull(&bytes, "remote_port", extra, 2);
    pull = decode(&bytes);
    assert_int_equal(pull.peer.port, 12345);
    assert_string_equal(pull.peer.hostname, "h");
    kvfi_vllm_pull_fini(&pull);
}

static void takes_the_last_of_equal_keys(void **state)
{
    /* remote_port again; block_lens again with two; req_blocks again: a, b, a, where the last a counts, in a's place */
    static const char extra[] = "ab 72656d6f74655f706f7274 09 aa 626c6f636b5f6c656e73 920708"
                                "aa 7265715f626c6f636b73 83 a161 92a17490 a162 92a17590 a161 92a176919103";
    struct message_bytes bytes;
    struct kvfi_vllm_pull pull;

    (void)state;
    message_make_pull(&bytes, NULL, extra, 3);
    pull = decode(&bytes);
    assert_int_equal(pull.peer.port, 9);
    assert_int_equal(pull.peer.regions.block_len_count, 2);
    assert_int_equal(pull.peer.regions.block_lens[1], 8);
    assert_int_equal(pull.request_count, 2);
    assert_string_equal(pull.requests[0].d_req_id, "a");
    assert_string_equal(pull.requests[0].transfer_id, "v");
    assert_int_equal(pull.requests[0].groups[0].ids[0], 3);
    assert_string_equal(pull.requests[1].d_req_id, "b");
    kvfi_vllm_pull_fini(&pull);
}

static void tells_of_prefix_replay(void **state)
{
    static const struct {
        const char *name, *extra;
        size_t count;
        bool is_named;
        int64_t requests;
    } rows[] = {
        {"absent", "", 0, false, 0},
        {"protocol 1", "b6 7072656669785f7265706c61795f70726f746f636f6c 01", 1, true, 0},
        {"protocol 0", "b6 7072656669785f7265706c61795f70726f746f636f6c 00", 1, false, 0},
        {"layout", "b4 7072656669785f7265706c61795f6c61796f7574 a178", 1, true, 0},
        {"layout nil", "b4 7072656669785f7265706c61795f6c61796f7574 c0", 1, false, 0},
        {"checkpoints", "b9 7072656669785f7265706c61795f636865636b706f696e7473 81a1619301 02a178", 1, true, 1},
        {"no checkpoints", "b9 7072656669785f7265706c61795f636865636b706f696e7473 80", 1, false, 0},
        {"checkpoints of no form are skipped", "b9 7072656669785f7265706c61795f636865636b706f696e7473 9101", 1, false,
         0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct message_bytes bytes;
        struct kvfi_vllm_pull pull;

        message_make_pull(&bytes, NULL, rows[i].extra, rows[i].count);
        pull = decode(&bytes);
        if (pull.replay.is_named != rows[i].is_named || pull.replay.requests != rows[i].requests)
            fail_msg("%s: %d, %d requests", rows[i].name, pull.replay.is_named, (int)pull.replay.requests);
        kvfi_vllm_pull_fini(&pull);
    }
}

static void keeps_integers_of_all_sizes(void **state)
{
    static const uint64_t bases[] = {0, 127, 128, 255, 256, 65535, 65536, 4294967295, 4294967296, UINT64_MAX};
    static const int64_t numbers[] = {INT64_MIN, -2147483649, INT32_MIN, -32769, -32768, -129, -128, -33, -32,
                                      INT64_MAX};
    static const char *const names[10] = {"", "\xc3\xbc", "a", "b", "c", "d", "e", "f", "g", "h\x01"};
    struct kvf_vllm_peer peer = message_peer_consumer();
    struct kvfi_vllm_asker asker = {0};
    struct message_bytes bytes;
    struct kvfi_vllm_pull pull;
    unsigned char *out = NULL;

    (void)state;
    peer.port = INT64_MIN;
    peer.layout_id = UINT64_MAX;
    peer.regions = (struct kvf_vllm_arrays){bases, 10, numbers, 10, numbers, 10, names, 10, numbers, 10, NULL, 0,
                                            NULL, 0, NULL, 0};
    assert_int_equal(kvfi_vllm_asker_init(&asker, &peer, NULL), KVF_OK);
    assert_int_equal(kvfi_vllm_pull_encode(&asker, NULL, 0, true, &out, &bytes.count, NULL), KVF_OK);
    assert_int_equal(kvfi_vllm_pull_decode(out, bytes.count, &pull, NULL), KVF_OK);
    assert_true(pull.peer.port == INT64_MIN && pull.peer.layout_id == UINT64_MAX);
    assert_memory_equal(pull.peer.regions.base_addrs, bases, sizeof bases);
    assert_memory_equal(pull.peer.regions.layer_indices, numbers, sizeof numbers);
    assert_string_equal(pull.peer.regions.layer_names[1], names[1]);
    kvfi_vllm_pull_fini(&pull);
    kvfi_vllm_asker_fini(&asker);
    free(out);
}

/* ---- replies ------------------------------------------------------------------------------------------------ */

static void reads_and_writes_golden_replies(void **state)
{
    static const char *const d_req_1 = "d-req-1", *const a = "a", *const b = "b";
    static const struct {
        const char *name;
        struct kvfi_vllm_reply reply;
    } rows[] = {
        {"reply_finish", {.ok_reqs = &d_req_1, .ok_count = 1}},
        {"reply_finish_failed", {.err_reqs = &d_req_1, .err_count = 1, .err_msg = "P num blocks less than D"}},
        {"reply_continue", {.verdict = KVFI_VLLM_CONTINUE, .ok_reqs = &a, .ok_count = 1, .err_reqs = &b,
                            .err_count = 1, .err_msg = "KV group count mismatch"}},
        {"reply_error", {.verdict = KVFI_VLLM_ERROR,
                         .err_msg = "This D tp_rank 1 is not paired with P tp_rank 0; expected one of [0]."}},
        {"reply_not_ready", {.err_reqs = &d_req_1, .err_count = 1, .err_msg = "Timeout waiting for P side ready."}},
        {"reply_bare", {0}},
        {"reply_layout_id", {.ok_reqs = &d_req_1, .ok_count = 1, .layout_id = 0x1122334455667789}},
        {"reply_layout_miss", {.verdict = KVFI_VLLM_LAYOUT_MISS, .err_msg = "Mooncake KV layout 0x1122334455667789 "
                               "from 127.0.0.1:54321 is not cached."}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvfi_vllm_reply reply = {0};
        struct message_bytes bytes;
        unsigned char *out = NULL;
        size_t count = 0;

        message_load(folder, rows[i].name, &bytes);
        assert_int_equal(kvfi_vllm_reply_encode(&rows[i].reply, &out, &count, NULL), KVF_OK);
        if (count != bytes.count || memcmp(out, bytes.data, count) != 0) fail_msg("%s: other bytes", rows[i].name);
        free(out);
        assert_int_equal(kvfi_vllm_reply_decode(bytes.data, bytes.count, true, &reply, NULL), KVF_OK);
        assert_int_equal(kvfi_vllm_reply_encode(&reply, &out, &count, NULL), KVF_OK);
        if (count != bytes.count || memcmp(out, bytes.data, count) != 0) fail_msg("%s: not the same", rows[i].name);
        assert_int_equal(reply.verdict, rows[i].reply.verdict);
        assert_int_equal(reply.ok_count, rows[i].reply.ok_count);
        assert_false(reply.confirms_replay);
        kvfi_vllm_reply_fini(&reply);
        free(out);
    }
}

static void reads_nils_as_absent(void **state)
{
    struct kvfi_vllm_reply reply = {0};
    struct message_bytes bytes = {.count = 0};

    (void)state;
    message_add_hex(&bytes, "85 a6737461747573 02 a7 6f6b5f72657173 c0 a8 6572725f72657173 90 a7 6572725f6d7367 c0"
                            "b9 7072656669785f7265706c61795f636865636b706f696e7473 80");
    assert_int_equal(kvfi_vllm_reply_decode(bytes.data, bytes.count, false, &reply, NULL), KVF_OK);
    assert_int_equal(reply.verdict, KVFI_VLLM_ERROR);
    assert_int_equal(reply.ok_count + reply.err_count, 0);
    assert_null(reply.err_msg);
    assert_true(reply.confirms_replay);
    kvfi_vllm_reply_fini(&reply);
}

/* Texts of errors are cut to a length in bytes: what remains must still reach the peer. */
static void sends_a_text_that_was_cut(void **state)
{
    struct kvfi_vllm_reply reply = {.verdict = KVFI_VLLM_ERROR, .err_msg = "host \xc3"};
    unsigned char *out = NULL;
    size_t count = 0;

    (void)state;
    assert_int_equal(kvfi_vllm_reply_encode(&reply, &out, &count, NULL), KVF_OK);
    assert_int_equal(kvfi_vllm_reply_decode(out, count, false, &reply, NULL), KVF_OK);
    assert_string_equal(reply.err_msg, "host ?");
    kvfi_vllm_reply_fini(&reply);
    free(out);
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_and_writes_golden_pulls),
        cmocka_unit_test(writes_pulls_of_one_asker),
        cmocka_unit_test(reads_every_field),
        cmocka_unit_test(knows_any_order_and_skips_unknown_keys),
        cmocka_unit_test(takes_the_last_of_equal_keys),
        cmocka_unit_test(tells_of_prefix_replay),
        cmocka_unit_test(keeps_integers_of_all_sizes),
        cmocka_unit_test(reads_and_writes_golden_replies),
        cmocka_unit_test(reads_nils_as_absent),
        cmocka_unit_test(sends_a_text_that_was_cut),
    };

    if (count != 2) return 2;
    folder = arguments[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
