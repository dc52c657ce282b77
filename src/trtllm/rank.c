/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/rank.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/struct_size.h"

void kvf_trtllm_rank_spec_init(struct kvf_trtllm_rank_spec *spec, size_t size)
{
    const struct kvf_trtllm_rank_spec defaults = {.instance_name = "", .tp_size = 1, .pp_size = 1, .dp_size = 1,
                                                  .cp_size = 1, .self_endpoint = "", .keys = KVF_TRTLLM_HAS_ALL,
                                                  .protocol_version = KVF_TRTLLM_PROTOCOL_VERSION};

    kvfi_struct_init(spec, size, &defaults, sizeof defaults);
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

    if (own) atomic_fetch_add_explicit(&own->references, 1, memory_order_relaxed);
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

size_t kvfi_trt_rank_memory(const kvf_trtllm_rank *rank)
{
    const struct kvfi_trt_geometry *geometry = rank->geometry;
    size_t bytes = sizeof *rank + rank->arena.bytes + geometry->view_count * sizeof *geometry->views;

    bytes += geometry->cover_count * (sizeof *geometry->covers + sizeof *geometry->views->places
                                      + sizeof *geometry->views->by_global);
    return bytes + (geometry->hosted_count[0] + geometry->hosted_count[1]) * sizeof *geometry->hosted[0];
}

const struct kvfi_trt_geometry *kvfi_trt_rank_geometry(const kvf_trtllm_rank *rank)
{
    return rank->geometry;
}
