/* SPDX-License-Identifier: Apache-2.0 */
/** @file arena.h  Memory that is freed all at once: what one unpacked message owns. */
#ifndef KVFI_WIRE_ARENA_H
#define KVFI_WIRE_ARENA_H

#include <stddef.h>

struct kvfi_arena_chunk;

/** Zeroed is empty. */
struct kvfi_arena {
    struct kvfi_arena_chunk *chunks;
    size_t bytes; /* of all chunks */
};

/** Room for `count` elements, zeroed and aligned for any type; NULL when there is no memory or the product does not
 *  fit. Valid until fini. */
void *kvfi_arena_take(struct kvfi_arena *arena, size_t count, size_t element_bytes);

/** A zero-terminated copy of `byte_count` bytes, or NULL. */
char *kvfi_arena_text(struct kvfi_arena *arena, const char *text, size_t byte_count);

void kvfi_arena_fini(struct kvfi_arena *arena);

#endif
