/* SPDX-License-Identifier: Apache-2.0 */
/* Page tables as an inference engine would have them, and some that it hardly would: layers in any order, gaps, pools
 * that views and groups share, state by slots or by layers. */
#include "case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t side_tp(const struct side *side)
{
    return side->attention_dp ? 1 : side->tp;
}

int64_t rank_heads(const struct side *side, const struct part *part)
{
    return part->heads > side_tp(side) ? part->heads / side_tp(side) : 1;
}

void rank_state(const struct side *side, const struct rank *rank, int64_t *size, int64_t *number)
{
    *size = side->attention_dp ? 1 : side->tp * side->cp;
    *number = side->attention_dp ? 0 : rank->tp * side->cp + rank->cp;
}

int64_t part_bytes(const struct side *side, const struct part *part)
{
    int64_t state = side->attention_dp ? 1 : side->tp * side->cp;

    switch (part->kind) {
    case KV: return part->buffers * side->tokens_per_block * rank_heads(side, part) * part->eighths / 8;
    case RING: return part->ring[side->is_source ? 0 : 1] * part->eighths / 8;
    case SIDE: return side->tokens_per_block * part->eighths / 8;
    case CONV: return (part->sections[0] + part->sections[1] + part->sections[2]) / state;
    case SSM: return part->bytes / state;
    default: return part->bytes;
    }
}

/* The pool of an index in a pool group, made when it is not there yet. */
static struct pool *get_pool(struct prop_case *c, struct rank *rank, int64_t group, int64_t index)
{
    struct pool *pool;

    for (size_t i = 0; i < rank->pool_count; i++) {
        pool = &rank->pools[i];
        if (pool->group == group && pool->index == index) return pool;
    }
    if (rank->pool_count == MOST_POOLS) abort();
    pool = &rank->pools[rank->pool_count++];
    *pool = (struct pool){.group = group, .index = index, .layer_stride = KVF_TRTLLM_NONE, .slot = 1,
                          .base = (uint64_t)draw_int(&c->draw, 1, 1 << 20) + ((uint64_t)rank->pool_count << 32)};
    if (draw_one_in(&c->draw, 4)) pool->base += UINT64_C(15) << 60;
    return pool;
}

/* Places the layers of one view one after the other from `at`, in any order; returns the end. */
static int64_t place_layers(struct prop_case *c, struct placed *placed, int64_t at)
{
    for (size_t i = 0; i < placed->layer_count; i++) {
        size_t j = (size_t)draw_int(&c->draw, 0, (int64_t)i), moved = placed->layers[i];

        placed->layers[i] = placed->layers[j];
        placed->layers[j] = moved;
    }
    for (size_t i = 0; i < placed->layer_count; i++) {
        if (draw_one_in(&c->draw, 6)) at += draw_int(&c->draw, 1, 5);
        placed->offsets[i] = at;
        at += placed->layer_bytes;
    }
    return at;
}

/* Views of a group each in a pool of their own, or all in one slot. */
static void place_group(struct prop_case *c, struct rank *rank, size_t group, int64_t pool_group)
{
    bool is_one_pool = draw_one_in(&c->draw, 3), by_layers = !is_one_pool && draw_one_in(&c->draw, 2);
    int64_t at = 0;

    rank->pool_group[group] = pool_group;
    for (size_t v = 0; v < rank->view_count[group]; v++) {
        struct placed *placed = &rank->placed[group][v];
        struct pool *pool = get_pool(c, rank, pool_group, is_one_pool ? 0 : (int64_t)v);

        placed->pool = (size_t)(pool - rank->pools);
        if (rank->group_kind[group] == 2 && by_layers) {
            pool->slot = placed->layer_bytes; /* a layer's offset is set when the number of slots is known */
            pool->layer_count = (int64_t)placed->layer_count;
        } else {
            at = place_layers(c, placed, is_one_pool ? at : 0);
            if (at > pool->slot) pool->slot = at;
        }
    }
}

/* The layers of one group of the model on this rank, by part. */
static void collect_group(struct prop_case *c, const struct side *side, struct rank *rank, int64_t kind)
{
    int64_t first = rank->pp > 0 ? side->stage_end[rank->pp - 1] : 0;
    size_t group = rank->group_count, views = 0;

    for (size_t p = 0; p < c->part_count; p++) {
        struct placed *placed = &rank->placed[group][views];

        *placed = (struct placed){.part = p, .layer_bytes = part_bytes(side, &c->parts[p])};
        for (int64_t i = first; i < side->stage_end[rank->pp]; i++)
            if (c->layers[i].group == kind && c->layers[i].has[p]) placed->layers[placed->layer_count++] = (size_t)i;
        views += placed->layer_count > 0;
    }
    if (views == 0) return;
    rank->group_kind[group] = kind;
    rank->view_count[group] = views;
    rank->group_count++;
}

