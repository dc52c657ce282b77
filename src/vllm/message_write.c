/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls and replies: structs to bytes, as upstream's encoder writes them: keys in order, defaults left out. Everything
 * is written twice, first to measure it. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "vllm/message.h"
#include "wire/text.h"
#include "wire/values.h"

typedef struct kvfi_value_writer writer;

static enum kvf_status check_str(const char *text, const char *what, struct kvf_error *error)
{
    if (text == NULL) return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s is missing", what);
    if (!kvfi_text_is_utf8(text, strlen(text)))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s is not UTF-8", what);
    return KVF_OK;
}

static enum kvf_status check_size(size_t byte_count, struct kvf_error *error)
{
    if (byte_count > KVFI_VLLM_MAX_MESSAGE_BYTES)
        return kvfi_fail(error, KVF_ERR_LIMIT, "a message of the side channel would have %zu bytes, at most %d are "
                         "sent", byte_count, KVFI_VLLM_MAX_MESSAGE_BYTES);
    return KVF_OK;
}

static void put_ints(writer *out, const char *key, const int64_t *numbers, size_t count)
{
    kvfi_value_put_text(out, key);
    kvfi_value_put_array(out, count);
    kvfi_value_put_ints(out, numbers, count);
}

static void put_strs(writer *out, const char *key, const char *const *strs, size_t count)
{
    kvfi_value_put_text(out, key);
    kvfi_value_put_array(out, count);
    for (size_t i = 0; i < count; i++) kvfi_value_put_text(out, strs[i]);
}

static void put_lists(writer *out, const struct kvf_vllm_ids *lists, size_t count)
{
    kvfi_value_put_array(out, count);
    for (size_t i = 0; i < count; i++) {
        kvfi_value_put_array(out, lists[i].count);
        kvfi_value_put_ints(out, lists[i].ids, lists[i].count);
    }
}

/* ---- pulls: who asks ---------------------------------------------------------------------------------------- */

static void put_head(writer *out, const struct kvf_vllm_peer *peer)
{
    kvfi_value_put_map(out, 0); /* its count is set with each pull */
    kvfi_value_put_text(out, "remote_hostname");
    kvfi_value_put_text(out, peer->hostname);
    kvfi_value_put_text(out, "remote_port");
    kvfi_value_put_int(out, peer->port);
    kvfi_value_put_text(out, "remote_tp_size");
    kvfi_value_put_int(out, peer->tp_size);
    kvfi_value_put_text(out, "remote_tp_rank");
    kvfi_value_put_int(out, peer->tp_rank);
    kvfi_value_put_text(out, "req_blocks");
}

/* The five arrays that are left out when empty. Returns how many keys. */
static unsigned put_optional(writer *out, const struct kvf_vllm_arrays *arrays)
{
    if (arrays->layer_name_count)
        put_strs(out, "registered_layer_names", arrays->layer_names, arrays->layer_name_count);
    if (arrays->layer_index_count)
        put_ints(out, "registered_layer_indices", arrays->layer_indices, arrays->layer_index_count);
    if (arrays->group_index_count)
        put_ints(out, "registered_group_indices", arrays->group_indices, arrays->group_index_count);
    if (arrays->shared_group_count) {
        kvfi_value_put_text(out, "registered_shared_group_ids");
        put_lists(out, arrays->shared_groups, arrays->shared_group_count);
    }
    if (arrays->row_offset_count)
        put_ints(out, "registered_row_offsets", arrays->row_offsets, arrays->row_offset_count);
    return (unsigned)(!!arrays->layer_name_count + !!arrays->layer_index_count + !!arrays->group_index_count +
                      !!arrays->shared_group_count + !!arrays->row_offset_count);
}

/* All after the requests. Returns how many keys. */
static unsigned put_tail(writer *out, const struct kvf_vllm_peer *peer, const struct kvf_vllm_arrays *arrays)
{
    unsigned keys = 3;

    kvfi_value_put_text(out, "kv_caches_base_addr");
    kvfi_value_put_array(out, arrays->base_addr_count);
    for (size_t i = 0; i < arrays->base_addr_count; i++) kvfi_value_put_unsigned(out, arrays->base_addrs[i]);
    put_ints(out, "block_lens", arrays->block_lens, arrays->block_len_count);
    put_ints(out, "kv_block_lens", arrays->kv_block_lens, arrays->kv_block_len_count);
    keys += put_optional(out, arrays);
    if (peer->pp_size != 1) {
        kvfi_value_put_text(out, "remote_pp_size");
        kvfi_value_put_int(out, peer->pp_size);
        keys++;
    }
    if (peer->layout_id) {
        kvfi_value_put_text(out, "layout_id");
        kvfi_value_put_unsigned(out, peer->layout_id);
        keys++;
    }
    return keys;
}

