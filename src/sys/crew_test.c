/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is, who holds up whom, and how items end. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/no_memory_kit.h"
#include "sys/clock.h"
#include "sys/crew.h"

enum { THREADS = 8, SIDE_BY_SIDE = 2, PATIENCE_MS = 30000 };

struct scene {
    struct kvfi_crew crew;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int begun, ended, stopped, expired;
    int together;     /* items that wait for each other: all go on once so many have begun */
    atomic_int wrong; /* woken by no stop of theirs, or not by one; or ended in a wrong state */
};

struct test_item {
    struct kvfi_crew_item base;
    bool stands_still; /* until it is stopped */
    bool waits;        /* for `together` others */
    int begun, ended;  /* 0, or its place in that order */
    bool expired;
};

static void run(void *owner, struct kvfi_crew_item *base)
{
    struct scene *scene = owner;
    struct test_item *item = (struct test_item *)base;
    struct pollfd wake = {.fd = base->wake_fd, .events = POLLIN};

    pthread_mutex_lock(&scene->lock);
    item->begun = ++scene->begun;
    pthread_cond_broadcast(&scene->changed);
    while (item->waits && scene->begun < scene->together) pthread_cond_wait(&scene->changed, &scene->lock);
    pthread_mutex_unlock(&scene->lock);
    /* One stop wakes one item alone. */
    if (poll(&wake, 1, item->stands_still ? PATIENCE_MS : 0) != (item->stands_still || atomic_load(&base->stop)))
        atomic_fetch_add(&scene->wrong, 1);
}

static void ended(void *owner, struct kvfi_crew_item *base)
{
    struct scene *scene = owner;
    struct test_item *item = (struct test_item *)base;

    scene->wrong += base->state != KVFI_CREW_IDLE;
    item->ended = ++scene->ended;
    scene->stopped += atomic_load(&base->stop);
    pthread_cond_broadcast(&scene->changed);
}

static void expired(void *owner, struct kvfi_crew_item *base)
{
    struct scene *scene = owner;

    scene->wrong += base->state != KVFI_CREW_IDLE;
    ((struct test_item *)base)->expired = true;
    scene->expired++;
    pthread_cond_broadcast(&scene->changed);
}

static const struct kvfi_crew_rules RULES = {THREADS, SIDE_BY_SIDE, false, run, ended, expired};
static const struct kvfi_crew_rules ONE_BY_ONE = {THREADS, 1, false, run, ended, expired};
static const struct kvfi_crew_rules ALONE = {1, 1, false, run, ended, expired};
static const struct kvfi_crew_rules BUSY = {4, 4, true, run, ended, NULL};

