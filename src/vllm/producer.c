/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/producer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "vllm/regions.h"

static enum kvf_status bad(struct kvf_error *error, const char *field, int64_t found, const char *expected)
{
    return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "producer: %s is %" PRId64 ", expected %s", field, found,
                     expected);
}

static bool has_recurrent(const struct kvf_vllm_producer_spec *spec)
{
    bool found = false;

    for (size_t i = 0; i < spec->group_count && !found; i++) found = spec->group_kinds[i] == KVF_VLLM_MAMBA;
    for (size_t i = 0; i < spec->layer_count && !found; i++) found = spec->layers[i].kind == KVF_VLLM_MAMBA;
    return found;
}

static enum kvf_status check_lists(const struct kvf_vllm_producer_spec *spec, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (spec->group_count > KVFI_VLLM_MAX_GROUPS) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "producer: %zu KV groups, at most %d", spec->group_count,
                           KVFI_VLLM_MAX_GROUPS);
    } else if (spec->layer_count > KVF_LAYOUT_MAX_PLACES) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "producer: %zu layers, at most %d", spec->layer_count,
                           KVF_LAYOUT_MAX_PLACES);
    } else if ((spec->group_count && !spec->group_kinds) || (spec->layer_count && !spec->layers)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "producer: its groups or layers are NULL");
    }
    for (size_t i = 0; i < spec->group_count && !status; i++) {
        if (spec->group_kinds[i] < KVF_VLLM_ATTENTION || spec->group_kinds[i] > KVF_VLLM_CIRCULAR)
            status = bad(error, "a group's kind", spec->group_kinds[i], "an enum kvf_vllm_kind above 0");
    }
    for (size_t i = 0; i < spec->layer_count && !status; i++) {
        if (!spec->layers[i].name) status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                                                      "producer: layer number %zu has no name", i);
    }
    return status;
}

static enum kvf_status check_spec(const struct kvf_vllm_producer_spec *spec, struct kvf_error *error)
{
    enum kvf_status status = check_lists(spec, error);

    if (status) return status;
    if (spec->tp_size < 1 || spec->tp_size > KVFI_VLLM_MAX_TP) {
        status = bad(error, "tp_size", spec->tp_size, "1 to 1048576");
    } else if (spec->tp_rank < 0 || spec->tp_rank >= spec->tp_size) {
        status = bad(error, "tp_rank", spec->tp_rank, "0 or more, and below tp_size");
    } else if (spec->pp_size < 1) {
        status = bad(error, "pp_size", spec->pp_size, "1 or more");
    } else if (spec->kernel_blocks_per_block < 1) {
        status = bad(error, "kernel_blocks_per_block", spec->kernel_blocks_per_block, "1 or more");
    } else if (spec->max_prepared < 1) {
        status = bad(error, "max_prepared", spec->max_prepared, "1 or more");
    } else if (spec->total_kv_heads < 1 && !spec->is_mla) {
        status = bad(error, "total_kv_heads", spec->total_kv_heads, "1 or more");
    } else if (!kvfi_vllm_arrays_are_there(&spec->regions)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "producer: an array of its regions is NULL");
    }
    return status;
}

static int order_layers(const void *left, const void *right)
{
    const struct kvf_vllm_layer *a = left, *b = right;

    return strcmp(a->name, b->name);
}

/** Copies layers and their names, which lie behind them, sorted by name. */
static struct kvf_vllm_layer *copy_layers(const struct kvf_vllm_layer *layers, size_t count)
{
    size_t bytes = count * sizeof *layers;
    struct kvf_vllm_layer *own;
    char *names;

    for (size_t i = 0; i < count; i++) bytes += strlen(layers[i].name) + 1;
    own = malloc(bytes + 1);
    if (!own || count == 0) goto done;
    names = (char *)(own + count);
    memcpy(own, layers, count * sizeof *layers);
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(layers[i].name) + 1;

        own[i].name = memcpy(names, layers[i].name, length);
        names += length;
    }
    qsort(own, count, sizeof *own, order_layers);
done:
    return own;
}

