/* SPDX-License-Identifier: Apache-2.0 */
#include "layout_json/json_cursor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "layout_json/json_names.h"

struct kvfi_cursor kvfi_cursor_root(const struct kvfi_json_source *source, json_t *root)
{
    return (struct kvfi_cursor){.source = source, .value = root};
}

struct kvfi_cursor kvfi_cursor_key(const struct kvfi_cursor *up, const char *key)
{
    return (struct kvfi_cursor){
        .up = up, .source = up->source, .key = key, .value = json_object_get(up->value, key)};
}

struct kvfi_cursor kvfi_cursor_item(const struct kvfi_cursor *up, size_t index)
{
    return (struct kvfi_cursor){
        .up = up, .source = up->source, .index = index, .value = json_array_get(up->value, index)};
}

/* Writes the path from the root, cut where it does not fit. */
static void write_path(const struct kvfi_cursor *at, char *path, size_t bytes)
{
    size_t used;

    if (!at->up) {
        path[0] = '\0';
        return;
    }
    write_path(at->up, path, bytes);
    used = strlen(path);
    if (at->key) {
        char plain[KVFI_QUOTE_BYTES];
        const char *name = kvfi_json_quote(at->key, plain);

        snprintf(path + used, bytes - used, "%s%.*s", used ? "." : "", (int)strlen(name) - 2, name + 1);
    } else {
        snprintf(path + used, bytes - used, "[%zu]", at->index);
    }
}

enum kvf_status kvfi_cursor_fail(const struct kvfi_cursor *at, enum kvf_status status, const char *format, ...)
{
    char path[256], sentence[KVF_ERROR_TEXT_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    write_path(at, path, sizeof path);
    return kvfi_fail_at(at->source->error, status, kvfi_json_locate(at), "%s: %s", path[0] ? path : at->source->name,
                        sentence);
}

static void describe(const json_t *value, char *found, size_t bytes)
{
    char quoted[KVFI_QUOTE_BYTES];

    switch (json_typeof(value)) {
    case JSON_OBJECT: snprintf(found, bytes, "an object"); break;
    case JSON_ARRAY: snprintf(found, bytes, "an array of %zu", json_array_size(value)); break;
    case JSON_STRING: snprintf(found, bytes, "%s", kvfi_json_quote(json_string_value(value), quoted)); break;
    case JSON_INTEGER: snprintf(found, bytes, "%" JSON_INTEGER_FORMAT, json_integer_value(value)); break;
    case JSON_REAL: snprintf(found, bytes, "%.17g, which is not an integer", json_real_value(value)); break;
    case JSON_TRUE: snprintf(found, bytes, "true"); break;
    case JSON_FALSE: snprintf(found, bytes, "false"); break;
    default: snprintf(found, bytes, "null"); break;
    }
}

enum kvf_status kvfi_cursor_expected(const struct kvfi_cursor *at, const char *expected)
{
    enum kvf_status status;
    char found[96];

    if (at->value) {
        describe(at->value, found, sizeof found);
        status = kvfi_cursor_fail(at, KVF_ERR_PARSE, "expected %s, found %s", expected, found);
    } else {
        status = kvfi_cursor_fail(at->up, KVF_ERR_PARSE, "\"%s\" is missing, expected %s", at->key, expected);
    }
    return status;
}

enum kvf_status kvfi_json_object(const struct kvfi_cursor *at, const char *const *known)
{
    enum kvf_status status = KVF_OK;
    char quoted[KVFI_QUOTE_BYTES], names[KVF_ERROR_TEXT_BYTES];
    const char *key, *near;
    json_t *value;

    if (!json_is_object(at->value)) {
        status = kvfi_cursor_expected(at, "an object");
        goto done;
    }
    json_object_foreach(at->value, key, value) {
        struct kvfi_cursor member = kvfi_cursor_key(at, key);

        if (kvfi_name_listed(key, known)) continue;
        if (strcmp(key, "comment") == 0) {
            if (json_is_string(value)) continue;
            status = kvfi_cursor_expected(&member, "a text");
            goto done;
        }
        kvfi_json_quote(key, quoted);
        near = kvfi_name_nearest(key, known);
        if (near) {
            status = kvfi_cursor_fail(at, KVF_ERR_PARSE, "unknown key %s, did you mean \"%s\"?", quoted, near);
        } else {
            kvfi_names_join(known, names, sizeof names);
            status = kvfi_cursor_fail(at, KVF_ERR_PARSE, "unknown key %s, known are %s", quoted, names);
        }
        goto done;
    }
done:
    return status;
}

enum kvf_status kvfi_json_array(const struct kvfi_cursor *at, size_t min_count, size_t max_count, size_t *count)
{
    size_t found = json_array_size(at->value);
    enum kvf_status status = KVF_OK;

