/* SPDX-License-Identifier: Apache-2.0 */
/* How layers are counted: decided from one source rank that holds a layer, and the destination. */
#include "trtllm/native.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "plan/plan.h"
#include "trtllm/elect.h"
#include "trtllm/names.h"

#include <inttypes.h>
#include <stdio.h>

/** Two views that hold a layer in common. */
struct meeting {
    const struct kvfi_trt_view *views[2];
    const struct kvf_trtllm_rank_spec *ranks[2];
    struct kvf_error *error;
};

static enum kvf_status refuse(const struct meeting *at, const char *what, int64_t src, int64_t dst)
{
    const int64_t values[2] = {src, dst};
    char roles[160], texts[2][24];

    for (int i = 0; i < 2; i++) {
        if (values[i] == KVF_TRTLLM_NONE) snprintf(texts[i], sizeof texts[i], "None");
        else snprintf(texts[i], sizeof texts[i], "%" PRId64, values[i]);
    }
    return kvfi_fail(at->error, KVF_ERR_INCOMPATIBLE, "view %s: %s is %s at the source, %s at the destination",
                     kvfi_trt_view_role_text(at->views[1], roles, sizeof roles), what, texts[0], texts[1]);
}

static int64_t block_tokens(const struct meeting *at, int side)
{
    return at->ranks[side]->page_table->tokens_per_block;
}

/** Same bytes on every rank: whole blocks of equal size, or two rings. What lies inside a block is not known, so that
 *  it cannot be cut at tokens. */
static enum kvf_status form_replicated(const struct meeting *at, struct kvfi_trt_form *form)
{
    const int64_t bytes[2] = {at->views[0]->layer_bytes, at->views[1]->layer_bytes};
    const int64_t slots[2] = {at->views[0]->spec->ring_slot_bytes, at->views[1]->spec->ring_slot_bytes};
    bool ring = slots[0] > 0 && slots[1] > 0 && bytes[0] != bytes[1];
    enum kvf_status status = KVF_OK;

    form->shared = true;
    if (ring) {
        form->kind = KVFI_TRT_FORM_RING;
        if (slots[0] != slots[1]) status = refuse(at, "bytes of a ring's slot", slots[0], slots[1]);
        else if (bytes[0] % slots[0] || bytes[1] % slots[1])
            status = refuse(at, "bytes of a ring, which is no multiple of its slot,", bytes[0], bytes[1]);
    } else if (block_tokens(at, 0) != block_tokens(at, 1) && !form->is_state) {
        status = refuse(at, "tokens per block of a replicated view, whose blocks are whole,", block_tokens(at, 0),
                        block_tokens(at, 1));
    } else if (bytes[0] != bytes[1]) {
        status = refuse(at, "bytes per layer", bytes[0], bytes[1]);
    }
    return status;
}

/** Heads model-wide: the smaller of both sides' sums, since the other one holds copies. */
static bool count_heads(const struct meeting *at, int64_t *total)
{
    int64_t sums[2];
    bool ok = true;

    for (int i = 0; i < 2; i++)
        ok = ok && kvfi_mul_i64(at->views[i]->spec->num_kv_heads, kvfi_trt_group_tp(at->ranks[i]), &sums[i]);
    if (ok) *total = sums[0] < sums[1] ? sums[0] : sums[1];
    return ok;
}

static enum kvf_status form_heads(const struct meeting *at, struct kvfi_trt_form *form)
{
    const int64_t heads[2] = {at->views[0]->spec->num_kv_heads, at->views[1]->spec->num_kv_heads};
    const int64_t tp[2] = {kvfi_trt_group_tp(at->ranks[0]), kvfi_trt_group_tp(at->ranks[1])};
    bool alike = at->views[0]->spec->mapper == at->views[1]->spec->mapper && block_tokens(at, 0) == block_tokens(at, 1);
    bool key_only = kvfi_trt_key_only(at->ranks[1]);
    enum kvf_status status = KVF_OK;

    form->shared = key_only;
    if (kvfi_trt_key_only(at->ranks[0]) != key_only) {
        status = refuse(at, "is_mla", !key_only, key_only);
    } else if (!key_only && (heads[0] <= 0 || heads[1] <= 0)) {
        status = refuse(at, "num_kv_heads, which must be positive,", heads[0], heads[1]);
    } else if (alike && (key_only || heads[0] == heads[1])) {
        form->kind = KVFI_TRT_FORM_REGION;
        form->unit_total = tp[0] < tp[1] ? tp[0] : tp[1];
        if (at->views[0]->layer_bytes != at->views[1]->layer_bytes)
            status = refuse(at, "bytes per layer", at->views[0]->layer_bytes, at->views[1]->layer_bytes);
    } else if (at->views[0]->buffers != at->views[1]->buffers) {
        status = refuse(at, "buffers per layer", at->views[0]->buffers, at->views[1]->buffers);
    } else {
        form->kind = alike && at->views[0]->spec->mapper == KVF_TRTLLM_INDEXED ? KVFI_TRT_FORM_BLOCKS
                                                                              : KVFI_TRT_FORM_TOKENS;
        if (!key_only && !count_heads(at, &form->unit_total))
            status = kvfi_fail(at->error, KVF_ERR_OVERFLOW, "the heads of all ranks do not fit in 64 bits");
    }
    return status;
}

