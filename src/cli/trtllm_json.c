/* SPDX-License-Identifier: Apache-2.0 */
/* Rank pairs of two TensorRT-LLM instances, as JSON. */
#include <string.h>

#include "cli/plan_json.h"
#include "cli/trtllm_pairs.h"

static json_t *key_json(const struct kvf_trtllm_view_key *key)
{
    return json_pack("[I,I]", (json_int_t)key->group, (json_int_t)key->view);
}

static json_t *text_or_null(const char *text)
{
    return text[0] != '\0' ? json_string(text) : json_null();
}

static json_t *overlap_json(const struct kvf_trtllm_overlap *overlap)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "pp", (json_int_t)overlap->overlap_pp_size, "tp",
                     (json_int_t)overlap->overlap_tp_size, "cp", (json_int_t)overlap->overlap_cp_size, "dup",
                     (json_int_t)overlap->duplicate_head_factor, "peer_dup",
                     (json_int_t)overlap->peer_duplicate_head_factor, "expected_transfers",
                     (json_int_t)overlap->rank_count);
}

static json_t *cost_json(const struct trtllm_cost *cost)
{
    if (cost->status != KVF_OK)
        return json_pack("{s:s, s:s}", "status", kvf_status_name(cost->status), "text", cost->text);
    return json_pack("{s:s, s:I, s:I, s:o}", "status", kvf_status_name(cost->status), "bytes",
                     (json_int_t)cost->bytes, "runs", (json_int_t)cost->runs, "descriptors",
                     cost->descriptors >= 0 ? json_integer(cost->descriptors) : json_null());
}

static json_t *plan_json(const struct trtllm_plan *plan)
{
    if (plan->pair == NULL)
        return plan->text[0] != '\0' ? json_pack("{s:s, s:s}", "status", kvf_status_name(plan->status), "text",
                                                 plan->text)
                                     : json_null();
    const kvf_plan *inner = kvf_trtllm_pair_plan(plan->pair);
    char fingerprint[KVF_FINGERPRINT_TEXT_BYTES] = "";
    if (inner != NULL)
        kvf_plan_fingerprint(inner, fingerprint);
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:o, s:o}", "status", "KVF_OK", "fingerprint",
                     text_or_null(fingerprint), "boxes", (json_int_t)plan->info.boxes, "shortest_run_bytes",
                     (json_int_t)plan->info.shortest_run_bytes, "plan_bytes", (json_int_t)plan->info.plan_bytes,
                     "request", cost_json(&plan->cost), "tracks",
                     inner != NULL ? plan_tracks_json(inner) : json_array());
}

static json_t *view_json(const struct trtllm_pairs *pairs, const struct trtllm_pair_row *row,
                         const struct trtllm_view_row *view)
{
    const struct kvf_trtllm_pair_view *pair = &view->view;
    const struct kvf_trtllm_view *own = trtllm_find_view(trtllm_side_spec(&pairs->src, row->src), &pair->key.self);
    json_t *layers = json_array(), *roles = json_array();
    for (size_t l = 0; l < view->layer_count; l++)
        json_array_append_new(layers, json_integer(view->layers[l]));
    for (size_t r = 0; r < own->role_count; r++)
        json_array_append_new(roles, json_string(own->roles[r]));
    json_t *object = json_pack("{s:o, s:o, s:o, s:s, s:o, s:[I,I], s:I, s:b, s:s, s:[I,I]}", "view",
                               key_json(&pair->key.self), "to", key_json(&pair->key.peer), "roles", roles, "kind",
                               trtllm_mapper_kind_text(own->mapper), "layers", layers, "heads",
                               (json_int_t)view->first_unit, (json_int_t)view->end_unit, "of_heads",
                               (json_int_t)view->units, "elect", pair->elected != 0, "mapper",
                               kvf_trtllm_mapper_text(pair->mapper), "dup", (json_int_t)pair->duplicate_head_factor,
                               (json_int_t)pair->peer_duplicate_head_factor);
    if (pair->mapper == KVF_TRTLLM_MAP_ERROR)
        json_object_set_new(object, "error", json_string(pair->error.text));
    if (pair->mapper == KVF_TRTLLM_MAP_RING)
        json_object_set_new(object, "ring_slots", json_pack("[I,I]", (json_int_t)pair->ring_src_slots,
                                                            (json_int_t)pair->ring_dst_slots));
    json_object_set_new(object, "request", pair->elected ? cost_json(&view->cost) : json_null());
    return object;
}

