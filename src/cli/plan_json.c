/* SPDX-License-Identifier: Apache-2.0 */
/* The plan as JSON, boxes included. */
#include <jansson.h>
#include <string.h>

#include "cli/plan_json.h"
#include "cli/plan_set.h"

static bool same_but_layer(const struct kvf_cell *a, const struct kvf_cell *b)
{
    return strcmp(a->role, b->role) == 0 && a->unit_first == b->unit_first && a->unit_count == b->unit_count &&
           a->byte_first == b->byte_first && a->byte_count == b->byte_count;
}

/** Layers of the cells that are like cell `first`, as ranges [begin, end). */
static json_t *layers_json(const kvf_share *share, size_t first)
{
    struct kvf_cell like = kvf_share_cell(share, first);
    json_t *ranges = json_array();
    int64_t begin = like.layer, end = like.layer + 1;
    for (size_t i = first + 1; i < kvf_share_count(share); i++) {
        struct kvf_cell cell = kvf_share_cell(share, i);
        if (strcmp(cell.role, like.role) != 0)
            break;
        if (!same_but_layer(&cell, &like))
            continue;
        if (cell.layer != end) {
            json_array_append_new(ranges, json_pack("[I,I]", (json_int_t)begin, (json_int_t)end));
            begin = cell.layer;
        }
        end = cell.layer + 1;
    }
    json_array_append_new(ranges, json_pack("[I,I]", (json_int_t)begin, (json_int_t)end));
    return ranges;
}

/** A share as rows of role, layers, units, bytes. Cells come sorted by role, layer, unit, byte. */
static json_t *share_json(const kvf_share *share)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < kvf_share_count(share); i++) {
        struct kvf_cell cell = kvf_share_cell(share, i), before;
        bool seen = false;
        for (size_t j = i; j > 0 && !seen; j--) {
            before = kvf_share_cell(share, j - 1);
            if (strcmp(before.role, cell.role) != 0)
                break;
            seen = same_but_layer(&before, &cell);
        }
        if (seen)
            continue;
        json_array_append_new(
            rows, json_pack("{s:s, s:o, s:[I,I], s:[I,I]}", "role", cell.role, "layers", layers_json(share, i), "units",
                            (json_int_t)cell.unit_first, (json_int_t)(cell.unit_first + cell.unit_count), "bytes",
                            (json_int_t)cell.byte_first, (json_int_t)(cell.byte_first + cell.byte_count)));
    }
    return rows;
}

static json_t *box_json(const struct kvf_box *box)
{
    json_t *loops = json_array();
    for (int64_t i = 0; i < box->loop_count; i++)
        json_array_append_new(loops, json_pack("{s:I, s:I, s:I}", "count", (json_int_t)box->loops[i].count,
                                               "source_stride_bytes", (json_int_t)box->loops[i].src_stride_bytes,
                                               "destination_stride_bytes", (json_int_t)box->loops[i].dst_stride_bytes));
    return json_pack("{s:{s:I, s:I, s:I}, s:{s:I, s:I, s:I}, s:I, s:o}", "source", "pool", (json_int_t)box->src_pool,
                     "offset_bytes", (json_int_t)box->src_offset_bytes, "entry_stride_bytes",
                     (json_int_t)box->src_entry_stride_bytes, "destination", "pool", (json_int_t)box->dst_pool,
                     "offset_bytes", (json_int_t)box->dst_offset_bytes, "entry_stride_bytes",
                     (json_int_t)box->dst_entry_stride_bytes, "run_bytes", (json_int_t)box->run_bytes, "loops", loops);
}

static json_t *shapes_json(const kvf_plan *plan, size_t track, const struct kvf_track *key)
{
    json_t *shapes = json_array();
    struct kvf_shape shape;
    struct kvf_box box;
    for (size_t s = 0; s < (size_t)key->shapes && kvf_plan_shape(plan, track, s, &shape) == KVF_OK; s++) {
        json_t *boxes = json_array();
        for (size_t b = 0; b < (size_t)shape.boxes && kvf_plan_box(plan, track, s, b, &box) == KVF_OK; b++)
            json_array_append_new(boxes, box_json(&box));
        json_array_append_new(shapes, json_pack("{s:I, s:I, s:I, s:I, s:b, s:o}", "runs", (json_int_t)shape.m,
                                                "source_step_entries", (json_int_t)shape.src_step,
                                                "destination_step_entries", (json_int_t)shape.dst_step, "entries",
                                                (json_int_t)shape.n, "whole", shape.whole != 0, "boxes", boxes));
    }
    return shapes;
}

