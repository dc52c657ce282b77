/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/mapper_kinds.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "trtllm/elect.h"

#include <inttypes.h>

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t kvfi_trt_inner_head(int64_t count, int64_t size, int64_t rank, int64_t ranks)
{
    int64_t total, scaled;

    if (!kvfi_mul_i64(count, size, &total) || !kvfi_mul_i64(rank, total, &scaled)) return 0;
    return scaled / ranks % count;
}

/* Where each side's heads start: the side of fewer TP ranks is met at an inner head, the other is taken whole. */
static enum kvf_status place_heads(struct kvfi_trt_mapper *mapper, const struct kvf_trtllm_rank_spec *self,
                                   const struct kvf_trtllm_rank_spec *peer, const char *name, struct kvf_error *error)
{
    int64_t self_tp = kvfi_trt_group_tp(self), peer_tp = kvfi_trt_group_tp(peer), src = 0, dst = 0;
    int64_t copied = smaller(mapper->src.heads, mapper->dst.heads);
    enum kvf_status status = KVF_OK;

    if (self_tp < peer_tp) src = kvfi_trt_inner_head(mapper->src.heads, self_tp, peer->tp_rank, peer_tp);
    if (self_tp > peer_tp) dst = kvfi_trt_inner_head(mapper->dst.heads, peer_tp, self->tp_rank, self_tp);
    if (src + copied > mapper->src.heads || dst + copied > mapper->dst.heads) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s head slice passes the end of a region: %" PRId64 " heads"
                           " from local %" PRId64 " of %" PRId64 " to peer %" PRId64 " of %" PRId64, name, copied, src,
                           mapper->src.heads, dst, mapper->dst.heads);
        goto done;
    }
    mapper->copy_bytes = copied * mapper->unit_bytes;
    mapper->src.shift_bytes = src * mapper->unit_bytes;
    mapper->dst.shift_bytes = dst * mapper->unit_bytes;
done:
    return status;
}

/* What both head mappers look at first. */
static enum kvf_status check_lists(const struct kvfi_trt_mapper *mapper, const char *name, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (mapper->src.buffers != mapper->dst.buffers) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s buffer count per layer mismatch: local=%" PRId64 ", peer=%"
                           PRId64, name, mapper->src.buffers, mapper->dst.buffers);
    } else if (mapper->layer_count == 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s layer offsets must be non-empty and equal-length: src=0,"
                           " dst=0", name);
    }
    return status;
}

static enum kvf_status check_hnd_side(const struct kvfi_trt_mapper_side *side, const char *name,
                                      struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (side->buffers <= 0 || side->layer_bytes % side->buffers != 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "HND layer geometry is not evenly divisible (%s):"
                           " bytes_per_layer=%" PRId64 ", buffers_per_layer=%" PRId64, name, side->layer_bytes,
                           side->buffers);
    }
    return status;
}

static enum kvf_status check_hnd_heads(const struct kvfi_trt_mapper_side *side, const char *name,
                                       struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (side->heads <= 0 || side->layer_bytes / side->buffers % side->heads != 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "HND head slicing is not byte-aligned (%s): layer_kv_bytes=%"
                           PRId64 ", kv_heads=%" PRId64, name, side->layer_bytes / side->buffers, side->heads);
    }
    return status;
}

enum kvf_status kvfi_trt_plan_hnd(struct kvfi_trt_mapper *mapper, const struct kvf_trtllm_rank_spec *self,
                                  const struct kvf_trtllm_rank_spec *peer, struct kvf_error *error)
{
    enum kvf_status status = check_lists(mapper, "HND", error);
    int64_t local, remote;

    if (status == KVF_OK) status = check_hnd_side(&mapper->src, "local", error);
    if (status == KVF_OK) status = check_hnd_side(&mapper->dst, "peer", error);
    if (status == KVF_OK) status = check_hnd_heads(&mapper->src, "local", error);
    if (status == KVF_OK) status = check_hnd_heads(&mapper->dst, "peer", error);
    if (status != KVF_OK) goto done;
    local = mapper->src.layer_bytes / mapper->src.buffers / mapper->src.heads;
    remote = mapper->dst.layer_bytes / mapper->dst.buffers / mapper->dst.heads;
    if (local != remote) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "HND bytes per head mismatch: local=%" PRId64 ", peer=%" PRId64,
                           local, remote);
        goto done;
    }
    mapper->unit_bytes = local;
    status = place_heads(mapper, self, peer, "HND", error);
    if (status == KVF_OK) mapper->name = KVF_TRTLLM_MAP_HND;
