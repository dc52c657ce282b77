/* SPDX-License-Identifier: Apache-2.0 */
/* A view pair's parts: what each mapper of upstream's comes to in units, rows and entries. */
#include "trtllm/translate.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/** One part on one side. Units count from 0 in a numbering of the pair's own. */
struct part_side {
    int64_t offset_bytes; /**< of the part in a layer's region */
    int64_t unit_first, unit_count, unit_stride_bytes;
    int64_t entries, entry_stride_bytes;
};

/** Where a pair's parts go to. */
struct adder {
    struct kvfi_trt_side *sides[2];
    const struct kvfi_trt_mapper *mapper;
    struct kvfi_trt_spot *spots[2];
    size_t ring_group[2];
    size_t number; /**< of the view pair */
    struct kvf_error *error;
};

static const struct kvfi_trt_mapper_side *mapper_side(const struct adder *at, int side)
{
    return side == 0 ? &at->mapper->src : &at->mapper->dst;
}

static int64_t positive(int64_t bytes) { return bytes > 0 ? bytes : 1; }

/** Adds one part to both sides. `part` names it: -1 when the pair has only this one. */
static enum kvf_status add_part(const struct adder *at, int64_t part, int64_t row_bytes,
                                const struct part_side parts[2])
{
    int64_t total = 0;
    enum kvf_status status = KVF_OK;
    char role[KVFI_TRT_ROLE_BYTES];

    for (int i = 0; i < 2; i++) {
        int64_t end = parts[i].unit_first + parts[i].unit_count;

        if (end > total) total = end;
    }
    kvfi_trt_role_name(at->mapper->src.view, at->number, part, role);
    for (int i = 0; i < 2 && status == KVF_OK; i++) {
        const struct kvfi_trt_view *view = mapper_side(at, i)->view;
        const struct kvf_view model = {
            .role = role, .tag = "bytes", .row_bytes = row_bytes, .byte_count = row_bytes, .unit_total = total,
            .unit_first = parts[i].unit_first, .unit_count = parts[i].unit_count,
            .unit_stride_bytes = positive(parts[i].unit_stride_bytes), .entries = parts[i].entries,
            .entry_stride_bytes = positive(parts[i].entry_stride_bytes), .slots_per_block = 1,
            .group = at->mapper->name == KVF_TRTLLM_MAP_RING ? (int64_t)at->ring_group[i] : view->key.group};

        status = kvfi_trt_side_part(at->sides[i], &model, view, parts[i].offset_bytes, at->spots[i],
                                    at->mapper->layer_count, at->error);
    }
    return status;
}

/** A layer's region, or so many bytes of it, as one row. */
static enum kvf_status add_row(const struct adder *at, int64_t part, int64_t src_offset, int64_t dst_offset,
                               int64_t bytes)
{
    const struct part_side parts[2] = {
        {.offset_bytes = src_offset, .unit_count = 1, .unit_stride_bytes = bytes, .entries = 1,
         .entry_stride_bytes = bytes},
        {.offset_bytes = dst_offset, .unit_count = 1, .unit_stride_bytes = bytes, .entries = 1,
         .entry_stride_bytes = bytes}};

    return bytes > 0 ? add_part(at, part, bytes, parts) : KVF_OK;
}

/** Heads of one buffer: unit i of one side is unit i + (its shift - the other's) of the other, so each side begins
 *  where the other's shift points. Where what they have in common is not what upstream copies (numbers of heads that no
 *  one model has), that part alone is described, byte for byte. */
static enum kvf_status add_heads(const struct adder *at, int64_t part, const int64_t offsets[2], int64_t entries)
{
    const struct kvfi_trt_mapper *mapper = at->mapper;
    const int64_t unit = mapper->unit_bytes;
    struct part_side parts[2];
    int64_t first = 0, end = INT64_MAX;

    if (unit < 1) return KVF_OK; /* buffers of nothing */
    for (int i = 0; i < 2; i++) {
        const struct kvfi_trt_mapper_side *own = mapper_side(at, i), *other = mapper_side(at, 1 - i);

        parts[i] = (struct part_side){.offset_bytes = offsets[i], .unit_first = other->shift_bytes / unit,
                                      .unit_count = own->heads, .unit_stride_bytes = unit, .entries = entries,
                                      .entry_stride_bytes = own->heads * unit};
        if (parts[i].unit_first > first) first = parts[i].unit_first;
        if (parts[i].unit_first + own->heads < end) end = parts[i].unit_first + own->heads;
    }
    if (end - first != mapper->copy_bytes / unit) {
        for (int i = 0; i < 2; i++) {
            parts[i].offset_bytes += mapper_side(at, i)->shift_bytes;
            parts[i].unit_first = 0;
            parts[i].unit_count = mapper->copy_bytes / unit;
        }
    }
    return add_part(at, part, unit, parts);
}

