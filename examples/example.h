/* SPDX-License-Identifier: Apache-2.0 */
/** @file example.h  What both examples need beside kvferry: files, one error, and the engine of one rank of a layout
 *  file. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <kvferry/kvferry.h>

enum { MAX_MEMORIES = 16, MAX_BLOCKS = 4096 };

static struct kvf_error error;

static void must(enum kvf_status status)
{
    if (status == KVF_OK)
        return;
    fprintf(stderr, "%s\n", error.text);
    exit(1);
}

/* Maps a file; with `*bytes` above 0 it is made anew, so long. */
static void *map_file(const char *path, size_t *bytes)
{
    struct stat info;
    int made = *bytes > 0, fd = open(path, made ? O_RDWR | O_CREAT | O_TRUNC : O_RDONLY, 0644);
    void *map = MAP_FAILED;

    if (fd >= 0 && (!made || ftruncate(fd, (off_t)*bytes) == 0) && fstat(fd, &info) == 0) {
        *bytes = (size_t)info.st_size;
        map = mmap(NULL, *bytes, made ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    }
    if (map == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    close(fd);
    return map;
}

/* Copies tokens [0, tokens) of one group between two memories of this process: a plan, a binding, one copy. */
static void copy_cache(const kvf_layout *from, void *const *from_base, const struct kvf_id_list *from_blocks,
                       const kvf_layout *to, void *const *to_base, const struct kvf_id_list *to_blocks, int64_t tokens)
{
    struct kvf_bind_request request;
    kvf_binding *binding;
    kvf_plan *plan;

    must(kvf_plan_create(from, to, NULL, NULL, &plan, &error));
    kvf_bind_request_init(&request, sizeof request);
    request.token_end = request.request_tokens = tokens;
    request.src = from_blocks;
    request.dst = to_blocks;
    request.src_count = request.dst_count = 1;
    must(kvf_bind(plan, &request, &binding, &error));
    must(kvf_copy(binding, from_base, kvf_layout_get_spec(from)->memory_count, to_base,
                  kvf_layout_get_spec(to)->memory_count, &error));
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
}

#endif
