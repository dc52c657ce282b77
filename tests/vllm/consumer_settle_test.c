/* SPDX-License-Identifier: Apache-2.0 */
/* When a consumer tells that a request failed, and when that its blocks are its own again. Tests that close a gap of
 * upstream's, or are about a row of its failure matrix, are named after it. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <zmq.h>

#include "consumer_kit.h"
#include "vllm_worker/worker.h"

#define SHORT_NS (200 * KVFI_MS)

/* Waits for the receive to time out soon. */
static void open_impatient(struct scene *scene)
{
    scene_init(scene);
    scene->dec.options.abort_request_timeout_ns = SHORT_NS / 2;
    scene->dec.options.receive_slack_ns = SHORT_NS / 2;
    dec_open(&scene->dec);
}

static void expect_failure(struct dec *dec, const char *id, enum kvf_status status, const char *text)
{
    struct kvf_vllm_event event = dec_event(dec, KVF_VLLM_EVENT_FAILED, id);

    if (event.status != (int)status || strstr(event.text, text) == NULL)
        fail_msg("%s failed with %d: %s", id, event.status, event.text);
}

/* ---- gap 16.1: a failure is told when nobody can write any more ------------------------------------------------- */

/* One of two workers fails: nothing is collected until the other one has answered, too. */
static void gap_16_1_waits_for_every_worker(void **state)
{
    struct scene scene;
    struct prod second;
    struct ask asks[2];

    (void)state;
    scene_init(&scene);
    prod_open(&second, 0);
    reg_add(&scene.reg, "p-engine", 0, 1, 0, second.address);
    dec_open(&scene.dec);
    dec_pull(&scene.dec, "a", 3, 2);
    prod_ask(&scene.prod, &asks[0]);
    prod_ask(&second, &asks[1]);
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    prod_say(&scene.prod, &asks[0], KVFI_VLLM_FINISH, NULL, "a", "P num blocks less than D", 0);
    expect_failure(&scene.dec, "a", KVF_ERR_REFUSED, "P num blocks less than D");
    dec_no_event(&scene.dec);
    dec_collect(&scene.dec, "", "", "");
    assert_int_equal(dec_stats(&scene.dec).unsettled, 1);
    assert_int_equal(dec_stats(&scene.dec).failed_recvs, 1);
    prod_finish(&second, &asks[1], "a");
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
    dec_collect(&scene.dec, "a", "", "3 4");
    assert_int_equal(dec_stats(&scene.dec).unsettled, 0);
    assert_int_equal(dec_stats(&scene.dec).requests_received, 0);
    ask_close(&asks[0]);
    ask_close(&asks[1]);
    prod_close(&second);
    scene_close(&scene);
}

/* A receive times out, the worker writes and answers all the same: its answer settles, whatever it says. */
static void gap_16_1_takes_late_answers(void **state)
{
    const struct {
        int verdict;
        const char *ok, *err;
    } rows[] = {
        {KVFI_VLLM_FINISH, "a", NULL}, {KVFI_VLLM_FINISH, NULL, "a"}, {KVFI_VLLM_FINISH, NULL, NULL},
        {KVFI_VLLM_ERROR, NULL, NULL}, {KVFI_VLLM_CONTINUE, "a", NULL},
    };
    const int64_t block = 9;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene scene;
        struct ask ask;

        open_impatient(&scene);
        scene_ask(&scene, "a", 9, 1, &ask);
        expect_failure(&scene.dec, "a", KVF_ERR_TIMEOUT, "transfer failed: Resource temporarily unavailable");
        dec_collect(&scene.dec, "", "", "");
        assert_int_equal(ask_write(&ask, &block, 1, 0x11), KVF_OK);
        dec_no_event(&scene.dec);
        prod_say(&scene.prod, &ask, rows[i].verdict, rows[i].ok, rows[i].err, NULL, 0);
        assert_int_equal(dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a").status, KVF_OK);
        dec_collect(&scene.dec, "a", "", "9");
        assert_int_equal(dec_stats(&scene.dec).requests_received, 0);
        ask_close(&ask);
        scene_close(&scene);
    }
}

