/* SPDX-License-Identifier: Apache-2.0 */
/* One member's memory in the terms of the forms. */
#include "trtllm/native.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "trtllm/elect.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** One view of one member, with the layers of a form that it holds. */
struct held {
    const struct kvf_trtllm_rank_spec *rank;
    const struct kvfi_trt_member *member;
    const struct kvfi_trt_view *view;
    const struct kvfi_trt_form *form;
    size_t number;                /**< of the form: names the role */
    struct kvfi_trt_spot *spots;
    size_t spot_count;
    struct kvfi_trt_side *side;
    struct kvf_error *error;
};

static enum kvf_status refuse(const struct held *at, const char *what, int64_t bytes, int64_t parts)
{
    return kvfi_fail(at->error, KVF_ERR_INCOMPATIBLE, "%s: group %" PRId64 " view %" PRId64 ": %s of %" PRId64
                     " bytes does not divide into %" PRId64 " parts", at->side->name, at->view->key.group,
                     at->view->key.view, what, bytes, parts);
}

/** What the bytes mean: equal on both sides, or refused. */
static void write_tag(const struct held *at, char text[64])
{
    const struct kvf_trtllm_attention *attention = at->rank->attention;

    if (at->form->is_state || !attention) snprintf(text, 64, "state");
    else snprintf(text, 64, "%" PRId64 " bits, %" PRId64 " dims", attention->element_eighths, attention->dims_per_head);
}

/** Adds one part: `model` says units, rows and entries. */
static enum kvf_status add_part(const struct held *at, int64_t part, int64_t offset_bytes, struct kvf_view *model)
{
    char role[KVFI_TRT_ROLE_BYTES], tag[64];

    write_tag(at, tag);
    model->role = kvfi_trt_role_name(at->form->views[1], at->number, part, role);
    model->tag = tag;
    model->group = at->form->kind == KVFI_TRT_FORM_RING
                       ? (int64_t)(at->side->table->group_count + at->form->ring) : at->view->key.group;
    model->byte_count = model->row_bytes;
    model->unit_total = at->form->unit_total;
    model->slots_per_block = 1;
    return kvfi_trt_side_part(at->side, model, at->view, offset_bytes, at->spots, at->spot_count, at->error);
}

/** Where a rank's share of n equal shares begins: ranks beyond the units share them. */
static int64_t first_unit(const struct held *at, int64_t rank, int64_t ranks)
{
    int64_t product;

    if (at->form->shared) return 0;
    /* past the end: the layout is refused */
    return kvfi_mul_i64(rank, at->form->unit_total, &product) ? product / ranks : at->form->unit_total;
}

static int64_t tp_in_group(const struct held *at)
{
    return at->member->tp_rank % kvfi_trt_group_tp(at->rank);
}

/** The rank's number in the grid that state is cut over, and the grid's size. */
static void state_place(const struct held *at, int64_t *size, int64_t *number)
{
    struct kvf_trtllm_rank_spec own = *at->rank;

    own.tp_rank = at->member->tp_rank;
    own.cp_rank = at->member->cp_rank;
    kvfi_trt_state_tp(&own, size, number);
}

static enum kvf_status add_region(const struct held *at)
{
    int64_t ranks = kvfi_trt_group_tp(at->rank), rank = tp_in_group(at), bytes = at->view->layer_bytes;
    struct kvf_view model = {.row_bytes = bytes, .unit_count = 1, .unit_stride_bytes = bytes, .entries = 1,
                             .entry_stride_bytes = bytes};

    if (at->form->is_state) state_place(at, &ranks, &rank);
    model.unit_first = first_unit(at, rank, ranks);
    return bytes > 0 ? add_part(at, -1, 0, &model) : KVF_OK;
}

/** Heads of every buffer. Head-major memory has a head's tokens together, token-major memory a token's heads. */
static enum kvf_status add_heads(const struct held *at)
{
    const struct kvf_trtllm_view *spec = at->view->spec;
    int64_t heads = at->form->shared ? 1 : spec->num_kv_heads;
    int64_t tokens = at->form->kind == KVFI_TRT_FORM_TOKENS ? at->rank->page_table->tokens_per_block : 1;
    int64_t buffer = at->view->layer_bytes / at->view->buffers, rows = 0, row;
    enum kvf_status status = KVF_OK;
    struct kvf_view model;

