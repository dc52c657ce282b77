/* SPDX-License-Identifier: Apache-2.0 */
/* A loop with and without its thread: commands in order, descriptors, timers, waiting, standing still. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "loop/loop.h"
#include "sys/clock.h"

enum { PIPES = 20, COMMANDS = 2000, POSTERS = 4 };

struct pipe_watch {
    struct kvfi_watch watch;
    int in; /* what is written here is read there */
    int64_t reads;
};

struct fixture {
    struct kvfi_loop loop;
    int64_t ran, dropped, fired, ends, stills, reads, before; /* lock, or one thread */
    int64_t last[POSTERS];
    int64_t order_errors;
    struct kvfi_timer timer;
    struct pipe_watch pipes[PIPES];
    bool ends_others; /* the first that is ready unwatches the others */
};

struct command {
    struct kvfi_loop_command base;
    int poster;
    int64_t number;
};

static void begin(struct fixture *fixture, const struct kvfi_loop_hooks *hooks)
{
    struct kvf_error error;

    if (kvfi_loop_init(&fixture->loop, fixture, hooks, &error) != KVF_OK) fail_msg("%s", error.text);
}

/* ---- commands ---- */

static void run_command(void *owner, struct kvfi_loop_command *base)
{
    struct fixture *fixture = owner;
    struct command *command = (struct command *)(void *)base;

    pthread_mutex_lock(&fixture->loop.lock);
    if (command->number != fixture->last[command->poster] + 1) fixture->order_errors++;
    fixture->last[command->poster] = command->number;
    fixture->ran++;
    pthread_cond_broadcast(&fixture->loop.changed);
    pthread_mutex_unlock(&fixture->loop.lock);
    free(command);
}

static void drop_command(void *owner, struct kvfi_loop_command *base)
{
    struct fixture *fixture = owner;

    fixture->dropped++;
    free(base);
}

static void post(struct fixture *fixture, int poster, int64_t number)
{
    struct command *command = calloc(1, sizeof *command);

    command->base.run = run_command;
    command->base.drop = drop_command;
    command->poster = poster;
    command->number = number;
    pthread_mutex_lock(&fixture->loop.lock);
    kvfi_loop_post(&fixture->loop, &command->base);
    pthread_mutex_unlock(&fixture->loop.lock);
}

struct poster {
    struct fixture *fixture;
    int number;
};

static void *post_many(void *context)
{
    struct poster *poster = context;

    for (int64_t i = 1; i <= COMMANDS; i++) post(poster->fixture, poster->number, i);
    return NULL;
}

/** Several threads post while one waits: all commands run, each thread's in its order. */
static void runs_commands_in_order(void **unused)
{
    static struct fixture fixture;
    struct poster posters[POSTERS];
    pthread_t threads[POSTERS];
    int64_t deadline = kvfi_deadline_after(20 * KVFI_SECOND);
    (void)unused;

    fixture = (struct fixture){0};
    begin(&fixture, NULL);
    assert_int_equal(kvfi_loop_start(&fixture.loop, NULL), KVF_OK);
    for (int i = 0; i < POSTERS; i++) {
        posters[i] = (struct poster){&fixture, i};
        assert_int_equal(pthread_create(&threads[i], NULL, post_many, &posters[i]), 0);
    }
    pthread_mutex_lock(&fixture.loop.lock);
    while (fixture.ran < POSTERS * COMMANDS && kvfi_now_ns() < deadline) kvfi_loop_wait(&fixture.loop, deadline);
    assert_int_equal(fixture.ran, POSTERS * COMMANDS);
    assert_int_equal(fixture.order_errors, 0);
    pthread_mutex_unlock(&fixture.loop.lock);
    for (int i = 0; i < POSTERS; i++) pthread_join(threads[i], NULL);
    kvfi_loop_stop(&fixture.loop);
    kvfi_loop_stop(&fixture.loop);
    kvfi_loop_fini(&fixture.loop);
}

