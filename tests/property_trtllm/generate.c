/* SPDX-License-Identifier: Apache-2.0 */
#include "case.h"

#include <string.h>

static int64_t pick(struct draw *draw, const int64_t *values, size_t count)
{
    return values[draw_int(draw, 0, (int64_t)count - 1)];
}

#define PICK(draw, ...) pick(draw, (const int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

/* Heads and TP ranks of one side divide, one way or the other. */
static int64_t draw_heads(struct prop_case *c)
{
    return c->is_native && c->has_thirds ? PICK(&c->draw, 1, 6, 12) : PICK(&c->draw, 1, 2, 4, 8);
}

static void add_part(struct prop_case *c, struct part part)
{
    c->parts[c->part_count++] = part;
}

static void add_ring(struct prop_case *c)
{
    struct part part = {.kind = RING, .roles = {"mla_hp_tail"}, .role_count = 1, .heads = 1, .buffers = 1,
                        .eighths = 8 * draw_int(&c->draw, 1, 3)};

    part.ring[0] = draw_int(&c->draw, 1, 24);
    part.ring[1] = draw_one_in(&c->draw, 3) ? part.ring[0] : draw_int(&c->draw, 1, 24);
    add_part(c, part);
}

/* One or two sizes of K and V, or one latent; an index key beside it; recurrent state. */
static void draw_parts(struct prop_case *c)
{
    struct draw *draw = &c->draw;

    c->is_key_only = draw_one_in(draw, 5);
    c->head_dim = PICK(draw, 1, 2, 3, 4);
    c->element_eighths = draw_one_in(draw, 4) ? 4 : PICK(draw, 8, 16);
    if (c->element_eighths == 4) c->head_dim *= 2;
    if (c->element_eighths == 4 && draw_one_in(draw, 2)) c->head_dim = 1; /* a byte holds two tokens */
    if (c->is_key_only) {
        add_part(c, (struct part){.kind = KV, .roles = {"key"}, .role_count = 1, .heads = 1, .buffers = 1,
                                  .eighths = c->head_dim * c->element_eighths});
    } else {
        for (int64_t i = draw_int(draw, 1, 2); i > 0; i--)
            add_part(c, (struct part){.kind = KV, .roles = {"key", "value"}, .role_count = 2,
                                      .heads = draw_heads(c), .buffers = 2,
                                      .eighths = c->head_dim * c->element_eighths});
    }
    if (draw_one_in(draw, 3))
        add_part(c, (struct part){.kind = SIDE, .roles = {"index_key"}, .role_count = 1, .heads = 1, .buffers = 1,
                                  .eighths = 8 * draw_int(draw, 1, 3)});
    if (draw_one_in(draw, 6)) add_ring(c);
    if (draw_one_in(draw, 2)) return;
    /* recurrent state divides by every number of TP and CP ranks */
    add_part(c, (struct part){.kind = CONV, .roles = {"conv_state"}, .role_count = 1,
                              .sections = {48 * draw_int(draw, 1, 3), 48, 48 * draw_int(draw, 1, 2)}});
    c->parts[c->part_count] = (struct part){.kind = SSM, .roles = {"ssm_state"}, .role_count = 1,
                                            .head_bytes = draw_int(draw, 1, 3)};
    c->parts[c->part_count].bytes = c->parts[c->part_count].head_bytes * 48 * draw_int(draw, 1, 2);
    c->part_count++;
    if (draw_one_in(draw, 2))
        add_part(c, (struct part){.kind = STATE_SIDE, .roles = {"ple_ngram_context"}, .role_count = 1,
                                  .bytes = draw_int(draw, 1, 9)});
}

static void draw_layer(struct prop_case *c, struct layer *layer, size_t kv_count, bool has_window)
{
    struct draw *draw = &c->draw;
    bool has_state = c->parts[c->part_count - 1].kind >= CONV;
    size_t kv = (size_t)draw_int(draw, 0, (int64_t)kv_count - 1);
    bool has_side = !draw_one_in(draw, 3);

    memset(layer, 0, sizeof *layer);
    layer->is_state = has_state && draw_one_in(draw, 2);
    layer->group = layer->is_state ? 2 : has_window && draw_one_in(draw, 2);
    for (size_t p = 0; p < c->part_count; p++) {
        enum part_kind kind = c->parts[p].kind;

        if (layer->is_state) layer->has[p] = kind >= CONV;
        else layer->has[p] = kind == KV ? p == kv : kind < CONV && has_side;
    }
}

