/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/values.h"

#include <string.h>

const char *kvfi_value_type_text(enum kvfi_value_type type)
{
    static const char *const texts[] = {"nil", "true or false", "an integer", "a negative integer", "a fraction",
                                        "a text", "bytes", "an array", "a map", "an extension"};

    return texts[type];
}

static uint64_t big_endian(const unsigned char *bytes, size_t count)
{
    uint64_t value = 0;

    for (size_t i = 0; i < count; i++) value = value << 8 | bytes[i];
    return value;
}

/** What a first byte says: the type, and how many bytes of a number or a length follow it. */
struct head {
    enum kvfi_value_type type;
    size_t field_bytes;
    bool known;
};

/* 0xc0 to 0xdf; extensions of a fixed length are told apart by having no field. */
static struct head long_head(unsigned char first)
{
    static const struct head heads[32] = {
        {KVFI_VALUE_NIL, 0, true}, {KVFI_VALUE_NIL, 0, false}, {KVFI_VALUE_BOOL, 0, true}, {KVFI_VALUE_BOOL, 0, true},
        {KVFI_VALUE_BIN, 1, true}, {KVFI_VALUE_BIN, 2, true}, {KVFI_VALUE_BIN, 4, true}, {KVFI_VALUE_EXT, 1, true},
        {KVFI_VALUE_EXT, 2, true}, {KVFI_VALUE_EXT, 4, true}, {KVFI_VALUE_FLOAT, 4, true},
        {KVFI_VALUE_FLOAT, 8, true}, {KVFI_VALUE_UNSIGNED, 1, true}, {KVFI_VALUE_UNSIGNED, 2, true},
        {KVFI_VALUE_UNSIGNED, 4, true}, {KVFI_VALUE_UNSIGNED, 8, true}, {KVFI_VALUE_NEGATIVE, 1, true},
        {KVFI_VALUE_NEGATIVE, 2, true}, {KVFI_VALUE_NEGATIVE, 4, true}, {KVFI_VALUE_NEGATIVE, 8, true},
        {KVFI_VALUE_EXT, 0, true}, {KVFI_VALUE_EXT, 0, true}, {KVFI_VALUE_EXT, 0, true}, {KVFI_VALUE_EXT, 0, true},
        {KVFI_VALUE_EXT, 0, true}, {KVFI_VALUE_STR, 1, true}, {KVFI_VALUE_STR, 2, true}, {KVFI_VALUE_STR, 4, true},
        {KVFI_VALUE_ARRAY, 2, true}, {KVFI_VALUE_ARRAY, 4, true}, {KVFI_VALUE_DICT, 2, true},
        {KVFI_VALUE_DICT, 4, true}};

    return heads[first - 0xc0];
}

static void set_real(struct kvfi_value *value, uint64_t bits, size_t field_bytes)
{
    uint32_t half = (uint32_t)bits;
    float single;

    if (field_bytes == 4) {
        memcpy(&single, &half, sizeof single);
        value->real = (double)single;
    } else {
        memcpy(&value->real, &bits, sizeof value->real);
    }
}

static void set_signed(struct kvfi_value *value, uint64_t bits, size_t field_bytes)
{
    uint64_t sign = (uint64_t)1 << (8 * field_bytes - 1);

    value->type = bits & sign ? KVFI_VALUE_NEGATIVE : KVFI_VALUE_UNSIGNED;
    value->number = (bits ^ sign) - sign;
}

/* A value whose first byte holds its number, its length or its whole meaning. */
static void set_short(struct kvfi_value *value, unsigned char first)
{
    *value = (struct kvfi_value){.type = KVFI_VALUE_UNSIGNED, .number = first};
    if (first >= 0xe0) {
        value->type = KVFI_VALUE_NEGATIVE;
        value->number = (uint64_t)(int64_t)(int8_t)first;
    } else if (first >= 0xa0) {
        *value = (struct kvfi_value){.type = KVFI_VALUE_STR, .count = first & 0x1f};
    } else if (first >= 0x90) {
        *value = (struct kvfi_value){.type = KVFI_VALUE_ARRAY, .count = first & 0x0f};
    } else if (first >= 0x80) {
        *value = (struct kvfi_value){.type = KVFI_VALUE_DICT, .count = first & 0x0f};
    }
}

