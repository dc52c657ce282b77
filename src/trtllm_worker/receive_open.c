/* SPDX-License-Identifier: Apache-2.0 */
/* Accepting a receive: what is checked before anything of it exists. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "trtllm_worker/receive.h"

static enum kvf_status check_numbers(const struct kvf_trtllm_receive *receive, struct kvf_error *error)
{
    const struct {
        const char *name;
        int64_t value;
        bool may_be_none;
    } rows[] = {
        {"rid", receive->rid, false},
        {"sender_req_id", receive->sender_req_id, true},
        {"ctx_dp_rank", receive->ctx_dp_rank, true},
        {"prompt_tokens", receive->prompt_tokens, false},
        {"aux_slot", receive->aux_slot, true},
        {"dst_start_token", receive->dst_start_token, true},
        {"timeout_ns", receive->timeout_ns, false},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].value < 0 && !(rows[i].may_be_none && rows[i].value == KVF_TRTLLM_NONE))
            return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "receive: %s is %" PRId64 ", expected 0 or more",
                             rows[i].name, rows[i].value);
    if (receive->schedule != KVF_TRTLLM_CONTEXT_FIRST && receive->schedule != KVF_TRTLLM_GENERATION_FIRST)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "receive: schedule is %d, expected 0 or 1",
                         receive->schedule);
    if (receive->info_endpoint == NULL || receive->info_endpoint[0] == '\0')
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "receive: ctx_info_endpoint is required");
    if (strlen(receive->info_endpoint) >= KVF_TRTLLM_ENDPOINT_BYTES)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "receive: the info endpoint has %zu bytes, at most %d",
                         strlen(receive->info_endpoint), KVF_TRTLLM_ENDPOINT_BYTES - 1);
    return KVF_OK;
}

/* Blocks of the prompt that this rank holds: with context parallelism every cp_size-th one. */
static int64_t block_count(const struct kvf_trtllm_rank_spec *self, int64_t prompt_tokens)
{
    int64_t tokens = self->page_table->tokens_per_block;
    int64_t blocks = prompt_tokens / tokens + (prompt_tokens % tokens != 0);

    if (self->cp_size <= 1)
        return blocks;
    return blocks <= self->cp_rank ? 0 : (blocks - self->cp_rank - 1) / self->cp_size + 1;
}

static int64_t slot_count(const struct kvf_trtllm_page_table *table, const struct kvf_trtllm_group *group)
{
    const struct kvf_trtllm_pool_group *pools = &table->pool_groups[group->pool_group];
    int64_t slots = INT64_MAX;

    for (size_t i = 0; i < pools->pool_count; i++)
        if (pools->pools[i].num_slots < slots)
            slots = pools->pools[i].num_slots;
    return slots;
}

static enum kvf_status check_group(const struct kvf_trtllm_rank_spec *self, size_t number, int64_t expected,
                                   const struct kvf_trtllm_blocks *blocks, struct kvf_error *error)
{
    const struct kvf_trtllm_group *group = &self->page_table->groups[number];
    int64_t slots = slot_count(self->page_table, group);
    bool paged = group->cache == KVF_TRTLLM_PAGED;

    if (blocks->ids == NULL && blocks->count > 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "receive: ids of group %zu are NULL, their count is %zu",
                         number, blocks->count);
    if (paged && blocks->count != (uint64_t)expected)
        return kvfi_fail(error, KVF_ERR_IDS, "receive: group %zu has %zu block ids, expected %" PRId64
                         ", one for each block of the prompt", number, blocks->count, expected);
    if (!paged && blocks->count > 1)
        return kvfi_fail(error, KVF_ERR_IDS, "receive: group %zu has %zu state slots, at most one", number,
                         blocks->count);
    for (size_t i = 0; i < blocks->count; i++)
        if (blocks->ids[i] < (paged ? -1 : 0) || blocks->ids[i] >= slots)
            return kvfi_fail(error, KVF_ERR_IDS, "receive: group %zu, id %zu is %" PRId64 ", expected %d to %" PRId64,
                             number, i, blocks->ids[i], paged ? -1 : 0, slots - 1);
    return KVF_OK;
}

static enum kvf_status check_groups(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_receive *receive,
                                    struct kvf_error *error)
{
    int64_t expected = block_count(self, receive->prompt_tokens);
    enum kvf_status status = KVF_OK;

    if (receive->group_count != self->page_table->group_count || (receive->groups == NULL && receive->group_count > 0))
        return kvfi_fail(error, KVF_ERR_IDS, "receive: block ids of %zu layer groups, this rank has %zu",
                         receive->group_count, self->page_table->group_count);
    for (size_t i = 0; status == KVF_OK && i < receive->group_count; i++)
        status = check_group(self, i, expected, &receive->groups[i], error);
    return status;
}

static enum kvf_status check_aux(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_receive *receive,
                                 struct kvf_error *error)
{
    const struct kvf_trtllm_aux *aux = self->aux;
    bool needed = receive->schedule == KVF_TRTLLM_GENERATION_FIRST;

