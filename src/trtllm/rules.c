/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/rules.h"

#include "base/error.h"
#include "trtllm/elect.h"

#include <inttypes.h>
#include <string.h>

static const char *truth(int64_t value)
{
    return value ? "True" : "False";
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

enum kvf_status kvfi_trt_rule_version(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                      struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *own = kvf_trtllm_rank_get_spec(self), *other = kvf_trtllm_rank_get_spec(peer);
    enum kvf_status status = KVF_OK;

    if (own->protocol_version != other->protocol_version) {
        status = kvfi_fail(error, KVF_ERR_VERSION, "native transfer protocol version differs (local=%" PRId64
                           ", peer=%" PRId64 ")", own->protocol_version, other->protocol_version);
    }
    return status;
}

/* The draft layers share their blocks with the target's, so they are cut by the same heads. */
static enum kvf_status check_draft_heads(const struct kvf_trtllm_rank_spec *own,
                                         const struct kvf_trtllm_rank_spec *other, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (!own->attention || !other->attention || (kvfi_trt_key_only(own) && kvfi_trt_key_only(other))) goto done;
    if (own->attention->kv_heads_per_rank != other->attention->kv_heads_per_rank) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "unified draft KV layers require the same attention TP size on"
                           " both sides (local heads=%" PRId64 ", peer heads=%" PRId64 ")",
                           own->attention->kv_heads_per_rank, other->attention->kv_heads_per_rank);
    }
done:
    return status;
}

enum kvf_status kvfi_trt_rule_drafts(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                     struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *own = kvf_trtllm_rank_get_spec(self), *other = kvf_trtllm_rank_get_spec(peer);
    enum kvf_status status = KVF_OK;

    if (!own->bounded_replay_on_generation != !other->bounded_replay_on_generation) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "bounded_replay_on_generation differs (local=%s, peer=%s)",
                           truth(own->bounded_replay_on_generation), truth(other->bounded_replay_on_generation));
    } else if (own->num_draft_layers != other->num_draft_layers) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "unified draft KV layer count differs (local=%" PRId64
                           ", peer=%" PRId64 ")", own->num_draft_layers, other->num_draft_layers);
    } else if (own->num_draft_layers > 0 && !same_text(own->draft_kv_dtype, other->draft_kv_dtype)) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "draft KV dtype differs (local=%.100s, peer=%.100s)",
                           own->draft_kv_dtype ? own->draft_kv_dtype : "None",
                           other->draft_kv_dtype ? other->draft_kv_dtype : "None");
    } else if (own->num_draft_layers > 0) {
        status = check_draft_heads(own, other, error);
    }
    return status;
}
