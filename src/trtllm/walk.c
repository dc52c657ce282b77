/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/walk.h"

const char *kvfi_trt_walk_kind_text(enum kvfi_trt_walk_kind kind)
{
    static const char *const texts[] = {"nil", "a boolean", "an integer", "above 2^63 - 1", "a float", "a text",
                                        "binary", "an array", "a map", "an extension"};

    return texts[kind];
}

static uint64_t big_endian(const unsigned char *bytes, size_t count)
{
    uint64_t value = 0;

    for (size_t i = 0; i < count; i++)
        value = value << 8 | bytes[i];
    return value;
}

static uint64_t sign_extend(uint64_t value, size_t bytes)
{
    unsigned shift = (unsigned)(64 - 8 * bytes);

    return (uint64_t)((int64_t)(value << shift) >> shift);
}

/* What follows the first byte: bytes of a number or of a count, and of an extension's type. */
struct form {
    uint8_t kind, field_bytes, extra_bytes;
    bool is_signed;
};

static struct form form_of(unsigned char first)
{
    enum { BIN = KVFI_WALK_BINARY, EXT = KVFI_WALK_EXTENSION, REAL = KVFI_WALK_FLOATING, INT = KVFI_WALK_INTEGER };
    static const struct form forms[32] = {
        /* 0xc0 */ {KVFI_WALK_NIL, 0, 0, 0}, {KVFI_WALK_NIL, 0, 0, 0} /* no type */, {KVFI_WALK_BOOLEAN, 0, 0, 0},
        {KVFI_WALK_BOOLEAN, 0, 0, 0},
        /* 0xc4 */ {BIN, 1, 0, 0}, {BIN, 2, 0, 0}, {BIN, 4, 0, 0}, {EXT, 1, 1, 0}, {EXT, 2, 1, 0}, {EXT, 4, 1, 0},
        /* 0xca */ {REAL, 4, 0, 0}, {REAL, 8, 0, 0}, {INT, 1, 0, 0}, {INT, 2, 0, 0}, {INT, 4, 0, 0}, {INT, 8, 0, 0},
        /* 0xd0 */ {INT, 1, 0, 1}, {INT, 2, 0, 1}, {INT, 4, 0, 1}, {INT, 8, 0, 1},
        /* 0xd4 */ {EXT, 0, 2, 0}, {EXT, 0, 3, 0}, {EXT, 0, 5, 0}, {EXT, 0, 9, 0}, {EXT, 0, 17, 0},
        /* 0xd9 */ {KVFI_WALK_TEXT, 1, 0, 0}, {KVFI_WALK_TEXT, 2, 0, 0}, {KVFI_WALK_TEXT, 4, 0, 0},
        /* 0xdc */ {KVFI_WALK_ARRAY, 2, 0, 0}, {KVFI_WALK_ARRAY, 4, 0, 0}, {KVFI_WALK_MAP, 2, 0, 0},
        {KVFI_WALK_MAP, 4, 0, 0}};

    return forms[first - 0xc0];
}

/* Objects whose value or count is in the first byte. */
static bool read_short(unsigned char first, struct kvfi_trt_walk_object *out)
{
    if (first < 0x80)
        *out = (struct kvfi_trt_walk_object){.kind = KVFI_WALK_INTEGER, .number = first};
    else if (first >= 0xe0)
        *out = (struct kvfi_trt_walk_object){.kind = KVFI_WALK_INTEGER, .number = sign_extend(first, 1)};
    else if (first < 0x90)
        *out = (struct kvfi_trt_walk_object){.kind = KVFI_WALK_MAP, .count = first & 0x0f};
    else if (first < 0xa0)
        *out = (struct kvfi_trt_walk_object){.kind = KVFI_WALK_ARRAY, .count = first & 0x0f};
    else if (first < 0xc0)
        *out = (struct kvfi_trt_walk_object){.kind = KVFI_WALK_TEXT, .count = first & 0x1f};
    else
        return false;
    return true;
}

bool kvfi_trt_walk_next(struct kvfi_trt_walk *walk, struct kvfi_trt_walk_object *out)
{
    size_t left = (size_t)(walk->end - walk->at);
    unsigned char first;

    if (left == 0)
        return false;
    first = *walk->at;
    if (read_short(first, out)) {
        walk->at++;
        left--;
    } else {
        struct form form = form_of(first);
        uint64_t value;

        if (first == 0xc1 || left - 1 < (size_t)form.field_bytes + form.extra_bytes)
            return false;
        value = big_endian(walk->at + 1, form.field_bytes);
        walk->at += 1 + form.field_bytes + form.extra_bytes;
        left -= 1 + (size_t)form.field_bytes + form.extra_bytes;
        *out = (struct kvfi_trt_walk_object){.kind = form.kind, .number = value, .count = value};
        if (form.is_signed)
            out->number = sign_extend(value, form.field_bytes);
        else if (form.kind == KVFI_WALK_INTEGER && value > INT64_MAX)
            out->kind = KVFI_WALK_HUGE;
    }
    if (out->kind == KVFI_WALK_TEXT || out->kind == KVFI_WALK_BINARY || out->kind == KVFI_WALK_EXTENSION) {
        if (out->count > left)
            return false;
        out->data = walk->at;
        walk->at += out->count;
    }
    return out->kind != KVFI_WALK_ARRAY || out->count <= left;
}

static uint64_t inside(const struct kvfi_trt_walk_object *object)
{
    return object->kind == KVFI_WALK_MAP ? 2 * object->count : object->kind == KVFI_WALK_ARRAY ? object->count : 0;
}

/* Every turn takes a byte at least, so it ends. */
bool kvfi_trt_walk_skip(struct kvfi_trt_walk *walk, const struct kvfi_trt_walk_object *object)
{
    struct kvfi_trt_walk_object inner;
    uint64_t left = inside(object);

    while (left > 0) {
        if (left > (uint64_t)(walk->end - walk->at) || !kvfi_trt_walk_next(walk, &inner))
            return false;
        left += inside(&inner) - 1;
    }
    return true;
}
