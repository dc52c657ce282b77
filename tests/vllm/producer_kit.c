/* SPDX-License-Identifier: Apache-2.0 */
#include "producer_kit.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>


#define PATIENCE_NS (20 * KVFI_SECOND)

/* ---- the fake engine ------------------------------------------------------------------------------------------- */

static bool is_held(const struct fake_engine *fake, const char *session)
{
    return fake->held_session != NULL &&
           (fake->held_session[0] == '\0' || strcmp(fake->held_session, session) == 0);
}

static int fake_write(void *context, struct kvfi_vllm_batch *batch, struct kvf_error *reason)
{
    struct fake_engine *fake = context;
    struct fake_call call = {.count = 0};
    int code;

    snprintf(call.session, sizeof call.session, "%s", batch->session);
    for (size_t i = 0; i < batch->write_count; i++) {
        struct kvf_vllm_descriptor one;

        while (kvf_vllm_write_next(batch->writes[i], &one, 1) == 1) {
            if (call.count < FAKE_DESCRIPTORS) call.list[call.count] = one;
            call.count++;
        }
    }
    pthread_mutex_lock(&fake->lock);
    fake->calls[fake->call_count++ % FAKE_CALLS] = call;
    fake->running++;
    pthread_cond_broadcast(&fake->changed);
    while (is_held(fake, batch->session) && !atomic_load(&batch->item.stop)) {
        struct timespec until;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 10000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&fake->changed, &fake->lock, &until);
    }
    fake->running--;
    code = fake->code;
    pthread_cond_broadcast(&fake->changed);
    pthread_mutex_unlock(&fake->lock);
    if (code != 0)
        *reason = (struct kvf_error){.status = KVF_ERR_PEER_LOST, .text = "the fake engine was told to fail"};
    return code;
}

size_t fake_call_count(struct producer *producer)
{
    size_t count;

    pthread_mutex_lock(&producer->fake.lock);
    count = producer->fake.call_count;
    pthread_mutex_unlock(&producer->fake.lock);
    return count;
}

static void await(struct producer *producer, bool (*there)(struct producer *, size_t), size_t count, const char *what)
{
    int64_t deadline = kvfi_now_ns() + PATIENCE_NS;

    while (!there(producer, count)) {
        if (kvfi_now_ns() > deadline) fail_msg("%s: not %zu in time", what, count);
        poll(NULL, 0, 1);
    }
}

static bool calls_are(struct producer *producer, size_t count) { return fake_call_count(producer) >= count; }

const struct fake_call *fake_call(struct producer *producer, size_t index)
{
    await(producer, calls_are, index + 1, "calls of the engine");
    return &producer->fake.calls[index % FAKE_CALLS];
}

void fake_hold(struct producer *producer, const char *session)
{
    pthread_mutex_lock(&producer->fake.lock);
    producer->fake.held_session = session;
    pthread_cond_broadcast(&producer->fake.changed);
    pthread_mutex_unlock(&producer->fake.lock);
}

void fake_return(struct producer *producer, int code)
{
    pthread_mutex_lock(&producer->fake.lock);
    producer->fake.code = code;
    pthread_mutex_unlock(&producer->fake.lock);
}

static bool running_is(struct producer *producer, size_t count)
{
    bool is;

    pthread_mutex_lock(&producer->fake.lock);
    is = producer->fake.running == count;
    pthread_mutex_unlock(&producer->fake.lock);
    return is;
}

void fake_running(struct producer *producer, size_t count) { await(producer, running_is, count, "calls held"); }

/* ---- the producer ---------------------------------------------------------------------------------------------- */

struct kvf_vllm_region region_of(const char *name, int64_t index, uint64_t base, int64_t block_len,
                                 int64_t kv_block_len)
{
    return (struct kvf_vllm_region){.layer_name = name, .layer_index = index, .base_addr = base, .block_len = block_len,
                                    .kv_block_len = kv_block_len == 0 ? block_len : kv_block_len,
                                    .row_offset = KVF_VLLM_NO_ROW};
}

