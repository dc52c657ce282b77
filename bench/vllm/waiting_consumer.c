/* SPDX-License-Identifier: Apache-2.0 */
#include "waiting.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "bench.h"
#include "kit.h"
#include "kvferry/mooncake.h"
#include "vllm/message.h"

enum { PATIENCE_MS = 120000 };

static struct kvf_error error;

struct consumer {
    void *context;
    void **sockets;
    int64_t count;
    kvf_mooncake *engine;
    struct bench_memory memory;
    struct vllm_cache cache;
    struct kvfi_vllm_asker asker;
};

static void open_consumer(struct consumer *consumer, uint64_t layout_id)
{
    struct kvf_mooncake_buffer buffer;
    struct kvf_vllm_peer peer;

    consumer->context = zmq_ctx_new();
    zmq_ctx_set(consumer->context, ZMQ_MAX_SOCKETS, 65000);
    consumer->memory = bench_memory_create((int64_t)WAITING_LAYERS * WAITING_SLOTS * WAITING_BLOCK_BYTES);
    vllm_cache_init(&consumer->cache, (uint64_t)(uintptr_t)consumer->memory.address, WAITING_LAYERS, WAITING_SLOTS,
                    WAITING_BLOCK_BYTES);
    vllm_check(kvf_mooncake_open(NULL, &consumer->engine, &error), &error, "engine");
    buffer = (struct kvf_mooncake_buffer){(uint64_t)(uintptr_t)consumer->memory.address,
                                          (uint64_t)consumer->memory.bytes};
    vllm_check(kvf_mooncake_register(consumer->engine, &buffer, 1, &error), &error, "register");
    kvf_vllm_peer_init(&peer, sizeof peer);
    peer.hostname = "127.0.0.1";
    peer.port = kvf_mooncake_rpc_port(consumer->engine);
    peer.regions = consumer->cache.arrays;
    peer.layout_id = layout_id;
    vllm_check(kvfi_vllm_asker_init(&consumer->asker, &peer, &error), &error, "asker");
}

static void *connect_to(struct consumer *consumer, const char *endpoint)
{
    void *socket = open_socket(consumer->context, ZMQ_DEALER);

    if (zmq_connect(socket, endpoint) != 0)
        bench_fail("connect: %s", zmq_strerror(errno));
    return socket;
}

/* Only the first ones have their arrays with them where there is a layout id. */
static void send_pull(struct consumer *consumer, void *socket, const char *prefix, int64_t number)
{
    int64_t *blocks = vllm_ids(WAITING_IDS, WAITING_IDS);
    struct kvf_vllm_ids group = {blocks, WAITING_IDS};
    char request[64], transfer[64];
    struct kvfi_vllm_wanted wanted = {request, transfer, &group, 1};
    unsigned char *bytes;
    bool with_arrays;
    size_t count;

    snprintf(request, sizeof request, "d-%s%" PRId64, prefix, number);
    snprintf(transfer, sizeof transfer, "%s%" PRId64, prefix, number);
    with_arrays = consumer->asker.short_bytes == 0 || strncmp(prefix, "warm-", 5) == 0;
    vllm_check(kvfi_vllm_pull_encode(&consumer->asker, &wanted, 1, with_arrays, &bytes, &count, &error), &error,
               "encode");
    if (zmq_send(socket, bytes, count, 0) < 0)
        bench_fail("send: %s", zmq_strerror(errno));
    free(bytes);
    free(blocks);
}

/* Whether the answer says that the one request was sent. */
static bool take_answer(void *socket)
{
    bool sent;

    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
    struct kvfi_vllm_reply reply;
    zmq_msg_t message;

    if (zmq_poll(&item, 1, PATIENCE_MS) != 1)
        bench_fail("a pull was not answered");
    zmq_msg_init(&message);
    zmq_msg_recv(&message, socket, 0);
    vllm_check(kvfi_vllm_reply_decode(zmq_msg_data(&message), zmq_msg_size(&message), true, &reply, &error), &error,
               "reply");
    sent = reply.verdict == KVFI_VLLM_FINISH && reply.ok_count == 1;
    kvfi_vllm_reply_fini(&reply);
    zmq_msg_close(&message);
    return sent;
}

static void open_all(struct consumer *consumer, int64_t count, const char *endpoint)
{
    consumer->sockets = calloc((size_t)count, sizeof *consumer->sockets);
    consumer->count = count;
    for (int64_t i = 0; consumer->sockets != NULL && i < count; i++)
        consumer->sockets[i] = connect_to(consumer, endpoint);
}

static void close_all(struct consumer *consumer)
{
    for (int64_t i = 0; i < consumer->count; i++)
        zmq_close(consumer->sockets[i]);
    free(consumer->sockets);
    consumer->sockets = NULL;
    consumer->count = 0;
}

static void measure_latency(struct consumer *consumer, struct lines *lines, int64_t count, int64_t first,
                            const char *prefix, const char *endpoint)
{
    double *seconds = calloc((size_t)count, sizeof *seconds);
    struct bench_samples samples;

    for (int64_t i = 0; seconds != NULL && i < count; i++) {
        int64_t started_ns = bench_now_ns();
        void *socket = connect_to(consumer, endpoint);

        send_pull(consumer, socket, prefix, first + i);
        if (!take_answer(socket))
            bench_fail("a pull that is ready was answered with an error");
        seconds[i] = (double)(bench_now_ns() - started_ns) / 1e9;
        zmq_close(socket);
    }
    samples = bench_summary(seconds, (size_t)count);
    say(lines, "%.1f %.1f %.1f", samples.median_s * 1e6, seconds[count * 99 / 100] * 1e6, samples.worst_s * 1e6);
    free(seconds);
}

void run_consumer(struct lines *lines, int64_t number)
{
    static struct consumer consumer;
    char line[LINE_BYTES], endpoint[256], prefix[32];
    long long count, first;

    open_consumer(&consumer, (uint64_t)number);
    say(lines, "%" PRId64, number);
    while (hear(lines, line)) {
        if (sscanf(line, "greet %lld %lld %255s", &count, &first, endpoint) == 3) {
            open_all(&consumer, count, endpoint);
            for (int64_t i = 0; i < count && first > 0; i++)
                zmq_send(consumer.sockets[i], consumer.asker.bytes, (size_t)first, 0);
            for (int64_t i = 0; i < count && first == 0; i++)
                send_pull(&consumer, consumer.sockets[i], "bare-", i);
            say(lines, "ok");
        } else if (sscanf(line, "pull %lld %lld %31s %255s", &count, &first, prefix, endpoint) == 4) {
            open_all(&consumer, count, endpoint);
            for (int64_t i = 0; i < count; i++)
                send_pull(&consumer, consumer.sockets[i], prefix, first + i);
            say(lines, "ok");
        } else if (strncmp(line, "answers", 7) == 0) {
            count = consumer.count;
            for (int64_t i = first = 0; i < count; i++) {
                first += take_answer(consumer.sockets[i]);
                zmq_close(consumer.sockets[i]);
            }
            say(lines, "%lld", first);
            consumer.count = 0;
            close_all(&consumer);
        } else if (strncmp(line, "close", 5) == 0) {
            close_all(&consumer);
            say(lines, "ok");
        } else if (sscanf(line, "latency %lld %lld %31s %255s", &count, &first, prefix, endpoint) == 4) {
            measure_latency(&consumer, lines, count, first, prefix, endpoint);
        }
    }
    kvf_mooncake_close(consumer.engine);
}
