/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a stand-alone vLLM rank. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/vllm_memory.h"

#define LARGEST INT64_C(0x100000000000)

static bool reach_room(struct vllm_reach *reach, size_t groups)
{
    if (groups <= reach->count)
        return true;
    int64_t *larger = realloc(reach->last, groups * sizeof(*larger));
    if (larger == NULL)
        return false;
    while (reach->count < groups)
        larger[reach->count++] = -1;
    reach->last = larger;
    return true;
}

static int64_t blocks_per_block(const struct vllm_rank *rank, size_t group)
{
    bool mamba = group < rank->group_count && rank->group_kinds[group] == KVF_VLLM_MAMBA;
    return mamba ? 1 : rank->kernel_blocks_per_block;
}

static void reach_to(struct vllm_reach *reach, const struct vllm_rank *rank, size_t group, int64_t id)
{
    int64_t ratio = blocks_per_block(rank, group);
    int64_t last = id >= LARGEST / ratio ? LARGEST : id * ratio + ratio - 1;
    if (last > reach->last[group])
        reach->last[group] = last;
}

bool vllm_reach_add(struct vllm_reach *reach, const struct vllm_rank *rank, const struct kvf_vllm_ids *groups,
                    size_t count)
{
    if (!reach_room(reach, count))
        return false;
    for (size_t g = 0; g < count; g++) {
        for (size_t i = 0; i < groups[g].count; i++)
            reach_to(reach, rank, g, groups[g].ids[i]);
    }
    return true;
}

bool vllm_reach_all(struct vllm_reach *reach, const struct vllm_rank *rank, size_t groups, int64_t blocks)
{
    if (!reach_room(reach, groups))
        return false;
    for (size_t g = 0; g < groups; g++)
        reach_to(reach, rank, g, blocks - 1);
    return true;
}

/** Last block of a region that anybody names; at least 0, so that every region takes room. */
static int64_t last_block(const struct kvf_vllm_region *region, const struct vllm_reach *reach)
{
    int64_t last = 0;
    for (size_t g = 0; g < reach->count; g++) {
        bool here = region->group_index == (int64_t)g;
        for (size_t s = 0; region->group_index < 0 && s < region->shared_groups.count; s++)
            here = here || region->shared_groups.ids[s] == (int64_t)g;
        if (here && reach->last[g] > last)
            last = reach->last[g];
    }
    return last;
}

/** The span of a region; false when it is none. A slice of a row takes whole rows, which may be sent as such. */
static bool extent(const struct kvf_vllm_region *region, const struct vllm_reach *reach, struct vllm_span *out)
{
    int64_t last = last_block(region, reach), before = 0, bytes = 0;
    bool is_row = region->row_offset >= 0 && region->row_offset <= region->block_len - region->kv_block_len &&
                  (uint64_t)region->row_offset <= region->base_addr;
    *out = (struct vllm_span){.base = region->base_addr - (uint64_t)(is_row ? region->row_offset : 0)};
    if (__builtin_mul_overflow(last, region->block_len, &before) ||
        __builtin_add_overflow(before, is_row ? region->block_len : region->kv_block_len, &bytes) || bytes > LARGEST ||
        bytes < 0 || out->base > UINT64_MAX - (uint64_t)bytes)
        return false;
    out->bytes = bytes;
    return true;
}

static int by_base(const void *a, const void *b)
{
    const struct vllm_span *left = a, *right = b;
    return left->base < right->base ? -1 : left->base > right->base;
}

/** Joins what touches or overlaps. */
static void join(struct vllm_memory *memory)
{
    size_t kept = 0;
    qsort(memory->spans, memory->count, sizeof(*memory->spans), by_base);
    for (size_t i = 1; i < memory->count; i++) {
        struct vllm_span *last = &memory->spans[kept];
        const struct vllm_span *next = &memory->spans[i];
        if (next->base > last->base + (uint64_t)last->bytes) {
            memory->spans[++kept] = *next;
            continue;
        }
        uint64_t end = next->base + (uint64_t)next->bytes;
        if (end > last->base + (uint64_t)last->bytes)
            last->bytes = (int64_t)(end - last->base);
    }
    memory->count = memory->count > 0 ? kept + 1 : 0;
}

static bool derive(const struct cli_command *command, const char *path, const kvf_vllm_regions *regions,
                   const struct vllm_reach *reach, struct vllm_memory *memory)
{
    size_t count = 0;
    const struct kvf_vllm_region *list = kvf_vllm_regions_get(regions, &count);
    memory->spans = calloc(count + 1, sizeof(*memory->spans));
    if (memory->spans == NULL) {
        cli_error(command, "no memory");
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (!extent(&list[i], reach, &memory->spans[i])) {
            cli_error(command, "%s: region %zu (%s) takes more memory than there is: block %" PRId64 " of %" PRId64
                      " bytes each", path, i, list[i].layer_name, last_block(&list[i], reach), list[i].block_len);
            return false;
        }
    }
    memory->count = count;
    join(memory);
    return true;
}

