# SPDX-License-Identifier: Apache-2.0
"""The documented rules of a pull, written down a second time: which ranks meet, what is refused, what moves.

Slow, plain, block by block, and without the library, as arithmetic_vllm.py, whose rules of lists of regions it uses.
"""
from arithmetic_vllm import BASE, BLOCK_LEN, COLUMNS, GROUP, KV, NAME, SHARED, Refused, align, coalesce


class Replied(Refused):
    """What upstream replies by itself, without raising it."""


# ---- rules of two ranks

def ratio(local, remote):
    """How many ranks of the smaller side's partner there are: negative where the remote side has more."""
    if local >= remote:
        if local % remote:
            raise Refused(f"Local tensor parallel size {local} is not divisible by remote tensor parallel size "
                          f"{remote}.")
        return local // remote
    if remote % local:
        raise Refused(f"Remote tensor parallel size {remote} is not divisible by local tensor parallel size {local}.")
    return -(remote // local)


def partners(rank, size, other):
    """The ranks of the other side that a rank meets: those whose heads overlap its own."""
    ratio(size, other)
    return [one for one in range(other) if rank * other // size <= one <= ((rank + 1) * other - 1) // size]


def pulls(targets, other_pp, own_pp):
    """How often one transfer is asked for at one rank."""
    return len(targets) * (other_pp if other_pp > 1 and other_pp != own_pp else 1)


def cut(rank, size, other_rank, other_size, mine, theirs, replicated, heads):
    """Whether bytes go from a rank to another, and which."""
    times = ratio(size, other_size)
    if times == 1:
        return [True, 0, 0, mine]
    if heads is not None and replicated != (other_size > heads):
        first, wanted = rank * heads // size, other_rank * heads // other_size
        one = mine // max(heads // size, 1)
        return [rank % max(size // heads, 1) == 0, max(wanted - first, 0) * one, max(first - wanted, 0) * one, one]
    if replicated:
        return [times < 0 or rank % times == 0, 0, 0, mine]
    if times > 0:
        return [True, 0, rank % times * mine, mine]
    return [True, other_rank % -times * theirs, 0, theirs]


def unlike(mine, theirs, size, other_size, replicated, heads):
    """Why payloads of these lengths do not go together, or None."""
    if len(mine) != len(theirs):
        return "Mooncake asymmetric TP requires matching KV region counts between producer and consumer."
    if heads is None and replicated:
        return None
    if heads is not None:
        size, other_size = min(size, heads), min(other_size, heads)
    times = ratio(size, other_size)
    for number, (one, other) in enumerate(zip(mine, theirs)):
        where = f"at region {number}: local={one}, remote={other}"
        if times == 1 and one != other:
            return f"Mooncake KV region length mismatch for homogeneous TP {where}."
        if times > 1 and other != one * times:
            return (f"Mooncake destination KV region length does not match the producer TP ratio {where}, "
                    f"tp_ratio={times}.")
        if times < 0 and one != other * -times:
            return f"Mooncake source KV region length does not match the consumer TP ratio {where}, tp_ratio={times}."
    return None


def split(src, dst):
    """Runs of blocks that follow each other on both sides."""
    runs = []
    for one, other in zip(src, dst):
        if runs and runs[-1][-1] == (one - 1, other - 1):
            runs[-1].append((one, other))
        else:
            runs.append([(one, other)])
    return runs


# ---- regions of two ranks

def regions(arrays, layer_groups):
    """Arrays as regions; lists that do not go with the names count as missing."""
    lengths = [len(arrays[column]) for column in COLUMNS[:5]]
    if len(set(lengths)) > 1:
        raise Refused("Mooncake transfer regions require matching metadata lengths, got "
                      + ", ".join(f"{what}={number}" for what, number in zip(
                          ["base_addrs", "block_lens", "kv_block_lens", "layer_names", "layer_indices"], lengths))
                      + ".")
    names = arrays["layer_name"]
    groups = arrays["group_index"] or [layer_groups.get(name, 0) for name in names]
    if len(groups) != len(names):
        raise Refused(f"Mooncake transfer regions require matching group metadata lengths, got "
                      f"group_indices={len(groups)}, layer_names={len(names)}.")
    shared = arrays["shared_groups"] if len(arrays["shared_groups"]) == len(names) else [[] for _name in names]
    rows = arrays["row_offset"] if len(arrays["row_offset"]) == len(names) else [-1 for _name in names]
    columns = [arrays[column] for column in COLUMNS[:5]] + [groups, shared, rows]
    return [list(region) for region in zip(*columns)]


def is_opaque(arrays):
    """Whether some region is a whole row."""
    rows, payloads, strides = (arrays[column] for column in ("row_offset", "kv_block_len", "block_len"))
    return (len(rows) == len(payloads) == len(strides)
            and any(row == 0 and payload == stride for row, payload, stride in zip(rows, payloads, strides)))


def check_heads(producer, pull, heads, local):
    """Refuses to cut pages that cannot be cut."""
    if heads is None or min(producer["tp_size"], heads) == min(pull["tp_size"], heads):
        return
    for region in local:
        spec = producer["layer_specs"][region[NAME]]
        if spec["kind"] == "mamba":
            continue
        if spec["page_bytes"] > spec["unpadded_page_bytes"]:
            raise Replied(f"Mooncake KV-head re-sharding is not supported for padded KV pages (layer {region[NAME]}).")
        if spec["nvfp4"]:
            raise Replied("Mooncake KV-head re-sharding is not supported for NVFP4 KV cache.")


def join(producer, pull, replicated, heads):
    """The regions of both sides that go together."""
    own = dict(producer["regions"])
    if len(own["shared_groups"]) != len(own["layer_name"]) and -1 in own["group_index"]:
        raise Replied("Mooncake shared-group metadata does not match registered layers, so a shared packed region "
                      "cannot be transferred.")
    local, remote = regions(own, producer["layer_groups"]), regions(pull["regions"], producer["layer_groups"])
    pairs = align({"local": local, "remote": remote, "allow_partial_layers": producer["pp_size"] != pull["pp_size"]})
    if pairs["error"]:
        raise Replied(pairs["error"])
    check_heads(producer, pull, heads, pairs["local"])
    if ratio(producer["tp_size"], pull["tp_size"]) == 1 or replicated:
        full = len(pairs["local"]) == len(local) == len(remote)
        pairs = coalesce({"local": pairs["local"], "remote": pairs["remote"], "promote_full_row": full})
    return pairs["local"], pairs["remote"]


# ---- a request's blocks

def blocks_by_group(producer, mine, theirs):
    """What of each group moves: pairs of kernel blocks. None when nothing is wanted."""
    if not any(theirs):
        return None
    if len(mine) != len(theirs):
        raise Replied("KV group count mismatch")
    logical = []
    for kind, own, other in zip(producer["group_kinds"], mine, theirs):
        if kind == "mamba":
            own, other = [one for one in own if one], [one for one in other if one]
        if len(own) < len(other):
            raise Replied("P num blocks less than D")
        logical.append((kind, list(zip(own[len(own) - len(other):], other))))
    if not any(pairs for _kind, pairs in logical):
        return None
    times = producer["kernel_blocks_per_block"]
    return [pairs if kind == "mamba" else [(own * times + step, other * times + step) for own, other in pairs
                                           for step in range(times)] for kind, pairs in logical]


def blocks_of(by_group, region):
    """The blocks of one region, group after group where several share it."""
    if region[GROUP] == -1:
        if not region[SHARED]:
            raise Refused("Shared packed region is missing its group ids.")
        groups = region[SHARED]
    else:
        groups = [region[GROUP]]
    if not all(0 <= group < len(by_group) for group in groups):
        raise Refused("Transfer region references a missing KV group.")
    return [pair for group in groups for pair in by_group[group]]


def descriptors(producer, pull, pairs, by_group, replicated, heads):
    """The copies of one request, in order."""
    copies = []
    for mine, theirs in zip(*pairs) if by_group else ():
        blocks = blocks_of(by_group, mine)
        sends, src, dst, length = cut(producer["tp_rank"], producer["tp_size"], pull["tp_rank"], pull["tp_size"],
                                      mine[KV], theirs[KV], replicated, heads)
        if not blocks or not sends:
            continue
        if src + length > mine[KV]:
            raise Refused("Computed source transfer region exceeds local KV block size.")
        if dst + length > theirs[KV]:
            raise Refused("Destination transfer region exceeds remote KV block size.")
        whole = src == dst == 0 and length == mine[BLOCK_LEN] == theirs[BLOCK_LEN]
        for run in split(*zip(*blocks)):
            for number in range(1 if whole else len(run)):
                copies.append([mine[BASE] + run[number][0] * mine[BLOCK_LEN] + src,
                               theirs[BASE] + run[number][1] * theirs[BLOCK_LEN] + dst,
                               length * (len(run) if whole else 1)])
    return copies


# ---- families

def sender_plan(given):
    """Family `sender_plan`."""
    try:
        return {"plan": cut(given["local_tp_rank"], given["local_tp_size"], given["remote_tp_rank"],
                            given["remote_tp_size"], given["local_kv_block_len"], given["remote_kv_block_len"],
                            given["producer_cache_replicated"], given["total_num_kv_heads"])}
    except Refused as refused:
        return {"error": str(refused)}


def validate(given):
    """Family `validate`."""
    try:
        return {"error": unlike(given["local_kv_block_lens"], given["remote_kv_block_lens"], given["local_tp_size"],
                                given["remote_tp_size"], given["producer_cache_replicated"],
                                given["total_num_kv_heads"])}
    except Refused as refused:
        return {"error": str(refused)}


def ranks(given):
    """Family `ranks`."""
    try:
        targets = partners(given["own_tp_rank"], given["own_tp_size"], given["other_tp_size"])
    except Refused as refused:
        return {"error": str(refused)}
    return {"target_ranks": targets, "need_send": pulls(targets, given["other_pp_size"], given["own_pp_size"])}


def runs(given):
    """Family `runs`."""
    parts = split(given["src"], given["dst"])
    return {side: [[pair[number] for pair in part] for part in parts] for number, side in enumerate(("src", "dst"))}


def refusal(refused, **more):
    """A pull that is refused as a whole."""
    return {"reply": {"status": 2, "err_msg": str(refused)},
            "by": "reply" if isinstance(refused, Replied) else "exception", **more}


def check_pair(producer, pull):
    """What is refused before any region is looked at. Returns the ranks that meet."""
    targets = partners(producer["tp_rank"], producer["tp_size"], pull["tp_size"])
    if pull["tp_rank"] not in targets:
        raise Replied(f"This D tp_rank {pull['tp_rank']} is not paired with P tp_rank {producer['tp_rank']}; expected "
                      f"one of {targets}.")
    if producer["pp_size"] != pull["pp_size"] and (producer["has_opaque_row"] or is_opaque(pull["regions"])):
        raise Replied("Mooncake non-page-contiguous packed regions keep only the first layer name, so they cannot be "
                      f"aligned across PP sizes {producer['pp_size']} and {pull['pp_size']}.")
    return targets


def answer_requests(producer, pull, pairs, last, replicated, heads):
    """What every request of a pull gets, and what is written for all of them."""
    ready = {one["transfer_id"]: one for one in producer["ready"]}
    answers, finished, texts, written = {}, [], [], False
    for request in pull["requests"]:
        own = ready[request["transfer_id"]]
        try:
            by_group = blocks_by_group(producer, own["block_ids"], request["block_ids"])
        except Replied as refused:
            answers[request["d_req_id"]] = {"error": str(refused)}
            texts.append(str(refused))
            continue
        copies = descriptors(producer, pull, pairs, by_group, replicated, heads)
        answers[request["d_req_id"]] = {"descriptors": copies}
        written = written or bool(copies)
        if last:
            finished.append(own["p_req_id"])
    reply = {"status": 0}
    for key, wanted in (("ok_reqs", "descriptors"), ("err_reqs", "error")):
        names = sorted(name for name, answer in answers.items() if wanted in answer)
        if names:
            reply[key] = names
    if texts:
        reply["err_msg"] = texts[0]
    answer = {"reply": reply, "by": "reply", "requests": answers, "finished_sending": sorted(finished)}
    if written:
        answer["session"] = f"{pull['hostname']}:{pull['port']}"
    return answer


def plan(given):
    """Family `plan`: a pull as a whole."""
    producer, pull = given["producer"], given["pull"]
    replicated = producer["is_mla"] or producer["tp_size"] > producer["total_kv_heads"]
    by_heads = not producer["is_mla"] and "mamba" not in producer["group_kinds"]
    heads = producer["total_kv_heads"] if by_heads else None
    try:
        targets = check_pair(producer, pull)
    except Refused as refused:
        return refusal(refused)
    try:
        pairs = join(producer, pull, replicated, heads)
    except Replied as refused:
        return refusal(refused, prepared={"local": [], "remote": [], "error": str(refused)})
    except Refused as refused:
        return refusal(refused)
    prepared = {"local": pairs[0], "remote": pairs[1], "error": None}
    try:
        problem = unlike([one[KV] for one in pairs[0]], [one[KV] for one in pairs[1]], producer["tp_size"],
                         pull["tp_size"], replicated, heads)
        if problem:
            raise Replied(problem)
        last = pulls(targets, pull["pp_size"], producer["pp_size"]) == 1
        return {"prepared": prepared, **answer_requests(producer, pull, pairs, last, replicated, heads)}
    except Refused as refused:
        return refusal(refused, prepared=prepared)


ANSWERS = {"sender_plan": sender_plan, "validate": validate, "ranks": ranks, "runs": runs, "plan": plan}
