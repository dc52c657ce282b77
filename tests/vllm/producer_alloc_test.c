/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of a producer's threads is refused in turn, that one alone or all from it on: pulls may get no
 * answer or another one, but nothing hangs, each request ends once, and what comes later works. */
#include "producer_kit.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "base/no_memory_kit.h"

#define LAYER_0 "model.layers.0.self_attn"

enum { MOST = 1000, PATIENCE_MS = 150 };

static const struct kvf_vllm_region OWN[] = {{.layer_name = LAYER_0, .base_addr = 0x1000, .block_len = 4096,
                                              .kv_block_len = 4096, .row_offset = KVF_VLLM_NO_ROW}};
static const struct kvf_vllm_region THEIRS[] = {{.layer_name = LAYER_0, .base_addr = 0x200000, .block_len = 4096,
                                                 .kv_block_len = 4096, .row_offset = KVF_VLLM_NO_ROW}};
static const struct asker D = {.regions = THEIRS, .region_count = 1, .layout_id = 5};

/* A step that may find no memory. True when it was taken. */
static bool step(struct producer *producer, const struct kvf_vllm_send *sends, size_t send_count, const char *dropped)
{
    const struct kvf_vllm_step step = {.struct_size = sizeof step, .sends = sends, .send_count = send_count,
                                       .not_processed = &dropped, .not_processed_count = dropped != NULL};
    enum kvf_status status = kvf_vllm_worker_step(producer->worker, &step, NULL);

    assert_true(status == KVF_OK || status == KVF_ERR_NO_MEMORY);
    return status == KVF_OK;
}

/* Until the pull was taken in, or time enough has passed. */
static void taken(struct producer *producer, int64_t pulls)
{
    int64_t deadline = kvfi_now_ns() + 20 * KVFI_MS;
    struct kvf_vllm_worker_stats stats;

    do {
        stats = producer_stats(producer);
        if (stats.pulls_received + stats.malformed >= pulls) return;
        poll(NULL, 0, 1);
    } while (kvfi_now_ns() < deadline);
}

/* All of a few requests. How many were ready. */
static int some_requests(struct producer *producer)
{
    const struct kvf_vllm_ids one[] = {IDS(1)}, two[] = {IDS(2)}, three[] = {IDS(3)};
    const struct kvfi_vllm_wanted wanted[] = {{"d-a", "x-a", three, 1}, {"d-b", "x-b", three, 1}};
    const struct kvf_vllm_send sends[] = {{"p-a", "x-a", one, 1}, {"p-b", "x-b", NULL, 0}};
    const struct kvf_vllm_send later[] = {{"p-b", "x-b", two, 1}, {"p-c", "x-c", one, 1}};
    void *pulls[4];
    int ready = 0;

    pulls[0] = pull_send(producer, &D, wanted, 2);
    taken(producer, 1);
    ready += step(producer, sends, 2, NULL);
    pulls[1] = pull_send(producer, &D, wanted, 2); /* a repeat */
    taken(producer, 2);
    ready += 2 * step(producer, later, 2, NULL);
    pulls[2] = pull_one(producer, &D, "d-c", "x-c", one, 1);
    taken(producer, 3);
    step(producer, NULL, 0, "x-d");
    pulls[3] = pull_one(producer, &D, "d-d", "x-d", one, 1);
    taken(producer, 4);
    for (int i = 0; i < 4; i++) pull_close(pulls[i]);
    return ready;
}

static void try_once(long allowed, bool alone, bool *refused)
{
    struct producer producer;
    int64_t deadline;
    size_t over = 0;
    int ready;
    void *pull;

    producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1, .abort_ms = PATIENCE_MS});
    if (alone) no_memory_once(allowed);
    else no_memory_from(allowed);
    ready = some_requests(&producer);
    *refused = no_memory_end();
    deadline = kvfi_now_ns() + 20 * KVFI_SECOND;
    while (over < (size_t)ready && kvfi_now_ns() < deadline) {
        struct kvf_vllm_done done = {.struct_size = sizeof done};

        assert_int_equal(kvf_vllm_worker_collect(producer.worker, &done, NULL), KVF_OK);
        over += done.finished_sending_count;
        kvf_vllm_done_release(&done);
        poll(NULL, 0, 1);
    }
    assert_int_equal(over, ready);
    producer_ready(&producer, "p-good", "x-good", ONE_GROUP(1));
    pull = pull_one(&producer, &D, "d-good", "x-good", ONE_GROUP(3));
    pull_expect_id(pull, KVFI_VLLM_FINISH, "d-good", NULL, NULL, 5);
    pull_close(pull);
    assert_string_equal(producer_finished(&producer, 1), "p-good");
    assert_int_equal(kvf_vllm_worker_shutdown(producer.worker, 20 * KVFI_SECOND, NULL), KVF_OK);
    assert_int_equal(producer_stats(&producer).pulls_waiting, 0);
    producer_close(&producer);
}

static void gap_16_2_refused_allocations(void **state)
{
    (void)state;
    for (int alone = 0; alone < 2; alone++) {
        bool refused = true;
        long allowed = 0;

        for (; refused; allowed++) {
            assert_true(allowed < MOST);
            try_once(allowed, alone != 0, &refused);
        }
        print_message("%ld allocations\n", allowed);
        assert_true(allowed > 20);
    }
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

struct opening {
    struct producer producer;
    enum kvf_status status;
};

/* In a thread that is not spared. */
static void *open_one(void *argument)
{
    struct opening *opening = argument;
    struct kvf_error error = {.text = ""};

    opening->status = producer_try_open(&opening->producer, &(struct producer_setup){.regions = OWN, .region_count = 1},
                                        &error);
    return NULL;
}

static void opening_without_memory(void **state)
{
    bool refused = true;
    long allowed = 0;

    (void)state;
    for (; refused; allowed++) {
        struct opening opening;
        pthread_t thread;

        assert_true(allowed < MOST);
        no_memory_from(allowed);
        assert_int_equal(pthread_create(&thread, NULL, open_one, &opening), 0);
        pthread_join(thread, NULL);
        refused = no_memory_end();
        if (opening.status != KVF_OK)
            assert_true(refused && (opening.status == KVF_ERR_NO_MEMORY || opening.status == KVF_ERR_SYSTEM));
        else
            assert_string_not_equal(opening.producer.address, "");
        producer_close(&opening.producer);
    }
    assert_true(allowed > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gap_16_2_refused_allocations),
                                       cmocka_unit_test(opening_without_memory)};

    no_memory_spare_thread();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
