/* SPDX-License-Identifier: Apache-2.0 */
/* A request's cache from vLLM producers to one consumer, all kvferry, over the Mooncake transport: registry, side
 * channel and bytes, each rank a process of its own; beside a bare TCP connection (cubic, writes of 1 MiB) that moves
 * as many bytes, in turns.
 *
 *   vllm-pair [--tp N] [--block N] [--mib N] [--rounds N] [--small N]
 *
 * `tp` producers (1 or 2) give one consumer a request of `mib` in 16 layers, each `block` bytes of every block: with
 * one, whole blocks that follow each other; with two, halves, each a descriptor. `small` is how many requests of two
 * blocks follow, one after the other; 1 = none. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "kit.h"
#include "kvferry/directory.h"
#include "kvferry/vllm_worker.h"

#define SECOND INT64_C(1000000000)

enum { LAYERS = 16, MOST_TP = 2, RAW_BYTES = 1 << 20 };

struct producer {
    pid_t pid;
    int fd;
};

struct scene {
    int64_t tp, block_bytes, blocks, rounds, small; /* block_bytes: a producer's */
    char url[256];
    struct producer producers[MOST_TP];
};

static struct kvf_error error;

/** One rank: its memory and its worker. */
struct rank {
    struct vllm_cache cache;
    struct bench_memory memory;
    kvf_vllm_worker *worker;
};

static void open_rank(struct rank *rank, const struct scene *scene, int role, int64_t tp_rank, int64_t tp_size,
                      int64_t block_bytes)
{
    static const int32_t kinds[] = {KVF_VLLM_ATTENTION};
    struct kvf_vllm_worker_options options;
    struct kvf_vllm_storage storage;
    kvf_vllm_regions *regions = NULL;

    rank->memory = bench_memory_create(LAYERS * scene->blocks * block_bytes);
    vllm_cache_init(&rank->cache, (uint64_t)(uintptr_t)rank->memory.address, LAYERS, scene->blocks, block_bytes);
    storage = (struct kvf_vllm_storage){(uint64_t)(uintptr_t)rank->memory.address, rank->memory.bytes};
    kvf_vllm_worker_options_init(&options, sizeof options);
    options.role = role;
    options.engine_id = role == KVF_VLLM_PRODUCER ? "p-engine" : "d-engine";
    options.tp_rank = tp_rank;
    options.tp_size = tp_size;
    options.total_kv_heads = 8;
    options.group_kinds = kinds;
    options.group_count = 1;
    options.layers = rank->cache.layers;
    options.layer_count = LAYERS;
    options.bootstrap_url = role == KVF_VLLM_PRODUCER ? scene->url : NULL;
    vllm_check(kvf_vllm_worker_open(&options, &rank->worker, &error), &error, "worker");
    vllm_check(kvf_vllm_regions_expand(&rank->cache.arrays, NULL, 0, &regions, &error), &error, "regions");
    vllm_check(kvf_vllm_worker_register(rank->worker, &storage, 1, regions, 0, &error), &error, "register");
    kvf_vllm_regions_release(regions);
}

static void close_rank(struct rank *rank)
{
    kvf_vllm_worker_close(rank->worker);
    bench_memory_destroy(&rank->memory);
}

/* ---- a producer ------------------------------------------------------------------------------------------------ */

/* What a block holds of one layer, rank by rank. */
static void fill(const struct scene *scene, char *memory, int64_t rank)
{
    for (int64_t i = 0; i < LAYERS * scene->blocks; i++)
        for (int64_t at = 0; at < scene->block_bytes; at += 8) {
            uint64_t word = (uint64_t)(i * MOST_TP + rank) << 32 | (uint64_t)at;
            memcpy(memory + i * scene->block_bytes + at, &word, 8);
        }
}

