/* SPDX-License-Identifier: Apache-2.0 */
/* The rank pairs of two vLLM engines. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/vllm_pairs.h"

static bool is_divisible(int64_t size, int64_t other)
{
    return size >= other ? size % other == 0 : other % size == 0;
}

static bool are_paired(int64_t rank, int64_t size, int64_t other_rank, int64_t other_size)
{
    if (!is_divisible(size, other_size))
        return false;
    return size >= other_size ? rank / (size / other_size) == other_rank : other_rank / (other_size / size) == rank;
}

bool vllm_asks(const struct vllm_rank *consumer, const struct vllm_rank *producer)
{
    if (!are_paired(consumer->tp_rank, consumer->tp_size, producer->tp_rank, producer->tp_size))
        return false;
    return consumer->pp_size != producer->pp_size || consumer->pp_rank == producer->pp_rank;
}

/** Counts the producer's regions whose layer and occurrence the consumer has too. */
static size_t count_met(const struct kvf_vllm_arrays *local, const struct kvf_vllm_arrays *remote)
{
    size_t met = 0;
    for (size_t i = 0; i < local->layer_name_count; i++) {
        size_t before = 0, there = 0;
        for (size_t k = 0; k < i; k++)
            before += strcmp(local->layer_names[k], local->layer_names[i]) == 0;
        for (size_t k = 0; k < remote->layer_name_count; k++)
            there += strcmp(remote->layer_names[k], local->layer_names[i]) == 0;
        met += there > before;
    }
    return met;
}

/** Whether blocks that go whole, their lengths unchecked, are shorter than the consumer's: with a latent cache, and
 *  with copies of heads in a model with recurrent state. */
static bool falls_short(const struct vllm_rank *producer, const struct vllm_pair_row *row)
{
    bool has_state = false, is_short = false;
    for (size_t g = 0; g < producer->group_count; g++)
        has_state = has_state || producer->group_kinds[g] == KVF_VLLM_MAMBA;
    if (!producer->is_mla && !(has_state && producer->tp_size > producer->total_kv_heads))
        return false;
    for (size_t i = 0; i < row->move_count; i++)
        is_short = is_short || row->moves[i].local.kv_block_len < row->moves[i].remote.kv_block_len;
    return is_short;
}

/** Whether vLLM merges layers whose heads go to places of their own: apart, there are more pairs of regions. */
static bool misplaces_heads(struct kvf_vllm_producer_spec spec, const struct kvf_vllm_peer *peer, int64_t merged)
{
    kvf_vllm_producer *planner = NULL;
    kvf_vllm_prepared *prepared = NULL;
    struct kvf_vllm_prepared_info info = {.struct_size = sizeof(info), .pairs = merged};
    struct kvf_error ignored = {.position = -1};
    spec.keeps_layers_apart = 1;
    if (kvf_vllm_producer_create(&spec, &planner, &ignored) == KVF_OK &&
        kvf_vllm_prepare(planner, peer, &prepared, &ignored) == KVF_OK)
        kvf_vllm_prepared_get_info(prepared, &info, &ignored);
    kvf_vllm_prepared_release(prepared);
    kvf_vllm_producer_destroy(planner);
    return info.pairs != merged;
}

/** Judges and plans one pair. False without memory. */
static bool fill_row(struct vllm_pairs *pairs, struct vllm_pair_row *row)
{
    const struct vllm_rank *producer = &pairs->producers.ranks[row->producer];
    const struct vllm_rank *consumer = &pairs->consumers.ranks[row->consumer];
    struct kvf_vllm_producer_spec spec;
    struct kvf_vllm_peer peer;
    kvf_vllm_producer *planner = NULL;
    struct kvf_error error = {.position = -1};
    vllm_producer_spec(producer, &spec);
    vllm_peer(consumer, &peer);
    row->local_regions = producer->regions.base_addr_count;
    row->remote_regions = consumer->regions.base_addr_count;
    row->met = count_met(&producer->regions, &consumer->regions);
    row->status = kvf_vllm_producer_create(&spec, &planner, &error);
    if (row->status == KVF_OK)
        row->status = kvf_vllm_prepare(planner, &peer, &row->prepared, &error);
    kvf_vllm_producer_destroy(planner);
    if (row->status != KVF_OK) {
        snprintf(row->text, sizeof(row->text), "%s", error.text);
        return row->status != KVF_ERR_NO_MEMORY;
    }
    row->info.struct_size = sizeof(row->info);
    if (kvf_vllm_prepared_get_info(row->prepared, &row->info, &error) != KVF_OK)
        return false;
    row->misplaces = misplaces_heads(spec, &peer, row->info.pairs);
    if (!vllm_pair_moves(producer, row))
        return false;
    row->falls_short = falls_short(producer, row);
    return vllm_pair_costs(pairs, row);
}

