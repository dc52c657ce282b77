/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/rules_judge.h"

#include "base/error.h"
#include "trtllm/elect.h"
#include "trtllm/mapping.h"
#include "trtllm/rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All rules but the last warnings. The mapping is what the warnings are counted from. A broken soft rule sets `*soft`
 * and leaves its reason in `error`. */
static enum kvf_status judge(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                             const struct kvfi_trt_judge *how, struct kvf_trtllm_view_pair **pairs, size_t *pair_count,
                             bool *soft, struct kvf_error *error)
{
    enum kvf_status status = kvfi_trt_rule_version(self, peer, error);

    if (status == KVF_OK) status = kvfi_trt_rule_drafts(self, peer, error);
    if (status != KVF_OK) goto done;
    status = kvfi_trt_rule_attention(self, peer, how, error);
    *soft = status == KVF_ERR_INCOMPATIBLE;
    if (status == KVF_OK) status = kvfi_trt_rule_coverage(self, peer, KVF_TRTLLM_PAGED, error);
    if (status == KVF_OK) status = kvfi_trt_rule_views(self, peer, error);
    if (status == KVF_OK) status = kvfi_trt_rule_state(self, peer, error);
    if (status == KVF_OK) status = kvfi_trt_map_views(self, peer, !how->strict, pairs, pair_count, error);
done:
    return status;
}

static void add_warning(struct kvf_trtllm_verdict *verdict, const char *text, const char *key)
{
    snprintf(verdict->warnings[verdict->warning_count], sizeof verdict->warnings[0], "%s", text);
    snprintf(verdict->warning_keys[verdict->warning_count], sizeof verdict->warning_keys[0], "%s", key);
    verdict->warning_count++;
}

static void warn_of_tokens(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                           struct kvf_trtllm_verdict *verdict)
{
    char text[KVF_ERROR_TEXT_BYTES];

    if (kvfi_trt_warns_of_tokens(self, peer, text, sizeof text)) add_warning(verdict, text, "");
}

static int64_t sum_layers(const struct kvf_trtllm_rank_spec *rank)
{
    int64_t sum = 0;

    for (size_t i = 0; i < rank->layer_num_count; i++) sum += rank->layer_num_per_pp[i];
    return sum;
}

static void warn_of_layers(const struct kvf_trtllm_rank_spec *own, const struct kvf_trtllm_rank_spec *other,
                           struct kvf_trtllm_verdict *verdict)
{
    int64_t local = sum_layers(own), remote = sum_layers(other);
    char text[KVF_ERROR_TEXT_BYTES];

    if (local == remote) return;
    snprintf(text, sizeof text, "PeerRegistrar: layer count differs (local=%" PRId64 ", peer=%" PRId64 "), allowing"
             " partial layer transfer.", local, remote);
    add_warning(verdict, text, "");
}

/* Entries of local token-major views that are cut: each becomes a copy per token. */
static int64_t count_cut_entries(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                 const struct kvf_trtllm_view_pair *pairs, size_t pair_count)
{
    int64_t count = 0;

    for (size_t i = 0; i < pair_count; i++) {
        const struct kvfi_trt_view *src = kvfi_trt_geometry_view(kvfi_trt_rank_geometry(self), &pairs[i].self);
        const struct kvfi_trt_view *dst = kvfi_trt_geometry_view(kvfi_trt_rank_geometry(peer), &pairs[i].peer);

        if (src->group->cache == KVF_TRTLLM_PAGED && src->spec->mapper == KVF_TRTLLM_NHD
            && src->spec->num_kv_heads != dst->spec->num_kv_heads) {
            count += (int64_t)src->spec->entry_count;
        }
    }
    return count;
}

static void warn_of_tokens_cut(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                               const struct kvf_trtllm_view_pair *pairs, size_t pair_count,
                               struct kvf_trtllm_verdict *verdict)
{
    const struct kvf_trtllm_rank_spec *own = kvf_trtllm_rank_get_spec(self), *other = kvf_trtllm_rank_get_spec(peer);
    int64_t count = count_cut_entries(self, peer, pairs, pair_count), local, remote;
    char text[KVF_ERROR_TEXT_BYTES], key[sizeof verdict->warning_keys[0]];

