/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "layout_json/template.h"

#define MAX_TEXT_BYTES 255

static enum kvf_status read_bytes(const struct kvfi_cursor *at, struct kvfi_view_rule *out)
{
    static const char *const keys[] = {"first", "count", NULL};
    struct kvfi_cursor bytes = kvfi_cursor_key(at, "bytes");
    enum kvf_status status = kvfi_json_key_int(at, "row_bytes", 1, INT64_MAX, &out->row_bytes);

    out->byte_first = 0;
    out->byte_count = out->row_bytes;
    if (status != KVF_OK || !bytes.value) goto done;
    status = kvfi_json_object(&bytes, keys);
    if (status == KVF_OK) status = kvfi_json_key_int_or(&bytes, "first", 0, out->row_bytes - 1, 0, &out->byte_first);
    if (status == KVF_OK) {
        status = kvfi_json_key_int(&bytes, "count", 1, out->row_bytes - out->byte_first, &out->byte_count);
    }
done:
    return status;
}

/* Either an order, from which dense strides follow, or the strides. */
static enum kvf_status read_order(const struct kvfi_cursor *at, struct kvfi_view_rule *out)
{
    static const char *const words[] = {"heads_first", "tokens_first", NULL};
    size_t word = 0;
    enum kvf_status status = KVF_OK;

    if (kvfi_json_has(at, "order")) {
        status = kvfi_json_not_both(at, "order", "unit_stride_bytes");
        if (status == KVF_OK) status = kvfi_json_not_both(at, "order", "entry_stride_bytes");
        if (status == KVF_OK) status = kvfi_json_not_both(at, "order", "chunk_stride_bytes");
        if (status == KVF_OK) status = kvfi_json_key_word(at, "order", words, &word);
        out->order = word == 0 ? KVFI_ORDER_HEADS_FIRST : KVFI_ORDER_TOKENS_FIRST;
    } else if (!kvfi_json_has(at, "unit_stride_bytes") && !kvfi_json_has(at, "entry_stride_bytes")) {
        status = kvfi_cursor_fail(at, KVF_ERR_PARSE,
                                  "\"order\" is missing, or \"unit_stride_bytes\" and \"entry_stride_bytes\"");
    } else {
        out->order = KVFI_ORDER_STRIDES;
        status = kvfi_json_key_int(at, "unit_stride_bytes", 1, INT64_MAX, &out->unit_stride);
        if (status == KVF_OK) status = kvfi_json_key_int(at, "entry_stride_bytes", 1, INT64_MAX, &out->entry_stride);
    }
    return status;
}

static enum kvf_status read_chunks(const struct kvfi_cursor *at, struct kvfi_view_rule *out)
{
    struct kvfi_cursor bytes = kvfi_cursor_key(at, "chunk_bytes"), stride = kvfi_cursor_key(at, "chunk_stride_bytes");
    enum kvf_status status = KVF_OK;

    out->chunks = 1;
    out->chunk_bytes = out->byte_count;
    if (!bytes.value) {
        if (stride.value) status = kvfi_cursor_fail(&stride, KVF_ERR_PARSE, "needs \"chunk_bytes\"");
        goto done;
    }
    status = kvfi_json_int(&bytes, 1, out->byte_count, &out->chunk_bytes);
    if (status != KVF_OK) goto done;
    if (out->byte_count % out->chunk_bytes != 0 || out->byte_count / out->chunk_bytes > KVF_LAYOUT_MAX_VIEWS) {
        status = kvfi_cursor_fail(&bytes, KVF_ERR_PARSE,
                                  "%" PRId64 " bytes do not divide into at most %d chunks of %" PRId64,
                                  out->byte_count, KVF_LAYOUT_MAX_VIEWS, out->chunk_bytes);
    } else if (out->order == KVFI_ORDER_TOKENS_FIRST) {
        status = kvfi_cursor_fail(&bytes, KVF_ERR_PARSE, "needs \"order\": \"heads_first\" or the three strides");
    } else if (out->order == KVFI_ORDER_STRIDES) {
        status = kvfi_json_int(&stride, 1, INT64_MAX, &out->chunk_stride);
    }
    out->chunks = out->byte_count / out->chunk_bytes;
done:
    return status;
}