/* The deadline holds for each answer, not for the whole pull. */
static void counts_the_deadline_from_the_last_answer(void **state)
{
    struct scene scene;
    struct ask ask;

    (void)state;
    open_impatient(&scene);
    dec_pull_many(&scene.dec, "r", 2);
    prod_ask(&scene.prod, &ask);
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    for (int i = 0; i < 3; i++) {
        dec_no_event(&scene.dec);
        prod_say(&scene.prod, &ask, KVFI_VLLM_CONTINUE, i == 0 ? "r0" : NULL, NULL, NULL, 0);
        if (i == 0)
            dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "r0");
    }
    expect_failure(&scene.dec, "r1", KVF_ERR_TIMEOUT, "no answer of");
    prod_finish(&scene.prod, &ask, "r1");
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "r1");
    dec_collect(&scene.dec, "r0 r1", "", "1");
    ask_close(&ask);
    scene_close(&scene);
}

/* Without grants that is no proof; with them what comes late is refused. */
static void gives_back_after_settle_timeout(bool grants)
{
    const int64_t block = 9;
    struct kvf_vllm_event event;
    struct scene scene;
    struct ask ask, again;

    scene_init(&scene);
    scene.dec.options.check_grants = grants;
    scene.dec.options.abort_request_timeout_ns = SHORT_NS / 2;
    scene.dec.options.receive_slack_ns = 0;
    scene.dec.options.settle_timeout_ns = SHORT_NS;
    dec_open(&scene.dec);
    scene_ask(&scene, "a", 9, 1, &ask);
    expect_failure(&scene.dec, "a", KVF_ERR_TIMEOUT, "no answer of");
    dec_collect(&scene.dec, "", "", "");
    event = dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
    assert_int_equal(event.status, grants ? KVF_OK : KVF_ERR_IN_DOUBT);
    assert_non_null(strstr(event.text, "settle_timeout"));
    assert_int_equal(strstr(event.text, "not proven") != NULL, !grants);
    dec_collect(&scene.dec, "a", "", "9");
    assert_int_equal(ask_write(&ask, &block, 1, 0x77) == KVF_OK, !grants);
    assert_int_equal(scene.dec.memory[9 * DEC_BLOCK_BYTES], grants ? 0 : 0x77);
    /* the id may come again, and a late answer to the first pull says nothing of the second */
    scene_ask(&scene, "a", 9, 1, &again);
    prod_say(&scene.prod, &ask, KVFI_VLLM_FINISH, "a", NULL, NULL, 0);
    dec_no_event(&scene.dec);
    scene_finish(&scene, &again, "a");
    dec_collect(&scene.dec, "a", "", "");
    ask_close(&ask);
    ask_close(&again);
    scene_close(&scene);
}

static void gap_16_1_gives_back_after_settle_timeout(void **state)
{
    (void)state;
    gives_back_after_settle_timeout(false);
    gives_back_after_settle_timeout(true);
}

/* ---- row "P dies": its side channel breaks, and its process is gone --------------------------------------------- */

static void row_p_dies(void **state)
{
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_open(&scene);
    scene_ask(&scene, "a", 9, 2, &ask);
    prod_close(&scene.prod);
    expect_failure(&scene.dec, "a", KVF_ERR_PEER_LOST, "broke before it had answered");
    dec_collect(&scene.dec, "", "", ""); /* one look is no proof */
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
    dec_collect(&scene.dec, "a", "", "9 10");
    ask_close(&ask);
    scene_close(&scene);
}

/* From 127.0.0.LAST. */
static int connect_data(struct dec *dec, uint32_t last)
{
    struct kvf_vllm_endpoints ends = {.struct_size = sizeof ends};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7F000000 + last)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(kvf_vllm_worker_endpoints(dec->worker, &ends, NULL), KVF_OK);
    address.sin_port = htons((uint16_t)ends.data_port);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void data_connection_stands(uint32_t last)
{
    struct kvf_vllm_event event;
    struct scene scene;
    struct ask ask;
    int fd;

    scene_open(&scene);
    fd = connect_data(&scene.dec, last);
    scene_ask(&scene, "a", 9, 1, &ask);
    prod_close(&scene.prod);
    expect_failure(&scene.dec, "a", KVF_ERR_PEER_LOST, "broke before it had answered");
    assert_int_equal(kvf_vllm_worker_wait(scene.dec.worker, &event, 1, 2500 * KVFI_MS), 0);
    dec_collect(&scene.dec, "", "", "");
    close(fd);
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
    dec_collect(&scene.dec, "a", "", "9");
    ask_close(&ask);
    scene_close(&scene);
}

