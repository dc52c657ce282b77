/* SPDX-License-Identifier: Apache-2.0 */
/* Generation ranks that ask too much, twice, under another's name, or from elsewhere: nobody else is harmed, and no
 * byte goes where it should not. */
#include "send_kit.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sys/clock.h"
#include "trtllm_worker/host.h"

enum { OK = KVFI_TRTLLM_SUCCESS, FAILED = KVFI_TRTLLM_WRITE_FAILED, DOUBT = KVFI_TRTLLM_IN_DOUBT };

static void ask_for_ids(struct peer *peer, int64_t rid, const int64_t *ids)
{
    struct kvf_trtllm_blocks groups[1];
    struct kvfi_trtllm_ask ask;

    peer_ask_init(peer, &ask, groups, rid);
    groups[0].ids = ids;
    peer_ask_for(peer, &ask);
}

/* One word of this kind for each of so many requests, in any order. */
static void words_of(struct peer *peer, int64_t first, int64_t last, int word)
{
    int64_t sum = 0;

    for (int64_t rid = first; rid <= last; rid++) {
        struct word heard = peer_word(peer);
        if (heard.tag != KVFI_TRTLLM_KV_AGENT_RESULT || heard.word != word || !heard.is_last)
            fail_msg("request %d: tag %d, word %d", (int)heard.rid, heard.tag, heard.word);
        sum += heard.rid;
    }
    assert_int_equal(sum, (first + last) * (last - first + 1) / 2);
}

static const int64_t OTHERS[4] = {7, 6, 5, 4};

/* ---- asking too much --------------------------------------------------------------------------------------------- */

/* A rank may have as many stored requests as it leaves free; what one gives back another may have. */
static void test_no_rank_fills_the_table(void **state)
{
    struct stage stage;

    (void)state;
    stage_init(&stage, 1);
    stage.ctx.options.max_requests = 8;
    stage_start(&stage);
    for (int64_t rid = 1; rid <= 4; rid++) peer_ask(&stage.a, rid);
    peer_silent(&stage.a);
    for (int64_t rid = 5; rid <= 6; rid++) {
        peer_ask(&stage.a, rid);
        peer_kv(&stage.a, rid, FAILED, 1);
    }
    peer_ask(&stage.b, 1);
    peer_ask(&stage.b, 2);
    peer_silent(&stage.b);
    peer_ask(&stage.b, 3);
    peer_kv(&stage.b, 3, FAILED, 1);
    assert_int_equal(ctx_stats(&stage.ctx).requests_stored, 6);
    ctx_send_open(&stage.ctx, 1); /* takes one of each */
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 1);
    peer_ask(&stage.a, 5);
    peer_silent(&stage.a);
    peer_ask(&stage.b, 4);
    peer_silent(&stage.b);
    peer_ask(&stage.a, 6);
    peer_kv(&stage.a, 6, FAILED, 1);
    stage_close(&stage);
}

/* Thousands of requests under way of a rank that registers anew again and again, each time as something else. */
static void test_storm_of_registrations(void **state)
{
    enum { REQUESTS = 3000, STORMS = 40 };
    struct stage stage;
    struct kvf_trtllm_event event;
    int64_t began;
    int ended = 0, settled = 0;

    (void)state;
    stage_open(&stage, 1);
    for (int64_t rid = 1; rid <= REQUESTS; rid++) {
        ctx_send_open(&stage.ctx, rid);
        peer_ask(&stage.a, rid);
    }
    peer_silent(&stage.a);
    began = kvfi_now_ns();
    for (int i = 0; i < STORMS; i++) {
        stage.a.kit.pools[0][0].base_address ^= 64;
        peer_register(&stage.a);
    }
    words_of(&stage.a, 1, REQUESTS, FAILED);
    peer_silent(&stage.a);
    assert_true(kvfi_now_ns() - began < 20 * KVFI_SECOND);
    while (kvf_trtllm_worker_poll(stage.ctx.worker, &event, 1) == 1) {
        ended += event.kind == KVF_TRTLLM_EVENT_ENDED;
        settled += event.kind == KVF_TRTLLM_EVENT_SETTLED;
    }
    assert_int_equal(ended, REQUESTS);
    assert_int_equal(settled, REQUESTS);
    peer_silent(&stage.b);
    stage_close(&stage);
}

/* ---- asking twice ------------------------------------------------------------------------------------------------ */

