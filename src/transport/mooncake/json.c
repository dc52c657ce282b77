/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/json.h"

#include <stdio.h>
#include <string.h>

void kvfi_moon_json_init(struct kvfi_moon_json *json, const void *text, size_t bytes)
{
    *json = (struct kvfi_moon_json){.begin = text, .at = text, .end = (const char *)text + bytes};
}

static bool fail(struct kvfi_moon_json *json, const char *expected)
{
    if (!json->wrong) json->wrong = expected;
    return false;
}

static int peek(struct kvfi_moon_json *json)
{
    while (json->at < json->end && (*json->at == ' ' || *json->at == '\t' || *json->at == '\n' || *json->at == '\r'))
        json->at++;
    return json->wrong || json->at == json->end ? -1 : (unsigned char)*json->at;
}

enum kvfi_moon_json_kind kvfi_moon_json_next(struct kvfi_moon_json *json)
{
    int c = peek(json);

    if (c == '{') return KVFI_MOON_JSON_OBJECT;
    if (c == '[') return KVFI_MOON_JSON_ARRAY;
    if (c == '"') return KVFI_MOON_JSON_TEXT;
    if (c == '-' || (c >= '0' && c <= '9')) return KVFI_MOON_JSON_NUMBER;
    if (c == 't' || c == 'f' || c == 'n') return KVFI_MOON_JSON_WORD;
    return KVFI_MOON_JSON_NONE;
}

/* ---- objects and arrays ----------------------------------------------------------------------------------------- */

bool kvfi_moon_json_enter(struct kvfi_moon_json *json, char bracket)
{
    if (peek(json) != bracket) return fail(json, bracket == '{' ? "an object" : "an array");
    if (json->depth == KVFI_MOON_JSON_DEPTH) return fail(json, "no more than 64 levels");
    json->at++;
    json->depth++;
    json->first = true;
    return true;
}

/* Before the next member: false at the end, or where something is wrong. */
static bool next_member(struct kvfi_moon_json *json, char closing)
{
    int c = peek(json);

    if (c == closing) {
        json->at++;
        json->depth--;
        json->first = false;
        return false;
    }
    if (!json->first) {
        if (c != ',') return fail(json, "\",\" or a closing bracket");
        json->at++;
    }
    json->first = false;
    return true;
}

bool kvfi_moon_json_item(struct kvfi_moon_json *json)
{
    return next_member(json, ']');
}

static bool read_text(struct kvfi_moon_json *json, char *text, size_t capacity, size_t *bytes, bool may_cut);

bool kvfi_moon_json_key(struct kvfi_moon_json *json, char *key, size_t capacity)
{
    size_t bytes;

    if (!next_member(json, '}') || !read_text(json, key, capacity, &bytes, true)) return false;
    if (peek(json) != ':') return fail(json, "\":\"");
    json->at++;
    return true;
}

/* ---- texts ------------------------------------------------------------------------------------------------------ */

/* Reads one code point of UTF-8 at *at; -1 where there is none. */
static int32_t decode(const char **at, const char *end)
{
    static const int32_t least[4] = {0, 0x80, 0x800, 0x10000};
    const unsigned char *bytes = (const unsigned char *)*at;
    int more = bytes[0] < 0x80 ? 0 : bytes[0] >> 5 == 6 ? 1 : bytes[0] >> 4 == 14 ? 2 : bytes[0] >> 3 == 30 ? 3 : -1;
    int32_t point;

    if (more < 0 || end - *at <= more) return -1;
    point = more == 0 ? bytes[0] : bytes[0] & (0x3F >> more);
    for (int i = 1; i <= more; i++) {
        if (bytes[i] >> 6 != 2) return -1;
        point = point << 6 | (bytes[i] & 0x3F);
    }
    if (point < least[more] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) return -1;
    *at += more + 1;
    return point;
}

static size_t encode(int32_t point, char out[4])
{
    size_t more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    static const unsigned char lead[4] = {0, 0xC0, 0xE0, 0xF0};

    for (size_t i = more; i > 0; i--) {
        out[i] = (char)(0x80 | (point & 0x3F));
        point >>= 6;
    }
    out[0] = (char)(lead[more] | point);
    return more + 1;
}

static int32_t read_hex(struct kvfi_moon_json *json)
{
    int32_t number = 0;

    if (json->end - json->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int c = *json->at++;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;

        if (digit < 0) return -1;
        number = number * 16 + digit;
    }
    return number;
}

/* What follows a backslash; -1 where it makes no sense. */
static int32_t read_escape(struct kvfi_moon_json *json)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found;
    int32_t high, low;

    if (json->at == json->end) return -1;
    if (*json->at != 'u') {
        found = memchr(from, *json->at++, sizeof from - 1);
        return found ? to[found - from] : -1;
    }
    json->at++;
    high = read_hex(json);
    if (high < 0xD800 || high > 0xDFFF) return high;
    if (high > 0xDBFF || json->end - json->at < 6 || json->at[0] != '\\' || json->at[1] != 'u') return -1;
    json->at += 2;
    low = read_hex(json);
    return low < 0xDC00 || low > 0xDFFF ? -1 : 0x10000 + (high - 0xD800) * 0x400 + (low - 0xDC00);
}