static enum kvf_status read_entries(const struct kvfi_cursor *at, const struct kvf_group *group,
                                    struct kvfi_view_rule *out)
{
    int64_t otherwise = 1;
    enum kvf_status status = kvfi_json_key_int_or(at, "slots_per_block", 1, INT64_MAX, 1, &out->slots_per_block);

    if (status != KVF_OK) goto done;
    if (group->tokens_per_block >= out->slots_per_block) otherwise = group->tokens_per_block / out->slots_per_block;
    status = kvfi_json_key_int_or(at, "entries", 1, INT64_MAX, otherwise, &out->entries);
done:
    return status;
}

static enum kvf_status read_place(const struct kvfi_cursor *at, const struct kvfi_template *template,
                                  struct kvfi_places_rule *out)
{
    static const char *const one_keys[] = {"layer", "pool", "offset_bytes", NULL};
    static const char *const many_keys[] = {"first", "count", "layer_step", "pool", "pool_step", "offset_bytes",
                                            "offset_step_bytes", NULL};
    bool many = kvfi_json_has(at, "first") || kvfi_json_has(at, "count");
    int64_t last_pool = (int64_t)template->pool_count - 1, last = 0;
    enum kvf_status status = kvfi_json_object(at, many ? many_keys : one_keys);

    *out = (struct kvfi_places_rule){.count = 1, .layer_step = 1};
    if (status == KVF_OK) status = kvfi_json_key_int(at, many ? "first" : "layer", 0, INT64_MAX, &out->first);
    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "pool", 0, last_pool, 0, &out->pool);
    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "offset_bytes", 0, INT64_MAX, 0, &out->offset);
    if (status != KVF_OK || !many) goto done;
    status = kvfi_json_key_int(at, "count", 1, KVF_LAYOUT_MAX_PLACES, &out->count);
    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "layer_step", 1, INT64_MAX, 1, &out->layer_step);
    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "pool_step", 0, last_pool, 0, &out->pool_step);
    if (status == KVF_OK) {
        status = kvfi_json_key_int_or(at, "offset_step_bytes", INT64_MIN, INT64_MAX, 0, &out->offset_step);
    }
    if (status != KVF_OK) goto done;
    if (!kvfi_mad_i64(out->count - 1, out->layer_step, out->first, &last)) {
        status = kvfi_cursor_fail(at, KVF_ERR_OVERFLOW, "the last layer does not fit in 64 bits");
    } else if (!kvfi_mad_i64(out->count - 1, out->offset_step, out->offset, &last)) {
        status = kvfi_cursor_fail(at, KVF_ERR_OVERFLOW, "the last offset does not fit in 64 bits");
    } else if (last < 0) {
        status = kvfi_cursor_fail(at, KVF_ERR_PARSE, "the last offset is %" PRId64 " bytes, expected at least 0", last);
    } else if ((out->count - 1) * out->pool_step > last_pool - out->pool) {
        status = kvfi_cursor_fail(at, KVF_ERR_PARSE, "the last pool is %" PRId64 ", expected at most %" PRId64,
                                  out->pool + (out->count - 1) * out->pool_step, last_pool);
    }
done:
    return status;
}

static enum kvf_status read_places(const struct kvfi_cursor *at, const struct kvfi_template *template,
                                   struct kvfi_view_rule *out)
{
    struct kvfi_cursor places = kvfi_cursor_key(at, "places");
    static const char *const others[] = {"layers", "pool", "offset_bytes", "offset_step_bytes", NULL};
    size_t count = 0;
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; others[i] && status == KVF_OK; i++) status = kvfi_json_not_both(at, "places", others[i]);
    if (status == KVF_OK) status = kvfi_json_array(&places, 1, KVF_LAYOUT_MAX_PLACES, &count);
    if (status != KVF_OK) goto done;
    out->places = kvfi_alloc_zeroed(count, sizeof *out->places);
    if (!out->places) {
        status = kvfi_fail_memory(at->source->error, at->source->name);
        goto done;
    }
    out->places_count = count;
    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&places, i);

        status = read_place(&item, template, &out->places[i]);
        for (int64_t j = 0; j < out->places[i].count && status == KVF_OK; j++) {
            if (template->pools[out->places[i].pool + j * out->places[i].pool_step].per_layer) {
                status = kvfi_cursor_fail(&item, KVF_ERR_PARSE,
                                          "pool %" PRId64 " is per layer: give \"layers\" instead of \"places\"",
                                          out->places[i].pool + j * out->places[i].pool_step);
            }
            if (out->places[i].pool_step == 0) break;
        }
    }
