/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a loop that stand alone: timers, events. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "loop/events.h"
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_timers), cmocka_unit_test(test_events)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
