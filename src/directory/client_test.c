/* SPDX-License-Identifier: Apache-2.0 */
/* The client against a directory in this process: register, query, withdraw, renew, restarts, takeovers, failures. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <poll.h>

#include "directory/client.h"
#include "kvferry/directory.h"
#include "sys/clock.h"

#define WAIT_MS 10000
#define SHORT_LEASE_NS KVFI_SECOND

static kvf_holdings *make_holdings(int64_t units)
{
    static const int64_t layers[] = {0, 1, 2};
    const struct kvf_holding row = {.role = "k", .tag = "f16", .row_bytes = 128, .byte_count = 128, .unit_total = units,
                                    .unit_count = units, .stripes = 1, .layers = layers, .layer_count = 3};
    kvf_holdings *holdings = NULL;
    struct kvf_error error;

    if (kvf_holdings_create(&row, 1, &holdings, &error) != KVF_OK) fail_msg("%s", error.text);
    return holdings;
}

static kvf_directory *open_directory(const char *listen, int64_t lease_ns)
{
    struct kvf_directory_options options;
    kvf_directory *directory = NULL;
    struct kvf_error error;

    kvf_directory_options_init(&options, sizeof options);
    options.listen = listen;
    options.lease_ns = lease_ns;
    if (kvf_directory_open(&options, &directory, &error) != KVF_OK) fail_msg("%s", error.text);
    return directory;
}

static struct kvfi_directory_client *open_client(const char *url)
{
    struct kvfi_directory_client_options options = {.url = url};
    struct kvfi_directory_client *client = NULL;
    struct kvf_error error;

    if (kvfi_directory_client_open(&options, &client, &error) != KVF_OK) fail_msg("%s", error.text);
    return client;
}

static struct kvfi_directory_result next_result(struct kvfi_directory_client *client)
{
    struct pollfd ready = {.fd = kvfi_directory_client_fd(client), .events = POLLIN};
    struct kvfi_directory_result result;

    assert_int_equal(poll(&ready, 1, WAIT_MS), 1);
    assert_true(kvfi_directory_client_take(client, &result));
    return result;
}

static struct kvfi_directory_result register_rank(struct kvfi_directory_client *client, const char *instance,
                                                  int64_t tp, uint64_t incarnation, int64_t expected)
{
    kvf_holdings *holdings = make_holdings(3);
    struct kvfi_registration registration = {
        .instance = instance, .incarnation = incarnation, .rank = {.tp = tp, .salt = 5}, .ranks_expected = expected,
        .channel = "tcp://127.0.0.1:4000", .model = "m \"1\"", .holdings = holdings};
    struct kvf_error error;

    if (kvfi_directory_client_register(client, &registration, 7, WAIT_MS * KVFI_MS, &error) != KVF_OK)
        fail_msg("%s", error.text);
    kvf_holdings_release(holdings);
    return next_result(client);
}

static struct kvfi_directory_result query(struct kvfi_directory_client *client, const char *instance)
{
    struct kvf_error error;

    assert_int_equal(kvfi_directory_client_query(client, instance, 9, WAIT_MS * KVFI_MS, &error), KVF_OK);
    return next_result(client);
}

static void registers_and_queries(void **state)
{
    kvf_directory *directory = open_directory("127.0.0.1:0", 10 * KVFI_SECOND);
    struct kvfi_directory_client *one = open_client(kvf_directory_url(directory));
    struct kvfi_directory_client *two = open_client(kvf_directory_url(directory));
    struct kvfi_directory_result result = register_rank(one, "p /&?\"ü", 1, 0xfedcba9876543210u, 2);
    int64_t epoch = result.epoch;
    size_t rows;

    (void)state;
    assert_int_equal(result.kind, KVFI_DIRECTORY_REGISTERED);
    assert_int_equal(result.status, KVF_OK);
    assert_int_equal(result.cookie, 7);
    result = query(two, "p /&?\"ü");
    assert_int_equal(result.status, KVF_OK);
    assert_false(result.instance->complete);
    kvfi_directory_result_fini(&result);
    result = register_rank(two, "p /&?\"ü", 0, 0xab, 2);
    assert_true(result.epoch > epoch);
    epoch = result.epoch;
    result = query(one, "p /&?\"ü");
    assert_string_equal(result.instance->instance, "p /&?\"ü");
    assert_string_equal(result.instance->model, "m \"1\"");
    assert_true(result.instance->complete);
    assert_int_equal(result.instance->epoch, epoch);
    assert_int_equal(result.instance->rank_count, 2);
    assert_int_equal(result.instance->ranks[0].incarnation, 0xab);
    assert_int_equal(result.instance->ranks[1].incarnation, 0xfedcba9876543210u);
    assert_int_equal(result.instance->ranks[1].rank.tp, 1);
    assert_int_equal(result.instance->ranks[1].rank.salt, 5);
    assert_string_equal(result.instance->ranks[1].channel, "tcp://127.0.0.1:4000");
    assert_int_equal(kvf_holdings_rows(result.instance->ranks[1].holdings, &rows)->unit_total, 3);
    assert_int_equal(rows, 1);
    kvfi_directory_result_fini(&result);
    kvfi_directory_client_close(one);
    kvfi_directory_client_close(two);
    kvf_directory_close(directory);
}

static void withdraws(void **state)
{
    kvf_directory *directory = open_directory("127.0.0.1:0", 10 * KVFI_SECOND);
    struct kvfi_directory_client *client = open_client(kvf_directory_url(directory));
    struct kvfi_directory_result result;
    struct kvf_error error;

    (void)state;
    assert_int_equal(kvfi_directory_client_withdraw(client, 3, WAIT_MS * KVFI_MS, &error), KVF_OK);
    assert_int_equal(next_result(client).status, KVF_OK);
    register_rank(client, "p", 0, 1, 1);
    assert_int_equal(kvfi_directory_client_withdraw(client, 4, WAIT_MS * KVFI_MS, &error), KVF_OK);
    result = next_result(client);
    assert_int_equal(result.kind, KVFI_DIRECTORY_WITHDRAWN);
    assert_int_equal(result.status, KVF_OK);
    assert_int_equal(result.cookie, 4);
    result = query(client, "p");
    assert_int_equal(result.status, KVF_ERR_NOT_FOUND);
    assert_non_null(strstr(result.text, "/v1/query?instance=p: answered 404: instance \"p\" is not registered"));
    kvfi_directory_client_close(client);
    kvf_directory_close(directory);
}

/** Asks again until the instance has so many ranks, for at most ten seconds. */
static bool comes_to(struct kvfi_directory_client *client, int64_t ranks)
{
    int64_t end_ns = kvfi_now_ns() + 10 * KVFI_SECOND;
    bool reached = false;

    while (!reached && kvfi_now_ns() < end_ns) {
        struct kvfi_directory_result result = query(client, "p");

        reached = ranks == (result.status == KVF_OK ? result.instance->registered : 0);
        kvfi_directory_result_fini(&result);
    }
    return reached;
}

