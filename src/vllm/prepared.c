/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/prepared.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/array.h"
#include "base/error.h"
#include "vllm/regions.h"

/** Numbers of things that were met before, found by hash: number + 1, 0 = free. */
struct table {
    uint32_t *places;
    size_t mask;
};

kvf_vllm_prepared *kvfi_vllm_prepared_new(const int32_t *group_kinds, size_t group_count,
                                          int64_t kernel_blocks_per_block)
{
    kvf_vllm_prepared *prepared = kvfi_alloc_zeroed(1, sizeof *prepared);
    int32_t *kinds = kvfi_alloc_array(group_count, sizeof *kinds);

    if (!prepared || !kinds) {
        free(prepared);
        free(kinds);
        return NULL;
    }
    if (group_count) memcpy(kinds, group_kinds, group_count * sizeof *kinds);
    atomic_init(&prepared->references, 1);
    prepared->group_kinds = kinds;
    prepared->group_count = group_count;
    prepared->kernel_blocks_per_block = kernel_blocks_per_block;
    return prepared;
}

kvf_vllm_prepared *kvf_vllm_prepared_acquire(const kvf_vllm_prepared *prepared)
{
    kvf_vllm_prepared *own = (kvf_vllm_prepared *)prepared; /* the count alone is written */

    atomic_fetch_add_explicit(&own->references, 1, memory_order_relaxed);
    return own;
}

void kvf_vllm_prepared_release(kvf_vllm_prepared *prepared)
{
    if (!prepared || atomic_fetch_sub_explicit(&prepared->references, 1, memory_order_acq_rel) > 1) return;
    for (size_t i = 0; i < prepared->shape_count; i++) kvf_plan_release(prepared->shapes[i].plan);
    free(prepared->job_of);
    free(prepared->jobs);
    free(prepared->lists);
    free(prepared->shapes);
    free(prepared->group_kinds);
    kvf_vllm_regions_release(prepared->remote);
    kvf_vllm_regions_release(prepared->local);
    free(prepared);
}

static bool same_shape(const kvf_vllm_prepared *prepared, uint32_t number, const void *key)
{
    const struct kvfi_vllm_shape *a = &prepared->shapes[number], *b = key;

    return a->src_stride_bytes == b->src_stride_bytes && a->dst_stride_bytes == b->dst_stride_bytes &&
           a->src_bytes == b->src_bytes && a->dst_bytes == b->dst_bytes;
}

static bool same_list(const kvf_vllm_prepared *prepared, uint32_t number, const void *key)
{
    const struct kvfi_vllm_list *a = &prepared->lists[number], *b = key;

    return a->group == b->group && kvfi_vllm_ids_equal(&a->groups, &b->groups);
}

static bool same_job(const kvf_vllm_prepared *prepared, uint32_t number, const void *key)
{
    const struct kvfi_vllm_job *a = &prepared->jobs[number], *b = key;

    return a->shape == b->shape && a->list == b->list;
}

/** Where the key's number is, or would be. */
static uint32_t *find(const struct table *table, const kvf_vllm_prepared *prepared, uint64_t hash,
                      bool (*same)(const kvf_vllm_prepared *, uint32_t, const void *), const void *key)
{
    size_t at = hash & table->mask;

    while (table->places[at] && !same(prepared, table->places[at] - 1, key)) at = (at + 1) & table->mask;
    return &table->places[at];
}

static uint32_t shape_of(kvf_vllm_prepared *prepared, const struct table *table, const struct kvf_vllm_region *local,
                         const struct kvf_vllm_region *remote)
{
    const struct kvfi_vllm_shape key = {.src_stride_bytes = local->block_len, .dst_stride_bytes = remote->block_len,
                                        .src_bytes = local->kv_block_len, .dst_bytes = remote->kv_block_len};
    const int64_t numbers[] = {local->block_len, remote->block_len, local->kv_block_len, remote->kv_block_len};
    uint32_t *place = find(table, prepared, XXH3_64bits(numbers, sizeof numbers), same_shape, &key);

    if (*place == 0) {
        prepared->shapes[prepared->shape_count] = key;
        *place = (uint32_t)++prepared->shape_count;
    }
    return *place - 1;
}

