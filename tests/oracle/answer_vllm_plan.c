/* SPDX-License-Identifier: Apache-2.0 */
/* A pull as a whole: what a producer replies, and what it would have written before. */
#include "answer_vllm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vllm/prepared.h"

/* Texts that upstream raises instead of replying them: they become the reply all the same. */
static const char *const raised[] = {
    "Local tensor parallel size",
    "Remote tensor parallel size",
    "Mooncake transfer regions require matching",
    "Computed source transfer region exceeds",
    "Destination transfer region exceeds",
    "Transfer region references a missing KV group.",
    "Shared packed region is missing its group ids.",
};

/* Refusals before the regions are looked at. */
static const char *const early[] = {
    "This D tp_rank",
    "Mooncake non-page-contiguous packed regions",
};

static bool begins(const char *text, const char *const *list, size_t count)
{
    bool found = false;

    for (size_t i = 0; i < count && !found; i++) found = strncmp(text, list[i], strlen(list[i])) == 0;
    return found;
}

static bool is_raised(const char *text)
{
    return begins(text, raised, sizeof raised / sizeof *raised);
}

static kvf_vllm_producer *read_producer(struct answer_reader *reader, const json_t *object)
{
    struct kvf_vllm_producer_spec spec;
    const json_t *kinds = answer_member(reader, object, "group_kinds");
    int32_t *own_kinds = answer_take(reader, json_array_size(kinds), sizeof *own_kinds);
    kvf_vllm_producer *producer = NULL;
    struct kvf_error error;

    kvf_vllm_producer_spec_init(&spec, sizeof spec);
    spec.tp_rank = answer_int(reader, object, "tp_rank");
    spec.tp_size = answer_int(reader, object, "tp_size");
    spec.pp_size = answer_int(reader, object, "pp_size");
    spec.is_mla = answer_bool(reader, object, "is_mla");
    spec.has_opaque_row = answer_bool(reader, object, "has_opaque_row");
    spec.total_kv_heads = answer_int(reader, object, "total_kv_heads");
    spec.kernel_blocks_per_block = answer_int(reader, object, "kernel_blocks_per_block");
    spec.layers = answer_layers(reader, object, "layer_specs", "layer_groups", &spec.layer_count);
    spec.regions = answer_arrays(reader, object, "regions");
    spec.group_count = json_array_size(kinds);
    for (size_t i = 0; i < spec.group_count; i++) {
        const char *kind = json_string_value(json_array_get(kinds, i));

        own_kinds[i] = kind && strcmp(kind, "mamba") == 0 ? KVF_VLLM_MAMBA : KVF_VLLM_ATTENTION;
    }
    spec.group_kinds = own_kinds;
    if (!reader->failed && kvf_vllm_producer_create(&spec, &producer, &error) != KVF_OK) {
        answer_wrong(reader, "%s", error.text);
    }
    return producer;
}

static struct kvf_vllm_peer read_peer(struct answer_reader *reader, const json_t *object)
{
    struct kvf_vllm_peer peer;

    kvf_vllm_peer_init(&peer, sizeof peer);
    peer.hostname = answer_text(reader, object, "hostname");
    peer.port = answer_int(reader, object, "port");
    peer.tp_size = answer_int(reader, object, "tp_size");
    peer.tp_rank = answer_int(reader, object, "tp_rank");
    peer.pp_size = answer_int(reader, object, "pp_size");
    peer.regions = answer_arrays(reader, object, "regions");
    return peer;
}

/* The reply that refuses a pull as a whole. */
static void refuse(json_t *answer, const char *text)
{
    json_object_set_new(answer, "reply", json_pack("{s:i, s:o}", "status", 2, "err_msg", answer_string(text)));
    json_object_set_new(answer, "by", json_string(is_raised(text) ? "exception" : "reply"));
}

