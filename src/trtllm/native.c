/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/native.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "plan/plan.h"
#include "plan/share.h"
#include "trtllm/elect.h"

#include <inttypes.h>
#include <stdlib.h>

static const struct kvf_trtllm_rank_spec *spec_of(const kvf_trtllm_rank *rank)
{
    return kvf_trtllm_rank_get_spec(rank);
}

static void fini(struct kvfi_trt_native *native)
{
    for (size_t i = 0; i < native->form_count; i++) free(native->forms[i].layers);
    free(native->forms);
    free(native->members[0]);
    free(native->members[1]);
}

/** Lists the pairs of views that hold layers of one form in common. NULL keys with no status: there are none. */
static enum kvf_status list_pairs(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                  struct kvf_trtllm_view_pair **keys, size_t *count, struct kvf_error *error)
{
    const struct kvfi_trt_geometry *src = kvfi_trt_rank_geometry(self), *dst = kvfi_trt_rank_geometry(peer);
    enum kvf_status status = KVF_OK;
    size_t capacity = 0;

    for (size_t i = 0; i < src->view_count; i++) {
        for (size_t j = 0; j < dst->view_count; j++) {
            const struct kvfi_trt_view *a = &src->views[i], *b = &dst->views[j];

            if (a->group->cache != b->group->cache || !kvfi_trt_view_same_roles(a, b) || !kvfi_trt_view_common(a, b))
                continue;
            if (!kvfi_array_grow((void **)keys, *count, &capacity, sizeof **keys)) {
                status = kvfi_fail_memory(error, "the views of a pair");
                goto done;
            }
            (*keys)[(*count)++] = (struct kvf_trtllm_view_pair){a->key, b->key};
        }
    }
done:
    return status;
}

/** Numbers the ring pairs as their forms are. */
static enum kvf_status number_rings(const struct kvfi_trt_native *native, kvf_trtllm_pair *pair,
                                    struct kvf_error *error)
{
    bool *seen = kvfi_alloc_zeroed(native->ring_count, sizeof *seen);
    enum kvf_status status = KVF_OK;

    if (!seen) {
        status = kvfi_fail_memory(error, "the rings of a pair");
        goto done;
    }
    for (size_t i = 0; i < pair->view_count && status == KVF_OK; i++) {
        struct kvfi_trt_pair_view *view = &pair->views[i];
        const struct kvfi_trt_view *dst =
            kvfi_trt_geometry_view(kvfi_trt_rank_geometry(pair->peer), &view->key.peer);
        const struct kvfi_trt_view *src =
            kvfi_trt_geometry_view(kvfi_trt_rank_geometry(pair->self), &view->key.self);
        const struct kvfi_trt_form *form = NULL;

        if (view->mapper != KVF_TRTLLM_MAP_RING) continue;
        for (size_t p = 0; p < src->place_count && !form; p++)
            form = kvfi_trt_native_form(native, dst, src->places[p].global_layer);
        if (!form || form->kind != KVFI_TRT_FORM_RING || seen[form->ring]) {
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "group %" PRId64 " view %" PRId64
                               ": layers of one ring lie in several views of the other side", view->key.peer.group,
                               view->key.peer.view);
        } else {
            seen[form->ring] = true;
            view->ring = (uint32_t)form->ring;
        }
    }
    pair->ring_count = native->ring_count;
done:
    free(seen);
    return status;
}

/** Marks the view pairs that the share has layers of. */
static void mark_elected(kvf_trtllm_pair *pair)
{
    const struct kvf_layout_spec *spec = pair->plan ? kvf_layout_get_spec(pair->plan->src) : NULL;

    for (size_t i = 0; i < pair->view_count; i++) {
        struct kvfi_trt_pair_view *view = &pair->views[i];
        const struct kvfi_trt_view *dst =
            kvfi_trt_geometry_view(kvfi_trt_rank_geometry(pair->peer), &view->key.peer);

        for (size_t p = 0; p < pair->part_count && !view->elected; p++) {
            const struct kvf_view *part = &spec->views[p];

            if (pair->part_keys[p].group != view->key.self.group || pair->part_keys[p].view != view->key.self.view)
                continue;
            for (size_t l = 0; l < part->place_count && !view->elected; l++) {
                size_t cells = 0;

                if (kvfi_trt_view_place(dst, part->places[l].layer))
                    kvfi_share_find(pair->share, part->role, part->places[l].layer, &cells);
                view->elected = cells > 0;
            }
        }
        view->planned = view->elected;
    }
}

