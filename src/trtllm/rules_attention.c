/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/rules.h"

#include "base/checked.h"
#include "base/error.h"
#include "trtllm/elect.h"
#include "trtllm/mapping.h"
#include "trtllm/names.h"

#include <inttypes.h>
#include <stdio.h>

#define PREFIX "AttentionPolicy: incompatible: "

static enum kvf_status check_key_only(const struct kvf_trtllm_attention *own, const struct kvf_trtllm_attention *other,
                                      struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (!own->is_mla != !other->is_mla) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "is_mla mismatch; field='is_mla', local=%s, peer=%s",
                           own->is_mla ? "True" : "False", other->is_mla ? "True" : "False");
    }
    return status;
}

static enum kvf_status check_context_parallel(const struct kvf_trtllm_rank_spec *own,
                                              const struct kvf_trtllm_rank_spec *other, struct kvf_error *error)
{
    int64_t local = own->attention->tokens_per_block, remote = other->attention->tokens_per_block;
    enum kvf_status status = KVF_OK;

    if (own->cp_size > 1 && other->cp_size > 1) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "cp_size must be 1 on at least one side (helix pairs a"
                           " cp=1 context instance with a cp=N generation instance); local=%" PRId64 ", peer=%" PRId64,
                           own->cp_size, other->cp_size);
    } else if ((own->cp_size > 1 || other->cp_size > 1) && local != remote) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "helix block-interleaved transfer requires equal"
                           " tokens_per_block on both sides (block boundaries must coincide for [cp_rank::cp_size]"
                           " ownership); local=%" PRId64 ", peer=%" PRId64, local, remote);
    }
    return status;
}

static enum kvf_status check_element(const struct kvf_trtllm_attention *own, const struct kvf_trtllm_attention *other,
                                     struct kvf_error *error)
{
    char local[KVFI_TRT_NUMBER_BYTES], remote[KVFI_TRT_NUMBER_BYTES];
    enum kvf_status status = KVF_OK;

    if (own->element_eighths != other->element_eighths) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "element_bytes mismatch; field='element_bytes',"
                           " local=%s, peer=%s", kvfi_trt_eighths_text(own->element_eighths, local),
                           kvfi_trt_eighths_text(other->element_eighths, remote));
    }
    return status;
}

/* Whether some view pair is cut between heads where its bytes do not divide: the one case in which heads of less than
 * a byte cannot be moved. */
static bool cuts_inside_a_byte(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer)
{
    const struct kvfi_trt_geometry *own = kvfi_trt_rank_geometry(self), *other = kvfi_trt_rank_geometry(peer);
    bool inside = false;

    for (size_t i = 0; !inside && i < own->view_count; i++) {
        const struct kvfi_trt_view *sides[2] = {&own->views[i], kvfi_trt_partner(&own->views[i], other)};

        if (!sides[1] || sides[0]->group->cache != KVF_TRTLLM_PAGED || sides[0]->spec->mapper == KVF_TRTLLM_REPLICATED
            || sides[0]->spec->num_kv_heads == sides[1]->spec->num_kv_heads) continue;
        for (int k = 0; !inside && k < 2; k++) {
            const struct kvfi_trt_view *view = sides[k];
            int64_t heads = view->spec->num_kv_heads, pieces = view->buffers;
            int64_t tokens = kvf_trtllm_rank_get_spec(k == 0 ? self : peer)->attention->tokens_per_block;
            bool fits = view->sound && heads > 0 && pieces > 0 && kvfi_mul_i64(pieces, heads, &pieces);

            if (fits && view->spec->mapper == KVF_TRTLLM_NHD) fits = kvfi_mul_i64(pieces, tokens, &pieces);
            inside = !fits || pieces <= 0 || view->layer_bytes % pieces != 0;
        }
    }
    return inside;
}

static enum kvf_status check_sub_byte(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                      const struct kvfi_trt_judge *judge, struct kvf_error *error)
{
    const struct kvf_trtllm_attention *own = kvf_trtllm_rank_get_spec(self)->attention;
    const struct kvf_trtllm_attention *other = kvf_trtllm_rank_get_spec(peer)->attention;
    enum kvf_status status = KVF_OK;
    char element[KVFI_TRT_NUMBER_BYTES];
    int64_t eighths;

    if (own->is_mla || own->kv_heads_per_rank == other->kv_heads_per_rank || judge->skip_ranks) goto done;
    if (kvfi_mul_i64(own->tokens_per_block, own->dims_per_head, &eighths)
        && kvfi_mul_i64(eighths, own->element_eighths, &eighths) && eighths % 8 == 0) goto done;
    if (!judge->strict && !cuts_inside_a_byte(self, peer)) goto done;
    status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "sub-byte head slicing is not byte-aligned;"
                       " tokens_per_block=%" PRId64 ", dims_per_head=%" PRId64 ", element_bytes=%s",
                       own->tokens_per_block, own->dims_per_head, kvfi_trt_eighths_text(own->element_eighths, element));
