/* SPDX-License-Identifier: Apache-2.0 */
/* How a consumer finds the workers of an engine: questions to registries, what is asked again and when, addresses.
 * Those that close a gap of upstream's are named after its number. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "consumer_kit.h"
#include "directory/http_kit.h"

static void expect_failure(struct dec *dec, const char *id, enum kvf_status status, const char *text)
{
    struct kvf_vllm_event event = dec_event(dec, KVF_VLLM_EVENT_FAILED, id);

    if (event.status != (int)status || strstr(event.text, text) == NULL)
        fail_msg("%s failed with %d: %s, expected %d: %s", id, event.status, event.text, status, text);
    dec_event(dec, KVF_VLLM_EVENT_SETTLED, id);
}

/* Answers the next pull of a producer. */
static void serve(struct dec *dec, struct prod *prod, const char *id)
{
    struct ask ask;

    prod_ask(prod, &ask);
    prod_finish(prod, &ask, id);
    dec_event(dec, KVF_VLLM_EVENT_ASKED, NULL);
    ask_close(&ask);
}

static void receive(struct dec *dec, struct prod *prod, const char *id)
{
    dec_pull(dec, id, 0, 1);
    serve(dec, prod, id);
    dec_event(dec, KVF_VLLM_EVENT_RECEIVED, id);
    dec_collect(dec, id, "", "");
}

/* ---- a registry that the test answers for ----------------------------------------------------------------------- */

struct oracle {
    struct http_kit *kit;
    const char *body;      /* of all answers */
    atomic_int code;
    atomic_bool stalls;    /* answers nothing while it is set */
};

static void answer_query(struct http_kit *kit, void *context, int fd, int number, const char *request,
                         size_t request_bytes)
{
    struct oracle *oracle = context;

    (void)number;
    (void)request;
    (void)request_bytes;
    if (atomic_load(&oracle->stalls))
        http_kit_stall(kit, 20000);
    else
        http_kit_answer(fd, atomic_load(&oracle->code), oracle->body);
}

static void oracle_open(struct oracle *oracle, const char *body)
{
    oracle->body = body;
    atomic_init(&oracle->code, 200);
    atomic_init(&oracle->stalls, false);
    oracle->kit = http_kit_open(answer_query, oracle);
}

/* ---- engines that are not known --------------------------------------------------------------------------------- */

static void fails_for_an_engine_that_nobody_knows(void **state)
{
    char text[256];
    struct scene scene;

    (void)state;
    scene_open(&scene);
    snprintf(text, sizeof text, "remote engine_id other not found from bootstrap server %s", scene.reg.url);
    dec_pull_from(&scene.dec, "other", "a", 3, 2);
    assert_string_equal(dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "a").text, text);
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
    dec_collect(&scene.dec, "a", "", "3 4");
    prod_no_ask(&scene.prod);
    assert_int_equal(dec_stats(&scene.dec).failed_recvs, 1);
    scene_close(&scene);
}

static void fails_where_no_registry_answers(void **state)
{
    static const struct {
        const char *address, *text;
    } rows[] = {
        {"http://127.0.0.1:1", "remote engine_id p-engine not found from bootstrap server http://127.0.0.1:1: "},
        {"54321", "remote engine_id p-engine not found from bootstrap server 54321: "},
        {"http://", "remote engine_id p-engine not found from bootstrap server http://: "},
    };
    struct scene scene;

    (void)state;
    scene_open(&scene);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_vllm_event event;

        scene.dec.bootstrap = rows[i].address;
        dec_pull(&scene.dec, "a", 3, 1);
        event = dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "a");
        if (strncmp(event.text, rows[i].text, strlen(rows[i].text)) != 0 || event.text[strlen(rows[i].text)] == '\0')
            fail_msg("%s", event.text);
        dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
        dec_collect(&scene.dec, "a", "", "3");
    }
    scene_close(&scene);
}

