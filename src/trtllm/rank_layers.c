/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of a page table, to find and to refuse those that are listed twice. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/compare.h"
#include "base/error.h"
#include "trtllm/rank.h"

struct kvfi_trt_listed {
    int64_t cache, global_layer, local_layer;
    size_t group;
};

static int compare_global(const void *left, const void *right)
{
    const struct kvfi_trt_listed *a = left, *b = right;
    int order = kvfi_compare_i64(a->cache, b->cache);

    if (!order) order = kvfi_compare_i64(a->global_layer, b->global_layer);
    return order;
}

/* Equal ones by their groups, so that the same pair is always named. */
static int order_global(const void *left, const void *right)
{
    const struct kvfi_trt_listed *a = left, *b = right;
    int order = compare_global(a, b);

    return order ? order : kvfi_compare_size(a->group, b->group);
}

static int compare_local(const void *left, const void *right)
{
    const struct kvfi_trt_listed *a = left, *b = right;
    int order = kvfi_compare_size(a->group, b->group);

    return order ? order : kvfi_compare_i64(a->local_layer, b->local_layer);
}

static enum kvf_status check_listed_once(struct kvfi_trt_layers *layers, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    qsort(layers->items, layers->count, sizeof *layers->items, order_global);
    for (size_t i = 1; i < layers->count && status == KVF_OK; i++) {
        const struct kvfi_trt_listed *at = &layers->items[i];

        if (compare_global(at - 1, at) == 0)
            status = kvfi_fail(error, KVF_ERR_LAYOUT,
                               "global_layer_id %" PRId64 " appears in layer groups %zu and %zu; layer groups must "
                               "partition a rank's layers of one cache kind", at->global_layer, at[-1].group,
                               at->group);
    }
    qsort(layers->items, layers->count, sizeof *layers->items, compare_local);
    for (size_t i = 1; i < layers->count && status == KVF_OK; i++) {
        const struct kvfi_trt_listed *at = &layers->items[i];

        if (compare_local(at - 1, at) == 0)
            status = kvfi_fail(error, KVF_ERR_LAYOUT, "layer group %zu lists local layer %" PRId64 " twice", at->group,
                               at->local_layer);
    }
    return status;
}

enum kvf_status kvfi_trt_layers_init(struct kvfi_trt_layers *layers, const struct kvf_trtllm_page_table *table,
                                     struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t count = 0, used = 0;

    for (size_t g = 0; g < table->group_count; g++) count += table->groups[g].layer_count;
    layers->items = kvfi_alloc_array(count, sizeof *layers->items);
    layers->count = count;
    if (!layers->items) {
        status = kvfi_fail_memory(error, "rank info");
        goto done;
    }
    for (size_t g = 0; g < table->group_count; g++) {
        const struct kvf_trtllm_group *group = &table->groups[g];

        for (size_t i = 0; i < group->layer_count; i++)
            layers->items[used++] = (struct kvfi_trt_listed){group->cache, group->layers[i].global_layer,
                                                             group->layers[i].local_layer, g};
    }
    status = check_listed_once(layers, error);
done:
    return status;
}

void kvfi_trt_layers_fini(struct kvfi_trt_layers *layers)
{
    free(layers->items);
    *layers = (struct kvfi_trt_layers){0};
}

bool kvfi_trt_layers_have(const struct kvfi_trt_layers *layers, size_t group, int64_t local_layer)
{
    const struct kvfi_trt_listed wanted = {.group = group, .local_layer = local_layer};

    return bsearch(&wanted, layers->items, layers->count, sizeof wanted, compare_local) != NULL;
}
