/* SPDX-License-Identifier: Apache-2.0 */
/** @file topology.h  Engines of a registry's answer, made and counted. registry.h has what their users need. */
#ifndef KVFI_VLLM_WORKER_TOPOLOGY_H
#define KVFI_VLLM_WORKER_TOPOLOGY_H

#include "vllm_worker/registry.h"

/** What an engine is made of. Texts and workers are copied. */
struct kvfi_vllm_engine_facts {
    const char *engine_id;
    int64_t dp_rank;
    int64_t tp_size; /* TP ranks, those too whose workers cannot be used */
    const struct kvfi_vllm_engine_worker *workers; /* in any order, none twice */
    size_t worker_count; /* at least 1 */
};

/** Makes an engine, held once; NULL without memory. */
const struct kvfi_vllm_engine *kvfi_vllm_engine_create(const struct kvfi_vllm_engine_facts *facts);

#endif
