/* SPDX-License-Identifier: Apache-2.0 */
/* Rank pairs of two TensorRT-LLM instances, as text. */
#include <inttypes.h>
#include <string.h>

#include "cli/trtllm_pairs.h"

#define BOXES_SHOWN 8
#define LABEL "  %-11s"

const char *trtllm_side_name(const struct trtllm_side *side, size_t index, char *text, size_t bytes)
{
    const struct kvf_trtllm_rank_spec *rank = trtllm_side_spec(side, index);
    snprintf(text, bytes, "%.200s %" PRId64, rank->instance_name, rank->instance_rank);
    return text;
}

const char *trtllm_mapper_kind_text(int64_t kind)
{
    switch (kind) {
    case KVF_TRTLLM_INDEXED: return "indexed";
    case KVF_TRTLLM_REPLICATED: return "replicated";
    case KVF_TRTLLM_NHD: return "nhd";
    case KVF_TRTLLM_SECTIONED: return "sectioned";
    default: return "?";
    }
}

void trtllm_ranges_text(const int64_t *numbers, size_t count, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count;) {
        char range[48];
        size_t end = i + 1;
        while (end < count && numbers[end] == numbers[end - 1] + 1)
            end++;
        draw_range(numbers[i], numbers[end - 1] + 1, range, sizeof(range));
        if (used + strlen(range) + 4 >= bytes) {
            snprintf(text + used, bytes - used, "..");
            return;
        }
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? "," : "", range);
        i = end;
    }
}

static void print_attention(const struct kvf_trtllm_rank_spec *rank, FILE *out)
{
    const struct kvf_trtllm_attention *a = rank->attention;
    if (a == NULL) {
        fputs(", no attention", out);
        return;
    }
    fprintf(out, ", %" PRId64 " KV head%s of %" PRId64 " x %g bytes a rank%s%s", a->kv_heads_per_rank,
            a->kv_heads_per_rank == 1 ? "" : "s", a->dims_per_head, (double)a->element_eighths / 8,
            a->is_mla ? ", key-only" : "", a->enable_attention_dp ? ", attention DP" : "");
}

static void print_side(const char *label, const struct trtllm_side *side, FILE *out)
{
    const struct kvf_trtllm_rank_spec *rank = trtllm_side_spec(side, 0);
    char numbers[64];
    int64_t ranks[64];
    size_t count = side->count < 64 ? side->count : 64;
    for (size_t i = 0; i < count; i++)
        ranks[i] = trtllm_side_spec(side, i)->instance_rank;
    trtllm_ranges_text(ranks, count, numbers, sizeof(numbers));
    fprintf(out, "%-12s %s: rank%s %s of TP %" PRId64 ", PP %" PRId64 ", CP %" PRId64 ", DP %" PRId64 "\n", label,
            rank->instance_name, side->count == 1 ? "" : "s", numbers, rank->tp_size, rank->pp_size, rank->cp_size,
            rank->dp_size);
    fprintf(out, "%-12s blocks of %" PRId64 " tokens", "", rank->page_table->tokens_per_block);
    print_attention(rank, out);
    fprintf(out, "; %zu layer group%s\n", rank->page_table->group_count,
            rank->page_table->group_count == 1 ? "" : "s");
}

static void print_readers(const struct trtllm_pairs *pairs, FILE *out)
{
    char name[288], numbers[128];
    for (size_t d = 0; d < pairs->dst.count; d++) {
        const struct trtllm_reader_row *reader = &pairs->readers[d];
        trtllm_side_name(&pairs->dst, d, name, sizeof(name));
        trtllm_ranges_text(reader->writers, reader->overlap.rank_count, numbers, sizeof(numbers));
        if (reader->overlap.rank_count > 0)
            fprintf(out, "%s asks %s %s (overlap PP %" PRId64 ", TP %" PRId64 ", CP %" PRId64 ")\n", name,
                    trtllm_side_spec(&pairs->src, 0)->instance_name, numbers, reader->overlap.overlap_pp_size,
                    reader->overlap.overlap_tp_size, reader->overlap.overlap_cp_size);
        else
            fprintf(out, "%s asks nobody: no layers in common\n", name);
        if (reader->blind_text[0] == '\0')
            continue;
        fprintf(out, "  %s: %s\n",
                reader->blind ? "upstream's receiver does not look at this, and would wait in vain; kvferry's refuses"
                              : "and refuses before it asks",
                reader->blind_text);
    }
}

