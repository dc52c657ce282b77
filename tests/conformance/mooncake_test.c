/* SPDX-License-Identifier: Apache-2.0 */
/* Two engines that speak Mooncake's protocol to each other: what moves, in both versions, and what is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kvferry/mooncake.h"
#include "sys/clock.h"

#define MIB (UINT64_C(1) << 20)
#define PATIENCE (20 * KVFI_SECOND)

struct pair {
    kvf_mooncake *near, *far;
    unsigned char *local, *remote; /* registered, between guards */
    uint64_t bytes;
    int64_t segment;
};

static kvf_mooncake *open_engine(int32_t max_version, int32_t initiator_only)
{
    struct kvf_mooncake_options options;
    kvf_mooncake *engine = NULL;
    struct kvf_error error;

    kvf_mooncake_options_init(&options, sizeof options);
    options.max_version = max_version;
    options.initiator_only = initiator_only;
    if (kvf_mooncake_open(&options, &engine, &error) != KVF_OK) fail_msg("%s", error.text);
    return engine;
}

static void enroll(kvf_mooncake *engine, const void *memory, uint64_t bytes)
{
    const struct kvf_mooncake_buffer buffer = {(uint64_t)(uintptr_t)memory, bytes};
    struct kvf_error error;

    if (kvf_mooncake_register(engine, &buffer, 1, &error) != KVF_OK) fail_msg("%s", error.text);
}

static void pair_init(struct pair *pair, uint64_t bytes, int32_t max_version)
{
    struct kvf_error error;

    *pair = (struct pair){.bytes = bytes};
    pair->near = open_engine(max_version, 1);
    pair->far = open_engine(2, 0);
    pair->local = malloc(bytes);
    pair->remote = malloc(bytes);
    assert_true(pair->local && pair->remote);
    for (uint64_t i = 0; i < bytes; i++) pair->local[i] = (unsigned char)(i * 7 + (i >> 9));
    memset(pair->remote, 0x5A, bytes);
    enroll(pair->near, pair->local, bytes);
    enroll(pair->far, pair->remote, bytes);
    if (kvf_mooncake_open_segment(pair->near, kvf_mooncake_segment_name(pair->far), PATIENCE, &pair->segment, &error) !=
        KVF_OK)
        fail_msg("%s", error.text);
}

static void pair_fini(struct pair *pair)
{
    kvf_mooncake_close(pair->near);
    kvf_mooncake_close(pair->far);
    free(pair->local);
    free(pair->remote);
}

static struct kvf_mooncake_range range_of(const struct pair *pair, uint64_t local, uint64_t remote, uint64_t bytes)
{
    return (struct kvf_mooncake_range){(uint64_t)(uintptr_t)pair->local + local,
                                       (uint64_t)(uintptr_t)pair->remote + remote, bytes};
}

/* Waits until nobody touches the memory there. What came through a socket is ordered, but no tool for races sees it. */
static void settle(struct pair *pair)
{
    const uint64_t address = (uint64_t)(uintptr_t)pair->remote;
    struct kvf_error error;

    if (kvf_mooncake_unregister(pair->far, &address, 1, PATIENCE, &error) != KVF_OK) fail_msg("%s", error.text);
    enroll(pair->far, pair->remote, pair->bytes);
}

static void move(struct pair *pair, bool is_write, const struct kvf_mooncake_range *ranges, size_t count)
{
    struct kvf_error error;
    enum kvf_status status;

    settle(pair);
    status = is_write
                 ? kvf_mooncake_write(pair->near, pair->segment, ranges, count, 0, PATIENCE, NULL, &error)
                 : kvf_mooncake_read(pair->near, pair->segment, ranges, count, 0, PATIENCE, NULL, &error);

    if (status != KVF_OK) fail_msg("%s", error.text);
    settle(pair);
}

/* ---- what moves ------------------------------------------------------------------------------------------------- */

static void write_and_read_back(int32_t version)
{
    static const uint64_t lengths[] = {1, 7, 8, 4095, 65535, 65536, 65537, 3 * MIB + 1, 32 * MIB};
    struct pair pair;

    pair_init(&pair, 33 * MIB, version);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct kvf_mooncake_range range = range_of(&pair, 13 + i, 4093, lengths[i]);

        memset(pair.remote, 0x5A, pair.bytes);
        move(&pair, true, &range, 1);
        assert_memory_equal(pair.remote + 4093, pair.local + 13 + i, lengths[i]);
        assert_int_equal(pair.remote[4092], 0x5A);
        assert_int_equal(pair.remote[4093 + lengths[i]], 0x5A);
        for (uint64_t j = 0; j < lengths[i]; j++) pair.remote[4093 + j] ^= 0x33;
        move(&pair, false, &range, 1);
        assert_memory_equal(pair.remote + 4093, pair.local + 13 + i, lengths[i]);
    }
    pair_fini(&pair);
}

