/* SPDX-License-Identifier: Apache-2.0 */
/* What was done since it was last asked: taken on the loop's thread, where it is recorded. */
#include "base/struct_size.h"
#include "vllm_worker/worker.h"

static enum kvf_status run_take(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    (void)error;
    kvfi_vllm_record_take(&worker->record, &worker->stats, argument);
    return KVF_OK;
}

enum kvf_status kvf_vllm_worker_take_interval(kvf_vllm_worker *worker, struct kvf_vllm_interval *out,
                                              struct kvf_error *error)
{
    enum kvf_status status = kvfi_struct_check(out->struct_size, sizeof *out, "interval", error);
    return status == KVF_OK ? kvfi_vllm_worker_call(worker, run_take, out, error) : status;
}
