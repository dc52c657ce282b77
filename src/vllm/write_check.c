/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "vllm/write.h"

/** A memory by its begin, and of those up to it the one that reaches furthest. */
struct span {
    uint64_t begin;
    uint64_t far_begin, far_last; /**< first and last byte of that one */
};

/** What is asked: a side, and the memories that may be touched there. */
struct check {
    const struct kvf_vllm_storage *memory;
    size_t count;
    struct span *spans; /**< sorted: a peer says how many memories there are, each run of blocks may lie in another */
    size_t span_count;
    struct span before; /**< what held the bytes asked for before */
    int side;
};

static int compare_spans(const void *a, const void *b)
{
    const struct span *one = a, *other = b;

    return (one->begin > other->begin) - (one->begin < other->begin);
}

static enum kvf_status check_init(struct check *check, struct kvf_error *error)
{
    check->before = (struct span){.far_begin = 1}; /* holds nothing */
    check->spans = kvfi_alloc_array(check->count, sizeof *check->spans);
    if (!check->spans) return kvfi_fail_memory(error, "the memories by address");
    for (size_t i = 0; i < check->count; i++) {
        uint64_t begin = check->memory[i].base_addr, rest = (uint64_t)check->memory[i].bytes - 1;

        if (check->memory[i].bytes < 1) continue;
        check->spans[check->span_count++] =
            (struct span){begin, begin, rest > UINT64_MAX - begin ? UINT64_MAX : begin + rest};
    }
    qsort(check->spans, check->span_count, sizeof *check->spans, compare_spans);
    for (size_t i = 1; i < check->span_count; i++) {
        const struct span *last = &check->spans[i - 1];
        struct span *next = &check->spans[i];

        if (last->far_last > next->far_last) *next = (struct span){next->begin, last->far_begin, last->far_last};
    }
    return KVF_OK;
}

/** Whether one memory holds the bytes, of which there are some: mostly the one that held those before. */
static bool is_inside(struct check *check, uint64_t address, uint64_t bytes)
{
    uint64_t last = address + (bytes - 1);
    size_t low = 0, high = check->span_count;

    if (address >= check->before.far_begin && last <= check->before.far_last) return true;
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (check->spans[middle].begin <= address) low = middle + 1;
        else high = middle;
    }
    if (low == 0 || last > check->spans[low - 1].far_last) return false;
    check->before = check->spans[low - 1];
    return true;
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
    status = check_init(&check, error);
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
    free(check.spans);
    return status;
}
