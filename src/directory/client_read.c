/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "directory/claim.h"
#include "directory/client_state.h"
#include "layout_json/holdings_json.h"
#include "layout_json/json_cursor.h"
#include "sys/clock.h"

#define MAX_RANKS 65536

static const struct kvfi_json_limits limits = {
    .max_bytes = KVFI_DIRECTORY_MAX_ANSWER_BYTES,
    .max_depth = 10,
    .max_containers = 4194304,
    .max_values = 16777216,
};

static enum kvf_status load(const struct kvfi_text *answer, struct kvfi_json_source *source, json_t **out,
                            struct kvf_error *error)
{
    *source = (struct kvfi_json_source){.name = "answer", .text = answer->count ? answer->bytes : "",
                                        .text_bytes = answer->count, .error = error};
    return kvfi_json_load(source, &limits, out);
}

enum kvf_status kvfi_registered_read(const struct kvfi_text *answer, int64_t *epoch, int64_t *lease_ns,
                                     struct kvf_error *error)
{
    struct kvfi_json_source source;
    struct kvfi_cursor root;
    json_t *json = NULL;
    int64_t epoch_read, lease_ms;
    enum kvf_status status = load(answer, &source, &json, error);

    if (status != KVF_OK) return status;
    root = kvfi_cursor_root(&source, json);
    status = json_is_object(json) ? kvfi_json_key_int(&root, "epoch", 0, INT64_MAX, &epoch_read)
                                  : kvfi_cursor_expected(&root, "an object");
    if (status == KVF_OK) status = kvfi_json_key_int(&root, "lease_ms", 1, 86400000, &lease_ms);
    if (status == KVF_OK) {
        *epoch = epoch_read;
        *lease_ns = lease_ms * KVFI_MS;
    }
    json_decref(json);
    return status;
}

static enum kvf_status read_rank(const struct kvfi_cursor *at, struct kvfi_directory_rank *rank,
                                 struct kvf_error *error)
{
    struct kvfi_cursor endpoints = kvfi_cursor_key(at, "endpoints");
    const char *channel;
    enum kvf_status status = json_is_object(at->value) ? kvfi_rank_read(at, &rank->rank)
                                                       : kvfi_cursor_expected(at, "an object");

    if (status == KVF_OK) status = kvfi_incarnation_read(at, &rank->incarnation);
    if (status == KVF_OK && !json_is_object(endpoints.value)) status = kvfi_cursor_expected(&endpoints, "an object");
    if (status == KVF_OK)
        status = kvfi_clean_text_read(&endpoints, "channel", 1, KVFI_DIRECTORY_CHANNEL_BYTES - 1, &channel);
    if (status != KVF_OK) return status;
    snprintf(rank->channel, sizeof rank->channel, "%s", channel);
    return kvfi_holdings_from_json(json_object_get(at->value, "holdings"), "holdings", &rank->holdings, error);
}

static bool is_before(const struct kvf_rank *a, const struct kvf_rank *b)
{
    if (a->pp != b->pp) return a->pp < b->pp;
    if (a->cp != b->cp) return a->cp < b->cp;
    return a->tp < b->tp;
}

static enum kvf_status read_ranks(const struct kvfi_cursor *root, struct kvfi_directory_instance *instance,
                                  struct kvf_error *error)
{
    struct kvfi_cursor ranks = kvfi_cursor_key(root, "ranks");
    size_t count = 0;
    enum kvf_status status = kvfi_json_array(&ranks, 0, MAX_RANKS, &count);

    if (status != KVF_OK) return status;
    instance->ranks = kvfi_alloc_zeroed(count, sizeof *instance->ranks);
    if (!instance->ranks) return kvfi_fail_memory(error, "a directory's answer");
    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&ranks, i);

        status = read_rank(&item, &instance->ranks[i], error);
        instance->rank_count = i + 1;
        if (status == KVF_OK && i > 0 && !is_before(&instance->ranks[i - 1].rank, &instance->ranks[i].rank))
            status = kvfi_cursor_fail(&item, KVF_ERR_PARSE, "rank is out of order or comes twice");
    }
    return status;
}

static enum kvf_status read_instance(const struct kvfi_cursor *root, struct kvfi_directory_instance *instance,
                                     struct kvf_error *error)
{
    const char *name, *model;
    enum kvf_status status = json_is_object(root->value)
                                 ? kvfi_clean_text_read(root, "instance", 1, KVFI_DIRECTORY_INSTANCE_BYTES - 1, &name)
                                 : kvfi_cursor_expected(root, "an object");

    if (status == KVF_OK) status = kvfi_clean_text_read(root, "model", 0, KVFI_DIRECTORY_MODEL_BYTES - 1, &model);
    if (status == KVF_OK) status = kvfi_json_key_int(root, "expected", 1, MAX_RANKS, &instance->expected);
    if (status == KVF_OK) status = kvfi_json_key_int(root, "epoch", 0, INT64_MAX, &instance->epoch);
    if (status != KVF_OK) return status;
    snprintf(instance->instance, sizeof instance->instance, "%s", name);
    snprintf(instance->model, sizeof instance->model, "%s", model);
    status = read_ranks(root, instance, error);
    instance->registered = (int64_t)instance->rank_count;
    instance->complete = instance->registered == instance->expected;
    return status;
}

enum kvf_status kvfi_instance_read(const struct kvfi_text *answer, struct kvfi_directory_instance **out,
                                   struct kvf_error *error)
{
    struct kvfi_json_source source;
    struct kvfi_cursor root;
    struct kvfi_directory_instance *instance = NULL;
    json_t *json = NULL;
    enum kvf_status status = load(answer, &source, &json, error);

    if (status != KVF_OK) goto done;
    instance = calloc(1, sizeof *instance);
    if (!instance) {
        status = kvfi_fail_memory(error, "a directory's answer");
        goto done;
    }
    root = kvfi_cursor_root(&source, json);
    status = read_instance(&root, instance, error);
    if (status != KVF_OK) goto done;
    *out = instance;
    instance = NULL;
done:
    kvfi_directory_instance_destroy(instance);
    json_decref(json);
    return status;
}

void kvfi_directory_instance_destroy(struct kvfi_directory_instance *instance)
{
    if (!instance) return;
    for (size_t i = 0; i < instance->rank_count; i++) kvf_holdings_release(instance->ranks[i].holdings);
    free(instance->ranks);
    free(instance);
}
