/* SPDX-License-Identifier: Apache-2.0 */
#include "worker_kit.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "session_kit.h"
#include "sys/clock.h"

#define PATIENCE_NS (10 * KVFI_SECOND)

/* ---- a worker ----------------------------------------------------------------------------------------------- */

void gen_init(struct gen *gen, const char *name)
{
    memset(gen, 0, sizeof *gen);
    rank_kit_init(&gen->kit, name);
    gen->kit.spec.tp_size = 1;
    gen->kit.attention = (struct kvf_trtllm_attention){.kv_heads_per_rank = 8, .tokens_per_block = 2,
                                                       .dims_per_head = 2, .element_eighths = 16};
    rank_kit_pv(&gen->kit, KVF_TRTLLM_INDEXED, 2, 8, 8);
    rank_kit_aux(&gen->kit, 1, INT64_C(0x90000), INT64_C(64), INT64_C(8));
    kvf_trtllm_worker_options_init(&gen->options, sizeof gen->options);
    gen->options.log = (struct kvf_log_sink){.fd = 2, .level = KVF_LOG_ERROR};
}

void gen_open(struct gen *gen)
{
    kvf_trtllm_rank *rank = rank_kit_make(&gen->kit);
    struct kvf_error error = {0};
    const char *senders[1];

    gen->options.rank = rank;
    if (kvf_trtllm_worker_open(&gen->options, &gen->worker, &error) != KVF_OK)
        fail_msg("%s", error.text);
    gen->ends.struct_size = sizeof gen->ends;
    assert_int_equal(kvf_trtllm_worker_endpoints(gen->worker, &gen->ends, &error), KVF_OK);
    senders[0] = gen->ends.sender;
    if (kvf_trtllm_worker_complete(gen->worker, NULL, 0, senders, 1, &error) != KVF_OK)
        fail_msg("%s", error.text);
    kvf_trtllm_rank_release(rank);
}

void gen_close(struct gen *gen)
{
    kvf_trtllm_worker_close(gen->worker);
    gen->worker = NULL;
}

void gen_receive_init(struct gen_receive *one, int64_t rid, const char *info_endpoint)
{
    kvf_trtllm_receive_init(&one->receive, sizeof one->receive);
    for (int64_t i = 0; i < 16; i++)
        one->ids[i] = i % 8;
    one->groups[0] = (struct kvf_trtllm_blocks){one->ids, 4};
    one->receive.rid = rid;
    one->receive.info_endpoint = info_endpoint;
    one->receive.prompt_tokens = 8;
    one->receive.groups = one->groups;
    one->receive.group_count = 1;
    one->receive.ctx_dp_rank = 0;
}

static void accept(struct gen *gen, const struct gen_receive *one)
{
    struct kvf_error error = {0};

    if (kvf_trtllm_worker_receive(gen->worker, &one->receive, &error) != KVF_OK)
        fail_msg("rid %" PRId64 ": %s", one->receive.rid, error.text);
}

void gen_receive(struct gen *gen, int64_t rid, const char *info_endpoint)
{
    struct gen_receive one;

    gen_receive_init(&one, rid, info_endpoint);
    accept(gen, &one);
}

void gen_receive_aux(struct gen *gen, int64_t rid, const char *info_endpoint, int64_t dp_rank)
{
    struct gen_receive one;

    gen_receive_init(&one, rid, info_endpoint);
    one.receive.schedule = KVF_TRTLLM_GENERATION_FIRST;
    one.receive.aux_slot = 3;
    one.receive.ctx_dp_rank = dp_rank;
    accept(gen, &one);
}

struct kvf_trtllm_event gen_event(struct gen *gen, int kind, int64_t rid)
{
    return session_event(gen->worker, kind, KVF_TRTLLM_RECEIVE, rid);
}

void gen_no_event(struct gen *gen) { session_no_event(gen->worker); }

struct kvf_trtllm_status gen_status(struct gen *gen, int64_t rid)
{
    return session_status(gen->worker, KVF_TRTLLM_RECEIVE, rid);
}

struct kvf_trtllm_worker_stats gen_stats(struct gen *gen) { return session_stats(gen->worker); }

int gen_close_session(struct gen *gen, int64_t rid)
{
    return (int)kvf_trtllm_worker_close_session(gen->worker, KVF_TRTLLM_RECEIVE, rid, NULL);
}

/* ---- a context instance ------------------------------------------------------------------------------------- */

void script_init(struct script *script, const char *name, int64_t tp)
{
    memset(script, 0, sizeof *script);
    rank_kit_init(&script->kit, name);
    script->kit.spec.tp_size = tp;
    script->kit.attention = (struct kvf_trtllm_attention){.kv_heads_per_rank = 8 / tp, .tokens_per_block = 2,
                                                          .dims_per_head = 2, .element_eighths = 16};
    rank_kit_pv(&script->kit, KVF_TRTLLM_INDEXED, 2, (int)(8 / tp), (int)(8 / tp));
    script->ranks = (size_t)tp;
}