static void draw_layers(struct prop_case *c)
{
    bool has_window = draw_one_in(&c->draw, 3);
    int64_t next[2] = {draw_int(&c->draw, 0, 3), draw_int(&c->draw, 0, 3)};
    size_t kv_count = 0;

    while (kv_count < c->part_count && c->parts[kv_count].kind == KV) kv_count++;
    c->layer_count = (size_t)draw_int(&c->draw, 1, MOST_LAYERS);
    for (size_t i = 0; i < c->layer_count; i++) {
        do draw_layer(c, &c->layers[i], kv_count, has_window);
        while (i == 0 && c->is_key_only && c->layers[i].is_state); /* upstream takes none without attention */
        /* numbers are of one cache kind: the same may come again in the other */
        c->layers[i].global = next[c->layers[i].is_state];
        next[c->layers[i].is_state] += draw_int(&c->draw, 1, 3);
    }
}

/* Stages in order; some are empty. Upstream takes no key-only rank without attention. */
static void draw_stages(struct prop_case *c, struct side *side)
{
    int64_t count = (int64_t)c->layer_count, end = 0;

    side->pp = draw_int(&c->draw, 1, count < MOST_STAGES ? count : MOST_STAGES);
    for (int64_t p = 0; p < side->pp; p++) {
        int64_t left = count - end;

        end += p + 1 == side->pp ? left : draw_one_in(&c->draw, 8) ? 0 : draw_int(&c->draw, 1, left > 0 ? left : 1);
        if (end > count) end = count;
        side->stage_end[p] = end;
    }
    for (int64_t p = 0, first = 0; p < side->pp && c->is_key_only; first = side->stage_end[p++]) {
        bool has_attention = false;

        for (int64_t i = first; i < side->stage_end[p]; i++) has_attention |= !c->layers[i].is_state;
        if (has_attention || c->is_native) continue;
        side->pp = 1;
        side->stage_end[0] = count;
    }
}

static void draw_side(struct prop_case *c, struct side *side, bool is_source)
{
    struct draw *draw = &c->draw;

    memset(side, 0, sizeof *side);
    side->is_source = is_source;
    side->name = is_source ? "ctx" : "gen";
    side->tp = c->is_native && c->has_thirds ? PICK(draw, 1, 2, 3, 6) : PICK(draw, 1, 1, 2, 4, 8);
    side->cp = 1;
    if (!is_source || c->is_native) side->cp = draw_one_in(draw, 3) ? PICK(draw, 2, 2, 4) : 1;
    side->attention_dp = side->cp == 1 && draw_one_in(draw, 4);
    side->dp_rank = side->attention_dp ? draw_int(draw, 0, side->tp - 1) : 0;
    draw_stages(c, side);
    while (side->pp * side->cp * side_tp(side) > MOST_RANKS) {
        if (side->tp > 1) side->tp /= side->tp % 2 ? 3 : 2;
        else side->cp /= 2;
    }
    for (int64_t i = 0; i < MOST_GROUPS; i++) {
        int64_t j = draw_int(draw, 0, i);

        side->group_order[i] = side->group_order[j];
        side->group_order[j] = i;
    }
}

static bool has_kind(const struct prop_case *c, enum part_kind kind)
{
    bool found = false;

    for (size_t p = 0; p < c->part_count; p++) found |= c->parts[p].kind == kind;
    return found;
}

/* A block's bytes of one head are whole; K and V by token need whole bytes per token, and so do unlike blocks. What a
 * replicated view keeps of a block is not known to be by token: it moves between equal blocks only. */
static void draw_blocks(struct prop_case *c)
{
    struct draw *draw = &c->draw;
    bool halves = c->element_eighths == 4 && c->head_dim % 2;

    c->src.tokens_per_block = PICK(draw, 1, 2, 4, 8);
    if (halves && c->src.tokens_per_block == 1) c->src.tokens_per_block = 2;
    c->dst.tokens_per_block = c->src.tokens_per_block;
    c->src.nhd = c->dst.nhd = !halves && draw_one_in(draw, 3);
    if (!c->is_native || halves) return;
    c->dst.nhd = draw_one_in(draw, 2);
    if (!has_kind(c, SIDE) && !has_kind(c, RING)) c->dst.tokens_per_block = PICK(draw, 1, 2, 3, 4, 6, 8);
}