done:
    return status;
}

static enum kvf_status read_layers(const struct kvfi_cursor *at, const struct kvfi_grid *grid,
                                   const struct kvfi_template *template, struct kvfi_view_rule *out)
{
    struct kvfi_cursor layers = kvfi_cursor_key(at, "layers"), step = kvfi_cursor_key(at, "offset_step_bytes");
    enum kvf_status status = KVF_OK;

    if (!layers.value) {
        status = kvfi_cursor_fail(at, KVF_ERR_PARSE, "\"layers\" is missing, or \"places\"");
        goto done;
    }
    status = kvfi_layers_rule_read(&layers, grid->pp, &out->layers);
    if (status == KVF_OK) {
        status = kvfi_json_key_int_or(at, "pool", 0, (int64_t)template->pool_count - 1, 0, &out->pool);
    }
    if (status == KVF_OK) {
        status = kvfi_json_key_int_or(at, "offset_bytes", 0, INT64_MAX, KVFI_DERIVED, &out->offset);
    }
    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "offset_step_bytes", 1, INT64_MAX, 0, &out->offset_step);
    if (status != KVF_OK || !step.value) goto done;
    if (out->offset == KVFI_DERIVED) {
        status = kvfi_cursor_fail(&step, KVF_ERR_PARSE, "needs \"offset_bytes\"");
    } else if (template->pools[out->pool].per_layer) {
        status = kvfi_cursor_fail(&step, KVF_ERR_PARSE, "pool %" PRId64 " is per layer: layers do not step in it",
                                  out->pool);
    }
done:
    return status;
}

static enum kvf_status read_flags(const struct kvfi_cursor *at, struct kvfi_view_rule *out)
{
    bool atomic = false, optional = false;
    enum kvf_status status = kvfi_json_key_bool(at, "atomic", &atomic);

    if (status == KVF_OK) status = kvfi_json_key_bool(at, "optional", &optional);
    out->flags = (atomic ? KVF_VIEW_ATOMIC : 0) | (optional ? KVF_VIEW_OPTIONAL : 0);
    return status;
}

enum kvf_status kvfi_view_rule_read(const struct kvfi_cursor *at, const struct kvfi_grid *grid,
                                    const struct kvfi_template *template, struct kvfi_view_rule *out)
{
    static const char *const keys[] = {
        "role", "tag", "group", "row_bytes", "bytes", "units", "order", "unit_stride_bytes", "entry_stride_bytes",
        "entries", "slots_per_block", "chunk_bytes", "chunk_stride_bytes", "atomic", "optional", "places", "layers",
        "pool", "offset_bytes", "offset_step_bytes", NULL};
    struct kvfi_cursor units = kvfi_cursor_key(at, "units");
    enum kvf_status status = kvfi_json_object(at, keys);

    if (status == KVF_OK) status = kvfi_json_key_text(at, "role", 1, MAX_TEXT_BYTES, &out->role);
    if (status == KVF_OK) status = kvfi_json_key_text(at, "tag", 1, MAX_TEXT_BYTES, &out->tag);
    if (status == KVF_OK) {
        status = kvfi_json_key_int_or(at, "group", 0, (int64_t)template->group_count - 1, 0, &out->group);
    }
    if (status == KVF_OK) status = read_bytes(at, out);
    if (status == KVF_OK && !units.value) status = kvfi_cursor_expected(&units, "an object");
    if (status == KVF_OK) status = kvfi_units_rule_read(&units, grid->tp, &out->units);
    if (status == KVF_OK) status = read_order(at, out);
    if (status == KVF_OK) status = read_chunks(at, out);
    if (status == KVF_OK) status = read_entries(at, &template->groups[out->group].group, out);
    if (status == KVF_OK) status = read_flags(at, out);
    if (status != KVF_OK) goto done;
    if (kvfi_json_has(at, "places")) status = read_places(at, template, out);
    else status = read_layers(at, grid, template, out);
done:
    return status;
}