/* A value whose first byte is followed by its number or length. */
static void set_long(struct kvfi_value *value, const struct head *head, unsigned char first, uint64_t field)
{
    *value = (struct kvfi_value){.type = head->type};
    if (head->type == KVFI_VALUE_BOOL) value->number = first == 0xc3;
    else if (head->type == KVFI_VALUE_UNSIGNED) value->number = field;
    else if (head->type == KVFI_VALUE_NEGATIVE) set_signed(value, field, head->field_bytes);
    else if (head->type == KVFI_VALUE_FLOAT) set_real(value, field, head->field_bytes);
    else if (head->type == KVFI_VALUE_EXT && head->field_bytes == 0) value->count = ((size_t)1 << (first - 0xd4)) + 1;
    else if (head->type == KVFI_VALUE_EXT) value->count = (size_t)field + 1;
    else value->count = (size_t)field;
}

bool kvfi_value_next(struct kvfi_value_reader *reader, struct kvfi_value *out)
{
    size_t left = reader->count - reader->at, head_bytes = 1;
    const unsigned char *bytes;
    struct kvfi_value value;
    unsigned char first;

    if (left == 0) return false;
    bytes = reader->bytes + reader->at;
    first = bytes[0];
    if (first >= 0xc0 && first < 0xe0) {
        struct head head = long_head(first);

        if (!head.known || head.field_bytes >= left) return false;
        set_long(&value, &head, first, big_endian(bytes + 1, head.field_bytes));
        head_bytes += head.field_bytes;
    } else {
        set_short(&value, first);
    }
    left -= head_bytes;
    value.position = reader->at;
    if (value.type == KVFI_VALUE_STR || value.type == KVFI_VALUE_BIN || value.type == KVFI_VALUE_EXT) {
        if (value.count > left) return false;
        value.data = bytes + head_bytes;
        head_bytes += value.count;
    } else if (value.count > (value.type == KVFI_VALUE_DICT ? left / 2 : left)) {
        return false;
    }
    reader->at += head_bytes;
    *out = value;
    return true;
}

enum kvfi_value_skip kvfi_value_skip(struct kvfi_value_reader *reader)
{
    size_t open[KVFI_VALUE_SKIP_DEPTH + 1] = {1}; /* values still to come, per level */
    size_t depth = 0;

    for (;;) {
        struct kvfi_value value;
        size_t members;

        while (depth > 0 && open[depth] == 0) depth--;
        if (open[depth] == 0) return KVFI_VALUE_SKIPPED;
        open[depth]--;
        if (!kvfi_value_next(reader, &value)) return KVFI_VALUE_CUT;
        if (value.type != KVFI_VALUE_ARRAY && value.type != KVFI_VALUE_DICT) continue;
        members = value.type == KVFI_VALUE_DICT ? 2 * value.count : value.count;
        if (members && depth == KVFI_VALUE_SKIP_DEPTH) {
            reader->at = value.position;
            return KVFI_VALUE_TOO_DEEP;
        }
        if (members) open[++depth] = members;
    }
}

static void put(struct kvfi_value_writer *writer, const void *bytes, size_t count)
{
    size_t room = writer->used < writer->capacity ? writer->capacity - writer->used : 0;

    if (count > room) writer->differs = true;
    else if (writer->out && count) memcpy(writer->out + writer->used, bytes, count);
    else if (writer->same_as && count && memcmp(writer->same_as + writer->used, bytes, count) != 0)
        writer->differs = true;
    writer->used += count;
}

static void put_head(struct kvfi_value_writer *writer, unsigned first, uint64_t field, size_t field_bytes)
{
    unsigned char head[9] = {(unsigned char)first};

    for (size_t i = 0; i < field_bytes; i++) head[field_bytes - i] = (unsigned char)(field >> (8 * i));
    put(writer, head, 1 + field_bytes);
}

void kvfi_value_put_nil(struct kvfi_value_writer *writer)
{
    put_head(writer, 0xc0, 0, 0);
}

void kvfi_value_put_bool(struct kvfi_value_writer *writer, bool value)
{
    put_head(writer, value ? 0xc3 : 0xc2, 0, 0);
}

