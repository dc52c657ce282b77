/* SPDX-License-Identifier: Apache-2.0 */
/* A rank info from JSON: its page table. */
#include "base/error.h"
#include "trtllm/rank_json.h"

/* An item that is an array of exactly `count` integers of at least 0. */
static enum kvf_status read_numbers(const struct kvfi_cursor *at, size_t count, int64_t *out)
{
    size_t found;
    enum kvf_status status = kvfi_json_array(at, count, count, &found);

    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(at, i);

        status = kvfi_json_int(&item, 0, INT64_MAX, &out[i]);
    }
    return status;
}

static enum kvf_status read_entries(struct kvfi_trt_json *json, const struct kvfi_cursor *up,
                                    struct kvf_trtllm_view *view)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, "entries");
    struct kvf_trtllm_entry *entries = NULL;
    size_t count;
    enum kvf_status status = kvfi_json_array(&at, 0, KVF_TRTLLM_MAX_ENTRIES, &count);

    if (status == KVF_OK) status = kvfi_trt_json_take(json, count, sizeof *entries, (void **)&entries);
    for (size_t i = 0; status == KVF_OK && i < count; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, i);
        int64_t numbers[3];

        status = read_numbers(&item, 3, numbers);
        if (status == KVF_OK) entries[i] = (struct kvf_trtllm_entry){numbers[0], numbers[1], numbers[2]};
    }
    view->entries = entries;
    view->entry_count = status == KVF_OK ? count : 0;
    return status;
}

static enum kvf_status read_view(struct kvfi_trt_json *json, const struct kvfi_cursor *at,
                                 struct kvf_trtllm_view *view)
{
    static const char *const known[] = {"pool", "roles", "kind", "entries", "layer_bytes", "heads", "sections",
                                        "head_bytes", "ring_slot_bytes", NULL};
    struct kvfi_cursor roles = kvfi_cursor_key(at, "roles"), sections = kvfi_cursor_key(at, "sections");
    size_t kind = KVF_TRTLLM_INDEXED;
    enum kvf_status status = kvfi_json_object(at, known);

    if (status == KVF_OK) status = kvfi_json_key_int(at, "pool", 0, KVF_TRTLLM_MAX_POOLS, &view->pool);
    if (status == KVF_OK && roles.value)
        status = kvfi_trt_json_texts(json, &roles, KVF_TRTLLM_MAX_ENTRIES, &view->roles, &view->role_count);
    if (status == KVF_OK && kvfi_json_has(at, "kind"))
        status = kvfi_json_key_word(at, "kind", kvfi_trt_mapper_words, &kind);
    view->mapper = (int64_t)kind;
    if (status == KVF_OK) status = read_entries(json, at, view);
    if (status == KVF_OK) status = kvfi_trt_json_optional(at, "layer_bytes", &view->bytes_per_layer);
    if (status == KVF_OK) status = kvfi_trt_json_optional(at, "heads", &view->num_kv_heads);
    if (status == KVF_OK) status = kvfi_trt_json_optional(at, "head_bytes", &view->bytes_per_head);
    if (status == KVF_OK) status = kvfi_trt_json_optional(at, "ring_slot_bytes", &view->ring_slot_bytes);
    if (status == KVF_OK && sections.value && !json_is_null(sections.value))
        status = kvfi_trt_json_integers(json, &sections, 0, KVF_TRTLLM_MAX_ENTRIES, &view->section_bytes,
                                        &view->section_count);
    return status;
}

static enum kvf_status read_views(struct kvfi_trt_json *json, const struct kvfi_cursor *up,
                                  struct kvf_trtllm_group *group)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, "views");
    struct kvf_trtllm_view *views = NULL;
    enum kvf_status status = kvfi_json_array(&at, 0, KVF_TRTLLM_MAX_VIEWS, &group->view_count);

    if (status == KVF_OK) status = kvfi_trt_json_take(json, group->view_count, sizeof *views, (void **)&views);
    for (size_t i = 0; status == KVF_OK && i < group->view_count; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, i);

        status = read_view(json, &item, &views[i]);
    }
    group->views = views;
    return status;
}

static enum kvf_status read_layers(struct kvfi_trt_json *json, const struct kvfi_cursor *up,
                                   struct kvf_trtllm_group *group)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, "layers");
    struct kvf_trtllm_layer *layers = NULL;
    enum kvf_status status = kvfi_json_array(&at, 0, KVF_TRTLLM_MAX_ENTRIES, &group->layer_count);

    if (status == KVF_OK) status = kvfi_trt_json_take(json, group->layer_count, sizeof *layers, (void **)&layers);
    for (size_t i = 0; status == KVF_OK && i < group->layer_count; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, i);
        int64_t numbers[2];

        status = read_numbers(&item, 2, numbers);
        if (status == KVF_OK) layers[i] = (struct kvf_trtllm_layer){numbers[0], numbers[1]};
    }
    group->layers = layers;
    return status;
}

/* true, false or null: 1, 0 or KVF_TRTLLM_NONE. */
static enum kvf_status read_slot_major(const struct kvfi_cursor *up, int64_t *out)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, "slot_major");
    bool flag = false;
    enum kvf_status status = KVF_OK;

    *out = KVF_TRTLLM_NONE;
    if (!at.value || json_is_null(at.value)) goto done;
    status = kvfi_json_key_bool(up, "slot_major", &flag);
    *out = flag;
