/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "case.h"

bool oracle_local(const struct kvf_group *group, int64_t request_tokens, int64_t tokens_per_entry, int64_t position,
                  int64_t *local)
{
    int64_t l = position;
    bool owned = true;

    if (group->stripes > 1 && group->stripe_tokens) {
        int64_t g = group->stripe_tokens / tokens_per_entry, s = position / g;

        owned = s % group->stripes == group->stripe;
        l = s / group->stripes * g + position % g;
    } else if (group->stripes > 1) {
        int64_t blocks = ceil_div(request_tokens, group->tokens_per_block);
        int64_t q = blocks / group->stripes, more = blocks % group->stripes, mine = q + (group->stripe < more);
        int64_t before = group->stripe * q + (group->stripe < more ? group->stripe : more);
        int64_t per_block = group->tokens_per_block / tokens_per_entry;

        l = position - before * per_block;
        owned = l >= 0 && l < mine * per_block;
    }
    if (group->ring_tokens && l >= 0) l %= group->ring_tokens / tokens_per_entry;
    *local = l;
    return owned;
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a;
}

int64_t oracle_grain(const struct prop_case *c, size_t role, size_t layer)
{
    const struct side *sides[2] = {&c->src, &c->dst};
    int64_t per_entry = c->roles[role].tokens_per_entry, grain = 0;

    for (int i = 0; i < 2; i++) {
        int64_t index = sides[i]->group_of[role][layer];
        const struct group *group = &sides[i]->groups[index];

        if (!per_entry || group->ring) return 1;
        grain = gcd(grain, group->tokens_per_block / per_entry / sides[i]->slots_per_block[role][index]);
        if (group->stripes > 1 && group->stripe_tokens) grain = gcd(grain, group->stripe_tokens / per_entry);
    }
    return grain;
}

void oracle_range(const struct prop_case *c, size_t role, size_t layer, int64_t token_begin, int64_t token_end,
                  int64_t *first, int64_t *end)
{
    int64_t per_entry = c->roles[role].tokens_per_entry;

    if (per_entry == 0) {
        *first = 0;
        *end = c->roles[role].taps;
    } else {
        *first = token_begin / per_entry;
        *end = ceil_div(token_end, per_entry);
        *end = ceil_div(*end, oracle_grain(c, role, layer)) * oracle_grain(c, role, layer);
    }
}

/* The layer whose content a layer has: with aliases at the source, both are the first one. */
static size_t content_of(const struct prop_case *c, size_t layer)
{
    return c->src.aliased && layer + 1 == c->layer_count ? 0 : layer;
}

static int32_t coordinate(const struct prop_case *c, size_t role, size_t layer, int64_t unit, int64_t position,
                          int64_t byte)
{
    int64_t number = (int64_t)(role * MOST_LAYERS + content_of(c, layer));

    return (int32_t)(((number * MOST_UNITS + unit) * MOST_POSITIONS + position) * MOST_ROW_BYTES + byte);
}

static size_t layer_index(const struct prop_case *c, int64_t layer)
{
    size_t i = 0;

    while (c->layers[i] != layer) i++;
    return i;
}

/* Slot and entry of a position, false when the rank does not have it. */
static bool find_slot(const struct prop_case *c, const struct rank *rank, const struct kvf_view *view,
                      int64_t per_entry, int64_t position, int64_t *slot, int64_t *entry)
{
    const struct kvf_group *group = &rank->groups[view->group];
    const struct kvf_id_list *list = &rank->lists[view->group];
    int64_t local, index;

    if (per_entry == 0) {
        *slot = list->ids[0];
        *entry = position;
        return *slot >= 0;
    }
    if (!oracle_local(group, c->request_tokens, per_entry, position, &local)) return false;
    index = local / (group->tokens_per_block / per_entry) - list->first;
    if (index < 0 || index >= (int64_t)list->count || list->ids[index] < 0) return false;
    local %= group->tokens_per_block / per_entry;
    *slot = list->ids[index] * view->slots_per_block + local / view->entries;
    *entry = local % view->entries;
    return true;
}

static void map_place(const struct prop_case *c, const struct rank *rank, size_t v, const struct kvf_place *place,
                      int64_t token_begin, int64_t token_end, int32_t *map)
{
    const struct kvf_view *view = &rank->views[v];
    const struct kvf_pool *pool = &rank->pools[place->pool];
    size_t role = (size_t)rank->view_role[v], layer = layer_index(c, place->layer);
    int64_t first, end, slot, entry;

    oracle_range(c, role, layer, token_begin, token_end, &first, &end);
    for (int64_t p = first; p < end; p++) {
        if (!find_slot(c, rank, view, c->roles[role].tokens_per_entry, p, &slot, &entry)) continue;
        for (int64_t u = 0; u < view->unit_count; u++) {
            int64_t at = rank->memory_start[pool->memory] + pool->base_offset_bytes + slot * pool->slot_stride_bytes +
                         place->offset_bytes + u * view->unit_stride_bytes + entry * view->entry_stride_bytes;

            for (int64_t b = 0; b < view->byte_count; b++) {
                map[at + b] = coordinate(c, role, layer, view->unit_first + u, p, view->byte_first + b);
            }
        }
    }
}

void oracle_map(const struct prop_case *c, const struct side *side, const struct rank *rank, int64_t token_begin,
                int64_t token_end, int32_t *map)
{
    bool source = side == &c->src;

    memset(map, 0xff, (size_t)rank->bytes * sizeof *map);
    for (size_t v = 0; v < rank->spec.view_count; v++) {
        const struct role *role = &c->roles[rank->view_role[v]];

        if (!source && role->src_lacks) continue;
        for (size_t i = 0; i < rank->views[v].place_count; i++) {
            map_place(c, rank, v, &rank->places[v][i], token_begin, token_end, map);
        }
    }
}