/** "4 x 2 runs of 64 B". */
static void print_box(const struct kvf_box *box, FILE *out)
{
    char bytes[24];
    fprintf(out, "pool %" PRId64 " +%" PRId64 " -> pool %" PRId64 " +%" PRId64 ": ", box->src_pool,
            box->src_offset_bytes, box->dst_pool, box->dst_offset_bytes);
    for (int64_t i = 0; i < box->loop_count; i++)
        fprintf(out, "%s%" PRId64, i > 0 ? " x " : "", box->loops[i].count);
    fprintf(out, "%s of %s\n", box->loop_count > 0 ? " runs" : "one run", cli_format_bytes(box->run_bytes, bytes));
}

static void print_boxes(const kvf_plan *plan, FILE *out)
{
    struct kvf_plan_info info;
    struct kvf_track track;
    struct kvf_shape shape;
    struct kvf_box box;
    int64_t shown = 0;
    kvf_plan_get_info(plan, &info);
    for (size_t t = 0; kvf_plan_track(plan, t, &track) == KVF_OK; t++) {
        for (size_t s = 0; kvf_plan_shape(plan, t, s, &shape) == KVF_OK; s++) {
            for (size_t b = 0; kvf_plan_box(plan, t, s, b, &box) == KVF_OK && shown < BOXES_SHOWN; b++, shown++) {
                fprintf(out, LABEL, shown == 0 ? "of a block" : "");
                print_box(&box, out);
            }
        }
    }
    if (info.boxes > shown)
        fprintf(out, LABEL "and %" PRId64 " more: --json has them\n", "", info.boxes - shown);
}

static void print_cost(const struct trtllm_pairs *pairs, const char *label, const struct trtllm_plan *plan, FILE *out)
{
    char bytes[32], count[32], runs[32];
    fprintf(out, LABEL, label);
    if (plan->cost.status != KVF_OK) {
        fprintf(out, "refused for this request: %s\n", plan->cost.text);
        return;
    }
    if (plan->cost.bytes == 0 && plan->info.boxes == 0) {
        fprintf(out, "nothing from this rank, which reports an empty write\n");
        return;
    }
    fprintf(out, "%s bytes for %" PRId64 " tokens: %" PRId64 " box%s, %s run%s",
            cli_format_count(plan->cost.bytes, bytes), pairs->tokens, plan->info.boxes,
            plan->info.boxes == 1 ? "" : "es", cli_format_count(plan->cost.runs, runs),
            plan->cost.runs == 1 ? "" : "s");
    if (plan->cost.descriptors >= 0)
        fprintf(out, "; upstream posts %s descriptor%s (%.3g a token)", cli_format_count(plan->cost.descriptors, count),
                plan->cost.descriptors == 1 ? "" : "s", (double)plan->cost.descriptors / (double)pairs->tokens);
    fputc('\n', out);
}

static void print_units(const struct trtllm_view_row *row, const struct kvf_trtllm_view *view, char *text, size_t bytes)
{
    char range[48];
    if (view->mapper == KVF_TRTLLM_REPLICATED || row->units == 1) {
        snprintf(text, bytes, "all");
        return;
    }
    draw_range(row->first_unit, row->end_unit, range, sizeof(range));
    snprintf(text, bytes, "%s%s of %" PRId64, row->view.mapper >= KVF_TRTLLM_MAP_STATE_MATCH ? "part " : "",
             row->first_unit < row->end_unit ? range : "none", row->units);
}

static void print_mapper(const struct trtllm_view_row *row, bool is_native, FILE *out)
{
    char count[32], each[24];
    const struct trtllm_cost *cost = &row->cost;
    if (is_native) {
        fprintf(out, "none%s\n", row->view.elected ? "" : "; natively another rank sends it");
        return;
    }
    fputs(kvf_trtllm_mapper_text(row->view.mapper), out);
    if (!row->view.elected)
        fputs(", but another rank sends it", out);
    else if (row->view.mapper == KVF_TRTLLM_MAP_ERROR)
        fprintf(out, ": %s", row->view.error.text);
    else if (row->view.mapper == KVF_TRTLLM_MAP_RING)
        fprintf(out, ", rings of %" PRId64 " and %" PRId64 " positions", row->view.ring_src_slots,
                row->view.ring_dst_slots);
    else if (cost->status == KVF_OK && cost->descriptors > 0)
        fprintf(out, cost->bytes % cost->descriptors == 0 ? ", %s x %s" : ", %s of unlike sizes, %s in all",
                cli_format_count(cost->descriptors, count),
                cli_format_bytes(cost->bytes % cost->descriptors == 0 ? cost->bytes / cost->descriptors : cost->bytes,
                                 each));
    fputc('\n', out);
}

