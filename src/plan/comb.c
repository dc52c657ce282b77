/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/comb.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"

/** Where a position lies on one side. */
struct spot {
    int64_t jump;    /**< 0 = owned here; else the distance to the next position that is (INT64_MAX = none) */
    int64_t ordinal; /**< of the slot */
    int64_t entry;
    int64_t valid;   /**< so many positions go on in this slot */
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/** Finds the local position inside a striped side. Sets `jump` where the position is another rank's. */
static int64_t locate_striped(const struct kvfi_side *side, int64_t position, struct spot *spot)
{
    int64_t g = side->stripe_entries;
    int64_t local = position - side->start;

    if (g == 0) {
        if (local < 0) spot->jump = -local;
        else if (local >= side->length) spot->jump = INT64_MAX;
        else spot->valid = side->length - local;
    } else {
        int64_t number = position / g, within = position % g;
        int64_t owner = number % side->stripes;

        local = number / side->stripes * g + within;
        spot->valid = g - within;
        if (owner != side->stripe) {
            int64_t distance = side->stripe - owner + (side->stripe < owner ? side->stripes : 0);

            if (!kvfi_mad_i64(distance, g, -within, &spot->jump)) spot->jump = INT64_MAX;
        }
    }
    return local;
}

static void locate(const struct kvfi_side *side, int64_t position, struct spot *spot)
{
    int64_t local = position;

    spot->jump = 0;
    spot->valid = INT64_MAX;
    if (side->stripes > 1) local = locate_striped(side, position, spot);
    if (spot->jump == 0) {
        if (side->ring) {
            local %= side->ring;
            spot->valid = smaller(spot->valid, side->ring - local);
        }
        spot->ordinal = local / side->entries;
        spot->entry = local - spot->ordinal * side->entries;
        spot->valid = smaller(spot->valid, side->entries - spot->entry);
    }
}

enum presence { PRESENT, HOLE, PAST_END };

static enum presence look_up(const struct kvfi_side *side, const struct kvfi_ids *ids, int64_t ordinal, int64_t *slot)
{
    enum presence presence = PRESENT;
    int64_t block = ordinal, id;

    *slot = ordinal;
    if (ids->every) goto done;
    if (side->slots_per_block > 1) block = ordinal / side->slots_per_block;
    presence = block < ids->first ? HOLE : PAST_END;
    if (block < ids->first || block >= ids->end) goto done;
    id = ids->ids[block - ids->first];
    presence = id < 0 ? HOLE : PRESENT;
    if (!ids->mirror) *slot = id * side->slots_per_block + (ordinal - block * side->slots_per_block);
done:
    return presence;
}

static enum kvf_status fail_short(const struct kvfi_walk *walk, struct kvf_error *error)
{
    const struct kvfi_ids *ids = &walk->dst_ids;

    return kvfi_fail(error, KVF_ERR_IDS,
                     "destination group %" PRId64 ": %" PRId64 " ids from ordinal %" PRId64
                     " end before position %" PRId64 ", the range ends at %" PRId64,
                     walk->track->key.dst_group, ids->end - ids->first, ids->first,
                     walk->position * walk->track->key.tokens_per_entry,
                     walk->end * walk->track->key.tokens_per_entry);
}

static enum kvf_status fail_source(const struct kvfi_walk *walk, int64_t dst_ordinal, struct kvf_error *error)
{
    int64_t block = dst_ordinal / walk->dst.slots_per_block;

    return kvfi_fail(error, KVF_ERR_IDS,
                     "source group %" PRId64 ": no block at position %" PRId64 ", but destination group %" PRId64
                     " wants it in id %" PRId64,
                     walk->track->key.src_group, walk->position * walk->track->key.tokens_per_entry,
                     walk->track->key.dst_group, walk->dst_ids.ids ? walk->dst_ids.ids[block - walk->dst_ids.first]
                                                                   : block);
}

/** Looks at the run of `n` positions at walk->position. KVF_ERR_AGAIN: it is a hole, go on after it. */
static enum kvf_status take_run(struct kvfi_walk *walk, const struct spot *src, const struct spot *dst, int64_t n,
                                struct kvfi_atom *atom, struct kvf_error *error)
{
    enum kvf_status status = KVF_ERR_AGAIN;
    enum presence wanted = look_up(&walk->dst, &walk->dst_ids, dst->ordinal, &atom->dst_slot);

