/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm_worker/options.h"

#include <inttypes.h>

#include "base/bounds.h"
#include "base/error.h"
#include "base/struct_size.h"

static const struct kvf_trtllm_worker_options DEFAULTS = {
    .struct_size = sizeof(struct kvf_trtllm_worker_options),
    .flags = KVF_TRTLLM_STRICT_UPSTREAM,
    .host = "127.0.0.1",
    .transfer_timeout_ns = 60 * KVFI_SECOND,
    .first_contact_timeout_ns = 30 * KVFI_SECOND,
    .peer_refresh_ns = 30 * KVFI_SECOND,
    .stale_request_ns = 120 * KVFI_SECOND,
    .max_sessions = 65536,
    .max_requests = 65536,
    .max_peers = 16384,
    .event_capacity = 65536,
};

void kvf_trtllm_worker_options_init(struct kvf_trtllm_worker_options *options, size_t size)
{
    kvfi_struct_init(options, size, &DEFAULTS, sizeof DEFAULTS);
}

void kvf_trtllm_send_init(struct kvf_trtllm_send *send, size_t size)
{
    const struct kvf_trtllm_send defaults = {.schedule = KVF_TRTLLM_CONTEXT_FIRST};
    kvfi_struct_init(send, size, &defaults, sizeof defaults);
}

void kvf_trtllm_piece_init(struct kvf_trtllm_piece *piece, size_t size)
{
    const struct kvf_trtllm_piece defaults = {.token_end = KVF_TRTLLM_NONE, .is_last = 1};
    kvfi_struct_init(piece, size, &defaults, sizeof defaults);
}

void kvf_trtllm_receive_init(struct kvf_trtllm_receive *receive, size_t size)
{
    const struct kvf_trtllm_receive defaults = {.sender_req_id = KVF_TRTLLM_NONE, .ctx_dp_rank = KVF_TRTLLM_NONE,
                                                .schedule = KVF_TRTLLM_CONTEXT_FIRST, .aux_slot = KVF_TRTLLM_NONE,
                                                .dst_start_token = KVF_TRTLLM_NONE};
    kvfi_struct_init(receive, size, &defaults, sizeof defaults);
}

/* 0 means default in every number that has one. */
static void fill_zeroes(struct kvf_trtllm_worker_options *own)
{
    int64_t *numbers[] = {&own->transfer_timeout_ns, &own->first_contact_timeout_ns, &own->peer_refresh_ns,
                          &own->stale_request_ns,    &own->max_sessions,             &own->max_requests,
                          &own->max_peers,           &own->event_capacity};
    const int64_t defaults[] = {DEFAULTS.transfer_timeout_ns, DEFAULTS.first_contact_timeout_ns,
                                DEFAULTS.peer_refresh_ns,     DEFAULTS.stale_request_ns,
                                DEFAULTS.max_sessions,        DEFAULTS.max_requests,
                                DEFAULTS.max_peers,           DEFAULTS.event_capacity};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (*numbers[i] == 0)
            *numbers[i] = defaults[i];
    if (own->host == NULL || own->host[0] == '\0')
        own->host = DEFAULTS.host;
}

static enum kvf_status check_numbers(const struct kvf_trtllm_worker_options *own, struct kvf_error *error)
{
    static const int64_t week = 168 * 3600 * KVFI_SECOND;
    const struct kvfi_bounds rows[] = {
        {"flags", (int64_t)own->flags, 0, KVF_TRTLLM_STRICT_UPSTREAM},
        {"serve_info", own->serve_info, 0, 1},
        {"info_port", own->info_port, 0, 65535},
        {"transfer_timeout_ns", own->transfer_timeout_ns, KVFI_MS, week},
        {"first_contact_timeout_ns", own->first_contact_timeout_ns, KVFI_MS, week},
        {"peer_refresh_ns", own->peer_refresh_ns, KVFI_MS, week},
        {"settle_timeout_ns", own->settle_timeout_ns, 0, week},
        {"stale_request_ns", own->stale_request_ns, KVFI_MS, week},
        {"max_sessions", own->max_sessions, 1, 16777216},
        {"max_requests", own->max_requests, 1, 16777216},
        {"max_peers", own->max_peers, 1, 1048576},
        {"event_capacity", own->event_capacity, 4, 16777216},
    };

    return kvfi_check_bounds("worker option", rows, sizeof rows / sizeof rows[0], error);
}

static enum kvf_status check_agent(const struct kvf_trtllm_agent *agent, struct kvf_error *error)
{
    enum kvf_status status;

    if (agent == NULL)
        return KVF_OK;
    status = kvfi_struct_check(agent->struct_size, offsetof(struct kvf_trtllm_agent, fd), "agent", error);
    if (status != KVF_OK)
        return status;
    if (agent->describe == NULL || agent->load == NULL || agent->invalidate == NULL || agent->submit == NULL ||
        agent->poll == NULL)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                         "agent: describe, load, invalidate, submit and poll are required");
    return KVF_OK;
}

static enum kvf_status check_rank(const kvf_trtllm_rank *rank, struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *spec;

    if (rank == NULL)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "worker option rank is not set");
    spec = kvf_trtllm_rank_get_spec(rank);
    if (spec->attention == NULL || spec->page_table == NULL)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "worker option rank: instance \"%s\" rank %" PRId64
                         " has no %s", spec->instance_name, spec->instance_rank,
                         spec->attention == NULL ? "attention" : "page table");
    return KVF_OK;
}

enum kvf_status kvfi_worker_options_copy(const struct kvf_trtllm_worker_options *options,
                                         struct kvf_trtllm_worker_options *out, struct kvf_error *error)
{
    struct kvf_trtllm_worker_options own = DEFAULTS;
    enum kvf_status status;

    if (options == NULL)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "worker options are not given");
    status = kvfi_options_copy(&own, sizeof own, options, "worker options", error);
    if (status != KVF_OK)
        return status;
    fill_zeroes(&own);
    status = check_numbers(&own, error);
    if (status == KVF_OK)
        status = check_agent(own.agent, error);
    if (status == KVF_OK)
        status = check_rank(own.rank, error);
    if (status == KVF_OK)
        *out = own;
    return status;
}