static void make_ready(kvf_vllm_worker *worker, const char *prefix, int64_t count, int64_t blocks)
{
    int64_t *ids = vllm_ids(0, blocks);
    struct kvf_vllm_ids group = {ids, (size_t)blocks};

    for (int64_t i = 0; i < count; i++) {
        char name[64];
        struct kvf_vllm_send send = {name, name, &group, 1};
        struct kvf_vllm_step step = {.struct_size = sizeof step, .sends = &send, .send_count = 1};

        snprintf(name, sizeof name, "%s%" PRId64, prefix, i);
        vllm_check(kvf_vllm_worker_step(worker, &step, &error), &error, "step");
    }
    free(ids);
}

/* Hears where the registry is, says that it is ready, and goes on until its parent ends it. */
static void run_producer(struct scene *scene, int64_t rank, int parent)
{
    static struct rank own;
    struct kvf_vllm_event event;

    if (read(parent, scene->url, sizeof scene->url) != sizeof scene->url)
        bench_fail("a producer was not told where the registry is");
    open_rank(&own, scene, KVF_VLLM_PRODUCER, rank, scene->tp, scene->block_bytes);
    fill(scene, own.memory.address, rank);
    make_ready(own.worker, "long-", scene->rounds + 1, scene->blocks);
    make_ready(own.worker, "small-", scene->small, 2);
    if (write(parent, "", 1) != 1)
        bench_fail("socketpair: %s", strerror(errno));
    for (;;)
        while (kvf_vllm_worker_wait(own.worker, &event, 1, SECOND) == 1)
            if (event.status != KVF_OK)
                bench_fail("the producer tells of %s: %s", event.req_id, event.text);
}

/* Before this process has threads. */
static struct producer start_producer(struct scene *scene, int64_t rank)
{
    struct producer producer;
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        bench_fail("socketpair: %s", strerror(errno));
    fflush(stdout);
    producer.pid = fork();
    if (producer.pid < 0)
        bench_fail("fork: %s", strerror(errno));
    if (producer.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        run_producer(scene, rank, ends[1]);
    }
    close(ends[1]);
    producer.fd = ends[0];
    return producer;
}

static void tell_producer(const struct producer *producer, const struct scene *scene)
{
    char byte;

    if (write(producer->fd, scene->url, sizeof scene->url) != sizeof scene->url || read(producer->fd, &byte, 1) != 1)
        bench_fail("a producer did not start");
}

static void end_producer(struct producer *producer)
{
    kill(producer->pid, SIGKILL);
    waitpid(producer->pid, NULL, 0);
    close(producer->fd);
}

/* ---- the consumer ---------------------------------------------------------------------------------------------- */

static double fetch(kvf_vllm_worker *worker, const struct scene *scene, const char *prefix, int64_t number,
                    const struct kvf_vllm_ids *group)
{
    struct kvf_vllm_event event;
    char request[64], transfer[64];
    struct kvf_vllm_recv recv = {request, transfer, "p-engine", scene->url, group, 1};
    struct kvf_vllm_step step = {.struct_size = sizeof step, .recvs = &recv, .recv_count = 1};
    struct kvf_vllm_done done = {.struct_size = sizeof done};
    int64_t started_ns = bench_now_ns(), ended_ns;

    snprintf(request, sizeof request, "d-%s%" PRId64, prefix, number);
    snprintf(transfer, sizeof transfer, "%s%" PRId64, prefix, number);
    vllm_check(kvf_vllm_worker_step(worker, &step, &error), &error, "step");
    do {
        if (kvf_vllm_worker_wait(worker, &event, 1, 60 * SECOND) != 1)
            bench_fail("%s was not received", request);
        if (event.status != KVF_OK)
            bench_fail("%s: %s", request, event.text);
    } while (event.kind != KVF_VLLM_EVENT_RECEIVED);
    ended_ns = bench_now_ns();
    vllm_check(kvf_vllm_worker_collect(worker, &done, &error), &error, "collect");
    if (done.finished_recving_count != 1 || done.invalid_block_count != 0)
        bench_fail("%s was not told as received", request);
    kvf_vllm_done_release(&done);
    return (double)(ended_ns - started_ns) / 1e9;
}