    if (buffer == 0) goto done;
    if (!kvfi_mul_i64(heads, tokens, &rows) || rows < 1 || buffer % rows) {
        status = refuse(at, tokens > 1 ? "a buffer, cut at heads and tokens," : "a buffer, cut at heads,", buffer,
                        rows);
        goto done;
    }
    row = buffer / rows;
    model = (struct kvf_view){.row_bytes = row, .unit_first = first_unit(at, tp_in_group(at),
                                                                         kvfi_trt_group_tp(at->rank)),
                              .unit_count = heads, .unit_stride_bytes = tokens * row, .entries = tokens,
                              .entry_stride_bytes = row};
    if (spec->mapper == KVF_TRTLLM_NHD) {
        model.unit_stride_bytes = row;
        model.entry_stride_bytes = heads * row;
    }
    for (int64_t k = 0; k < at->view->buffers && status == KVF_OK; k++) status = add_part(at, k, k * buffer, &model);
done:
    return status;
}

static enum kvf_status add_ring(const struct held *at)
{
    int64_t slot = at->view->spec->ring_slot_bytes;
    struct kvf_view model = {.row_bytes = slot, .unit_count = 1, .unit_stride_bytes = slot,
                             .entries = at->view->layer_bytes / (slot > 0 ? slot : 1), .entry_stride_bytes = slot};

    return add_part(at, -1, 0, &model);
}

/** Sections one after another, each cut into shards on its own. */
static enum kvf_status add_sections(const struct held *at)
{
    const struct kvf_trtllm_view *spec = at->view->spec;
    int64_t size, number, shards, offset = 0;
    enum kvf_status status = KVF_OK;

    state_place(at, &size, &number);
    shards = at->form->unit_total / size;
    for (size_t i = 0; i < spec->section_count && status == KVF_OK; i++) {
        int64_t bytes = spec->section_bytes[i];
        struct kvf_view model = {.unit_first = number * shards, .unit_count = shards, .entries = 1,
                                 .entry_stride_bytes = bytes};

        if (bytes < 1 || shards < 1 || bytes % shards || bytes > at->view->layer_bytes - offset) {
            status = kvfi_fail(at->error, KVF_ERR_INCOMPATIBLE, "%s: group %" PRId64 " view %" PRId64 ": section %zu"
                               " of %" PRId64 " bytes from %" PRId64 " on does not divide into %" PRId64 " shards, or"
                               " passes the region's end at %" PRId64, at->side->name, at->view->key.group,
                               at->view->key.view, i, bytes, offset, shards, at->view->layer_bytes);
            break;
        }
        model.row_bytes = bytes / shards;
        model.unit_stride_bytes = model.row_bytes;
        status = add_part(at, (int64_t)i, offset, &model);
        offset += bytes;
    }
    return status;
}

static enum kvf_status add_state_heads(const struct held *at)
{
    int64_t size, number, head = at->view->spec->bytes_per_head, heads, first;
    struct kvf_view model;

    state_place(at, &size, &number);
    if (head < 1 || at->view->layer_bytes % head) return refuse(at, "recurrent state", at->view->layer_bytes, head);
    heads = at->view->layer_bytes / head;
    if (!kvfi_mul_i64(number, heads, &first)) first = at->form->unit_total; /* past the end: the layout is refused */
    model = (struct kvf_view){.row_bytes = head, .unit_first = first, .unit_count = heads,
                              .unit_stride_bytes = head, .entries = 1, .entry_stride_bytes = heads * head};
    return add_part(at, -1, 0, &model);
}

/** Refuses regions that pass the end of a slot; where layers are apart, that of their own layer. */
static enum kvf_status check_ends(const struct held *at)
{
    const struct kvf_trtllm_pool *pool = at->view->pool;
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < at->spot_count && pool && status == KVF_OK; i++) {
        int64_t start = at->spots[i].start_bytes, end;

        if (pool->layer_stride_bytes > 0) start %= pool->layer_stride_bytes;
        if (!kvfi_add_i64(start, at->view->layer_bytes, &end) || end > pool->slot_bytes)
            status = kvfi_fail(at->error, KVF_ERR_INCOMPATIBLE, "%s: group %" PRId64 " view %" PRId64 " layer %" PRId64
                               ": %" PRId64 " bytes from %" PRId64 " on pass the end of a slot of %" PRId64,
                               at->side->name, at->view->key.group, at->view->key.view, at->spots[i].layer,
                               at->view->layer_bytes, start, pool->slot_bytes);
    }
    return status;
}