    if (wanted == PAST_END) {
        if (walk->missing_count++ == 0) walk->first_missing = walk->position;
        if (!walk->partial) status = fail_short(walk, error);
        if (!walk->dst.ring) walk->end = walk->position; /* all that follows lies past the end as well */
    } else if (wanted == PRESENT) {
        status = KVF_OK;
        if (look_up(&walk->src, &walk->src_ids, src->ordinal, &atom->src_slot) != PRESENT)
            status = walk->skip_holes ? KVF_ERR_AGAIN : fail_source(walk, dst->ordinal, error);
        atom->src_ordinal = src->ordinal;
        atom->src_entry = src->entry;
        atom->dst_ordinal = dst->ordinal;
        atom->dst_entry = dst->entry;
        atom->n = n;
    }
    return status;
}

/** Gives the next atom; KVF_ERR_NOT_FOUND at the end. */
static enum kvf_status next_atom(struct kvfi_walk *walk, struct kvfi_atom *atom, struct kvf_error *error)
{
    enum kvf_status status = KVF_ERR_AGAIN;
    struct spot src = {0}, dst = {0}; /* for compilers that do not see that both are set */

    while (status == KVF_ERR_AGAIN) {
        int64_t n, left = walk->end - walk->position;

        if (left <= 0) {
            status = KVF_ERR_NOT_FOUND;
            continue;
        }
        if (walk->steps++ >= walk->max_steps) {
            status = kvfi_fail(error, KVF_ERR_LIMIT,
                               "groups %" PRId64 " and %" PRId64 ": more than %" PRId64 " runs of positions",
                               walk->track->key.src_group, walk->track->key.dst_group, walk->max_steps);
            continue;
        }
        locate(&walk->src, walk->position, &src);
        locate(&walk->dst, walk->position, &dst);
        if (src.jump || dst.jump) {
            n = larger(src.jump, dst.jump);
        } else {
            n = smaller(smaller(src.valid, dst.valid), left);
            status = take_run(walk, &src, &dst, n, atom, error);
        }
        walk->position += smaller(n, left);
    }
    return status;
}

/** Finishes a comb's shape: steps that touch make one run. */
static void finish_shape(const struct kvfi_walk *walk, struct kvf_shape *shape)
{
    if (shape->src_step == shape->n && shape->dst_step == shape->n) {
        shape->n *= shape->m;
        shape->m = 1;
    }
    if (shape->m == 1) {
        shape->src_step = 1;
        shape->dst_step = 1;
    }
    shape->whole = shape->m == 1 && shape->n == walk->src.entries && shape->n == walk->dst.entries;
}

/** True when `next` goes on with the comb whose last atom is `last`; the first two atoms fix the step. */
static bool continues(struct kvf_shape *shape, const struct kvfi_atom *last, const struct kvfi_atom *next)
{
    int64_t src_step = next->src_entry - last->src_entry, dst_step = next->dst_entry - last->dst_entry;
    bool same = next->src_ordinal == last->src_ordinal && next->dst_ordinal == last->dst_ordinal && next->n == last->n;

    if (same && shape->m == 1) {
        same = src_step > 0 && dst_step > 0;
        if (same) {
            shape->src_step = src_step;
            shape->dst_step = dst_step;
        }
    } else if (same) {
        same = src_step == shape->src_step && dst_step == shape->dst_step;
    }
    return same;
}

enum kvf_status kvfi_walk_next(struct kvfi_walk *walk, struct kvfi_comb *comb, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvfi_atom last;

    if (!walk->ahead) status = next_atom(walk, &walk->atom, error);
    if (status) goto done;
    last = walk->atom;
    comb->src_slot = last.src_slot;
    comb->src_entry = last.src_entry;
    comb->dst_slot = last.dst_slot;
    comb->dst_entry = last.dst_entry;
    comb->shape = (struct kvf_shape){.m = 1, .src_step = 1, .dst_step = 1, .n = last.n};
    while ((status = next_atom(walk, &walk->atom, error)) == KVF_OK && continues(&comb->shape, &last, &walk->atom)) {
        last = walk->atom;
        comb->shape.m++;
    }
    walk->ahead = status == KVF_OK;
    if (status == KVF_ERR_NOT_FOUND) status = KVF_OK;
    if (status == KVF_OK) finish_shape(walk, &comb->shape);
done:
    return status;
}

int64_t kvfi_gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

int64_t kvfi_lcm(int64_t a, int64_t b)
{
    int64_t product;

    return kvfi_mul_i64(a / kvfi_gcd(a, b), b, &product) ? product : INT64_MAX;
}

bool kvfi_shape_equal(const struct kvf_shape *a, const struct kvf_shape *b)
{
    return a->n == b->n && a->m == b->m && a->src_step == b->src_step && a->dst_step == b->dst_step &&
           a->whole == b->whole;
}

/** One side in entries. `tokens_per_entry` divides all of the group's numbers: the layout was checked. */
static struct kvfi_side side_of(const struct kvf_group *group, int64_t entries, int64_t slots_per_block,
                                int64_t tokens_per_entry)
{
    struct kvfi_side side = {.entries = entries, .block_entries = entries * slots_per_block,
                             .slots_per_block = slots_per_block, .stripes = 1};

    if (tokens_per_entry) {
        side.ring = group->ring_tokens / tokens_per_entry;
        side.stripes = group->stripes > 1 ? group->stripes : 1;
        side.stripe = side.stripes > 1 ? group->stripe : 0;
        side.stripe_entries = side.stripes > 1 ? group->stripe_tokens / tokens_per_entry : 0;
    }
    return side;
}

void kvfi_track_sides(struct kvfi_track *track, const struct kvf_group *src, const struct kvf_group *dst)
{
    const struct kvf_track *key = &track->key;

    track->state = key->tokens_per_entry == 0;
    track->src = side_of(src, key->src_entries, key->src_slots_per_block, key->tokens_per_entry);
    track->dst = side_of(dst, key->dst_entries, key->dst_slots_per_block, key->tokens_per_entry);
    track->grain = 1;
    if (!track->state && !track->src.ring && !track->dst.ring) {
        track->grain = kvfi_gcd(track->src.entries, track->dst.entries);
        track->grain = kvfi_gcd(track->grain, track->src.stripe_entries);
        track->grain = kvfi_gcd(track->grain, track->dst.stripe_entries);
    }
}

/** The period of one side. A contiguous one counts as unstriped. */
static int64_t side_period(struct kvfi_side *side)
{
    int64_t stripe_period, period = side->block_entries;

    if (side->stripes > 1 && side->stripe_entries == 0) side->stripes = 1;
    if (!kvfi_mul_i64(side->stripe_entries, side->stripes, &stripe_period) ||
        !kvfi_mul_i64(period, side->stripes, &period))
        period = INT64_MAX;
    else if (stripe_period)
        period = kvfi_lcm(period, stripe_period);
    return period;
}

/** Adds a shape if it is new. */
static bool add_shape(struct kvf_shape **shapes, size_t *count, size_t *capacity, const struct kvf_shape *shape)
{
    bool ok = true, found = false;

    for (size_t i = 0; i < *count && !found; i++) found = kvfi_shape_equal(&(*shapes)[i], shape);
    if (!found) {
        ok = kvfi_array_grow((void **)shapes, *count, capacity, sizeof **shapes);
        if (ok) (*shapes)[(*count)++] = *shape;
    }
    return ok;
}

enum kvf_status kvfi_period_shapes(const struct kvfi_track *track, struct kvf_shape **out, size_t *count,
                                   int64_t *steps, struct kvf_error *error)
{
    struct kvfi_walk walk = {.track = track, .src = track->src, .dst = track->dst, .src_ids = {.every = true},
                             .dst_ids = {.every = true}, .max_steps = KVFI_PLAN_MAX_PERIOD_STEPS};
    enum kvf_status status = KVF_OK;
    struct kvf_shape *shapes = NULL;
    struct kvfi_comb comb;
    size_t shape_count = 0, capacity = 0;
    int64_t combs = 0;

    walk.end = kvfi_lcm(side_period(&walk.src), side_period(&walk.dst));
    if (walk.src.ring) walk.end = walk.src.ring;
    if (walk.dst.ring) walk.end = walk.src.ring ? smaller(walk.src.ring, walk.dst.ring) : walk.dst.ring;
    if (track->state) {
        walk.end = 0;
        comb.shape = (struct kvf_shape){.m = 1, .src_step = 1, .dst_step = 1, .n = track->src.entries, .whole = 1};
        if (!add_shape(&shapes, &shape_count, &capacity, &comb.shape)) goto no_memory;
    }
    while ((status = kvfi_walk_next(&walk, &comb, error)) == KVF_OK) {
        if (++combs > KVFI_PLAN_MAX_PERIOD_COMBS) {
            status = kvfi_fail(error, KVF_ERR_LIMIT,
                               "groups %" PRId64 " and %" PRId64 ": a period has more than %d combs",
                               track->key.src_group, track->key.dst_group, KVFI_PLAN_MAX_PERIOD_COMBS);
            goto done;
        }
        if (!add_shape(&shapes, &shape_count, &capacity, &comb.shape)) goto no_memory;
    }
    if (status != KVF_ERR_NOT_FOUND) goto done;
    status = KVF_OK;
    *steps += walk.steps;
    *out = shapes;
    *count = shape_count;
    shapes = NULL;
    goto done;
no_memory:
    status = kvfi_fail_memory(error, "the shapes of a plan");
done:
    free(shapes);
    return status;
}