static void add_prepared(json_t *answer, const kvf_vllm_prepared *prepared)
{
    size_t local_count = 0, remote_count = 0;
    const struct kvf_vllm_region *local = NULL, *remote = NULL;
    const char *problem = prepared->local ? NULL : prepared->refusal.text;

    if (problem && (is_raised(problem) || begins(problem, early, sizeof early / sizeof *early))) return;
    if (prepared->local) local = kvf_vllm_regions_get(prepared->local, &local_count);
    if (prepared->remote) remote = kvf_vllm_regions_get(prepared->remote, &remote_count);
    json_object_set_new(answer, "prepared",
                        json_pack("{s:o, s:o, s:o}", "local", answer_from_regions(local, local_count), "remote",
                                  answer_from_regions(remote, remote_count), "error",
                                  problem ? answer_string(problem) : json_null()));
}

/* What of a batch is told at its end. */
struct batch {
    json_t *requests, *ok, *failed, *finished;
    char text[KVF_ERROR_TEXT_BYTES]; /* the first failure's */
    bool wrote;
};

/* More than any case of sense has: a program without memory answers nothing at all. */
enum { MAX_DESCRIPTORS = 1 << 22 };

static json_t *expand(struct answer_reader *reader, kvf_vllm_write *write)
{
    json_t *list = json_array();
    struct kvf_vllm_descriptor descriptor;

    if (kvf_vllm_write_count(write) > MAX_DESCRIPTORS) {
        answer_wrong(reader, "requests: more than %d descriptors", MAX_DESCRIPTORS);
        return list;
    }
    while (kvf_vllm_write_next(write, &descriptor, 1) > 0) {
        json_array_append_new(list, json_pack("[I, I, I]", (json_int_t)descriptor.src_address,
                                              (json_int_t)descriptor.dst_address, (json_int_t)descriptor.bytes));
    }
    return list;
}

/* The ready transfer of an id; NULL when there is none. */
static const json_t *find_ready(const json_t *ready, const char *transfer_id)
{
    const json_t *found = NULL;
    size_t i = 0;

    for (; i < json_array_size(ready) && !found; i++) {
        const json_t *entry = json_array_get(ready, i);
        const char *id = json_string_value(json_object_get(entry, "transfer_id"));

        if (id && strcmp(id, transfer_id) == 0) found = entry;
    }
    return found;
}

/* Answers one request of the pull. Returns false when it refuses the pull as a whole, with `text` written. */
static bool answer_request(struct answer_reader *reader, const kvf_vllm_prepared *prepared, const json_t *request,
                           const json_t *ready, struct batch *batch, char text[KVF_ERROR_TEXT_BYTES])
{
    const char *id = answer_text(reader, request, "d_req_id");
    const json_t *own = find_ready(ready, answer_text(reader, request, "transfer_id"));
    struct kvf_vllm_prepared_info info = {.struct_size = sizeof info};
    size_t producer_count = 0, consumer_count;
    struct kvf_vllm_ids *producer = NULL;
    struct kvf_vllm_ids *consumer = answer_id_lists(reader, request, "block_ids", &consumer_count);
    kvf_vllm_write *write = NULL;
    struct kvf_error error;
    enum kvf_status status;

    if (own) producer = answer_id_lists(reader, own, "block_ids", &producer_count);
    else answer_wrong(reader, "transfer_id: is not ready");
    if (reader->failed) return true;
    status = kvf_vllm_write_create(prepared, producer, producer_count, consumer, consumer_count, &write, &error);
    if (status == KVF_OK) {
        batch->wrote = batch->wrote || write;
        json_array_append_new(batch->ok, json_string(id));
        kvf_vllm_prepared_get_info(prepared, &info, &error);
        if (info.pulls_expected == 1) {
            json_array_append_new(batch->finished, json_string(answer_text(reader, own, "p_req_id")));
        }
        json_object_set_new(batch->requests, id, json_pack("{s:o}", "descriptors", expand(reader, write)));
    } else if (status != KVF_ERR_INCOMPATIBLE) {
        json_array_append_new(batch->failed, json_string(id));
        if (!batch->text[0]) memcpy(batch->text, error.text, sizeof batch->text);
        json_object_set_new(batch->requests, id, json_pack("{s:o}", "error", answer_string(error.text)));
    } else {
        memcpy(text, error.text, sizeof error.text);
    }
    kvf_vllm_write_destroy(write);
    return status != KVF_ERR_INCOMPATIBLE;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(json_string_value(*(json_t *const *)a), json_string_value(*(json_t *const *)b));
}