/* The file below the memory is read: what orders these bytes before their answer goes through other processes, where
 * a sanitizer of threads does not see it. */
static void check_bytes(const struct scene *scene, const struct bench_memory *memory)
{
    size_t bytes = (size_t)(scene->tp * scene->block_bytes);
    char *block = malloc(bytes);

    for (int64_t i = 0; i < LAYERS * scene->blocks; i++) {
        if (block == NULL || pread(memory->fd, block, bytes, (off_t)(i * (int64_t)bytes)) != (ssize_t)bytes)
            bench_fail("block %" PRId64 " cannot be read", i);
        for (int64_t at = 0; at < (int64_t)bytes; at += 8) {
            uint64_t word, rank = (uint64_t)(at / scene->block_bytes);
            uint64_t wanted = ((uint64_t)i * MOST_TP + rank) << 32 | (uint64_t)(at % scene->block_bytes);

            memcpy(&word, block + at, 8);
            if (word != wanted)
                bench_fail("block %" PRId64 " of layer %" PRId64 " is wrong at %" PRId64, i % scene->blocks,
                           i / scene->blocks, at);
        }
    }
    free(block);
}

/* A bare connection between two threads, with memory of its own. */
struct raw {
    struct bench_memory src, dst;
    int64_t *ids;
    struct bench_runs runs;
};

static void open_raw(struct raw *raw, int64_t bytes)
{
    raw->src = bench_memory_create(bytes);
    raw->dst = bench_memory_create(bytes);
    raw->ids = vllm_ids(0, bytes / RAW_BYTES);
    raw->runs = (struct bench_runs){.blocks = bytes / RAW_BYTES, .runs_per_block = 1, .run_bytes = RAW_BYTES,
                                    .src_slot_bytes = RAW_BYTES, .src_stride_bytes = RAW_BYTES,
                                    .dst_slot_bytes = RAW_BYTES, .dst_stride_bytes = RAW_BYTES,
                                    .src_ids = raw->ids, .dst_ids = raw->ids};
}

/* CPU time of all ranks. */
static int64_t all_cpu_ns(const struct scene *scene)
{
    int64_t sum_ns = bench_cpu_ns();

    for (int64_t i = 0; i < scene->tp; i++) {
        struct timespec used;
        clockid_t clock;

        if (clock_getcpuclockid(scene->producers[i].pid, &clock) != 0 || clock_gettime(clock, &used) != 0)
            bench_fail("a producer has no CPU time");
        sum_ns += (int64_t)used.tv_sec * SECOND + used.tv_nsec;
    }
    return sum_ns;
}

static void measure_long(struct rank *consumer, const struct scene *scene)
{
    int64_t *ids = vllm_ids(0, scene->blocks), bytes = consumer->memory.bytes, cpu_ns = 0, bare_cpu_ns = 0;
    struct kvf_vllm_ids group = {ids, (size_t)scene->blocks};
    double *ours = calloc((size_t)scene->rounds, sizeof *ours), *bare = calloc((size_t)scene->rounds, sizeof *bare);
    struct bench_samples own, other;
    struct raw raw;

    if (ours == NULL || bare == NULL)
        bench_fail("no memory for %" PRId64 " rounds", scene->rounds);
    open_raw(&raw, bytes);
    fetch(consumer->worker, scene, "long-", 0, &group);
    check_bytes(scene, &consumer->memory);
    bench_tcp_vectored(&raw.runs, raw.dst.address, raw.src.address);
    for (int64_t i = 0; i < scene->rounds; i++) {
        cpu_ns -= all_cpu_ns(scene);
        ours[i] = fetch(consumer->worker, scene, "long-", i + 1, &group);
        cpu_ns += all_cpu_ns(scene);
        bare_cpu_ns -= bench_cpu_ns();
        bare[i] = bench_tcp_vectored(&raw.runs, raw.dst.address, raw.src.address);
        bare_cpu_ns += bench_cpu_ns();
    }
    own = bench_summary(ours, (size_t)scene->rounds);
    other = bench_summary(bare, (size_t)scene->rounds);
    printf("{\"bench\": \"vllm\", \"what\": \"end to end\", \"producers\": %" PRId64 ", \"descriptor_bytes\": %" PRId64
           ", \"bytes\": %" PRId64 ", \"gb_per_s\": %.2f, \"best_gb_per_s\": %.2f, \"raw_tcp_gb_per_s\": %.2f, "
           "\"of_raw\": %.2f, \"best_of_raw\": %.2f, \"cpu_against_raw\": %.2f}\n", scene->tp,
           scene->tp == 1 ? bytes / LAYERS : scene->block_bytes, bytes, (double)bytes / own.median_s / 1e9,
           (double)bytes / own.best_s / 1e9, (double)bytes / other.median_s / 1e9, other.median_s / own.median_s,
           other.best_s / own.best_s, (double)cpu_ns / (double)bare_cpu_ns);
    bench_memory_destroy(&raw.src);
    bench_memory_destroy(&raw.dst);
    free(raw.ids);
    free(ids);
    free(ours);
    free(bare);
}

