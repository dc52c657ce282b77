# SPDX-License-Identifier: Apache-2.0
"""Changes of cases of vLLM's MooncakeConnector that leave them cases of their family. Each takes a case's `input`,
which it changes, and a function that chooses; an IndexError or KeyError says that there was nothing to change."""
import copy


# ---- registration

def fit(given):
    """Storages become as large as their views need."""
    for view in given["views"]:
        last = sum((size - 1) * stride for size, stride in zip(view["shape"], view["strides"]))
        storage = given["storages"][view["storage"]]
        storage["bytes"] = max(storage["bytes"], view["offset"] + (last + 1) * view["elem"])


def order_axes(given, choice):
    """All views' blocks in another order of axes, dense."""
    for view in given["views"]:
        axes = list(range(len(view["shape"])))
        for at in range(1, len(axes)):
            other = choice(range(at, len(axes)))
            axes[at], axes[other] = axes[other], axes[at]
        stride = 1
        for axis in reversed(axes):
            view["strides"][axis] = stride
            stride *= view["shape"][axis]
        view["offset"] = 0
        given["storages"][view["storage"]]["bytes"] = stride * view["elem"]
    fit(given)


def stride(given, choice):
    """One stride."""
    view = choice(given["views"])
    axis = choice(range(len(view["shape"])))
    view["strides"][axis] = choice([0, 1, 2, view["strides"][axis] * 2, view["strides"][axis] + 1,
                                    choice(view["strides"])])
    if choice([True, True, False]):
        fit(given)


def size(given, choice):
    """One axis of a view."""
    view = choice(given["views"])
    view["shape"][choice(range(len(view["shape"])))] = choice([1, 2, 3, 4])
    if choice([True, True, True, False]):
        fit(given)


def rank(given, choice):
    """One axis more or less."""
    view = choice(given["views"])
    at = choice(range(len(view["shape"])))
    if choice([True, False]) and 1 < len(view["shape"]):
        del view["shape"][at], view["strides"][at]
    elif len(view["shape"]) < 8:
        view["shape"].insert(at, 1)
        view["strides"].insert(at, choice([1, 5, view["strides"][at]]))


def storage_bytes(given, choice):
    """An allocation that fits one view's blocks, or does not."""
    view = choice(given["views"])
    storage = given["storages"][view["storage"]]
    storage["bytes"] = choice([storage["bytes"] + 1, storage["bytes"] * 2,
                               view["shape"][0] * view["strides"][0] * view["elem"]])
    if choice([True, True, False]):
        fit(given)


def offset(given, choice):
    """Where one view begins."""
    view = choice(given["views"])
    view["offset"] = choice([0, view["elem"], choice(given["views"])["offset"], view["offset"] * 2])
    if choice([True, True, False]):
        fit(given)


def storage(given, choice):
    """The allocation of one view, or another one at the same address."""
    view = choice(given["views"])
    if choice([True, False]):
        view["storage"] = choice(range(len(given["storages"])))
    else:
        given["storages"].append(dict(base=given["storages"][-1]["base"] + (1 << 30),
                                      bytes=given["storages"][view["storage"]]["bytes"]))
        view["storage"] = len(given["storages"]) - 1
    fit(given)


def same_view(given, choice):
    """A layer with the view of another one."""
    view, other = choice(given["views"]), choice(given["views"])
    for key in ("storage", "offset", "elem"):
        view[key] = other[key]
    for key in ("shape", "strides"):
        view[key] = list(other[key])


def keep(given, choice):
    """What one layer keeps, or all."""
    kind = choice(["attention", "mla", "mamba", "circular"])
    for name in choice([list(given["specs"]), [choice(list(given["specs"]))]]):
        given["specs"][name]["kind"] = kind


def page(given, choice):
    """One layer's page."""
    spec = given["specs"][choice(list(given["specs"]))]
    view = choice(given["views"])
    spec["page_bytes"] = choice([spec["page_bytes"] + 1, spec["page_bytes"] * 2, spec["page_bytes"] // 2, 0,
                                 view["strides"][0] * view["elem"]])


def no_spec(given, choice):
    """A layer of which nothing is known."""
    del given["specs"][choice(list(given["specs"]))]


def kernel_blocks(given, choice):
    """Kernel blocks of a logical one."""
    given["kernel_blocks_per_block"] = choice([1, 2, 3, 4])


def blocks(given, choice):
    """Blocks of flat buffers."""
    given["num_blocks"] = choice([0, 1, 2, 3, 4, 1 << 62])


