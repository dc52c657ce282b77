/* SPDX-License-Identifier: Apache-2.0 */
/* Work handed to a loop's thread: verdicts and sentences come back, and so does who waits when the loop ends. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "loop/call.h"

enum { CALLERS = 4, CALLS = 500 };

struct fixture {
    struct kvfi_loop loop;
    int64_t sum, runs;      /* the progress thread's, without a lock */
    int64_t left, at_least; /* left goes down to at_least, one a run */
    bool changes;           /* a run tells of a change */
    atomic_int begun;       /* runs that have begun */
};

static void begin(struct fixture *fixture, const char *name, bool has_thread)
{
    const struct kvfi_loop_hooks hooks = {.name = name};

    *fixture = (struct fixture){.sum = 0};
    assert_int_equal(kvfi_loop_init(&fixture->loop, fixture, &hooks, NULL), KVF_OK);
    if (has_thread) assert_int_equal(kvfi_loop_start(&fixture->loop, NULL), KVF_OK);
}

static void end(struct fixture *fixture)
{
    kvfi_loop_stop(&fixture->loop);
    kvfi_loop_fini(&fixture->loop);
}

/* ---- once ---- */

static enum kvf_status add(void *owner, void *argument, struct kvf_error *error)
{
    struct fixture *fixture = owner;
    int64_t number = *(const int64_t *)argument;

    fixture->sum += number;
    if (number % 2 != 0) return kvfi_fail(error, KVF_ERR_NOT_FOUND, "%d is odd", (int)number);
    *(int64_t *)argument = -number;
    return KVF_OK;
}

static void *call_often(void *context)
{
    struct fixture *fixture = context;
    intptr_t wrong = 0;

    for (int i = 0; i < CALLS; i++) {
        struct kvf_error error = {.text = ""};
        char text[32] = "";
        int64_t number = i;
        enum kvf_status status = kvfi_loop_call(&fixture->loop, add, &number, &error);

        if (i % 2 != 0) (void)snprintf(text, sizeof text, "%d is odd", i);
        wrong += status != (i % 2 != 0 ? KVF_ERR_NOT_FOUND : KVF_OK) || number != (i % 2 != 0 ? i : -i)
                 || strcmp(error.text, text) != 0;
    }
    return (void *)wrong; /* cmocka's assertions are the main thread's */
}

/** Each of several callers gets its own verdicts, sentences and outputs back. */
static void gives_each_caller_its_verdict(void **unused)
{
    struct fixture fixture;
    pthread_t callers[CALLERS];
    (void)unused;

    begin(&fixture, NULL, true);
    for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_create(&callers[i], NULL, call_often, &fixture), 0);
    for (int i = 0; i < CALLERS; i++) {
        void *wrong;

        assert_int_equal(pthread_join(callers[i], &wrong), 0);
        assert_null(wrong);
    }
    end(&fixture);
    assert_int_equal(fixture.sum, CALLERS * CALLS * (CALLS - 1) / 2);
}

/** Without a thread the caller makes the turn itself; an error that nobody wants is fine. */
static void lets_the_caller_run_it(void **unused)
{
    struct fixture fixture;
    int64_t number = 7;
    (void)unused;

    begin(&fixture, NULL, false);
    assert_null(call_often(&fixture));
    assert_int_equal(kvfi_loop_call(&fixture.loop, add, &number, NULL), KVF_ERR_NOT_FOUND);
    end(&fixture);
}

/* ---- until nothing is left ---- */

static enum kvf_status lower(void *owner, void *argument, struct kvf_error *error)
{
    struct fixture *fixture = owner;

    fixture->runs++;
    atomic_fetch_add(&fixture->begun, 1);
    if (fixture->left > fixture->at_least) fixture->left--;
    *(int64_t *)argument = fixture->left;
    if (fixture->changes) kvfi_loop_changed(&fixture->loop);
    return fixture->left < 0 ? kvfi_fail(error, KVF_ERR_SYSTEM, "less than nothing is left") : KVF_OK;
}

/** What `fn` sees of the time and of changes. A row that would wait without an end runs into the test's time limit. */
static void asks_until_nothing_is_left(void **unused)
{
    static const struct {
        const char *name;
        int64_t left, at_least;
        bool changes;
        int64_t timeout_ns;
        enum kvf_status status;
        int64_t left_at_end, runs;
    } rows[] = {
        {"idle at once", 1, 0, false, INT64_MAX, KVF_OK, 0, 1},
        {"idle at once, no time", 1, 0, false, 0, KVF_OK, 0, 1},
        {"busy, no time", 3, 0, false, 0, KVF_OK, 2, 1},
        {"busy, time before now", 3, 0, false, -5, KVF_OK, 2, 1},
        {"busy to the deadline", 3, 0, false, 20 * KVFI_MS, KVF_OK, 2, 1},
        {"a change while it is asked is not missed", 4, 0, true, INT64_MAX, KVF_OK, 0, 4},
        {"fails at once", 0, -3, false, INT64_MAX, KVF_ERR_SYSTEM, -1, 1},
    };
    (void)unused;

    for (size_t i = 0; i < 2 * (sizeof rows / sizeof *rows); i++) {
        const size_t row = i / 2;
        struct fixture fixture;
        struct kvf_error error = {.text = ""};
        int64_t left = -100, before = kvfi_now_ns();
        enum kvf_status status;

        begin(&fixture, NULL, i % 2 == 0);
        fixture.left = rows[row].left;
        fixture.at_least = rows[row].at_least;
        fixture.changes = rows[row].changes;
        status = kvfi_loop_call_until_idle(&fixture.loop, lower, &left, &left, rows[row].timeout_ns, &error);
        if (status != rows[row].status || left != rows[row].left_at_end || fixture.runs != rows[row].runs)
            fail_msg("%s: status %d, left %d, runs %d", rows[row].name, (int)status, (int)left, (int)fixture.runs);
        assert_string_equal(error.text, status == KVF_OK ? "" : "less than nothing is left");
        if (rows[row].timeout_ns < INT64_MAX && left > 0)
            assert_true(kvfi_now_ns() - before >= rows[row].timeout_ns);
        end(&fixture);
    }
}

