/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/write.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "plan/bind.h"
#include "vllm/translate.h"

static enum kvf_status fail_address(const struct kvf_vllm_region *region, int64_t id, const char *side,
                                    struct kvf_error *error)
{
    return kvfi_fail(error, KVF_ERR_OUT_OF_RANGE,
                     "layer %s: block %" PRId64 " of the %s, at 0x%" PRIx64 " + %" PRId64 " * %" PRId64
                     ", lies past the end of all addresses",
                     region->layer_name, id, side, region->base_addr, id, region->block_len);
}

/** Whether a region's last block ends inside the addresses, and can be told from its base in 63 bits. */
static bool is_addressable(const struct kvf_vllm_region *region, int64_t high, int64_t offset, int64_t bytes)
{
    int64_t end;

    return kvfi_mad_i64(high, region->block_len, offset, &end) && kvfi_add_i64(end, bytes, &end) &&
           (uint64_t)end <= UINT64_MAX - region->base_addr;
}

static enum kvf_status check_addresses(const struct kvfi_vllm_shape *shape, const struct kvfi_vllm_bound *bound,
                                       const struct kvf_vllm_region *local, const struct kvf_vllm_region *remote,
                                       struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (!is_addressable(local, bound->src_high, shape->cut.src_offset_bytes, shape->cut.bytes))
        status = fail_address(local, bound->src_high, "producer", error);
    else if (!is_addressable(remote, bound->dst_high, shape->cut.dst_offset_bytes, shape->cut.bytes))
        status = fail_address(remote, bound->dst_high, "consumer", error);
    return status;
}

/** Binds blocks to a plan, whose layouts know neither addresses nor how many blocks there are. */
static enum kvf_status bind(const kvf_plan *plan, const struct kvfi_vllm_blocks *blocks, kvf_binding **out,
                            struct kvf_error *error)
{
    const struct kvf_id_list src = {.ids = blocks->src, .count = blocks->count};
    const struct kvf_id_list dst = {.ids = blocks->dst, .count = blocks->count};
    struct kvf_bind_request request;

    kvf_bind_request_init(&request, sizeof request);
    request.flags = KVF_BIND_ANY_IDS;
    request.token_end = (int64_t)blocks->count;
    request.request_tokens = (int64_t)blocks->count;
    request.src = &src;
    request.src_count = 1;
    request.dst = &dst;
    request.dst_count = 1;
    return kvf_bind(plan, &request, out, error);
}

/** Binds a job when its first pair is met. */
static enum kvf_status bind_job(const kvf_vllm_prepared *prepared, size_t job,
                                const struct kvfi_vllm_blocks_by_group *groups, const struct kvf_vllm_region *local,
                                const struct kvf_vllm_region *remote, struct kvfi_vllm_bound *bound,
                                struct kvf_error *error)
{
    const struct kvfi_vllm_shape *shape = &prepared->shapes[prepared->jobs[job].shape];
    struct kvfi_vllm_blocks blocks = {.count = 0};
    int64_t *own = NULL;
    enum kvf_status status = kvfi_vllm_blocks_of(groups, &prepared->lists[prepared->jobs[job].list], &blocks, &own,
                                                 error);

    bound->looked_at = true;
    if (status || blocks.count == 0 || !shape->cut.sends) goto done;
    status = kvfi_vllm_check_cut(&shape->cut, shape->src_bytes, shape->dst_bytes, error);
    if (status) goto done;
    bound->src_low = blocks.src_low;
    bound->src_high = blocks.src_high;
    bound->dst_low = blocks.dst_low;
    bound->dst_high = blocks.dst_high;
    status = check_addresses(shape, bound, local, remote, error);
    if (!status) status = bind(shape->plan, &blocks, &bound->binding, error);
    if (!status) status = kvf_cursor_create(bound->binding, &bound->cursor, error);
    if (status) goto done;
    bound->descriptors = shape->whole ? bound->binding->info.block_runs : (int64_t)blocks.count;
done:
    free(own);
    return status;
}

