/* SPDX-License-Identifier: Apache-2.0 */
#include "send_kit.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "session_kit.h"
#include "sys/clock.h"

#define PATIENCE_NS (20 * KVFI_SECOND)

enum { CTX_HEADS = 8, GEN_HEADS = 4, HEAD_BYTES = 8 /* of K, of 2 tokens */, UNTOUCHED = 0xee };

/* ---- memory ------------------------------------------------------------------------------------------------------ */

void memory_open(struct memory *memory, size_t byte_count, int owned)
{
    memory->byte_count = byte_count;
    memory->bytes = mmap(NULL, byte_count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory->bytes != MAP_FAILED);
    memory->pid = owned ? fork() : 0;
    assert_true(memory->pid >= 0);
    if (owned && memory->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
}

void memory_kill(struct memory *memory)
{
    if (memory->pid <= 0) return;
    kill(memory->pid, SIGKILL);
    waitpid(memory->pid, NULL, 0);
    memory->pid = -1;
}

void memory_close(struct memory *memory)
{
    memory_kill(memory);
    munmap(memory->bytes, memory->byte_count);
}

/* ---- the agent --------------------------------------------------------------------------------------------------- */

static enum kvf_status fake_describe(void *context, void *buffer, size_t capacity, size_t *byte_count,
                                     struct kvf_error *error)
{
    (void)context;
    (void)error;
    *byte_count = 4;
    if (capacity > 0) memcpy(buffer, "fake", capacity < 4 ? capacity : 4);
    return KVF_OK;
}

static enum kvf_status answer(int *status, struct kvf_error *error)
{
    enum kvf_status given = (enum kvf_status)*status;

    *status = 0;
    if (given != KVF_OK) {
        error->status = (int32_t)given;
        snprintf(error->text, sizeof error->text, "as the test has it");
    }
    return given;
}

static enum kvf_status fake_load(void *context, const char *name, const void *info, size_t info_bytes,
                                 struct kvf_error *error)
{
    struct fake_agent *fake = context;
    enum kvf_status status;

    (void)name;
    (void)info;
    (void)info_bytes;
    pthread_mutex_lock(&fake->lock);
    fake->loads++;
    status = answer(&fake->next_load, error);
    pthread_mutex_unlock(&fake->lock);
    return status;
}

static void fake_invalidate(void *context, const char *name)
{
    struct fake_agent *fake = context;

    (void)name;
    pthread_mutex_lock(&fake->lock);
    fake->invalidates++;
    pthread_mutex_unlock(&fake->lock);
}

static enum kvf_status fake_submit(void *context, const struct kvf_trtllm_agent_write *write, struct kvf_error *error)
{
    struct fake_agent *fake = context;
    struct fake_write *kept;
    enum kvf_status status;

    pthread_mutex_lock(&fake->lock);
    status = answer(&fake->next_submit, error);
    if (fake->write_count < KIT_WORDS && (status == KVF_OK || status == KVF_ERR_IN_DOUBT)) {
        kept = &fake->writes[fake->write_count++];
        kept->job = *write;
        kept->is_out = status == KVF_OK;
        snprintf(kept->name, sizeof kept->name, "%s", write->name);
        kept->job.name = kept->name;
    }
    pthread_mutex_unlock(&fake->lock);
    return status;
}

static size_t fake_poll(void *context, struct kvf_trtllm_agent_event *events, size_t capacity)
{
    struct fake_agent *fake = context;
    size_t count = 0;
    uint64_t value;

    pthread_mutex_lock(&fake->lock);
    while (count < capacity && fake->event_head < fake->event_tail)
        events[count++] = fake->events[fake->event_head++];
    if (fake->event_head == fake->event_tail && read(fake->fd, &value, sizeof value) < 0) value = 0;
    pthread_mutex_unlock(&fake->lock);
    return count;
}

static int fake_fd(void *context)
{
    return ((struct fake_agent *)context)->fd;
}

void fake_open(struct fake_agent *fake, struct kvf_trtllm_agent *table)
{
    memset(fake, 0, sizeof *fake);
    pthread_mutex_init(&fake->lock, NULL);
    fake->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    *table = (struct kvf_trtllm_agent){.struct_size = sizeof *table, .context = fake, .describe = fake_describe,
                                       .load = fake_load, .invalidate = fake_invalidate, .submit = fake_submit,
                                       .poll = fake_poll, .fd = fake_fd};
}

void fake_close(struct fake_agent *fake)
{
    close(fake->fd);
    pthread_mutex_destroy(&fake->lock);
}

int fake_count(struct fake_agent *fake)
{
    int count;

    pthread_mutex_lock(&fake->lock);
    count = fake->write_count;
    pthread_mutex_unlock(&fake->lock);
    return count;
}

int fake_loads(struct fake_agent *fake)
{
    int count;

    pthread_mutex_lock(&fake->lock);
    count = fake->loads;
    pthread_mutex_unlock(&fake->lock);
    return count;
}

void fake_next_load(struct fake_agent *fake, int status)
{
    pthread_mutex_lock(&fake->lock);
    fake->next_load = status;
    pthread_mutex_unlock(&fake->lock);
}

void fake_next_submit(struct fake_agent *fake, int status)
{
    pthread_mutex_lock(&fake->lock);
    fake->next_submit = status;
    pthread_mutex_unlock(&fake->lock);
}

void fake_until(struct fake_agent *fake, int count)
{
    int64_t deadline = kvfi_now_ns() + PATIENCE_NS;

    while (fake_count(fake) < count) {
        if (kvfi_now_ns() > deadline) fail_msg("%d writes, expected %d", fake_count(fake), count);
        poll(NULL, 0, 1);
    }
}

void fake_tell(struct fake_agent *fake, int index, int kind)
{
    struct kvf_trtllm_agent_event event = {.kind = kind};
    struct kvf_trtllm_fragment parts[7];
    const uint64_t one = 1;
    size_t count;

    pthread_mutex_lock(&fake->lock);
    assert_true(index < fake->write_count && fake->event_tail < KIT_WORDS);
    event.cookie = fake->writes[index].job.cookie;
    if (kind != KVF_TRTLLM_AGENT_DONE) {
        event.status = kind == KVF_TRTLLM_AGENT_FAILED ? KVF_ERR_PEER_LOST : KVF_ERR_IN_DOUBT;
        snprintf(event.text, sizeof event.text, "as the test has it");
    }
    while (kind == KVF_TRTLLM_AGENT_DONE &&
           (count = fake->writes[index].job.next(fake->writes[index].job.source, parts, 7)) > 0)
        for (size_t i = 0; i < count; i++)
            memcpy((void *)(uintptr_t)parts[i].dst_address, (const void *)(uintptr_t)parts[i].src_address,
                   (size_t)parts[i].bytes);
    if (kind != KVF_TRTLLM_AGENT_IN_DOUBT) fake->writes[index].is_out = 0;
    fake->events[fake->event_tail++] = event;
    assert_int_equal(write(fake->fd, &one, sizeof one), sizeof one);
    pthread_mutex_unlock(&fake->lock);
}

int fake_any(struct fake_agent *fake, unsigned chance)
{
    int found = -1;

    pthread_mutex_lock(&fake->lock);
    for (int i = 0; i < fake->write_count && found < 0; i++) {
        int index = (int)((chance + (unsigned)i) % (unsigned)fake->write_count);
        if (fake->writes[index].is_out) found = index;
    }
    pthread_mutex_unlock(&fake->lock);
    return found;
}

void fake_reset(struct fake_agent *fake)
{
    assert_int_equal(fake_any(fake, 0), -1);
    pthread_mutex_lock(&fake->lock);
    assert_int_equal(fake->event_head, fake->event_tail);
    fake->write_count = fake->event_head = fake->event_tail = 0;
    pthread_mutex_unlock(&fake->lock);
}

void fake_finish_all(struct fake_agent *fake)
{
    int count = fake_count(fake);

    for (int i = 0; i < count; i++)
        if (fake->writes[i].is_out) fake_tell(fake, i, KVF_TRTLLM_AGENT_DONE);
}

/* ---- the context rank -------------------------------------------------------------------------------------------- */

static size_t pool_bytes(int heads) { return (size_t)(16 * heads * KIT_SLOTS); }

static void place(struct rank_kit *kit, struct memory *memory, int heads)
{
    uint64_t base = (uint64_t)(uintptr_t)memory->bytes;

    for (int i = 0; i < KIT_LAYERS; i++)
        kit->pools[0][i].base_address = base + (uint64_t)i * pool_bytes(heads);
    rank_kit_aux(kit, 1, (int64_t)(base + memory->byte_count - KIT_AUX_SLOTS * KIT_AUX_BYTES),
                 (int64_t)KIT_AUX_SLOTS * KIT_AUX_BYTES, (int64_t)KIT_AUX_BYTES);
}

static void make_rank(struct rank_kit *kit, struct memory *memory, const char *name, int tp, int heads, int owned)
{
    rank_kit_init(kit, name);
    kit->spec.tp_size = tp;
    kit->attention = (struct kvf_trtllm_attention){.kv_heads_per_rank = heads, .tokens_per_block = 2,
                                                   .dims_per_head = 2, .element_eighths = 16};
    rank_kit_pv(kit, KVF_TRTLLM_INDEXED, KIT_LAYERS, heads, heads);
    memory_open(memory, KIT_MEMORY_BYTES, owned);
    place(kit, memory, heads);
}

void ctx_init(struct ctx *ctx, int is_fake)
{
    memset(ctx, 0, sizeof *ctx);
    make_rank(&ctx->kit, &ctx->memory, "ctx", 1, CTX_HEADS, 0);
    for (size_t i = 0; i < ctx->memory.byte_count; i++)
        ctx->memory.bytes[i] = (unsigned char)(i * 7 + i / 251);
    kvf_trtllm_worker_options_init(&ctx->options, sizeof ctx->options);
    ctx->options.log = (struct kvf_log_sink){.fd = 2, .level = getenv("SEND_TEST_LOG") ? KVF_LOG_DEBUG : 0};
    ctx->is_fake = is_fake;
    if (is_fake) {
        fake_open(&ctx->fake, &ctx->agent);
        ctx->options.agent = &ctx->agent;
    }
}

void ctx_open(struct ctx *ctx)
{
    kvf_trtllm_rank *rank = rank_kit_make(&ctx->kit);
    struct kvf_error error = {0};
    const char *senders[8];
    size_t sender_count = (size_t)ctx->kit.spec.tp_size;

    ctx->options.rank = rank;
    if (kvf_trtllm_worker_open(&ctx->options, &ctx->worker, &error) != KVF_OK) fail_msg("%s", error.text);
    ctx->ends.struct_size = sizeof ctx->ends;
    assert_int_equal(kvf_trtllm_worker_endpoints(ctx->worker, &ctx->ends, &error), KVF_OK);
    for (size_t i = 0; i < sender_count; i++)
        senders[i] = (int64_t)i == ctx->kit.spec.instance_rank ? ctx->ends.sender : "tcp://127.0.0.1:1";
    if (kvf_trtllm_worker_complete(ctx->worker, NULL, 0, senders, sender_count, &error) != KVF_OK)
        fail_msg("%s", error.text);
    kvf_trtllm_rank_release(rank);
}

void ctx_close(struct ctx *ctx)
{
    kvf_trtllm_worker_close(ctx->worker);
    if (ctx->is_fake) fake_close(&ctx->fake);
    memory_close(&ctx->memory);
}

static void send_open(struct ctx *ctx, int64_t rid, int schedule)
{
    struct kvf_trtllm_send send;
    struct kvf_error error = {0};

    kvf_trtllm_send_init(&send, sizeof send);
    send.rid = rid;
    send.schedule = schedule;
    send.prompt_tokens = 8;
    if (kvf_trtllm_worker_send_open(ctx->worker, &send, &error) != KVF_OK) fail_msg("%s", error.text);
}

void ctx_send_open(struct ctx *ctx, int64_t rid) { send_open(ctx, rid, KVF_TRTLLM_CONTEXT_FIRST); }

void ctx_send_open_aux(struct ctx *ctx, int64_t rid) { send_open(ctx, rid, KVF_TRTLLM_GENERATION_FIRST); }

int ctx_piece(struct ctx *ctx, int64_t rid, int64_t begin, int64_t end, int is_last)
{
    static const int64_t ids[4] = {4, 5, 6, 7};
    const struct kvf_trtllm_blocks groups[1] = {{ids, 4}};
    struct kvf_trtllm_piece piece;

    kvf_trtllm_piece_init(&piece, sizeof piece);
    piece.rid = rid;
    piece.token_begin = begin;
    piece.token_end = end;
    piece.is_last = is_last;
    piece.groups = groups;
    piece.group_count = 1;
    return (int)kvf_trtllm_worker_send_piece(ctx->worker, &piece, NULL);
}

struct kvf_trtllm_event ctx_event(struct ctx *ctx, int kind, int64_t rid)
{
    return session_event(ctx->worker, kind, KVF_TRTLLM_SEND, rid);
}

void ctx_no_event(struct ctx *ctx) { session_no_event(ctx->worker); }

int ctx_cancel(struct ctx *ctx, int64_t rid)
{
    return (int)kvf_trtllm_worker_cancel(ctx->worker, KVF_TRTLLM_SEND, rid, NULL);
}

int ctx_close_session(struct ctx *ctx, int64_t rid)
{
    return (int)kvf_trtllm_worker_close_session(ctx->worker, KVF_TRTLLM_SEND, rid, NULL);
}

struct kvf_trtllm_status ctx_status(struct ctx *ctx, int64_t rid)
{
    return session_status(ctx->worker, KVF_TRTLLM_SEND, rid);
}

struct kvf_trtllm_worker_stats ctx_stats(struct ctx *ctx) { return session_stats(ctx->worker); }

/* ---- a generation rank ------------------------------------------------------------------------------------------- */

void peer_init(struct peer *peer, const char *name, int64_t rank, int owned)
{
    memset(peer, 0, sizeof *peer);
    make_rank(&peer->kit, &peer->memory, name, 2, GEN_HEADS, owned);
    memset(peer->memory.bytes, UNTOUCHED, peer->memory.byte_count);
    peer->kit.spec.instance_rank = rank;
    peer->kit.spec.tp_rank = rank;
    peer->sync = 1000000 + rank;
    for (int64_t i = 0; i < 16; i++) peer->ids[i] = i;
    snprintf(peer->engine, sizeof peer->engine, "kvferry-cma/1 pid=%d",
             (int)(peer->memory.pid != 0 ? peer->memory.pid : getpid()));
    peer->kit.spec.transfer_engine_info = peer->engine;
    peer->kit.spec.transfer_engine_info_bytes = strlen(peer->engine);
}

void peer_open(struct peer *peer, struct ctx *ctx)
{
    struct kvf_error error = {0};

    if (kvfi_channel_open(NULL, &peer->channel, &error) != KVF_OK) fail_msg("%s", error.text);
    peer->kit.spec.self_endpoint = kvfi_channel_endpoint(peer->channel);
    if (kvfi_channel_connect(peer->channel, ctx->ends.sender, &peer->route, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

void peer_close(struct peer *peer)
{
    kvfi_channel_close(peer->channel, 0);
    free(peer->words);
    memory_close(&peer->memory);
}

void peer_frames(struct peer *peer, const struct kvfi_frame *frames, size_t count)
{
    struct kvf_error error = {0};
    int64_t deadline = kvfi_now_ns() + PATIENCE_NS;
    enum kvf_status status;

    while ((status = kvfi_channel_send_frames(peer->channel, &peer->route, frames, count, &error)) == KVF_ERR_AGAIN &&
           kvfi_now_ns() < deadline)
        poll(NULL, 0, 1);
    if (status != KVF_OK) fail_msg("%s", error.text);
}

static void send_packed(struct peer *peer, const struct kvfi_trtllm_packed *packed)
{
    struct kvfi_frame frames[KVFI_TRTLLM_MAX_FRAMES];

    for (size_t i = 0; i < packed->count; i++)
        frames[i] = (struct kvfi_frame){packed->frames[i].bytes, packed->frames[i].byte_count};
    peer_frames(peer, frames, packed->count);
}

void peer_register_bytes(struct peer *peer, const void *bytes, size_t byte_count)
{
    struct kvfi_trtllm_packed packed;

    kvfi_trtllm_pack_payload(&packed, KVFI_TRTLLM_REGISTER_RANK_INFO, bytes, byte_count);
    send_packed(peer, &packed);
}

void peer_register(struct peer *peer)
{
    kvf_trtllm_rank *rank = rank_kit_make(&peer->kit);
    unsigned char bytes[8192];
    size_t byte_count = 0;

    assert_int_equal(kvf_trtllm_rank_encode(rank, bytes, sizeof bytes, &byte_count, NULL), KVF_OK);
    peer_register_bytes(peer, bytes, byte_count);
    kvf_trtllm_rank_release(rank);
}

void peer_ask_init(struct peer *peer, struct kvfi_trtllm_ask *ask, struct kvf_trtllm_blocks *groups, int64_t rid)
{
    groups[0] = (struct kvf_trtllm_blocks){peer->ids, 4};
    *ask = (struct kvfi_trtllm_ask){.sender_req_id = rid, .instance_name = peer->kit.spec.instance_name,
                                    .instance_rank = peer->kit.spec.instance_rank, .groups = groups, .group_count = 1,
                                    .rid = rid, .dst_start_token = KVF_TRTLLM_NONE, .aux_slot = KVF_TRTLLM_NONE,
                                    .slice = 0};
}

void peer_ask_for(struct peer *peer, const struct kvfi_trtllm_ask *ask)
{
    struct kvfi_trtllm_packed packed;
    unsigned char *bytes;
    size_t byte_count;

    assert_int_equal(kvfi_trtllm_ask_encode(ask, &bytes, &byte_count, NULL), KVF_OK);
    kvfi_trtllm_pack_payload(&packed, KVFI_TRTLLM_REQUEST_DATA, bytes, byte_count);
    send_packed(peer, &packed);
    free(bytes);
}

void peer_ask_aux(struct peer *peer, int64_t rid, int64_t slot)
{
    struct kvf_trtllm_blocks groups[1];
    struct kvfi_trtllm_ask ask;

    peer_ask_init(peer, &ask, groups, rid);
    ask.aux_slot = slot;
    peer_ask_for(peer, &ask);
}

void peer_ask(struct peer *peer, int64_t rid) { peer_ask_aux(peer, rid, KVF_TRTLLM_NONE); }

void peer_cancel(struct peer *peer, int64_t rid)
{
    const struct kvf_trtllm_rank_spec *spec = &peer->kit.spec;
    struct kvfi_trtllm_packed packed;

    kvfi_trtllm_pack_cancel(&packed, &(struct kvfi_trtllm_cancel){
        .rid = rid, .has_requester = true, .instance_name = spec->instance_name,
        .name_bytes = strlen(spec->instance_name), .instance_rank = spec->instance_rank});
    send_packed(peer, &packed);
}

void peer_cancel_nameless(struct peer *peer, int64_t rid)
{
    struct kvfi_trtllm_packed packed;

    kvfi_trtllm_pack_cancel(&packed, &(struct kvfi_trtllm_cancel){.rid = rid});
    send_packed(peer, &packed);
}

/* ---- its words --------------------------------------------------------------------------------------------------- */

static void take_word(void *context, const struct kvfi_route *from, const struct kvfi_frame *frames, size_t count)
{
    struct peer *peer = context;
    struct kvfi_trtllm_frame copies[KVFI_CHANNEL_FRAMES];
    struct kvfi_trtllm_message message;
    struct kvf_error error = {0};
    struct word word;

    (void)from;
    for (size_t i = 0; i < count; i++)
        copies[i] = (struct kvfi_trtllm_frame){frames[i].bytes, frames[i].byte_count};
    if (kvfi_trtllm_read(copies, count, &message, &error) != KVF_OK) fail_msg("%s", error.text);
    word = (struct word){.tag = message.tag};
    switch (message.tag) {
    case KVFI_TRTLLM_KV_AGENT_RESULT:
        assert_false(message.result.is_bounced);
        word.rid = message.result.rid;
        word.slice = message.result.slice;
        word.is_last = message.result.is_last;
        word.word = message.result.word;
        word.bytes = message.result.transfer_bytes;
        break;
    case KVFI_TRTLLM_AUX_AGENT_RESULT:
        word.rid = message.aux.rid;
        word.word = message.aux.word;
        break;
    case KVFI_TRTLLM_CANCEL_SESSION: word.rid = message.cancel.rid; break;
    case KVFI_TRTLLM_SESSION_QUIESCED: word.rid = message.quiesced.rid; break;
    default: fail_msg("a generation rank got message %d", message.tag); break;
    }
    if (peer->tail == peer->capacity) {
        peer->capacity += KIT_WORDS;
        peer->words = realloc(peer->words, (size_t)peer->capacity * sizeof *peer->words);
        assert_non_null(peer->words);
    }
    peer->words[peer->tail++] = word;
}

struct word peer_word(struct peer *peer)
{
    static const struct kvfi_dialect dialect = {.name = "test", .handle_frames = take_word};
    int64_t deadline = kvfi_now_ns() + PATIENCE_NS;

    while (peer->head == peer->tail) {
        struct pollfd ready = {.fd = kvfi_channel_fd(peer->channel), .events = POLLIN};
        if (kvfi_now_ns() > deadline) fail_msg("no word for %s %d", peer->kit.spec.instance_name,
                                               (int)peer->kit.spec.instance_rank);
        poll(&ready, 1, 100);
        kvfi_channel_dispatch(peer->channel, &dialect, peer);
    }
    return peer->words[peer->head++];
}

static void expect(struct peer *peer, struct word expected)
{
    struct word word = peer_word(peer);

    if (word.tag != expected.tag || word.rid != expected.rid || word.word != expected.word ||
        (word.tag == KVFI_TRTLLM_KV_AGENT_RESULT && word.is_last != expected.is_last))
        fail_msg("rank %d: %s %" PRId64 " %s last %d, expected %s %" PRId64 " %s last %d",
                 (int)peer->kit.spec.instance_rank, kvfi_trtllm_tag_text(word.tag), word.rid,
                 kvfi_trtllm_word_text(word.word), word.is_last, kvfi_trtllm_tag_text(expected.tag), expected.rid,
                 kvfi_trtllm_word_text(expected.word), expected.is_last);
}

void peer_kv(struct peer *peer, int64_t rid, int word, int is_last)
{
    expect(peer, (struct word){.tag = KVFI_TRTLLM_KV_AGENT_RESULT, .rid = rid, .word = word, .is_last = is_last});
}

void peer_aux(struct peer *peer, int64_t rid, int word)
{
    expect(peer, (struct word){.tag = KVFI_TRTLLM_AUX_AGENT_RESULT, .rid = rid, .word = word});
}

void peer_quiesced(struct peer *peer, int64_t rid)
{
    expect(peer, (struct word){.tag = KVFI_TRTLLM_SESSION_QUIESCED, .rid = rid});
}

void peer_cancelled(struct peer *peer, int64_t rid)
{
    expect(peer, (struct word){.tag = KVFI_TRTLLM_CANCEL_SESSION, .rid = rid});
}

/* A cancel of a rid of its own is acknowledged: after all that was said before. */
void peer_silent(struct peer *peer)
{
    peer->sync += 1000;
    peer_cancel(peer, peer->sync);
    peer_quiesced(peer, peer->sync);
}

void peer_catch_up(struct peer *peer)
{
    int head = peer->head;

    peer->sync += 1000;
    peer_cancel(peer, peer->sync);
    for (;;) {
        struct word word = peer_word(peer);
        if (word.tag == KVFI_TRTLLM_SESSION_QUIESCED && word.rid == peer->sync) break;
    }
    peer->head = head;
    peer->tail--;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static unsigned char expected_byte(const struct ctx *ctx, const struct peer *peer, int layer, int slot, int offset)
{
    int part = offset / (GEN_HEADS * HEAD_BYTES); /* K, V */
    int inside = offset % (GEN_HEADS * HEAD_BYTES);
    int head = (int)peer->kit.spec.tp_rank * GEN_HEADS;
    size_t at = (size_t)layer * pool_bytes(CTX_HEADS) + (size_t)(slot + 4) * 16 * CTX_HEADS +
                (size_t)(part * CTX_HEADS * HEAD_BYTES + head * HEAD_BYTES + inside);

    return ctx->memory.bytes[at];
}

void peer_has_blocks(const struct ctx *ctx, const struct peer *peer, int first, int end)
{
    const unsigned char *at = peer->memory.bytes;

    for (int layer = 0; layer < KIT_LAYERS; layer++)
        for (int slot = 0; slot < KIT_SLOTS; slot++)
            for (int offset = 0; offset < 16 * GEN_HEADS; offset++, at++) {
                unsigned char expected = slot >= first && slot < end ? expected_byte(ctx, peer, layer, slot, offset)
                                                                     : UNTOUCHED;
                if (*at != expected)
                    fail_msg("rank %d layer %d slot %d byte %d is 0x%02x, expected 0x%02x",
                             (int)peer->kit.spec.instance_rank, layer, slot, offset, *at, expected);
            }
}

/* ---- all together ------------------------------------------------------------------------------------------------ */

void stage_init(struct stage *stage, int is_fake)
{
    peer_init(&stage->a, "gen", 0, !is_fake);
    peer_init(&stage->b, "gen", 1, !is_fake);
    ctx_init(&stage->ctx, is_fake);
}

void stage_start(struct stage *stage)
{
    ctx_open(&stage->ctx);
    peer_open(&stage->a, &stage->ctx);
    peer_open(&stage->b, &stage->ctx);
    peer_register(&stage->a);
    peer_register(&stage->b);
}

void stage_open(struct stage *stage, int is_fake)
{
    stage_init(stage, is_fake);
    stage_start(stage);
}

void stage_close(struct stage *stage)
{
    ctx_close(&stage->ctx);
    peer_close(&stage->a);
    peer_close(&stage->b);
}
