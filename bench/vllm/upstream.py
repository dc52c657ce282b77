# SPDX-License-Identifier: Apache-2.0
"""What bench/vllm/plan.c measures, done by upstream's own functions: the same lines, the same answers. Run by the
Python that has vLLM. One line more: `registry` starts upstream's own bootstrap server -> its port, 0."""
import os
import statistics
import sys
import time
from types import SimpleNamespace

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"  # what it logs would be measured with it
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import asyncio  # noqa: E402

import msgspec  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.utils import TransferTopology  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector as upstream  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_utils import MooncakeBootstrapServer  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402

LAYERS, LOCAL_BYTES, SLOTS = 80, 16384, 131072
SHAPES = {"split": (4, 2, 8), "equal": (4, 4, 8), "wide": (40, 20, 80)}
KEPT = []
NAMES = [f"model.layers.{i}.self_attn.attn" for i in range(LAYERS)]


def bases(first, block_bytes):
    return [first + i * SLOTS * block_bytes for i in range(LAYERS)]


def make_worker(shape):
    """A worker that has registered, without the engine and threads that opening one starts."""
    local_tp, _, heads = SHAPES[shape]
    worker = upstream.MooncakeConnectorWorker.__new__(upstream.MooncakeConnectorWorker)
    KEPT.append(worker)  # it could not shut down what it never opened
    spec = FullAttentionSpec(block_size=16, num_kv_heads=heads // local_tp, dtype=torch.bfloat16, head_size=128)
    worker.tp_rank, worker.tp_size, worker.pp_size, worker.use_mla = 0, local_tp, 1, False
    worker.kv_cache_config = KVCacheConfig(num_blocks=SLOTS, kv_cache_tensors=[],
                                           kv_cache_groups=[KVCacheGroupSpec(NAMES, spec)])
    worker._layer_specs = {name: spec for name in NAMES}
    worker.transfer_topo = TransferTopology(
        tp_rank=0, tp_size=local_tp, block_size=16, engine_id="p", is_mla=False, is_mamba=False,
        total_num_kv_heads=heads, attn_backends=[])
    worker._physical_blocks_per_logical_kv_block = 1
    worker._prepared_transfer_regions = {}
    worker.kv_caches_base_addr = bases(0x7f0000000000, LOCAL_BYTES)
    worker.block_len_per_layer = [LOCAL_BYTES] * LAYERS
    worker.kv_block_len_per_layer = [LOCAL_BYTES] * LAYERS
    worker.registered_layer_names = list(NAMES)
    worker.registered_layer_indices = list(range(LAYERS))
    worker.registered_group_indices = [0] * LAYERS
    worker.region_shared_groups = [(0,)] * LAYERS
    worker.region_row_offsets = [-1] * LAYERS
    worker.opaque_packed_storages = set()
    return worker


def make_pull(shape, port, ids):
    local_tp, remote_tp, _ = SHAPES[shape]
    size = LOCAL_BYTES * local_tp // remote_tp
    return upstream.MooncakeXferMetadata(
        remote_hostname="192.0.2.2", remote_port=port, remote_tp_size=remote_tp, remote_tp_rank=0,
        req_blocks={"chatcmpl-0123456789abcdef": ("xfer-0123456789abcdef", [ids])},
        kv_caches_base_addr=bases(0x7e0000000000, size), block_lens=[size] * LAYERS, kv_block_lens=[size] * LAYERS,
        registered_layer_names=list(NAMES), registered_layer_indices=list(range(LAYERS)),
        registered_group_indices=[0] * LAYERS, registered_shared_group_ids=[[0]] * LAYERS,
        registered_row_offsets=[-1] * LAYERS)


def prepare(kind, shape, rounds):
    worker = make_worker(shape)
    pulls = [make_pull(shape, i + 2 if kind == "prepare" else 1, []) for i in range(rounds)]
    worker._prepare_transfer_regions(make_pull(shape, 1, []))
    took = []
    for pull in pulls:
        started = time.thread_time()
        local, _, problem = worker._prepare_transfer_regions(pull)
        took.append(time.thread_time() - started)
        assert problem is None, problem
    return statistics.median(took) * 1e6, len(local)


def shuffled(count, seed):
    """As bench.c shuffles."""
    ids = list(range(count))
    for i in range(count, 1, -1):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        j = (seed >> 33) % i
        ids[i - 1], ids[j] = ids[j], ids[i - 1]
    return ids


def ready(walks, shape, order, blocks, rounds):
    worker = make_worker(shape)
    if order == "scattered":
        source, target = shuffled(blocks, 1), shuffled(blocks, 2)
    else:
        source, target = list(range(blocks)), list(range(1000, 1000 + blocks))
    pull = make_pull(shape, 1, target)
    local, remote, problem = worker._prepare_transfer_regions(pull)
    assert problem is None, problem
    meta = upstream.SendBlockMeta(p_req_id="p", transfer_id="t", local_block_ids=[source], ready=None)
    loop = asyncio.new_event_loop()
    took = []
    for _ in range(rounds):
        started = time.thread_time()
        src, dst, lengths, errors, problem = loop.run_until_complete(
            worker._build_transfer_params([("chatcmpl-0123456789abcdef", meta)], pull, local, remote))
        took.append(time.thread_time() - started)
        assert not errors and problem is None, problem
    told = len(src)
    if walks:
        src, dst, lengths = (np.array(one, dtype=np.uint64) for one in (src, dst, lengths))
        at = np.arange(1, len(src) + 1, dtype=np.uint64)
        told = int((at * (src + np.uint64(3) * dst + np.uint64(5) * lengths)).sum(dtype=np.uint64))
    return statistics.median(took) * 1e6, told


def message(decodes, ids, rounds):
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(upstream.MooncakeXferMetadata)
    pull = make_pull("split", 1, list(range(1000, 1000 + ids)))
    data = encoder.encode(pull)
    took = []
    for _ in range(rounds):
        started = time.thread_time()
        if decodes:
            decoder.decode(data)
        else:
            encoder.encode(pull)
        took.append(time.thread_time() - started)
    told = len(data) if decodes else sum((i + 1) * byte for i, byte in enumerate(data))
    return statistics.median(took) * 1e6, told


def answer(words):
    what, rest = words[0], words[1:]
    if what in ("prepare", "cached"):
        return prepare(what, rest[0], int(rest[1]))
    if what in ("ready", "walk"):
        return ready(what == "walk", rest[0], rest[1], int(rest[2]), int(rest[3]))
    if what in ("encode", "decode"):
        return message(what == "decode", int(rest[0]), int(rest[1]))
    if what == "registry":
        server = MooncakeBootstrapServer("127.0.0.1", 0)
        server.start()
        KEPT.append(server)
        return server.port, 0
    sys.exit(f"what is {words}?")


def main():
    ANSWERS.write("ready\n")
    for line in sys.stdin:
        value, told = answer(line.split())
        ANSWERS.write(f"{value:.2f} {told}\n")
    os._exit(0)  # what is kept does not end by itself


if __name__ == "__main__":
    main()