static enum kvf_status form_state(const struct meeting *at, struct kvfi_trt_form *form)
{
    const struct kvf_trtllm_view *specs[2] = {at->views[0]->spec, at->views[1]->spec};
    int64_t sizes[2], number;
    enum kvf_status status = KVF_OK;

    for (int i = 0; i < 2; i++) kvfi_trt_state_tp(at->ranks[i], &sizes[i], &number);
    if (sizes[0] == sizes[1]) {
        form->kind = KVFI_TRT_FORM_REGION;
        form->unit_total = sizes[0];
        if (at->views[0]->layer_bytes != at->views[1]->layer_bytes)
            status = refuse(at, "bytes per layer", at->views[0]->layer_bytes, at->views[1]->layer_bytes);
    } else if (specs[0]->mapper == KVF_TRTLLM_SECTIONED) {
        form->kind = KVFI_TRT_FORM_SECTIONS;
        form->unit_total = kvfi_lcm(sizes[0], sizes[1]);
        if (specs[0]->section_count != specs[1]->section_count || specs[0]->section_count == 0)
            status = refuse(at, "number of sections", (int64_t)specs[0]->section_count,
                            (int64_t)specs[1]->section_count);
    } else {
        form->kind = KVFI_TRT_FORM_STATE_HEADS;
        if (specs[0]->bytes_per_head <= 0 || specs[0]->bytes_per_head != specs[1]->bytes_per_head)
            status = refuse(at, "bytes per head", specs[0]->bytes_per_head, specs[1]->bytes_per_head);
        else if (!kvfi_mul_i64(at->views[0]->layer_bytes / specs[0]->bytes_per_head, sizes[0], &form->unit_total))
            status = kvfi_fail(at->error, KVF_ERR_OVERFLOW, "the heads of all ranks do not fit in 64 bits");
    }
    return status;
}

/** Decides how the layers of two views are counted. */
static enum kvf_status make_form(const struct meeting *at, struct kvfi_trt_form *form)
{
    const int64_t kinds[2] = {at->views[0]->spec->mapper, at->views[1]->spec->mapper};
    bool either = (kinds[0] == KVF_TRTLLM_INDEXED || kinds[0] == KVF_TRTLLM_NHD) &&
                  (kinds[1] == KVF_TRTLLM_INDEXED || kinds[1] == KVF_TRTLLM_NHD);
    char roles[160];
    enum kvf_status status = KVF_OK;
    int64_t buffers;

    *form = (struct kvfi_trt_form){.views = {at->views[0], at->views[1]},
                                   .is_state = at->views[1]->group->cache == KVF_TRTLLM_STATE};
    for (int i = 0; i < 2 && status == KVF_OK; i++) {
        status = kvfi_trt_view_check(at->views[i], at->error);
        if (status == KVF_OK)
            status = kvfi_trt_view_buffers(at->views[i], at->views[i]->key.group, at->views[i]->key.view, &buffers,
                                           at->error);
    }
    if (status != KVF_OK) goto done;
    if (kinds[0] != kinds[1] && (form->is_state || !either))
        status = kvfi_fail(at->error, KVF_ERR_INCOMPATIBLE,
                           "view %s: its kind is %s at the source, %s at the destination",
                           kvfi_trt_view_role_text(at->views[1], roles, sizeof roles), kvfi_trt_kind_text(kinds[0]),
                           kvfi_trt_kind_text(kinds[1]));
    else if (kinds[0] == KVF_TRTLLM_REPLICATED) status = form_replicated(at, form);
    else status = form->is_state ? form_state(at, form) : form_heads(at, form);
    if (form->shared) form->unit_total = 1;
done:
    return status;
}