/** Expands the producer's own arrays. What is wrong with them is not told here, but to whoever pulls. */
static enum kvf_status take_regions(struct kvf_vllm_producer *producer, struct kvf_vllm_arrays arrays,
                                    struct kvf_error *error)
{
    bool shared = false;
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < arrays.group_index_count && !shared; i++) {
        shared = arrays.group_indices[i] == KVF_VLLM_SHARED_GROUP;
    }
    if (arrays.row_offset_count != arrays.layer_name_count) arrays.row_offset_count = 0;
    if (arrays.shared_group_count != arrays.layer_name_count) {
        arrays.shared_group_count = 0;
        if (shared) {
            kvfi_fail(&producer->refusal, KVF_ERR_INCOMPATIBLE,
                      "Mooncake shared-group metadata does not match registered layers, so a shared packed region "
                      "cannot be transferred.");
            goto done;
        }
    }
    status = kvf_vllm_regions_expand(&arrays, producer->layers, producer->layer_count, &producer->regions,
                                     &producer->refusal);
    if (status == KVF_ERR_INCOMPATIBLE) status = KVF_OK;
    else if (status && error) *error = producer->refusal;
done:
    return status;
}

enum kvf_status kvf_vllm_producer_create(const struct kvf_vllm_producer_spec *given, kvf_vllm_producer **out,
                                         struct kvf_error *error)
{
    struct kvf_vllm_producer_spec spec;
    kvf_vllm_producer *producer = NULL;
    enum kvf_status status;

    if (!given || !out) return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "producer: spec or result is NULL");
    kvf_vllm_producer_spec_init(&spec, sizeof spec);
    status = kvfi_options_copy(&spec, sizeof spec, given, "producer", error);
    if (!status) status = check_spec(&spec, error);
    if (status) goto done;
    producer = kvfi_alloc_zeroed(1, sizeof *producer);
    if (!producer) goto no_memory;
    producer->tp_rank = spec.tp_rank;
    producer->tp_size = spec.tp_size;
    producer->pp_size = spec.pp_size;
    producer->has_opaque_row = spec.has_opaque_row != 0;
    producer->replicated = spec.is_mla || spec.tp_size > spec.total_kv_heads;
    producer->keeps_layers_apart = spec.keeps_layers_apart != 0;
    producer->total_heads = spec.is_mla || has_recurrent(&spec) ? 0 : spec.total_kv_heads;
    producer->kernel_blocks_per_block = spec.kernel_blocks_per_block;
    producer->group_kinds = kvfi_alloc_array(spec.group_count, sizeof *producer->group_kinds);
    producer->layers = copy_layers(spec.layers, spec.layer_count);
    if (!producer->group_kinds || !producer->layers) goto no_memory;
    if (spec.group_count) memcpy(producer->group_kinds, spec.group_kinds,
                                 spec.group_count * sizeof *producer->group_kinds);
    producer->group_count = spec.group_count;
    producer->layer_count = spec.layer_count;
    status = take_regions(producer, spec.regions, error);
    if (!status) status = kvfi_vllm_memo_init(&producer->by_layout, (size_t)spec.max_prepared, KVFI_VLLM_MEMO_BYTES,
                                              error);
    if (!status) status = kvfi_vllm_memo_init(&producer->by_id, (size_t)spec.max_prepared, KVFI_VLLM_MEMO_BYTES, error);
    if (status) goto done;
    *out = producer;
    producer = NULL;
    goto done;
no_memory:
    status = kvfi_fail_memory(error, "a producer");
done:
    kvf_vllm_producer_destroy(producer);
    return status;
}

void kvf_vllm_producer_destroy(kvf_vllm_producer *producer)
{
    if (!producer) return;
    kvfi_vllm_memo_fini(&producer->by_id);
    kvfi_vllm_memo_fini(&producer->by_layout);
    kvf_vllm_regions_release(producer->regions);
    free(producer->layers);
    free(producer->group_kinds);
    free(producer);
}

struct kvfi_vllm_ranks kvfi_vllm_producer_ranks(const struct kvf_vllm_producer *producer,
                                                const struct kvf_vllm_peer *peer)
{
    return (struct kvfi_vllm_ranks){.tp_rank = producer->tp_rank, .tp_size = producer->tp_size,
                                    .remote_tp_rank = peer->tp_rank, .remote_tp_size = peer->tp_size,
                                    .replicated = producer->replicated, .total_heads = producer->total_heads};
}