static void fill_options(const struct producer_setup *setup, struct kvf_vllm_worker_options *options)
{
    static const int32_t kinds[] = {KVF_VLLM_ATTENTION};
    static const struct kvf_vllm_layer layers[] = {
        {"model.layers.0.self_attn", 0, KVF_VLLM_ATTENTION, 0, 4096, 4096},
        {"model.layers.1.self_attn", 0, KVF_VLLM_ATTENTION, 0, 4096, 4096}};

    kvf_vllm_worker_options_init(options, sizeof *options);
    options->role = setup->both ? KVF_VLLM_BOTH : KVF_VLLM_PRODUCER;
    options->engine_id = "p-engine";
    options->tp_rank = setup->tp_rank;
    options->tp_size = setup->tp_size;
    options->pp_rank = setup->pp_rank;
    options->pp_size = setup->pp_size;
    options->total_kv_heads = setup->heads == 0 ? 12 : setup->heads;
    options->group_kinds = kinds;
    options->group_count = 1;
    options->layers = layers;
    options->layer_count = 2;
    options->host = setup->host;
    options->side_port = setup->side_port;
    options->bootstrap_url = setup->bootstrap_url;
    options->register_attempts = 1;
    options->abort_request_timeout_ns = setup->abort_ms * KVFI_MS;
    options->max_pulls = setup->max_pulls;
    options->max_transfers = setup->max_transfers;
    options->max_message_bytes = setup->message_bytes;
    options->layout_ids = !setup->without_layout_ids;
    options->log = setup->log;
}

enum kvf_status producer_try_open(struct producer *producer, const struct producer_setup *setup,
                                  struct kvf_error *error)
{
    const struct kvfi_vllm_writer fake = {fake_write, &producer->fake};
    struct kvf_vllm_worker_options options;
    struct kvf_vllm_endpoints endpoints = {.struct_size = sizeof endpoints};
    enum kvf_status status;

    memset(producer, 0, sizeof *producer);
    pthread_mutex_init(&producer->fake.lock, NULL);
    pthread_cond_init(&producer->fake.changed, NULL);
    producer->context = zmq_ctx_new();
    zmq_ctx_set(producer->context, ZMQ_MAX_SOCKETS, 20000);
    fill_options(setup, &options);
    producer->memory = setup->memory;
    if (producer->memory.bytes == 0 && setup->region_count > 0)
        producer->memory = (struct kvf_vllm_storage){setup->regions[0].base_addr, 64 * setup->regions[0].block_len};
    status = kvf_vllm_regions_create(setup->regions, setup->region_count, &producer->regions, error);
    if (status == KVF_OK)
        status = kvfi_vllm_worker_open(&options, setup->real ? NULL : &fake, &producer->worker, error);
    if (status == KVF_OK && !setup->unregistered)
        status = kvf_vllm_worker_register(producer->worker, &producer->memory, 1, producer->regions, 0, error);
    if (status == KVF_OK) status = kvf_vllm_worker_endpoints(producer->worker, &endpoints, error);
    if (status == KVF_OK) snprintf(producer->address, sizeof producer->address, "%s", endpoints.side_channel);
    return status;
}

void producer_open(struct producer *producer, const struct producer_setup *setup)
{
    struct kvf_error error = {.text = ""};

    if (producer_try_open(producer, setup, &error) != KVF_OK) fail_msg("%s", error.text);
}

void producer_close(struct producer *producer)
{
    kvf_vllm_worker_close(producer->worker);
    kvf_vllm_regions_release(producer->regions);
    zmq_ctx_term(producer->context);
    pthread_cond_destroy(&producer->fake.changed);
    pthread_mutex_destroy(&producer->fake.lock);
}

static void step(struct producer *producer, const struct kvf_vllm_step *step)
{
    struct kvf_error error = {.text = ""};

    if (kvf_vllm_worker_step(producer->worker, step, &error) != KVF_OK) fail_msg("%s", error.text);
}

