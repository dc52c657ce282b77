/* SPDX-License-Identifier: Apache-2.0 */
/** @file cache_file.h  KV caches in safetensors files, in and out of a worker's blocks.
 *
 *  The file is seen as a layout with blocks of one token, so that any number of tokens meets any block size.
 */
#ifndef KVFERRY_CLI_CACHE_FILE_H
#define KVFERRY_CLI_CACHE_FILE_H

#include "cli/block_ids.h"

struct cache_file {
    int fd;
    char *map;
    size_t bytes;
    int64_t tokens;
    kvf_layout *layout; /* memory 0 is the whole file */
};

/** One rank's side of a copy between a file and its blocks. */
struct cache_blocks {
    const kvf_layout *layout;
    const struct block_lists *lists;
    void *const *bases; /* address of each memory */
    size_t base_count;
};

/** Opens a cache to read. Returns an exit code, having printed what is wrong. */
int cache_file_open(const struct cli_command *command, const char *path, struct cache_file *out);

/** Makes (or, when another rank has made it, opens) a cache of `tokens` tokens that has room for all layers and heads
 * of the instance, and writes its header. */
int cache_file_create(const struct cli_command *command, const char *path, const kvf_instance *instance, int64_t tokens,
                      struct cache_file *out);

void cache_file_close(struct cache_file *file);

/** Copies the first `tokens` tokens of all that a rank holds from the file to its blocks. A layer or head that the file
 * lacks is an error. */
int cache_file_load(const struct cli_command *command, const char *path, const struct cache_file *file, int64_t tokens,
                    const struct cache_blocks *blocks);

/** Copies tokens [0, tokens) of what a rank holds from its blocks to the file. */
int cache_file_save(const struct cli_command *command, const char *path, const struct cache_file *file, int64_t tokens,
                    const struct cache_blocks *blocks);

#endif