/** Refuses what would take long: the infos may be a peer's. */
static enum kvf_status check_work(const struct kvfi_trt_native *native, struct kvf_error *error)
{
    int64_t places = 0, views[2] = {0, 0};
    enum kvf_status status = KVF_OK;

    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < native->counts[side]; i++) {
            const struct kvfi_trt_geometry *geometry = kvfi_trt_rank_geometry(native->members[side][i].rank);

            if ((int64_t)geometry->view_count > views[side]) views[side] = (int64_t)geometry->view_count;
            for (size_t v = 0; v < geometry->view_count && places <= KVFI_TRT_NATIVE_MAX_PLACES; v++)
                places += 1 + (int64_t)geometry->views[v].place_count;
        }
    }
    if (places > KVFI_TRT_NATIVE_MAX_PLACES || views[0] * views[1] > KVFI_TRT_NATIVE_MAX_PAIRS)
        status = kvfi_fail(error, KVF_ERR_LIMIT, "all ranks have more than %d views and layers of views, or %"
                           PRId64 " by %" PRId64 " views are more than %d pairs", KVFI_TRT_NATIVE_MAX_PLACES,
                           views[0], views[1], KVFI_TRT_NATIVE_MAX_PAIRS);
    return status;
}

/** Makes the pair from members that are known. */
static enum kvf_status create_pair(struct kvfi_trt_native *native, kvf_trtllm_pair **out, struct kvf_error *error)
{
    const kvf_trtllm_rank *self = native->members[0][native->picked[0]].rank;
    const kvf_trtllm_rank *peer = native->members[1][native->picked[1]].rank;
    struct kvf_trtllm_view_pair *keys = NULL;
    kvf_trtllm_pair *pair = NULL;
    enum kvf_status status;
    size_t count = 0;

    status = check_work(native, error);
    if (status == KVF_OK) status = list_pairs(self, peer, &keys, &count, error);
    if (status == KVF_OK) status = kvfi_trt_pair_new(self, peer, false, keys, count, &pair, error);
    if (status == KVF_OK) status = kvfi_trt_pair_judge(pair, error);
    if (status == KVF_OK) status = kvfi_trt_native_forms(native, error);
    if (status == KVF_OK) status = number_rings(native, pair, error);
    if (status == KVF_OK && native->form_count > 0) status = kvfi_trt_native_plan(native, pair, error);
    if (status != KVF_OK) goto done;
    mark_elected(pair);
    *out = pair;
    pair = NULL;
done:
    kvf_trtllm_pair_release(pair);
    free(keys);
    return status;
}

/** Refuses what cannot be planned at all. */
static enum kvf_status check_rank(const kvf_trtllm_rank *rank, const char *side, struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *spec = spec_of(rank);
    enum kvf_status status = KVF_OK;

    if (!spec->page_table)
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s rank %" PRId64 " has no page table", side,
                           spec->instance_rank);
    else if (spec->page_table->tokens_per_block < 1)
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s rank %" PRId64 " has blocks of %" PRId64 " tokens", side,
                           spec->instance_rank, spec->page_table->tokens_per_block);
    return status;
}

