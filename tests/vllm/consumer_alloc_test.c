/* SPDX-License-Identifier: Apache-2.0 */
/* A consumer that gets no memory, at each of its allocations in turn: a step is refused as a whole, a request fails and
 * is told, and nothing that is over is lost. */
#include <stdio.h>
#include <string.h>

#include "base/no_memory_kit.h"
#include "consumer_kit.h"

enum { MOST_ALLOCATIONS = 400 };

/* What came of one request. */
struct fate {
    int finished, failed;
};

static void collect(struct dec *dec, struct fate *fate)
{
    struct kvf_vllm_done done = {.struct_size = sizeof done};
    enum kvf_status status = kvf_vllm_worker_collect(dec->worker, &done, NULL);

    if (status != KVF_OK) {
        assert_int_equal(status, KVF_ERR_NO_MEMORY);
        return;
    }
    for (size_t i = 0; i < done.finished_recving_count; i++)
        assert_string_equal(done.finished_recving[i], "a");
    assert_true(done.invalid_block_count == 0 || done.finished_recving_count == 1);
    fate->finished += (int)done.finished_recving_count;
    fate->failed += done.invalid_block_count == 2;
    kvf_vllm_done_release(&done);
}

/* Answers whatever comes until the request is over; says it again when an answer was not understood. */
static void run_until_over(struct scene *scene, struct fate *fate)
{
    int64_t end_ns = kvfi_now_ns() + 20 * KVFI_SECOND;
    struct ask ask = {0};
    int64_t malformed = 0;

    while (fate->finished == 0) {
        struct kvf_vllm_worker_stats stats;

        if (kvfi_now_ns() > end_ns)
            fail_msg("the request is never over");
        if (prod_try_ask(&scene->prod, &ask))
            prod_finish(&scene->prod, &ask, "a");
        stats = dec_stats(&scene->dec);
        if (stats.malformed > malformed && ask.bytes != NULL) {
            malformed = stats.malformed;
            prod_finish(&scene->prod, &ask, "a");
        }
        collect(&scene->dec, fate);
    }
    ask_close(&ask);
}

static enum kvf_status try_step(struct scene *scene)
{
    struct kvf_vllm_ids ids = {.ids = (const int64_t[]){4, 5}, .count = 2};
    struct kvf_vllm_recv recv = {.d_req_id = "a", .transfer_id = "x", .remote_engine_id = "p-engine",
                                 .remote_bootstrap_addr = scene->reg.url, .groups = &ids, .group_count = 1};
    struct kvf_vllm_step step = {.struct_size = sizeof step, .recvs = &recv, .recv_count = 1};

    return kvf_vllm_worker_step(scene->dec.worker, &step, NULL);
}

/* True when an allocation was refused: then there may be a next one. */
static bool run_with(long allowed, int *refused_steps, int *failures)
{
    struct scene scene;
    struct fate fate = {0};
    enum kvf_status status;
    bool refused;

    scene_open(&scene);
    no_memory_once(allowed);
    status = try_step(&scene);
    if (status != KVF_OK) {
        assert_int_equal(status, KVF_ERR_NO_MEMORY);
        ++*refused_steps;
        prod_no_ask(&scene.prod);
        assert_int_equal(dec_stats(&scene.dec).pulls_sent, 0);
        assert_int_equal(try_step(&scene), KVF_OK);
    }
    run_until_over(&scene, &fate);
    refused = no_memory_end();
    assert_int_equal(fate.finished, 1);
    *failures += fate.failed;
    assert_int_equal(dec_stats(&scene.dec).failed_recvs, fate.failed);
    assert_int_equal(dec_stats(&scene.dec).unsettled, 0);
    scene_close(&scene);
    return refused;
}

static void loses_nothing_without_memory(void **state)
{
    int refused_steps = 0, failures = 0;
    long allowed = 0;

    (void)state;
    no_memory_spare_thread();
    while (run_with(allowed, &refused_steps, &failures) && allowed < MOST_ALLOCATIONS)
        allowed++;
    assert_true(allowed < MOST_ALLOCATIONS);
    assert_true(refused_steps >= 3);
    assert_true(failures >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(loses_nothing_without_memory)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