static void scene_init(struct scene *scene, const struct kvfi_crew_rules *rules)
{
    pthread_condattr_t monotonic;

    memset(scene, 0, sizeof *scene);
    pthread_mutex_init(&scene->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&scene->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    kvfi_crew_init(&scene->crew, rules, &scene->lock, scene);
}

static void scene_fini(struct scene *scene)
{
    kvfi_crew_fini(&scene->crew);
    assert_int_equal(atomic_load(&scene->wrong), 0);
    pthread_cond_destroy(&scene->changed);
    pthread_mutex_destroy(&scene->lock);
}

static void push(struct scene *scene, struct kvfi_crew_lane *lane, struct test_item *item)
{
    pthread_mutex_lock(&scene->lock);
    assert_int_equal(kvfi_crew_push(&scene->crew, lane, &item->base), 0);
    pthread_mutex_unlock(&scene->lock);
}

/* Waits until a number of the scene is at least what is expected. */
static void await(struct scene *scene, const int *number, int expected)
{
    int64_t deadline_ns = kvfi_now_ns() + PATIENCE_MS * KVFI_MS;
    struct timespec until = {.tv_sec = deadline_ns / KVFI_SECOND, .tv_nsec = deadline_ns % KVFI_SECOND};
    int failure = 0;

    pthread_mutex_lock(&scene->lock);
    while (*number < expected && failure == 0)
        failure = pthread_cond_timedwait(&scene->changed, &scene->lock, &until);
    assert_true(*number >= expected);
    pthread_mutex_unlock(&scene->lock);
}

static void stop(struct scene *scene, struct test_item *item)
{
    pthread_mutex_lock(&scene->lock);
    kvfi_crew_stop(&item->base);
    pthread_mutex_unlock(&scene->lock);
}

static size_t thread_count(struct scene *scene)
{
    size_t count;

    pthread_mutex_lock(&scene->lock);
    count = scene->crew.thread_count;
    pthread_mutex_unlock(&scene->lock);
    return count;
}

/* ---- who holds up whom ------------------------------------------------------------------------------------------- */

/* Half of the threads with two each, the others with one each: with one lane less there is a thread for others. */
static void lanes_that_stand_still_hold_up_no_other(void **state)
{
    enum { STILL = THREADS / 2 + THREADS / 2 / SIDE_BY_SIDE - 1, EACH = 20, QUICK = 50 };
    struct kvfi_crew_lane lanes[STILL + 1] = {{.queued = 0}};
    struct test_item *items = calloc(STILL * EACH + QUICK, sizeof *items);
    struct scene scene;

    (void)state;
    assert_non_null(items);
    scene_init(&scene, &RULES);
    for (int lane = 0; lane < STILL; lane++) {
        for (int i = lane * EACH; i < (lane + 1) * EACH; i++) {
            items[i].stands_still = true;
            push(&scene, &lanes[lane], &items[i]);
        }
        /* The first have all that they may, which is the worst for the others. */
        await(&scene, &scene.begun, lane < 2 ? SIDE_BY_SIDE * (lane + 1) : THREADS / 2 + lane - 1);
    }
    for (size_t i = 0; i < QUICK; i++) {
        push(&scene, &lanes[STILL], &items[STILL * EACH + i]);
        await(&scene, &scene.ended, (int)i + 1);
    }
    assert_int_equal(scene.begun, THREADS - 1 + QUICK);
    scene_fini(&scene);
    assert_int_equal(scene.stopped, THREADS - 1);
    free(items);
}

/* However many threads idle: who comes all at once finds one each, whatever was called before. */
static void lanes_that_come_at_once_have_a_thread_each(void **state)
{
    struct kvfi_crew_lane lanes[THREADS] = {{.queued = 0}};
    struct scene scene;

    (void)state;
    scene_init(&scene, &RULES);
    assert_int_equal(thread_count(&scene), 0);
    for (int round = 0; round < 200; round++) {
        int count = round % THREADS + 1;
        struct test_item items[THREADS] = {{.waits = false}};

        pthread_mutex_lock(&scene.lock);
        scene.begun = scene.ended = 0;
        scene.together = count;
        pthread_mutex_unlock(&scene.lock);
        for (int i = 0; i < count; i++) {
            items[i].waits = true;
            push(&scene, &lanes[i], &items[i]);
        }
        await(&scene, &scene.ended, count);
        assert_true(thread_count(&scene) <= THREADS);
    }
    scene_fini(&scene);
}

/* A lane alone has as many as the rules say, and all threads where nothing ever stands still. */
static void a_lane_has_its_share(void **state)
{
    const struct { const char *name; const struct kvfi_crew_rules *rules; int share; } rows[] = {
        {"side by side", &RULES, SIDE_BY_SIDE}, {"one by one", &ONE_BY_ONE, 1}, {"busy", &BUSY, 4}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvfi_crew_lane lane = {.queued = 0};
        struct test_item items[40] = {{.waits = false}};
        struct scene scene;

        scene_init(&scene, rows[i].rules);
        for (size_t at = 0; at < 40; at++) {
            items[at].stands_still = true;
            push(&scene, &lane, &items[at]);
        }
        await(&scene, &scene.begun, rows[i].share);
        for (int at = 0; at < 20; at++) {
            stop(&scene, &items[at]);
            await(&scene, &scene.begun, rows[i].share + at + 1);
        }
        pthread_mutex_lock(&scene.lock);
        if (scene.begun != rows[i].share + 20 || scene.crew.running_count != (size_t)rows[i].share)
            fail_msg("%s: %d have begun", rows[i].name, scene.begun);
        pthread_mutex_unlock(&scene.lock);
        scene_fini(&scene);
    }
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

static void items_of_a_lane_begin_in_order_and_lanes_take_turns(void **state)
{
    enum { LANES = 3, EACH = 10 };
    struct kvfi_crew_lane lanes[LANES + 1] = {{.queued = 0}};
    struct test_item first = {.stands_still = true}, items[LANES][EACH] = {{{.waits = false}}};
    struct scene scene;

    (void)state;
    scene_init(&scene, &ALONE);
    push(&scene, &lanes[LANES], &first);
    await(&scene, &scene.begun, 1);
    for (size_t lane = 0; lane < LANES; lane++) {
        for (size_t i = 0; i < EACH; i++) push(&scene, &lanes[lane], &items[lane][i]);
    }
    stop(&scene, &first);
    await(&scene, &scene.ended, 1 + LANES * EACH);
    for (size_t lane = 0; lane < LANES; lane++) {
        for (size_t i = 0; i < EACH; i++) assert_int_equal(items[lane][i].begun, 2 + i * LANES + lane);
    }
    scene_fini(&scene);
}

static void many_items_of_many_lanes_end_once_each(void **state)
{
    enum { LANES = 20, ITEMS = 5000 };
    struct kvfi_crew_lane lanes[LANES] = {{.queued = 0}};
    struct test_item *items = calloc(ITEMS, sizeof *items);
    bool *seen = calloc(ITEMS + 1, sizeof *seen);
    struct scene scene;

    (void)state;
    assert_true(items && seen);
    scene_init(&scene, &RULES);
    for (size_t i = 0; i < ITEMS; i++) push(&scene, &lanes[i * i % LANES], &items[i]);
    await(&scene, &scene.ended, ITEMS);
    scene_fini(&scene);
    for (size_t i = 0; i < ITEMS; i++) {
        assert_in_range(items[i].ended, 1, ITEMS);
        assert_false(seen[items[i].ended]);
        seen[items[i].ended] = true;
    }
    free(seen);
    free(items);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static void what_is_dropped_never_begins(void **state)
{
    const size_t dropped[] = {0, 4, 9, 5, 1, 8}; /* first, middle, last; then others beside them */
    struct kvfi_crew_lane lane = {.queued = 0};
    struct test_item first = {.stands_still = true}, items[10] = {{.waits = false}};
    struct scene scene;

    (void)state;
    scene_init(&scene, &ONE_BY_ONE);
    push(&scene, &lane, &first);
    await(&scene, &scene.begun, 1);
    for (size_t i = 0; i < 10; i++) push(&scene, &lane, &items[i]);
    pthread_mutex_lock(&scene.lock);
    for (size_t i = 0; i < sizeof dropped / sizeof dropped[0]; i++) {
        kvfi_crew_drop(&scene.crew, &items[dropped[i]].base);
        assert_int_equal(items[dropped[i]].base.state, KVFI_CREW_IDLE);
    }
    pthread_mutex_unlock(&scene.lock);
    push(&scene, &lane, &items[0]); /* may come again */
    stop(&scene, &first);
    await(&scene, &scene.ended, 6);
    scene_fini(&scene);
    for (size_t i = 0; i < 10; i++) {
        static const int order[] = {6, 0, 2, 3, 0, 0, 4, 5, 0, 0};

        assert_int_equal(items[i].begun, order[i]);
    }
}

/* A thread whose item was stopped is not woken for the next one: `run` looks. */
static void a_stop_ends_one_item_alone(void **state)
{
    struct kvfi_crew_lane lane = {.queued = 0};
    struct test_item items[30] = {{.waits = false}};
    struct scene scene;

    (void)state;
    scene_init(&scene, &ALONE);
    for (size_t i = 0; i < 30; i++) {
        items[i].stands_still = i % 2 == 0;
        push(&scene, &lane, &items[i]);
    }
    for (int i = 0; i < 30; i += 2) {
        await(&scene, &scene.begun, i + 1);
        stop(&scene, &items[i]);
        stop(&scene, &items[i]);
    }
    await(&scene, &scene.ended, 30);
    assert_int_equal(scene.stopped, 15);
    scene_fini(&scene);
}

static void what_is_queued_expires_and_what_runs_does_not(void **state)
{
    struct kvfi_crew_lane lanes[2] = {{.queued = 0}};
    struct test_item first = {.stands_still = true}, items[50] = {{.waits = false}}, patient = {.waits = false};
    struct scene scene;
    int64_t start_ns = kvfi_now_ns();

    (void)state;
    scene_init(&scene, &ALONE);
    first.base.deadline_ns = start_ns + 10 * KVFI_MS;
    push(&scene, &lanes[0], &first);
    await(&scene, &scene.begun, 1);
    push(&scene, &lanes[1], &patient); /* none */
    for (size_t i = 0; i < 50; i++) {
        items[i].base.deadline_ns = start_ns + (i % 2 == 0 ? 3600 * KVFI_SECOND : 20 * KVFI_MS + (int64_t)i * KVFI_MS);
        push(&scene, &lanes[i % 3 == 0], &items[i]);
    }
    await(&scene, &scene.expired, 25);
    assert_true(kvfi_now_ns() - start_ns >= 69 * KVFI_MS);
    assert_int_equal(scene.ended, 0);
    stop(&scene, &first);
    await(&scene, &scene.ended, 27);
    for (size_t i = 0; i < 50; i++) assert_int_equal(items[i].expired, i % 2 == 1);
    assert_false(first.expired);
    scene_fini(&scene);
}

static void fini_ends_what_runs_and_leaves_what_waits(void **state)
{
    struct kvfi_crew_lane lanes[4] = {{.queued = 0}};
    struct test_item items[4][5] = {{{.waits = false}}};
    struct scene scene;
    int left = 0;

    (void)state;
    scene_init(&scene, &RULES);
    for (size_t lane = 0; lane < 4; lane++) {
        for (size_t i = 0; i < 5; i++) {
            items[lane][i].stands_still = true;
            items[lane][i].base.deadline_ns = kvfi_now_ns() + 3600 * KVFI_SECOND;
            push(&scene, &lanes[lane], &items[lane][i]);
        }
    }
    await(&scene, &scene.begun, THREADS / 2);
    scene_fini(&scene);
    for (size_t lane = 0; lane < 4; lane++) left += (int)lanes[lane].queued;
    assert_int_equal(scene.ended + left, 20);
    assert_int_equal(scene.begun, scene.ended);
    scene_init(&scene, &RULES); /* one that never had anything to do */
    scene_fini(&scene);
}

/* An item and its lane may go with its end. */
struct lone {
    struct kvfi_crew_item item;
    struct kvfi_crew_lane lane;
};

static void run_nothing(void *owner, struct kvfi_crew_item *item)
{
    (void)owner;
    (void)item;
}

static void free_lone(void *owner, struct kvfi_crew_item *item)
{
    struct scene *scene = owner;

    free(item);
    scene->ended++;
    pthread_cond_broadcast(&scene->changed);
}

static void an_end_may_free_item_and_lane(void **state)
{
    static const struct kvfi_crew_rules rules = {THREADS, SIDE_BY_SIDE, false, run_nothing, free_lone, free_lone};
    struct scene scene;

    (void)state;
    scene_init(&scene, &rules);
    for (int i = 0; i < 1000; i++) {
        struct lone *lone = calloc(1, sizeof *lone);

        assert_non_null(lone);
        lone->item.deadline_ns = kvfi_now_ns() + i % 2 * KVFI_SECOND;
        pthread_mutex_lock(&scene.lock);
        assert_int_equal(kvfi_crew_push(&scene.crew, &lone->lane, &lone->item), 0);
        pthread_mutex_unlock(&scene.lock);
    }
    await(&scene, &scene.ended, 1000);
    scene_fini(&scene);
}

/* ---- no memory --------------------------------------------------------------------------------------------------- */

static void without_a_thread_a_push_fails_and_with_one_it_does_not(void **state)
{
    struct kvfi_crew_lane lanes[2] = {{.queued = 0}};
    struct test_item items[2] = {{.stands_still = true}, {.waits = false}};
    struct scene scene;

    (void)state;
    scene_init(&scene, &RULES);
    pthread_mutex_lock(&scene.lock);
    no_memory_from(0);
    assert_int_equal(kvfi_crew_push(&scene.crew, &lanes[0], &items[0].base), ENOMEM);
    assert_true(no_memory_end());
    assert_int_equal(lanes[0].queued, 0);
    pthread_mutex_unlock(&scene.lock);
    push(&scene, &lanes[0], &items[0]);
    await(&scene, &scene.begun, 1);
    no_memory_from(0);
    push(&scene, &lanes[1], &items[1]); /* waits for the one thread that there is */
    assert_true(no_memory_end());
    stop(&scene, &items[0]);
    await(&scene, &scene.ended, 2);
    assert_int_equal(thread_count(&scene), 1);
    scene_fini(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_that_stand_still_hold_up_no_other),
        cmocka_unit_test(lanes_that_come_at_once_have_a_thread_each),
        cmocka_unit_test(a_lane_has_its_share),
        cmocka_unit_test(items_of_a_lane_begin_in_order_and_lanes_take_turns),
        cmocka_unit_test(many_items_of_many_lanes_end_once_each),
        cmocka_unit_test(what_is_dropped_never_begins),
        cmocka_unit_test(a_stop_ends_one_item_alone),
        cmocka_unit_test(what_is_queued_expires_and_what_runs_does_not),
        cmocka_unit_test(fini_ends_what_runs_and_leaves_what_waits),
        cmocka_unit_test(an_end_may_free_item_and_lane),
        cmocka_unit_test(without_a_thread_a_push_fails_and_with_one_it_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
