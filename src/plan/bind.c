/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/bind.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/struct_size.h"

/** What a call of kvf_bind works on. */
struct binder {
    const kvf_plan *plan;
    struct kvf_bind_request request;
    struct kvfi_collector collector;
    int64_t first_missing; /**< in tokens; INT64_MAX = none */
    int64_t steps;         /**< of the walks so far */
    struct kvf_error *error;
};

void kvf_bind_request_init(struct kvf_bind_request *request, size_t size)
{
    kvfi_struct_init(request, size, NULL, 0);
}

void kvf_binding_destroy(kvf_binding *binding)
{
    if (!binding) return;
    kvfi_bound_free(binding->bound, binding->bound_count);
    kvf_plan_release(binding->plan);
    free(binding);
}

/** Reads the request and refuses what is wrong whatever the plan. */
static enum kvf_status check_request(struct binder *at, const struct kvf_bind_request *given)
{
    const uint64_t known = KVF_BIND_PARTIAL | KVF_BIND_NO_STATE | KVF_BIND_SRC_UNKNOWN | KVF_BIND_DST_UNKNOWN |
                           KVF_BIND_ONLY_STATE | KVF_BIND_SKIP_HOLES | KVF_BIND_RING_TAIL | KVF_BIND_ANY_IDS;
    struct kvf_bind_request *own = &at->request;
    size_t src_groups = at->plan->src->spec.group_count, dst_groups = at->plan->dst->spec.group_count;
    enum kvf_status status;

    own->struct_size = sizeof *own;
    status = kvfi_options_copy(own, sizeof *own, given, "bind request", at->error);
    if (status) goto done;
    if (own->flags & ~known)
        status = kvfi_fail(at->error, KVF_ERR_NEWER_OPTION,
                           "bind request: flags 0x%" PRIx64 ", this library knows 0x%" PRIx64, own->flags, known);
    else if ((own->flags & KVF_BIND_NO_STATE) && (own->flags & KVF_BIND_ONLY_STATE))
        status = kvfi_fail(at->error, KVF_ERR_INVALID_ARGUMENT,
                           "bind request: no state and only state exclude each other");
    else if ((own->flags & KVF_BIND_SKIP_HOLES) && (own->flags & (KVF_BIND_SRC_UNKNOWN | KVF_BIND_DST_UNKNOWN)))
        status = kvfi_fail(at->error, KVF_ERR_INVALID_ARGUMENT,
                           "bind request: holes are skipped where both sides' ids are known only");
    else if (own->token_begin < 0 || own->token_end < own->token_begin)
        status = kvfi_fail(at->error, KVF_ERR_OUT_OF_RANGE, "range [%" PRId64 ",%" PRId64 ") of tokens is not valid",
                           own->token_begin, own->token_end);
    else if (own->request_tokens < 0)
        status = kvfi_fail(at->error, KVF_ERR_OUT_OF_RANGE, "a request of %" PRId64 " tokens is not valid",
                           own->request_tokens);
    else if (!(own->flags & KVF_BIND_SRC_UNKNOWN) && (own->src_count != src_groups || !own->src))
        status = kvfi_fail(at->error, KVF_ERR_INVALID_ARGUMENT,
                           "%zu source id lists, expected one for each of %zu groups", own->src_count, src_groups);
    else if (own->dst_count != dst_groups || !own->dst)
        status = kvfi_fail(at->error, KVF_ERR_INVALID_ARGUMENT,
                           "%zu destination id lists, expected one for each of %zu groups", own->dst_count, dst_groups);
done:
    return status;
}

/** What a contiguous stripe owns: positions [start, start + length), in units of which a block has `block_units`. */
static bool contiguous_share(int64_t request_tokens, int64_t tokens_per_block, int64_t block_units, int64_t stripes,
                             int64_t stripe, int64_t *start, int64_t *length)
{
    int64_t blocks = request_tokens / tokens_per_block + (request_tokens % tokens_per_block != 0);
    int64_t quotient = blocks / stripes, rest = blocks % stripes;
    int64_t first = quotient * stripe + (stripe < rest ? stripe : rest);

    return kvfi_mul_i64(first, block_units, start) &&
           kvfi_mul_i64(quotient + (stripe < rest), block_units, length);
}

