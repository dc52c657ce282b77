/* SPDX-License-Identifier: Apache-2.0 */
/* What a scheduler half is made of, what its steps tell and when it is forgotten, and every allocation refused. */
#include <stdio.h>
#include <string.h>

#include "base/no_memory_kit.h"
#include "vllm/scheduler_kit.h"

static const int64_t ids[] = {5, 6, 7};

static void refuses_options(void **state)
{
    static const char *const texts[] = {
        "scheduler: role is 0, expected 1 to 3",
        "scheduler: role is 4, expected 1 to 3",
        "scheduler: group_count is 0, expected 1 to 1024",
        "scheduler: group_count is 1025, expected 1 to 1024",
        "scheduler: groups[1].kind is 0, expected 1 to 4",
        "scheduler: groups[1].block_tokens is 0, expected at least 1",
        "scheduler: groups[1].window_tokens is -1, expected at least 0",
        "scheduler: groups[1].window_tokens is 8, expected 0 for a group without attention",
        "scheduler: struct_size is 2, expected at least 8",
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        kvf_vllm_scheduler *scheduler = NULL;
        struct kvf_error error = {0};
        struct scheduler_kit kit;

        scheduler_kit_init(&kit, KVF_VLLM_BOTH);
        kit.groups[1] = kit.groups[0];
        kit.options.group_count = 2;
        if (i == 0) kit.options.role = 0;
        if (i == 1) kit.options.role = 4;
        if (i == 2) kit.options.group_count = 0;
        if (i == 3) kit.options.group_count = 1025;
        if (i == 4) kit.groups[1].kind = 0;
        if (i == 5) kit.groups[1].block_tokens = 0;
        if (i == 6) kit.groups[1].window_tokens = -1;
        if (i == 7) kit.groups[1] = (struct kvf_vllm_group){KVF_VLLM_MAMBA, 1, 16, 8};
        if (i == 8) kit.options.struct_size = 2;
        assert_int_equal(kvf_vllm_scheduler_create(&kit.options, &scheduler, &error), KVF_ERR_INVALID_ARGUMENT);
        assert_string_equal(error.text, texts[i]);
        assert_null(scheduler);
    }
    kvf_vllm_scheduler_destroy(NULL);
}

static void refuses_requests(void **state)
{
    static const char too_long[KVF_VLLM_ID_BYTES + 1] = {[0 ... KVF_VLLM_ID_BYTES - 1] = 'x'};
    struct kvf_vllm_step step = {.struct_size = 8};
    struct scheduler_kit kit;

    (void)state;
    scheduler_kit_init(&kit, KVF_VLLM_BOTH);
    scheduler_kit_open(&kit);
    for (int i = 0; i < 7; i++) {
        struct {
            struct kvf_vllm_request request;
            char more[16];
        } newer = {.request = scheduler_kit_send()};
        static const int64_t below[] = {4, -1};
        struct kvf_vllm_ids blocks = {ids, 3};
        enum kvf_status expected = KVF_ERR_INVALID_ARGUMENT;
        int32_t delay_free = 7;
        int finish = KVF_VLLM_FINISHED_LENGTH;

        if (i == 0) newer.request.req_id = NULL;
        if (i == 1) newer.request.req_id = too_long;
        if (i == 2) newer.request.prompt_tokens = -1;
        if (i == 3) newer.request.struct_size = sizeof newer.request - 8;
        if (i == 4) finish = 4;
        if (i == 5) blocks = (struct kvf_vllm_ids){below, 2};
        if (i == 6) newer.request.struct_size = sizeof newer;
        if (i == 6) newer.more[3] = 1;
        if (i == 5) expected = KVF_ERR_IDS;
        if (i == 6) expected = KVF_ERR_NEWER_OPTION;
        if (kvf_vllm_scheduler_finished(kit.scheduler, &newer.request, finish, &blocks, 1, &delay_free, NULL) !=
            expected)
            fail_msg("row %d", i);
        assert_int_equal(delay_free, 7);
    }
    assert_int_equal(kvf_vllm_scheduler_step(kit.scheduler, &step, NULL), KVF_ERR_INVALID_ARGUMENT);
    step = scheduler_kit_step(&kit);
    assert_int_equal(step.recv_count + step.send_count + step.not_processed_count, 0);
    scheduler_kit_close(&kit);
}