void kvfi_value_put_unsigned(struct kvfi_value_writer *writer, uint64_t number)
{
    if (number < 0x80) put_head(writer, (unsigned)number, 0, 0);
    else if (number <= UINT8_MAX) put_head(writer, 0xcc, number, 1);
    else if (number <= UINT16_MAX) put_head(writer, 0xcd, number, 2);
    else if (number <= UINT32_MAX) put_head(writer, 0xce, number, 4);
    else put_head(writer, 0xcf, number, 8);
}

void kvfi_value_put_int(struct kvfi_value_writer *writer, int64_t number)
{
    if (number >= 0) kvfi_value_put_unsigned(writer, (uint64_t)number);
    else if (number >= -32) put_head(writer, (unsigned char)number, 0, 0);
    else if (number >= INT8_MIN) put_head(writer, 0xd0, (uint64_t)number, 1);
    else if (number >= INT16_MIN) put_head(writer, 0xd1, (uint64_t)number, 2);
    else if (number >= INT32_MIN) put_head(writer, 0xd2, (uint64_t)number, 4);
    else put_head(writer, 0xd3, (uint64_t)number, 8);
}

static size_t plain_bytes(int64_t number)
{
    if (number < 0x80) return 1;
    if (number <= UINT8_MAX) return 2;
    if (number <= UINT16_MAX) return 3;
    return number <= UINT32_MAX ? 5 : 9;
}

static size_t store_plain(unsigned char *out, int64_t number)
{
    size_t bytes = plain_bytes(number);

    if (bytes == 1) {
        out[0] = (unsigned char)number;
        return 1;
    }
    out[0] = (unsigned char)(bytes == 2 ? 0xcc : bytes == 3 ? 0xcd : bytes == 5 ? 0xce : 0xcf);
    for (size_t i = 1; i < bytes; i++) out[i] = (unsigned char)(number >> (8 * (bytes - 1 - i)));
    return bytes;
}

/* Block ids come by the thousand: those of at least 0 are counted, or stored, without a call for each. */
void kvfi_value_put_ints(struct kvfi_value_writer *writer, const int64_t *numbers, size_t count)
{
    bool counts = !writer->out && !writer->same_as, stores = writer->out && !writer->same_as;
    size_t i = 0;

    for (; counts && i < count && numbers[i] >= 0; i++) writer->used += plain_bytes(numbers[i]);
    if (writer->used > writer->capacity) writer->differs = true;
    for (; stores && i < count && numbers[i] >= 0 && writer->used + 9 <= writer->capacity; i++)
        writer->used += store_plain(writer->out + writer->used, numbers[i]);
    for (; i < count; i++) kvfi_value_put_int(writer, numbers[i]);
}

void kvfi_value_put_double(struct kvfi_value_writer *writer, double number)
{
    uint64_t bits;

    memcpy(&bits, &number, sizeof bits);
    put_head(writer, 0xcb, bits, 8);
}

/* Lengths: in the first byte below `short_limit`, else in 1 (where `one_byte` is not 0), 2 or 4 bytes. */
static void put_length(struct kvfi_value_writer *writer, size_t count, size_t short_limit, unsigned short_first,
                       unsigned one_byte, unsigned two_bytes)
{
    if (count < short_limit) put_head(writer, short_first | (unsigned)count, 0, 0);
    else if (one_byte && count <= UINT8_MAX) put_head(writer, one_byte, count, 1);
    else if (count <= UINT16_MAX) put_head(writer, two_bytes, count, 2);
    else put_head(writer, two_bytes + 1, count, 4);
}

void kvfi_value_put_text(struct kvfi_value_writer *writer, const char *text)
{
    size_t count = strlen(text);

    put_length(writer, count, 32, 0xa0, 0xd9, 0xda);
    put(writer, text, count);
}

void kvfi_value_put_bin(struct kvfi_value_writer *writer, const void *bytes, size_t count)
{
    put_length(writer, count, 0, 0, 0xc4, 0xc5);
    put(writer, bytes, count);
}

void kvfi_value_put_array(struct kvfi_value_writer *writer, size_t count)
{
    put_length(writer, count, 16, 0x90, 0, 0xdc);
}

void kvfi_value_put_map(struct kvfi_value_writer *writer, size_t count)
{
    put_length(writer, count, 16, 0x80, 0, 0xde);
}
