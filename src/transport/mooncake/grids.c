/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/grids.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"

/* ---- finding ---------------------------------------------------------------------------------------------------- */

/* The first block of the stack at this row and slot, or behind them. */
static bool settle(const struct kvfi_moon_grids *grids, struct kvfi_moon_spot *spot)
{
    const struct kvfi_moon_stack *stack = &grids->stacks[spot->stack];

    for (; spot->row <= stack->last_row; spot->row++, spot->slot = 0) {
        for (; spot->slot < stack->slot_count; spot->slot++) {
            const struct kvfi_moon_slot *slot = &stack->slots[spot->slot];

            if (spot->row < slot->skip || spot->row - slot->skip >= grids->block_count) continue;
            /* It is a block, so this stays within the extent of its grid, which was checked. */
            spot->block = spot->row - slot->skip;
            spot->first = stack->base + spot->row * stack->stride + slot->offset;
            spot->last = spot->first + (slot->bytes - 1);
            return true;
        }
    }
    return false;
}

static bool settle_anywhere(const struct kvfi_moon_grids *grids, struct kvfi_moon_spot *spot)
{
    while (spot->stack < grids->stack_count && !settle(grids, spot)) {
        spot->stack++;
        spot->row = 0;
        spot->slot = 0;
    }
    return spot->stack < grids->stack_count;
}

/* How many end before `address`. */
static size_t stacks_before(const struct kvfi_moon_grids *grids, uint64_t address)
{
    size_t low = 0, high = grids->stack_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (grids->stacks[middle].last < address) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* How many slots end at this offset or before. */
static size_t slots_before(const struct kvfi_moon_stack *stack, uint64_t offset)
{
    size_t low = 0, high = stack->slot_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (stack->slots[middle].offset + stack->slots[middle].bytes <= offset) low = middle + 1;
        else high = middle;
    }
    return low;
}

bool kvfi_moon_grids_seek(const struct kvfi_moon_grids *grids, uint64_t address, struct kvfi_moon_spot *spot)
{
    size_t before = stacks_before(grids, address);
    const struct kvfi_moon_stack *stack = &grids->stacks[before];

    *spot = (struct kvfi_moon_spot){.stack = before};
    if (before == grids->stack_count) return false;
    if (address > stack->base) {
        uint64_t distance = address - stack->base;

        spot->row = distance / stack->stride;
        spot->slot = slots_before(stack, distance % stack->stride);
    }
    return settle_anywhere(grids, spot);
}

bool kvfi_moon_grids_next(const struct kvfi_moon_grids *grids, struct kvfi_moon_spot *spot)
{
    spot->slot++;
    return settle_anywhere(grids, spot);
}

bool kvfi_moon_grids_equal(const struct kvfi_moon_grids *a, const struct kvfi_moon_grids *b)
{
    bool equal = a->block_count == b->block_count && a->stack_count == b->stack_count;

    for (size_t i = 0; equal && i < a->stack_count; i++) {
        const struct kvfi_moon_stack *one = &a->stacks[i], *other = &b->stacks[i];

        equal = one->base == other->base && one->last == other->last && one->stride == other->stride &&
                one->slot_count == other->slot_count;
        for (size_t j = 0; equal && j < one->slot_count; j++)
            equal = one->slots[j].offset == other->slots[j].offset && one->slots[j].bytes == other->slots[j].bytes &&
                    one->slots[j].skip == other->slots[j].skip;
    }
    return equal;
}

/* ---- making ----------------------------------------------------------------------------------------------------- */

/* A grid while they are arranged. */
struct draft {
    uint64_t address, last, stride, bytes;
    size_t grid;
};

static enum kvf_status check(const struct kvf_mooncake_grid *grid, size_t index, uint64_t block_count,
                             struct draft *out, struct kvf_error *error)
{
    uint64_t extent, reach;

    if (grid->address == 0 || grid->block_bytes <= 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "grid %zu: blocks of %" PRId64 " bytes at 0x%" PRIx64
                         ", expected an address other than 0 and bytes above 0", index, grid->block_bytes,
                         grid->address);
    if (block_count > 1 && grid->stride_bytes < grid->block_bytes)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "grid %zu: a stride of %" PRId64
                         " bytes, expected at least the %" PRId64 " bytes of a block", index, grid->stride_bytes,
                         grid->block_bytes);
    *out = (struct draft){.address = grid->address, .bytes = (uint64_t)grid->block_bytes, .grid = index};
    out->stride = block_count > 1 ? (uint64_t)grid->stride_bytes : out->bytes;
    if (__builtin_mul_overflow(block_count - 1, out->stride, &extent) ||
        __builtin_add_overflow(extent, out->bytes - 1, &reach) ||
        __builtin_add_overflow(out->address, reach, &out->last))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "grid %zu: %" PRIu64 " blocks, every %" PRId64
                         " bytes from 0x%" PRIx64 ", are past the end of all addresses", index, block_count,
                         grid->stride_bytes, grid->address);
    return KVF_OK;
}

static int by_address(const void *a, const void *b)
{
    const struct draft *first = a, *second = b;

    return (first->address > second->address) - (first->address < second->address);
}

static int by_offset(const void *a, const void *b)
{
    const struct kvfi_moon_slot *first = a, *second = b;

    return (first->offset > second->offset) - (first->offset < second->offset);
}