/** Tokens below `end` that a round-robin stripe owns. */
static int64_t dealt_tokens(const struct kvf_group *group, int64_t end)
{
    int64_t g = group->stripe_tokens, cycle, skipped, rest, owned;

    if (!kvfi_mul_i64(g, group->stripes, &cycle)) cycle = INT64_MAX;
    if (!kvfi_mul_i64(g, group->stripe, &skipped)) skipped = INT64_MAX;
    rest = end % cycle - skipped;
    owned = end / cycle * g;
    if (rest > 0) owned += rest < g ? rest : g;
    return owned;
}

/** Number of block ordinals that a range ending at `end` can reach; past them a list's ids are surplus. */
static bool needed_blocks(const struct kvf_group *group, int64_t end, int64_t request_tokens, int64_t *needed)
{
    int64_t tokens = end, start = 0, length = 0;
    bool ok = true;

    *needed = 1;
    if (group->tokens_per_block == 0) goto done;
    if (group->stripes > 1 && group->stripe_tokens > 0) {
        tokens = dealt_tokens(group, end);
    } else if (group->stripes > 1) {
        ok = contiguous_share(request_tokens, group->tokens_per_block, group->tokens_per_block, group->stripes,
                              group->stripe, &start, &length);
        if (!ok) goto done;
        tokens = end > start ? end - start : 0;
        if (tokens > length) tokens = length;
    }
    if (group->ring_tokens && tokens > group->ring_tokens) tokens = group->ring_tokens;
    *needed = tokens / group->tokens_per_block + (tokens % group->tokens_per_block != 0);
done:
    return ok;
}

static bool takes_part(const struct binder *at, const struct kvfi_track *track)
{
    bool stateful = track->state || track->src.ring || track->dst.ring;

    return !(at->request.flags & (stateful ? KVF_BIND_NO_STATE : KVF_BIND_ONLY_STATE));
}

/** Marks the groups of all tracks that move something. */
static void mark_groups(const struct binder *at, unsigned char *src, unsigned char *dst)
{
    for (size_t t = 0; t < at->plan->track_count; t++) {
        const struct kvfi_track *track = &at->plan->tracks[t];

        if (!takes_part(at, track)) continue;
        src[track->key.src_group] = 1;
        dst[track->key.dst_group] = 1;
    }
}

/** What the ids of a group stay below when nothing but 64 bits bounds them: its slots still have numbers. */
static int64_t widest_limit(const struct kvf_layout_spec *spec, size_t group)
{
    int64_t most = 1;

    for (size_t i = 0; i < spec->view_count; i++) {
        if (spec->views[i].group == (int64_t)group && spec->views[i].slots_per_block > most)
            most = spec->views[i].slots_per_block;
    }
    return INT64_MAX / most;
}

/** Checks the lists of one side's marked groups. */
static enum kvf_status check_lists(const struct binder *at, const struct kvf_layout_spec *spec,
                                   const struct kvf_id_list *lists, const int64_t *limits, const unsigned char *marks,
                                   bool bounded, const char *side)
{
    bool any = at->request.flags & KVF_BIND_ANY_IDS;
    enum kvf_status status = KVF_OK;
    int64_t needed;

    for (size_t i = 0; i < spec->group_count && !status; i++) {
        if (!marks[i]) continue;
        if (!needed_blocks(&spec->groups[i], at->request.token_end, at->request.request_tokens, &needed))
            status = kvfi_fail(at->error, KVF_ERR_OVERFLOW, "%s group %zu: %" PRId64 " tokens do not fit", side, i,
                               at->request.request_tokens);
        else
            status = kvfi_ids_check(&lists[i], needed, !bounded ? -1 : any ? widest_limit(spec, i) : limits[i], any,
                                    side, i, at->error);
    }
    return status;
}

static enum kvf_status check_ids(const struct binder *at)
{
    const struct kvf_layout_spec *src = &at->plan->src->spec, *dst = &at->plan->dst->spec;
    unsigned char *marks = kvfi_alloc_zeroed(src->group_count + dst->group_count, 1);
    enum kvf_status status = KVF_OK;

