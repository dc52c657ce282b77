/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "plan/plan.h"

/** Two views that meet in one layer. */
struct meeting {
    const kvf_layout *src_layout, *dst_layout;
    const struct kvf_view *src, *dst;
    const struct kvf_place *src_place, *dst_place;
    struct kvf_error *error;
};

static enum kvf_status refuse(const struct meeting *at, const char *field, int64_t src, int64_t dst)
{
    return kvfi_fail(at->error, KVF_ERR_INCOMPATIBLE,
                     "%s layer %" PRId64 ": %s is %" PRId64 " at the source, %" PRId64 " at the destination",
                     at->src->role, at->src_place->layer, field, src, dst);
}

struct field {
    const char *name;
    int64_t src, dst;
};

/** Refuses the first field whose values differ. */
static enum kvf_status compare(const struct meeting *at, const struct field *fields, size_t count)
{
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < count && !status; i++)
        if (fields[i].src != fields[i].dst) status = refuse(at, fields[i].name, fields[i].src, fields[i].dst);
    return status;
}

/** Both layers of two atomic views must be the same lists. They are when, wherever they meet, both are at the same
 *  index and have the same neighbours. */
static enum kvf_status compare_atomic_layers(const struct meeting *at)
{
    const struct kvf_place *src = kvfi_view_places_by_layer(at->src_layout, at->src);
    const struct kvf_place *dst = kvfi_view_places_by_layer(at->dst_layout, at->dst);
    size_t i = (size_t)(at->src_place - src), j = (size_t)(at->dst_place - dst);
    int64_t src_before = i > 0 ? src[i - 1].layer : -1, dst_before = j > 0 ? dst[j - 1].layer : -1;
    int64_t src_after = i + 1 < at->src->place_count ? src[i + 1].layer : -1;
    int64_t dst_after = j + 1 < at->dst->place_count ? dst[j + 1].layer : -1;
    const struct field fields[] = {
        {"atomic layer count", (int64_t)at->src->place_count, (int64_t)at->dst->place_count},
        {"atomic layer before it", src_before, dst_before},
        {"atomic layer after it", src_after, dst_after},
    };

    return compare(at, fields, sizeof fields / sizeof *fields);
}

static enum kvf_status compare_atomic(const struct meeting *at, const struct kvf_group *src,
                                      const struct kvf_group *dst)
{
    const struct field fields[] = {
        {"atomic unit_first", at->src->unit_first, at->dst->unit_first},
        {"atomic unit_count", at->src->unit_count, at->dst->unit_count},
        {"atomic byte_first", at->src->byte_first, at->dst->byte_first},
        {"atomic byte_count", at->src->byte_count, at->dst->byte_count},
        {"atomic entries", at->src->entries, at->dst->entries},
        {"atomic stripes", src->stripes, dst->stripes},
        {"atomic stripe", src->stripe, dst->stripe},
        {"atomic stripe_tokens", src->stripe_tokens, dst->stripe_tokens},
    };
    enum kvf_status status = compare(at, fields, sizeof fields / sizeof *fields);

    if (!status) status = compare_atomic_layers(at);
    return status;
}

/** Stock peers move blocks only when one size divides the other. */
static enum kvf_status compare_blocks(const struct meeting *at, const struct kvf_group *src,
                                      const struct kvf_group *dst)
{
    int64_t a = src->tokens_per_block, b = dst->tokens_per_block;
    enum kvf_status status = KVF_OK;

    if (a > 0 && b > 0 && src->ring_tokens == 0 && dst->ring_tokens == 0 && a % b != 0 && b % a != 0)
        status = refuse(at, "tokens_per_block (one must divide the other)", a, b);
    return status;
}

enum kvf_status kvfi_compat(const kvf_layout *src, const struct kvf_view *src_view, const struct kvf_place *src_place,
                            const kvf_layout *dst, const struct kvf_view *dst_view, const struct kvf_place *dst_place,
                            uint64_t flags, struct kvf_error *error)
{
    const struct meeting at = {src, dst, src_view, dst_view, src_place, dst_place, error};
    const struct kvf_group *src_group = kvfi_view_group(src, src_view), *dst_group = kvfi_view_group(dst, dst_view);
    bool src_state = kvfi_view_is_state(src, src_view), dst_state = kvfi_view_is_state(dst, dst_view);
    bool src_atomic = src_view->flags & KVF_VIEW_ATOMIC, dst_atomic = dst_view->flags & KVF_VIEW_ATOMIC;
    const struct field fields[] = {
        {"row_bytes", src_view->row_bytes, dst_view->row_bytes},
        {"unit_total", src_view->unit_total, dst_view->unit_total},
        {"state", src_state, dst_state},
        {"taps", src_state ? src_view->entries : 0, dst_state ? dst_view->entries : 0},
        {"tokens_per_entry", kvfi_tokens_per_entry(src, src_view), kvfi_tokens_per_entry(dst, dst_view)},
        {"atomic", src_atomic, dst_atomic},
    };
    enum kvf_status status;

    if (strcmp(src_view->tag, dst_view->tag) != 0)
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "%s layer %" PRId64 ": tag is \"%s\" at the source, \"%s\" at the destination",
                           src_view->role, src_place->layer, src_view->tag, dst_view->tag);
    else
        status = compare(&at, fields, sizeof fields / sizeof *fields);
    if (!status && (flags & KVF_PLAN_DIVISIBLE_BLOCKS)) status = compare_blocks(&at, src_group, dst_group);
    if (!status && src_atomic) status = compare_atomic(&at, src_group, dst_group);
    return status;
}
