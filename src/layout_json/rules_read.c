/* SPDX-License-Identifier: Apache-2.0 */
/* Units and layers: the two ranges that follow from a rank's place in the grid. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "layout_json/template.h"

#define MAX_FIRST_LAYER (INT64_MAX - KVF_LAYOUT_MAX_PLACES)

/* Reads ascending integers: each at least `step` above the one before. */
static enum kvf_status read_ascending(const struct kvfi_cursor *at, size_t min_count, size_t max_count, int64_t step,
                                      int64_t max, int64_t **out, size_t *out_count)
{
    size_t count = 0;
    enum kvf_status status = kvfi_json_array(at, min_count, max_count, &count);
    int64_t *list = NULL;

    if (status != KVF_OK) goto done;
    list = kvfi_alloc_zeroed(count, sizeof *list);
    if (!list) {
        status = kvfi_fail_memory(at->source->error, at->source->name);
        goto done;
    }
    for (size_t i = 0; i < count; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(at, i);

        status = kvfi_json_int(&item, 0, max, &list[i]);
        if (status == KVF_OK && i && list[i] - step < list[i - 1]) {
            status = kvfi_cursor_fail(&item, KVF_ERR_PARSE, "expected %s %" PRId64 ", found %" PRId64,
                                      step ? "more than" : "at least", list[i - 1], list[i]);
        }
        if (status != KVF_OK) goto done;
    }
    *out = list;
    *out_count = count;
    list = NULL;
done:
    free(list);
    return status;
}

/* Reads n + 1 bounds for the n ranks of an axis. */
static enum kvf_status read_bounds(const struct kvfi_cursor *at, const char *axis, int64_t ranks, int64_t step,
                                   int64_t max, int64_t **out)
{
    size_t count = json_array_size(at->value);
    enum kvf_status status;

    if (json_is_array(at->value) && (int64_t)count != ranks + 1) {
        status = kvfi_cursor_fail(at, KVF_ERR_PARSE, "expected %" PRId64 " bounds for %s %" PRId64 ", found %zu",
                                  ranks + 1, axis, ranks, count);
    } else {
        status = read_ascending(at, 0, count, step, max, out, &count);
    }
    return status;
}

static enum kvf_status read_unit_bounds(const struct kvfi_cursor *at, int64_t tp, struct kvfi_units_rule *out)
{
    struct kvfi_cursor bounds = kvfi_cursor_key(at, "bounds");
    enum kvf_status status = read_bounds(&bounds, "tp", tp, 1, out->total, &out->bounds);

    if (status == KVF_OK && (out->bounds[0] != 0 || out->bounds[tp] != out->total)) {
        status = kvfi_cursor_fail(&bounds, KVF_ERR_PARSE,
                                  "cover units %" PRId64 " to %" PRId64 ", expected 0 to %" PRId64, out->bounds[0],
                                  out->bounds[tp], out->total);
    }
    return status;
}

static enum kvf_status read_unit_split(const struct kvfi_cursor *at, int64_t tp, const struct kvfi_units_rule *rule)
{
    static const char *const words[] = {"tp", NULL};
    size_t word = 0;
    enum kvf_status status = kvfi_json_key_word(at, "split", words, &word);

    if (status == KVF_OK && tp <= rule->total && rule->total % tp != 0) {
        status = kvfi_cursor_fail(at, KVF_ERR_PARSE,
                                  "%" PRId64 " units do not split evenly over tp %" PRId64 ", give \"bounds\" instead",
                                  rule->total, tp);
    }
    return status;
}

static enum kvf_status read_unit_range(const struct kvfi_cursor *at, struct kvfi_units_rule *out)
{
    enum kvf_status status = kvfi_json_key_int_or(at, "first", 0, out->total - 1, 0, &out->first);

    if (status == KVF_OK) {
        status = kvfi_json_key_int_or(at, "count", 1, out->total - out->first, out->total - out->first, &out->count);
    }
    return status;
}

enum kvf_status kvfi_units_rule_read(const struct kvfi_cursor *at, int64_t tp, struct kvfi_units_rule *out)
{
    static const char *const keys[] = {"total", "first", "count", "split", "bounds", NULL};
    enum kvf_status status = kvfi_json_object(at, keys);

