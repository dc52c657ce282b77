/* SPDX-License-Identifier: Apache-2.0 */
/* Many transfers: at once, and one after the other. Memory stays flat, and an engine with nothing to do sleeps. */
#include "kit.h"

#include <sys/resource.h>
#include <unistd.h>

static const char *transport = "loop";
static int64_t rounds = 10000;

enum { AT_ONCE = 64, TOKENS = 100, BLOCKS = 7 };

static void open_two(struct kit_side *source, struct kit_side *destination)
{
    struct kvf_instance_recipe recipe = kit_recipe();

    recipe.blocks = 512;
    recipe.tp = 2;
    kit_open(source, "p", &recipe, NULL, transport, NULL);
    recipe.tp = 1;
    recipe.order = KVF_ORDER_TOKENS_FIRST;
    kit_open(destination, "d", &recipe, kit_directory(source), transport, NULL);
}

static void test_at_once(void **unused)
{
    static int64_t ids[AT_ONCE][BLOCKS];
    struct kit_moved moved[AT_ONCE];
    struct kit_side source, destination;
    char id[16];
    (void)unused;
    open_two(&source, &destination);
    for (int64_t i = 0; i < AT_ONCE; i++) {
        snprintf(id, sizeof id, "t%d", (int)i);
        kit_ids(&source, i, BLOCKS, ids[i]);
        moved[i] = (struct kit_moved){i, BLOCKS, ids[i], 0, TOKENS};
        for (size_t r = 0; r < 2; r++)
            kit_fill(&source, r, i, ids[i], BLOCKS);
        if (i % 2 == 0) /* half the pulls come before their offers */
            kit_pull(&destination, 0, "p", id, 0, 0, TOKENS, ids[i], BLOCKS, 0, KVF_OK);
    }
    for (int64_t i = 0; i < AT_ONCE; i++) {
        snprintf(id, sizeof id, "t%d", (int)i);
        for (size_t r = 0; r < 2; r++)
            kit_offer(&source, r, id, 0, TOKENS, TOKENS, ids[i], BLOCKS, 0, KVF_OK);
        if (i % 2 == 1)
            kit_pull(&destination, 0, "p", id, 0, 0, TOKENS, ids[i], BLOCKS, 0, KVF_OK);
    }
    for (int i = 0; i < AT_ONCE; i++)
        kit_wait(&destination, 0, KVF_EVENT_BLOCKS_REUSABLE);
    assert_true(kit_check(&destination, 0, moved, AT_ONCE));
    for (size_t r = 0; r < 2; r++)
        assert_int_equal(kvf_engine_drain(source.ranks[r].engine, 10 * SECOND, NULL), KVF_OK);
    kit_close(&destination);
    kit_close(&source);
}

static int64_t resident_bytes(void)
{
    long long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lld %lld", &total, &resident), 2);
    fclose(file);
    return (int64_t)resident * sysconf(_SC_PAGESIZE);
}

static int64_t cpu_ns(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * SECOND +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000;
}

/* So many at a time, each with a name of its own. */
static void run_rounds(struct kit_side *source, struct kit_side *destination, int64_t from, int64_t to)
{
    int64_t ids[BLOCKS];
    char id[32];

    for (int64_t i = from; i < to; i++) {
        snprintf(id, sizeof id, "transfer-%lld", (long long)i);
        kit_ids(source, i % 8, BLOCKS, ids);
        for (size_t r = 0; r < 2; r++)
            kit_offer(source, r, id, 0, TOKENS, TOKENS, ids, BLOCKS, 0, KVF_OK);
        kit_pull(destination, 0, "p", id, 0, 0, TOKENS, ids, BLOCKS, 0, KVF_OK);
        if (i % 8 == 7 || i == to - 1)
            for (int64_t w = i - i % 8 < from ? from : i - i % 8; w <= i; w++) {
                kit_wait(destination, 0, KVF_EVENT_BLOCKS_REUSABLE);
                for (size_t r = 0; r < 2; r++)
                    kit_wait(source, r, KVF_EVENT_BLOCKS_REUSABLE);
            }
    }
}

