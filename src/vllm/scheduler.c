/* SPDX-License-Identifier: Apache-2.0 */
/* A scheduler half: making it, which blocks travel, and what a step tells. */
#include "vllm/scheduler.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "base/struct_size.h"

static const struct kvf_vllm_scheduler_options DEFAULTS = {
    .struct_size = sizeof(struct kvf_vllm_scheduler_options), .hybrid_manager = 1};

void kvf_vllm_scheduler_options_init(struct kvf_vllm_scheduler_options *options, size_t size)
{
    kvfi_struct_init(options, size, &DEFAULTS, sizeof DEFAULTS);
}

/* ---- making ------------------------------------------------------------------------------------------------- */

static enum kvf_status check_group(const struct kvf_vllm_group *group, size_t index, struct kvf_error *error)
{
    bool has_window = group->kind == KVF_VLLM_ATTENTION || group->kind == KVF_VLLM_MLA;

    if (group->kind < KVF_VLLM_ATTENTION || group->kind > KVF_VLLM_CIRCULAR)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "scheduler: groups[%zu].kind is %d, expected %d to %d", index,
                         (int)group->kind, KVF_VLLM_ATTENTION, KVF_VLLM_CIRCULAR);
    if (group->block_tokens < 1)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "scheduler: groups[%zu].block_tokens is %" PRId64
                         ", expected at least 1", index, group->block_tokens);
    if (group->window_tokens < 0 || (group->window_tokens > 0 && !has_window))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "scheduler: groups[%zu].window_tokens is %" PRId64
                         ", expected %s", index, group->window_tokens,
                         has_window ? "at least 0" : "0 for a group without attention");
    return KVF_OK;
}

static enum kvf_status check_options(const struct kvf_vllm_scheduler_options *options, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (options->role < KVF_VLLM_PRODUCER || options->role > KVF_VLLM_BOTH)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "scheduler: role is %d, expected %d to %d",
                         (int)options->role, KVF_VLLM_PRODUCER, KVF_VLLM_BOTH);
    if (options->group_count < 1 || options->group_count > KVFI_VLLM_SCHEDULER_MAX_GROUPS)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "scheduler: group_count is %zu, expected 1 to %d",
                         options->group_count, KVFI_VLLM_SCHEDULER_MAX_GROUPS);
    for (size_t i = 0; status == KVF_OK && i < options->group_count; i++)
        status = check_group(&options->groups[i], i, error);
    return status;
}

static void set_groups(kvf_vllm_scheduler *scheduler, const struct kvf_vllm_scheduler_options *options)
{
    scheduler->group_count = options->group_count;
    scheduler->leaves_last = options->bounded_replay != 0;
    for (size_t i = 0; i < options->group_count; i++) {
        const struct kvf_vllm_group *group = &options->groups[i];
        size_t at = scheduler->transferred_count;
        int64_t blocks = group->window_tokens / group->block_tokens + (group->window_tokens % group->block_tokens != 0);

        if (group->kind == KVF_VLLM_MAMBA) scheduler->leaves_last = true;
        if (!group->is_transferred) continue;
        scheduler->transferred[at] = i;
        /* One more: a window may begin inside a block. */
        scheduler->blocks_per_window[at] = group->window_tokens ? (size_t)blocks + 1 : 0;
        scheduler->transferred_count++;
    }
}

enum kvf_status kvf_vllm_scheduler_create(const struct kvf_vllm_scheduler_options *options, kvf_vllm_scheduler **out,
                                          struct kvf_error *error)
{
    struct kvf_vllm_scheduler_options own = DEFAULTS;
    kvf_vllm_scheduler *scheduler = NULL;
    enum kvf_status status = kvfi_options_copy(&own, sizeof own, options, "scheduler", error);

    if (status == KVF_OK) status = check_options(&own, error);
    if (status != KVF_OK) return status;
    scheduler = calloc(1, sizeof *scheduler);
    if (scheduler == NULL) return kvfi_fail_memory(error, "a scheduler half");
    kvfi_log_init(&scheduler->log, &own.log);
    scheduler->role = own.role;
    /* Upstream asks for a group that is not full attention too: one with a window always is such. */
    scheduler->clips = own.hybrid_manager != 0;
    scheduler->send_stopped = own.send_stopped != 0;
    scheduler->transferred = kvfi_alloc_array(own.group_count, sizeof *scheduler->transferred);
    scheduler->blocks_per_window = kvfi_alloc_array(own.group_count, sizeof *scheduler->blocks_per_window);
    if (scheduler->transferred == NULL || scheduler->blocks_per_window == NULL) {
        kvf_vllm_scheduler_destroy(scheduler);
        return kvfi_fail_memory(error, "a scheduler half");
    }
    set_groups(scheduler, &own);
    *out = scheduler;
    return KVF_OK;
}

static void told_fini(struct kvfi_vllm_step_told *told)
{
    kvfi_vllm_queue_fini(&told->recv);
    kvfi_vllm_queue_fini(&told->send);
    kvfi_vllm_queue_fini(&told->dropped);
    free(told->recvs);
    free(told->sends);
    free(told->ids);
    *told = (struct kvfi_vllm_step_told){0};
}

