# SPDX-License-Identifier: Apache-2.0
"""Upstream's documented planning arithmetic, written down a second time: slow, plain, list by list.

It shares nothing with the library: cases that upstream never answered are answered by both and compared. `answer(case)`
takes a pair case and returns what its `expect` would hold, but for `ring` and `aux`.
"""
import hashlib
import struct

POLICY = "AttentionPolicy: incompatible: "
STATE = "MambaPolicy.validate_peer_compatible: "


class Refused(Exception):
    """A broken rule; `soft` ones are told as a reason."""

    def __init__(self, text, soft=False):
        super().__init__(text)
        self.soft = soft


class NoMapper(Exception):
    """A mapper that cannot be built."""


# ---- the grid

def group_tp(rank):
    return rank["tp"][0] // rank["dp"][0] if rank["attention"]["attention_dp"] else rank["tp"][0]


def state_tp(rank):
    if rank["attention"]["attention_dp"]:
        return 1, 0
    cp_size, cp_rank = rank["cp"]
    return rank["tp"][0] * cp_size, rank["tp"][1] * cp_size + cp_rank


def factors(self_heads, peer_heads, self, peer):
    if not self_heads or not peer_heads:
        return [1, 1]
    mine, theirs = self_heads * group_tp(self), peer_heads * group_tp(peer)
    return [max(1, mine // theirs), max(1, theirs // mine)]


def stage_layers(rank, stage):
    begin = sum(rank["layers_per_stage"][:stage])
    return begin, begin + rank["layers_per_stage"][stage]


def stages_met(self, peer):
    """The stages of `peer` that overlap self's own."""
    begin, end = stage_layers(self, self["pp"][1])
    met = []
    for stage in range(peer["pp"][0]):
        peer_begin, peer_end = stage_layers(peer, stage)
        if begin < peer_end and end > peer_begin:
            met.append(stage)
    return met


def ranks_met(self_size, peer_size, self_rank, base):
    if self_size <= peer_size:
        count = peer_size // self_size
        start = self_rank * count + base
    else:
        count = 1
        start = self_rank // (self_size // peer_size) + base
    return range(start, start + count)


def overlap(self, peer, dp_rank):
    stages = stages_met(self, peer)
    if not stages:
        return {"pp": 0, "tp": 0, "cp": 0, "dup": 1, "peer_dup": 1, "ranks": []}
    tps = ranks_met(group_tp(self), group_tp(peer), self["tp"][1] % group_tp(self), dp_rank * group_tp(peer))
    cps = ranks_met(self["cp"][0], peer["cp"][0], self["cp"][1], 0)
    dup, peer_dup = factors(self["attention"]["kv_heads"], peer["attention"]["kv_heads"], self, peer)
    ranks = [(stage * peer["tp"][0] + tp) * peer["cp"][0] + cp for stage in stages for tp in tps for cp in cps]
    return {"pp": len(stages), "tp": len(tps), "cp": len(cps), "dup": dup, "peer_dup": peer_dup, "ranks": ranks}


# ---- views

def views(rank, cache=None):
    for number, group in enumerate(rank["table"]["groups"]):
        if cache in (None, group["cache"]):
            for index, view in enumerate(group["views"]):
                yield (number, index), group, view


def view_at(rank, key):
    return rank["table"]["groups"][key[0]]["views"][key[1]]


def layers_of(group, view):
    """Global layers by the smallest offset of their entries."""
    starts = {}
    for local, offset, _size in view["entries"]:
        starts[local] = min(starts.get(local, offset), offset)
    names = dict(group["layers"])
    return [names[local] for local in sorted(starts, key=starts.get)]


def role_text(view):
    return "[" + ", ".join(repr(role) for role in sorted(view["roles"])) + "]"


def hosted(rank, cache):
    return {layer: number for number, group in enumerate(rank["table"]["groups"]) if group["cache"] == cache
            for _local, layer in group["layers"]}


def partner(group, view, peer):
    layers, where = layers_of(group, view), hosted(peer, group["cache"])
    number = next((where[layer] for layer in layers if layer in where), None)
    if number is None:
        return None
    peer_group = peer["table"]["groups"][number]
    for index, other in enumerate(peer_group["views"]):
        if set(other["roles"]) == set(view["roles"]) and set(layers_of(peer_group, other)) & set(layers):
            return number, index
    return None


def mapping(self, peer):
    pairs = []
    for key, group, view in views(self):
        found = partner(group, view, peer)
        if found is None:
            continue
        other = view_at(peer, found)
        if view["kind"] != other["kind"]:
            raise Refused("PeerRegistrar.get_pool_mapping: incompatible mapper kinds for pool role "
                          f"{role_text(view)} (local={view['kind'].upper()}, peer={other['kind'].upper()}, "
                          f"peer_pool={found[1]})")
        pairs.append((key, found))
    return pairs


def buffers_of(view, key):
    layers = len({entry[0] for entry in view["entries"]})
    if layers and len(view["entries"]) % layers:
        raise Refused(f"PoolView buffer entries are not evenly distributed across layers: layer_group={key[0]}, "
                      f"pool={key[1]}, entries={len(view['entries'])}, layers={layers}")
    return len(view["entries"]) // layers if layers else 1


def region_of(view):
    """Start of each local layer, and the bytes of every layer."""
    name = f"PoolView(pool_idx={view['pool']}, role={role_text(view)}) "
    spans = {}
    for local, offset, size in view["entries"]:
        spans.setdefault(local, []).append((offset, size))
    if not spans:
        raise NoMapper(name + "has no buffer entries; per-layer byte ranges are undefined")
    for local, found in spans.items():
        found.sort()
        for (offset, size), (after, _size) in zip(found, found[1:]):
            if offset + size != after:
                raise NoMapper(f"{name}layer {local} buffers are not contiguous: [{offset}, {offset + size}) is "
                               f"followed by offset {after}")
    totals = {sum(size for _offset, size in found) for found in spans.values()}
    if len(totals) > 1:
        raise NoMapper(name + "per-layer region sizes are not uniform")
    total = totals.pop()
    if view["layer_bytes"] not in (None, total):
        raise NoMapper(f"{name}declares bytes_per_layer={view['layer_bytes']} but buffer entries sum to {total} per "
                       "layer")
    return {local: found[0][0] for local, found in spans.items()}, total


# ---- rules

def check_first(self, peer):
    own, other = 1 + self.get("protocol_delta", 0), 1 + peer.get("protocol_delta", 0)
    if own != other:
        raise Refused(f"native transfer protocol version differs (local={own}, peer={other})")
    own, other = self.get("replay", False), peer.get("replay", False)
    if own != other:
        raise Refused(f"bounded_replay_on_generation differs (local={own}, peer={other})")
    drafts, other = self.get("draft_layers", 0), peer.get("draft_layers", 0)
    if drafts != other:
        raise Refused(f"unified draft KV layer count differs (local={drafts}, peer={other})")
    if drafts == 0:
        return
    own, other = self.get("draft_dtype"), peer.get("draft_dtype")
    if own != other:
        raise Refused(f"draft KV dtype differs (local={own}, peer={other})")
    own, other = self["attention"], peer["attention"]
    if own["kv_heads"] != other["kv_heads"] and not (own["key_only"] and other["key_only"]):
        raise Refused("unified draft KV layers require the same attention TP size on both sides (local "
                      f"heads={own['kv_heads']}, peer heads={other['kv_heads']})")


def check_attention(self, peer):
    own, other = self["attention"], peer["attention"]

    def refuse(text):
        raise Refused(POLICY + text, soft=True)

    def same(key, name):
        if own[key] != other[key]:
            refuse(f"{name} mismatch; field='{name}', local={own[key]}, peer={other[key]}")

    same("key_only", "is_mla")
    tokens, peer_tokens = own["tokens_per_block"], other["tokens_per_block"]
    if self["cp"][0] > 1 and peer["cp"][0] > 1:
        refuse("cp_size must be 1 on at least one side (helix pairs a cp=1 context instance with a cp=N generation "
               f"instance); local={self['cp'][0]}, peer={peer['cp'][0]}")
    if max(self["cp"][0], peer["cp"][0]) > 1 and tokens != peer_tokens:
        refuse("helix block-interleaved transfer requires equal tokens_per_block on both sides (block boundaries must "
               f"coincide for [cp_rank::cp_size] ownership); local={tokens}, peer={peer_tokens}")
    same("element_bytes", "element_bytes")
    if own["kv_heads"] != other["kv_heads"] and not own["key_only"] \
            and tokens * own["head_dim"] * own["element_bytes"] % 1:
        refuse(f"sub-byte head slicing is not byte-aligned; tokens_per_block={tokens}, dims_per_head={own['head_dim']}"
               f", element_bytes={own['element_bytes']}")
    if tokens != peer_tokens:
        if any(view["kind"] in ("nhd", "replicated") for rank in (self, peer) for _key, _group, view in views(rank)):
            refuse(f"tokens_per_block mismatch for NHD/replicated pools; local={tokens} peer={peer_tokens}")
        if max(tokens, peer_tokens) % min(tokens, peer_tokens):
            refuse(f"tokens_per_block not divisible; local={tokens} peer={peer_tokens}")
    same("head_dim", "dims_per_head")
    if own["key_only"] and (own["kv_heads"] != 1 or other["kv_heads"] != 1):
        refuse(f"MLA requires kv_heads_per_rank == 1 for both ranks; local={own['kv_heads']}, peer={other['kv_heads']}")


def covered(rank, cache):
    found = {}
    for _key, group, view in views(rank, cache):
        if view["kind"] == "replicated":
            for role in view["roles"]:
                found.setdefault(role, set()).update(layers_of(group, view))
    return found


def check_coverage(self, peer, cache):
    common = set(hosted(self, cache)) & set(hosted(peer, cache))
    own, other = covered(self, cache), covered(peer, cache)
    unlike = {role: common & (own.get(role, set()) ^ other.get(role, set())) for role in set(own) | set(other)}
    unlike = {role: layers for role, layers in unlike.items() if layers}
    if unlike:
        policy = "AttentionPolicy" if cache == "paged" else "MambaPolicy"
        raise Refused(f"{policy}.validate_peer_compatible: replicated role(s) {sorted(unlike)} differ on overlapping "
                      f"layers {sorted(set().union(*unlike.values()))}")


def check_views(self, peer):
    where = hosted(peer, "paged")
    for key, group, view in views(self, "paged"):
        if view["kind"] == "replicated" or not any(layer in where for layer in layers_of(group, view)):
            continue
        found = partner(group, view, peer)
        if found is None:
            raise Refused(f"view (layer_group={key[0]}, view={key[1]}) {role_text(view)} has no peer view with the "
                          "same roles")
        other = view_at(peer, found)
        for side, number, one in (("local", key, view), ("peer", found, other)):
            if one["heads"] is None or one["heads"] <= 0:
                raise Refused(f"{side} view (layer_group={number[0]}, view={number[1]}) must publish a positive "
                              f"num_kv_heads, got {one['heads']}")
        buffers_of(view, key)
        buffers_of(other, found)


def state_view(rank, role):
    return next((view for _key, _group, view in views(rank, "state") if view["roles"] == [role]), None)


def check_total(self, peer, local, remote, field):
    own, other = state_tp(self)[0], state_tp(peer)[0]
    if local is not None and remote is not None and local * own != remote * other:
        raise Refused(f"{STATE}global (TP-aggregated) {field} differs: local {local} bytes/rank x mamba_tp={own} vs "
                      f"peer {remote} bytes/rank x mamba_tp={other}. ")


def check_state(self, peer):
    if not all(any(group["cache"] == "state" for group in rank["table"]["groups"]) for rank in (self, peer)):
        return
    ssm, peer_ssm = state_view(self, "ssm_state"), state_view(peer, "ssm_state")
    conv, peer_conv = state_view(self, "conv_state"), state_view(peer, "conv_state")
    if ssm and peer_ssm:
        own, other = ssm.get("head_bytes"), peer_ssm.get("head_bytes")
        if own is not None and other is not None and own != other:
            raise Refused(f"{STATE}ssm_bytes_per_head differs (local={own}, peer={other}); check head_dim / d_state / "
                          "mamba_ssm_cache_dtype")
        check_total(self, peer, ssm["layer_bytes"], peer_ssm["layer_bytes"], "ssm slot_bytes")
    if conv and peer_conv:
        check_total(self, peer, conv["layer_bytes"], peer_conv["layer_bytes"], "conv slot_bytes")
        own, other = conv.get("sections"), peer_conv.get("sections")
        if own and other:
            if len(own) != len(other):
                raise Refused(f"{STATE}conv section count differs (local={len(own)}, peer={len(other)})")
            for number, (one, two) in enumerate(zip(own, other)):
                check_total(self, peer, one, two, f"conv_section_bytes[{number}]")
    check_coverage(self, peer, "state")
    for _key, group, view in views(self, "state"):
        found = partner(group, view, peer) if view["kind"] == "replicated" else None
        sizes = [view["layer_bytes"], view_at(peer, found)["layer_bytes"]] if found else [None]
        if None not in sizes and sizes[0] != sizes[1]:
            raise Refused(f"{STATE}replicated recurrent side-state role {role_text(view)} slot_bytes differs "
                          f"(local={sizes[0]}, peer={sizes[1]})")


def warnings_of(self, peer, pairs):
    own, other, texts = self["attention"], peer["attention"], []
    if own["tokens_per_block"] != other["tokens_per_block"]:
        texts.append(f"AttentionPolicy: tokens_per_block mismatch (local={own['tokens_per_block']}, "
                     f"peer={other['tokens_per_block']}); KV transfer proceeds \u2014 ensure block boundaries align "
                     "during transfer.")
    totals = [sum(rank["layers_per_stage"]) for rank in (self, peer)]
    if totals[0] != totals[1]:
        texts.append(f"PeerRegistrar: layer count differs (local={totals[0]}, peer={totals[1]}), allowing partial "
                     "layer transfer.")
    cut = sum(len(view_at(self, key)["entries"]) for key, found in pairs
              if view_at(self, key)["kind"] == "nhd" and view_at(self, key)["heads"] != view_at(peer, found)["heads"])
    if cut and not own["key_only"]:
        texts.append("NHD head-mismatched disaggregated KV transfer has no contiguous staging path and will emit "
                     f"approximately {cut} NIXL descriptors per transferred token per peer, excluding block-level "
                     f"replicated pools (local_kv_heads={own['kv_heads']}, peer_kv_heads={other['kv_heads']}). "
                     "Long-context TEP/DEP transfers may have high latency.")
    return texts


def check(self, peer):
    """All rules; the mapping when the peer is accepted."""
    check_first(self, peer)
    check_attention(self, peer)
    check_coverage(self, peer, "paged")
    check_views(self, peer)
    check_state(self, peer)
    return mapping(self, peer)


# ---- mappers: a name, and a function from (source, destination) slot addresses to copies

def head_offsets(unit, heads, peer_heads, self, peer):
    own, other = group_tp(self), group_tp(peer)
    if own < other:
        return peer["tp"][1] * heads * own // other % heads * unit, 0
    if own > other:
        return 0, self["tp"][1] * peer_heads * other // own % peer_heads * unit
    return 0, 0


class Mapper:
    """Everything that the mappers look at, for one view pair."""

    def __init__(self, self_rank, peer, key, found):
        self.self, self.peer = self_rank, peer
        group, peer_group = self_rank["table"]["groups"][key[0]], peer["table"]["groups"][found[0]]
        self.view, self.other = view_at(self_rank, key), view_at(peer, found)
        self.is_state = group["cache"] == "state"
        own, theirs = layers_of(group, self.view), layers_of(peer_group, self.other)
        common = [layer for layer in own if layer in theirs]
        starts, self.bytes = region_of(self.view)
        peer_starts, self.peer_bytes = region_of(self.other)
        try:
            self.buffers, self.peer_buffers = buffers_of(self.view, key), buffers_of(self.other, found)
        except Refused as error:
            raise NoMapper(str(error)) from error
        local = {layer: number for number, layer in group["layers"]}
        remote = {layer: number for number, layer in peer_group["layers"]}
        self.starts = [(starts[local[layer]], peer_starts[remote[layer]]) for layer in common]

    def choose(self):
        if self.is_state:
            return self.state()
        if self.view["kind"] == "replicated":
            rings = None not in (self.view["ring_slot_bytes"], self.other["ring_slot_bytes"])
            if rings and self.bytes != self.peer_bytes:
                return "ring", None
            return "replicated", self.whole("Replicated")
        if self.self["attention"]["key_only"] or self.view["heads"] == self.other["heads"]:
            return "intact", self.whole(self.view["kind"].upper())
        return ("nhd", self.nhd()) if self.view["kind"] == "nhd" else ("hnd", self.hnd())

    def whole(self, name):
        if self.bytes != self.peer_bytes:
            raise NoMapper(f"{name} cache region size mismatch: local={self.bytes}, peer={self.peer_bytes}")
        runs = []
        for src, dst in self.starts:
            if runs and src == runs[-1][0] + runs[-1][2] and dst == runs[-1][1] + runs[-1][2]:
                runs[-1][2] += self.bytes
            else:
                runs.append([src, dst, self.bytes])
        return lambda slots: [(src + one, dst + two, count) for one, two, count in runs for src, dst in slots]

    def check_buffers(self, name):
        if self.buffers != self.peer_buffers:
            raise NoMapper(f"{name} buffer count per layer mismatch: local={self.buffers}, peer={self.peer_buffers}")

    def hnd(self):
        heads, peer_heads = self.view["heads"], self.other["heads"]
        sides = (("local", self.bytes, heads), ("peer", self.peer_bytes, peer_heads))
        self.check_buffers("HND")
        for name, count, _heads in sides:
            if count % self.buffers:
                raise NoMapper(f"HND layer geometry is not evenly divisible ({name}): bytes_per_layer={count}, "
                               f"buffers_per_layer={self.buffers}")
        for name, count, number in sides:
            if count // self.buffers % number:
                raise NoMapper(f"HND head slicing is not byte-aligned ({name}): "
                               f"layer_kv_bytes={count // self.buffers}, kv_heads={number}")
        size, peer_size = self.bytes // self.buffers, self.peer_bytes // self.buffers
        unit, peer_unit = size // heads, peer_size // peer_heads
        if unit != peer_unit:
            raise NoMapper(f"HND bytes per head mismatch: local={unit}, peer={peer_unit}")
        src, dst = head_offsets(unit, heads, peer_heads, self.self, self.peer)
        flat = [(one + size * k + src, two + peer_size * k + dst) for one, two in self.starts
                for k in range(self.buffers)]
        count = min(heads, peer_heads) * unit
        return lambda slots: [(one + a, two + b, count) for one, two in slots for a, b in flat]

    def nhd(self):
        heads, peer_heads = self.view["heads"], self.other["heads"]
        tokens, peer_tokens = (rank["attention"]["tokens_per_block"] for rank in (self.self, self.peer))
        if tokens != peer_tokens:
            raise NoMapper(f"NHDHeadMismatchMapper requires equal tokens_per_block; local={tokens}, peer={peer_tokens}")
        self.check_buffers("NHD")
        for count, number in ((self.bytes, heads), (self.peer_bytes, peer_heads)):
            pieces = self.buffers * tokens * number
            if count % pieces:
                raise NoMapper(f"NHD region geometry is not evenly divisible: bytes_per_layer={count}, "
                               f"buffers_per_layer={self.buffers}, tokens_per_block={tokens}, kv_heads={number}, "
                               f"denominator={pieces}")
        unit, peer_unit = (count // (self.buffers * tokens * number)
                           for count, number in ((self.bytes, heads), (self.peer_bytes, peer_heads)))
        if unit != peer_unit:
            raise NoMapper(f"NHD bytes per token/head mismatch: local={unit}, peer={peer_unit}")
        src, dst = head_offsets(unit, heads, peer_heads, self.self, self.peer)
        flat = [(one + (k * tokens + t) * heads * unit + src, two + (k * tokens + t) * peer_heads * unit + dst)
                for one, two in self.starts for k in range(self.buffers) for t in range(tokens)]
        count = min(heads, peer_heads) * unit
        return lambda slots: [(one + a, two + b, count) for one, two in slots for a, b in flat]

    def state(self):
        (size, rank), (peer_size, peer_rank) = state_tp(self.self), state_tp(self.peer)
        if self.view["kind"] == "replicated" or size == peer_size:
            if self.bytes != self.peer_bytes:
                raise NoMapper("slot_bytes differs")
            return "state-match", lambda slots: [(one + a, two + b, self.bytes) for one, two in slots
                                                 for a, b in self.starts]
        ratio = max(size, peer_size) // min(size, peer_size)
        if self.view["kind"] == "sectioned":
            own, other = self.view.get("sections") or [], self.other.get("sections") or []
            if len(own) != len(other):
                raise NoMapper("Section count mismatch: ")
        if max(size, peer_size) % min(size, peer_size):
            raise NoMapper("TP sizes must be divisible: ")

        def shift(count):
            return (peer_rank % ratio * count, 0) if size < peer_size else (0, rank % ratio * count)

        if self.view["kind"] == "sectioned":
            cuts, begin, peer_begin = [], 0, 0
            for mine, theirs in zip(own, other):
                count = min(mine, theirs)
                src, dst = shift(count)
                cuts.append((begin + src, peer_begin + dst, count))
                begin, peer_begin = begin + mine, peer_begin + theirs
            return "state-sections", lambda slots: [(one + a + src, two + b + dst, count) for one, two in slots
                                                    for src, dst, count in cuts for a, b in self.starts]
        head = self.view["head_bytes"]
        count = min(self.bytes // head, self.peer_bytes // head) * head
        src, dst = shift(count)
        return "state-heads", lambda slots: [(one + a + src, two + b + dst, count) for one, two in slots
                                             for a, b in self.starts]


# ---- who sends, and what

def elects(self, peer, key, dup):
    view, is_state = view_at(self, key), self["table"]["groups"][key[0]]["cache"] == "state"
    number, ratio = self["tp"][1] % group_tp(self), max(1, group_tp(self) // group_tp(peer))
    owns = number % ratio == peer["dp"][1] % ratio
    if view["kind"] == "replicated":
        return owns
    if is_state:
        return state_tp(self)[0] > 1 or owns
    return dup <= 1 or peer["dp"][1] % dup == number % dup


def state_paired(self, peer):
    (size, rank), (peer_size, peer_rank) = state_tp(self), state_tp(peer)
    return peer_rank // (peer_size // size) == rank if size <= peer_size else rank // (size // peer_size) == peer_rank


def elects_aux(self, peer):
    ratio, stages = max(1, group_tp(self) // group_tp(peer)), stages_met(peer, self)
    return self["tp"][1] % group_tp(self) % ratio == 0 and stages[:1] == [self["pp"][1]]


def slot_addresses(rank, key, slot):
    group = rank["table"]["groups"][key[0]]
    pool = rank["table"]["pools"][group["pool_group"]][view_at(rank, key)["pool"]]
    return pool["base"] + slot * pool["stride"]


def paired_slots(case, key, found, paired):
    """The (source, destination) slot addresses of one view pair."""
    self, peer, request = case["src"], case["dst"], case["request"]
    src, dst = request["src_blocks"][key[0]], request["dst_blocks"][found[0]]
    if self["table"]["groups"][key[0]]["cache"] == "state":
        ids = [(src[0], dst[0])] if src and dst and paired else []
    else:
        if peer["cp"][0] > 1 and self["cp"][0] == 1:
            src = src[peer["cp"][1]::peer["cp"][0]]
        if len(src) != len(dst):
            raise NoMapper(f"positional block tables differ in length: src={len(src)} dst={len(dst)}; both sides must "
                           "span the same prompt")
        first = (request["dst_start_token"] or 0) // self["table"]["tokens_per_block"]
        ids = [(one, two) for one, two in list(zip(src, dst))[first:] if one >= 0 and two >= 0]
    return [(slot_addresses(self, key, one), slot_addresses(peer, found, two)) for one, two in ids]


def fragments(case, pairs, mappers, elected, paired):
    copies = []
    try:
        for (key, found), mapper, sends in zip(pairs, mappers, elected):
            slots = paired_slots(case, key, found, paired) if sends else []
            if slots and isinstance(mapper, NoMapper):
                raise mapper
            if slots and mapper[0] != "ring":
                copies += mapper[1](slots)
    except NoMapper as error:
        return {"error": str(error)}
    packed = b"".join(struct.pack("<3q", *copy) for copy in copies)
    return {"count": len(copies), "bytes": sum(copy[2] for copy in copies),
            "sha256": hashlib.sha256(packed).hexdigest(), "list": [list(copy) for copy in copies[:1024]]}


def answer_accepted(case, pairs, out):
    self, peer = case["src"], case["dst"]
    mappers, elected = [], []
    out["mapping"] = [[list(key), list(found)] for key, found in pairs]
    out["views"] = []
    for key, found in pairs:
        view, other = view_at(self, key), view_at(peer, found)
        paged = self["table"]["groups"][key[0]]["cache"] == "paged" and view["kind"] != "replicated"
        heads = [side["heads"] if paged else rank["attention"]["kv_heads"]
                 for side, rank in ((view, self), (other, peer))]
        dup = factors(heads[0], heads[1], self, peer)
        elected.append(elects(self, peer, key, dup[0]))
        said = {"elect": elected[-1], "dup": dup}
        try:
            mappers.append(Mapper(self, peer, key, found).choose())
            said["mapper"] = mappers[-1][0]
        except NoMapper as error:
            mappers.append(error)
            said["error"] = str(error)
        out["views"].append(said)
    out["state_paired"] = state_paired(self, peer)
    out["elect_aux"] = elects_aux(self, peer)
    out["fragments"] = fragments(case, pairs, mappers, elected, out["state_paired"])


def answer(case):
    self, peer = case["src"], case["dst"]
    met = overlap(self, peer, peer["dp"][1])
    out = {"overlap": met, "expected_transfers": len(met["ranks"])}
    try:
        pairs = check(self, peer)
    except Refused as error:
        text = f"PeerRegistrar.register: peer {peer['name']} (rank={peer['rank']}) is incompatible with local rank."
        out["verdict"] = {"ok": False, "text": text if error.soft else str(error),
                          "style": "soft" if error.soft else "hard", "reason": str(error) if error.soft else None}
        return out
    out["verdict"] = {"ok": True, "warnings": warnings_of(self, peer, pairs)}
    answer_accepted(case, pairs, out)
    return out
