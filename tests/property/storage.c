/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out one rank's memory in one of many ways: a pool per layer or for all, planes or pages, heads first or tokens
 * first, parts side by side in a row, in a head, or apart, with and without padding, in any order. */
#include <string.h>

#include "case.h"

/* Views that are laid out as one piece per layer. `extent` is that piece's length within a slot. */
struct set {
    size_t views[MOST_VIEWS];
    size_t count;
    int64_t offset[MOST_VIEWS];
    int64_t extent;
};

/* A set in one layer. */
struct chunk {
    size_t set;
    size_t layer;
    int64_t pool, offset;
};

enum mode { PAGES, PLANES, POOLS };

struct builder {
    struct prop_case *c;
    const struct side *side;
    struct rank *rank;
    struct set sets[MOST_VIEWS];
    size_t set_count;
    struct chunk chunks[MOST_VIEWS * MOST_LAYERS];
    size_t chunk_count;
    bool padded, one_memory;
};

static int64_t pad(struct builder *b)
{
    return b->padded && draw_one_in(&b->c->draw, 2) ? draw_int(&b->c->draw, 1, 5) : 0;
}

static bool alike(const struct kvf_view *a, const struct kvf_view *b)
{
    return a->unit_count == b->unit_count && a->entries == b->entries && a->slots_per_block == b->slots_per_block;
}

/* Puts the views of one group into sets; with `fuse` those of equal counts together. */
static void make_sets(struct builder *b, int64_t group, bool fuse)
{
    size_t first = b->set_count;

    for (size_t v = 0; v < b->rank->spec.view_count; v++) {
        size_t s = b->set_count;

        if (b->rank->views[v].group != group) continue;
        if (fuse) {
            for (s = first; s < b->set_count; s++) {
                if (alike(&b->rank->views[v], &b->rank->views[b->sets[s].views[0]])) break;
            }
        }
        if (s == b->set_count) b->sets[b->set_count++].count = 0;
        b->sets[s].views[b->sets[s].count++] = v;
    }
}

/* Axes around `inner` bytes: the first one inside, the second one around it. Returns the whole. */
static int64_t nest(struct builder *b, int64_t inner, int64_t count_inner, int64_t count_outer, int64_t *stride_inner,
                    int64_t *stride_outer)
{
    *stride_inner = inner + pad(b);
    *stride_outer = *stride_inner * (count_inner - 1) + inner + pad(b);
    return *stride_outer * (count_outer - 1) + *stride_inner * (count_inner - 1) + inner;
}

/* All parts of a row side by side. */
static void lay_rows(struct builder *b, struct set *set, bool units_inside)
{
    const struct kvf_view *like = &b->rank->views[set->views[0]];
    int64_t width = 0, inner, outer;

    for (size_t i = 0; i < set->count; i++) {
        set->offset[i] = width;
        width += b->rank->views[set->views[i]].byte_count + (i + 1 < set->count ? pad(b) : 0);
    }
    set->extent = nest(b, width, units_inside ? like->unit_count : like->entries,
                       units_inside ? like->entries : like->unit_count, &inner, &outer);
    for (size_t i = 0; i < set->count; i++) {
        struct kvf_view *view = &b->rank->views[set->views[i]];

        view->unit_stride_bytes = units_inside ? inner : outer;
        view->entry_stride_bytes = units_inside ? outer : inner;
    }
}

/* All parts of a head (or of a token) behind one another. */
static void lay_blocks(struct builder *b, struct set *set, bool units_inside)
{
    const struct kvf_view *like = &b->rank->views[set->views[0]];
    int64_t inner_count = units_inside ? like->unit_count : like->entries;
    int64_t outer_count = units_inside ? like->entries : like->unit_count, width = 0, outer;

    for (size_t i = 0; i < set->count; i++) {
        struct kvf_view *view = &b->rank->views[set->views[i]];
        int64_t inner = view->byte_count + pad(b);

        set->offset[i] = width;
        width += inner * (inner_count - 1) + view->byte_count + (i + 1 < set->count ? pad(b) : 0);
        if (units_inside) view->unit_stride_bytes = inner;
        else view->entry_stride_bytes = inner;
    }
    outer = width + pad(b);
    for (size_t i = 0; i < set->count; i++) {
        struct kvf_view *view = &b->rank->views[set->views[i]];

        if (units_inside) view->entry_stride_bytes = outer;
        else view->unit_stride_bytes = outer;
    }
    set->extent = outer * (outer_count - 1) + width;
}