/* Its listener is gone, but a data connection from its address stands: somebody may still write. */
static void row_p_dies_but_a_data_connection_stands(void **state)
{
    (void)state;
    data_connection_stands(1);
}

/* The same where its data comes from another of its host's addresses than it listens at. */
static void data_from_another_address_of_its_host(void **state)
{
    (void)state;
    data_connection_stands(2);
}

/* Looks from before it was lost are no proof. */
static void lost_after_the_first_look(void **state)
{
    struct kvf_vllm_event event;
    struct scene scene;
    struct ask ask;
    int64_t failed_ns = 0;

    (void)state;
    scene_open(&scene);
    scene_ask(&scene, "a", 9, 1, &ask);
    assert_int_equal(zmq_unbind(scene.prod.router, scene.prod.address), 0); /* "a" keeps its connection */
    dec_pull(&scene.dec, "b", 10, 1);
    assert_int_equal(kvf_vllm_worker_wait(scene.dec.worker, &event, 1, 1300 * KVFI_MS), 0);
    prod_close(&scene.prod);
    do {
        assert_int_equal(kvf_vllm_worker_wait(scene.dec.worker, &event, 1, 10 * KVFI_SECOND), 1);
        if (strcmp(event.req_id, "a") == 0 && event.kind == KVF_VLLM_EVENT_FAILED) failed_ns = event.ended_ns;
    } while (strcmp(event.req_id, "a") != 0 || event.kind != KVF_VLLM_EVENT_SETTLED);
    assert_true(event.ended_ns - failed_ns >= KVFI_SECOND);
    ask_close(&ask);
    scene_close(&scene);
}

/* Somebody listens at its address again: that proves nothing of the one before. */
static void row_p_restarts_at_its_address(void **state)
{
    struct kvf_vllm_event event;
    struct scene scene;
    struct ask ask;
    int port;

    (void)state;
    scene_open(&scene);
    scene_ask(&scene, "a", 9, 1, &ask);
    port = prod_port(&scene.prod);
    prod_close(&scene.prod);
    prod_open(&scene.prod, port);
    expect_failure(&scene.dec, "a", KVF_ERR_PEER_LOST, "broke before it had answered");
    assert_int_equal(kvf_vllm_worker_wait(scene.dec.worker, &event, 1, 1500 * KVFI_MS), 0);
    dec_collect(&scene.dec, "", "", "");
    assert_int_equal(dec_stats(&scene.dec).unsettled, 1);
    ask_close(&ask);
    scene_close(&scene); /* close breaks it off */
}

/* ---- this side stands still ------------------------------------------------------------------------------------- */

static enum kvf_status stand_still(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    (void)worker;
    (void)error;
    zmq_poll(NULL, 0, *(const int *)argument);
    return KVF_OK;
}

static void *stand_still_now(void *argument)
{
    int ms = 3 * (int)(SHORT_NS / KVFI_MS);

    kvfi_vllm_worker_call(argument, stand_still, &ms, NULL);
    return NULL;
}

/* An answer that came while the worker's own thread was kept past the deadline has come in time. */
static void answer_that_came_counts_before_its_deadline(void **state)
{
    struct scene scene;
    struct ask ask;
    pthread_t thread;

    (void)state;
    open_impatient(&scene);
    scene_ask(&scene, "a", 9, 1, &ask);
    assert_int_equal(pthread_create(&thread, NULL, stand_still_now, scene.dec.worker), 0);
    zmq_poll(NULL, 0, (int)(SHORT_NS / KVFI_MS) / 4); /* most often it stands still by now; else the test is easier */
    prod_finish(&scene.prod, &ask, "a");
    pthread_join(thread, NULL);
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "a");
    dec_collect(&scene.dec, "a", "", "");
    ask_close(&ask);
    scene_close(&scene);
}