static enum kvf_status check_arrays(const struct kvf_vllm_arrays *arrays, struct kvf_error *error)
{
    size_t count = arrays->base_addr_count;
    bool same = arrays->block_len_count == count && arrays->kv_block_len_count == count &&
                arrays->layer_name_count == count && arrays->layer_index_count == count;
    bool fit = (arrays->group_index_count == 0 || arrays->group_index_count == count) &&
               (arrays->shared_group_count == 0 || arrays->shared_group_count == count) &&
               (arrays->row_offset_count == 0 || arrays->row_offset_count == count);
    enum kvf_status status = KVF_OK;

    if (!same || !fit)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "regions to be sent have %zu base addresses, %zu and %zu "
                         "lengths, %zu names, %zu indices, %zu groups, %zu lists of shared groups and %zu row offsets",
                         count, arrays->block_len_count, arrays->kv_block_len_count, arrays->layer_name_count,
                         arrays->layer_index_count, arrays->group_index_count, arrays->shared_group_count,
                         arrays->row_offset_count);
    for (size_t i = 0; status == KVF_OK && i < count; i++)
        status = check_str(arrays->layer_names[i], "a layer's name to be sent", error);
    return status;
}

/* Writes the three parts behind each other, and their sizes. */
static void put_asker(writer *out, const struct kvf_vllm_peer *peer, struct kvfi_vllm_asker *asker)
{
    static const struct kvf_vllm_arrays none = {0};

    put_head(out, peer);
    asker->head_bytes = out->used;
    asker->full_first = (unsigned char)(0x80 | (5 + put_tail(out, peer, &peer->regions)));
    asker->full_bytes = out->used - asker->head_bytes;
    asker->short_bytes = 0;
    if (peer->layout_id == 0) return;
    asker->short_first = (unsigned char)(0x80 | (5 + put_tail(out, peer, &none)));
    asker->short_bytes = out->used - asker->head_bytes - asker->full_bytes;
}

enum kvf_status kvfi_vllm_asker_init(struct kvfi_vllm_asker *out, const struct kvf_vllm_peer *peer,
                                     struct kvf_error *error)
{
    struct kvfi_vllm_asker asker = {0};
    enum kvf_status status = check_str(peer->hostname, "a host name to be sent", error);
    writer measure = {0}, writer = {0};

    if (status == KVF_OK) status = check_arrays(&peer->regions, error);
    if (status != KVF_OK) return status;
    put_asker(&measure, peer, &asker);
    status = check_size(measure.used, error);
    if (status != KVF_OK) return status;
    asker.bytes = malloc(measure.used);
    if (asker.bytes == NULL) return kvfi_fail_memory(error, "a rank's part of its pulls");
    writer.out = asker.bytes;
    writer.capacity = measure.used;
    put_asker(&writer, peer, &asker);
    *out = asker;
    return KVF_OK;
}

void kvfi_vllm_asker_fini(struct kvfi_vllm_asker *asker)
{
    free(asker->bytes);
    *asker = (struct kvfi_vllm_asker){0};
}

/* ---- pulls: what is asked ----------------------------------------------------------------------------------- */

static void put_requests(writer *out, const struct kvfi_vllm_wanted *requests, size_t count)
{
    kvfi_value_put_map(out, count);
    for (size_t i = 0; i < count; i++) {
        kvfi_value_put_text(out, requests[i].d_req_id);
        kvfi_value_put_array(out, 2);
        kvfi_value_put_text(out, requests[i].transfer_id);
        put_lists(out, requests[i].groups, requests[i].group_count);
    }
}

static enum kvf_status check_requests(const struct kvfi_vllm_wanted *requests, size_t count, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; status == KVF_OK && i < count; i++) {
        status = check_str(requests[i].d_req_id, "a request's id to be sent", error);
        if (status == KVF_OK) status = check_str(requests[i].transfer_id, "a transfer id to be sent", error);
    }
    return status;
}

