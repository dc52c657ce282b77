/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/claim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "layout_json/holdings_json.h"
#include "layout_json/json_cursor.h"
#include "wire/text.h"

#define MAX_RANKS_EXPECTED 65536

static const struct kvfi_json_limits limits = {
    .max_bytes = KVFI_DIRECTORY_MAX_BODY_BYTES,
    .max_depth = 8,
    .max_containers = 2097152,
    .max_values = 4194304,
};

enum kvf_status kvfi_clean_text_read(const struct kvfi_cursor *at, const char *key, size_t min_bytes, size_t max_bytes,
                                     const char **out)
{
    struct kvfi_cursor member = kvfi_cursor_key(at, key);
    const char *text;
    enum kvf_status status = min_bytes == 0 ? kvfi_json_key_text_or(at, key, max_bytes, "", &text)
                                            : kvfi_json_key_text(at, key, min_bytes, max_bytes, &text);

    if (status != KVF_OK) return status;
    if (!kvfi_text_is_clean(text, strlen(text)))
        return kvfi_cursor_fail(&member, KVF_ERR_PARSE, "has control characters");
    *out = text;
    return KVF_OK;
}

enum kvf_status kvfi_incarnation_read(const struct kvfi_cursor *at, uint64_t *out)
{
    struct kvfi_cursor member = kvfi_cursor_key(at, "incarnation");
    const char *text;
    uint64_t value;
    enum kvf_status status = kvfi_json_key_text(at, "incarnation", 16, 16, &text);

    if (status != KVF_OK) return status;
    value = strspn(text, "0123456789abcdef") == 16 ? strtoull(text, NULL, 16) : 0;
    if (value == 0)
        return kvfi_cursor_fail(&member, KVF_ERR_PARSE, "expected 16 lower-case hex digits, not all zero");
    *out = value;
    return KVF_OK;
}

enum kvf_status kvfi_rank_read(const struct kvfi_cursor *at, struct kvf_rank *out)
{
    static const char *const known[] = {"dp", "pp", "cp", "tp", "salt", NULL};
    struct kvfi_cursor rank = kvfi_cursor_key(at, "rank");
    int64_t numbers[5];
    enum kvf_status status = rank.value ? kvfi_json_object(&rank, known) : kvfi_cursor_expected(&rank, "an object");

    for (size_t i = 0; i < 5 && status == KVF_OK; i++)
        status = kvfi_json_key_int_or(&rank, known[i], 0, INT64_MAX, 0, &numbers[i]);
    if (status != KVF_OK) return status;
    *out = (struct kvf_rank){numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
    return KVF_OK;
}

static enum kvf_status read_key(const struct kvfi_cursor *root, struct kvfi_registry_claim *claim)
{
    enum kvf_status status = json_is_object(root->value)
                                 ? kvfi_clean_text_read(root, "instance", 1, KVFI_DIRECTORY_INSTANCE_BYTES - 1,
                                                        &claim->instance)
                                 : kvfi_cursor_expected(root, "an object");

    if (status == KVF_OK) status = kvfi_incarnation_read(root, &claim->incarnation);
    return status == KVF_OK ? kvfi_rank_read(root, &claim->rank) : status;
}

static enum kvf_status read_holdings(const struct kvfi_cursor *root, struct kvfi_claim_body *body,
                                     struct kvf_error *error)
{
    json_t *value = json_object_get(root->value, "holdings");
    kvf_holdings *holdings;
    enum kvf_status status = kvfi_holdings_from_json(value, "holdings", &holdings, error);

    if (status != KVF_OK) return status;
    kvf_holdings_release(holdings);
    body->holdings = json_dumps(value, JSON_COMPACT);
    if (!body->holdings) return kvfi_fail_memory(error, "holdings");
    body->claim.holdings = body->holdings;
    return KVF_OK;
}

static enum kvf_status read_claim(const struct kvfi_cursor *root, struct kvfi_claim_body *body,
                                  struct kvf_error *error)
{
    struct kvfi_registry_claim *claim = &body->claim;
    struct kvfi_cursor endpoints = kvfi_cursor_key(root, "endpoints");
    enum kvf_status status = read_key(root, claim);

    if (status == KVF_OK) status = kvfi_json_key_int(root, "ranks_expected", 1, MAX_RANKS_EXPECTED,
                                                     &claim->ranks_expected);
    if (status == KVF_OK)
        status = kvfi_clean_text_read(root, "model", 0, KVFI_DIRECTORY_MODEL_BYTES - 1, &claim->model);
    if (status == KVF_OK && !json_is_object(endpoints.value)) status = kvfi_cursor_expected(&endpoints, "an object");
    if (status == KVF_OK)
        status = kvfi_clean_text_read(&endpoints, "channel", 1, KVFI_DIRECTORY_CHANNEL_BYTES - 1, &claim->channel);
    return status == KVF_OK ? read_holdings(root, body, error) : status;
}

static enum kvf_status read_body(const char *bytes, size_t byte_count, bool key_only, struct kvfi_claim_body *out,
                                 struct kvf_error *error)
{
    struct kvfi_json_source source = {.name = "request body", .text = bytes ? bytes : "", .text_bytes = byte_count,
                                      .error = error};
    struct kvfi_claim_body body = {0};
    struct kvfi_cursor root;
    enum kvf_status status = kvfi_json_load(&source, &limits, &body.json);

    if (status != KVF_OK) return status;
    root = kvfi_cursor_root(&source, body.json);
    status = key_only ? read_key(&root, &body.claim) : read_claim(&root, &body, error);
    if (status == KVF_OK) *out = body;
    else kvfi_claim_body_fini(&body);
    return status;
}

enum kvf_status kvfi_claim_read(const char *body, size_t body_bytes, struct kvfi_claim_body *out,
                                struct kvf_error *error)
{
    return read_body(body, body_bytes, false, out, error);
}

enum kvf_status kvfi_claim_read_key(const char *body, size_t body_bytes, struct kvfi_claim_body *out,
                                    struct kvf_error *error)
{
    return read_body(body, body_bytes, true, out, error);
}

void kvfi_claim_body_fini(struct kvfi_claim_body *body)
{
    json_decref(body->json);
    free(body->holdings);
    *body = (struct kvfi_claim_body){0};
}

void kvfi_rank_write(const struct kvf_rank *rank, struct kvfi_text *out)
{
    kvfi_text_appendf(out, "{\"dp\":%" PRId64 ",\"pp\":%" PRId64 ",\"cp\":%" PRId64 ",\"tp\":%" PRId64
                      ",\"salt\":%" PRId64 "}", rank->dp, rank->pp, rank->cp, rank->tp, rank->salt);
}

void kvfi_claim_write(const struct kvfi_registry_claim *claim, bool key_only, struct kvfi_text *out)
{
    kvfi_text_append(out, "{\"instance\":");
    kvfi_text_append_json(out, claim->instance);
    kvfi_text_appendf(out, ",\"incarnation\":\"%016" PRIx64 "\",\"rank\":", claim->incarnation);
    kvfi_rank_write(&claim->rank, out);
    if (!key_only) {
        kvfi_text_appendf(out, ",\"ranks_expected\":%" PRId64 ",\"model\":", claim->ranks_expected);
        kvfi_text_append_json(out, claim->model);
        kvfi_text_append(out, ",\"endpoints\":{\"channel\":");
        kvfi_text_append_json(out, claim->channel);
        kvfi_text_append(out, "},\"holdings\":");
        kvfi_text_append(out, claim->holdings);
    }
    kvfi_text_append(out, "}");
}