def flat(given, choice):
    """A view that is a flat buffer."""
    view = choice(given["views"])
    nbytes = given["storages"][view["storage"]]["bytes"]
    view.update(offset=0, elem=1, shape=[nbytes], strides=[1])
    given["specs"][view["layer"]]["page_bytes"] = choice([nbytes, nbytes // 2, nbytes // 3, nbytes + 1])


def group(given, choice):
    """One layer's group."""
    given["layer_groups"][choice(list(given["layer_groups"]))] = choice([0, 1, 2])


def name(given, choice):
    """One layer's name."""
    view = choice(given["views"])
    was = view["layer"]
    view["layer"] = choice(["7", "model.layers.-2.x", "model.layers. 3 .y", "a.1_0.b", "a.b", "layers.1.sub.2",
                            "model.layers.+4", "x.0x1.5", "x.1__2.6"])
    given["layer_groups"][view["layer"]] = given["layer_groups"][was]
    if was in given["specs"]:
        given["specs"][view["layer"]] = copy.deepcopy(given["specs"][was])


def view_order(given, choice):
    """Views in another order, or one left out."""
    at = choice(range(len(given["views"])))
    view = given["views"].pop(at)
    if choice([True, True, False]):
        given["views"].insert(choice(range(len(given["views"]) + 1)), view)


# ---- lists of regions

def side(given, choice):
    """One of the two lists."""
    return given[choice(["local", "remote"])]


def both(given, choice):
    """A region of each side, or of one: the same place."""
    at = choice(range(max(len(given["local"]), len(given["remote"]))))
    return [given[key][at] for key in choice([["local"], ["remote"], ["local", "remote"], ["local", "remote"]])
            if at < len(given[key])]


def column(number, values):
    """A change of one column to one of `values`, or to that of another region."""
    def change(given, choice):
        other = choice(side(given, choice))
        value = choice(values + [other[number]] * 2)
        for region in both(given, choice):
            region[number] = copy.deepcopy(value)
    change.__name__ = f"column {number}"
    return change


def move(given, choice):
    """Where regions lie: after the one before, with a gap, overlapping, or anywhere."""
    at = choice(range(1, min(len(given["local"]), len(given["remote"]))))
    gap = choice([0, 0, 0, 1, 24, -1, 4096])
    for key in choice([["local"], ["remote"], ["local", "remote"], ["local", "remote"]]):
        regions = given[key]
        regions[at][0] = max(0, regions[at - 1][0] + regions[at - 1][2] + gap)


def row_end(given, choice):
    """A region that ends where the row of an earlier one does, or one byte after."""
    at = choice(range(1, min(len(given["local"]), len(given["remote"]))))
    first, more = choice(range(at)), choice([0, 0, 1])
    for key in ("local", "remote"):
        regions = given[key]
        regions[at][2] = max(0, regions[first][0] + regions[first][1] - regions[at][0] + more)


def swap(given, choice):
    """Two regions of one list, or of both."""
    one, other = choice(range(len(given["local"]))), choice(range(len(given["local"])))
    for key in choice([["local"], ["remote"], ["local", "remote"]]):
        regions = given[key]
        regions[one], regions[other] = regions[other], regions[one]


def drop(given, choice):
    """A region of one list, or of both."""
    at = choice(range(len(given["local"])))
    for key in choice([["local"], ["remote"], ["local", "remote"]]):
        given[key].pop(at)


def repeat(given, choice):
    """A region once more, in one list or in both."""
    at, to = choice(range(len(given["local"]))), choice(range(len(given["local"]) + 1))
    for key in choice([["local"], ["remote"], ["local", "remote"]]):
        given[key].insert(to, copy.deepcopy(given[key][at]))


def turn(given, choice):
    """One list the other way round."""
    side(given, choice).reverse()


def flag(given, _choice):
    """What is asked for."""
    key = "promote_full_row" if "promote_full_row" in given else "allow_partial_layers"
    given[key] = not given[key]


LISTS = [column(1, [4096, 8192]), column(2, [0, 1, 1000, 4096]), column(3, ["model.layers.0.attn", "other.9"]),
         column(4, [0, 7]), column(5, [0, 1, -1]), column(6, [[], [0], [0, 1]]), column(7, [0, -1, 8]), swap, drop,
         repeat, turn, flag]
CHANGES = {
    "register": [order_axes, stride, size, rank, storage_bytes, offset, storage, same_view, keep, page, no_spec,
                 kernel_blocks, blocks, flat, group, name, view_order],
    "align": LISTS,
    "coalesce": LISTS + [move, move, row_end],
}
