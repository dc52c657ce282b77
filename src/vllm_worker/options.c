/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm_worker/options.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bounds.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "sys/clock.h"

static const struct kvf_vllm_worker_options DEFAULTS = {
    .struct_size = sizeof(struct kvf_vllm_worker_options),
    .tp_size = 1,
    .pp_size = 1,
    .kernel_blocks_per_block = 1,
    .host = "127.0.0.1",
    .layout_ids = 1,
    .register_attempts = 3,
    .connector_timeout_ns = 30 * KVFI_SECOND,
    .abort_request_timeout_ns = 480 * KVFI_SECOND,
    .receive_slack_ns = 60 * KVFI_SECOND,
    .topology_refresh_ns = 30 * KVFI_SECOND,
    .max_pulls = 65536,
    .max_transfers = 262144,
    .max_message_bytes = 64 * 1024 * 1024,
    .max_prepared = 1024,
    .event_capacity = 65536,
    .check_grants = 1,
    .check_arrivals = 1,
    .arrival_timeout_ns = KVFI_SECOND,
};

void kvf_vllm_worker_options_init(struct kvf_vllm_worker_options *options, size_t size)
{
    kvfi_struct_init(options, size, &DEFAULTS, sizeof DEFAULTS);
}

/* ---- checking ----------------------------------------------------------------------------------------------- */

static enum kvf_status check_numbers(const struct kvf_vllm_worker_options *own, struct kvf_error *error)
{
    static const int64_t week = 168 * 3600 * KVFI_SECOND;
    const struct kvfi_bounds rows[] = {
        {"role", own->role, KVF_VLLM_PRODUCER, KVF_VLLM_BOTH},
        {"is_mla", own->is_mla, 0, 1},
        {"tp_size", own->tp_size, 1, 65536},
        {"tp_rank", own->tp_rank, 0, own->tp_size - 1},
        {"pp_size", own->pp_size, 1, 65536},
        {"pp_rank", own->pp_rank, 0, own->pp_size - 1},
        {"dp_rank", own->dp_rank, 0, INT32_MAX},
        {"total_kv_heads", own->total_kv_heads, 0, INT32_MAX},
        {"group_count", (int64_t)own->group_count, 0, 65536},
        {"layer_count", (int64_t)own->layer_count, 0, 1048576},
        {"kernel_blocks_per_block", own->kernel_blocks_per_block, 1, 1048576},
        {"kv_cache_groups", own->kv_cache_groups, 0, 65536},
        {"side_port", own->side_port, 0, 65535},
        {"rpc_port", own->rpc_port, 0, 65535},
        {"data_port", own->data_port, 0, 65535},
        {"layout_ids", own->layout_ids, 0, 1},
        {"register_attempts", own->register_attempts, 1, 1000},
        {"connector_timeout_ns", own->connector_timeout_ns, KVFI_MS, week},
        {"abort_request_timeout_ns", own->abort_request_timeout_ns, KVFI_MS, week},
        {"receive_slack_ns", own->receive_slack_ns, 0, week},
        {"settle_timeout_ns", own->settle_timeout_ns, 0, week},
        {"topology_refresh_ns", own->topology_refresh_ns, 0, week},
        {"max_pulls", own->max_pulls, 1, 16777216},
        {"max_transfers", own->max_transfers, 1, 16777216},
        {"max_message_bytes", own->max_message_bytes, 1024, 1073741824},
        {"max_prepared", own->max_prepared, 1, 1048576},
        {"event_capacity", own->event_capacity, 4, 16777216},
        {"check_grants", own->check_grants, 0, 1},
        {"check_arrivals", own->check_arrivals, 0, 1},
        {"arrival_timeout_ns", own->arrival_timeout_ns, 0, week},
    };

    return kvfi_check_bounds("worker option", rows, sizeof rows / sizeof rows[0], error);
}

static enum kvf_status check_text(const char *name, const char *text, size_t room, struct kvf_error *error)
{
    size_t bytes = text == NULL ? 0 : strnlen(text, room);

    if (text != NULL && (bytes == 0 || bytes >= room))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "worker option %s has %s%zu bytes, expected 1 to %zu", name,
                         bytes >= room ? "at least " : "", bytes, room - 1);
    return KVF_OK;
}

static enum kvf_status check_texts(const struct kvf_vllm_worker_options *own, struct kvf_error *error)
{
    enum kvf_status status = check_text("host", own->host, 256, error);

    if (status == KVF_OK && (strcmp(own->host, "0.0.0.0") == 0 || strcmp(own->host, "::") == 0))
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "worker option host: peers cannot reach \"%s\", expected "
                           "an address of this host", own->host);
    if (status == KVF_OK)
        status = check_text("engine_id", own->engine_id, KVF_VLLM_ID_BYTES, error);
    if (status == KVF_OK)
        status = check_text("bootstrap_url", own->bootstrap_url, KVF_VLLM_ADDRESS_BYTES, error);
    if (status == KVF_OK && own->bootstrap_url != NULL && own->engine_id == NULL)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "worker option engine_id is not set, but bootstrap_url is");
    return status;
}

