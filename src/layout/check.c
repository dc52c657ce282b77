/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/check.h"

#include <inttypes.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

/* Ends beyond this are called an overflow, so that sums of a few addresses or slots need no check later. */
#define FARTHEST_END (INT64_C(1) << 62)

static enum kvf_status bad(struct kvf_error *error, const char *object, size_t number, const char *field, int64_t found,
                           const char *expected)
{
    return kvfi_fail(error, KVF_ERR_LAYOUT, "%s %zu: %s is %" PRId64 ", expected %s", object, number, field, found,
                     expected);
}

enum kvf_status kvfi_check_name(const char *name, const char *object, size_t number, const char *what,
                                struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t bytes = name ? strnlen(name, KVFI_NAME_BYTES + 1) : 0;

    if (bytes == 0) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT, "%s %zu: %s is empty", object, number, what);
    } else if (bytes > KVFI_NAME_BYTES) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT, "%s %zu: %s is longer than %d bytes", object, number, what,
                           KVFI_NAME_BYTES);
    }
    for (size_t i = 0; i < bytes && status == KVF_OK; i++) {
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f) {
            status = kvfi_fail(error, KVF_ERR_LAYOUT, "%s %zu: byte %zu of the %s is a control character", object,
                               number, i, what);
        }
    }
    return status;
}

static enum kvf_status check_range(const struct kvfi_ranges *ranges, const char *what, int64_t total, int64_t first,
                                   int64_t count, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (total <= 0 || first < 0 || count <= 0 || first > total || count > total - first) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT,
                           "%s %zu (%s): %" PRId64 " %s from %" PRId64 " on do not lie in [0,%" PRId64 ")",
                           ranges->object, ranges->number, ranges->role, count, what, first, total);
    }
    return status;
}

enum kvf_status kvfi_check_ranges(const struct kvfi_ranges *ranges, struct kvf_error *error)
{
    const uint32_t known = KVF_VIEW_ATOMIC | KVF_VIEW_OPTIONAL;
    enum kvf_status status;

    status = check_range(ranges, "units", ranges->unit_total, ranges->unit_first, ranges->unit_count, error);
    if (status != KVF_OK) goto done;
    status = check_range(ranges, "bytes of a row", ranges->row_bytes, ranges->byte_first, ranges->byte_count, error);
    if (status != KVF_OK) goto done;
    if (ranges->flags & ~known || ranges->reserved) {
        status = kvfi_fail(error, KVF_ERR_NEWER_OPTION, "%s %zu (%s): flags 0x%" PRIx32 ", 0x%" PRIx32 " are not known",
                           ranges->object, ranges->number, ranges->role, ranges->flags & ~known, ranges->reserved);
    }
done:
    return status;
}

enum kvf_status kvfi_check_stripes(const char *object, size_t number, int64_t stripes, int64_t stripe,
                                   int64_t stripe_tokens, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (stripes < 1) {
        status = bad(error, object, number, "stripes", stripes, "at least 1");
    } else if (stripe < 0 || stripe >= stripes) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT, "%s %zu: stripe %" PRId64 " of %" PRId64 " stripes", object, number,
                           stripe, stripes);
    } else if (stripe_tokens < 0) {
        status = bad(error, object, number, "stripe_tokens", stripe_tokens, "at least 0");
    }
    return status;
}

static enum kvf_status check_pool(const struct kvf_layout_spec *spec, size_t number, struct kvf_error *error)
{
    const struct kvf_pool *pool = &spec->pools[number];
    enum kvf_status status = KVF_OK;

    if (pool->memory < 0 || (uint64_t)pool->memory >= spec->memory_count) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT, "pool %zu: memory %" PRId64 " of %zu memories", number, pool->memory,
                           spec->memory_count);
    } else if (pool->base_offset_bytes < 0) {
        status = bad(error, "pool", number, "base offset in bytes", pool->base_offset_bytes, "at least 0");
    } else if (pool->slot_stride_bytes < 1) {
        status = bad(error, "pool", number, "slot stride in bytes", pool->slot_stride_bytes, "at least 1");
    } else if (pool->slots < 1) {
        status = bad(error, "pool", number, "slots", pool->slots, "at least 1");
    }
    return status;
}

static enum kvf_status check_group(const struct kvf_group *group, size_t number, struct kvf_error *error)
{
    enum kvf_status status = kvfi_check_stripes("group", number, group->stripes, group->stripe, group->stripe_tokens,
                                                error);

