/* SPDX-License-Identifier: Apache-2.0 */
/** @file calls.h  What calls.c and memory.c share. */
#ifndef KVFI_VLLM_WORKER_CALLS_H
#define KVFI_VLLM_WORKER_CALLS_H

#include "vllm_worker/worker.h"

/** What memory must stay for: writes that are out, requests that are fetched. */
int64_t kvfi_vllm_worker_busy(const kvf_vllm_worker *worker);

/** Runs `fn` with `left` on the loop's thread, again after each change, until it says that nothing is left or the time
 *  is over; `*left` says which. */
enum kvf_status kvfi_vllm_worker_call_until_idle(kvf_vllm_worker *worker, kvfi_vllm_worker_fn fn, int64_t *left,
                                                 int64_t timeout_ns, struct kvf_error *error);

#endif