static bool set_has_layer(const struct builder *b, const struct set *set, size_t layer)
{
    bool has = false;

    for (size_t i = 0; i < set->count; i++) {
        const struct kvf_view *view = &b->rank->views[set->views[i]];

        for (size_t j = 0; j < view->place_count; j++) {
            has = has || b->rank->places[set->views[i]][j].layer == b->c->layers[layer];
        }
    }
    return has;
}

/* One chunk for each set and layer, in any order; an aliased layer has none of its own. */
static void make_chunks(struct builder *b, size_t first_set)
{
    b->chunk_count = 0;
    for (size_t s = first_set; s < b->set_count; s++) {
        for (size_t layer = 0; layer < b->c->layer_count; layer++) {
            if (b->side->aliased && layer + 1 == b->c->layer_count) continue;
            if (set_has_layer(b, &b->sets[s], layer)) b->chunks[b->chunk_count++] = (struct chunk){s, layer, 0, 0};
        }
    }
    if (draw_one_in(&b->c->draw, 3)) return;
    for (size_t i = b->chunk_count; i > 1; i--) {
        size_t j = (size_t)draw_int(&b->c->draw, 0, (int64_t)i - 1);
        struct chunk swap = b->chunks[j];

        b->chunks[j] = b->chunks[i - 1];
        b->chunks[i - 1] = swap;
    }
}

/* Adds a pool of `slots` slots that takes `extent` bytes from slot 0's start to the last slot's end. */
static int64_t add_pool(struct builder *b, int64_t stride, int64_t slots, int64_t extent)
{
    struct rank *rank = b->rank;
    size_t memory = b->one_memory && rank->spec.memory_count ? rank->spec.memory_count - 1 : rank->spec.memory_count++;
    int64_t base = rank->memory_bytes[memory] + pad(b);

    rank->pools[rank->spec.pool_count] = (struct kvf_pool){(int64_t)memory, base, stride, slots};
    rank->memory_bytes[memory] = base + extent;
    return (int64_t)rank->spec.pool_count++;
}

static int64_t slots_of(const struct builder *b, const struct set *set, int64_t group)
{
    return b->rank->blocks[group] * b->rank->views[set->views[0]].slots_per_block;
}

static bool place_pools(struct builder *b, int64_t group)
{
    for (size_t i = 0; i < b->chunk_count; i++) {
        const struct set *set = &b->sets[b->chunks[i].set];
        int64_t slots = slots_of(b, set, group), stride = set->extent + pad(b);

        if (b->rank->spec.pool_count == MOST_POOLS) return false;
        b->chunks[i].pool = add_pool(b, stride, slots, stride * (slots - 1) + set->extent);
    }
    return true;
}

/* Layers side by side in a slot, or a plane of slots for each of them. */
static bool place_together(struct builder *b, int64_t group, bool pages)
{
    int64_t slots = 0, widest = 0, total = 0, stride, at = 0;

    for (size_t i = 0; i < b->chunk_count; i++) {
        const struct set *set = &b->sets[b->chunks[i].set];

        if (slots_of(b, set, group) > slots) slots = slots_of(b, set, group);
        if (set->extent > widest) widest = set->extent;
        b->chunks[i].offset = total;
        total += set->extent + (i + 1 < b->chunk_count ? pad(b) : 0);
    }
    stride = (pages ? total : widest) + pad(b);
    for (size_t i = 0; i < b->chunk_count && !pages; i++) {
        b->chunks[i].offset = at;
        at += stride * (slots - 1) + b->sets[b->chunks[i].set].extent;
        if (draw_one_in(&b->c->draw, 2)) at = ceil_div(at, stride) * stride;
        total = b->chunks[i].offset + b->sets[b->chunks[i].set].extent;
    }
    if (b->rank->spec.pool_count == MOST_POOLS) return false;
    at = add_pool(b, stride, slots, total + stride * (slots - 1));
    for (size_t i = 0; i < b->chunk_count; i++) b->chunks[i].pool = at;
    return true;
}

