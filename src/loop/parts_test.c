/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a loop that stand alone: timers, table, events. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "loop/events.h"
#include "loop/table.h"
#include "loop/timers.h"

/* ---- timers ---- */

enum { TIMERS = 500 };

static void fire(void *owner, struct kvfi_timer *timer)
{
    (void)owner;
    (void)timer;
}

static void test_timers(void **unused)
{
    static struct kvfi_timer timers[TIMERS];
    struct kvfi_timers heap = {0};
    uint64_t seed = 7;
    int64_t last = -1;
    int taken = 0, disarmed = 0;
    struct kvfi_timer *timer;
    (void)unused;
    assert_int_equal(kvfi_timers_due(&heap), INT64_MAX);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < TIMERS; i++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            timers[i].fire = fire;
            kvfi_timer_arm(&heap, &timers[i], (int64_t)(seed >> 33) % 1000);
        }
    for (int i = 0; i < TIMERS; i += 3, disarmed++)
        kvfi_timer_disarm(&heap, &timers[i]);
    kvfi_timer_disarm(&heap, &timers[0]);
    assert_null(kvfi_timers_take(&heap, -1));
    while ((timer = kvfi_timers_take(&heap, 5000)) != NULL) {
        assert_true(timer->due_ns >= last && !timer->armed);
        last = timer->due_ns;
        taken++;
        if (taken % 7 == 0 && timers[taken].armed && timers[taken].due_ns > last) {
            kvfi_timer_disarm(&heap, &timers[taken]);
            disarmed++;
        }
    }
    assert_int_equal(taken + disarmed, TIMERS);
}

/* ---- table ---- */

struct item {
    int number;
    struct kvfi_link link;
    char key[16];
};

static void test_table(void **unused)
{
    enum { ITEMS = 1000 };
    static struct item items[ITEMS];
    struct kvfi_table table;
    int found = 0;
    (void)unused;
    assert_true(kvfi_table_init(&table));
    assert_null(kvfi_table_any(&table));
    for (int i = 0; i < ITEMS; i++) {
        snprintf(items[i].key, sizeof items[i].key, "k%d", i % 100); /* ten of each */
        kvfi_table_insert(&table, &items[i].link, items[i].key, strlen(items[i].key));
    }
    for (struct kvfi_link *link = kvfi_table_find(&table, "k42", 3); link != NULL; link = kvfi_table_find_next(link)) {
        assert_string_equal(KVFI_HOLDER(link, struct item, link)->key, "k42");
        found++;
    }
    assert_int_equal(found, 10);
    assert_null(kvfi_table_find(&table, "k100", 4));
    for (int i = 0; i < ITEMS; i += 2) {
        kvfi_table_remove(&table, &items[i].link);
        kvfi_table_remove(&table, &items[i].link); /* twice is fine */
    }
    assert_null(kvfi_table_find(&table, "k42", 3));
    assert_non_null(kvfi_table_find(&table, "k43", 3));
    assert_int_equal(table.count, ITEMS / 2);
    kvfi_table_fini(&table);
}

/* ---- events ---- */

struct record {
    int number;
    char rest[20];
};

static bool readable(int fd)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    return poll(&poller, 1, 0) == 1;
}

static void test_events(void **unused)
{
    struct kvfi_events events;
    struct kvfi_event_node *a, *b, *c;
    struct record out[3];
    (void)unused;
    assert_int_equal(kvfi_events_init(&events, 3, sizeof(struct record), NULL), KVF_OK);
    a = kvfi_events_reserve(&events);
    b = kvfi_events_reserve(&events);
    c = kvfi_events_reserve(&events);
    assert_non_null(c);
    assert_null(kvfi_events_reserve(&events));
    kvfi_events_cancel(&events, c);
    c = kvfi_events_reserve(&events);
    assert_false(readable(events.fd));
    ((struct record *)(void *)a->record)->number = 1;
    ((struct record *)(void *)b->record)->number = 2;
    kvfi_events_push(&events, a);
    kvfi_events_push(&events, b);
    assert_true(readable(events.fd));
    assert_null(kvfi_events_reserve(&events)); /* two queued, one to come */
    assert_int_equal(kvfi_events_take(&events, out, 1), 1);
    assert_int_equal(out[0].number, 1);
    assert_true(readable(events.fd));
    assert_int_equal(kvfi_events_take(&events, out, 3), 1);
    assert_int_equal(out[0].number, 2);
    assert_false(readable(events.fd));
    kvfi_events_push(&events, c);
    kvfi_events_fini(&events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_timers), cmocka_unit_test(test_table),
                                       cmocka_unit_test(test_events)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
