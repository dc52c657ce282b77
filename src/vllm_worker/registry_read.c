/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm_worker/registry_read.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/array.h"
#include "base/error.h"
#include "kvferry/vllm_worker.h"
#include "layout_json/json_source.h"
#include "vllm_worker/topology.h"
#include "wire/text.h"

static const struct kvfi_json_limits limits = {.max_bytes = KVFI_VLLM_MAX_ANSWER_BYTES, .max_depth = 16,
                                               .max_containers = 4 * KVFI_VLLM_MAX_WORKERS,
                                               .max_values = 8 * KVFI_VLLM_MAX_WORKERS, .takes_zeros = true};

/** An engine that was read. */
struct entry {
    const struct kvfi_vllm_engine *engine;
    size_t number;
};

/** What is being read. */
struct reader {
    struct kvfi_vllm_engine_worker *workers; /* of the engine at hand; texts are the JSON's */
    size_t worker_count, worker_capacity;
    int64_t worker_total;
    struct entry *entries;
    size_t entry_count, entry_capacity;
    size_t left_out;
    struct kvf_error *error;
};

static bool rank_of_key(const char *key, int64_t *out)
{
    size_t sign = key[0] == '-';
    size_t digits = strspn(key + sign, "0123456789");

    if (digits == 0 || key[sign + digits] != '\0' || (digits > 1 && key[sign] == '0')) return false;
    errno = 0;
    *out = strtoll(key, NULL, 10);
    return errno == 0;
}

/** A text that can be used; NULL for one that cannot. */
static const char *usable(const json_t *value, size_t most_bytes)
{
    const char *text = json_string_value(value);
    size_t text_bytes = json_string_length(value);

    if (text_bytes == 0 || text_bytes >= most_bytes || strlen(text) != text_bytes) return NULL;
    return kvfi_text_is_clean(text, text_bytes) ? text : NULL;
}

static enum kvf_status fail_key(const struct reader *reader, const char *what, const char *key)
{
    char quoted[41];

    kvfi_text_clean(key, quoted, sizeof quoted);
    return kvfi_fail(reader->error, KVF_ERR_PROTOCOL, "registry's answer: %s \"%s\" is not a whole number", what,
                     quoted);
}

static enum kvf_status read_worker(struct reader *reader, int64_t tp_rank, const char *key, const json_t *value)
{
    struct kvfi_vllm_engine_worker worker = {.tp_rank = tp_rank};
    const char *address = usable(value, KVF_VLLM_ADDRESS_BYTES);

    if (!rank_of_key(key, &worker.pp_rank)) return fail_key(reader, "PP rank", key);
    if (!json_is_string(value))
        return kvfi_fail(reader->error, KVF_ERR_PROTOCOL,
                         "registry's answer: address of TP rank %" PRId64 ", PP rank %" PRId64 " is not a text",
                         tp_rank, worker.pp_rank);
    if (++reader->worker_total > KVFI_VLLM_MAX_WORKERS)
        return kvfi_fail(reader->error, KVF_ERR_LIMIT, "registry's answer: more than %d workers",
                         KVFI_VLLM_MAX_WORKERS);
    if (!address || strncmp(address, "tcp://", 6) != 0) {
        reader->left_out++;
        return KVF_OK;
    }
    worker.address = address;
    if (!kvfi_array_grow((void **)&reader->workers, reader->worker_count, &reader->worker_capacity, sizeof worker))
        return kvfi_fail_memory(reader->error, "a registry's answer");
    reader->workers[reader->worker_count++] = worker;
    return KVF_OK;
}

static enum kvf_status read_tp(struct reader *reader, const char *tp_key, json_t *pp_ranks)
{
    enum kvf_status status = KVF_OK;
    const char *key;
    json_t *value;
    int64_t tp_rank;

    if (!rank_of_key(tp_key, &tp_rank)) return fail_key(reader, "TP rank", tp_key);
    if (!json_is_object(pp_ranks))
        return kvfi_fail(reader->error, KVF_ERR_PROTOCOL,
                         "registry's answer: TP rank %" PRId64 " is not an object of PP ranks", tp_rank);
    json_object_foreach(pp_ranks, key, value) {
        status = read_worker(reader, tp_rank, key, value);
        if (status != KVF_OK) break;
    }
    return status;
}

