/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/rank_fields.h"

#include <string.h>

#include "trtllm/rank_json.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define ROW(type, text, how, bits, member) {.name = text, .kind = how, .flags = bits, .offset = offsetof(type, member)}
#define LIST(type, text, how, bits, member, number, most) \
    {.name = text, .kind = how, .flags = bits, .offset = offsetof(type, member), \
     .count_offset = offsetof(type, number), .limit = most}
#define SHARED(type, text, how, bits, member, number, of, table) \
    {.name = text, .kind = how, .flags = bits, .offset = offsetof(type, member), \
     .count_offset = offsetof(type, number), .budget = offsetof(struct kvfi_trt_budget, of), .map = table}

typedef struct kvf_trtllm_pool pool;
typedef struct kvf_trtllm_pool_group pool_group;
typedef struct kvf_trtllm_view view;
typedef struct kvf_trtllm_layer layer;
typedef struct kvf_trtllm_group group;
typedef struct kvf_trtllm_page_table page_table;
typedef struct kvf_trtllm_attention attention;
typedef struct kvf_trtllm_aux aux;
typedef struct kvf_trtllm_rank_spec rank_spec;

enum { REQUIRED = KVFI_TRT_REQUIRED, PAGED = KVFI_TRT_PAGED_ONLY, STATE = KVFI_TRT_STATE_ONLY };

static const struct kvfi_trt_field pool_fields[] = {
    ROW(pool, "base_address", KVFI_TRT_ADDRESS, REQUIRED, base_address),
    ROW(pool, "slot_bytes", KVFI_TRT_INT, REQUIRED, slot_bytes),
    ROW(pool, "num_slots", KVFI_TRT_INT, REQUIRED, num_slots),
    ROW(pool, "slot_stride_bytes", KVFI_TRT_INT_OR_NIL, 0, slot_stride_bytes),
    ROW(pool, "layer_stride_bytes", KVFI_TRT_INT_OR_NIL, 0, layer_stride_bytes),
};
static const pool pool_defaults = {.slot_stride_bytes = KVF_TRTLLM_NONE, .layer_stride_bytes = KVF_TRTLLM_NONE};

static void complete_pool(void *object, uint32_t seen)
{
    pool *own = object;

    (void)seen;
    if (own->slot_stride_bytes == KVF_TRTLLM_NONE) own->slot_stride_bytes = own->slot_bytes;
}

static const struct kvfi_trt_map pool_map = {pool_fields, COUNT(pool_fields), sizeof(pool), &pool_defaults,
                                             complete_pool};

static const struct kvfi_trt_field pool_group_fields[] = {
    SHARED(pool_group, "pools", KVFI_TRT_MAPS, REQUIRED, pools, pool_count, pools, &pool_map),
};
static const pool_group pool_group_defaults;
static const struct kvfi_trt_map pool_group_map = {pool_group_fields, COUNT(pool_group_fields), sizeof(pool_group),
                                                   &pool_group_defaults, NULL};

static const struct kvfi_trt_field view_fields[] = {
    ROW(view, "pool_idx", KVFI_TRT_INT, REQUIRED, pool),
    SHARED(view, "buffer_entries", KVFI_TRT_ENTRIES, REQUIRED, entries, entry_count, entries, NULL),
    SHARED(view, "pool_role", KVFI_TRT_TEXTS, 0, roles, role_count, roles, NULL),
    {.name = "mapper_kind", .kind = KVFI_TRT_ENUM, .offset = offsetof(view, mapper), .words = kvfi_trt_mapper_words},
    ROW(view, "bytes_per_layer", KVFI_TRT_INT_OR_NIL, 0, bytes_per_layer),
    SHARED(view, "section_bytes", KVFI_TRT_INTS_OR_NIL, 0, section_bytes, section_count, sections, NULL),
    ROW(view, "bytes_per_head", KVFI_TRT_INT_OR_NIL, 0, bytes_per_head),
    ROW(view, "num_kv_heads", KVFI_TRT_INT_OR_NIL, 0, num_kv_heads),
    ROW(view, "ring_slot_bytes", KVFI_TRT_INT_OR_NIL, 0, ring_slot_bytes),
};
static const view view_defaults = {.bytes_per_layer = KVF_TRTLLM_NONE, .num_kv_heads = KVF_TRTLLM_NONE,
                                   .bytes_per_head = KVF_TRTLLM_NONE, .ring_slot_bytes = KVF_TRTLLM_NONE};
static const struct kvfi_trt_map view_map = {view_fields, COUNT(view_fields), sizeof(view), &view_defaults, NULL};

