/* SPDX-License-Identifier: Apache-2.0 */
/* What the host's scheduler calls: upstream's decisions, one function each. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "vllm/scheduler.h"

enum { PARAMS_BYTES = 900 };

static enum kvf_status wrong_role(const char *role, const char *what, const char *req_id, struct kvf_error *error)
{
    return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "request %.200s: a %s cannot %s", req_id, role, what);
}

static enum kvf_status check_fetches(const kvf_vllm_scheduler *scheduler, const char *req_id, struct kvf_error *error)
{
    return scheduler->role == KVF_VLLM_PRODUCER ? wrong_role("producer", "fetch (do_remote_prefill)", req_id, error)
                                                : KVF_OK;
}

static enum kvf_status check_sends(const kvf_vllm_scheduler *scheduler, const char *req_id, struct kvf_error *error)
{
    return scheduler->role == KVF_VLLM_CONSUMER ? wrong_role("consumer", "send (do_remote_decode)", req_id, error)
                                                : KVF_OK;
}

static bool can_be_fetched(const struct kvf_vllm_request *request)
{
    return kvfi_vllm_is_id(request->transfer_id) && kvfi_vllm_is_id(request->remote_engine_id) &&
           kvfi_vllm_is_address(request->remote_bootstrap_addr);
}

static void warn_invalid(kvf_vllm_scheduler *scheduler, const struct kvf_vllm_request *request)
{
    char params[PARAMS_BYTES];

    kvfi_logf(&scheduler->log, KVF_LOG_WARN, "Got invalid KVTransferParams: %s. This request will not utilize "
              "KVTransfer", kvfi_vllm_params_text(request, params, sizeof params));
}

/* ---- a request comes ---------------------------------------------------------------------------------------- */

enum kvf_status kvf_vllm_scheduler_new_request(kvf_vllm_scheduler *scheduler, struct kvf_vllm_request *request,
                                               struct kvf_error *error)
{
    struct kvf_vllm_request own;
    enum kvf_status status = kvfi_vllm_request_read(request, &own, error);

    if (status != KVF_OK || !own.has_params || !own.do_remote_decode || !scheduler->leaves_last) return status;
    /* With prompt logprobs the consumer loads nothing, and computes the whole prompt itself. */
    if (own.p_side_truncated || own.prompt_tokens < 2 || own.skips_prefix_cache) return KVF_OK;
    request->prompt_tokens = own.prompt_tokens - 1;
    request->max_tokens = 1;
    request->p_side_truncated = 1;
    return KVF_OK;
}

enum kvf_status kvf_vllm_scheduler_matched_tokens(kvf_vllm_scheduler *scheduler, const struct kvf_vllm_request *request,
                                                  int64_t computed_tokens, int64_t *tokens, int32_t *is_async,
                                                  struct kvf_error *error)
{
    struct kvf_vllm_request own;
    enum kvf_status status = kvfi_vllm_request_read(request, &own, error);
    bool fetches = status == KVF_OK && own.has_params && own.do_remote_prefill;
    int64_t wanted;

    if (status == KVF_OK && computed_tokens < 0)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "request %.200s: computed_tokens is %" PRId64
                           ", expected at least 0", own.req_id, computed_tokens);
    if (status == KVF_OK && fetches) status = check_fetches(scheduler, own.req_id, error);
    if (status != KVF_OK) return status;
    wanted = own.is_embeds ? 0 : own.prompt_tokens;
    if (scheduler->leaves_last && wanted > 1) wanted--;
    fetches = fetches && wanted > computed_tokens && can_be_fetched(&own);
    *tokens = fetches ? wanted - computed_tokens : 0;
    *is_async = fetches;
    return KVF_OK;
}

/* ---- it has blocks ------------------------------------------------------------------------------------------ */

/* With `groups` NULL it is told without blocks. */
static enum kvf_status put_recv(kvf_vllm_scheduler *scheduler, const struct kvf_vllm_request *request,
                                const struct kvf_vllm_ids *groups, size_t group_count, struct kvf_error *error)
{
    struct kvfi_vllm_queued entry = {.name = request->req_id,
                                    .transfer_id = request->transfer_id,
                                    .engine_id = request->remote_engine_id,
                                    .bootstrap_addr = request->remote_bootstrap_addr};
    struct kvf_vllm_ids *clipped = NULL;
    enum kvf_status status = KVF_OK;

    if (groups) status = kvfi_vllm_scheduler_clip(scheduler, groups, group_count, &clipped, &entry.group_count, error);
    entry.groups = clipped;
    if (status == KVF_OK) status = kvfi_vllm_queue_put(&scheduler->need_recv, &entry, error);
    free(clipped);
    return status;
}

static enum kvf_status put_send(kvf_vllm_scheduler *scheduler, const struct kvf_vllm_request *request,
                                const struct kvf_vllm_ids *groups, size_t group_count, struct kvf_error *error)
{
    struct kvfi_vllm_queued entry = {.name = request->req_id, .transfer_id = request->transfer_id};
    struct kvf_vllm_ids *clipped = NULL;
    enum kvf_status status =
        kvfi_vllm_scheduler_clip(scheduler, groups, group_count, &clipped, &entry.group_count, error);

    entry.groups = clipped;
    if (status == KVF_OK) status = kvfi_vllm_queue_put(&scheduler->need_send, &entry, error);
    free(clipped);
    return status;
}

