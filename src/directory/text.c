/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "wire/text.h"

static bool make_room(struct kvfi_text *text, size_t byte_count)
{
    size_t wanted, capacity = text->capacity ? text->capacity : 256;
    char *grown;

    if (!kvfi_add_size(text->count, byte_count, &wanted) || !kvfi_add_size(wanted, 1, &wanted)) return false;
    if (text->most_bytes && wanted > text->most_bytes + 1) return false;
    if (wanted <= text->capacity) return true;
    while (capacity < wanted)
        if (!kvfi_mul_size(capacity, 2, &capacity)) return false;
    grown = realloc(text->bytes, capacity);
    if (!grown) return false;
    text->bytes = grown;
    text->capacity = capacity;
    return true;
}

void kvfi_text_append_bytes(struct kvfi_text *text, const void *bytes, size_t byte_count)
{
    if (text->failed) return;
    if (!make_room(text, byte_count)) {
        text->failed = true;
        return;
    }
    if (byte_count) memcpy(text->bytes + text->count, bytes, byte_count);
    text->count += byte_count;
    text->bytes[text->count] = '\0';
}

void kvfi_text_append(struct kvfi_text *text, const char *piece)
{
    kvfi_text_append_bytes(text, piece, strlen(piece));
}

void kvfi_text_appendf(struct kvfi_text *text, const char *format, ...)
{
    char piece[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    kvfi_text_append(text, piece);
}

void kvfi_text_append_json(struct kvfi_text *text, const char *value)
{
    size_t byte_count = strlen(value), at = 0;

    kvfi_text_append(text, "\"");
    while (at < byte_count) {
        size_t character = kvfi_text_character(value + at, byte_count - at);

        if (character == 0) {
            kvfi_text_append(text, "?");
            character = 1;
        } else {
            if (value[at] == '"' || value[at] == '\\') kvfi_text_append(text, "\\");
            kvfi_text_append_bytes(text, value + at, character);
        }
        at += character;
    }
    kvfi_text_append(text, "\"");
}

void kvfi_text_fini(struct kvfi_text *text)
{
    free(text->bytes);
    *text = (struct kvfi_text){0};
}
