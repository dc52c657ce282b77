/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/rules.h"

#include "base/checked.h"
#include "base/error.h"
#include "trtllm/elect.h"
#include "trtllm/mapping.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PREFIX "MambaPolicy.validate_peer_compatible: "
#define ROLE_TEXT_BYTES 160

/* What is compared: the two sides' views of one role, and over how many ranks each side's state is cut. */
struct sides {
    const struct kvfi_trt_view *own, *other;
    int64_t own_tp, other_tp;
};

/* The first state view whose only role is `role`, or NULL. */
static const struct kvfi_trt_view *find_role(const struct kvfi_trt_geometry *geometry, const char *role)
{
    const struct kvfi_trt_view *found = NULL;

    for (size_t i = 0; !found && i < geometry->view_count; i++) {
        const struct kvfi_trt_view *view = &geometry->views[i];

        if (view->group->cache == KVF_TRTLLM_STATE && view->spec->role_count == 1
            && strcmp(view->roles[0], role) == 0) {
            found = view;
        }
    }
    return found;
}

static enum kvf_status check_head_bytes(const struct sides *ssm, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    int64_t local, remote;

    if (!ssm->own || !ssm->other) goto done;
    local = ssm->own->spec->bytes_per_head;
    remote = ssm->other->spec->bytes_per_head;
    if (local != KVF_TRTLLM_NONE && remote != KVF_TRTLLM_NONE && local != remote) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "ssm_bytes_per_head differs (local=%" PRId64 ", peer=%"
                           PRId64 "); check head_dim / d_state / mamba_ssm_cache_dtype", local, remote);
    }
done:
    return status;
}

/* A size of one rank times the ranks it is cut over is a size of the model: equal on both sides. */
static enum kvf_status check_total(const struct sides *sides, int64_t local, int64_t remote, const char *field,
                                   struct kvf_error *error)
{
    int64_t local_total, remote_total;
    enum kvf_status status = KVF_OK;

    if (!kvfi_mul_i64(local, sides->own_tp, &local_total) || !kvfi_mul_i64(remote, sides->other_tp, &remote_total)
        || local_total != remote_total) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "global (TP-aggregated) %s differs: local %" PRId64
                           " bytes/rank x mamba_tp=%" PRId64 " vs peer %" PRId64 " bytes/rank x mamba_tp=%" PRId64
                           ". Per-rank state sizes are inconsistent with a TP-sharded layout across the two sides: the"
                           " shape or type of the state differs, or one side keeps a whole copy on every rank", field,
                           local, sides->own_tp, remote, sides->other_tp);
    }
    return status;
}

static enum kvf_status check_declared(const struct sides *sides, const char *field, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (!sides->own || !sides->other || sides->own->spec->bytes_per_layer == KVF_TRTLLM_NONE
        || sides->other->spec->bytes_per_layer == KVF_TRTLLM_NONE) goto done;
    status = check_total(sides, sides->own->spec->bytes_per_layer, sides->other->spec->bytes_per_layer, field, error);
done:
    return status;
}

static enum kvf_status check_sections(const struct sides *conv, struct kvf_error *error)
{
    const struct kvf_trtllm_view *own, *other;
    enum kvf_status status = KVF_OK;

    if (!conv->own || !conv->other || !conv->own->spec->section_bytes || !conv->other->spec->section_bytes) goto done;
    own = conv->own->spec;
    other = conv->other->spec;
    if (own->section_count != other->section_count) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "conv section count differs (local=%zu, peer=%zu)",
                           own->section_count, other->section_count);
        goto done;
    }
    for (size_t i = 0; i < own->section_count && status == KVF_OK; i++) {
        char field[48];

        snprintf(field, sizeof field, "conv_section_bytes[%zu]", i);
        status = check_total(conv, own->section_bytes[i], other->section_bytes[i], field, error);
    }
done:
    return status;
}

static enum kvf_status check_side_sizes(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                        struct kvf_error *error)
{
    const struct kvfi_trt_geometry *own = kvfi_trt_rank_geometry(self), *other = kvfi_trt_rank_geometry(peer);
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < own->view_count && status == KVF_OK; i++) {
        const struct kvfi_trt_view *view = &own->views[i], *partner;
        char roles[ROLE_TEXT_BYTES];

        if (view->group->cache != KVF_TRTLLM_STATE || view->spec->mapper != KVF_TRTLLM_REPLICATED) continue;
        partner = kvfi_trt_partner(view, other);
        if (!partner || view->spec->bytes_per_layer == KVF_TRTLLM_NONE
            || partner->spec->bytes_per_layer == KVF_TRTLLM_NONE
            || view->spec->bytes_per_layer == partner->spec->bytes_per_layer) continue;
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, PREFIX "replicated recurrent side-state role %s slot_bytes"
                           " differs (local=%" PRId64 ", peer=%" PRId64 ")",
                           kvfi_trt_view_role_text(view, roles, sizeof roles), view->spec->bytes_per_layer,
                           partner->spec->bytes_per_layer);
    }
    return status;
}

static bool has_state(const kvf_trtllm_rank *rank)
{
    const struct kvf_trtllm_page_table *table = kvf_trtllm_rank_get_spec(rank)->page_table;
    bool has = false;

    for (size_t i = 0; !has && table && i < table->group_count; i++) has = table->groups[i].cache == KVF_TRTLLM_STATE;
    return has;
}

enum kvf_status kvfi_trt_rule_state(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                    struct kvf_error *error)
{
    const struct kvfi_trt_geometry *own = kvfi_trt_rank_geometry(self), *other = kvfi_trt_rank_geometry(peer);
    struct sides ssm = {find_role(own, "ssm_state"), find_role(other, "ssm_state"), 1, 1};
    struct sides conv = {find_role(own, "conv_state"), find_role(other, "conv_state"), 1, 1};
    enum kvf_status status = KVF_OK;
    int64_t number;

    if (!has_state(self) || !has_state(peer)) goto done;
    kvfi_trt_state_tp(kvf_trtllm_rank_get_spec(self), &ssm.own_tp, &number);
    kvfi_trt_state_tp(kvf_trtllm_rank_get_spec(peer), &ssm.other_tp, &number);
    conv.own_tp = ssm.own_tp;
    conv.other_tp = ssm.other_tp;
    status = check_head_bytes(&ssm, error);
    if (status == KVF_OK) status = check_declared(&ssm, "ssm slot_bytes", error);
    if (status == KVF_OK) status = check_declared(&conv, "conv slot_bytes", error);
    if (status == KVF_OK) status = check_sections(&conv, error);
    if (status == KVF_OK) status = kvfi_trt_rule_coverage(self, peer, KVF_TRTLLM_STATE, error);
    if (status == KVF_OK) status = check_side_sizes(self, peer, error);
done:
    return status;
}
