/* SPDX-License-Identifier: Apache-2.0 */
/* A generation rank against a context whose ranks say what the test has them say: outcome and memory, case by case. */
#include "worker_kit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sys/clock.h"

#define OK KVFI_TRTLLM_SUCCESS
#define FAILED KVFI_TRTLLM_WRITE_FAILED
#define DOUBT KVFI_TRTLLM_IN_DOUBT
#define QUIESCED KVFI_TRTLLM_FAILED_QUIESCED

struct scene {
    struct gen gen;
    struct script ctx;
};

static void begin_tp(struct scene *scene, int64_t tp)
{
    gen_init(&scene->gen, "gen");
    gen_open(&scene->gen);
    script_init(&scene->ctx, "ctx", tp);
    script_open(&scene->ctx, &scene->gen);
}

static void begin_dp(struct scene *scene, int64_t dp, int64_t pp)
{
    gen_init(&scene->gen, "gen");
    gen_open(&scene->gen);
    script_init_dp(&scene->ctx, "ctx", dp, pp);
    script_open(&scene->ctx, &scene->gen);
}

static void end(struct scene *scene)
{
    gen_close(&scene->gen);
    script_close(&scene->ctx);
}

/* A receive of rid 1 that every writer was asked for. */
static void begin_asked(struct scene *scene, int64_t tp)
{
    begin_tp(scene, tp);
    gen_receive(&scene->gen, 1, scene->ctx.endpoint);
    script_requested(&scene->ctx, (size_t)tp, 1);
}

static void begin_asked_aux(struct scene *scene, int64_t tp)
{
    begin_tp(scene, tp);
    gen_receive_aux(&scene->gen, 1, scene->ctx.endpoint, 0);
    script_requested(&scene->ctx, (size_t)tp, 1);
}

