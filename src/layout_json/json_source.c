/* SPDX-License-Identifier: Apache-2.0 */
#include "layout_json/json_source.h"

#include <stdbool.h>

#include "base/error.h"

const struct kvfi_json_limits kvfi_layout_json_limits = {
    .max_bytes = (size_t)64 << 20,
    .max_depth = 32,
    .max_containers = 1310720,
    .max_values = 6291456,
};

static enum kvf_status fail_at(const struct kvfi_json_source *source, enum kvf_status status, size_t at,
                               const char *what, size_t limit)
{
    return kvfi_fail_at(source->error, status, source->text_position + (int64_t)at, "%s: more than %zu %s at byte %zu",
                        source->name, limit, what, at);
}

/* Counts without understanding: whatever is not JSON is left for the parser to refuse. */
static enum kvf_status check_bounds(const struct kvfi_json_source *source, const struct kvfi_json_limits *limits)
{
    enum kvf_status status = KVF_OK;
    size_t depth = 0, containers = 0, values = 0;
    bool inside_string = false;

    if (source->text_bytes > limits->max_bytes) {
        status = kvfi_fail(source->error, KVF_ERR_LIMIT, "%s: %zu bytes, at most %zu are read", source->name,
                           source->text_bytes, limits->max_bytes);
        goto done;
    }
    for (size_t i = 0; i < source->text_bytes; i++) {
        char c = source->text[i];

        if (inside_string) {
            if (c == '\\') i++;
            else if (c == '"') inside_string = false;
            continue;
        }
        if (c == '"') inside_string = true;
        else if (c == ']' || c == '}') depth -= depth > 0;
        else if (c == ',') values++;
        else if (c == '[' || c == '{') depth++, containers++, values++;
        if (depth > limits->max_depth) {
            status = fail_at(source, KVF_ERR_LIMIT, i, "levels of nesting", limits->max_depth);
            goto done;
        }
        if (containers > limits->max_containers || values > limits->max_values) {
            status = fail_at(source, KVF_ERR_LIMIT, i, "values",
                             values > limits->max_values ? limits->max_values : limits->max_containers);
            goto done;
        }
    }
done:
    return status;
}

/* The parser's text quotes the input; one line of plain characters is what an error may hold. */
static void make_plain(char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c < 0x20 || c >= 0x7f) *text = '?';
    }
}

enum kvf_status kvfi_json_load(const struct kvfi_json_source *source, const struct kvfi_json_limits *limits,
                               json_t **out)
{
    enum kvf_status status = check_bounds(source, limits);
    json_error_t story;
    size_t flags = 0;
    json_t *root;

    if (status != KVF_OK) goto done;
    flags |= limits->takes_duplicates ? 0 : JSON_REJECT_DUPLICATES;
    flags |= limits->takes_zeros ? JSON_ALLOW_NUL : 0;
    root = json_loadb(source->text, source->text_bytes, flags, &story);
    if (root) {
        *out = root;
    } else if (json_error_code(&story) == json_error_out_of_memory || story.text[0] == '\0') {
        status = kvfi_fail_memory(source->error, source->name);
    } else {
        make_plain(story.text);
        status = kvfi_fail_at(source->error, KVF_ERR_PARSE, source->text_position + story.position,
                              "%s: line %d column %d: %s", source->name, story.line, story.column, story.text);
    }
done:
    return status;
}