/* All that wait for one engine wait for one question, and are all woken by a failure. */
static void asks_once_and_wakes_all(void **state)
{
    struct oracle oracle;
    struct dec dec;

    (void)state;
    oracle_open(&oracle, "{\"detail\": \"busy\"}");
    atomic_store(&oracle.code, 503);
    dec_init(&dec, NULL);
    dec.bootstrap = http_kit_url(oracle.kit);
    dec_open(&dec);
    dec_pull_many(&dec, "r", 3);
    dec_pull(&dec, "a", 0, 1);
    dec_pull(&dec, "b", 0, 1);
    for (int i = 0; i < 10; i++) {
        struct kvf_vllm_event event;

        assert_int_equal(kvf_vllm_worker_wait(dec.worker, &event, 1, 10 * KVFI_SECOND), 1);
        assert_true(event.kind == KVF_VLLM_EVENT_FAILED || event.kind == KVF_VLLM_EVENT_SETTLED);
    }
    dec_collect(&dec, "r0 r1 r2 a b", "", "0 1 2");
    assert_in_range(http_kit_requests(oracle.kit), 1, 3); /* the last ones may have come after the answer */
    dec_close(&dec);
    http_kit_close(oracle.kit);
}

/* One question per registry tells of all its engines. */
static void asks_once_per_registry(void **state)
{
    struct scene scene;
    struct prod other;

    (void)state;
    scene_open(&scene);
    prod_open(&other, 0);
    reg_add(&scene.reg, "q-engine", 1, 0, 0, other.address);
    for (int i = 0; i < 3; i++)
        receive(&scene.dec, &scene.prod, "a");
    scene.dec.engine_id = "q-engine";
    receive(&scene.dec, &other, "b");
    assert_int_equal(dec_stats(&scene.dec).queries, 1);
    assert_int_equal(dec_stats(&scene.dec).engines, 2);
    prod_close(&other);
    scene_close(&scene);
}

/* ---- gap 16.2: what cannot be is told at once ------------------------------------------------------------------- */

static void gap_16_2_missing_slots_fail_at_once(void **state)
{
    static const struct {
        const char *name;
        int slots[4][2]; /* tp, pp of those that are registered */
        int count;
        int own_tp;
        const char *text;
    } rows[] = {
        {"no TP rank 0", {{1, 0}}, 1, 1, "remote engine_id p-engine has no worker of TP rank 0"},
        {"a hole in the TP ranks", {{0, 0}, {2, 0}}, 2, 1, "remote engine_id p-engine has no worker of TP rank 1"},
        {"a missing stage", {{0, 0}, {0, 1}, {1, 0}}, 3, 1,
         "remote engine_id p-engine is not complete: of TP rank 1 1 PP ranks are registered"},
        {"not stage 0", {{0, 1}}, 1, 1, "remote engine_id p-engine is not complete: of TP rank 0"},
        {"TP sizes that do not divide", {{0, 0}, {1, 0}, {2, 0}}, 3, 2,
         "Remote tensor parallel size 3 is not divisible by local tensor parallel size 2."},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct prod prod;
        struct reg reg;
        struct dec dec;

        reg_open(&reg);
        prod_open(&prod, 0);
        for (int k = 0; k < rows[i].count; k++)
            reg_add(&reg, "p-engine", 0, rows[i].slots[k][0], rows[i].slots[k][1], prod.address);
        dec_init(&dec, &reg);
        dec.options.tp_size = rows[i].own_tp;
        dec_open(&dec);
        dec_pull(&dec, "a", 3, 1);
        expect_failure(&dec, "a", rows[i].own_tp == 1 ? KVF_ERR_INCOMPLETE : KVF_ERR_INCOMPATIBLE, rows[i].text);
        dec_collect(&dec, "a", "", "3");
        prod_no_ask(&prod);
        dec_close(&dec);
        prod_close(&prod);
        reg_close(&reg);
    }
}

/* Nobody listens at the address: nothing was asked, so the blocks are free at once. */
static void gap_16_2_unreachable_worker_fails_soon(void **state)
{
    struct scene scene;

    (void)state;
    scene_init(&scene);
    scene.dec.options.connector_timeout_ns = 300 * KVFI_MS;
    prod_close(&scene.prod);
    dec_open(&scene.dec);
    dec_pull(&scene.dec, "a", 3, 1);
    expect_failure(&scene.dec, "a", KVF_ERR_UNREACHABLE, "cannot be reached within 300 ms");
    dec_collect(&scene.dec, "a", "", "3");
    scene_close(&scene);
}