/** Which list a region's ids are in. Shared groups count for shared regions only. */
static uint32_t list_of(kvf_vllm_prepared *prepared, const struct table *table, const struct kvf_vllm_region *local)
{
    struct kvfi_vllm_list key = {.group = local->group_index};
    uint64_t hash;
    uint32_t *place;

    if (key.group == KVF_VLLM_SHARED_GROUP) key.groups = local->shared_groups;
    hash = XXH3_64bits(&key.group, sizeof key.group);
    if (key.groups.count) hash ^= XXH3_64bits(key.groups.ids, key.groups.count * sizeof *key.groups.ids);
    place = find(table, prepared, hash, same_list, &key);
    if (*place == 0) {
        prepared->lists[prepared->list_count] = key;
        *place = (uint32_t)++prepared->list_count;
    }
    return *place - 1;
}

static uint32_t job_of(kvf_vllm_prepared *prepared, const struct table *table, struct kvfi_vllm_job job)
{
    uint32_t *place = find(table, prepared, XXH3_64bits(&job, sizeof job), same_job, &job);

    if (*place == 0) {
        prepared->jobs[prepared->job_count] = job;
        *place = (uint32_t)++prepared->job_count;
    }
    return *place - 1;
}

/** Sorts the pairs into shapes, lists and jobs. */
static enum kvf_status sort_pairs(kvf_vllm_prepared *prepared, const struct kvf_vllm_region *local,
                                  const struct kvf_vllm_region *remote, size_t count, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t places = 4;
    struct table shapes, lists, jobs;
    uint32_t *memory;

    while (places < count * 2) places *= 2;
    memory = kvfi_alloc_zeroed(places * 3, sizeof *memory);
    prepared->shapes = kvfi_alloc_array(count, sizeof *prepared->shapes);
    prepared->lists = kvfi_alloc_array(count, sizeof *prepared->lists);
    prepared->jobs = kvfi_alloc_array(count, sizeof *prepared->jobs);
    prepared->job_of = kvfi_alloc_array(count, sizeof *prepared->job_of);
    if (!memory || !prepared->shapes || !prepared->lists || !prepared->jobs || !prepared->job_of) {
        status = kvfi_fail_memory(error, "a prepared pair");
        goto done;
    }
    shapes = (struct table){memory, places - 1};
    lists = (struct table){memory + places, places - 1};
    jobs = (struct table){memory + places * 2, places - 1};
    for (size_t i = 0; i < count; i++) {
        struct kvfi_vllm_job job = {shape_of(prepared, &shapes, &local[i], &remote[i]),
                                    list_of(prepared, &lists, &local[i])};

        prepared->job_of[i] = job_of(prepared, &jobs, job);
    }
done:
    free(memory);
    return status;
}

/** Finds out what a shape moves, and plans it. `layer` names its first pair. */
static enum kvf_status plan_shape(struct kvfi_vllm_shape *shape, const struct kvfi_vllm_ranks *ranks,
                                  const char *layer, struct kvf_error *error)
{
    struct kvfi_vllm_cut *cut = &shape->cut;
    enum kvf_status status = kvfi_vllm_sender_plan(ranks, shape->src_bytes, shape->dst_bytes, cut, error);

    if (status || !cut->sends) goto done;
    shape->leaves_payload = kvfi_vllm_check_cut(cut, shape->src_bytes, shape->dst_bytes, NULL) != KVF_OK;
    if (shape->leaves_payload) goto done;
    if (shape->src_stride_bytes < 1 || shape->dst_stride_bytes < 1 || cut->bytes < 1) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "layer %s: %" PRId64 " bytes in blocks of %" PRId64 " (producer) and %" PRId64
                           " (consumer) bytes, expected above 0", layer, cut->bytes, shape->src_stride_bytes,
                           shape->dst_stride_bytes);
        goto done;
    }
    shape->whole = cut->src_offset_bytes == 0 && cut->dst_offset_bytes == 0 &&
                   cut->bytes == shape->src_stride_bytes && cut->bytes == shape->dst_stride_bytes;
    status = kvfi_vllm_shape_plan(shape, error);
