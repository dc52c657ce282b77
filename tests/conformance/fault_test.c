/* SPDX-License-Identifier: Apache-2.0 */
/* What the fault transport does to the one it wraps, and what that one makes of it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "rig.h"
#include "sys/clock.h"

const struct subject *subject;

static const struct kit_shape shape = {.layers = 4, .heads = 4, .row_bytes = 128, .tokens = 2000,
                                       .src_block_tokens = 16, .dst_block_tokens = 64};

static struct subject row(const char *transport, const char *policy, bool with_fd, bool checksum)
{
    return (struct subject){"", transport, policy, with_fd, true, checksum};
}

/* Number of destination bytes that are not what they must be. */
static int64_t wrong_bytes(const struct kit *kit, const struct kit *right)
{
    int64_t wrong = 0;

    for (int kv = 0; kv < 2; kv++) {
        const unsigned char *found = kit->dst_regions[kv].address, *expected = right->dst_regions[kv].address;

        for (int64_t i = 0; i < kit->dst_regions[kv].bytes; i++) wrong += found[i] != expected[i];
    }
    return wrong;
}

static void move_whole(struct rig *rig, uint64_t grant)
{
    struct kvfi_chunk chunk = rig_whole_chunk(rig, grant);

    rig_arm(rig, grant);
    rig_post_and_await(rig, &chunk, KVF_OK);
    assert_int_equal(rig_await_complete(rig, grant), rig->kit->bytes);
}