/* The host is up and nobody listens: that is known before the connector's time-out. */
static void gap_16_2_dead_worker_fails_before_the_timeout(void **state)
{
    struct scene scene;
    int64_t begun_ns;

    (void)state;
    scene_init(&scene);
    scene.dec.options.connector_timeout_ns = 30 * KVFI_SECOND;
    prod_close(&scene.prod);
    dec_open(&scene.dec);
    begun_ns = kvfi_now_ns();
    dec_pull(&scene.dec, "a", 3, 1);
    dec_pull(&scene.dec, "b", 4, 1);
    expect_failure(&scene.dec, "a", KVF_ERR_UNREACHABLE, "cannot be reached: nobody listens there");
    expect_failure(&scene.dec, "b", KVF_ERR_UNREACHABLE, "cannot be reached: nobody listens there");
    assert_true(kvfi_now_ns() - begun_ns < 15 * KVFI_SECOND);
    dec_collect(&scene.dec, "a b", "", "3 4");
    scene_close(&scene);
}

/* One that comes up late is asked all the same. */
static void waits_for_a_worker_that_comes_up(void **state)
{
    struct scene scene;
    int port;

    (void)state;
    scene_init(&scene);
    port = prod_port(&scene.prod);
    prod_close(&scene.prod);
    dec_open(&scene.dec);
    dec_pull(&scene.dec, "a", 3, 1);
    dec_no_event(&scene.dec);
    prod_open(&scene.prod, port);
    serve(&scene.dec, &scene.prod, "a");
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "a");
    dec_collect(&scene.dec, "a", "", "");
    scene_close(&scene);
}

/* ---- gap 16.7: what a registry said is not kept for good -------------------------------------------------------- */

/* The second of two TP ranks registers late: the first answer looks complete. */
static void gap_16_7_too_small_tp_size_is_not_kept(void **state)
{
    struct scene scene;
    struct prod second;

    (void)state;
    scene_init(&scene);
    scene.dec.options.topology_refresh_ns = 1;
    dec_open(&scene.dec);
    receive(&scene.dec, &scene.prod, "a");
    prod_open(&second, 0);
    reg_add(&scene.reg, "p-engine", 0, 1, 0, second.address);
    dec_pull(&scene.dec, "b", 0, 1);
    serve(&scene.dec, &scene.prod, "b");
    dec_collect(&scene.dec, "", "", "");
    serve(&scene.dec, &second, "b");
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "b");
    dec_collect(&scene.dec, "b", "", "");
    prod_close(&second);
    scene_close(&scene);
}

/* One that is seen to be incomplete is asked for again, whatever its age. */
static void gap_16_7_incomplete_engine_is_asked_again(void **state)
{
    struct scene scene;
    struct prod second;
    struct kvf_vllm_event event;

    (void)state;
    scene_init(&scene);
    scene.dec.options.topology_refresh_ns = 100 * KVFI_MS;
    dec_open(&scene.dec);
    prod_open(&second, 0);
    reg_add(&scene.reg, "p-engine", 0, 2, 0, second.address);
    dec_pull(&scene.dec, "a", 0, 1);
    expect_failure(&scene.dec, "a", KVF_ERR_INCOMPLETE, "has no worker of TP rank 1");
    reg_add(&scene.reg, "p-engine", 0, 1, 0, second.address);
    assert_int_equal(kvf_vllm_worker_wait(scene.dec.worker, &event, 1, 120 * KVFI_MS), 0);
    dec_pull(&scene.dec, "b", 0, 1);
    serve(&scene.dec, &scene.prod, "b");
    serve(&scene.dec, &second, "b");
    serve(&scene.dec, &second, "b");
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "b");
    dec_collect(&scene.dec, "a b", "", "0");
    prod_close(&second);
    scene_close(&scene);
}

