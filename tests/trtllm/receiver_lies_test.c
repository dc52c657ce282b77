/* SPDX-License-Identifier: Apache-2.0 */
/* Reports that cannot be, and requests that every DP group is asked for. */
#include "receiver_scene.h"

#include "sys/clock.h"

/* ---- reports that cannot be -------------------------------------------------------------------------------------- */

static void denies_failed(struct script *ctx)
{
    script_result(ctx, 0, 1, true, OK);
    script_result(ctx, 0, 1, true, FAILED);
}

static void denies_done(struct script *ctx)
{
    script_result(ctx, 0, 1, true, FAILED);
    script_result(ctx, 0, 1, true, OK);
}

static void piece_after_failed(struct script *ctx)
{
    script_result(ctx, 0, 1, true, FAILED);
    script_result(ctx, 0, 1, false, OK);
}

static void foreign_rank(struct script *ctx) { script_result(ctx, 7, 1, true, FAILED); }
static void foreign_aux(struct script *ctx) { script_aux(ctx, 9, 1, OK); }
static void foreign_quiesced(struct script *ctx) { script_quiesced(ctx, 2, 1); }
static void unasked_aux(struct script *ctx) { script_aux(ctx, 0, 1, OK); }

static void foreign_piece(struct script *ctx)
{
    struct kvfi_trtllm_result result = {.ctx_rank = 0, .rid = 1, .slice = 1, .is_last = true, .word = OK};
    script_result_of(ctx, &result);
}

static void bounced(struct script *ctx)
{
    struct kvfi_trtllm_result result = {.ctx_rank = 0, .rid = 1, .is_last = true, .word = OK};
    struct kvfi_trtllm_packed message;
    int64_t eight = 8;
    struct kvfi_frame frames[5];

    kvfi_trtllm_pack_result(&message, &result);
    for (size_t i = 0; i < 5; i++)
        frames[i] = i < 2 ? (struct kvfi_frame){message.frames[i].bytes, message.frames[i].byte_count}
                          : (struct kvfi_frame){&eight, sizeof eight};
    script_frames(ctx, frames, 5);
}

static const struct {
    const char *name;
    void (*say)(struct script *ctx);
    bool ends_first; /* the first word ends it already */
    const char *text;
} LIES[] = {
    {"done, then failed", denies_failed, false, "contradicts what it reported"},
    {"failed, then done", denies_done, true, "contradicts what it reported"},
    {"failed, then a piece", piece_after_failed, true, "context rank 0 wrote a piece after its last word"},
    {"a rank that was not asked", foreign_rank, false, "context rank 7, which was not asked"},
    {"auxiliary data of nobody", foreign_aux, false, "context rank 9, which was not asked"},
    {"an acknowledgement of one that was not asked", foreign_quiesced, false, "which was not asked"},
    {"auxiliary data that was not asked for", unasked_aux, false, "which was never asked for"},
    {"a piece that was not asked for", foreign_piece, false, "reports of another piece"},
    {"a bounce region that was not offered", bounced, false, "reports of a bounce region"},
};

static void test_lies_close_admission_and_keep_memory(void **unused)
{
    (void)unused;
    for (size_t row = 0; row < sizeof LIES / sizeof LIES[0]; row++) {
        struct scene scene;
        struct gen_receive one;
        struct kvf_error error = {0};

        gen_init(&scene.gen, "gen");
        scene.gen.options.log.level = KVF_LOG_OFF;
        gen_open(&scene.gen);
        script_init(&scene.ctx, "ctx", 2);
        script_open(&scene.ctx, &scene.gen);
        gen_receive(&scene.gen, 1, scene.ctx.endpoint);
        script_requested(&scene.ctx, 2, 1);
        LIES[row].say(&scene.ctx);
        ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, LIES[row].ends_first ? KVF_ERR_REFUSED : KVF_ERR_IN_DOUBT, "");
        has_text(gen_event(&scene.gen, KVF_TRTLLM_EVENT_QUARANTINED, 1).text, LIES[row].text);
        for (int64_t rank = 0; rank < 2; rank++) { /* no later word helps */
            script_result(&scene.ctx, rank, 1, true, FAILED);
            script_quiesced(&scene.ctx, rank, 1);
        }
        is_kept(&scene, 1);
        assert_int_equal(gen_status(&scene.gen, 1).is_quarantined, 1);
        gen_receive_init(&one, 2, scene.ctx.endpoint);
        assert_int_equal(kvf_trtllm_worker_receive(scene.gen.worker, &one.receive, &error), KVF_ERR_IN_DOUBT);
        has_text(error.text, "receiver ownership admission is quarantined");
        assert_int_equal(kvf_trtllm_worker_shutdown(scene.gen.worker, 0, &error), KVF_ERR_TIMEOUT);
        end(&scene);
    }
}

