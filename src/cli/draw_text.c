/* SPDX-License-Identifier: Apache-2.0 */
/* Drawing with characters. */
#include <inttypes.h>
#include <langinfo.h>
#include <string.h>

#include "cli/draw_text.h"
#include "cli/plan_words.h"

#define BAR_COLUMNS 16
#define STRIP_COLUMNS 64
#define STRIPES_SHOWN 8

static const struct draw_glyphs unicode_glyphs = {
    .horizontal = "─",
    .vertical = "│",
    .corners = {{"┌", "┬", "┐"}, {"├", "┼", "┤"}, {"└", "┴", "┘"}},
    .full = "█",
    .empty = "░",
};
static const struct draw_glyphs ascii_glyphs = {
    .horizontal = "-",
    .vertical = "|",
    .corners = {{"+", "+", "+"}, {"+", "+", "+"}, {"+", "+", "+"}},
    .full = "#",
    .empty = ".",
};

const struct draw_glyphs *draw_glyphs_for_locale(void)
{
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0 ? &unicode_glyphs : &ascii_glyphs;
}

void draw_range(int64_t first, int64_t end, char *text, size_t bytes)
{
    if (end == first + 1)
        snprintf(text, bytes, "%" PRId64, first);
    else
        snprintf(text, bytes, "%" PRId64 "-%" PRId64, first, end - 1);
}

void draw_centred(const char *text, int width, bool last, FILE *out)
{
    int spare = width - (int)strlen(text);
    int left = spare > 0 ? spare / 2 : 0;
    fprintf(out, "%*s%s%*s", left, "", text, spare > left && !last ? spare - left : 0, "");
}

void draw_rule(const struct draw_glyphs *glyphs, int kind, size_t columns, int width, FILE *out)
{
    for (size_t c = 0; c < columns; c++) {
        fputs(glyphs->corners[kind][c > 0], out);
        for (int i = 0; i < width; i++)
            fputs(glyphs->horizontal, out);
    }
    fprintf(out, "%s\n", glyphs->corners[kind][2]);
}

void draw_bytes(int64_t bytes, int64_t most, const struct draw_glyphs *glyphs, FILE *out)
{
    int full = (int)((double)bytes / (double)most * BAR_COLUMNS + 0.5);
    char text[24];
    for (int i = 0; i < BAR_COLUMNS; i++)
        fputs(i < full ? glyphs->full : glyphs->empty, out);
    fprintf(out, " %9s", cli_format_bytes(bytes, text));
}

/** The group that carries a side's positions in the first track of the first pair. */
static const struct kvf_group *shown_group(const struct plan_set *set, bool source)
{
    struct kvf_track track;
    const struct plan_pair *pair = &set->pairs[0];
    if (kvf_plan_track(pair->plan, 0, &track) != KVF_OK)
        return NULL;
    const kvf_layout *layout =
        source ? kvf_instance_layout(set->src, pair->src) : kvf_instance_layout(set->dst, pair->dst);
    const struct kvf_group *group = &kvf_layout_get_spec(layout)->groups[source ? track.src_group : track.dst_group];
    return group->tokens_per_block > 0 ? group : NULL;
}

static int64_t largest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/** Tokens that the strip shows: enough to see both sides' pattern once or twice. */
static int64_t strip_tokens(const struct plan_set *set, const struct kvf_group *src, const struct kvf_group *dst)
{
    int64_t larger = largest(src->tokens_per_block, dst->tokens_per_block);
    int64_t smaller = src->tokens_per_block + dst->tokens_per_block - larger;
    int64_t tokens = larger % smaller != 0 || larger == smaller ? 2 * larger : larger;
    tokens = largest(tokens, 16);
    for (int side = 0; side < 2; side++) {
        const struct kvf_group *group = side == 0 ? src : dst;
        if (group->stripes > 1 && group->stripe_tokens == 0)
            return set->tokens;
        if (group->stripes > 1)
            tokens = largest(tokens, 2 * group->stripes * group->stripe_tokens);
    }
    return tokens < set->tokens ? tokens : set->tokens;
}

static int column_of(int64_t token, int64_t tokens)
{
    return (int)((double)token * STRIP_COLUMNS / (double)tokens + 0.5);
}

/** Blocks of an unstriped side, side by side. */
static void print_blocks(const struct kvf_group *group, int64_t tokens, const struct draw_glyphs *glyphs, FILE *out)
{
    char number[24];
    for (int64_t block = 0; block * group->tokens_per_block < tokens; block++) {
        int first = column_of(block * group->tokens_per_block, tokens);
        int end = column_of((block + 1) * group->tokens_per_block, tokens);
        bool open = end > STRIP_COLUMNS;
        end = open ? STRIP_COLUMNS : end;
        if (end <= first)
            continue;
        snprintf(number, sizeof(number), " %" PRId64 " ", block);
        int width = end - first - 1, text = (int)strlen(number);
        fputs(glyphs->vertical, out);
        for (int c = 0; c < width; c++) {
            int at = c - (width - text) / 2;
            if (width >= text && at >= 0 && at < text)
                fputc(number[at], out);
            else
                fputs(glyphs->horizontal, out);
        }
        if (open)
            return;
    }
    fputs(glyphs->vertical, out);
}