static void test_one_after_the_other(void **unused)
{
    struct kit_side source, destination;
    int64_t before, after, began;
    (void)unused;
    open_two(&source, &destination);
    run_rounds(&source, &destination, 0, rounds / 5); /* until caches and remembered ids are full */
    before = resident_bytes();
    began = kit_now_ns();
    run_rounds(&source, &destination, rounds / 5, rounds);
    after = resident_bytes();
    print_message("%lld transfers: %lld us each, resident size %+lld KiB\n", (long long)rounds,
                  (long long)((kit_now_ns() - began) / (rounds - rounds / 5) / 1000),
                  (long long)(after - before) / 1024);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(after - before < 1048576);
#endif
    kit_close(&destination);
    kit_close(&source);
}

/* Nothing is to be done for a second: the threads of all engines must sleep. */
static void assert_asleep(kvf_engine *engine, const char *who)
{
    struct kvf_event event;
    int64_t before = cpu_ns(), used;

    while (kvf_engine_wait(engine, &event, 1, SECOND) > 0)
        before = cpu_ns();
    used = cpu_ns() - before;
    print_message("%s: %lld us of CPU time in a second\n", who, (long long)(used / 1000));
    assert_true(used < 100 * MS);
}

static void test_idle(void **unused)
{
    struct kit_side source, destination;
    (void)unused;
    open_two(&source, &destination);
    run_rounds(&source, &destination, 0, 8);
    assert_asleep(destination.ranks[0].engine, "three idle engines and a directory");
    kit_close(&destination);
    kit_close(&source);
}

/* 128 MiB in one offer: it goes in several chunks, so that progress shows. */
static void test_big(void **unused)
{
    enum { BIG = 64, BIG_TOKENS = BIG * 16 };
    const size_t block_bytes = 16 * 4 * 4096 * 2 * 4;
    struct kvf_instance_recipe recipe = kit_recipe();
    struct kit_side source, destination;
    struct kvf_event event;
    int64_t sids[BIG], dids[BIG];
    uint8_t *from, *to;
    (void)unused;
    recipe.head_dim = 2048;
    recipe.slot_padding_bytes = 0;
    kit_open(&source, "p", &recipe, NULL, transport, NULL);
    kit_open(&destination, "d", &recipe, kit_directory(&source), transport, NULL);
    kit_ids(&source, 0, BIG, sids);
    for (int i = 0; i < BIG; i++)
        dids[i] = sids[BIG - 1 - i];
    from = kvf_memory_address(source.ranks[0].memories[0]);
    to = kvf_memory_address(destination.ranks[0].memories[0]);
    assert_int_equal(kvf_memory_bytes(source.ranks[0].memories[0]), BIG * block_bytes);
    for (size_t i = 0; i < BIG * block_bytes / 8; i++)
        ((uint64_t *)(void *)from)[i] = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    kit_offer(&source, 0, "t", 0, BIG_TOKENS, BIG_TOKENS, sids, BIG, 0, KVF_OK);
    kit_pull(&destination, 0, "p", "t", 0, 0, BIG_TOKENS, dids, BIG, 0, KVF_OK);
    event = kit_wait(&destination, 0, KVF_EVENT_PULL_DONE);
    assert_int_equal(event.bytes, BIG * block_bytes);
    for (int i = 0; i < BIG; i++)
        assert_memory_equal(to + (size_t)dids[i] * block_bytes, from + (size_t)sids[i] * block_bytes, block_bytes);
    kit_wait(&source, 0, KVF_EVENT_OFFER_DONE);
    assert_asleep(destination.ranks[0].engine, "two idle engines after 64 MiB");
    kit_close(&destination);
    kit_close(&source);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_at_once), cmocka_unit_test(test_one_after_the_other),
                                       cmocka_unit_test(test_idle), cmocka_unit_test(test_big)};
    if (argc > 1)
        transport = argv[1];
    if (argc > 2)
        rounds = strtoll(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