/* The blocks of an earlier request may be somebody else's by now: the later one counts. */
static void test_asked_anew_before_the_session(void **state)
{
    struct stage stage;
    size_t half = (size_t)(16 * 4 * KIT_SLOTS) / 2;

    (void)state;
    stage_open(&stage, 1);
    peer_ask(&stage.a, 1);
    ask_for_ids(&stage.a, 1, OTHERS);
    peer_silent(&stage.a);
    ctx_send_open(&stage.ctx, 1);
    assert_int_equal(ctx_piece(&stage.ctx, 1, 0, 8, 1), KVF_OK);
    fake_until(&stage.ctx.fake, 1);
    fake_finish_all(&stage.ctx.fake);
    peer_kv(&stage.a, 1, OK, 1);
    for (int layer = 0; layer < KIT_LAYERS; layer++) {
        const unsigned char *pool = stage.a.memory.bytes + 2 * half * (size_t)layer;
        for (size_t i = 0; i < half; i++) assert_int_equal(pool[i], 0xee);
        assert_memory_not_equal(pool + half, pool, half);
    }
    stage_close(&stage);
}

/* Nothing more is written to blocks that their rank asks anew without: what runs is waited for. */
static void test_asked_anew_while_it_is_written(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 1);
    ctx_send_open(&stage.ctx, 1);
    peer_ask(&stage.a, 1);
    assert_int_equal(ctx_piece(&stage.ctx, 1, 0, 4, 0), KVF_OK);
    fake_until(&stage.ctx.fake, 1);
    ask_for_ids(&stage.a, 1, OTHERS);
    assert_int_equal(ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, 1).status, KVF_ERR_STALE);
    peer_silent(&stage.a);
    ctx_no_event(&stage.ctx);
    fake_tell(&stage.ctx.fake, 0, KVF_TRTLLM_AGENT_DONE);
    peer_kv(&stage.a, 1, OK, 0);
    peer_kv(&stage.a, 1, FAILED, 1);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_SETTLED, 1);
    peer_ask(&stage.a, 1); /* what it had asked at first, and got its answer to */
    peer_silent(&stage.a);
    ask_for_ids(&stage.a, 1, OTHERS);
    peer_kv(&stage.a, 1, FAILED, 1);
    assert_int_equal(fake_count(&stage.ctx.fake), 1);
    stage_close(&stage);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Whoever asks in a rank's name moves bytes to that rank alone, and that one is told. */
static void test_asked_in_another_ranks_name(void **state)
{
    struct stage stage;
    struct kvf_trtllm_blocks groups[1];
    struct kvfi_trtllm_ask ask;

    (void)state;
    stage_open(&stage, 0);
    ctx_send_open(&stage.ctx, 1);
    assert_int_equal(ctx_piece(&stage.ctx, 1, 0, 8, 1), KVF_OK);
    peer_silent(&stage.a); /* it is registered: nothing orders the words of two connections */
    peer_ask_init(&stage.a, &ask, groups, 1);
    peer_ask_for(&stage.b, &ask);
    peer_kv(&stage.a, 1, OK, 1);
    peer_silent(&stage.b);
    peer_has_blocks(&stage.ctx, &stage.a, 0, 4);
    peer_has_blocks(&stage.ctx, &stage.b, 0, 0);
    ask.instance_rank = 9; /* nobody's */
    ask.rid = 2;
    peer_ask_for(&stage.b, &ask);
    peer_kv(&stage.b, 2, FAILED, 1);
    stage_close(&stage);
}

static void as_dp_rank(struct peer *peer, const char *name, int64_t rank, int64_t ranks)
{
    struct memory memory = peer->memory;

    rank_kit_init(&peer->kit, name);
    peer->kit.spec.tp_size = peer->kit.spec.dp_size = ranks;
    peer->kit.spec.instance_rank = peer->kit.spec.tp_rank = peer->kit.spec.dp_rank = rank;
    peer->kit.attention = (struct kvf_trtllm_attention){.kv_heads_per_rank = 8, .tokens_per_block = 2,
                                                        .dims_per_head = 2, .element_eighths = 16,
                                                        .enable_attention_dp = 1};
    rank_kit_pv(&peer->kit, KVF_TRTLLM_INDEXED, 2, 8, 8);
    peer->kit.pools[0][0].base_address = (uint64_t)(uintptr_t)memory.bytes;
    peer->kit.pools[0][1].base_address = (uint64_t)(uintptr_t)memory.bytes + 4096;
    peer->kit.spec.transfer_engine_info = peer->engine;
    peer->kit.spec.transfer_engine_info_bytes = strlen(peer->engine);
}

