/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

enum kvf_status kvfi_vllm_tp_ratio(int64_t local, int64_t remote, int64_t *ratio, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (local < 1 || remote < 1) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "tensor parallel sizes %" PRId64 " (local) and %" PRId64 " (remote), expected 1 or more",
                           local, remote);
    } else if (local >= remote && local % remote != 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Local tensor parallel size %" PRId64 " is not divisible by remote tensor parallel size %"
                           PRId64 ".", local, remote);
    } else if (local < remote && remote % local != 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Remote tensor parallel size %" PRId64 " is not divisible by local tensor parallel size %"
                           PRId64 ".", remote, local);
    } else {
        *ratio = local >= remote ? local / remote : -(remote / local);
    }
    return status;
}

enum kvf_status kvfi_vllm_target_ranks(int64_t tp_rank, int64_t tp_size, int64_t other_tp_size, int64_t *first,
                                       int64_t *count, struct kvf_error *error)
{
    int64_t ratio = 0, product = 0;
    enum kvf_status status = kvfi_vllm_tp_ratio(tp_size, other_tp_size, &ratio, error);

    if (status) goto done;
    if (ratio > 0) {
        *first = tp_rank / ratio;
        *count = 1;
    } else if (kvfi_mul_i64(tp_rank, -ratio, &product)) {
        *first = product;
        *count = -ratio;
    } else {
        status = kvfi_fail(error, KVF_ERR_OVERFLOW,
                           "the ranks of TP size %" PRId64 " that rank %" PRId64 " of %" PRId64 " meets do not fit",
                           other_tp_size, tp_rank, tp_size);
    }
done:
    return status;
}

enum kvf_status kvfi_vllm_need_send(int64_t targets, int64_t remote_pp_size, int64_t pp_size, int64_t *need_send,
                                    struct kvf_error *error)
{
    int64_t stages = remote_pp_size > 1 && remote_pp_size != pp_size ? remote_pp_size : 1;
    enum kvf_status status = KVF_OK;

    if (!kvfi_mul_i64(targets, stages, need_send)) {
        status = kvfi_fail(error, KVF_ERR_OVERFLOW,
                           "%" PRId64 " ranks in each of %" PRId64 " pipeline stages do not fit", targets, stages);
    }
    return status;
}

/** Writes ranks as upstream prints a list; what does not fit is left out at the end. */
static void print_ranks(char *text, size_t capacity, int64_t first, int64_t count)
{
    size_t at = 0;

    for (int64_t i = 0; i < count && at < capacity; i++) {
        int written = snprintf(text + at, capacity - at, "%s%" PRId64, i ? ", " : "", first + i);

        at += written > 0 ? (size_t)written : 0;
    }
}

enum kvf_status kvfi_vllm_check_paired(const struct kvfi_vllm_ranks *ranks, struct kvf_error *error)
{
    int64_t first = 0, count = 0;
    enum kvf_status status = kvfi_vllm_target_ranks(ranks->tp_rank, ranks->tp_size, ranks->remote_tp_size, &first,
                                                    &count, error);

    if (status == KVF_OK && (ranks->remote_tp_rank < first || ranks->remote_tp_rank >= first + count)) {
        char list[KVF_ERROR_TEXT_BYTES] = "";

        print_ranks(list, sizeof list, first, count);
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "This D tp_rank %" PRId64 " is not paired with P tp_rank %" PRId64
                           "; expected one of [%s].", ranks->remote_tp_rank, ranks->tp_rank, list);
    }
    return status;
}

/** Exactly one side keeps heads more than once: one head goes, from where it is to where it belongs. */
static bool cut_one_head(const struct kvfi_vllm_ranks *ranks, int64_t local_bytes, struct kvfi_vllm_cut *out)
{
    int64_t heads = ranks->total_heads, local_head, remote_head;
    int64_t copies = larger(ranks->tp_size / heads, 1);
    bool fits = kvfi_mul_i64(ranks->tp_rank, heads, &local_head) &&
                kvfi_mul_i64(ranks->remote_tp_rank, heads, &remote_head);

    if (!fits) goto done;
    local_head /= ranks->tp_size;
    remote_head /= ranks->remote_tp_size;
    out->sends = ranks->tp_rank % copies == 0;
    out->bytes = local_bytes / larger(heads / ranks->tp_size, 1);
    fits = kvfi_mul_i64(larger(remote_head - local_head, 0), out->bytes, &out->src_offset_bytes) &&
           kvfi_mul_i64(larger(local_head - remote_head, 0), out->bytes, &out->dst_offset_bytes);
done:
    return fits;
}

enum kvf_status kvfi_vllm_sender_plan(const struct kvfi_vllm_ranks *ranks, int64_t local_bytes, int64_t remote_bytes,
                                      struct kvfi_vllm_cut *out, struct kvf_error *error)
{
    struct kvfi_vllm_cut cut = {.sends = true, .bytes = local_bytes};
    bool fits = true, remote_replicated = ranks->remote_tp_size > ranks->total_heads;
    int64_t ratio = 0;
    enum kvf_status status = kvfi_vllm_tp_ratio(ranks->tp_size, ranks->remote_tp_size, &ratio, error);

    if (status) goto done;
    if (ratio == 1) {
        /* equal sizes: all of it */
    } else if (ranks->total_heads > 0 && ranks->replicated != remote_replicated) {
        fits = cut_one_head(ranks, local_bytes, &cut);
    } else if (ranks->replicated) {
        cut.sends = ratio < 0 || ranks->tp_rank % ratio == 0;
    } else if (ratio > 0) {
        fits = kvfi_mul_i64(ranks->tp_rank % ratio, local_bytes, &cut.dst_offset_bytes);
    } else {
        cut.bytes = remote_bytes;
        fits = kvfi_mul_i64(ranks->remote_tp_rank % -ratio, remote_bytes, &cut.src_offset_bytes);
    }
    if (!fits) {
        status = kvfi_fail(error, KVF_ERR_OVERFLOW,
                           "payloads of %" PRId64 " and %" PRId64 " bytes: the place of TP rank %" PRId64 " of %" PRId64
                           " does not fit", local_bytes, remote_bytes, ranks->remote_tp_rank, ranks->remote_tp_size);
        goto done;
    }
    *out = cut;
done:
    return status;
}