    if (!marks) {
        status = kvfi_fail_memory(at->error, "a check of block ids");
        goto done;
    }
    mark_groups(at, marks, marks + src->group_count);
    status = check_lists(at, dst, at->request.dst, at->plan->dst_limit, marks + src->group_count,
                         !(at->request.flags & KVF_BIND_DST_UNKNOWN), "destination");
    if (!status && !(at->request.flags & KVF_BIND_SRC_UNKNOWN))
        status = check_lists(at, src, at->request.src, at->plan->src_limit, marks, true, "source");
done:
    free(marks);
    return status;
}

static struct kvfi_ids walk_ids(const struct kvf_id_list *list, bool unknown, bool mirror)
{
    struct kvfi_ids ids = {.every = unknown, .mirror = mirror};

    if (!unknown) {
        ids.ids = list->ids;
        ids.first = list->first;
        if (!kvfi_add_i64(list->first, (int64_t)list->count, &ids.end)) ids.end = INT64_MAX;
    }
    return ids;
}

/** Sets what a contiguous side owns. */
static enum kvf_status place_contiguous(const struct binder *at, struct kvfi_side *side, const struct kvf_group *group,
                                        const char *name, int64_t number)
{
    enum kvf_status status = KVF_OK;

    if (side->stripes <= 1 || side->stripe_entries > 0) goto done;
    if (at->request.request_tokens < at->request.token_end)
        status = kvfi_fail(at->error, KVF_ERR_OUT_OF_RANGE,
                           "%s group %" PRId64 ": range ends at %" PRId64 ", the request has %" PRId64 " tokens", name,
                           number, at->request.token_end, at->request.request_tokens);
    else if (!contiguous_share(at->request.request_tokens, group->tokens_per_block, side->block_entries, side->stripes,
                               side->stripe, &side->start, &side->length))
        status = kvfi_fail(at->error, KVF_ERR_OVERFLOW, "%s group %" PRId64 ": %" PRId64 " tokens do not fit", name,
                           number, at->request.request_tokens);
done:
    return status;
}

/** True when a track's destination list begins behind all that the range can reach: nothing of it is wanted. */
static bool is_unwanted(const struct binder *at, const struct kvfi_track *track)
{
    const struct kvf_id_list *list = &at->request.dst[track->key.dst_group];
    int64_t needed;

    return !track->state && list->first > 0 &&
           needed_blocks(&at->plan->dst->spec.groups[track->key.dst_group], at->request.token_end,
                         at->request.request_tokens, &needed) && list->first >= needed;
}

static enum kvf_status bind_positions(struct binder *at, const struct kvfi_track *track)
{
    const struct kvf_bind_request *request = &at->request;
    const struct kvf_track *key = &track->key;
    bool src_unknown = request->flags & KVF_BIND_SRC_UNKNOWN;
    struct kvfi_walk walk = {.track = track, .src = track->src, .dst = track->dst, .max_steps = KVFI_BIND_MAX_STEPS,
                             .steps = at->steps, .partial = request->flags & KVF_BIND_PARTIAL,
                             .skip_holes = request->flags & KVF_BIND_SKIP_HOLES};
    enum kvf_status status;
    struct kvfi_comb comb;

    walk.src_ids = walk_ids(src_unknown ? NULL : &request->src[key->src_group], src_unknown, false);
    walk.dst_ids = walk_ids(&request->dst[key->dst_group], false, request->flags & KVF_BIND_DST_UNKNOWN);
    status = place_contiguous(at, &walk.src, &at->plan->src->spec.groups[key->src_group], "source", key->src_group);
    if (!status)
        status = place_contiguous(at, &walk.dst, &at->plan->dst->spec.groups[key->dst_group], "destination",
                                  key->dst_group);
    if (!status) status = kvfi_range_set(&at->request, &walk, at->error);
    if (!status && kvfi_walk_is_plain(&walk)) {
        status = kvfi_collector_add_plain(&at->collector, &walk, at->error);
        walk.position = walk.end;
    }
    while (!status) {
        status = kvfi_walk_next(&walk, &comb, at->error);
        if (!status) status = kvfi_collector_add(&at->collector, &comb, at->error);
    }
    at->steps = walk.steps;
    if (status == KVF_ERR_NOT_FOUND) status = KVF_OK;
    if (!status && walk.missing_count) {
        int64_t token = walk.first_missing * key->tokens_per_entry;

        if (token < request->token_begin) token = request->token_begin;
        if (token < at->first_missing) at->first_missing = token;
    }
    return status;
}