/** Buffers of heads: entries are the block (head-major) or its tokens (token-major). */
static enum kvf_status add_buffers(const struct adder *at, int64_t entries)
{
    enum kvf_status status = KVF_OK;

    for (int64_t k = 0; k < at->mapper->src.buffers && status == KVF_OK; k++) {
        const int64_t offsets[2] = {at->mapper->src.layer_bytes / at->mapper->src.buffers * k,
                                    at->mapper->dst.layer_bytes / at->mapper->dst.buffers * k};

        status = add_heads(at, k, offsets, entries);
    }
    return status;
}

static enum kvf_status add_ring(const struct adder *at)
{
    const int64_t unit = at->mapper->unit_bytes;
    struct part_side parts[2];

    for (int i = 0; i < 2; i++)
        parts[i] = (struct part_side){.unit_count = 1, .unit_stride_bytes = unit,
                                      .entries = mapper_side(at, i)->ring_slots, .entry_stride_bytes = unit};
    return add_part(at, -1, unit, parts);
}

static enum kvf_status add_mapper(const struct adder *at)
{
    static const int64_t none[2] = {0, 0};
    const struct kvfi_trt_mapper *mapper = at->mapper;
    enum kvf_status status = KVF_OK;

    switch (mapper->name) {
    case KVF_TRTLLM_MAP_INTACT:
    case KVF_TRTLLM_MAP_REPLICATED:
    case KVF_TRTLLM_MAP_STATE_MATCH:
        status = add_row(at, -1, 0, 0, mapper->src.layer_bytes);
        break;
    case KVF_TRTLLM_MAP_HND:
        status = add_buffers(at, 1);
        break;
    case KVF_TRTLLM_MAP_NHD:
        status = add_buffers(at, mapper->tokens);
        break;
    case KVF_TRTLLM_MAP_RING:
        status = add_ring(at);
        break;
    case KVF_TRTLLM_MAP_STATE_SECTIONS:
        for (size_t i = 0; i < mapper->cut_count && status == KVF_OK; i++)
            status = add_row(at, (int64_t)i, mapper->cuts[i].src_offset, mapper->cuts[i].dst_offset,
                             mapper->cuts[i].bytes);
        break;
    case KVF_TRTLLM_MAP_STATE_HEADS:
        status = add_heads(at, -1, none, 1);
        break;
    default:
        break;
    }
    return status;
}

/* Adds a view pair's parts to both sides, as its mapper says. The ring groups are where a ring pair lives. */
static enum kvf_status add_parts(struct kvfi_trt_side *src, struct kvfi_trt_side *dst,
                                 const struct kvfi_trt_mapper *mapper, size_t number, size_t src_ring_group,
                                 size_t dst_ring_group, struct kvf_error *error)
{
    struct adder at = {.sides = {src, dst}, .mapper = mapper, .ring_group = {src_ring_group, dst_ring_group},
                       .number = number, .error = error};
    enum kvf_status status = KVF_OK;

    if (mapper->layer_count == 0) goto done;
    for (int i = 0; i < 2; i++) at.spots[i] = kvfi_alloc_array(mapper->layer_count, sizeof *at.spots[i]);
    if (!at.spots[0] || !at.spots[1]) {
        status = kvfi_fail_memory(error, "the layers of a view pair");
        goto done;
    }
    for (size_t i = 0; i < mapper->layer_count; i++) {
        at.spots[0][i] = (struct kvfi_trt_spot){mapper->layers[i].global_layer, mapper->layers[i].src_start};
        at.spots[1][i] = (struct kvfi_trt_spot){mapper->layers[i].global_layer, mapper->layers[i].dst_start};
    }
    status = add_mapper(&at);
done:
    free(at.spots[0]);
    free(at.spots[1]);
    return status;
}

/** Adds the groups of one side: ordinals of blocks count `block_tokens` tokens, whatever a block really has; then a
 *  ring's own groups. A receiver under context parallelism holds every n-th ordinal of a sender that holds all. */
static enum kvf_status add_groups(struct kvfi_trt_side *side, const kvf_trtllm_pair *pair, bool dst,
                                  struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *self = kvf_trtllm_rank_get_spec(pair->self);
    const struct kvf_trtllm_rank_spec *peer = kvf_trtllm_rank_get_spec(pair->peer);
    bool striped = dst && peer->cp_size > 1 && self->cp_size == 1;
    enum kvf_status status = kvfi_trt_side_groups(side, pair->block_tokens, striped ? peer->cp_size : 1,
                                                  striped ? peer->cp_rank : 0, error);

    for (size_t i = 0; i < pair->view_count && status == KVF_OK; i++) {
        const struct kvfi_trt_pair_view *view = &pair->views[i];
        int64_t slots = dst ? view->ring_dst_slots : view->ring_src_slots;
        const struct kvf_group ring = {.tokens_per_block = slots, .ring_tokens = slots, .stripes = 1};

        if (slots > 0) status = kvfi_trt_side_group(side, &ring, error);
    }
    return status;
}

