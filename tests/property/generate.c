/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

static int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a;
}

static int64_t lcm(int64_t a, int64_t b)
{
    return a / gcd(a, b) * b;
}

/* ---- the model ---- */

static void draw_role(struct prop_case *c, size_t i, bool state)
{
    static const char *const names[MOST_ROLES] = {"k", "v", "index", "scale", "ssm", "conv"};
    struct draw *draw = &c->draw;
    struct role *role = &c->roles[i];

    *role = (struct role){.name = names[state ? 4 + draw_int(draw, 0, 1) : (int64_t)i], .tag = "t"};
    role->units = draw_int(draw, 1, 5);
    role->row_bytes = draw_int(draw, 1, 6);
    role->tokens_per_entry = state ? 0 : draw_one_in(draw, 4) ? (draw_one_in(draw, 2) ? 2 : 4) : 1;
    role->taps = state ? draw_int(draw, 1, 3) : 0;
    role->replicated = draw_one_in(draw, 6);
    if (i == 1 && !state && !draw_one_in(draw, 3)) {
        role->units = c->roles[0].units;
        role->row_bytes = c->roles[0].row_bytes;
        role->tokens_per_entry = c->roles[0].tokens_per_entry;
        role->replicated = c->roles[0].replicated;
    }
    for (size_t layer = 0; layer < c->layer_count; layer++) role->has[layer] = !draw_one_in(draw, 8);
    if (i) {
        role->src_lacks = draw_one_in(draw, 15);
        role->dst_lacks = draw_one_in(draw, 15);
    } else {
        role->has[0] = true;
    }
}

static void draw_model(struct prop_case *c)
{
    size_t positional;

    c->layer_count = (size_t)draw_int(&c->draw, 1, MOST_LAYERS);
    c->layers[0] = draw_int(&c->draw, 0, 5);
    for (size_t i = 1; i < c->layer_count; i++) c->layers[i] = c->layers[i - 1] + draw_int(&c->draw, 1, 3);
    positional = (size_t)draw_int(&c->draw, 1, 3);
    c->role_count = positional + (draw_one_in(&c->draw, 3) ? 1 : 0);
    for (size_t i = 0; i < c->role_count; i++) draw_role(c, i, i >= positional);
    c->ring = draw_one_in(&c->draw, 8);
    c->partial = !c->ring && draw_one_in(&c->draw, 8);
}

/* ---- one side ---- */

static int64_t tokens_per_entry_lcm(const struct prop_case *c)
{
    int64_t all = 1;

    for (size_t i = 0; i < c->role_count; i++) {
        if (c->roles[i].tokens_per_entry) all = lcm(all, c->roles[i].tokens_per_entry);
    }
    return all;
}

static void draw_groups(struct prop_case *c, struct side *side)
{
    static const int64_t factors[] = {1, 2, 2, 3, 4, 4, 6, 8};
    struct draw *draw = &c->draw;
    int64_t unit = tokens_per_entry_lcm(c), positional = draw_int(draw, 1, 2), state = draw_int(draw, 0, positional);

    side->group_count = (size_t)positional + 1;
    side->cp = draw_one_in(draw, 3) ? draw_int(draw, 2, 3) : 1;
    for (int64_t i = 0; i <= positional; i++) {
        struct group *group = &side->groups[i];

        *group = (struct group){.stripes = 1};
        if (i == state) continue;
        group->tokens_per_block = unit * factors[draw_int(draw, 0, 7)];
        if (c->ring && draw_one_in(draw, 2)) group->ring = unit * draw_int(draw, 1, 16);
        if (side->cp == 1 || draw_one_in(draw, 4)) continue;
        group->stripes = side->cp;
        switch (draw_int(draw, 0, 2)) {
        case 0: group->stripe_tokens = group->tokens_per_block; break;
        case 1: group->stripe_tokens = unit * draw_int(draw, 1, 6); break;
        default: group->stripe_tokens = group->ring ? unit : 0; break;
        }
    }
    for (size_t role = 0; role < c->role_count; role++) {
        bool spread = draw_one_in(draw, 4);
        int64_t home = draw_int(draw, 0, positional - 1);

        for (size_t layer = 0; layer < c->layer_count; layer++) {
            int64_t index = spread ? draw_int(draw, 0, positional - 1) : home;

            side->group_of[role][layer] = c->roles[role].tokens_per_entry ? index + (index >= state) : state;
        }
    }
}

