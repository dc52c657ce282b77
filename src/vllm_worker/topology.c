/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm_worker/topology.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

/** One piece of memory: this, the workers, the texts. */
struct counted {
    struct kvfi_vllm_engine engine; /* first */
    atomic_long holders;
    struct kvfi_vllm_engine_worker workers[];
};

static bool measure(const struct kvfi_vllm_engine_facts *facts, size_t *out)
{
    size_t bytes;

    if (!kvfi_mul_size(facts->worker_count, sizeof facts->workers[0], &bytes) ||
        !kvfi_add_size(bytes, sizeof(struct counted) + strlen(facts->engine_id) + 1, &bytes))
        return false;
    for (size_t i = 0; i < facts->worker_count; i++)
        if (!kvfi_add_size(bytes, strlen(facts->workers[i].address) + 1, &bytes)) return false;
    *out = bytes;
    return true;
}

static const char *put(char **at, const char *text)
{
    char *start = *at;
    size_t bytes = strlen(text) + 1;

    memcpy(start, text, bytes);
    *at += bytes;
    return start;
}

static int by_rank(const void *left, const void *right)
{
    const struct kvfi_vllm_engine_worker *a = left, *b = right;

    if (a->tp_rank != b->tp_rank) return a->tp_rank < b->tp_rank ? -1 : 1;
    return (a->pp_rank > b->pp_rank) - (a->pp_rank < b->pp_rank);
}

/** How many PP ranks the TP rank with most of them has. */
static int64_t count_pp(const struct kvfi_vllm_engine *engine)
{
    int64_t most = 0, run = 0;

    for (size_t i = 0; i < engine->worker_count; i++) {
        run = i > 0 && engine->workers[i].tp_rank == engine->workers[i - 1].tp_rank ? run + 1 : 1;
        if (run > most) most = run;
    }
    return most;
}

static bool is_grid(const struct kvfi_vllm_engine *engine)
{
    if ((int64_t)engine->worker_count != engine->tp_size * engine->pp_size) return false;
    for (size_t i = 0; i < engine->worker_count; i++)
        if (engine->workers[i].tp_rank != (int64_t)i / engine->pp_size ||
            engine->workers[i].pp_rank != (int64_t)i % engine->pp_size)
            return false;
    return true;
}

const struct kvfi_vllm_engine *kvfi_vllm_engine_create(const struct kvfi_vllm_engine_facts *facts)
{
    struct counted *counted;
    size_t bytes;
    char *text;

    if (!measure(facts, &bytes)) return NULL;
    counted = malloc(bytes);
    if (!counted) return NULL;
    text = (char *)(counted->workers + facts->worker_count);
    atomic_init(&counted->holders, 1);
    for (size_t i = 0; i < facts->worker_count; i++) {
        counted->workers[i] = facts->workers[i];
        counted->workers[i].address = put(&text, facts->workers[i].address);
    }
    qsort(counted->workers, facts->worker_count, sizeof counted->workers[0], by_rank);
    counted->engine = (struct kvfi_vllm_engine){
        .engine_id = put(&text, facts->engine_id), .dp_rank = facts->dp_rank, .tp_size = facts->tp_size,
        .workers = counted->workers, .worker_count = facts->worker_count};
    counted->engine.pp_size = count_pp(&counted->engine);
    counted->engine.is_complete = is_grid(&counted->engine);
    return &counted->engine;
}

const struct kvfi_vllm_engine *kvfi_vllm_engine_acquire(const struct kvfi_vllm_engine *engine)
{
    atomic_fetch_add_explicit(&((struct counted *)(void *)engine)->holders, 1, memory_order_relaxed);
    return engine;
}

void kvfi_vllm_engine_release(const struct kvfi_vllm_engine *engine)
{
    struct counted *counted = (struct counted *)(void *)engine;

    if (counted && atomic_fetch_sub_explicit(&counted->holders, 1, memory_order_acq_rel) == 1) free(counted);
}

const struct kvfi_vllm_engine *kvfi_vllm_topology_find(const struct kvfi_vllm_topology *topology, const char *engine_id)
{
    size_t low = 0, high = topology->engine_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(topology->engines[middle]->engine_id, engine_id);

        if (order == 0) return topology->engines[middle];
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

/** Index of the first worker that is not below (tp, pp). */
static size_t lower_bound(const struct kvfi_vllm_engine *engine, int64_t tp_rank, int64_t pp_rank)
{
    const struct kvfi_vllm_engine_worker key = {.tp_rank = tp_rank, .pp_rank = pp_rank};
    size_t low = 0, high = engine->worker_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (by_rank(&engine->workers[middle], &key) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

const char *kvfi_vllm_engine_address(const struct kvfi_vllm_engine *engine, int64_t tp_rank, int64_t pp_rank)
{
    size_t at = lower_bound(engine, tp_rank, pp_rank);

    if (at == engine->worker_count || engine->workers[at].tp_rank != tp_rank ||
        engine->workers[at].pp_rank != pp_rank)
        return NULL;
    return engine->workers[at].address;
}

size_t kvfi_vllm_engine_of_tp(const struct kvfi_vllm_engine *engine, int64_t tp_rank,
                              const struct kvfi_vllm_engine_worker **first)
{
    size_t at = lower_bound(engine, tp_rank, INT64_MIN), end = at;

    while (end < engine->worker_count && engine->workers[end].tp_rank == tp_rank) end++;
    *first = engine->workers + at;
    return end - at;
}