void producer_ready(struct producer *producer, const char *p_req_id, const char *transfer_id,
                    const struct kvf_vllm_ids *groups, size_t group_count)
{
    const struct kvf_vllm_send send = {p_req_id, transfer_id, groups, group_count};

    step(producer, &(struct kvf_vllm_step){.struct_size = sizeof(struct kvf_vllm_step), .sends = &send,
                                           .send_count = 1});
}

void producer_drop(struct producer *producer, const char *transfer_id)
{
    step(producer, &(struct kvf_vllm_step){.struct_size = sizeof(struct kvf_vllm_step),
                                           .not_processed = &transfer_id, .not_processed_count = 1});
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

const char *producer_finished(struct producer *producer, size_t count)
{
    static _Thread_local char text[4096];
    char *ids[256];
    size_t got = 0;
    int64_t deadline = kvfi_now_ns() + PATIENCE_NS;

    do {
        struct kvf_vllm_done done = {.struct_size = sizeof done};

        assert_int_equal(kvf_vllm_worker_collect(producer->worker, &done, NULL), KVF_OK);
        for (size_t i = 0; i < done.finished_sending_count; i++) ids[got++] = strdup(done.finished_sending[i]);
        kvf_vllm_done_release(&done);
        if (got < count) poll(NULL, 0, 1);
    } while (got < count && kvfi_now_ns() < deadline);
    if (got < count) fail_msg("%zu requests are over, expected %zu", got, count);
    qsort(ids, got, sizeof ids[0], by_text);
    text[0] = '\0';
    for (size_t i = 0; i < got; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i == 0 ? "" : ",", ids[i]);
        free(ids[i]);
    }
    return text;
}

struct kvf_vllm_worker_stats producer_stats(struct producer *producer)
{
    struct kvf_vllm_worker_stats stats = {.struct_size = sizeof stats};

    assert_int_equal(kvf_vllm_worker_get_stats(producer->worker, &stats, NULL), KVF_OK);
    return stats;
}

struct kvf_vllm_event producer_event(struct producer *producer, int kind)
{
    struct kvf_vllm_event event;
    int64_t deadline = kvfi_now_ns() + PATIENCE_NS;

    do {
        if (kvf_vllm_worker_wait(producer->worker, &event, 1, deadline - kvfi_now_ns()) != 1)
            fail_msg("no event of kind %d", kind);
    } while (event.kind != kind);
    return event;
}

static bool pulls_are(struct producer *producer, size_t count)
{
    struct kvf_vllm_worker_stats stats = producer_stats(producer);
    return stats.pulls_received + stats.malformed >= (int64_t)count;
}

void producer_took(struct producer *producer, int64_t pulls)
{
    await(producer, pulls_are, (size_t)pulls, "pulls taken");
}

/* ---- those who pull -------------------------------------------------------------------------------------------- */

static void *dealer(struct producer *producer)
{
    void *socket = zmq_socket(producer->context, ZMQ_DEALER);
    int none = 0, yes = 1;

    assert_non_null(socket);
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &none, sizeof none);
    if (strchr(producer->address, '[') != NULL) zmq_setsockopt(socket, ZMQ_IPV6, &yes, sizeof yes);
    assert_int_equal(zmq_connect(socket, producer->address), 0);
    return socket;
}

void *pull_raw(struct producer *producer, const struct kvfi_frame *frames, size_t count)
{
    void *socket = dealer(producer);

    for (size_t i = 0; i < count; i++)
        assert_int_equal(zmq_send(socket, frames[i].bytes, frames[i].byte_count, i + 1 < count ? ZMQ_SNDMORE : 0),
                         frames[i].byte_count);
    return socket;
}

void pull_again(void *socket, const struct kvfi_frame *frame)
{
    assert_int_equal(zmq_send(socket, frame->bytes, frame->byte_count, 0), frame->byte_count);
}

