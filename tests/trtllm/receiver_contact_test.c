/* SPDX-License-Identifier: Apache-2.0 */
/* First contact: an info endpoint that fits, that does not, that is silent, and behind which somebody else appears. */
#include "receiver_scene.h"

#include <stdio.h>

#include "sys/clock.h"

/* ---- first contact ------------------------------------------------------------------------------------------ */

static void bad_heads(struct script *ctx) { ctx->kit.views[0][1].num_kv_heads = KVF_TRTLLM_NONE; }
static void bad_roles(struct script *ctx) { rank_kit_role(&ctx->kit, 0, 1, "other_kv"); }
static void bad_draft(struct script *ctx) { ctx->kit.spec.num_draft_layers = 2; }
static void bad_replay(struct script *ctx) { ctx->kit.spec.bounded_replay_on_generation = 1; }
static void bad_version(struct script *ctx) { ctx->kit.spec.protocol_version = KVF_TRTLLM_PROTOCOL_VERSION + 1; }
static void bad_mla(struct script *ctx) { ctx->kit.attention.is_mla = 1; }
static void bad_dims(struct script *ctx) { ctx->kit.attention.dims_per_head = 4; }

static const struct {
    const char *name;
    void (*spoil)(struct script *ctx);
    int status;
    const char *text;
} BAD[] = {
    {"missing heads", bad_heads, KVF_ERR_INCOMPATIBLE, "must publish a positive num_kv_heads"},
    {"other roles", bad_roles, KVF_ERR_INCOMPATIBLE, "has no peer view with the same roles"},
    {"draft layers", bad_draft, KVF_ERR_INCOMPATIBLE, "unified draft KV layer count differs"},
    {"bounded replay", bad_replay, KVF_ERR_INCOMPATIBLE, "local=False, peer=True"},
    {"protocol version", bad_version, KVF_ERR_VERSION, "protocol version"},
    {"a rule that upstream checks on the other side only", bad_mla, KVF_ERR_INCOMPATIBLE, "incompatible"},
    {"another one of these", bad_dims, KVF_ERR_INCOMPATIBLE, "incompatible"},
};

static void check_refused(struct scene *scene, size_t row, int64_t rid)
{
    char place[600];

    snprintf(place, sizeof place, "context peer at '%s' is incompatible: ", scene->ctx.endpoint);
    ended(scene, rid, KVF_TRTLLM_STATE_ERROR, BAD[row].status, place);
    has_text(gen_status(&scene->gen, rid).text, BAD[row].text);
    settled(scene, rid);
}

/* Two requests to an incompatible info endpoint: one question in all, no sender is contacted, both end with the cause
 * and hold nothing; another endpoint works, and is asked once. */