    if (needed != (receive->aux_slot != KVF_TRTLLM_NONE))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "receive: a %s request takes %s auxiliary slot",
                         needed ? "generation-first" : "context-first", needed ? "an" : "no");
    if (needed && aux == NULL)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "receive: this rank has no auxiliary buffers");
    for (size_t i = 0; needed && i < aux->item_count && i < aux->size_count; i++)
        if (aux->item_sizes[i] > 0 && receive->aux_slot >= aux->size[i] / aux->item_sizes[i])
            return kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "receive: auxiliary slot %" PRId64 ", buffer %zu has %" PRId64
                             " of them", receive->aux_slot, i, aux->size[i] / aux->item_sizes[i]);
    return KVF_OK;
}

static enum kvf_status check_room(const kvf_trtllm_worker *worker, int64_t rid, struct kvf_error *error)
{
    const struct kvfi_receivers *all = worker->receivers;

    if (all->quarantined)
        return kvfi_fail(error, KVF_ERR_IN_DOUBT, "receiver ownership admission is quarantined: %s", all->quarantine);
    if (kvfi_receive_find(worker, rid) != NULL)
        return kvfi_fail(error, KVF_ERR_EXISTS, "rid %" PRId64 " has a receive session already", rid);
    if (all->jobs.count >= (size_t)worker->options.max_sessions)
        return kvfi_fail(error, KVF_ERR_LIMIT, "there are %zu receive sessions, at most max_sessions %" PRId64,
                         all->jobs.count, worker->options.max_sessions);
    return KVF_OK;
}

static enum kvf_status encode(const kvf_trtllm_worker *worker, const struct kvf_trtllm_receive *receive,
                              struct kvfi_receive *job, struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *self = kvf_trtllm_rank_get_spec(worker->self);
    struct kvfi_trtllm_ask ask = {
        .sender_req_id = receive->sender_req_id == KVF_TRTLLM_NONE ? receive->rid : receive->sender_req_id,
        .instance_name = self->instance_name,
        .instance_rank = self->instance_rank,
        .groups = receive->groups,
        .group_count = receive->group_count,
        .rid = receive->rid,
        .dst_start_token = receive->dst_start_token,
        .aux_slot = receive->aux_slot,
        .slice = 0, /* all is asked for in one piece */
    };

    return kvfi_trtllm_ask_encode(&ask, &job->payload, &job->payload_bytes, error);
}

static enum kvf_status make(kvf_trtllm_worker *worker, const struct kvf_trtllm_receive *receive,
                            struct kvfi_receive **out, struct kvf_error *error)
{
    struct kvfi_receive *job = calloc(1, sizeof *job);
    enum kvf_status status;

    if (job == NULL)
        return kvfi_fail_memory(error, "a receive session");
    job->rid = receive->rid;
    job->ctx_dp_rank = receive->ctx_dp_rank;
    job->prompt_tokens = receive->prompt_tokens;
    job->timeout_ns = receive->timeout_ns > 0 ? receive->timeout_ns : worker->options.transfer_timeout_ns;
    job->needs_aux = receive->schedule == KVF_TRTLLM_GENERATION_FIRST;
    kvfi_receive_init(job, worker);
    status = encode(worker, receive, job, error);
    job->terminal = kvfi_worker_event_reserve(worker);
    job->settled = kvfi_worker_event_reserve(worker);
    if (status == KVF_OK && (job->terminal == NULL || job->settled == NULL))
        status = kvfi_fail(error, KVF_ERR_AGAIN, "the event queue is full: take events first");
    if (status != KVF_OK) {
        kvfi_worker_event_cancel(worker, job->terminal);
        kvfi_worker_event_cancel(worker, job->settled);
        free(job->payload);
        free(job);
    } else {
        *out = job;
    }
    return status;
}

enum kvf_status kvfi_receivers_open(kvf_trtllm_worker *worker, const struct kvf_trtllm_receive *receive,
                                    struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *self = kvf_trtllm_rank_get_spec(worker->self);
    struct kvfi_receivers *all = worker->receivers;
    struct kvfi_contact *contact = NULL;
    struct kvfi_receive *job = NULL;
    enum kvf_status status = check_numbers(receive, error);

    if (status == KVF_OK)
        status = check_room(worker, receive->rid, error);
    if (status == KVF_OK)
        status = check_groups(self, receive, error);
    if (status == KVF_OK)
        status = check_aux(self, receive, error);
    if (status == KVF_OK)
        status = kvfi_contact_get(worker, receive->info_endpoint, &contact, error);
    if (status == KVF_OK)
        status = make(worker, receive, &job, error);
    if (status != KVF_OK)
        return status;
    kvfi_table_insert(&all->jobs, &job->link, &job->rid, sizeof job->rid);
    kvfi_fence_take(&all->closed, job->rid, kvfi_now_ns());
    kvfi_timer_arm(&worker->loop.timers, &job->timer, job->life.deadline_ns);
    all->unsettled++;
    worker->stats.receives_active++;
    kvfi_receive_feed(job, KVFI_TRANSFER_ON_RESOLVED, KVF_OK, 0);
    if (kvfi_fence_take(&all->cancelled, job->rid, kvfi_now_ns()))
        kvfi_receive_cancel(job, true);
    else
        kvfi_contact_need(worker, contact, job);
    return KVF_OK;
}