static void has_text(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

static void ended(struct scene *scene, int64_t rid, int state, int status, const char *part)
{
    struct kvf_trtllm_event event = gen_event(&scene->gen, KVF_TRTLLM_EVENT_ENDED, rid);

    if (event.state != state || event.status != status)
        fail_msg("rid %d ended as %s, status %d (%s)", (int)rid, kvf_trtllm_state_text(event.state), event.status,
                 event.text);
    has_text(event.text, part);
}

/* It has ended, and its memory is not settled after all that was said was heard. */
static void is_kept(struct scene *scene, int64_t rid)
{
    script_sync(&scene->ctx);
    gen_no_event(&scene->gen);
    assert_int_equal(gen_status(&scene->gen, rid).is_settled, 0);
    assert_int_equal(gen_close_session(&scene->gen, rid), KVF_ERR_AGAIN);
}

static void settled(struct scene *scene, int64_t rid)
{
    gen_event(&scene->gen, KVF_TRTLLM_EVENT_SETTLED, rid);
    assert_int_equal(gen_status(&scene->gen, rid).is_settled, 1);
    assert_int_equal(gen_close_session(&scene->gen, rid), KVF_OK);
}

/* ---- success ------------------------------------------------------------------------------------------------ */

static void test_context_first(void **unused)
{
    static const int order[] = {KVFI_TRTLLM_REGISTER_RANK_INFO, KVFI_TRTLLM_REQUEST_DATA};
    struct scene scene;
    struct kvf_trtllm_status status;
    (void)unused;
    begin_asked(&scene, 1);
    assert_memory_equal(scene.ctx.order, order, sizeof order);
    assert_string_equal(scene.ctx.ask.instance_name, "gen");
    assert_int_equal(scene.ctx.ask.rid, 1);
    assert_int_equal(scene.ctx.ask.sender_req_id, 1);
    assert_int_equal(scene.ctx.ask.slice, 0);
    assert_int_equal(scene.ctx.ask.aux_slot, KVF_TRTLLM_NONE);
    assert_int_equal(scene.ctx.ask.group_count, 1);
    assert_int_equal(scene.ctx.ask.groups[0].count, 4);
    assert_false(scene.ctx.ask.has_bounce);
    status = gen_status(&scene.gen, 1);
    assert_int_equal(status.state, KVF_TRTLLM_STATE_TRANSFERRING);
    assert_int_equal(status.pending, 1);
    script_result(&scene.ctx, 0, 1, true, OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
    settled(&scene, 1);
    end(&scene);
}

static void test_pieces_before_the_last_end_nothing(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked(&scene, 2);
    script_result(&scene.ctx, 0, 1, false, OK);
    script_result(&scene.ctx, 0, 1, false, OK);
    script_result(&scene.ctx, 1, 1, false, OK);
    script_result(&scene.ctx, 0, 1, true, OK);
    script_sync(&scene.ctx);
    gen_no_event(&scene.gen);
    script_result(&scene.ctx, 1, 1, true, OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
    settled(&scene, 1);
    end(&scene);
}

static void test_generation_first_needs_auxiliary_data(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked_aux(&scene, 2);
    assert_int_equal(scene.ctx.ask.aux_slot, 3);
    script_result(&scene.ctx, 0, 1, true, OK);
    script_result(&scene.ctx, 1, 1, true, OK);
    script_aux(&scene.ctx, 1, 1, OK);
    script_sync(&scene.ctx);
    gen_no_event(&scene.gen);
    assert_int_equal(gen_status(&scene.gen, 1).pending, 1);
    script_aux(&scene.ctx, 0, 1, OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
    settled(&scene, 1);
    end(&scene);
}

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

/* ---- cancelling --------------------------------------------------------------------------------------------- */

static void test_cancel_before_publication(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_tp(&scene, 1);
    scene.ctx.mute = true;
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    script_until(&scene.ctx, &scene.ctx.asked, 1);
    assert_int_equal(kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL), KVF_OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_CANCELLED, KVF_ERR_CANCELLED, "cancelled by its user");
    settled(&scene, 1);
    script_sync(&scene.ctx);
    assert_int_equal(scene.ctx.order_count, 0);
    assert_int_equal(gen_stats(&scene.gen).requests_sent, 0);
    end(&scene);
}

static void test_cancel_after_publication(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked_aux(&scene, 2);
    for (int i = 0; i < 3; i++)
        assert_int_equal(kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL), KVF_OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_CANCELLED, KVF_ERR_CANCELLED, "cancelled by its user");
    script_until(&scene.ctx, &scene.ctx.cancelled[0], 1);
    script_until(&scene.ctx, &scene.ctx.cancelled[1], 1);
    assert_string_equal(scene.ctx.cancel_name, "gen");
    is_kept(&scene, 1);
    /* both writers finish what was running; the auxiliary data is settled last */
    script_result(&scene.ctx, 0, 1, true, OK);
    script_result(&scene.ctx, 1, 1, true, OK);
    script_aux(&scene.ctx, 0, 1, FAILED);
    is_kept(&scene, 1);
    assert_int_equal(gen_status(&scene.gen, 1).pending, 1);
    script_aux(&scene.ctx, 1, 1, OK);
    gen_event(&scene.gen, KVF_TRTLLM_EVENT_SETTLED, 1);
    assert_int_equal(gen_status(&scene.gen, 1).state, KVF_TRTLLM_STATE_CANCELLED);
    /* doubled words after the release change nothing */
    script_result(&scene.ctx, 0, 1, true, OK);
    script_aux(&scene.ctx, 1, 1, OK);
    script_sync(&scene.ctx);
    gen_no_event(&scene.gen);
    assert_int_equal(scene.ctx.cancelled[0], 1);
    assert_int_equal(gen_close_session(&scene.gen, 1), KVF_OK);
    script_result(&scene.ctx, 0, 1, true, OK);
    script_sync(&scene.ctx);
    gen_receive(&scene.gen, 2, scene.ctx.endpoint); /* admission is open */
    end(&scene);
}

static void test_cancel_is_acknowledged(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked_aux(&scene, 2);
    script_quiesced(&scene.ctx, 0, 1); /* nobody asked for it: it counts for nothing */
    script_sync(&scene.ctx);
    assert_int_equal(gen_status(&scene.gen, 1).pending, 4);
    kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL);
    ended(&scene, 1, KVF_TRTLLM_STATE_CANCELLED, KVF_ERR_CANCELLED, "");
    script_quiesced(&scene.ctx, 0, 1);
    is_kept(&scene, 1);
    script_quiesced(&scene.ctx, 1, 1);
    settled(&scene, 1);
    end(&scene);
}

static void test_context_cancels(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked(&scene, 2);
    script_cancel(&scene.ctx, 1);
    assert_int_equal(gen_event(&scene.gen, KVF_TRTLLM_EVENT_ENDED, 1).by_peer, 1);
    assert_int_equal(gen_status(&scene.gen, 1).state, KVF_TRTLLM_STATE_CANCELLED);
    script_result(&scene.ctx, 0, 1, true, FAILED);
    is_kept(&scene, 1);
    assert_int_equal(scene.ctx.cancelled[0] + scene.ctx.cancelled[1], 0); /* no echo */
    /* the one that has not reported after a while is asked to */
    script_until(&scene.ctx, &scene.ctx.cancelled[1], 1);
    assert_int_equal(scene.ctx.cancelled[0], 0);
    script_quiesced(&scene.ctx, 1, 1);
    settled(&scene, 1);
    end(&scene);
}

static void test_context_cancels_first(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_tp(&scene, 1);
    script_cancel(&scene.ctx, 7);
    script_sync(&scene.ctx);
    gen_receive(&scene.gen, 7, scene.ctx.endpoint);
    assert_int_equal(gen_event(&scene.gen, KVF_TRTLLM_EVENT_ENDED, 7).by_peer, 1);
    settled(&scene, 7);
    assert_int_equal(scene.ctx.order_count, 0);
    /* a cancel that comes after the session was closed is late, and no memory of the next one of this id */
    script_cancel(&scene.ctx, 7);
    script_sync(&scene.ctx);
    gen_receive(&scene.gen, 7, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    end(&scene);
}

static void test_remembered_cancels_are_bounded(void **unused)
{
    struct scene scene;
    (void)unused;
    gen_init(&scene.gen, "gen");
    scene.gen.options.max_requests = 2;
    gen_open(&scene.gen);
    script_init(&scene.ctx, "ctx", 1);
    script_open(&scene.ctx, &scene.gen);
    for (int64_t rid = 1; rid < 5; rid++)
        script_cancel(&scene.ctx, rid);
    script_sync(&scene.ctx);
    for (int64_t rid = 1; rid < 3; rid++) { /* the first two are kept */
        gen_receive(&scene.gen, rid, scene.ctx.endpoint);
        gen_event(&scene.gen, KVF_TRTLLM_EVENT_ENDED, rid);
        settled(&scene, rid);
    }
    gen_receive(&scene.gen, 4, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    end(&scene);
}

/* Only those that got a request are waited for, and the receive can never succeed. The second rank's address takes
 * connections and never reads, so at some point no more can be queued for it. */
static void test_partial_fan_out(void **unused)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t address_bytes = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct kvf_trtllm_event event = {0};
    struct scene scene;
    char endpoint[64];
    int64_t rid = 0;
    (void)unused;
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &address_bytes), 0);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    begin_tp(&scene, 2);
    script_describe_with(&scene.ctx, 1, endpoint);
    while (kvf_trtllm_worker_poll(scene.gen.worker, &event, 1) == 0) {
        gen_receive(&scene.gen, ++rid, scene.ctx.endpoint);
        script_until(&scene.ctx, &scene.ctx.requested[0], (int)rid);
        assert_true(rid < 100000);
    }
    assert_int_equal(event.kind, KVF_TRTLLM_EVENT_ENDED);
    assert_int_equal(event.rid, rid);
    assert_int_equal(event.status, KVF_ERR_AGAIN);
    has_text(event.text, "context rank 1 could not be asked, after 1 of 2");
    assert_int_equal(gen_status(&scene.gen, rid).asked, 1);
    is_kept(&scene, rid);
    script_until(&scene.ctx, &scene.ctx.cancelled[0], 1);
    script_result(&scene.ctx, 0, rid, true, OK);
    gen_event(&scene.gen, KVF_TRTLLM_EVENT_SETTLED, rid);
    assert_int_equal(gen_status(&scene.gen, rid).state, KVF_TRTLLM_STATE_ERROR);
    close(listener);
    end(&scene);
}

