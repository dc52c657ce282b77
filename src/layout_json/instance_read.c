/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "layout_json/instance.h"

#define MAX_TEXT_BYTES 255
#define SCHEMA_VERSION 1

/* A reading: the instance so far, and which item of "ranks" each rank came from. */
struct reading {
    kvf_instance *instance;
    size_t *given; /* item + 1, 0 = none */
    struct kvfi_template shared;
    bool has_shared;
    struct kvfi_budget left;
};

const char *kvfi_rank_text(const struct kvf_rank *rank, char text[KVFI_RANK_TEXT_BYTES])
{
    snprintf(text, KVFI_RANK_TEXT_BYTES, "rank pp %" PRId64 " cp %" PRId64 " tp %" PRId64, rank->pp, rank->cp,
             rank->tp);
    return text;
}

static enum kvf_status read_version(const struct kvfi_cursor *root)
{
    struct kvfi_cursor at = kvfi_cursor_key(root, "version");
    int64_t version = 0;
    enum kvf_status status = kvfi_json_int(&at, 1, INT64_MAX, &version);

    if (status == KVF_OK && version != SCHEMA_VERSION) {
        status = kvfi_cursor_fail(&at, KVF_ERR_PARSE, "is %" PRId64 ", this library reads %d", version,
                                  SCHEMA_VERSION);
    }
    return status;
}

static enum kvf_status read_model(const struct kvfi_cursor *root, kvf_instance *out)
{
    static const char *const keys[] = {"name", "fingerprint", NULL};
    struct kvfi_cursor at = kvfi_cursor_key(root, "model");
    const char *name = NULL, *fingerprint = NULL;
    enum kvf_status status = at.value ? kvfi_json_object(&at, keys) : kvfi_cursor_expected(&at, "an object");

    if (status == KVF_OK) status = kvfi_json_key_text(&at, "name", 1, MAX_TEXT_BYTES, &name);
    if (status == KVF_OK) status = kvfi_json_key_text_or(&at, "fingerprint", MAX_TEXT_BYTES, "", &fingerprint);
    if (status != KVF_OK) goto done;
    out->model_name = kvfi_text_copy(name);
    out->model_fingerprint = kvfi_text_copy(fingerprint);
    if (!out->model_name || !out->model_fingerprint) status = kvfi_fail_memory(root->source->error, "model");
done:
    return status;
}

static enum kvf_status read_grid(const struct kvfi_cursor *root, struct kvfi_grid *out)
{
    static const char *const keys[] = {"pp", "cp", "tp", NULL};
    struct kvfi_cursor at = kvfi_cursor_key(root, "grid");
    enum kvf_status status = at.value ? kvfi_json_object(&at, keys) : kvfi_cursor_expected(&at, "an object");

    if (status == KVF_OK) status = kvfi_json_key_int_or(&at, "pp", 1, KVFI_MAX_RANKS, 1, &out->pp);
    if (status == KVF_OK) status = kvfi_json_key_int_or(&at, "cp", 1, KVFI_MAX_RANKS, 1, &out->cp);
    if (status == KVF_OK) status = kvfi_json_key_int_or(&at, "tp", 1, KVFI_MAX_RANKS, 1, &out->tp);
    if (status == KVF_OK && out->pp * out->cp * out->tp > KVFI_MAX_RANKS) {
        status = kvfi_cursor_fail(&at, KVF_ERR_LIMIT, "pp %" PRId64 " x cp %" PRId64 " x tp %" PRId64
                                  " ranks, at most %d", out->pp, out->cp, out->tp, KVFI_MAX_RANKS);
    }
    return status;
}

static enum kvf_status make_ranks(const struct kvfi_cursor *root, struct reading *reading)
{
    kvf_instance *instance = reading->instance;
    const struct kvfi_grid *grid = &instance->grid;
    size_t count = (size_t)(grid->pp * grid->cp * grid->tp);
    enum kvf_status status = KVF_OK;

    instance->ranks = kvfi_alloc_zeroed(count, sizeof *instance->ranks);
    reading->given = kvfi_alloc_zeroed(count, sizeof *reading->given);
    if (!instance->ranks || !reading->given) {
        status = kvfi_fail_memory(root->source->error, "ranks");
        goto done;
    }
    instance->rank_count = count;
    for (size_t i = 0; i < count; i++) {
        instance->ranks[i].rank = (struct kvf_rank){
            .pp = (int64_t)i / grid->tp / grid->cp,
            .cp = (int64_t)i / grid->tp % grid->cp,
            .tp = (int64_t)i % grid->tp,
        };
    }
done:
    return status;
}

/* Expands a template into the rank; the error says which rank it was. */
static enum kvf_status expand(const struct kvfi_cursor *at, struct reading *reading,
                              const struct kvfi_template *template, struct kvfi_instance_rank *out)
{
    struct kvf_error inner = {.position = -1};
    char text[KVFI_RANK_TEXT_BYTES];
    enum kvf_status status = kvfi_template_expand(template, &reading->instance->grid, &out->rank,
                                                  &reading->left, &out->layout, &inner);

    if (status == KVF_OK) status = kvf_holdings_from_layout(out->layout, &out->holdings, &inner);
    if (status != KVF_OK) {
        kvfi_fail_at(at->source->error, status, kvfi_json_locate(at), "%s: %.*s", kvfi_rank_text(&out->rank, text),
                     KVF_ERROR_TEXT_BYTES - KVFI_RANK_TEXT_BYTES - 3, inner.text);
    }
    return status;
}

