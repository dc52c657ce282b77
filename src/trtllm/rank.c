/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/rank.h"

#include <stdlib.h>
#include <string.h>

#include "base/compare.h"
#include "base/error.h"

void kvf_trtllm_rank_spec_init(struct kvf_trtllm_rank_spec *spec, size_t size)
{
    struct kvf_trtllm_rank_spec defaults = {.struct_size = size, .instance_name = "", .tp_size = 1, .pp_size = 1,
                                            .dp_size = 1, .cp_size = 1, .self_endpoint = "",
                                            .keys = KVF_TRTLLM_HAS_ALL,
                                            .protocol_version = KVF_TRTLLM_PROTOCOL_VERSION};

    memset(spec, 0, size);
    if (size >= sizeof spec->struct_size) memcpy(spec, &defaults, size < sizeof defaults ? size : sizeof defaults);
}

static void destroy(struct kvf_trtllm_rank *rank)
{
    if (rank) {
        kvfi_trt_geometry_destroy(rank->geometry);
        kvfi_arena_fini(&rank->arena);
        free(rank);
    }
}

enum kvf_status kvf_trtllm_rank_create(const struct kvf_trtllm_rank_spec *spec, kvf_trtllm_rank **out,
                                       struct kvf_error *error)
{
    enum kvf_status status;
    struct kvf_trtllm_rank_spec own;
    struct kvf_trtllm_rank *rank = NULL;

    if (!spec || !out) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "rank info: %s is missing", spec ? "out" : "spec");
        goto done;
    }
    kvf_trtllm_rank_spec_init(&own, sizeof own);
    status = kvfi_options_copy(&own, sizeof own, spec, "rank info", error);
    if (status == KVF_OK) status = kvfi_trt_rank_count(&own, error);
    if (status != KVF_OK) goto done;
    rank = calloc(1, sizeof *rank);
    if (rank) atomic_init(&rank->references, 1);
    if (!rank || !kvfi_trt_rank_copy(rank, &own)) {
        status = kvfi_fail_memory(error, "rank info");
        goto done;
    }
    status = kvfi_trt_rank_check(rank, error);
    if (status == KVF_OK) status = kvfi_trt_rank_index(rank, error);
    if (status == KVF_OK) status = kvfi_trt_table_check(rank, error);
    if (status == KVF_OK) status = kvfi_trt_geometry_create(rank->spec.page_table, &rank->geometry, error);
    if (status != KVF_OK) goto done;
    *out = rank;
    rank = NULL;
done:
    destroy(rank);
    return status;
}

kvf_trtllm_rank *kvf_trtllm_rank_acquire(const kvf_trtllm_rank *rank)
{
    struct kvf_trtllm_rank *own = (struct kvf_trtllm_rank *)rank;

    atomic_fetch_add_explicit(&own->references, 1, memory_order_relaxed);
    return own;
}

void kvf_trtllm_rank_release(kvf_trtllm_rank *rank)
{
    if (rank && atomic_fetch_sub_explicit(&rank->references, 1, memory_order_acq_rel) == 1) destroy(rank);
}

const struct kvf_trtllm_rank_spec *kvf_trtllm_rank_get_spec(const kvf_trtllm_rank *rank)
{
    return &rank->spec;
}

const struct kvfi_trt_geometry *kvfi_trt_rank_geometry(const kvf_trtllm_rank *rank)
{
    return rank->geometry;
}

static int compare_global(const void *left, const void *right)
{
    const struct kvfi_trt_place *a = left, *b = right;
    int order = kvfi_compare_i64(a->cache, b->cache);

    return order ? order : kvfi_compare_i64(a->global_layer, b->global_layer);
}

static int compare_local(const void *left, const void *right)
{
    const struct kvfi_trt_place *a = left, *b = right;
    int order = a->group < b->group ? -1 : a->group > b->group;

    return order ? order : kvfi_compare_i64(a->local_layer, b->local_layer);
}

static enum kvf_status check_listed_once(const struct kvf_trtllm_rank *rank, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    for (size_t i = 1; i < rank->place_count && status == KVF_OK; i++) {
        const struct kvfi_trt_place *at = &rank->by_global[i], *before = at - 1;
        size_t first = before->group < at->group ? before->group : at->group;
        size_t second = before->group < at->group ? at->group : before->group;

        if (compare_global(before, at) == 0)
            status = kvfi_fail(error, KVF_ERR_LAYOUT,
                               "global_layer_id %lld appears in layer groups %zu and %zu; layer groups must partition "
                               "a rank's layers of one cache kind", (long long)at->global_layer, first, second);
    }
    for (size_t i = 1; i < rank->place_count && status == KVF_OK; i++) {
        const struct kvfi_trt_place *at = &rank->by_local[i];

        if (compare_local(at - 1, at) == 0)
            status = kvfi_fail(error, KVF_ERR_LAYOUT, "layer group %zu lists local layer %lld twice", at->group,
                               (long long)at->local_layer);
    }
    return status;
}

enum kvf_status kvfi_trt_rank_index(struct kvf_trtllm_rank *rank, struct kvf_error *error)
{
    size_t count = 0, used = 0;

    for (size_t g = 0; g < kvfi_trt_group_count(rank); g++) count += kvfi_trt_group(rank, g)->layer_count;
    rank->by_global = kvfi_arena_take(&rank->arena, count, sizeof *rank->by_global);
    rank->by_local = kvfi_arena_take(&rank->arena, count, sizeof *rank->by_local);
    if (!rank->by_global || !rank->by_local) return kvfi_fail_memory(error, "rank info");
    rank->place_count = count;
    for (size_t g = 0; g < kvfi_trt_group_count(rank); g++) {
        const struct kvf_trtllm_group *group = kvfi_trt_group(rank, g);

        for (size_t i = 0; i < group->layer_count; i++) {
            rank->by_global[used] = (struct kvfi_trt_place){group->cache, group->layers[i].global_layer,
                                                            group->layers[i].local_layer, g, i};
            rank->by_local[used] = rank->by_global[used];
            used++;
        }
    }
    qsort(rank->by_global, count, sizeof *rank->by_global, compare_global);
    qsort(rank->by_local, count, sizeof *rank->by_local, compare_local);
    return check_listed_once(rank, error);
}

const struct kvfi_trt_place *kvfi_trt_find_global(const struct kvf_trtllm_rank *rank, int64_t cache,
                                                  int64_t global_layer)
{
    const struct kvfi_trt_place wanted = {.cache = cache, .global_layer = global_layer};

    return bsearch(&wanted, rank->by_global, rank->place_count, sizeof wanted, compare_global);
}

const struct kvfi_trt_place *kvfi_trt_find_local(const struct kvf_trtllm_rank *rank, size_t group, int64_t local_layer)
{
    const struct kvfi_trt_place wanted = {.group = group, .local_layer = local_layer};

    return bsearch(&wanted, rank->by_local, rank->place_count, sizeof wanted, compare_local);
}

int64_t kvfi_trt_tp_per_dp(const struct kvf_trtllm_rank *rank)
{
    const struct kvf_trtllm_rank_spec *spec = &rank->spec;

    return spec->attention && spec->attention->enable_attention_dp ? spec->tp_size / spec->dp_size : spec->tp_size;
}
