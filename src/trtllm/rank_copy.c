/* SPDX-License-Identifier: Apache-2.0 */
/* What is counted before it is copied, and the copy. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "trtllm/rank.h"

struct kvfi_trt_budget kvfi_trt_budget_full(void)
{
    return (struct kvfi_trt_budget){.pools = KVF_TRTLLM_MAX_POOLS, .views = KVF_TRTLLM_MAX_VIEWS,
                                    .entries = KVF_TRTLLM_MAX_ENTRIES, .layers = KVF_TRTLLM_MAX_ENTRIES,
                                    .roles = KVF_TRTLLM_MAX_ENTRIES, .sections = KVF_TRTLLM_MAX_ENTRIES};
}

static enum kvf_status take(size_t *left, size_t count, const void *array, const char *what, struct kvf_error *error)
{
    if (count && !array)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "rank info: %zu %s but no array of them", count, what);
    if (count > *left)
        return kvfi_fail(error, KVF_ERR_LIMIT, "rank info: %zu more %s, only %zu more are allowed", count, what, *left);
    *left -= count;
    return KVF_OK;
}

static enum kvf_status count_alone(size_t limit, size_t count, const void *array, const char *what,
                                   struct kvf_error *error)
{
    return take(&limit, count, array, what, error);
}

static enum kvf_status count_bytes(const char *text, size_t limit, const char *what, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (!text) status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "rank info: a %s is missing", what);
    else if (strnlen(text, limit + 1) > limit)
        status = kvfi_fail(error, KVF_ERR_LIMIT, "rank info: a %s has more than %zu bytes", what, limit);
    return status;
}

static enum kvf_status count_text(const char *text, const char *what, struct kvf_error *error)
{
    return count_bytes(text, KVF_TRTLLM_MAX_TEXT_BYTES, what, error);
}

static enum kvf_status count_view(const struct kvf_trtllm_view *view, struct kvfi_trt_budget *left,
                                  struct kvf_error *error)
{
    enum kvf_status status = take(&left->entries, view->entry_count, view->entries, "buffer entries", error);

    if (status == KVF_OK) status = take(&left->roles, view->role_count, view->roles, "roles", error);
    if (status == KVF_OK && view->section_bytes)
        status = take(&left->sections, view->section_count, view->section_bytes, "sections", error);
    for (size_t i = 0; i < view->role_count && status == KVF_OK; i++)
        status = count_bytes(view->roles[i], KVF_TRTLLM_MAX_ROLE_BYTES, "role", error);
    return status;
}

static enum kvf_status count_table(const struct kvf_trtllm_page_table *table, struct kvf_error *error)
{
    struct kvfi_trt_budget left = kvfi_trt_budget_full();
    enum kvf_status status = count_alone(KVF_TRTLLM_MAX_GROUPS, table->group_count, table->groups, "layer groups",
                                         error);

    if (status == KVF_OK)
        status = count_alone(KVF_TRTLLM_MAX_GROUPS, table->pool_group_count, table->pool_groups, "pool groups", error);
    for (size_t g = 0; g < table->pool_group_count && status == KVF_OK; g++)
        status = take(&left.pools, table->pool_groups[g].pool_count, table->pool_groups[g].pools, "pools", error);
    for (size_t g = 0; g < table->group_count && status == KVF_OK; g++) {
        const struct kvf_trtllm_group *group = &table->groups[g];

        status = take(&left.layers, group->layer_count, group->layers, "layers", error);
        if (status == KVF_OK) status = take(&left.views, group->view_count, group->views, "views", error);
        for (size_t v = 0; v < group->view_count && status == KVF_OK; v++)
            status = count_view(&group->views[v], &left, error);
    }
    return status;
}

static enum kvf_status count_aux(const struct kvf_trtllm_aux *aux, struct kvf_error *error)
{
    enum kvf_status status = count_alone(KVF_TRTLLM_MAX_AUX, aux->ptr_count, aux->ptrs, "aux addresses", error);

    if (status == KVF_OK) status = count_alone(KVF_TRTLLM_MAX_AUX, aux->size_count, aux->size, "aux sizes", error);
    if (status == KVF_OK)
        status = count_alone(KVF_TRTLLM_MAX_AUX, aux->item_count, aux->item_sizes, "aux item sizes", error);
    if (status == KVF_OK) status = count_text(aux->device, "aux device", error);
    return status;
}

enum kvf_status kvfi_trt_rank_count(const struct kvf_trtllm_rank_spec *spec, struct kvf_error *error)
{
    enum kvf_status status = count_text(spec->instance_name, "name", error);

    if (status == KVF_OK) status = count_text(spec->self_endpoint, "self endpoint", error);
    if (status == KVF_OK && spec->draft_kv_dtype) status = count_text(spec->draft_kv_dtype, "draft dtype", error);
    if (status == KVF_OK)
        status = count_alone(KVF_TRTLLM_MAX_RANKS, spec->layer_num_count, spec->layer_num_per_pp, "stages", error);
    if (status == KVF_OK)
        status = count_alone(KVF_TRTLLM_MAX_RANKS, spec->sender_endpoint_count, spec->sender_endpoints,
                             "sender endpoints", error);
    for (size_t i = 0; i < spec->sender_endpoint_count && status == KVF_OK; i++)
        status = count_text(spec->sender_endpoints[i], "sender endpoint", error);
    if (status == KVF_OK)
        status = count_alone(KVF_TRTLLM_MAX_RANK_BYTES, spec->transfer_engine_info_bytes, spec->transfer_engine_info,
                             "bytes of engine info", error);
    if (status == KVF_OK && spec->aux) status = count_aux(spec->aux, error);
    if (status == KVF_OK && spec->page_table) status = count_table(spec->page_table, error);
    return status;
}

/** A copy into one arena; a failed allocation is remembered, so that the copying functions need not look. */
struct copier {
    struct kvfi_arena *arena;
    bool failed;
};

