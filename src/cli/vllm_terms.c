/* SPDX-License-Identifier: Apache-2.0 */
/* vLLM's terms out of JSON. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/vllm_terms.h"

static const char *const kinds[] = {"attention", "mla", "mamba", "circular", NULL};

void *vllm_keep_add(struct vllm_keep *keep, size_t count, size_t bytes)
{
    void **larger = realloc(keep->blocks, (keep->count + 1) * sizeof(*larger));
    if (larger == NULL)
        return NULL;
    keep->blocks = larger;
    void *block = calloc(count + 1, bytes);
    if (block != NULL)
        keep->blocks[keep->count++] = block;
    return block;
}

void vllm_keep_free(struct vllm_keep *keep)
{
    for (size_t i = 0; i < keep->count; i++)
        free(keep->blocks[i]);
    free(keep->blocks);
    *keep = (struct vllm_keep){0};
}

bool vllm_take_u64(struct json_take *take, const char *key, const json_t *value, uint64_t *out)
{
    const char *text = json_string_value(value);
    char *end = NULL;
    errno = 0;
    uint64_t number = text != NULL ? strtoull(text, &end, 0) : (uint64_t)json_integer_value(value);
    if (text != NULL ? errno != 0 || text[0] < '0' || text[0] > '9' || *end != '\0'
                     : !json_is_integer(value) || json_integer_value(value) < 0)
        return json_take_wrong(take, key, "expected a number from 0 on, or a text \"0x...\" where it does not fit");
    *out = number;
    return true;
}

/** The list of `key`, NULL when it is absent. */
static bool take_list(struct json_take *take, const json_t *object, const char *key, const json_t **out, size_t *count)
{
    const json_t *list = json_object_get(object, key);
    *out = NULL;
    *count = 0;
    if (!json_take_has(object, key))
        return true;
    if (!json_is_array(list))
        return json_take_wrong(take, key, "expected a list");
    *out = list;
    *count = json_array_size(list);
    return true;
}

static bool take_ints(struct json_take *take, const json_t *object, const char *key, int64_t low,
                      struct vllm_keep *keep, const int64_t **out, size_t *out_count)
{
    const json_t *list = NULL;
    size_t count = 0;
    if (!take_list(take, object, key, &list, &count))
        return false;
    int64_t *numbers = vllm_keep_add(keep, count, sizeof(*numbers));
    if (numbers == NULL)
        return json_take_wrong(take, key, "no memory");
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_integer(value) || json_integer_value(value) < low)
            return json_take_wrong(take, key, "number %zu is no whole number from %" PRId64 " on", i, low);
        numbers[i] = json_integer_value(value);
    }
    *out = numbers;
    *out_count = count;
    return true;
}

static bool take_addresses(struct json_take *take, const json_t *object, struct vllm_keep *keep,
                           struct kvf_vllm_arrays *out)
{
    const json_t *list = NULL;
    size_t count = 0;
    if (!take_list(take, object, "base_addr", &list, &count))
        return false;
    uint64_t *numbers = vllm_keep_add(keep, count, sizeof(*numbers));
    if (numbers == NULL)
        return json_take_wrong(take, "base_addr", "no memory");
    for (size_t i = 0; i < count; i++) {
        if (!vllm_take_u64(take, "base_addr", json_array_get(list, i), &numbers[i]))
            return false;
    }
    out->base_addrs = numbers;
    out->base_addr_count = count;
    return true;
}

static bool take_names(struct json_take *take, const json_t *object, struct vllm_keep *keep,
                       struct kvf_vllm_arrays *out)
{
    const json_t *list = NULL;
    size_t count = 0;
    if (!take_list(take, object, "layer_name", &list, &count))
        return false;
    const char **names = vllm_keep_add(keep, count, sizeof(*names));
    if (names == NULL)
        return json_take_wrong(take, "layer_name", "no memory");
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);
        names[i] = json_string_value(value);
        if (names[i] == NULL || strlen(names[i]) != json_string_length(value))
            return json_take_wrong(take, "layer_name", "number %zu is no text", i);
    }
    out->layer_names = names;
    out->layer_name_count = count;
    return true;
}

bool vllm_take_groups(struct json_take *take, const json_t *object, const char *key, struct vllm_keep *keep,
                      struct kvf_vllm_ids **out, size_t *out_count)
{
    const json_t *list = NULL;
    size_t count = 0;
    *out = NULL;
    *out_count = 0;
    if (!take_list(take, object, key, &list, &count))
        return false;
    if (list == NULL)
        return true;
    struct kvf_vllm_ids *groups = vllm_keep_add(keep, count, sizeof(*groups));
    if (groups == NULL)
        return json_take_wrong(take, key, "no memory");
    for (size_t g = 0; g < count; g++) {
        const json_t *inner = json_array_get(list, g);
        int64_t *ids = vllm_keep_add(keep, json_array_size(inner), sizeof(*ids));
        if (!json_is_array(inner) || ids == NULL)
            return json_take_wrong(take, key, ids == NULL ? "no memory" : "expected a list of lists, one per group");
        for (size_t i = 0; i < json_array_size(inner); i++) {
            const json_t *value = json_array_get(inner, i);
            if (!json_is_integer(value) || json_integer_value(value) < 0)
                return json_take_wrong(take, key, "number %zu of list %zu is no whole number from 0 on", i, g);
            ids[i] = json_integer_value(value);
        }
        groups[g] = (struct kvf_vllm_ids){ids, json_array_size(inner)};
    }
    *out = groups;
    *out_count = count;
    return true;
}

