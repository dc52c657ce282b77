/* SPDX-License-Identifier: Apache-2.0 */
/* Who this rank is: completing the rank info, and answering with it at the info endpoint. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "trtllm_worker/worker.h"

enum { MAX_ASKERS = 4096 /* that ask before there is an answer */ };

/* ---- answering ---------------------------------------------------------------------------------------------- */

static void answer(kvf_trtllm_worker *worker, const struct kvfi_route *to)
{
    struct kvf_error error;

    if (kvfi_channel_send(worker->info.channel, to, worker->self_bytes, worker->self_byte_count, &error) == KVF_OK)
        worker->stats.info_answered++;
    else
        kvfi_logf(&worker->log, KVF_LOG_DEBUG, "an answer at the info endpoint did not leave: %s", error.text);
}

static void remember(kvf_trtllm_worker *worker, const struct kvfi_route *asker)
{
    if (worker->askers == NULL)
        worker->askers = kvfi_alloc_array(MAX_ASKERS, sizeof *worker->askers);
    if (worker->askers == NULL || worker->asker_count == MAX_ASKERS) {
        kvfi_logf(&worker->log, KVF_LOG_WARN, "more than %d questions at the info endpoint before this rank is "
                  "complete: one is not answered", MAX_ASKERS);
        return;
    }
    worker->askers[worker->asker_count++] = *asker;
}

void kvfi_worker_answer_info(kvf_trtllm_worker *worker, const struct kvfi_route *from, const struct kvfi_frame *frames,
                             size_t count)
{
    struct kvfi_trtllm_message message;

    if (kvfi_worker_read(frames, count, &message, NULL) != KVF_OK ||
        message.tag != KVFI_TRTLLM_REQUEST_INSTANCE_INFO) {
        worker->stats.malformed++;
        return;
    }
    if (worker->self == NULL)
        remember(worker, from);
    else
        answer(worker, from);
}

/* ---- completing --------------------------------------------------------------------------------------------- */

struct complete_call {
    const int64_t *layers;
    size_t layer_count;
    const char *const *senders;
    size_t sender_count;
};

static enum kvf_status check_senders(const kvf_trtllm_worker *worker, const struct complete_call *call,
                                     struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *given = kvf_trtllm_rank_get_spec(worker->given);
    const char *own = kvfi_channel_endpoint(worker->sender.channel);

    if (given->instance_rank < 0 || (uint64_t)given->instance_rank >= call->sender_count)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%zu sender endpoints, expected more than rank %" PRId64,
                         call->sender_count, given->instance_rank);
    for (size_t i = 0; i < call->sender_count; i++)
        if (call->senders[i] == NULL)
            return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "sender endpoint %zu is NULL", i);
    if (strcmp(call->senders[given->instance_rank], own) != 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "sender endpoint %" PRId64 " is \"%s\", expected this "
                         "rank's own, \"%s\"", given->instance_rank, call->senders[given->instance_rank], own);
    return KVF_OK;
}

static enum kvf_status make_self(kvf_trtllm_worker *worker, const struct complete_call *call, kvf_trtllm_rank **out,
                                 struct kvf_error *error)
{
    struct kvf_trtllm_rank_spec spec = *kvf_trtllm_rank_get_spec(worker->given);

    if (call->layers != NULL) {
        spec.layer_num_per_pp = call->layers;
        spec.layer_num_count = call->layer_count;
    }
    spec.sender_endpoints = call->senders;
    spec.sender_endpoint_count = call->sender_count;
    spec.self_endpoint = kvfi_channel_endpoint(worker->receiver.channel);
    spec.transfer_engine_info = worker->agent_info;
    spec.transfer_engine_info_bytes = worker->agent_info_bytes;
    return kvf_trtllm_rank_create(&spec, out, error);
}

static enum kvf_status encode(const kvf_trtllm_rank *rank, void **out, size_t *byte_count, struct kvf_error *error)
{
    size_t bytes = 0;
    void *buffer;
    enum kvf_status status = kvf_trtllm_rank_encode(rank, NULL, 0, &bytes, error);

    if (status != KVF_OK && status != KVF_ERR_LIMIT)
        return status;
    buffer = malloc(bytes + 1);
    if (buffer == NULL)
        return kvfi_fail_memory(error, "an encoded rank info");
    status = kvf_trtllm_rank_encode(rank, buffer, bytes, byte_count, error);
    if (status != KVF_OK)
        free(buffer);
    else
        *out = buffer;
    return status;
}

static enum kvf_status make_registrar(kvf_trtllm_worker *worker, const kvf_trtllm_rank *self,
                                      kvf_trtllm_registrar **out, struct kvf_error *error)
{
    struct kvf_trtllm_options options;

    kvf_trtllm_options_init(&options, sizeof options);
    options.flags = worker->options.flags;
    options.log = worker->options.log;
    return kvf_trtllm_registrar_create(self, &options, out, error);
}

static enum kvf_status run_complete(kvf_trtllm_worker *worker, void *argument, struct kvf_error *error)
{
    const struct complete_call *call = argument;
    kvf_trtllm_rank *self = NULL;
    kvf_trtllm_registrar *registrar = NULL;
    void *bytes = NULL;
    size_t byte_count = 0;
    enum kvf_status status;

    if (worker->self != NULL)
        return kvfi_fail(error, KVF_ERR_EXISTS, "the worker is complete already");
    status = check_senders(worker, call, error);
    if (status == KVF_OK)
        status = make_self(worker, call, &self, error);
    if (status == KVF_OK)
        status = encode(self, &bytes, &byte_count, error);
    if (status == KVF_OK)
        status = make_registrar(worker, self, &registrar, error);
    if (status == KVF_OK)
        status = kvfi_loop_watch(&worker->loop, &worker->sender.watch, error);
    if (status != KVF_OK) {
        kvf_trtllm_registrar_destroy(registrar);
        free(bytes);
        kvf_trtllm_rank_release(self);
        return status;
    }
    worker->self = self;
    worker->registrar = registrar;
    worker->self_bytes = bytes;
    worker->self_byte_count = byte_count;
    for (size_t i = 0; i < worker->asker_count; i++)
        answer(worker, &worker->askers[i]);
    worker->asker_count = 0;
    return KVF_OK;
}

enum kvf_status kvf_trtllm_worker_complete(kvf_trtllm_worker *worker, const int64_t *layer_num_per_pp,
                                           size_t layer_num_count, const char *const *sender_endpoints,
                                           size_t sender_endpoint_count, struct kvf_error *error)
{
    struct complete_call call = {layer_num_per_pp, layer_num_count, sender_endpoints, sender_endpoint_count};

    if (sender_endpoints == NULL)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "sender endpoints are not given");
    return kvfi_worker_call(worker, run_complete, &call, error);
}
