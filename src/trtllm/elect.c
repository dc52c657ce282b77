/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/elect.h"

#include "base/checked.h"
#include "trtllm/geometry.h"

static int64_t at_least_one(int64_t value)
{
    return value > 1 ? value : 1;
}

static bool attention_dp(const struct kvf_trtllm_rank_spec *rank)
{
    return rank->attention && rank->attention->enable_attention_dp;
}

bool kvfi_trt_key_only(const struct kvf_trtllm_rank_spec *rank)
{
    return rank->attention && rank->attention->is_mla;
}

int64_t kvfi_trt_group_tp(const struct kvf_trtllm_rank_spec *rank)
{
    int64_t size = rank->tp_size;

    if (attention_dp(rank)) size /= at_least_one(rank->dp_size);
    return at_least_one(size);
}

void kvfi_trt_state_tp(const struct kvf_trtllm_rank_spec *rank, int64_t *size, int64_t *number)
{
    *size = 1;
    *number = 0;
    if (attention_dp(rank)) return;
    *size = at_least_one(rank->tp_size) * at_least_one(rank->cp_size);
    *number = rank->tp_rank * at_least_one(rank->cp_size) + rank->cp_rank;
}

int64_t kvfi_trt_flat_rank(int64_t pp_rank, int64_t tp_rank, int64_t cp_rank, int64_t tp_size, int64_t cp_size)
{
    return (pp_rank * tp_size + tp_rank) * cp_size + cp_rank;
}

bool kvfi_trt_state_paired(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_rank_spec *peer)
{
    int64_t self_size, self_number, peer_size, peer_number;
    bool paired;

    kvfi_trt_state_tp(self, &self_size, &self_number);
    kvfi_trt_state_tp(peer, &peer_size, &peer_number);
    if (self_size <= peer_size) {
        paired = peer_number / (peer_size / self_size) == self_number;
    } else {
        paired = self_number / (self_size / peer_size) == peer_number;
    }
    return paired;
}

int kvf_trtllm_is_state_paired(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer)
{
    return kvfi_trt_state_paired(kvf_trtllm_rank_get_spec(self), kvf_trtllm_rank_get_spec(peer));
}

/* The head counts' ratio, both ways; 1 where a side has none. Sizes are within the limits of a rank info, head counts
 * need not be: a product that does not fit counts as the largest number. */
static void factors(int64_t self_heads, int64_t self_tp, int64_t peer_heads, int64_t peer_tp, int64_t *duplicates,
                    int64_t *peer_duplicates)
{
    int64_t self_all, peer_all;

    *duplicates = 1;
    *peer_duplicates = 1;
    if (self_heads <= 0 || peer_heads <= 0) return;
    if (!kvfi_mul_i64(self_heads, self_tp, &self_all)) self_all = INT64_MAX;
    if (!kvfi_mul_i64(peer_heads, peer_tp, &peer_all)) peer_all = INT64_MAX;
    *duplicates = at_least_one(self_all / peer_all);
    *peer_duplicates = at_least_one(peer_all / self_all);
}

void kvfi_trt_rank_factors(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_rank_spec *peer,
                           int64_t *duplicates, int64_t *peer_duplicates)
{
    factors(self->attention ? self->attention->kv_heads_per_rank : 0, kvfi_trt_group_tp(self),
            peer->attention ? peer->attention->kv_heads_per_rank : 0, kvfi_trt_group_tp(peer), duplicates,
            peer_duplicates);
}