static enum kvf_status add_form(const struct held *at)
{
    enum kvf_status status = kvfi_trt_view_check(at->view, at->error);

    if (status == KVF_OK) status = check_ends(at);
    if (status == KVF_OK && at->view->buffers < 1) status = refuse(at, "a layer", at->view->layer_bytes, 0);
    if (status != KVF_OK) goto done;
    switch (at->form->kind) {
    case KVFI_TRT_FORM_REGION:
        status = add_region(at);
        break;
    case KVFI_TRT_FORM_RING:
        status = add_ring(at);
        break;
    case KVFI_TRT_FORM_SECTIONS:
        status = add_sections(at);
        break;
    case KVFI_TRT_FORM_STATE_HEADS:
        status = add_state_heads(at);
        break;
    default:
        status = add_heads(at);
        break;
    }
done:
    return status;
}

/** Adds what one view holds of one form. */
static enum kvf_status add_view(struct held *at)
{
    enum kvf_status status = KVF_OK;

    at->spot_count = 0;
    for (size_t i = 0; i < at->form->layer_count; i++) {
        const struct kvfi_trt_region *region = kvfi_trt_view_place(at->view, at->form->layers[i]);

        if (region)
            at->spots[at->spot_count++] = (struct kvfi_trt_spot){region->global_layer, region->start_bytes};
    }
    if (at->spot_count > 0) status = add_form(at);
    return status;
}

/** A ring's own group; where a member has no such ring, one that nothing is in. */
static enum kvf_status add_ring_groups(const struct kvfi_trt_native *native, const kvf_trtllm_rank *rank,
                                       struct kvfi_trt_side *side, struct kvf_error *error)
{
    const struct kvfi_trt_geometry *geometry = kvfi_trt_rank_geometry(rank);
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < native->form_count && status == KVF_OK; i++) {
        const struct kvfi_trt_form *form = &native->forms[i];
        struct kvf_group group = {.tokens_per_block = 1, .ring_tokens = 1, .stripes = 1};

        if (form->kind != KVFI_TRT_FORM_RING) continue;
        for (size_t v = 0; v < geometry->view_count; v++) {
            const struct kvfi_trt_view *view = &geometry->views[v];

            if (kvfi_trt_view_same_roles(view, form->views[1]) && kvfi_trt_view_common(view, form->views[1]) &&
                view->spec->ring_slot_bytes > 0 && view->layer_bytes >= view->spec->ring_slot_bytes)
                group.tokens_per_block = view->layer_bytes / view->spec->ring_slot_bytes;
        }
        group.ring_tokens = group.tokens_per_block;
        status = kvfi_trt_side_group(side, &group, error);
    }
    return status;
}

enum kvf_status kvfi_trt_native_side(const struct kvfi_trt_native *native, int side, size_t member, const char *name,
                                     struct kvfi_trt_side *out, struct kvf_error *error)
{
    const struct kvfi_trt_member *own = &native->members[side][member];
    const struct kvfi_trt_geometry *geometry = kvfi_trt_rank_geometry(own->rank);
    struct held at = {.rank = kvf_trtllm_rank_get_spec(own->rank), .member = own, .side = out, .error = error};
    enum kvf_status status;
    size_t most = 0;

    status = kvfi_trt_side_init(out, name, at.rank->page_table, error);
    if (status == KVF_OK)
        status = kvfi_trt_side_groups(out, at.rank->page_table->tokens_per_block, at.rank->cp_size, own->cp_rank,
                                      error);
    if (status == KVF_OK) status = add_ring_groups(native, own->rank, out, error);
    for (size_t i = 0; i < native->form_count; i++)
        if (native->forms[i].layer_count > most) most = native->forms[i].layer_count;
    at.spots = kvfi_alloc_array(most, sizeof *at.spots);
    if (status == KVF_OK && !at.spots) status = kvfi_fail_memory(error, "the layers of a rank");
    for (size_t i = 0; i < native->form_count; i++) {
        at.form = &native->forms[i];
        at.number = i;
        for (size_t v = 0; v < geometry->view_count && status == KVF_OK; v++) {
            at.view = &geometry->views[v];
            if (at.view->group->cache == at.form->views[1]->group->cache &&
                kvfi_trt_view_same_roles(at.view, at.form->views[1]))
                status = add_view(&at);
        }
    }
    free(at.spots);
    return status;
}
