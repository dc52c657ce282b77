/* SPDX-License-Identifier: Apache-2.0 */
/* Which layers and heads of a vLLM consumer come from which producer, as a picture. */
#include <string.h>

#include "cli/vllm_pairs.h"

static int32_t kind_of(const struct vllm_rank *rank, const char *name)
{
    for (size_t i = 0; i < rank->layer_count; i++) {
        if (strcmp(rank->layers[i].name, name) == 0)
            return rank->layers[i].kind;
    }
    return rank->is_mla ? KVF_VLLM_MLA : KVF_VLLM_ATTENTION;
}

/** How many of a rank's regions have a layer's name, and how many of them lie before an address. */
static size_t occurrences(const struct kvf_vllm_arrays *regions, const char *name, uint64_t base, size_t *before)
{
    size_t count = 0;
    *before = 0;
    for (size_t i = 0; i < regions->layer_name_count && i < regions->base_addr_count; i++) {
        if (strcmp(regions->layer_names[i], name) != 0)
            continue;
        *before += regions->base_addrs[i] < base;
        count++;
    }
    return count;
}

/** The consumer's heads that a move brings, numbered through the model; [0, 1) where there are none to tell apart. */
static void units_of(const struct vllm_rank *producer, const struct vllm_rank *consumer, const struct vllm_move *move,
                     int32_t kind, int64_t *first, int64_t *end)
{
    int64_t heads = kind == KVF_VLLM_ATTENTION ? producer->total_kv_heads : 0, length = move->remote.kv_block_len;
    size_t before = 0;
    int64_t regions =
        (int64_t)occurrences(&consumer->regions, move->remote.layer_name, move->remote.base_addr, &before);
    *first = 0;
    *end = 1;
    if (heads <= 0 || length <= 0 || regions <= 0)
        return;
    int64_t here = heads > consumer->tp_size ? heads / consumer->tp_size : 1;
    int64_t each = here % regions == 0 ? here / regions : 1;
    int64_t base = consumer->tp_rank * heads / consumer->tp_size + (here % regions == 0 ? (int64_t)before * each : 0);
    if (move->layers > 1) {
        *first = base;
        *end = base + each;
        return;
    }
    *first = base + move->dst_offset * each / length;
    *end = base + ((move->dst_offset + move->bytes) * each + length - 1) / length;
}

static void add_cells(const struct vllm_pairs *pairs, size_t index, struct draw_map *map)
{
    const struct vllm_pair_row *row = &pairs->rows[index];
    const struct vllm_rank *producer = &pairs->producers.ranks[row->producer];
    const struct kvf_vllm_arrays *regions = &producer->regions;
    for (size_t m = 0; m < row->move_count; m++) {
        const struct vllm_move *move = &row->moves[m];
        uint64_t end = move->local.base_addr + (uint64_t)move->local.kv_block_len;
        int64_t first = 0, last = 0;
        for (size_t i = 0; move->bytes > 0 && i < regions->layer_index_count && i < regions->base_addr_count; i++) {
            if (regions->base_addrs[i] < move->local.base_addr || regions->base_addrs[i] >= end ||
                (i < regions->group_index_count && regions->group_indices[i] != move->local.group_index))
                continue;
            int32_t kind = kind_of(producer, regions->layer_names[i]);
            units_of(producer, &pairs->consumers.ranks[row->consumer], move, kind, &first, &last);
            map->cells[map->count++] = (struct draw_cell){
                kind == KVF_VLLM_MAMBA ? "state" : kind == KVF_VLLM_MLA ? "latent" : "KV", regions->layer_indices[i],
                first, last, index};
        }
    }
}

static bool map_init(const struct vllm_pairs *pairs, struct draw_map *out)
{
    size_t most = 0;
    for (size_t i = 0; i < pairs->count; i++)
        most += pairs->rows[i].move_count * pairs->producers.ranks[pairs->rows[i].producer].regions.base_addr_count;
    if (!draw_map_init(out, most, pairs->count))
        return false;
    for (size_t i = 0; i < pairs->count; i++) {
        draw_map_name(out, i, pairs->rows[i].producer, pairs->rows[i].consumer, pairs->consumers.count == 1);
        add_cells(pairs, i, out);
    }
    return true;
}

static int64_t bytes_of(const struct vllm_pair_row *row)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < row->cost_count; i++)
        bytes = row->costs[i].bytes > bytes ? row->costs[i].bytes : bytes;
    return bytes;
}

static void print_names(const struct vllm_pairs *pairs, const struct draw_map *map, const struct draw_glyphs *glyphs,
                        FILE *out)
{
    char from[64], to[64];
    int64_t most = 1;
    for (size_t i = 0; i < pairs->count; i++)
        most = bytes_of(&pairs->rows[i]) > most ? bytes_of(&pairs->rows[i]) : most;
    for (size_t i = 0; i < pairs->count; i++) {
        const struct vllm_pair_row *row = &pairs->rows[i];
        fprintf(out, "  %5s = producer %s > consumer %s  ", map->names[i],
                vllm_rank_name(&pairs->producers.ranks[row->producer], from, sizeof(from)),
                vllm_rank_name(&pairs->consumers.ranks[row->consumer], to, sizeof(to)));
        draw_bytes(bytes_of(row), most, glyphs, out);
        fputc('\n', out);
    }
}

void vllm_pairs_draw(const struct vllm_pairs *pairs, FILE *out)
{
    const struct draw_glyphs *glyphs = draw_glyphs_for_locale();
    struct draw_map map;
    if (map_init(pairs, &map) && map.count > 0) {
        fprintf(out, "\nwho sends which layers and heads:\n");
        draw_maps(&map, glyphs, out);
        print_names(pairs, &map, glyphs, out);
    }
    draw_map_fini(&map);
}
