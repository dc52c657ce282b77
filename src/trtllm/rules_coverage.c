/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/rules.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/compare.h"
#include "base/error.h"
#include "trtllm/names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Most (role, layer) pairs of one side that are compared one by one; tables whose views pair up need none of it. */
#define MAX_COVERED 262144
#define LIST_TEXT_BYTES 160

/* A role that a REPLICATED view covers a layer with. */
struct covered {
    const char *role;
    int64_t layer;
};

struct covered_list {
    struct covered *items;
    size_t count;
};

static int compare_covered(const void *a, const void *b)
{
    const struct covered *x = a, *y = b;
    int order = strcmp(x->role, y->role);

    return order ? order : kvfi_compare_i64(x->layer, y->layer);
}

static bool is_replicated(const struct kvfi_trt_view *view, int64_t cache)
{
    return view->group->cache == cache && view->spec->mapper == KVF_TRTLLM_REPLICATED;
}

/* Whether the other side has a REPLICATED view of the same roles over a layer. */
static bool has_twin(const struct kvfi_trt_view *view, int64_t layer, const struct kvfi_trt_geometry *other)
{
    size_t count;
    const struct kvfi_trt_cover *covers = kvfi_trt_geometry_covers(other, view, layer, &count);
    bool found = false;

    for (size_t i = 0; i < count && !found; i++) {
        const struct kvfi_trt_view *twin = &other->views[covers[i].view];

        found = twin->spec->mapper == KVF_TRTLLM_REPLICATED && kvfi_trt_view_same_roles(view, twin);
    }
    return found;
}

/* Whether all common layers of all REPLICATED views of one side have such a twin: then nothing differs. */
static bool all_have_twins(const struct kvfi_trt_geometry *one, const struct kvfi_trt_geometry *other, int64_t cache)
{
    bool all = true;

    for (size_t i = 0; all && i < one->view_count; i++) {
        const struct kvfi_trt_view *view = &one->views[i];

        for (size_t k = 0; all && is_replicated(view, cache) && k < view->place_count; k++) {
            int64_t layer = view->places[k].global_layer;

            all = kvfi_trt_geometry_group(other, cache, layer) < 0 || has_twin(view, layer, other);
        }
    }
    return all;
}

static enum kvf_status list_covered(const struct kvfi_trt_geometry *one, const struct kvfi_trt_geometry *other,
                                    int64_t cache, struct covered_list *list, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t total = 0;

    for (size_t i = 0; i < one->view_count; i++) {
        const struct kvfi_trt_view *view = &one->views[i];
        size_t pairs;

        if (!is_replicated(view, cache)) continue;
        if (!kvfi_mul_size(view->place_count, view->spec->role_count, &pairs) || pairs > MAX_COVERED - total) {
            status = kvfi_fail(error, KVF_ERR_LIMIT, "replicated views cover more than %d pairs of role and layer",
                               MAX_COVERED);
            goto done;
        }
        total += pairs;
    }
    list->items = kvfi_alloc_array(total, sizeof *list->items);
    if (!list->items) {
        status = kvfi_fail_memory(error, "the layers of replicated roles");
        goto done;
    }
    for (size_t i = 0; i < one->view_count; i++) {
        const struct kvfi_trt_view *view = &one->views[i];

        for (size_t k = 0; is_replicated(view, cache) && k < view->place_count; k++) {
            int64_t layer = view->places[k].global_layer;

            if (kvfi_trt_geometry_group(other, cache, layer) < 0) continue;
            for (size_t r = 0; r < view->spec->role_count; r++) {
                list->items[list->count].role = view->roles[r];
                list->items[list->count++].layer = layer;
            }
        }
    }
    if (list->count > 1) qsort(list->items, list->count, sizeof *list->items, compare_covered);
done:
    return status;
}

/* Moves what only one of two sorted lists has to the front of `found`, in order. */
static size_t differences(const struct covered_list *a, const struct covered_list *b, struct covered *found)
{
    size_t i = 0, k = 0, count = 0;

    while (i < a->count || k < b->count) {
        int order = i == a->count ? 1 : k == b->count ? -1 : compare_covered(&a->items[i], &b->items[k]);
        struct covered item = order <= 0 ? a->items[i] : b->items[k];

        if (order != 0) found[count++] = item;
        while (i < a->count && compare_covered(&a->items[i], &item) == 0) i++;
        while (k < b->count && compare_covered(&b->items[k], &item) == 0) k++;
    }
    return count;
}

static int compare_layers(const void *a, const void *b)
{
    return kvfi_compare_i64(((const struct covered *)a)->layer, ((const struct covered *)b)->layer);
}

static enum kvf_status tell(struct covered *found, size_t count, int64_t cache, struct kvf_error *error)
{
    char roles[LIST_TEXT_BYTES] = "", layers[LIST_TEXT_BYTES] = "";
    const char *separator = "";
    bool fits = true;

    for (size_t i = 0; i < count && fits; i++) {
        if (i > 0 && strcmp(found[i].role, found[i - 1].role) == 0) continue;
        fits = kvfi_trt_text_add(roles, sizeof roles, "%s'%s'", separator, found[i].role);
        separator = ", ";
    }
    qsort(found, count, sizeof *found, compare_layers);
    separator = "";
    fits = true;
    for (size_t i = 0; i < count && fits; i++) {
        if (i > 0 && found[i].layer == found[i - 1].layer) continue;
        fits = kvfi_trt_text_add(layers, sizeof layers, "%s%" PRId64, separator, found[i].layer);
        separator = ", ";
    }
    return kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s.validate_peer_compatible: replicated role(s) [%s] differ on"
                     " overlapping layers [%s]", cache == KVF_TRTLLM_PAGED ? "AttentionPolicy" : "MambaPolicy", roles,
                     layers);
}

enum kvf_status kvfi_trt_rule_coverage(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, int64_t cache,
                                       struct kvf_error *error)
{
    const struct kvfi_trt_geometry *own = kvfi_trt_rank_geometry(self), *other = kvfi_trt_rank_geometry(peer);
    struct covered_list lists[2] = {{NULL, 0}, {NULL, 0}};
    struct covered *found = NULL;
    enum kvf_status status = KVF_OK;
    size_t count;

    if (all_have_twins(own, other, cache) && all_have_twins(other, own, cache)) goto done;
    status = list_covered(own, other, cache, &lists[0], error);
    if (status == KVF_OK) status = list_covered(other, own, cache, &lists[1], error);
    if (status != KVF_OK) goto done;
    found = kvfi_alloc_array(lists[0].count + lists[1].count, sizeof *found);
    if (!found) {
        status = kvfi_fail_memory(error, "the layers of replicated roles");
        goto done;
    }
    count = differences(&lists[0], &lists[1], found);
    if (count > 0) status = tell(found, count, cache, error);
done:
    free(found);
    free(lists[1].items);
    free(lists[0].items);
    return status;
}