/* ---- failures ----------------------------------------------------------------------------------------------- */

static void test_one_of_two_writers_fails(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked(&scene, 2);
    script_result(&scene.ctx, 1, 1, true, FAILED);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_REFUSED,
          "KV transfer failed for request 1 slice=0 peer_rank=1 is_last_slice=True (reported by remote agent)");
    assert_string_equal(gen_status(&scene.gen, 1).peer, "ctx1");
    is_kept(&scene, 1);
    script_until(&scene.ctx, &scene.ctx.cancelled[0], 1);
    assert_int_equal(scene.ctx.cancelled[1], 0); /* that one has said its last */
    script_result(&scene.ctx, 0, 1, true, OK);
    settled(&scene, 1);
    end(&scene);
}

static void test_auxiliary_data_fails(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked_aux(&scene, 1);
    script_result(&scene.ctx, 0, 1, true, OK);
    script_aux(&scene.ctx, 0, 1, FAILED);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_REFUSED, "Session 1 aux transfer failed");
    settled(&scene, 1);
    end(&scene);
}

static void test_deadline_settles_nothing(void **unused)
{
    struct scene scene;
    struct gen_receive one;
    (void)unused;
    begin_tp(&scene, 1);
    gen_receive_init(&one, 1, scene.ctx.endpoint);
    one.receive.timeout_ns = 200 * KVFI_MS;
    assert_int_equal(kvf_trtllm_worker_receive(scene.gen.worker, &one.receive, NULL), KVF_OK);
    script_requested(&scene.ctx, 1, 1);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_EXPIRED, "KV transfer timed out for request 1 after 200 ms");
    is_kept(&scene, 1);
    script_until(&scene.ctx, &scene.ctx.cancelled[0], 1);
    script_result(&scene.ctx, 0, 1, true, OK);
    settled(&scene, 1);
    /* nothing was heard of that context when it should have been: it is asked again who it is */
    gen_receive(&scene.gen, 2, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 2);
    assert_int_equal(scene.ctx.asked, 2);
    end(&scene);
}

