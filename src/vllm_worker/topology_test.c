/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a registry: what is read, what is left out, what is refused, and when an engine is complete. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/no_memory_kit.h"
#include "vllm_worker/registry_read.h"

/** What an answer came to, in a line: engines by id, tp x pp sizes, "!" when not complete, addresses by rank. */
static void describe(const struct kvfi_vllm_topology_own *topology, char *out, size_t capacity)
{
    size_t at = 0;

    out[0] = '\0';
    for (size_t i = 0; i < topology->engine_count; i++) {
        const struct kvfi_vllm_engine *engine = topology->engines[i];

        at += (size_t)snprintf(out + at, capacity - at, "%s%s dp%d %dx%d%s", i ? "; " : "", engine->engine_id,
                               (int)engine->dp_rank, (int)engine->tp_size, (int)engine->pp_size,
                               engine->is_complete ? "" : "!");
        for (size_t w = 0; w < engine->worker_count; w++)
            at += (size_t)snprintf(out + at, capacity - at, " %d.%d=%s", (int)engine->workers[w].tp_rank,
                                   (int)engine->workers[w].pp_rank, engine->workers[w].address + 6);
    }
    if (topology->left_out) snprintf(out + at, capacity - at, " (%zu left out)", topology->left_out);
}

#define ENGINE(id, workers) "{\"engine_id\":\"" id "\",\"worker_addr\":{" workers "}}"