done:
    return status;
}

enum kvf_status kvfi_vllm_prepared_fill(kvf_vllm_prepared *prepared, const struct kvfi_vllm_ranks *ranks,
                                        struct kvf_error *error)
{
    size_t count, planned = 0;
    const struct kvf_vllm_region *local = kvf_vllm_regions_get(prepared->local, &count);
    const struct kvf_vllm_region *remote = kvf_vllm_regions_get(prepared->remote, &count);
    struct kvfi_vllm_cut any = {.sends = false};
    enum kvf_status status = sort_pairs(prepared, local, remote, count, error);

    /* A shape's number is that of its first pair among all first pairs. */
    for (size_t i = 0; i < count && !status; i++) {
        if (prepared->jobs[prepared->job_of[i]].shape != planned) continue;
        status = plan_shape(&prepared->shapes[planned++], ranks, local[i].layer_name, error);
    }
    if (!status) status = kvfi_vllm_sender_plan(ranks, 0, 0, &any, error);
    prepared->sends = any.sends;
    return status;
}

size_t kvfi_vllm_prepared_memory(const kvf_vllm_prepared *prepared)
{
    size_t pairs = 0, bytes = sizeof *prepared + prepared->group_count * sizeof *prepared->group_kinds;

    if (prepared->local) {
        kvf_vllm_regions_get(prepared->local, &pairs);
        bytes += kvfi_vllm_regions_memory(prepared->local);
    }
    if (prepared->remote) bytes += kvfi_vllm_regions_memory(prepared->remote);
    bytes += pairs * (sizeof *prepared->shapes + sizeof *prepared->lists + sizeof *prepared->jobs +
                      sizeof *prepared->job_of);
    for (size_t i = 0; i < prepared->shape_count; i++) {
        struct kvf_plan_info info;

        if (!prepared->shapes[i].plan) continue;
        kvf_plan_get_info(prepared->shapes[i].plan, &info);
        bytes += (size_t)info.plan_bytes;
    }
    return bytes;
}

enum kvf_status kvf_vllm_prepared_get_info(const kvf_vllm_prepared *prepared, struct kvf_vllm_prepared_info *info,
                                           struct kvf_error *error)
{
    struct kvf_vllm_prepared_info own = {.struct_size = sizeof own};
    size_t pairs;

    if (!prepared || !info || info->struct_size < sizeof info->struct_size)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "prepared info: the pair or the result is NULL or too short");
    kvf_vllm_regions_get(prepared->local, &pairs);
    own.pairs = (int64_t)pairs;
    for (size_t i = 0; i < prepared->shape_count; i++) own.plans += prepared->shapes[i].plan != NULL;
    own.pulls_expected = prepared->pulls_expected;
    own.sends = prepared->sends;
    if (prepared->shape_count) {
        own.src_offset_bytes = prepared->shapes[0].cut.src_offset_bytes;
        own.dst_offset_bytes = prepared->shapes[0].cut.dst_offset_bytes;
        own.bytes_per_block = prepared->shapes[0].cut.bytes;
    }
    own.struct_size = info->struct_size;
    if (info->struct_size > sizeof own) memset((char *)info + sizeof own, 0, info->struct_size - sizeof own);
    memcpy(info, &own, own.struct_size < sizeof own ? own.struct_size : sizeof own);
    return KVF_OK;
}

const kvf_vllm_regions *kvf_vllm_prepared_local(const kvf_vllm_prepared *prepared)
{
    return prepared->local;
}

const kvf_vllm_regions *kvf_vllm_prepared_remote(const kvf_vllm_prepared *prepared)
{
    return prepared->remote;
}

const kvf_plan *kvf_vllm_prepared_plan(const kvf_vllm_prepared *prepared, size_t pair)
{
    size_t pairs;

    kvf_vllm_regions_get(prepared->local, &pairs);
    return pair < pairs ? prepared->shapes[prepared->jobs[prepared->job_of[pair]].shape].plan : NULL;
}
