#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks the released vLLM itself: its own functions and its worker class answer the cases, and changed ones that nobody
answered before, and the program's answers are compared with theirs.

    VENV/bin/python upstream_vllm.py PROGRAM CASES.jsonl.xz [--seed N] [--count N]

Needs a Python with vllm 0.32.0 or 0.33.0; no device, no network. Exit status: 0 all equal, 1 something is not, 2 the
program failed. Views that no tensor can be (past the end of their storage) are left out, and so are pulls of requests
that are not ready.
"""
import argparse
import asyncio
import collections
import copy
import logging
import random
import sys
from types import SimpleNamespace

import torch

torch.accelerator.current_device_index = lambda: 0  # raises where there is no device

import msgspec  # noqa: E402
import vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector as connector  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.utils import TransferTopology  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    CircularBufferSpec, FullAttentionSpec, MambaSpec, MLAAttentionSpec)

import changes_vllm  # noqa: E402
import changes_vllm_plan  # noqa: E402
import compare_vllm  # noqa: E402

CHANGES = {**changes_vllm.CHANGES, **changes_vllm_plan.CHANGES}
ELEMENTS = {1: torch.uint8, 2: torch.float16, 4: torch.float32}
WORKER = connector.MooncakeConnectorWorker
WORKER.__del__ = lambda self: None
LOOP = asyncio.new_event_loop()


class LeftOut(Exception):
    """A case that upstream cannot be asked."""


# ---- what a layer keeps: upstream's classes, with pages as the case has them

def spec_class(base):
    """A class that registration takes for `base`, made of page sizes alone."""
    def given(name):
        return property(lambda self: object.__getattribute__(self, name))

    return type(base.__name__, (base,), {
        "page_size_bytes": given("pages"), "unpadded_page_size_bytes": given("unpadded"),
        "kv_quant_mode": given("quant"), "__repr__": lambda self: base.__name__, "__hash__": lambda self: 1})


CLASSES = {"attention": spec_class(FullAttentionSpec), "mla": spec_class(MLAAttentionSpec),
           "mamba": spec_class(MambaSpec), "circular": spec_class(CircularBufferSpec)}


def make_spec(kind, pages=1, unpadded=1, nvfp4=False):
    """One layer's spec."""
    spec = object.__new__(CLASSES[kind])
    for name, value in (("pages", pages), ("unpadded", unpadded), ("quant", SimpleNamespace(is_nvfp4=nvfp4))):
        object.__setattr__(spec, name, value)
    return spec


# ---- registration

def make_tensors(given, storages):
    """The views as tensors, by layer."""
    tensors = {}
    for view in given["views"]:
        raw = storages[view["storage"]]
        last = sum((size - 1) * stride for size, stride in zip(view["shape"], view["strides"]))
        if (view["offset"] % view["elem"] or view["layer"] in tensors
                or view["offset"] + (last + 1) * view["elem"] > raw.nbytes):
            raise LeftOut
        tensor = torch.empty(0, dtype=ELEMENTS[view["elem"]])
        tensor.set_(raw.untyped_storage(), view["offset"] // view["elem"], tuple(view["shape"]),
                    tuple(view["strides"]))
        tensors[view["layer"]] = tensor
    return tensors


def register(given):
    """Memory and regions of a rank's tensors, at the case's addresses."""
    storages = [torch.zeros(one["bytes"], dtype=torch.uint8) for one in given["storages"]]
    tensors, memory = make_tensors(given, storages), []
    worker = object.__new__(WORKER)
    worker.use_mla = False
    worker.is_kv_consumer = True
    worker._prepared_transfer_regions = {}
    worker._layout_by_peer, worker._acked_layout_peers = collections.OrderedDict(), set()  # from 0.33.0
    worker._physical_blocks_per_logical_kv_block = given["kernel_blocks_per_block"]
    worker._layer_specs = {name: make_spec(one["kind"], one["page_bytes"]) for name, one in given["specs"].items()}
    worker._log_debug_cache_registration = lambda *_args: None
    worker.kv_cache_config = SimpleNamespace(num_blocks=given["num_blocks"],
                                             transfer_group_index_by_layer=given["layer_groups"])
    worker.engine = SimpleNamespace(batch_register_memory=lambda *both: memory.extend(zip(*both)) or 0)
    try:
        worker.register_kv_caches(tensors)
    except (AssertionError, RuntimeError) as error:
        return {"error": str(error), "type": type(error).__name__}
    number_of = {raw.untyped_storage().data_ptr(): number for number, raw in enumerate(storages)}

    def place(address):
        for real, number in number_of.items():
            if real <= address < real + storages[number].nbytes:
                return given["storages"][number]["base"] + address - real
        return -1

    return {"memory": [[place(address), nbytes] for address, nbytes in memory],
            "base_addr": [place(address) for address in worker.kv_caches_base_addr],
            "block_len": worker.block_len_per_layer, "kv_block_len": worker.kv_block_len_per_layer,
            "layer_name": worker.registered_layer_names, "layer_index": worker.registered_layer_indices,
            "group_index": worker.registered_group_indices,
            "shared_groups": [list(groups) for groups in worker.region_shared_groups],
            "row_offset": worker.region_row_offsets,
            "opaque_storages": sorted(number_of[address] for address in worker.opaque_packed_storages)}


