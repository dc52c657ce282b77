/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/arena.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

#define CHUNK_BYTES 4096

struct kvfi_arena_chunk {
    struct kvfi_arena_chunk *next;
    size_t used, capacity;
    alignas(max_align_t) unsigned char bytes[];
};

static struct kvfi_arena_chunk *chunk_with_room(struct kvfi_arena *arena, size_t bytes)
{
    struct kvfi_arena_chunk *chunk = arena->chunks;
    size_t capacity = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
    size_t total;

    if (chunk && chunk->capacity - chunk->used >= bytes) return chunk;
    if (!kvfi_add_size(sizeof *chunk, capacity, &total)) return NULL;
    chunk = calloc(1, total);
    if (!chunk) return NULL;
    chunk->capacity = capacity;
    chunk->next = arena->chunks;
    arena->chunks = chunk;
    arena->bytes += total;
    return chunk;
}

void *kvfi_arena_take(struct kvfi_arena *arena, size_t count, size_t element_bytes)
{
    const size_t alignment = alignof(max_align_t);
    struct kvfi_arena_chunk *chunk;
    size_t bytes;
    void *place;

    if (!kvfi_mul_size(count, element_bytes, &bytes) || !kvfi_add_size(bytes, alignment, &bytes)) return NULL;
    bytes -= bytes % alignment;
    chunk = chunk_with_room(arena, bytes);
    if (!chunk) return NULL;
    place = chunk->bytes + chunk->used;
    chunk->used += bytes;
    return place;
}

char *kvfi_arena_text(struct kvfi_arena *arena, const char *text, size_t byte_count)
{
    char *copy = kvfi_arena_take(arena, byte_count + 1, 1);

    if (copy && byte_count) memcpy(copy, text, byte_count);
    return copy;
}

void kvfi_arena_fini(struct kvfi_arena *arena)
{
    while (arena->chunks) {
        struct kvfi_arena_chunk *next = arena->chunks->next;

        free(arena->chunks);
        arena->chunks = next;
    }
    arena->bytes = 0;
}
