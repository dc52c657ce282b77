/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm_worker/gates.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"

/* ---- made and freed --------------------------------------------------------------------------------------------- */

static enum kvf_status open_guard(kvf_mooncake *engine, const struct kvfi_vllm_set *set,
                                  const struct kvfi_vllm_sheet *sheet, kvf_mooncake_guard **out,
                                  struct kvf_error *error)
{
    struct kvf_mooncake_grid *grids = kvfi_alloc_array(sheet->grid_count, sizeof *grids);
    enum kvf_status status;

    if (grids == NULL)
        return kvfi_fail_memory(error, "a guard");
    for (size_t i = 0; i < sheet->grid_count; i++)
        grids[i] = (struct kvf_mooncake_grid){.address = sheet->grids[i].address,
                                              .stride_bytes = sheet->grids[i].stride_bytes,
                                              .block_bytes = sheet->grids[i].block_bytes};
    status = kvf_mooncake_guard_open(engine, grids, sheet->grid_count, set->block_count, out, error);
    free(grids);
    return status;
}

enum kvf_status kvfi_vllm_gates_open(kvf_mooncake *engine, const kvf_vllm_regions *regions,
                                     const struct kvf_vllm_storage *memory, size_t memory_count,
                                     const struct kvfi_vllm_id_facts *facts, kvfi_moon_guard_news *news, void *context,
                                     struct kvfi_vllm_gates **out, struct kvf_error *error)
{
    struct kvfi_vllm_gates *gates = kvfi_alloc_zeroed(1, sizeof *gates);
    enum kvf_status status;

    if (gates == NULL)
        return kvfi_fail_memory(error, "guards");
    gates->facts = *facts;
    status = kvfi_vllm_extent_init(&gates->extent, regions, memory, memory_count, error);
    if (status == KVF_OK) {
        gates->gates = kvfi_alloc_zeroed(gates->extent.set_count, sizeof *gates->gates);
        if (gates->gates == NULL)
            status = kvfi_fail_memory(error, "guards");
    }
    for (size_t i = 0; status == KVF_OK && i < gates->extent.set_count; i++) {
        const struct kvfi_vllm_set *set = &gates->extent.sets[i];

        for (size_t k = 0; status == KVF_OK && k < set->sheet_count; k++) {
            status = open_guard(engine, set, &set->sheets[k], &gates->gates[i].guards[k], error);
            if (status == KVF_OK)
                kvfi_moon_guard_set_news(gates->gates[i].guards[k], news, context);
        }
    }
    if (status == KVF_OK)
        *out = gates;
    else
        kvfi_vllm_gates_close(gates);
    return status;
}

void kvfi_vllm_gates_close(struct kvfi_vllm_gates *gates)
{
    if (gates == NULL)
        return;
    for (size_t i = 0; gates->gates != NULL && i < gates->extent.set_count; i++)
        for (size_t k = 0; k < KVFI_VLLM_MAX_SHEETS; k++)
            kvf_mooncake_guard_close(gates->gates[i].guards[k]);
    free(gates->gates);
    kvfi_vllm_extent_fini(&gates->extent);
    free(gates);
}

void kvfi_vllm_gates_ask_news(struct kvfi_vllm_gates *gates)
{
    for (size_t i = 0; i < gates->extent.set_count; i++)
        for (size_t k = 0; k < gates->extent.sets[i].sheet_count; k++)
            kvfi_moon_guard_ask_news(gates->gates[i].guards[k]);
}

/* ---- granting --------------------------------------------------------------------------------------------------- */

/* Where the ids of a group whose kind is not known begin to stand for a block: 0 may be nobody's. */
static size_t first_expected(const struct kvfi_vllm_gates *gates, size_t group_count,
                             const struct kvfi_vllm_pass_list *list)
{
    size_t first = 0;

    while (group_count > gates->facts.group_count && first < list->count &&
           list->blocks[first] < gates->facts.kernel_blocks_per_block)
        first++;
    return first;
}

static int compare_blocks(const void *a, const void *b)
{
    int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;

    return (one > other) - (one < other);
}

static enum kvf_status list_blocks(struct kvfi_vllm_pass *pass, size_t set, const struct kvf_vllm_ids *groups,
                                   size_t group_count, struct kvf_error *error)
{
    const struct kvfi_vllm_gates *gates = pass->gates;
    struct kvfi_vllm_pass_list *list = &pass->lists[set];
    size_t count = 0;
    enum kvf_status status = kvfi_vllm_extent_blocks(&gates->extent.sets[set], &gates->facts, groups, group_count, NULL,
                                                     &count, error);

    if (status != KVF_OK)
        return status;
    list->blocks = kvfi_alloc_array(count, sizeof *list->blocks);
    if (list->blocks == NULL)
        return kvfi_fail_memory(error, "a request's blocks");
    status = kvfi_vllm_extent_blocks(&gates->extent.sets[set], &gates->facts, groups, group_count, list->blocks,
                                     &list->count, error);
    if (list->count > 0)
        qsort(list->blocks, list->count, sizeof *list->blocks, compare_blocks);
    list->first = first_expected(gates, group_count, list);
    return status;
}

