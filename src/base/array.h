/* SPDX-License-Identifier: Apache-2.0 */
/** @file array.h  Growable arrays: a pointer, a count and a capacity of any element type. */
#ifndef KVFI_BASE_ARRAY_H
#define KVFI_BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>

/** Makes room for one more element of `element_bytes`; `*items` may move. Returns false when there is no memory, and
 *  nothing has changed then. Growth doubles, sizes are checked. */
bool kvfi_array_grow(void **items, size_t count, size_t *capacity, size_t element_bytes);

/** malloc and calloc of `count` elements with the product checked; NULL when it does not fit or there is no memory.
 *  A count of 0 gives a pointer that may be freed. */
void *kvfi_alloc_array(size_t count, size_t element_bytes);
void *kvfi_alloc_zeroed(size_t count, size_t element_bytes);

/** A copy of a zero-terminated text, or NULL when there is no memory. */
char *kvfi_text_copy(const char *text);

#endif