done:
    return status;
}

static enum kvf_status read_group(struct kvfi_trt_json *json, const struct kvfi_cursor *at,
                                  struct kvf_trtllm_group *group)
{
    static const char *const paged[] = {"cache", "pool_group", "layers", "window", "kv_heads", "views", NULL};
    static const char *const state[] = {"cache", "pool_group", "layers", "slot_major", "views", NULL};
    size_t cache = 0;
    enum kvf_status status = KVF_OK;

    if (!json_is_object(at->value)) {
        status = kvfi_cursor_expected(at, "an object");
        goto done;
    }
    status = kvfi_json_key_word(at, "cache", kvfi_trt_cache_words, &cache);
    group->cache = (int64_t)cache;
    if (status == KVF_OK) status = kvfi_json_object(at, cache == KVF_TRTLLM_PAGED ? paged : state);
    if (status == KVF_OK)
        status = kvfi_json_key_int(at, "pool_group", 0, KVF_TRTLLM_MAX_GROUPS, &group->pool_group);
    if (status == KVF_OK) status = read_layers(json, at, group);
    if (status == KVF_OK) status = kvfi_trt_json_optional(at, "window", &group->sliding_window_size);
    if (status == KVF_OK) status = kvfi_trt_json_optional(at, "kv_heads", &group->kv_heads_per_rank);
    if (status == KVF_OK) status = read_slot_major(at, &group->slot_major_layout);
    if (status == KVF_OK) status = read_views(json, at, group);
done:
    return status;
}

static enum kvf_status read_pool(const struct kvfi_cursor *at, struct kvf_trtllm_pool *pool)
{
    static const char *const known[] = {"base", "slot", "slots", "stride", "layer_stride", NULL};
    struct kvfi_cursor base = kvfi_cursor_key(at, "base");
    enum kvf_status status = kvfi_json_object(at, known);

    if (status == KVF_OK) status = kvfi_trt_json_address(&base, &pool->base_address);
    if (status == KVF_OK) status = kvfi_json_key_int(at, "slot", 1, INT64_MAX, &pool->slot_bytes);
    if (status == KVF_OK) status = kvfi_json_key_int(at, "slots", 1, INT64_MAX, &pool->num_slots);
    if (status == KVF_OK)
        status = kvfi_json_key_int_or(at, "stride", 1, INT64_MAX, pool->slot_bytes, &pool->slot_stride_bytes);
    if (status == KVF_OK) status = kvfi_trt_json_optional(at, "layer_stride", &pool->layer_stride_bytes);
    return status;
}

static enum kvf_status read_pools(struct kvfi_trt_json *json, const struct kvfi_cursor *up,
                                  struct kvf_trtllm_page_table *table)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, "pools");
    struct kvf_trtllm_pool_group *groups = NULL;
    enum kvf_status status = kvfi_json_array(&at, 0, KVF_TRTLLM_MAX_GROUPS, &table->pool_group_count);

    if (status == KVF_OK)
        status = kvfi_trt_json_take(json, table->pool_group_count, sizeof *groups, (void **)&groups);
    for (size_t g = 0; status == KVF_OK && g < table->pool_group_count; g++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, g);
        struct kvf_trtllm_pool *pools = NULL;

        status = kvfi_json_array(&item, 0, KVF_TRTLLM_MAX_POOLS, &groups[g].pool_count);
        if (status == KVF_OK) status = kvfi_trt_json_take(json, groups[g].pool_count, sizeof *pools, (void **)&pools);
        for (size_t p = 0; status == KVF_OK && p < groups[g].pool_count; p++) {
            struct kvfi_cursor pool = kvfi_cursor_item(&item, p);

            status = read_pool(&pool, &pools[p]);
        }
        groups[g].pools = pools;
    }
    table->pool_groups = groups;
    return status;
}

enum kvf_status kvfi_trt_json_table(struct kvfi_trt_json *json, const struct kvfi_cursor *at,
                                    const struct kvf_trtllm_page_table **out)
{
    static const char *const known[] = {"tokens_per_block", "groups", "pools", NULL};
    struct kvfi_cursor groups = kvfi_cursor_key(at, "groups");
    struct kvf_trtllm_page_table *table = NULL;
    struct kvf_trtllm_group *items = NULL;
    enum kvf_status status = kvfi_json_object(at, known);

    if (status == KVF_OK) status = kvfi_trt_json_take(json, 1, sizeof *table, (void **)&table);
    if (status == KVF_OK)
        status = kvfi_json_key_int(at, "tokens_per_block", 1, INT64_MAX, &table->tokens_per_block);
    if (status == KVF_OK) status = kvfi_json_array(&groups, 0, KVF_TRTLLM_MAX_GROUPS, &table->group_count);
    if (status == KVF_OK) status = kvfi_trt_json_take(json, table->group_count, sizeof *items, (void **)&items);
    for (size_t g = 0; status == KVF_OK && g < table->group_count; g++) {
        struct kvfi_cursor item = kvfi_cursor_item(&groups, g);

        status = read_group(json, &item, &items[g]);
    }
    if (status != KVF_OK) goto done;
    table->groups = items;
    status = read_pools(json, at, table);
    *out = table;
done:
    return status;
}
