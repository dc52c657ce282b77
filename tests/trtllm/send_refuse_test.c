/* SPDX-License-Identifier: Apache-2.0 */
/* What is refused is answered, and what is no message harms nobody. */
#include "send_kit.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = KVFI_TRTLLM_SUCCESS, FAILED = KVFI_TRTLLM_WRITE_FAILED };

/* ---- registrations ----------------------------------------------------------------------------------------------- */

struct log_lines {
    int fds[2];
    char text[65536];
    size_t count;
};

static void log_open(struct log_lines *log, struct ctx *ctx)
{
    log->count = 0;
    assert_int_equal(pipe(log->fds), 0);
    ctx->options.log = (struct kvf_log_sink){.fd = log->fds[1], .level = KVF_LOG_WARN};
}

/* Fails the test unless the log says this by now. */
static void log_has(struct log_lines *log, const char *text)
{
    struct pollfd ready = {.fd = log->fds[0], .events = POLLIN};

    while (poll(&ready, 1, 0) == 1 && log->count < sizeof log->text - 1) {
        ssize_t count = read(log->fds[0], log->text + log->count, sizeof log->text - 1 - log->count);
        if (count <= 0) break;
        log->count += (size_t)count;
    }
    log->text[log->count] = '\0';
    if (strstr(log->text, text) == NULL) fail_msg("the log does not say \"%s\" but: %s", text, log->text);
}

static void log_close(struct log_lines *log)
{
    close(log->fds[0]);
    close(log->fds[1]);
}

/* The bytes of a usual registration, one byte changed behind a key. */
static size_t rank_bytes(struct peer *peer, unsigned char *bytes, size_t capacity, const char *key, unsigned char value)
{
    kvf_trtllm_rank *rank = rank_kit_make(&peer->kit);
    size_t byte_count = 0;
    unsigned char *at;

    assert_int_equal(kvf_trtllm_rank_encode(rank, bytes, capacity, &byte_count, NULL), KVF_OK);
    kvf_trtllm_rank_release(rank);
    if (key != NULL) {
        at = memmem(bytes, byte_count, key, strlen(key));
        assert_non_null(at);
        at[strlen(key)] = value;
    }
    return byte_count;
}

static void test_another_protocol_version_is_answered(void **state)
{
    struct log_lines log;
    struct stage stage;
    unsigned char bytes[8192];

    (void)state;
    stage_init(&stage, 1);
    log_open(&log, &stage.ctx);
    ctx_open(&stage.ctx);
    peer_open(&stage.a, &stage.ctx);
    peer_open(&stage.b, &stage.ctx);
    peer_register_bytes(&stage.a, bytes, rank_bytes(&stage.a, bytes, sizeof bytes, "protocol_version", 2));
    peer_ask_aux(&stage.a, 1, 0);
    peer_kv(&stage.a, 1, FAILED, 1);
    peer_aux(&stage.a, 1, FAILED);
    log_has(&log, "generation rank gen0 is refused");
    log_has(&log, "protocol version");
    assert_int_equal(ctx_stats(&stage.ctx).registrations_refused, 1);
    assert_int_equal(fake_loads(&stage.ctx.fake), 0);
    peer_register(&stage.a); /* as it should be: from now on it is taken */
    ctx_send_open(&stage.ctx, 2);
    peer_ask(&stage.a, 2);
    peer_silent(&stage.a);
    assert_int_equal(ctx_status(&stage.ctx, 2).asked, 1);
    stage_close(&stage);
    log_close(&log);
}

static void test_an_unfit_peer_is_answered(void **state)
{
    struct log_lines log;
    struct stage stage;

    (void)state;
    stage_init(&stage, 1);
    log_open(&log, &stage.ctx);
    stage.a.kit.attention.dims_per_head = 4;
    ctx_open(&stage.ctx);
    peer_open(&stage.a, &stage.ctx);
    peer_open(&stage.b, &stage.ctx);
    peer_register(&stage.a);
    peer_ask(&stage.a, 1);
    peer_kv(&stage.a, 1, FAILED, 1);
    log_has(&log, "generation rank gen0 is refused");
    peer_ask(&stage.a, 2); /* each of its requests */
    peer_kv(&stage.a, 2, FAILED, 1);
    stage_close(&stage);
    log_close(&log);
}