/* ---- what a step tells -------------------------------------------------------------------------------------- */

static void finish(struct scheduler_kit *kit, const char *req_id, const char *transfer_id, int how, size_t blocks)
{
    struct kvf_vllm_request request = scheduler_kit_send();
    struct kvf_vllm_ids group = {ids, blocks};
    int32_t delay_free;

    request.req_id = req_id;
    request.transfer_id = transfer_id;
    assert_int_equal(kvf_vllm_scheduler_finished(kit->scheduler, &request, how, &group, 1, &delay_free, NULL), KVF_OK);
}

/* First the placeholder, then its blocks: in one step only the latter is told, in the former's place. */
static void tells_the_last_word_in_the_first_place(void **state)
{
    struct scheduler_kit kit;
    struct kvf_vllm_step step;

    (void)state;
    scheduler_kit_init(&kit, KVF_VLLM_PRODUCER);
    scheduler_kit_open(&kit);
    for (int i = 0; i < 3; i++) {
        struct kvf_vllm_request request = scheduler_kit_send();
        char req_id[8];

        (void)snprintf(req_id, sizeof req_id, "r%d", 2 - i);
        request.req_id = req_id;
        assert_int_equal(kvf_vllm_scheduler_allocated(kit.scheduler, &request, NULL, 0, 0, NULL), KVF_OK);
    }
    finish(&kit, "r1", "t", KVF_VLLM_FINISHED_LENGTH, 2);
    finish(&kit, "x", "gone", KVF_VLLM_FINISHED_ABORTED, 1);
    finish(&kit, "y", "gone", KVF_VLLM_FINISHED_ABORTED, 1);
    step = scheduler_kit_step(&kit);
    assert_int_equal(step.send_count, 3);
    assert_string_equal(step.sends[0].p_req_id, "r2");
    assert_string_equal(step.sends[1].p_req_id, "r1");
    assert_string_equal(step.sends[1].transfer_id, "t");
    scheduler_kit_expect_groups("r1", step.sends[1].groups, step.sends[1].group_count, "5 6");
    assert_int_equal(step.sends[0].group_count + step.sends[2].group_count, 0);
    assert_int_equal(step.not_processed_count, 1);
    assert_int_equal(step.recv_count, 0);
    step = scheduler_kit_step(&kit);
    assert_int_equal(step.send_count + step.not_processed_count, 0);
    scheduler_kit_close(&kit);
}

/* What was told stays readable while the next step is gathered. */
static void lends_a_step_until_the_next(void **state)
{
    struct scheduler_kit kit;
    struct kvf_vllm_step first, second;

    (void)state;
    scheduler_kit_init(&kit, KVF_VLLM_PRODUCER);
    scheduler_kit_open(&kit);
    finish(&kit, "a", "ta", KVF_VLLM_FINISHED_LENGTH, 1);
    first = scheduler_kit_step(&kit);
    for (int i = 0; i < 100; i++) finish(&kit, "b", "tb", KVF_VLLM_FINISHED_LENGTH, 3);
    assert_string_equal(first.sends[0].p_req_id, "a");
    scheduler_kit_expect_groups("a", first.sends[0].groups, first.sends[0].group_count, "5");
    second = scheduler_kit_step(&kit);
    assert_int_equal(second.send_count, 1);
    assert_string_equal(second.sends[0].p_req_id, "b");
    scheduler_kit_close(&kit);
}