    if (status != KVF_OK) goto done;
    if (group->tokens_per_block < 0) {
        status = bad(error, "group", number, "tokens_per_block", group->tokens_per_block, "at least 0");
    } else if (group->ring_tokens < 0) {
        status = bad(error, "group", number, "ring_tokens", group->ring_tokens, "at least 0");
    } else if (group->tokens_per_block == 0 && group->ring_tokens) {
        status = bad(error, "group", number, "ring_tokens", group->ring_tokens, "0 for state");
    } else if (group->tokens_per_block == 0 && group->stripes != 1) {
        status = bad(error, "group", number, "stripes", group->stripes, "1 for state");
    }
done:
    return status;
}

static enum kvf_status check_places(const struct kvf_layout_spec *spec, size_t number, struct kvf_error *error)
{
    const struct kvf_view *view = &spec->views[number];
    enum kvf_status status = KVF_OK;

    if (view->place_count == 0) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT, "view %zu (%s): no layer has a place", number, view->role);
    }
    for (size_t i = 0; i < view->place_count && status == KVF_OK; i++) {
        const struct kvf_place *place = &view->places[i];

        if (place->layer < 0) {
            status = kvfi_fail(error, KVF_ERR_LAYOUT, "view %zu (%s): layer %" PRId64 " is negative", number,
                               view->role, place->layer);
        } else if (place->layer == INT64_MAX) {
            status = kvfi_fail(error, KVF_ERR_LAYOUT, "view %zu (%s): layer %" PRId64 " has no end in 64 bits", number,
                               view->role, place->layer);
        } else if (place->pool < 0 || (uint64_t)place->pool >= spec->pool_count) {
            status = kvfi_fail(error, KVF_ERR_LAYOUT, "%s layer %" PRId64 ": pool %" PRId64 " of %zu pools", view->role,
                               place->layer, place->pool, spec->pool_count);
        } else if (place->offset_bytes < 0) {
            status = kvfi_fail(error, KVF_ERR_LAYOUT, "%s layer %" PRId64 ": offset of %" PRId64 " bytes is negative",
                               view->role, place->layer, place->offset_bytes);
        }
    }
    return status;
}

/* How a view cuts the blocks of its group. */
static enum kvf_status check_grain(const struct kvf_view *view, const struct kvf_group *group, size_t number,
                                   struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    int64_t entries_per_block, tokens;

    if (group->tokens_per_block == 0) {
        if (view->slots_per_block != 1) {
            status = bad(error, "view", number, "slots_per_block", view->slots_per_block, "1 for state");
        }
        goto done;
    }
    if (!kvfi_mul_i64(view->entries, view->slots_per_block, &entries_per_block) ||
        group->tokens_per_block % entries_per_block != 0) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT,
                           "view %zu (%s): %" PRId64 " tokens per block do not divide by %" PRId64 " slots of %" PRId64
                           " entries", number, view->role, group->tokens_per_block, view->slots_per_block,
                           view->entries);
        goto done;
    }
    tokens = group->tokens_per_block / entries_per_block;
    if (group->ring_tokens % tokens != 0) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT, "view %zu (%s): ring of %" PRId64 " tokens does not divide by %"
                           PRId64 " tokens per entry", number, view->role, group->ring_tokens, tokens);
    } else if (group->stripe_tokens % tokens != 0) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT, "view %zu (%s): stripe of %" PRId64 " tokens does not divide by %"
                           PRId64 " tokens per entry", number, view->role, group->stripe_tokens, tokens);
    }
done:
    return status;
}

static enum kvf_status check_view(const struct kvf_layout_spec *spec, size_t number, struct kvf_error *error)
{
    const struct kvf_view *view = &spec->views[number];
    const struct kvfi_ranges ranges = {"view", number, view->role, view->row_bytes, view->byte_first, view->byte_count,
                                       view->unit_total, view->unit_first, view->unit_count, view->flags,
                                       view->reserved};
    enum kvf_status status = kvfi_check_ranges(&ranges, error);