static void test_an_agent_that_cannot_be_loaded(void **state)
{
    struct stage stage;

    (void)state;
    stage_init(&stage, 1);
    ctx_open(&stage.ctx);
    peer_open(&stage.a, &stage.ctx);
    peer_open(&stage.b, &stage.ctx);
    fake_next_load(&stage.ctx.fake, KVF_ERR_UNREACHABLE);
    peer_register(&stage.a);
    peer_ask(&stage.a, 1);
    peer_kv(&stage.a, 1, FAILED, 1);
    peer_register(&stage.a);
    peer_ask(&stage.a, 2);
    peer_silent(&stage.a);
    assert_int_equal(ctx_stats(&stage.ctx).requests_stored, 1);
    stage_close(&stage);
}

/* Broken bytes say at least whom to answer; without that, the connection itself is answered. */
static void test_broken_registrations_and_strangers_are_answered(void **state)
{
    struct stage stage;
    unsigned char bytes[8192];
    size_t byte_count;

    (void)state;
    stage_init(&stage, 1);
    ctx_open(&stage.ctx);
    peer_open(&stage.a, &stage.ctx);
    peer_open(&stage.b, &stage.ctx);
    byte_count = rank_bytes(&stage.a, bytes, sizeof bytes, NULL, 0);
    peer_register_bytes(&stage.a, bytes, byte_count - 1);
    peer_ask(&stage.a, 1);
    peer_kv(&stage.a, 1, FAILED, 1);
    peer_register_bytes(&stage.b, bytes, 3);
    peer_ask(&stage.b, 2);
    peer_kv(&stage.b, 2, FAILED, 1); /* it never registered: over its own connection */
    peer_register(&stage.b);
    peer_silent(&stage.b);
    assert_int_equal(ctx_stats(&stage.ctx).registered, 1);
    stage_close(&stage);
}

/* The same rank info again changes nothing; another one ends what is under way. */
static void test_registered_anew(void **state)
{
    struct stage stage;
    unsigned char bytes[8192];

    (void)state;
    stage_open(&stage, 1);
    ctx_send_open(&stage.ctx, 1);
    peer_ask(&stage.a, 1);
    peer_silent(&stage.a);
    assert_int_equal(ctx_piece(&stage.ctx, 1, 0, 4, 0), KVF_OK);
    peer_register(&stage.a);
    peer_silent(&stage.a);
    peer_silent(&stage.b);
    assert_int_equal(fake_loads(&stage.ctx.fake), 2);
    assert_int_equal(ctx_status(&stage.ctx, 1).state, KVF_TRTLLM_STATE_TRANSFERRING);
    peer_ask(&stage.a, 2); /* stored */
    stage.a.kit.pools[0][0].base_address += 64;
    peer_register(&stage.a);
    peer_kv(&stage.a, 2, FAILED, 1);
    assert_int_equal(ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, 1).status, KVF_ERR_STALE);
    ctx_no_event(&stage.ctx); /* its write is out */
    fake_tell(&stage.ctx.fake, 0, KVF_TRTLLM_AGENT_DONE);
    peer_kv(&stage.a, 1, OK, 0);
    peer_kv(&stage.a, 1, FAILED, 1);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_SETTLED, 1);
    peer_ask(&stage.a, 3);
    peer_register_bytes(&stage.a, bytes, rank_bytes(&stage.a, bytes, sizeof bytes, "protocol_version", 2));
    peer_kv(&stage.a, 3, FAILED, 1);
    peer_ask(&stage.a, 4);
    peer_kv(&stage.a, 4, FAILED, 1);
    peer_silent(&stage.a);
    stage_close(&stage);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