static enum kvf_status fail_overlap(const struct kvf_mooncake_grid *list, size_t one, size_t other,
                                    struct kvf_error *error)
{
    size_t low = one < other ? one : other, high = one < other ? other : one;

    return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "grid %zu: blocks of %" PRId64 " bytes, every %" PRId64
                     " from 0x%" PRIx64 ", overlap within the stride those of grid %zu, of %" PRId64 " bytes, every %"
                     PRId64 " from 0x%" PRIx64, high, list[high].block_bytes, list[high].stride_bytes,
                     list[high].address, low, list[low].block_bytes, list[low].stride_bytes, list[low].address);
}

/* Slots that lie apart within the stride cannot overlap in any row; the first one begins it, so none wraps. */
static enum kvf_status check_slots(const struct kvfi_moon_stack *stack, const struct kvf_mooncake_grid *list,
                                   struct kvf_error *error)
{
    for (size_t i = 0; i < stack->slot_count; i++) {
        const struct kvfi_moon_slot *slot = &stack->slots[i], *next = &stack->slots[(i + 1) % stack->slot_count];
        uint64_t end = i + 1 < stack->slot_count ? next->offset : stack->stride;

        if (slot->offset + slot->bytes > end) return fail_overlap(list, slot->grid, next->grid, error);
    }
    return KVF_OK;
}

/* Takes the drafts that belong together, from the first on. Returns how many. */
static size_t gather(const struct draft *drafts, size_t count, struct kvfi_moon_stack *stack)
{
    size_t taken = 0;

    stack->base = drafts[0].address;
    stack->last = drafts[0].last;
    stack->stride = drafts[0].stride;
    while (taken < count && drafts[taken].address <= stack->last) {
        const struct draft *draft = &drafts[taken];
        uint64_t distance = draft->address - stack->base;

        if (draft->last > stack->last) stack->last = draft->last;
        stack->slots[taken++] = (struct kvfi_moon_slot){.offset = distance % stack->stride, .bytes = draft->bytes,
                                                        .skip = distance / stack->stride, .grid = draft->grid};
    }
    stack->slot_count = taken;
    stack->last_row = (stack->last - stack->base) / stack->stride;
    return taken;
}

static enum kvf_status check_strides(const struct draft *drafts, size_t count, const struct kvf_mooncake_grid *list,
                                     struct kvf_error *error)
{
    for (size_t i = 1; i < count; i++) {
        size_t one = drafts[i].grid, other = drafts[i - 1].grid;

        if (drafts[i].stride == drafts[0].stride) continue;
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "grid %zu: a stride of %" PRId64 " bytes from 0x%" PRIx64
                         " on, amid grid %zu with %" PRId64 " from 0x%" PRIx64 " on, expected the same", one,
                         list[one].stride_bytes, list[one].address, other, list[other].stride_bytes,
                         list[other].address);
    }
    return KVF_OK;
}

static enum kvf_status arrange(struct kvfi_moon_grids *grids, struct draft *drafts, size_t count,
                               const struct kvf_mooncake_grid *list, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (count > 0) qsort(drafts, count, sizeof *drafts, by_address);
    for (size_t at = 0; status == KVF_OK && at < count;) {
        struct kvfi_moon_stack *stack = &grids->stacks[grids->stack_count++];
        size_t taken;

        stack->slots = grids->slots + at;
        taken = gather(drafts + at, count - at, stack);
        /* With one block each there is no stride: what overlaps does so in itself. */
        if (grids->block_count > 1) status = check_strides(drafts + at, taken, list, error);
        else if (taken > 1) status = fail_overlap(list, drafts[at].grid, drafts[at + 1].grid, error);
        qsort(stack->slots, taken, sizeof *stack->slots, by_offset);
        if (status == KVF_OK) status = check_slots(stack, list, error);
        at += taken;
    }
    return status;
}

enum kvf_status kvfi_moon_grids_init(struct kvfi_moon_grids *grids, const struct kvf_mooncake_grid *list, size_t count,
                                     int64_t block_count, struct kvf_error *error)
{
    struct draft *drafts = NULL;
    enum kvf_status status = KVF_OK;

    *grids = (struct kvfi_moon_grids){.block_count = (uint64_t)block_count};
    if (count > KVFI_MOON_MAX_GRIDS)
        return kvfi_fail(error, KVF_ERR_LIMIT, "%zu grids, at most %d", count, KVFI_MOON_MAX_GRIDS);
    drafts = kvfi_alloc_array(count, sizeof *drafts);
    grids->slots = kvfi_alloc_array(count, sizeof *grids->slots);
    grids->stacks = kvfi_alloc_array(count, sizeof *grids->stacks);
    if (!drafts || !grids->slots || !grids->stacks) status = kvfi_fail_memory(error, "grids of a guard");
    for (size_t i = 0; status == KVF_OK && i < count; i++)
        status = check(&list[i], i, grids->block_count, &drafts[i], error);
    if (status == KVF_OK) status = arrange(grids, drafts, count, list, error);
    free(drafts);
    if (status != KVF_OK) kvfi_moon_grids_fini(grids);
    return status;
}

void kvfi_moon_grids_fini(struct kvfi_moon_grids *grids)
{
    free(grids->slots);
    free(grids->stacks);
    *grids = (struct kvfi_moon_grids){.block_count = 0};
}
