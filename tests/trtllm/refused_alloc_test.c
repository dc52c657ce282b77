/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of this tree's own code is refused in turn while a worker is opened, completed and receives: each
 * time the answer is "out of memory" or a session that ends, nothing is left behind, and the next try works. */
#include "worker_kit.h"

#include <inttypes.h>
#include <string.h>

#include "base/no_memory_kit.h"
#include "sys/clock.h"

static void check_status(enum kvf_status status, const struct kvf_error *error, long allowed)
{
    if (status != KVF_OK && status != KVF_ERR_NO_MEMORY && status != KVF_ERR_AGAIN)
        fail_msg("status %d with %ld allocations allowed: %s", status, allowed, error->text);
}

static void test_open_and_complete(void **unused)
{
    bool all = false;
    (void)unused;
    for (long allowed = 0; !all; allowed++) {
        struct kvf_trtllm_endpoints ends = {.struct_size = sizeof ends};
        kvf_trtllm_worker *worker = NULL;
        struct kvf_error error = {0};
        enum kvf_status status;
        struct gen gen;

        assert_true(allowed < 2000);
        gen_init(&gen, "gen");
        gen.options.rank = rank_kit_make(&gen.kit);
        gen.options.serve_info = 1;
        gen.options.log.level = KVF_LOG_OFF;
        no_memory_from(allowed);
        status = kvf_trtllm_worker_open(&gen.options, &worker, &error);
        check_status(status, &error, allowed);
        if (status == KVF_OK) {
            const char *senders[] = {ends.sender};
            kvf_trtllm_worker_endpoints(worker, &ends, NULL);
            check_status(kvf_trtllm_worker_complete(worker, NULL, 0, senders, 1, &error), &error, allowed);
        }
        all = !no_memory_end();
        assert_true(!all || status == KVF_OK);
        kvf_trtllm_worker_close(worker);
        kvf_trtllm_rank_release((kvf_trtllm_rank *)(uintptr_t)gen.options.rank);
    }
}

/* Whatever is refused on the way, the session has one end, and is settled once its writer, if it was asked, has spoken.
 * Answers of a context are made without refusals, since both sides of this test are in one process. */
static void test_receive(void **unused)
{
    bool all = false;
    int64_t rid = 1;
    (void)unused;
    for (long allowed = 0; !all; allowed++, rid++) {
        struct gen_receive one;
        struct kvf_error error = {0};
        struct script ctx;
        struct gen gen;
        enum kvf_status status;

        assert_true(allowed < 2000);
        gen_init(&gen, "gen");
        gen.options.log.level = KVF_LOG_OFF;
        gen.options.first_contact_timeout_ns = 100 * KVFI_MS;
        gen_open(&gen);
        script_init(&ctx, "ctx", 1);
        script_open(&ctx, &gen);
        gen_receive_init(&one, rid, ctx.endpoint);
        no_memory_from(allowed);
        status = kvf_trtllm_worker_receive(gen.worker, &one.receive, &error);
        all = !no_memory_end();
        check_status(status, &error, allowed);
        if (status == KVF_OK) {
            struct kvf_trtllm_event event = {0};
            for (int i = 0; i < 500 && kvf_trtllm_worker_poll(gen.worker, &event, 1) == 0; i++) {
                script_pump(&ctx);
                if (ctx.requested[0] > 0)
                    script_result(&ctx, 0, rid, true, KVFI_TRTLLM_SUCCESS);
            }
            assert_int_equal(event.kind, KVF_TRTLLM_EVENT_ENDED);
            gen_event(&gen, KVF_TRTLLM_EVENT_SETTLED, rid);
        }
        assert_true(!all || status == KVF_OK);
        gen_close(&gen);
        script_close(&ctx);
    }
}

/* The same with the answer of the context, of which an instance is made and asked. */
static void test_first_contact(void **unused)
{
    bool all = false;
    (void)unused;
    for (long allowed = 0; !all; allowed++) {
        struct script ctx;
        struct gen gen;
        struct kvf_trtllm_event event = {0};

        assert_true(allowed < 4000);
        gen_init(&gen, "gen");
        gen.options.log.level = KVF_LOG_OFF;
        gen_open(&gen);
        script_init(&ctx, "ctx", 1);
        script_open(&ctx, &gen);
        ctx.mute = true;
        gen_receive(&gen, 1, ctx.endpoint);
        script_until(&ctx, &ctx.asked, 1);
        no_memory_from(allowed);
        script_answer(&ctx); /* from here on only the worker allocates */
        while (kvf_trtllm_worker_wait(gen.worker, &event, 1, 0) == 0 && gen_status(&gen, 1).asked == 0)
            continue;
        all = !no_memory_end();
        if (event.kind == 0) {
            script_requested(&ctx, 1, 1);
            script_result(&ctx, 0, 1, true, KVFI_TRTLLM_SUCCESS);
            event = gen_event(&gen, KVF_TRTLLM_EVENT_ENDED, 1);
            assert_int_equal(event.status, KVF_OK);
        } else {
            assert_int_equal(event.kind, KVF_TRTLLM_EVENT_ENDED);
            assert_int_not_equal(event.status, KVF_OK);
        }
        gen_event(&gen, KVF_TRTLLM_EVENT_SETTLED, 1);
        gen_close(&gen);
        script_close(&ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_and_complete),
        cmocka_unit_test(test_receive),
        cmocka_unit_test(test_first_contact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
