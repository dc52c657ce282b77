/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that write as peers do, beside owners that grant and revoke: what was revoked is the owner's alone, which a
 * sanitizer of threads checks as well, and nothing is counted that was not written. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "sys/clock.h"
#include "transport/mooncake/guards.h"
#include "transport/mooncake/regions.h"

enum { OWNERS = 2, WRITERS = 3, BLOCKS = 4, BLOCK_BYTES = 256, ROUNDS = 400, WRITES = 3000, PATIENCE_MS = 20000 };

static unsigned char memory[OWNERS * BLOCKS * BLOCK_BYTES];
static struct kvfi_moon_regions regions;
static atomic_bool stop;
static atomic_llong written[OWNERS][BLOCKS]; /* by requests that were to count */
static atomic_llong admitted, wrong;

struct owner {
    pthread_t thread;
    int index, wake;
    kvf_mooncake_guard *guard;
};

static struct owner owners[OWNERS];

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % below;
}

/* ---- writers ---------------------------------------------------------------------------------------------------- */

/* One request, in pieces, which ends early when it is revoked. */
static void write_once(uint64_t *state)
{
    size_t first = draw(state, sizeof memory), count = 1 + draw(state, 2 * BLOCK_BYTES), done = 0;
    struct kvfi_moon_refusal refusal;
    struct kvfi_moon_use use;

    if (count > sizeof memory - first) count = sizeof memory - first;
    if (!kvfi_moon_regions_use(&regions, true, (uint64_t)(uintptr_t)memory + first, count, &use, &refusal)) return;
    atomic_fetch_add(&admitted, 1);
    while (done < count && !kvfi_moon_use_is_revoked(&use)) {
        size_t step = count - done < 64 ? count - done : 64;

        /* Peers may write at the same place, but never where an owner does. */
        for (size_t i = 0; i < step; i++) __atomic_store_n(memory + first + done + i, 0x55, __ATOMIC_RELAXED);
        done += step;
    }
    for (size_t i = first; done == count && i < first + count; i++)
        atomic_fetch_add(&written[i / (BLOCKS * BLOCK_BYTES)][i / BLOCK_BYTES % BLOCKS], 1);
    kvfi_moon_regions_release(&regions, &use, done == count);
}

static void *run_writer(void *argument)
{
    uint64_t state = (uint64_t)(uintptr_t)argument;

    while (!atomic_load(&stop)) write_once(&state);
    return NULL;
}

/* ---- owners ----------------------------------------------------------------------------------------------------- */

static void on_news(void *context)
{
    eventfd_write(*(int *)context, 1);
}

static bool await_news(const struct owner *owner)
{
    struct pollfd wake = {.fd = owner->wake, .events = POLLIN};
    eventfd_t ignored;

    return poll(&wake, 1, PATIENCE_MS) == 1 && eventfd_read(owner->wake, &ignored) == 0;
}

/* Waits until something has arrived in these blocks. */
static void await_bytes(struct owner *owner, const int64_t *blocks, size_t count)
{
    int64_t bytes = 0;

    while (true) {
        kvfi_moon_guard_ask_news(owner->guard);
        if (kvf_mooncake_guard_count(owner->guard, blocks, count, &bytes, NULL) != KVF_OK) atomic_fetch_add(&wrong, 1);
        if (bytes > 0) break;
        if (!await_news(owner)) {
            atomic_fetch_add(&wrong, 1);
            break;
        }
    }
}

static void take_back(struct owner *owner, const int64_t *blocks, size_t count, uint64_t how)
{
    static const int64_t timeouts[] = {0, KVFI_MS, 10 * KVFI_SECOND};
    enum kvf_status status;
    bool quiet = true;

    if (how < 3) {
        status = kvf_mooncake_guard_revoke(owner->guard, blocks, count, timeouts[how], NULL);
    } else {
        status = kvfi_moon_guard_revoke_begin(owner->guard, blocks, count, &quiet, NULL);
        while (!quiet) {
            kvfi_moon_guard_ask_news(owner->guard);
            quiet = kvfi_moon_guard_is_quiet(owner->guard, blocks, count);
            if (!quiet && !await_news(owner)) break;
        }
    }
    if (status != KVF_OK || !quiet) atomic_fetch_add(&wrong, 1);
}

/* They are nobody else's now. */
static void use_blocks(const struct owner *owner, const int64_t *blocks, size_t count, int round)
{
    for (size_t b = 0; b < count; b++) {
        unsigned char *block = memory + ((size_t)owner->index * BLOCKS + (size_t)blocks[b]) * BLOCK_BYTES;
        int64_t counted = 0, most = atomic_exchange(&written[owner->index][blocks[b]], 0);

        memset(block, round & 0x3F, BLOCK_BYTES);
        if (kvf_mooncake_guard_count(owner->guard, &blocks[b], 1, &counted, NULL) != KVF_OK || counted > most)
            atomic_fetch_add(&wrong, 1);
        for (int i = 0; i < BLOCK_BYTES; i++)
            if (block[i] != (round & 0x3F)) atomic_fetch_add(&wrong, 1);
    }
}

