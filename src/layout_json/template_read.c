/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "layout_json/template.h"

/* Opens the array `key` and allocates one zeroed element per item. */
static enum kvf_status open_array(const struct kvfi_cursor *up, const char *key, size_t min_count, size_t max_count,
                                  size_t element_bytes, void **items, size_t *count, struct kvfi_cursor *at)
{
    enum kvf_status status;

    *at = kvfi_cursor_key(up, key);
    status = kvfi_json_array(at, min_count, max_count, count);
    if (status != KVF_OK) goto done;
    *items = kvfi_alloc_zeroed(*count, element_bytes);
    if (!*items) {
        *count = 0;
        status = kvfi_fail_memory(up->source->error, up->source->name);
    }
done:
    return status;
}

static enum kvf_status read_memories(const struct kvfi_cursor *layout, struct kvfi_template *out)
{
    struct kvfi_cursor at;
    enum kvf_status status = open_array(layout, "memories", 1, KVF_LAYOUT_MAX_MEMORIES, sizeof *out->memories,
                                        (void **)&out->memories, &out->memory_count, &at);

    for (size_t i = 0; i < out->memory_count && status == KVF_OK; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, i);

        if (json_is_null(item.value)) out->memories[i] = -1;
        else status = kvfi_json_int(&item, 0, INT64_MAX, &out->memories[i]);
    }
    return status;
}

/* Without listed memories a pool has nothing to point to. */
static enum kvf_status read_pool_memory(const struct kvfi_cursor *at, const struct kvfi_template *template,
                                        struct kvfi_pool_rule *out)
{
    static const char *const keys[] = {"memory", "base_offset_bytes", NULL};
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; keys[i] && template->memory_per_pool && status == KVF_OK; i++) {
        struct kvfi_cursor member = kvfi_cursor_key(at, keys[i]);

        if (member.value) {
            status = kvfi_cursor_fail(&member, KVF_ERR_PARSE, "needs \"memories\": without them each pool is its own");
        }
    }
    if (status == KVF_OK && !template->memory_per_pool) {
        status = kvfi_json_key_int_or(at, "memory", 0, (int64_t)template->memory_count - 1, 0, &out->memory);
    }
    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "base_offset_bytes", 0, INT64_MAX, 0, &out->base_offset);
    return status;
}

static enum kvf_status read_pool(const struct kvfi_cursor *at, const struct kvfi_template *template,
                                 struct kvfi_pool_rule *out)
{
    static const char *const keys[] = {"memory", "base_offset_bytes", "slot_stride_bytes", "slot_padding_bytes",
                                       "slots", "per_layer", NULL};
    struct kvfi_cursor per_layer = kvfi_cursor_key(at, "per_layer");
    enum kvf_status status = kvfi_json_object(at, keys);

    if (status == KVF_OK) status = read_pool_memory(at, template, out);
    if (status == KVF_OK) status = kvfi_json_not_both(at, "slot_stride_bytes", "slot_padding_bytes");
    if (status == KVF_OK) {
        status = kvfi_json_key_int_or(at, "slot_stride_bytes", 1, INT64_MAX, KVFI_DERIVED, &out->slot_stride);
    }
    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "slot_padding_bytes", 0, INT64_MAX, 0, &out->slot_padding);
    if (status == KVF_OK) status = kvfi_json_key_int(at, "slots", 1, INT64_MAX, &out->slots);
    if (status == KVF_OK) status = kvfi_json_key_bool(at, "per_layer", &out->per_layer);
    if (status == KVF_OK && out->per_layer && !template->memory_per_pool) {
        status = kvfi_cursor_fail(&per_layer, KVF_ERR_PARSE, "does not go with \"memories\": each layer's pool is one");
    }
    return status;
}

static enum kvf_status read_pools(const struct kvfi_cursor *layout, struct kvfi_template *out)
{
    struct kvfi_cursor at;
    enum kvf_status status = open_array(layout, "pools", 1, KVF_LAYOUT_MAX_POOLS, sizeof *out->pools,
                                        (void **)&out->pools, &out->pool_count, &at);

    for (size_t i = 0; i < out->pool_count && status == KVF_OK; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, i);