static json_t *verdict_json(const struct trtllm_pair_row *row)
{
    static const char *const styles[] = {"accepted", "hard", "soft"};
    const struct kvf_trtllm_verdict *verdict = &row->verdict;
    json_t *warnings = json_array();
    for (int32_t i = 0; i < verdict->warning_count; i++)
        json_array_append_new(warnings, json_string(verdict->warnings[i]));
    return json_pack("{s:b, s:s, s:o, s:o, s:o}", "ok", row->status == KVF_OK, "style",
                     styles[verdict->style >= 0 && verdict->style <= KVF_TRTLLM_SOFT ? verdict->style : 0], "text",
                     text_or_null(verdict->text), "reason", text_or_null(verdict->reason), "warnings", warnings);
}

static json_t *row_json(const struct trtllm_pairs *pairs, const struct trtllm_pair_row *row)
{
    json_t *views = json_array();
    for (size_t v = 0; v < row->view_count; v++)
        json_array_append_new(views, view_json(pairs, row, &row->views[v]));
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:o}", "context",
                     (json_int_t)trtllm_side_spec(&pairs->src, row->src)->instance_rank, "generation",
                     (json_int_t)trtllm_side_spec(&pairs->dst, row->dst)->instance_rank, "overlap",
                     overlap_json(&row->overlap), "verdict", verdict_json(row), "views", views, "state_paired",
                     row->has_state ? json_boolean(row->state_paired) : json_null(), "elect_aux", row->sends_aux,
                     "aux_error", text_or_null(row->aux_text), "upstream", plan_json(&row->upstream), "native",
                     plan_json(&row->native));
}

static json_t *reader_json(const struct trtllm_pairs *pairs, size_t index)
{
    const struct trtllm_reader_row *reader = &pairs->readers[index];
    json_t *writers = json_array();
    for (size_t w = 0; w < reader->overlap.rank_count; w++)
        json_array_append_new(writers, json_integer(reader->writers[w]));
    return json_pack("{s:I, s:o, s:o, s:o, s:b}", "generation",
                     (json_int_t)trtllm_side_spec(&pairs->dst, index)->instance_rank, "overlap",
                     overlap_json(&reader->overlap), "asks", writers, "refuses", text_or_null(reader->blind_text),
                     "upstream_would_wait", reader->blind);
}

static json_t *side_json(const struct trtllm_side *side)
{
    const struct kvf_trtllm_rank_spec *rank = trtllm_side_spec(side, 0);
    json_t *ranks = json_array();
    for (size_t i = 0; i < side->count; i++)
        json_array_append_new(ranks, json_integer(trtllm_side_spec(side, i)->instance_rank));
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:I}", "name", rank->instance_name, "ranks", ranks, "tp",
                     (json_int_t)rank->tp_size, "pp", (json_int_t)rank->pp_size, "cp", (json_int_t)rank->cp_size, "dp",
                     (json_int_t)rank->dp_size, "tokens_per_block", (json_int_t)rank->page_table->tokens_per_block);
}

int trtllm_pairs_print_json(const struct cli_command *command, const struct trtllm_pairs *pairs, FILE *out)
{
    json_t *rows = json_array(), *readers = json_array();
    for (size_t d = 0; d < pairs->dst.count; d++)
        json_array_append_new(readers, reader_json(pairs, d));
    for (size_t i = 0; i < pairs->count; i++)
        json_array_append_new(rows, row_json(pairs, &pairs->rows[i]));
    json_t *root = json_pack("{s:I, s:o, s:o, s:o, s:o}", "tokens", (json_int_t)pairs->tokens, "context",
                             side_json(&pairs->src), "generation", side_json(&pairs->dst), "readers", readers, "pairs",
                             rows);
    return plan_print_root(command, root, out);
}