    if (status != KVF_OK) goto done;
    if (view->group < 0 || (uint64_t)view->group >= spec->group_count) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT, "view %zu (%s): group %" PRId64 " of %zu groups", number, view->role,
                           view->group, spec->group_count);
    } else if (view->unit_stride_bytes < 1) {
        status = bad(error, "view", number, "unit stride in bytes", view->unit_stride_bytes, "at least 1");
    } else if (view->entry_stride_bytes < 1) {
        status = bad(error, "view", number, "entry stride in bytes", view->entry_stride_bytes, "at least 1");
    } else if (view->entries < 1) {
        status = bad(error, "view", number, "entries", view->entries, "at least 1");
    } else if (view->slots_per_block < 1) {
        status = bad(error, "view", number, "slots_per_block", view->slots_per_block, "at least 1");
    } else {
        status = check_grain(view, &spec->groups[view->group], number, error);
    }
    if (status == KVF_OK) status = check_places(spec, number, error);
done:
    return status;
}

enum kvf_status kvfi_check_fields(const struct kvf_layout *layout, struct kvf_error *error)
{
    const struct kvf_layout_spec *spec = &layout->spec;
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < spec->memory_count && status == KVF_OK; i++) {
        if (spec->memory_bytes[i] < -1) {
            status = bad(error, "memory", i, "size in bytes", spec->memory_bytes[i], "-1 (unbounded) or more");
        }
    }
    for (size_t i = 0; i < spec->pool_count && status == KVF_OK; i++) status = check_pool(spec, i, error);
    for (size_t i = 0; i < spec->group_count && status == KVF_OK; i++) {
        status = check_group(&spec->groups[i], i, error);
    }
    for (size_t i = 0; i < spec->view_count && status == KVF_OK; i++) status = check_view(spec, i, error);
    return status;
}

struct axis {
    int64_t stride, steps;
};

/* Adds one axis around `*extent`. */
static enum kvf_status nest(const struct kvf_view *view, int64_t layer, struct axis axis, int64_t *extent,
                            struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (axis.steps > 1 && axis.stride < *extent) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT,
                           "%s layer %" PRId64 ": stride %" PRId64 " is smaller than the %" PRId64 " bytes inside it",
                           view->role, layer, axis.stride, *extent);
    } else if (axis.steps > 1 && !kvfi_mad_i64(axis.stride, axis.steps - 1, *extent, extent)) {
        status = kvfi_fail(error, KVF_ERR_OVERFLOW, "%s layer %" PRId64 ": %" PRId64 " steps of %" PRId64
                           " bytes do not fit in 64 bits", view->role, layer, axis.steps, axis.stride);
    }
    return status;
}

static void sort_axes(struct axis axes[3])
{
    for (int i = 1; i < 3; i++) {
        for (int j = i; j > 0 && axes[j].stride < axes[j - 1].stride; j--) {
            struct axis swap = axes[j];

            axes[j] = axes[j - 1];
            axes[j - 1] = swap;
        }
    }
}

static enum kvf_status check_extent(const struct kvf_layout_spec *spec, const struct kvf_view *view,
                                    const struct kvf_place *place, struct kvf_error *error)
{
    const struct kvf_pool *pool = &spec->pools[place->pool];
    int64_t memory_bytes = spec->memory_bytes[pool->memory];
    struct axis axes[3] = {{view->unit_stride_bytes, view->unit_count},
                           {view->entry_stride_bytes, view->entries},
                           {pool->slot_stride_bytes, pool->slots}};
    int64_t extent = view->byte_count, end;
    enum kvf_status status = KVF_OK;

    sort_axes(axes);
    for (int i = 0; i < 3 && status == KVF_OK; i++) status = nest(view, place->layer, axes[i], &extent, error);
    if (status != KVF_OK) goto done;
    if (!kvfi_add_i64(pool->base_offset_bytes, place->offset_bytes, &end) || !kvfi_add_i64(end, extent, &end) ||
        end > FARTHEST_END) {
        status = kvfi_fail(error, KVF_ERR_OVERFLOW, "%s layer %" PRId64 ": ends beyond 2^62 bytes", view->role,
                           place->layer);
    } else if (memory_bytes >= 0 && end > memory_bytes) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT, "%s layer %" PRId64 ": ends at %" PRId64 ", memory has %" PRId64,
                           view->role, place->layer, end, memory_bytes);
    }
done:
    return status;
}

enum kvf_status kvfi_check_extents(const struct kvf_layout *layout, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < layout->spec.view_count && status == KVF_OK; i++) {
        const struct kvf_view *view = &layout->spec.views[i];

        for (size_t j = 0; j < view->place_count && status == KVF_OK; j++) {
            status = check_extent(&layout->spec, view, &view->places[j], error);
        }
    }
    return status;
}