static void draw_slots_per_block(struct prop_case *c, struct side *side)
{
    for (size_t role = 0; role < c->role_count; role++) {
        for (size_t group = 0; group < side->group_count; group++) {
            int64_t entries = c->roles[role].tokens_per_entry
                                  ? side->groups[group].tokens_per_block / c->roles[role].tokens_per_entry : 1;
            int64_t slots = draw_one_in(&c->draw, 4) ? draw_int(&c->draw, 1, 4) : 1;

            side->slots_per_block[role][group] = entries && entries % slots == 0 ? slots : 1;
        }
    }
}

/* Which units each TP rank holds: even or uneven cuts, copies where there are more ranks than units, and sometimes a
 * range stretched over its neighbours'. */
static void draw_cuts(struct prop_case *c, struct side *side)
{
    struct draw *draw = &c->draw;

    for (size_t role = 0; role < c->role_count; role++) {
        int64_t units = c->roles[role].units, at = 0;
        bool uneven = draw_one_in(draw, 2);

        for (int64_t tp = 0; tp < side->tp; tp++) {
            int64_t *first = &side->unit_first[role][tp], *count = &side->unit_count[role][tp];

            if (c->roles[role].replicated) {
                *first = 0;
                *count = units;
            } else if (side->tp > units) {
                *first = tp * units / side->tp;
                *count = 1;
            } else {
                int64_t end = (tp + 1) * units / side->tp;

                if (uneven) end = draw_int(draw, at + 1, units - (side->tp - 1 - tp));
                if (tp + 1 == side->tp) end = units;
                *first = at;
                *count = end - at;
                at = end;
            }
            if (draw_one_in(draw, 20)) {
                *first = draw_int(draw, 0, *first);
                *count = units - *first;
            }
        }
    }
}

static void draw_side(struct prop_case *c, struct side *side)
{
    struct draw *draw = &c->draw;

    draw_groups(c, side);
    draw_slots_per_block(c, side);
    side->tp = draw_int(draw, 1, MOST_TP);
    side->pp = c->layer_count > 1 && draw_one_in(draw, 3) ? 2 : 1;
    while (side->tp * side->pp * side->cp > MOST_RANKS) side->tp--;
    draw_cuts(c, side);
    for (size_t layer = 0; layer < c->layer_count; layer++) {
        side->stage_of[layer] = side->pp == 1 ? 0 : layer == 0 ? 0 : layer + 1 == c->layer_count ? 1
                                                                  : side->stage_of[layer - 1] + draw_int(draw, 0, 1);
        if (side->stage_of[layer] > 1) side->stage_of[layer] = 1;
    }
}

/* Sometimes the last layer lies where the first one does: at the source, or on both sides. */
static void draw_aliases(struct prop_case *c)
{
    struct side *sides[2] = {&c->src, &c->dst};
    size_t last = c->layer_count - 1;
    int aliased = c->layer_count > 1 && draw_one_in(&c->draw, 10) ? (int)draw_int(&c->draw, 1, 2) : 0;

    for (int i = 0; i < aliased; i++) {
        sides[i]->aliased = true;
        for (size_t layer = 0; layer <= last; layer++) sides[i]->stage_of[layer] = 0;
        for (size_t role = 0; role < c->role_count; role++) {
            sides[i]->group_of[role][last] = sides[i]->group_of[role][0];
            c->roles[role].has[last] = c->roles[role].has[0];
        }
    }
    /* One content cannot be wanted in grains of two sizes. */
    for (size_t role = 0; role < c->role_count && aliased; role++) {
        c->dst.group_of[role][last] = c->dst.group_of[role][0];
    }
}

/* ---- the request ---- */