static void *copy_bytes(struct copier *copier, const void *items, size_t count, size_t item_bytes)
{
    void *copy = copier->failed ? NULL : kvfi_arena_take(copier->arena, count, item_bytes);

    if (!copy) copier->failed = true;
    else if (count) memcpy(copy, items, count * item_bytes);
    return copy;
}

static const char *copy_text(struct copier *copier, const char *text)
{
    return copy_bytes(copier, text, strlen(text) + 1, 1);
}

static const char *const *copy_texts(struct copier *copier, const char *const *texts, size_t count)
{
    const char **copy = copy_bytes(copier, texts, count, sizeof *texts);

    for (size_t i = 0; i < count && !copier->failed; i++) copy[i] = copy_text(copier, texts[i]);
    return copy;
}

static int compare_texts(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static void copy_view(struct copier *copier, struct kvf_trtllm_view *view)
{
    view->entries = copy_bytes(copier, view->entries, view->entry_count, sizeof *view->entries);
    view->roles = copy_texts(copier, view->roles, view->role_count);
    if (view->section_bytes)
        view->section_bytes = copy_bytes(copier, view->section_bytes, view->section_count, sizeof *view->section_bytes);
    else view->section_count = 0;
    if (!copier->failed && view->role_count)
        qsort((void *)view->roles, view->role_count, sizeof *view->roles, compare_texts);
}

static void copy_group(struct copier *copier, struct kvf_trtllm_group *group)
{
    struct kvf_trtllm_view *views = copy_bytes(copier, group->views, group->view_count, sizeof *views);

    group->layers = copy_bytes(copier, group->layers, group->layer_count, sizeof *group->layers);
    group->views = views;
    for (size_t v = 0; v < group->view_count && !copier->failed; v++) copy_view(copier, &views[v]);
    if (group->cache == KVF_TRTLLM_STATE) {
        group->kv_heads_per_rank = KVF_TRTLLM_NONE;
        group->sliding_window_size = KVF_TRTLLM_NONE;
    } else {
        group->slot_major_layout = KVF_TRTLLM_NONE;
    }
}

static const struct kvf_trtllm_page_table *copy_table(struct copier *copier, const struct kvf_trtllm_page_table *table)
{
    struct kvf_trtllm_page_table *copy = copy_bytes(copier, table, 1, sizeof *table);
    struct kvf_trtllm_group *groups = copy_bytes(copier, table->groups, table->group_count, sizeof *groups);
    struct kvf_trtllm_pool_group *pool_groups = copy_bytes(copier, table->pool_groups, table->pool_group_count,
                                                           sizeof *pool_groups);

    if (copier->failed) return NULL;
    copy->groups = groups;
    copy->pool_groups = pool_groups;
    for (size_t g = 0; g < table->group_count && !copier->failed; g++) copy_group(copier, &groups[g]);
    for (size_t g = 0; g < table->pool_group_count && !copier->failed; g++) {
        pool_groups[g].pools = copy_bytes(copier, pool_groups[g].pools, pool_groups[g].pool_count,
                                          sizeof *pool_groups[g].pools);
    }
    return copy;
}

static const struct kvf_trtllm_aux *copy_aux(struct copier *copier, const struct kvf_trtllm_aux *aux)
{
    struct kvf_trtllm_aux *copy = copy_bytes(copier, aux, 1, sizeof *aux);

    if (copier->failed) return NULL;
    copy->ptrs = copy_bytes(copier, aux->ptrs, aux->ptr_count, sizeof *aux->ptrs);
    copy->size = copy_bytes(copier, aux->size, aux->size_count, sizeof *aux->size);
    copy->item_sizes = copy_bytes(copier, aux->item_sizes, aux->item_count, sizeof *aux->item_sizes);
    copy->device = copy_text(copier, aux->device);
    return copy;
}

bool kvfi_trt_rank_copy(struct kvf_trtllm_rank *rank, const struct kvf_trtllm_rank_spec *spec)
{
    struct copier copier = {.arena = &rank->arena};
    struct kvf_trtllm_rank_spec *own = &rank->spec;

    *own = *spec;
    own->instance_name = copy_text(&copier, spec->instance_name);
    own->self_endpoint = copy_text(&copier, spec->self_endpoint);
    if (spec->draft_kv_dtype) own->draft_kv_dtype = copy_text(&copier, spec->draft_kv_dtype);
    own->layer_num_per_pp = copy_bytes(&copier, spec->layer_num_per_pp, spec->layer_num_count,
                                       sizeof *spec->layer_num_per_pp);
    own->sender_endpoints = copy_texts(&copier, spec->sender_endpoints, spec->sender_endpoint_count);
    own->transfer_engine_info = copy_bytes(&copier, spec->transfer_engine_info, spec->transfer_engine_info_bytes, 1);
    if (spec->attention) own->attention = copy_bytes(&copier, spec->attention, 1, sizeof *spec->attention);
    if (spec->aux) own->aux = copy_aux(&copier, spec->aux);
    if (spec->page_table) own->page_table = copy_table(&copier, spec->page_table);
    return !copier.failed;
}
