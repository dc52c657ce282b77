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

/** How JSON spells an ASCII character that it cannot hold as it is; NULL for others. */
static const char *escape_of(unsigned char character, char out[8])
{
    static const char letters[] = "\bb\tt\nn\ff\rr\"\"\\\\";

    for (const char *at = letters; *at; at += 2) {
        if ((unsigned char)*at != character) continue;
        snprintf(out, 8, "\\%c", at[1]);
        return out;
    }
    if (character >= 0x20) return NULL;
    snprintf(out, 8, "\\u%04x", character);
    return out;
}

/** Bytes of the UTF-8 character at the start, controls too; 0 when it is none. */
static size_t character_bytes(const char *at, size_t left)
{
    size_t bytes = (unsigned char)*at < 0x80 ? 1 : kvfi_text_character(at, left);

    return bytes == 0 && left > 1 && kvfi_text_is_utf8(at, 2) ? 2 : bytes;
}

/** Bytes at the start that stand for themselves: nearly all there are. */
static size_t plain_bytes(const char *at, size_t left)
{
    size_t count = 0;

    while (count < left && at[count] >= 0x20 && at[count] < 0x7f && at[count] != '"' && at[count] != '\\') count++;
    return count;
}

void kvfi_text_append_json(struct kvfi_text *text, const char *value)
{
    size_t byte_count = strlen(value), at = 0;
    char escape[8];

    kvfi_text_append(text, "\"");
    while (at < byte_count) {
        size_t plain = plain_bytes(value + at, byte_count - at), character;

        kvfi_text_append_bytes(text, value + at, plain);
        at += plain;
        if (at == byte_count) break;
        character = character_bytes(value + at, byte_count - at);
        if (character == 0) kvfi_text_append(text, "?");
        else if (escape_of((unsigned char)value[at], escape)) kvfi_text_append(text, escape);
        else kvfi_text_append_bytes(text, value + at, character);
        at += character ? character : 1;
    }
    kvfi_text_append(text, "\"");
}

void kvfi_text_fini(struct kvfi_text *text)
{
    free(text->bytes);
    *text = (struct kvfi_text){0};
}
