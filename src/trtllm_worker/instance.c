/* SPDX-License-Identifier: Apache-2.0 */
/* A context instance: a connection to each of its ranks. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "trtllm_worker/host.h"
#include "trtllm_worker/receive.h"

static void destroy(kvf_trtllm_worker *worker, struct kvfi_instance *instance)
{
    for (size_t i = 0; i < instance->count; i++)
        kvfi_channel_disconnect(worker->receiver.channel, &instance->routes[i]);
    kvf_trtllm_rank_release(instance->rank);
    free(instance->routes);
    free(instance->watched);
    free(instance);
}

static enum kvf_status register_with(kvf_trtllm_worker *worker, struct kvfi_instance *instance, size_t rank,
                                     struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(instance->rank);
    struct kvfi_trtllm_packed message;
    enum kvf_status status = kvfi_channel_connect(worker->receiver.channel, spec->sender_endpoints[rank],
                                                  &instance->routes[rank], error);

    if (status != KVF_OK)
        return status;
    instance->count = rank + 1;
    kvfi_trtllm_pack_payload(&message, KVFI_TRTLLM_REGISTER_RANK_INFO, worker->self_bytes, worker->self_byte_count);
    status = kvfi_worker_send(&worker->receiver, &instance->routes[rank], &message, error);
    if (status == KVF_OK)
        worker->stats.registrations_sent++;
    return status;
}

static bool is_same_agent(const struct kvf_trtllm_rank_spec *a, const struct kvf_trtllm_rank_spec *b)
{
    return a->transfer_engine_info_bytes == b->transfer_engine_info_bytes &&
           (a->transfer_engine_info_bytes == 0 ||
            memcmp(a->transfer_engine_info, b->transfer_engine_info, a->transfer_engine_info_bytes) == 0);
}

/* The agent tells names. From now on this one means another process, whose end says nothing of those that bore the name
 * before: an instance that was restarted under its old name, or one whose name and rank read the same. */
static void leave_name(kvf_trtllm_worker *worker, const struct kvf_trtllm_rank_spec *spec, const char *name)
{
    char other[KVF_TRTLLM_AGENT_NAME_BYTES];

    for (struct kvfi_instance *one = worker->receivers->instances; one != NULL; one = one->next) {
        const struct kvf_trtllm_rank_spec *its = kvf_trtllm_rank_get_spec(one->rank);
        int64_t rank = its->instance_rank;
        if (rank < 0 || (uint64_t)rank >= one->count || !one->watched[rank] || is_same_agent(its, spec))
            continue;
        kvfi_agent_name(other, its->instance_name, rank);
        if (strcmp(other, name) == 0)
            one->watched[rank] = false;
    }
}

/* Who answers at the info endpoint: of the others no more than their endpoints is known. */
static void watch(kvf_trtllm_worker *worker, struct kvfi_instance *instance)
{
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(instance->rank);
    int64_t rank = spec->instance_rank;
    char name[KVF_TRTLLM_AGENT_NAME_BYTES];
    struct kvf_error error;
    enum kvf_status status = KVF_OK;

    if (worker->agent.watch == NULL || rank < 0 || (uint64_t)rank >= instance->count)
        return;
    kvfi_agent_name(name, spec->instance_name, rank);
    if (worker->own_agent != NULL)
        status = kvfi_host_check(name, spec->sender_endpoints[rank], &error);
    if (status == KVF_OK) {
        leave_name(worker, spec, name);
        status = worker->agent.watch(worker->agent.context, name, spec->transfer_engine_info,
                                     spec->transfer_engine_info_bytes, &error);
    }
    instance->watched[rank] = status == KVF_OK;
    if (status != KVF_OK)
        kvfi_logf(&worker->log, KVF_LOG_DEBUG, "%s cannot be watched: %s", name, error.text);
}