/* Row "P restarts": the new engine is found at once; of the old one it is known that it is gone. */
static void gap_16_7_restarted_producer_is_found_at_once(void **state)
{
    char url[128];
    struct scene scene;
    int64_t begun_ns;

    (void)state;
    scene_open(&scene);
    receive(&scene.dec, &scene.prod, "a");
    snprintf(url, sizeof url, "%s", scene.reg.url);
    prod_close(&scene.prod);
    reg_close(&scene.reg);
    reg_open_at(&scene.reg, url);
    prod_open(&scene.prod, 0);
    reg_add(&scene.reg, "p-engine-2", 0, 0, 0, scene.prod.address);
    scene.dec.bootstrap = scene.reg.url;
    scene.dec.engine_id = "p-engine-2";
    receive(&scene.dec, &scene.prod, "b");
    begun_ns = kvfi_now_ns();
    dec_pull_from(&scene.dec, "p-engine", "c", 0, 1); /* the router has not heard of it yet */
    expect_failure(&scene.dec, "c", KVF_ERR_NOT_FOUND, "remote engine_id p-engine not found from bootstrap server");
    assert_true(kvfi_now_ns() - begun_ns < 5 * KVFI_SECOND);
    assert_int_equal(dec_stats(&scene.dec).engines, 1);
    scene_close(&scene);
}

/* A worker that did not answer is a reason to ask: it registered elsewhere meanwhile. */
static void gap_16_7_lost_worker_is_asked_for_again(void **state)
{
    char url[128];
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_init(&scene);
    scene.dec.options.topology_refresh_ns = 3600 * KVFI_SECOND;
    dec_open(&scene.dec);
    scene_ask(&scene, "a", 0, 1, &ask);
    ask_close(&ask);
    snprintf(url, sizeof url, "%s", scene.reg.url);
    prod_close(&scene.prod);
    reg_close(&scene.reg);
    reg_open_at(&scene.reg, url);
    prod_open(&scene.prod, 0);
    reg_add(&scene.reg, "p-engine", 0, 0, 0, scene.prod.address);
    scene.dec.bootstrap = scene.reg.url;
    expect_failure(&scene.dec, "a", KVF_ERR_PEER_LOST, "broke before it had answered");
    dec_collect(&scene.dec, "a", "", "0");
    receive(&scene.dec, &scene.prod, "b");
    scene_close(&scene);
}

/* A registry that was restarted has forgotten an engine that works: it is used on. */
static void keeps_an_engine_that_its_registry_forgot(void **state)
{
    char url[128];
    struct scene scene;

    (void)state;
    scene_init(&scene);
    scene.dec.options.topology_refresh_ns = 1;
    dec_open(&scene.dec);
    receive(&scene.dec, &scene.prod, "a");
    snprintf(url, sizeof url, "%s", scene.reg.url);
    reg_close(&scene.reg);
    scene.dec.bootstrap = url;
    receive(&scene.dec, &scene.prod, "b"); /* none there */
    reg_open_at(&scene.reg, url);
    receive(&scene.dec, &scene.prod, "c"); /* empty */
    scene_close(&scene);
}

/* One that stalls holds up nothing that could go on. */
static void goes_on_with_what_it_knows(void **state)
{
    char body[256];
    struct oracle oracle;
    struct prod prod;
    struct dec dec;

    (void)state;
    prod_open(&prod, 0);
    snprintf(body, sizeof body, "{\"0\":{\"engine_id\":\"p-engine\",\"worker_addr\":{\"0\":{\"0\":\"%s\"}}}}",
             prod.address);
    oracle_open(&oracle, body);
    dec_init(&dec, NULL);
    dec.bootstrap = http_kit_url(oracle.kit);
    dec.options.topology_refresh_ns = 1;
    dec_open(&dec);
    receive(&dec, &prod, "a");
    atomic_store(&oracle.stalls, true);
    receive(&dec, &prod, "b");
    receive(&dec, &prod, "c");
    dec_close(&dec);
    http_kit_close(oracle.kit);
    prod_close(&prod);
}

/* ---- addresses (gap 16.11: IPv6) -------------------------------------------------------------------------------- */

static void reaches_host_names(void **state)
{
    char address[128];
    struct scene scene;

    (void)state;
    scene_init(&scene);
    snprintf(address, sizeof address, "tcp://localhost:%d", prod_port(&scene.prod));
    reg_add(&scene.reg, "named", 1, 0, 0, address);
    dec_open(&scene.dec);
    scene.dec.engine_id = "named";
    receive(&scene.dec, &scene.prod, "a");
    receive(&scene.dec, &scene.prod, "b");
    scene_close(&scene);
}

