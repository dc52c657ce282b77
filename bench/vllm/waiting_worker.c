/* SPDX-License-Identifier: Apache-2.0 */
#include "waiting.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bench.h"
#include "kit.h"
#include "kvferry/vllm_worker.h"

#define SECOND INT64_C(1000000000)

static struct kvf_error error;

static int64_t threads_of_this(void)
{
    char line[256];
    int64_t threads = 0;
    FILE *file = fopen("/proc/self/status", "r");

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "Threads:", 8) == 0)
            threads = strtoll(line + 8, NULL, 10);
    if (file != NULL)
        fclose(file);
    return threads;
}

static kvf_vllm_worker *open_worker(struct vllm_cache *cache, struct bench_memory *memory)
{
    static const int32_t kinds[] = {KVF_VLLM_ATTENTION};
    struct kvf_vllm_worker_options options;
    struct kvf_vllm_storage storage;
    kvf_vllm_regions *regions = NULL;
    kvf_vllm_worker *worker = NULL;

    *memory = bench_memory_create((int64_t)WAITING_LAYERS * WAITING_SLOTS * WAITING_BLOCK_BYTES);
    vllm_cache_init(cache, (uint64_t)(uintptr_t)memory->address, WAITING_LAYERS, WAITING_SLOTS, WAITING_BLOCK_BYTES);
    storage = (struct kvf_vllm_storage){(uint64_t)(uintptr_t)memory->address, memory->bytes};
    kvf_vllm_worker_options_init(&options, sizeof options);
    options.role = KVF_VLLM_PRODUCER;
    options.engine_id = "p-engine";
    options.log = (struct kvf_log_sink){.fd = 2, .level = KVF_LOG_ERROR};
    options.total_kv_heads = 8;
    options.group_kinds = kinds;
    options.group_count = 1;
    options.layers = cache->layers;
    options.layer_count = WAITING_LAYERS;
    vllm_check(kvf_vllm_worker_open(&options, &worker, &error), &error, "worker");
    vllm_check(kvf_vllm_regions_expand(&cache->arrays, NULL, 0, &regions, &error), &error, "regions");
    vllm_check(kvf_vllm_worker_register(worker, &storage, 1, regions, 0, &error), &error, "register");
    kvf_vllm_regions_release(regions);
    return worker;
}

static void make_ready(kvf_vllm_worker *worker, const char *prefix, int64_t count)
{
    int64_t *blocks = vllm_ids(0, WAITING_IDS);
    struct kvf_vllm_ids group = {blocks, WAITING_IDS};
    struct kvf_vllm_send *sends = calloc((size_t)count, sizeof *sends);
    char (*names)[64] = calloc((size_t)count, sizeof *names);
    struct kvf_vllm_step step = {.struct_size = sizeof step, .sends = sends, .send_count = (size_t)count};

    for (int64_t i = 0; sends != NULL && names != NULL && i < count; i++) {
        snprintf(names[i], sizeof names[i], "%s%" PRId64, prefix, i);
        sends[i] = (struct kvf_vllm_send){names[i], names[i], &group, 1};
    }
    vllm_check(kvf_vllm_worker_step(worker, &step, &error), &error, "step");
    free(names);
    free(sends);
    free(blocks);
}

/* As an engine would between two steps. */
static void take_events(kvf_vllm_worker *worker)
{
    struct kvf_vllm_event events[16];

    while (kvf_vllm_worker_wait(worker, events, sizeof events / sizeof events[0], SECOND / 1000) > 0)
        continue;
}

/* Until there are so many, or none has come for two seconds. Returns how many. */
static int64_t wait_for_pulls(kvf_vllm_worker *worker, int64_t wanted)
{
    struct kvf_vllm_worker_stats stats = {.struct_size = sizeof stats};
    int64_t last = 0, came_ns = bench_now_ns();

    do {
        take_events(worker);
        kvf_vllm_worker_get_stats(worker, &stats, &error);
        if (stats.pulls_waiting != last)
            came_ns = bench_now_ns();
        last = stats.pulls_waiting;
    } while (last < wanted && bench_now_ns() - came_ns < 2 * SECOND);
    return last;
}

static void wait_for_ends(kvf_vllm_worker *worker, int64_t wanted)
{
    for (int64_t over = 0; over < wanted;) {
        struct kvf_vllm_done done = {.struct_size = sizeof done};

        take_events(worker);
        vllm_check(kvf_vllm_worker_collect(worker, &done, &error), &error, "collect");
        over += (int64_t)done.finished_sending_count;
        kvf_vllm_done_release(&done);
    }
}

static void limit_descriptors(int64_t count)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        bench_fail("no limit of descriptors");
    limit.rlim_cur = (rlim_t)count;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        bench_fail("%" PRId64 " descriptors cannot be had", count);
}

void run_worker(struct lines *lines, int64_t number)
{
    static struct vllm_cache cache;
    struct kvf_vllm_endpoints endpoints = {.struct_size = sizeof endpoints};
    struct bench_memory memory;
    kvf_vllm_worker *worker;
    char line[LINE_BYTES], prefix[32];
    long long count;

    if (number > 0)
        limit_descriptors(number);
    worker = open_worker(&cache, &memory);
    vllm_check(kvf_vllm_worker_endpoints(worker, &endpoints, &error), &error, "endpoints");
    say(lines, "%s", endpoints.side_channel);
    while (hear(lines, line)) {
        if (sscanf(line, "ready %31s %lld", prefix, &count) == 2) {
            make_ready(worker, prefix, count);
            say(lines, "ok");
        } else if (sscanf(line, "memory %lld", &count) == 1) {
            int64_t waiting = wait_for_pulls(worker, count);
            bool all = waiting >= count; /* else there are no descriptors left to look with */

            say(lines, "%" PRId64 " %" PRId64 " %" PRId64, all ? bench_resident_bytes() : 0,
                all ? threads_of_this() : 0, waiting);
        } else if (sscanf(line, "finished %lld", &count) == 1) {
            wait_for_ends(worker, count);
            say(lines, "ok");
        }
    }
    kvf_vllm_worker_close(worker);
    bench_memory_destroy(&memory);
}
