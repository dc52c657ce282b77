/* SPDX-License-Identifier: Apache-2.0 */
/* The pools and auxiliary buffers of a stand-alone TensorRT-LLM rank. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/trtllm_memory.h"

#define LARGEST INT64_C(0x100000000000)

const char *trtllm_region_name(const struct trtllm_region *region, char *text, size_t bytes)
{
    if (region->group >= 0)
        snprintf(text, bytes, "pool [%" PRId64 "][%" PRId64 "]", region->group, region->pool);
    else
        snprintf(text, bytes, "aux[%" PRId64 "]", region->pool);
    return text;
}

/** Bytes that a pool takes, entries that pass the slot included; -1 when that is more than any machine has. */
static int64_t pool_bytes(const struct kvf_trtllm_page_table *table, int64_t group, int64_t pool)
{
    const struct kvf_trtllm_pool *p = &table->pool_groups[group].pools[pool];
    int64_t end = p->slot_bytes;
    for (size_t g = 0; g < table->group_count; g++) {
        for (size_t v = 0; table->groups[g].pool_group == group && v < table->groups[g].view_count; v++) {
            const struct kvf_trtllm_view *view = &table->groups[g].views[v];
            for (size_t e = 0; view->pool == pool && e < view->entry_count; e++) {
                int64_t entry_end = view->entries[e].offset_bytes + view->entries[e].size_bytes;
                end = entry_end > end ? entry_end : end;
            }
        }
    }
    if (end > LARGEST || p->slot_stride_bytes > LARGEST / p->num_slots)
        return -1;
    int64_t whole = p->slot_stride_bytes * p->num_slots, reach = whole - p->slot_stride_bytes + end;
    return whole > reach ? whole : reach;
}

static int add_region(const struct cli_command *command, struct trtllm_memory *memory, int64_t group, int64_t pool,
                      int64_t bytes)
{
    struct trtllm_region *region = &memory->regions[memory->count];
    struct kvf_error error = {.position = -1};
    char name[64];
    *region = (struct trtllm_region){.group = group, .pool = pool, .bytes = bytes, .offset = memory->bytes};
    if (bytes < 0) {
        cli_error(command, "%s takes more memory than there is", trtllm_region_name(region, name, sizeof(name)));
        return CLI_INPUT;
    }
    memory->count++;
    if (bytes == 0)
        return CLI_OK;
    if (kvf_memory_create(bytes + 2 * TRTLLM_GUARD_BYTES, 0, &region->memory, &error) != KVF_OK)
        return cli_library_error(command, trtllm_region_name(region, name, sizeof(name)), &error);
    uint8_t *start = kvf_memory_address(region->memory);
    memset(start, memory->blank, (size_t)bytes + 2 * TRTLLM_GUARD_BYTES);
    region->base = start + TRTLLM_GUARD_BYTES;
    memory->bytes += bytes;
    return CLI_OK;
}

static int allocate(const struct cli_command *command, const struct kvf_trtllm_rank_spec *spec,
                    struct trtllm_memory *memory)
{
    const struct kvf_trtllm_page_table *table = spec->page_table;
    size_t most = spec->aux != NULL ? spec->aux->ptr_count : 0;
    int code = CLI_OK;
    for (size_t g = 0; g < table->pool_group_count; g++)
        most += table->pool_groups[g].pool_count;
    memory->regions = calloc(most + 1, sizeof(*memory->regions));
    if (memory->regions == NULL) {
        cli_error(command, "no memory for %zu pools", most);
        return CLI_FAILED;
    }
    for (size_t g = 0; g < table->pool_group_count; g++) {
        for (size_t p = 0; code == CLI_OK && p < table->pool_groups[g].pool_count; p++)
            code = add_region(command, memory, (int64_t)g, (int64_t)p, pool_bytes(table, (int64_t)g, (int64_t)p));
    }
    memory->pool_count = memory->count;
    for (size_t i = 0; code == CLI_OK && spec->aux != NULL && i < spec->aux->ptr_count; i++)
        code = add_region(command, memory, -1, (int64_t)i, i < spec->aux->size_count ? spec->aux->size[i] : 0);
    return code;
}

