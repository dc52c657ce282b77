/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/mapper.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "trtllm/elect.h"
#include "trtllm/mapper_kinds.h"
#include "trtllm/names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static enum kvf_status find_layers(struct kvfi_trt_mapper *mapper, struct kvf_error *error)
{
    const struct kvfi_trt_view *src = mapper->src.view, *dst = mapper->dst.view;
    enum kvf_status status = KVF_OK;

    mapper->layers = kvfi_alloc_array(src->place_count, sizeof *mapper->layers);
    if (!mapper->layers) {
        status = kvfi_fail_memory(error, "the layers of a view pair");
        goto done;
    }
    for (size_t i = 0; i < src->place_count; i++) {
        const struct kvfi_trt_region *there = kvfi_trt_view_place(dst, src->places[i].global_layer);

        if (there) {
            struct kvfi_trt_common *common = &mapper->layers[mapper->layer_count++];

            common->global_layer = src->places[i].global_layer;
            common->src_start = src->places[i].start_bytes;
            common->dst_start = there->start_bytes;
        }
    }
done:
    return status;
}

/* Sizes of both sides, in the order that upstream asks for them. */
static enum kvf_status measure(struct kvfi_trt_mapper *mapper, struct kvf_error *error)
{
    struct kvfi_trt_mapper_side *sides[2] = {&mapper->src, &mapper->dst};
    enum kvf_status status = KVF_OK;

    for (int i = 0; i < 2 && status == KVF_OK; i++) {
        status = kvfi_trt_view_check(sides[i]->view, error);
        sides[i]->layer_bytes = sides[i]->view->layer_bytes;
    }
    for (int i = 0; i < 2 && status == KVF_OK && !mapper->is_state; i++) {
        status = kvfi_trt_view_buffers(sides[i]->view, sides[i]->view->key.group, sides[i]->view->key.view,
                                       &sides[i]->buffers, error);
    }
    return status;
}

/* Whole regions: what Intact and Replicated check. `name` is how upstream calls it in its texts. */
static enum kvf_status plan_whole(struct kvfi_trt_mapper *mapper, int32_t kind, const char *name,
                                  struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (mapper->src.layer_bytes != mapper->dst.layer_bytes) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s cache region size mismatch: local=%" PRId64 ", peer=%"
                           PRId64, name, mapper->src.layer_bytes, mapper->dst.layer_bytes);
        goto done;
    }
    if (mapper->layer_count == 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s layer offsets must be non-empty and equal-length: src=0,"
                           " dst=0", name);
        goto done;
    }
    mapper->name = kind;
done:
    return status;
}

static enum kvf_status plan_ring(struct kvfi_trt_mapper *mapper, struct kvf_error *error)
{
    struct kvfi_trt_mapper_side *sides[2] = {&mapper->src, &mapper->dst};
    int64_t slot = mapper->src.view->spec->ring_slot_bytes, other = mapper->dst.view->spec->ring_slot_bytes;
    enum kvf_status status = KVF_OK;

    if (slot != other || slot <= 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "Ring slot size mismatch: local=%" PRId64 ", peer=%" PRId64,
                           slot, other);
        goto done;
    }
    for (int i = 0; i < 2; i++) {
        if (sides[i]->layer_bytes <= 0 || sides[i]->layer_bytes % slot != 0) {
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "Ring region size is not a multiple of its slot (%s):"
                               " bytes_per_layer=%" PRId64 ", ring_slot_bytes=%" PRId64, i == 0 ? "local" : "peer",
                               sides[i]->layer_bytes, slot);
            goto done;
        }
        sides[i]->ring_slots = sides[i]->layer_bytes / slot;
    }
    mapper->unit_bytes = slot;
    mapper->name = KVF_TRTLLM_MAP_RING;
done:
    return status;
}

static enum kvf_status plan_paged(struct kvfi_trt_mapper *mapper, const struct kvf_trtllm_rank_spec *self,
                                  const struct kvf_trtllm_rank_spec *peer, struct kvf_error *error)
{
    const struct kvf_trtllm_view *src = mapper->src.view->spec, *dst = mapper->dst.view->spec;
    enum kvf_status status;

    if (src->mapper == KVF_TRTLLM_REPLICATED) {
        bool rings = src->ring_slot_bytes != KVF_TRTLLM_NONE && dst->ring_slot_bytes != KVF_TRTLLM_NONE;

        status = rings && mapper->src.layer_bytes != mapper->dst.layer_bytes
                     ? plan_ring(mapper, error)
                     : plan_whole(mapper, KVF_TRTLLM_MAP_REPLICATED, "Replicated", error);
    } else if (kvfi_trt_key_only(self) || src->num_kv_heads == dst->num_kv_heads) {
        status = plan_whole(mapper, KVF_TRTLLM_MAP_INTACT, kvfi_trt_kind_text(src->mapper), error);
    } else {
        mapper->src.heads = src->num_kv_heads;
        mapper->dst.heads = dst->num_kv_heads;
        status = src->mapper == KVF_TRTLLM_NHD ? kvfi_trt_plan_nhd(mapper, self, peer, error)
                                               : kvfi_trt_plan_hnd(mapper, self, peer, error);
    }
    return status;
}

