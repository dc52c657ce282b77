/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinate pattern: each byte tells where in the model it belongs. docs/trtllm.md has the formula. */
#include <string.h>

#include "cli/trtllm_memory.h"

#define BASIS UINT64_C(0xcbf29ce484222325)
#define PRIME UINT64_C(0x100000001b3)
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

#define HEADS_MAX INT64_C(0x7fffffff)

/** Where the painter stands. */
struct brush {
    const struct kvf_trtllm_rank_spec *rank;
    const struct trtllm_painting *painting;
    int64_t total_heads; /* of the model, for this view */
    uint64_t start;      /* roles and rid are in it */
};

/** Rows of bytes in an entry: heads times tokens. */
struct rows {
    int64_t heads, head_stride, first_head;
    int64_t tokens, token_stride;
    int64_t bytes;
};

static uint64_t mix(uint64_t x, uint64_t n)
{
    return (x ^ n) * PRIME;
}

static void paint_row(uint64_t x, uint64_t first_byte, uint8_t *at, int64_t bytes)
{
    for (int64_t b = 0; b < bytes; b++) {
        uint64_t y = mix(x, first_byte + (uint64_t)b);
        y ^= y >> 32;
        at[b] = (uint8_t)((y * GOLDEN) >> 56);
    }
}

static uint64_t start_of(const struct kvf_trtllm_view *view, int64_t rid)
{
    char roles[4096];
    uint64_t x = BASIS;
    for (const char *c = trtllm_role_text(view, roles, sizeof(roles)); *c != '\0'; c++)
        x = (x ^ (uint8_t)*c) * PRIME;
    return mix(x, (uint64_t)rid);
}

static struct rows rows_of(const struct brush *brush, const struct kvf_trtllm_view *view, int64_t bytes)
{
    int64_t tokens = brush->rank->page_table->tokens_per_block;
    int64_t heads = view->mapper != KVF_TRTLLM_REPLICATED && view->num_kv_heads > 0 ? view->num_kv_heads : 1;
    int64_t first = 0;
    if (view->mapper != KVF_TRTLLM_REPLICATED && brush->total_heads <= HEADS_MAX)
        first = trtllm_group_tp_rank(brush->rank) * brush->total_heads / trtllm_group_tp_size(brush->rank) / heads *
                heads;
    if (heads <= bytes && tokens <= bytes / heads && bytes % (heads * tokens) == 0) {
        int64_t row = bytes / (heads * tokens);
        if (view->mapper == KVF_TRTLLM_INDEXED)
            return (struct rows){heads, tokens * row, first, tokens, row, row};
        return (struct rows){heads, row, first, tokens, heads * row, row};
    }
    if (view->mapper == KVF_TRTLLM_INDEXED && bytes % heads == 0)
        return (struct rows){heads, bytes / heads, first, 1, 0, bytes / heads};
    if (view->mapper != KVF_TRTLLM_INDEXED && bytes % tokens == 0)
        return (struct rows){1, 0, first, tokens, bytes / tokens, bytes / tokens};
    return (struct rows){1, 0, first, 1, 0, bytes};
}

/** Number of an entry among those of its layer, by offset. */
static uint64_t buffer_of(const struct kvf_trtllm_view *view, const struct kvf_trtllm_entry *entry)
{
    uint64_t number = 0;
    for (size_t e = 0; e < view->entry_count; e++)
        number += view->entries[e].local_layer == entry->local_layer &&
                  view->entries[e].offset_bytes < entry->offset_bytes;
    return number;
}

static int64_t global_layer(const struct kvf_trtllm_group *group, int64_t local)
{
    for (size_t l = 0; l < group->layer_count; l++) {
        if (group->layers[l].local_layer == local)
            return group->layers[l].global_layer;
    }
    return -1;
}

static void paint_block(const struct brush *brush, const struct kvf_trtllm_view *view, uint64_t x, int64_t ordinal,
                        uint8_t *at, int64_t bytes)
{
    struct rows rows = rows_of(brush, view, bytes);
    uint64_t first = ((uint64_t)ordinal * (uint64_t)brush->rank->cp_size + (uint64_t)brush->rank->cp_rank) *
                     (uint64_t)brush->rank->page_table->tokens_per_block;
    for (int64_t h = 0; h < rows.heads; h++) {
        for (int64_t t = 0; t < rows.tokens; t++)
            paint_row(mix(mix(x, (uint64_t)(rows.first_head + h)), first + (uint64_t)t), 0,
                      at + h * rows.head_stride + t * rows.token_stride, rows.bytes);
    }
}

static void paint_ring(const struct brush *brush, const struct kvf_trtllm_view *view, uint64_t x, uint8_t *at,
                       int64_t bytes)
{
    int64_t slots = bytes / view->ring_slot_bytes, prompt = brush->painting->prompt_tokens;
    for (int64_t p = prompt > slots ? prompt - slots : 0; slots > 0 && p < prompt; p++)
        paint_row(mix(mix(x, 0), (uint64_t)p), 0, at + p % slots * view->ring_slot_bytes, view->ring_slot_bytes);
}

