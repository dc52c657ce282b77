/* SPDX-License-Identifier: Apache-2.0 */
#include "layout_json/json_names.h"

#include <stdio.h>
#include <string.h>

#define MAX_NAME_BYTES 40

bool kvfi_name_listed(const char *name, const char *const *known)
{
    bool listed = false;

    for (; *known && !listed; known++) listed = strcmp(name, *known) == 0;
    return listed;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* Edits (insert, delete, replace) from one name to the other; both have at most MAX_NAME_BYTES. */
static size_t edits_between(const char *a, const char *b)
{
    size_t row[MAX_NAME_BYTES + 1], b_bytes = strlen(b);

    for (size_t j = 0; j <= b_bytes; j++) row[j] = j;
    for (size_t i = 0; a[i]; i++) {
        size_t diagonal = row[0];

        row[0] = i + 1;
        for (size_t j = 0; j < b_bytes; j++) {
            size_t above = row[j + 1];

            row[j + 1] = smaller(diagonal + (a[i] != b[j]), 1 + smaller(above, row[j]));
            diagonal = above;
        }
    }
    return row[b_bytes];
}

const char *kvfi_name_nearest(const char *name, const char *const *known)
{
    size_t bytes = strlen(name), best = bytes / 3 + 1;
    const char *nearest = NULL;

    if (bytes > MAX_NAME_BYTES) goto done;
    for (; *known; known++) {
        size_t edits = strlen(*known) > MAX_NAME_BYTES ? bytes : edits_between(name, *known);

        if (edits <= best && edits < bytes && (!nearest || edits < best)) {
            nearest = *known;
            best = edits;
        }
    }
done:
    return nearest;
}

void kvfi_names_join(const char *const *known, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; known[i] && used < bytes; i++) {
        const char *before = i == 0 ? "" : known[i + 1] ? ", " : " or ";
        int wrote = snprintf(text + used, bytes - used, "%s\"%s\"", before, known[i]);

        used += wrote > 0 ? (size_t)wrote : 0;
    }
}
