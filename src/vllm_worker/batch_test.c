/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that write: peers that stand still do not use them up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "sys/clock.h"
#include "vllm_worker/batch.h"

enum { STILL = 150, EACH = 2 };

struct scene {
    struct kvfi_loop loop;
    bool go_on;      /* lock of the loop, as what follows */
    int begun, ended, late;
};

/* A peer that stands still, unless it is the last. */
static int write_slowly(void *context, struct kvfi_vllm_batch *batch, struct kvf_error *reason)
{
    struct scene *scene = context;

    (void)reason;
    pthread_mutex_lock(&scene->loop.lock);
    scene->begun++;
    if (strcmp(batch->session, "late:1") == 0) scene->late++;
    pthread_cond_broadcast(&scene->loop.changed);
    while (!scene->go_on && strcmp(batch->session, "late:1") != 0)
        kvfi_loop_wait(&scene->loop, kvfi_now_ns() + KVFI_SECOND);
    pthread_mutex_unlock(&scene->loop.lock);
    return 0;
}

static void ended(void *owner, struct kvfi_vllm_batch *batch)
{
    struct scene *scene = owner;

    (void)batch;
    pthread_mutex_lock(&scene->loop.lock);
    scene->ended++;
    pthread_cond_broadcast(&scene->loop.changed);
    pthread_mutex_unlock(&scene->loop.lock);
}

static void await(struct scene *scene, const int *number, int expected)
{
    int64_t deadline = kvfi_now_ns() + 20 * KVFI_SECOND;

    pthread_mutex_lock(&scene->loop.lock);
    while (*number < expected && kvfi_now_ns() < deadline) kvfi_loop_wait(&scene->loop, deadline);
    assert_true(*number >= expected);
    pthread_mutex_unlock(&scene->loop.lock);
}

static void peers_that_stand_still_leave_threads_to_others(void **state)
{
    static struct kvfi_vllm_batch batches[STILL * EACH + 1];
    static char sessions[STILL][32];
    struct scene scene = {.begun = 0};
    const struct kvfi_vllm_writer writer = {write_slowly, &scene};
    struct kvfi_vllm_writers *writers;
    struct kvf_error error;

    (void)state;
    assert_int_equal(kvfi_loop_init(&scene.loop, &scene, NULL, &error), KVF_OK);
    assert_int_equal(kvfi_loop_start(&scene.loop, &error), KVF_OK);
    assert_int_equal(kvfi_vllm_writers_create(&scene.loop, &writer, &writers, &error), KVF_OK);
    for (int i = 0; i < STILL * EACH; i++) {
        if (i % EACH == 0) snprintf(sessions[i / EACH], sizeof sessions[0], "still:%d", i / EACH);
        batches[i] = (struct kvfi_vllm_batch){.session = sessions[i / EACH], .ended = ended};
        assert_int_equal(kvfi_vllm_writers_submit(writers, &batches[i], &error), KVF_OK);
    }
    await(&scene, &scene.begun, STILL); /* one of each at least */
    batches[STILL * EACH] = (struct kvfi_vllm_batch){.session = "late:1", .ended = ended};
    assert_int_equal(kvfi_vllm_writers_submit(writers, &batches[STILL * EACH], &error), KVF_OK);
    await(&scene, &scene.late, 1);
    await(&scene, &scene.ended, 1);
    pthread_mutex_lock(&scene.loop.lock);
    scene.go_on = true;
    pthread_cond_broadcast(&scene.loop.changed);
    pthread_mutex_unlock(&scene.loop.lock);
    await(&scene, &scene.ended, STILL * EACH + 1);
    kvfi_vllm_writers_destroy(writers);
    kvfi_loop_stop(&scene.loop);
    kvfi_loop_fini(&scene.loop);
}

/* Stands still until all of a round have begun. */
static int write_together(void *context, struct kvfi_vllm_batch *batch, struct kvf_error *reason)
{
    struct scene *scene = context;

    (void)batch;
    (void)reason;
    pthread_mutex_lock(&scene->loop.lock);
    scene->begun++;
    pthread_cond_broadcast(&scene->loop.changed);
    while (scene->begun < scene->late) kvfi_loop_wait(&scene->loop, kvfi_now_ns() + KVFI_SECOND);
    pthread_mutex_unlock(&scene->loop.lock);
    return 0;
}

/* However many threads idle: who comes all at once finds one each. */
static void peers_that_come_at_once_have_a_thread_each(void **state)
{
    enum { ROUNDS = 24 };
    static struct kvfi_vllm_batch batches[ROUNDS + 2];
    static char sessions[ROUNDS + 2][32];
    struct scene scene = {.begun = 0};
    const struct kvfi_vllm_writer writer = {write_together, &scene};
    struct kvfi_vllm_writers *writers;
    struct kvf_error error;

    (void)state;
    for (int i = 0; i < ROUNDS + 2; i++) snprintf(sessions[i], sizeof sessions[0], "peer:%d", i);
    assert_int_equal(kvfi_loop_init(&scene.loop, &scene, NULL, &error), KVF_OK);
    assert_int_equal(kvfi_loop_start(&scene.loop, &error), KVF_OK);
    assert_int_equal(kvfi_vllm_writers_create(&scene.loop, &writer, &writers, &error), KVF_OK);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_mutex_lock(&scene.loop.lock);
        scene.begun = scene.ended = 0;
        scene.late = round + 2; /* how many are waited for */
        pthread_mutex_unlock(&scene.loop.lock);
        for (int i = 0; i < round + 2; i++) {
            batches[i] = (struct kvfi_vllm_batch){.session = sessions[i], .ended = ended};
            assert_int_equal(kvfi_vllm_writers_submit(writers, &batches[i], &error), KVF_OK);
        }
        await(&scene, &scene.ended, round + 2);
    }
    kvfi_vllm_writers_destroy(writers);
    kvfi_loop_stop(&scene.loop);
    kvfi_loop_fini(&scene.loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_that_stand_still_leave_threads_to_others),
        cmocka_unit_test(peers_that_come_at_once_have_a_thread_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
