/* SPDX-License-Identifier: Apache-2.0 */
#include "base/array.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

bool kvfi_array_grow(void **items, size_t count, size_t *capacity, size_t element_bytes)
{
    size_t wanted = *capacity < 8 ? 8 : *capacity;
    size_t bytes;
    void *grown;
    bool ok = true;

    if (count < *capacity) goto done;
    ok = (*capacity < 8 || kvfi_mul_size(*capacity, 2, &wanted)) && kvfi_mul_size(wanted, element_bytes, &bytes);
    if (!ok) goto done;
    grown = realloc(*items, bytes);
    ok = grown != NULL;
    if (!ok) goto done;
    *items = grown;
    *capacity = wanted;
done:
    return ok;
}

void *kvfi_alloc_array(size_t count, size_t element_bytes)
{
    size_t bytes;

    return kvfi_mul_size(count, element_bytes, &bytes) ? malloc(bytes ? bytes : 1) : NULL;
}

void *kvfi_alloc_zeroed(size_t count, size_t element_bytes)
{
    return calloc(count ? count : 1, element_bytes ? element_bytes : 1);
}

char *kvfi_text_copy(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);

    if (copy) memcpy(copy, text, bytes);
    return copy;
}
