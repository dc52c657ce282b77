/* SPDX-License-Identifier: Apache-2.0 */
/* The plan as a picture: a map of layers and heads, with a capital for the rank that sends them and, when there are
 * several, a small letter for the rank that gets them; how much each pair moves; how the blocks of both sides meet. */
#include <inttypes.h>

#include "cli/draw_map.h"
#include "cli/plan_set.h"
#include "cli/plan_words.h"

#define PAIRS_SHOWN 48

/** How many distinct ranks of a side with a smaller number take part. */
static size_t letter_number(const struct plan_set *set, size_t rank, bool source)
{
    size_t number = 0;
    for (size_t r = 0; r < rank; r++) {
        bool takes_part = false;
        for (size_t i = 0; i < set->pair_count && !takes_part; i++)
            takes_part = (source ? set->pairs[i].src : set->pairs[i].dst) == r;
        number += takes_part;
    }
    return number;
}

static bool has_one_destination(const struct plan_set *set)
{
    return set->pairs[0].dst == set->pairs[set->pair_count - 1].dst;
}

static void name_pairs(const struct plan_set *set, struct draw_map *in)
{
    bool alone = has_one_destination(set);
    for (size_t i = 0; i < set->pair_count; i++)
        draw_map_name(in, i, letter_number(set, set->pairs[i].src, true), letter_number(set, set->pairs[i].dst, false),
                      alone);
}

static bool inflow_init(const struct plan_set *set, struct draw_map *out)
{
    size_t most = 0;
    for (size_t i = 0; i < set->pair_count; i++)
        most += kvf_share_count(set->pairs[i].share);
    if (!draw_map_init(out, most, set->pair_count))
        return false;
    for (size_t i = 0; i < set->pair_count; i++) {
        const kvf_share *share = set->pairs[i].share;
        for (size_t c = 0; c < kvf_share_count(share); c++) {
            struct kvf_cell cell = kvf_share_cell(share, c);
            out->cells[out->count++] =
                (struct draw_cell){cell.role, cell.layer, cell.unit_first, cell.unit_first + cell.unit_count, i};
        }
    }
    name_pairs(set, out);
    return true;
}

/** Draws how much each rank pair moves. */
static void print_senders(const struct plan_set *set, const struct draw_map *in, const struct draw_glyphs *glyphs,
                          FILE *out)
{
    bool alone = has_one_destination(set);
    int64_t most = 1;
    char from[96], to[96], run[24], runs[32];
    for (size_t i = 0; i < set->pair_count; i++)
        most = set->pairs[i].bound.bytes > most ? set->pairs[i].bound.bytes : most;
    for (size_t i = 0; i < set->pair_count && i < PAIRS_SHOWN; i++) {
        const struct plan_pair *pair = &set->pairs[i];
        fprintf(out, "  %5s = %s%s%s  ", in->names[i], cli_format_rank(kvf_instance_rank(set->src, pair->src), from),
                alone ? "" : " > ", alone ? "" : cli_format_rank(kvf_instance_rank(set->dst, pair->dst), to));
        draw_bytes(pair->bound.bytes, most, glyphs, out);
        fprintf(out, " %3.0f %%, %s runs of %s or more\n",
                100.0 * (double)pair->bound.bytes / (double)(set->bytes > 0 ? set->bytes : 1),
                cli_format_count(pair->bound.runs, runs), cli_format_bytes(pair->info.shortest_run_bytes, run));
    }
    if (set->pair_count > PAIRS_SHOWN)
        fprintf(out, "  and %zu pairs more\n", set->pair_count - PAIRS_SHOWN);
}

void plan_draw(const struct plan_set *set, FILE *out)
{
    const struct draw_glyphs *glyphs = draw_glyphs_for_locale();
    struct draw_map in;
    char text[256], rank[96];
    plan_describe_side(set->src, text, sizeof(text));
    fprintf(out, "from  %s\n", text);
    plan_describe_side(set->dst, text, sizeof(text));
    fprintf(out, "to    %s\n\n", text);
    if (set->pair_count == 0) {
        fprintf(out, "nothing moves\n");
        return;
    }
    if (has_one_destination(set))
        fprintf(out, "%s gets, for %" PRId64 " tokens:\n",
                cli_format_rank(kvf_instance_rank(set->dst, set->pairs[0].dst), rank), set->tokens);
    else
        fprintf(out, "who sends what to whom, for %" PRId64 " tokens:\n", set->tokens);
    if (inflow_init(set, &in)) {
        draw_maps(&in, glyphs, out);
        print_senders(set, &in, glyphs, out);
    }
    draw_map_fini(&in);
    draw_tokens(set, glyphs, out);
}
