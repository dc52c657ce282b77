/* SPDX-License-Identifier: Apache-2.0 */
/* The sending half, before it sends. */
#include "base/error.h"
#include "trtllm_worker/worker.h"

static enum kvf_status none(struct kvf_error *error)
{
    return kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "this worker does not send");
}

enum kvf_status kvfi_senders_create(kvf_trtllm_worker *worker, struct kvfi_senders **out, struct kvf_error *error)
{
    (void)worker;
    (void)error;
    *out = NULL;
    return KVF_OK;
}

void kvfi_senders_destroy(kvf_trtllm_worker *worker, struct kvfi_senders *senders)
{
    (void)worker;
    (void)senders;
}

void kvfi_senders_handle(kvf_trtllm_worker *worker, const struct kvfi_route *from, const struct kvfi_frame *frames,
                         size_t count)
{
    (void)from;
    (void)frames;
    (void)count;
    worker->stats.malformed++;
}

void kvfi_senders_on_agent(kvf_trtllm_worker *worker, const struct kvf_trtllm_agent_event *event)
{
    (void)worker;
    (void)event;
}

enum kvf_status kvfi_senders_open(kvf_trtllm_worker *worker, const struct kvf_trtllm_send *send,
                                  struct kvf_error *error)
{
    (void)worker;
    (void)send;
    return none(error);
}

enum kvf_status kvfi_senders_piece(kvf_trtllm_worker *worker, const struct kvf_trtllm_piece *piece,
                                   struct kvf_error *error)
{
    (void)worker;
    (void)piece;
    return none(error);
}

enum kvf_status kvfi_senders_aux(kvf_trtllm_worker *worker, int64_t rid, int64_t slot, struct kvf_error *error)
{
    (void)worker;
    (void)rid;
    (void)slot;
    return none(error);
}

enum kvf_status kvfi_senders_cancel(kvf_trtllm_worker *worker, int64_t rid, struct kvf_error *error)
{
    (void)worker;
    (void)rid;
    return none(error);
}

enum kvf_status kvfi_senders_status(kvf_trtllm_worker *worker, int64_t rid, struct kvf_trtllm_status *out,
                                    struct kvf_error *error)
{
    (void)worker;
    (void)rid;
    (void)out;
    return none(error);
}

enum kvf_status kvfi_senders_close_session(kvf_trtllm_worker *worker, int64_t rid, struct kvf_error *error)
{
    (void)worker;
    (void)rid;
    return none(error);
}

int64_t kvfi_senders_unsettled(const kvf_trtllm_worker *worker)
{
    (void)worker;
    return 0;
}