static void test_incompatible_endpoint_is_asked_once(void **unused)
{
    (void)unused;
    for (size_t row = 0; row < sizeof BAD / sizeof BAD[0]; row++) {
        struct scene scene;
        struct script good;

        gen_init(&scene.gen, "gen");
        scene.gen.options.log.level = KVF_LOG_OFF;
        gen_open(&scene.gen);
        script_init(&scene.ctx, "bad", 2);
        BAD[row].spoil(&scene.ctx);
        script_open(&scene.ctx, &scene.gen);
        script_init(&good, "good", 2);
        script_open(&good, &scene.gen);
        gen_receive(&scene.gen, 1, scene.ctx.endpoint);
        script_until(&scene.ctx, &scene.ctx.asked, 1);
        check_refused(&scene, row, 1);
        gen_receive(&scene.gen, 2, scene.ctx.endpoint);
        check_refused(&scene, row, 2);
        for (int64_t rid = 3; rid < 5; rid++) {
            gen_receive(&scene.gen, rid, good.endpoint);
            script_requested(&good, 2, (int)rid - 2);
            for (int64_t rank = 0; rank < 2; rank++)
                script_result(&good, rank, rid, true, OK);
            ended(&scene, rid, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
            settled(&scene, rid);
        }
        script_sync(&scene.ctx);
        assert_int_equal(scene.ctx.asked, 1);
        assert_int_equal(scene.ctx.order_count, 0);
        assert_int_equal(good.asked, 1);
        assert_int_equal(good.registered[1], 1);
        assert_int_equal(gen_stats(&scene.gen).incompatible, 1);
        script_close(&good);
        end(&scene);
    }
}

/* The refusal holds for a while only: a context that was redeployed at its old address is found compatible. */
static void test_refusal_is_looked_at_again(void **unused)
{
    struct scene scene;
    (void)unused;
    gen_init(&scene.gen, "gen");
    scene.gen.options.log.level = KVF_LOG_OFF;
    scene.gen.options.peer_refresh_ns = KVFI_MS;
    gen_open(&scene.gen);
    script_init(&scene.ctx, "bad", 1);
    bad_heads(&scene.ctx);
    script_open(&scene.ctx, &scene.gen);
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    script_until(&scene.ctx, &scene.ctx.asked, 1);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_INCOMPATIBLE, "must publish");
    settled(&scene, 1);
    scene.ctx.kit.views[0][1].num_kv_heads = 8;
    scene.ctx.kit.spec.instance_name = "redeployed";
    script_describe(&scene.ctx);
    for (int64_t until = kvfi_now_ns() + 2 * KVFI_MS; kvfi_now_ns() < until;)
        continue;
    gen_receive(&scene.gen, 2, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    assert_true(scene.ctx.asked >= 2);
    assert_int_equal(gen_stats(&scene.gen).incompatible, 0);
    script_result(&scene.ctx, 0, 2, true, OK);
    ended(&scene, 2, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
    settled(&scene, 2);
    end(&scene);
}

/* What was known of an instance ends with it: those that wait for the old one are told, the next ones ask the new. */
static void test_restarted_context(void **unused)
{
    struct scene scene;
    (void)unused;
    gen_init(&scene.gen, "gen");
    scene.gen.options.peer_refresh_ns = KVFI_MS;
    gen_open(&scene.gen);
    script_init(&scene.ctx, "old", 1);
    script_open(&scene.ctx, &scene.gen);
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    scene.ctx.kit.spec.instance_name = "new";
    script_describe(&scene.ctx);
    for (int64_t until = kvfi_now_ns() + 2 * KVFI_MS; kvfi_now_ns() < until;)
        continue;
    gen_receive(&scene.gen, 2, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 2);
    assert_int_equal(scene.ctx.registered[0], 2);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_STALE, "instance \"old\" was replaced");
    is_kept(&scene, 1);
    script_result(&scene.ctx, 0, 2, true, OK);
    ended(&scene, 2, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
    settled(&scene, 2);
    script_result(&scene.ctx, 0, 1, true, FAILED);
    settled(&scene, 1);
    end(&scene);
}

/* The same, found out while a request waits, with no new one that would have it asked. */
static void test_restarted_context_is_noticed(void **unused)
{
    struct scene scene;
    (void)unused;
    gen_init(&scene.gen, "gen");
    scene.gen.options.peer_refresh_ns = 20 * KVFI_MS;
    gen_open(&scene.gen);
    script_init(&scene.ctx, "old", 1);
    script_open(&scene.ctx, &scene.gen);
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    while (scene.ctx.asked < 3) /* again and again, and nothing comes of it */
        script_until(&scene.ctx, &scene.ctx.asked, scene.ctx.asked + 1);
    assert_int_equal(scene.ctx.registered[0], 1);
    gen_no_event(&scene.gen);
    scene.ctx.kit.spec.instance_name = "new";
    script_describe(&scene.ctx);
    script_until(&scene.ctx, &scene.ctx.registered[0], 2);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_STALE, "instance \"old\" was replaced");
    is_kept(&scene, 1);
    end(&scene);
}

/* The same answer again changes nothing: no second registration, what is under way goes on. */
static void test_same_answer_again(void **unused)
{
    struct scene scene;
    (void)unused;
    gen_init(&scene.gen, "gen");
    scene.gen.options.peer_refresh_ns = KVFI_MS;
    gen_open(&scene.gen);
    script_init(&scene.ctx, "ctx", 1);
    script_open(&scene.ctx, &scene.gen);
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    for (int64_t until = kvfi_now_ns() + 2 * KVFI_MS; kvfi_now_ns() < until;)
        continue;
    gen_receive(&scene.gen, 2, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 2);
    assert_true(scene.ctx.asked >= 2);
    assert_int_equal(scene.ctx.registered[0], 1);
    for (int64_t rid = 1; rid < 3; rid++) {
        script_result(&scene.ctx, 0, rid, true, OK);
        ended(&scene, rid, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
        settled(&scene, rid);
    }
    end(&scene);
}

static void test_first_contact_has_a_deadline(void **unused)
{
    struct scene scene;
    (void)unused;
    gen_init(&scene.gen, "gen");
    scene.gen.options.first_contact_timeout_ns = 50 * KVFI_MS;
    gen_open(&scene.gen);
    script_init(&scene.ctx, "ctx", 1);
    script_open(&scene.ctx, &scene.gen);
    scene.ctx.mute = true;
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    assert_int_equal(gen_status(&scene.gen, 1).state, KVF_TRTLLM_STATE_INIT);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_UNREACHABLE, "has not said who it is within 50 ms");
    settled(&scene, 1);
    /* it is no refusal: the next one asks anew */
    script_until(&scene.ctx, &scene.ctx.asked, 1);
    scene.ctx.mute = false;
    gen_receive(&scene.gen, 2, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    end(&scene);
}

static void test_receive_may_have_less_time(void **unused)
{
    struct gen_receive one;
    struct scene scene;
    (void)unused;
    begin_tp(&scene, 1);
    scene.ctx.mute = true;
    gen_receive_init(&one, 1, scene.ctx.endpoint);
    one.receive.timeout_ns = 10 * KVFI_MS;
    assert_int_equal(kvf_trtllm_worker_receive(scene.gen.worker, &one.receive, NULL), KVF_OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_EXPIRED, scene.ctx.endpoint);
    settled(&scene, 1);
    end(&scene);
}

static void test_incomplete_answer_is_no_answer(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_tp(&scene, 1);
    scene.ctx.kit.endpoints[0] = "";
    {
        struct script partial = scene.ctx;
        size_t bytes = 0;
        kvf_trtllm_rank *rank;

        partial.kit.spec.sender_endpoint_count = 0;
        rank = rank_kit_make(&partial.kit);
        kvf_trtllm_rank_encode(rank, NULL, 0, &bytes, NULL);
        assert_true(bytes <= scene.ctx.byte_count);
        kvf_trtllm_rank_encode(rank, scene.ctx.bytes, bytes, &scene.ctx.byte_count, NULL);
        kvf_trtllm_rank_release(rank);
    }
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    script_until(&scene.ctx, &scene.ctx.asked, 1);
    script_describe(&scene.ctx);
    script_until(&scene.ctx, &scene.ctx.asked, 2);
    script_requested(&scene.ctx, 1, 1);
    assert_int_equal(scene.ctx.registered[0], 1);
    end(&scene);
}

/* Only once the sender endpoints of all ranks are known. */
static void test_rank_as_peers_get_it(void **unused)
{
    kvf_trtllm_worker *worker = NULL;
    kvf_trtllm_rank *rank = NULL, *self;
    const struct kvf_trtllm_rank_spec *spec;
    struct kvf_error error = {0};
    struct gen gen;
    (void)unused;
    gen_init(&gen, "gen");
    gen.options.rank = self = rank_kit_make(&gen.kit);
    assert_int_equal(kvf_trtllm_worker_open(&gen.options, &worker, &error), KVF_OK);
    assert_int_equal(kvf_trtllm_worker_rank(worker, &rank, &error), KVF_ERR_AGAIN);
    assert_null(rank);
    kvf_trtllm_worker_close(worker);
    kvf_trtllm_rank_release(self);

    gen_open(&gen);
    assert_int_equal(kvf_trtllm_worker_rank(gen.worker, &rank, &error), KVF_OK);
    gen_close(&gen);
    spec = kvf_trtllm_rank_get_spec(rank);
    assert_int_equal(spec->sender_endpoint_count, 1);
    assert_string_equal(spec->sender_endpoints[0], gen.ends.sender);
    assert_string_equal(spec->self_endpoint, gen.ends.receiver);
    kvf_trtllm_rank_release(rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_incompatible_endpoint_is_asked_once),
        cmocka_unit_test(test_refusal_is_looked_at_again),
        cmocka_unit_test(test_restarted_context),
        cmocka_unit_test(test_restarted_context_is_noticed),
        cmocka_unit_test(test_same_answer_again),
        cmocka_unit_test(test_first_contact_has_a_deadline),
        cmocka_unit_test(test_receive_may_have_less_time),
        cmocka_unit_test(test_incomplete_answer_is_no_answer),
        cmocka_unit_test(test_rank_as_peers_get_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
