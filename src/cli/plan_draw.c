/* SPDX-License-Identifier: Apache-2.0 */
/* The plan as a picture: for each destination rank a map of layers and heads, with a letter for the rank that sends
 * them; how much each sends; how the blocks of both sides meet along the tokens. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/draw_text.h"
#include "cli/plan_set.h"
#include "cli/plan_words.h"

#define COLUMNS_MAX 24
#define LABEL_BYTES 24

/** One cell of what a destination rank gets. */
struct piece_cell {
    const char *role;
    int64_t layer, unit_first, unit_end;
    size_t pair;
};

/** Everything one destination rank gets. */
struct inflow {
    const struct plan_set *set;
    size_t first_pair, pair_count;
    struct piece_cell *cells; /* by role, layer, unit, pair */
    size_t count;
};

/** A map: rows are layers, columns are ranges of units. */
struct grid {
    int64_t cuts[COLUMNS_MAX + 1];
    size_t columns;
    bool cut_short;
    int64_t *layers;
    size_t layer_count;
    char (*labels)[LABEL_BYTES]; /* layer by layer */
};

static int compare_cells(const void *a, const void *b)
{
    const struct piece_cell *x = a, *y = b;
    int role = strcmp(x->role, y->role);
    if (role != 0)
        return role;
    if (x->layer != y->layer)
        return x->layer > y->layer ? 1 : -1;
    if (x->unit_first != y->unit_first)
        return x->unit_first > y->unit_first ? 1 : -1;
    return (x->pair > y->pair) - (x->pair < y->pair);
}

static bool inflow_init(const struct plan_set *set, size_t first_pair, size_t pair_count, struct inflow *out)
{
    size_t most = 0;
    *out = (struct inflow){.set = set, .first_pair = first_pair, .pair_count = pair_count};
    for (size_t i = 0; i < pair_count; i++)
        most += kvf_share_count(set->pairs[first_pair + i].share);
    out->cells = calloc(most + 1, sizeof(*out->cells));
    for (size_t i = 0; out->cells != NULL && i < pair_count; i++) {
        const kvf_share *share = set->pairs[first_pair + i].share;
        for (size_t c = 0; c < kvf_share_count(share); c++) {
            struct kvf_cell cell = kvf_share_cell(share, c);
            out->cells[out->count++] =
                (struct piece_cell){cell.role, cell.layer, cell.unit_first, cell.unit_first + cell.unit_count, i};
        }
    }
    if (out->cells != NULL)
        qsort(out->cells, out->count, sizeof(*out->cells), compare_cells);
    return out->cells != NULL;
}

/** Number of cells of the role that cell `at` begins. */
static size_t role_span(const struct inflow *in, size_t at)
{
    size_t n = 1;
    while (at + n < in->count && strcmp(in->cells[at + n].role, in->cells[at].role) == 0)
        n++;
    return n;
}

/** Whether two roles come from the same ranks everywhere. */
static bool same_cells(const struct inflow *in, size_t a, size_t b)
{
    size_t n = role_span(in, a);
    if (role_span(in, b) != n)
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct piece_cell *x = &in->cells[a + i], *y = &in->cells[b + i];
        if (x->layer != y->layer || x->unit_first != y->unit_first || x->unit_end != y->unit_end || x->pair != y->pair)
            return false;
    }
    return true;
}