bool vllm_take_regions(struct json_take *take, const json_t *object, struct vllm_keep *keep,
                       struct kvf_vllm_arrays *out)
{
    static const char *const known[] = {"base_addr",   "block_len",     "kv_block_len", "layer_name", "layer_index",
                                        "group_index", "shared_groups", "row_offset",   "comment",    NULL};
    struct kvf_vllm_ids *shared = NULL;
    *out = (struct kvf_vllm_arrays){0};
    if (!json_take_known(take, object, known) || !take_addresses(take, object, keep, out) ||
        !take_ints(take, object, "block_len", 0, keep, &out->block_lens, &out->block_len_count) ||
        !take_ints(take, object, "kv_block_len", 0, keep, &out->kv_block_lens, &out->kv_block_len_count) ||
        !take_names(take, object, keep, out) ||
        !take_ints(take, object, "layer_index", 0, keep, &out->layer_indices, &out->layer_index_count) ||
        !take_ints(take, object, "group_index", KVF_VLLM_SHARED_GROUP, keep, &out->group_indices,
                   &out->group_index_count) ||
        !vllm_take_groups(take, object, "shared_groups", keep, &shared, &out->shared_group_count) ||
        !take_ints(take, object, "row_offset", KVF_VLLM_NO_ROW, keep, &out->row_offsets, &out->row_offset_count))
        return false;
    out->shared_groups = shared;
    return true;
}

void vllm_rank_init(struct vllm_rank *rank)
{
    *rank = (struct vllm_rank){.tp_size = 1, .pp_size = 1, .kernel_blocks_per_block = 1, .hostname = "consumer"};
}

static bool take_kinds(struct json_take *take, const json_t *object, struct vllm_keep *keep, struct vllm_rank *rank)
{
    const json_t *list = NULL;
    size_t count = 0;
    if (!take_list(take, object, "group_kinds", &list, &count) || list == NULL)
        return take->text[0] == '\0';
    rank->group_kinds = vllm_keep_add(keep, count, sizeof(*rank->group_kinds));
    if (rank->group_kinds == NULL)
        return json_take_wrong(take, "group_kinds", "no memory");
    for (size_t i = 0; i < count; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text == NULL || (strcmp(text, "attention") != 0 && strcmp(text, "mamba") != 0))
            return json_take_wrong(take, "group_kinds", "number %zu is neither \"attention\" nor \"mamba\"", i);
        rank->group_kinds[i] = text[0] == 'a' ? KVF_VLLM_ATTENTION : KVF_VLLM_MAMBA;
    }
    rank->group_count = count;
    return true;
}

static struct kvf_vllm_layer *find_layer(struct vllm_rank *rank, const char *name)
{
    for (size_t i = 0; i < rank->layer_count; i++) {
        if (strcmp(rank->layers[i].name, name) == 0)
            return &rank->layers[i];
    }
    rank->layers[rank->layer_count] = (struct kvf_vllm_layer){.name = name};
    return &rank->layers[rank->layer_count++];
}

static bool take_spec(const json_t *spec, const char *name, struct json_take *up, struct kvf_vllm_layer *layer)
{
    static const char *const known[] = {"kind", "page_bytes", "unpadded_page_bytes", "nvfp4", "comment", NULL};
    struct json_take take = json_take_below("%s%slayer_specs.%.60s", up->path, up->path[0] != '\0' ? "." : "", name);
    int kind = -1;
    bool nvfp4 = false;
    bool fits = json_take_known(&take, spec, known) && json_take_word(&take, spec, "kind", kinds, &kind) &&
                json_take_int(&take, spec, "page_bytes", 0, INT64_MAX - 1, &layer->page_bytes) &&
                json_take_int(&take, spec, "unpadded_page_bytes", 0, INT64_MAX - 1, &layer->unpadded_page_bytes) &&
                json_take_bool(&take, spec, "nvfp4", &nvfp4);
    layer->kind = kind + 1;
    layer->is_nvfp4 = nvfp4;
    if (!json_take_has(spec, "unpadded_page_bytes"))
        layer->unpadded_page_bytes = layer->page_bytes;
    if (!fits)
        memcpy(up->text, take.text, sizeof(up->text));
    return fits;
}

