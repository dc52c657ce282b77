/* SPDX-License-Identifier: Apache-2.0 */
/** @file draw_text.h  Lines, bars and strips of characters: Unicode where the locale is UTF-8, ASCII elsewhere. */
#ifndef KVFERRY_CLI_DRAW_TEXT_H
#define KVFERRY_CLI_DRAW_TEXT_H

#include "cli/plan_set.h"

struct draw_glyphs {
    const char *horizontal, *vertical;
    const char *corners[3][3]; /* top, between, bottom: left, middle, right */
    const char *full, *empty;  /* of bars */
};

const struct draw_glyphs *draw_glyphs_for_locale(void);

/** "3" or "3-7" for [first, end). */
void draw_range(int64_t first, int64_t end, char *text, size_t bytes);

/** ASCII text in the middle of `width` columns; without the spaces behind it when `last`. */
void draw_centred(const char *text, int width, bool last, FILE *out);

/** A rule over so many columns: 0 top, 1 between, 2 bottom. Ends the line. */
void draw_rule(const struct draw_glyphs *glyphs, int kind, size_t columns, int width, FILE *out);

/** A bar of so many bytes among the most that a row has, and the bytes. */
void draw_bytes(int64_t bytes, int64_t most, const struct draw_glyphs *glyphs, FILE *out);

/** How the blocks of both sides meet along the tokens, and the order inside a block. */
void draw_tokens(const struct plan_set *set, const struct draw_glyphs *glyphs, FILE *out);

#endif
