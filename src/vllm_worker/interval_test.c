/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's intervals: each tells what came since the one before. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "vllm_worker/worker.h"

static enum kvf_status run_work(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    (void)argument;
    (void)error;
    kvfi_vllm_record_transfer(&worker->record, 5, 4096, 2);
    worker->stats.failed_recvs++;
    return KVF_OK;
}

static void tells_what_came_since_the_last(void **state)
{
    struct kvf_vllm_interval interval = {.struct_size = sizeof interval}, small = {.struct_size = 8};
    struct kvf_vllm_worker_options options;
    kvf_vllm_worker *worker = NULL;
    struct kvf_error error = {0};

    (void)state;
    kvf_vllm_worker_options_init(&options, sizeof options);
    options.role = KVF_VLLM_CONSUMER;
    options.engine_id = "engine";
    options.total_kv_heads = 1;
    if (kvf_vllm_worker_open(&options, &worker, &error) != KVF_OK) fail_msg("%s", error.text);
    assert_int_equal(kvf_vllm_worker_take_interval(worker, &small, NULL), KVF_ERR_INVALID_ARGUMENT);
    for (int64_t count = 0; count < 3; count++) {
        for (int64_t i = 0; i < count; i++)
            assert_int_equal(kvfi_vllm_worker_call(worker, run_work, NULL, NULL), KVF_OK);
        assert_int_equal(kvf_vllm_worker_take_interval(worker, &interval, NULL), KVF_OK);
        assert_int_equal(interval.transfer_count, count);
        assert_int_equal(interval.failed_recvs, count);
        assert_int_equal(interval.failed_transfers + interval.expired_reqs, 0);
        if (count) assert_int_equal(interval.transfers[count - 1].bytes, 4096);
        kvf_vllm_interval_release(&interval);
    }
    assert_int_equal(kvfi_vllm_worker_call(worker, run_work, NULL, NULL), KVF_OK); /* nobody asks for it */
    kvf_vllm_worker_close(worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tells_what_came_since_the_last)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
