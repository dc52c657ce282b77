/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/rank_kit.h"

#include <stdio.h>
#include <string.h>

void rank_kit_init(struct rank_kit *kit, const char *name)
{
    memset(kit, 0, sizeof *kit);
    kvf_trtllm_rank_spec_init(&kit->spec, sizeof kit->spec);
    kit->spec.instance_name = name;
    kit->spec.tp_size = 2;
    kit->spec.layer_num_per_pp = kit->stages;
    kit->spec.sender_endpoints = kit->endpoints;
    kit->spec.attention = &kit->attention;
    kit->attention = (struct kvf_trtllm_attention){.kv_heads_per_rank = 2, .tokens_per_block = 16, .dims_per_head = 8,
                                                   .element_eighths = 16};
    kit->table.groups = kit->groups;
    kit->table.pool_groups = kit->pool_groups;
    for (size_t g = 0; g < RANK_KIT_GROUPS; g++) {
        kit->groups[g].layers = kit->layers[g];
        kit->groups[g].views = kit->views[g];
        kit->pool_groups[g].pools = kit->pools[g];
    }
}

void rank_kit_stages(struct rank_kit *kit, size_t count, ...)
{
    va_list args;

    assert_true(count <= RANK_KIT_ITEMS);
    va_start(args, count);
    for (size_t i = 0; i < count; i++) kit->stages[i] = va_arg(args, int64_t);
    va_end(args);
    kit->spec.layer_num_count = count;
}

size_t rank_kit_group(struct rank_kit *kit, int64_t cache, int64_t pool_group)
{
    size_t index = kit->table.group_count++;
    struct kvf_trtllm_group *group = &kit->groups[index];

    assert_true(index < RANK_KIT_GROUPS);
    kit->spec.page_table = &kit->table;
    group->cache = cache;
    group->pool_group = pool_group;
    group->kv_heads_per_rank = KVF_TRTLLM_NONE;
    group->sliding_window_size = KVF_TRTLLM_NONE;
    group->slot_major_layout = KVF_TRTLLM_NONE;
    return index;
}

size_t rank_kit_view(struct rank_kit *kit, size_t group, int64_t mapper, int64_t pool)
{
    size_t index = kit->groups[group].view_count++;

    assert_true(index < RANK_KIT_VIEWS);
    kit->views[group][index] = (struct kvf_trtllm_view){
        .pool = pool, .entries = kit->entries[group][index], .roles = kit->roles[group][index], .mapper = mapper,
        .bytes_per_layer = KVF_TRTLLM_NONE, .num_kv_heads = KVF_TRTLLM_NONE, .bytes_per_head = KVF_TRTLLM_NONE,
        .ring_slot_bytes = KVF_TRTLLM_NONE};
    return index;
}

void rank_kit_layer(struct rank_kit *kit, size_t group, int64_t local_layer, int64_t global_layer)
{
    size_t index = kit->groups[group].layer_count++;

    assert_true(index < RANK_KIT_ITEMS);
    kit->layers[group][index] = (struct kvf_trtllm_layer){local_layer, global_layer};
}

void rank_kit_entry(struct rank_kit *kit, size_t group, size_t view, int64_t local_layer, int64_t offset,
                    int64_t bytes)
{
    size_t index = kit->views[group][view].entry_count++;

    assert_true(index < RANK_KIT_ITEMS);
    kit->entries[group][view][index] = (struct kvf_trtllm_entry){local_layer, offset, bytes};
}

size_t rank_kit_pool(struct rank_kit *kit, size_t pool_group, uint64_t base, int64_t slot, int64_t slots)
{
    size_t index = kit->pool_groups[pool_group].pool_count++;

    assert_true(pool_group < RANK_KIT_GROUPS && index < RANK_KIT_VIEWS);
    if (kit->table.pool_group_count <= pool_group) kit->table.pool_group_count = pool_group + 1;
    kit->pools[pool_group][index] = (struct kvf_trtllm_pool){base, slot, slots, slot, KVF_TRTLLM_NONE};
    return index;
}

void rank_kit_role(struct rank_kit *kit, size_t group, size_t view, const char *role)
{
    kit->roles[group][view][0] = role;
    kit->views[group][view].role_count = role[0] != '\0';
}

static void add_state(struct rank_kit *kit, int64_t mamba_tp)
{
    size_t group = rank_kit_group(kit, KVF_TRTLLM_STATE, 1);
    const int64_t sizes[2] = {4096 / mamba_tp, 8192 / mamba_tp};

    for (int i = 0; i < 2; i++) {
        size_t view = rank_kit_view(kit, group, i == 0 ? KVF_TRTLLM_SECTIONED : KVF_TRTLLM_INDEXED, i);

        rank_kit_pool(kit, 1, i == 0 ? 0xA000 : 0xB000, sizes[i], 128);
        rank_kit_layer(kit, group, i, 100 + i);
        rank_kit_role(kit, group, view, i == 0 ? "conv_state" : "ssm_state");
        kit->views[group][view].bytes_per_layer = sizes[i];
        for (int layer = 0; layer < 2; layer++) rank_kit_entry(kit, group, view, layer, 0, sizes[i]);
    }
    for (int i = 0; i < 3; i++) kit->sections[group][0][i] = (i == 0 ? 1024 : 512) / mamba_tp;
    kit->views[group][0].section_bytes = kit->sections[group][0];
    kit->views[group][0].section_count = 3;
    kit->views[group][1].bytes_per_head = 64;
}

