/* SPDX-License-Identifier: Apache-2.0 */
/* One layout as JSON and back. Written fully spelled out: every field of the public structs, no rules. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "layout_json/instance.h"
#include "layout_json/json_print.h"

/* Appends a new value, or remembers that there was no memory. */
static void append(json_t *array, json_t *value, bool *ok)
{
    if (*ok) *ok = json_array_append_new(array, value) == 0;
    else json_decref(value);
}

static json_t *finish(json_t *array, bool ok)
{
    if (!ok) {
        json_decref(array);
        array = NULL;
    }
    return array;
}

static json_t *memories_to_json(const struct kvf_layout_spec *spec)
{
    json_t *array = json_array();
    bool ok = array != NULL;

    for (size_t i = 0; i < spec->memory_count && ok; i++) {
        append(array, spec->memory_bytes[i] < 0 ? json_null() : json_integer((json_int_t)spec->memory_bytes[i]), &ok);
    }
    return finish(array, ok);
}

static json_t *pools_to_json(const struct kvf_layout_spec *spec)
{
    json_t *array = json_array();
    bool ok = array != NULL;

    for (size_t i = 0; i < spec->pool_count && ok; i++) {
        const struct kvf_pool *pool = &spec->pools[i];

        append(array, json_pack("{s:I, s:I, s:I, s:I}", "memory", (json_int_t)pool->memory, "base_offset_bytes",
                                (json_int_t)pool->base_offset_bytes, "slot_stride_bytes",
                                (json_int_t)pool->slot_stride_bytes, "slots", (json_int_t)pool->slots), &ok);
    }
    return finish(array, ok);
}

static json_t *groups_to_json(const struct kvf_layout_spec *spec)
{
    json_t *array = json_array();
    bool ok = array != NULL;

    for (size_t i = 0; i < spec->group_count && ok; i++) {
        const struct kvf_group *group = &spec->groups[i];

        append(array, json_pack("{s:I, s:I, s:I, s:I, s:I}", "tokens_per_block", (json_int_t)group->tokens_per_block,
                                "ring_tokens", (json_int_t)group->ring_tokens, "stripes", (json_int_t)group->stripes,
                                "stripe", (json_int_t)group->stripe, "stripe_tokens",
                                (json_int_t)group->stripe_tokens), &ok);
    }
    return finish(array, ok);
}

static json_t *places_to_json(const struct kvf_view *view)
{
    json_t *array = json_array();
    bool ok = array != NULL;

    for (size_t i = 0; i < view->place_count && ok; i++) {
        const struct kvf_place *place = &view->places[i];

        append(array, json_pack("{s:I, s:I, s:I}", "layer", (json_int_t)place->layer, "pool", (json_int_t)place->pool,
                                "offset_bytes", (json_int_t)place->offset_bytes), &ok);
    }
    return finish(array, ok);
}

static json_t *view_to_json(const struct kvf_view *view)
{
    return json_pack("{s:o, s:o, s:I, s:I, s:{s:I, s:I}, s:{s:I, s:I, s:I}, s:I, s:I, s:I, s:I, s:b, s:b, s:o}",
                     "role", json_string(view->role), "tag", json_string(view->tag), "group", (json_int_t)view->group,
                     "row_bytes", (json_int_t)view->row_bytes,
                     "bytes", "first", (json_int_t)view->byte_first, "count", (json_int_t)view->byte_count,
                     "units", "total", (json_int_t)view->unit_total, "first", (json_int_t)view->unit_first,
                     "count", (json_int_t)view->unit_count,
                     "unit_stride_bytes", (json_int_t)view->unit_stride_bytes,
                     "entry_stride_bytes", (json_int_t)view->entry_stride_bytes,
                     "entries", (json_int_t)view->entries, "slots_per_block", (json_int_t)view->slots_per_block,
                     "atomic", (view->flags & KVF_VIEW_ATOMIC) != 0, "optional", (view->flags & KVF_VIEW_OPTIONAL) != 0,
                     "places", places_to_json(view));
}

static json_t *views_to_json(const struct kvf_layout_spec *spec)
{
    json_t *array = json_array();
    bool ok = array != NULL;

    for (size_t i = 0; i < spec->view_count && ok; i++) append(array, view_to_json(&spec->views[i]), &ok);
    return finish(array, ok);
}

enum kvf_status kvf_layout_to_json(const kvf_layout *layout, char **out_text, struct kvf_error *error)
{
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(layout);
    enum kvf_status status = KVF_OK;
    char *text = NULL;
    json_t *root;

    for (size_t i = 0; i < spec->view_count; i++) {
        if (!kvfi_is_utf8(spec->views[i].role) || !kvfi_is_utf8(spec->views[i].tag)) {
            status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "views[%zu]: role and tag are not UTF-8", i);
            goto done;
        }
    }
    root = json_pack("{s:o, s:o, s:o, s:o}", "memories", memories_to_json(spec), "pools", pools_to_json(spec),
                     "groups", groups_to_json(spec), "views", views_to_json(spec));
    status = kvfi_json_print(root, "layout", &text, error);
    if (status != KVF_OK) goto done;
    if (strlen(text) > kvfi_layout_json_limits.max_bytes) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "layout: its JSON has %zu bytes, at most %zu would be read again",
                           strlen(text), kvfi_layout_json_limits.max_bytes);
        goto done;
    }
    *out_text = text;
    text = NULL;
done:
    free(text);
    return status;
}

enum kvf_status kvf_layout_from_json(const char *text, size_t text_bytes, kvf_layout **out, struct kvf_error *error)
{
    struct kvfi_json_source source = {.name = "layout", .text = text, .text_bytes = text_bytes, .error = error};
    const struct kvfi_grid grid = {.pp = 1, .cp = 1, .tp = 1};
    const struct kvf_rank rank = {0};
    struct kvfi_budget left = {KVF_LAYOUT_MAX_PLACES, KVFI_MAX_INSTANCE_POOLS, KVFI_MAX_INSTANCE_RUNS};
    struct kvfi_template template = {0};
    struct kvfi_cursor root;
    json_t *json = NULL;
    enum kvf_status status = kvfi_json_load(&source, &kvfi_layout_json_limits, &json);

    if (status != KVF_OK) goto done;
    root = kvfi_cursor_root(&source, json);
    status = kvfi_template_read(&root, &grid, &template);
    if (status == KVF_OK) status = kvfi_template_expand(&template, &grid, &rank, &left, out, error);
done:
    kvfi_template_fini(&template);
    json_decref(json);
    return status;
}