static int64_t block_count(const struct prop_case *c, const struct side *side)
{
    return (c->prompt + side->tokens_per_block - 1) / side->tokens_per_block;
}

/* The window's holes are on both sides, each by its own blocks; a reused prefix is on the destination alone; upstream
 * takes holes anywhere. */
static void draw_held(struct prop_case *c, struct side *side, int64_t window, int64_t reused)
{
    int64_t stale = c->prompt + 1 > window ? (c->prompt + 1 - window) / side->tokens_per_block : 0;

    for (int64_t g = 0; g < 2; g++) {
        for (int64_t i = 0; i < block_count(c, side); i++) {
            bool is_reused = !side->is_source && (i + 1) * side->tokens_per_block <= reused;

            side->held[g][i] = !(g == 1 && i < stale) && !is_reused && !(c->has_gaps && draw_one_in(&c->draw, 3));
        }
    }
    side->has_state = !draw_one_in(&c->draw, 12) && (side->is_source || !c->is_native || c->src.has_state);
}

static void draw_request(struct prop_case *c)
{
    struct draw *draw = &c->draw;
    bool is_striped = c->src.cp > 1 || c->dst.cp > 1;
    int64_t block = c->src.tokens_per_block > c->dst.tokens_per_block ? c->src.tokens_per_block
                                                                      : c->dst.tokens_per_block;
    int64_t window, reused = 0, at = 0;

    c->prompt = draw_int(draw, 1, block * draw_int(draw, 1, 8));
    window = draw_int(draw, 1, c->prompt + block);
    if (draw_one_in(draw, 3)) reused = draw_int(draw, 0, c->prompt);
    draw_held(c, &c->src, window, 0);
    c->has_gaps = !c->is_native && draw_one_in(draw, 4);
    draw_held(c, &c->dst, window, reused);
    c->start = KVF_TRTLLM_NONE;
    if (draw_one_in(draw, 3) && (c->is_native || !is_striped)) c->start = draw_int(draw, 0, c->prompt);
    if (draw_one_in(draw, 3) && !is_striped) {
        for (int64_t i = draw_int(draw, 1, 2); i > 0; i--)
            c->cuts[c->cut_count++] = at = draw_int(draw, at, c->prompt - 1);
    }
    c->cuts[c->cut_count++] = c->prompt;
    c->excluded = draw_one_in(draw, 6) ? draw_int(draw, 0, (int64_t)c->part_count - 1) : -1;
}

/* Upstream's owner of a replicated state is chosen by TP ranks alone, whom a rank is paired with by TP and CP ranks:
 * where they do not meet, nobody sends it. */
static void drop_lost_state(struct prop_case *c)
{
    size_t kept = c->part_count - 1;

    if (c->is_native || c->dst.cp == 1 || side_tp(&c->src) <= side_tp(&c->dst) || c->parts[kept].kind != STATE_SIDE)
        return;
    c->part_count = kept;
    for (size_t i = 0; i < c->layer_count; i++) c->layers[i].has[kept] = false;
}

/* Rings of unlike length do not move under context parallelism. */
static void drop_striped_rings(struct prop_case *c)
{
    for (size_t p = 0; p < c->part_count; p++)
        if (c->parts[p].kind == RING && (c->src.cp > 1 || c->dst.cp > 1)) c->parts[p].ring[1] = c->parts[p].ring[0];
}

void case_generate(struct prop_case *c, uint64_t seed, bool is_native)
{
    memset(c, 0, sizeof *c);
    c->seed = seed;
    c->is_native = is_native;
    c->draw.state = seed * 2 + is_native;
    c->has_thirds = draw_one_in(&c->draw, 3);
    draw_parts(c);
    draw_layers(c);
    draw_side(c, &c->src, true);
    draw_side(c, &c->dst, false);
    drop_lost_state(c);
    drop_striped_rings(c);
    draw_blocks(c);
    draw_request(c);
}