/* "gen1" rank 2 and "gen" rank 12 have one agent name: the second is refused, or it would get the first one's bytes. */
static void test_agent_names_that_read_the_same(void **state)
{
    struct stage stage;

    (void)state;
    stage_init(&stage, 1);
    as_dp_rank(&stage.a, "gen1", 2, 4);
    as_dp_rank(&stage.b, "gen", 12, 16);
    ctx_open(&stage.ctx);
    peer_open(&stage.a, &stage.ctx);
    peer_open(&stage.b, &stage.ctx);
    peer_register(&stage.a);
    peer_silent(&stage.a);
    peer_register(&stage.b);
    peer_ask(&stage.b, 1);
    peer_kv(&stage.b, 1, FAILED, 1);
    peer_ask(&stage.a, 1);
    peer_silent(&stage.a);
    assert_int_equal(ctx_stats(&stage.ctx).registered, 1);
    assert_int_equal(ctx_stats(&stage.ctx).registrations_refused, 1);
    peer_register(&stage.a); /* itself is no other */
    stage.a.kit.pools[0][0].base_address += 64;
    peer_register(&stage.a);
    peer_kv(&stage.a, 1, FAILED, 1);
    assert_int_equal(ctx_stats(&stage.ctx).registered, 2);
    stage_close(&stage);
}

/* ---- elsewhere --------------------------------------------------------------------------------------------------- */

static void test_own_addresses(void **state)
{
    static const struct {
        const char *endpoint;
        bool own;
    } rows[] = {
        {"tcp://127.0.0.1:5000", true},   {"tcp://127.3.2.1:5000", true},  {"tcp://[::1]:5000", true},
        {"tcp://0.0.0.0:5000", true},     {"tcp://[::]:5000", true},       {"tcp://[::ffff:127.0.0.1]:5", true},
        {"tcp://192.0.2.1:5000", false},  {"tcp://198.51.100.7:1", false}, {"tcp://[2001:db8::1]:5000", false},
        {"tcp://localhost:5000", false},  {"tcp://127.0.0.1", false},      {"ipc:///tmp/127.0.0.1:1", false},
        {"tcp://", false},                {"tcp://:5000", false},          {"", false},
        {"127.0.0.1:5000", false},        {"tcp://127.0.0.1.evil:5", false},
    };
    struct ifaddrs *all = NULL;
    char endpoint[128], text[INET6_ADDRSTRLEN];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (kvfi_host_is_own(rows[i].endpoint) != rows[i].own) fail_msg("%s", rows[i].endpoint);
    assert_int_equal(getifaddrs(&all), 0);
    for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
        const void *four, *six;
        if (at->ifa_addr == NULL) continue;
        four = &((const struct sockaddr_in *)(const void *)at->ifa_addr)->sin_addr;
        six = &((const struct sockaddr_in6 *)(const void *)at->ifa_addr)->sin6_addr;
        if (at->ifa_addr->sa_family == AF_INET)
            snprintf(endpoint, sizeof endpoint, "tcp://%s:9", inet_ntop(AF_INET, four, text, sizeof text));
        else if (at->ifa_addr->sa_family == AF_INET6)
            snprintf(endpoint, sizeof endpoint, "tcp://[%s%%%s]:9", inet_ntop(AF_INET6, six, text, sizeof text),
                     at->ifa_name);
        else
            continue;
        if (!kvfi_host_is_own(endpoint)) fail_msg("%s", endpoint);
    }
    freeifaddrs(all);
}

/* A process number of another host is some process here: it is not written to. */
static void test_a_rank_of_another_host_is_refused(void **state)
{
    struct stage stage;
    char text[4096] = "";
    int fds[2];

    (void)state;
    stage_init(&stage, 0);
    assert_int_equal(pipe(fds), 0);
    stage.ctx.options.log = (struct kvf_log_sink){.fd = fds[1], .level = KVF_LOG_WARN};
    ctx_open(&stage.ctx);
    peer_open(&stage.a, &stage.ctx);
    peer_open(&stage.b, &stage.ctx);
    stage.a.kit.spec.self_endpoint = "tcp://192.0.2.1:5000";
    peer_register(&stage.a);
    peer_register(&stage.b);
    peer_silent(&stage.b);
    for (int i = 0; i < 5000 && ctx_stats(&stage.ctx).registrations_refused < 1; i++) poll(NULL, 0, 1);
    assert_int_equal(ctx_stats(&stage.ctx).registrations_refused, 1);
    assert_int_equal(ctx_stats(&stage.ctx).registered, 1);
    assert_true(read(fds[0], text, sizeof text - 1) > 0);
    assert_non_null(strstr(text, "tcp://192.0.2.1:5000, which is no address of this host"));
    ctx_send_open(&stage.ctx, 1);
    peer_ask(&stage.a, 1);
    peer_ask(&stage.b, 1);
    assert_int_equal(ctx_piece(&stage.ctx, 1, 0, 8, 1), KVF_OK);
    peer_kv(&stage.b, 1, OK, 1);
    peer_has_blocks(&stage.ctx, &stage.a, 0, 0);
    stage_close(&stage);
    close(fds[0]);
    close(fds[1]);
}