static void reads_answers(void **state)
{
    static const struct {
        const char *name, *text, *expected;
    } rows[] = {
        {"nothing", "{}", ""},
        {"one", "{\"0\":" ENGINE("e", "\"0\":{\"0\":\"tcp://a:1\"}") "}", "e dp0 1x1 0.0=a:1"},
        {"in any order", "{\"0\":" ENGINE("e", "\"1\":{\"1\":\"tcp://d\",\"0\":\"tcp://c\"},"
                                          "\"0\":{\"1\":\"tcp://b\",\"0\":\"tcp://a\"}") "}",
         "e dp0 2x2 0.0=a 0.1=b 1.0=c 1.1=d"},
        {"ten ranks by number", "{\"3\":" ENGINE("e", "\"10\":{\"0\":\"tcp://b\"},\"9\":{\"0\":\"tcp://a\"}") "}",
         "e dp3 2x1! 9.0=a 10.0=b"},
        {"engines by id", "{\"1\":" ENGINE("f", "\"0\":{\"0\":\"tcp://a\"}") ",\"0\":"
                             ENGINE("e", "\"0\":{\"0\":\"tcp://b\"}") "}", "e dp0 1x1 0.0=b; f dp1 1x1 0.0=a"},
        {"the last of one id counts", "{\"0\":" ENGINE("e", "\"0\":{\"0\":\"tcp://a\"}") ",\"1\":"
                                      ENGINE("e", "\"0\":{\"0\":\"tcp://b\"}") "}", "e dp1 1x1 0.0=b"},
        {"a PP rank is missing", "{\"0\":" ENGINE("e", "\"0\":{\"0\":\"tcp://a\",\"1\":\"tcp://b\"},"
                                                  "\"1\":{\"1\":\"tcp://c\"}") "}", "e dp0 2x2! 0.0=a 0.1=b 1.1=c"},
        {"TP rank 0 is missing", "{\"0\":" ENGINE("e", "\"1\":{\"0\":\"tcp://a\"}") "}", "e dp0 1x1! 1.0=a"},
        {"PP rank 0 is missing", "{\"0\":" ENGINE("e", "\"0\":{\"1\":\"tcp://a\"}") "}", "e dp0 1x1! 0.1=a"},
        {"a TP rank without workers", "{\"0\":" ENGINE("e", "\"0\":{\"0\":\"tcp://a\"},\"1\":{}") "}",
         "e dp0 2x1! 0.0=a"},
        {"negative ranks", "{\"-1\":" ENGINE("e", "\"-2\":{\"-3\":\"tcp://a\"}") "}", "e dp-1 1x1! -2.-3=a"},
        {"another address", "{\"0\":" ENGINE("e", "\"0\":{\"0\":\"tcp://a\"},\"1\":{\"0\":\"ipc:///x\"}") "}",
         "e dp0 2x1! 0.0=a (1 left out)"},
        {"an address with a line's end", "{\"0\":" ENGINE("e", "\"0\":{\"0\":\"tcp://a\\nb\"}") "}", " (1 left out)"},
        {"an address with a zero", "{\"0\":" ENGINE("e", "\"0\":{\"0\":\"tcp://a\\u0000b\"}") "}", " (1 left out)"},
        {"an engine without an id", "{\"0\":" ENGINE("", "\"0\":{\"0\":\"tcp://a\"}") "}", " (1 left out)"},
        {"an engine without workers", "{\"0\":" ENGINE("e", "") "}", ""},
        {"keys that nobody knows", "{\"0\":{\"engine_id\":\"e\",\"new\":[{}],\"worker_addr\":"
                                   "{\"0\":{\"0\":\"tcp://a\"}}}}", "e dp0 1x1 0.0=a"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvfi_vllm_topology_own topology;
        struct kvf_error error;
        char told[400];

        if (kvfi_vllm_topology_read(rows[i].text, strlen(rows[i].text), &topology, &error) != KVF_OK)
            fail_msg("%s: %s", rows[i].name, error.text);
        describe(&topology, told, sizeof told);
        if (strcmp(told, rows[i].expected) != 0) fail_msg("%s: %s", rows[i].name, told);
        kvfi_vllm_topology_fini(&topology);
    }
}

static void refuses_what_is_no_answer(void **state)
{
    static const struct {
        const char *text, *expected;
    } rows[] = {
        {"", "registry's answer"},
        {"null", "registry's answer"},
        {"[]", "not an object of DP ranks"},
        {"{\"0\":", "registry's answer"},
        {"{\"0\":{},\"0\":{}}", "duplicate"},
        {"{\"x\":" ENGINE("e", "\"0\":{\"0\":\"tcp://a\"}") "}", "DP rank \"x\" is not a whole number"},
        {"{\"\":{}}", "DP rank \"\" is not a whole number"},
        {"{\"1.0\":{}}", "DP rank \"1.0\" is not a whole number"},
        {"{\"99999999999999999999\":{}}", "is not a whole number"},
        {"{\"0\":7}", "DP rank 0 has no engine_id or worker_addr"},
        {"{\"0\":{\"engine_id\":7,\"worker_addr\":{}}}", "DP rank 0 has no engine_id or worker_addr"},
        {"{\"0\":{\"engine_id\":\"e\"}}", "DP rank 0 has no engine_id or worker_addr"},
        {"{\"0\":" ENGINE("e", "\"0 \":{\"0\":\"tcp://a\"}") "}", "TP rank \"0 \" is not a whole number"},
        {"{\"0\":" ENGINE("e", "\"00\":{\"0\":\"tcp://a\"}") "}", "TP rank \"00\" is not a whole number"},
        {"{\"0\":" ENGINE("e", "\"0\":[]") "}", "TP rank 0 is not an object of PP ranks"},
        {"{\"0\":" ENGINE("e", "\"0\":{\"a\\nb\":\"tcp://a\"}") "}", "PP rank \"a?b\" is not a whole number"},
        {"{\"0\":" ENGINE("e", "\"0\":{\"0\":17}") "}", "address of TP rank 0, PP rank 0 is not a text"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvfi_vllm_topology_own topology;
        struct kvf_error error;

        if (kvfi_vllm_topology_read(rows[i].text, strlen(rows[i].text), &topology, &error) != KVF_ERR_PROTOCOL ||
            error.status != KVF_ERR_PROTOCOL || !strstr(error.text, rows[i].expected))
            fail_msg("%s: %s", rows[i].text, error.text);
    }
}

/** An answer with so many workers; free with free(). */
static char *crowd_of(int workers)
{
    size_t capacity = (size_t)workers * 24 + 100, at;
    char *text = malloc(capacity);

    assert_non_null(text);
    at = (size_t)snprintf(text, capacity, "{\"0\":{\"engine_id\":\"e\",\"worker_addr\":{\"0\":{");
    for (int i = 0; i < workers; i++)
        at += (size_t)snprintf(text + at, capacity - at, "%s\"%d\":\"tcp://a\"", i ? "," : "", i);
    snprintf(text + at, capacity - at, "}}}}");
    return text;
}

static void bounds_the_workers(void **state)
{
    char *most = crowd_of(KVFI_VLLM_MAX_WORKERS), *more = crowd_of(KVFI_VLLM_MAX_WORKERS + 1);
    struct kvfi_vllm_topology_own topology;
    struct kvf_error error;

    (void)state;
    assert_int_equal(kvfi_vllm_topology_read(most, strlen(most), &topology, &error), KVF_OK);
    assert_int_equal(topology.engines[0]->pp_size, KVFI_VLLM_MAX_WORKERS);
    assert_true(topology.engines[0]->is_complete);
    kvfi_vllm_topology_fini(&topology);
    assert_int_equal(kvfi_vllm_topology_read(more, strlen(more), &topology, &error), KVF_ERR_LIMIT);
    free(most);
    free(more);
}

/** As many engines as there may be, every id twice. Each compared with all before it would take minutes. */
static void finds_one_of_many_engines(void **state)
{
    enum { MANY = KVFI_VLLM_MAX_WORKERS, ROOM = MANY * 96 };
    char *text = malloc(ROOM), id[32];
    struct kvfi_vllm_topology topology;
    struct kvfi_vllm_topology_own own;
    int at = 1;

    (void)state;
    assert_non_null(text);
    text[0] = '{';
    for (int i = 0; i < MANY; i++)
        at += snprintf(text + at, (size_t)(ROOM - at), "%s\"%d\":" ENGINE("engine-%d", "\"0\":{\"0\":\"tcp://a:%d\"}"),
                       i ? "," : "", i, i * 5 % (MANY / 2), i);
    text[at++] = '}';
    assert_int_equal(kvfi_vllm_topology_read(text, (size_t)at, &own, NULL), KVF_OK);
    assert_int_equal(own.engine_count, MANY / 2);
    topology = (struct kvfi_vllm_topology){.engines = own.engines, .engine_count = own.engine_count};
    for (int i = MANY / 2; i < MANY; i++) {
        const struct kvfi_vllm_engine *engine;

        snprintf(id, sizeof id, "engine-%d", i * 5 % (MANY / 2));
        engine = kvfi_vllm_topology_find(&topology, id);
        assert_non_null(engine);
        assert_int_equal(engine->dp_rank, i);
    }
    assert_null(kvfi_vllm_topology_find(&topology, "engine-"));
    assert_null(kvfi_vllm_topology_find(&topology, "engine-99999"));
    kvfi_vllm_topology_fini(&own);
    free(text);
}

static void an_engine_outlives_its_answer(void **state)
{
    static const char text[] = "{\"0\":" ENGINE("e", "\"0\":{\"0\":\"tcp://a\"}") "}";
    struct kvfi_vllm_topology_own own;
    struct kvfi_vllm_topology topology;
    const struct kvfi_vllm_engine *engine;

    (void)state;
    assert_int_equal(kvfi_vllm_topology_read(text, sizeof text - 1, &own, NULL), KVF_OK);
    topology = (struct kvfi_vllm_topology){.engines = own.engines, .engine_count = own.engine_count};
    assert_null(kvfi_vllm_topology_find(&topology, "f"));
    engine = kvfi_vllm_engine_acquire(kvfi_vllm_topology_find(&topology, "e"));
    kvfi_vllm_topology_fini(&own);
    assert_string_equal(engine->engine_id, "e");
    assert_string_equal(kvfi_vllm_engine_address(engine, 0, 0), "tcp://a");
    kvfi_vllm_engine_release(engine);
    kvfi_vllm_engine_release(NULL);
}

static void says_so_without_memory(void **state)
{
    static const char text[] = "{\"0\":" ENGINE("e", "\"0\":{\"0\":\"tcp://a\",\"1\":\"tcp://b\"}") ",\"1\":"
                               ENGINE("f", "\"0\":{\"0\":\"tcp://a\"}") ",\"2\":"
                               ENGINE("e", "\"0\":{\"0\":\"tcp://a\"}") "}";
    long allowed = 0;

    (void)state;
    for (;; allowed++) {
        struct kvfi_vllm_topology_own topology = {0};
        struct kvf_error error;
        enum kvf_status status;

        no_memory_from(allowed);
        status = kvfi_vllm_topology_read(text, sizeof text - 1, &topology, &error);
        if (!no_memory_end()) {
            assert_int_equal(status, KVF_OK);
            assert_int_equal(topology.engine_count, 2);
            kvfi_vllm_topology_fini(&topology);
            break;
        }
        assert_int_equal(status, KVF_ERR_NO_MEMORY);
        assert_int_equal(topology.engine_count, 0);
    }
    assert_true(allowed > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_answers),
        cmocka_unit_test(refuses_what_is_no_answer),
        cmocka_unit_test(bounds_the_workers), cmocka_unit_test(finds_one_of_many_engines),
        cmocka_unit_test(an_engine_outlives_its_answer),
        cmocka_unit_test(says_so_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
