/* SPDX-License-Identifier: Apache-2.0 */
/** @file registry_read.h  What a bootstrap registry answered to a query, from JSON that may be hostile. */
#ifndef KVFI_VLLM_WORKER_REGISTRY_READ_H
#define KVFI_VLLM_WORKER_REGISTRY_READ_H

#include "vllm_worker/registry.h"

/** A topology that is owned: release it with kvfi_vllm_topology_fini. */
struct kvfi_vllm_topology_own {
    const struct kvfi_vllm_engine **engines; /* acquired */
    size_t engine_count;
    size_t left_out; /* workers whose address is not of a side channel, and engines whose id cannot be used */
};

/** Reads an answer. An engine that is told twice counts as it was told last. A worker with an address that is not
 *  "tcp://..." or too long is left out, and its engine is not complete then: anybody can register such a thing, and it
 *  must not hide the others.
 *  @param out  filled on success only
 *  @return KVF_OK; KVF_ERR_PROTOCOL with what is wrong; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_topology_read(const char *text, size_t text_bytes, struct kvfi_vllm_topology_own *out,
                                        struct kvf_error *error);
void kvfi_vllm_topology_fini(struct kvfi_vllm_topology_own *topology);

#endif
