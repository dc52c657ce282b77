# SPDX-License-Identifier: Apache-2.0
"""The documented rules of vLLM's MooncakeConnector, written down a second time: slow, plain, element by element.

It shares nothing with the library: cases that upstream never answered are answered by both and compared. `ANSWERS` has
a function per family, which takes a case's `input` and returns what its `expect` would hold.
"""
import itertools
import re

BASE, BLOCK_LEN, KV, NAME, INDEX, GROUP, SHARED, ROW = range(8)
COLUMNS = ["base_addr", "block_len", "kv_block_len", "layer_name", "layer_index", "group_index", "shared_groups",
           "row_offset"]


class Refused(Exception):
    """Something that upstream asserts, with its text where it has one."""

    kind = "AssertionError"


class Raised(Refused):
    """Something that upstream raises."""

    kind = "RuntimeError"


# ---- registration

def places(shape, strides):
    """Where the elements lie, in the order of their indices."""
    return [sum(at * stride for at, stride in zip(indices, strides))
            for indices in itertools.product(*map(range, shape))]


def is_span(shape, strides):
    """Each element has a place of its own and no place between them is free."""
    return sorted(places(shape, strides)) == list(range(len(places(shape, strides))))


def number_in(name):
    """The one part of a dotted name that is a number."""
    numbers = [part for part in name.split(".") if re.fullmatch(r"\s*[+-]?\d+(_\d+)*\s*", part, re.ASCII)]
    if len(numbers) != 1:
        raise Refused(f"layer name {name} should only contain one integer")
    return int(numbers[0])


def check_view(view, storages):
    """What no tensor can be is refused without upstream's help."""
    shape, strides = view["shape"], view["strides"]
    if not 0 <= view["storage"] < len(storages) or min(shape) < 1 or min(strides) < 0:
        raise Refused("")
    last = sum((size - 1) * stride for size, stride in zip(shape, strides))
    if view["offset"] + (last + 1) * view["elem"] > storages[view["storage"]]["bytes"]:
        raise Refused("")


def row_of(given, view, spec):
    """The bytes of a row when the allocation is cut into rows of all layers' parts of a block, else None."""
    nbytes = given["storages"][view["storage"]]["bytes"]
    shape, strides = view["shape"], view["strides"]
    if spec["kind"] in ("mamba", "circular"):
        return None
    if len(shape) == 1:
        blocks, page = given["num_blocks"] * given["kernel_blocks_per_block"], spec["page_bytes"]
        return page if blocks > 0 and page > 0 and 0 <= nbytes - blocks * page < page else None
    row = strides[0] * view["elem"]
    names_heads = len(shape) == 4 and strides[1:3] == [shape[2] * shape[3], shape[3]]
    if row == 0 or shape[0] * row != nbytes or (names_heads and spec["kind"] != "mla"):
        return None
    return row


def payload_of(given, spec, name, block_len, whole):
    """The bytes of a block that are sent, when blocks are not rows."""
    payload = block_len
    if whole and spec["kind"] == "mamba":
        payload = spec["page_bytes"]
    elif whole:
        if spec["page_bytes"] % given["kernel_blocks_per_block"]:
            raise Refused("")
        payload = spec["page_bytes"] // given["kernel_blocks_per_block"]
    if payload > block_len:
        raise Raised(f"Mooncake transfer length exceeds physical block stride for {name}: kv_block_len={payload}, "
                     f"block_len={block_len}.")
    return payload


