/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "plan/plan.h"
#include "plan/share.h"

/** One layer of one view. Roles are compared by their text; the views' own order breaks ties. */
struct ref {
    const char *role;
    int64_t layer;
    const struct kvf_view *view;
    const struct kvf_place *place; /**< in the layout's places_by_layer */
};

struct refs {
    struct ref *items;
    size_t count;
};

static int order_names(const struct ref *a, const struct ref *b)
{
    int order = a->role == b->role ? 0 : strcmp(a->role, b->role);

    if (!order) order = (a->layer > b->layer) - (a->layer < b->layer);
    return order;
}

static int order_refs(const void *left, const void *right)
{
    const struct ref *a = left, *b = right;
    int order = order_names(a, b);

    if (!order) order = (a->view > b->view) - (a->view < b->view);
    return order;
}

/** Lists every layer of every view, sorted by role, layer, view. */
static bool list_refs(const kvf_layout *layout, struct refs *refs)
{
    const struct kvf_layout_spec *spec = &layout->spec;
    bool sorted = true;

    refs->count = 0;
    for (size_t i = 0; i < spec->view_count; i++) refs->count += spec->views[i].place_count;
    refs->items = kvfi_alloc_array(refs->count, sizeof *refs->items);
    if (!refs->items) goto done;
    refs->count = 0;
    for (size_t i = 0; i < spec->view_count; i++) {
        const struct kvf_view *view = &spec->views[i];
        const struct kvf_place *places = kvfi_view_places_by_layer(layout, view);

        for (size_t j = 0; j < view->place_count; j++) {
            struct ref *ref = &refs->items[refs->count++];

            *ref = (struct ref){view->role, places[j].layer, view, &places[j]};
            sorted = sorted && (refs->count == 1 || order_refs(ref - 1, ref) < 0);
        }
    }
    if (!sorted) qsort(refs->items, refs->count, sizeof *refs->items, order_refs);
done:
    return refs->items != NULL;
}

/** What gathering works on. */
struct gather {
    const kvf_layout *src, *dst;
    const kvf_share *share;
    uint64_t flags;
    struct kvfi_joint *joints;
    size_t count, capacity;
    int64_t pairs; /**< looked at so far */
    struct kvf_error *error;
};

/** The part of a view that a share cell and the other view leave. */
struct overlap {
    int64_t unit_first, units, byte_first, bytes;
};

static void cut(int64_t *first, int64_t *count, int64_t other_first, int64_t other_count)
{
    int64_t end = *first + *count, other_end = other_first + other_count;

    if (other_first > *first) *first = other_first;
    *count = (other_end < end ? other_end : end) - *first;
}

static bool place_offset(const struct kvf_view *view, const struct kvf_place *place, const struct overlap *part,
                         int64_t *offset)
{
    return kvfi_mad_i64(part->unit_first - view->unit_first, view->unit_stride_bytes, place->offset_bytes, offset) &&
           kvfi_add_i64(*offset, part->byte_first - view->byte_first, offset);
}

static enum kvf_status add_joint(struct gather *at, const struct ref *src, const struct ref *dst,
                                 const struct overlap *part)
{
    const struct kvf_view *s = src->view, *d = dst->view;
    struct kvfi_joint *joint;
    enum kvf_status status = KVF_OK;

    if (at->count == KVFI_PLAN_MAX_PATCHES) {
        status = kvfi_fail(at->error, KVF_ERR_LIMIT, "a plan has more than %d patches", KVFI_PLAN_MAX_PATCHES);
        goto done;
    }
    if (!kvfi_array_grow((void **)&at->joints, at->count, &at->capacity, sizeof *at->joints)) {
        status = kvfi_fail_memory(at->error, "the patches of a plan");
        goto done;
    }
    joint = &at->joints[at->count];
    *joint = (struct kvfi_joint){
        .key = {.src_group = s->group, .dst_group = d->group, .tokens_per_entry = kvfi_tokens_per_entry(at->src, s),
                .src_slots_per_block = s->slots_per_block, .dst_slots_per_block = d->slots_per_block,
                .src_entries = s->entries, .dst_entries = d->entries},
        .patch = {.layer = src->layer, .src_pool = src->place->pool, .dst_pool = dst->place->pool, .units = part->units,
                  .src_unit_stride_bytes = s->unit_stride_bytes, .dst_unit_stride_bytes = d->unit_stride_bytes,
                  .src_entry_stride_bytes = s->entry_stride_bytes, .dst_entry_stride_bytes = d->entry_stride_bytes,
                  .row_bytes = part->bytes},
        .dst_role = dst->role};
    if (place_offset(s, src->place, part, &joint->patch.src_offset_bytes) &&
        place_offset(d, dst->place, part, &joint->patch.dst_offset_bytes))
        at->count++;
    else
        status = kvfi_fail(at->error, KVF_ERR_OVERFLOW, "%s layer %" PRId64 ": an offset does not fit", src->role,
                           src->layer);
done:
    return status;
}