static enum kvf_status plan_state(struct kvfi_trt_mapper *mapper, const struct kvf_trtllm_rank_spec *self,
                                  const struct kvf_trtllm_rank_spec *peer, struct kvf_error *error)
{
    int64_t self_tp, peer_tp, number, kind = mapper->src.view->spec->mapper;
    bool replicated = kind == KVF_TRTLLM_REPLICATED;
    enum kvf_status status = KVF_OK;

    kvfi_trt_state_tp(self, &self_tp, &number);
    kvfi_trt_state_tp(peer, &peer_tp, &number);
    if (replicated || self_tp == peer_tp) {
        if (mapper->src.layer_bytes != mapper->dst.layer_bytes) {
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s recurrent %s slot_bytes differs (local=%" PRId64
                               ", peer=%" PRId64 ")", replicated ? "Replicated" : "Matching",
                               replicated ? "side-state" : "state", mapper->src.layer_bytes, mapper->dst.layer_bytes);
            goto done;
        }
        mapper->name = KVF_TRTLLM_MAP_STATE_MATCH;
    } else if (kind == KVF_TRTLLM_SECTIONED) {
        status = kvfi_trt_plan_sections(mapper, self, peer, error);
    } else {
        status = kvfi_trt_plan_state_heads(mapper, self, peer, error);
    }
done:
    return status;
}

static enum kvf_status plan(struct kvfi_trt_mapper *mapper, const struct kvf_trtllm_rank_spec *self,
                            const struct kvf_trtllm_rank_spec *peer, struct kvf_error *error)
{
    const struct kvf_trtllm_view *src = mapper->src.view->spec, *dst = mapper->dst.view->spec;
    enum kvf_status status = KVF_OK;

    if (src->mapper != dst->mapper) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "PeerRegistrar.get_kv_map: incompatible mapper kinds (local=%s,"
                           " peer=%s)", kvfi_trt_kind_text(src->mapper), kvfi_trt_kind_text(dst->mapper));
        goto done;
    }
    status = measure(mapper, error);
    if (status == KVF_OK) {
        status = mapper->is_state ? plan_state(mapper, self, peer, error) : plan_paged(mapper, self, peer, error);
    }
done:
    return status;
}

enum kvf_status kvfi_trt_mapper_init(struct kvfi_trt_mapper *out, const kvf_trtllm_rank *self,
                                     const kvf_trtllm_rank *peer, const struct kvf_trtllm_view_pair *pair,
                                     struct kvf_error *error)
{
    struct kvfi_trt_mapper mapper = {.src.view = kvfi_trt_geometry_view(kvfi_trt_rank_geometry(self), &pair->self),
                                     .dst.view = kvfi_trt_geometry_view(kvfi_trt_rank_geometry(peer), &pair->peer)};
    struct kvf_error reason;
    enum kvf_status status;

    if (!mapper.src.view || !mapper.dst.view) {
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "view (%" PRId64 ", %" PRId64 ") to view (%" PRId64 ", %" PRId64
                           "): the %s has no such view", pair->self.group, pair->self.view, pair->peer.group,
                           pair->peer.view, mapper.src.view ? "peer" : "local rank");
        goto done;
    }
    mapper.is_state = mapper.src.view->group->cache == KVF_TRTLLM_STATE;
    mapper.src.buffers = mapper.dst.buffers = 1;
    status = find_layers(&mapper, error);
    if (status != KVF_OK) goto done;
    status = plan(&mapper, kvf_trtllm_rank_get_spec(self), kvf_trtllm_rank_get_spec(peer), &reason);
    if (status == KVF_ERR_INCOMPATIBLE) {
        mapper.name = KVF_TRTLLM_MAP_ERROR;
        mapper.error = kvfi_text_copy(reason.text);
        status = mapper.error ? KVF_OK : KVF_ERR_NO_MEMORY;
    }
    if (status != KVF_OK) {
        kvfi_fail_memory(error, "the mapper of a view pair");
        goto done;
    }
    *out = mapper;
    memset(&mapper, 0, sizeof mapper);
done:
    kvfi_trt_mapper_fini(&mapper);
    return status;
}

void kvfi_trt_mapper_fini(struct kvfi_trt_mapper *mapper)
{
    free(mapper->error);
    free(mapper->cuts);
    free(mapper->layers);
    memset(mapper, 0, sizeof *mapper);
}
