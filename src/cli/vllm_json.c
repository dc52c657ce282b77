/* SPDX-License-Identifier: Apache-2.0 */
/* Rank pairs of two vLLM engines, as JSON. */
#include <stdlib.h>

#include "cli/vllm_pairs.h"

static json_t *rank_json(const struct vllm_rank *rank)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "tp_rank", (json_int_t)rank->tp_rank, "tp_size",
                     (json_int_t)rank->tp_size, "pp_rank", (json_int_t)rank->pp_rank, "pp_size",
                     (json_int_t)rank->pp_size, "regions", (json_int_t)rank->regions.base_addr_count);
}

static json_t *ids_json(const struct kvf_vllm_ids *ids)
{
    json_t *list = json_array();
    for (size_t i = 0; i < ids->count; i++)
        json_array_append_new(list, json_integer(ids->ids[i]));
    return list;
}

/** The eight columns of stored cases. */
static json_t *region_json(const struct kvf_vllm_region *region)
{
    return json_pack("[o, I, I, s, I, I, o, I]", vllm_json_u64(region->base_addr), (json_int_t)region->block_len,
                     (json_int_t)region->kv_block_len, region->layer_name, (json_int_t)region->layer_index,
                     (json_int_t)region->group_index, ids_json(&region->shared_groups),
                     (json_int_t)region->row_offset);
}

static json_t *moves_json(const struct vllm_pair_row *row)
{
    json_t *list = json_array();
    for (size_t i = 0; i < row->move_count; i++) {
        const struct vllm_move *move = &row->moves[i];
        json_array_append_new(list, json_pack("{s:o, s:o, s:I, s:I, s:I, s:b, s:I}", "local", region_json(&move->local),
                                              "remote", region_json(&move->remote), "src_offset",
                                              (json_int_t)move->src_offset, "dst_offset",
                                              (json_int_t)move->dst_offset, "bytes_per_block",
                                              (json_int_t)move->bytes, "adjacent_blocks_fold", (int)move->folds,
                                              "merged", (json_int_t)move->layers));
    }
    return list;
}

static json_t *costs_json(const struct vllm_pair_row *row)
{
    json_t *all = json_object();
    for (size_t i = 0; i < row->cost_count; i++) {
        const struct vllm_cost *cost = &row->costs[i];
        json_t *one = cost->status == KVF_OK
                          ? json_pack("{s:I, s:I, s:I}", "blocks", (json_int_t)cost->blocks, "bytes",
                                      (json_int_t)cost->bytes, "descriptors", (json_int_t)cost->descriptors)
                          : json_pack("{s:s, s:s}", "error", cost->text, "advice", vllm_advice(cost->text));
        json_object_set_new(all, cost->name, one);
    }
    return all;
}

static json_t *row_json(const struct vllm_pairs *pairs, const struct vllm_pair_row *row)
{
    json_t *out = json_pack("{s:o, s:o, s:b, s:s}", "producer", rank_json(&pairs->producers.ranks[row->producer]),
                            "consumer", rank_json(&pairs->consumers.ranks[row->consumer]), "accepted",
                            row->prepared != NULL, "status", kvf_status_name((int)row->status));
    if (row->prepared == NULL) {
        json_object_set_new(out, "error", json_string(row->text));
        json_object_set_new(out, "advice", json_string(vllm_advice(row->text)));
        return out;
    }
    json_object_set_new(out, "aligned", json_integer((json_int_t)row->met));
    json_object_set_new(out, "plans", json_integer(row->info.plans));
    json_object_set_new(out, "need_send", json_integer(row->info.pulls_expected));
    json_object_set_new(out, "sends", json_boolean(row->info.sends != 0));
    json_object_set_new(out, "regions", moves_json(row));
    json_object_set_new(out, "requests", costs_json(row));
    if (vllm_warning(row)[0] != '\0')
        json_object_set_new(out, "warning", json_string(vllm_warning(row)));
    return out;
}

int vllm_pairs_print_json(const struct cli_command *command, const struct vllm_pairs *pairs, FILE *out)
{
    json_t *list = json_array(), *root = json_pack("{s:o}", "pairs", list);
    for (size_t i = 0; i < pairs->count; i++)
        json_array_append_new(list, row_json(pairs, &pairs->rows[i]));
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (text == NULL) {
        cli_error(command, "no memory for the answer");
        return CLI_FAILED;
    }
    fprintf(out, "%s\n", text);
    free(text);
    return cli_finish_output(command, CLI_OK);
}