enum kvf_status kvfi_vllm_pull_encode(const struct kvfi_vllm_asker *asker, const struct kvfi_vllm_wanted *requests,
                                      size_t request_count, bool with_arrays, unsigned char **out, size_t *byte_count,
                                      struct kvf_error *error)
{
    const unsigned char *tail = asker->bytes + asker->head_bytes + (with_arrays ? 0 : asker->full_bytes);
    size_t tail_bytes = with_arrays ? asker->full_bytes : asker->short_bytes, total;
    enum kvf_status status = check_requests(requests, request_count, error);
    writer measure = {0}, writer = {0};
    unsigned char *bytes;

    if (status == KVF_OK && tail_bytes == 0)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "a pull without a layout id needs its arrays");
    if (status != KVF_OK) return status;
    put_requests(&measure, requests, request_count);
    if (!kvfi_add_size(measure.used, asker->head_bytes + tail_bytes, &total)) total = SIZE_MAX;
    status = check_size(total, error);
    if (status != KVF_OK) return status;
    bytes = malloc(total);
    if (bytes == NULL) return kvfi_fail_memory(error, "a pull");
    memcpy(bytes, asker->bytes, asker->head_bytes);
    bytes[0] = with_arrays ? asker->full_first : asker->short_first;
    writer.out = bytes + asker->head_bytes;
    writer.capacity = measure.used;
    put_requests(&writer, requests, request_count);
    memcpy(bytes + asker->head_bytes + measure.used, tail, tail_bytes);
    *out = bytes;
    *byte_count = total;
    return KVF_OK;
}

/* ---- replies ------------------------------------------------------------------------------------------------ */

static void put_reply(writer *out, const struct kvfi_vllm_reply *reply, const char *message)
{
    size_t keys = (size_t)(1 + !!reply->ok_count + !!reply->err_count + (message != NULL) + (reply->layout_id != 0));

    kvfi_value_put_map(out, keys);
    kvfi_value_put_text(out, "status");
    kvfi_value_put_int(out, reply->verdict);
    if (reply->ok_count) put_strs(out, "ok_reqs", reply->ok_reqs, reply->ok_count);
    if (reply->err_count) put_strs(out, "err_reqs", reply->err_reqs, reply->err_count);
    if (message != NULL) {
        kvfi_value_put_text(out, "err_msg");
        kvfi_value_put_text(out, message);
    }
    if (reply->layout_id) {
        kvfi_value_put_text(out, "layout_id");
        kvfi_value_put_unsigned(out, reply->layout_id);
    }
}

static enum kvf_status check_reply(const struct kvfi_vllm_reply *reply, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (reply->verdict < KVFI_VLLM_FINISH || reply->verdict > KVFI_VLLM_LAYOUT_MISS)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "a reply's verdict is %d, expected %d to %d",
                         (int)reply->verdict, KVFI_VLLM_FINISH, KVFI_VLLM_LAYOUT_MISS);
    for (size_t i = 0; status == KVF_OK && i < reply->ok_count; i++)
        status = check_str(reply->ok_reqs[i], "a request's id to be sent", error);
    for (size_t i = 0; status == KVF_OK && i < reply->err_count; i++)
        status = check_str(reply->err_reqs[i], "a request's id to be sent", error);
    return status;
}

enum kvf_status kvfi_vllm_reply_encode(const struct kvfi_vllm_reply *reply, unsigned char **out, size_t *byte_count,
                                       struct kvf_error *error)
{
    enum kvf_status status = check_reply(reply, error);
    writer measure = {0}, writer = {0};
    char *message = NULL;

    if (status != KVF_OK) goto done;
    if (reply->err_msg != NULL) {
        size_t capacity = strlen(reply->err_msg) + 1;

        message = malloc(capacity);
        if (message == NULL) {
            status = kvfi_fail_memory(error, "a reply");
            goto done;
        }
        kvfi_text_clean(reply->err_msg, message, capacity);
    }
    put_reply(&measure, reply, message);
    status = check_size(measure.used, error);
    if (status != KVF_OK) goto done;
    writer.out = malloc(measure.used);
    if (writer.out == NULL) {
        status = kvfi_fail_memory(error, "a reply");
        goto done;
    }
    writer.capacity = measure.used;
    put_reply(&writer, reply, message);
    *out = writer.out;
    *byte_count = writer.used;
done:
    free(message);
    return status;
}