void *pull_send(struct producer *producer, const struct asker *asker, const struct kvfi_vllm_wanted *wanted,
                size_t count)
{
    kvf_vllm_regions *regions;
    struct kvfi_vllm_asker encoded;
    struct kvf_vllm_peer peer;
    struct kvfi_frame frame;
    unsigned char *bytes;
    void *socket;

    kvf_vllm_peer_init(&peer, sizeof peer);
    peer.hostname = asker->host == NULL ? "consumer-host" : asker->host;
    peer.port = asker->port == 0 ? 54321 : asker->port;
    peer.tp_rank = asker->tp_rank;
    peer.tp_size = asker->tp_size == 0 ? 1 : asker->tp_size;
    peer.pp_size = asker->pp_size == 0 ? 1 : asker->pp_size;
    peer.layout_id = asker->layout_id;
    assert_int_equal(kvf_vllm_regions_create(asker->regions, asker->region_count, &regions, NULL), KVF_OK);
    kvf_vllm_regions_arrays(regions, &peer.regions);
    assert_int_equal(kvfi_vllm_asker_init(&encoded, &peer, NULL), KVF_OK);
    assert_int_equal(kvfi_vllm_pull_encode(&encoded, wanted, count, !asker->bare, &bytes, &frame.byte_count, NULL),
                     KVF_OK);
    frame.bytes = bytes;
    socket = pull_raw(producer, &frame, 1);
    free(bytes);
    kvfi_vllm_asker_fini(&encoded);
    kvf_vllm_regions_release(regions);
    return socket;
}

void *pull_one(struct producer *producer, const struct asker *asker, const char *d_req_id, const char *transfer_id,
               const struct kvf_vllm_ids *groups, size_t group_count)
{
    const struct kvfi_vllm_wanted wanted = {d_req_id, transfer_id, groups, group_count};
    return pull_send(producer, asker, &wanted, 1);
}

struct kvfi_vllm_reply pull_reply(void *socket)
{
    struct kvfi_vllm_reply reply;
    struct kvf_error error = {.text = ""};
    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
    zmq_msg_t message;

    if (zmq_poll(&item, 1, (long)(PATIENCE_NS / KVFI_MS)) != 1) fail_msg("no reply");
    zmq_msg_init(&message);
    assert_true(zmq_msg_recv(&message, socket, 0) >= 0);
    assert_false(zmq_msg_more(&message)); /* one frame, after the identity that a DEALER does not see */
    if (kvfi_vllm_reply_decode(zmq_msg_data(&message), zmq_msg_size(&message), true, &reply, &error) != KVF_OK)
        fail_msg("%s", error.text);
    zmq_msg_close(&message);
    return reply;
}

static void check_list(const char *name, const char *const *ids, size_t count, const char *expected)
{
    char text[2048] = "";

    for (size_t i = 0; i < count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i == 0 ? "" : ",", ids[i]);
    if (strcmp(text, expected == NULL ? "" : expected) != 0)
        fail_msg("%s are \"%s\", expected \"%s\"", name, text, expected == NULL ? "" : expected);
}

void pull_expect_id(void *socket, int verdict, const char *ok, const char *err, const char *text, uint64_t layout_id)
{
    struct kvfi_vllm_reply reply = pull_reply(socket);

    if (reply.verdict != verdict)
        fail_msg("%s (%s), expected %s", kvfi_vllm_verdict_text(reply.verdict),
                 reply.err_msg == NULL ? "" : reply.err_msg, kvfi_vllm_verdict_text(verdict));
    check_list("ok_reqs", reply.ok_reqs, reply.ok_count, ok);
    check_list("err_reqs", reply.err_reqs, reply.err_count, err);
    if ((text == NULL) != (reply.err_msg == NULL) || (text != NULL && strcmp(text, reply.err_msg) != 0))
        fail_msg("err_msg is \"%s\", expected \"%s\"", reply.err_msg == NULL ? "(none)" : reply.err_msg,
                 text == NULL ? "(none)" : text);
    assert_int_equal(reply.layout_id, layout_id);
    kvfi_vllm_reply_fini(&reply);
}

void pull_expect(void *socket, int verdict, const char *ok, const char *err, const char *text)
{
    pull_expect_id(socket, verdict, ok, err, text, 0);
}

void pull_silent(void *socket)
{
    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};

    assert_int_equal(zmq_poll(&item, 1, 0), 0);
}

void pull_close(void *socket) { zmq_close(socket); }