void kvf_vllm_scheduler_destroy(kvf_vllm_scheduler *scheduler)
{
    if (scheduler == NULL) return;
    told_fini(&scheduler->told);
    kvfi_vllm_queue_fini(&scheduler->need_recv);
    kvfi_vllm_queue_fini(&scheduler->need_send);
    kvfi_vllm_queue_fini(&scheduler->not_processed);
    free(scheduler->transferred);
    free(scheduler->blocks_per_window);
    kvfi_log_fini(&scheduler->log);
    free(scheduler);
}

/* ---- which blocks travel ------------------------------------------------------------------------------------ */

/* The last blocks of a group with a window. */
static struct kvf_vllm_ids clip_group(const kvf_vllm_scheduler *scheduler, size_t transferred, struct kvf_vllm_ids ids)
{
    size_t most = scheduler->clips ? scheduler->blocks_per_window[transferred] : 0;

    if (most == 0 || ids.count <= most) return ids;
    return (struct kvf_vllm_ids){ids.ids + (ids.count - most), most};
}

static enum kvf_status check_ids(struct kvf_vllm_ids ids, size_t group, struct kvf_error *error)
{
    for (size_t i = 0; i < ids.count; i++)
        if (ids.ids[i] < 0)
            return kvfi_fail(error, KVF_ERR_IDS, "request: groups[%zu][%zu] is block %" PRId64 ", expected at least 0",
                             group, i, ids.ids[i]);
    return KVF_OK;
}

enum kvf_status kvfi_vllm_scheduler_clip(const kvf_vllm_scheduler *scheduler, const struct kvf_vllm_ids *groups,
                                         size_t group_count, struct kvf_vllm_ids **out, size_t *out_count,
                                         struct kvf_error *error)
{
    bool all = group_count != scheduler->transferred_count;
    enum kvf_status status = KVF_OK;
    struct kvf_vllm_ids *clipped;

    *out = NULL;
    *out_count = 0;
    if (group_count == 0) return KVF_OK;
    if (all && group_count != scheduler->group_count)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "Expected %zu KV cache groups, got %zu.",
                         scheduler->group_count, group_count);
    clipped = kvfi_alloc_array(scheduler->transferred_count, sizeof *clipped);
    if (clipped == NULL) return kvfi_fail_memory(error, "a request's blocks");
    for (size_t i = 0; status == KVF_OK && i < scheduler->transferred_count; i++) {
        size_t group = all ? scheduler->transferred[i] : i;

        status = check_ids(groups[group], group, error);
        clipped[i] = clip_group(scheduler, i, groups[group]);
    }
    if (status != KVF_OK) {
        free(clipped);
        return status;
    }
    *out = clipped;
    *out_count = scheduler->transferred_count;
    return KVF_OK;
}

/* ---- a step ------------------------------------------------------------------------------------------------- */

static void fill_told(struct kvfi_vllm_step_told *told)
{
    for (size_t i = 0; i < told->recv.count; i++) {
        const struct kvfi_vllm_queued *entry = told->recv.entries[i];

        told->recvs[i] = (struct kvf_vllm_recv){entry->name,   entry->transfer_id, entry->engine_id,
                                                entry->bootstrap_addr, entry->groups, entry->group_count};
    }
    for (size_t i = 0; i < told->send.count; i++) {
        const struct kvfi_vllm_queued *entry = told->send.entries[i];

        told->sends[i] = (struct kvf_vllm_send){entry->name, entry->transfer_id, entry->groups, entry->group_count};
    }
    for (size_t i = 0; i < told->dropped.count; i++) told->ids[i] = told->dropped.entries[i]->name;
}

enum kvf_status kvf_vllm_scheduler_step(kvf_vllm_scheduler *scheduler, struct kvf_vllm_step *out,
                                        struct kvf_error *error)
{
    struct kvfi_vllm_step_told told = {.recv = scheduler->need_recv,
                                  .send = scheduler->need_send,
                                  .dropped = scheduler->not_processed};
    enum kvf_status status = kvfi_struct_check(out->struct_size, sizeof *out, "step", error);

    if (status != KVF_OK) return status;
    told.recvs = kvfi_alloc_array(told.recv.count, sizeof *told.recvs);
    told.sends = kvfi_alloc_array(told.send.count, sizeof *told.sends);
    told.ids = kvfi_alloc_array(told.dropped.count, sizeof *told.ids);
    if (told.recvs == NULL || told.sends == NULL || told.ids == NULL) {
        free(told.recvs);
        free(told.sends);
        free(told.ids);
        return kvfi_fail_memory(error, "a step of the scheduler half");
    }
    scheduler->need_recv = scheduler->need_send = scheduler->not_processed = (struct kvfi_vllm_queue){0};
    told_fini(&scheduler->told);
    fill_told(&told);
    scheduler->told = told;
    *out = (struct kvf_vllm_step){.struct_size = sizeof *out,
                                  .recvs = told.recvs,
                                  .recv_count = told.recv.count,
                                  .sends = told.sends,
                                  .send_count = told.send.count,
                                  .not_processed = told.ids,
                                  .not_processed_count = told.dropped.count};
    return KVF_OK;
}