static void test_version_2(void **state)
{
    (void)state;
    write_and_read_back(2);
}

static void test_version_1(void **state)
{
    (void)state;
    write_and_read_back(1);
}

static void test_many_ranges(void **state)
{
    enum { COUNT = 50000, SLOT = 160 };
    struct kvf_mooncake_range *ranges = calloc(COUNT, sizeof *ranges);
    struct pair pair;

    (void)state;
    pair_init(&pair, COUNT * SLOT, 2);
    for (size_t i = 0; i < COUNT; i++)
        ranges[i] = range_of(&pair, i * SLOT, (COUNT - 1 - i) * SLOT + i % 5, i * 31 % 155);
    move(&pair, true, ranges, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        assert_memory_equal((char *)(uintptr_t)ranges[i].remote, (char *)(uintptr_t)ranges[i].local, ranges[i].bytes);
    for (size_t i = 0; i < pair.bytes; i++) pair.remote[i] ^= 0x55;
    move(&pair, false, ranges, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        assert_memory_equal((char *)(uintptr_t)ranges[i].remote, (char *)(uintptr_t)ranges[i].local, ranges[i].bytes);
    free(ranges);
    pair_fini(&pair);
}

static void test_many_ranges_of_version_1(void **state)
{
    enum { COUNT = 300, SLOT = 5000 };
    struct kvf_mooncake_range ranges[COUNT];
    struct pair pair;

    (void)state;
    pair_init(&pair, COUNT * SLOT, 1);
    for (size_t i = 0; i < COUNT; i++) ranges[i] = range_of(&pair, i * SLOT, (COUNT - 1 - i) * SLOT, 1 + i * 13);
    move(&pair, true, ranges, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        assert_memory_equal((char *)(uintptr_t)ranges[i].remote, (char *)(uintptr_t)ranges[i].local, ranges[i].bytes);
    for (size_t i = 0; i < pair.bytes; i++) pair.remote[i] ^= 0x55;
    move(&pair, false, ranges, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        assert_memory_equal((char *)(uintptr_t)ranges[i].remote, (char *)(uintptr_t)ranges[i].local, ranges[i].bytes);
    pair_fini(&pair);
}

/* ---- what is refused -------------------------------------------------------------------------------------------- */

static void test_bad_ranges(void **state)
{
    struct pair pair;
    const struct { const char *name; uint64_t remote, bytes; } rows[] = {
        {"before", UINT64_MAX, 10}, {"across the end", MIB - 5, 10}, {"behind", MIB, 1}, {"far", UINT64_C(1) << 50, 8}};

    (void)state;
    pair_init(&pair, MIB, 2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct kvf_mooncake_range ranges[] = {range_of(&pair, 0, 0, 100),
                                                    range_of(&pair, 0, rows[i].remote, rows[i].bytes),
                                                    range_of(&pair, 300, 300, 100), range_of(&pair, 9, 9, 0)};
        uint8_t outcomes[4];
        struct kvf_error error;

        memset(pair.remote, 0x5A, pair.bytes);
        settle(&pair);
        assert_int_equal(kvf_mooncake_write(pair.near, pair.segment, ranges, 4, 0, PATIENCE, outcomes, &error),
                         KVF_ERR_REFUSED);
        if (!strstr(error.text, "range 1: ") || !strstr(error.text, "(of 4 ranges: 3 done, 1 failed, 0 in doubt)"))
            fail_msg("%s: %s", rows[i].name, error.text);
        settle(&pair);
        assert_int_equal(outcomes[0], KVF_MOONCAKE_DONE);
        assert_int_equal(outcomes[1], KVF_MOONCAKE_FAILED);
        assert_int_equal(outcomes[2], KVF_MOONCAKE_DONE);
        assert_int_equal(outcomes[3], KVF_MOONCAKE_DONE);
        assert_memory_equal(pair.remote + 300, pair.local + 300, 100);
        assert_int_equal(pair.remote[MIB - 1], 0x5A);
    }
    pair_fini(&pair);
}

static void test_registering(void **state)
{
    static char memory[4096];
    const uint64_t base = (uint64_t)(uintptr_t)memory;
    const struct { const char *name; struct kvf_mooncake_buffer buffers[2]; enum kvf_status status; } rows[] = {
        {"no bytes", {{base, 10}, {base + 10, 0}}, KVF_ERR_INVALID_ARGUMENT},
        {"no address", {{0, 10}, {base + 10, 10}}, KVF_ERR_INVALID_ARGUMENT},
        {"wraps", {{base, 10}, {UINT64_MAX - 5, 7}}, KVF_ERR_INVALID_ARGUMENT},
        {"twice", {{base, 10}, {base, 10}}, KVF_ERR_EXISTS},
        {"overlap", {{base, 10}, {base + 9, 10}}, KVF_ERR_EXISTS},
        {"within", {{base, 100}, {base + 9, 10}}, KVF_ERR_EXISTS},
        {"around", {{base + 9, 10}, {base, 100}}, KVF_ERR_EXISTS},
        {"touch", {{base + 10, 10}, {base, 10}}, KVF_OK}};
    kvf_mooncake *engine = open_engine(2, 0);
    struct kvf_error error;
    uint64_t unknown[2] = {base, base + 11};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (kvf_mooncake_register(engine, rows[i].buffers, 2, &error) != rows[i].status) fail_msg("%s", rows[i].name);
    }
    assert_int_equal(kvf_mooncake_unregister(engine, unknown, 2, PATIENCE, &error), KVF_ERR_NOT_FOUND);
    unknown[1] = base + 10;
    assert_int_equal(kvf_mooncake_unregister(engine, unknown, 2, PATIENCE, &error), KVF_OK);
    assert_int_equal(kvf_mooncake_unregister(engine, unknown, 1, PATIENCE, &error), KVF_ERR_NOT_FOUND);
    kvf_mooncake_close(engine);
}

/* ---- the desk --------------------------------------------------------------------------------------------------- */

static void test_notify_and_probe(void **state)
{
    struct kvf_mooncake_notification *note;
    struct kvf_mooncake_segment_info info = {.struct_size = sizeof info};
    struct kvf_mooncake_buffer buffer;
    struct kvf_error error;
    struct pair pair;
    size_t count;

    (void)state;
    pair_init(&pair, 4096, 2);
    assert_int_equal(kvf_mooncake_take_notification(pair.far, 0, &note, &error), KVF_ERR_AGAIN);
    if (kvf_mooncake_notify(pair.near, pair.segment, "agent \"A\"", "k\xC3\xBC\xF0\x9F\x98\x80\n", PATIENCE, &error))
        fail_msg("%s", error.text);
    assert_int_equal(kvf_mooncake_take_notification(pair.far, PATIENCE, &note, &error), KVF_OK);
    assert_string_equal(note->name, "agent \"A\"");
    assert_string_equal(note->message, "k\xC3\xBC\xF0\x9F\x98\x80\n");
    kvf_mooncake_free_notification(note);
    assert_int_equal(kvf_mooncake_probe(pair.near, kvf_mooncake_segment_name(pair.far), PATIENCE, &error), KVF_OK);
    assert_int_equal(kvf_mooncake_get_segment_info(pair.near, pair.segment, &info, &error), KVF_OK);
    assert_string_equal(info.name, kvf_mooncake_segment_name(pair.far));
    assert_string_equal(info.data_host, "127.0.0.1");
    assert_int_equal(info.data_port, kvf_mooncake_data_port(pair.far));
    assert_int_equal(info.buffer_count, 1);
    assert_int_equal(kvf_mooncake_get_segment_buffers(pair.near, pair.segment, 0, &buffer, 1, &count, &error), KVF_OK);
    assert_int_equal(count, 1);
    assert_int_equal(buffer.address, (uint64_t)(uintptr_t)pair.remote);
    pair_fini(&pair);
}

/* ---- many threads ----------------------------------------------------------------------------------------------- */

struct worker {
    pthread_t thread;
    struct pair *pair;
    size_t number;
    enum kvf_status status;
};

static void *work(void *argument)
{
    enum { RANGES = 5000 };
    struct worker *worker = argument;
    struct kvf_mooncake_range *ranges = calloc(RANGES, sizeof *ranges);

    for (size_t i = 0; i < RANGES; i++)
        ranges[i] = range_of(worker->pair, (i * 16 + worker->number) * 64, (i * 16 + worker->number) * 64, 64);
    worker->status = kvf_mooncake_write(worker->pair->near, worker->pair->segment, ranges, RANGES, 0, PATIENCE, NULL,
                                        NULL);
    free(ranges);
    return NULL;
}

static void test_many_threads(void **state)
{
    struct worker workers[16];
    struct pair pair;

    (void)state;
    pair_init(&pair, 16 * 64 * 5000, 2);
    for (size_t i = 0; i < 16; i++) {
        workers[i] = (struct worker){.pair = &pair, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (size_t i = 0; i < 16; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].status, KVF_OK);
    }
    settle(&pair);
    assert_memory_equal(pair.local, pair.remote, pair.bytes);
    pair_fini(&pair);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_2), cmocka_unit_test(test_version_1), cmocka_unit_test(test_many_ranges),
        cmocka_unit_test(test_many_ranges_of_version_1), cmocka_unit_test(test_bad_ranges),
        cmocka_unit_test(test_registering), cmocka_unit_test(test_notify_and_probe),
        cmocka_unit_test(test_many_threads),
    };

    return cmocka_run_group_tests_name("mooncake", tests, NULL, NULL);
}