static void renews_until_closed(void **state)
{
    kvf_directory *directory = open_directory("127.0.0.1:0", SHORT_LEASE_NS);
    struct kvfi_directory_client *worker = open_client(kvf_directory_url(directory));
    struct kvfi_directory_client *asker = open_client(kvf_directory_url(directory));
    int64_t end_ns;

    (void)state;
    register_rank(worker, "p", 0, 1, 1);
    end_ns = kvfi_now_ns() + 2 * SHORT_LEASE_NS;
    while (kvfi_now_ns() < end_ns) {
        struct kvfi_directory_result result = query(asker, "p");

        assert_int_equal(result.status, KVF_OK);
        kvfi_directory_result_fini(&result);
    }
    kvfi_directory_client_close(worker);
    assert_true(comes_to(asker, 0));
    kvfi_directory_client_close(asker);
    kvf_directory_close(directory);
}

static void survives_a_restart_of_the_directory(void **state)
{
    kvf_directory *directory = open_directory("127.0.0.1:0", SHORT_LEASE_NS);
    char url[128];
    struct kvfi_directory_client *worker, *asker;
    struct kvfi_directory_result before, after;

    (void)state;
    snprintf(url, sizeof url, "%s", kvf_directory_url(directory));
    worker = open_client(url);
    asker = open_client(url);
    before = register_rank(worker, "p", 0, 1, 1);
    kvf_directory_close(directory);
    directory = open_directory(url + strlen("http://"), SHORT_LEASE_NS);
    assert_true(comes_to(asker, 1));
    after = query(asker, "p");
    assert_true(after.instance->epoch > before.epoch);
    kvfi_directory_result_fini(&after);
    kvfi_directory_client_close(worker);
    kvfi_directory_client_close(asker);
    kvf_directory_close(directory);
}

