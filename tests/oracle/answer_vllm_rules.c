/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of pairing one by one: who sends what, lengths, ranks; and the runs of adjacent blocks. */
#include "answer_vllm.h"

#include <string.h>

#include "vllm/rules.h"

/* A member that may be null: 0 then, which stands for "heads do not matter". */
static int64_t optional(struct answer_reader *reader, const json_t *object, const char *key)
{
    return json_is_null(json_object_get(object, key)) ? 0 : answer_int(reader, object, key);
}

static void add_problem(json_t *answer, enum kvf_status status, const struct kvf_error *error)
{
    json_object_set_new(answer, "error", status == KVF_OK ? json_null() : answer_string(error->text));
}

void answer_sender_plan(struct answer_reader *reader, const json_t *input, json_t *answer)
{
    struct kvfi_vllm_ranks ranks = {
        .tp_rank = answer_int(reader, input, "local_tp_rank"),
        .tp_size = answer_int(reader, input, "local_tp_size"),
        .remote_tp_rank = answer_int(reader, input, "remote_tp_rank"),
        .remote_tp_size = answer_int(reader, input, "remote_tp_size"),
        .replicated = answer_bool(reader, input, "producer_cache_replicated"),
        .total_heads = optional(reader, input, "total_num_kv_heads"),
    };
    int64_t local = answer_int(reader, input, "local_kv_block_len");
    int64_t remote = answer_int(reader, input, "remote_kv_block_len");
    struct kvfi_vllm_cut cut;
    struct kvf_error error;

    if (reader->failed) return;
    if (kvfi_vllm_sender_plan(&ranks, local, remote, &cut, &error) == KVF_OK) {
        json_object_set_new(answer, "plan",
                            json_pack("[b, I, I, I]", (int)cut.sends, (json_int_t)cut.src_offset_bytes,
                                      (json_int_t)cut.dst_offset_bytes, (json_int_t)cut.bytes));
    } else {
        answer_error(answer, error.text);
    }
}

/* Regions that have a length each and nothing else. */
static struct kvf_vllm_region *with_lengths(struct answer_reader *reader, struct kvf_vllm_ids lengths)
{
    struct kvf_vllm_region *out = answer_take(reader, lengths.count, sizeof *out);

    for (size_t i = 0; i < lengths.count; i++) out[i].kv_block_len = lengths.ids[i];
    return out;
}

void answer_validate(struct answer_reader *reader, const json_t *input, json_t *answer)
{
    struct kvf_vllm_ids local = answer_ids(reader, input, "local_kv_block_lens");
    struct kvf_vllm_ids remote = answer_ids(reader, input, "remote_kv_block_lens");
    struct kvfi_vllm_ranks ranks = {
        .tp_size = answer_int(reader, input, "local_tp_size"),
        .remote_tp_size = answer_int(reader, input, "remote_tp_size"),
        .replicated = answer_bool(reader, input, "producer_cache_replicated"),
        .total_heads = optional(reader, input, "total_num_kv_heads"),
    };
    struct kvf_error error = {0};
    enum kvf_status status;

    if (reader->failed) return;
    status = kvfi_vllm_check_lengths(&ranks, with_lengths(reader, local), local.count, with_lengths(reader, remote),
                                     remote.count, &error);
    add_problem(answer, status, &error);
}

void answer_ranks(struct answer_reader *reader, const json_t *input, json_t *answer)
{
    int64_t rank = answer_int(reader, input, "own_tp_rank"), size = answer_int(reader, input, "own_tp_size");
    int64_t other = answer_int(reader, input, "other_tp_size"), own_pp = answer_int(reader, input, "own_pp_size");
    int64_t other_pp = answer_int(reader, input, "other_pp_size"), first, count, need;
    struct kvf_error error;
    enum kvf_status status;
    json_t *list;

    if (reader->failed) return;
    status = kvfi_vllm_target_ranks(rank, size, other, &first, &count, &error);
    if (status == KVF_OK) status = kvfi_vllm_need_send(count, other_pp, own_pp, &need, &error);
    if (status == KVF_OK && count <= 1 << 20) {
        list = json_array();
        for (int64_t i = 0; i < count; i++) json_array_append_new(list, json_integer(first + i));
        json_object_set_new(answer, "target_ranks", list);
        json_object_set_new(answer, "need_send", json_integer(need));
    } else {
        answer_error(answer, status == KVF_OK ? "too many ranks to list" : error.text);
    }
}

/* A pair of ranks with one region of one byte per block at address 0 on either side: descriptors are runs of ids. */
static kvf_vllm_prepared *prepare_bytes(struct answer_reader *reader)
{
    static const uint64_t base = 0;
    static const int64_t one = 1, none = 0;
    static const char *const name = "layers.0";
    static const int32_t kind = KVF_VLLM_ATTENTION;
    struct kvf_vllm_producer_spec spec;
    struct kvf_vllm_peer peer;
    kvf_vllm_producer *producer = NULL;
    kvf_vllm_prepared *prepared = NULL;
    struct kvf_error error;

    kvf_vllm_producer_spec_init(&spec, sizeof spec);
    spec.total_kv_heads = 1;
    spec.group_kinds = &kind;
    spec.group_count = 1;
    spec.regions = (struct kvf_vllm_arrays){.base_addrs = &base, .base_addr_count = 1, .block_lens = &one,
                                            .block_len_count = 1, .kv_block_lens = &one, .kv_block_len_count = 1,
                                            .layer_names = &name, .layer_name_count = 1, .layer_indices = &none,
                                            .layer_index_count = 1};
    kvf_vllm_peer_init(&peer, sizeof peer);
    peer.hostname = "consumer";
    peer.regions = spec.regions;
    if (kvf_vllm_producer_create(&spec, &producer, &error) != KVF_OK ||
        kvf_vllm_prepare(producer, &peer, &prepared, &error) != KVF_OK)
        answer_wrong(reader, "%s", error.text);
    kvf_vllm_producer_destroy(producer);
    return prepared;
}

static json_t *run_of(uint64_t first, int64_t count)
{
    json_t *run = json_array();

    for (int64_t i = 0; i < count; i++) json_array_append_new(run, json_integer((json_int_t)first + i));
    return run;
}

void answer_runs(struct answer_reader *reader, const json_t *input, json_t *answer)
{
    struct kvf_vllm_ids src = answer_ids(reader, input, "src"), dst = answer_ids(reader, input, "dst");
    kvf_vllm_prepared *prepared = reader->failed ? NULL : prepare_bytes(reader);
    json_t *src_runs = json_array(), *dst_runs = json_array();
    struct kvf_vllm_descriptor descriptor;
    kvf_vllm_write *write = NULL;
    struct kvf_error error;

    if (prepared && kvf_vllm_write_create(prepared, &src, 1, &dst, 1, &write, &error) != KVF_OK) {
        answer_wrong(reader, "%s", error.text);
    }
    while (kvf_vllm_write_next(write, &descriptor, 1) > 0) {
        json_array_append_new(src_runs, run_of(descriptor.src_address, descriptor.bytes));
        json_array_append_new(dst_runs, run_of(descriptor.dst_address, descriptor.bytes));
    }
    json_object_set_new(answer, "src", src_runs);
    json_object_set_new(answer, "dst", dst_runs);
    kvf_vllm_write_destroy(write);
    kvf_vllm_prepared_release(prepared);
}