static void *tell_of_changes(void *context)
{
    struct fixture *fixture = context;

    for (int told = 0; told < 3; told++) {
        while (atomic_load(&fixture->begun) <= told) sched_yield();
        kvfi_loop_changed(&fixture->loop);
    }
    return NULL;
}

/** Changes that others tell of wake who waits, one run for each. */
static void asks_again_after_each_change(void **unused)
{
    struct fixture fixture;
    pthread_t teller;
    int64_t left = 0;
    (void)unused;

    begin(&fixture, NULL, true);
    fixture.left = 4;
    assert_int_equal(pthread_create(&teller, NULL, tell_of_changes, &fixture), 0);
    assert_int_equal(kvfi_loop_call_until_idle(&fixture.loop, lower, &left, &left, INT64_MAX, NULL), KVF_OK);
    assert_int_equal(left, 0);
    assert_int_equal(fixture.runs, 4);
    assert_int_equal(pthread_join(teller, NULL), 0);
    end(&fixture);
}

/* ---- the loop ends ---- */

struct caller {
    struct fixture *fixture;
    kvfi_loop_fn fn;
    bool until_idle;
    enum kvf_status status;
    struct kvf_error error;
    int64_t left;
    pthread_t thread;
};

static void *call_once(void *context)
{
    struct caller *caller = context;
    struct kvfi_loop *loop = &caller->fixture->loop;

    caller->status = caller->until_idle ? kvfi_loop_call_until_idle(loop, caller->fn, &caller->left, &caller->left,
                                                                    INT64_MAX, &caller->error)
                                        : kvfi_loop_call(loop, caller->fn, &caller->left, &caller->error);
    return NULL;
}

static void start(struct caller *caller)
{
    assert_int_equal(pthread_create(&caller->thread, NULL, call_once, caller), 0);
}

static enum kvf_status last_until_stopped(void *owner, void *argument, struct kvf_error *error)
{
    struct fixture *fixture = owner;

    (void)argument;
    atomic_fetch_add(&fixture->begun, 1);
    while (!atomic_load(&fixture->loop.stop)) sched_yield();
    return kvfi_fail(error, KVF_ERR_TIMEOUT, "it was stopped");
}

static int waiting(struct fixture *fixture)
{
    int count = 0;

    pthread_mutex_lock(&fixture->loop.lock);
    for (const struct kvfi_loop_command *command = fixture->loop.commands_head; command; command = command->next)
        count++;
    pthread_mutex_unlock(&fixture->loop.lock);
    return count;
}

/** The call under way keeps its verdict; those behind it are not run, and say who is closed. */
static void returns_when_the_loop_ends(void **unused)
{
    static const struct { const char *name, *text; } rows[] = {{"worker", "the worker is closed"},
                                                               {NULL, "the loop is closed"}};
    (void)unused;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fixture fixture;
        struct caller callers[] = {{.fixture = &fixture, .fn = last_until_stopped},
                                   {.fixture = &fixture, .fn = lower},
                                   {.fixture = &fixture, .fn = lower, .until_idle = true}};

        begin(&fixture, rows[i].name, true);
        start(&callers[0]);
        while (atomic_load(&fixture.begun) == 0) sched_yield();
        start(&callers[1]);
        start(&callers[2]);
        while (waiting(&fixture) < 2) sched_yield();
        kvfi_loop_stop(&fixture.loop);
        kvfi_loop_drop_commands(&fixture.loop);
        for (int caller = 0; caller < 3; caller++) assert_int_equal(pthread_join(callers[caller].thread, NULL), 0);
        assert_int_equal(callers[0].status, KVF_ERR_TIMEOUT);
        assert_string_equal(callers[0].error.text, "it was stopped");
        for (int caller = 1; caller < 3; caller++) {
            assert_int_equal(callers[caller].status, KVF_ERR_CLOSED);
            assert_string_equal(callers[caller].error.text, rows[i].text);
        }
        assert_int_equal(fixture.runs, 0);
        end(&fixture);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_each_caller_its_verdict), cmocka_unit_test(lets_the_caller_run_it),
        cmocka_unit_test(asks_until_nothing_is_left),    cmocka_unit_test(asks_again_after_each_change),
        cmocka_unit_test(returns_when_the_loop_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