/** State has one id a side and no positions: one comb over all taps. */
static enum kvf_status bind_state(struct binder *at, const struct kvfi_track *track)
{
    const struct kvf_bind_request *request = &at->request;
    const struct kvf_id_list *dst = &request->dst[track->key.dst_group];
    const struct kvf_id_list *src = NULL;
    struct kvfi_comb comb = {.shape = track->shapes[0].shape};
    enum kvf_status status = KVF_OK;

    if (!(request->flags & KVF_BIND_SRC_UNKNOWN)) src = &request->src[track->key.src_group];
    if (dst->first > 0 || dst->count == 0) {
        status =
            kvfi_fail(at->error, KVF_ERR_IDS, "destination group %" PRId64 ": no id for the state (-1 = not wanted)",
                      track->key.dst_group);
        goto done;
    }
    if (dst->ids[0] < 0) goto done;
    if (!(request->flags & KVF_BIND_DST_UNKNOWN)) comb.dst_slot = dst->ids[0];
    if (src && (src->first > 0 || src->count == 0 || src->ids[0] < 0)) {
        if (request->flags & KVF_BIND_SKIP_HOLES) goto done;
        status = kvfi_fail(at->error, KVF_ERR_IDS,
                           "source group %" PRId64 ": no id for the state, but destination group %" PRId64
                           " wants it in id %" PRId64,
                           track->key.src_group, track->key.dst_group, dst->ids[0]);
        goto done;
    }
    if (src) comb.src_slot = src->ids[0];
    comb.shape.boxes = 0;
    status = kvfi_collector_add(&at->collector, &comb, at->error);
done:
    return status;
}

/** The furthest byte of one side of a box: pool + slot + offset + entry + loops + run. */
static bool reaches(const struct kvf_pool *pool, int64_t slot, int64_t offset, int64_t entries, int64_t entry_stride,
                    const struct kvf_box *box, bool dst)
{
    int64_t end = pool->base_offset_bytes;
    bool ok = kvfi_add_i64(end, offset, &end) && kvfi_mad_i64(slot, pool->slot_stride_bytes, end, &end) &&
              kvfi_mad_i64(entries - 1, entry_stride, end, &end) && kvfi_add_i64(end, box->run_bytes, &end);

    for (int64_t i = 0; i < box->loop_count && ok; i++) {
        int64_t stride = dst ? box->loops[i].dst_stride_bytes : box->loops[i].src_stride_bytes;

        if (stride > 0) ok = kvfi_mad_i64(box->loops[i].count - 1, stride, end, &end);
    }
    return ok;
}

/** Checks that no address and no sum of a shape leaves 64 bits: ids of an unknown side are not bounded by its slots. */
static bool fits(const struct kvf_plan *plan, const struct kvfi_bound *bound)
{
    const struct kvf_pool *src = plan->src->spec.pools, *dst = plan->dst->spec.pools;
    bool ok = true;

    for (int64_t i = 0; i < bound->folded.shape.boxes && ok; i++) {
        const struct kvf_box *box = &bound->folded.boxes[i];

        ok = reaches(&src[box->src_pool], bound->src_slot_max, box->src_offset_bytes, bound->track->src.entries,
                     box->src_entry_stride_bytes, box, false) &&
             reaches(&dst[box->dst_pool], bound->dst_slot_max, box->dst_offset_bytes, bound->track->dst.entries,
                     box->dst_entry_stride_bytes, box, true);
    }
    return ok;
}

/** A promoted row takes its slot to the end, past what the layout was checked for: in the last slot that may be behind
 *  the memory. What only this side's plan option brings about is refused here, where the ids are known. */
static enum kvf_status check_promoted(const struct binder *at, const struct kvfi_bound *bound, bool dst)
{
    const struct kvf_layout_spec *spec = dst ? &at->plan->dst->spec : &at->plan->src->spec;
    enum kvf_status status = KVF_OK;