void script_init_dp(struct script *script, const char *name, int64_t dp, int64_t pp)
{
    memset(script, 0, sizeof *script);
    rank_kit_init(&script->kit, name);
    script->kit.spec.tp_size = script->kit.spec.dp_size = dp;
    script->kit.spec.pp_size = pp;
    script->kit.attention = (struct kvf_trtllm_attention){.kv_heads_per_rank = 8, .tokens_per_block = 2,
                                                          .dims_per_head = 2, .element_eighths = 16,
                                                          .enable_attention_dp = 1};
    if (pp == 2) {
        rank_kit_stages(&script->kit, 2, INT64_C(1), INT64_C(1));
        rank_kit_pv(&script->kit, KVF_TRTLLM_INDEXED, 1, 8);
    } else {
        rank_kit_pv(&script->kit, KVF_TRTLLM_INDEXED, 2, 8, 8);
    }
    script->ranks = (size_t)(dp * pp);
}

static struct kvfi_channel *open_channel(int port)
{
    struct kvfi_channel_options options = {.port = port, .max_message_bytes = 1 << 24};
    struct kvfi_channel *channel = NULL;
    struct kvf_error error = {0};

    if (kvfi_channel_open(&options, &channel, &error) != KVF_OK)
        fail_msg("%s", error.text);
    return channel;
}

static void encode(struct script *script)
{
    kvf_trtllm_rank *rank;
    size_t bytes = 0;

    script->kit.spec.sender_endpoint_count = script->ranks;
    script->kit.spec.self_endpoint = "tcp://127.0.0.1:1";
    rank = rank_kit_make(&script->kit);
    kvf_trtllm_rank_encode(rank, NULL, 0, &bytes, NULL);
    free(script->bytes);
    script->bytes = malloc(bytes);
    assert_non_null(script->bytes);
    assert_int_equal(kvf_trtllm_rank_encode(rank, script->bytes, bytes, &script->byte_count, NULL), KVF_OK);
    kvf_trtllm_rank_release(rank);
}

void script_describe(struct script *script)
{
    for (size_t i = 0; i < script->ranks; i++)
        script->kit.endpoints[i] = kvfi_channel_endpoint(script->senders[i]);
    encode(script);
}

void script_describe_with(struct script *script, size_t rank, const char *endpoint)
{
    script_describe(script);
    script->kit.endpoints[rank] = endpoint;
    encode(script);
}