/* Which rank an item of "ranks" is about. */
static enum kvf_status read_rank_place(const struct kvfi_cursor *at, struct reading *reading, size_t item,
                                       struct kvfi_instance_rank **out)
{
    const struct kvfi_grid *grid = &reading->instance->grid;
    struct kvf_rank rank = {0};
    char text[KVFI_RANK_TEXT_BYTES];
    size_t index;
    enum kvf_status status = kvfi_json_key_int_or(at, "pp", 0, grid->pp - 1, 0, &rank.pp);

    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "cp", 0, grid->cp - 1, 0, &rank.cp);
    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "tp", 0, grid->tp - 1, 0, &rank.tp);
    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "dp", 0, INT64_MAX, 0, &rank.dp);
    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "salt", 0, INT64_MAX, 0, &rank.salt);
    if (status != KVF_OK) goto done;
    index = (size_t)((rank.pp * grid->cp + rank.cp) * grid->tp + rank.tp);
    if (reading->given[index]) {
        status = kvfi_cursor_fail(at, KVF_ERR_PARSE, "%s was given by ranks[%zu]", kvfi_rank_text(&rank, text),
                                  reading->given[index] - 1);
        goto done;
    }
    reading->given[index] = item + 1;
    *out = &reading->instance->ranks[index];
    (*out)->rank = rank;
done:
    return status;
}

static enum kvf_status read_rank(const struct kvfi_cursor *at, struct reading *reading, size_t item)
{
    static const char *const keys[] = {"pp", "cp", "tp", "dp", "salt", "layout", NULL};
    struct kvfi_cursor layout = kvfi_cursor_key(at, "layout");
    struct kvfi_template own = {0};
    struct kvfi_instance_rank *rank = NULL;
    enum kvf_status status = kvfi_json_object(at, keys);

    if (status == KVF_OK) status = read_rank_place(at, reading, item, &rank);
    if (status != KVF_OK) goto done;
    if (layout.value) {
        status = kvfi_template_read(&layout, &reading->instance->grid, &own);
        if (status == KVF_OK) status = expand(&layout, reading, &own, rank);
    } else if (!reading->has_shared) {
        status = kvfi_cursor_fail(at, KVF_ERR_PARSE, "\"layout\" is missing, here or at the top for all ranks");
    }
done:
    kvfi_template_fini(&own);
    return status;
}

/* Ranks that no item described take the layout at the top. */
static enum kvf_status fill_ranks(const struct kvfi_cursor *root, struct reading *reading)
{
    struct kvfi_cursor shared = kvfi_cursor_key(root, "layout");
    char text[KVFI_RANK_TEXT_BYTES];
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < reading->instance->rank_count && status == KVF_OK; i++) {
        struct kvfi_instance_rank *rank = &reading->instance->ranks[i];

        if (rank->layout) continue;
        if (reading->has_shared) {
            status = expand(&shared, reading, &reading->shared, rank);
        } else {
            status = kvfi_cursor_fail(root, KVF_ERR_PARSE,
                                      "%s is neither in \"ranks\" nor is there a \"layout\" for all",
                                      kvfi_rank_text(&rank->rank, text));
        }
    }
    return status;
}

static enum kvf_status read_instance(const struct kvfi_cursor *root, struct reading *reading)
{
    static const char *const keys[] = {"version", "model", "grid", "layout", "ranks", NULL};
    struct kvfi_cursor shared = kvfi_cursor_key(root, "layout"), ranks = kvfi_cursor_key(root, "ranks");
    size_t count = 0;
    enum kvf_status status = kvfi_json_object(root, keys);

    if (status == KVF_OK) status = read_version(root);
    if (status == KVF_OK) status = read_model(root, reading->instance);
    if (status == KVF_OK) status = read_grid(root, &reading->instance->grid);
    if (status == KVF_OK) status = make_ranks(root, reading);
    if (status == KVF_OK && shared.value) {
        reading->has_shared = true;
        status = kvfi_template_read(&shared, &reading->instance->grid, &reading->shared);
    }
    if (status == KVF_OK && ranks.value) status = kvfi_json_array(&ranks, 0, KVFI_MAX_RANKS, &count);
    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&ranks, i);

        status = read_rank(&item, reading, i);
    }
    if (status == KVF_OK) status = fill_ranks(root, reading);
    if (status == KVF_OK) status = kvfi_instance_check(reading->instance, root->source->error);
    return status;
}

enum kvf_status kvf_instance_parse(const char *text, size_t text_bytes, kvf_instance **out, struct kvf_error *error)
{
    struct kvfi_json_source source = {.name = "layout file", .text = text, .text_bytes = text_bytes, .error = error};
    struct reading reading = {.left = {KVFI_MAX_INSTANCE_PLACES, KVFI_MAX_INSTANCE_POOLS, KVFI_MAX_INSTANCE_RUNS}};
    struct kvfi_cursor root;
    json_t *json = NULL;
    enum kvf_status status = kvfi_json_load(&source, &kvfi_layout_json_limits, &json);

    if (status != KVF_OK) goto done;
    reading.instance = kvfi_alloc_zeroed(1, sizeof *reading.instance);
    if (!reading.instance) {
        status = kvfi_fail_memory(error, source.name);
        goto done;
    }
    root = kvfi_cursor_root(&source, json);
    status = read_instance(&root, &reading);
    if (status != KVF_OK) goto done;
    *out = reading.instance;
    reading.instance = NULL;
done:
    kvfi_template_fini(&reading.shared);
    free(reading.given);
    kvf_instance_destroy(reading.instance);
    json_decref(json);
    return status;
}