static void print_views(const struct trtllm_pairs *pairs, const struct trtllm_pair_row *row, FILE *out)
{
    const struct kvf_trtllm_rank_spec *self = trtllm_side_spec(&pairs->src, row->src);
    char layers[64], units[64], mine[48], theirs[48];
    if (row->view_count == 0) {
        fprintf(out, LABEL "none: no layers in common\n", "views");
        return;
    }
    fprintf(out, LABEL "%-10s %-22s %-10s %-12s %s\n", "view", "to", "roles", "layers", "heads", "upstream's mapper");
    for (size_t v = 0; v < row->view_count; v++) {
        const struct trtllm_view_row *view = &row->views[v];
        const struct kvf_trtllm_view *own = trtllm_find_view(self, &view->view.key.self);
        snprintf(mine, sizeof(mine), "%" PRId64 ".%" PRId64, view->view.key.self.group, view->view.key.self.view);
        snprintf(theirs, sizeof(theirs), "%" PRId64 ".%" PRId64, view->view.key.peer.group, view->view.key.peer.view);
        trtllm_ranges_text(view->layers, view->layer_count, layers, sizeof(layers));
        print_units(view, own, units, sizeof(units));
        fprintf(out, LABEL "%-10s %-22s %-10s %-12s ", mine, theirs, view->roles[0] != '\0' ? view->roles : "-", layers,
                units);
        print_mapper(view, row->upstream.pair == NULL, out);
    }
}

static void print_verdict(const struct trtllm_pairs *pairs, const struct trtllm_pair_row *row, FILE *out)
{
    char from[288], to[288];
    fprintf(out, "\n%s -> %s: ", trtllm_side_name(&pairs->src, row->src, from, sizeof(from)),
            trtllm_side_name(&pairs->dst, row->dst, to, sizeof(to)));
    if (row->status == KVF_OK && row->upstream.pair != NULL)
        fprintf(out, "accepted\n");
    else
        fprintf(out, "refused by upstream: %s\n",
                row->status != KVF_OK && row->verdict.text[0] != '\0' ? row->verdict.text : row->upstream.text);
    if (row->verdict.style == KVF_TRTLLM_SOFT)
        fprintf(out, LABEL "%s\n", "because", row->verdict.reason);
    for (int32_t i = 0; i < row->verdict.warning_count; i++)
        fprintf(out, LABEL "%s\n", "warning", row->verdict.warnings[i]);
}

static void print_aux(const struct trtllm_pair_row *row, FILE *out)
{
    if (row->aux_text[0] != '\0')
        fprintf(out, LABEL "refused at the first use: %s\n", "auxiliary", row->aux_text);
    else if (row->has_aux)
        fprintf(out, LABEL "%s (generation-first requests)\n", "auxiliary",
                row->sends_aux ? "sent by this rank" : "sent by another rank");
    if (row->has_state && !row->state_paired)
        fprintf(out, LABEL "recurrent state: these two ranks are not paired, none moves\n", "state");
}

static void print_row(const struct trtllm_pairs *pairs, const struct trtllm_pair_row *row, FILE *out)
{
    print_verdict(pairs, row, out);
    if (row->upstream.pair != NULL || row->native.pair != NULL)
        print_views(pairs, row, out);
    if (row->upstream.pair != NULL)
        print_cost(pairs, "moves", &row->upstream, out);
    print_aux(row, out);
    if (row->native.pair != NULL)
        print_cost(pairs, "native", &row->native, out);
    else if (pairs->request->native)
        fprintf(out, LABEL "not possible either: %s\n", "native", row->native.text);
    else if (row->upstream.pair == NULL)
        fprintf(out, LABEL "--native says whether kvferry's own ranks can all the same\n", "");
    const struct trtllm_plan *shown = trtllm_pair_plan_shown(row);
    const kvf_plan *plan = shown != NULL ? kvf_trtllm_pair_plan(shown->pair) : NULL;
    if (plan != NULL)
        print_boxes(plan, out);
}

void trtllm_pairs_print(const struct trtllm_pairs *pairs, FILE *out)
{
    print_side("context", &pairs->src, out);
    print_side("generation", &pairs->dst, out);
    fprintf(out, "%-12s %" PRId64 " tokens, %s\n\n", "request", pairs->tokens,
            pairs->request->blocks != NULL ? "blocks as given" : "block ids 0, 1, 2 ... on both sides");
    print_readers(pairs, out);
    for (size_t i = 0; i < pairs->count; i++)
        print_row(pairs, &pairs->rows[i], out);
    if (pairs->count > 0)
        trtllm_pairs_draw(pairs, out);
}