static bool take_layers(struct json_take *take, const json_t *object, struct vllm_keep *keep, struct vllm_rank *rank)
{
    json_t *groups = json_object_get(object, "layer_groups"), *specs = json_object_get(object, "layer_specs"), *value;
    const char *name;
    if ((json_take_has(object, "layer_groups") && !json_is_object(groups)) ||
        (json_take_has(object, "layer_specs") && !json_is_object(specs)))
        return json_take_wrong(take, json_is_object(groups) ? "layer_specs" : "layer_groups",
                               "expected an object by layer name");
    if (json_object_size(groups) + json_object_size(specs) == 0)
        return true;
    rank->layer_count = 0;
    rank->layers = vllm_keep_add(keep, json_object_size(groups) + json_object_size(specs), sizeof(*rank->layers));
    if (rank->layers == NULL)
        return json_take_wrong(take, "layer_specs", "no memory");
    json_object_foreach(groups, name, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return json_take_wrong(take, "layer_groups", "\"%.80s\" has no group from 0 on", name);
        find_layer(rank, name)->group = json_integer_value(value);
    }
    json_object_foreach(specs, name, value)
    {
        if (!take_spec(value, name, take, find_layer(rank, name)))
            return false;
    }
    return true;
}

bool vllm_take_rank(struct json_take *take, const json_t *object, struct vllm_keep *keep, struct vllm_rank *rank)
{
    static const char *const known[] = {
        "tp_rank",     "tp_size",      "pp_rank",     "pp_size",   "is_mla",  "total_kv_heads",
        "group_kinds", "layer_groups", "layer_specs", "kernel_blocks_per_block", "has_opaque_row", "regions",
        "ready",       "hostname",     "port",        "requests",  "layout_id", "kv_cache_groups", "comment", NULL};
    static const int64_t most = INT64_C(1) << 20;
    if (object == NULL)
        return true;
    const json_t *ready = json_object_get(object, "ready"), *requests = json_object_get(object, "requests");
    bool fits = json_take_known(take, object, known) &&
                json_take_int(take, object, "tp_size", 1, most, &rank->tp_size) &&
                json_take_int(take, object, "tp_rank", 0, most, &rank->tp_rank) &&
                json_take_int(take, object, "pp_size", 1, most, &rank->pp_size) &&
                json_take_int(take, object, "pp_rank", 0, most, &rank->pp_rank) &&
                json_take_int(take, object, "total_kv_heads", 0, most, &rank->total_kv_heads) &&
                json_take_int(take, object, "kernel_blocks_per_block", 1, most, &rank->kernel_blocks_per_block) &&
                json_take_int(take, object, "kv_cache_groups", 0, most, &rank->kv_cache_groups) &&
                json_take_bool(take, object, "is_mla", &rank->is_mla) &&
                json_take_bool(take, object, "has_opaque_row", &rank->has_opaque_row) &&
                json_take_text(take, object, "hostname", &rank->hostname) &&
                json_take_int(take, object, "port", 0, 65535, &rank->port) &&
                (!json_take_has(object, "layout_id") ||
                 vllm_take_u64(take, "layout_id", json_object_get(object, "layout_id"), &rank->layout_id)) &&
                take_kinds(take, object, keep, rank) && take_layers(take, object, keep, rank);
    if (fits && json_take_has(object, "ready") && !json_is_array(ready))
        return json_take_wrong(take, "ready", "expected a list");
    if (fits && json_take_has(object, "requests") && !json_is_array(requests))
        return json_take_wrong(take, "requests", "expected a list");
    rank->requests = json_is_array(ready) ? ready : json_is_array(requests) ? requests : NULL;
    return fits;
}

bool vllm_can_produce(struct json_take *take, const struct vllm_rank *rank)
{
    if (rank->group_count == 0)
        return json_take_wrong(take, "group_kinds", "expected \"attention\" or \"mamba\" for each group that is "
                                                    "transferred");
    if (rank->total_kv_heads == 0 && !rank->is_mla)
        return json_take_wrong(take, "total_kv_heads", "expected the model's number, unless is_mla");
    return true;
}

void vllm_producer_spec(const struct vllm_rank *rank, struct kvf_vllm_producer_spec *out)
{
    kvf_vllm_producer_spec_init(out, sizeof(*out));
    out->tp_rank = rank->tp_rank;
    out->tp_size = rank->tp_size;
    out->pp_size = rank->pp_size;
    out->is_mla = rank->is_mla;
    out->has_opaque_row = rank->has_opaque_row;
    out->total_kv_heads = rank->total_kv_heads;
    out->group_kinds = rank->group_kinds;
    out->group_count = rank->group_count;
    out->layers = rank->layers;
    out->layer_count = rank->layer_count;
    out->kernel_blocks_per_block = rank->kernel_blocks_per_block;
    out->regions = rank->regions;
}

void vllm_peer(const struct vllm_rank *rank, struct kvf_vllm_peer *out)
{
    kvf_vllm_peer_init(out, sizeof(*out));
    out->hostname = rank->hostname;
    out->port = rank->port;
    out->tp_size = rank->tp_size;
    out->tp_rank = rank->tp_rank;
    out->pp_size = rank->pp_size;
    out->regions = rank->regions;
    out->layout_id = rank->layout_id;
}

json_t *vllm_json_u64(uint64_t number)
{
    char text[24];
    if (number <= INT64_MAX)
        return json_integer((json_int_t)number);
    snprintf(text, sizeof(text), "0x%" PRIx64, number);
    return json_string(text);
}