struct bad_ask {
    const char *name;
    int64_t ids[6];
    size_t id_count, group_count;
    int schedule;
    const char *text;
};

static const struct bad_ask bad_asks[] = {
    {"a table too short", {0, 1, 2}, 3, 1, 0,
     "positional block tables differ in length: src=4 dst=3; both sides must span the same prompt"},
    {"a table too long", {0, 1, 2, 3, 4}, 5, 1, 0, "differ in length: src=4 dst=5"},
    {"an id past the pool", {0, 1, 2, 8}, 4, 1, 0, "8"},
    {"a huge id", {0, 1, INT64_MAX, 3}, 4, 1, 0, "9223372036854775807"},
    {"no group", {0}, 0, 0, 0, "0 block lists of the destination, expected one for each of its 1 layer groups"},
    {"two groups", {0, 1, 2, 3}, 4, 2, 0, "2 block lists of the destination"},
    {"no slot for auxiliary data", {0, 1, 2, 3}, 4, 1, 1, "without a slot for auxiliary data"},
};

static void test_bad_requests_end_their_session(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 1);
    for (size_t i = 0; i < sizeof bad_asks / sizeof bad_asks[0]; i++) {
        const struct kvf_trtllm_blocks groups[2] = {{bad_asks[i].ids, bad_asks[i].id_count},
                                                    {bad_asks[i].ids, bad_asks[i].id_count}};
        struct kvf_trtllm_blocks usual[1];
        struct kvf_trtllm_event event;
        struct kvfi_trtllm_ask ask;
        int64_t rid = (int64_t)i;

        if (bad_asks[i].schedule) ctx_send_open_aux(&stage.ctx, rid);
        else ctx_send_open(&stage.ctx, rid);
        assert_int_equal(ctx_piece(&stage.ctx, rid, 0, 8, 1), KVF_OK);
        peer_ask_init(&stage.a, &ask, usual, rid);
        ask.groups = groups;
        ask.group_count = bad_asks[i].group_count;
        peer_ask_for(&stage.a, &ask);
        peer_kv(&stage.a, rid, FAILED, 1);
        if (bad_asks[i].schedule) peer_aux(&stage.a, rid, FAILED);
        event = ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, rid);
        if (event.state != KVF_TRTLLM_STATE_ERROR || strstr(event.text, bad_asks[i].text) == NULL)
            fail_msg("%s: state %d \"%s\"", bad_asks[i].name, event.state, event.text);
        ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_SETTLED, rid);
        assert_int_equal(ctx_close_session(&stage.ctx, rid), KVF_OK);
        peer_silent(&stage.a);
    }
    assert_int_equal(fake_count(&stage.ctx.fake), 0);
    stage_close(&stage);
}

/* Who does not take part is refused, and the session goes on for those who do. */
static void test_another_instance_asks(void **state)
{
    struct stage stage;
    struct peer other;

    (void)state;
    peer_init(&other, "other", 1, 0);
    stage_open(&stage, 1);
    peer_open(&other, &stage.ctx);
    peer_register(&other);
    ctx_send_open(&stage.ctx, 1);
    assert_int_equal(ctx_piece(&stage.ctx, 1, 0, 8, 1), KVF_OK);
    peer_ask(&stage.a, 1);
    peer_silent(&stage.a);
    peer_ask(&other, 1);
    peer_kv(&other, 1, FAILED, 1);
    assert_int_equal(ctx_status(&stage.ctx, 1).state, KVF_TRTLLM_STATE_TRANSFERRING);
    assert_int_equal(ctx_status(&stage.ctx, 1).asked, 1);
    stage_close(&stage);
    peer_close(&other);
}