json_t *plan_tracks_json(const kvf_plan *plan)
{
    json_t *tracks = json_array();
    struct kvf_track key;
    for (size_t t = 0; kvf_plan_track(plan, t, &key) == KVF_OK; t++)
        json_array_append_new(tracks, json_pack("{s:I, s:I, s:I, s:I, s:o}", "source_group", (json_int_t)key.src_group,
                                                "destination_group", (json_int_t)key.dst_group, "tokens_per_entry",
                                                (json_int_t)key.tokens_per_entry, "patches", (json_int_t)key.patches,
                                                "shapes", shapes_json(plan, t, &key)));
    return tracks;
}

static json_t *cost_json(int64_t bytes, int64_t runs)
{
    json_t *costs = json_array();
    for (int i = 0; i < 2; i++) {
        const struct plan_cost_model *model = &plan_cost_models[i];
        json_array_append_new(costs, json_pack("{s:s, s:I, s:I, s:f}", "transport", model->name, "ns",
                                               (json_int_t)plan_cost_ns(model, bytes, runs), "bytes_per_s",
                                               (json_int_t)model->bytes_per_s, "ns_per_run", model->ns_per_run));
    }
    return costs;
}

static json_t *pair_json(const struct plan_set *set, const struct plan_pair *pair)
{
    char from[96], to[96], fingerprint[KVF_FINGERPRINT_TEXT_BYTES] = "";
    kvf_plan_fingerprint(pair->plan, fingerprint);
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "source",
                     cli_format_rank(kvf_instance_rank(set->src, pair->src), from), "destination",
                     cli_format_rank(kvf_instance_rank(set->dst, pair->dst), to), "fingerprint", fingerprint, "bytes",
                     (json_int_t)pair->bound.bytes, "runs", (json_int_t)pair->bound.runs, "boxes",
                     (json_int_t)pair->info.boxes, "shortest_run_bytes", (json_int_t)pair->info.shortest_run_bytes,
                     "grain_tokens", (json_int_t)pair->info.grain_tokens, "plan_bytes",
                     (json_int_t)pair->info.plan_bytes, "estimate", cost_json(pair->bound.bytes, pair->bound.runs),
                     "share", share_json(pair->share), "tracks", plan_tracks_json(pair->plan));
}

static json_t *side_json(const kvf_instance *instance)
{
    int64_t pp = 0, cp = 0, tp = 0;
    kvf_instance_grid(instance, &pp, &cp, &tp);
    return json_pack("{s:s, s:I, s:{s:I, s:I, s:I}}", "model", kvf_instance_model_name(instance), "ranks",
                     (json_int_t)kvf_instance_rank_count(instance), "grid", "pp", (json_int_t)pp, "cp", (json_int_t)cp,
                     "tp", (json_int_t)tp);
}

static json_t *skipped_json(const struct plan_set *set)
{
    json_t *rows = json_array();
    for (size_t d = 0; d < set->election_count; d++) {
        size_t count = 0;
        const struct kvf_skipped *skipped =
            set->elections[d] != NULL ? kvf_election_skipped(set->elections[d], &count) : NULL;
        for (size_t i = 0; i < count; i++)
            json_array_append_new(rows,
                                  json_pack("{s:s, s:I, s:[I,I]}", "role", skipped[i].role, "layer",
                                            (json_int_t)skipped[i].layer, "units", (json_int_t)skipped[i].unit_first,
                                            (json_int_t)(skipped[i].unit_first + skipped[i].unit_count)));
    }
    return rows;
}

int plan_print_root(const struct cli_command *command, json_t *root, FILE *out)
{
    int code = CLI_OK;
    if (root == NULL || json_dumpf(root, out, JSON_INDENT(2)) != 0) {
        cli_error(command, "no memory for the plan's JSON");
        code = CLI_FAILED;
    }
    fputc('\n', out);
    json_decref(root);
    return code;
}

int plan_print_json(const struct cli_command *command, const struct plan_set *set, FILE *out)
{
    json_t *pairs = json_array();
    for (size_t i = 0; i < set->pair_count; i++)
        json_array_append_new(pairs, pair_json(set, &set->pairs[i]));
    json_t *root =
        json_pack("{s:I, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "tokens", (json_int_t)set->tokens,
                  "source", side_json(set->src), "destination", side_json(set->dst), "pieces",
                  (json_int_t)set->pair_count, "boxes", (json_int_t)set->boxes, "runs", (json_int_t)set->runs, "bytes",
                  (json_int_t)set->bytes, "shortest_run_bytes", (json_int_t)set->shortest_run_bytes, "estimate",
                  cost_json(set->bytes, set->runs), "skipped", skipped_json(set), "pairs", pairs);
    return plan_print_root(command, root, out);
}
