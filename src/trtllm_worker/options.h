/* SPDX-License-Identifier: Apache-2.0 */
/** @file options.h  Defaults and bounds of what callers hand in. */
#ifndef KVFI_TRTLLM_WORKER_OPTIONS_H
#define KVFI_TRTLLM_WORKER_OPTIONS_H

#include "trtllm_worker/worker.h"

/** Copies the caller's options over the defaults and checks them. Texts and rank stay borrowed.
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming option, bounds and value; KVF_ERR_NEWER_OPTION */
enum kvf_status kvfi_worker_options_copy(const struct kvf_trtllm_worker_options *options,
                                         struct kvf_trtllm_worker_options *out, struct kvf_error *error);

#endif
