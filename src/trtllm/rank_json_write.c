/* SPDX-License-Identifier: Apache-2.0 */
/* A rank info as JSON. Members that have their usual value are left out where the reader fills them in. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "trtllm/rank.h"
#include "trtllm/rank_json.h"

/* jansson's functions that take a new reference take NULL too and say so by their result: one flag remembers that some
 * step failed, and nothing is lost. */
static void add(json_t *array, json_t *value, bool *ok)
{
    if (json_array_append_new(array, value) != 0) *ok = false;
}

static void set(json_t *object, const char *key, json_t *value, bool *ok)
{
    if (json_object_set_new(object, key, value) != 0) *ok = false;
}

static json_t *number(int64_t value)
{
    return value == KVF_TRTLLM_NONE ? json_null() : json_integer((json_int_t)value);
}

static json_t *address(uint64_t value)
{
    char text[24];

    if (value <= INT64_MAX) return json_integer((json_int_t)value);
    snprintf(text, sizeof text, "0x%" PRIx64, value);
    return json_string(text);
}

static json_t *element(int64_t eighths)
{
    return eighths % 8 == 0 ? json_integer((json_int_t)(eighths / 8)) : json_real((double)eighths / 8);
}

static json_t *numbers(const int64_t *items, size_t count, bool *ok)
{
    json_t *array = json_array();

    for (size_t i = 0; i < count; i++) add(array, json_integer((json_int_t)items[i]), ok);
    return array;
}

static json_t *texts(const char *const *items, size_t count, bool *ok)
{
    json_t *array = json_array();

    for (size_t i = 0; i < count; i++) add(array, json_string(items[i]), ok);
    return array;
}

static json_t *pair(int64_t first, int64_t second, bool *ok)
{
    const int64_t items[2] = {first, second};

    return numbers(items, 2, ok);
}