/** Without a thread, waiting makes the turns; what was not run is dropped at the end. */
static void lets_the_caller_make_progress(void **unused)
{
    struct fixture fixture = {0};
    int64_t deadline = kvfi_deadline_after(20 * KVFI_SECOND);
    (void)unused;

    begin(&fixture, NULL);
    post(&fixture, 0, 1);
    kvfi_loop_progress(&fixture.loop);
    assert_int_equal(fixture.ran, 1);
    kvfi_loop_progress(&fixture.loop);
    post(&fixture, 0, 2);
    pthread_mutex_lock(&fixture.loop.lock);
    while (fixture.ran < 2 && kvfi_now_ns() < deadline) kvfi_loop_wait(&fixture.loop, deadline);
    pthread_mutex_unlock(&fixture.loop.lock);
    assert_int_equal(fixture.ran, 2);
    post(&fixture, 0, 3);
    post(&fixture, 0, 4);
    kvfi_loop_fini(&fixture.loop);
    assert_int_equal(fixture.ran, 2);
    assert_int_equal(fixture.dropped, 2);
    kvfi_loop_fini(&fixture.loop);
}

static void fini_of_zeros_is_fine(void **unused)
{
    struct kvfi_loop loop = {0};
    (void)unused;

    kvfi_loop_stop(&loop);
    kvfi_loop_fini(&loop);
}

/* ---- descriptors ---- */

static void on_readable(void *owner, struct kvfi_watch *watch)
{
    struct fixture *fixture = owner;
    struct pipe_watch *pipe = (struct pipe_watch *)(void *)watch;
    char byte;

    assert_int_equal(read(watch->fd, &byte, 1), 1);
    pipe->reads++;
    fixture->reads++;
    if (!fixture->ends_others) return;
    for (size_t i = 0; i < PIPES; i++) {
        if (&fixture->pipes[i] != pipe) kvfi_loop_unwatch(&fixture->loop, &fixture->pipes[i].watch);
    }
}

static void open_pipes(struct fixture *fixture)
{
    for (size_t i = 0; i < PIPES; i++) {
        int ends[2];

        assert_int_equal(pipe(ends), 0);
        fixture->pipes[i] = (struct pipe_watch){.watch = {.fd = ends[0], .ready = on_readable}, .in = ends[1]};
        assert_int_equal(kvfi_loop_watch(&fixture->loop, &fixture->pipes[i].watch, NULL), KVF_OK);
    }
}

static void close_pipes(struct fixture *fixture)
{
    for (size_t i = 0; i < PIPES; i++) {
        kvfi_loop_unwatch(&fixture->loop, &fixture->pipes[i].watch);
        close(fixture->pipes[i].watch.fd);
        close(fixture->pipes[i].in);
    }
}

/** More ready descriptors than one turn looks at: each gets its turn. */
static void serves_every_descriptor(void **unused)
{
    struct fixture fixture = {0};
    (void)unused;

    begin(&fixture, NULL);
    open_pipes(&fixture);
    for (size_t i = 0; i < PIPES; i++) assert_int_equal(write(fixture.pipes[i].in, "abc", 3), 3);
    for (int turn = 0; turn < 100 && fixture.reads < 3 * PIPES; turn++) kvfi_loop_turn(&fixture.loop, 0);
    for (size_t i = 0; i < PIPES; i++) assert_int_equal(fixture.pipes[i].reads, 3);
    kvfi_loop_turn(&fixture.loop, 0);
    assert_int_equal(fixture.reads, 3 * PIPES);
    close_pipes(&fixture);
    kvfi_loop_fini(&fixture.loop);
}

/** A watch that another one ends within a turn is not called, although its descriptor was ready. */
static void calls_nothing_that_was_unwatched(void **unused)
{
    struct fixture fixture = {0};
    (void)unused;

    begin(&fixture, NULL);
    open_pipes(&fixture);
    fixture.ends_others = true;
    for (size_t i = 0; i < PIPES; i++) assert_int_equal(write(fixture.pipes[i].in, "a", 1), 1);
    for (int turn = 0; turn < 5; turn++) kvfi_loop_turn(&fixture.loop, 0);
    assert_int_equal(fixture.reads, 1);
    close_pipes(&fixture);
    kvfi_loop_fini(&fixture.loop);
}