static bool read_text(struct kvfi_moon_json *json, char *text, size_t capacity, size_t *bytes, bool may_cut)
{
    size_t length = 0, kept = 0;
    bool cut = text == NULL;

    if (peek(json) != '"') return fail(json, "a text");
    json->at++;
    while (json->at < json->end && *json->at != '"') {
        char encoded[4];
        size_t more;
        int32_t point;

        if (*json->at == '\\') {
            json->at++;
            point = read_escape(json);
        } else {
            point = decode(&json->at, json->end);
            if (point >= 0 && point < 0x20 && point != '\t') point = -1;
        }
        if (point <= 0) return fail(json, "a text of valid characters");
        more = encode(point, encoded);
        length += more;
        cut = cut || more >= capacity - kept; /* the closing zero has its place */
        if (cut && text && !may_cut) return fail(json, "a shorter text");
        if (!cut) memcpy(text + kept, encoded, more);
        if (!cut) kept += more;
    }
    if (json->at == json->end) return fail(json, "the end of a text");
    json->at++;
    if (text) text[kept] = '\0';
    *bytes = length;
    return true;
}

bool kvfi_moon_json_text(struct kvfi_moon_json *json, char *text, size_t capacity, size_t *bytes)
{
    return read_text(json, text, capacity, bytes, false);
}

bool kvfi_moon_is_utf8(const char *text)
{
    const char *end = text + strlen(text);

    while (text < end) {
        if (decode(&text, end) < 0) return false;
    }
    return true;
}

size_t kvfi_moon_json_quote(const char *text, char *out)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *end = text + strlen(text);
    size_t bytes = 1;

    if (out) out[0] = '"';
    while (text < end) {
        int32_t point = decode(&text, end);
        const char *found = point > 0 && point < 0x80 ? memchr(from, point, sizeof from - 1) : NULL;
        char piece[16];
        int length;

        if (found) length = snprintf(piece, sizeof piece, "\\%c", to[found - from]);
        else if (point >= 0x20 && point < 0x80) length = snprintf(piece, sizeof piece, "%c", (char)point);
        else if (point < 0x10000) length = snprintf(piece, sizeof piece, "\\u%04x", (unsigned)point & 0xFFFF);
        else
            length = snprintf(piece, sizeof piece, "\\u%04x\\u%04x",
                              0xD800 + (unsigned)((point - 0x10000) >> 10 & 0x3FF),
                              0xDC00 + (unsigned)(point & 0x3FF));
        if (out) memcpy(out + bytes, piece, (size_t)length);
        bytes += (size_t)length;
        if (point < 0) break;
    }
    if (out) out[bytes] = '"';
    return bytes + 1;
}

/* ---- numbers and the rest --------------------------------------------------------------------------------------- */

bool kvfi_moon_json_u64(struct kvfi_moon_json *json, uint64_t *number)
{
    int c = peek(json);
    const char *begin = json->at;
    uint64_t value = 0;

    if (c < '0' || c > '9') return fail(json, "a whole number of 0 or more");
    while (json->at < json->end && *json->at >= '0' && *json->at <= '9') {
        if (__builtin_mul_overflow(value, UINT64_C(10), &value) ||
            __builtin_add_overflow(value, (uint64_t)(*json->at - '0'), &value))
            return fail(json, "a number below 2^64");
        json->at++;
    }
    if (*begin == '0' && json->at - begin > 1) return fail(json, "a number without leading zeros");
    if (json->at < json->end && (*json->at == '.' || *json->at == 'e' || *json->at == 'E'))
        return fail(json, "a whole number");
    *number = value;
    return true;
}

static void skip_digits(struct kvfi_moon_json *json)
{
    while (json->at < json->end && *json->at >= '0' && *json->at <= '9') json->at++;
}

static bool skip_number(struct kvfi_moon_json *json)
{
    const char *begin;

    if (*json->at == '-') json->at++;
    begin = json->at;
    skip_digits(json);
    if (json->at == begin) return fail(json, "a digit");
    if (json->at < json->end && *json->at == '.') {
        begin = ++json->at;
        skip_digits(json);
        if (json->at == begin) return fail(json, "a digit");
    }
    if (json->at < json->end && (*json->at == 'e' || *json->at == 'E')) {
        json->at++;
        if (json->at < json->end && (*json->at == '+' || *json->at == '-')) json->at++;
        begin = json->at;
        skip_digits(json);
        if (json->at == begin) return fail(json, "a digit");
    }
    return true;
}

static bool skip_word(struct kvfi_moon_json *json)
{
    static const char *const words[] = {"true", "false", "null"};

    for (size_t i = 0; i < 3; i++) {
        size_t bytes = strlen(words[i]);

        if ((size_t)(json->end - json->at) >= bytes && memcmp(json->at, words[i], bytes) == 0) {
            json->at += bytes;
            return true;
        }
    }
    return fail(json, "a value");
}

static bool next_inside(struct kvfi_moon_json *json, char closing)
{
    return closing == '}' ? kvfi_moon_json_key(json, NULL, 0) : kvfi_moon_json_item(json);
}

bool kvfi_moon_json_skip(struct kvfi_moon_json *json)
{
    char closing[KVFI_MOON_JSON_DEPTH]; /* of the brackets that this call has opened */
    int open = 0;
    size_t bytes;

    do {
        enum kvfi_moon_json_kind kind = kvfi_moon_json_next(json);
        bool done = true;

        if (kind == KVFI_MOON_JSON_OBJECT || kind == KVFI_MOON_JSON_ARRAY) {
            if (!kvfi_moon_json_enter(json, kind == KVFI_MOON_JSON_OBJECT ? '{' : '[')) return false;
            closing[open++] = kind == KVFI_MOON_JSON_OBJECT ? '}' : ']';
        } else if (kind == KVFI_MOON_JSON_TEXT) {
            done = read_text(json, NULL, 0, &bytes, true);
        } else if (kind == KVFI_MOON_JSON_NUMBER) {
            done = skip_number(json);
        } else {
            done = kind == KVFI_MOON_JSON_WORD ? skip_word(json) : fail(json, "a value");
        }
        if (!done) return false;
        while (open > 0 && !next_inside(json, closing[open - 1])) {
            if (json->wrong) return false;
            open--;
        }
    } while (open > 0);
    return true;
}