static void test_in_doubt_then_done(void **unused)
{
    struct scene scene;
    (void)unused;
    begin_asked(&scene, 1);
    script_result(&scene.ctx, 0, 1, false, DOUBT);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_IN_DOUBT, "KV transfer quiescence is unproven");
    assert_int_equal(gen_status(&scene.gen, 1).in_doubt, 1);
    script_result(&scene.ctx, 0, 1, true, FAILED); /* of another piece */
    script_quiesced(&scene.ctx, 0, 1);             /* does not settle a doubt */
    script_result(&scene.ctx, 0, 1, false, DOUBT);
    is_kept(&scene, 1);
    script_result(&scene.ctx, 0, 1, true, QUIESCED);
    gen_event(&scene.gen, KVF_TRTLLM_EVENT_SETTLED, 1);
    script_result(&scene.ctx, 0, 1, true, QUIESCED);
    script_sync(&scene.ctx);
    gen_no_event(&scene.gen);
    assert_int_equal(gen_status(&scene.gen, 1).status, KVF_ERR_IN_DOUBT);
    assert_int_equal(gen_close_session(&scene.gen, 1), KVF_OK);
    end(&scene);
}

static void test_settling_has_a_deadline_if_wished(void **unused)
{
    struct scene scene;
    struct gen_receive one;
    struct kvf_error error = {0};
    (void)unused;
    gen_init(&scene.gen, "gen");
    scene.gen.options.settle_timeout_ns = 100 * KVFI_MS;
    scene.gen.options.log.level = KVF_LOG_OFF;
    gen_open(&scene.gen);
    script_init(&scene.ctx, "ctx", 1);
    script_open(&scene.ctx, &scene.gen);
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    script_result(&scene.ctx, 0, 1, false, DOUBT);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_IN_DOUBT, "unproven");
    script_result(&scene.ctx, 0, 1, true, FAILED); /* moves no deadline */
    has_text(gen_event(&scene.gen, KVF_TRTLLM_EVENT_OVERDUE, 1).text, "not settled within 100 ms");
    script_result(&scene.ctx, 0, 1, true, QUIESCED); /* too late to be believed */
    is_kept(&scene, 1);
    assert_int_equal(gen_status(&scene.gen, 1).is_quarantined, 1);
    gen_receive_init(&one, 2, scene.ctx.endpoint);
    assert_int_equal(kvf_trtllm_worker_receive(scene.gen.worker, &one.receive, &error), KVF_ERR_IN_DOUBT);
    end(&scene);
}

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

/* ---- the worker as a whole --------------------------------------------------------------------------------------- */