static void test_payloads_that_are_no_request(void **state)
{
    struct kvf_trtllm_blocks groups[1];
    struct kvfi_trtllm_packed packed;
    struct kvfi_trtllm_ask ask;
    struct stage stage;
    unsigned char *bytes;
    size_t byte_count;

    (void)state;
    stage_open(&stage, 1);
    peer_ask_init(&stage.a, &ask, groups, 1);
    ask.slice = 3;
    assert_int_equal(kvfi_trtllm_ask_encode(&ask, &bytes, &byte_count, NULL), KVF_OK);
    for (size_t cut = 0; cut < byte_count; cut += 13) { /* cut short: nobody can be answered, or the one who asked is */
        struct kvfi_frame frames[2];
        kvfi_trtllm_pack_payload(&packed, KVFI_TRTLLM_REQUEST_DATA, bytes, cut);
        frames[0] = (struct kvfi_frame){packed.frames[0].bytes, packed.frames[0].byte_count};
        frames[1] = (struct kvfi_frame){packed.frames[1].bytes, packed.frames[1].byte_count};
        peer_frames(&stage.a, frames, 2);
    }
    peer_frames(&stage.a, (struct kvfi_frame[]){{"REQUEST_DATA", 12}, {bytes, byte_count}, {"more", 4}}, 3);
    memcpy(memmem(bytes, byte_count, "slice_id", 8), "slice_ix", 8);
    memcpy(memmem(bytes, byte_count, "aux_slot\xc0", 9), "slice_id\x90", 9); /* a slice that is a list */
    kvfi_trtllm_pack_payload(&packed, KVFI_TRTLLM_REQUEST_DATA, bytes, byte_count);
    peer_frames(&stage.a, (struct kvfi_frame[]){{"REQUEST_DATA", 12}, {bytes, byte_count}}, 2);
    free(bytes);
    stage.a.sync += 1000;
    peer_cancel(&stage.a, stage.a.sync);
    for (int answers = 0;; answers++) {
        struct word word = peer_word(&stage.a);
        if (word.tag == KVFI_TRTLLM_SESSION_QUIESCED) {
            assert_true(answers > 0);
            break;
        }
        assert_int_equal(word.word, FAILED);
        assert_int_equal(word.rid, 1);
    }
    assert_int_equal(ctx_stats(&stage.ctx).requests_stored, 0);
    assert_true(ctx_stats(&stage.ctx).malformed > 0);
    stage_close(&stage);
}

static void test_frames_that_are_no_message(void **state)
{
    static const struct kvfi_frame rows[][4] = {
        {{"", 0}, {"", 0}, {"", 0}, {"", 0}},
        {{"HELLO", 5}, {"1", 1}, {"2", 1}, {"3", 1}},
        {{"TERMINATION", 11}, {"", 0}, {"", 0}, {"", 0}},
        {{"CANCEL_SESSION", 14}, {"x", 1}, {"y", 1}, {"z", 1}},
        {{"KV_AGENT_RESULT", 15}, {"0123456789012345678901234567890123", 34}, {"", 0}, {"", 0}},
        {{"SESSION_QUIESCED", 16}, {"0", 1}, {"1", 1}, {"", 0}},
        {{"REQUEST_INSTANCE_INFO", 21}, {"", 0}, {"", 0}, {"", 0}},
        {{"REGISTER_RANK_INFO", 18}, {"", 0}, {"", 0}, {"", 0}},
        {{"REQUEST_DATA", 12}, {"\xc1", 1}, {"", 0}, {"", 0}},
    };
    struct stage stage;

    (void)state;
    stage_open(&stage, 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t count = 1; count <= 4; count++) peer_frames(&stage.a, rows[i], count);
    peer_silent(&stage.a);
    ctx_send_open(&stage.ctx, 1);
    peer_ask(&stage.a, 1);
    peer_silent(&stage.a);
    assert_int_equal(ctx_status(&stage.ctx, 1).asked, 1);
    stage_close(&stage);
}

/* ---- bounds ------------------------------------------------------------------------------------------------------ */

