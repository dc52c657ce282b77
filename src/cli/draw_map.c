/* SPDX-License-Identifier: Apache-2.0 */
/* The map of layers and heads: who sends each. */
#include <stdlib.h>
#include <string.h>

#include "cli/draw_map.h"

#define COLUMNS_MAX 24
#define LABEL_BYTES 24

/** A map: rows are layers, columns are ranges of units. */
struct grid {
    int64_t cuts[COLUMNS_MAX + 1];
    size_t columns;
    bool cut_short;
    int64_t *layers;
    size_t layer_count;
    char (*labels)[LABEL_BYTES]; /* layer by layer */
};

bool draw_map_init(struct draw_map *out, size_t cells, size_t pairs)
{
    *out = (struct draw_map){.units = "heads"};
    out->cells = calloc(cells + 1, sizeof(*out->cells));
    out->names = calloc(pairs + 1, sizeof(*out->names));
    return out->cells != NULL && out->names != NULL;
}

void draw_map_fini(struct draw_map *map)
{
    free(map->cells);
    free(map->names);
}

/** The letter of a rank: A to Z (or a to z), then numbers. */
static void draw_letter(size_t number, char first, char *text, size_t bytes)
{
    if (number < 26)
        snprintf(text, bytes, "%c", (char)(first + (int)number));
    else
        snprintf(text, bytes, "%u", (unsigned)(number + 1) % 100000);
}

void draw_map_name(struct draw_map *map, size_t pair, size_t from, size_t to, bool alone)
{
    char source[8], destination[8];
    draw_letter(from, 'A', source, sizeof(source));
    draw_letter(to, 'a', destination, sizeof(destination));
    snprintf(map->names[pair], sizeof(map->names[pair]), "%s%s%s", source, alone ? "" : ">",
             alone ? "" : destination);
}

static int compare_cells(const void *a, const void *b)
{
    const struct draw_cell *x = a, *y = b;
    int role = strcmp(x->role, y->role);
    if (role != 0)
        return role;
    if (x->layer != y->layer)
        return x->layer > y->layer ? 1 : -1;
    if (x->unit_first != y->unit_first)
        return x->unit_first > y->unit_first ? 1 : -1;
    return (x->pair > y->pair) - (x->pair < y->pair);
}

/** Number of cells of the role that cell `at` begins. */
static size_t role_span(const struct draw_map *in, size_t at)
{
    size_t n = 1;
    while (at + n < in->count && strcmp(in->cells[at + n].role, in->cells[at].role) == 0)
        n++;
    return n;
}

/** Whether two roles come from the same ranks everywhere. */
static bool same_cells(const struct draw_map *in, size_t a, size_t b)
{
    size_t n = role_span(in, a);
    if (role_span(in, b) != n)
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct draw_cell *x = &in->cells[a + i], *y = &in->cells[b + i];
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

static void add_label(char *label, const char *name)
{
    size_t used = strlen(label);
    if (used + strlen(name) + 2 < LABEL_BYTES)
        snprintf(label + used, LABEL_BYTES - used, "%s%s", used > 0 ? "+" : "", name);
    else if (used >= 2)
        memcpy(label + used - 2, "..", 2);
}

static void grid_fini(struct grid *grid)
{
    free(grid->layers);
    free(grid->labels);
}

/** Makes the map of the role that begins at cell `at`. */
static bool grid_init(const struct draw_map *in, size_t at, struct grid *out)
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
        const struct draw_cell *cell = &in->cells[at + i];
        while (grid.layers[layer] != cell->layer)
            layer++;
        for (size_t c = 0; c < grid.columns; c++) {
            if (cell->unit_first <= grid.cuts[c] && grid.cuts[c + 1] <= cell->unit_end)
                add_label(grid.labels[layer * grid.columns + c], in->names[cell->pair]);
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

static void print_grid(const struct draw_map *in, const struct grid *grid, const char *roles,
                       const struct draw_glyphs *glyphs, FILE *out)
{
    char text[48];
    int width = column_width(grid);
    fprintf(out, "  %-10s ", in->units);
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
        fprintf(out, "  (the first %d ranges of %s)\n", COLUMNS_MAX, in->units);
}

void draw_maps(struct draw_map *in, const struct draw_glyphs *glyphs, FILE *out)
{
    qsort(in->cells, in->count, sizeof(*in->cells), compare_cells);
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
        print_grid(in, &grid, roles, glyphs, out);
        grid_fini(&grid);
    }
}