    if (count == 0 || kvfi_trt_key_only(own)) return;
    local = own->attention ? own->attention->kv_heads_per_rank : 0;
    remote = other->attention ? other->attention->kv_heads_per_rank : 0;
    snprintf(text, sizeof text, "NHD head-mismatched disaggregated KV transfer has no contiguous staging path and will"
             " emit approximately %" PRId64 " NIXL descriptors per transferred token per peer, excluding block-level"
             " replicated pools (local_kv_heads=%" PRId64 ", peer_kv_heads=%" PRId64 "). Long-context TEP/DEP transfers"
             " may have high latency.", count, local, remote);
    snprintf(key, sizeof key, "native-nhd-head-mismatch-%" PRId64 "-%" PRId64 "-%" PRId64, local, remote, count);
    add_warning(verdict, text, key);
}

static void refuse(const struct kvf_trtllm_rank_spec *peer, bool soft, const struct kvf_error *found,
                   struct kvf_trtllm_verdict *verdict)
{
    verdict->style = soft ? KVF_TRTLLM_SOFT : KVF_TRTLLM_HARD;
    snprintf(verdict->text, sizeof verdict->text, "%s", found->text);
    if (!soft) return;
    snprintf(verdict->reason, sizeof verdict->reason, "%s", found->text);
    snprintf(verdict->text, sizeof verdict->text, "PeerRegistrar.register: peer %.300s (rank=%" PRId64 ") is"
             " incompatible with local rank.", peer->instance_name, peer->instance_rank);
}

enum kvf_status kvfi_trt_judge_peer(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, bool strict,
                                    struct kvf_trtllm_verdict *verdict, struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *other = kvf_trtllm_rank_get_spec(peer);
    const struct kvfi_trt_judge how = {.strict = strict};
    struct kvf_trtllm_view_pair *pairs = NULL;
    size_t pair_count = 0;
    struct kvf_error found;
    bool soft = false;
    enum kvf_status status = judge(self, peer, &how, &pairs, &pair_count, &soft, &found);

    memset(verdict, 0, sizeof *verdict);
    verdict->struct_size = sizeof *verdict;
    if (status == KVF_OK) {
        if (strict) warn_of_tokens(self, peer, verdict);
        warn_of_layers(kvf_trtllm_rank_get_spec(self), other, verdict);
        if (strict) warn_of_tokens_cut(self, peer, pairs, pair_count, verdict);
    } else if (status == KVF_ERR_VERSION || status == KVF_ERR_INCOMPATIBLE) {
        refuse(other, soft, &found, verdict);
        kvfi_fail(error, status, "%s", verdict->text);
    } else {
        kvfi_fail(error, status, "%s", found.text);
    }
    free(pairs);
    return status;
}

/* A sender whose stage holds none of this rank's layers will not send to it: what compares the two ranks' heads says
 * nothing then. */
static bool will_send(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer)
{
    const struct kvf_trtllm_rank_spec *own = kvf_trtllm_rank_get_spec(self), *other = kvf_trtllm_rank_get_spec(peer);
    int64_t first = 0, count = kvfi_trt_overlapping_stages(own, other, &first);

    return other->pp_rank >= first && other->pp_rank < first + count;
}

enum kvf_status kvfi_trt_judge_sender(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, bool strict,
                                      bool all_rules, struct kvf_error *error)
{
    const struct kvfi_trt_judge how = {.strict = strict, .skip_ranks = !will_send(self, peer)};
    struct kvf_trtllm_view_pair *pairs = NULL;
    size_t pair_count = 0;
    enum kvf_status status = kvfi_trt_rule_version(self, peer, error);

    if (status == KVF_OK) status = kvfi_trt_rule_state(self, peer, error);
    if (status == KVF_OK) status = kvfi_trt_rule_coverage(self, peer, KVF_TRTLLM_PAGED, error);
    if (status == KVF_OK) status = kvfi_trt_rule_drafts(self, peer, error);
    if (status == KVF_OK) status = kvfi_trt_rule_views(self, peer, error);
    if (status != KVF_OK || !all_rules) goto done;
    status = kvfi_trt_rule_attention(self, peer, &how, error);
    if (status == KVF_OK) status = kvfi_trt_map_views(self, peer, !strict, &pairs, &pair_count, error);
done:
    free(pairs);
    return status;
}
