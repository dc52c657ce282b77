/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/trtllm.h"

#include "base/error.h"
#include "trtllm/elect.h"

#include <inttypes.h>

struct kvfi_trt_run kvfi_trt_meet(int64_t self_size, int64_t peer_size, int64_t rank)
{
    struct kvfi_trt_run run = {0, 1};

    if (self_size <= peer_size) {
        run.count = peer_size / self_size;
        run.start = rank * run.count;
    } else {
        run.start = rank / (self_size / peer_size);
    }
    return run;
}

static void list(const struct kvfi_trt_run *pp, const struct kvfi_trt_run *tp, const struct kvfi_trt_run *cp,
                 const struct kvf_trtllm_rank_spec *peer, int64_t *ranks, size_t capacity)
{
    size_t count = 0;

    for (int64_t p = pp->start; p < pp->start + pp->count && count < capacity; p++) {
        for (int64_t t = tp->start; t < tp->start + tp->count && count < capacity; t++) {
            for (int64_t c = cp->start; c < cp->start + cp->count && count < capacity; c++) {
                ranks[count++] = kvfi_trt_flat_rank(p, t, c, peer->tp_size, peer->cp_size);
            }
        }
    }
}

enum kvf_status kvfi_trt_overlap(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, int64_t peer_dp_rank,
                                 bool whole_group, struct kvf_trtllm_overlap *out, int64_t *ranks, size_t capacity,
                                 struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *own = kvf_trtllm_rank_get_spec(self), *other = kvf_trtllm_rank_get_spec(peer);
    struct kvf_trtllm_overlap overlap = {.duplicate_head_factor = 1, .peer_duplicate_head_factor = 1};
    int64_t own_tp = kvfi_trt_group_tp(own), peer_tp = kvfi_trt_group_tp(other), total;
    struct kvfi_trt_run pp = {0, 0}, tp, cp;
    enum kvf_status status = KVF_OK;

    if (peer_dp_rank < 0 || peer_dp_rank >= KVF_TRTLLM_MAX_RANKS) {
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "DP rank %" PRId64 " of a peer, expected 0 to %d", peer_dp_rank,
                           KVF_TRTLLM_MAX_RANKS - 1);
        goto done;
    }
    pp.count = kvfi_trt_overlapping_stages(own, other, &pp.start);
    if (pp.count == 0) goto write;
    tp = kvfi_trt_meet(own_tp, peer_tp, own->tp_rank % own_tp);
    tp.start += peer_dp_rank * peer_tp;
    cp = kvfi_trt_meet(own->cp_size, other->cp_size, own->cp_rank);
    if (whole_group) {
        tp = (struct kvfi_trt_run){peer_dp_rank * peer_tp, peer_tp};
        cp = (struct kvfi_trt_run){0, other->cp_size};
    }
    if (__builtin_mul_overflow(pp.count, tp.count, &total) || __builtin_mul_overflow(total, cp.count, &total)
        || total > KVF_TRTLLM_MAX_RANKS) {
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "overlap of %" PRId64 " stages, %" PRId64 " TP ranks and %"
                           PRId64 " CP ranks, expected at most %d ranks", pp.count, tp.count, cp.count,
                           KVF_TRTLLM_MAX_RANKS);
        goto done;
    }
    overlap.overlap_pp_size = pp.count;
    overlap.overlap_tp_size = tp.count;
    overlap.overlap_cp_size = cp.count;
    overlap.rank_count = (size_t)total;
    kvfi_trt_rank_factors(own, other, &overlap.duplicate_head_factor, &overlap.peer_duplicate_head_factor);
    list(&pp, &tp, &cp, other, ranks, capacity);
write:
    *out = overlap;
done:
    return status;
}

enum kvf_status kvf_trtllm_get_overlap(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                       int64_t peer_dp_rank, struct kvf_trtllm_overlap *out, int64_t *ranks,
                                       size_t capacity, struct kvf_error *error)
{
    return kvfi_trt_overlap(self, peer, peer_dp_rank, false, out, ranks, capacity, error);
}