    if (at->request.flags & (dst ? KVF_BIND_DST_UNKNOWN : KVF_BIND_SRC_UNKNOWN)) goto done;
    for (int64_t i = 0; i < bound->folded.shape.boxes && !status; i++) {
        const struct kvf_box *box = &bound->folded.boxes[i];
        const struct kvf_pool *pool = &spec->pools[dst ? box->dst_pool : box->src_pool];
        int64_t bytes = spec->memory_bytes[pool->memory];
        int64_t end = pool->base_offset_bytes + (dst ? bound->dst_slot_max : bound->src_slot_max) *
                      pool->slot_stride_bytes + (dst ? box->dst_offset_bytes : box->src_offset_bytes) + box->run_bytes;

        if (box->loop_count == 0 && bytes >= 0 && end > bytes)
            status = kvfi_fail(at->error, KVF_ERR_OUT_OF_RANGE,
                               "%s memory %" PRId64 ": a promoted row ends at %" PRId64 ", memory has %" PRId64,
                               dst ? "destination" : "source", pool->memory, end, bytes);
    }
done:
    return status;
}

/** Gives unused memory back, and sums up. */
static enum kvf_status finish(struct binder *at, kvf_binding *binding)
{
    struct kvf_binding_info *info = &binding->info;
    enum kvf_status status = KVF_OK;

    info->binding_bytes = (int64_t)(sizeof *binding + binding->bound_count * sizeof *binding->bound);
    for (size_t i = 0; i < binding->bound_count && !status; i++) {
        struct kvfi_bound *bound = &binding->bound[i];
        struct kvfi_block_run *runs = realloc(bound->runs, bound->run_count * sizeof *runs);

        if (runs) bound->runs = runs;
        bound->first_byte = info->bytes;
        info->block_runs += (int64_t)bound->run_count;
        info->binding_bytes += (int64_t)(bound->run_count * sizeof *runs);
        if (bound->owns_boxes) info->binding_bytes += bound->folded.shape.boxes * (int64_t)sizeof(struct kvf_box);
        if (!fits(at->plan, bound) || !kvfi_mad_i64(bound->combs, bound->folded.comb_bytes, info->bytes, &info->bytes))
            status = kvfi_fail(at->error, KVF_ERR_OVERFLOW,
                               "groups %" PRId64 " and %" PRId64 ": an address or the sum of bytes does not fit",
                               bound->track->key.src_group, bound->track->key.dst_group);
        if (!status && bound->folded.shape.whole && (at->plan->flags & KVF_PLAN_PROMOTE_ROW)) {
            status = check_promoted(at, bound, true);
            if (!status) status = check_promoted(at, bound, false);
        }
    }
    info->first_missing = at->first_missing == INT64_MAX ? -1 : at->first_missing;
    info->valid_tokens = at->first_missing == INT64_MAX ? at->request.token_end : at->first_missing;
    return status;
}

enum kvf_status kvf_bind(const kvf_plan *plan, const struct kvf_bind_request *request, kvf_binding **out,
                         struct kvf_error *error)
{
    struct binder at = {.plan = plan, .collector = {.plan = plan}, .first_missing = INT64_MAX, .error = error};
    kvf_binding *binding = NULL;
    enum kvf_status status;

    if (!plan || !request || !out)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "bind: the plan, the request or the result is NULL");
    status = check_request(&at, request);
    if (!status) status = check_ids(&at);
    for (size_t t = 0; t < plan->track_count && !status; t++) {
        const struct kvfi_track *track = &plan->tracks[t];

        if (!takes_part(&at, track) || is_unwanted(&at, track)) continue;
        kvfi_collector_track(&at.collector, track);
        status = track->state ? bind_state(&at, track) : bind_positions(&at, track);
    }
    if (status) goto done;
    binding = kvfi_alloc_zeroed(1, sizeof *binding);
    if (!binding) {
        status = kvfi_fail_memory(error, "a binding");
        goto done;
    }
    binding->plan = kvf_plan_acquire(plan);
    binding->flags = at.request.flags;
    binding->bound = at.collector.bound;
    binding->bound_count = at.collector.count;
    at.collector.bound = NULL;
    at.collector.count = 0;
    atomic_init(&binding->runs, -1);
    status = finish(&at, binding);
    if (status) goto done;
    *out = binding;
    binding = NULL;
done:
    kvf_binding_destroy(binding);
    free(at.collector.table);
    kvfi_bound_free(at.collector.bound, at.collector.count);
    return status;
}
