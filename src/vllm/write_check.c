/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "base/error.h"
#include "vllm/write.h"

/** What is asked: a side, and the memories that may be touched there. */
struct check {
    const struct kvf_vllm_storage *memory;
    size_t count;
    size_t last; /**< the memory that held the bytes asked for before */
    int side;
};

static bool holds(const struct kvf_vllm_storage *memory, uint64_t address, uint64_t bytes)
{
    return memory->bytes > 0 && address >= memory->base_addr && bytes <= (uint64_t)memory->bytes &&
           address - memory->base_addr <= (uint64_t)memory->bytes - bytes;
}

/** Whether one memory holds the bytes: mostly the one that held those before. */
static bool is_inside(struct check *check, uint64_t address, uint64_t bytes)
{
    bool inside = check->last < check->count && holds(&check->memory[check->last], address, bytes);

    for (size_t i = 0; i < check->count && !inside; i++) {
        inside = holds(&check->memory[i], address, bytes);
        if (inside) check->last = i;
    }
    return inside;
}

static uint64_t distance(const struct kvf_vllm_storage *memory, uint64_t address)
{
    uint64_t end = memory->base_addr + (memory->bytes > 0 ? (uint64_t)memory->bytes : 0);

    if (address < memory->base_addr) return memory->base_addr - address;
    return address < end ? 0 : address - end;
}

static enum kvf_status fail_outside(const struct check *check, const struct kvf_vllm_region *region, uint64_t address,
                                    int64_t bytes, struct kvf_error *error)
{
    const char *side = check->side ? "consumer" : "producer";
    const struct kvf_vllm_storage *nearest = check->memory;
    int64_t block = region->block_len > 0 ? (int64_t)((address - region->base_addr) / (uint64_t)region->block_len) : 0;

    for (size_t i = 1; i < check->count; i++) {
        if (distance(&check->memory[i], address) < distance(nearest, address)) nearest = &check->memory[i];
    }
    if (check->count == 0)
        return kvfi_fail(error, KVF_ERR_OUT_OF_RANGE,
                         "layer %s: block %" PRId64 " of the %s, %" PRId64 " bytes at 0x%" PRIx64
                         ", lies in no memory: there is none", region->layer_name, block, side, bytes, address);
    return kvfi_fail(error, KVF_ERR_OUT_OF_RANGE,
                     "layer %s: block %" PRId64 " of the %s, %" PRId64 " bytes at 0x%" PRIx64
                     ", lies in no memory; the nearest has %" PRId64 " bytes at 0x%" PRIx64,
                     region->layer_name, block, side, bytes, address, nearest->bytes, nearest->base_addr);
}

/** Looks at one move: all of it at once, else descriptor by descriptor. */
static enum kvf_status check_move(struct check *check, const struct kvf_vllm_region *region,
                                  const struct kvf_move *move, struct kvf_error *error)
{
    uint64_t address = region->base_addr + (uint64_t)(check->side ? move->dst_offset_bytes : move->src_offset_bytes);
    int64_t count = move->loop_count ? move->loops[0].count : 1;
    int64_t stride = !move->loop_count ? 0 : check->side ? move->loops[0].dst_stride_bytes
                                                          : move->loops[0].src_stride_bytes;
    uint64_t span = (uint64_t)(count - 1) * (uint64_t)stride + (uint64_t)move->run_bytes;
    enum kvf_status status = KVF_OK;

    if (is_inside(check, address, span)) goto done;
    for (int64_t i = 0; i < count && !status; i++, address += (uint64_t)stride) {
        if (!is_inside(check, address, (uint64_t)move->run_bytes))
            status = fail_outside(check, region, address, move->run_bytes, error);
    }
done:
    return status;
}

/** Looks at a pair whose blocks are not all in one memory. */
static enum kvf_status check_moves(struct check *check, const struct kvf_vllm_region *region,
                                   const struct kvfi_vllm_bound *bound, struct kvf_error *error)
{
    kvf_cursor *cursor = NULL;
    enum kvf_status status = kvf_cursor_create(bound->binding, &cursor, error);
    struct kvf_move move;

    while (!status && kvf_cursor_next(cursor, &move) == KVF_OK) status = check_move(check, region, &move, error);
    kvf_cursor_destroy(cursor);
    return status;
}

enum kvf_status kvf_vllm_write_check(const kvf_vllm_write *write, int side, const struct kvf_vllm_storage *memory,
                                     size_t memory_count, struct kvf_error *error)
{
    struct check check = {.memory = memory, .count = memory_count, .side = side};
    const kvf_vllm_prepared *prepared;
    const struct kvf_vllm_region *regions;
    enum kvf_status status = KVF_OK;
    size_t pairs;

    if (!write) goto done;
    if (side < 0 || side > 1 || (memory_count && !memory)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "write check: side %d, expected 0 or 1, or memory is NULL",
                           side);
        goto done;
    }
    prepared = write->prepared;
    regions = kvf_vllm_regions_get(side ? prepared->remote : prepared->local, &pairs);
    for (size_t i = 0; i < pairs && !status; i++) {
        const struct kvfi_vllm_bound *bound = &write->bound[prepared->job_of[i]];
        const struct kvfi_vllm_cut *cut = &prepared->shapes[prepared->jobs[prepared->job_of[i]].shape].cut;
        uint64_t stride = (uint64_t)regions[i].block_len, low, high;

        if (!bound->binding) continue;
        low = (uint64_t)(side ? bound->dst_low : bound->src_low);
        high = (uint64_t)(side ? bound->dst_high : bound->src_high);
        /* Creation found that no address overflows. */
        if (!is_inside(&check, regions[i].base_addr + low * stride +
                                   (uint64_t)(side ? cut->dst_offset_bytes : cut->src_offset_bytes),
                       (high - low) * stride + (uint64_t)cut->bytes))
            status = check_moves(&check, &regions[i], bound, error);
    }
done:
    return status;
}