static enum kvf_status check_arrays(const struct kvf_vllm_worker_options *own, struct kvf_error *error)
{
    if ((own->group_kinds == NULL && own->group_count > 0) || (own->layers == NULL && own->layer_count > 0))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "worker option %s is NULL but its count is not 0",
                         own->group_kinds == NULL && own->group_count > 0 ? "group_kinds" : "layers");
    for (size_t i = 0; i < own->group_count; i++)
        if (own->group_kinds[i] != KVF_VLLM_ATTENTION && own->group_kinds[i] != KVF_VLLM_MAMBA)
            return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "worker option group_kinds[%zu] is %" PRId32
                             ", expected %d or %d", i, own->group_kinds[i], KVF_VLLM_ATTENTION, KVF_VLLM_MAMBA);
    for (size_t i = 0; i < own->layer_count; i++)
        if (own->layers[i].name == NULL || own->layers[i].name[0] == '\0')
            return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "worker option layers[%zu] has no name", i);
    return KVF_OK;
}

/* ---- copying ------------------------------------------------------------------------------------------------ */

/* A block of memory that is handed out piece by piece: the first round only counts. */
struct pieces {
    char *memory;
    size_t used;
};

static void *piece(struct pieces *pieces, const void *from, size_t bytes)
{
    char *to = pieces->memory == NULL ? NULL : pieces->memory + pieces->used;

    if (to != NULL && bytes > 0)
        memcpy(to, from, bytes);
    pieces->used += (bytes + 15) / 16 * 16;
    return to;
}

static const char *text_piece(struct pieces *pieces, const char *text)
{
    return text == NULL ? NULL : piece(pieces, text, strlen(text) + 1);
}

static void lay_out(const struct kvf_vllm_worker_options *own, struct pieces *pieces,
                    struct kvf_vllm_worker_options *out)
{
    struct kvf_vllm_layer *layers = piece(pieces, own->layers, own->layer_count * sizeof *layers);

    *out = *own;
    out->layers = layers;
    out->group_kinds = piece(pieces, own->group_kinds, own->group_count * sizeof *own->group_kinds);
    out->host = text_piece(pieces, own->host);
    out->engine_id = text_piece(pieces, own->engine_id);
    out->bootstrap_url = text_piece(pieces, own->bootstrap_url);
    for (size_t i = 0; i < own->layer_count; i++) {
        const char *name = text_piece(pieces, own->layers[i].name);

        if (layers != NULL)
            layers[i].name = name;
    }
}

/* 0 and NULL mean default in every option that has one. */
static void fill_zeroes(struct kvf_vllm_worker_options *own)
{
    int64_t *numbers[] = {&own->tp_size, &own->pp_size, &own->kernel_blocks_per_block, &own->connector_timeout_ns,
                          &own->abort_request_timeout_ns, &own->max_pulls, &own->max_transfers,
                          &own->max_message_bytes, &own->max_prepared, &own->event_capacity};
    const int64_t defaults[] = {DEFAULTS.tp_size, DEFAULTS.pp_size, DEFAULTS.kernel_blocks_per_block,
                                DEFAULTS.connector_timeout_ns, DEFAULTS.abort_request_timeout_ns, DEFAULTS.max_pulls,
                                DEFAULTS.max_transfers, DEFAULTS.max_message_bytes, DEFAULTS.max_prepared,
                                DEFAULTS.event_capacity};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (*numbers[i] == 0)
            *numbers[i] = defaults[i];
    if (own->register_attempts == 0)
        own->register_attempts = DEFAULTS.register_attempts;
    if (own->kv_cache_groups == 0)
        own->kv_cache_groups = (int64_t)own->group_count;
    if (own->host == NULL)
        own->host = DEFAULTS.host;
}

enum kvf_status kvfi_vllm_worker_options_copy(const struct kvf_vllm_worker_options *given,
                                              struct kvf_vllm_worker_options *out, void **copies,
                                              struct kvf_error *error)
{
    struct kvf_vllm_worker_options own = DEFAULTS, ignored;
    struct pieces pieces = {NULL, 0};
    enum kvf_status status;

    if (given == NULL)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "worker options are not given");
    status = kvfi_options_copy(&own, sizeof own, given, "worker options", error);
    if (status == KVF_OK) {
        fill_zeroes(&own);
        status = check_numbers(&own, error);
    }
    if (status == KVF_OK)
        status = check_texts(&own, error);
    if (status == KVF_OK)
        status = check_arrays(&own, error);
    if (status != KVF_OK)
        return status;
    lay_out(&own, &pieces, &ignored);
    pieces = (struct pieces){kvfi_alloc_zeroed(1, pieces.used + 1), 0};
    if (pieces.memory == NULL)
        return kvfi_fail_memory(error, "a worker's options");
    lay_out(&own, &pieces, out);
    *copies = pieces.memory;
    return KVF_OK;
}