/* Turns chunks into places of their views. */
static void write_places(struct builder *b)
{
    for (size_t i = 0; i < b->chunk_count; i++) {
        const struct chunk *chunk = &b->chunks[i];
        const struct set *set = &b->sets[chunk->set];
        bool twin = b->side->aliased && chunk->layer == 0;

        for (size_t j = 0; j < set->count; j++) {
            for (size_t k = 0; k < b->rank->views[set->views[j]].place_count; k++) {
                struct kvf_place *place = &b->rank->places[set->views[j]][k];

                if (place->layer != b->c->layers[chunk->layer] &&
                    !(twin && place->layer == b->c->layers[b->c->layer_count - 1])) continue;
                place->pool = chunk->pool;
                place->offset_bytes = chunk->offset + set->offset[j];
            }
        }
    }
}

/* A single view of which slots lie inside units or entries: [unit][slot][entry] and the like. */
static bool place_inside_out(struct builder *b, struct set *set, int64_t group)
{
    struct kvf_view *view = &b->rank->views[set->views[0]];
    int64_t slots = slots_of(b, set, group), inner, slot, outer, extent;
    bool units_outside = draw_one_in(&b->c->draw, 2);

    inner = view->byte_count + pad(b);
    extent = inner * ((units_outside ? view->entries : view->unit_count) - 1) + view->byte_count;
    slot = extent + pad(b);
    outer = slot * (slots - 1) + extent + pad(b);
    view->unit_stride_bytes = units_outside ? outer : inner;
    view->entry_stride_bytes = units_outside ? inner : outer;
    extent = outer * ((units_outside ? view->unit_count : view->entries) - 1) + slot * (slots - 1) + extent;
    for (size_t i = 0; i < b->chunk_count; i++) {
        if (b->rank->spec.pool_count == MOST_POOLS) return false;
        b->chunks[i].pool = add_pool(b, slot, slots, extent);
    }
    set->offset[0] = 0;
    return true;
}

static bool lay_group(struct builder *b, int64_t group)
{
    struct draw *draw = &b->c->draw;
    size_t first = b->set_count;
    enum mode mode = (enum mode)draw_int(draw, PAGES, POOLS);
    bool placed;

    make_sets(b, group, draw_one_in(draw, 2));
    for (size_t s = first; s < b->set_count; s++) {
        if (draw_one_in(draw, 2)) lay_rows(b, &b->sets[s], draw_one_in(draw, 2));
        else lay_blocks(b, &b->sets[s], draw_one_in(draw, 2));
    }
    make_chunks(b, first);
    if (b->chunk_count == 0) return true;
    if (b->set_count == first + 1 && b->sets[first].count == 1 && draw_one_in(draw, 3)) {
        placed = place_inside_out(b, &b->sets[first], group);
    } else {
        placed = mode == POOLS ? place_pools(b, group) : place_together(b, group, mode == PAGES);
    }
    write_places(b);
    return placed;
}

bool storage_generate(struct prop_case *c, const struct side *side, struct rank *rank)
{
    struct builder builder = {.c = c, .side = side, .rank = rank};
    bool fits = true;

    builder.padded = draw_one_in(&c->draw, 2);
    builder.one_memory = draw_one_in(&c->draw, 2);
    for (int64_t group = 0; group < (int64_t)side->group_count && fits; group++) fits = lay_group(&builder, group);
    rank->bytes = 0;
    for (size_t i = 0; i < rank->spec.memory_count; i++) {
        rank->memory_start[i] = rank->bytes;
        rank->bytes += rank->memory_bytes[i];
    }
    return fits && rank->bytes <= MOST_MEMORY;
}
