/* SPDX-License-Identifier: Apache-2.0 */
#include "layout_json/json_print.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "kvferry/instance.h"

#define LINE_BYTES 118
#define INDENT_BYTES 2

struct printer {
    char *text;
    size_t bytes, capacity;
    bool failed;
};

static void put(struct printer *out, const char *text, size_t bytes)
{
    while (!out->failed && out->capacity - out->bytes < bytes) {
        out->failed = !kvfi_array_grow((void **)&out->text, out->capacity, &out->capacity, 1);
    }
    if (!out->failed) {
        memcpy(out->text + out->bytes, text, bytes);
        out->bytes += bytes;
    }
}

static void put_line(struct printer *out, size_t depth)
{
    put(out, "\n", 1);
    for (size_t i = 0; i < depth; i++) put(out, "        ", INDENT_BYTES);
}

static void print_value(struct printer *out, const json_t *value, size_t used, size_t depth);

static void print_text(struct printer *out, const char *text, size_t depth)
{
    json_t *value = json_string(text);

    if (value) print_value(out, value, 0, depth);
    else out->failed = true;
    json_decref(value);
}

/* Opens a container that does not fit on its line: one member on each. */
static void print_lines(struct printer *out, const json_t *value, size_t depth)
{
    bool is_object = json_is_object(value);
    size_t count = is_object ? json_object_size(value) : json_array_size(value);
    void *member = json_object_iter((json_t *)value);

    put(out, is_object ? "{" : "[", 1);
    for (size_t i = 0; i < count && !out->failed; i++) {
        size_t used = (depth + 1) * INDENT_BYTES;

        put_line(out, depth + 1);
        if (is_object) {
            print_text(out, json_object_iter_key(member), depth + 1);
            put(out, ": ", 2);
            used += strlen(json_object_iter_key(member)) + 4;
            print_value(out, json_object_iter_value(member), used, depth + 1);
            member = json_object_iter_next((json_t *)value, member);
        } else {
            print_value(out, json_array_get(value, i), used, depth + 1);
        }
        if (i + 1 < count) put(out, ",", 1);
    }
    put_line(out, depth);
    put(out, is_object ? "}" : "]", 1);
}

static void print_value(struct printer *out, const json_t *value, size_t used, size_t depth)
{
    char line[LINE_BYTES];
    size_t bytes = json_dumpb(value, line, sizeof line, JSON_ENCODE_ANY);
    bool opens = json_is_object(value) || json_is_array(value);

    if (bytes > 0 && bytes + (opens ? used : 0) <= sizeof line) {
        put(out, line, bytes);
    } else if (opens) {
        print_lines(out, value, depth);
    } else {
        char *dump = json_dumps(value, JSON_ENCODE_ANY);

        if (dump) put(out, dump, strlen(dump));
        else out->failed = true;
        free(dump);
    }
}

enum kvf_status kvfi_json_print(json_t *value, const char *object, char **out_text, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct printer out = {.failed = value == NULL};

    if (value) print_value(&out, value, LINE_BYTES, 0);
    put(&out, "\n", 2);
    if (out.failed) {
        status = kvfi_fail_memory(error, object);
        goto done;
    }
    *out_text = out.text;
    out.text = NULL;
done:
    free(out.text);
    json_decref(value);
    return status;
}

bool kvfi_is_utf8(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    bool ok = true;

    while (*at && ok) {
        unsigned char lead = *at++;
        int more = lead < 0x80 ? 0 : lead < 0xc2 ? -1 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : lead < 0xf5 ? 3 : -1;
        uint32_t code = more > 0 ? lead & (0x3fu >> more) : lead;

        for (int i = more; i > 0 && ok; i--) {
            ok = (*at & 0xc0) == 0x80;
            if (ok) code = code << 6 | (*at++ & 0x3f);
        }
        ok = ok && more >= 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000) &&
             !(more == 2 && code < 0x800) && !(more == 3 && code < 0x10000);
    }
    return ok;
}

void kvf_text_free(char *text)
{
    free(text);
}