static void draw_request(struct prop_case *c)
{
    struct draw *draw = &c->draw;
    struct side *sides[2] = {&c->src, &c->dst};
    int64_t unit = tokens_per_entry_lcm(c), shortest = INT64_MAX;

    c->grain = unit;
    for (size_t role = 0; role < c->role_count; role++) {
        for (size_t layer = 0; layer < c->layer_count && c->roles[role].tokens_per_entry; layer++) {
            c->grain = lcm(c->grain, c->roles[role].tokens_per_entry * oracle_grain(c, role, layer));
        }
    }
    c->token_end = draw_int(draw, 1, draw_one_in(draw, 4) ? 90 : 40);
    c->request_tokens = c->token_end + (draw_one_in(draw, 2) ? draw_int(draw, 0, 20) : 0);
    c->token_begin = draw_one_in(draw, 3) ? draw_int(draw, 0, (c->token_end - 1) / c->grain) * c->grain : 0;
    for (int i = 0; i < 2; i++) {
        for (size_t group = 0; group < sides[i]->group_count; group++) {
            int64_t ring = sides[i]->groups[group].ring;

            if (ring && ring < shortest) shortest = ring;
        }
    }
    if (c->token_end - c->token_begin > shortest) {
        c->token_begin = ceil_div(c->token_end - shortest, c->grain) * c->grain;
    }
    if (c->token_begin >= c->token_end) { /* the rings are too short for this grain: make them longer */
        c->token_begin = 0;
        for (int i = 0; i < 2; i++) {
            for (size_t group = 0; group < sides[i]->group_count; group++) {
                if (sides[i]->groups[group].ring) sides[i]->groups[group].ring = ceil_div(c->token_end, unit) * unit;
            }
        }
    }
}

/* ---- ranks ---- */

static void add_view(struct prop_case *c, const struct side *side, struct rank *rank, size_t role, int64_t group,
                     int64_t unit_first, int64_t unit_count, int64_t byte_first, int64_t byte_count)
{
    const struct role *r = &c->roles[role];
    size_t v = rank->spec.view_count;
    int64_t per_block = r->tokens_per_entry ? side->groups[group].tokens_per_block / r->tokens_per_entry : r->taps;
    int64_t slots = r->tokens_per_entry ? side->slots_per_block[role][group] : 1;
    size_t count = 0;

    if (v == MOST_VIEWS) return;
    for (size_t layer = 0; layer < c->layer_count; layer++) {
        if (r->has[layer] && side->stage_of[layer] == rank->rank.pp && side->group_of[role][layer] == group) {
            rank->places[v][count++].layer = c->layers[layer];
        }
    }
    if (count == 0) return;
    rank->view_role[v] = (int64_t)role;
    rank->views[v] = (struct kvf_view){.role = r->name, .tag = r->tag, .group = group, .row_bytes = r->row_bytes,
                                       .byte_first = byte_first, .byte_count = byte_count, .unit_total = r->units,
                                       .unit_first = unit_first, .unit_count = unit_count,
                                       .entries = per_block / slots, .slots_per_block = slots,
                                       .flags = r->src_lacks ? KVF_VIEW_OPTIONAL : 0, .places = rank->places[v],
                                       .place_count = count};
    rank->spec.view_count++;
}

/* One view per group, and sometimes several for ranges of bytes or units. */
static void add_role(struct prop_case *c, const struct side *side, struct rank *rank, size_t role)
{
    struct draw *draw = &c->draw;
    const struct role *r = &c->roles[role];
    int64_t first = side->unit_first[role][rank->rank.tp], count = side->unit_count[role][rank->rank.tp];
    int64_t byte = r->row_bytes > 1 && draw_one_in(draw, 4) ? draw_int(draw, 1, r->row_bytes - 1) : r->row_bytes;
    int64_t unit = count > 1 && draw_one_in(draw, 10) ? draw_int(draw, 1, count - 1) : count;

    for (int64_t group = 0; group < (int64_t)side->group_count; group++) {
        for (int64_t u = 0; u < count; u += u ? count : unit) {
            for (int64_t b = 0; b < r->row_bytes; b += b ? r->row_bytes : byte) {
                add_view(c, side, rank, role, group, first + u, u ? count - unit : unit, b,
                         b ? r->row_bytes - byte : byte);
            }
        }
    }
}

