/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "base/checked.h"
#include "base/error.h"
#include "plan/bind.h"

/** Positions that both rings retain; 0 = neither side is one. */
static int64_t retained(const struct kvfi_track *track)
{
    int64_t src = track->src.ring, dst = track->dst.ring;

    return src && dst ? (src < dst ? src : dst) : src + dst;
}

/** What a destination that is no ring may not want: blocks that end before the positions that the source retains. */
static enum kvf_status check_lost(const struct kvfi_walk *whole, int64_t first, struct kvf_error *error)
{
    struct kvfi_walk lost = *whole;
    int64_t span = lost.dst.block_entries; /* of the positions among which those of one block lie */
    enum kvf_status status = KVF_OK;
    struct kvfi_comb comb;

    if (lost.dst.stripe_entries > 0 && !kvfi_mul_i64(span, lost.dst.stripes, &span)) span = INT64_MAX;
    lost.end = first - first % span;
    lost.src_ids = (struct kvfi_ids){.every = true};
    lost.partial = true;
    if (lost.dst.ring || lost.end <= lost.position) goto done;
    status = kvfi_walk_next(&lost, &comb, error);
    if (status == KVF_OK)
        status = kvfi_fail(error, KVF_ERR_IDS,
                           "source group %" PRId64 ": a ring that retains tokens from %" PRId64
                           " on, but destination group %" PRId64 " wants earlier ones",
                           lost.track->key.src_group, first * lost.track->key.tokens_per_entry,
                           lost.track->key.dst_group);
    else if (status == KVF_ERR_NOT_FOUND)
        status = KVF_OK;
done:
    return status;
}

/** Moves the begin of a range to where both rings still have all that follows. */
static enum kvf_status take_tail(const struct kvf_bind_request *request, struct kvfi_walk *walk, int64_t ring,
                                 struct kvf_error *error)
{
    const struct kvfi_track *track = walk->track;
    int64_t c = track->key.tokens_per_entry, all = request->request_tokens / c;
    int64_t first = walk->end - ring > walk->position ? walk->end - ring : walk->position;
    enum kvf_status status = KVF_OK;

    if ((track->src.ring && track->src.stripes > 1) || (track->dst.ring && track->dst.stripes > 1) ||
        walk->position >= walk->end)
        goto done;
    if (track->src.ring && all > walk->end && all - track->src.ring > first)
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE,
                           "source group %" PRId64 ": a ring of %" PRId64 " tokens, the request of %" PRId64
                           " has written over token %" PRId64 " of range [%" PRId64 ",%" PRId64 ")",
                           track->key.src_group, track->src.ring * c, request->request_tokens, first * c,
                           request->token_begin, request->token_end);
    else if (first > walk->position)
        status = check_lost(walk, first, error);
    walk->position = first;
done:
    return status;
}

/** Turns the token range into entries: whole grains, or within both rings. */
enum kvf_status kvfi_range_set(const struct kvf_bind_request *request, struct kvfi_walk *walk, struct kvf_error *error)
{
    const struct kvfi_track *track = walk->track;
    int64_t c = track->key.tokens_per_entry, grain = track->grain, rest, ring = retained(track), bytes;
    enum kvf_status status = KVF_OK;

    walk->position = request->token_begin / c;
    walk->end = request->token_end / c + (request->token_end % c != 0);
    if (request->token_begin == request->token_end) walk->end = walk->position;
    rest = walk->end > walk->position ? walk->end % grain : 0;
    if (rest && !kvfi_add_i64(walk->end, grain - rest, &walk->end)) goto overflow;
    if (!kvfi_mul_i64(walk->end, c, &bytes)) goto overflow;
    if (ring && (request->flags & KVF_BIND_RING_TAIL)) status = take_tail(request, walk, ring, error);
    if (status) goto done;
    if (ring && walk->end - walk->position > ring)
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE,
                           "groups %" PRId64 " and %" PRId64 ": range [%" PRId64 ",%" PRId64 ") is %" PRId64
                           " positions, positions both rings retain: %" PRId64,
                           track->key.src_group, track->key.dst_group, request->token_begin, request->token_end,
                           walk->end - walk->position, ring);
    else if (walk->position % grain && walk->position < walk->end)
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE,
                           "groups %" PRId64 " and %" PRId64 ": range begins at token %" PRId64
                           ", expected a multiple of the grain of %" PRId64 " tokens",
                           track->key.src_group, track->key.dst_group, request->token_begin, grain * c);
    goto done;
overflow:
    status =
        kvfi_fail(error, KVF_ERR_OVERFLOW, "groups %" PRId64 " and %" PRId64 ": token %" PRId64 " does not fit",
                  track->key.src_group, track->key.dst_group, request->token_end);
done:
    return status;
}