/** Bounds what one request can make this side keep: a peer may give each region a stride of its own. */
static enum kvf_status count_memory(kvf_vllm_write *write, const struct kvfi_vllm_bound *bound,
                                    const struct kvf_vllm_region *local, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (bound->binding) write->memory_bytes += bound->binding->info.binding_bytes;
    if (write->memory_bytes > KVFI_VLLM_MAX_WRITE_BYTES)
        status = kvfi_fail(error, KVF_ERR_LIMIT,
                           "layer %s: runs of blocks take more than %" PRId64 " bytes, bound once per shape of region",
                           local->layer_name, KVFI_VLLM_MAX_WRITE_BYTES);
    return status;
}

/** Adds one pair of regions. */
static enum kvf_status add_pair(kvf_vllm_write *write, size_t pair, const struct kvfi_vllm_blocks_by_group *groups,
                                const struct kvf_vllm_region *local, const struct kvf_vllm_region *remote,
                                struct kvf_error *error)
{
    const kvf_vllm_prepared *prepared = write->prepared;
    size_t job = prepared->job_of[pair];
    struct kvfi_vllm_bound *bound = &write->bound[job];
    enum kvf_status status = KVF_OK;

    if (!bound->looked_at) {
        status = bind_job(prepared, job, groups, local, remote, bound, error);
        if (!status) status = count_memory(write, bound, local, error);
    }
    if (status || !bound->binding) goto done;
    status = check_addresses(&prepared->shapes[prepared->jobs[job].shape], bound, local, remote, error);
    if (!status && (!kvfi_add_i64(write->bytes, kvf_binding_bytes(bound->binding), &write->bytes) ||
                    !kvfi_add_i64(write->count, bound->descriptors, &write->count)))
        status = kvfi_fail(error, KVF_ERR_OVERFLOW, "layer %s: the sum of bytes does not fit", local->layer_name);
done:
    return status;
}

enum kvf_status kvf_vllm_write_create(const kvf_vllm_prepared *prepared, const struct kvf_vllm_ids *producer,
                                      size_t producer_groups, const struct kvf_vllm_ids *consumer,
                                      size_t consumer_groups, kvf_vllm_write **out, struct kvf_error *error)
{
    struct kvfi_vllm_blocks_by_group groups = {.group_count = 0};
    const struct kvf_vllm_region *local, *remote;
    kvf_vllm_write *write = NULL;
    enum kvf_status status;
    size_t pairs;

    if (!prepared || !out || (producer_groups && !producer) || (consumer_groups && !consumer))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "write: the pair, a list of ids or the result is NULL");
    status = kvfi_vllm_translate(prepared, producer, producer_groups, consumer, consumer_groups, &groups, error);
    if (status || !groups.any) goto done;
    write = kvfi_alloc_zeroed(1, sizeof *write);
    if (!write) goto no_memory;
    write->prepared = kvf_vllm_prepared_acquire(prepared);
    write->bound = kvfi_alloc_zeroed(prepared->job_count, sizeof *write->bound);
    if (!write->bound) goto no_memory;
    local = kvf_vllm_regions_get(prepared->local, &pairs);
    remote = kvf_vllm_regions_get(prepared->remote, &pairs);
    for (size_t i = 0; i < pairs && !status; i++) status = add_pair(write, i, &groups, &local[i], &remote[i], error);
    goto done;
no_memory:
    status = kvfi_fail_memory(error, "a write");
done:
    kvfi_vllm_blocks_fini(&groups);
    if (status || (write && write->count == 0)) {
        kvf_vllm_write_destroy(write);
        write = NULL;
    }
    if (!status) *out = write;
    return status;
}

void kvf_vllm_write_destroy(kvf_vllm_write *write)
{
    if (!write) return;
    for (size_t i = 0; write->bound && i < write->prepared->job_count; i++) {
        kvf_cursor_destroy(write->bound[i].cursor);
        kvf_binding_destroy(write->bound[i].binding);
    }
    free(write->bound);
    kvf_vllm_prepared_release(write->prepared);
    free(write);
}

int64_t kvf_vllm_write_bytes(const kvf_vllm_write *write)
{
    return write ? write->bytes : 0;
}

int64_t kvf_vllm_write_count(const kvf_vllm_write *write)
{
    return write ? write->count : 0;
}
