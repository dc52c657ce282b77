/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of this tree's own code is refused once, in turn, while a worker registers and asks: each request
 * ends in one callback or was refused at once, and the next one works. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/no_memory_kit.h"
#include "kvferry/directory.h"
#include "sys/clock.h"
#include "vllm_worker/registry.h"

#define WAIT_NS (20 * KVFI_SECOND)

struct told {
    int count;
    enum kvf_status status;
};

static void on_registered(void *context, enum kvf_status status, const char *text)
{
    struct told *told = context;

    (void)text;
    told->count++;
    told->status = status;
}

static void on_answered(void *context, enum kvf_status status, const struct kvfi_vllm_topology *topology,
                        const char *text)
{
    (void)topology;
    on_registered(context, status, text);
}

static enum kvf_status await(struct kvfi_loop *loop, const struct told *told, enum kvf_status asked)
{
    int64_t deadline_ns = kvfi_now_ns() + WAIT_NS;

    while (asked == KVF_OK && told->count == 0 && kvfi_now_ns() < deadline_ns) kvfi_loop_turn(loop, 10 * KVFI_MS);
    if (asked == KVF_OK) assert_int_equal(told->count, 1);
    return asked == KVF_OK ? told->status : asked;
}

static enum kvf_status register_once(struct kvfi_loop *loop, struct kvfi_vllm_registry *registry, const char *url)
{
    const struct kvfi_vllm_claim claim = {.engine_id = "e", .address = "tcp://1.1.1.1:1"};
    struct told told = {0};

    return await(loop, &told, kvfi_vllm_registry_register(registry, url, &claim, on_registered, &told, NULL));
}

static enum kvf_status query_once(struct kvfi_loop *loop, struct kvfi_vllm_registry *registry, const char *url)
{
    struct told told = {0};

    return await(loop, &told, kvfi_vllm_registry_query(registry, url, on_answered, &told, NULL));
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

/** One round of registration and query. Returns whether an allocation was refused. */
static bool round_with(kvf_directory *directory, long allowed)
{
    const struct kvfi_vllm_registry_options options = {
        .register_attempts = 3, .connector_timeout_ns = 2 * KVFI_SECOND, .first_pause_ns = KVFI_MS};
    const char *url = kvf_directory_url(directory);
    struct kvfi_vllm_registry *registry = NULL;
    struct kvfi_loop loop;
    enum kvf_status created;
    bool refused;

    assert_int_equal(kvfi_loop_init(&loop, NULL, NULL, NULL), KVF_OK);
    no_memory_once(allowed);
    created = kvfi_vllm_registry_create(&loop, &options, &registry, NULL);
    if (created == KVF_OK) {
        register_once(&loop, registry, url);
        query_once(&loop, registry, url);
    }
    refused = no_memory_end();
    if (created != KVF_OK) assert_true(refused && registry == NULL);
    if (created == KVF_OK) {
        assert_int_equal(register_once(&loop, registry, url), KVF_OK);
        assert_int_equal(query_once(&loop, registry, url), KVF_OK);
    }
    kvfi_vllm_registry_destroy(registry);
    kvfi_loop_fini(&loop);
    return refused;
}

static void every_request_ends(void **state)
{
    kvf_directory *directory = open_directory();
    long allowed = 0;

    (void)state;
    while (round_with(directory, allowed)) allowed++;
    assert_true(allowed > 10);
    kvf_directory_close(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_request_ends)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