    if (status == KVF_OK) status = kvfi_json_key_int(at, "total", 1, INT64_MAX, &out->total);
    if (status == KVF_OK) status = kvfi_json_not_both(at, "split", "bounds");
    for (size_t i = 1; i < 3 && status == KVF_OK; i++) {
        status = kvfi_json_not_both(at, "split", keys[i]);
        if (status == KVF_OK) status = kvfi_json_not_both(at, "bounds", keys[i]);
    }
    if (status != KVF_OK) goto done;
    if (kvfi_json_has(at, "split")) {
        out->kind = KVFI_UNITS_SPLIT_TP;
        status = read_unit_split(at, tp, out);
    } else if (kvfi_json_has(at, "bounds")) {
        out->kind = KVFI_UNITS_BOUNDS_TP;
        status = read_unit_bounds(at, tp, out);
    } else {
        out->kind = KVFI_UNITS_RANGE;
        status = read_unit_range(at, out);
    }
done:
    return status;
}

static enum kvf_status read_layer_split(const struct kvfi_cursor *at, struct kvfi_layers_rule *out)
{
    static const char *const words[] = {"pp", NULL};
    size_t word = 0;
    enum kvf_status status = kvfi_json_key_word(at, "split", words, &word);

    out->kind = KVFI_LAYERS_SPLIT_PP;
    if (status == KVF_OK) status = kvfi_json_not_both(at, "split", "count");
    if (status == KVF_OK) status = kvfi_json_key_int(at, "total", 1, KVF_LAYOUT_MAX_PLACES, &out->count);
    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "first", 0, MAX_FIRST_LAYER, 0, &out->first);
    return status;
}

static enum kvf_status read_layer_range(const struct kvfi_cursor *at, struct kvfi_layers_rule *out)
{
    struct kvfi_cursor total = kvfi_cursor_key(at, "total");
    enum kvf_status status = KVF_OK;

    out->kind = KVFI_LAYERS_RANGE;
    if (total.value) status = kvfi_cursor_fail(&total, KVF_ERR_PARSE, "needs \"split\"");
    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "first", 0, MAX_FIRST_LAYER, 0, &out->first);
    if (status == KVF_OK) status = kvfi_json_key_int(at, "count", 1, KVF_LAYOUT_MAX_PLACES, &out->count);
    return status;
}

static enum kvf_status read_layer_bounds(const struct kvfi_cursor *at, int64_t pp, struct kvfi_layers_rule *out)
{
    struct kvfi_cursor bounds = kvfi_cursor_key(at, "bounds");
    enum kvf_status status = KVF_OK;
    static const char *const others[] = {"first", "count", "total", "split", NULL};

    out->kind = KVFI_LAYERS_BOUNDS_PP;
    for (size_t i = 0; others[i] && status == KVF_OK; i++) status = kvfi_json_not_both(at, "bounds", others[i]);
    if (status == KVF_OK) status = read_bounds(&bounds, "pp", pp, 0, INT64_MAX, &out->list);
    if (status == KVF_OK && out->list[pp] - out->list[0] > KVF_LAYOUT_MAX_PLACES) {
        status = kvfi_cursor_fail(&bounds, KVF_ERR_LIMIT, "span %" PRId64 " layers, at most %d are read",
                                  out->list[pp] - out->list[0], KVF_LAYOUT_MAX_PLACES);
    }
    return status;
}

enum kvf_status kvfi_layers_rule_read(const struct kvfi_cursor *at, int64_t pp, struct kvfi_layers_rule *out)
{
    static const char *const keys[] = {"first", "count", "total", "split", "bounds", NULL};
    enum kvf_status status;

    if (json_is_array(at->value)) {
        out->kind = KVFI_LAYERS_LIST;
        status = read_ascending(at, 1, KVF_LAYOUT_MAX_PLACES, 1, INT64_MAX, &out->list, &out->list_count);
        goto done;
    }
    if (!json_is_object(at->value)) {
        status = kvfi_cursor_expected(at, "an object or an array of layers");
        goto done;
    }
    status = kvfi_json_object(at, keys);
    if (status != KVF_OK) goto done;
    if (kvfi_json_has(at, "bounds")) status = read_layer_bounds(at, pp, out);
    else if (kvfi_json_has(at, "split")) status = read_layer_split(at, out);
    else status = read_layer_range(at, out);
done:
    return status;
}