static const struct kvfi_trt_field layer_fields[] = {
    ROW(layer, "local_layer_id", KVFI_TRT_INT, REQUIRED, local_layer),
    ROW(layer, "global_layer_id", KVFI_TRT_INT, REQUIRED, global_layer),
};
static const layer layer_defaults;
static const struct kvfi_trt_map layer_map = {layer_fields, COUNT(layer_fields), sizeof(layer), &layer_defaults, NULL};

enum { GROUP_KIND, GROUP_HEADS = 4, GROUP_WINDOW = 5, GROUP_SLOT_MAJOR = 6 };

static const struct kvfi_trt_field group_fields[] = {
    {.name = "kind", .kind = KVFI_TRT_ENUM, .offset = offsetof(group, cache), .words = kvfi_trt_cache_words},
    ROW(group, "pool_group_idx", KVFI_TRT_INT, REQUIRED, pool_group),
    SHARED(group, "local_layers", KVFI_TRT_MAPS, REQUIRED, layers, layer_count, layers, &layer_map),
    SHARED(group, "pool_views", KVFI_TRT_MAPS, REQUIRED, views, view_count, views, &view_map),
    [GROUP_HEADS] = ROW(group, "kv_head_num_per_rank", KVFI_TRT_INT_OR_NIL, PAGED, kv_heads_per_rank),
    [GROUP_WINDOW] = ROW(group, "sliding_window_size", KVFI_TRT_INT_OR_NIL, PAGED, sliding_window_size),
    [GROUP_SLOT_MAJOR] = ROW(group, "slot_major_layout", KVFI_TRT_FLAG_OR_NIL, STATE, slot_major_layout),
};
static const group group_defaults = {.kv_heads_per_rank = KVF_TRTLLM_NONE, .sliding_window_size = KVF_TRTLLM_NONE,
                                     .slot_major_layout = KVF_TRTLLM_NONE};

static bool has_state_view(const group *own)
{
    bool found = false;

    for (size_t i = 0; i < own->view_count && !found; i++) {
        const view *at = &own->views[i];

        found = at->mapper == KVF_TRTLLM_SECTIONED ||
                (at->role_count == 1 &&
                 (strcmp(at->roles[0], "conv_state") == 0 || strcmp(at->roles[0], "ssm_state") == 0));
    }
    return found;
}

/* Which key tells the two apart is not certain for every version: without it, the keys that only one of them has do,
 * and then the views. */
static void complete_group(void *object, uint32_t seen)
{
    group *own = object;
    bool paged = seen >> GROUP_HEADS & 1 || seen >> GROUP_WINDOW & 1;

    if (seen >> GROUP_KIND & 1) return;
    own->cache = !paged && (seen >> GROUP_SLOT_MAJOR & 1 || has_state_view(own)) ? KVF_TRTLLM_STATE : KVF_TRTLLM_PAGED;
}

const struct kvfi_trt_map kvfi_trt_group_map = {group_fields, COUNT(group_fields), sizeof(group), &group_defaults,
                                                complete_group};

static const struct kvfi_trt_field table_fields[] = {
    ROW(page_table, "tokens_per_block", KVFI_TRT_INT, REQUIRED, tokens_per_block),
    {.name = "layer_groups", .kind = KVFI_TRT_MAPS, .flags = REQUIRED, .offset = offsetof(page_table, groups),
     .count_offset = offsetof(page_table, group_count), .limit = KVF_TRTLLM_MAX_GROUPS, .map = &kvfi_trt_group_map},
    {.name = "pool_groups", .kind = KVFI_TRT_MAPS, .flags = REQUIRED, .offset = offsetof(page_table, pool_groups),
     .count_offset = offsetof(page_table, pool_group_count), .limit = KVF_TRTLLM_MAX_GROUPS, .map = &pool_group_map},
};
static const page_table table_defaults;
static const struct kvfi_trt_map table_map = {table_fields, COUNT(table_fields), sizeof(page_table), &table_defaults,
                                              NULL};

static const struct kvfi_trt_field attention_fields[] = {
    ROW(attention, "kv_heads_per_rank", KVFI_TRT_INT, REQUIRED, kv_heads_per_rank),
    ROW(attention, "tokens_per_block", KVFI_TRT_INT, REQUIRED, tokens_per_block),
    ROW(attention, "dims_per_head", KVFI_TRT_INT, REQUIRED, dims_per_head),
    ROW(attention, "element_bytes", KVFI_TRT_EIGHTHS, REQUIRED, element_eighths),
    ROW(attention, "enable_attention_dp", KVFI_TRT_FLAG, REQUIRED, enable_attention_dp),
    ROW(attention, "is_mla", KVFI_TRT_FLAG, REQUIRED, is_mla),
};
static const attention attention_defaults;
static const struct kvfi_trt_map attention_map = {attention_fields, COUNT(attention_fields), sizeof(attention),
                                                  &attention_defaults, NULL};

