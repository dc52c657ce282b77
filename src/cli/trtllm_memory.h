/* SPDX-License-Identifier: Apache-2.0 */
/** @file trtllm_memory.h  The pools and auxiliary buffers of a stand-alone TensorRT-LLM rank, and what is in them. */
#ifndef KVFERRY_CLI_TRTLLM_MEMORY_H
#define KVFERRY_CLI_TRTLLM_MEMORY_H

#include <jansson.h>

#include "cli/trtllm_ranks.h"

#define TRTLLM_GUARD_BYTES 4096

/** One pool or auxiliary buffer, with guard bytes before and behind. */
struct trtllm_region {
    int64_t group, pool; /* of pools; auxiliary buffers: -1, number */
    kvf_memory *memory;
    uint8_t *base; /* NULL when it has no bytes */
    int64_t bytes, offset; /* offset: in a dump */
};

struct trtllm_memory {
    struct trtllm_region *regions; /* pools in page table order, then auxiliary buffers */
    size_t pool_count, count;
    int64_t bytes;
    uint8_t blank; /* what all of it holds at first */
};

/** Allocates memory for a rank and writes a rank whose addresses are there: `*out` is for kvf_trtllm_rank_release.
 * Returns an exit code, having printed what is wrong. */
int trtllm_memory_init(const struct cli_command *command, const kvf_trtllm_rank *rank, uint8_t blank,
                       struct trtllm_memory *memory, kvf_trtllm_rank **out);
void trtllm_memory_fini(struct trtllm_memory *memory);

/** Number of guard bytes that were overwritten; where the first one is, into `where`. */
int64_t trtllm_memory_guards(const struct trtllm_memory *memory, char *where, size_t bytes);

/** Reads all of it from a file, or writes it there. Returns an exit code, having printed what is wrong. */
int trtllm_memory_load(const struct cli_command *command, const struct trtllm_memory *memory, const char *path);
int trtllm_memory_dump(const struct cli_command *command, const struct trtllm_memory *memory, const char *path);

/** "pool [0][1]" or "aux[2]". Returns `text`. */
const char *trtllm_region_name(const struct trtllm_region *region, char *text, size_t bytes);

/** One request's blocks. */
struct trtllm_painting {
    int64_t rid, prompt_tokens, start_token; /* start_token: nothing before it; 0 = all */
    const struct kvf_trtllm_blocks *groups;
    size_t group_count;
    int64_t aux_slot; /* or KVF_TRTLLM_NONE */
};

/** Puts the pattern of docs/trtllm.md into `images`, one per region. `kv_heads` may be NULL. Ids outside their pools
 * are passed over. */
void trtllm_paint(const kvf_trtllm_rank *rank, const struct trtllm_memory *memory, const json_t *kv_heads,
                  const struct trtllm_painting *painting, uint8_t *const *images);

#endif
