# SPDX-License-Identifier: Apache-2.0
"""Writes what a live vLLM worker registered with its MooncakeConnector, as `kvferry vllm plan` reads it.

In a server's workers, by its own means (docs/vllm.md has both whole):

    vllm serve MODEL --worker-extension-cls dump_registration.Dump ...       # with this folder in PYTHONPATH
    llm.collective_rpc("dump_registration", args=("/tmp/P",))                # one file per rank below /tmp/P
"""
import json
import os


def registration(worker):
    """What a MooncakeConnectorWorker is and has registered, as a dict. Read only; any time after registration."""
    from vllm.v1.kv_cache_interface import (AttentionSpec, CircularBufferSpec, MambaSpec, MLAAttentionSpec,
                                            SlidingWindowMLASpec)

    def kind(spec):
        if isinstance(spec, MambaSpec):
            return "mamba"
        if isinstance(spec, CircularBufferSpec):
            return "circular"
        return "mla" if isinstance(spec, (MLAAttentionSpec, SlidingWindowMLASpec)) else "attention"

    def facts(spec):
        page = spec.page_size_bytes
        own = getattr(spec, "unpadded_page_size_bytes", page) if isinstance(spec, AttentionSpec) else page
        mode = getattr(spec, "kv_quant_mode", None)
        return {"kind": kind(spec), "page_bytes": page, "unpadded_page_bytes": own,
                "nvfp4": bool(getattr(mode, "is_nvfp4", False))}

    config = worker.kv_cache_config
    return {
        "tp_rank": worker.tp_rank, "tp_size": worker.tp_size, "pp_rank": worker.pp_rank, "pp_size": worker.pp_size,
        "is_mla": bool(worker.use_mla), "total_kv_heads": worker.transfer_topo.total_num_kv_heads,
        "group_kinds": ["mamba" if isinstance(group.kv_cache_spec, MambaSpec) else "attention"
                        for group in config.transfer_groups],
        "kv_cache_groups": len(config.kv_cache_groups),
        "layer_groups": dict(config.transfer_group_index_by_layer),
        "layer_specs": {name: facts(spec) for name, spec in worker._layer_specs.items()},
        "kernel_blocks_per_block": worker._physical_blocks_per_logical_kv_block,
        "has_opaque_row": bool(worker.opaque_packed_storages),
        "regions": {
            "base_addr": list(worker.kv_caches_base_addr), "block_len": list(worker.block_len_per_layer),
            "kv_block_len": list(worker.kv_block_len_per_layer), "layer_name": list(worker.registered_layer_names),
            "layer_index": list(worker.registered_layer_indices),
            "group_index": list(worker.registered_group_indices),
            "shared_groups": [list(groups) for groups in worker.region_shared_groups],
            "row_offset": list(worker.region_row_offsets)},
    }


def write(worker, folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"tp{worker.tp_rank}-pp{worker.pp_rank}.json")
    with open(path, "w") as file:
        json.dump(registration(worker), file, indent=1)
    return path


class Dump:
    """A worker extension: its methods are vLLM worker's own."""

    def dump_registration(self, folder):
        from vllm.distributed.kv_transfer import get_kv_transfer_group
        return write(get_kv_transfer_group().connector_worker, folder)