/** Derives the ranks of a rank's own stage and DP group. */
static enum kvf_status imply_members(struct kvfi_trt_native *native, int side, const kvf_trtllm_rank *rank,
                                     struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *spec = spec_of(rank);
    int64_t tp = kvfi_trt_group_tp(spec), cp = spec->cp_size > 1 ? spec->cp_size : 1, count;
    enum kvf_status status = KVF_OK;

    if (!kvfi_mul_i64(tp, cp, &count) || count > KVFI_TRT_NATIVE_MAX_MEMBERS) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "%" PRId64 " by %" PRId64 " ranks of a stage, at most %d are planned",
                           tp, cp, KVFI_TRT_NATIVE_MAX_MEMBERS);
        goto done;
    }
    native->members[side] = kvfi_alloc_array((size_t)count, sizeof *native->members[side]);
    if (!native->members[side]) {
        status = kvfi_fail_memory(error, "the ranks of a stage");
        goto done;
    }
    for (int64_t c = 0; c < cp; c++) {
        for (int64_t t = 0; t < tp; t++) {
            struct kvfi_trt_member *member = &native->members[side][native->counts[side]];

            *member = (struct kvfi_trt_member){rank, spec->tp_rank - spec->tp_rank % tp + t, c};
            if (t == spec->tp_rank % tp && c == spec->cp_rank) native->picked[side] = native->counts[side];
            native->counts[side]++;
        }
    }
done:
    return status;
}

enum kvf_status kvfi_trt_native_create(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                       kvf_trtllm_pair **out, struct kvf_error *error)
{
    struct kvfi_trt_native native = {.implied = true};
    enum kvf_status status = KVF_OK;

    /* ranks without memory of their own exchange nothing */
    if (!spec_of(self)->page_table || !spec_of(peer)->page_table) {
        status = kvfi_trt_pair_new(self, peer, false, NULL, 0, out, error);
        goto done;
    }
    status = check_rank(self, "source", error);
    if (status == KVF_OK) status = check_rank(peer, "destination", error);
    if (status == KVF_OK) status = imply_members(&native, 0, self, error);
    if (status == KVF_OK) status = imply_members(&native, 1, peer, error);
    if (status == KVF_OK) status = create_pair(&native, out, error);
done:
    fini(&native);
    return status;
}

/** Takes the ranks of one DP group: that of the picked rank. */
static enum kvf_status take_members(struct kvfi_trt_native *native, int side, const kvf_trtllm_rank *const *ranks,
                                    size_t count, size_t picked, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    native->members[side] = kvfi_alloc_array(count, sizeof *native->members[side]);
    if (!native->members[side]) status = kvfi_fail_memory(error, "the ranks of an instance");
    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        const struct kvf_trtllm_rank_spec *spec = spec_of(ranks[i]);

        if (spec->dp_rank != spec_of(ranks[picked])->dp_rank) continue;
        status = check_rank(ranks[i], side == 0 ? "source" : "destination", error);
        if (i == picked) native->picked[side] = native->counts[side];
        native->members[side][native->counts[side]++] =
            (struct kvfi_trt_member){ranks[i], spec->tp_rank, spec->cp_rank};
    }
    return status;
}

enum kvf_status kvf_trtllm_pair_native(const kvf_trtllm_rank *const *src, size_t src_count,
                                       const kvf_trtllm_rank *const *dst, size_t dst_count, size_t source,
                                       size_t destination, kvf_trtllm_pair **out, struct kvf_error *error)
{
    struct kvfi_trt_native native = {.implied = false};
    enum kvf_status status;

    if (!src || !dst || !out || source >= src_count || destination >= dst_count)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "source %zu of %zu ranks, destination %zu of %zu ranks",
                         source, src_count, destination, dst_count);
    for (size_t i = 0; i < src_count; i++)
        if (!src[i]) return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "source %zu is NULL", i);
    for (size_t i = 0; i < dst_count; i++)
        if (!dst[i]) return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "destination %zu is NULL", i);
    status = take_members(&native, 0, src, src_count, source, error);
    if (status == KVF_OK) status = take_members(&native, 1, dst, dst_count, destination, error);
    if (status == KVF_OK) status = create_pair(&native, out, error);
    fini(&native);
    return status;
}