static const struct kvfi_trt_field aux_fields[] = {
    LIST(aux, "ptrs", KVFI_TRT_ADDRESSES, REQUIRED, ptrs, ptr_count, KVF_TRTLLM_MAX_AUX),
    LIST(aux, "size", KVFI_TRT_INTS, REQUIRED, size, size_count, KVF_TRTLLM_MAX_AUX),
    LIST(aux, "item_sizes", KVFI_TRT_INTS, REQUIRED, item_sizes, item_count, KVF_TRTLLM_MAX_AUX),
    ROW(aux, "device", KVFI_TRT_TEXT, 0, device),
};
static const aux aux_defaults = {.device = "cpu"};
static const struct kvfi_trt_map aux_map = {aux_fields, COUNT(aux_fields), sizeof(aux), &aux_defaults, NULL};

static const struct kvfi_trt_field rank_fields[] = {
    ROW(rank_spec, "instance_name", KVFI_TRT_TEXT, REQUIRED, instance_name),
    ROW(rank_spec, "instance_rank", KVFI_TRT_INT, REQUIRED, instance_rank),
    ROW(rank_spec, "tp_size", KVFI_TRT_INT, REQUIRED, tp_size),
    ROW(rank_spec, "tp_rank", KVFI_TRT_INT, REQUIRED, tp_rank),
    ROW(rank_spec, "pp_size", KVFI_TRT_INT, REQUIRED, pp_size),
    ROW(rank_spec, "pp_rank", KVFI_TRT_INT, REQUIRED, pp_rank),
    LIST(rank_spec, "layer_num_per_pp", KVFI_TRT_INTS, REQUIRED, layer_num_per_pp, layer_num_count,
         KVF_TRTLLM_MAX_RANKS),
    LIST(rank_spec, "sender_endpoints", KVFI_TRT_TEXTS, REQUIRED, sender_endpoints, sender_endpoint_count,
         KVF_TRTLLM_MAX_RANKS),
    ROW(rank_spec, "self_endpoint", KVFI_TRT_TEXT, REQUIRED, self_endpoint),
    LIST(rank_spec, "transfer_engine_info", KVFI_TRT_BYTES, REQUIRED, transfer_engine_info,
         transfer_engine_info_bytes, KVF_TRTLLM_MAX_RANK_BYTES),
    ROW(rank_spec, "dp_size", KVFI_TRT_INT, 0, dp_size),
    ROW(rank_spec, "dp_rank", KVFI_TRT_INT, 0, dp_rank),
    ROW(rank_spec, "cp_size", KVFI_TRT_INT, 0, cp_size),
    ROW(rank_spec, "cp_rank", KVFI_TRT_INT, 0, cp_rank),
    ROW(rank_spec, "device_id", KVFI_TRT_INT, 0, device_id),
    {.name = "attention", .kind = KVFI_TRT_MAP_OR_NIL, .offset = offsetof(rank_spec, attention), .map = &attention_map},
    {.name = "aux_meta", .kind = KVFI_TRT_MAP_OR_NIL, .offset = offsetof(rank_spec, aux), .map = &aux_map},
    {.name = "page_table", .kind = KVFI_TRT_MAP_OR_NIL, .offset = offsetof(rank_spec, page_table), .map = &table_map},
    {.name = "protocol_version", .kind = KVFI_TRT_INT, .key = KVF_TRTLLM_HAS_PROTOCOL_VERSION,
     .offset = offsetof(rank_spec, protocol_version)},
    {.name = "bounded_replay_on_generation", .kind = KVFI_TRT_FLAG, .key = KVF_TRTLLM_HAS_BOUNDED_REPLAY,
     .offset = offsetof(rank_spec, bounded_replay_on_generation)},
    {.name = "num_draft_layers", .kind = KVFI_TRT_INT, .key = KVF_TRTLLM_HAS_NUM_DRAFT_LAYERS,
     .offset = offsetof(rank_spec, num_draft_layers)},
    {.name = "draft_kv_dtype", .kind = KVFI_TRT_TEXT_OR_NIL, .key = KVF_TRTLLM_HAS_DRAFT_KV_DTYPE,
     .offset = offsetof(rank_spec, draft_kv_dtype)},
};
static const rank_spec rank_defaults = {.struct_size = sizeof(rank_spec), .dp_size = 1, .cp_size = 1,
                                        .protocol_version = KVF_TRTLLM_PROTOCOL_VERSION};

/* The newest keys are remembered one by one. */
static void complete_rank(void *object, uint32_t seen)
{
    rank_spec *own = object;

    for (size_t i = 0; i < COUNT(rank_fields); i++)
        if (seen >> i & 1) own->keys |= rank_fields[i].key;
}

const struct kvfi_trt_map kvfi_trt_rank_map = {rank_fields, COUNT(rank_fields), sizeof(rank_spec), &rank_defaults,
                                               complete_rank};
