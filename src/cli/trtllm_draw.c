/* SPDX-License-Identifier: Apache-2.0 */
/* The mapping of views as a picture: layers and heads of each role, and which rank sends them to which. */
#include "cli/trtllm_pairs.h"

/** Number of distinct ranks of a side, before the rank of this row, that take part. */
static size_t letter_number(const struct trtllm_pairs *pairs, size_t rank, bool source)
{
    size_t number = 0;
    for (size_t r = 0; r < rank; r++) {
        bool takes_part = false;
        for (size_t i = 0; i < pairs->count && !takes_part; i++)
            takes_part = (source ? pairs->rows[i].src : pairs->rows[i].dst) == r;
        number += takes_part;
    }
    return number;
}

static bool has_one_destination(const struct trtllm_pairs *pairs)
{
    return pairs->rows[0].dst == pairs->rows[pairs->count - 1].dst;
}

static bool is_drawn(const struct trtllm_pair_row *row, const struct trtllm_view_row *view)
{
    if (!view->view.elected || view->first_unit >= view->end_unit)
        return false;
    if (row->upstream.pair == NULL)
        return true;
    return view->view.mapper != KVF_TRTLLM_MAP_ERROR &&
           (row->state_paired || view->view.mapper < KVF_TRTLLM_MAP_STATE_MATCH);
}

static void add_cells(const struct trtllm_pairs *pairs, size_t index, struct draw_map *map)
{
    const struct trtllm_pair_row *row = &pairs->rows[index];
    for (size_t v = 0; v < row->view_count; v++) {
        const struct trtllm_view_row *view = &row->views[v];
        for (size_t l = 0; l < view->layer_count && is_drawn(row, view); l++)
            map->cells[map->count++] =
                (struct draw_cell){view->roles[0] != '\0' ? view->roles : "(no role)", view->layers[l],
                                   view->first_unit, view->end_unit, index};
    }
}

static bool map_init(const struct trtllm_pairs *pairs, struct draw_map *out)
{
    size_t most = 0;
    for (size_t i = 0; i < pairs->count; i++) {
        for (size_t v = 0; v < pairs->rows[i].view_count; v++)
            most += pairs->rows[i].views[v].layer_count;
    }
    if (!draw_map_init(out, most, pairs->count))
        return false;
    for (size_t i = 0; i < pairs->count; i++) {
        draw_map_name(out, i, letter_number(pairs, pairs->rows[i].src, true),
                      letter_number(pairs, pairs->rows[i].dst, false), has_one_destination(pairs));
        add_cells(pairs, i, out);
    }
    return true;
}

/** What a pair moves by the plan that its views are of. */
static int64_t bytes_of(const struct trtllm_pair_row *row)
{
    return row->upstream.pair != NULL ? row->upstream.cost.bytes : row->native.cost.bytes;
}

static void print_names(const struct trtllm_pairs *pairs, const struct draw_map *map, const struct draw_glyphs *glyphs,
                        FILE *out)
{
    char from[288], to[288];
    int64_t most = 1;
    for (size_t i = 0; i < pairs->count; i++)
        most = bytes_of(&pairs->rows[i]) > most ? bytes_of(&pairs->rows[i]) : most;
    for (size_t i = 0; i < pairs->count; i++) {
        const struct trtllm_pair_row *row = &pairs->rows[i];
        fprintf(out, "  %5s = %s > %s  ", map->names[i], trtllm_side_name(&pairs->src, row->src, from, sizeof(from)),
                trtllm_side_name(&pairs->dst, row->dst, to, sizeof(to)));
        draw_bytes(bytes_of(row), most, glyphs, out);
        fputc('\n', out);
    }
}

void trtllm_pairs_draw(const struct trtllm_pairs *pairs, FILE *out)
{
    const struct draw_glyphs *glyphs = draw_glyphs_for_locale();
    struct draw_map map;
    if (map_init(pairs, &map) && map.count > 0) {
        fprintf(out, "\nwho sends which layers and heads:\n");
        draw_maps(&map, glyphs, out);
        print_names(pairs, &map, glyphs, out);
    }
    draw_map_fini(&map);
}