/** The first block of `a` that lies where a payload of `b` does, among `blocks`; -1 = none. Both of one group: blocks
 *  of several groups may lie over each other. */
static int64_t first_shared(const struct kvf_vllm_region *a, const struct kvf_vllm_region *b, int64_t blocks)
{
    uint64_t apart = b->base_addr - a->base_addr, row = (uint64_t)a->block_len;
    if (b->base_addr < a->base_addr || a->block_len != b->block_len || row == 0 || a->group_index != b->group_index ||
        apart / row >= (uint64_t)blocks)
        return -1;
    bool meets = apart % row < (uint64_t)a->kv_block_len || row - apart % row < (uint64_t)b->kv_block_len;
    return meets ? (int64_t)(apart / row) : -1;
}

bool vllm_memory_apart(const struct cli_command *command, const char *path, const kvf_vllm_regions *regions,
                       int64_t blocks, int64_t ratio)
{
    size_t count = 0;
    const struct kvf_vllm_region *list = kvf_vllm_regions_get(regions, &count);
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < count; k++) {
            int64_t block = i != k ? first_shared(&list[i], &list[k], blocks * ratio) : -1;
            if (block < 0)
                continue;
            cli_error(command, "%s: blocks: region %zu (%s) reaches region %zu (%s) at its block %" PRId64
                      ": there is room for %" PRId64 " blocks", path, i, list[i].layer_name, k, list[k].layer_name,
                      block, block / ratio);
            return false;
        }
    }
    return true;
}

static bool take(const struct cli_command *command, const char *path, const json_t *list, struct vllm_memory *memory)
{
    struct json_take wrong = json_take_below("%s", "");
    memory->count = json_array_size(list);
    memory->spans = calloc(memory->count + 1, sizeof(*memory->spans));
    bool fits = memory->spans != NULL && json_is_array(list);
    for (size_t i = 0; fits && i < memory->count; i++) {
        const json_t *pair = json_array_get(list, i);
        uint64_t bytes = 0;
        fits = json_array_size(pair) == 2 &&
               vllm_take_u64(&wrong, "memory", json_array_get(pair, 0), &memory->spans[i].base) &&
               vllm_take_u64(&wrong, "memory", json_array_get(pair, 1), &bytes) && bytes > 0 &&
               bytes <= (uint64_t)LARGEST && memory->spans[i].base <= UINT64_MAX - bytes;
        memory->spans[i].bytes = (int64_t)bytes;
    }
    if (!fits)
        cli_error(command, "%s: memory: expected a list of [base, bytes]", path);
    return fits;
}

/** What this machine has. */
static int64_t machine_bytes(void)
{
    int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 && pages < LARGEST / page ? pages * page : LARGEST;
}

/** Maps the spans. The last twelve bits of an address stay. */
static bool map(const struct cli_command *command, const char *path, struct vllm_memory *memory)
{
    char text[24];
    int64_t most = machine_bytes();
    for (size_t i = 0; i < memory->count; i++) {
        struct vllm_span *span = &memory->spans[i];
        size_t shift = VLLM_GUARD_BYTES + (size_t)(span->base % 4096);
        size_t bytes = shift + (size_t)span->bytes + VLLM_GUARD_BYTES;
        void *got = memory->bytes <= most - span->bytes
                        ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                        : MAP_FAILED;
        if (got == MAP_FAILED) {
            cli_error(command, "%s: no memory of %s for address 0x%" PRIx64, path, cli_format_bytes(span->bytes, text),
                      span->base);
            return false;
        }
        span->map = got;
        span->map_bytes = bytes;
        span->real = (uint8_t *)got + shift;
        memset(span->real - VLLM_GUARD_BYTES, VLLM_GUARD, VLLM_GUARD_BYTES);
        memset(span->real + span->bytes, VLLM_GUARD, VLLM_GUARD_BYTES);
        memory->bytes += span->bytes;
    }
    return true;
}

uint8_t *vllm_memory_at(const struct vllm_memory *memory, uint64_t base, int64_t bytes)
{
    for (size_t i = 0; i < memory->count; i++) {
        const struct vllm_span *span = &memory->spans[i];
        if (base >= span->base && bytes <= span->bytes && base - span->base <= (uint64_t)(span->bytes - bytes))
            return span->real + (base - span->base);
    }
    return NULL;
}