done:
    return status;
}

/* Bytes of one head of one token, or -1 and the error. */
static int64_t token_head_bytes(const struct kvfi_trt_mapper_side *side, int64_t tokens, struct kvf_error *error)
{
    int64_t pieces = 0, bytes = -1;

    if (side->buffers > 0 && tokens > 0 && side->heads > 0) {
        if (!kvfi_mul_i64(side->buffers, tokens, &pieces) || !kvfi_mul_i64(pieces, side->heads, &pieces)) pieces = 0;
    }
    if (pieces > 0 && side->layer_bytes % pieces == 0) {
        bytes = side->layer_bytes / pieces;
    } else {
        kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "NHD region geometry is not evenly divisible: bytes_per_layer=%" PRId64
                  ", buffers_per_layer=%" PRId64 ", tokens_per_block=%" PRId64 ", kv_heads=%" PRId64 ", denominator=%"
                  PRId64, side->layer_bytes, side->buffers, tokens, side->heads, pieces);
    }
    return bytes;
}

enum kvf_status kvfi_trt_plan_nhd(struct kvfi_trt_mapper *mapper, const struct kvf_trtllm_rank_spec *self,
                                  const struct kvf_trtllm_rank_spec *peer, struct kvf_error *error)
{
    int64_t tokens = self->attention ? self->attention->tokens_per_block : 0;
    int64_t peer_tokens = peer->attention ? peer->attention->tokens_per_block : 0, local, remote = -1;
    enum kvf_status status = KVF_ERR_INCOMPATIBLE;

    if (tokens != peer_tokens) {
        kvfi_fail(error, status, "NHDHeadMismatchMapper requires equal tokens_per_block; local=%" PRId64 ", peer=%"
                  PRId64, tokens, peer_tokens);
        goto done;
    }
    status = check_lists(mapper, "NHD", error);
    if (status != KVF_OK) goto done;
    local = token_head_bytes(&mapper->src, tokens, error);
    if (local >= 0) remote = token_head_bytes(&mapper->dst, tokens, error);
    if (local < 0 || remote < 0) {
        status = KVF_ERR_INCOMPATIBLE;
        goto done;
    }
    if (local != remote) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "NHD bytes per token/head mismatch: local=%" PRId64 ", peer=%"
                           PRId64, local, remote);
        goto done;
    }
    mapper->tokens = tokens;
    mapper->unit_bytes = local;
    status = place_heads(mapper, self, peer, "NHD", error);
    if (status == KVF_OK) mapper->name = KVF_TRTLLM_MAP_NHD;
done:
    return status;
}

/* How the state ranks of two sides stand to each other: which is finer, by how much, and which part of the coarser
 * side's region the finer one's is. */
struct state_ratio {
    int64_t ratio, part;
    bool src_is_coarser;
};

static enum kvf_status state_ratio(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_rank_spec *peer,
                                   struct state_ratio *out, struct kvf_error *error)
{
    int64_t self_tp, self_number, peer_tp, peer_number, larger, less;
    enum kvf_status status = KVF_OK;

    kvfi_trt_state_tp(self, &self_tp, &self_number);
    kvfi_trt_state_tp(peer, &peer_tp, &peer_number);
    larger = self_tp > peer_tp ? self_tp : peer_tp;
    less = smaller(self_tp, peer_tp);
    if (larger % less != 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "TP sizes must be divisible: local=%" PRId64 ", peer=%" PRId64,
                           self_tp, peer_tp);
        goto done;
    }
    out->src_is_coarser = self_tp < peer_tp;
    out->ratio = larger / less;
    out->part = (out->src_is_coarser ? peer_number : self_number) % out->ratio;
done:
    return status;
}

/* A part of a region that starts at `part * bytes` must end inside it. */
static bool ends_inside(int64_t part, int64_t bytes, int64_t region)
{
    int64_t end;

    return bytes >= 0 && kvfi_mad_i64(part, bytes, bytes, &end) && end <= region;
}