/** Adds an engine (taken). */
static enum kvf_status add_engine(struct reader *reader, const struct kvfi_vllm_engine *engine)
{
    if (!kvfi_array_grow((void **)&reader->entries, reader->entry_count, &reader->entry_capacity,
                         sizeof *reader->entries)) {
        kvfi_vllm_engine_release(engine);
        return kvfi_fail_memory(reader->error, "a registry's answer");
    }
    reader->entries[reader->entry_count] = (struct entry){engine, reader->entry_count};
    reader->entry_count++;
    return KVF_OK;
}

static int by_id(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    int order = strcmp(a->engine->engine_id, b->engine->engine_id);

    return order ? order : (a->number > b->number) - (a->number < b->number);
}

/** Sorts the engines. Of those with one id the last counts. */
static enum kvf_status finish(struct reader *reader, struct kvfi_vllm_topology_own *out)
{
    const struct kvfi_vllm_engine **engines = kvfi_alloc_array(reader->entry_count, sizeof *engines);
    size_t count = 0;

    if (!engines) return kvfi_fail_memory(reader->error, "a registry's answer");
    if (reader->entry_count > 0) qsort(reader->entries, reader->entry_count, sizeof *reader->entries, by_id);
    for (size_t i = 0; i < reader->entry_count; i++) {
        const struct kvfi_vllm_engine *engine = reader->entries[i].engine;

        if (count > 0 && strcmp(engines[count - 1]->engine_id, engine->engine_id) == 0)
            kvfi_vllm_engine_release(engines[--count]);
        engines[count++] = engine;
    }
    reader->entry_count = 0;
    *out = (struct kvfi_vllm_topology_own){.engines = engines, .engine_count = count, .left_out = reader->left_out};
    return KVF_OK;
}

static enum kvf_status read_engine(struct reader *reader, const char *dp_key, const json_t *entry)
{
    struct kvfi_vllm_engine_facts facts = {.engine_id = usable(json_object_get(entry, "engine_id"), KVF_VLLM_ID_BYTES)};
    json_t *tp_ranks = json_object_get(entry, "worker_addr"), *value;
    const struct kvfi_vllm_engine *engine;
    enum kvf_status status = KVF_OK;
    const char *key;

    if (!rank_of_key(dp_key, &facts.dp_rank)) return fail_key(reader, "DP rank", dp_key);
    if (!json_is_string(json_object_get(entry, "engine_id")) || !json_is_object(tp_ranks))
        return kvfi_fail(reader->error, KVF_ERR_PROTOCOL,
                         "registry's answer: DP rank %" PRId64 " has no engine_id or worker_addr", facts.dp_rank);
    reader->worker_count = 0;
    json_object_foreach(tp_ranks, key, value) {
        status = read_tp(reader, key, value);
        if (status != KVF_OK) return status;
    }
    if (!facts.engine_id) reader->left_out++;
    if (!facts.engine_id || reader->worker_count == 0) return KVF_OK;
    facts.tp_size = (int64_t)json_object_size(tp_ranks);
    facts.workers = reader->workers;
    facts.worker_count = reader->worker_count;
    engine = kvfi_vllm_engine_create(&facts);
    if (!engine) return kvfi_fail_memory(reader->error, "a registry's answer");
    return add_engine(reader, engine);
}

enum kvf_status kvfi_vllm_topology_read(const char *text, size_t text_bytes, struct kvfi_vllm_topology_own *out,
                                        struct kvf_error *error)
{
    const struct kvfi_json_source source = {.name = "registry's answer", .text = text ? text : "",
                                            .text_bytes = text_bytes, .error = error};
    struct reader reader = {.error = error};
    json_t *json = NULL, *value;
    const char *key;
    enum kvf_status status = kvfi_json_load(&source, &limits, &json);

    if (status == KVF_ERR_PARSE) {
        status = KVF_ERR_PROTOCOL;
        if (error) error->status = status;
    }
    if (status != KVF_OK) goto done;
    if (!json_is_object(json)) {
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "registry's answer is not an object of DP ranks");
        goto done;
    }
    json_object_foreach(json, key, value) {
        status = read_engine(&reader, key, value);
        if (status != KVF_OK) goto done;
    }
    status = finish(&reader, out);
done:
    for (size_t i = 0; i < reader.entry_count; i++) kvfi_vllm_engine_release(reader.entries[i].engine);
    free(reader.entries);
    free(reader.workers);
    json_decref(json);
    return status;
}

void kvfi_vllm_topology_fini(struct kvfi_vllm_topology_own *topology)
{
    for (size_t i = 0; i < topology->engine_count; i++) kvfi_vllm_engine_release(topology->engines[i]);
    free(topology->engines);
    *topology = (struct kvfi_vllm_topology_own){0};
}
