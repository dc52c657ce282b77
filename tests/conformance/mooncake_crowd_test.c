/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of a Mooncake engine to many peers at once, most of which stand still. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch_kit.h"
#include "transport/mooncake/batches.h"

enum { LIVE = 4 };

struct crowd {
    struct arena near, far[LIVE];
    struct quiet_host *quiet;
    int64_t live[LIVE];
};

static void crowd_init(struct crowd *crowd)
{
    arena_init(&crowd->near, MIB, 1);
    for (int i = 0; i < LIVE; i++) {
        arena_init(&crowd->far[i], MIB, 0);
        crowd->live[i] = open_peer(crowd->near.engine, kvf_mooncake_segment_name(crowd->far[i].engine));
    }
    crowd->quiet = quiet_host_open(2);
}

static void crowd_fini(struct crowd *crowd)
{
    arena_fini(&crowd->near);
    for (int i = 0; i < LIVE; i++) arena_fini(&crowd->far[i]);
    quiet_host_close(crowd->quiet);
}

static kvf_mooncake_batch *submit_quiet(struct crowd *crowd, int64_t segment, int64_t timeout_ns)
{
    const struct kvf_mooncake_range range = {arena_at(&crowd->near, 0), 4096, 1000};

    return submit(crowd->near.engine, segment, KVF_MOONCAKE_WRITE, &range, 1, timeout_ns);
}

static kvf_mooncake_batch *submit_live(struct crowd *crowd, int peer, uint64_t offset, uint64_t bytes)
{
    const struct kvf_mooncake_range range = {arena_at(&crowd->near, offset), arena_at(&crowd->far[peer], offset),
                                             bytes};

    return submit(crowd->near.engine, crowd->live[peer], KVF_MOONCAKE_WRITE, &range, 1, PATIENCE);
}

/* All at once, since each may take what is under way some time to end. */
static void cancel_all(kvf_mooncake_batch **batches, size_t count)
{
    for (size_t i = 0; i < count; i++) kvf_mooncake_batch_cancel(batches[i]);
    for (size_t i = 0; i < count; i++) kvf_mooncake_batch_free(batches[i]);
}

static void still_peers_hold_up_no_other(int peers, int each)
{
    size_t count = (size_t)peers * (size_t)each;
    kvf_mooncake_batch **still = calloc(count, sizeof *still);
    struct crowd crowd;

    assert_non_null(still);
    crowd_init(&crowd);
    for (size_t i = 0; i < count; i++)
        still[i] = submit_quiet(&crowd, open_quiet(crowd.near.engine, crowd.quiet, (int)(i / (size_t)each)), PATIENCE);
    for (int round = 0; round < 50; round++) {
        kvf_mooncake_batch *batches[LIVE];

        for (int i = 0; i < LIVE; i++) batches[i] = submit_live(&crowd, i, (uint64_t)round * 1000, 1000);
        for (int i = 0; i < LIVE; i++) expect_end(batches[i], KVF_OK);
    }
    for (size_t i = 0; i < count; i++) assert_false(progress_of(still[i]).ended);
    for (int i = 0; i < LIVE; i++) {
        arena_settle(&crowd.far[i]);
        assert_memory_equal(crowd.far[i].bytes, crowd.near.bytes, 50000);
    }
    cancel_all(still, count);
    crowd_fini(&crowd);
    free(still);
}

static void twelve_still_peers_hold_up_no_other(void **state)
{
    (void)state;
    still_peers_hold_up_no_other(12, 20);
}

static void all_the_still_peers_that_may_be_hold_up_no_other(void **state)
{
    (void)state;
    still_peers_hold_up_no_other(KVFI_MOON_BATCH_THREADS / 2 + KVFI_MOON_BATCH_THREADS / 2 / KVFI_MOON_PEER_BATCHES - 1,
                                 5);
}

/* With more of them than threads the others wait, until one of those ends. */
static void beyond_the_threads_batches_wait_for_a_deadline(void **state)
{
    enum { STILL = KVFI_MOON_BATCH_THREADS + 20 };
    kvf_mooncake_batch *still[STILL], *last;
    struct crowd crowd;
    size_t threads;

    (void)state;
    crowd_init(&crowd);
    threads = thread_count();
    for (int i = 0; i < STILL; i++)
        still[i] = submit_quiet(&crowd, open_quiet(crowd.near.engine, crowd.quiet, i), 3 * KVFI_SECOND);
    last = submit_live(&crowd, 0, 0, 1000);
    assert_true(thread_count() <= threads + KVFI_MOON_BATCH_THREADS + 1);
    expect_end(last, KVF_OK);
    for (int i = 0; i < STILL; i++) expect_end(still[i], KVF_ERR_TIMEOUT);
    crowd_fini(&crowd);
}

/* ---- many threads ------------------------------------------------------------------------------------------------ */

struct caller {
    struct crowd *crowd;
    int64_t still;
    int number;
    bool wrong;
};

static void *call(void *context)
{
    struct caller *caller = context;

    for (int i = 0; i < 60; i++) {
        uint64_t offset = (uint64_t)(caller->number * 60 + i) * 1000;
        kvf_mooncake_batch *live = submit_live(caller->crowd, i % LIVE, offset, 1000);
        kvf_mooncake_batch *still = i < 6 ? submit_quiet(caller->crowd, caller->still, PATIENCE) : NULL;
        struct kvf_mooncake_progress progress = {.struct_size = sizeof progress};

        if (i % 7 == 3) kvf_mooncake_batch_cancel(live);
        kvf_mooncake_batch_get_progress(live, &progress, NULL);
        if (i % 5 == 1) (void)kvf_mooncake_batch_event_fd(live);
        if (i % 7 != 3 && i % 3 != 2)
            caller->wrong |= kvf_mooncake_batch_wait(live, PATIENCE, NULL, NULL) != KVF_OK;
        kvf_mooncake_batch_free(live);
        if (still && i % 2) kvf_mooncake_batch_cancel(still);
        kvf_mooncake_batch_free(still);
    }
    return NULL;
}

static void many_threads_at_once(void **state)
{
    enum { CALLERS = 8 };
    struct caller callers[CALLERS];
    pthread_t threads[CALLERS];
    struct crowd crowd;

    (void)state;
    crowd_init(&crowd);
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){.crowd = &crowd, .number = i,
                                     .still = open_quiet(crowd.near.engine, crowd.quiet, i % 3)};
        assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        assert_false(callers[i].wrong);
    }
    crowd_fini(&crowd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twelve_still_peers_hold_up_no_other),
        cmocka_unit_test(all_the_still_peers_that_may_be_hold_up_no_other),
        cmocka_unit_test(beyond_the_threads_batches_wait_for_a_deadline),
        cmocka_unit_test(many_threads_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
