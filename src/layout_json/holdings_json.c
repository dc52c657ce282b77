/* SPDX-License-Identifier: Apache-2.0 */
#include "layout_json/holdings_json.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "layout_json/json_cursor.h"
#include "layout_json/json_print.h"

#define MAX_TEXT_BYTES 255

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static json_t *layers_to_json(const int64_t *layers, size_t layer_count)
{
    json_t *ranges = json_array();
    bool ok = ranges != NULL;

    for (size_t i = 0, end; ok && i < layer_count; i = end) {
        for (end = i + 1; end < layer_count && layers[end] == layers[end - 1] + 1; end++) continue;
        ok = json_array_append_new(ranges, json_pack("[I,I]", (json_int_t)layers[i],
                                                     (json_int_t)layers[end - 1] + 1)) == 0;
    }
    if (!ok) {
        json_decref(ranges);
        ranges = NULL;
    }
    return ranges;
}

static json_t *row_to_json(const struct kvf_holding *row)
{
    json_t *object = json_pack("{s:o, s:o, s:[I,I,I], s:[I,I,I], s:o}", "role", json_string(row->role), "tag",
                               json_string(row->tag), "row", (json_int_t)row->row_bytes, (json_int_t)row->byte_first,
                               (json_int_t)row->byte_count, "units", (json_int_t)row->unit_total,
                               (json_int_t)row->unit_first, (json_int_t)row->unit_count, "layers",
                               layers_to_json(row->layers, row->layer_count));
    bool ok = object != NULL;

    if (ok && row->stripes != 1) {
        ok = json_object_set_new(object, "stripe",
                                 json_pack("[I,I,I]", (json_int_t)row->stripes, (json_int_t)row->stripe,
                                           (json_int_t)row->stripe_tokens)) == 0;
    }
    if (ok && row->flags) ok = json_object_set_new(object, "flags", json_integer((json_int_t)row->flags)) == 0;
    if (!ok) {
        json_decref(object);
        object = NULL;
    }
    return object;
}

enum kvf_status kvfi_holdings_to_json(const kvf_holdings *holdings, json_t **out, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    json_t *array = json_array();
    const struct kvf_holding *rows;
    size_t row_count;
    bool ok = array != NULL;

    rows = kvf_holdings_rows(holdings, &row_count);
    for (size_t i = 0; ok && i < row_count; i++) {
        if (!kvfi_is_utf8(rows[i].role) || !kvfi_is_utf8(rows[i].tag)) {
            status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "holdings[%zu]: role and tag are not UTF-8", i);
            goto done;
        }
        ok = json_array_append_new(array, row_to_json(&rows[i])) == 0;
    }
    if (!ok) {
        status = kvfi_fail_memory(error, "holdings");
        goto done;
    }
    *out = array;
    array = NULL;
done:
    json_decref(array);
    return status;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

struct reading {
    struct kvf_holding *rows;
    int64_t *layers; /* of all rows, one after the other */
    size_t layer_count, layer_capacity;
};

static enum kvf_status read_triple(const struct kvfi_cursor *up, const char *key, int64_t first_min, int64_t last_min,
                                   int64_t triple[3])
{
    struct kvfi_cursor at = kvfi_cursor_key(up, key);
    enum kvf_status status = KVF_OK;

    if (!json_is_array(at.value) || json_array_size(at.value) != 3) {
        status = kvfi_cursor_expected(&at, "an array of 3 integers");
        goto done;
    }
    for (size_t i = 0; i < 3 && status == KVF_OK; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, i);

        status = kvfi_json_int(&item, i == 0 ? first_min : i == 1 ? 0 : last_min, INT64_MAX, &triple[i]);
    }
done:
    return status;
}

static enum kvf_status read_range(const struct kvfi_cursor *at, int64_t after, int64_t range[2])
{
    enum kvf_status status = KVF_OK;

    if (!json_is_array(at->value) || json_array_size(at->value) != 2) {
        status = kvfi_cursor_expected(at, "a pair [first, end)");
        goto done;
    }
    for (size_t i = 0; i < 2 && status == KVF_OK; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(at, i);

        status = kvfi_json_int(&item, i ? range[0] + 1 : after, i ? INT64_MAX : INT64_MAX - 1, &range[i]);
    }
done:
    return status;
}

