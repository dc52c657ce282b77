/* SPDX-License-Identifier: Apache-2.0 */
/** @file options.h  Options of a worker, checked and copied. */
#ifndef KVFI_VLLM_WORKER_OPTIONS_H
#define KVFI_VLLM_WORKER_OPTIONS_H

#include "kvferry/vllm_worker.h"

/** Copies what the caller gave, defaults filled in; texts and arrays lie in *copies (free).
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the option, its bounds and the value; KVF_ERR_NEWER_OPTION;
 *          KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_worker_options_copy(const struct kvf_vllm_worker_options *given,
                                              struct kvf_vllm_worker_options *out, void **copies,
                                              struct kvf_error *error);

#endif