/* ---- how failures are told -------------------------------------------------------------------------------------- */

static void tells_failures_by_request_with_several_groups(void **state)
{
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_init(&scene);
    scene.dec.options.kv_cache_groups = 2;
    dec_open(&scene.dec);
    dec_pull_many(&scene.dec, "r", 3);
    prod_ask(&scene.prod, &ask);
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    prod_say(&scene.prod, &ask, KVFI_VLLM_FINISH, "r0", "r1", "Mooncake transfer engine returned 1", 0);
    for (int i = 0; i < 2; i++) {
        dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, i == 0 ? "r1" : "r2");
        dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, i == 0 ? "r1" : "r2");
        if (i == 0)
            dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "r0");
    }
    dec_collect(&scene.dec, "r0 r1 r2", "r1 r2", "");
    ask_close(&ask);
    scene_close(&scene);
}

/* Blocks that two requests share are named once, in ascending order. */
static void names_invalid_blocks_once(void **state)
{
    struct kvf_vllm_ids groups[2] = {{.ids = (const int64_t[]){9, 3, 7}, .count = 3},
                                     {.ids = (const int64_t[]){7, 1}, .count = 2}};
    struct kvf_vllm_recv recvs[2];
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_open(&scene);
    for (int i = 0; i < 2; i++)
        recvs[i] = (struct kvf_vllm_recv){.d_req_id = i == 0 ? "a" : "b", .transfer_id = "x",
                                          .remote_engine_id = "p-engine", .remote_bootstrap_addr = scene.reg.url,
                                          .groups = &groups[i], .group_count = 1};
    dec_step(&scene.dec, recvs, 2);
    prod_ask(&scene.prod, &ask);
    prod_say(&scene.prod, &ask, KVFI_VLLM_ERROR, NULL, NULL, "no", 0);
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    for (int i = 0; i < 2; i++) {
        expect_failure(&scene.dec, i == 0 ? "a" : "b", KVF_ERR_REFUSED, "no");
        dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, i == 0 ? "a" : "b");
    }
    dec_collect(&scene.dec, "a b", "", "1 3 7 9");
    ask_close(&ask);
    scene_close(&scene);
}

/* ---- gap 16.10, row "D aborted before scheduling": release-only pulls are made, and never told ------------------ */

static void gap_16_10_never_tells_release_only_pulls(void **state)
{
    struct kvf_vllm_ids empty[2] = {{.count = 0}, {.count = 0}};
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_open(&scene);
    for (int i = 0; i < 4; i++) {
        struct kvf_vllm_recv recv = {.d_req_id = "a", .transfer_id = "x", .remote_engine_id = "p-engine",
                                     .remote_bootstrap_addr = scene.reg.url, .groups = i < 2 ? NULL : empty,
                                     .group_count = i < 2 ? 0 : 2};
        bool fails = i % 2 == 1;

        dec_step(&scene.dec, &recv, 1);
        prod_ask(&scene.prod, &ask);
        assert_int_equal(ask.pull.requests[0].group_count, recv.group_count);
        prod_say(&scene.prod, &ask, KVFI_VLLM_FINISH, fails ? NULL : "a", fails ? "a" : NULL, NULL, 0);
        dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
        if (fails) {
            expect_failure(&scene.dec, "a", KVF_ERR_REFUSED, "unknown error");
            dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
        } else {
            dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "a");
        }
        dec_collect(&scene.dec, "", "", "");
        ask_close(&ask);
    }
    scene_close(&scene);
}

/* ---- the rows that are answers ---------------------------------------------------------------------------------- */