done:
    return status;
}

/* Upstream looks at the views of all groups here, of recurrent side state too, which has no tokens. */
static bool has_whole_blocks(const kvf_trtllm_rank *rank)
{
    const struct kvfi_trt_geometry *geometry = kvfi_trt_rank_geometry(rank);

    return geometry->whole_blocks[KVF_TRTLLM_PAGED] || geometry->whole_blocks[KVF_TRTLLM_STATE];
}

static bool divides(int64_t a, int64_t b)
{
    int64_t larger = a > b ? a : b, less = a > b ? b : a;

    return less > 0 && larger % less == 0;
}

static enum kvf_status check_tokens(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, struct kvf_error *error)
{
    int64_t local = kvf_trtllm_rank_get_spec(self)->attention->tokens_per_block;
    int64_t remote = kvf_trtllm_rank_get_spec(peer)->attention->tokens_per_block;
    enum kvf_status status = KVF_OK;

    if (local == remote) goto done;
    if (has_whole_blocks(self) || has_whole_blocks(peer)) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "tokens_per_block mismatch for NHD/replicated pools;"
                           " local=%" PRId64 " peer=%" PRId64, local, remote);
    } else if (!divides(local, remote)) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "tokens_per_block not divisible; local=%" PRId64
                           " peer=%" PRId64, local, remote);
    }
done:
    return status;
}

bool kvfi_trt_warns_of_tokens(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, char *text, size_t text_bytes)
{
    const struct kvf_trtllm_attention *own = kvf_trtllm_rank_get_spec(self)->attention;
    const struct kvf_trtllm_attention *other = kvf_trtllm_rank_get_spec(peer)->attention;
    bool warns = own && other && own->tokens_per_block != other->tokens_per_block;

    if (warns) {
        snprintf(text, text_bytes, "AttentionPolicy: tokens_per_block mismatch (local=%" PRId64 ", peer=%" PRId64
                 "); KV transfer proceeds \xe2\x80\x94 ensure block boundaries align during transfer.",
                 own->tokens_per_block, other->tokens_per_block);
    }
    return warns;
}

static enum kvf_status check_head_size(const struct kvf_trtllm_attention *own,
                                       const struct kvf_trtllm_attention *other, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (own->dims_per_head != other->dims_per_head) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "dims_per_head mismatch; field='dims_per_head', local=%"
                           PRId64 ", peer=%" PRId64, own->dims_per_head, other->dims_per_head);
    }
    return status;
}

/* A latent cache is one head to upstream; a stage without attention says 0, which only strict refuses. */
static enum kvf_status check_latent_heads(const struct kvf_trtllm_attention *own,
                                          const struct kvf_trtllm_attention *other,
                                          const struct kvfi_trt_judge *judge, struct kvf_error *error)
{
    int64_t local = own->kv_heads_per_rank, remote = other->kv_heads_per_rank;
    int64_t least = judge->strict ? 1 : 0;
    enum kvf_status status = KVF_OK;

    if (!own->is_mla || judge->skip_ranks) goto done;
    if (local < least || local > 1 || remote < least || remote > 1) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "MLA requires kv_heads_per_rank == 1 for both ranks;"
                           " local=%" PRId64 ", peer=%" PRId64, local, remote);
    }
done:
    return status;
}

enum kvf_status kvfi_trt_rule_attention(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                        const struct kvfi_trt_judge *judge, struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *own = kvf_trtllm_rank_get_spec(self), *other = kvf_trtllm_rank_get_spec(peer);
    enum kvf_status status = KVF_OK;

    if (!own->attention && !other->attention) goto done;
    if (!own->attention || !other->attention) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "attention mismatch; field='attention', local=%s,"
                           " peer=%s", own->attention ? "present" : "None", other->attention ? "present" : "None");
        goto done;
    }
    status = check_key_only(own->attention, other->attention, error);
    if (status == KVF_OK && judge->strict) status = check_context_parallel(own, other, error);
    if (status == KVF_OK) status = check_element(own->attention, other->attention, error);
    if (status == KVF_OK) status = check_sub_byte(self, peer, judge, error);
    if (status == KVF_OK && judge->strict) status = check_tokens(self, peer, error);
    if (status == KVF_OK) status = check_head_size(own->attention, other->attention, error);
    if (status == KVF_OK) status = check_latent_heads(own->attention, other->attention, judge, error);
done:
    return status;
}
