#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Rank infos as they travel: MessagePack maps with upstream's keys, in upstream's order."""
import msgpack

VERSION = 1
CACHE = {"paged": 0, "state": 1}
KIND = {"indexed": 0, "replicated": 1, "nhd": 2, "sectioned": 3}


def pack(rank):
    return msgpack.packb(rank)


def unpack(data):
    return msgpack.unpackb(data, strict_map_key=False)


def table(plain):
    """A page table, from the plain objects that SPEC files hold."""
    groups = []
    for group in plain["groups"]:
        views = [{"pool_idx": view["pool"], "buffer_entries": [list(entry) for entry in view["entries"]],
                  "pool_role": sorted(view["roles"]), "mapper_kind": KIND[view["kind"]],
                  "bytes_per_layer": view.get("layer_bytes"), "section_bytes": view.get("sections"),
                  "bytes_per_head": view.get("head_bytes"), "num_kv_heads": view.get("heads"),
                  "ring_slot_bytes": view.get("ring_slot_bytes")} for view in group["views"]]
        out = {"kind": CACHE[group["cache"]], "pool_group_idx": group["pool_group"],
               "local_layers": [{"local_layer_id": local, "global_layer_id": number}
                                for local, number in group["layers"]],
               "pool_views": views}
        if group["cache"] == "paged":
            out["kv_head_num_per_rank"] = group.get("kv_heads")
            out["sliding_window_size"] = group.get("window")
        else:
            out["slot_major_layout"] = group.get("slot_major")
        groups.append(out)
    pools = [{"pools": [{"base_address": pool["base"], "slot_bytes": pool["slot"], "num_slots": pool["slots"],
                         "slot_stride_bytes": pool["stride"], "layer_stride_bytes": None} for pool in pools]}
             for pools in plain["pools"]]
    return {"tokens_per_block": plain["tokens_per_block"], "layer_groups": groups, "pool_groups": pools}


def rank_info(plain, sender_endpoints=(), self_endpoint="", agent=b""):
    """The rank info of a rank that a SPEC file describes."""
    attention, aux = plain["attention"], plain.get("aux")
    out = {"instance_name": plain["name"], "instance_rank": plain["rank"]}
    for axis in ("tp", "pp"):
        out[axis + "_size"], out[axis + "_rank"] = plain[axis]
    out.update(layer_num_per_pp=list(plain["layers_per_stage"]), sender_endpoints=list(sender_endpoints),
               self_endpoint=self_endpoint, transfer_engine_info=agent)
    for axis in ("dp", "cp"):
        out[axis + "_size"], out[axis + "_rank"] = plain[axis]
    out["device_id"] = plain["device"]
    out["attention"] = attention and {
        "kv_heads_per_rank": attention["kv_heads"], "tokens_per_block": attention["tokens_per_block"],
        "dims_per_head": attention["head_dim"], "element_bytes": attention["element_bytes"],
        "enable_attention_dp": attention["attention_dp"], "is_mla": attention["key_only"]}
    out["aux_meta"] = aux and {"ptrs": aux["address"], "size": aux["size"], "item_sizes": aux["item"], "device": "cpu"}
    out["page_table"] = plain.get("table") and table(plain["table"])
    out["protocol_version"] = VERSION + plain.get("protocol_delta", 0)
    out["bounded_replay_on_generation"] = plain.get("replay", False)
    out["num_draft_layers"] = plain.get("draft_layers", 0)
    out["draft_kv_dtype"] = plain.get("draft_dtype")
    return out
