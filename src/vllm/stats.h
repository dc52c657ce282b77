/* SPDX-License-Identifier: Apache-2.0 */
/** @file stats.h  Statistics of vLLM's connector: what is recorded, checked, and how numbers read. */
#ifndef KVFI_VLLM_STATS_H
#define KVFI_VLLM_STATS_H

#include <stdbool.h>

#include "kvferry/vllm_worker.h"

enum { KVFI_VLLM_NUMBER_BYTES = 40 };

/** Copies a caller's interval and checks its numbers. @return KVF_OK; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_NEWER_OPTION */
enum kvf_status kvfi_vllm_interval_read(const struct kvf_vllm_interval *given, struct kvf_vllm_interval *out,
                                        struct kvf_error *error);

/** Writes the shortest digits that give `number` (at least 0, finite) back, as Python does, whatever the locale;
 *  `is_metric`: from 10^6 with an exponent, as Prometheus' Python client does. Returns `out`. */
const char *kvfi_vllm_number_text(double number, bool is_metric, char out[KVFI_VLLM_NUMBER_BYTES]);

/** What a worker records between two looks at it. Zeroed, it is empty. One thread at a time. */
struct kvfi_vllm_record {
    struct kvf_vllm_transfer *transfers;
    size_t count, capacity;
    int64_t failed_transfers, failed_recvs, expired_reqs; /* the counters as they stood with the last look */
};

/** Most transfers that are kept when nobody looks; then those that were recorded first go, half of them at once. */
enum { KVFI_VLLM_MAX_RECORDED = 65536 };

/** Records a batch write that succeeded. Without memory it is not recorded. */
void kvfi_vllm_record_transfer(struct kvfi_vllm_record *record, int64_t duration_ns, int64_t bytes,
                               int64_t descriptors);

/** Gives what was recorded, and how much more `now` counts than with the last look, to the caller (free with
 *  kvf_vllm_interval_release). */
void kvfi_vllm_record_take(struct kvfi_vllm_record *record, const struct kvf_vllm_worker_stats *now,
                           struct kvf_vllm_interval *out);
void kvfi_vllm_record_fini(struct kvfi_vllm_record *record);

#endif
