/* SPDX-License-Identifier: Apache-2.0 */
/* The plan as a table, and as a list of fragments. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/plan_set.h"
#include "cli/plan_words.h"

void plan_describe_side(const kvf_instance *instance, char *text, size_t bytes)
{
    int64_t pp = 0, cp = 0, tp = 0;
    kvf_instance_grid(instance, &pp, &cp, &tp);
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(kvf_instance_layout(instance, 0));
    size_t ranks = kvf_instance_rank_count(instance);
    int used = snprintf(text, bytes, "%zu rank%s (PP %" PRId64 ", CP %" PRId64 ", TP %" PRId64 ")", ranks,
                        ranks == 1 ? "" : "s", pp, cp, tp);
    if (spec->group_count > 0 && spec->groups[0].tokens_per_block > 0 && used > 0 && (size_t)used < bytes)
        used += snprintf(text + used, bytes - (size_t)used, ", blocks of %" PRId64 " tokens",
                         spec->groups[0].tokens_per_block);
    const char *order = plan_order_words(spec);
    if (order[0] != '\0' && used > 0 && (size_t)used < bytes)
        snprintf(text + used, bytes - (size_t)used, ", %s", order);
}

const char *plan_order_words(const struct kvf_layout_spec *spec)
{
    for (size_t v = 0; v < spec->view_count; v++) {
        const struct kvf_view *view = &spec->views[v];
        if (view->entries < 2 || spec->groups[view->group].tokens_per_block == 0)
            continue;
        if (view->unit_total < 2)
            return "";
        if (view->unit_count < 2)
            return "one head each";
        return view->unit_stride_bytes > view->entry_stride_bytes ? "heads first" : "tokens first";
    }
    return "";
}

static void print_skipped(const struct plan_set *set, FILE *out)
{
    for (size_t d = 0; d < set->election_count; d++) {
        size_t count = 0;
        const struct kvf_skipped *skipped =
            set->elections[d] != NULL ? kvf_election_skipped(set->elections[d], &count) : NULL;
        for (size_t i = 0; i < count; i++)
            fprintf(out,
                    "stays unfilled (optional, no source rank has it): %s layer %" PRId64 " units %" PRId64 "-%" PRId64
                    "\n",
                    skipped[i].role, skipped[i].layer, skipped[i].unit_first,
                    skipped[i].unit_first + skipped[i].unit_count - 1);
    }
}

static void print_totals(const struct plan_set *set, FILE *out)
{
    char a[32], b[32], c[24], d[24];
    fprintf(out, "\n%zu piece%s, %" PRId64 " box%s, %s runs, %s bytes (%s), shortest run %s\n", set->pair_count,
            set->pair_count == 1 ? "" : "s", set->boxes, set->boxes == 1 ? "" : "es", cli_format_count(set->runs, a),
            cli_format_count(set->bytes, b), cli_format_bytes(set->bytes, c),
            cli_format_bytes(set->shortest_run_bytes, d));
    fprintf(out, "estimate:");
    for (int i = 0; i < 2; i++) {
        const struct plan_cost_model *model = &plan_cost_models[i];
        fprintf(out, "%s %s over %s", i > 0 ? "," : "", cli_format_ns(plan_cost_ns(model, set->bytes, set->runs), c),
                model->name);
    }
    fprintf(
        out,
        ", all pieces on one core\n"
        "          (a model of round numbers, not a measurement: shm %g GB/s and %g ns a run, tcp %g GB/s and %g ns a "
        "run)\n",
        plan_cost_models[0].bytes_per_s / 1e9, plan_cost_models[0].ns_per_run, plan_cost_models[1].bytes_per_s / 1e9,
        plan_cost_models[1].ns_per_run);
}

void plan_print_text(const struct plan_set *set, FILE *out)
{
    char text[256], from[96], to[96], layers[32], units[24], runs[32], run[24], bytes[32], cost[24];
    plan_describe_side(set->src, text, sizeof(text));
    fprintf(out, "source       %s\n", text);
    plan_describe_side(set->dst, text, sizeof(text));
    fprintf(out, "destination  %s\n", text);
    fprintf(out, "request      %" PRId64 " tokens, block ids 0, 1, 2 ... on both sides\n\n", set->tokens);
    fprintf(out, "%-12s    %-12s  %-10s %-8s %5s %13s %12s %14s %9s\n", "from", "to", "layers", "heads", "boxes",
            "shortest run", "runs", "bytes", "shm est.");
    for (size_t i = 0; i < set->pair_count; i++) {
        const struct plan_pair *pair = &set->pairs[i];
        plan_share_layers(pair->share, layers, sizeof(layers));
        plan_share_units(pair->share, units, sizeof(units));
        fprintf(out, "%-12s -> %-12s  %-10s %-8s %5" PRId64 " %13s %12s %14s %9s\n",
                cli_format_rank(kvf_instance_rank(set->src, pair->src), from),
                cli_format_rank(kvf_instance_rank(set->dst, pair->dst), to), layers, units, pair->info.boxes,
                cli_format_bytes(pair->info.shortest_run_bytes, run), cli_format_count(pair->bound.runs, runs),
                cli_format_count(pair->bound.bytes, bytes),
                cli_format_ns(plan_cost_ns(&plan_cost_models[0], pair->bound.bytes, pair->bound.runs), cost));
    }
    print_totals(set, out);
    print_skipped(set, out);
}

/** Prints the runs of one move, outermost loop first. */
static void print_move(const struct kvf_move *move, FILE *out)
{
    int64_t at[5] = {0};
    int64_t src = move->src_offset_bytes, dst = move->dst_offset_bytes;
    for (;;) {
        fprintf(out, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n", move->src_memory, src,
                move->dst_memory, dst, move->run_bytes);
        int64_t depth = move->loop_count - 1;
        for (; depth >= 0; depth--) {
            const struct kvf_loop *loop = &move->loops[depth];
            src += loop->src_stride_bytes;
            dst += loop->dst_stride_bytes;
            if (++at[depth] < loop->count)
                break;
            src -= loop->count * loop->src_stride_bytes;
            dst -= loop->count * loop->dst_stride_bytes;
            at[depth] = 0;
        }
        if (depth < 0)
            return;
    }
}

int plan_print_fragments(const struct cli_command *command, const struct plan_set *set, FILE *out)
{
    char from[96], to[96];
    fprintf(out,
            "# %" PRId64 " tokens, block ids 0, 1, 2 ... on both sides, in wire order\n"
            "# source memory, offset, destination memory, offset, bytes\n",
            set->tokens);
    for (size_t i = 0; i < set->pair_count; i++) {
        const struct plan_pair *pair = &set->pairs[i];
        kvf_cursor *cursor = NULL;
        struct kvf_error error = {.position = -1};
        struct kvf_move move;
        fprintf(out, "# %s -> %s: %" PRId64 " fragments, %" PRId64 " bytes\n",
                cli_format_rank(kvf_instance_rank(set->src, pair->src), from),
                cli_format_rank(kvf_instance_rank(set->dst, pair->dst), to), pair->bound.runs, pair->bound.bytes);
        if (kvf_cursor_create(pair->binding, &cursor, &error) != KVF_OK)
            return cli_library_error(command, NULL, &error);
        while (kvf_cursor_next(cursor, &move) == KVF_OK)
            print_move(&move, out);
        kvf_cursor_destroy(cursor);
    }
    return CLI_OK;
}