static enum kvf_status allocated_to_fetch(kvf_vllm_scheduler *scheduler, struct kvf_vllm_request *request,
                                          const struct kvf_vllm_request *own, const struct kvf_vllm_ids *groups,
                                          size_t group_count, struct kvf_error *error)
{
    enum kvf_status status = check_fetches(scheduler, own->req_id, error);

    if (status != KVF_OK) return status;
    if (can_be_fetched(own)) status = put_recv(scheduler, own, groups, group_count, error);
    else warn_invalid(scheduler, own);
    if (status == KVF_OK) request->do_remote_prefill = 0;
    return status;
}

enum kvf_status kvf_vllm_scheduler_allocated(kvf_vllm_scheduler *scheduler, struct kvf_vllm_request *request,
                                             const struct kvf_vllm_ids *groups, size_t group_count,
                                             int64_t external_tokens, struct kvf_error *error)
{
    struct kvf_vllm_request own;
    enum kvf_status status = kvfi_vllm_request_read(request, &own, error);

    if (status != KVF_OK || !own.has_params) return status;
    if (own.do_remote_prefill)
        return allocated_to_fetch(scheduler, request, &own, external_tokens > 0 ? groups : NULL, group_count, error);
    if (!own.do_remote_decode) return KVF_OK;
    status = check_sends(scheduler, own.req_id, error);
    if (status != KVF_OK) return status;
    if (kvfi_vllm_is_id(own.transfer_id)) return put_send(scheduler, &own, NULL, 0, error);
    kvfi_logf(&scheduler->log, KVF_LOG_WARN, "Missing transfer_id in kv_transfer_params from router!");
    return KVF_OK;
}

/* ---- it is over --------------------------------------------------------------------------------------------- */

/* It never had blocks: nothing was asked for yet, and the producer still holds its own. */
static enum kvf_status finished_unfetched(kvf_vllm_scheduler *scheduler, struct kvf_vllm_request *request,
                                          const struct kvf_vllm_request *own, struct kvf_error *error)
{
    enum kvf_status status = check_fetches(scheduler, own->req_id, error);

    if (status != KVF_OK) return status;
    if (can_be_fetched(own)) status = put_recv(scheduler, own, NULL, 0, error);
    else warn_invalid(scheduler, own);
    if (status == KVF_OK) request->do_remote_prefill = 0;
    return status;
}

static bool is_to_be_sent(const kvf_vllm_scheduler *scheduler, const struct kvf_vllm_request *request, int finish)
{
    /* With a cap of one token, a token that stops comes right after a whole prompt, as one that does not. */
    bool stopped_whole = finish == KVF_VLLM_FINISHED_STOPPED && request->max_tokens == 1;

    return finish == KVF_VLLM_FINISHED_LENGTH || (scheduler->send_stopped && stopped_whole);
}

static enum kvf_status finished_prefill(kvf_vllm_scheduler *scheduler, const struct kvf_vllm_request *own, int finish,
                                        const struct kvf_vllm_ids *groups, size_t group_count, int32_t *delays,
                                        struct kvf_error *error)
{
    const struct kvfi_vllm_queued dropped = {.name = own->transfer_id};
    enum kvf_status status = check_sends(scheduler, own->req_id, error);

    if (status != KVF_OK) return status;
    if (!is_to_be_sent(scheduler, own, finish))
        return kvfi_vllm_queue_put(&scheduler->not_processed, &dropped, error);
    for (size_t i = 0; i < group_count; i++)
        if (groups[i].count > 0) *delays = 1;
    return *delays ? put_send(scheduler, own, groups, group_count, error) : KVF_OK;
}

enum kvf_status kvf_vllm_scheduler_finished(kvf_vllm_scheduler *scheduler, struct kvf_vllm_request *request, int finish,
                                            const struct kvf_vllm_ids *groups, size_t group_count, int32_t *delay_free,
                                            struct kvf_error *error)
{
    struct kvf_vllm_request own;
    enum kvf_status status = kvfi_vllm_request_read(request, &own, error);
    int32_t delays = 0;

    if (status == KVF_OK && (finish < KVF_VLLM_FINISHED_LENGTH || finish > KVF_VLLM_FINISHED_OTHER))
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "request %.200s: finish is %d, expected %d to %d",
                           own.req_id, finish, KVF_VLLM_FINISHED_LENGTH, KVF_VLLM_FINISHED_OTHER);
    if (status != KVF_OK) return status;
    if (own.has_params && kvfi_vllm_is_id(own.transfer_id)) {
        if (own.do_remote_prefill) status = finished_unfetched(scheduler, request, &own, error);
        else if (own.do_remote_decode)
            status = finished_prefill(scheduler, &own, finish, groups, group_count, &delays, error);
    }
    if (status == KVF_OK) *delay_free = delays;
    return status;
}