static void test_tables_are_bounded(void **state)
{
    struct stage stage;
    struct peer third;

    (void)state;
    peer_init(&third, "third", 0, 0);
    stage_init(&stage, 1);
    stage.ctx.options.max_requests = 3;
    stage.ctx.options.max_sessions = 2;
    stage.ctx.options.max_peers = 2;
    stage_start(&stage);
    peer_open(&third, &stage.ctx);
    for (int64_t rid = 1; rid <= 2; rid++) peer_ask(&stage.a, rid);
    peer_silent(&stage.a);
    peer_ask(&stage.b, 1);
    peer_silent(&stage.b);
    peer_ask_aux(&stage.a, 4, 0); /* one too many: refused, and answered */
    peer_kv(&stage.a, 4, FAILED, 1);
    peer_aux(&stage.a, 4, FAILED);
    for (int64_t rid = 10; rid <= 14; rid++) { /* more cancels than can be remembered: acknowledged all the same */
        peer_cancel(&stage.b, rid);
        peer_quiesced(&stage.b, rid);
    }
    ctx_send_open(&stage.ctx, 10);
    assert_int_equal(ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, 10).by_peer, 1);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_SETTLED, 10);
    ctx_send_open(&stage.ctx, 14);
    ctx_no_event(&stage.ctx);
    assert_int_equal(kvf_trtllm_worker_send_open(stage.ctx.worker, NULL, NULL), KVF_ERR_INVALID_ARGUMENT);
    peer_register(&third); /* one rank too many: both others are registered */
    peer_ask(&third, 20);
    peer_kv(&third, 20, FAILED, 1);
    stage_close(&stage);
    peer_close(&third);
}

/* A rank that cannot be reached for a while: what it is told waits, and comes in order. */
static void test_words_wait_for_room(void **state)
{
    enum { EARLY = 6000, ALL = 9000 };
    struct kvfi_channel *reserved = NULL;
    struct kvfi_channel_options options = {.port = 0};
    char endpoint[KVFI_CHANNEL_ENDPOINT_BYTES];
    struct stage stage;

    (void)state;
    assert_int_equal(kvfi_channel_open(&options, &reserved, NULL), KVF_OK);
    snprintf(endpoint, sizeof endpoint, "%s", kvfi_channel_endpoint(reserved));
    kvfi_channel_close(reserved, 0);
    stage_init(&stage, 1);
    ctx_open(&stage.ctx);
    peer_open(&stage.a, &stage.ctx);
    peer_open(&stage.b, &stage.ctx);
    stage.b.kit.spec.self_endpoint = endpoint; /* nobody is there yet */
    peer_register(&stage.b);
    for (int64_t rid = 0; rid < EARLY; rid++) peer_cancel(&stage.b, rid);
    while (ctx_stats(&stage.ctx).cancels_received < EARLY) poll(NULL, 0, 1);
    assert_int_equal(ctx_stats(&stage.ctx).quiesced_sent, EARLY);
    options.port = (int)strtol(strrchr(endpoint, ':') + 1, NULL, 10);
    assert_int_equal(kvfi_channel_open(&options, &reserved, NULL), KVF_OK);
    for (int64_t rid = EARLY; rid < ALL; rid++) peer_cancel(&stage.b, rid);
    kvfi_channel_close(stage.a.channel, 0);
    stage.a.channel = reserved; /* reads in its place */
    for (int64_t rid = 0; rid < ALL; rid++) peer_quiesced(&stage.a, rid);
    stage_close(&stage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_protocol_version_is_answered),
        cmocka_unit_test(test_an_unfit_peer_is_answered),
        cmocka_unit_test(test_an_agent_that_cannot_be_loaded),
        cmocka_unit_test(test_broken_registrations_and_strangers_are_answered),
        cmocka_unit_test(test_registered_anew),
        cmocka_unit_test(test_bad_requests_end_their_session),
        cmocka_unit_test(test_another_instance_asks),
        cmocka_unit_test(test_payloads_that_are_no_request),
        cmocka_unit_test(test_frames_that_are_no_message),
        cmocka_unit_test(test_tables_are_bounded),
        cmocka_unit_test(test_words_wait_for_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
