/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/rules.h"

#include "base/error.h"
#include "trtllm/mapping.h"
#include "trtllm/names.h"

#include <inttypes.h>

#define ROLE_TEXT_BYTES 200

/* Whether the peer holds one of the view's layers in any group of its cache kind. */
static bool is_shared(const struct kvfi_trt_view *view, const struct kvfi_trt_geometry *peer)
{
    bool shared = false;

    for (size_t i = 0; !shared && i < view->place_count; i++) {
        shared = kvfi_trt_geometry_group(peer, view->group->cache, view->places[i].global_layer) >= 0;
    }
    return shared;
}

static enum kvf_status check_heads(const struct kvfi_trt_view *view, const char *side, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    char heads[KVFI_TRT_NUMBER_BYTES];

    if (view->spec->num_kv_heads <= 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s view (layer_group=%" PRId64 ", view=%" PRId64 ") must"
                           " publish a positive num_kv_heads, got %s", side, view->key.group, view->key.view,
                           kvfi_trt_number_text(view->spec->num_kv_heads, heads));
    }
    return status;
}

static enum kvf_status check_buffers(const struct kvfi_trt_view *view, struct kvf_error *error)
{
    int64_t buffers;

    return kvfi_trt_view_buffers(view, view->key.group, view->key.view, &buffers, error);
}

static enum kvf_status check_pair(const struct kvfi_trt_view *view, const struct kvfi_trt_geometry *peer,
                                  struct kvf_error *error)
{
    const struct kvfi_trt_view *partner = kvfi_trt_partner(view, peer);
    enum kvf_status status = KVF_OK;
    char roles[ROLE_TEXT_BYTES];

    if (!partner) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "view (layer_group=%" PRId64 ", view=%" PRId64 ") %s has no"
                           " peer view with the same roles", view->key.group, view->key.view,
                           kvfi_trt_view_role_text(view, roles, sizeof roles));
        goto done;
    }
    status = check_heads(view, "local", error);
    if (status == KVF_OK) status = check_heads(partner, "peer", error);
    if (status == KVF_OK) status = check_buffers(view, error);
    if (status == KVF_OK) status = check_buffers(partner, error);
done:
    return status;
}

enum kvf_status kvfi_trt_rule_views(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                    struct kvf_error *error)
{
    const struct kvfi_trt_geometry *own = kvfi_trt_rank_geometry(self), *other = kvfi_trt_rank_geometry(peer);
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < own->view_count && status == KVF_OK; i++) {
        const struct kvfi_trt_view *view = &own->views[i];

        if (view->group->cache == KVF_TRTLLM_PAGED && view->spec->mapper != KVF_TRTLLM_REPLICATED
            && is_shared(view, other)) {
            status = check_pair(view, other, error);
        }
    }
    return status;
}
