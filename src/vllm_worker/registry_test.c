/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's registration and queries: attempts, pauses, waiting together, forgetting, and registries that are slow,
 * refuse, or say something else. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "directory/http_kit.h"
#include "kvferry/directory.h"
#include "sys/clock.h"
#include "vllm_worker/registry.h"

#define WAIT_NS (20 * KVFI_SECOND)
#define MOST_TOLD 16

/** A loop turned by the test, and what the callbacks told. */
struct bench {
    struct kvfi_loop loop;
    struct kvfi_vllm_registry *registry;
    int told;
    enum kvf_status status[MOST_TOLD];
    const struct kvfi_vllm_engine *engines[MOST_TOLD]; /* the first of each answer */
    char text[KVF_ERROR_TEXT_BYTES];
    size_t engine_count;
};

static void open_bench(struct bench *bench, int32_t attempts, int64_t timeout_ns)
{
    const struct kvfi_vllm_registry_options options = {
        .register_attempts = attempts, .connector_timeout_ns = timeout_ns, .first_pause_ns = 10 * KVFI_MS};
    struct kvf_error error;

    memset(bench, 0, sizeof *bench);
    if (kvfi_loop_init(&bench->loop, bench, NULL, &error) != KVF_OK ||
        kvfi_vllm_registry_create(&bench->loop, &options, &bench->registry, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static void close_bench(struct bench *bench)
{
    kvfi_vllm_registry_destroy(bench->registry);
    kvfi_loop_fini(&bench->loop);
    for (int i = 0; i < bench->told; i++) kvfi_vllm_engine_release(bench->engines[i]);
}

static void on_registered(void *context, enum kvf_status status, const char *text)
{
    struct bench *bench = context;

    assert_true(bench->told < MOST_TOLD);
    bench->status[bench->told++] = status;
    snprintf(bench->text, sizeof bench->text, "%s", text);
}

static void on_answered(void *context, enum kvf_status status, const struct kvfi_vllm_topology *topology,
                        const char *text)
{
    struct bench *bench = context;

    assert_true(bench->told < MOST_TOLD);
    assert_int_equal(status == KVF_OK, topology != NULL);
    if (topology && topology->engine_count)
        bench->engines[bench->told] = kvfi_vllm_engine_acquire(topology->engines[0]);
    bench->engine_count = topology ? topology->engine_count : 0;
    bench->status[bench->told++] = status;
    snprintf(bench->text, sizeof bench->text, "%s", text);
}

static void await(struct bench *bench, int told)
{
    int64_t deadline_ns = kvfi_now_ns() + WAIT_NS;

    while (bench->told < told && kvfi_now_ns() < deadline_ns) kvfi_loop_turn(&bench->loop, 100 * KVFI_MS);
    assert_int_equal(bench->told, told);
}

static void turn_for(struct bench *bench, int64_t ns)
{
    int64_t end_ns = kvfi_now_ns() + ns;

    while (kvfi_now_ns() < end_ns) kvfi_loop_turn(&bench->loop, 10 * KVFI_MS);
}

static void ask_register(struct bench *bench, const char *url, const char *engine_id, int64_t tp, int64_t pp,
                         const char *address)
{
    const struct kvfi_vllm_claim claim = {.engine_id = engine_id, .tp_rank = tp, .pp_rank = pp, .address = address};
    struct kvf_error error;

    if (kvfi_vllm_registry_register(bench->registry, url, &claim, on_registered, bench, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static void ask_query(struct bench *bench, const char *url)
{
    struct kvf_error error;

    if (kvfi_vllm_registry_query(bench->registry, url, on_answered, bench, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static kvf_directory *open_directory(void)
{
    struct kvf_directory_options options;
    kvf_directory *directory = NULL;
    struct kvf_error error;

    kvf_directory_options_init(&options, sizeof options);
    options.flags = KVF_DIRECTORY_VLLM_BOOTSTRAP;
    if (kvf_directory_open(&options, &directory, &error) != KVF_OK) fail_msg("%s", error.text);
    return directory;
}

/* ---- the seed's tests ---- */

static void bootstrap_server(void **state)
{
    kvf_directory *directory = open_directory();
    const char *url = kvf_directory_url(directory);
    const struct kvfi_vllm_engine_worker *first;
    const struct kvfi_vllm_engine *engine;
    struct bench bench;

    (void)state;
    open_bench(&bench, 3, WAIT_NS);
    ask_query(&bench, url);
    await(&bench, 1);
    assert_int_equal(bench.status[0], KVF_OK);
    assert_int_equal(bench.engine_count, 0);
    ask_register(&bench, url, "eng-1", 0, 0, "tcp://1.1.1.1:1111");
    await(&bench, 2);
    assert_int_equal(bench.status[1], KVF_OK);
    assert_string_equal(bench.text, "");
    ask_register(&bench, url, "eng-1", 0, 1, "tcp://2.2.2.2:2222");
    await(&bench, 3);
    ask_query(&bench, url);
    await(&bench, 4);
    engine = bench.engines[3];
    assert_non_null(engine);
    assert_string_equal(engine->engine_id, "eng-1");
    assert_int_equal(engine->tp_size, 1);
    assert_int_equal(engine->pp_size, 2);
    assert_true(engine->is_complete);
    assert_string_equal(kvfi_vllm_engine_address(engine, 0, 0), "tcp://1.1.1.1:1111");
    assert_string_equal(kvfi_vllm_engine_address(engine, 0, 1), "tcp://2.2.2.2:2222");
    assert_null(kvfi_vllm_engine_address(engine, 1, 0));
    assert_int_equal(kvfi_vllm_engine_of_tp(engine, 0, &first), 2);
    assert_int_equal(first[1].pp_rank, 1);
    ask_register(&bench, url, "eng-1", 0, 0, "tcp://1.1.1.1:1111");
    await(&bench, 5);
    assert_int_equal(bench.status[4], KVF_OK);
    ask_register(&bench, url, "eng-1", 0, 0, "tcp://9.9.9.9:9999");
    await(&bench, 6);
    assert_int_equal(bench.status[5], KVF_ERR_REFUSED);
    assert_non_null(strstr(bench.text, "answered 400"));
    assert_non_null(strstr(bench.text, "is already registered"));
    ask_register(&bench, url, "eng-2", 1, 0, "tcp://3.3.3.3:3333");
    await(&bench, 7);
    assert_int_equal(bench.status[6], KVF_ERR_REFUSED);
    assert_non_null(strstr(bench.text, "Engine ID mismatch"));
    assert_int_equal(kvfi_vllm_registry_registrations(bench.registry), 5);
    assert_int_equal(kvfi_vllm_registry_queries(bench.registry), 2);
    close_bench(&bench);
    kvf_directory_close(directory);
}

/** Records the first registration, but answers too late. */
static void relay_slowly(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    size_t answer_bytes;
    char *answer = http_kit_relay(context, request, bytes, &answer_bytes);

    if (number == 1) http_kit_stall(kit, 1500);
    http_kit_send(fd, answer, answer_bytes);
    free(answer);
}

static void register_worker_recovers_from_slow_bootstrap_server(void **state)
{
    kvf_directory *directory = open_directory();
    char url[64];
    struct http_kit *kit;
    struct bench bench;

    (void)state;
    snprintf(url, sizeof url, "%s", kvf_directory_url(directory));
    kit = http_kit_open(relay_slowly, url);
    open_bench(&bench, 5, KVFI_SECOND / 2);
    ask_register(&bench, http_kit_url(kit), "eng-1", 0, 0, "tcp://1.1.1.1:1111");
    await(&bench, 1);
    assert_int_equal(bench.status[0], KVF_OK);
    assert_int_equal(http_kit_requests(kit), 2);
    ask_query(&bench, url);
    await(&bench, 2);
    assert_string_equal(bench.engines[1]->engine_id, "eng-1");
    assert_int_equal(bench.engines[1]->dp_rank, 0);
    close_bench(&bench);
    http_kit_close(kit);
    kvf_directory_close(directory);
}

/** Is silent to the first `*context` requests. */
static void stall_at_first(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    (void)bytes;
    if (number <= *(const int *)context) http_kit_stall(kit, (int)(WAIT_NS / KVFI_MS));
    else http_kit_answer(fd, 200, strstr(request, "GET /query ") ? "{}" : "{\"status\":\"ok\"}");
}

static void register_worker_retries_on_read_timeout(void **state)
{
    int stalls = 2;
    struct http_kit *kit = http_kit_open(stall_at_first, &stalls);
    struct bench bench;

    (void)state;
    open_bench(&bench, 5, 100 * KVFI_MS);
    ask_register(&bench, http_kit_url(kit), "eng-1", 0, 0, "tcp://1.1.1.1:1111");
    await(&bench, 1);
    assert_int_equal(bench.status[0], KVF_OK);
    assert_int_equal(http_kit_requests(kit), 3);
    assert_int_equal(kvfi_vllm_registry_registrations(bench.registry), 1);
    close_bench(&bench);
    http_kit_close(kit);
}

static void register_worker_raises_after_max_attempts(void **state)
{
    int stalls = 1000;
    struct http_kit *kit = http_kit_open(stall_at_first, &stalls);
    char expected[400];
    struct bench bench;

    (void)state;
    open_bench(&bench, 3, 100 * KVFI_MS);
    ask_register(&bench, http_kit_url(kit), "eng-1", 1, 2, "tcp://1.1.1.1:1111");
    await(&bench, 1);
    assert_int_equal(bench.status[0], KVF_ERR_UNREACHABLE);
    snprintf(expected, sizeof expected,
             "Failed to register engine_id='eng-1' dp_rank=0 tp_rank=1 pp_rank=2 addr='tcp://1.1.1.1:1111' with the "
             "Mooncake bootstrap server at %s/register after 3 attempts.", http_kit_url(kit));
    assert_string_equal(bench.text, expected);
    assert_int_equal(http_kit_requests(kit), 3);
    close_bench(&bench);
    http_kit_close(kit);
}

static void fail_terminally(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    (void)kit;
    (void)context;
    (void)number;
    (void)request;
    (void)bytes;
    http_kit_answer(fd, 500, "simulated terminal registration failure");
}

/** The registry's share: the failure is told at once, and with its words. */
static void sender_listener_failure_propagates_to_caller(void **state)
{
    struct http_kit *kit = http_kit_open(fail_terminally, NULL);
    struct bench bench;

    (void)state;
    open_bench(&bench, 3, WAIT_NS);
    ask_register(&bench, http_kit_url(kit), "eng-1", 0, 0, "tcp://1.1.1.1:1111");
    await(&bench, 1);
    assert_int_equal(bench.status[0], KVF_ERR_REFUSED);
    assert_non_null(strstr(bench.text, "simulated terminal registration failure"));
    assert_int_equal(http_kit_requests(kit), 1);
    close_bench(&bench);
    http_kit_close(kit);
}

/* ---- attempts ---- */

static void nobody_listens(void **state)
{
    struct http_kit *kit = http_kit_open(fail_terminally, NULL);
    char url[64];
    struct bench bench;
    int64_t started_ns;

    (void)state;
    snprintf(url, sizeof url, "%s", http_kit_url(kit));
    http_kit_close(kit);
    open_bench(&bench, 4, KVFI_SECOND);
    started_ns = kvfi_now_ns();
    ask_register(&bench, url, "eng-1", 0, 0, "tcp://1.1.1.1:1111");
    await(&bench, 1);
    assert_int_equal(bench.status[0], KVF_ERR_UNREACHABLE);
    assert_non_null(strstr(bench.text, "after 4 attempts."));
    assert_true(kvfi_now_ns() - started_ns >= (10 + 20 + 40) * KVFI_MS); /* no pause after the last */
    started_ns = kvfi_now_ns();
    ask_query(&bench, url);
    await(&bench, 2);
    assert_int_equal(bench.status[1], KVF_ERR_UNREACHABLE);
    assert_true(kvfi_now_ns() - started_ns >= 200 * KVFI_MS);
    assert_non_null(strstr(bench.text, "Failed to connect to bootstrap server http://127.0.0.1:"));
    assert_int_equal(kvfi_vllm_registry_queries(bench.registry), 0);
    close_bench(&bench);
}

static void serve_script(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    const char *const *script = context; /* a body with "code " before it; "" = hang up */
    const char *line = script[number - 1];

    (void)kit;
    (void)request;
    (void)bytes;
    if (line[0]) http_kit_answer(fd, (int)strtol(line, NULL, 10), strchr(line, ' ') + 1);
}

static void ends_with_the_right_status(void **state)
{
    static const struct {
        const char *name;
        bool is_query;
        const char *script[4];
        int requests;
        enum kvf_status status;
        const char *text;
    } rows[] = {
        {"a registration that is cut off is made again", false, {"", "200 {\"status\":\"ok\"}"}, 2, KVF_OK, ""},
        {"any word with 200 will do", false, {"200 fine"}, 1, KVF_OK, ""},
        {"an HTTP error is final", false, {"503 {\"detail\":\"registry is full\"}"}, 1, KVF_ERR_REFUSED,
         "answered 503: {\"detail\":\"registry is full\"}"},
        {"so is a redirect", false, {"307 "}, 1, KVF_ERR_REFUSED, "answered 307"},
        {"a query that is cut off is made again, three times in all", true, {"", "", ""}, 3, KVF_ERR_UNREACHABLE,
         "Failed to connect to bootstrap server"},
        {"the third may come through", true, {"", "", "200 {}"}, 3, KVF_OK, ""},
        {"an error to a query is final", true, {"404 {\"detail\":\"Not Found\"}"}, 1, KVF_ERR_REFUSED,
         "answered 404: {\"detail\":\"Not Found\"}"},
        {"an answer that is no JSON", true, {"200 <html>"}, 1, KVF_ERR_PROTOCOL, "registry's answer"},
        {"an answer that is a list", true, {"200 []"}, 1, KVF_ERR_PROTOCOL, "not an object of DP ranks"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct http_kit *kit = http_kit_open(serve_script, (void *)rows[i].script);
        struct bench bench;

        open_bench(&bench, 3, WAIT_NS);
        if (rows[i].is_query) ask_query(&bench, http_kit_url(kit));
        else ask_register(&bench, http_kit_url(kit), "eng-1", 0, 0, "tcp://1.1.1.1:1111");
        await(&bench, 1);
        if (bench.status[0] != rows[i].status || !strstr(bench.text, rows[i].text) ||
            http_kit_requests(kit) != rows[i].requests)
            fail_msg("%s: %s after %d requests: %s", rows[i].name, kvf_status_name(bench.status[0]),
                     http_kit_requests(kit), bench.text);
        close_bench(&bench);
        http_kit_close(kit);
    }
}

/* ---- waiting together, forgetting ---- */

static void answer_late(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    (void)context;
    (void)number;
    (void)request;
    (void)bytes;
    http_kit_stall(kit, 200);
    http_kit_answer(fd, 200, "{\"0\":{\"engine_id\":\"e\",\"worker_addr\":{\"0\":{\"0\":\"tcp://h:1\"}}}}");
}

static void queries_to_one_address_share_an_answer(void **state)
{
    struct http_kit *kit = http_kit_open(answer_late, NULL);
    char slashed[80];
    struct bench bench;

    (void)state;
    open_bench(&bench, 3, WAIT_NS);
    snprintf(slashed, sizeof slashed, "%s/", http_kit_url(kit));
    for (int i = 0; i < 4; i++) ask_query(&bench, i % 2 ? slashed : http_kit_url(kit));
    await(&bench, 4);
    assert_int_equal(http_kit_requests(kit), 1);
    for (int i = 0; i < 4; i++) assert_ptr_equal(bench.engines[i], bench.engines[0]);
    ask_query(&bench, slashed);
    await(&bench, 5);
    assert_int_equal(http_kit_requests(kit), 2);
    close_bench(&bench);
    http_kit_close(kit);
}

static void what_is_forgotten_is_not_told(void **state)
{
    int stalls = 1000;
    struct http_kit *late = http_kit_open(answer_late, NULL), *silent = http_kit_open(stall_at_first, &stalls);
    struct bench bench, other;
    struct kvf_error error;

    (void)state;
    open_bench(&bench, 1000, 20 * KVFI_MS);
    memset(&other, 0, sizeof other);
    ask_query(&bench, http_kit_url(silent));
    ask_register(&bench, http_kit_url(silent), "eng-1", 0, 0, "tcp://1.1.1.1:1111");
    turn_for(&bench, 50 * KVFI_MS);
    kvfi_vllm_registry_forget(bench.registry, &bench);
    turn_for(&bench, 100 * KVFI_MS);
    assert_int_equal(bench.told, 0);
    close_bench(&bench);
    open_bench(&bench, 3, WAIT_NS);
    ask_query(&bench, http_kit_url(late));
    assert_int_equal(kvfi_vllm_registry_query(bench.registry, http_kit_url(late), on_answered, &other, &error), KVF_OK);
    kvfi_vllm_registry_forget(bench.registry, &other);
    await(&bench, 1);
    assert_int_equal(other.told, 0);
    close_bench(&bench);
    http_kit_close(late);
    http_kit_close(silent);
}

/** Forgets the next one and asks anew from within a callback. */
struct nested {
    struct bench *bench;
    struct nested *next;
    const char *url;
    int told;
};

static void on_nested(void *context, enum kvf_status status, const struct kvfi_vllm_topology *topology,
                      const char *text)
{
    struct nested *nested = context;

    (void)topology;
    (void)text;
    assert_int_equal(status, KVF_OK);
    nested->told++;
    if (!nested->next) return;
    kvfi_vllm_registry_forget(nested->bench->registry, nested->next);
    ask_query(nested->bench, nested->url);
    nested->next = NULL;
}

static void callbacks_may_ask_and_forget(void **state)
{
    struct http_kit *kit = http_kit_open(answer_late, NULL);
    struct bench bench;
    struct nested second = {.bench = &bench}, first = {.bench = &bench, .next = &second, .url = http_kit_url(kit)};

    (void)state;
    open_bench(&bench, 3, WAIT_NS);
    assert_int_equal(kvfi_vllm_registry_query(bench.registry, first.url, on_nested, &first, NULL), KVF_OK);
    assert_int_equal(kvfi_vllm_registry_query(bench.registry, first.url, on_nested, &second, NULL), KVF_OK);
    await(&bench, 1);
    assert_int_equal(first.told, 1);
    assert_int_equal(second.told, 0);
    assert_int_equal(http_kit_requests(kit), 2);
    close_bench(&bench);
    http_kit_close(kit);
}

static void destroying_ends_what_is_under_way(void **state)
{
    int stalls = 1000;
    struct http_kit *kit = http_kit_open(stall_at_first, &stalls);
    struct bench bench;

    (void)state;
    open_bench(&bench, 3, 50 * KVFI_MS);
    ask_query(&bench, http_kit_url(kit));
    ask_register(&bench, http_kit_url(kit), "eng-1", 0, 0, "tcp://1.1.1.1:1111");
    turn_for(&bench, 75 * KVFI_MS);
    ask_query(&bench, "http://127.0.0.1:1");
    close_bench(&bench);
    assert_int_equal(bench.told, 0);
    http_kit_close(kit);
}

/* ---- arguments, deadlines ---- */

static void refuses_what_cannot_be_registered(void **state)
{
    char longest[520];
    const struct {
        const char *url;
        struct kvfi_vllm_claim claim;
        const char *text;
    } rows[] = {
        {"127.0.0.1:8998", {.engine_id = "e", .address = "tcp://h:1"}, "is not http://HOST:PORT"},
        {NULL, {.engine_id = "e", .address = "tcp://h:1"}, "is not http://HOST:PORT"},
        {"http://h:1", {.engine_id = "", .address = "tcp://h:1"}, "engine_id has 0 bytes"},
        {"http://h:1", {.engine_id = longest, .address = "tcp://h:1"}, "engine_id has 519 bytes"},
        {"http://h:1", {.engine_id = "a\nb", .address = "tcp://h:1"}, "control characters"},
        {"http://h:1", {.engine_id = "e", .address = NULL}, "address has 0 bytes"},
        {"http://h:1", {.engine_id = "e", .address = longest}, "address has 519 bytes"},
    };
    struct bench bench;
    struct kvf_error error;

    (void)state;
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    open_bench(&bench, 3, WAIT_NS);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(kvfi_vllm_registry_register(bench.registry, rows[i].url, &rows[i].claim, on_registered,
                                                     &bench, &error), KVF_ERR_INVALID_ARGUMENT);
        if (!strstr(error.text, rows[i].text)) fail_msg("row %zu: %s", i, error.text);
    }
    assert_int_equal(kvfi_vllm_registry_query(bench.registry, "tcp://h:1", on_answered, &bench, &error),
                     KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvfi_vllm_registry_query(bench.registry, NULL, on_answered, &bench, &error),
                     KVF_ERR_INVALID_ARGUMENT);
    close_bench(&bench);
}

static void tells_the_deadline_of_a_start(void **state)
{
    (void)state;
    assert_int_equal(kvfi_vllm_start_deadline_ns(3, 30 * KVFI_SECOND), 393 * KVFI_SECOND);
    assert_int_equal(kvfi_vllm_start_deadline_ns(1, KVFI_SECOND), 34 * KVFI_SECOND);
    assert_int_equal(kvfi_vllm_start_deadline_ns(6, KVFI_SECOND / 2), (12 + 1 + 2 + 4 + 8 + 10 + 30) * KVFI_SECOND);
    assert_int_equal(kvfi_vllm_start_deadline_ns(1000, INT64_MAX / 8), INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bootstrap_server),
        cmocka_unit_test(register_worker_recovers_from_slow_bootstrap_server),
        cmocka_unit_test(register_worker_retries_on_read_timeout),
        cmocka_unit_test(register_worker_raises_after_max_attempts),
        cmocka_unit_test(sender_listener_failure_propagates_to_caller),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(ends_with_the_right_status),
        cmocka_unit_test(queries_to_one_address_share_an_answer),
        cmocka_unit_test(what_is_forgotten_is_not_told),
        cmocka_unit_test(callbacks_may_ask_and_forget),
        cmocka_unit_test(destroying_ends_what_is_under_way),
        cmocka_unit_test(refuses_what_cannot_be_registered),
        cmocka_unit_test(tells_the_deadline_of_a_start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