enum kvf_status kvfi_instance_create(kvf_trtllm_worker *worker, struct kvfi_contact *contact, kvf_trtllm_rank *rank,
                                     struct kvfi_instance **out, struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(rank);
    struct kvfi_receivers *all = worker->receivers;
    struct kvfi_instance *instance = calloc(1, sizeof *instance);
    enum kvf_status status = KVF_OK;

    if (instance == NULL)
        return kvfi_fail_memory(error, "a context instance");
    instance->rank = kvf_trtllm_rank_acquire(rank);
    instance->routes = kvfi_alloc_zeroed(spec->sender_endpoint_count, sizeof *instance->routes);
    instance->watched = kvfi_alloc_zeroed(spec->sender_endpoint_count, sizeof *instance->watched);
    if (instance->routes == NULL || instance->watched == NULL)
        status = kvfi_fail_memory(error, "a context instance");
    for (size_t i = 0; status == KVF_OK && i < spec->sender_endpoint_count; i++)
        status = register_with(worker, instance, i, error);
    if (status != KVF_OK) {
        destroy(worker, instance);
        return status;
    }
    instance->contact = contact;
    instance->next = all->instances;
    if (instance->next != NULL)
        instance->next->previous = instance;
    all->instances = instance;
    watch(worker, instance);
    *out = instance;
    return KVF_OK;
}

void kvfi_instance_bury(kvf_trtllm_worker *worker, struct kvfi_instance *instance)
{
    if (instance->contact != NULL || instance->active.head != NULL)
        return;
    *(instance->previous == NULL ? &worker->receivers->instances : &instance->previous->next) = instance->next;
    if (instance->next != NULL)
        instance->next->previous = instance->previous;
    destroy(worker, instance);
}

static void lose(struct kvfi_receive *job)
{
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(job->instance->rank);

    kvfi_receive_fail(job, NULL, KVF_ERR_STALE, "KV transfer failed for request %" PRId64 ": context instance \"%s\" "
                      "was replaced by another one", job->rid, spec->instance_name);
}

void kvfi_instance_replace(kvf_trtllm_worker *worker, struct kvfi_instance *instance)
{
    struct kvfi_receive *job = instance->active.head;

    instance->contact = NULL;
    while (job != NULL) {
        struct kvfi_receive *next = job->next; /* an end changes no list */
        lose(job);
        job = next;
    }
    kvfi_instance_bury(worker, instance);
}

/* ---- the end of a rank's process ---------------------------------------------------------------------------- */

static void end_rank(struct kvfi_receive *job, int64_t rank)
{
    struct kvfi_receive_writer *writer = kvfi_receive_writer(job, rank);
    bool was_open;

    if (writer == NULL || !writer->asked)
        return;
    was_open = !kvfi_writer_quiet(&writer->kv) || (job->needs_aux && !kvfi_writer_quiet(&writer->aux));
    if (was_open)
        kvfi_receive_fail(job, writer, KVF_ERR_PEER_LOST, "KV transfer failed for request %" PRId64
                          ": the process of context rank %" PRId64 " has ended", job->rid, rank);
    kvfi_receive_writer_feed(job, writer, false, KVFI_WRITER_ON_GONE, KVF_ERR_PEER_LOST);
    if (job->needs_aux)
        kvfi_receive_writer_feed(job, writer, true, KVFI_WRITER_ON_GONE, KVF_ERR_PEER_LOST);
}

static void end_instance_rank(struct kvfi_instance *instance, int64_t rank)
{
    struct kvfi_receive *job = instance->active.head;

    while (job != NULL) {
        struct kvfi_receive *next = job->next;
        end_rank(job, rank);
        job = next;
    }
    if (instance->contact != NULL)
        instance->contact->is_suspect = true;
}

void kvfi_receivers_on_gone(kvf_trtllm_worker *worker, const char *name)
{
    char own[KVF_TRTLLM_AGENT_NAME_BYTES];

    for (struct kvfi_instance *one = worker->receivers->instances; one != NULL; one = one->next)
        for (size_t i = 0; i < one->count; i++) {
            if (!one->watched[i])
                continue;
            kvfi_agent_name(own, kvf_trtllm_rank_get_spec(one->rank)->instance_name, (int64_t)i);
            if (strcmp(own, name) == 0)
                end_instance_rank(one, (int64_t)i);
        }
}
