/* SPDX-License-Identifier: Apache-2.0 */
/* What moves between two vLLM ranks: of each block, and for requests. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/vllm_pairs.h"

#define DESCRIPTORS_AT_ONCE 256

static bool is_mamba(const struct vllm_rank *rank, size_t group)
{
    return group < rank->group_count && rank->group_kinds[group] == KVF_VLLM_MAMBA;
}

static int64_t kernel_blocks(const struct vllm_rank *rank, int64_t group)
{
    return group >= 0 && is_mamba(rank, (size_t)group) ? 1 : rank->kernel_blocks_per_block;
}

/** How many of a rank's regions lie within a merged one: same groups, in its first row. */
static size_t count_merged(const struct kvf_vllm_arrays *regions, const struct kvf_vllm_region *merged)
{
    size_t count = 0;
    for (size_t i = 0; i < regions->base_addr_count; i++) {
        bool is_grouped = i < regions->group_index_count;
        count += regions->base_addrs[i] >= merged->base_addr &&
                 regions->base_addrs[i] < merged->base_addr + (uint64_t)merged->kv_block_len &&
                 (!is_grouped || regions->group_indices[i] == merged->group_index);
    }
    return count;
}

/** Takes a region's descriptors of a write of block 1 of every group: the first tells what moves of a block. */
static void take_move(const struct vllm_rank *rank, kvf_vllm_write *write, struct vllm_move *move)
{
    struct kvf_vllm_descriptor one = {0};
    const struct kvf_vllm_region *local = &move->local, *remote = &move->remote;
    int64_t ratio = kernel_blocks(rank, local->group_index);
    size_t lists = local->group_index >= 0 ? 1 : local->shared_groups.count;
    if (kvf_vllm_write_next(write, &one, 1) == 0)
        return;
    int64_t first = local->group_index >= 0
                        ? ratio
                        : kernel_blocks(rank, lists > 0 ? local->shared_groups.ids[0] : 0);
    move->src_offset = (int64_t)(one.src_address - local->base_addr) - first * local->block_len;
    move->dst_offset = (int64_t)(one.dst_address - remote->base_addr) - first * remote->block_len;
    move->folds = move->src_offset == 0 && move->dst_offset == 0 && local->block_len == remote->block_len &&
                  local->block_len > 0 && one.bytes % local->block_len == 0;
    move->bytes = move->folds ? local->block_len : one.bytes;
    for (size_t i = 0; i < lists; i++) {
        int64_t group = local->group_index >= 0 ? local->group_index : local->shared_groups.ids[i];
        int64_t more = (move->folds ? 1 : kernel_blocks(rank, group)) - (i == 0);
        while (more-- > 0 && kvf_vllm_write_next(write, &one, 1) == 1) {
        }
    }
}

bool vllm_pair_moves(const struct vllm_rank *producer, struct vllm_pair_row *row)
{
    size_t count = 0, others = 0, groups = producer->group_count;
    const struct kvf_vllm_region *local = kvf_vllm_regions_get(kvf_vllm_prepared_local(row->prepared), &count);
    const struct kvf_vllm_region *remote = kvf_vllm_regions_get(kvf_vllm_prepared_remote(row->prepared), &others);
    static const int64_t one = 1;
    struct kvf_error ignored = {.position = -1};
    kvf_vllm_write *write = NULL;
    struct kvf_vllm_ids *ids = calloc(groups + 1, sizeof(*ids));
    row->moves = calloc(count + 1, sizeof(*row->moves));
    if (ids == NULL || row->moves == NULL || others != count) {
        free(ids);
        return false;
    }
    for (size_t g = 0; g < groups; g++)
        ids[g] = (struct kvf_vllm_ids){&one, 1};
    if (kvf_vllm_write_create(row->prepared, ids, groups, ids, groups, &write, &ignored) != KVF_OK)
        write = NULL;
    for (size_t i = 0; i < count; i++) {
        struct vllm_move *move = &row->moves[row->move_count++];
        *move = (struct vllm_move){.local = local[i], .remote = remote[i]};
        move->layers = count_merged(&producer->regions, &local[i]);
        if (write != NULL)
            take_move(producer, write, move);
    }
    kvf_vllm_write_destroy(write);
    free(ids);
    return true;
}