enum kvf_status kvfi_vllm_pass_grant(struct kvfi_vllm_gates *gates, const struct kvf_vllm_ids *groups,
                                     size_t group_count, struct kvfi_vllm_pass **out, struct kvf_error *error)
{
    struct kvfi_vllm_pass *pass = kvfi_alloc_zeroed(1, sizeof *pass);
    enum kvf_status status = KVF_OK;

    *out = pass;
    if (pass == NULL)
        return kvfi_fail_memory(error, "a request's blocks");
    pass->gates = gates;
    pass->lists = kvfi_alloc_zeroed(gates->extent.set_count, sizeof *pass->lists);
    if (pass->lists == NULL)
        return kvfi_fail_memory(error, "a request's blocks");
    for (size_t i = 0; status == KVF_OK && i < gates->extent.set_count; i++)
        status = list_blocks(pass, i, groups, group_count, error);
    for (size_t i = 0; status == KVF_OK && i < gates->extent.set_count; i++)
        for (size_t k = 0; status == KVF_OK && k < gates->extent.sets[i].sheet_count; k++) {
            status = kvf_mooncake_guard_grant(gates->gates[i].guards[k], pass->lists[i].blocks, pass->lists[i].count,
                                              error);
            pass->guards_granted += status == KVF_OK;
        }
    return status;
}

/* ---- taking back ------------------------------------------------------------------------------------------------ */

bool kvfi_vllm_pass_revoke(struct kvfi_vllm_pass *pass)
{
    size_t left = pass == NULL ? 0 : pass->guards_granted;
    bool all_quiet = true;

    for (size_t i = 0; left > 0; i++) {
        const struct kvfi_vllm_pass_list *list = &pass->lists[i];

        for (size_t k = 0; left > 0 && k < pass->gates->extent.sets[i].sheet_count; k++, left--) {
            kvf_mooncake_guard *guard = pass->gates->gates[i].guards[k];
            bool quiet = true;

            if (pass->revoked)
                quiet = kvfi_moon_guard_is_quiet(guard, list->blocks, list->count);
            else
                kvfi_moon_guard_revoke_begin(guard, list->blocks, list->count, &quiet, NULL);
            all_quiet = all_quiet && quiet;
        }
    }
    if (pass != NULL)
        pass->revoked = true;
    return all_quiet;
}

void kvfi_vllm_pass_free(struct kvfi_vllm_pass *pass)
{
    if (pass == NULL)
        return;
    for (size_t i = 0; pass->lists != NULL && i < pass->gates->extent.set_count; i++)
        free(pass->lists[i].blocks);
    free(pass->lists);
    free(pass);
}

/* ---- counting --------------------------------------------------------------------------------------------------- */

static int64_t bytes_of(const struct kvfi_vllm_pass *pass, size_t set, size_t at)
{
    kvf_mooncake_guard *guard = pass->gates->gates[set].guards[pass->gates->extent.sets[set].counting];
    int64_t bytes = 0;

    kvf_mooncake_guard_count(guard, &pass->lists[set].blocks[at], 1, &bytes, NULL);
    return bytes;
}

bool kvfi_vllm_pass_has_arrived(struct kvfi_vllm_pass *pass)
{
    for (size_t i = 0; i < pass->gates->extent.set_count; i++) {
        struct kvfi_vllm_pass_list *list = &pass->lists[i];

        for (; list->first + list->full < list->count; list->full++)
            if (bytes_of(pass, i, list->first + list->full) < pass->gates->extent.sets[i].payload_bytes)
                return false;
    }
    return true;
}

void kvfi_vllm_pass_count(const struct kvfi_vllm_pass *pass, struct kvfi_vllm_arrived *out)
{
    *out = (struct kvfi_vllm_arrived){.layer_name = NULL};
    for (size_t i = 0; i < pass->gates->extent.set_count; i++) {
        const struct kvfi_vllm_set *set = &pass->gates->extent.sets[i];
        const struct kvfi_vllm_pass_list *list = &pass->lists[i];

        for (size_t at = list->first; at < list->count; at++) {
            int64_t bytes = bytes_of(pass, i, at);

            out->blocks++;
            out->expected += set->payload_bytes;
            out->found += bytes < set->payload_bytes ? bytes : set->payload_bytes;
            if (bytes >= set->payload_bytes || out->layer_name != NULL)
                continue;
            out->layer_name = set->layer_name;
            out->block = list->blocks[at];
            out->block_bytes = set->payload_bytes;
            out->block_found = bytes;
        }
    }
}
