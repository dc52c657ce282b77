/* SPDX-License-Identifier: Apache-2.0 */
/* Structs of vllm.h, filled with their defaults. */
#include "base/struct_size.h"
#include "kvferry/vllm.h"

void kvf_vllm_register_init(struct kvf_vllm_register *spec, size_t size)
{
    const struct kvf_vllm_register defaults = {.kernel_blocks_per_block = 1};
    kvfi_struct_init(spec, size, &defaults, sizeof defaults);
}

void kvf_vllm_producer_spec_init(struct kvf_vllm_producer_spec *spec, size_t size)
{
    const struct kvf_vllm_producer_spec defaults = {
        .tp_size = 1, .pp_size = 1, .kernel_blocks_per_block = 1, .max_prepared = 1024};
    kvfi_struct_init(spec, size, &defaults, sizeof defaults);
}

void kvf_vllm_peer_init(struct kvf_vllm_peer *peer, size_t size)
{
    const struct kvf_vllm_peer defaults = {.tp_size = 1, .pp_size = 1};
    kvfi_struct_init(peer, size, &defaults, sizeof defaults);
}