/* Positional lists; ids come later. */
static void draw_holes(struct prop_case *c, const struct side *side, struct rank *rank, size_t group)
{
    int64_t kind = rank->group_kind[group], blocks = side->has_state;
    size_t count = 0;

    if (kind != 2) blocks = (c->prompt + side->tokens_per_block - 1) / side->tokens_per_block;
    for (int64_t i = 0; i < blocks; i++) {
        if (kind != 2 && i % side->cp != rank->cp) continue;
        if (count == MOST_BLOCKS) abort();
        rank->ids[group][count++] = kind == 2 || side->held[kind][i] ? 0 : -1;
    }
    rank->blocks[group] = (struct kvf_trtllm_blocks){rank->ids[group], count};
}

/* Ids without doubles over all groups of a pool group, in any order; a few slots are nobody's. */
static int64_t draw_ids(struct prop_case *c, struct rank *rank, int64_t pool_group)
{
    int64_t slots = draw_int(&c->draw, 1, 4), free_ids[3 * MOST_BLOCKS + 4], count;

    for (size_t g = 0; g < rank->group_count; g++)
        if (rank->pool_group[g] == pool_group) slots += (int64_t)rank->blocks[g].count;
    for (count = 0; count < slots; count++) free_ids[count] = count;
    for (size_t g = 0; g < rank->group_count; g++) {
        bool in_order = draw_one_in(&c->draw, 3);

        for (size_t i = 0; rank->pool_group[g] == pool_group && i < rank->blocks[g].count; i++) {
            int64_t at = in_order ? 0 : draw_int(&c->draw, 0, count - 1);

            if (rank->ids[g][i] < 0) continue;
            rank->ids[g][i] = free_ids[at];
            memmove(&free_ids[at], &free_ids[at + 1], (size_t)(--count - at) * sizeof *free_ids);
        }
    }
    return slots;
}

static void end_pool(struct prop_case *c, struct rank *rank, struct pool *pool, int64_t slots)
{
    pool->slots = slots;
    pool->stride = pool->slot + (draw_one_in(&c->draw, 4) ? draw_int(&c->draw, 1, 9) : 0);
    pool->bytes = (slots - 1) * pool->stride + pool->slot;
    if (!pool->layer_count) return;
    /* by layers: the slots of one layer lie together, and a layer's offset leads past its slot */
    pool->layer_stride = slots * pool->stride;
    pool->bytes += (pool->layer_count - 1) * pool->layer_stride;
    for (size_t g = 0; g < rank->group_count; g++) {
        for (size_t v = 0; v < rank->view_count[g]; v++) {
            struct placed *placed = &rank->placed[g][v];

            if (&rank->pools[placed->pool] != pool) continue;
            for (size_t i = 0; i < placed->layer_count; i++) placed->offsets[i] = (int64_t)i * pool->layer_stride;
        }
    }
}

static void draw_table(struct prop_case *c, const struct side *side, struct rank *rank)
{
    bool is_shared = draw_one_in(&c->draw, 2);
    int64_t pool_groups = 0, paged = -1;

    for (int64_t i = 0; i < MOST_GROUPS; i++) collect_group(c, side, rank, side->group_order[i]);
    for (size_t g = 0; g < rank->group_count; g++) {
        bool is_state = rank->group_kind[g] == 2;

        place_group(c, rank, g, !is_state && is_shared && paged >= 0 ? paged : pool_groups++);
        if (!is_state) paged = rank->pool_group[g];
        draw_holes(c, side, rank, g);
    }
    rank->pool_group_count = pool_groups;
    for (int64_t p = 0; p < pool_groups; p++) {
        int64_t slots = draw_ids(c, rank, p);

        for (size_t i = 0; i < rank->pool_count; i++)
            if (rank->pools[i].group == p) end_pool(c, rank, &rank->pools[i], slots);
    }
}

/* ---- the rank info ------------------------------------------------------------------------------------------ */