static void refuses_no_descriptor(void **unused)
{
    struct fixture fixture = {0};
    struct kvfi_watch watch = {.fd = -1, .ready = on_readable};
    struct kvf_error error;
    (void)unused;

    begin(&fixture, NULL);
    assert_int_equal(kvfi_loop_watch(&fixture.loop, &watch, &error), KVF_ERR_SYSTEM);
    kvfi_loop_unwatch(&fixture.loop, &watch);
    kvfi_loop_fini(&fixture.loop);
}

/* ---- timers and hooks ---- */

static void fire(void *owner, struct kvfi_timer *timer)
{
    struct fixture *fixture = owner;

    assert_ptr_equal(timer, &fixture->timer);
    assert_true(fixture->before > 0); /* asked for arrivals first */
    pthread_mutex_lock(&fixture->loop.lock);
    fixture->fired++;
    pthread_cond_broadcast(&fixture->loop.changed);
    pthread_mutex_unlock(&fixture->loop.lock);
}

static void before_timers(void *owner) { ((struct fixture *)owner)->before++; }
static void end_turn(void *owner) { ((struct fixture *)owner)->ends++; }

static void stood_still(void *owner, int64_t late_ns)
{
    assert_true(late_ns >= 20 * KVFI_MS);
    ((struct fixture *)owner)->stills++;
}

static const struct kvfi_loop_hooks hooks = {.before_timers = before_timers, .end_turn = end_turn,
                                             .stood_still = stood_still, .patience_ns = 20 * KVFI_MS};

/** A timer wakes the loop by itself, and not before it is due. */
static void fires_when_due(void **unused)
{
    struct fixture fixture = {.timer = {.fire = fire}};
    int64_t due = kvfi_now_ns() + 30 * KVFI_MS, deadline = kvfi_deadline_after(20 * KVFI_SECOND);
    (void)unused;

    begin(&fixture, &hooks);
    kvfi_timer_arm(&fixture.loop.timers, &fixture.timer, due);
    pthread_mutex_lock(&fixture.loop.lock);
    while (fixture.fired == 0 && kvfi_now_ns() < deadline) kvfi_loop_wait(&fixture.loop, deadline);
    pthread_mutex_unlock(&fixture.loop.lock);
    assert_int_equal(fixture.fired, 1);
    assert_true(kvfi_now_ns() >= due);
    assert_true(fixture.ends > 0);
    kvfi_loop_fini(&fixture.loop);
}

/** Between two turns the caller was away. */
static void notices_that_it_stood_still(void **unused)
{
    struct fixture fixture = {0};
    int64_t before;
    (void)unused;

    begin(&fixture, &hooks);
    kvfi_loop_turn(&fixture.loop, 0);
    before = fixture.stills;
    assert_int_equal(poll(NULL, 0, 60), 0); /* stands still */
    kvfi_loop_turn(&fixture.loop, 0);
    assert_true(fixture.stills > before);
    kvfi_loop_fini(&fixture.loop);
}

static void adds_timeouts_without_overflow(void **unused)
{
    int64_t now = kvfi_now_ns();
    (void)unused;

    assert_true(kvfi_deadline_after(-1) >= now && kvfi_deadline_after(-1) < now + KVFI_SECOND);
    assert_true(kvfi_deadline_after(5 * KVFI_SECOND) >= now + 5 * KVFI_SECOND);
    assert_int_equal(kvfi_deadline_after(INT64_MAX), INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_commands_in_order), cmocka_unit_test(lets_the_caller_make_progress),
        cmocka_unit_test(fini_of_zeros_is_fine), cmocka_unit_test(serves_every_descriptor),
        cmocka_unit_test(calls_nothing_that_was_unwatched), cmocka_unit_test(refuses_no_descriptor),
        cmocka_unit_test(fires_when_due), cmocka_unit_test(notices_that_it_stood_still),
        cmocka_unit_test(adds_timeouts_without_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
