# SPDX-License-Identifier: Apache-2.0
"""Changes of cases of pulls and of the rules of two ranks, as in changes_vllm.py. Lengths and strides stay above 0 and
ids at 0 or more: beyond that the library refuses what upstream would carry out."""
import copy

SIZES = [1, 2, 3, 4, 6, 8, 16, 32]
COLUMNS = ["base_addr", "block_len", "kv_block_len", "layer_name", "layer_index", "group_index", "shared_groups",
           "row_offset"]


# ---- two ranks

def one_of(key, values):
    """A change of one value, a number also to its double or half."""
    def change(given, choice):
        was = given[key]
        given[key] = choice(values + ([was * 2, was // 2 or 1] if type(was) is int else [was]))
    change.__name__ = key
    return change


def rank_below(rank, size):
    """A rank that its size allows."""
    def change(given, choice):
        given[size] = choice(SIZES)
        given[rank] = choice(range(given[size]))
    change.__name__ = rank
    return change


def lengths(given, choice):
    """One payload's length, or one payload more or less."""
    side = given[choice(["local_kv_block_lens", "remote_kv_block_lens"])]
    kind = choice(["length", "length", "length", "more", "less"])
    if kind == "length":
        at = choice(range(len(side)))
        side[at] = choice([side[at] * 2, side[at] // 2 or 1, side[at] + 1])
    elif kind == "more":
        side.append(side[-1])
    else:
        side.pop()


def fit(given, choice):
    """Payloads in the ratio of their shards."""
    heads = given["total_num_kv_heads"] or 1 << 20
    local, remote = min(given["local_tp_size"], heads), min(given["remote_tp_size"], heads)
    given["local_kv_block_lens"] = [choice([64, 192]) * remote for _one in given["local_kv_block_lens"]]
    given["remote_kv_block_lens"] = [one // remote * local for one in given["local_kv_block_lens"]]


def ids(given, choice):
    """One id of a list, or a longer run, or the tail of both."""
    kind = choice(["id", "run", "tail"])
    if kind == "tail":
        at = choice(range(len(given["src"])))
        for side in ("src", "dst"):
            del given[side][at:]
        return
    side = given[choice(["src", "dst"])]
    at = choice(range(len(side)))
    if kind == "id":
        side[at] = choice([0, 7, side[at] + 1, choice(side), (1 << 62) - 1])
    else:
        side[at:] = range(side[at], side[at] + len(side) - at)


# ---- pulls

def grid(given, choice):
    """Ranks and sizes of one side, mostly such that they meet."""
    producer, pull = given["producer"], given["pull"]
    side = choice([producer, pull])
    side["tp_size"] = choice(SIZES)
    side["tp_rank"] = choice(range(side["tp_size"]))
    if choice([True, True, True, False]):
        pull["tp_rank"] = producer["tp_rank"] * pull["tp_size"] // producer["tp_size"]
    if choice([False, False, True]):
        side["pp_size"] = choice([1, 2, 3, 4])


def facts(given, choice):
    """What the producer knows of its model."""
    producer = given["producer"]
    kind = choice(["is_mla", "total_kv_heads", "kernel_blocks_per_block", "has_opaque_row", "kind"])
    if kind in ("is_mla", "has_opaque_row"):
        producer[kind] = not producer[kind]
    elif kind == "kind":
        group = choice(range(len(producer["group_kinds"])))
        producer["group_kinds"][group] = choice(["attention", "mamba"])
        for name, one in producer["layer_specs"].items():
            if producer["layer_groups"][name] == group:
                one["kind"] = producer["group_kinds"][group]
    elif kind == "total_kv_heads":
        producer[kind] = choice([1, 2, 3, 4, 8, 16, 32])
    else:
        producer[kind] = choice([1, 1, 2, 3, 17])


def spec(given, choice):
    """One layer's page, or whether it is in 4-bit form."""
    specs = given["producer"]["layer_specs"]
    one = specs[choice(list(specs))]
    kind = choice(["padded", "nvfp4", "plain"])
    if kind == "padded":
        one["unpadded_page_bytes"] = one["page_bytes"] - 1
    elif kind == "nvfp4":
        one["nvfp4"] = not one["nvfp4"]
    else:
        for each in specs.values():
            each["unpadded_page_bytes"] = each["page_bytes"]
            each["nvfp4"] = False


def payloads(given, choice):
    """Payloads of both sides in the ratio of their shards; strides that hold them."""
    producer, pull = given["producer"], given["pull"]
    heads = 1 if producer["is_mla"] else producer["total_kv_heads"]
    local, remote = min(producer["tp_size"], heads), min(pull["tp_size"], heads)
    part = choice([64, 192])
    for side, times in ((producer, remote), (pull, local)):
        arrays = side["regions"]
        arrays["kv_block_len"] = [part * times for _one in arrays["kv_block_len"]]
        arrays["block_len"] = [max(one, part * times) if choice([True, False]) else part * times
                               for one in arrays["block_len"]]


def sides(given, choice):
    """The regions of one side or of both."""
    both = [given["producer"]["regions"], given["pull"]["regions"]]
    return choice([both[:1], both[1:], both, both])


def column(given, choice):
    """A value of one region, or of the same region of both sides."""
    name = choice(COLUMNS)
    chosen = sides(given, choice)
    at = choice(range(min(len(arrays[name]) for arrays in chosen)))
    was = choice(chosen)[name][at]
    number = was if isinstance(was, int) else 0
    values = {
        "base_addr": [number + 64, max(0, number - 64)],
        "block_len": [number * 2, number + 64],
        "kv_block_len": [number * 2, number // 2 or 1],
        "layer_name": [choice(chosen[0]["layer_name"])],
        "layer_index": [number + 1, 0],
        "group_index": [0, 1, -1],
        "shared_groups": [[], [0], [0, 1], [1, 0]],
        "row_offset": [0, -1, number + 64],
    }
    value = choice(values[name])
    for arrays in chosen:
        arrays[name][at] = copy.deepcopy(value)


def in_a_row(given, choice):
    """All regions of both sides as parts of one row, with gaps or without."""
    payload, gap = choice([64, 1024]), choice([0, 0, 24])
    for side in (given["producer"], given["pull"]):
        arrays = side["regions"]
        count = len(arrays["base_addr"])
        stride = count * (payload + gap) + choice([0, 0, 0, 64])
        arrays["base_addr"] = [arrays["base_addr"][0] + number * (payload + gap) for number in range(count)]
        arrays["block_len"], arrays["kv_block_len"] = [stride] * count, [payload] * count
        arrays["row_offset"] = [number * (payload + gap) for number in range(count)]


def region(given, choice):
    """A region less, one twice, or two that change places."""
    chosen = sides(given, choice)
    count = min([len(values) for arrays in chosen for values in arrays.values() if values] or [0])
    at, other = choice(range(count)), choice(range(count))
    kind = choice(["drop", "repeat", "swap"])
    for arrays in chosen:
        for values in arrays.values():
            if not values:
                continue
            if kind == "drop":
                values.pop(at)
            elif kind == "repeat":
                values.insert(other, copy.deepcopy(values[at]))
            else:
                values[at], values[other] = values[other], values[at]


def missing(given, choice):
    """A column that is not sent, or too short."""
    arrays = choice(sides(given, choice))
    name = choice(COLUMNS[5:] * 3 + COLUMNS)
    arrays[name] = [] if choice([True, True, False]) else arrays[name][:-1]


def list_of(given, choice):
    """One group's ids of a request, or of a ready transfer."""
    return choice(choice(given["producer"]["ready"] + given["pull"]["requests"])["block_ids"])


def more_ids(given, choice):
    """Ids of one group: more, fewer, others, a run, or null blocks."""
    list_ = list_of(given, choice)
    kind = choice(["more", "fewer", "other", "run", "null", "none"])
    if kind == "more":
        list_.extend(range(choice([0, 5, 1000]), 1000 + choice([1, 3, 9])))
        del list_[40:]
    elif kind == "fewer":
        del list_[choice(range(len(list_))):]
    elif kind == "other":
        list_[choice(range(len(list_)))] = choice([0, 1, choice(list_), 4095])
    elif kind == "run":
        list_[:] = range(list_[0], list_[0] + len(list_))
    elif kind == "null":
        list_.insert(choice(range(len(list_) + 1)), 0)
    else:
        list_.clear()


def same_ids(given, choice):
    """As many ids in a request as are ready, or a few less."""
    ready = {one["transfer_id"]: one for one in given["producer"]["ready"]}
    request = choice(given["pull"]["requests"])
    less = choice([0, 0, 1])
    request["block_ids"] = [[choice([one, one + 1, 7]) for one in list_[less:]]
                            for list_ in ready[request["transfer_id"]]["block_ids"]]


def fewer_groups(given, choice):
    """A request with a group less."""
    choice(given["pull"]["requests"])["block_ids"].pop()


PULLS = [grid, grid, facts, spec, payloads, payloads, column, column, in_a_row, region, missing, more_ids, more_ids,
         same_ids, same_ids, fewer_groups]
CHANGES = {
    "sender_plan": [rank_below("local_tp_rank", "local_tp_size"), rank_below("remote_tp_rank", "remote_tp_size"),
                    one_of("local_kv_block_len", [64, 4096]), one_of("remote_kv_block_len", [64, 4096]),
                    one_of("producer_cache_replicated", [False, True]), one_of("total_num_kv_heads", [None, 1, 3, 8])],
    "validate": [one_of("local_tp_size", SIZES), one_of("remote_tp_size", SIZES), lengths, fit, fit,
                 one_of("producer_cache_replicated", [False, True]), one_of("total_num_kv_heads", [None, 1, 3, 8])],
    "ranks": [rank_below("own_tp_rank", "own_tp_size"), one_of("other_tp_size", SIZES), one_of("own_pp_size", SIZES),
              one_of("other_pp_size", SIZES)],
    "runs": [ids],
    "plan": PULLS,
}