/* ---- all DP groups are asked ------------------------------------------------------------------------------------- */

static void test_broadcast_expects_one_group(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_dp(&scene, 2, 2); /* ranks 0 and 2 are group 0, ranks 1 and 3 group 1 */
    gen_receive_aux(&scene.gen, 1, scene.ctx.endpoint, KVF_TRTLLM_NONE);
    script_requested(&scene.ctx, 4, 1);
    assert_int_equal(gen_status(&scene.gen, 1).expected, 2);
    assert_int_equal(gen_status(&scene.gen, 1).asked, 4);
    for (int64_t rank = 1; rank < 4; rank += 2) {
        script_result(&scene.ctx, rank, 1, true, OK);
        script_sync(&scene.ctx);
        gen_no_event(&scene.gen);
        script_aux(&scene.ctx, rank, 1, OK);
    }
    ended(&scene, 1, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
    gen_event(&scene.gen, KVF_TRTLLM_EVENT_SETTLED, 1);
    script_result(&scene.ctx, 0, 1, true, FAILED); /* its stored request expired: it says what is so */
    script_sync(&scene.ctx);
    assert_int_equal(scene.ctx.cancelled[0] + scene.ctx.cancelled[2], 0);
    assert_int_equal(gen_close_session(&scene.gen, 1), KVF_OK);
    gen_receive(&scene.gen, 2, scene.ctx.endpoint); /* admission is open */
    end(&scene);
}

static void test_cancelled_broadcast_needs_all(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_dp(&scene, 2, 1);
    gen_receive_aux(&scene.gen, 1, scene.ctx.endpoint, KVF_TRTLLM_NONE);
    script_requested(&scene.ctx, 2, 1);
    kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL);
    ended(&scene, 1, KVF_TRTLLM_STATE_CANCELLED, KVF_ERR_CANCELLED, "");
    script_until(&scene.ctx, &scene.ctx.cancelled[0], 1);
    script_until(&scene.ctx, &scene.ctx.cancelled[1], 1);
    script_quiesced(&scene.ctx, 1, 1);
    is_kept(&scene, 1); /* the other group may be the one that runs it */
    script_quiesced(&scene.ctx, 0, 1);
    settled(&scene, 1);
    end(&scene);
}

static void test_cancelled_broadcast_that_was_written(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_dp(&scene, 2, 1);
    gen_receive_aux(&scene.gen, 1, scene.ctx.endpoint, KVF_TRTLLM_NONE);
    script_requested(&scene.ctx, 2, 1);
    kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL);
    ended(&scene, 1, KVF_TRTLLM_STATE_CANCELLED, KVF_ERR_CANCELLED, "");
    script_result(&scene.ctx, 1, 1, true, OK);
    is_kept(&scene, 1);
    script_aux(&scene.ctx, 1, 1, FAILED);
    settled(&scene, 1); /* group 1 ran it and is done, so group 0 never will */
    end(&scene);
}

static void test_refusal_of_one_group_says_nothing_of_the_other(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_dp(&scene, 2, 1);
    gen_receive_aux(&scene.gen, 1, scene.ctx.endpoint, KVF_TRTLLM_NONE);
    script_requested(&scene.ctx, 2, 1);
    script_result(&scene.ctx, 0, 1, true, FAILED);
    script_aux(&scene.ctx, 0, 1, FAILED);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_REFUSED, "peer_rank=0");
    is_kept(&scene, 1);
    script_quiesced(&scene.ctx, 1, 1);
    settled(&scene, 1);
    end(&scene);
}

static void test_two_groups_write(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_dp(&scene, 2, 1);
    gen_close(&scene.gen);
    gen_init(&scene.gen, "gen");
    scene.gen.options.log.level = KVF_LOG_OFF;
    gen_open(&scene.gen);
    script_close(&scene.ctx);
    script_init_dp(&scene.ctx, "ctx", 2, 1);
    script_open(&scene.ctx, &scene.gen);
    gen_receive_aux(&scene.gen, 1, scene.ctx.endpoint, KVF_TRTLLM_NONE);
    script_requested(&scene.ctx, 2, 1);
    script_result(&scene.ctx, 1, 1, false, OK);
    script_result(&scene.ctx, 0, 1, true, OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_IN_DOUBT, "wrote, and group 1 before it");
    gen_event(&scene.gen, KVF_TRTLLM_EVENT_QUARANTINED, 1);
    end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies_close_admission_and_keep_memory),
        cmocka_unit_test(test_broadcast_expects_one_group),
        cmocka_unit_test(test_cancelled_broadcast_needs_all),
        cmocka_unit_test(test_cancelled_broadcast_that_was_written),
        cmocka_unit_test(test_refusal_of_one_group_says_nothing_of_the_other),
        cmocka_unit_test(test_two_groups_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