void script_open(struct script *script, struct gen *gen)
{
    struct kvf_error error = {0};

    script->gen = gen;
    script->info = open_channel(script->info_port);
    for (size_t i = 0; i < script->ranks; i++)
        script->senders[i] = open_channel(0);
    script->endpoint = kvfi_channel_endpoint(script->info);
    script_describe(script);
    if (kvfi_channel_connect(script->senders[0], gen->ends.receiver, &script->route, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

void script_close(struct script *script)
{
    kvfi_channel_close(script->info, 0);
    for (size_t i = 0; i < script->ranks; i++)
        kvfi_channel_close(script->senders[i], 0);
    kvfi_trtllm_ask_fini(&script->ask);
    free(script->bytes);
    memset(script, 0, sizeof *script);
}

/* ---- listening ---------------------------------------------------------------------------------------------- */

void script_answer(struct script *script)
{
    assert_int_equal(kvfi_channel_send(script->info, &script->asker, script->bytes, script->byte_count, NULL), KVF_OK);
}

static void on_info(void *context, const struct kvfi_route *from, const struct kvfi_frame *frames, size_t count)
{
    struct script *script = context;

    assert_int_equal(count, 1);
    assert_int_equal(frames[0].byte_count, strlen("REQUEST_INSTANCE_INFO"));
    assert_memory_equal(frames[0].bytes, "REQUEST_INSTANCE_INFO", frames[0].byte_count);
    script->asked++;
    script->asker = *from;
    if (!script->mute)
        script_answer(script);
}

struct listener {
    struct script *script;
    size_t rank;
};

static void take(struct script *script, size_t rank, const struct kvfi_trtllm_message *message)
{
    struct kvf_error error = {0};

    switch (message->tag) {
    case KVFI_TRTLLM_REGISTER_RANK_INFO:
        script->registered[rank]++;
        break;
    case KVFI_TRTLLM_REQUEST_DATA:
        script->requested[rank]++;
        kvfi_trtllm_ask_fini(&script->ask);
        memset(&script->ask, 0, sizeof script->ask);
        if (kvfi_trtllm_ask_decode(message->payload.bytes, message->payload.byte_count, &script->ask, &error) != KVF_OK)
            fail_msg("%s", error.text);
        break;
    case KVFI_TRTLLM_CANCEL_SESSION:
        script->cancelled[rank]++;
        assert_true(message->cancel.has_requester && message->cancel.name_bytes < sizeof script->cancel_name);
        memcpy(script->cancel_name, message->cancel.instance_name, message->cancel.name_bytes);
        script->cancel_name[message->cancel.name_bytes] = '\0';
        break;
    default:
        fail_msg("rank %zu got a %s", rank, kvfi_trtllm_tag_text(message->tag));
    }
    if (script->order_count < 64)
        script->order[script->order_count++] = message->tag;
}

static void on_sender(void *context, const struct kvfi_route *from, const struct kvfi_frame *frames, size_t count)
{
    struct listener *listener = context;
    struct kvfi_trtllm_frame own[KVFI_CHANNEL_FRAMES];
    struct kvfi_trtllm_message message;
    struct kvf_error error = {0};

    (void)from;
    for (size_t i = 0; i < count; i++)
        own[i] = (struct kvfi_trtllm_frame){frames[i].bytes, frames[i].byte_count};
    if (kvfi_trtllm_read(own, count, &message, &error) != KVF_OK)
        fail_msg("%s", error.text);
    take(listener->script, listener->rank, &message);
}

static void pump(struct script *script, int wait_ms)
{
    static const struct kvfi_dialect info = {.name = "info", .handle_frames = on_info};
    static const struct kvfi_dialect sender = {.name = "sender", .handle_frames = on_sender};
    struct pollfd fds[SCRIPT_RANKS + 1] = {{.fd = kvfi_channel_fd(script->info), .events = POLLIN}};

    for (size_t i = 0; i < script->ranks; i++)
        fds[i + 1] = (struct pollfd){.fd = kvfi_channel_fd(script->senders[i]), .events = POLLIN};
    poll(fds, (nfds_t)script->ranks + 1, wait_ms);
    kvfi_channel_dispatch(script->info, &info, script);
    for (size_t i = 0; i < script->ranks; i++) {
        struct listener listener = {script, i};
        kvfi_channel_dispatch(script->senders[i], &sender, &listener);
    }
}

void script_pump(struct script *script) { pump(script, 20); }

void script_until(struct script *script, const int *counter, int value)
{
    int64_t deadline = kvfi_now_ns() + PATIENCE_NS;

    while (*counter < value) {
        if (kvfi_now_ns() > deadline)
            fail_msg("a counter stands at %d, expected %d", *counter, value);
        script_pump(script);
    }
    assert_int_equal(*counter, value);
}

void script_requested(struct script *script, size_t count, int value)
{
    for (size_t i = 0; i < count; i++)
        script_until(script, &script->requested[i], value);
}

/* ---- saying ------------------------------------------------------------------------------------------------- */

void script_frames(struct script *script, const struct kvfi_frame *frames, size_t count)
{
    struct kvf_error error = {0};

    if (kvfi_channel_send_frames(script->senders[0], &script->route, frames, count, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static void send(struct script *script, const struct kvfi_trtllm_packed *message)
{
    struct kvfi_frame frames[KVFI_TRTLLM_MAX_FRAMES];

    for (size_t i = 0; i < message->count; i++)
        frames[i] = (struct kvfi_frame){message->frames[i].bytes, message->frames[i].byte_count};
    script_frames(script, frames, message->count);
}

void script_result_of(struct script *script, const struct kvfi_trtllm_result *result)
{
    struct kvfi_trtllm_packed message;

    kvfi_trtllm_pack_result(&message, result);
    send(script, &message);
}

void script_result(struct script *script, int64_t rank, int64_t rid, bool is_last, int word)
{
    struct kvfi_trtllm_result result = {.ctx_rank = rank, .rid = rid, .is_last = is_last, .word = word};
    script_result_of(script, &result);
}

void script_aux(struct script *script, int64_t rank, int64_t rid, int word)
{
    struct kvfi_trtllm_aux_result aux = {.ctx_rank = rank, .rid = rid, .word = word};
    struct kvfi_trtllm_packed message;

    kvfi_trtllm_pack_aux(&message, &aux);
    send(script, &message);
}

void script_quiesced(struct script *script, int64_t rank, int64_t rid)
{
    struct kvfi_trtllm_quiesced quiesced = {.ctx_rank = rank, .rid = rid};
    struct kvfi_trtllm_packed message;

    kvfi_trtllm_pack_quiesced(&message, &quiesced);
    send(script, &message);
}

void script_cancel(struct script *script, int64_t rid)
{
    struct kvfi_trtllm_cancel cancel = {.rid = rid};
    struct kvfi_trtllm_packed message;

    kvfi_trtllm_pack_cancel(&message, &cancel);
    send(script, &message);
}

void script_sync(struct script *script)
{
    int64_t before = gen_stats(script->gen).results_dropped, deadline = kvfi_now_ns() + PATIENCE_NS;

    script_result(script, 0, INT64_C(1) << 60, true, KVFI_TRTLLM_WRITE_FAILED);
    while (gen_stats(script->gen).results_dropped == before) {
        if (kvfi_now_ns() > deadline)
            fail_msg("the generation rank does not read");
        pump(script, 0);
    }
}