/** Makes the rank anew with the addresses of its memory. */
static enum kvf_status place(const struct kvf_trtllm_rank_spec *spec, const struct trtllm_memory *memory,
                             kvf_trtllm_rank **out, struct kvf_error *error)
{
    struct kvf_trtllm_rank_spec placed = *spec;
    struct kvf_trtllm_page_table table = *spec->page_table;
    struct kvf_trtllm_aux aux = {0};
    struct kvf_trtllm_pool_group *groups = calloc(table.pool_group_count + 1, sizeof(*groups));
    struct kvf_trtllm_pool *pools = calloc(memory->pool_count + 1, sizeof(*pools));
    uint64_t *ptrs = calloc(memory->count + 1, sizeof(*ptrs));
    enum kvf_status status = KVF_ERR_NO_MEMORY;
    if (groups == NULL || pools == NULL || ptrs == NULL)
        goto done;
    for (size_t i = 0; i < memory->pool_count; i++) {
        const struct trtllm_region *region = &memory->regions[i];
        pools[i] = table.pool_groups[region->group].pools[region->pool];
        pools[i].base_address = (uint64_t)(uintptr_t)region->base;
    }
    for (size_t g = 0, at = 0; g < table.pool_group_count; at += table.pool_groups[g].pool_count, g++)
        groups[g] = (struct kvf_trtllm_pool_group){&pools[at], table.pool_groups[g].pool_count};
    table.pool_groups = groups;
    placed.page_table = &table;
    if (spec->aux != NULL) {
        aux = *spec->aux;
        for (size_t i = memory->pool_count; i < memory->count; i++)
            ptrs[i - memory->pool_count] = (uint64_t)(uintptr_t)memory->regions[i].base;
        aux.ptrs = ptrs;
        placed.aux = &aux;
    }
    status = kvf_trtllm_rank_create(&placed, out, error);
done:
    free(ptrs);
    free(pools);
    free(groups);
    return status;
}

int trtllm_memory_init(const struct cli_command *command, const kvf_trtllm_rank *rank, uint8_t blank,
                       struct trtllm_memory *memory, kvf_trtllm_rank **out)
{
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(rank);
    struct kvf_error error = {.position = -1};
    *memory = (struct trtllm_memory){.blank = blank};
    if (spec->page_table == NULL) {
        cli_error(command, "the rank has no table: there is no memory to allocate");
        return CLI_INPUT;
    }
    int code = allocate(command, spec, memory);
    if (code == CLI_OK && place(spec, memory, out, &error) != KVF_OK)
        code = cli_library_error(command, NULL, &error);
    if (code != CLI_OK)
        trtllm_memory_fini(memory);
    return code;
}

void trtllm_memory_fini(struct trtllm_memory *memory)
{
    for (size_t i = 0; i < memory->count; i++)
        kvf_memory_destroy(memory->regions[i].memory);
    free(memory->regions);
    *memory = (struct trtllm_memory){0};
}

int64_t trtllm_memory_guards(const struct trtllm_memory *memory, char *where, size_t bytes)
{
    int64_t wrong = 0;
    char name[64];
    for (size_t i = 0; i < memory->count; i++) {
        const struct trtllm_region *region = &memory->regions[i];
        for (int64_t b = -TRTLLM_GUARD_BYTES; region->base != NULL && b < region->bytes + TRTLLM_GUARD_BYTES; b++) {
            if (b == 0)
                b = region->bytes;
            if (region->base[b] != memory->blank && wrong++ == 0)
                snprintf(where, bytes, "%s %+" PRId64, trtllm_region_name(region, name, sizeof(name)), b);
        }
    }
    return wrong;
}

int trtllm_memory_load(const struct cli_command *command, const struct trtllm_memory *memory, const char *path)
{
    FILE *file = fopen(path, "rbe");
    int code = CLI_INPUT;
    if (file == NULL) {
        cli_error(command, "%s: cannot be opened: %s", path, strerror(errno));
        return code;
    }
    size_t got = 0;
    for (size_t i = 0; i < memory->count; i++) {
        if (memory->regions[i].base != NULL)
            got += fread(memory->regions[i].base, 1, (size_t)memory->regions[i].bytes, file);
    }
    if ((int64_t)got == memory->bytes && fgetc(file) == EOF)
        code = CLI_OK;
    else
        cli_error(command, "%s: must have %" PRId64 " bytes, all pools and auxiliary buffers", path, memory->bytes);
    fclose(file);
    return code;
}

int trtllm_memory_dump(const struct cli_command *command, const struct trtllm_memory *memory, const char *path)
{
    size_t room = strlen(path) + 16, put = 0;
    char *temporary = malloc(room);
    FILE *file = NULL;
    int fd = -1, code = CLI_INPUT;
    if (temporary == NULL)
        goto done;
    snprintf(temporary, room, "%s.XXXXXX", path);
    fd = mkstemp(temporary);
    file = fd >= 0 && fchmod(fd, 0644) == 0 ? fdopen(fd, "wb") : NULL;
    for (size_t i = 0; file != NULL && i < memory->count; i++) {
        if (memory->regions[i].base != NULL)
            put += fwrite(memory->regions[i].base, 1, (size_t)memory->regions[i].bytes, file);
    }
    bool whole = file != NULL && (int64_t)put == memory->bytes;
    if (file != NULL)
        whole = fclose(file) == 0 && whole;
    else if (fd >= 0)
        close(fd);
    if (whole && rename(temporary, path) == 0)
        code = CLI_OK;
    else
        cli_error(command, "%s: cannot be written: %s", path, strerror(errno));
    if (code != CLI_OK && fd >= 0)
        unlink(temporary);
done:
    free(temporary);
    return code;
}