static void measure_small(struct rank *consumer, const struct scene *scene)
{
    int64_t ids[] = {0, 1};
    struct kvf_vllm_ids group = {ids, 2};
    double *seconds = calloc((size_t)scene->small, sizeof *seconds);
    struct bench_samples samples;

    for (int64_t i = 0; seconds != NULL && i < scene->small; i++)
        seconds[i] = fetch(consumer->worker, scene, "small-", i, &group);
    samples = bench_summary(seconds, (size_t)scene->small);
    printf("{\"bench\": \"vllm\", \"what\": \"small requests\", \"producers\": %" PRId64 ", \"requests\": %" PRId64
           ", \"layers\": %d, \"bytes\": %" PRId64 ", \"p50_us\": %.0f, \"p99_us\": %.0f}\n", scene->tp, scene->small,
           LAYERS, 2 * LAYERS * scene->tp * scene->block_bytes, samples.median_s * 1e6,
           seconds[scene->small * 99 / 100] * 1e6);
    free(seconds);
}

int main(int argc, char **argv)
{
    struct scene scene = {.tp = bench_option(argc, argv, "tp", 1),
                          .block_bytes = bench_option(argc, argv, "block", 16384),
                          .rounds = bench_option(argc, argv, "rounds", 5),
                          .small = bench_option(argc, argv, "small", 500)};
    int64_t bytes = bench_option(argc, argv, "mib", 256) << 20;
    struct kvf_directory_options options;
    kvf_directory *directory = NULL;
    static struct rank consumer;

    scene.blocks = bytes / LAYERS / scene.tp / scene.block_bytes;
    if (scene.tp > MOST_TP || scene.blocks < 2 || scene.block_bytes % 8 != 0)
        bench_fail("1 or 2 producers, blocks of whole words, at least two of them");
    for (int64_t i = 0; i < scene.tp; i++)
        scene.producers[i] = start_producer(&scene, i);
    kvf_directory_options_init(&options, sizeof options);
    options.flags = KVF_DIRECTORY_VLLM_BOOTSTRAP;
    vllm_check(kvf_directory_open(&options, &directory, &error), &error, "directory");
    snprintf(scene.url, sizeof scene.url, "%s", kvf_directory_url(directory));
    for (int64_t i = 0; i < scene.tp; i++)
        tell_producer(&scene.producers[i], &scene);
    open_rank(&consumer, &scene, KVF_VLLM_CONSUMER, 0, 1, scene.block_bytes * scene.tp);
    measure_long(&consumer, &scene);
    if (scene.small > 1)
        measure_small(&consumer, &scene);
    close_rank(&consumer);
    for (int64_t i = 0; i < scene.tp; i++)
        end_producer(&scene.producers[i]);
    kvf_directory_close(directory);
    return 0;
}