static void gathers_many(void **state)
{
    enum { MANY = 5000 };
    struct scheduler_kit kit;
    struct kvf_vllm_step step;
    char req_id[16];

    (void)state;
    scheduler_kit_init(&kit, KVF_VLLM_PRODUCER);
    scheduler_kit_open(&kit);
    for (int i = 0; i < 2 * MANY; i++) {
        (void)snprintf(req_id, sizeof req_id, "r%d", i * 7919 % MANY);
        finish(&kit, req_id, req_id, KVF_VLLM_FINISHED_LENGTH, i < MANY ? 1 : 3);
    }
    step = scheduler_kit_step(&kit);
    assert_int_equal(step.send_count, MANY);
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(req_id, sizeof req_id, "r%d", i * 7919 % MANY);
        assert_string_equal(step.sends[i].p_req_id, req_id);
        assert_int_equal(step.sends[i].groups[0].count, 3);
    }
    scheduler_kit_close(&kit);
}

/* ---- no memory ---------------------------------------------------------------------------------------------- */

/* Tries each call again until it succeeds, with one allocation refused first: a call that fails changed nothing. */
static enum kvf_status do_all(struct scheduler_kit *kit, struct kvf_error *error)
{
    struct kvf_vllm_request fetch = scheduler_kit_fetch(), send = scheduler_kit_send(), other = scheduler_kit_send();
    struct kvf_vllm_ids blocks = {ids, 3};
    struct kvf_vllm_step step = {.struct_size = sizeof step};
    enum kvf_status failed = KVF_OK, status;
    int32_t delay_free;

    other.req_id = "id-2";
    other.transfer_id = "t-2";
    while ((status = kvf_vllm_scheduler_create(&kit->options, &kit->scheduler, error)) != KVF_OK) failed = status;
    while ((status = kvf_vllm_scheduler_allocated(kit->scheduler, &fetch, &blocks, 1, 40, error)) != KVF_OK) {
        assert_int_equal(fetch.do_remote_prefill, 1);
        failed = status;
    }
    while ((status = kvf_vllm_scheduler_allocated(kit->scheduler, &send, &blocks, 1, 0, error)) != KVF_OK)
        failed = status;
    while ((status = kvf_vllm_scheduler_finished(kit->scheduler, &send, KVF_VLLM_FINISHED_LENGTH, &blocks, 1,
                                                 &delay_free, error)) != KVF_OK)
        failed = status;
    while ((status = kvf_vllm_scheduler_finished(kit->scheduler, &other, KVF_VLLM_FINISHED_ABORTED, &blocks, 1,
                                                 &delay_free, error)) != KVF_OK)
        failed = status;
    while ((status = kvf_vllm_scheduler_step(kit->scheduler, &step, error)) != KVF_OK) failed = status;
    assert_int_equal(step.recv_count, 1);
    scheduler_kit_expect_groups("recv", step.recvs[0].groups, step.recvs[0].group_count, "5 6 7");
    assert_int_equal(step.send_count, 1);
    scheduler_kit_expect_groups("send", step.sends[0].groups, step.sends[0].group_count, "5 6 7");
    assert_int_equal(step.not_processed_count, 1);
    assert_string_equal(step.not_processed[0], "t-2");
    scheduler_kit_close(kit);
    return failed;
}

static void loses_nothing_without_memory(void **state)
{
    struct scheduler_kit kit;
    long allowed = 0;
    bool refused = true;

    (void)state;
    while (refused) {
        struct kvf_error error = {0};
        enum kvf_status status;

        scheduler_kit_init(&kit, KVF_VLLM_BOTH);
        no_memory_once(allowed++);
        status = do_all(&kit, &error);
        refused = no_memory_end();
        assert_int_equal(status, refused ? KVF_ERR_NO_MEMORY : KVF_OK);
        assert_int_equal(refused, error.text[0] != '\0');
    }
    assert_in_range(allowed, 15, 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_options),
        cmocka_unit_test(refuses_requests),
        cmocka_unit_test(tells_the_last_word_in_the_first_place),
        cmocka_unit_test(lends_a_step_until_the_next),
        cmocka_unit_test(gathers_many),
        cmocka_unit_test(loses_nothing_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