void kvf_trtllm_view_head_factors(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                  const struct kvf_trtllm_view_pair *pair, int64_t *duplicate_head_factor,
                                  int64_t *peer_duplicate_head_factor)
{
    const struct kvf_trtllm_rank_spec *own = kvf_trtllm_rank_get_spec(self), *other = kvf_trtllm_rank_get_spec(peer);
    const struct kvfi_trt_view *src = kvfi_trt_geometry_view(kvfi_trt_rank_geometry(self), &pair->self);
    const struct kvfi_trt_view *dst = kvfi_trt_geometry_view(kvfi_trt_rank_geometry(peer), &pair->peer);

    if (src && dst && src->group->cache == KVF_TRTLLM_PAGED && src->spec->mapper != KVF_TRTLLM_REPLICATED
        && src->spec->num_kv_heads != KVF_TRTLLM_NONE && dst->spec->num_kv_heads != KVF_TRTLLM_NONE) {
        factors(src->spec->num_kv_heads, kvfi_trt_group_tp(own), dst->spec->num_kv_heads, kvfi_trt_group_tp(other),
                duplicate_head_factor, peer_duplicate_head_factor);
    } else {
        kvfi_trt_rank_factors(own, other, duplicate_head_factor, peer_duplicate_head_factor);
    }
}

/* One of each `ratio` ranks of self that feed one peer, turned by the peer's DP rank. */
static bool owns_fan_in(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_rank_spec *peer,
                        int64_t turn)
{
    int64_t size = kvfi_trt_group_tp(self), ratio = at_least_one(size / kvfi_trt_group_tp(peer));

    return self->tp_rank % size % ratio == turn % ratio;
}

bool kvfi_trt_sends(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_rank_spec *peer, int64_t cache,
                    int64_t mapper, int64_t duplicate_head_factor)
{
    int64_t state_size, state_number;
    bool sends;

    kvfi_trt_state_tp(self, &state_size, &state_number);
    if (mapper == KVF_TRTLLM_REPLICATED) {
        sends = owns_fan_in(self, peer, peer->dp_rank);
    } else if (cache == KVF_TRTLLM_STATE) {
        sends = state_size > 1 || owns_fan_in(self, peer, peer->dp_rank);
    } else {
        sends = duplicate_head_factor <= 1 || peer->dp_rank % duplicate_head_factor
                                                  == self->tp_rank % kvfi_trt_group_tp(self) % duplicate_head_factor;
    }
    return sends;
}

int kvf_trtllm_should_send_pool(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                const struct kvf_trtllm_view_key *view, int64_t duplicate_head_factor)
{
    const struct kvfi_trt_view *found = kvfi_trt_geometry_view(kvfi_trt_rank_geometry(self), view);

    return found && kvfi_trt_sends(kvf_trtllm_rank_get_spec(self), kvf_trtllm_rank_get_spec(peer), found->group->cache,
                                   found->spec->mapper, duplicate_head_factor);
}

/* The half-open interval of layers that a rank's own stage holds. */
static void own_layers(const struct kvf_trtllm_rank_spec *rank, int64_t *begin, int64_t *end)
{
    *begin = 0;
    for (size_t i = 0; i < rank->layer_num_count && (int64_t)i < rank->pp_rank; i++) {
        *begin += rank->layer_num_per_pp[i];
    }
    *end = *begin;
    if (rank->pp_rank >= 0 && (uint64_t)rank->pp_rank < rank->layer_num_count) {
        *end += rank->layer_num_per_pp[rank->pp_rank];
    }
}

int64_t kvfi_trt_overlapping_stages(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_rank_spec *peer,
                                    int64_t *first)
{
    int64_t begin, end, stage_begin = 0, count = 0;

    own_layers(self, &begin, &end);
    for (size_t i = 0; i < peer->layer_num_count && (int64_t)i < peer->pp_size; i++) {
        int64_t stage_end = stage_begin + peer->layer_num_per_pp[i];

        if (begin < stage_end && end > stage_begin) {
            if (count == 0) *first = (int64_t)i;
            count++;
        }
        stage_begin = stage_end;
    }
    return count;
}

int kvf_trtllm_should_send_aux(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer)
{
    const struct kvf_trtllm_rank_spec *own = kvf_trtllm_rank_get_spec(self), *other = kvf_trtllm_rank_get_spec(peer);
    int64_t first = -1;

    return owns_fan_in(own, other, 0) && kvfi_trt_overlapping_stages(other, own, &first) > 0
           && first == own->pp_rank;
}