static void rows_of_answers(void **state)
{
    static const struct {
        const char *row;
        int verdict;
        const char *ok, *err, *message;
        const char *text; /* of the failure */
    } rows[] = {
        {"wrong pairing", KVFI_VLLM_ERROR, NULL, NULL,
         "This D tp_rank 1 is not paired with P tp_rank 0; expected one of [0].", "is not paired with P tp_rank 0"},
        {"an error without a text", KVFI_VLLM_ERROR, NULL, NULL, NULL, "transfer error"},
        {"an error that names it as received", KVFI_VLLM_ERROR, "a", NULL, NULL, "transfer error"},
        {"D wants more blocks", KVFI_VLLM_FINISH, NULL, "a", "P num blocks less than D", "P num blocks less than D"},
        {"engine write error", KVFI_VLLM_FINISH, NULL, "a", "Mooncake transfer engine returned 123",
         "Mooncake transfer engine returned 123"},
        {"P never becomes ready", KVFI_VLLM_FINISH, NULL, "a", "Timeout waiting for P side ready.",
         "Timeout waiting for P side ready."},
        {"expired just before", KVFI_VLLM_FINISH, NULL, NULL, NULL,
         "peer finished without reporting a transfer result"},
        {"in both lists", KVFI_VLLM_FINISH, "a", "a", NULL, "unknown error"},
        {"a text of several lines", KVFI_VLLM_ERROR, NULL, NULL, "one\ntwo", "one"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene scene;
        struct ask ask;

        scene_open(&scene);
        dec_pull(&scene.dec, "a", 4, 1);
        prod_ask(&scene.prod, &ask);
        prod_say(&scene.prod, &ask, rows[i].verdict, rows[i].ok, rows[i].err, rows[i].message, 0);
        dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
        expect_failure(&scene.dec, "a", rows[i].text[0] == 'p' ? KVF_ERR_PROTOCOL : KVF_ERR_REFUSED, rows[i].text);
        dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
        dec_collect(&scene.dec, "a", "", "4");
        ask_close(&ask);
        scene_close(&scene);
    }
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

/* Row "aborted P request" ends by the receive time-out; shutdown waits for what is out. */
static void shuts_down_when_all_is_settled(void **state)
{
    struct kvf_vllm_step step = {.struct_size = sizeof step};
    struct scene scene;
    struct ask ask;

    (void)state;
    open_impatient(&scene);
    scene_ask(&scene, "a", 4, 1, &ask);
    assert_int_equal(kvf_vllm_worker_shutdown(scene.dec.worker, KVFI_MS, NULL), KVF_ERR_TIMEOUT);
    assert_int_equal(kvf_vllm_worker_step(scene.dec.worker, &step, NULL), KVF_ERR_CLOSED);
    expect_failure(&scene.dec, "a", KVF_ERR_TIMEOUT, "no answer of");
    assert_int_equal(kvf_vllm_worker_shutdown(scene.dec.worker, KVFI_MS, NULL), KVF_ERR_TIMEOUT); /* unsettled */
    prod_finish(&scene.prod, &ask, "a");
    assert_int_equal(kvf_vllm_worker_shutdown(scene.dec.worker, 10 * KVFI_SECOND, NULL), KVF_OK);
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
    dec_collect(&scene.dec, "a", "", "4");
    ask_close(&ask);
    scene_close(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gap_16_1_waits_for_every_worker),
        cmocka_unit_test(gap_16_1_takes_late_answers),
        cmocka_unit_test(counts_the_deadline_from_the_last_answer),
        cmocka_unit_test(gap_16_1_gives_back_after_settle_timeout),
        cmocka_unit_test(row_p_dies),
        cmocka_unit_test(row_p_dies_but_a_data_connection_stands),
        cmocka_unit_test(data_from_another_address_of_its_host),
        cmocka_unit_test(lost_after_the_first_look),
        cmocka_unit_test(answer_that_came_counts_before_its_deadline),
        cmocka_unit_test(row_p_restarts_at_its_address),
        cmocka_unit_test(tells_failures_by_request_with_several_groups),
        cmocka_unit_test(names_invalid_blocks_once),
        cmocka_unit_test(gap_16_10_never_tells_release_only_pulls),
        cmocka_unit_test(rows_of_answers),
        cmocka_unit_test(shuts_down_when_all_is_settled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