static int compare_numbers(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static size_t distinct(int64_t *numbers, size_t count)
{
    size_t n = 0;
    qsort(numbers, count, sizeof(*numbers), compare_numbers);
    for (size_t i = 0; i < count; i++) {
        if (n == 0 || numbers[n - 1] != numbers[i])
            numbers[n++] = numbers[i];
    }
    return n;
}

/** The letter of a source: A to Z, then numbers. */
static void write_letter(size_t pair, char *text, size_t bytes)
{
    if (pair < 26)
        snprintf(text, bytes, "%c", (char)('A' + (int)pair));
    else
        snprintf(text, bytes, "%zu", pair + 1);
}

static void add_label(char *label, size_t pair)
{
    char letter[24];
    write_letter(pair, letter, sizeof(letter));
    size_t used = strlen(label);
    if (used + strlen(letter) + 2 < LABEL_BYTES)
        snprintf(label + used, LABEL_BYTES - used, "%s%s", used > 0 ? "+" : "", letter);
    else if (used >= 2)
        memcpy(label + used - 2, "..", 2);
}

static void grid_fini(struct grid *grid)
{
    free(grid->layers);
    free(grid->labels);
}

/** Makes the map of the role that begins at cell `at`. */
static bool grid_init(const struct inflow *in, size_t at, struct grid *out)
{
    size_t n = role_span(in, at), cut_count = 0;
    struct grid grid = {0};
    int64_t *cuts = calloc(2 * n + 1, sizeof(*cuts));
    grid.layers = calloc(n + 1, sizeof(*grid.layers));
    for (size_t i = 0; cuts != NULL && grid.layers != NULL && i < n; i++) {
        cuts[cut_count++] = in->cells[at + i].unit_first;
        cuts[cut_count++] = in->cells[at + i].unit_end;
        grid.layers[grid.layer_count++] = in->cells[at + i].layer;
    }
    if (cuts != NULL && grid.layers != NULL) {
        cut_count = distinct(cuts, cut_count);
        grid.layer_count = distinct(grid.layers, grid.layer_count);
        grid.cut_short = cut_count > COLUMNS_MAX + 1;
        grid.columns = grid.cut_short ? COLUMNS_MAX : cut_count - 1;
        memcpy(grid.cuts, cuts, (grid.columns + 1) * sizeof(*cuts));
        grid.labels = calloc(grid.layer_count * grid.columns + 1, sizeof(*grid.labels));
    }
    free(cuts);
    if (grid.labels == NULL) {
        grid_fini(&grid);
        return false;
    }
    size_t layer = 0;
    for (size_t i = 0; i < n; i++) {
        const struct piece_cell *cell = &in->cells[at + i];
        while (grid.layers[layer] != cell->layer)
            layer++;
        for (size_t c = 0; c < grid.columns; c++) {
            if (cell->unit_first <= grid.cuts[c] && grid.cuts[c + 1] <= cell->unit_end)
                add_label(grid.labels[layer * grid.columns + c], cell->pair);
        }
    }
    *out = grid;
    return true;
}

static bool same_row(const struct grid *grid, size_t a, size_t b)
{
    return memcmp(grid->labels[a * grid->columns], grid->labels[b * grid->columns], grid->columns * LABEL_BYTES) == 0;
}

/** Width that every column needs: headings and labels with a space on each side. */
static int column_width(const struct grid *grid)
{
    char text[48];
    size_t width = 5;
    for (size_t c = 0; c < grid->columns; c++) {
        draw_range(grid->cuts[c], grid->cuts[c + 1], text, sizeof(text));
        width = strlen(text) > width ? strlen(text) : width;
    }
    for (size_t i = 0; i < grid->layer_count * grid->columns; i++)
        width = strlen(grid->labels[i]) > width ? strlen(grid->labels[i]) : width;
    return (int)width + 2;
}

static void print_grid(const struct grid *grid, const char *roles, const struct draw_glyphs *glyphs, FILE *out)
{
    char text[48];
    int width = column_width(grid);
    fprintf(out, "  %-10s ", "heads");
    for (size_t c = 0; c < grid->columns; c++) {
        draw_range(grid->cuts[c], grid->cuts[c + 1], text, sizeof(text));
        fputc(' ', out);
        draw_centred(text, width, c + 1 == grid->columns, out);
    }
    fprintf(out, "\n  %-10s ", "layers");
    draw_rule(glyphs, 0, grid->columns, width, out);
    for (size_t first = 0; first < grid->layer_count;) {
        size_t end = first + 1;
        while (end < grid->layer_count && grid->layers[end] == grid->layers[end - 1] + 1 && same_row(grid, first, end))
            end++;
        if (first > 0) {
            fprintf(out, "  %-10s ", "");
            draw_rule(glyphs, 1, grid->columns, width, out);
        }
        draw_range(grid->layers[first], grid->layers[end - 1] + 1, text, sizeof(text));
        fprintf(out, "  %-10s ", text);
        for (size_t c = 0; c < grid->columns; c++) {
            fputs(glyphs->vertical, out);
            draw_centred(grid->labels[first * grid->columns + c], width, false, out);
        }
        fprintf(out, "%s%s%s\n", glyphs->vertical, first == 0 ? "  " : "", first == 0 ? roles : "");
        first = end;
    }
    fprintf(out, "  %-10s ", "");
    draw_rule(glyphs, 2, grid->columns, width, out);
    if (grid->cut_short)
        fprintf(out, "  (the first %d ranges of heads)\n", COLUMNS_MAX);
}

/** Draws one map per set of roles that come from the same ranks. */
static void print_maps(const struct inflow *in, const struct draw_glyphs *glyphs, FILE *out)
{
    for (size_t at = 0; at < in->count; at += role_span(in, at)) {
        char roles[96];
        bool drawn = false;
        snprintf(roles, sizeof(roles), "%.60s", in->cells[at].role);
        for (size_t other = 0; other < in->count; other += role_span(in, other)) {
            if (other == at || !same_cells(in, at, other))
                continue;
            drawn = drawn || other < at;
            size_t used = strlen(roles);
            snprintf(roles + used, sizeof(roles) - used, ", %s", in->cells[other].role);
        }
        struct grid grid;
        if (drawn || !grid_init(in, at, &grid))
            continue;
        print_grid(&grid, roles, glyphs, out);
        grid_fini(&grid);
    }
}

/** Draws who sends how much. */
static void print_senders(const struct inflow *in, const struct draw_glyphs *glyphs, FILE *out)
{
    int64_t most = 1, all = 1;
    char letter[24], rank[96], bytes[24], run[24], runs[32];
    for (size_t i = 0; i < in->pair_count; i++) {
        int64_t moved = in->set->pairs[in->first_pair + i].bound.bytes;
        most = moved > most ? moved : most;
        all += moved;
    }
    for (size_t i = 0; i < in->pair_count; i++) {
        const struct plan_pair *pair = &in->set->pairs[in->first_pair + i];
        write_letter(i, letter, sizeof(letter));
        fprintf(out, "  %2s = %-12s ", letter, cli_format_rank(kvf_instance_rank(in->set->src, pair->src), rank));
        draw_bar((double)pair->bound.bytes / (double)most, 16, glyphs, out);
        fprintf(out, " %9s %4.0f %%, %s runs of %s or more\n", cli_format_bytes(pair->bound.bytes, bytes),
                100.0 * (double)pair->bound.bytes / (double)all, cli_format_count(pair->bound.runs, runs),
                cli_format_bytes(pair->info.shortest_run_bytes, run));
    }
}

void plan_draw(const struct plan_set *set, FILE *out)
{
    const struct draw_glyphs *glyphs = draw_glyphs_for_locale();
    char text[256], rank[96];
    plan_describe_side(set->src, text, sizeof(text));
    fprintf(out, "from  %s\n", text);
    plan_describe_side(set->dst, text, sizeof(text));
    fprintf(out, "to    %s\n", text);
    for (size_t first = 0; first < set->pair_count;) {
        size_t end = first + 1;
        while (end < set->pair_count && set->pairs[end].dst == set->pairs[first].dst)
            end++;
        struct inflow in;
        fprintf(out, "\n%s gets, for %" PRId64 " tokens:\n",
                cli_format_rank(kvf_instance_rank(set->dst, set->pairs[first].dst), rank), set->tokens);
        if (inflow_init(set, first, end - first, &in)) {
            print_maps(&in, glyphs, out);
            print_senders(&in, glyphs, out);
        }
        free(in.cells);
        first = end;
    }
    if (set->pair_count > 0)
        draw_tokens(set, glyphs, out);
}