/** Adds the planned views. */
static enum kvf_status add_views(struct kvfi_trt_side sides[2], const kvf_trtllm_pair *pair, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < pair->view_count && status == KVF_OK; i++) {
        const struct kvfi_trt_pair_view *view = &pair->views[i];
        struct kvfi_trt_mapper mapper = {0};

        if (!view->planned) continue;
        status = kvfi_trt_mapper_init(&mapper, pair->self, pair->peer, &view->key, error);
        if (status == KVF_OK)
            status = add_parts(&sides[0], &sides[1], &mapper, i, sides[0].table->group_count + view->ring,
                               sides[1].table->group_count + view->ring, error);
        kvfi_trt_mapper_fini(&mapper);
    }
    return status;
}

static bool any_planned(const kvf_trtllm_pair *pair)
{
    bool any = false;

    for (size_t i = 0; i < pair->view_count; i++) any = any || pair->views[i].planned;
    return any;
}

/** Plans the views that are marked, in place of what was planned before. */
static enum kvf_status plan_marked(kvf_trtllm_pair *pair, struct kvf_error *error)
{
    const kvf_trtllm_rank *ranks[2] = {pair->self, pair->peer};
    static const char *const names[2] = {"self", "peer"};
    struct kvfi_trt_side sides[2] = {0};
    kvf_layout *layouts[2] = {NULL, NULL};
    enum kvf_status status = KVF_OK;

    kvf_plan_release(pair->plan);
    free(pair->part_keys);
    pair->plan = NULL;
    pair->part_keys = NULL;
    pair->part_count = 0;
    if (!any_planned(pair)) goto done;
    for (int i = 0; i < 2 && status == KVF_OK; i++) {
        status = kvfi_trt_side_init(&sides[i], names[i], kvf_trtllm_rank_get_spec(ranks[i])->page_table, error);
        if (status == KVF_OK) status = add_groups(&sides[i], pair, i == 1, error);
    }
    if (status == KVF_OK) status = add_views(sides, pair, error);
    for (int i = 0; i < 2 && status == KVF_OK; i++) status = kvfi_trt_side_layout(&sides[i], &layouts[i], error);
    if (status == KVF_OK) status = kvfi_trt_pair_finish(pair, &sides[0], layouts[0], layouts[1], error);
done:
    for (int i = 0; i < 2; i++) {
        kvf_layout_release(layouts[i]);
        kvfi_trt_side_fini(&sides[i]);
    }
    return status;
}

/** Marks views [first, first + count) of `wanted` beside those that are marked and plans them; halves the range until
 *  it is known which of them cannot be planned beside the others. Those stay unmarked, with the reason. */
static enum kvf_status mark_range(kvf_trtllm_pair *pair, const bool *wanted, size_t first, size_t count,
                                  struct kvf_error *error)
{
    struct kvf_error own = {0};
    enum kvf_status status;

    for (size_t i = first; i < first + count; i++) pair->views[i].planned = wanted[i];
    status = plan_marked(pair, &own);
    if (status == KVF_OK) goto done;
    if (status != KVF_ERR_INCOMPATIBLE) {
        kvfi_fail(error, status, "%s", own.text);
        goto done;
    }
    status = KVF_OK;
    for (size_t i = first; i < first + count; i++) pair->views[i].planned = false;
    if (count == 1) {
        pair->views[first].error = kvfi_text_copy(own.text);
        if (!pair->views[first].error) status = kvfi_fail_memory(error, "the views of a pair");
        goto done;
    }
    status = mark_range(pair, wanted, first, count / 2, error);
    if (status == KVF_OK) status = mark_range(pair, wanted, first + count / 2, count - count / 2, error);
done:
    return status;
}

/** Upstream never asks whether memory overlaps. A view that does so, in itself or with one before it, is left out here
 *  and refused when it is to be sent, so that the others go on. */
enum kvf_status kvfi_trt_strict_plan(kvf_trtllm_pair *pair, struct kvf_error *error)
{
    bool *wanted = kvfi_alloc_array(pair->view_count, sizeof *wanted);
    enum kvf_status status;

    if (!wanted) {
        status = kvfi_fail_memory(error, "the views of a pair");
        goto done;
    }
    for (size_t i = 0; i < pair->view_count; i++) wanted[i] = pair->views[i].planned;
    status = pair->view_count > 0 ? mark_range(pair, wanted, 0, pair->view_count, error) : KVF_OK;
    /* what was tried last may have been one view too many */
    if (status == KVF_OK && any_planned(pair) && !pair->plan) status = plan_marked(pair, error);
done:
    free(wanted);
    return status;
}