# ---- two lists of regions, two ranks

def to_regions(rows):
    """Regions as upstream has them."""
    return [connector.TransferRegion(
        layer_name=row[3], layer_index=row[4], base_addr=row[0], block_len=row[1], kv_block_len=row[2],
        group_index=row[5], shared_group_ids=tuple(row[6]), row_offset=row[7]) for row in rows]


def to_rows(regions):
    """Regions as cases have them."""
    return [[one.base_addr, one.block_len, one.kv_block_len, one.layer_name, one.layer_index, one.group_index,
             list(one.shared_group_ids), one.row_offset] for one in regions]


def align(given):
    """Pairs by layer name."""
    local, remote, error = connector._align_transfer_regions(
        to_regions(given["local"]), to_regions(given["remote"]), allow_partial_layers=given["allow_partial_layers"])
    return {"local": to_rows(local), "remote": to_rows(remote), "error": error}


def coalesce(given):
    """Neighbours merged."""
    local, remote = connector._coalesce_contiguous_transfer_regions(
        to_regions(given["local"]), to_regions(given["remote"]), promote_full_row=given["promote_full_row"])
    return {"local": to_rows(local), "remote": to_rows(remote)}


def sender_plan(given):
    """Who sends what of a block."""
    try:
        return {"plan": list(connector._compute_sender_transfer_plan(**given))}
    except AssertionError as error:
        return {"error": str(error)}


def validate(given):
    """Lengths of both sides."""
    local, remote = ([connector.TransferRegion("layer", 0, 0, length, length) for length in given[key]]
                     for key in ("local_kv_block_lens", "remote_kv_block_lens"))
    rest = {key: given[key] for key in given if not key.endswith("_block_lens")}
    try:
        return {"error": connector._validate_asymmetric_region_lengths(local, remote, **rest)}
    except AssertionError as error:
        return {"error": str(error)}


def topology(rank, size, is_mla=False, is_mamba=False, heads=8):
    """What a worker knows of its own place."""
    out = object.__new__(TransferTopology)
    vars(out).update(tp_rank=rank, tp_size=size, is_mla=is_mla, is_mamba=is_mamba, total_num_kv_heads=heads,
                     engine_id="own", _engines={})
    return out


def ranks(given):
    """The ranks that a rank meets, and how many pulls that makes."""
    worker, meta = object.__new__(WORKER), connector.SendBlockMeta("", "", [], None)
    worker.pp_size = given["own_pp_size"]
    try:
        targets = topology(given["own_tp_rank"], given["own_tp_size"]).handshake_target_ranks(given["other_tp_size"])
    except AssertionError as error:
        return {"error": str(error)}
    worker.resolve_need_send(meta, targets, given["other_pp_size"])
    return {"target_ranks": targets, "need_send": meta.need_send}


def runs(given):
    """Ids cut into runs."""
    if len(given["src"]) != len(given["dst"]):
        raise LeftOut
    src, dst = connector.group_concurrent_contiguous(given["src"], given["dst"])
    return {"src": src, "dst": dst}


# ---- pulls

def make_producer(given, calls):
    """A worker of the producer's facts, whose requests are ready and whose writes only add to `calls`."""
    worker, regions = object.__new__(WORKER), given["regions"]
    has_mamba = "mamba" in given["group_kinds"]
    worker.tp_rank, worker.tp_size, worker.pp_size = given["tp_rank"], given["tp_size"], given["pp_size"]
    worker.use_mla = given["is_mla"]
    worker.transfer_topo = topology(given["tp_rank"], given["tp_size"], given["is_mla"], has_mamba,
                                    given["total_kv_heads"])
    worker.kv_cache_config = SimpleNamespace(
        has_mamba_layers=has_mamba, num_blocks=1, transfer_group_index_by_layer=given["layer_groups"],
        transfer_groups=[SimpleNamespace(kv_cache_spec=make_spec(kind)) for kind in given["group_kinds"]])
    worker._layer_specs = {name: make_spec(one["kind"], one["page_bytes"], one["unpadded_page_bytes"], one["nvfp4"])
                           for name, one in given["layer_specs"].items()}
    worker._physical_blocks_per_logical_kv_block = given["kernel_blocks_per_block"]
    worker.opaque_packed_storages = {1} if given["has_opaque_row"] else set()
    worker.kv_caches_base_addr = regions["base_addr"]
    worker.block_len_per_layer, worker.kv_block_len_per_layer = regions["block_len"], regions["kv_block_len"]
    worker.registered_layer_names, worker.registered_layer_indices = regions["layer_name"], regions["layer_index"]
    worker.registered_group_indices = regions["group_index"]
    worker.region_shared_groups = [tuple(groups) for groups in regions["shared_groups"]]
    worker.region_row_offsets = regions["row_offset"]
    worker._prepared_transfer_regions, worker._encoder = {}, msgspec.msgpack.Encoder()
    worker._layout_by_peer = collections.OrderedDict()  # from 0.33.0
    worker.finished_sending_reqs, worker.reqs_need_send = set(), {}
    for one in given["ready"]:
        ready = asyncio.Event()
        ready.set()
        worker.reqs_need_send[one["transfer_id"]] = connector.SendBlockMeta(one["p_req_id"], one["transfer_id"],
                                                                            one["block_ids"], ready)
    worker.sender_loop, worker._sender_executor = asyncio.get_running_loop(), None
    worker._send_blocks = lambda *call: calls.append(call) or 0
    return worker