/* First and last block of a group that the range needs on a rank; false when it needs none. */
static bool find_blocks(const struct prop_case *c, const struct side *side, const struct rank *rank, int64_t group,
                        int64_t *lowest, int64_t *highest)
{
    bool any = false;

    for (size_t role = 0; role < c->role_count; role++) {
        int64_t per_entry = c->roles[role].tokens_per_entry, first, end, local;

        for (size_t layer = 0; layer < c->layer_count && per_entry; layer++) {
            if (side->group_of[role][layer] != group) continue;
            oracle_range(c, role, layer, c->token_begin, c->token_end, &first, &end);
            for (int64_t p = first; p < end; p++) {
                int64_t block;

                if (!oracle_local(&rank->groups[group], c->request_tokens, per_entry, p, &local)) continue;
                block = local / (side->groups[group].tokens_per_block / per_entry);
                if (!any || block < *lowest) *lowest = block;
                if (!any || block > *highest) *highest = block;
                any = true;
            }
        }
    }
    return any;
}

/* Ids in any order, each once, all below the number of blocks. */
static void draw_ids(struct prop_case *c, const struct side *side, struct rank *rank, int64_t group)
{
    struct draw *draw = &c->draw;
    int64_t lowest = 0, highest = -1, first = 0, count;

    if (side->groups[group].tokens_per_block == 0) {
        count = 1;
    } else {
        if (find_blocks(c, side, rank, group, &lowest, &highest) && draw_one_in(draw, 2)) {
            first = draw_int(draw, 0, lowest);
        }
        count = highest + 1 - first + (draw_one_in(draw, 3) ? draw_int(draw, 0, 2) : 0);
    }
    rank->blocks[group] = count + draw_int(draw, 0, 2) + (count == 0);
    for (int64_t i = 0; i < rank->blocks[group]; i++) rank->ids[group][i] = i;
    if (!draw_one_in(draw, 4)) {
        for (int64_t i = rank->blocks[group]; i > 1; i--) {
            int64_t j = draw_int(draw, 0, i - 1), swap = rank->ids[group][j];

            rank->ids[group][j] = rank->ids[group][i - 1];
            rank->ids[group][i - 1] = swap;
        }
    }
    rank->lists[group] = (struct kvf_id_list){rank->ids[group], (size_t)count, first};
}

static bool draw_rank(struct prop_case *c, struct side *side, struct kvf_rank place)
{
    struct rank *rank = &side->ranks[side->rank_count++];

    memset(rank, 0, offsetof(struct rank, ids));
    rank->map = NULL;
    rank->layout = NULL;
    rank->holdings = NULL;
    rank->rank = place;
    rank->rank.salt = draw_one_in(&c->draw, 4) ? draw_int(&c->draw, 0, 7) : 0;
    kvf_layout_spec_init(&rank->spec, sizeof rank->spec);
    for (size_t group = 0; group < side->group_count; group++) {
        const struct group *g = &side->groups[group];

        rank->groups[group] = (struct kvf_group){g->tokens_per_block, g->ring, g->stripes,
                                                 g->stripes > 1 ? place.cp : 0, g->stripe_tokens};
        draw_ids(c, side, rank, (int64_t)group);
    }
    for (size_t role = 0; role < c->role_count; role++) {
        if (side == &c->src ? !c->roles[role].src_lacks : !c->roles[role].dst_lacks) add_role(c, side, rank, role);
    }
    rank->spec.memory_bytes = rank->memory_bytes;
    rank->spec.pools = rank->pools;
    rank->spec.groups = rank->groups;
    rank->spec.group_count = side->group_count;
    rank->spec.views = rank->views;
    return storage_generate(c, side, rank);
}

static bool draw_ranks(struct prop_case *c, struct side *side)
{
    bool fits = true;

    side->rank_count = 0;
    for (int64_t pp = 0; pp < side->pp && fits; pp++)
        for (int64_t cp = 0; cp < side->cp && fits; cp++)
            for (int64_t tp = 0; tp < side->tp && fits; tp++)
                fits = draw_rank(c, side, (struct kvf_rank){.pp = pp, .cp = cp, .tp = tp});
    return fits;
}

/* ---- holes ---- */