static void test_shutdown_waits_for_memory(void **unused)
{
    struct scene scene;
    struct gen_receive one;
    struct kvf_error error = {0};
    (void)unused;
    begin_asked(&scene, 1);
    assert_int_equal(kvf_trtllm_worker_shutdown(scene.gen.worker, KVFI_MS, &error), KVF_ERR_TIMEOUT);
    has_text(error.text, "1 sessions hold memory");
    gen_receive_init(&one, 2, scene.ctx.endpoint);
    assert_int_equal(kvf_trtllm_worker_receive(scene.gen.worker, &one.receive, &error), KVF_ERR_CLOSED);
    kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL);
    assert_int_equal(kvf_trtllm_worker_shutdown(scene.gen.worker, KVFI_MS, &error), KVF_ERR_TIMEOUT);
    script_quiesced(&scene.ctx, 0, 1);
    assert_int_equal(kvf_trtllm_worker_shutdown(scene.gen.worker, 10 * KVFI_SECOND, &error), KVF_OK);
    end(&scene);
}

static void test_garbage_stops_nothing(void **unused)
{
    static const struct {
        const char *tag, *payload;
        size_t frames;
    } rows[] = {
        {"KV_AGENT_RESULT", "short", 2},  {"KV_AGENT_RESULT", "", 1},      {"AUX_AGENT_RESULT", "x", 2},
        {"CANCEL_SESSION", "12a", 2},     {"CANCEL_SESSION", "", 2},       {"SESSION_QUIESCED", "0", 2},
        {"TERMINATION", "", 1},           {"NOBODY_KNOWS", "this", 2},     {"", "", 2},
        {"REQUEST_DATA", "not here", 2},  {"REGISTER_RANK_INFO", "no", 2}, {"REQUEST_INSTANCE_INFO", "", 1},
    };
    struct scene scene;
    (void)unused;
    begin_asked(&scene, 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvfi_frame frames[] = {{rows[i].tag, strlen(rows[i].tag)}, {rows[i].payload, strlen(rows[i].payload)}};
        script_frames(&scene.ctx, frames, rows[i].frames);
    }
    script_sync(&scene.ctx);
    assert_true(gen_stats(&scene.gen).malformed >= 10);
    gen_no_event(&scene.gen);
    script_result(&scene.ctx, 0, 1, true, OK);
    ended(&scene, 1, KVF_TRTLLM_STATE_TRANSFERRED, KVF_OK, "");
    settled(&scene, 1);
    end(&scene);
}

static void test_idle_rank_returns_at_once(void **unused)
{
    struct scene scene;
    struct kvf_trtllm_event event;
    int64_t before;
    (void)unused;
    begin_tp(&scene, 1);
    before = kvfi_now_ns();
    for (int i = 0; i < 1000; i++)
        assert_int_equal(kvf_trtllm_worker_wait(scene.gen.worker, &event, 1, 0), 0);
    assert_true(kvfi_now_ns() - before < 5 * KVFI_SECOND);
    assert_int_equal(kvf_trtllm_worker_shutdown(scene.gen.worker, 0, NULL), KVF_OK);
    end(&scene);
}

/* ---- what is refused before anything happens ------------------------------------------------------------------- */

static void few_ids(struct gen_receive *one) { one->groups[0].count = 3; }
static void no_groups(struct gen_receive *one) { one->receive.group_count = 0; }
static void far_id(struct gen_receive *one) { one->ids[2] = 8; }
static void negative_id(struct gen_receive *one) { one->ids[1] = -2; }
static void negative_rid(struct gen_receive *one) { one->receive.rid = -1; }
static void negative_prompt(struct gen_receive *one) { one->receive.prompt_tokens = -8; }
static void no_endpoint(struct gen_receive *one) { one->receive.info_endpoint = NULL; }
static void odd_schedule(struct gen_receive *one) { one->receive.schedule = 2; }
static void stray_slot(struct gen_receive *one) { one->receive.aux_slot = 0; }
static void no_slot(struct gen_receive *one) { one->receive.schedule = KVF_TRTLLM_GENERATION_FIRST; }
static void twice(struct gen_receive *one) { one->receive.rid = 100; }

static void far_slot(struct gen_receive *one)
{
    one->receive.schedule = KVF_TRTLLM_GENERATION_FIRST;
    one->receive.aux_slot = 8;
}