/** Everything that a spec points to. */
struct drawing {
    struct kvf_trtllm_rank_spec spec;
    struct kvf_trtllm_attention attention;
    int64_t stages[MOST_STAGES];
    struct kvf_trtllm_page_table table;
    struct kvf_trtllm_group groups[MOST_GROUPS];
    struct kvf_trtllm_layer layers[MOST_GROUPS][MOST_LAYERS];
    struct kvf_trtllm_view views[MOST_GROUPS][MOST_VIEWS];
    struct kvf_trtllm_entry entries[MOST_GROUPS][MOST_VIEWS][MOST_ENTRIES];
    int64_t sections[SECTIONS];
    struct kvf_trtllm_pool_group pool_groups[MOST_GROUPS];
    struct kvf_trtllm_pool pools[MOST_GROUPS][MOST_POOLS];
};

/* A layer's number on its rank: its place in the group, counted from the end in every other case. */
static int64_t local_layer(const struct prop_case *c, size_t layer)
{
    return c->seed % 2 ? (int64_t)layer : (int64_t)(MOST_LAYERS - layer);
}

static void spell_view(struct prop_case *c, const struct side *side, const struct rank *rank, size_t g, size_t v,
                       struct drawing *out)
{
    const struct placed *placed = &rank->placed[g][v];
    const struct part *part = &c->parts[placed->part];
    int64_t buffers = part->kind == KV ? part->buffers : 1, size, number;
    struct kvf_trtllm_view *view = &out->views[g][v];

    rank_state(side, rank, &size, &number);
    *view = (struct kvf_trtllm_view){.pool = rank->pools[placed->pool].index, .entries = out->entries[g][v],
                                     .roles = part->roles, .role_count = part->role_count,
                                     .bytes_per_layer = KVF_TRTLLM_NONE, .num_kv_heads = KVF_TRTLLM_NONE,
                                     .bytes_per_head = KVF_TRTLLM_NONE, .ring_slot_bytes = KVF_TRTLLM_NONE};
    view->mapper = part->kind == CONV ? KVF_TRTLLM_SECTIONED
                 : part->kind == SIDE || part->kind == RING || part->kind == STATE_SIDE ? KVF_TRTLLM_REPLICATED
                 : part->kind == KV && side->nhd ? KVF_TRTLLM_NHD : KVF_TRTLLM_INDEXED;
    if (part->kind >= CONV || draw_one_in(&c->draw, 2)) view->bytes_per_layer = placed->layer_bytes;
    if (part->kind == KV) view->num_kv_heads = rank_heads(side, part);
    if (part->kind == RING) view->ring_slot_bytes = part->eighths / 8;
    if (part->kind == SSM) view->bytes_per_head = part->head_bytes;
    for (int i = 0; i < SECTIONS; i++) out->sections[i] = part->kind == CONV ? part->sections[i] / size
                                                                             : out->sections[i];
    if (part->kind == CONV) view->section_bytes = out->sections;
    if (part->kind == CONV) view->section_count = SECTIONS;
    for (size_t i = 0; i < placed->layer_count; i++) {
        for (int64_t b = 0; b < buffers; b++)
            out->entries[g][v][view->entry_count++] = (struct kvf_trtllm_entry){
                local_layer(c, placed->layers[i]), placed->offsets[i] + b * (placed->layer_bytes / buffers),
                placed->layer_bytes / buffers};
    }
}

static void spell_group(struct prop_case *c, const struct side *side, const struct rank *rank, size_t g,
                        struct drawing *out)
{
    struct kvf_trtllm_group *group = &out->groups[g];
    int64_t first = rank->pp > 0 ? side->stage_end[rank->pp - 1] : 0;

    *group = (struct kvf_trtllm_group){.cache = rank->group_kind[g] == 2, .pool_group = rank->pool_group[g],
                                       .layers = out->layers[g], .views = out->views[g],
                                       .view_count = rank->view_count[g], .kv_heads_per_rank = KVF_TRTLLM_NONE,
                                       .sliding_window_size = rank->group_kind[g] == 1 ? 32 : KVF_TRTLLM_NONE,
                                       .slot_major_layout = KVF_TRTLLM_NONE};
    for (int64_t i = first; i < side->stage_end[rank->pp]; i++)
        if (c->layers[i].group == rank->group_kind[g])
            out->layers[g][group->layer_count++] = (struct kvf_trtllm_layer){local_layer(c, (size_t)i),
                                                                             c->layers[i].global};
    for (size_t v = 0; v < rank->view_count[g]; v++) spell_view(c, side, rank, g, v, out);
}