static void paint_state(const struct brush *brush, const struct kvf_trtllm_view *view, uint64_t layer, uint64_t buffer,
                        uint8_t *at, int64_t bytes)
{
    int64_t ranks = 1, number = 0, offset = 0;
    trtllm_state_ranks(brush->rank, &ranks, &number);
    if (view->mapper != KVF_TRTLLM_SECTIONED) {
        uint64_t first = view->mapper == KVF_TRTLLM_REPLICATED ? 0 : (uint64_t)number * (uint64_t)bytes;
        paint_row(mix(mix(mix(layer, buffer), 0), 0), first, at, bytes);
        return;
    }
    for (size_t s = 0; s < view->section_count; s++) {
        int64_t size = view->section_bytes[s];
        if (size < 0 || size > bytes - offset)
            return;
        paint_row(mix(mix(mix(layer, s), 0), 0), (uint64_t)number * (uint64_t)size, at + offset, size);
        offset += size;
    }
}

/** Paints one block (or state slot) of a view. `slot` is where it begins in the pool's image. */
static void paint_slot(const struct brush *brush, const struct kvf_trtllm_group *group,
                       const struct kvf_trtllm_view *view, int64_t ordinal, bool is_last, uint8_t *slot)
{
    for (size_t e = 0; e < view->entry_count; e++) {
        const struct kvf_trtllm_entry *entry = &view->entries[e];
        uint64_t layer = mix(brush->start, (uint64_t)global_layer(group, entry->local_layer));
        uint64_t buffer = buffer_of(view, entry);
        uint8_t *at = slot + entry->offset_bytes;
        if (group->cache == KVF_TRTLLM_STATE)
            paint_state(brush, view, layer, buffer, at, entry->size_bytes);
        else if (view->ring_slot_bytes == KVF_TRTLLM_NONE || view->ring_slot_bytes <= 0)
            paint_block(brush, view, mix(layer, buffer), ordinal, at, entry->size_bytes);
        else if (is_last)
            paint_ring(brush, view, mix(layer, buffer), at, entry->size_bytes);
    }
}

/** Heads of the model, of which this view has some. */
static int64_t total_heads(const struct kvf_trtllm_rank_spec *rank, const json_t *kv_heads, size_t group, size_t index)
{
    const struct kvf_trtllm_view *view = &rank->page_table->groups[group].views[index];
    const json_t *given = json_is_array(kv_heads) ? json_array_get(json_array_get(kv_heads, group), index) : kv_heads;
    int64_t heads = view->num_kv_heads > 0 ? view->num_kv_heads : 1;
    if (json_is_integer(given) && json_integer_value(given) > 0 && json_integer_value(given) <= HEADS_MAX)
        return json_integer_value(given);
    if (heads > HEADS_MAX)
        return heads;
    return rank->attention != NULL && rank->attention->is_mla ? heads : heads * trtllm_group_tp_size(rank);
}

static void paint_view(const struct brush *brush, size_t group_index, const struct kvf_trtllm_view *view,
                       const struct trtllm_region *region, uint8_t *image)
{
    const struct trtllm_painting *painting = brush->painting;
    const struct kvf_trtllm_page_table *table = brush->rank->page_table;
    const struct kvf_trtllm_group *group = &table->groups[group_index];
    const struct kvf_trtllm_blocks *blocks = &painting->groups[group_index];
    const struct kvf_trtllm_pool *pool = &table->pool_groups[region->group].pools[region->pool];
    int64_t skipped = group->cache == KVF_TRTLLM_PAGED ? painting->start_token / table->tokens_per_block : 0;
    for (size_t i = 0; i < blocks->count; i++) {
        if (blocks->ids[i] >= 0 && blocks->ids[i] < pool->num_slots && (int64_t)i >= skipped)
            paint_slot(brush, group, view, (int64_t)i, i + 1 == blocks->count,
                       image + blocks->ids[i] * pool->slot_stride_bytes);
    }
}

static void paint_aux(const struct kvf_trtllm_rank_spec *rank, const struct trtllm_memory *memory,
                      const struct trtllm_painting *painting, uint8_t *const *images)
{
    static const char *const roles[] = {"aux"};
    const struct kvf_trtllm_view view = {.roles = roles, .role_count = 1};
    uint64_t start = start_of(&view, painting->rid);
    for (size_t i = memory->pool_count; i < memory->count; i++) {
        int64_t buffer = memory->regions[i].pool, item = trtllm_aux_item(rank, buffer);
        if (item > 0 && painting->aux_slot >= 0 && painting->aux_slot < memory->regions[i].bytes / item)
            paint_row(mix(mix(mix(mix(start, (uint64_t)buffer), 0), 0), 0), 0, images[i] + painting->aux_slot * item,
                      item);
    }
}

void trtllm_paint(const kvf_trtllm_rank *rank, const struct trtllm_memory *memory, const json_t *kv_heads,
                  const struct trtllm_painting *painting, uint8_t *const *images)
{
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(rank);
    const struct kvf_trtllm_page_table *table = spec->page_table;
    for (size_t g = 0; g < table->group_count && g < painting->group_count; g++) {
        for (size_t v = 0; v < table->groups[g].view_count; v++) {
            const struct kvf_trtllm_view *view = &table->groups[g].views[v];
            struct brush brush = {spec, painting, total_heads(spec, kv_heads, g, v), start_of(view, painting->rid)};
            for (size_t i = 0; i < memory->pool_count; i++) {
                if (memory->regions[i].group == table->groups[g].pool_group && memory->regions[i].pool == view->pool)
                    paint_view(&brush, g, view, &memory->regions[i], images[i]);
            }
        }
    }
    if (painting->aux_slot != KVF_TRTLLM_NONE && spec->aux != NULL)
        paint_aux(spec, memory, painting, images);
}