def register(given):
    """Memory and regions of a rank's tensors."""
    memory, regions, packed, opaque = [], [], {}, set()
    try:
        for view in given["views"]:
            name, elem = view["layer"], view["elem"]
            index = number_in(name)
            if name not in given["specs"]:
                continue
            spec, group = given["specs"][name], given["layer_groups"][name]
            check_view(view, given["storages"])
            storage = given["storages"][view["storage"]]
            if storage["base"] not in [base for base, _bytes in memory]:
                memory.append([storage["base"], storage["bytes"]])
            shape, strides = view["shape"], view["strides"]
            start = storage["base"] + view["offset"]
            row = row_of(given, view, spec)
            if row is not None:
                block = places(shape[1:], strides[1:])
                payload = len(block) * elem
                if len(shape) == 1 or block != list(range(len(block))) or payload > row:
                    start, payload = storage["base"], row
                    opaque.add(view["storage"])
                if (start, row, payload) not in packed:
                    packed[start, row, payload] = len(regions)
                    regions.append([start, row, payload, name, index, group, [group], start - storage["base"]])
                    continue
                region = regions[packed[start, row, payload]]
                if group not in region[SHARED]:
                    region[SHARED].append(group)
                    region[GROUP] = -1
                continue
            block_len = strides[0] * elem
            whole = is_span(shape[1:], strides[1:])
            if not whole and not is_span(shape[2:], strides[2:]):
                raise Refused("")
            payload = payload_of(given, spec, name, block_len, whole)
            for head in range(1 if whole else shape[1]):
                head_start = start + (0 if whole else head * strides[1] * elem)
                regions.append([head_start, block_len, payload, name, index, group, [group], -1])
        if not memory:
            raise Raised("No KV cache tensors were registered with Mooncake.")
    except Refused as refused:
        return {"error": str(refused), "type": refused.kind}
    answer = {column: [region[number] for region in regions] for number, column in enumerate(COLUMNS)}
    return {"memory": memory, **answer, "opaque_storages": sorted(opaque)}


# ---- two lists of regions

def numbered(regions):
    """Regions by name and by how many of the name came before."""
    keys = []
    for region in regions:
        keys.append((region[NAME], sum(name == region[NAME] for name, _number in keys)))
    return list(zip(keys, regions))


def python_tuple(values):
    """As a tuple prints."""
    return str(tuple(values))


def why_not(mine, theirs):
    """What two regions of one key do not agree on, or None."""
    for number, what in ((INDEX, "layer index"), (GROUP, "group index")):
        if mine[number] != theirs[number]:
            return (f"Mooncake registered {what} mismatch for {mine[NAME]}: producer={mine[number]}, "
                    f"consumer={theirs[number]}.")
    if mine[SHARED] and theirs[SHARED] and mine[SHARED] != theirs[SHARED]:
        return (f"Mooncake shared-group set mismatch for {mine[NAME]}: producer={python_tuple(mine[SHARED])}, "
                f"consumer={python_tuple(theirs[SHARED])}.")
    return None


def align(given):
    """Pairs of regions by name and occurrence, in the producer's order."""
    local, remote = [], []
    theirs = dict(numbered(given["remote"]))
    names = {name for name, _number in theirs}
    for (name, number), mine in numbered(given["local"]):
        if (name, number) in theirs:
            error = why_not(mine, theirs[name, number])
        elif given["allow_partial_layers"] and name not in names:
            continue
        else:
            error = (f"Mooncake producer registered layer has no matching consumer occurrence: {name} occurrence "
                     f"{number}.")
        if error:
            return {"local": [], "remote": [], "error": error}
        local.append(mine)
        remote.append(theirs[name, number])
    return {"local": local, "remote": remote, "error": None}


def goes_on(run, region):
    """Whether a region continues a run of one side, inside the row in which the run began."""
    first, last = run[0], run[-1]
    return ([region[number] for number in (GROUP, SHARED, BLOCK_LEN)]
            == [last[number] for number in (GROUP, SHARED, BLOCK_LEN)]
            and region[BASE] >= last[BASE] + last[KV]
            and region[BASE] + region[KV] <= first[BASE] + first[BLOCK_LEN])


def merged(run):
    """One region of a run's regions."""
    region = list(run[0])
    if len(run) > 1:
        region[KV] = run[-1][BASE] + run[-1][KV] - run[0][BASE]
    return region


def coalesce(given):
    """Neighbours on both sides become one region, a row's begin the whole row."""
    if len(given["local"]) != len(given["remote"]):
        return {"local": given["local"], "remote": given["remote"]}
    runs = []
    for pair in zip(given["local"], given["remote"]):
        if runs and all(goes_on(run, region) for run, region in zip(zip(*runs[-1]), pair)):
            runs[-1].append(pair)
        else:
            runs.append([pair])
    pairs = [tuple(merged(run) for run in zip(*run)) for run in runs]
    for pair in pairs:
        lengths = {region[BLOCK_LEN] for region in pair}
        if (given["promote_full_row"] and len(lengths) == 1
                and all(region[ROW] == 0 and region[KV] <= region[BLOCK_LEN] for region in pair)):
            for region in pair:
                region[KV] = region[BLOCK_LEN]
    return {"local": [mine for mine, _theirs in pairs], "remote": [theirs for _mine, theirs in pairs]}


ANSWERS = {"register": register, "align": align, "coalesce": coalesce}