/* Rank-wide heads: those of the first layer that has any. */
static int64_t attention_heads(const struct prop_case *c, const struct side *side, const struct rank *rank)
{
    int64_t first = rank->pp > 0 ? side->stage_end[rank->pp - 1] : 0;

    for (int64_t i = first; i < side->stage_end[rank->pp]; i++)
        for (size_t p = 0; p < c->part_count; p++)
            if (c->parts[p].kind == KV && c->layers[i].has[p]) return rank_heads(side, &c->parts[p]);
    return 0;
}

static void spell_rank(struct prop_case *c, const struct side *side, const struct rank *rank, struct drawing *out)
{
    memset(out, 0, sizeof *out);
    kvf_trtllm_rank_spec_init(&out->spec, sizeof out->spec);
    out->spec.instance_name = side->name;
    out->spec.instance_rank = rank->number;
    out->spec.tp_size = side->tp;
    out->spec.tp_rank = rank->tp;
    out->spec.pp_size = side->pp;
    out->spec.pp_rank = rank->pp;
    out->spec.cp_size = side->cp;
    out->spec.cp_rank = rank->cp;
    out->spec.dp_size = side->attention_dp ? side->tp : 1;
    out->spec.dp_rank = side->dp_rank;
    out->spec.layer_num_per_pp = out->stages;
    out->spec.layer_num_count = (size_t)side->pp;
    for (int64_t p = 0; p < side->pp; p++) out->stages[p] = side->stage_end[p] - (p > 0 ? side->stage_end[p - 1] : 0);
    out->attention = (struct kvf_trtllm_attention){attention_heads(c, side, rank), side->tokens_per_block,
                                                   c->head_dim, c->element_eighths, side->attention_dp,
                                                   c->is_key_only};
    out->spec.attention = &out->attention;
    out->table = (struct kvf_trtllm_page_table){side->tokens_per_block, out->groups, rank->group_count,
                                                out->pool_groups, (size_t)rank->pool_group_count};
    out->spec.page_table = &out->table;
    for (size_t g = 0; g < rank->group_count; g++) spell_group(c, side, rank, g, out);
    for (int64_t g = 0; g < rank->pool_group_count; g++) out->pool_groups[g].pools = out->pools[g];
    for (size_t i = 0; i < rank->pool_count; i++) {
        const struct pool *pool = &rank->pools[i];

        out->pools[pool->group][pool->index] = (struct kvf_trtllm_pool){pool->base, pool->slot, pool->slots,
                                                                        pool->stride, pool->layer_stride};
        out->pool_groups[pool->group].pool_count++;
    }
}

static bool build_rank(struct prop_case *c, struct side *side, struct rank *rank)
{
    struct kvf_error error = {0};
    struct drawing drawing;

    draw_table(c, side, rank);
    for (size_t i = 0; i < rank->pool_count; i++) {
        struct pool *pool = &rank->pools[i];

        pool->tags = calloc((size_t)pool->bytes, sizeof *pool->tags);
        pool->must = calloc((size_t)pool->bytes, 1);
        pool->written = calloc((size_t)pool->bytes, 1);
        if (!pool->tags || !pool->must || !pool->written) abort();
    }
    spell_rank(c, side, rank, &drawing);
    if (kvf_trtllm_rank_create(&drawing.spec, &rank->info, &error) == KVF_OK) return true;
    fprintf(stderr, "%s rank %lld: %s\n", side->name, (long long)rank->number, error.text);
    return false;
}

bool side_build(struct prop_case *c, struct side *side)
{
    bool good = true;

    for (int64_t pp = 0; pp < side->pp && good; pp++) {
        for (int64_t tp = 0; tp < side_tp(side) && good; tp++) {
            for (int64_t cp = 0; cp < side->cp && good; cp++) {
                struct rank *rank = &side->ranks[side->rank_count++];

                rank->pp = pp;
                rank->tp = side->attention_dp ? side->dp_rank : tp;
                rank->cp = cp;
                rank->number = (pp * side->tp + rank->tp) * side->cp + cp;
                good = build_rank(c, side, rank);
            }
        }
    }
    return good;
}

void side_fini(struct side *side)
{
    for (size_t r = 0; r < side->rank_count; r++) {
        struct rank *rank = &side->ranks[r];

        for (size_t i = 0; i < rank->pool_count; i++) {
            free(rank->pools[i].tags);
            free(rank->pools[i].must);
            free(rank->pools[i].written);
        }
        kvf_trtllm_rank_release(rank->info);
    }
}