static enum kvf_status cut_sections(struct kvfi_trt_mapper *mapper, const struct state_ratio *ratio,
                                    struct kvf_error *error)
{
    const struct kvf_trtllm_view *src = mapper->src.view->spec, *dst = mapper->dst.view->spec;
    int64_t src_begin = 0, dst_begin = 0;
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < src->section_count; i++) {
        int64_t bytes = smaller(src->section_bytes[i], dst->section_bytes[i]), src_end, dst_end;
        int64_t coarse = ratio->src_is_coarser ? src->section_bytes[i] : dst->section_bytes[i];

        if (!ends_inside(ratio->part, bytes, coarse) || !kvfi_add_i64(src_begin, src->section_bytes[i], &src_end)
            || !kvfi_add_i64(dst_begin, dst->section_bytes[i], &dst_end) || src_end > mapper->src.layer_bytes
            || dst_end > mapper->dst.layer_bytes) {
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "conv section %zu passes the end of its region: local=%"
                               PRId64 ", peer=%" PRId64 " bytes, part %" PRId64 " of %" PRId64, i,
                               src->section_bytes[i], dst->section_bytes[i], ratio->part, ratio->ratio);
            goto done;
        }
        mapper->cuts[i].src_offset = src_begin + (ratio->src_is_coarser ? ratio->part * bytes : 0);
        mapper->cuts[i].dst_offset = dst_begin + (ratio->src_is_coarser ? 0 : ratio->part * bytes);
        mapper->cuts[i].bytes = bytes;
        src_begin = src_end;
        dst_begin = dst_end;
    }
    mapper->cut_count = src->section_count;
done:
    return status;
}

enum kvf_status kvfi_trt_plan_sections(struct kvfi_trt_mapper *mapper, const struct kvf_trtllm_rank_spec *self,
                                       const struct kvf_trtllm_rank_spec *peer, struct kvf_error *error)
{
    const struct kvf_trtllm_view *src = mapper->src.view->spec, *dst = mapper->dst.view->spec;
    struct state_ratio ratio = {0};
    enum kvf_status status;

    if (src->section_count != dst->section_count || src->section_count == 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "Section count mismatch: local=%zu, peer=%zu",
                           src->section_count, dst->section_count);
        goto done;
    }
    status = state_ratio(self, peer, &ratio, error);
    if (status != KVF_OK) goto done;
    mapper->cuts = kvfi_alloc_zeroed(src->section_count, sizeof *mapper->cuts);
    if (!mapper->cuts) {
        status = kvfi_fail_memory(error, "the sections of a view");
        goto done;
    }
    status = cut_sections(mapper, &ratio, error);
    if (status == KVF_OK) mapper->name = KVF_TRTLLM_MAP_STATE_SECTIONS;
done:
    return status;
}

enum kvf_status kvfi_trt_plan_state_heads(struct kvfi_trt_mapper *mapper, const struct kvf_trtllm_rank_spec *self,
                                          const struct kvf_trtllm_rank_spec *peer, struct kvf_error *error)
{
    int64_t local = mapper->src.view->spec->bytes_per_head, remote = mapper->dst.view->spec->bytes_per_head;
    struct state_ratio ratio = {0};
    int64_t copied, coarse;
    enum kvf_status status = KVF_OK;

    if (local <= 0 || local != remote) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "ssm bytes per head mismatch: local=%" PRId64 ", peer=%" PRId64,
                           local, remote);
        goto done;
    }
    status = state_ratio(self, peer, &ratio, error);
    if (status != KVF_OK) goto done;
    mapper->src.heads = mapper->src.layer_bytes / local;
    mapper->dst.heads = mapper->dst.layer_bytes / remote;
    copied = smaller(mapper->src.heads, mapper->dst.heads) * local;
    coarse = ratio.src_is_coarser ? mapper->src.layer_bytes : mapper->dst.layer_bytes;
    if (!ends_inside(ratio.part, copied, coarse)) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "ssm heads pass the end of a region: %" PRId64 " bytes, part %"
                           PRId64 " of %" PRId64 " in %" PRId64 " bytes", copied, ratio.part, ratio.ratio, coarse);
        goto done;
    }
    mapper->unit_bytes = local;
    mapper->copy_bytes = copied;
    if (ratio.src_is_coarser) {
        mapper->src.shift_bytes = ratio.part * copied;
    } else {
        mapper->dst.shift_bytes = ratio.part * copied;
    }
    mapper->name = KVF_TRTLLM_MAP_STATE_HEADS;
done:
    return status;
}
