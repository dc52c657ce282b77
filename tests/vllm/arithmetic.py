#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of vLLM's MooncakeConnector, written down once more: registration, pairing, alignment, copies.

Objects are those of the case files: a producer, a pull, views. `Fatal` is an assertion upstream: its text is said.
"""
import collections

Region = collections.namedtuple("Region", "base stride length name index group shared row")
SHARED, NO_ROW = -1, -1
COLUMNS = ("base_addr", "block_len", "kv_block_len", "layer_name", "layer_index", "group_index", "shared_groups",
           "row_offset")


class Fatal(Exception):
    """What upstream asserts."""


def layer_index(name):
    numbers = [part for part in name.split(".") if part.isdecimal()]
    if len(numbers) != 1:
        raise Fatal("layer name %s should only contain one integer" % name)
    return int(numbers[0])


# ---- registration


def dense(shape, strides):
    """Some permutation of the axes is contiguous."""
    want = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape) if size != 1):
        if stride != want:
            return False
        want *= size
    return True


def contiguous(shape, strides):
    want = 1
    for size, stride in reversed(list(zip(shape, strides))):
        if size != 1 and stride != want:
            return False
        want *= size
    return True


def product(numbers):
    out = 1
    for number in numbers:
        out *= number
    return out


class Registration:
    """What registering `views` over `storages` gives: regions, memory, opaque storages."""

    def __init__(self, given):
        self.given, self.ratio = given, given.get("kernel_blocks_per_block", 1)
        self.regions, self.memory, self.opaque, self.packed = [], [], [], {}
        for view in given["views"]:
            spec = given["specs"].get(view["layer"])
            if spec is not None:
                self.layer(view, spec, given["layer_groups"][view["layer"]])
        if not self.regions:
            raise Fatal("No KV cache tensors were registered with Mooncake.")

    def layer(self, view, spec, group):
        storage = self.given["storages"][view["storage"]]
        if [storage["base"], storage["bytes"]] not in self.memory:
            self.memory.append([storage["base"], storage["bytes"]])
        shape, elem, mla = view["shape"], view["elem"], spec["kind"] == "mla"
        if len(shape) > 1:
            strides = view["strides"]
            stride = strides[0] * elem
            major = shape[0] > 0 and shape[0] * stride == storage["bytes"]
            heads_first = len(shape) == 4 and strides[2] == shape[3] and strides[1] == shape[2] * shape[3]
        else:
            page = 0 if spec["kind"] == "mamba" else spec["page_bytes"]
            blocks = self.given["num_blocks"] * self.ratio
            rest = storage["bytes"] - blocks * page if blocks > 0 and page > 0 else -1
            major, stride, heads_first = 0 <= rest < page, page, False
        if spec["kind"] not in ("mamba", "circular") and major and stride > 0 and (mla or not heads_first):
            self.row(view, stride, storage, group)
        else:
            self.plain(view, spec, storage, group)

    def add(self, base, stride, length, view, group, row):
        self.regions.append(Region(base, stride, length, view["layer"], layer_index(view["layer"]), group, [group],
                                   row))

    def row(self, view, stride, storage, group):
        size = product(view["shape"][1:]) * view["elem"]
        if len(view["shape"]) > 1 and contiguous(view["shape"][1:], view["strides"][1:]) and 0 < size <= stride:
            base, length = storage["base"] + view["offset"], size
        else:
            base, length = storage["base"], stride
            if view["storage"] not in self.opaque:
                self.opaque.append(view["storage"])
        at = self.packed.setdefault((base, stride, length), len(self.regions))
        if at == len(self.regions):
            self.add(base, stride, length, view, group, base - storage["base"])
            return
        region = self.regions[at]
        if group not in region.shared:
            shared = region.shared + [group]
            self.regions[at] = region._replace(shared=shared, group=SHARED)

    def plain(self, view, spec, storage, group):
        shape, strides, elem = view["shape"], view["strides"], view["elem"]
        stride, base = strides[0] * elem, storage["base"] + view["offset"]
        if dense(shape[1:], strides[1:]):
            length = spec["page_bytes"]
            if spec["kind"] != "mamba":
                if length % self.ratio:
                    raise Fatal("")
                length //= self.ratio
            bases = [base]
        else:
            if not dense(shape[2:], strides[2:]):
                raise Fatal("")
            length, bases = stride, [base + head * strides[1] * elem for head in range(shape[1])]
        for base in bases:
            if length > stride:
                raise Fatal("Mooncake transfer length exceeds physical block stride for %s: kv_block_len=%d, "
                            "block_len=%d." % (view["layer"], length, stride))
            self.add(base, stride, length, view, group, NO_ROW)

    def arrays(self):
        return arrays(self.regions)


def arrays(regions):
    return {column: [list(region[at]) if column == "shared_groups" else region[at] for region in regions]
            for at, column in enumerate(COLUMNS)}


# ---- pairing of ranks


def ratio(local, remote):
    if local >= remote:
        if local % remote:
            raise Fatal("Local tensor parallel size %d is not divisible by remote tensor parallel size %d."
                        % (local, remote))
        return local // remote
    if remote % local:
        raise Fatal("Remote tensor parallel size %d is not divisible by local tensor parallel size %d."
                    % (remote, local))
    return -(remote // local)


def target_ranks(rank, size, other):
    ways = ratio(size, other)
    return [rank // ways] if ways > 0 else [rank * -ways + i for i in range(-ways)]


def need_send(rank, size, pp_size, other, other_pp):
    count = len(target_ranks(rank, size, other))
    return count * other_pp if other_pp > 1 and other_pp != pp_size else count


def stages(pp_size, pp_rank, known):
    """The stages of the other side that a consumer asks."""
    return [pp_rank] if pp_size == len(known) and pp_rank in known else sorted(known)


def sender_plan(local_tp_rank, local_tp_size, remote_tp_rank, remote_tp_size, local_kv_block_len, remote_kv_block_len,
                producer_cache_replicated, total_num_kv_heads):
    heads, whole = total_num_kv_heads, producer_cache_replicated
    ways = ratio(local_tp_size, remote_tp_size)
    if ways == 1:
        return True, 0, 0, local_kv_block_len
    if heads is not None and whole != (remote_tp_size > heads):
        each = local_kv_block_len // max(heads // local_tp_size, 1)
        a, b = local_tp_rank * heads // local_tp_size, remote_tp_rank * heads // remote_tp_size
        return local_tp_rank % max(local_tp_size // heads, 1) == 0, max(b - a, 0) * each, max(a - b, 0) * each, each
    if ways > 0:
        if whole:
            return local_tp_rank % ways == 0, 0, 0, local_kv_block_len
        return True, 0, local_tp_rank % ways * local_kv_block_len, local_kv_block_len
    if whole:
        return True, 0, 0, local_kv_block_len
    return True, remote_tp_rank % -ways * remote_kv_block_len, 0, remote_kv_block_len


def validate(local_kv_block_lens, remote_kv_block_lens, local_tp_size, remote_tp_size, producer_cache_replicated,
             total_num_kv_heads):
    heads = total_num_kv_heads
    if len(local_kv_block_lens) != len(remote_kv_block_lens):
        return "Mooncake asymmetric TP requires matching KV region counts between producer and consumer."
    if heads is not None:
        local_tp_size, remote_tp_size = min(local_tp_size, heads), min(remote_tp_size, heads)
    elif producer_cache_replicated:
        return None
    ways = ratio(local_tp_size, remote_tp_size)
    for i, (a, b) in enumerate(zip(local_kv_block_lens, remote_kv_block_lens)):
        if ways == 1:
            if a != b:
                return "Mooncake KV region length mismatch for homogeneous TP at region %d: local=%d, remote=%d." \
                    % (i, a, b)
        elif ways > 0:
            if b != a * ways:
                return "Mooncake destination KV region length does not match the producer TP ratio at region %d: " \
                    "local=%d, remote=%d, tp_ratio=%d." % (i, a, b, ways)
        elif a != b * -ways:
            return "Mooncake source KV region length does not match the consumer TP ratio at region %d: " \
                "local=%d, remote=%d, tp_ratio=%d." % (i, a, b, ways)
    return None


# ---- regions of both sides


def expand(given, layer_groups):
    """Regions of parallel arrays; empty ones are absent."""
    base, stride, length, names, indices, groups, shared, rows = [given[column] for column in COLUMNS]
    if len({len(base), len(stride), len(length), len(names), len(indices)}) != 1:
        raise Fatal("Mooncake transfer regions require matching metadata lengths, got base_addrs=%d, block_lens=%d, "
                    "kv_block_lens=%d, layer_names=%d, layer_indices=%d."
                    % (len(base), len(stride), len(length), len(names), len(indices)))
    groups = groups or [layer_groups.get(name, 0) for name in names]
    if len(groups) != len(names):
        raise Fatal("Mooncake transfer regions require matching group metadata lengths, got group_indices=%d, "
                    "layer_names=%d." % (len(groups), len(names)))
    shared, rows = shared or [[]] * len(names), rows or [NO_ROW] * len(names)
    return [Region(*row) for row in zip(base, stride, length, names, indices, groups, shared, rows)]


def align(local, remote, allow_partial_layers):
    def keys(regions):
        seen = collections.Counter()
        for region in regions:
            yield (region.name, seen[region.name]), region
            seen[region.name] += 1

    known, pairs = dict(keys(remote)), []
    names = {region.name for region in remote}
    for key, mine in keys(local):
        yours = known.get(key)
        if yours is None:
            if allow_partial_layers and mine.name not in names:
                continue
            return [], [], "Mooncake producer registered layer has no matching consumer occurrence: " \
                "%s occurrence %d." % key
        for what, a, b in (("layer index", mine.index, yours.index), ("group index", mine.group, yours.group)):
            if a != b:
                return [], [], "Mooncake registered %s mismatch for %s: producer=%d, consumer=%d." \
                    % (what, mine.name, a, b)
        if mine.shared and yours.shared and list(mine.shared) != list(yours.shared):
            return [], [], "Mooncake shared-group set mismatch for %s: producer=%s, consumer=%s." \
                % (mine.name, tuple(mine.shared), tuple(yours.shared))
        pairs.append((mine, yours))
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs], None


def has_opaque_row(rows, lengths, strides):
    if not rows or not len(rows) == len(lengths) == len(strides):
        return False
    return any(row == 0 and length == stride for row, length, stride in zip(rows, lengths, strides))


def coalesce(local, remote, promote_full_row):
    if len(local) != len(remote):
        return list(local), list(remote)

    def joins(first, last, following):
        return following.group == first.group and list(following.shared) == list(first.shared) and \
            following.stride == last.stride and last.base + last.length <= following.base and \
            following.base + following.length <= first.base + first.stride

    runs = []
    for pair in zip(local, remote):
        if runs and all(joins(runs[-1][0][side], runs[-1][-1][side], pair[side]) for side in (0, 1)):
            runs[-1].append(pair)
        else:
            runs.append([pair])
    out = []
    for run in runs:
        one, two = [run[0][side]._replace(length=run[-1][side].base + run[-1][side].length - run[0][side].base)
                    for side in (0, 1)]
        if promote_full_row and one.row == two.row == 0 and one.stride == two.stride and \
                one.length <= one.stride and two.length <= two.stride:
            one, two = one._replace(length=one.stride), two._replace(length=two.stride)
        out.append((one, two))
    return [pair[0] for pair in out], [pair[1] for pair in out]


# ---- a producer's answer


class Producer:
    """One rank's facts."""

    def __init__(self, given):
        self.given = given
        self.rank, self.size, self.pp = given["tp_rank"], given["tp_size"], given["pp_size"]
        self.heads = given["total_kv_heads"]
        self.mamba = "mamba" in given["group_kinds"]
        self.whole = given["is_mla"] or self.size > self.heads
        self.cut = None if given["is_mla"] or self.mamba else self.heads

    def refuse(self, pull):
        """The text of an ERROR before anything is prepared, or None."""
        rank, ranks = pull["tp_rank"], target_ranks(self.rank, self.size, pull["tp_size"])
        if rank not in ranks:
            return "This D tp_rank %d is not paired with P tp_rank %d; expected one of %s." % (rank, self.rank, ranks)
        theirs = pull["regions"]
        if self.pp != pull["pp_size"] and (self.given["has_opaque_row"] or has_opaque_row(
                theirs["row_offset"], theirs["kv_block_len"], theirs["block_len"])):
            return "Mooncake non-page-contiguous packed regions keep only the first layer name, so they cannot be " \
                "aligned across PP sizes %d and %d." % (self.pp, pull["pp_size"])
        return None

    def prepare(self, pull):
        mine, theirs = dict(self.given["regions"]), dict(pull["regions"])
        count = len(mine["layer_name"])
        if len(mine["shared_groups"]) != count:
            if SHARED in mine["group_index"]:
                return [], [], "Mooncake shared-group metadata does not match registered layers, so a shared packed " \
                    "region cannot be transferred."
            mine["shared_groups"] = []
        if len(mine["row_offset"]) != count:
            mine["row_offset"] = []
        for column in ("shared_groups", "row_offset"):
            if len(theirs[column]) != len(theirs["layer_name"]):
                theirs[column] = []
        local = expand(mine, self.given["layer_groups"])
        remote = expand(theirs, self.given["layer_groups"])
        counts = len(local), len(remote)
        local, remote, error = align(local, remote, pull["pp_size"] != self.pp)
        error = error or self.uncut(local, pull["tp_size"])
        if error:
            return [], [], error
        if ratio(self.size, pull["tp_size"]) == 1 or self.whole:
            local, remote = coalesce(local, remote, counts == (len(local), len(local)))
        return local, remote, None

    def uncut(self, local, other):
        """Heads that cannot be cut otherwise."""
        if self.cut is None or min(self.size, self.heads) == min(other, self.heads):
            return None
        for region in local:
            spec = self.given["layer_specs"].get(region.name)
            if spec is None or spec["kind"] != "attention":
                continue
            if spec["page_bytes"] > spec["unpadded_page_bytes"]:
                return "Mooncake KV-head re-sharding is not supported for padded KV pages (layer %s)." % region.name
            if spec["nvfp4"]:
                return "Mooncake KV-head re-sharding is not supported for NVFP4 KV cache."
        return None

    def lengths(self, local, remote, other):
        return validate([region.length for region in local], [region.length for region in remote], self.size, other,
                        self.whole, self.cut)

    def ids(self, mine, yours):
        """Kernel blocks of both sides per group, and an error."""
        if not any(yours):
            return None, None, None
        if len(mine) != len(yours):
            return None, None, "KV group count mismatch"
        out = []
        for kind, a, b in zip(self.given["group_kinds"], mine, yours):
            if kind == "mamba":
                a, b = [i for i in a if i], [i for i in b if i]
            if len(a) < len(b):
                return None, None, "P num blocks less than D"
            a = a[len(a) - len(b):]
            if kind != "mamba":
                ways = self.given["kernel_blocks_per_block"]
                a, b = [[i * ways + k for i in ids for k in range(ways)] for ids in (a, b)]
            out.append((a, b))
        if not any(pair[1] for pair in out):
            return None, None, None
        return [pair[0] for pair in out], [pair[1] for pair in out], None

    def descriptors(self, local, remote, pull, mine, yours):
        """([[src, dst, length], ...], error) of one request."""
        mine, yours, error = self.ids(mine, yours)
        if error or mine is None:
            return [], error
        out = []
        for one, two in zip(local, remote):
            a, b = region_ids(mine, one), region_ids(yours, one)
            if not a or not b:
                continue
            send, src, dst, size = sender_plan(self.rank, self.size, pull["tp_rank"], pull["tp_size"], one.length,
                                               two.length, self.whole, self.cut)
            if not send:
                continue
            if src + size > one.length:
                raise Fatal("Computed source transfer region exceeds local KV block size.")
            if dst + size > two.length:
                raise Fatal("Destination transfer region exceeds remote KV block size.")
            joined = src == dst == 0 and size == one.stride == two.stride
            for left, right in zip(*runs(a, b)):
                if joined:
                    left, right, length = left[:1], right[:1], size * len(left)
                else:
                    length = size
                out += [[one.base + i * one.stride + src, two.base + j * two.stride + dst, length]
                        for i, j in zip(left, right)]
        return out, None


def region_ids(ids, region):
    if region.group >= 0:
        if region.group >= len(ids):
            raise Fatal("Transfer region references a missing KV group.")
        return ids[region.group]
    if not region.shared:
        raise Fatal("Shared packed region is missing its group ids.")
    if any(group >= len(ids) for group in region.shared):
        raise Fatal("Transfer region references a missing KV group.")
    return [i for group in region.shared for i in ids[group]]


def runs(src, dst):
    left, right = [], []
    for at, (a, b) in enumerate(zip(src, dst)):
        if at and a == src[at - 1] + 1 and b == dst[at - 1] + 1:
            left[-1].append(a)
            right[-1].append(b)
        else:
            left.append([a])
            right.append([b])
    return left, right
