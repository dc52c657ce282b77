/* SPDX-License-Identifier: Apache-2.0 */
/** @file draw_map.h  A map of what a destination gets: rows are layers, columns are heads, letters are rank pairs. */
#ifndef KVFERRY_CLI_DRAW_MAP_H
#define KVFERRY_CLI_DRAW_MAP_H

#include "cli/draw_text.h"

/** One cell of what a rank pair moves. */
struct draw_cell {
    const char *role;
    int64_t layer, unit_first, unit_end;
    size_t pair;
};

/** Everything that moves. */
struct draw_map {
    struct draw_cell *cells; /* sorted when drawn */
    size_t count;
    char (*names)[16]; /* of each pair in the map: "A", or "A>b" */
    const char *units; /* what the columns are: "heads" */
};

/** Makes an empty map, its columns heads, for so many cells and pairs at most. False without memory; draw_map_fini
 *  either way. */
bool draw_map_init(struct draw_map *out, size_t cells, size_t pairs);
void draw_map_fini(struct draw_map *map);

/** Names a pair by the numbers of its ranks; the destination's is left out where it is `alone`. */
void draw_map_name(struct draw_map *map, size_t pair, size_t from, size_t to, bool alone);

/** Draws one map per set of roles that come from the same ranks. */
void draw_maps(struct draw_map *map, const struct draw_glyphs *glyphs, FILE *out);

#endif