    if (!json_is_array(at->value)) {
        status = kvfi_cursor_expected(at, "an array");
    } else if (found < min_count) {
        status = kvfi_cursor_fail(at, KVF_ERR_PARSE, "expected at least %zu items, found %zu", min_count, found);
    } else if (found > max_count) {
        status = kvfi_cursor_fail(at, KVF_ERR_LIMIT, "expected at most %zu items, found %zu", max_count, found);
    } else {
        *count = found;
    }
    return status;
}

enum kvf_status kvfi_json_int(const struct kvfi_cursor *at, int64_t min, int64_t max, int64_t *out)
{
    int64_t value = (int64_t)json_integer_value(at->value);
    enum kvf_status status = KVF_OK;
    char expected[96];

    if (json_is_integer(at->value) && value >= min && value <= max) {
        *out = value;
        goto done;
    }
    if (max != INT64_MAX) {
        snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, min, max);
    } else if (min == 1) {
        snprintf(expected, sizeof expected, "a positive integer");
    } else if (min == INT64_MIN) {
        snprintf(expected, sizeof expected, "an integer");
    } else {
        snprintf(expected, sizeof expected, "an integer of at least %" PRId64, min);
    }
    status = kvfi_cursor_expected(at, expected);
done:
    return status;
}

enum kvf_status kvfi_json_key_int(const struct kvfi_cursor *up, const char *key, int64_t min, int64_t max, int64_t *out)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, key);

    return kvfi_json_int(&at, min, max, out);
}

enum kvf_status kvfi_json_key_int_or(const struct kvfi_cursor *up, const char *key, int64_t min, int64_t max,
                                     int64_t otherwise, int64_t *out)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, key);

    if (!at.value) *out = otherwise;
    return at.value ? kvfi_json_int(&at, min, max, out) : KVF_OK;
}

enum kvf_status kvfi_json_key_bool(const struct kvfi_cursor *up, const char *key, bool *out)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, key);
    enum kvf_status status = KVF_OK;

    if (!at.value || json_is_boolean(at.value)) *out = json_is_true(at.value);
    else status = kvfi_cursor_expected(&at, "true or false");
    return status;
}

enum kvf_status kvfi_json_key_text(const struct kvfi_cursor *up, const char *key, size_t min_bytes, size_t max_bytes,
                                   const char **out)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, key);
    size_t bytes = json_string_length(at.value);
    enum kvf_status status = KVF_OK;
    char expected[64];

    if (json_is_string(at.value) && bytes >= min_bytes && bytes <= max_bytes) {
        *out = json_string_value(at.value);
    } else {
        snprintf(expected, sizeof expected, "a text of %zu to %zu bytes", min_bytes, max_bytes);
        status = kvfi_cursor_expected(&at, expected);
    }
    return status;
}

enum kvf_status kvfi_json_key_text_or(const struct kvfi_cursor *up, const char *key, size_t max_bytes,
                                      const char *otherwise, const char **out)
{
    bool given = kvfi_json_has(up, key);

    if (!given) *out = otherwise;
    return given ? kvfi_json_key_text(up, key, 0, max_bytes, out) : KVF_OK;
}

enum kvf_status kvfi_json_key_word(const struct kvfi_cursor *up, const char *key, const char *const *words, size_t *out)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, key);
    const char *text = json_string_value(at.value);
    enum kvf_status status = KVF_OK;
    char expected[256];

    for (size_t i = 0; text && words[i]; i++) {
        if (strcmp(text, words[i]) == 0) {
            *out = i;
            goto done;
        }
    }
    kvfi_names_join(words, expected, sizeof expected);
    status = kvfi_cursor_expected(&at, expected);
done:
    return status;
}

bool kvfi_json_has(const struct kvfi_cursor *at, const char *key)
{
    return json_object_get(at->value, key) != NULL;
}

enum kvf_status kvfi_json_not_both(const struct kvfi_cursor *at, const char *first, const char *second)
{
    struct kvfi_cursor member = kvfi_cursor_key(at, second);
    bool both = member.value && kvfi_json_has(at, first);

    return both ? kvfi_cursor_fail(&member, KVF_ERR_PARSE, "does not go with \"%s\"", first) : KVF_OK;
}

const char *kvfi_json_quote(const char *text, char quoted[KVFI_QUOTE_BYTES])
{
    size_t bytes = strlen(text), kept = bytes, used = 0;

    if (kept > KVFI_QUOTE_BYTES - 6) {
        kept = KVFI_QUOTE_BYTES - 6;
        while (kept > 0 && ((unsigned char)text[kept] & 0xc0) == 0x80) kept--;
    }
    quoted[used++] = '"';
    for (size_t i = 0; i < kept; i++) {
        unsigned char c = (unsigned char)text[i];

        quoted[used++] = (char)(c < 0x20 || c == 0x7f ? '?' : c);
    }
    if (kept < bytes) {
        memcpy(quoted + used, "...", 3);
        used += 3;
    }
    quoted[used++] = '"';
    quoted[used] = '\0';
    return quoted;
}
