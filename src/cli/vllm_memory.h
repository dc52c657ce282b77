/* SPDX-License-Identifier: Apache-2.0 */
/** @file vllm_memory.h  The memory of a stand-alone vLLM rank: where its regions lie, moved to where there is room. */
#ifndef KVFERRY_CLI_VLLM_MEMORY_H
#define KVFERRY_CLI_VLLM_MEMORY_H

#include "cli/vllm_terms.h"

#define VLLM_GUARD_BYTES 4096
#define VLLM_GUARD 0xC3

/** One allocation: `bytes` at `base` as it was written, and at `real` in this process, with guard bytes around. */
struct vllm_span {
    uint64_t base;
    int64_t bytes;
    uint8_t *real;
    void *map;
    size_t map_bytes;
};

struct vllm_memory {
    struct vllm_span *spans; /* ascending by base where they were derived, else as given */
    size_t count;
    int64_t bytes; /* of all */
};

/** Highest block, as kernels address them, that each group's requests name; -1 = none. */
struct vllm_reach {
    int64_t *last; /* per group */
    size_t count;
};

/** Notes the ids of one request. False without memory. */
bool vllm_reach_add(struct vllm_reach *reach, const struct vllm_rank *rank, const struct kvf_vllm_ids *groups,
                    size_t count);
/** Notes that each group has so many logical blocks. */
bool vllm_reach_all(struct vllm_reach *reach, const struct vllm_rank *rank, size_t groups, int64_t blocks);

/** Allocates. `list` is [[base, bytes], ...], or NULL: then one span per connected stretch of what the regions and the
 *  ids of `reach` cover. Every region must lie in one span.
 *  @param regions  as written
 *  @param moved    the same with addresses of this process: returned to the caller (kvf_vllm_regions_release)
 *  Returns an exit code, having printed what is wrong. */
int vllm_memory_init(const struct cli_command *command, const char *path, const json_t *list,
                     const kvf_vllm_regions *regions, const struct vllm_reach *reach, struct vllm_memory *out,
                     kvf_vllm_regions **moved);
/** Says it when so many logical blocks of each region would lie over one another, and returns false. */
bool vllm_memory_apart(const struct cli_command *command, const char *path, const kvf_vllm_regions *regions,
                       int64_t blocks, int64_t ratio);

void vllm_memory_fini(struct vllm_memory *memory);

/** Where [base, base + bytes), as written, lies in this process; NULL when it is in no span. */
uint8_t *vllm_memory_at(const struct vllm_memory *memory, uint64_t base, int64_t bytes);

/** Writes the pattern (vllm_pattern.c) into every block of every region. */
void vllm_memory_paint(const struct vllm_memory *memory, const kvf_vllm_regions *regions, uint32_t seed);

/** Reads all spans from a file that is exactly as long, or writes them to one. */
int vllm_memory_load(const struct cli_command *command, const struct vllm_memory *memory, const char *path);
int vllm_memory_dump(const struct cli_command *command, const struct vllm_memory *memory, const char *path);

/** How many guard bytes were overwritten; `where` says where the first is. */
int64_t vllm_memory_guards(const struct vllm_memory *memory, char *where, size_t bytes);

#endif