static size_t count_asked(const struct vllm_pairs *pairs)
{
    size_t count = 0;
    for (size_t d = 0; d < pairs->consumers.count; d++) {
        for (size_t p = 0; p < pairs->producers.count; p++)
            count += vllm_asks(&pairs->consumers.ranks[d], &pairs->producers.ranks[p]);
    }
    return count;
}

int vllm_pairs_init(const struct cli_command *command, const struct vllm_plan_request *request,
                    struct vllm_side *producers, struct vllm_side *consumers, struct vllm_pairs *out)
{
    *out = (struct vllm_pairs){.producers = *producers, .consumers = *consumers, .request = request};
    *producers = *consumers = (struct vllm_side){0};
    /* A lone pair is shown in any case, and one of those that no rule pairs: its refusal says why. */
    bool is_lone = (out->producers.count == 1 && out->consumers.count == 1) ||
                   !is_divisible(out->producers.ranks[0].tp_size, out->consumers.ranks[0].tp_size);
    size_t most = is_lone ? 1 : count_asked(out);
    bool fits = true;
    if (most == 0) {
        cli_error(command, "no consumer rank of %s asks any producer rank of %s", out->consumers.path,
                  out->producers.path);
        return CLI_INPUT;
    }
    out->rows = calloc(most, sizeof(*out->rows));
    for (size_t d = 0; fits && out->rows != NULL && d < out->consumers.count; d++) {
        for (size_t p = 0; fits && p < out->producers.count; p++) {
            if (is_lone ? out->count > 0 : !vllm_asks(&out->consumers.ranks[d], &out->producers.ranks[p]))
                continue;
            struct vllm_pair_row *row = &out->rows[out->count++];
            row->producer = p;
            row->consumer = d;
            fits = fill_row(out, row);
        }
    }
    if (fits && out->rows != NULL)
        return CLI_OK;
    cli_error(command, "no memory for %zu pairs", most);
    return CLI_FAILED;
}

void vllm_pairs_fini(struct vllm_pairs *pairs)
{
    for (size_t i = 0; i < pairs->count; i++) {
        kvf_vllm_prepared_release(pairs->rows[i].prepared);
        free(pairs->rows[i].moves);
        free(pairs->rows[i].costs);
    }
    free(pairs->rows);
    vllm_side_fini(&pairs->producers);
    vllm_side_fini(&pairs->consumers);
    *pairs = (struct vllm_pairs){0};
}

const struct vllm_pair_row *vllm_pairs_refused(const struct vllm_pairs *pairs, const char **text)
{
    for (size_t i = 0; i < pairs->count; i++) {
        const struct vllm_pair_row *row = &pairs->rows[i];
        *text = row->text;
        if (row->prepared == NULL)
            return row;
        for (size_t c = 0; c < row->cost_count; c++) {
            *text = row->costs[c].text;
            if (row->costs[c].status != KVF_OK)
                return row;
        }
    }
    return NULL;
}

const char *vllm_rank_name(const struct vllm_rank *rank, char *text, size_t bytes)
{
    if (rank->pp_size > 1)
        snprintf(text, bytes, "TP %" PRId64 ", PP %" PRId64, rank->tp_rank, rank->pp_rank);
    else
        snprintf(text, bytes, "TP %" PRId64, rank->tp_rank);
    return text;
}