def make_pull(given):
    """The message of a pull."""
    regions = given["regions"]
    return connector.MooncakeXferMetadata(
        remote_hostname=given["hostname"], remote_port=given["port"], remote_tp_size=given["tp_size"],
        remote_tp_rank=given["tp_rank"], remote_pp_size=given["pp_size"],
        req_blocks={one["d_req_id"]: (one["transfer_id"], one["block_ids"]) for one in given["requests"]},
        kv_caches_base_addr=regions["base_addr"], block_lens=regions["block_len"],
        kv_block_lens=regions["kv_block_len"], registered_layer_names=regions["layer_name"],
        registered_layer_indices=regions["layer_index"], registered_group_indices=regions["group_index"],
        registered_shared_group_ids=regions["shared_groups"], registered_row_offsets=regions["row_offset"])


async def answer_pull(given):
    """A pull as the worker answers it, and each of its requests once more alone."""
    calls, replies, prepared = [], [], []
    worker, pull = make_producer(given["producer"], calls), make_pull(given["pull"])
    ready, requests = dict(worker.reqs_need_send), given["pull"]["requests"]
    if len(pull.req_blocks) != len(requests) or any(one["transfer_id"] not in ready for one in requests):
        raise LeftOut

    def prepare(meta):
        prepared.append(WORKER._prepare_transfer_regions(worker, meta))
        return prepared[0]

    async def send(frames):
        replies.append(msgspec.msgpack.decode(frames[1]))

    worker._prepare_transfer_regions = prepare
    try:
        await worker.send_kv_to_decode(b"peer", SimpleNamespace(send_multipart=send), pull)
        answer = {"reply": replies[0], "by": "reply"}
    except AssertionError as error:
        answer = {"reply": {"status": 2, "err_msg": str(error)}, "by": "exception"}
    for key in ("ok_reqs", "err_reqs"):
        if key in answer["reply"]:
            answer["reply"][key].sort()
    if prepared:
        local, remote, error = prepared[0]
        answer["prepared"] = {"local": to_rows(local), "remote": to_rows(remote), "error": error}
    if answer["reply"]["status"] != 0:
        return answer
    answer["requests"] = {}
    for one in requests:
        src, dst, lengths, failed, text = await worker._build_transfer_params(
            [(one["d_req_id"], ready[one["transfer_id"]])], pull, local, remote)
        answer["requests"][one["d_req_id"]] = ({"error": text} if failed else
                                               {"descriptors": [list(each) for each in zip(src, dst, lengths)]})
    if calls:
        answer["session"] = calls[0][0]
    answer["finished_sending"] = sorted(worker.finished_sending_reqs)
    return answer


def plan(given):
    """A whole pull."""
    return LOOP.run_until_complete(answer_pull(given))


ANSWERS = {"register": register, "align": align, "coalesce": coalesce, "plan": plan, "sender_plan": sender_plan,
           "validate": validate, "ranks": ranks, "runs": runs}


def changed(case, number, choice):
    """A case with a few changes and upstream's answer to it."""
    family, given = case["family"], copy.deepcopy(case["input"])
    for _ in range(choice([1, 1, 2, 2, 3, 5])):
        try:
            choice(CHANGES[family])(given, choice)
        except (IndexError, KeyError):  # nothing is left to change there
            pass
    return {"id": number, "family": family, "input": given, "expect": ANSWERS[family](copy.deepcopy(given))}


def main():
    """The command."""
    parser = argparse.ArgumentParser(description="compare a program's answers with those of the installed vLLM")
    parser.add_argument("program")
    parser.add_argument("cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=5000)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    choice = random.Random(options.seed).choice
    comparison, by_family, cases, left_out = compare_vllm.Comparison(3), collections.defaultdict(list), [], 0
    for case in compare_vllm.read_cases(options.cases):
        by_family[case["family"]].append(case)
        comparison.compare(case, ANSWERS[case["family"]](copy.deepcopy(case["input"])))
    print("the cases as they are, by upstream alone:")
    status = comparison.report()
    families = sorted(by_family) + ["plan", "plan", "register", "register"]
    while len(cases) < options.count:
        try:
            cases.append(changed(choice(by_family[choice(families)]), len(cases), choice))
        except LeftOut:
            left_out += 1
    comparison = compare_vllm.Comparison(3)
    for case, said in zip(cases, compare_vllm.ask(options.program, cases)):
        comparison.compare(case, said)
    print(f"changed cases, seed {options.seed}, {left_out} more that upstream cannot be asked:")
    return comparison.report() or status


if __name__ == "__main__":
    sys.exit(main())