/** Counts what a request comes to. */
static void count_cost(const struct vllm_pair_row *row, const struct kvf_vllm_ids *producer, size_t producer_groups,
                       const struct kvf_vllm_ids *consumer, size_t consumer_groups, struct vllm_cost *cost)
{
    struct kvf_error error = {.position = -1};
    kvf_vllm_write *write = NULL;
    for (size_t g = 0; g < consumer_groups; g++)
        cost->blocks += (int64_t)consumer[g].count;
    cost->status = kvf_vllm_write_create(row->prepared, producer, producer_groups, consumer, consumer_groups, &write,
                                         &error);
    if (cost->status != KVF_OK)
        snprintf(cost->text, sizeof(cost->text), "%s", error.text);
    else if (write != NULL) {
        cost->bytes = kvf_vllm_write_bytes(write);
        cost->descriptors = kvf_vllm_write_count(write);
    }
    kvf_vllm_write_destroy(write);
}

/** A made-up request: so many blocks of each group, one of recurrent ones. `step` 1 = contiguous, 2 = none adjacent. */
static bool add_made_up(const struct vllm_pairs *pairs, struct vllm_pair_row *row, int64_t step)
{
    const struct vllm_rank *producer = &pairs->producers.ranks[row->producer];
    size_t groups = producer->group_count, blocks = (size_t)pairs->request->blocks;
    struct kvf_vllm_ids *ids = calloc(groups + 1, sizeof(*ids));
    int64_t *numbers = calloc(blocks + 1, sizeof(*numbers));
    struct vllm_cost *cost = &row->costs[row->cost_count];
    bool fits = ids != NULL && numbers != NULL;
    for (size_t i = 0; fits && i < blocks; i++)
        numbers[i] = 1 + (int64_t)i * step;
    for (size_t g = 0; fits && g < groups; g++)
        ids[g] = (struct kvf_vllm_ids){numbers, is_mamba(producer, g) ? 1 : blocks};
    if (fits) {
        snprintf(cost->name, sizeof(cost->name), "%s", step == 1 ? "contiguous" : "scattered");
        count_cost(row, ids, groups, ids, groups, cost);
        row->cost_count++;
    }
    free(ids);
    free(numbers);
    return fits;
}

/** A request that both sides' files name. */
static void add_named(const struct vllm_rank *producer, const json_t *pull, struct vllm_pair_row *row)
{
    struct json_take take = json_take_below("%s", "");
    struct vllm_keep keep = {0};
    struct kvf_vllm_ids *theirs = NULL, *ours = NULL;
    size_t their_count = 0, our_count = 0;
    const char *id = json_string_value(json_object_get(pull, "transfer_id"));
    const char *name = json_string_value(json_object_get(pull, "d_req_id"));
    struct vllm_cost *cost = &row->costs[row->cost_count];
    bool found = false;
    for (size_t i = 0; id != NULL && !found && i < json_array_size(producer->requests); i++) {
        const json_t *ready = json_array_get(producer->requests, i);
        const char *other = json_string_value(json_object_get(ready, "transfer_id"));
        found = other != NULL && strcmp(other, id) == 0 &&
                vllm_take_groups(&take, ready, "block_ids", &keep, &ours, &our_count);
    }
    snprintf(cost->name, sizeof(cost->name), "%s", name != NULL ? name : "?");
    row->cost_count++;
    if (!found || !vllm_take_groups(&take, pull, "block_ids", &keep, &theirs, &their_count)) {
        cost->status = KVF_ERR_NOT_FOUND;
        snprintf(cost->text, sizeof(cost->text), "%.200s",
                 take.text[0] != '\0' ? take.text : "the producer's file has no blocks ready for this transfer_id");
    } else {
        count_cost(row, ours, our_count, theirs, their_count, cost);
    }
    vllm_keep_free(&keep);
}

bool vllm_pair_costs(const struct vllm_pairs *pairs, struct vllm_pair_row *row)
{
    const struct vllm_rank *producer = &pairs->producers.ranks[row->producer];
    const struct vllm_rank *consumer = &pairs->consumers.ranks[row->consumer];
    size_t named = json_array_size(producer->requests) > 0 ? json_array_size(consumer->requests) : 0;
    row->costs = calloc(named + 2, sizeof(*row->costs));
    if (row->costs == NULL)
        return false;
    for (size_t i = 0; i < named; i++)
        add_named(producer, json_array_get(consumer->requests, i), row);
    return named > 0 || (add_made_up(pairs, row, 1) && add_made_up(pairs, row, 2));
}
