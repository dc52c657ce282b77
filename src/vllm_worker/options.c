/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/vllm_worker.h"

#include "sys/clock.h"
#include "vllm/structs.h"

static const struct kvf_vllm_worker_options DEFAULTS = {
    .struct_size = sizeof(struct kvf_vllm_worker_options),
    .tp_size = 1,
    .pp_size = 1,
    .kernel_blocks_per_block = 1,
    .host = "127.0.0.1",
    .layout_ids = 1,
    .register_attempts = 3,
    .connector_timeout_ns = 30 * KVFI_SECOND,
    .abort_request_timeout_ns = 480 * KVFI_SECOND,
    .receive_slack_ns = 60 * KVFI_SECOND,
    .topology_refresh_ns = 30 * KVFI_SECOND,
    .max_pulls = 65536,
    .max_transfers = 262144,
    .max_message_bytes = 64 * 1024 * 1024,
    .max_prepared = 1024,
    .event_capacity = 65536,
};

void kvf_vllm_worker_options_init(struct kvf_vllm_worker_options *options, size_t size)
{
    kvfi_vllm_struct_init(options, size, &DEFAULTS, sizeof DEFAULTS);
}
