/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "layout_json/json_cursor.h"

/* The parser keeps no positions, so an error walks the text once more. The text has parsed before: this only has to
 * stay inside it. */
struct scan {
    const char *text;
    size_t bytes, at;
};

static void skip_spaces(struct scan *scan)
{
    while (scan->at < scan->bytes && strchr(" \t\r\n", scan->text[scan->at])) scan->at++;
}

static void skip_string(struct scan *scan)
{
    scan->at++;
    while (scan->at < scan->bytes && scan->text[scan->at] != '"') scan->at += scan->text[scan->at] == '\\' ? 2 : 1;
    scan->at++;
}

/* Skips one value: to the comma or closing bracket behind it. */
static void skip_value(struct scan *scan)
{
    size_t depth = 0;

    while (scan->at < scan->bytes) {
        char c = scan->text[scan->at];

        if (c == '"') {
            skip_string(scan);
            continue;
        }
        if (depth == 0 && (c == ',' || c == ']' || c == '}')) break;
        if (c == '[' || c == '{') depth++;
        if (c == ']' || c == '}') depth--;
        scan->at++;
    }
}

/* From an opening bracket to item `index`. */
static bool enter_item(struct scan *scan, size_t index)
{
    scan->at++;
    for (size_t i = 0; i < index && scan->at < scan->bytes; i++) {
        skip_value(scan);
        scan->at++;
    }
    skip_spaces(scan);
    return scan->at < scan->bytes;
}

/* From an opening brace to the value of `key`. A key written with escapes is not found. */
static bool enter_key(struct scan *scan, const char *key)
{
    size_t key_bytes = strlen(key);
    bool found = false;

    scan->at++;
    while (!found && scan->at < scan->bytes) {
        size_t first;

        skip_spaces(scan);
        first = scan->at + 1;
        if (scan->at >= scan->bytes || scan->text[scan->at] != '"') break;
        skip_string(scan);
        if (scan->at > scan->bytes) break;
        found = scan->at - 1 - first == key_bytes && memcmp(scan->text + first, key, key_bytes) == 0;
        skip_spaces(scan);
        scan->at++;
        if (found) skip_spaces(scan);
        else {
            skip_value(scan);
            scan->at++;
        }
    }
    return found && scan->at < scan->bytes;
}

static bool walk(struct scan *scan, const struct kvfi_cursor *at)
{
    bool found;

    if (!at->up) {
        skip_spaces(scan);
        return scan->at < scan->bytes;
    }
    found = walk(scan, at->up);
    return found && (at->key ? enter_key(scan, at->key) : enter_item(scan, at->index));
}

int64_t kvfi_json_locate(const struct kvfi_cursor *at)
{
    struct scan scan = {at->source->text, at->source->text_bytes, 0};

    return at->source->text && walk(&scan, at) ? at->source->text_position + (int64_t)scan.at : -1;
}