/** Finds a view of equal roles that holds a layer, on one rank. */
static const struct kvfi_trt_view *find_on_rank(const kvf_trtllm_rank *rank, const struct kvfi_trt_view *like,
                                                int64_t layer)
{
    const struct kvfi_trt_geometry *geometry = kvfi_trt_rank_geometry(rank);
    int64_t group = kvfi_trt_geometry_group(geometry, like->group->cache, layer);
    const struct kvfi_trt_view *found = NULL;

    for (size_t i = group < 0 ? 0 : geometry->first_view[group];
         group >= 0 && i < geometry->first_view[group + 1] && !found; i++) {
        const struct kvfi_trt_view *view = &geometry->views[i];

        if (kvfi_trt_view_same_roles(view, like) && kvfi_trt_view_place(view, layer)) found = view;
    }
    return found;
}

/** Finds a source rank that holds a layer: the pair's own first. */
static const struct kvfi_trt_view *find_source(const struct kvfi_trt_native *native, const struct kvfi_trt_view *like,
                                               int64_t layer, const kvf_trtllm_rank **rank)
{
    const struct kvfi_trt_member *members = native->members[0];
    const struct kvfi_trt_view *found;

    *rank = members[native->picked[0]].rank;
    found = find_on_rank(*rank, like, layer);
    for (size_t i = 0; i < native->counts[0] && !found; i++) {
        if (i > 0 && members[i].rank == members[i - 1].rank) continue;
        *rank = members[i].rank;
        found = find_on_rank(*rank, like, layer);
    }
    return found;
}

const struct kvfi_trt_form *kvfi_trt_native_form(const struct kvfi_trt_native *native,
                                                 const struct kvfi_trt_view *dst_view, int64_t layer)
{
    const struct kvfi_trt_form *found = NULL;

    for (size_t i = 0; i < native->form_count && !found; i++) {
        const struct kvfi_trt_form *form = &native->forms[i];

        for (size_t j = 0; j < form->layer_count && form->views[1] == dst_view && !found; j++)
            if (form->layers[j] == layer) found = form;
    }
    return found;
}

/** Adds a layer to the form of its two views, which is made when it is the first. */
static enum kvf_status add_layer(struct kvfi_trt_native *native, const struct meeting *at, size_t first_form,
                                 int64_t layer)
{
    struct kvfi_trt_form *form = NULL;
    enum kvf_status status = KVF_OK;

    for (size_t i = first_form; i < native->form_count && !form; i++)
        if (native->forms[i].views[0] == at->views[0]) form = &native->forms[i];
    if (!form) {
        if (native->form_count == KVFI_TRT_NATIVE_MAX_FORMS) {
            status = kvfi_fail(at->error, KVF_ERR_LIMIT, "more than %d ways to count layers",
                               KVFI_TRT_NATIVE_MAX_FORMS);
            goto done;
        }
        if (!kvfi_array_grow((void **)&native->forms, native->form_count, &native->form_capacity,
                             sizeof *native->forms))
            goto no_memory;
        form = &native->forms[native->form_count];
        status = make_form(at, form);
        if (status != KVF_OK) goto done;
        native->form_count++;
        if (form->kind == KVFI_TRT_FORM_RING) form->ring = native->ring_count++;
    }
    if (!kvfi_array_grow((void **)&form->layers, form->layer_count, &form->layer_capacity, sizeof *form->layers))
        goto no_memory;
    form->layers[form->layer_count++] = layer;
    goto done;
no_memory:
    status = kvfi_fail_memory(at->error, "the layers of a pair");
done:
    return status;
}

/** Sorts the layers of one destination view into forms. */
static enum kvf_status add_view(struct kvfi_trt_native *native, const struct kvfi_trt_view *view,
                                struct kvf_error *error)
{
    const kvf_trtllm_rank *self = native->members[1][native->picked[1]].rank;
    struct meeting at = {.views = {NULL, view}, .ranks = {NULL, kvf_trtllm_rank_get_spec(self)}, .error = error};
    size_t first_form = native->form_count;
    enum kvf_status status = KVF_OK;
    char roles[160];

    for (size_t i = 0; i < view->place_count && status == KVF_OK; i++) {
        int64_t layer = view->places[i].global_layer;
        const kvf_trtllm_rank *rank = NULL;

        at.views[0] = find_source(native, view, layer, &rank);
        if (at.views[0]) {
            at.ranks[0] = kvf_trtllm_rank_get_spec(rank);
            status = add_layer(native, &at, first_form, layer);
        } else if (!native->implied) {
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "view %s layer %" PRId64 ": no source rank holds it",
                               kvfi_trt_view_role_text(view, roles, sizeof roles), layer);
        }
    }
    return status;
}

enum kvf_status kvfi_trt_native_forms(struct kvfi_trt_native *native, struct kvf_error *error)
{
    const struct kvfi_trt_geometry *geometry =
        kvfi_trt_rank_geometry(native->members[1][native->picked[1]].rank);
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < geometry->view_count && status == KVF_OK; i++)
        status = add_view(native, &geometry->views[i], error);
    return status;
}
