/* SPDX-License-Identifier: Apache-2.0 */
/* From a few words to a layout file that uses the schema's rules, so that it stays short and readable. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "kvferry/instance.h"
#include "layout_json/dtypes.h"
#include "layout_json/instance.h"
#include "layout_json/json_cursor.h"
#include "layout_json/json_print.h"

#define MAX_TEXT_BYTES 255
#define MAX_NUMBER ((int64_t)1 << 40)

void kvf_instance_recipe_init(struct kvf_instance_recipe *recipe, size_t size)
{
    const struct kvf_instance_recipe defaults = {
        .model_name = "model",
        .model_fingerprint = "",
        .dtype = "f16",
        .tp = 1,
        .pp = 1,
        .cp = 1,
        .tokens_per_block = 16,
        .blocks = 1024,
    };

    kvfi_struct_init(recipe, size, &defaults, sizeof defaults);
}

/* ---- checks ----------------------------------------------------------------------------------------------------- */

struct number {
    const char *name;
    int64_t value, min, max;
};

static enum kvf_status check_numbers(const struct kvf_instance_recipe *r, struct kvf_error *error)
{
    int64_t heads_min = r->latent_bytes > 0 ? 0 : 1;
    const struct number numbers[] = {
        {"layers", r->layers, 1, KVF_LAYOUT_MAX_PLACES / 2},
        {"latent_bytes", r->latent_bytes, 0, MAX_NUMBER},
        {"kv_heads", r->kv_heads, heads_min, MAX_NUMBER},
        {"head_dim", r->head_dim, heads_min, MAX_NUMBER},
        {"tp", r->tp, 1, KVFI_MAX_RANKS},
        {"pp", r->pp, 1, r->layers < KVFI_MAX_RANKS ? r->layers : KVFI_MAX_RANKS},
        {"cp", r->cp, 1, KVFI_MAX_RANKS},
        {"cp_stripe_tokens", r->cp_stripe_tokens, 0, MAX_NUMBER},
        {"tokens_per_block", r->tokens_per_block, 1, MAX_NUMBER},
        {"blocks", r->blocks, 1, MAX_NUMBER},
        {"value_blocks", r->value_blocks, 0, MAX_NUMBER},
        {"slot_padding_bytes", r->slot_padding_bytes, 0, MAX_NUMBER},
        {"order", r->order, KVF_ORDER_HEADS_FIRST, KVF_ORDER_TOKENS_FIRST},
        {"kv_pools", r->kv_pools, KVF_KV_ONE_POOL, KVF_KV_POOL_PER_LAYER},
    };
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const struct number *n = &numbers[i];

        if (n->value < n->min || n->value > n->max) {
            status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s: expected %" PRId64 " to %" PRId64 ", found %"
                               PRId64, n->name, n->min, n->max, n->value);
            goto done;
        }
    }
    if (r->tp * r->pp * r->cp > KVFI_MAX_RANKS) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "tp x pp x cp: expected at most %d ranks, found %" PRId64,
                           KVFI_MAX_RANKS, r->tp * r->pp * r->cp);
    } else if (r->value_blocks > 0 && (r->kv_pools != KVF_KV_SEPARATE_POOLS || r->latent_bytes > 0)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "value_blocks: %" PRId64
                           " given, but K and V have no pools of their own", r->value_blocks);
    } else if (r->latent_bytes > 0 && r->kv_pools == KVF_KV_SEPARATE_POOLS) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "kv_pools: a latent cache (latent_bytes %" PRId64
                           ") has no K and V to keep in separate pools", r->latent_bytes);
    }
done:
    return status;
}

static enum kvf_status check_text(const char *name, const char *text, size_t min_bytes, struct kvf_error *error)
{
    size_t bytes = text ? strlen(text) : 0;
    enum kvf_status status = KVF_OK;

    if (!text || bytes < min_bytes || bytes > MAX_TEXT_BYTES) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s: expected %zu to %d bytes of text, found %zu", name,
                           min_bytes, MAX_TEXT_BYTES, bytes);
    } else if (!kvfi_is_utf8(text)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s: is not UTF-8", name);
    }
    return status;
}

static enum kvf_status check_recipe(const struct kvf_instance_recipe *r, const struct kvfi_dtype **dtype,
                                    struct kvf_error *error)
{
    char quoted[KVFI_QUOTE_BYTES], names[KVF_ERROR_TEXT_BYTES];
    enum kvf_status status = check_text("model_name", r->model_name, 1, error);

    if (status == KVF_OK) status = check_text("model_fingerprint", r->model_fingerprint, 0, error);
    if (status == KVF_OK) status = check_text("dtype", r->dtype, 1, error);
    if (status != KVF_OK) goto done;
    *dtype = kvfi_dtype_of_tag(r->dtype);
    if (!*dtype) {
        kvfi_dtype_names(0, names, sizeof names);
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "dtype: expected %s, found %s", names,
                           kvfi_json_quote(r->dtype, quoted));
        goto done;
    }
    status = check_numbers(r, error);
done:
    return status;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

