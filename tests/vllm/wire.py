#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Messages of the side channel, written apart from kvferry: maps of MessagePack, defaults left out, read strictly."""
import json
from pathlib import Path

import msgpack

FINISH, CONTINUE, ERROR, LAYOUT_MISS = 0, 1, 2, 3
STATUS = ["FINISH", "CONTINUE", "ERROR", "LAYOUT_MISS"]
GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
LAYOUT_MISS_HEX = GOLDEN["replies"][-1]["hex"]
GOLDEN_REPLIES = [(row["name"], row["fields"], row["hex"]) for row in GOLDEN["replies"]]
ARRAYS = [("kv_caches_base_addr", "base_addr"), ("block_lens", "block_len"), ("kv_block_lens", "kv_block_len"),
          ("registered_layer_names", "layer_name"), ("registered_layer_indices", "layer_index"),
          ("registered_group_indices", "group_index"), ("registered_shared_group_ids", "shared_groups"),
          ("registered_row_offsets", "row_offset")]
NEEDED = 3  # so many of the arrays are there even when empty


class Malformed(Exception):
    """What is no message; the text is what a stock peer would say."""


def golden_requests():
    for row in GOLDEN["requests"]:
        yield row["name"], (row["pull"], row["req_blocks"], row.get("layout_id", 0), row.get("whole", True)), row["hex"]


def fields(pull, requests, layout=0, whole=True):
    """A request as a map; `requests` = {d_req_id: (transfer id, block ids per group)}. Not `whole`: without arrays."""
    out = {"remote_hostname": pull["hostname"], "remote_port": pull["port"], "remote_tp_size": pull["tp_size"],
           "remote_tp_rank": pull["tp_rank"], "req_blocks": {name: list(row) for name, row in requests.items()}}
    for number, (key, column) in enumerate(ARRAYS):
        values = pull["regions"].get(column, []) if whole else []
        if values or number < NEEDED:
            out[key] = values
    if pull["pp_size"] != 1:
        out["remote_pp_size"] = pull["pp_size"]
    if layout:
        out["layout_id"] = layout
    return out


def request(pull, requests, layout=0, whole=True):
    return msgpack.packb(fields(pull, requests, layout, whole))


def reply(status, ok_reqs=None, err_reqs=None, err_msg=None, layout_id=0):
    out = {"status": status}
    for key, value in (("ok_reqs", ok_reqs), ("err_reqs", err_reqs), ("err_msg", err_msg), ("layout_id", layout_id)):
        if value:
            out[key] = value
    return msgpack.packb(out)


# ---- reading


def text(value):
    return isinstance(value, str)


def whole_number(value):
    return isinstance(value, int) and not isinstance(value, bool)


def list_of(kind):
    return lambda value: isinstance(value, list) and all(map(kind, value))


def blocks(value):
    return isinstance(value, dict) and all(
        text(key) and isinstance(row, list) and len(row) == 2 and text(row[0]) and
        list_of(list_of(whole_number))(row[1]) for key, row in value.items())


def or_nil(kind):
    return lambda value: value is None or kind(value)


REQUEST = [("remote_hostname", text, None), ("remote_port", whole_number, None),
           ("remote_tp_size", whole_number, None), ("remote_tp_rank", whole_number, None),
           ("req_blocks", blocks, None)] + \
    [(key, list_of(text if key == "registered_layer_names" else list_of(whole_number)
                   if key == "registered_shared_group_ids" else whole_number), None if number < NEEDED else [])
     for number, (key, _) in enumerate(ARRAYS)] + \
    [("remote_pp_size", whole_number, 1), ("layout_id", whole_number, 0)]
REPLY = [("status", whole_number, None), ("ok_reqs", or_nil(list_of(text)), ()),
         ("err_reqs", or_nil(list_of(text)), ()), ("err_msg", or_nil(text), ()),
         ("layout_id", whole_number, 0)]


def read(data, struct):
    try:
        found = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException, UnicodeDecodeError) as error:
        raise Malformed("MessagePack data is malformed: %s" % error) from error
    if not isinstance(found, dict):
        raise Malformed("Expected `object`")
    out = {}
    for key, kind, default in struct:
        if key not in found:
            if default is None:
                raise Malformed("Object missing required field `%s`" % key)
            out[key] = None if default == () else default
        elif not kind(found[key]):
            raise Malformed("wrong type - at `$.%s`" % key)
        else:
            out[key] = found[key]
    return out


def read_request(data):
    return read(data, REQUEST)


def read_reply(data, newest):
    out = read(data, REPLY)
    if not 0 <= out["status"] <= (LAYOUT_MISS if newest else ERROR):
        raise Malformed("Invalid enum value %d - at `$.status`" % out["status"])
    return out


def pull_of(found):
    """A request as the arithmetic takes it."""
    return {"hostname": found["remote_hostname"], "port": found["remote_port"], "tp_size": found["remote_tp_size"],
            "tp_rank": found["remote_tp_rank"], "pp_size": found["remote_pp_size"],
            "regions": {column: found[key] for key, column in ARRAYS}}
