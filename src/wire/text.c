/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/text.h"

#include <stdint.h>
#include <string.h>

static size_t sequence_bytes(unsigned char first)
{
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first < 0xe0) return 2;
    if (first >= 0xe0 && first < 0xf0) return 3;
    if (first >= 0xf0 && first < 0xf5) return 4;
    return 0;
}

/* Bytes of the UTF-8 character at the start, or 0; `*out` is which. */
static size_t utf8_bytes(const char *bytes, size_t byte_count, uint32_t *out)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *u = (const unsigned char *)bytes;
    size_t count = byte_count ? sequence_bytes(u[0]) : 0;
    uint32_t code;

    if (count == 0 || count > byte_count) return 0;
    code = count == 1 ? u[0] : u[0] & (0xffu >> (count + 1));
    for (size_t i = 1; i < count; i++) {
        if ((u[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (u[i] & 0x3fu);
    }
    if (code < smallest[count] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
    *out = code;
    return count;
}

size_t kvfi_text_character(const char *bytes, size_t byte_count)
{
    uint32_t code = 0;
    size_t count = utf8_bytes(bytes, byte_count, &code);

    return code < 0x20 || (code >= 0x7f && code < 0xa0) ? 0 : count;
}

bool kvfi_text_is_utf8(const char *bytes, size_t byte_count)
{
    size_t at = 0, count = 1;
    uint32_t code;

    while (at < byte_count && count) {
        count = (unsigned char)bytes[at] < 0x80 ? 1 : utf8_bytes(bytes + at, byte_count - at, &code);
        at += count;
    }
    return count != 0;
}

bool kvfi_text_is_clean(const char *bytes, size_t byte_count)
{
    size_t at = 0;

    while (at < byte_count) {
        size_t count = kvfi_text_character(bytes + at, byte_count - at);

        if (count == 0) return false;
        at += count;
    }
    return true;
}

size_t kvfi_text_clean(const char *text, char *out, size_t capacity)
{
    size_t byte_count = strlen(text), used = 0, at = 0;

    while (at < byte_count) {
        size_t count = kvfi_text_character(text + at, byte_count - at);
        size_t taken = count ? count : 1;

        if (used + taken >= capacity) break;
        if (count) memcpy(out + used, text + at, count);
        else out[used] = '?';
        used += taken;
        at += taken;
    }
    out[used] = '\0';
    return used;
}