/** Joins two views of one role in one layer within one cell; NULL = everything. */
static enum kvf_status join_cell(struct gather *at, const struct ref *src, const struct ref *dst,
                                 const struct kvf_cell *cell)
{
    const struct kvf_view *s = src->view, *d = dst->view;
    struct overlap part = {d->unit_first, d->unit_count, d->byte_first, d->byte_count};
    enum kvf_status status = KVF_OK;

    cut(&part.unit_first, &part.units, s->unit_first, s->unit_count);
    cut(&part.byte_first, &part.bytes, s->byte_first, s->byte_count);
    if (cell) {
        cut(&part.unit_first, &part.units, cell->unit_first, cell->unit_count);
        cut(&part.byte_first, &part.bytes, cell->byte_first, cell->byte_count);
    }
    if (part.units <= 0 || part.bytes <= 0) goto done;
    if ((d->flags & KVF_VIEW_ATOMIC) && (part.units != d->unit_count || part.bytes != d->byte_count))
        status = kvfi_fail(at->error, KVF_ERR_INCOMPATIBLE,
                           "%s layer %" PRId64 ": atomic view of %" PRId64 " units of %" PRId64
                           " bytes, the share cuts it to %" PRId64 " of %" PRId64,
                           dst->role, dst->layer, d->unit_count, d->byte_count, part.units, part.bytes);
    else
        status = add_joint(at, src, dst, &part);
done:
    return status;
}

/** Joins all views of one role and layer: src[0 .. src_count) with dst[0 .. dst_count). */
static enum kvf_status join_layer(struct gather *at, const struct ref *src, size_t src_count, const struct ref *dst,
                                  size_t dst_count)
{
    const struct kvf_cell *cells = NULL;
    enum kvf_status status = KVF_OK;
    size_t cell_count = 1;
    int64_t pairs;

    if (at->share) cells = kvfi_share_find(at->share, src->role, src->layer, &cell_count);
    if (!kvfi_mul_i64((int64_t)src_count, (int64_t)dst_count, &pairs) ||
        !kvfi_mad_i64(pairs, (int64_t)cell_count + 1, at->pairs, &at->pairs) || at->pairs > KVFI_PLAN_MAX_PAIRS) {
        status = kvfi_fail(at->error, KVF_ERR_LIMIT,
                           "%s layer %" PRId64 ": more than %d pairs of views and share cells to look at", src->role,
                           src->layer, KVFI_PLAN_MAX_PAIRS);
        goto done;
    }
    for (size_t i = 0; i < src_count; i++) {
        for (size_t j = 0; j < dst_count; j++) {
            status = kvfi_compat(at->src, src[i].view, src[i].place, at->dst, dst[j].view, dst[j].place, at->flags,
                                 at->error);
            for (size_t k = 0; k < cell_count && !status; k++)
                status = join_cell(at, &src[i], &dst[j], cells ? &cells[k] : NULL);
            if (status) goto done;
        }
    }
done:
    return status;
}

static size_t same_names(const struct refs *refs, size_t first)
{
    size_t end = first + 1;

    while (end < refs->count && order_names(&refs->items[first], &refs->items[end]) == 0) end++;
    return end - first;
}

/** Goes through both lists side by side and joins what has equal names. */
static enum kvf_status join_refs(struct gather *at, const struct refs *src, const struct refs *dst)
{
    enum kvf_status status = KVF_OK;
    size_t i = 0, j = 0;

    while (i < src->count && j < dst->count && !status) {
        int order = order_names(&src->items[i], &dst->items[j]);

        if (order < 0) {
            i++;
        } else if (order > 0) {
            j++;
        } else {
            size_t src_count = same_names(src, i), dst_count = same_names(dst, j);

            status = join_layer(at, &src->items[i], src_count, &dst->items[j], dst_count);
            i += src_count;
            j += dst_count;
        }
    }
    return status;
}

static int order_keys(const struct kvf_track *a, const struct kvf_track *b)
{
    const int64_t x[7] = {a->src_group, a->dst_group, a->tokens_per_entry, a->src_slots_per_block,
                          a->dst_slots_per_block, a->src_entries, a->dst_entries};
    const int64_t y[7] = {b->src_group, b->dst_group, b->tokens_per_entry, b->src_slots_per_block,
                          b->dst_slots_per_block, b->src_entries, b->dst_entries};
    int order = 0;

    for (int i = 0; i < 7 && !order; i++) order = (x[i] > y[i]) - (x[i] < y[i]);
    return order;
}

int kvfi_joints_order(const void *left, const void *right)
{
    const struct kvfi_joint *a = left, *b = right;
    const struct kvf_patch *p = &a->patch, *q = &b->patch;
    const int64_t x[6] = {p->dst_pool, p->dst_offset_bytes, p->src_pool, p->src_offset_bytes, p->layer, p->units};
    const int64_t y[6] = {q->dst_pool, q->dst_offset_bytes, q->src_pool, q->src_offset_bytes, q->layer, q->units};
    int order = order_keys(&a->key, &b->key);

    for (int i = 0; i < 6 && !order; i++) order = (x[i] > y[i]) - (x[i] < y[i]);
    return order;
}

enum kvf_status kvfi_patches_gather(const kvf_layout *src, const kvf_layout *dst, const kvf_share *share,
                                    uint64_t flags, struct kvfi_joint **out, size_t *count, struct kvf_error *error)
{
    struct gather at = {.src = src, .dst = dst, .share = share, .flags = flags, .error = error};
    struct refs src_refs = {NULL, 0}, dst_refs = {NULL, 0};
    enum kvf_status status = KVF_OK;

    if (!list_refs(src, &src_refs) || !list_refs(dst, &dst_refs)) {
        status = kvfi_fail_memory(error, "the views of a plan");
        goto done;
    }
    status = join_refs(&at, &src_refs, &dst_refs);
    if (status) goto done;
    if (at.count) qsort(at.joints, at.count, sizeof *at.joints, kvfi_joints_order);
    *out = at.joints;
    *count = at.count;
    at.joints = NULL;
done:
    free(at.joints);
    free(dst_refs.items);
    free(src_refs.items);
    return status;
}