static void tells_of_a_takeover(void **state)
{
    kvf_directory *directory = open_directory("127.0.0.1:0", SHORT_LEASE_NS);
    struct kvfi_directory_client *old = open_client(kvf_directory_url(directory));
    struct kvfi_directory_client *young = open_client(kvf_directory_url(directory));
    struct kvfi_directory_result result;

    (void)state;
    register_rank(old, "p", 0, 1, 1);
    assert_int_equal(register_rank(young, "p", 0, 2, 1).status, KVF_OK);
    result = next_result(old);
    assert_int_equal(result.kind, KVFI_DIRECTORY_LOST);
    assert_int_equal(result.status, KVF_ERR_STALE);
    assert_int_equal(result.cookie, 7);
    assert_non_null(strstr(result.text, "is held by incarnation 0000000000000002, not 0000000000000001"));
    kvfi_directory_client_close(old);
    kvfi_directory_client_close(young);
    kvf_directory_close(directory);
}

static void says_why_it_is_refused(void **state)
{
    kvf_directory *directory = open_directory("127.0.0.1:0", 10 * KVFI_SECOND);
    struct kvfi_directory_client *client = open_client(kvf_directory_url(directory));
    struct kvfi_directory_result result;

    (void)state;
    register_rank(client, "p", 0, 1, 2);
    result = register_rank(client, "p", 1, 1, 3);
    assert_int_equal(result.status, KVF_ERR_DIRECTORY);
    assert_non_null(strstr(result.text, "answered 409: instance \"p\" has 2 ranks, pp0.cp0.tp1 expects 3"));
    kvfi_directory_client_close(client);
    kvf_directory_close(directory);
}

static void gives_up_at_the_deadline(void **state)
{
    kvf_directory *directory = open_directory("127.0.0.1:0", 10 * KVFI_SECOND);
    struct kvfi_directory_client *client;
    struct kvfi_directory_result result;
    struct kvf_error error;
    char url[128], wanted[256];
    int64_t begin_ns;

    (void)state;
    snprintf(url, sizeof url, "%s", kvf_directory_url(directory));
    kvf_directory_close(directory);
    client = open_client(url);
    begin_ns = kvfi_now_ns();
    assert_int_equal(kvfi_directory_client_query(client, "p", 1, 300 * KVFI_MS, &error), KVF_OK);
    result = next_result(client);
    assert_int_equal(result.status, KVF_ERR_DIRECTORY);
    snprintf(wanted, sizeof wanted, "%s/v1/query?instance=p: no answer: ", url);
    assert_memory_equal(result.text, wanted, strlen(wanted));
    assert_non_null(strstr(result.text, "times)"));
    assert_in_range(kvfi_now_ns() - begin_ns, 200 * KVFI_MS, 5 * KVFI_SECOND);
    kvfi_directory_client_close(client);
}

static void refuses_bad_arguments(void **state)
{
    static const struct {
        const char *url, *text;
    } rows[] = {
        {NULL, "directory URL \"\" is not http://HOST:PORT"},
        {"https://127.0.0.1:1", "directory URL \"https://127.0.0.1:1\" is not http://HOST:PORT"},
        {"http://127.0.0.1:1/v1", "directory URL \"http://127.0.0.1:1/v1\" is not http://HOST:PORT"},
        {"http://", "directory URL \"http://\" is not http://HOST:PORT"},
    };
    struct kvfi_directory_client_options options = {0};
    struct kvfi_directory_client *client = NULL;
    struct kvf_error error;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        options.url = rows[i].url;
        assert_int_equal(kvfi_directory_client_open(&options, &client, &error), KVF_ERR_INVALID_ARGUMENT);
        assert_string_equal(error.text, rows[i].text);
    }
    client = open_client("http://127.0.0.1:1");
    assert_int_equal(kvfi_directory_client_query(client, "", 1, KVFI_SECOND, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "instance name has 0 bytes, expected 1 to 127");
    kvfi_directory_client_close(client);
    kvfi_directory_client_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(registers_and_queries), cmocka_unit_test(withdraws), cmocka_unit_test(renews_until_closed),
        cmocka_unit_test(survives_a_restart_of_the_directory), cmocka_unit_test(tells_of_a_takeover),
        cmocka_unit_test(says_why_it_is_refused), cmocka_unit_test(gives_up_at_the_deadline),
        cmocka_unit_test(refuses_bad_arguments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
