/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *must(void *pointer, const char *what)
{
    if (!pointer) {
        fprintf(stderr, "cannot make or find: %s\n", what);
        exit(1);
    }
    return pointer;
}

char *text_replace(const char *text, const char *find, const char *replace)
{
    const char *at = must(strstr(text, find), find);
    size_t bytes = strlen(text) + strlen(replace) + 1;
    char *copy = must(malloc(bytes), find);

    snprintf(copy, bytes, "%.*s%s%s", (int)(at - text), text, replace, at + strlen(find));
    return copy;
}

char *text_repeat(const char *unit, size_t count)
{
    size_t bytes = strlen(unit);
    char *text = must(malloc(bytes * count), unit);

    for (size_t i = 0; i < count; i++) memcpy(text + i * bytes, unit, bytes);
    return text;
}

char *text_of_file(const char *path, size_t *bytes)
{
    FILE *file = must(fopen(path, "rb"), path);
    size_t capacity = (size_t)16 << 20;
    char *text = must(malloc(capacity), path);

    *bytes = fread(text, 1, capacity - 1, file);
    text[*bytes] = '\0';
    must(ferror(file) || !feof(file) ? NULL : file, path);
    fclose(file);
    return text;
}