/* One flipped bit arrives and nobody notices, unless there is a checksum. */
static void a_corrupted_bit_arrives(void **state)
{
    static const struct { const char *transport, *policy; bool with_fd; } rows[] = {
        {"fault:loop", "loop:corrupt=1", true},
        {"fault:shm", "shm:corrupt=1", true},
        {"fault:shm", "shm:corrupt=1", false},
        {"fault:tcp", "tcp:corrupt=1", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct subject faulty = row(rows[i].transport, rows[i].policy, rows[i].with_fd, false);
        struct kit kit, right;
        struct rig rig;

        subject = &faulty;
        kit_init(&kit, &shape, rows[i].with_fd);
        kit_init(&right, &shape, true);
        rig_init_connected(&rig, &kit);
        move_whole(&rig, 1);
        rig_fini(&rig);
        faulty = row(rows[i].transport + strlen("fault:"), NULL, rows[i].with_fd, false);
        rig_init_connected(&rig, &right);
        move_whole(&rig, 2);
        rig_fini(&rig);
        kit_check(&right, 0, shape.layers, shape.tokens);
        assert_int_equal(wrong_bytes(&kit, &right), 1);
        kit_fini(&kit);
        kit_fini(&right);
    }
}

static void a_checksum_catches_it(void **state)
{
    struct subject faulty = row("fault:tcp", "tcp:corrupt=1", true, true);
    struct kvfi_transport_event event;
    struct kvfi_chunk chunk;
    struct kit kit;
    struct rig rig;

    (void)state;
    subject = &faulty;
    kit_init(&kit, &shape, true);
    rig_init_connected(&rig, &kit);
    rig_arm(&rig, 1);
    chunk = rig_whole_chunk(&rig, 1);
    event = rig_post_and_await(&rig, &chunk, KVF_ERR_CORRUPT);
    assert_non_null(strstr(event.text, "checksum"));
    event = rig_await_dst(&rig, KVFI_TEV_GRANT_FAILED, 1);
    assert_int_equal(event.status, KVF_ERR_CORRUPT);
    assert_true(rig.ops->disarm(rig.dst, 1));
    move_whole(&rig, 2);
    kit_check(&kit, 0, shape.layers, shape.tokens);
    rig_end(&rig, &kit);
}

/* tcp sends again what was not acknowledged, wherever the connection broke. */
static void a_cut_is_survived_by_tcp(void **state)
{
    static const char *const policies[] = {"tcp:cut_after=1", "tcp:cut_after=300", "tcp:cut_after=70000",
                                           "tcp:cut_after=1000000", "tcp:cut_after=4000000", "tcp:cut_after=8190000"};

    (void)state;
    for (size_t i = 0; i < 2 * sizeof policies / sizeof policies[0]; i++) {
        struct subject faulty = row("fault:tcp", policies[i / 2], true, i % 2);
        struct kvfi_chunk chunks[4];
        struct kit kit;
        struct rig rig;

        subject = &faulty;
        kit_init(&kit, &shape, true);
        rig_init_connected(&rig, &kit);
        rig_arm(&rig, 1);
        for (uint32_t c = 0; c < 4; c++) {
            chunks[c] = rig_chunk(&rig, 1, c, c == 3, c, c + 1, 0, shape.tokens);
            rig_post(&rig, &chunks[c]);
        }
        assert_int_equal(rig_await_complete(&rig, 1), kit.bytes);
        for (uint32_t c = 0; c < 4; c++) {
            assert_int_equal(rig_await_src(&rig, KVFI_TEV_POSTED, chunks[c].cookie).status, KVF_OK);
            kvf_binding_destroy((kvf_binding *)chunks[c].binding);
        }
        kit_check(&kit, 0, shape.layers, shape.tokens);
        rig_end(&rig, &kit);
    }
}

static void a_cut_ends_the_peer_of_shm(void **state)
{
    static const char *const transports[] = {"fault:loop", "fault:shm"};
    static const char *const policies[] = {"loop:cut_after=1000", "shm:cut_after=1000"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct subject faulty = row(transports[i], policies[i], true, false);
        struct kvfi_chunk chunk;
        struct kit kit;
        struct rig rig;

        subject = &faulty;
        kit_init(&kit, &shape, true);
        rig_init_connected(&rig, &kit);
        rig_arm(&rig, 1);
        chunk = rig_whole_chunk(&rig, 1);
        rig_post_and_await(&rig, &chunk, KVF_ERR_PEER_LOST);
        rig_await_src(&rig, KVFI_TEV_PEER_DOWN, rig.peer);
        rig_await_dst(&rig, KVFI_TEV_WRITER_GONE, 0);
        assert_true(rig.ops->disarm(rig.dst, 1));
        rig_connect(&rig);
        move_whole(&rig, 2);
        kit_check(&kit, 0, shape.layers, shape.tokens);
        rig_end(&rig, &kit);
    }
}

static void posts_fail_stall_and_get_lost(void **state)
{
    struct subject faulty =
        row("fault:shm", "shm:fail_post=1,drop_posted=1,drop_received=1,fail_connect=1", true, false);
    struct kvfi_transport_event event;
    char endpoint[KVFI_ENDPOINT_BYTES];
    struct kvfi_chunk chunk;
    struct kit kit;
    struct rig rig;
    uint64_t peer;

    (void)state;
    subject = &faulty;
    kit_init(&kit, &shape, true);
    rig_init(&rig, &kit);
    rig.ops->endpoint(rig.dst, endpoint);
    assert_int_equal(rig.ops->connect(rig.src, endpoint, &rig.dst_who, &peer, NULL), KVF_OK);
    event = rig_await_src(&rig, KVFI_TEV_CONNECTED, peer);
    assert_int_equal(event.status, KVF_ERR_UNREACHABLE);
    rig_connect(&rig);
    rig_arm(&rig, 1);
    chunk = rig_whole_chunk(&rig, 1);
    event = rig_post_and_await(&rig, &chunk, KVF_ERR_SYSTEM);
    assert_string_equal(event.text, "by the fault policy");
    assert_true(kit_is_untouched(&kit));
    /* Both move, in any order where there are several copy threads; the events of the one that ends first are lost. */
    chunk = rig_chunk(&rig, 1, 0, false, 0, 1, 0, shape.tokens);
    rig_post(&rig, &chunk);
    kvf_binding *first = (kvf_binding *)chunk.binding;

    chunk = rig_chunk(&rig, 1, 1, true, 1, 4, 0, shape.tokens);
    rig_post(&rig, &chunk);
    assert_int_equal(rig_await_src(&rig, KVFI_TEV_POSTED, 0).status, KVF_OK);
    event = rig_await_dst(&rig, KVFI_TEV_RECEIVED, 1);
    assert_true(event.complete);
    assert_true(event.bytes < kit.bytes);
    kit_check(&kit, 0, shape.layers, shape.tokens);
    for (size_t i = 0; i < rig.src_count; i++) assert_int_not_equal(rig.src_events[i].kind, KVFI_TEV_POSTED);
    kvf_binding_destroy(first);
    kvf_binding_destroy((kvf_binding *)chunk.binding);
    rig_fini(&rig);

    faulty = row("fault:tcp", "tcp:stall", true, false);
    rig_init_connected(&rig, &kit);
    rig_arm(&rig, 1);
    chunk = rig_whole_chunk(&rig, 1);
    rig_post(&rig, &chunk);
    assert_false(rig_pump(&rig, kvfi_now_ns() + 20 * KVFI_MS));
    rig.ops->abort(rig.src, rig.peer, 1);
    assert_int_equal(rig_await_src(&rig, KVFI_TEV_POSTED, chunk.cookie).status, KVF_ERR_CANCELLED);
    kvf_binding_destroy((kvf_binding *)chunk.binding);
    rig_end(&rig, &kit);
}

static void events_come_late(void **state)
{
    struct subject faulty = row("fault:loop", "loop:delay_ms=40", true, false);
    struct kit kit;
    struct rig rig;
    int64_t start_ns = kvfi_now_ns();

    (void)state;
    subject = &faulty;
    kit_init(&kit, &shape, true);
    rig_init(&rig, &kit);
    start_ns = kvfi_now_ns();
    rig_connect(&rig);
    assert_true(kvfi_now_ns() - start_ns >= 40 * KVFI_MS);
    move_whole(&rig, 1);
    rig_end(&rig, &kit);
}

static void bad_policies(void **state)
{
    static const struct { const char *policy, *text; } rows[] = {
        {NULL, "fault policy: no transport \"\""},
        {"carrier-pigeon", "fault policy: no transport \"carrier-pigeon\""},
        {"fault:tcp", "fault policy: no transport \"fault\""},
        {"tcp:corrupt=x", "fault policy: \"corrupt\" with \"x\" is not known"},
        {"tcp:corrupt=-1", "fault policy: \"corrupt\" with \"-1\" is not known"},
        {"tcp:explode", "fault policy: \"explode\" with \"\" is not known"},
        {"tcp:stall,,", "fault policy: \"\" with \"\" is not known"},
    };
    const struct kvfi_transport_ops *ops = kvfi_transport_find("fault:tcp");

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvfi_transport_config config = {.host = "127.0.0.1", .self = "x", .streams = 1,
                                               .fault_policy = rows[i].policy, .connect_timeout_ns = KVFI_SECOND};
        struct kvfi_transport *transport = NULL;
        struct kvf_error error;

        assert_int_equal(ops->open(&config, &transport, &error), KVF_ERR_INVALID_ARGUMENT);
        assert_string_equal(error.text, rows[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_corrupted_bit_arrives), cmocka_unit_test(a_checksum_catches_it),
        cmocka_unit_test(a_cut_is_survived_by_tcp), cmocka_unit_test(a_cut_ends_the_peer_of_shm),
        cmocka_unit_test(posts_fail_stall_and_get_lost), cmocka_unit_test(events_come_late),
        cmocka_unit_test(bad_policies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