/* Units that do not divide are listed, as even as possible, earlier ranks taking the remainder. */
static json_t *units_to_json(const struct kvf_instance_recipe *r)
{
    int64_t share = r->kv_heads / r->tp, more = r->kv_heads % r->tp;
    json_t *bounds;
    bool ok;

    if (r->latent_bytes > 0) return json_pack("{s:I}", "total", (json_int_t)1);
    if (r->kv_heads < r->tp || more == 0) {
        return json_pack("{s:I, s:s}", "total", (json_int_t)r->kv_heads, "split", "tp");
    }
    bounds = json_array();
    ok = bounds != NULL;
    for (int64_t i = 0; i <= r->tp && ok; i++) {
        ok = json_array_append_new(bounds, json_integer((json_int_t)(i * share + (i < more ? i : more)))) == 0;
    }
    if (!ok) {
        json_decref(bounds);
        bounds = NULL;
    }
    return json_pack("{s:I, s:o}", "total", (json_int_t)r->kv_heads, "bounds", bounds);
}

static json_t *view_to_json(const struct kvf_instance_recipe *r, const char *role, int64_t row_bytes, int64_t pool)
{
    return json_pack("{s:s, s:s, s:I, s:o, s:s, s:{s:I, s:s}, s:I}", "role", role, "tag", r->dtype, "row_bytes",
                     (json_int_t)row_bytes, "units", units_to_json(r), "order",
                     r->order == KVF_ORDER_HEADS_FIRST ? "heads_first" : "tokens_first", "layers", "total",
                     (json_int_t)r->layers, "split", "pp", "pool", (json_int_t)pool);
}

static json_t *pool_to_json(const struct kvf_instance_recipe *r, int64_t slots)
{
    json_t *pool = json_pack("{s:I}", "slots", (json_int_t)slots);
    bool ok = pool != NULL;

    if (ok && r->slot_padding_bytes > 0) {
        ok = json_object_set_new(pool, "slot_padding_bytes", json_integer((json_int_t)r->slot_padding_bytes)) == 0;
    }
    if (ok && r->kv_pools == KVF_KV_POOL_PER_LAYER) ok = json_object_set_new(pool, "per_layer", json_true()) == 0;
    if (!ok) {
        json_decref(pool);
        pool = NULL;
    }
    return pool;
}

static json_t *group_to_json(const struct kvf_instance_recipe *r)
{
    json_t *group = json_pack("{s:I}", "tokens_per_block", (json_int_t)r->tokens_per_block);

    if (group && r->cp > 1 &&
        json_object_set_new(group, "cp_stripe_tokens", json_integer((json_int_t)r->cp_stripe_tokens)) != 0) {
        json_decref(group);
        group = NULL;
    }
    return group;
}

static json_t *layout_to_json(const struct kvf_instance_recipe *r, const struct kvfi_dtype *dtype)
{
    int64_t row_bytes = r->latent_bytes > 0 ? r->latent_bytes : r->head_dim * dtype->bits / 8;
    bool apart = r->kv_pools == KVF_KV_SEPARATE_POOLS;
    json_t *layout;

    if (r->latent_bytes > 0) {
        layout = json_pack("{s:[o], s:[o], s:[o]}", "pools", pool_to_json(r, r->blocks), "groups", group_to_json(r),
                           "views", view_to_json(r, "mla", row_bytes, 0));
    } else if (apart) {
        layout = json_pack("{s:[o,o], s:[o], s:[o,o]}", "pools", pool_to_json(r, r->blocks),
                           pool_to_json(r, r->value_blocks > 0 ? r->value_blocks : r->blocks), "groups",
                           group_to_json(r), "views", view_to_json(r, "k", row_bytes, 0),
                           view_to_json(r, "v", row_bytes, 1));
    } else {
        layout = json_pack("{s:[o], s:[o], s:[o,o]}", "pools", pool_to_json(r, r->blocks), "groups", group_to_json(r),
                           "views", view_to_json(r, "k", row_bytes, 0), view_to_json(r, "v", row_bytes, 0));
    }
    return layout;
}

static json_t *model_to_json(const struct kvf_instance_recipe *r)
{
    json_t *model = json_pack("{s:o}", "name", json_string(r->model_name));

    if (model && r->model_fingerprint[0] &&
        json_object_set_new(model, "fingerprint", json_string(r->model_fingerprint)) != 0) {
        json_decref(model);
        model = NULL;
    }
    return model;
}

enum kvf_status kvf_instance_recipe_to_json(const struct kvf_instance_recipe *recipe, char **out_text,
                                            struct kvf_error *error)
{
    struct kvf_instance_recipe own;
    const struct kvfi_dtype *dtype = NULL;
    json_t *root;
    enum kvf_status status;

    kvf_instance_recipe_init(&own, sizeof own);
    status = kvfi_options_copy(&own, sizeof own, recipe, "recipe", error);
    if (status == KVF_OK) status = check_recipe(&own, &dtype, error);
    if (status != KVF_OK) goto done;
    root = json_pack("{s:i, s:o, s:{s:I, s:I, s:I}, s:o}", "version", 1, "model", model_to_json(&own), "grid", "pp",
                     (json_int_t)own.pp, "cp", (json_int_t)own.cp, "tp", (json_int_t)own.tp, "layout",
                     layout_to_json(&own, dtype));
    status = kvfi_json_print(root, "layout file", out_text, error);
done:
    return status;
}