/** offset + bytes <= limit, for numbers whose sum may not fit. */
static bool within(int64_t offset, int64_t bytes, int64_t limit)
{
    int64_t end;

    return kvfi_add_i64(offset, bytes, &end) && end <= limit;
}

enum kvf_status kvfi_vllm_check_cut(const struct kvfi_vllm_cut *cut, int64_t local_bytes, int64_t remote_bytes,
                                    struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (!within(cut->src_offset_bytes, cut->bytes, local_bytes)) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Computed source transfer region exceeds local KV block size.");
    } else if (!within(cut->dst_offset_bytes, cut->bytes, remote_bytes)) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "Destination transfer region exceeds remote KV block size.");
    }
    return status;
}

/** Refuses a pair of payloads whose lengths are not in the ratio of the shards. */
static enum kvf_status check_length(int64_t ratio, size_t index, int64_t local, int64_t remote,
                                    struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    int64_t product;

    if (ratio == 1 && local != remote) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Mooncake KV region length mismatch for homogeneous TP at region %zu: local=%" PRId64
                           ", remote=%" PRId64 ".", index, local, remote);
    } else if (ratio > 1 && !(kvfi_mul_i64(local, ratio, &product) && product == remote)) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Mooncake destination KV region length does not match the producer TP ratio at region %zu: "
                           "local=%" PRId64 ", remote=%" PRId64 ", tp_ratio=%" PRId64 ".",
                           index, local, remote, ratio);
    } else if (ratio < 0 && !(kvfi_mul_i64(remote, -ratio, &product) && product == local)) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Mooncake source KV region length does not match the consumer TP ratio at region %zu: "
                           "local=%" PRId64 ", remote=%" PRId64 ", tp_ratio=%" PRId64 ".",
                           index, local, remote, ratio);
    }
    return status;
}

enum kvf_status kvfi_vllm_check_lengths(const struct kvfi_vllm_ranks *ranks, const struct kvf_vllm_region *local,
                                        size_t local_count, const struct kvf_vllm_region *remote, size_t remote_count,
                                        struct kvf_error *error)
{
    int64_t local_size = ranks->tp_size, remote_size = ranks->remote_tp_size, ratio;
    enum kvf_status status = KVF_OK;

    if (local_count != remote_count) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "Mooncake asymmetric TP requires matching KV region counts "
                           "between producer and consumer.");
        goto done;
    }
    if (ranks->total_heads == 0 && ranks->replicated) goto done;
    if (ranks->total_heads > 0) {
        /* Ranks beyond the heads repeat what others have. */
        local_size = smaller(local_size, ranks->total_heads);
        remote_size = smaller(remote_size, ranks->total_heads);
    }
    status = kvfi_vllm_tp_ratio(local_size, remote_size, &ratio, error);
    for (size_t i = 0; i < local_count && !status; i++) {
        status = check_length(ratio, i, local[i].kv_block_len, remote[i].kv_block_len, error);
    }
done:
    return status;
}

bool kvfi_vllm_has_opaque_row(const struct kvf_vllm_arrays *arrays)
{
    size_t count = arrays->row_offset_count;
    bool found = false;

    if (count != arrays->kv_block_len_count || count != arrays->block_len_count) return false;
    for (size_t i = 0; i < count && !found; i++) {
        found = arrays->row_offsets[i] == 0 && arrays->kv_block_lens[i] == arrays->block_lens[i];
    }
    return found;
}

bool kvfi_vllm_pp_hides_layers(int64_t pp_size, int64_t remote_pp_size, bool local_has_opaque_row,
                               const struct kvf_vllm_arrays *remote)
{
    return pp_size != remote_pp_size && (local_has_opaque_row || kvfi_vllm_has_opaque_row(remote));
}

static int compare_name(const void *key, const void *element)
{
    return strcmp(key, ((const struct kvf_vllm_layer *)element)->name);
}

enum kvf_status kvfi_vllm_check_heads(const struct kvfi_vllm_ranks *ranks, const struct kvf_vllm_region *local,
                                      size_t local_count, const struct kvf_vllm_layer *layers, size_t layer_count,
                                      struct kvf_error *error)
{
    int64_t heads = ranks->total_heads;
    enum kvf_status status = KVF_OK;

    if (heads == 0 || smaller(ranks->tp_size, heads) == smaller(ranks->remote_tp_size, heads)) goto done;
    for (size_t i = 0; i < local_count && !status; i++) {
        const char *name = local[i].layer_name;
        const struct kvf_vllm_layer *layer = layer_count ? bsearch(name, layers, layer_count, sizeof *layers,
                                                                   compare_name) : NULL;

        if (!layer || layer->kind == KVF_VLLM_NO_SPEC) {
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                               "layer %s: its heads would be cut or joined, and nothing is known of its pages", name);
        } else if (layer->kind != KVF_VLLM_MAMBA && layer->page_bytes > layer->unpadded_page_bytes) {
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                               "Mooncake KV-head re-sharding is not supported for padded KV pages (layer %s).", name);
        } else if (layer->kind != KVF_VLLM_MAMBA && layer->is_nvfp4) {
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                               "Mooncake KV-head re-sharding is not supported for NVFP4 KV cache.");
        }
    }
done:
    return status;
}
