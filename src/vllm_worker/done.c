/* SPDX-License-Identifier: Apache-2.0 */
/* Wants that are over, until they are collected: completion and failure of one are told together. */
#include <stdlib.h>
#include <string.h>

#include "vllm_worker/consume.h"

/* Block ids are unique within a group only: with several, failures are told by request. */
static bool is_told_by_request(const kvf_vllm_worker *worker)
{
    int64_t groups = worker->options.kv_cache_groups > 0 ? worker->options.kv_cache_groups
                                                         : (int64_t)worker->options.group_count;

    return groups > 1;
}

void kvfi_vllm_over_add(struct kvfi_vllm_want *want)
{
    struct kvfi_vllm_consumer *consumer = want->worker->consumer;

    if (want->block_count == 0) { /* the scheduler does not know it any more */
        free(want);
        return;
    }
    want->next = NULL;
    *(consumer->over_tail == NULL ? &consumer->over : &consumer->over_tail->next) = want;
    consumer->over_tail = want;
    consumer->over_count++;
}

void kvfi_vllm_over_clear(kvf_vllm_worker *worker)
{
    struct kvfi_vllm_consumer *consumer = worker->consumer;

    while (consumer->over != NULL) {
        struct kvfi_vllm_want *next = consumer->over->next;
        free(consumer->over);
        consumer->over = next;
    }
    consumer->over_tail = NULL;
    consumer->over_count = 0;
}

void kvfi_vllm_consumer_count_over(kvf_vllm_worker *worker, struct kvfi_vllm_over_counts *counts)
{
    bool by_request = is_told_by_request(worker);

    for (const struct kvfi_vllm_want *want = worker->consumer->over; want != NULL; want = want->next) {
        size_t bytes = strlen(want->d_req_id) + 1;

        counts->ids[KVFI_VLLM_RECEIVED]++;
        counts->text_bytes += bytes;
        if (want->failed_ns == 0)
            continue;
        if (by_request) {
            counts->ids[KVFI_VLLM_FAILED]++;
            counts->text_bytes += bytes;
        } else {
            counts->blocks += want->block_count;
        }
    }
}

static void put_blocks(const struct kvfi_vllm_want *want, struct kvfi_vllm_over_lists *lists)
{
    for (size_t i = 0; i < want->group_count; i++)
        for (size_t k = 0; k < want->groups[i].count; k++)
            kvfi_vllm_over_put_block(lists, want->groups[i].ids[k]);
}

void kvfi_vllm_consumer_take_over(kvf_vllm_worker *worker, struct kvfi_vllm_over_lists *lists)
{
    bool by_request = is_told_by_request(worker);

    for (const struct kvfi_vllm_want *want = worker->consumer->over; want != NULL; want = want->next) {
        kvfi_vllm_over_put(lists, KVFI_VLLM_RECEIVED, want->d_req_id);
        if (want->failed_ns == 0)
            continue;
        if (by_request)
            kvfi_vllm_over_put(lists, KVFI_VLLM_FAILED, want->d_req_id);
        else
            put_blocks(want, lists);
    }
    kvfi_vllm_over_clear(worker);
}