/* ---- a rank that stands still ------------------------------------------------------------------------------------ */

static void test_a_stopped_rank_delays_nobody(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 0);
    assert_int_equal(kill(stage.a.memory.pid, SIGSTOP), 0);
    for (int64_t rid = 1; rid <= 20; rid++) {
        ctx_send_open(&stage.ctx, rid);
        peer_ask(&stage.a, rid);
        assert_int_equal(ctx_piece(&stage.ctx, rid, 0, 8, 1), KVF_OK);
    }
    ctx_send_open(&stage.ctx, 100);
    peer_ask(&stage.b, 100);
    assert_int_equal(ctx_piece(&stage.ctx, 100, 0, 8, 1), KVF_OK);
    peer_kv(&stage.b, 100, OK, 1);
    peer_has_blocks(&stage.ctx, &stage.b, 0, 4);
    words_of(&stage.a, 1, 20, OK); /* its memory needs nobody */
    stage_close(&stage);
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */

static void at_stored(struct stage *stage) { peer_ask_aux(&stage->a, 1, 2); }
static void at_fenced(struct stage *stage) { peer_cancel(&stage->a, 1); }
static void at_open(struct stage *stage) { ctx_send_open(&stage->ctx, 1); }

static void at_asked(struct stage *stage)
{
    at_open(stage);
    peer_ask(&stage->a, 1);
}

static void at_writing(struct stage *stage)
{
    at_asked(stage);
    assert_int_equal(ctx_piece(&stage->ctx, 1, 0, 4, 0), KVF_OK);
    assert_int_equal(ctx_piece(&stage->ctx, 1, 4, 8, 1), KVF_OK);
    fake_until(&stage->ctx.fake, 1);
}

static void at_doubt(struct stage *stage)
{
    at_writing(stage);
    fake_tell(&stage->ctx.fake, 0, KVF_TRTLLM_AGENT_IN_DOUBT);
    peer_kv(&stage->a, 1, DOUBT, 0);
}

static void at_draining(struct stage *stage)
{
    at_writing(stage);
    assert_int_equal(ctx_cancel(&stage->ctx, 1), KVF_OK);
}

static void at_cancelled_by_peer(struct stage *stage)
{
    at_writing(stage);
    peer_cancel(&stage->a, 1);
}

static void at_failed(struct stage *stage)
{
    at_writing(stage);
    fake_tell(&stage->ctx.fake, 0, KVF_TRTLLM_AGENT_FAILED);
    peer_kv(&stage->a, 1, FAILED, 1);
}

static void at_shutdown(struct stage *stage)
{
    at_writing(stage);
    assert_int_equal(kvf_trtllm_worker_shutdown(stage->ctx.worker, 0, NULL), KVF_ERR_TIMEOUT);
}

/* Whatever is under way when a worker is closed is freed, and nothing waits for anybody. */
static void test_closed_in_every_state(void **state)
{
    static void (*const reach[])(struct stage *stage) = {at_stored, at_fenced,   at_open,   at_asked, at_writing,
                                                         at_doubt,  at_draining, at_failed, at_cancelled_by_peer,
                                                         at_shutdown};

    (void)state;
    for (size_t i = 0; i < 2 * sizeof reach / sizeof reach[0]; i++) {
        struct stage stage;
        int64_t began;
        stage_open(&stage, 1);
        reach[i / 2](&stage);
        if (i % 2 == 0) peer_catch_up(&stage.a); /* else while messages are on their way */
        began = kvfi_now_ns();
        stage_close(&stage);
        assert_true(kvfi_now_ns() - began < 5 * KVFI_SECOND);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_rank_fills_the_table),
        cmocka_unit_test(test_storm_of_registrations),
        cmocka_unit_test(test_asked_anew_before_the_session),
        cmocka_unit_test(test_asked_anew_while_it_is_written),
        cmocka_unit_test(test_asked_in_another_ranks_name),
        cmocka_unit_test(test_agent_names_that_read_the_same),
        cmocka_unit_test(test_own_addresses),
        cmocka_unit_test(test_a_rank_of_another_host_is_refused),
        cmocka_unit_test(test_a_stopped_rank_delays_nobody),
        cmocka_unit_test(test_closed_in_every_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