static void draw_destination_holes(struct prop_case *c)
{
    struct rank *rank = &c->dst.ranks[c->destination];

    for (size_t group = 0; group < c->dst.group_count && c->partial; group++) {
        struct kvf_id_list *list = &rank->lists[group];

        if (c->dst.groups[group].tokens_per_block) list->count = (size_t)draw_int(&c->draw, 0, (int64_t)list->count);
    }
    if (!draw_one_in(&c->draw, 4)) return;
    for (size_t group = 0; group < c->dst.group_count; group++) {
        for (size_t i = 0; i < rank->lists[group].count && c->dst.groups[group].tokens_per_block; i++) {
            if (draw_one_in(&c->draw, 5)) rank->ids[group][i] = -1;
        }
    }
}

/* Whether the destination has a block, of whatever group holds the role and layer there, for a position. */
static bool wanted(const struct prop_case *c, size_t role, size_t layer, int64_t position)
{
    const struct rank *rank = &c->dst.ranks[c->destination];
    int64_t group = c->dst.group_of[role][layer], per_entry = c->roles[role].tokens_per_entry, local, index;

    if (!oracle_local(&rank->groups[group], c->request_tokens, per_entry, position, &local)) return false;
    index = local / (rank->groups[group].tokens_per_block / per_entry) - rank->lists[group].first;
    return index >= 0 && index < (int64_t)rank->lists[group].count && rank->ids[group][index] >= 0;
}

/* A source may have no block where the destination wants none. */
static void draw_source_holes(struct prop_case *c, struct rank *rank)
{
    bool used[MOST_GROUPS][MOST_BLOCKS] = {{false}};
    int64_t first, end, local;

    for (size_t role = 0; role < c->role_count; role++) {
        int64_t per_entry = c->roles[role].tokens_per_entry;

        for (size_t layer = 0; layer < c->layer_count && per_entry; layer++) {
            int64_t group = c->src.group_of[role][layer];

            oracle_range(c, role, layer, c->token_begin, c->token_end, &first, &end);
            for (int64_t p = first; p < end; p++) {
                if (!oracle_local(&rank->groups[group], c->request_tokens, per_entry, p, &local)) continue;
                local = local / (rank->groups[group].tokens_per_block / per_entry) - rank->lists[group].first;
                if (wanted(c, role, layer, p)) used[group][local] = true;
            }
        }
    }
    for (size_t group = 0; group < c->src.group_count; group++) {
        for (size_t i = 0; i < rank->lists[group].count && c->src.groups[group].tokens_per_block; i++) {
            if (!used[group][i] && draw_one_in(&c->draw, 2)) rank->ids[group][i] = -1;
        }
    }
}

bool case_generate(struct prop_case *c, uint64_t seed)
{
    bool fits;

    c->seed = seed;
    c->draw.state = seed;
    c->src.aliased = c->dst.aliased = false;
    c->src.rank_count = c->dst.rank_count = 0;
    draw_model(c);
    draw_side(c, &c->src);
    draw_side(c, &c->dst);
    draw_aliases(c);
    draw_request(c);
    fits = draw_ranks(c, &c->src) && draw_ranks(c, &c->dst);
    if (!fits) goto done;
    c->destination = (size_t)draw_int(&c->draw, 0, (int64_t)c->dst.rank_count - 1);
    draw_destination_holes(c);
    if (draw_one_in(&c->draw, 3)) {
        for (size_t i = 0; i < c->src.rank_count; i++) draw_source_holes(c, &c->src.ranks[i]);
    }
done:
    return fits;
}

void case_fini(struct prop_case *c)
{
    struct side *sides[2] = {&c->src, &c->dst};

    for (int i = 0; i < 2; i++) {
        for (size_t r = 0; r < sides[i]->rank_count; r++) {
            kvf_layout_release(sides[i]->ranks[r].layout);
            kvf_holdings_release(sides[i]->ranks[r].holdings);
            free(sides[i]->ranks[r].map);
            sides[i]->ranks[r].layout = NULL;
            sides[i]->ranks[r].holdings = NULL;
            sides[i]->ranks[r].map = NULL;
        }
    }
}