/** The regions with addresses of this process. */
static int move(const struct cli_command *command, const char *path, const kvf_vllm_regions *regions,
                const struct vllm_memory *memory, kvf_vllm_regions **out)
{
    struct kvf_error error = {.position = -1};
    size_t count = 0;
    int code = CLI_OK;
    const struct kvf_vllm_region *list = kvf_vllm_regions_get(regions, &count);
    struct kvf_vllm_region *moved = calloc(count + 1, sizeof(*moved));
    if (moved == NULL) {
        cli_error(command, "no memory");
        return CLI_FAILED;
    }
    for (size_t i = 0; code == CLI_OK && i < count; i++) {
        const uint8_t *here = vllm_memory_at(memory, list[i].base_addr, list[i].kv_block_len);
        moved[i] = list[i];
        moved[i].base_addr = (uint64_t)(uintptr_t)here;
        if (here == NULL) {
            cli_error(command, "%s: region %zu (%s) at 0x%" PRIx64 " lies in none of memory", path, i,
                      list[i].layer_name, list[i].base_addr);
            code = CLI_INPUT;
        }
    }
    if (code == CLI_OK && kvf_vllm_regions_create(moved, count, out, &error) != KVF_OK)
        code = cli_library_error(command, path, &error);
    free(moved);
    return code;
}

int vllm_memory_init(const struct cli_command *command, const char *path, const json_t *list,
                     const kvf_vllm_regions *regions, const struct vllm_reach *reach, struct vllm_memory *out,
                     kvf_vllm_regions **moved)
{
    *out = (struct vllm_memory){0};
    bool fits = list != NULL ? take(command, path, list, out) : derive(command, path, regions, reach, out);
    return fits && map(command, path, out) ? move(command, path, regions, out, moved) : CLI_INPUT;
}

void vllm_memory_fini(struct vllm_memory *memory)
{
    for (size_t i = 0; i < memory->count && memory->spans != NULL; i++) {
        if (memory->spans[i].map != NULL)
            munmap(memory->spans[i].map, memory->spans[i].map_bytes);
    }
    free(memory->spans);
    *memory = (struct vllm_memory){0};
}

int64_t vllm_memory_guards(const struct vllm_memory *memory, char *where, size_t bytes)
{
    int64_t wrong = 0;
    for (size_t i = 0; i < memory->count; i++) {
        const struct vllm_span *span = &memory->spans[i];
        for (int64_t b = -VLLM_GUARD_BYTES; b < span->bytes + VLLM_GUARD_BYTES; b++) {
            if (b == 0)
                b = span->bytes;
            if (span->real[b] != VLLM_GUARD && wrong++ == 0)
                snprintf(where, bytes, "memory %zu %+" PRId64, i, b);
        }
    }
    return wrong;
}

int vllm_memory_load(const struct cli_command *command, const struct vllm_memory *memory, const char *path)
{
    FILE *file = fopen(path, "rbe");
    int64_t got = 0;
    if (file == NULL) {
        cli_error(command, "%s: cannot be opened: %s", path, strerror(errno));
        return CLI_INPUT;
    }
    for (size_t i = 0; i < memory->count; i++)
        got += (int64_t)fread(memory->spans[i].real, 1, (size_t)memory->spans[i].bytes, file);
    bool fits = got == memory->bytes && fgetc(file) == EOF;
    if (!fits)
        cli_error(command, "%s: must have %" PRId64 " bytes, all memories one after the other", path, memory->bytes);
    fclose(file);
    return fits ? CLI_OK : CLI_INPUT;
}

int vllm_memory_dump(const struct cli_command *command, const struct vllm_memory *memory, const char *path)
{
    size_t room = strlen(path) + 16;
    int64_t put = 0;
    char *temporary = malloc(room);
    if (temporary == NULL) {
        cli_error(command, "no memory");
        return CLI_FAILED;
    }
    snprintf(temporary, room, "%s.XXXXXX", path);
    int fd = mkstemp(temporary);
    FILE *file = fd >= 0 && fchmod(fd, 0644) == 0 ? fdopen(fd, "wb") : NULL;
    for (size_t i = 0; file != NULL && i < memory->count; i++)
        put += (int64_t)fwrite(memory->spans[i].real, 1, (size_t)memory->spans[i].bytes, file);
    bool whole = file != NULL && put == memory->bytes;
    if (file != NULL)
        whole = fclose(file) == 0 && whole;
    else if (fd >= 0)
        close(fd);
    whole = whole && rename(temporary, path) == 0;
    if (!whole) {
        cli_error(command, "%s: cannot be written: %s", path, strerror(errno));
        if (fd >= 0)
            unlink(temporary);
    }
    free(temporary);
    return whole ? CLI_OK : CLI_INPUT;
}
