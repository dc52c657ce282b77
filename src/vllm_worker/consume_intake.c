/* SPDX-License-Identifier: Apache-2.0 */
/* A step's requests: checked, and made into orders, before anything of them begins. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "vllm_worker/consume.h"
#include "wire/text.h"

struct kvfi_vllm_recv_intake {
    struct kvfi_vllm_order *first, *last;
};

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static enum kvf_status check_text(const char *text, const char *field, size_t index, size_t most,
                                  struct kvf_error *error)
{
    size_t bytes;

    if (text == NULL || text[0] == '\0')
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "recvs[%zu]: %s is empty", index, field);
    bytes = strnlen(text, most);
    if (bytes >= most)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "recvs[%zu]: %s has %zu bytes or more, at most %zu", index,
                         field, bytes, most - 1);
    if (!kvfi_text_is_utf8(text, bytes))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "recvs[%zu]: %s is not UTF-8", index, field);
    return KVF_OK;
}

static enum kvf_status check_ids(const struct kvf_vllm_recv *recv, size_t index, size_t *ids, struct kvf_error *error)
{
    *ids = 0;
    if (recv->groups == NULL && recv->group_count > 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "recvs[%zu]: groups is NULL, their count is %zu", index,
                         recv->group_count);
    for (size_t i = 0; i < recv->group_count; i++) {
        const struct kvf_vllm_ids *group = &recv->groups[i];

        if (group->ids == NULL && group->count > 0)
            return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "recvs[%zu]: ids of group %zu are NULL, their count is "
                             "%zu", index, i, group->count);
        for (size_t k = 0; k < group->count; k++)
            if (group->ids[k] < 0)
                return kvfi_fail(error, KVF_ERR_IDS, "recvs[%zu]: group %zu, block id %zu is %" PRId64 ", expected 0 "
                                 "or more", index, i, k, group->ids[k]);
        if (!kvfi_add_size(*ids, group->count, ids))
            return kvfi_fail(error, KVF_ERR_OVERFLOW, "recvs[%zu]: too many block ids", index);
    }
    return KVF_OK;
}

static enum kvf_status check(const kvf_vllm_worker *worker, const struct kvf_vllm_recv *recv, size_t index,
                             size_t *ids, struct kvf_error *error)
{
    const struct kvfi_vllm_consumer *consumer = worker->consumer;
    size_t known = consumer->wants.count + consumer->over_count;
    enum kvf_status status = check_text(recv->d_req_id, "d_req_id", index, KVF_VLLM_ID_BYTES, error);

    if (status == KVF_OK)
        status = check_text(recv->transfer_id, "transfer_id", index, KVF_VLLM_ID_BYTES, error);
    if (status == KVF_OK)
        status = check_text(recv->remote_engine_id, "remote_engine_id", index, KVF_VLLM_ID_BYTES, error);
    if (status == KVF_OK)
        status = check_text(recv->remote_bootstrap_addr, "remote_bootstrap_addr", index, KVF_VLLM_ADDRESS_BYTES, error);
    if (status == KVF_OK)
        status = check_ids(recv, index, ids, error);
    if (status != KVF_OK)
        return status;
    if (kvfi_table_find(&consumer->wants, recv->d_req_id, strlen(recv->d_req_id)) != NULL)
        return kvfi_fail(error, KVF_ERR_EXISTS, "recvs[%zu]: d_req_id %.300s is being fetched already", index,
                         recv->d_req_id);
    if (known >= (size_t)worker->options.max_transfers)
        return kvfi_fail(error, KVF_ERR_LIMIT, "recvs[%zu]: %zu requests are known already, at most max_transfers %"
                         PRId64, index, known, worker->options.max_transfers);
    return KVF_OK;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Copies the lists behind the lists' heads. */
static const struct kvf_vllm_ids *copy_groups(const struct kvf_vllm_recv *recv, struct kvf_vllm_ids *groups)
{
    int64_t *ids = (int64_t *)(void *)(groups + recv->group_count);

    for (size_t i = 0; i < recv->group_count; i++) {
        groups[i] = (struct kvf_vllm_ids){.ids = ids, .count = recv->groups[i].count};
        if (groups[i].count > 0)
            memcpy(ids, recv->groups[i].ids, groups[i].count * sizeof *ids);
        ids += groups[i].count;
    }
    return groups;
}

static struct kvfi_vllm_want *make_want(kvf_vllm_worker *worker, const struct kvf_vllm_recv *recv, size_t ids)
{
    size_t request_bytes = strlen(recv->d_req_id) + 1, transfer_bytes = strlen(recv->transfer_id) + 1;
    size_t heads, lists, bytes;
    struct kvfi_vllm_want *want;
    char *texts;

    if (!kvfi_mul_size(recv->group_count, sizeof(struct kvf_vllm_ids), &heads) ||
        !kvfi_mul_size(ids, sizeof(int64_t), &lists) || !kvfi_add_size(heads, lists, &bytes) ||
        !kvfi_add_size(bytes, sizeof *want + request_bytes + transfer_bytes, &bytes))
        return NULL;
    want = malloc(bytes);
    if (want == NULL)
        return NULL;
    memset(want, 0, sizeof *want);
    want->groups = copy_groups(recv, (struct kvf_vllm_ids *)(void *)(want + 1));
    want->group_count = recv->group_count;
    want->block_count = ids;
    texts = (char *)(want + 1) + heads + lists;
    want->d_req_id = memcpy(texts, recv->d_req_id, request_bytes);
    want->transfer_id = memcpy(texts + request_bytes, recv->transfer_id, transfer_bytes);
    kvfi_vllm_want_init(want, worker);
    return want;
}

