# SPDX-License-Identifier: Apache-2.0
"""One rank of upstream's own connector worker, told what to do by JSON lines. Run by the Python that has vLLM.

    upstream_host.py SPEC.json        (see Rank for its keys)

Its registry, side channel and Mooncake engine are upstream's. What a running vLLM would tell it (ranks, model facts,
cache groups) comes from the SPEC instead; its memory is files, so that who drives it sees every byte.
"""
import json
import os
import sys
import time
from types import SimpleNamespace
from unittest.mock import patch

ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # upstream logs to standard output

import torch  # noqa: E402

torch.accelerator.current_device_index = lambda: 0  # raises where there is no device, as does set_device below

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector as upstream  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MLAAttentionSpec)

upstream.current_platform.set_device = lambda _device: None


def say(**what):
    ANSWERS.write(json.dumps(what) + "\n")


def cache_spec(spec):
    content = spec["content_bytes"]
    common = dict(block_size=spec["block_tokens"], num_kv_heads=spec["heads"], dtype=torch.uint8)
    if spec["is_mla"]:
        return MLAAttentionSpec(head_size=content, **common)
    return FullAttentionSpec(head_size=content // 2, head_size_v=content - content // 2, **common)


class Rank:
    def __init__(self, spec):
        self.spec = spec
        self.tensors = {}
        storages = [torch.from_file(one["path"], shared=True, size=one["bytes"], dtype=torch.uint8)
                    for one in spec["storages"]]
        for view in spec["views"]:
            self.tensors[view["layer"]] = storages[view["storage"]].as_strided(
                view["shape"], view["strides"], view["offset"])
        self.storages = storages
        names = [[] for _ in range(spec.get("group_count", 1))]
        for layer, group in spec["layer_groups"].items():
            names[group].append(layer)
        groups = [KVCacheGroupSpec(layers, cache_spec(spec)) for layers in names]
        self.cache_config = KVCacheConfig(num_blocks=spec["num_blocks"], kv_cache_tensors=[], kv_cache_groups=groups)
        self.worker = self.open()
        self.worker.register_kv_caches(self.tensors)

    def open(self):
        spec = self.spec
        extra = {"mooncake_protocol": "tcp", **spec.get("extra", {})}
        config = SimpleNamespace(
            kv_transfer_config=SimpleNamespace(
                kv_role="kv_" + spec["role"], kv_connector_extra_config=extra,
                get_from_extra_config=lambda key, default: extra.get(key, default)),
            parallel_config=SimpleNamespace(
                data_parallel_index=0, data_parallel_rank_local=0, local_engines_only=False, nnodes_within_dp=1,
                master_addr="127.0.0.1", data_parallel_master_ip="127.0.0.1",
                pipeline_parallel_size=spec["pp_size"]),
            cache_config=SimpleNamespace(block_size=spec["block_tokens"], cache_dtype="auto"),
            model_config=SimpleNamespace(use_mla=spec["is_mla"],
                                         get_total_num_kv_heads=lambda: spec["total_kv_heads"]))
        facts = {
            "get_tensor_model_parallel_rank": lambda: spec["tp_rank"],
            "get_tensor_model_parallel_world_size": lambda: spec["tp_size"],
            "get_pp_group": lambda: SimpleNamespace(rank_in_group=spec["pp_rank"]),
            "get_current_attn_backends": lambda _config: [],
        }
        for name, value in facts.items():
            patch.object(upstream, name, value).start()
        patch.object(upstream.MooncakeConnectorWorker, "_sync_block_size_with_kernel", lambda _self: None).start()
        return upstream.MooncakeConnectorWorker(config, spec["engine_id"], self.cache_config)

    def ready(self):
        worker = self.worker
        say(event="ready", engine_id=worker.engine_id, hostname=worker.hostname, rpc_port=worker.rpc_port,
            side_port=worker.side_channel_port,
            memory=[[one.data_ptr(), one.nbytes] for one in self.storages],
            regions=dict(base_addr=worker.kv_caches_base_addr, block_len=worker.block_len_per_layer,
                         kv_block_len=worker.kv_block_len_per_layer, layer_name=worker.registered_layer_names,
                         layer_index=worker.registered_layer_indices, group_index=worker.registered_group_indices,
                         shared_groups=[list(one) for one in worker.region_shared_groups],
                         row_offset=worker.region_row_offsets))

    def step(self, command):
        """What a scheduler would tell in one step: send {p_req_id: [transfer_id, ids]}, recv [{...}], not_processed."""
        metadata = upstream.MooncakeConnectorMetadata()
        for req, (transfer, ids) in command.get("send", {}).items():
            metadata.reqs_to_send[req] = (transfer, ids)
        metadata.reqs_not_processed = set(command.get("not_processed", []))
        for one in command.get("recv", []):
            metadata.add_new_req(one["d_req_id"], one["block_ids"], one)
        self.worker.start_load_kv(metadata)
        say(ok=True)

    def wait(self, command):
        """Until so many requests are over, or seconds have passed."""
        sent, received, failed, blocks = set(), set(), set(), set()
        end = time.monotonic() + command["seconds"]
        while True:
            results = self.worker.get_transfer_results()
            sent |= set(results.finished_sending or ())
            received |= set(results.finished_recving or ())
            failed |= set(results.failed_recving or ())
            blocks |= set(self.worker.get_block_ids_with_load_errors())
            if len(sent) + len(received) >= command.get("count", 1) or time.monotonic() > end:
                break
            time.sleep(0.01)
        say(ok=True, sent=sorted(sent), received=sorted(received), failed=sorted(failed), invalid_blocks=sorted(blocks))

    def state(self, _command):
        worker = self.worker
        say(ok=True, tracked=sorted(worker.reqs_need_send),
            prepared=len(worker._prepared_transfer_regions),
            agents={engine: {tp: pps for tp, pps in tps.items()} for engine, tps in worker._remote_agents.items()})


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        rank = Rank(json.load(file))
    rank.ready()
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "quit":
            break
        try:
            {"step": rank.step, "wait": rank.wait, "state": rank.state}[command["do"]](command)
        except Exception as problem:  # told to who asked, which is not this process
            say(ok=False, error=f"{type(problem).__name__}: {problem}")
    say(event="end")
    os._exit(0)  # its threads do not end by themselves


if __name__ == "__main__":
    main()