/** Which tokens one stripe of a striped side holds. */
static void print_stripe(const struct kvf_group *group, int64_t stripe, int64_t request_tokens, int64_t tokens,
                         const struct draw_glyphs *glyphs, FILE *out)
{
    int64_t blocks = (request_tokens + group->tokens_per_block - 1) / group->tokens_per_block;
    int64_t each = blocks / group->stripes, more = blocks % group->stripes;
    int64_t first = (stripe * each + (stripe < more ? stripe : more)) * group->tokens_per_block;
    int64_t end = first + (each + (stripe < more)) * group->tokens_per_block;
    for (int c = 0; c < STRIP_COLUMNS; c++) {
        int64_t token = (int64_t)((double)c * (double)tokens / STRIP_COLUMNS);
        bool held = group->stripe_tokens > 0 ? token / group->stripe_tokens % group->stripes == stripe
                                             : token >= first && token < end;
        fputs(held ? glyphs->full : glyphs->empty, out);
    }
}

static void print_side(const struct plan_set *set, const char *name, const struct kvf_group *group, int64_t tokens,
                       const struct draw_glyphs *glyphs, FILE *out)
{
    char text[48];
    if (group->stripes == 1) {
        snprintf(text, sizeof(text), "%s, blocks of %" PRId64, name, group->tokens_per_block);
        fprintf(out, "  %-24s", text);
        print_blocks(group, tokens, glyphs, out);
        fputc('\n', out);
        return;
    }
    for (int64_t stripe = 0; stripe < group->stripes && stripe < STRIPES_SHOWN; stripe++) {
        snprintf(text, sizeof(text), "%s, CP part %" PRId64, name, stripe);
        fprintf(out, "  %-24s", text);
        print_stripe(group, stripe, set->tokens, tokens, glyphs, out);
        fputc('\n', out);
    }
    if (group->stripes > STRIPES_SHOWN)
        fprintf(out, "  %-24s(and %" PRId64 " parts more)\n", "", group->stripes - STRIPES_SHOWN);
}

/** The first elements of a block in the order of their addresses: h = head, t = token. */
static void print_order(const char *name, const struct kvf_layout_spec *spec, FILE *out)
{
    const struct kvf_view *view = NULL;
    for (size_t v = 0; v < spec->view_count && view == NULL; v++) {
        if (spec->views[v].entries > 1 && spec->groups[spec->views[v].group].tokens_per_block > 0)
            view = &spec->views[v];
    }
    if (view == NULL)
        return;
    bool tokens_inside = view->unit_stride_bytes > view->entry_stride_bytes || view->unit_count == 1;
    int64_t inner = tokens_inside ? view->entries : view->unit_count;
    int64_t outer = tokens_inside ? view->unit_count : view->entries;
    fprintf(out, "  %-23s", name);
    for (int64_t o = 0, shown = 0; o < outer && o < 3; o++) {
        fprintf(out, "%s", o > 0 ? " |" : "");
        for (int64_t i = 0; i < inner && shown < 12; i++) {
            if (i == 3 && inner > 4) {
                fputs(" ..", out);
                i = inner - 1;
            }
            fprintf(out, " h%" PRId64 "t%" PRId64, view->unit_first + (tokens_inside ? o : i), tokens_inside ? i : o);
            shown++;
        }
    }
    fputs(outer > 3 ? " | ..\n" : "\n", out);
}

void draw_tokens(const struct plan_set *set, const struct draw_glyphs *glyphs, FILE *out)
{
    const struct kvf_group *src = shown_group(set, true), *dst = shown_group(set, false);
    if (src == NULL || dst == NULL)
        return;
    int64_t tokens = strip_tokens(set, src, dst);
    fprintf(out, "\nthe first %" PRId64 " tokens along the blocks of both sides:\n", tokens);
    print_side(set, "from", src, tokens, glyphs, out);
    print_side(set, "to", dst, tokens, glyphs, out);
    fprintf(out, "\nhead h of token t inside a block, by address:\n");
    print_order("from", kvf_layout_get_spec(kvf_instance_layout(set->src, set->pairs[0].src)), out);
    print_order("to", kvf_layout_get_spec(kvf_instance_layout(set->dst, set->pairs[0].dst)), out);
}