static const struct {
    const char *name;
    void (*spoil)(struct gen_receive *one);
    int status;
    const char *text;
} REFUSED[] = {
    {"too few ids", few_ids, KVF_ERR_IDS, "group 0 has 3 block ids, expected 4"},
    {"no groups", no_groups, KVF_ERR_IDS, "block ids of 0 layer groups, this rank has 1"},
    {"an id beyond the pool", far_id, KVF_ERR_IDS, "group 0, id 2 is 8, expected -1 to 7"},
    {"a negative id", negative_id, KVF_ERR_IDS, "group 0, id 1 is -2"},
    {"a negative rid", negative_rid, KVF_ERR_INVALID_ARGUMENT, "rid is -1"},
    {"a negative prompt", negative_prompt, KVF_ERR_INVALID_ARGUMENT, "prompt_tokens is -8"},
    {"no endpoint", no_endpoint, KVF_ERR_INVALID_ARGUMENT, "ctx_info_endpoint is required"},
    {"an unknown schedule", odd_schedule, KVF_ERR_INVALID_ARGUMENT, "schedule is 2"},
    {"a slot for context-first", stray_slot, KVF_ERR_INVALID_ARGUMENT, "takes no auxiliary slot"},
    {"no slot for generation-first", no_slot, KVF_ERR_INVALID_ARGUMENT, "takes an auxiliary slot"},
    {"a slot beyond the buffers", far_slot, KVF_ERR_OUT_OF_RANGE, "auxiliary slot 8, buffer 0 has 8"},
    {"a rid that is received already", twice, KVF_ERR_EXISTS, "rid 100 has a receive session already"},
};

static void test_refused_calls(void **unused)
{
    struct scene scene;
    struct kvf_trtllm_status status = {.struct_size = sizeof status};
    (void)unused;
    begin_tp(&scene, 1);
    gen_receive(&scene.gen, 100, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    for (size_t i = 0; i < sizeof REFUSED / sizeof REFUSED[0]; i++) {
        struct gen_receive one;
        struct kvf_error error = {0};
        gen_receive_init(&one, 1, scene.ctx.endpoint);
        REFUSED[i].spoil(&one);
        if ((int)kvf_trtllm_worker_receive(scene.gen.worker, &one.receive, &error) != REFUSED[i].status)
            fail_msg("%s: status %d, \"%s\"", REFUSED[i].name, error.status, error.text);
        has_text(error.text, REFUSED[i].text);
    }
    assert_int_equal(kvf_trtllm_worker_status(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, &status, NULL),
                     KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_trtllm_worker_cancel(scene.gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL), KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_trtllm_worker_cancel(scene.gen.worker, 2, 100, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(gen_close_session(&scene.gen, 1), KVF_ERR_NOT_FOUND);
    assert_int_equal(gen_close_session(&scene.gen, 100), KVF_ERR_AGAIN);
    assert_int_equal(gen_stats(&scene.gen).requests_sent, 1);
    end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context_first),
        cmocka_unit_test(test_pieces_before_the_last_end_nothing),
        cmocka_unit_test(test_generation_first_needs_auxiliary_data),
        cmocka_unit_test(test_incompatible_endpoint_is_asked_once),
        cmocka_unit_test(test_refusal_is_looked_at_again),
        cmocka_unit_test(test_restarted_context),
        cmocka_unit_test(test_restarted_context_is_noticed),
        cmocka_unit_test(test_same_answer_again),
        cmocka_unit_test(test_partial_fan_out),
        cmocka_unit_test(test_first_contact_has_a_deadline),
        cmocka_unit_test(test_incomplete_answer_is_no_answer),
        cmocka_unit_test(test_cancel_before_publication),
        cmocka_unit_test(test_cancel_after_publication),
        cmocka_unit_test(test_cancel_is_acknowledged),
        cmocka_unit_test(test_context_cancels),
        cmocka_unit_test(test_context_cancels_first),
        cmocka_unit_test(test_remembered_cancels_are_bounded),
        cmocka_unit_test(test_one_of_two_writers_fails),
        cmocka_unit_test(test_auxiliary_data_fails),
        cmocka_unit_test(test_deadline_settles_nothing),
        cmocka_unit_test(test_in_doubt_then_done),
        cmocka_unit_test(test_settling_has_a_deadline_if_wished),
        cmocka_unit_test(test_lies_close_admission_and_keep_memory),
        cmocka_unit_test(test_broadcast_expects_one_group),
        cmocka_unit_test(test_cancelled_broadcast_needs_all),
        cmocka_unit_test(test_cancelled_broadcast_that_was_written),
        cmocka_unit_test(test_refusal_of_one_group_says_nothing_of_the_other),
        cmocka_unit_test(test_two_groups_write),
        cmocka_unit_test(test_shutdown_waits_for_memory),
        cmocka_unit_test(test_garbage_stops_nothing),
        cmocka_unit_test(test_idle_rank_returns_at_once),
        cmocka_unit_test(test_refused_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