static enum kvf_status read_layers(const struct kvfi_cursor *up, struct reading *reading, size_t *count)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, "layers");
    size_t ranges = 0, before = reading->layer_count;
    int64_t range[2] = {0, 0};
    enum kvf_status status = kvfi_json_array(&at, 1, KVF_LAYOUT_MAX_PLACES, &ranges);

    for (size_t i = 0; i < ranges && status == KVF_OK; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, i);

        status = read_range(&item, range[1], range);
        if (status != KVF_OK) goto done;
        if (range[1] - range[0] > (int64_t)(KVF_LAYOUT_MAX_PLACES - reading->layer_count)) {
            status = kvfi_cursor_fail(&item, KVF_ERR_LIMIT, "more than %d layers in all rows", KVF_LAYOUT_MAX_PLACES);
            goto done;
        }
        for (int64_t layer = range[0]; layer < range[1]; layer++) {
            if (!kvfi_array_grow((void **)&reading->layers, reading->layer_count, &reading->layer_capacity,
                                 sizeof *reading->layers)) {
                status = kvfi_fail_memory(up->source->error, "holdings");
                goto done;
            }
            reading->layers[reading->layer_count++] = layer;
        }
    }
    *count = reading->layer_count - before;
done:
    return status;
}

static enum kvf_status read_row(const struct kvfi_cursor *at, struct reading *reading, struct kvf_holding *row)
{
    static const char *const keys[] = {"role", "tag", "row", "units", "layers", "stripe", "flags", NULL};
    int64_t bytes[3] = {0}, units[3] = {0}, stripe[3] = {1, 0, 0}, flags = 0;
    enum kvf_status status = kvfi_json_object(at, keys);

    if (status == KVF_OK) status = kvfi_json_key_text(at, "role", 1, MAX_TEXT_BYTES, &row->role);
    if (status == KVF_OK) status = kvfi_json_key_text(at, "tag", 1, MAX_TEXT_BYTES, &row->tag);
    if (status == KVF_OK) status = read_triple(at, "row", 1, 1, bytes);
    if (status == KVF_OK) status = read_triple(at, "units", 1, 1, units);
    if (status == KVF_OK && kvfi_json_has(at, "stripe")) status = read_triple(at, "stripe", 1, 0, stripe);
    if (status == KVF_OK) {
        status = kvfi_json_key_int_or(at, "flags", 0, KVF_VIEW_ATOMIC | KVF_VIEW_OPTIONAL, 0, &flags);
    }
    if (status == KVF_OK) status = read_layers(at, reading, &row->layer_count);
    row->row_bytes = bytes[0];
    row->byte_first = bytes[1];
    row->byte_count = bytes[2];
    row->unit_total = units[0];
    row->unit_first = units[1];
    row->unit_count = units[2];
    row->stripes = stripe[0];
    row->stripe = stripe[1];
    row->stripe_tokens = stripe[2];
    row->flags = (uint32_t)flags;
    return status;
}

enum kvf_status kvfi_holdings_from_json(json_t *value, const char *name, kvf_holdings **out, struct kvf_error *error)
{
    struct kvfi_json_source source = {.name = name, .error = error};
    struct kvfi_cursor top = kvfi_cursor_root(&source, NULL);
    struct kvfi_cursor at = {.up = &top, .source = &source, .key = name, .value = value};
    struct reading reading = {0};
    size_t row_count = 0, first_layer = 0;
    enum kvf_status status = kvfi_json_array(&at, 0, KVF_LAYOUT_MAX_VIEWS, &row_count);

    if (status != KVF_OK) goto done;
    reading.rows = kvfi_alloc_zeroed(row_count, sizeof *reading.rows);
    if (!reading.rows) {
        status = kvfi_fail_memory(error, name);
        goto done;
    }
    for (size_t i = 0; i < row_count; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, i);

        status = read_row(&item, &reading, &reading.rows[i]);
        if (status != KVF_OK) goto done;
    }
    for (size_t i = 0; i < row_count; i++) {
        reading.rows[i].layers = reading.layers + first_layer;
        first_layer += reading.rows[i].layer_count;
    }
    status = kvf_holdings_create(reading.rows, row_count, out, error);
done:
    free(reading.layers);
    free(reading.rows);
    return status;
}