static void *run_owner(void *argument)
{
    struct owner *owner = argument;
    uint64_t state = 77 + (uint64_t)owner->index;

    for (int round = 0; round < ROUNDS && atomic_load(&wrong) == 0; round++) {
        int64_t first = (int64_t)draw(&state, BLOCKS);
        const int64_t blocks[] = {first, (first + 1) % BLOCKS};
        size_t count = 1 + draw(&state, 2);

        if (kvf_mooncake_guard_grant(owner->guard, blocks, count, NULL) != KVF_OK) atomic_fetch_add(&wrong, 1);
        await_bytes(owner, blocks, count);
        take_back(owner, blocks, count, draw(&state, 4));
        use_blocks(owner, blocks, count, round);
    }
    return NULL;
}

/* ---- all of it -------------------------------------------------------------------------------------------------- */

static void open_owner(struct owner *owner, int index)
{
    const struct kvf_mooncake_grid grid = {(uint64_t)(uintptr_t)memory + (uint64_t)index * BLOCKS * BLOCK_BYTES,
                                           BLOCK_BYTES, BLOCK_BYTES};

    owner->index = index;
    owner->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(owner->wake >= 0);
    assert_int_equal(kvfi_moon_guard_open(&regions, &grid, 1, BLOCKS, &owner->guard, NULL), KVF_OK);
    kvfi_moon_guard_set_news(owner->guard, on_news, &owner->wake);
}

static void set_up(void)
{
    const struct kvf_mooncake_buffer buffer = {(uint64_t)(uintptr_t)memory, sizeof memory};

    memset(written, 0, sizeof written);
    atomic_store(&stop, false);
    atomic_store(&wrong, 0);
    assert_int_equal(kvfi_moon_regions_init(&regions, NULL), KVF_OK);
    assert_int_equal(kvfi_moon_regions_add(&regions, &buffer, 1, NULL), KVF_OK);
    for (int i = 0; i < OWNERS; i++) open_owner(&owners[i], i);
}

static void tear_down(void)
{
    for (int i = 0; i < OWNERS; i++) {
        kvf_mooncake_guard_close(owners[i].guard);
        close(owners[i].wake);
    }
    kvfi_moon_regions_fini(&regions);
}

static void test_owners_and_writers(void **state)
{
    pthread_t writers[WRITERS];

    (void)state;
    set_up();
    for (size_t i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&writers[i], NULL, run_writer, (void *)(uintptr_t)(i + 1)), 0);
    for (int i = 0; i < OWNERS; i++)
        assert_int_equal(pthread_create(&owners[i].thread, NULL, run_owner, &owners[i]), 0);
    for (int i = 0; i < OWNERS; i++) pthread_join(owners[i].thread, NULL);
    atomic_store(&stop, true);
    for (int i = 0; i < WRITERS; i++) pthread_join(writers[i], NULL);
    assert_int_equal(atomic_load(&wrong), 0);
    assert_true(atomic_load(&admitted) >= ROUNDS);
    tear_down();
}

static void *run_counted(void *argument)
{
    uint64_t state = (uint64_t)(uintptr_t)argument;

    for (int i = 0; i < WRITES; i++) write_once(&state);
    return NULL;
}

/* While nothing is revoked, what is counted is what was written, to the byte. */
static void test_counts(void **state)
{
    static const int64_t all[] = {0, 1, 2, 3};
    pthread_t writers[WRITERS];

    (void)state;
    set_up();
    for (int i = 0; i < OWNERS; i++)
        assert_int_equal(kvf_mooncake_guard_grant(owners[i].guard, all, BLOCKS, NULL), KVF_OK);
    for (size_t i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&writers[i], NULL, run_counted, (void *)(uintptr_t)(i + 9)), 0);
    for (int i = 0; i < WRITES; i++) { /* others look meanwhile */
        int64_t bytes, again;

        assert_int_equal(kvf_mooncake_guard_count(owners[0].guard, all, BLOCKS, &bytes, NULL), KVF_OK);
        assert_int_equal(kvf_mooncake_guard_count(owners[0].guard, all, BLOCKS, &again, NULL), KVF_OK);
        assert_true(again >= bytes);
    }
    for (int i = 0; i < WRITERS; i++) pthread_join(writers[i], NULL);
    for (int i = 0; i < OWNERS; i++)
        for (int b = 0; b < BLOCKS; b++) {
            int64_t bytes = -1;

            assert_int_equal(kvf_mooncake_guard_count(owners[i].guard, &all[b], 1, &bytes, NULL), KVF_OK);
            assert_int_equal(bytes, atomic_load(&written[i][b]));
        }
    tear_down();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_owners_and_writers), cmocka_unit_test(test_counts)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