void rank_kit_pt(struct rank_kit *kit, int64_t bytes, int64_t mamba_tp, int64_t heads, size_t layer_count, ...)
{
    int64_t buffer = bytes / (2 * (int64_t)layer_count);
    size_t group = 0;
    va_list args;

    kit->table.tokens_per_block = 16;
    rank_kit_pool(kit, 0, 1234, bytes, 128);
    if (heads) {
        group = rank_kit_group(kit, KVF_TRTLLM_PAGED, 0);
        rank_kit_view(kit, group, KVF_TRTLLM_INDEXED, 0);
        kit->groups[group].kv_heads_per_rank = heads;
        kit->views[group][0].num_kv_heads = heads;
    }
    va_start(args, layer_count);
    for (int64_t i = 0; i < (int64_t)layer_count && heads; i++) {
        rank_kit_layer(kit, group, i, va_arg(args, int));
        rank_kit_entry(kit, group, 0, i, 2 * i * buffer, buffer);
        rank_kit_entry(kit, group, 0, i, 2 * i * buffer + buffer, buffer);
    }
    va_end(args);
    add_state(kit, mamba_tp);
}

void rank_kit_pv(struct rank_kit *kit, int64_t mapper, size_t view_count, ...)
{
    size_t group = rank_kit_group(kit, KVF_TRTLLM_PAGED, 0);
    va_list args;

    kit->table.tokens_per_block = 2;
    va_start(args, view_count);
    for (int64_t i = 0; i < (int64_t)view_count; i++) {
        int64_t heads = va_arg(args, int);
        size_t view = rank_kit_view(kit, group, mapper, i);

        if (i == 0) kit->groups[group].kv_heads_per_rank = heads;
        kit->views[group][view].num_kv_heads = heads;
        rank_kit_layer(kit, group, i, i);
        rank_kit_entry(kit, group, view, i, 0, 8 * heads);
        rank_kit_entry(kit, group, view, i, 8 * heads, 8 * heads);
        rank_kit_pool(kit, 0, 0x1000 * (uint64_t)(i + 1), 16 * heads, 8);
    }
    va_end(args);
}

void rank_kit_side(struct rank_kit *kit, int64_t bytes)
{
    size_t group = kit->table.group_count - 1;
    size_t pool = rank_kit_pool(kit, 1, 0xC000, bytes, 128);
    size_t view = rank_kit_view(kit, group, KVF_TRTLLM_REPLICATED, (int64_t)pool);

    rank_kit_role(kit, group, view, "ple_ngram_context");
    for (int64_t i = 0; i < 2; i++) rank_kit_entry(kit, group, view, i, i * bytes, bytes);
    kit->views[group][view].bytes_per_layer = bytes;
}

void rank_kit_aux(struct rank_kit *kit, size_t count, ...)
{
    va_list args;

    assert_true(count <= RANK_KIT_ITEMS);
    va_start(args, count);
    for (size_t i = 0; i < count; i++) {
        kit->aux_ptrs[i] = (uint64_t)va_arg(args, int64_t);
        kit->aux_sizes[i] = va_arg(args, int64_t);
        kit->aux_items[i] = va_arg(args, int64_t);
    }
    va_end(args);
    kit->aux = (struct kvf_trtllm_aux){kit->aux_ptrs, count, kit->aux_sizes, count, kit->aux_items, count, "cpu"};
    kit->spec.aux = &kit->aux;
}

static void complete(struct rank_kit *kit)
{
    if (kit->spec.layer_num_count) return;
    for (int64_t i = 0; i < kit->spec.pp_size && i < RANK_KIT_ITEMS; i++) kit->stages[i] = 2;
    kit->spec.layer_num_count = (size_t)kit->spec.pp_size;
}

kvf_trtllm_rank *rank_kit_make(struct rank_kit *kit)
{
    kvf_trtllm_rank *rank = NULL;
    struct kvf_error error = {0};

    complete(kit);
    if (kvf_trtllm_rank_create(&kit->spec, &rank, &error) != KVF_OK) fail_msg("%s", error.text);
    return rank;
}

void rank_kit_refused(struct rank_kit *kit, int status, const char *text)
{
    kvf_trtllm_rank *rank = NULL;
    struct kvf_error error = {0};

    complete(kit);
    if ((int)kvf_trtllm_rank_create(&kit->spec, &rank, &error) != status || !strstr(error.text, text))
        fail_msg("expected status %d with \"%s\", found %d with \"%s\"", status, text, (int)error.status, error.text);
    assert_null(rank);
}