        status = read_pool(&item, out, &out->pools[i]);
    }
    return status;
}

static enum kvf_status read_stripes(const struct kvfi_cursor *at, struct kvfi_group_rule *rule)
{
    static const char *const explicit_keys[] = {"stripes", "stripe", "stripe_tokens", NULL};
    struct kvf_group *group = &rule->group;
    enum kvf_status status = KVF_OK;

    rule->striped_by_cp = kvfi_json_has(at, "cp_stripe_tokens");
    if (rule->striped_by_cp) {
        for (size_t i = 0; explicit_keys[i] && status == KVF_OK; i++) {
            status = kvfi_json_not_both(at, "cp_stripe_tokens", explicit_keys[i]);
        }
        if (status == KVF_OK) status = kvfi_json_key_int(at, "cp_stripe_tokens", 0, INT64_MAX, &group->stripe_tokens);
    } else {
        status = kvfi_json_key_int_or(at, "stripes", 1, INT64_MAX, 1, &group->stripes);
        if (status == KVF_OK) {
            status = kvfi_json_key_int_or(at, "stripe", 0, group->stripes - 1, 0, &group->stripe);
        }
        if (status == KVF_OK) {
            status = kvfi_json_key_int_or(at, "stripe_tokens", 0, INT64_MAX, 0, &group->stripe_tokens);
        }
    }
    return status;
}

static enum kvf_status read_groups(const struct kvfi_cursor *layout, struct kvfi_template *out)
{
    static const char *const keys[] = {"tokens_per_block", "ring_tokens", "stripes", "stripe", "stripe_tokens",
                                       "cp_stripe_tokens", NULL};
    struct kvfi_cursor at;
    enum kvf_status status = open_array(layout, "groups", 1, KVF_LAYOUT_MAX_GROUPS, sizeof *out->groups,
                                        (void **)&out->groups, &out->group_count, &at);

    for (size_t i = 0; i < out->group_count && status == KVF_OK; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, i);
        struct kvf_group *group = &out->groups[i].group;

        status = kvfi_json_object(&item, keys);
        if (status == KVF_OK) {
            status = kvfi_json_key_int(&item, "tokens_per_block", 0, INT64_MAX, &group->tokens_per_block);
        }
        if (status == KVF_OK) {
            status = kvfi_json_key_int_or(&item, "ring_tokens", 0, INT64_MAX, 0, &group->ring_tokens);
        }
        if (status == KVF_OK) status = read_stripes(&item, &out->groups[i]);
    }
    return status;
}

static enum kvf_status read_views(const struct kvfi_cursor *layout, const struct kvfi_grid *grid,
                                  struct kvfi_template *out)
{
    struct kvfi_cursor at;
    enum kvf_status status = open_array(layout, "views", 1, KVF_LAYOUT_MAX_VIEWS, sizeof *out->views,
                                        (void **)&out->views, &out->view_count, &at);

    for (size_t i = 0; i < out->view_count && status == KVF_OK; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, i);

        status = kvfi_view_rule_read(&item, grid, out, &out->views[i]);
    }
    return status;
}

enum kvf_status kvfi_template_read(const struct kvfi_cursor *at, const struct kvfi_grid *grid,
                                   struct kvfi_template *out)
{
    static const char *const keys[] = {"memories", "pools", "groups", "views", NULL};
    enum kvf_status status = kvfi_json_object(at, keys);

    *out = (struct kvfi_template){.memory_per_pool = !kvfi_json_has(at, "memories")};
    if (status == KVF_OK && !out->memory_per_pool) status = read_memories(at, out);
    if (status == KVF_OK) status = read_pools(at, out);
    if (status == KVF_OK) status = read_groups(at, out);
    if (status == KVF_OK) status = read_views(at, grid, out);
    return status;
}

void kvfi_template_fini(struct kvfi_template *template)
{
    for (size_t i = 0; i < template->view_count; i++) {
        free(template->views[i].units.bounds);
        free(template->views[i].layers.list);
        free(template->views[i].places);
    }
    free(template->memories);
    free(template->pools);
    free(template->groups);
    free(template->views);
    *template = (struct kvfi_template){0};
}