static struct kvfi_vllm_order *make_order(kvf_vllm_worker *worker, const struct kvf_vllm_recv *recv)
{
    struct kvfi_vllm_order *order = kvfi_alloc_zeroed(1, sizeof *order);

    if (order == NULL)
        return NULL;
    order->worker = worker;
    order->bootstrap = kvfi_text_copy(recv->remote_bootstrap_addr);
    if (order->bootstrap != NULL)
        return order;
    free(order);
    return NULL;
}

/* The order of an engine. */
static enum kvf_status order_of(kvf_vllm_worker *worker, struct kvfi_vllm_recv_intake *intake,
                                const struct kvf_vllm_recv *recv, struct kvfi_vllm_order **out,
                                struct kvf_error *error)
{
    struct kvfi_vllm_remote *remote;
    struct kvfi_vllm_order *order = NULL;
    enum kvf_status status = kvfi_vllm_remote_get(worker, recv->remote_engine_id, &remote, error);

    if (status != KVF_OK)
        return status;
    for (order = intake->first; order != NULL && order->remote != remote; order = order->next) { }
    if (order == NULL) {
        order = make_order(worker, recv);
        if (order == NULL)
            return kvfi_fail_memory(error, "a step's requests of one engine");
        order->remote = remote;
        remote->uses++;
        *(intake->last == NULL ? &intake->first : &intake->last->next) = order;
        intake->last = order;
    }
    *out = order;
    return KVF_OK;
}

static enum kvf_status add(kvf_vllm_worker *worker, struct kvfi_vllm_recv_intake *intake,
                           const struct kvf_vllm_recv *recv, size_t index, struct kvf_error *error)
{
    struct kvfi_vllm_order *order = NULL;
    struct kvfi_vllm_want *want;
    size_t ids = 0;
    enum kvf_status status = check(worker, recv, index, &ids, error);

    if (status == KVF_OK)
        status = order_of(worker, intake, recv, &order, error);
    if (status != KVF_OK)
        return status;
    want = make_want(worker, recv, ids);
    if (want == NULL || !kvfi_array_grow((void **)&order->wants, order->want_count, &order->want_capacity,
                                         sizeof(struct kvfi_vllm_want *))) {
        free(want);
        return kvfi_fail_memory(error, "a request to be fetched");
    }
    want->order = order;
    want->index = order->want_count;
    order->wants[order->want_count++] = want;
    order->wants_left++;
    kvfi_table_insert(&worker->consumer->wants, &want->link, want->d_req_id, strlen(want->d_req_id));
    return KVF_OK;
}

/* Who asks: all of a pull but its requests. */
static enum kvf_status make_asker(kvf_vllm_worker *worker, struct kvf_error *error)
{
    struct kvfi_vllm_consumer *consumer = worker->consumer;
    struct kvf_vllm_peer peer;
    enum kvf_status status;

    if (consumer->asker_made)
        return KVF_OK;
    kvf_vllm_peer_init(&peer, sizeof peer);
    peer.hostname = worker->engine_host;
    peer.port = kvfi_vllm_worker_rpc_port(worker);
    peer.tp_size = worker->options.tp_size;
    peer.tp_rank = worker->options.tp_rank;
    peer.pp_size = worker->options.pp_size;
    kvf_vllm_regions_arrays(worker->regions, &peer.regions);
    peer.layout_id = worker->layout_id;
    status = kvfi_vllm_asker_init(&consumer->asker, &peer, error);
    consumer->asker_made = status == KVF_OK;
    return status;
}

/* ---- the two parts ---------------------------------------------------------------------------------------------- */

enum kvf_status kvfi_vllm_consumer_prepare(kvf_vllm_worker *worker, const struct kvf_vllm_step *step,
                                           struct kvfi_vllm_recv_intake **out, struct kvf_error *error)
{
    struct kvfi_vllm_recv_intake *intake = kvfi_alloc_zeroed(1, sizeof *intake);
    enum kvf_status status = KVF_OK;

    if (intake == NULL)
        return kvfi_fail_memory(error, "a step's requests");
    if (step->recv_count > 0)
        status = make_asker(worker, error);
    for (size_t i = 0; status == KVF_OK && i < step->recv_count; i++)
        status = add(worker, intake, &step->recvs[i], i, error);
    if (status == KVF_OK)
        *out = intake;
    else
        kvfi_vllm_consumer_abandon(worker, intake);
    return status;
}

void kvfi_vllm_consumer_begin(kvf_vllm_worker *worker, struct kvfi_vllm_recv_intake *intake)
{
    struct kvfi_vllm_order *order = intake->first;

    while (order != NULL) {
        struct kvfi_vllm_order *next = order->next;

        order->next = NULL;
        kvfi_vllm_remote_need(order);
        order = next;
    }
    free(intake);
    kvfi_vllm_consume_sweep(worker);
}

void kvfi_vllm_consumer_abandon(kvf_vllm_worker *worker, struct kvfi_vllm_recv_intake *intake)
{
    struct kvfi_vllm_order *order = intake->first;

    while (order != NULL) {
        struct kvfi_vllm_order *next = order->next;

        for (size_t i = 0; i < order->want_count; i++) {
            kvfi_table_remove(&worker->consumer->wants, &order->wants[i]->link);
            free(order->wants[i]);
        }
        kvfi_vllm_order_free(order);
        order = next;
    }
    free(intake);
}
