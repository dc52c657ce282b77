/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/mapping.h"

#include "base/array.h"
#include "base/error.h"
#include "trtllm/names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ROLE_TEXT_BYTES 200

/* The number of the first view of a group whose role hash is not below `hash`, as an index into by_role. */
static size_t first_of_role(const struct kvfi_trt_geometry *geometry, int64_t group, uint64_t hash)
{
    size_t low = geometry->first_view[group], high = geometry->first_view[group + 1];

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (geometry->views[geometry->by_role[middle]].role_hash < hash) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const struct kvfi_trt_view *kvfi_trt_partner(const struct kvfi_trt_view *view, const struct kvfi_trt_geometry *peer)
{
    const struct kvfi_trt_view *found = NULL;
    int64_t group = -1;
    size_t first;

    for (size_t i = 0; group < 0 && i < view->place_count; i++) {
        group = kvfi_trt_geometry_group(peer, view->group->cache, view->places[i].global_layer);
    }
    if (group < 0) goto done;
    first = first_of_role(peer, group, view->role_hash);
    if (first == peer->first_view[group + 1]) goto done;
    /* the lowest of the views that hold one of these layers; none is below the first of these roles */
    for (size_t i = 0; i < view->place_count && (!found || found != &peer->views[peer->by_role[first]]); i++) {
        const struct kvfi_trt_view *holder = kvfi_trt_geometry_holder(peer, view, view->places[i].global_layer);

        if (holder && holder->key.group == group && (!found || holder < found)) found = holder;
    }
done:
    return found;
}

/* Token-major and head-major hold the same elements: a plan of boxes can turn one into the other. */
static bool can_meet(const struct kvfi_trt_view *a, const struct kvfi_trt_view *b)
{
    return a->group->cache == KVF_TRTLLM_PAGED && a->spec->mapper != KVF_TRTLLM_REPLICATED
           && b->spec->mapper != KVF_TRTLLM_REPLICATED;
}

enum kvf_status kvfi_trt_map_views(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, bool any_kind,
                                   struct kvf_trtllm_view_pair **pairs, size_t *count, struct kvf_error *error)
{
    const struct kvfi_trt_geometry *own = kvfi_trt_rank_geometry(self), *other = kvfi_trt_rank_geometry(peer);
    struct kvf_trtllm_view_pair *made = NULL;
    enum kvf_status status = KVF_OK;
    size_t made_count = 0;

    if (own->view_count == 0 || other->view_count == 0) goto write;
    made = kvfi_alloc_zeroed(own->view_count, sizeof *made);
    if (!made) {
        status = kvfi_fail_memory(error, "a mapping of views");
        goto done;
    }
    for (size_t i = 0; i < own->view_count; i++) {
        const struct kvfi_trt_view *view = &own->views[i], *partner = kvfi_trt_partner(view, other);

        if (!partner) continue;
        if (view->spec->mapper != partner->spec->mapper && !(any_kind && can_meet(view, partner))) {
            char roles[ROLE_TEXT_BYTES];

            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "PeerRegistrar.get_pool_mapping: incompatible mapper kinds"
                               " for pool role %s (local=%s, peer=%s, peer_pool=%" PRId64 ")",
                               kvfi_trt_view_role_text(view, roles, sizeof roles),
                               kvfi_trt_kind_text(view->spec->mapper), kvfi_trt_kind_text(partner->spec->mapper),
                               partner->key.view);
            goto done;
        }
        made[made_count].self = view->key;
        made[made_count++].peer = partner->key;
    }
write:
    *pairs = made_count > 0 ? made : NULL;
    *count = made_count;
    if (made_count > 0) made = NULL;
done:
    free(made);
    return status;
}

enum kvf_status kvf_trtllm_get_pool_mapping(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                            struct kvf_trtllm_view_pair *pairs, size_t capacity, size_t *count,
                                            struct kvf_error *error)
{
    struct kvf_trtllm_view_pair *found = NULL;
    size_t found_count = 0;
    enum kvf_status status = kvfi_trt_map_views(self, peer, false, &found, &found_count, error);

    if (status != KVF_OK) goto done;
    if (found_count > 0 && capacity > 0) {
        memcpy(pairs, found, (capacity < found_count ? capacity : found_count) * sizeof *pairs);
    }
    *count = found_count;
done:
    free(found);
    return status;
}