/* A list of texts in order. */
static json_t *sorted(struct answer_reader *reader, const json_t *list)
{
    size_t count = json_array_size(list);
    json_t **items = answer_take(reader, count, sizeof *items), *out = json_array();

    for (size_t i = 0; i < count; i++) items[i] = json_array_get(list, i);
    qsort(items, count, sizeof *items, compare_texts);
    for (size_t i = 0; i < count; i++) json_array_append(out, items[i]);
    return out;
}

static void tell(struct answer_reader *reader, const struct batch *batch, const struct kvf_vllm_peer *peer,
                 json_t *answer)
{
    json_t *reply = json_pack("{s:i}", "status", 0);

    if (json_array_size(batch->ok)) json_object_set_new(reply, "ok_reqs", sorted(reader, batch->ok));
    if (json_array_size(batch->failed)) {
        json_object_set_new(reply, "err_reqs", sorted(reader, batch->failed));
        json_object_set_new(reply, "err_msg", answer_string(batch->text));
    }
    json_object_set_new(answer, "reply", reply);
    json_object_set_new(answer, "by", json_string("reply"));
    json_object_set(answer, "requests", batch->requests);
    json_object_set_new(answer, "finished_sending", sorted(reader, batch->finished));
    if (batch->wrote) {
        char session[KVF_ERROR_TEXT_BYTES];

        snprintf(session, sizeof session, "%s:%lld", peer->hostname, (long long)peer->port);
        json_object_set_new(answer, "session", answer_string(session));
    }
}

static void answer_requests(struct answer_reader *reader, const json_t *input, const struct kvf_vllm_peer *peer,
                            const kvf_vllm_prepared *prepared, json_t *answer)
{
    const json_t *ready = answer_member(reader, json_object_get(input, "producer"), "ready");
    const json_t *requests = answer_member(reader, json_object_get(input, "pull"), "requests");
    struct batch batch = {json_object(), json_array(), json_array(), json_array(), "", false};
    char text[KVF_ERROR_TEXT_BYTES] = "";
    bool taken = true;

    for (size_t i = 0; i < json_array_size(requests) && taken && !reader->failed; i++) {
        taken = answer_request(reader, prepared, json_array_get(requests, i), ready, &batch, text);
    }
    if (taken) tell(reader, &batch, peer, answer);
    else refuse(answer, text);
    json_decref(batch.requests);
    json_decref(batch.ok);
    json_decref(batch.failed);
    json_decref(batch.finished);
}

void answer_plan(struct answer_reader *reader, const json_t *input, json_t *answer)
{
    kvf_vllm_producer *producer = read_producer(reader, answer_member(reader, input, "producer"));
    struct kvf_vllm_peer peer = read_peer(reader, answer_member(reader, input, "pull"));
    kvf_vllm_prepared *prepared = NULL;
    struct kvf_error error;

    if (reader->failed) goto done;
    if (kvfi_vllm_prepare(producer, &peer, &prepared, &error) != KVF_OK) {
        refuse(answer, error.text);
        goto done;
    }
    add_prepared(answer, prepared);
    if (prepared->refusal.status != KVF_OK) refuse(answer, prepared->refusal.text);
    else answer_requests(reader, input, &peer, prepared, answer);
done:
    kvf_vllm_prepared_release(prepared);
    kvf_vllm_producer_destroy(producer);
}
