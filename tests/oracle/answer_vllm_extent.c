/* SPDX-License-Identifier: Apache-2.0 */
/* A consumer's memory: what producers may write for each request of a pull, and what they must. No family of the stored
 * cases; its input is a pull's, with the consumer's memory: [[base, bytes], ...], ascending. */
#include "answer_vllm.h"

#include <string.h>

#include "vllm/extent.h"

static struct kvf_vllm_storage *read_memory(struct answer_reader *reader, const json_t *input, size_t *count)
{
    const json_t *list = answer_member(reader, input, "memory");
    struct kvf_vllm_storage *memory = answer_take(reader, json_array_size(list), sizeof *memory);

    *count = json_array_size(list);
    for (size_t i = 0; i < *count; i++) {
        const json_t *pair = json_array_get(list, i);

        memory[i].base_addr = (uint64_t)json_integer_value(json_array_get(pair, 0));
        memory[i].bytes = json_integer_value(json_array_get(pair, 1));
    }
    return memory;
}

static struct kvfi_vllm_id_facts read_facts(struct answer_reader *reader, const json_t *producer)
{
    const json_t *kinds = answer_member(reader, producer, "group_kinds");
    int32_t *own = answer_take(reader, json_array_size(kinds), sizeof *own);
    struct kvfi_vllm_id_facts facts = {own, json_array_size(kinds),
                                       answer_int(reader, producer, "kernel_blocks_per_block")};

    for (size_t i = 0; i < facts.group_count; i++) {
        const char *kind = json_string_value(json_array_get(kinds, i));

        own[i] = kind && strcmp(kind, "mamba") == 0 ? KVF_VLLM_MAMBA : KVF_VLLM_ATTENTION;
    }
    if (!reader->failed && facts.kernel_blocks_per_block < 1)
        answer_wrong(reader, "kernel_blocks_per_block: expected 1 or more");
    return facts;
}

static json_t *from_sheet(const struct kvfi_vllm_sheet *sheet)
{
    json_t *list = json_array();

    for (size_t i = 0; i < sheet->grid_count; i++)
        json_array_append_new(list, json_pack("[I, I, I]", (json_int_t)sheet->grids[i].address,
                                              (json_int_t)sheet->grids[i].stride_bytes,
                                              (json_int_t)sheet->grids[i].block_bytes));
    return list;
}

static json_t *from_set(const struct kvfi_vllm_set *set)
{
    json_t *sheets = json_array();

    for (size_t i = 0; i < set->sheet_count; i++) json_array_append_new(sheets, from_sheet(&set->sheets[i]));
    return json_pack("{s:I, s:o, s:I, s:I, s:I, s:o}", "group", (json_int_t)set->group, "groups",
                     answer_from_ids(&set->groups), "block_count", (json_int_t)set->block_count, "payload_bytes",
                     (json_int_t)set->payload_bytes, "counting", (json_int_t)set->counting, "sheets", sheets);
}

/* A request's blocks, one list per set. */
static json_t *from_request(struct answer_reader *reader, const struct kvfi_vllm_extent *extent,
                            const struct kvfi_vllm_id_facts *facts, const json_t *request)
{
    json_t *lists = json_array();
    size_t group_count = 0, count = 0;
    const struct kvf_vllm_ids *groups = answer_id_lists(reader, request, "block_ids", &group_count);

    for (size_t i = 0; i < extent->set_count && !reader->failed; i++) {
        struct kvf_error error;
        struct kvf_vllm_ids blocks = {0};
        int64_t *ids = NULL;

        if (kvfi_vllm_extent_blocks(&extent->sets[i], facts, groups, group_count, NULL, &count, &error) == KVF_OK)
            ids = answer_take(reader, count, sizeof *ids);
        if (!ids || kvfi_vllm_extent_blocks(&extent->sets[i], facts, groups, group_count, ids, &count, &error) !=
                        KVF_OK) {
            answer_wrong(reader, "%s", error.text);
            continue;
        }
        blocks = (struct kvf_vllm_ids){ids, count};
        json_array_append_new(lists, answer_from_ids(&blocks));
    }
    return lists;
}

void answer_extent(struct answer_reader *reader, const json_t *input, json_t *answer)
{
    const json_t *pull = answer_member(reader, input, "pull"), *requests = answer_member(reader, pull, "requests");
    struct kvf_vllm_arrays arrays = answer_arrays(reader, pull, "regions");
    struct kvfi_vllm_id_facts facts = read_facts(reader, answer_member(reader, input, "producer"));
    size_t memory_count = 0;
    struct kvf_vllm_storage *memory = read_memory(reader, input, &memory_count);
    struct kvfi_vllm_extent extent = {.set_count = 0};
    json_t *sets = json_array(), *lists = json_object();
    kvf_vllm_regions *regions = NULL;
    struct kvf_error error;

    if (reader->failed) goto done;
    if (kvf_vllm_regions_expand(&arrays, NULL, 0, &regions, &error) != KVF_OK ||
        kvfi_vllm_extent_init(&extent, regions, memory, memory_count, &error) != KVF_OK) {
        answer_wrong(reader, "%s", error.text);
        goto done;
    }
    for (size_t i = 0; i < extent.set_count; i++) json_array_append_new(sets, from_set(&extent.sets[i]));
    for (size_t i = 0; i < json_array_size(requests); i++) {
        const json_t *request = json_array_get(requests, i);

        json_object_set_new(lists, answer_text(reader, request, "d_req_id"),
                            from_request(reader, &extent, &facts, request));
    }
    json_object_set(answer, "sets", sets);
    json_object_set(answer, "requests", lists);
done:
    json_decref(sets);
    json_decref(lists);
    kvfi_vllm_extent_fini(&extent);
    kvf_vllm_regions_release(regions);
}