static json_t *hex(const unsigned char *bytes, size_t count)
{
    static const char digits[] = "0123456789abcdef";
    char *text = kvfi_alloc_array(2 * count + 1, 1);
    json_t *value = NULL;

    for (size_t i = 0; text && i < count; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    if (text) value = json_stringn(text, 2 * count);
    free(text);
    return value;
}

static json_t *view_to_json(const struct kvf_trtllm_view *view, int64_t cache, bool *ok)
{
    bool paged = cache == KVF_TRTLLM_PAGED;
    json_t *object = json_object(), *entries = json_array();

    for (size_t i = 0; i < view->entry_count; i++) {
        const int64_t items[3] = {view->entries[i].local_layer, view->entries[i].offset_bytes,
                                  view->entries[i].size_bytes};

        add(entries, numbers(items, 3, ok), ok);
    }
    set(object, "pool", number(view->pool), ok);
    set(object, "roles", texts(view->roles, view->role_count, ok), ok);
    set(object, "kind", json_string(kvfi_trt_mapper_words[view->mapper]), ok);
    set(object, "entries", entries, ok);
    set(object, "layer_bytes", number(view->bytes_per_layer), ok);
    if (paged || view->num_kv_heads != KVF_TRTLLM_NONE) set(object, "heads", number(view->num_kv_heads), ok);
    if (view->section_bytes) set(object, "sections", numbers(view->section_bytes, view->section_count, ok), ok);
    if (view->bytes_per_head != KVF_TRTLLM_NONE) set(object, "head_bytes", number(view->bytes_per_head), ok);
    if (paged || view->ring_slot_bytes != KVF_TRTLLM_NONE)
        set(object, "ring_slot_bytes", number(view->ring_slot_bytes), ok);
    return object;
}

static json_t *group_to_json(const struct kvf_trtllm_group *group, bool *ok)
{
    json_t *object = json_object(), *layers = json_array(), *views = json_array();

    for (size_t i = 0; i < group->layer_count; i++)
        add(layers, pair(group->layers[i].local_layer, group->layers[i].global_layer, ok), ok);
    for (size_t i = 0; i < group->view_count; i++) add(views, view_to_json(&group->views[i], group->cache, ok), ok);
    set(object, "cache", json_string(kvfi_trt_cache_words[group->cache]), ok);
    set(object, "pool_group", number(group->pool_group), ok);
    set(object, "layers", layers, ok);
    if (group->cache == KVF_TRTLLM_PAGED) {
        set(object, "window", number(group->sliding_window_size), ok);
        set(object, "kv_heads", number(group->kv_heads_per_rank), ok);
    } else if (group->slot_major_layout != KVF_TRTLLM_NONE) {
        set(object, "slot_major", json_boolean(group->slot_major_layout), ok);
    }
    set(object, "views", views, ok);
    return object;
}

static json_t *pool_to_json(const struct kvf_trtllm_pool *pool, bool *ok)
{
    json_t *object = json_object();

    set(object, "base", address(pool->base_address), ok);
    set(object, "slot", number(pool->slot_bytes), ok);
    set(object, "slots", number(pool->num_slots), ok);
    set(object, "stride", number(pool->slot_stride_bytes), ok);
    if (pool->layer_stride_bytes != KVF_TRTLLM_NONE) set(object, "layer_stride", number(pool->layer_stride_bytes), ok);
    return object;
}

static json_t *table_to_json(const struct kvf_trtllm_page_table *table, bool *ok)
{
    json_t *object, *groups, *pool_groups;

    if (!table) return json_null();
    object = json_object();
    groups = json_array();
    pool_groups = json_array();
    for (size_t g = 0; g < table->group_count; g++) add(groups, group_to_json(&table->groups[g], ok), ok);
    for (size_t g = 0; g < table->pool_group_count; g++) {
        const struct kvf_trtllm_pool_group *group = &table->pool_groups[g];
        json_t *pools = json_array();

        for (size_t p = 0; p < group->pool_count; p++) add(pools, pool_to_json(&group->pools[p], ok), ok);
        add(pool_groups, pools, ok);
    }
    set(object, "tokens_per_block", number(table->tokens_per_block), ok);
    set(object, "groups", groups, ok);
    set(object, "pools", pool_groups, ok);
    return object;
}

static json_t *attention_to_json(const struct kvf_trtllm_attention *attention, bool *ok)
{
    json_t *object;

    if (!attention) return json_null();
    object = json_object();
    set(object, "kv_heads", number(attention->kv_heads_per_rank), ok);
    set(object, "tokens_per_block", number(attention->tokens_per_block), ok);
    set(object, "head_dim", number(attention->dims_per_head), ok);
    set(object, "element_bytes", element(attention->element_eighths), ok);
    set(object, "attention_dp", json_boolean(attention->enable_attention_dp), ok);
    set(object, "key_only", json_boolean(attention->is_mla), ok);
    return object;
}

static json_t *aux_to_json(const struct kvf_trtllm_aux *aux, bool *ok)
{
    json_t *object, *addresses;

    if (!aux) return json_null();
    object = json_object();
    addresses = json_array();
    for (size_t i = 0; i < aux->ptr_count; i++) add(addresses, address(aux->ptrs[i]), ok);
    set(object, "address", addresses, ok);
    set(object, "size", numbers(aux->size, aux->size_count, ok), ok);
    set(object, "item", numbers(aux->item_sizes, aux->item_count, ok), ok);
    if (strcmp(aux->device, "cpu") != 0) set(object, "device", json_string(aux->device), ok);
    return object;
}

static void set_newest(json_t *object, const struct kvf_trtllm_rank_spec *spec, bool *ok)
{
    int64_t delta = spec->protocol_version - KVF_TRTLLM_PROTOCOL_VERSION;
    json_t *absent;

    if (delta) set(object, "protocol_delta", number(delta), ok);
    if (spec->bounded_replay_on_generation) set(object, "replay", json_true(), ok);
    if (spec->num_draft_layers) set(object, "draft_layers", number(spec->num_draft_layers), ok);
    if (spec->draft_kv_dtype) set(object, "draft_dtype", json_string(spec->draft_kv_dtype), ok);
    if (spec->keys == KVF_TRTLLM_HAS_ALL) return;
    absent = json_array();
    for (size_t bit = 0; kvfi_trt_key_words[bit]; bit++)
        if (!(spec->keys >> bit & 1)) add(absent, json_string(kvfi_trt_key_words[bit]), ok);
    set(object, "absent", absent, ok);
}

static json_t *rank_to_json(const struct kvf_trtllm_rank_spec *spec, bool *ok)
{
    json_t *object = json_object();

    set(object, "name", json_string(spec->instance_name), ok);
    set(object, "rank", number(spec->instance_rank), ok);
    set(object, "tp", pair(spec->tp_size, spec->tp_rank, ok), ok);
    set(object, "pp", pair(spec->pp_size, spec->pp_rank, ok), ok);
    set(object, "dp", pair(spec->dp_size, spec->dp_rank, ok), ok);
    set(object, "cp", pair(spec->cp_size, spec->cp_rank, ok), ok);
    set(object, "device", number(spec->device_id), ok);
    set(object, "layers_per_stage", numbers(spec->layer_num_per_pp, spec->layer_num_count, ok), ok);
    if (spec->sender_endpoint_count)
        set(object, "endpoints", texts(spec->sender_endpoints, spec->sender_endpoint_count, ok), ok);
    if (spec->self_endpoint[0]) set(object, "endpoint", json_string(spec->self_endpoint), ok);
    if (spec->transfer_engine_info_bytes)
        set(object, "engine_info", hex(spec->transfer_engine_info, spec->transfer_engine_info_bytes), ok);
    set(object, "attention", attention_to_json(spec->attention, ok), ok);
    set(object, "aux", aux_to_json(spec->aux, ok), ok);
    set(object, "table", table_to_json(spec->page_table, ok), ok);
    set_newest(object, spec, ok);
    return object;
}

enum kvf_status kvf_trtllm_rank_to_json(const kvf_trtllm_rank *rank, char **out, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    json_t *value = NULL;
    char *text = NULL;
    bool ok = true;

    if (!rank || !out) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "rank info: %s is missing", rank ? "out" : "rank");
        goto done;
    }
    value = rank_to_json(&rank->spec, &ok);
    if (value && ok) text = json_dumps(value, JSON_COMPACT);
    if (text) *out = text;
    else status = kvfi_fail_memory(error, "rank info");
done:
    json_decref(value);
    return status;
}

void kvf_trtllm_text_free(char *text)
{
    free(text);
}
