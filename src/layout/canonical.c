/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/checked.h"
#include "layout/layout.h"

static bool reserve(struct kvfi_canonical *out, size_t more)
{
    size_t wanted, capacity = out->capacity ? out->capacity : 256;
    unsigned char *grown;

    if (out->failed || !kvfi_add_size(out->count, more, &wanted)) goto failed;
    if (wanted <= out->capacity) return true;
    while (capacity < wanted) {
        if (!kvfi_mul_size(capacity, 2, &capacity)) goto failed;
    }
    grown = realloc(out->bytes, capacity);
    if (!grown) goto failed;
    out->bytes = grown;
    out->capacity = capacity;
    return true;
failed:
    out->failed = true;
    return false;
}

void kvfi_canonical_raw(struct kvfi_canonical *out, const void *bytes, size_t count)
{
    if (count && reserve(out, count)) {
        memcpy(out->bytes + out->count, bytes, count);
        out->count += count;
    }
}

void kvfi_canonical_i64(struct kvfi_canonical *out, int64_t number)
{
    unsigned char bytes[8];

    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)number >> (8 * i));
    kvfi_canonical_raw(out, bytes, sizeof bytes);
}

void kvfi_canonical_u32(struct kvfi_canonical *out, uint32_t number)
{
    unsigned char bytes[4];

    for (int i = 0; i < 4; i++) bytes[i] = (unsigned char)(number >> (8 * i));
    kvfi_canonical_raw(out, bytes, sizeof bytes);
}

void kvfi_canonical_text(struct kvfi_canonical *out, const char *text)
{
    size_t count = strlen(text);

    kvfi_canonical_i64(out, (int64_t)count);
    kvfi_canonical_raw(out, text, count);
}

void kvfi_fingerprint_text(const void *bytes, size_t count, char text[KVF_FINGERPRINT_TEXT_BYTES])
{
    XXH128_hash_t hash = XXH3_128bits(bytes, count);

    snprintf(text, KVF_FINGERPRINT_TEXT_BYTES, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}