static bool has_ipv6(void)
{
    struct kvf_mooncake_options options;
    kvf_mooncake *engine = NULL;
    bool has;

    kvf_mooncake_options_init(&options, sizeof options);
    options.host = "::1";
    has = kvf_mooncake_open(&options, &engine, NULL) == KVF_OK;
    kvf_mooncake_close(engine);
    return has;
}

static void gap_16_11_reaches_ipv6_with_and_without_brackets(void **state)
{
    char address[128];
    struct prod prod;
    struct reg reg;
    struct dec dec;

    (void)state;
    if (!has_ipv6())
        skip();
    reg_open(&reg);
    prod_open_ipv6(&prod);
    snprintf(address, sizeof address, "tcp://::1:%d", prod_port(&prod)); /* as upstream writes it */
    reg_add(&reg, "brackets", 0, 0, 0, prod.address);
    reg_add(&reg, "bare", 1, 0, 0, address);
    dec_init(&dec, &reg);
    dec_open(&dec);
    dec.engine_id = "brackets";
    receive(&dec, &prod, "a");
    dec.engine_id = "bare";
    receive(&dec, &prod, "b");
    dec_close(&dec);
    prod_close(&prod);
    reg_close(&reg);
}

static void refuses_addresses_that_are_none(void **state)
{
    static const struct {
        const char *address;
        enum kvf_status status;
        const char *text;
    } rows[] = {
        {"ipc:///tmp/x", KVF_ERR_NOT_FOUND, "remote engine_id odd not found"}, /* as if it had not registered */
        {"tcp://127.0.0.1", KVF_ERR_INVALID_ARGUMENT, "the address is not tcp://HOST:PORT"},
        {"tcp://127.0.0.1:", KVF_ERR_INVALID_ARGUMENT, "the address is not tcp://HOST:PORT"},
        {"tcp://127.0.0.1:http", KVF_ERR_INVALID_ARGUMENT, "the address is not tcp://HOST:PORT"},
        {"tcp://:1234", KVF_ERR_INVALID_ARGUMENT, "the address is not tcp://HOST:PORT"},
        {"tcp://127.0.0.1:99999", KVF_ERR_INVALID_ARGUMENT, "the address is not tcp://HOST:PORT"},
        {"tcp://no.such.host.invalid:1", KVF_ERR_UNREACHABLE, "transfer failed: tcp://no.such.host.invalid:1"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene scene;

        scene_init(&scene);
        reg_add(&scene.reg, "odd", 1, 0, 0, rows[i].address);
        dec_open(&scene.dec);
        scene.dec.engine_id = "odd";
        dec_pull(&scene.dec, "a", 3, 1);
        expect_failure(&scene.dec, "a", rows[i].status, rows[i].text);
        dec_collect(&scene.dec, "a", "", "3");
        scene_close(&scene);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fails_for_an_engine_that_nobody_knows),
        cmocka_unit_test(fails_where_no_registry_answers),
        cmocka_unit_test(asks_once_and_wakes_all),
        cmocka_unit_test(asks_once_per_registry),
        cmocka_unit_test(gap_16_2_missing_slots_fail_at_once),
        cmocka_unit_test(gap_16_2_unreachable_worker_fails_soon),
        cmocka_unit_test(gap_16_2_dead_worker_fails_before_the_timeout),
        cmocka_unit_test(waits_for_a_worker_that_comes_up),
        cmocka_unit_test(gap_16_7_too_small_tp_size_is_not_kept),
        cmocka_unit_test(gap_16_7_incomplete_engine_is_asked_again),
        cmocka_unit_test(gap_16_7_restarted_producer_is_found_at_once),
        cmocka_unit_test(gap_16_7_lost_worker_is_asked_for_again),
        cmocka_unit_test(keeps_an_engine_that_its_registry_forgot),
        cmocka_unit_test(goes_on_with_what_it_knows),
        cmocka_unit_test(reaches_host_names),
        cmocka_unit_test(gap_16_11_reaches_ipv6_with_and_without_brackets),
        cmocka_unit_test(refuses_addresses_that_are_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
