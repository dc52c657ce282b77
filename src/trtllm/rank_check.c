/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank info must be to be one. What only shows between two ranks, or in a view's geometry, is left alone. */
#include <inttypes.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "trtllm/rank.h"
#include "wire/text.h"

static enum kvf_status check_range(const char *what, int64_t value, int64_t min, int64_t max, struct kvf_error *error)
{
    if (value < min || value > max)
        return kvfi_fail(error, KVF_ERR_LAYOUT, "rank info: %s is %" PRId64 ", expected %" PRId64 " to %" PRId64, what,
                         value, min, max);
    return KVF_OK;
}

static enum kvf_status check_text(const char *what, const char *text, struct kvf_error *error)
{
    if (!kvfi_text_is_clean(text, strlen(text)))
        return kvfi_fail(error, KVF_ERR_LAYOUT, "rank info: %s is not UTF-8 without control characters", what);
    return KVF_OK;
}

static enum kvf_status check_axis(const char *what, int64_t size, int64_t rank, struct kvf_error *error)
{
    if (size < 1 || size > KVF_TRTLLM_MAX_RANKS || rank < 0 || rank >= size)
        return kvfi_fail(error, KVF_ERR_LAYOUT,
                         "rank info: %s rank %" PRId64 " of %" PRId64 ", expected a rank inside a size of 1 to %d",
                         what, rank, size, KVF_TRTLLM_MAX_RANKS);
    return KVF_OK;
}

static enum kvf_status check_texts(const struct kvf_trtllm_rank_spec *spec, struct kvf_error *error)
{
    enum kvf_status status = check_text("the instance name", spec->instance_name, error);

    if (status == KVF_OK) status = check_text("the self endpoint", spec->self_endpoint, error);
    if (status == KVF_OK && spec->draft_kv_dtype) status = check_text("the draft dtype", spec->draft_kv_dtype, error);
    if (status == KVF_OK && spec->aux) status = check_text("the aux device", spec->aux->device, error);
    for (size_t i = 0; i < spec->sender_endpoint_count && status == KVF_OK; i++)
        status = check_text("a sender endpoint", spec->sender_endpoints[i], error);
    return status;
}

static enum kvf_status check_stages(const struct kvf_trtllm_rank_spec *spec, struct kvf_error *error)
{
    int64_t total = 0;

    if ((int64_t)spec->layer_num_count != spec->pp_size)
        return kvfi_fail(error, KVF_ERR_LAYOUT,
                         "rank info: %zu layer counts for %" PRId64 " pipeline stages, expected one each",
                         spec->layer_num_count, spec->pp_size);
    for (size_t i = 0; i < spec->layer_num_count; i++) {
        if (spec->layer_num_per_pp[i] < 0)
            return kvfi_fail(error, KVF_ERR_LAYOUT, "rank info: pipeline stage %zu has %" PRId64 " layers", i,
                             spec->layer_num_per_pp[i]);
        if (!kvfi_add_i64(total, spec->layer_num_per_pp[i], &total))
            return kvfi_fail(error, KVF_ERR_OVERFLOW, "rank info: the layers of all stages do not fit in 63 bits");
    }
    return KVF_OK;
}

static enum kvf_status check_attention(const struct kvf_trtllm_rank_spec *spec, struct kvf_error *error)
{
    const struct kvf_trtllm_attention *attention = spec->attention;
    int64_t bytes, heads;
    enum kvf_status status = check_range("kv_heads_per_rank", attention->kv_heads_per_rank, 0, INT64_MAX, error);

    if (status == KVF_OK)
        status = check_range("tokens_per_block", attention->tokens_per_block, 1, INT64_MAX, error);
    if (status == KVF_OK) status = check_range("dims_per_head", attention->dims_per_head, 0, INT64_MAX, error);
    if (status == KVF_OK) status = check_range("element_eighths", attention->element_eighths, 1, INT32_MAX, error);
    if (status == KVF_OK) status = check_range("enable_attention_dp", attention->enable_attention_dp, 0, 1, error);
    if (status == KVF_OK) status = check_range("is_mla", attention->is_mla, 0, 1, error);
    if (status != KVF_OK) goto done;
    if (attention->enable_attention_dp && spec->dp_size > spec->tp_size) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT,
                           "rank info: attention DP of %" PRId64 " groups over %" PRId64 " TP ranks, expected at most "
                           "one group per rank", spec->dp_size, spec->tp_size);
        goto done;
    }
    if (!kvfi_mul_i64(attention->tokens_per_block, attention->dims_per_head, &bytes) ||
        !kvfi_mul_i64(bytes, attention->element_eighths, &bytes) ||
        !kvfi_mul_i64(attention->kv_heads_per_rank, spec->tp_size, &heads))
        status = kvfi_fail(error, KVF_ERR_OVERFLOW, "rank info: the attention's sizes do not fit in 63 bits");
done:
    return status;
}

/* A value whose key is left out would be lost on the way. */
static enum kvf_status check_keys(const struct kvf_trtllm_rank_spec *spec, struct kvf_error *error)
{
    const char *lost = NULL;

    if (spec->keys > KVF_TRTLLM_HAS_ALL)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "rank info: keys is 0x%" PRIx64 ", at most 0x%x is known",
                         spec->keys, KVF_TRTLLM_HAS_ALL);
    if (!(spec->keys & KVF_TRTLLM_HAS_PROTOCOL_VERSION) && spec->protocol_version != KVF_TRTLLM_PROTOCOL_VERSION)
        lost = "protocol_version";
    if (!(spec->keys & KVF_TRTLLM_HAS_BOUNDED_REPLAY) && spec->bounded_replay_on_generation)
        lost = "bounded_replay_on_generation";
    if (!(spec->keys & KVF_TRTLLM_HAS_NUM_DRAFT_LAYERS) && spec->num_draft_layers) lost = "num_draft_layers";
    if (!(spec->keys & KVF_TRTLLM_HAS_DRAFT_KV_DTYPE) && spec->draft_kv_dtype) lost = "draft_kv_dtype";
    if (lost)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "rank info: %s is set, but keys leave it out", lost);
    return KVF_OK;
}

enum kvf_status kvfi_trt_rank_check(const struct kvf_trtllm_rank *rank, struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *spec = &rank->spec;
    enum kvf_status status = check_keys(spec, error);

    if (status == KVF_OK) status = check_texts(spec, error);
    if (status == KVF_OK) status = check_range("instance_rank", spec->instance_rank, 0, INT32_MAX, error);
    if (status == KVF_OK) status = check_range("device_id", spec->device_id, 0, INT32_MAX, error);
    if (status == KVF_OK) status = check_axis("tp", spec->tp_size, spec->tp_rank, error);
    if (status == KVF_OK) status = check_axis("pp", spec->pp_size, spec->pp_rank, error);
    if (status == KVF_OK) status = check_axis("dp", spec->dp_size, spec->dp_rank, error);
    if (status == KVF_OK) status = check_axis("cp", spec->cp_size, spec->cp_rank, error);
    if (status == KVF_OK) status = check_stages(spec, error);
    if (status == KVF_OK && spec->attention) status = check_attention(spec, error);
    if (status == KVF_OK)
        status = check_range("bounded_replay_on_generation", spec->bounded_replay_on_generation, 0, 1, error);
    if (status == KVF_OK)
        status = check_range("protocol_version", spec->protocol_version, INT32_MIN, INT32_MAX, error);
    if (status == KVF_OK) status = check_range("num_draft_layers", spec->num_draft_layers, 0, INT64_MAX, error);
    return status;
}
