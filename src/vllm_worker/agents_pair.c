/* SPDX-License-Identifier: Apache-2.0 */
/* Which workers of an engine an order asks. */
#include <inttypes.h>
#include <stdio.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "vllm/rules.h"
#include "vllm_worker/consume.h"

/** Workers of one TP rank that are asked. */
struct chosen {
    const struct kvfi_vllm_engine_worker *workers;
    size_t count;
};

/* Where both sides have as many stages, stage meets stage; otherwise each meets all. Of a rank that lacks stages, only
 * a part of the layers would come. */
static enum kvf_status choose(const kvf_vllm_worker *worker, const struct kvfi_vllm_engine *engine, int64_t tp_rank,
                              struct chosen *out, struct kvf_error *error)
{
    const struct kvf_vllm_worker_options *own = &worker->options;
    const struct kvfi_vllm_engine_worker *first = NULL;
    size_t count = kvfi_vllm_engine_of_tp(engine, tp_rank, &first);

    if (count == 0)
        return kvfi_fail(error, KVF_ERR_INCOMPLETE, "remote engine_id %.300s has no worker of TP rank %" PRId64
                         ": %" PRId64 " TP ranks are registered", engine->engine_id, tp_rank, engine->tp_size);
    if ((int64_t)count != engine->pp_size || first[count - 1].pp_rank != engine->pp_size - 1)
        return kvfi_fail(error, KVF_ERR_INCOMPLETE, "remote engine_id %.300s is not complete: of TP rank %" PRId64
                         " %zu PP ranks are registered, the last one %" PRId64 ", of others %" PRId64,
                         engine->engine_id, tp_rank, count, first[count - 1].pp_rank, engine->pp_size);
    *out = (struct chosen){.workers = first, .count = count};
    if (own->pp_size == (int64_t)count)
        *out = (struct chosen){.workers = first + own->pp_rank, .count = 1};
    return KVF_OK;
}

static enum kvf_status count_all(const kvf_vllm_worker *worker, const struct kvfi_vllm_engine *engine, int64_t first,
                                 int64_t count, size_t *total, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct chosen chosen;

    *total = 0;
    for (int64_t rank = first; status == KVF_OK && rank < first + count; rank++) {
        status = choose(worker, engine, rank, &chosen, error);
        *total += status == KVF_OK ? chosen.count : 0;
    }
    return status;
}

/* Takes the memory of an order's fetches. */
static enum kvf_status make(struct kvfi_vllm_order *order, size_t count, struct kvf_error *error)
{
    size_t writers;

    if (!kvfi_mul_size(order->want_count, count, &writers))
        return kvfi_fail(error, KVF_ERR_OVERFLOW, "%zu requests of %zu workers", order->want_count, count);
    order->fetches = kvfi_alloc_zeroed(count, sizeof *order->fetches);
    order->writers = kvfi_alloc_zeroed(writers, sizeof *order->writers);
    if (order->fetches == NULL || order->writers == NULL)
        return kvfi_fail_memory(error, "the pulls of a step");
    for (size_t i = 0; i < writers; i++)
        kvfi_writer_init(&order->writers[i]);
    return KVF_OK;
}

static enum kvf_status fill(struct kvfi_vllm_order *order, int64_t first, int64_t count, size_t total,
                            struct kvf_error *error)
{
    enum kvf_status status = make(order, total, error);
    struct chosen chosen = {0};
    size_t at = 0;

    if (status != KVF_OK)
        return status;
    for (int64_t rank = first; rank < first + count; rank++) {
        choose(order->worker, order->engine, rank, &chosen, error);
        for (size_t i = 0; i < chosen.count && at < total; i++, at++)
            order->fetches[at] = (struct kvfi_vllm_fetch){.order = order, .index = at,
                                                          .address = chosen.workers[i].address,
                                                          .owed = order->wants_left};
    }
    order->fetch_count = order->fetches_left = total;
    return KVF_OK;
}

void kvfi_vllm_order_ask(struct kvfi_vllm_order *order)
{
    const struct kvf_vllm_worker_options *own = &order->worker->options;
    int64_t first = 0, count = 0;
    struct kvf_error error;
    size_t total = 0;
    enum kvf_status status = kvfi_vllm_target_ranks(own->tp_rank, own->tp_size, order->engine->tp_size, &first, &count,
                                                    &error);

    if (status == KVF_OK)
        status = count_all(order->worker, order->engine, first, count, &total, &error);
    if (status == KVF_OK)
        status = fill(order, first, count, total, &error);
    if (status != KVF_OK) {
        kvfi_vllm_order_fail(order, status, error.text);
        return;
    }
    for (size_t i = 0; i < order->want_count; i++) {
        struct kvfi_vllm_want *want = order->wants[i];

        want->must_arrive = own->check_grants && own->check_arrivals && want->block_count > 0;
        kvfi_vllm_want_step(want, KVFI_TRANSFER_ON_RESOLVED, 0);
        kvfi_vllm_want_step(want, KVFI_TRANSFER_ON_JOINED, (int64_t)total + want->must_arrive);
    }
    for (size_t i = 0; i < total; i++)
        kvfi_vllm_fetch_begin(&order->fetches[i]);
}
